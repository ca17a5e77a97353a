"""``discreet ledger export``: receipts and chains that can be checked without the ledger."""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from discreet.cli.ledger_reader import open_to_read
from discreet.cli.options import Json, count, shown
from discreet.cli.tables import print_json, print_lines
from discreet.errors import InvalidValue

__all__ = ["export"]


def export(
    place: Annotated[str, typer.Argument(metavar="LEDGER", help="The file, or a URL.")],
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="The name of the dataset.")],
    *,
    entry: Annotated[
        str | None,
        typer.Option(metavar="INTEGER", help="The receipt of one entry instead of the chain."),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write to a file instead of stdout."),
    ] = None,
    as_json: Json = False,
) -> None:
    r"""Print the chain of a dataset, or the receipt of one entry, as JSON.

    Keep receipts where the keeper of the ledger cannot reach them: they show later whether
    the chain was cut off. An export is replayed by discreet ledger verify FILE.json.

    \b
    Examples:
      discreet ledger export study.ledger census --output census.json
      discreet ledger export study.ledger census --entry 17 > receipt-17.json
    """
    number = None if entry is None else count("entry", entry, at_least=0, at_most=2**63 - 1)
    with open_to_read(place) as book:
        document = book.export(dataset) if number is None else book.receipt(dataset, number)
    if output is None:
        print_json(document)
        return
    _write(output, json.dumps(document, indent=2, allow_nan=False) + "\n")
    if as_json:
        print_json({"written": output})
    else:
        print_lines([f"written: {shown(output)}"])


def _write(output: str, text: str) -> None:
    """Replace a file at once, or leave it as it was."""
    if "\0" in output or not Path(output).name:
        raise InvalidValue("output", output, "the name of a file")
    target = Path(output)
    draft = target.with_name(f".{target.name[:64]}.{secrets.token_hex(8)}")
    try:
        if target.exists() and not target.is_file():
            # To replace a device by a file would be worse than to refuse it.
            raise InvalidValue("output", output, "the name of a file")
        with draft.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InvalidValue("output", output, f"a file that can be written ({reason})") from None
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
