"""``discreet bench``: defences against membership inference, side by side on one's own records."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from discreet.cli._app import Group, is_quiet, print_json, print_lines, print_table, printable
from discreet.cli._options import Count, output_file
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from discreet.defences import BenchData, Defence

_PUBLIC = ("location30",)


@click.group(cls=Group)
def bench() -> None:
    """Compare ways to defend a model: what they cost, and what still leaks."""


@bench.command(short_help="What each defence costs, and what still leaks.")
@click.argument(
    "records", metavar="RECORDS", help="location30, or a CSV, Parquet or NPZ file of your own."
)
@click.option(
    "--label", metavar="NAME", default="label", help="The column of the true class in a table."
)
@click.option("--only", metavar="NAME", multiple=True, help="A row; may be given several times.")
@click.option("--quick", is_flag=True, help="Six rows and 16 models each, unless you say more.")
@click.option("--shadows", type=Count(at_least=12), help="Models for each row.  [default: 64]")
@click.option("--canaries", type=Count(at_least=40), default="500", help="How many canaries.")
@click.option(
    "--watched", type=Count(at_least=40), default="500", help="How many ordinary records."
)
@click.option("--hidden", type=Count(at_least=1), default="128", help="Width of the networks.")
@click.option("--epochs", type=Count(at_least=1), default="40", help="Epochs of the networks.")
@click.option(
    "--cache", metavar="DIRECTORY", help="Keep models and rows here, and go on from there."
)
@click.option("--seed", type=Count(at_least=0), default="1", help="Repeats the bench.")
@click.option("--output", "-o", metavar="FILE", help="Write a picture (.png or .svg).")
def defences(
    records: str,
    label: str,
    only: tuple[str, ...],
    quick: bool,
    shadows: int | None,
    canaries: int,
    watched: int,
    hidden: int,
    epochs: int,
    cache: str | None,
    seed: int,
    output: str | None,
    as_json: bool,
) -> None:
    """Train networks under each defence, attack them, and compare.

    Every row says where the defence acts, how right its models are, how many members an attack
    that knows the defence finds, and what is proved: mostly nothing. The output is computed from
    the records: it is internal unless they are public.

    Examples:
      discreet bench defences location30 --quick --output defences.png
      discreet bench defences patients.csv --label outcome --only none --only MemGuard --shadows 32
    """
    from discreet.defences import DefenceBench, Mislabelled, standard_defences

    data = _read(records, label, seed)
    with output_file(output, ".png", ".svg") as draft:
        rows = standard_defences(
            data, hidden=hidden, epochs=epochs, canaries=canaries, quick=quick and not only
        )
        found = DefenceBench(
            _choose(rows, only),
            data,
            Mislabelled(canaries),
            shadows or (16 if quick else 64),
            watched=watched,
            cache=cache,
            seed=seed,
            progress=None if as_json or is_quiet() else _note,
        ).run()
        if draft is not None:
            from discreet.report import draw_defences

            draw_defences(found, draft)
    if as_json:
        print_json(found.to_json())
        return
    heading, *lines = found.table()
    for line in lines:
        print_table(["", line[0]], list(map(list, zip(heading[1:], line[1:], strict=True))))
    wrote = [f"Picture: {printable(output)}"] if output else []
    print_lines(["Intervals speak of these records, over models.", *wrote])


def _read(records: str, label: str, seed: int) -> BenchData:
    from discreet.attacks import read_records
    from discreet.defences import BenchData

    if records in _PUBLIC:
        from discreet.data import location30

        public = location30()
        return BenchData.split(public.x, public.y, seed=seed)
    import numpy as np

    found = read_records("records", records, label=label)
    codes = np.unique(found.labels, return_inverse=True)[1]
    return BenchData.split(found.values, codes, seed=seed)


def _note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _choose(rows: tuple[Defence, ...], only: tuple[str, ...]) -> list[Defence]:
    names = [row.name for row in rows]
    for name in only:
        if name not in names:
            raise InvalidValue("only", name, f"one of {', '.join(names)}")
    return [row for row in rows if not only or row.name in only]
