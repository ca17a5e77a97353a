"""``discreet attack anonymity``, ``linkage`` and ``made-up-tables``: tables without names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from discreet.cli.attack_output import (
    Exposed,
    PageFile,
    PublicRecords,
    Seed,
    page_place,
    print_marked,
)
from discreet.cli.options import Json, count, real
from discreet.cli.tables import print_json, print_lines, print_table
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from discreet.attacks import AnonymityResult, LinkageResult

__all__ = ["anonymity", "linkage", "made_up"]

Generalise = Annotated[
    list[str] | None,
    typer.Option(
        metavar="RULE",
        help="COLUMN:prefix=3, COLUMN:band=10, COLUMN:day, :month, :year, :decade or :drop. May be "
        "given several times, each on top of those before.",
    ),
]
Delimiter = Annotated[str, typer.Option(metavar="CHARACTER", help="Between cells of CSV files.")]


def anonymity(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A CSV or Parquet file.")],
    *,
    quasi_identifiers: Annotated[
        list[str],
        typer.Option(
            "--quasi",
            metavar="COLUMN",
            help="A column that others may know of a person. May be given several times.",
        ),
    ],
    sensitive: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="A column that nobody should learn of a person."),
    ] = None,
    generalise: Generalise = None,
    k: Annotated[
        list[str] | None,
        typer.Option("--k", metavar="INTEGER", help="Count rows in groups of fewer than k."),
    ] = None,
    delimiter: Delimiter = ",",
    exposed: Exposed = "0",
    public_records: PublicRecords = False,
    output: PageFile = None,
    as_json: Json = False,
) -> None:
    r"""Measure how well the rows of a table hide among each other.

    Unique rows, k-anonymity, l-diversity and t-closeness, also by fewer columns and after
    generalisation. None of these is a guarantee: they describe this table, today.

    \b
    Examples:
      discreet attack anonymity patients.csv --quasi zip --quasi birth --quasi sex
      discreet attack anonymity patients.csv --quasi zip --quasi birth --sensitive diagnosis \
        --generalise birth:year --generalise zip:prefix=3 --output anonymity.html
    """
    from discreet.attacks import LEVELS_K, measure_anonymity

    levels = LEVELS_K if not k else tuple(count("k", each, at_least=2) for each in k)
    listed = count("exposed", exposed, at_least=0)
    with page_place(output) as place:
        try:
            result = measure_anonymity(
                file,
                quasi_identifiers=quasi_identifiers,
                sensitive=sensitive or (),
                generalise=generalise or (),
                k=levels,
                delimiter=delimiter,
            )
        except InvalidValue as error:
            name = {"quasi_identifiers": "quasi", "data": "file"}.get(error.argument)
            raise InvalidValue(name or error.argument, error.value, error.expected) from None
        if place.wanted:
            from discreet.report import anonymity_page

            page = anonymity_page(
                result, about={"file": file}, exposed=listed, public_records=public_records
            )
            place.write(page)
    internal = listed > 0 or not public_records
    if as_json:
        rows = [int(row) for row in result.most_exposed(listed)]
        exposing = {"exposes_records": True, "most_exposed_rows": rows} if listed else {}
        print_json({**result.to_json(), "internal": internal, **exposing})
        return
    _print_anonymity(result, listed)
    print_marked(output, internal=internal)


def _print_anonymity(result: AnonymityResult, listed: int) -> None:
    profiles = [result.profile, *result.steps]
    levels = list(result.profile.rows_below_k)
    rows = [
        [
            ", ".join(profile.generalisations) or "as it is",
            str(profile.k),
            f"{profile.unique_share:.4f}",
            *(f"{profile.share_below(k):.4f}" for k in levels if k > 2),
            *(
                f"{secret.distinct_l} / {secret.entropy_l:.2f} / {secret.closeness_t:.3f}"
                for secret in profile.sensitive
            ),
        ]
        for profile in profiles
    ]
    headings = ["", "k", "unique", *(f"< {k}" for k in levels if k > 2)]
    headings += [f"{secret.column}: l / entropy l / t" for secret in result.profile.sensitive]
    print_table(headings, rows, numeric=(False, *([True] * (len(headings) - 1))))
    profile = result.profile
    lines = [
        "",
        (
            f"{profile.unique_rows} of {profile.rows} rows are alone with their "
            f"{', '.join(profile.columns)}; {profile.groups} groups."
        ),
    ]
    if result.subsets:
        worst = max(result.subsets, key=lambda each: each.unique_share)
        told = f"{', '.join(worst.columns)} alone single out {worst.unique_share:.4f} of the rows."
        lines.append(told)
    if listed:
        lines.append("INTERNAL, unsafe to publish: rows in the smallest groups, from 0:")
        lines.append("  " + ", ".join(str(row) for row in result.most_exposed(listed).tolist()))
    print_lines(lines)


def linkage(
    released: Annotated[
        str, typer.Argument(metavar="RELEASED", help="The table without names, CSV or Parquet.")
    ],
    register: Annotated[
        str, typer.Argument(metavar="REGISTER", help="The table with names, CSV or Parquet.")
    ],
    *,
    on: Annotated[
        list[str],
        typer.Option(
            metavar="COLUMN",
            help="A column of both tables, or RELEASED=REGISTER if the names differ. May be given "
            "several times.",
        ),
    ],
    tolerance: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=NUMBER",
            help="How far numbers may lie apart; days for dates.",
        ),
    ] = None,
    generalise: Generalise = None,
    truth: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Says who a row is, in both tables (or RELEASED=REGISTER). Used to count right "
            "matches, never to find them.",
        ),
    ] = None,
    confidence: Annotated[str, typer.Option(metavar="NUMBER", help="Of all intervals.")] = "0.95",
    delimiter: Delimiter = ",",
    exposed: Exposed = "0",
    public_records: PublicRecords = False,
    output: PageFile = None,
    as_json: Json = False,
) -> None:
    r"""Link a release without names to a register with names.

    Reports how many released rows have exactly one candidate and, with known truth, how many
    people were re-identified.

    \b
    Examples:
      discreet attack made-up-tables --out tables
      discreet attack linkage tables/released.csv tables/register.csv \
        --on zip --on birth --on sex --tolerance birth=1 --truth person --output linkage.html
    """
    from discreet.attacks import link_tables

    level = real("confidence", confidence, above=0, below=1)
    listed = count("exposed", exposed, at_least=0)
    keys = dict(_renamed("on", each) for each in on)
    if len(keys) < len(on):
        raise InvalidValue("on", ", ".join(on), "each column once")
    widths = dict(_width(each) for each in tolerance or ())
    with page_place(output) as place:
        result = link_tables(
            released,
            register,
            on=keys,
            tolerance=widths,
            generalise=generalise or (),
            truth=None if truth is None else _renamed("truth", truth),
            confidence=level,
            delimiter=delimiter,
        )
        if place.wanted:
            from discreet.report import linkage_page

            files = {"released": released, "register": register}
            page = linkage_page(result, about=files, exposed=listed, public_records=public_records)
            place.write(page)
    internal = listed > 0 or not public_records
    if as_json:
        pairs = [(row, int(result.match[row])) for row in _matched(result, listed)]
        exposing = {"exposes_records": True, "matches": pairs} if listed else {}
        print_json({**result.to_json(), "internal": internal, **exposing})
        return
    _print_linkage(result, listed)
    print_marked(output, internal=internal)


def _matched(result: LinkageResult, listed: int) -> list[int]:
    return [row for row, other in enumerate(result.match.tolist()) if other >= 0][:listed]


def _print_linkage(result: LinkageResult, listed: int) -> None:
    print_table(
        ("candidates", "released rows", "share"),
        [
            [name, str(rows), f"{rows / result.released_rows:.4f}"]
            for name, rows in result.candidate_counts.items()
        ],
        numeric=(False, True, True),
    )
    lines = [
        "",
        (
            f"{result.unique_matches} of {result.released_rows} released rows have exactly one "
            f"candidate among {result.register_rows}; {result.mutual_matches} of these candidates "
            "are nobody else's."
        ),
    ]
    if result.truth is None:
        lines.append("How many of them are right is not known: give --truth to count them.")
    else:
        lines.append(f"re-identified: {result.truth.reidentified} released rows")
        if result.truth.precision is not None:
            lines.append(f"right, of unique matches: {result.truth.precision}")
    if listed:
        lines.append("INTERNAL, unsafe to publish: released row = row of the register, from 0:")
        lines += [f"  {row} = {int(result.match[row])}" for row in _matched(result, listed)]
    print_lines(lines)


def _renamed(argument: str, text: str) -> tuple[str, str]:
    left, equal, right = text.partition("=")
    if not left or (equal and not right):
        raise InvalidValue(argument, text, "COLUMN, or RELEASED=REGISTER")
    return left, right or left


def _width(text: str) -> tuple[str, float]:
    column, equal, width = text.rpartition("=")
    if not equal or not column:
        raise InvalidValue("tolerance", text, "COLUMN=NUMBER, as in birth=1")
    return column, real("tolerance", width, at_least=0)


def made_up(
    *,
    out: Annotated[str, typer.Option(metavar="DIRECTORY", help="A new directory for two files.")],
    population: Annotated[
        str, typer.Option(metavar="INTEGER", help="How many people to make up.")
    ] = "100000",
    seed: Seed = None,
    as_json: Json = False,
) -> None:
    r"""Write a made-up release and a made-up register, to try linkage on.

    Nobody in them exists. Zip codes, birth dates and sexes have realistic marginals, so that
    about as many people are unique as in a real country.

    \b
    Examples:
      discreet attack made-up-tables --out tables --population 100000
    """
    from discreet._files import new_directory
    from discreet.attacks import made_up_tables

    size = count("population", population, at_least=10, at_most=10**8)
    start = None if seed is None else count("seed", seed, at_least=0)
    with new_directory(out) as draft:
        tables = made_up_tables(size, seed=start)
        names = [place.name for place in tables.write(draft)]
    rows = [len(tables.released["zip"]), len(tables.register["zip"])]
    if as_json:
        files = dict(zip(names, rows, strict=True))
        print_json({"out": out, "internal": False, "files": files})
        return
    told = ", ".join(f"{name} ({size} rows)" for name, size in zip(names, rows, strict=True))
    print_lines([f"written: {told} in {out}; nobody in them exists"])
