"""``discreet ledger migrate``: bring what earlier versions kept up to date."""

from __future__ import annotations

from typing import Annotated

import typer

from discreet.cli.options import Json, shown
from discreet.cli.tables import print_json, print_lines

__all__ = ["migrate"]


def migrate(
    place: Annotated[str, typer.Argument(metavar="FILE", help="A ledger in a single file.")],
    *,
    as_json: Json = False,
) -> None:
    r"""Make a directory of a ledger in a single file, as version 0.1 kept it.

    The ledger is verified first, and every entry stays as it is. Close it everywhere before.
    The old file is kept beside it as FILE.before-4; older programs refuse it. A migration that
    was cut short can be repeated.

    \b
    Example:
      discreet ledger migrate study.ledger
    """
    from discreet.ledger import Ledger

    kept = str(Ledger.migrate(place))
    if as_json:
        print_json({"ledger": place, "old": kept})
    else:
        print_lines([f"{shown(place)}: migrated; the old file is {shown(kept)}"])
