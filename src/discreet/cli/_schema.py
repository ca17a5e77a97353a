"""``discreet schema draft``: what is public about a table, from names, types and a codebook."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from discreet.cli._app import Group, print_json, print_lines, printable
from discreet.cli._options import Count, output_file


@click.group(cls=Group)
def schema() -> None:
    """Write down what is public about a table.

    Examples:
      discreet schema draft patients.csv --target outcome --output schema.toml
    """


@schema.command(short_help="A schema from names, types and a codebook; no value is read.")
@click.argument("file", metavar="FILE", help="A CSV or Parquet file.")
@click.option("--output", "-o", metavar="FILE", help="Where to write the schema (.toml).")
@click.option("--codebook", metavar="FILE", help="Public facts by column: CSV or JSON.")
@click.option("--target", metavar="NAME", help="The column to predict.")
@click.option("--person", metavar="NAME", help="The column that says whose row it is.")
@click.option("--rows-per-person", type=Count(at_least=1), help="Rows of one person, at most.")
@click.option("--rows", type=Count(at_least=1), help="The public order of magnitude of rows.")
@click.option("--delimiter", metavar="MARK", default=",", help="What is between the cells of CSV.")
@click.option("--names", metavar="A,B,...", help="The columns of a CSV file without a heading.")
@click.option(
    "--ask/--no-ask", default=None, help="Ask for what is open.  [default: on a terminal]"
)
def draft(
    file: str,
    output: str | None,
    rows: int | None,
    delimiter: str,
    names: str | None,
    ask: bool | None,
    as_json: bool,
    **facts: Any,
) -> None:
    """Draft a schema of a private table; nothing of its values is read, so it costs nothing.

    Types come from a Parquet file or are guessed from names; bounds and categories come from a
    public codebook and from your answers. What stays open is marked, with what it would cost to
    learn it. A codebook is a JSON object of columns, or a CSV file with the columns name, type,
    lower, upper, categories (apart by |), other, missing.

    Examples:
      discreet schema draft patients.csv --target outcome --output schema.toml
      discreet schema draft patients.csv --codebook codebook.csv --no-ask --json
    """
    from discreet.data import CsvFormat, draft_schema

    written = CsvFormat(
        delimiter={"tab": "\t"}.get(delimiter, delimiter),
        names=None if names is None else tuple(part.strip() for part in names.split(",")),
    )
    asks = sys.stdin.isatty() and not as_json if ask is None else ask
    found = draft_schema(
        file,
        expected_rows=rows,
        csv_format=written,
        ask=_ask if asks else None,
        **facts,
    )
    text = found.to_toml()
    with output_file(output, ".toml") as place:
        if place is not None:
            Path(place).write_text(text, encoding="utf-8")
    if as_json:
        print_json(
            {
                "output": output,
                "schema": text,
                "open": list(found.schema.incomplete),
                "guessed": list(found.guessed),
                "cost": found.open_lines(),
            }
        )
        return
    lines = [] if output is not None else text.splitlines()
    lines += [f"# {line}" for line in found.open_lines()]
    lines += [f"# types guessed by name: {', '.join(found.guessed)}"] if found.guessed else []
    print_lines(map(printable, [*lines, *([] if output is None else [f"# written: {output}"])]))


def _ask(name: str, question: str) -> str:
    title = f"{name}: {question}" if name else question
    answer: str = click.prompt(printable(title), default="", show_default=False, err=True)
    return answer
