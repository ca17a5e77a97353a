"""``discreet attack`` on tables without names, and of any registered attack by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from discreet._validate import one_of
from discreet.cli._app import print_json, print_lines, print_marked, print_table
from discreet.cli._attack_models import (
    MODEL,
    PUBLIC_RECORDS,
    attack,
    exposed_option,
    label_option,
    model_output_option,
    overlap_option,
    public_records_option,
)
from discreet.cli._options import (
    Count,
    combine_options,
    confidence_option,
    output_file,
    page_option,
    real,
    seed_option,
)
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from discreet.attacks import AnonymityResult, LinkageResult

table_options = combine_options(
    click.option(
        "--generalise",
        metavar="RULE",
        multiple=True,
        help="COLUMN:prefix=3, COLUMN:band=10, COLUMN:day, :month, :year, :decade or :drop. May be "
        "given several times, each on top of those before.",
    ),
    click.option(
        "--delimiter", metavar="CHARACTER", default=",", help="Between cells of CSV files."
    ),
    exposed_option,
    public_records_option,
    page_option,
)


@attack.command(short_help="Who stands alone in a table.")
@click.argument("file", metavar="FILE", help="A CSV or Parquet file.")
@click.option(
    "--quasi",
    "quasi_identifiers",
    metavar="COLUMN",
    multiple=True,
    required=True,
    help="A column that others may know of a person. May be given several times.",
)
@click.option(
    "--sensitive",
    metavar="COLUMN",
    multiple=True,
    help="A column that nobody should learn of a person.",
)
@click.option(
    "--k",
    "levels",
    type=Count(at_least=2),
    multiple=True,
    help="Count rows in groups of fewer than k.",
)
@table_options
def anonymity(
    file: str,
    levels: tuple[int, ...],
    exposed: int,
    public_records: bool,
    output: str | None,
    as_json: bool,
    **asked: Any,
) -> None:
    r"""Measure how well the rows of a table hide among each other.

    Unique rows, k-anonymity, l-diversity and t-closeness, also by fewer columns and after
    generalisation. None of these is a guarantee: they describe this table, today.

    Examples:
      discreet attack anonymity patients.csv --quasi zip --quasi birth --quasi sex
      discreet attack anonymity patients.csv --quasi zip --quasi birth --sensitive diagnosis \
        --generalise birth:year --generalise zip:prefix=3 --output anonymity.html
    """
    from discreet.attacks import LEVELS_K, measure_anonymity

    with output_file(output, ".html") as draft:
        result = measure_anonymity(file, k=levels or LEVELS_K, **asked)
        if draft is not None:
            from discreet.report import anonymity_page

            anonymity_page(
                result, about={"file": file}, exposed=exposed, public_records=public_records
            ).write(draft)
    internal = exposed > 0 or not public_records
    if as_json:
        rows = [int(row) for row in result.most_exposed(exposed)]
        exposing = {"exposes_records": True, "most_exposed_rows": rows} if exposed else {}
        print_json({**result.to_json(), "internal": internal, **exposing})
        return
    _print_anonymity(result, exposed)
    print_marked(output, internal=internal, unless=PUBLIC_RECORDS)


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
    print_table(headings, rows, numbers=range(1, len(headings)))
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
        line = f"{', '.join(worst.columns)} alone single out {worst.unique_share:.4f} of the rows."
        lines.append(line)
    if listed:
        lines.append("INTERNAL, unsafe to publish: rows in the smallest groups, from 0:")
        lines.append("  " + ", ".join(str(row) for row in result.most_exposed(listed).tolist()))
    print_lines(lines)


@attack.command(short_help="Two tables about the same people.")
@click.argument("released", metavar="RELEASED", help="The table without names, CSV or Parquet.")
@click.argument("register", metavar="REGISTER", help="The table with names, CSV or Parquet.")
@click.option(
    "--on",
    metavar="COLUMN",
    multiple=True,
    required=True,
    help="A column of both tables, or RELEASED=REGISTER if the names differ. May be given several "
    "times.",
)
@click.option(
    "--tolerance",
    metavar="COLUMN=NUMBER",
    multiple=True,
    help="How far numbers may lie apart; days for dates.",
)
@click.option(
    "--truth",
    metavar="COLUMN",
    help="Says who a row is, in both tables (or RELEASED=REGISTER). Used to count right matches, "
    "never to find them.",
)
@confidence_option
@table_options
def linkage(
    released: str,
    register: str,
    on: tuple[str, ...],
    tolerance: tuple[str, ...],
    truth: str | None,
    exposed: int,
    public_records: bool,
    output: str | None,
    as_json: bool,
    **asked: Any,
) -> None:
    r"""Link a release without names to a register with names.

    Reports how many released rows have exactly one candidate and, with known truth, how many
    people were re-identified.

    Examples:
      discreet attack made-up-tables --out tables
      discreet attack linkage tables/released.csv tables/register.csv \
        --on zip --on birth --on sex --tolerance birth=1 --truth person --output linkage.html
    """
    from discreet.attacks import link_tables

    keys = dict(_parse_renaming("on", each) for each in on)
    if len(keys) < len(on):
        raise InvalidValue("on", ", ".join(on), "each column once")
    with output_file(output, ".html") as draft:
        result = link_tables(
            released,
            register,
            on=keys,
            tolerance=dict(_width(each) for each in tolerance),
            truth=None if truth is None else _parse_renaming("truth", truth),
            **asked,
        )
        if draft is not None:
            from discreet.report import linkage_page

            files = {"released": released, "register": register}
            linkage_page(result, about=files, exposed=exposed, public_records=public_records).write(
                draft
            )
    internal = exposed > 0 or not public_records
    if as_json:
        pairs = [(row, int(result.match[row])) for row in _find_matches(result, exposed)]
        exposing = {"exposes_records": True, "matches": pairs} if exposed else {}
        print_json({**result.to_json(), "internal": internal, **exposing})
        return
    _print_linkage(result, exposed)
    print_marked(output, internal=internal, unless=PUBLIC_RECORDS)


def _find_matches(result: LinkageResult, listed: int) -> list[int]:
    return [row for row, other in enumerate(result.match.tolist()) if other >= 0][:listed]


def _print_linkage(result: LinkageResult, listed: int) -> None:
    print_table(
        ("candidates", "released rows", "share"),
        [
            [name, str(rows), f"{rows / result.released_rows:.4f}"]
            for name, rows in result.candidate_counts.items()
        ],
        numbers=(1, 2),
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
        lines += [f"  {row} = {int(result.match[row])}" for row in _find_matches(result, listed)]
    print_lines(lines)


def _parse_renaming(argument: str, text: str) -> tuple[str, str]:
    left, equal, right = text.partition("=")
    if not left or (equal and not right):
        raise InvalidValue(argument, text, "COLUMN, or RELEASED=REGISTER")
    return left, right or left


def _width(text: str) -> tuple[str, float]:
    column, equal, width = text.rpartition("=")
    if not equal or not column:
        raise InvalidValue("tolerance", text, "COLUMN=NUMBER, as in birth=1")
    return column, real("tolerance", width, at_least=0)


@attack.command("made-up-tables", short_help="Two tables of made-up people to link.")
@click.option("--out", metavar="DIRECTORY", required=True, help="A new directory for two files.")
@click.option(
    "--population",
    type=Count(at_least=10, at_most=10**8),
    default="100000",
    help="How many people to make up.",
)
@seed_option
def made_up(out: str, population: int, seed: int | None, as_json: bool) -> None:
    r"""Write a made-up release and a made-up register, to try linkage on.

    Nobody in them exists. Zip codes, birth dates and sexes have realistic marginals, so that
    about as many people are unique as in a real country.

    Examples:
      discreet attack made-up-tables --out tables --population 100000
    """
    from discreet._files import new_directory
    from discreet.attacks import made_up_tables

    with new_directory(out) as draft:
        tables = made_up_tables(population, seed=seed)
        names = [place.name for place in tables.write(draft)]
    rows = [len(tables.released["zip"]), len(tables.register["zip"])]
    if as_json:
        files = dict(zip(names, rows, strict=True))
        print_json({"out": out, "internal": False, "files": files})
        return
    line = ", ".join(f"{name} ({size} rows)" for name, size in zip(names, rows, strict=True))
    print_lines([f"written: {line} in {out}; nobody in them exists"])


_module_option = click.option(
    "--module", metavar="MODULE", help="Import this module first, which registers attacks."
)


@attack.command("list", short_help="The attacks that can be run by name.")
@_module_option
def list_attacks(module: str | None, as_json: bool) -> None:
    """List the attacks that can be run by name, with what they need.

    Example:
      discreet attack list
    """
    from discreet.attacks import ATTACKS

    _import_module(module)
    known = list(ATTACKS.values())
    if as_json:
        names = ("name", "family", "access", "needs", "summary")
        print_json({"attacks": [{name: getattr(one, name) for name in names} for one in known]})
        return
    rows = [(one.name, one.family, ", ".join(one.needs), one.summary) for one in known]
    print_table(("attack", "family", "needs", "about"), rows)


@attack.command("run", short_help="One attack, by its name.")
@click.argument("name", metavar="NAME", help="A name from discreet attack list.")
@click.option(
    "--input",
    "inputs",
    metavar="NAME=VALUE",
    multiple=True,
    help="What the attack needs: a file, or names between commas. May be given several times.",
)
@click.option(
    "--set",
    "settings",
    metavar="NAME=VALUE",
    multiple=True,
    help="A setting of the attack. May be given several times.",
)
@_module_option
@click.option("--model", metavar="MODEL", help=f"{MODEL} It reads the files of records.")
@model_output_option
@label_option
@overlap_option
@public_records_option
@page_option
def run_by_name(
    name: str,
    inputs: tuple[str, ...],
    settings: tuple[str, ...],
    module: str | None,
    model: str | None,
    model_output: str | None,
    label: str,
    overlap: str,
    public_records: bool,
    output: str | None,
    as_json: bool,
) -> None:
    r"""Run an attack of the registry, your own ones too.

    With --model the inputs members, nonmembers and public are files of records. Attacks that
    train shadow models are run by discreet attack membership.

    Examples:
      discreet attack run yeom --model student --input members=train.csv --input nonmembers=test.csv
      discreet attack run reconstruction --input answers=answers.csv --input queries=asked.npy \
        --input secrets=secrets.csv
      discreet attack run measure_anonymity --input released=patients.csv \
        --input quasi_identifiers=zip,birth --set k=[2,5] --output anonymity.html
    """
    from discreet.attacks import ATTACKS, read_inputs, read_model, run_attack

    _import_module(module)
    one_of("name", name, tuple(ATTACKS))
    texts = dict(_assignment("input", text) for text in inputs)
    chosen = ATTACKS[name].read_settings(dict(_assignment("set", text) for text in settings))
    with output_file(output, ".html") as draft:
        given, rest = {}, dict(texts)
        if model is not None:
            asked = read_model(model, label=label, output=model_output)
            given = asked.read_inputs(ATTACKS[name].needs, rest, overlap)
        done = run_attack(name, {**given, **read_inputs(rest)}, **chosen)
        if draft is not None:
            from discreet.report import attack_page

            about = {**({} if model is None else {"model": model}), **texts}
            attack_page(done, title=name, about=about, public_records=public_records).write(draft)
    if as_json:
        print_json({"internal": not public_records, **done.to_json()})
        return
    print_lines(done.lines())
    print_marked(output, internal=not public_records, unless=PUBLIC_RECORDS)


def _import_module(name: str | None) -> None:
    if name is None:
        return
    from discreet.attacks import import_name

    import_name("module", f"{name}:__name__")


def _assignment(argument: str, text: str) -> tuple[str, str]:
    name, equal, value = text.partition("=")
    if not name or not equal:
        raise InvalidValue(argument, text, "NAME=VALUE")
    return name, value
