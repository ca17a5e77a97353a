"""``discreet recheck``: which certificates, models and ledgers of 0.1 claim too little."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from discreet.cli.options import Json, shown
from discreet.cli.tables import at_most, finite, print_json, print_lines, print_table
from discreet.errors import FileUnusable, SchemaError

__all__ = ["recheck"]


def recheck(
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="Everything below this directory is looked at.")
    ],
    *,
    as_json: Json = False,
) -> None:
    r"""List every certificate, model and ledger of version 0.1 that claims too small an epsilon.

    Each is sound, affected (with the epsilon that 0.1 stated and the one that holds) or not
    checked. Nothing is written. Exit code 0 if all are sound, 1 if one is affected, 6 if none is
    affected but something could not be checked. A ledger is mended by discreet ledger correct.

    \b
    Example:
      discreet recheck releases
    """
    from discreet.report import recheck as look

    try:
        found = look(directory)
    except SchemaError:
        raise FileUnusable("directory", directory, "a directory") from None
    counts = {state: sum(one.state == state for one in found) for state in _STATES}
    if as_json:
        rows = [{**asdict(one), "old": _plain(one.old), "new": _plain(one.new)} for one in found]
        print_json({"directory": directory, **counts, "files": rows})
    else:
        if found:
            headings = ("file", "what", "state", "epsilon in 0.1", "epsilon", "why")
            rows_ = [
                (shown(one.path), one.kind, one.state, _text(one.old), _text(one.new), one.why)
                for one in found
            ]
            print_table(headings, rows_, numeric=(False, False, False, True, True, False))
        print_lines(["", ", ".join(f"{count} {state}" for state, count in counts.items())])
    if counts["affected"]:
        raise typer.Exit(1)
    if counts["not checked"]:
        raise typer.Exit(6)


_STATES = ("sound", "affected", "not checked")


def _plain(value: float | None) -> float | None:
    return None if value is None else finite(value)


def _text(value: float | None) -> str:
    return "" if value is None else at_most(value)
