"""``discreet ledger export``: receipts and chains that can be checked without the ledger."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from discreet.cli.ledger_reader import open_to_read
from discreet.cli.options import Json, count, shown
from discreet.cli.signing import PassphraseFile, SigningKey, private_key, write_text
from discreet.cli.tables import print_json, print_lines

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
    sign_key: SigningKey = None,
    passphrase_file: PassphraseFile = None,
    as_json: Json = False,
) -> None:
    r"""Print the chain of a dataset, or the receipt of one entry, as JSON.

    Keep receipts where the keeper of the ledger cannot reach them: they show later whether
    the chain was cut off. An export is replayed by discreet ledger verify FILE.json. With
    --sign-key it comes in a signed envelope (discreet certificate keygen makes the key).

    \b
    Examples:
      discreet ledger export study.ledger census --output census.json
      discreet ledger export study.ledger census --entry 17 > receipt-17.json
      discreet ledger export study.ledger census --entry 17 --sign-key clinic.key > signed-17.json
    """
    number = None if entry is None else count("entry", entry, at_least=0, at_most=2**63 - 1)
    own = None if sign_key is None else private_key(sign_key, passphrase_file)
    with open_to_read(place) as book:
        document = book.export(dataset) if number is None else book.receipt(dataset, number)
    if own is not None:
        from discreet.ledger import sign_document

        document = sign_document(document, own).to_json()
    if output is None:
        print_json(document)
        return
    write_text(output, json.dumps(document, indent=2, allow_nan=False) + "\n")
    if as_json:
        print_json({"written": output})
    else:
        print_lines([f"written: {shown(output)}"])
