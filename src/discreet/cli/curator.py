"""``discreet curator``: what owners do at the terminal before and while a service runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from discreet.cli.ledger_group import LedgerGroup
from discreet.cli.options import Json, count
from discreet.cli.tables import print_json, print_lines, print_table
from discreet.errors import InvalidValue, LedgerMissing

if TYPE_CHECKING:
    from discreet.curator.service import Registry
    from discreet.ledger import Ledger

__all__ = ["curator"]

Place = Annotated[str, typer.Argument(metavar="LEDGER", help="The file, or a postgresql:// URL.")]
Amount = Annotated[str | None, typer.Option(metavar="NUMBER", help="Exact: 1, 0.1 or 1/3.")]
Delta = Annotated[str, typer.Option(metavar="NUMBER", help="Exact: 0, 1e-6.")]

curator = typer.Typer(
    name="curator",
    cls=LedgerGroup,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Datasets, analysts and tokens of a service (discreet serve).",
)


@contextmanager
def _opened(place: str, *, create: bool = False) -> Iterator[tuple[Ledger, Registry]]:
    from discreet.curator.service import Registry
    from discreet.ledger import Ledger

    try:
        ledger = Ledger.open(place)
    except LedgerMissing:
        if not create:
            raise
        ledger = Ledger.create(place)
    with ledger:
        yield ledger, Registry(ledger)


@curator.command(short_help="Serve a file or table, with a budget.")
def dataset(
    place: Place,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What analysts call it.")],
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A file: CSV, Parquet, DuckDB.")],
    *,
    schema: Annotated[str, typer.Option(metavar="FILE", help="The schema, a TOML file.")],
    epsilon: Annotated[
        str | None,
        typer.Option(metavar="NUMBER", help="Exact. Without it the ledger has the budget already."),
    ] = None,
    delta: Delta = "0",
    table: Annotated[
        str | None, typer.Option(metavar="NAME", help="The table of a DuckDB file.")
    ] = None,
    engine: Annotated[str, typer.Option(metavar="duckdb|spark", help="What computes.")] = "duckdb",
    as_json: Json = False,
) -> None:
    r"""Register a source under a name and open its budget, which cannot be raised later.

    The ledger is made if there is none. Every charge has to name an analyst who has a budget.

    \b
    Example:
      discreet curator dataset study.ledger census people.parquet --schema people.toml \
        --epsilon 2 --delta 1e-6
    """
    from discreet.curator.service import find_copies, open_dataset
    from discreet.data import Schema
    from discreet.ledger import check_amount

    declared = Schema.from_file(schema)
    path = source if "://" in source else str(Path(source).resolve())
    for option, value in (("epsilon", epsilon), ("delta", delta)):
        if value is not None:
            check_amount(option, value)
    with _opened(place, create=epsilon is not None) as (ledger, registry):
        copies = find_copies(registry, path)
        open_dataset(
            ledger,
            registry,
            name,
            schema=declared,
            source=path,
            table=table,
            engine=engine,
            epsilon=epsilon,
            delta=delta,
        )
        view = ledger.show(name).budget
    if as_json:
        told = {"epsilon": str(view.epsilon), "delta": str(view.delta)}
        print_json({"dataset": name, "source": path, "engine": engine, **told, "copies": copies})
    else:
        for known in copies:
            print(
                f"warning: this file has the same content as that of {known!r}: budgets of two "
                "names do not add up, so the same people can be asked about twice",
                file=sys.stderr,
            )
        print_lines([f"{name} is served with epsilon {view.epsilon}, delta {view.delta}"])


@curator.command(short_help="Enter an analyst, or give one a budget.")
def analyst(
    place: Place,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The analyst.")],
    *,
    dataset: Annotated[
        str | None, typer.Option(metavar="NAME", help="Open a budget for this dataset.")
    ] = None,
    epsilon: Amount = None,
    delta: Delta = "0",
    as_json: Json = False,
) -> None:
    r"""Enter an analyst; with --dataset and --epsilon open the analyst's budget for it.

    \b
    Example:
      discreet curator analyst study.ledger ann --dataset census --epsilon 0.5
    """
    from discreet.curator.service import give_budget

    if (dataset is None) != (epsilon is None):
        argument, value = ("epsilon", epsilon) if epsilon is None else ("dataset", dataset)
        raise InvalidValue(argument, value, "both --dataset and --epsilon, or neither")
    with _opened(place) as (ledger, registry):
        if dataset is not None:
            registry.dataset(dataset)
        known = name in registry.analysts()
        if not known or dataset is None:
            registry.add_analyst(name)
        if dataset is not None:
            give_budget(ledger, registry, dataset, analyst=name, epsilon=epsilon, delta=delta)
    if as_json:
        print_json({"analyst": name, "dataset": dataset, "epsilon": epsilon})
    else:
        budget = "" if dataset is None else f", with epsilon {epsilon} for {dataset}"
        print_lines([f"{name} is an analyst{budget}"])


@curator.command(short_help="Open the budget of a project.")
def project(
    place: Place,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The project.")],
    *,
    dataset: Annotated[str, typer.Option(metavar="NAME", help="For this dataset.")],
    epsilon: Annotated[str, typer.Option(metavar="NUMBER", help="Exact: 1, 0.1 or 1/3.")],
    delta: Delta = "0",
    as_json: Json = False,
) -> None:
    r"""Open a budget that all tokens of a project share, within that of the dataset.

    \b
    Example:
      discreet curator project study.ledger wages --dataset census --epsilon 0.5
    """
    from discreet.curator.service import give_budget

    with _opened(place) as (ledger, registry):
        give_budget(ledger, registry, dataset, project=name, epsilon=epsilon, delta=delta)
    if as_json:
        print_json({"project": name, "dataset": dataset, "epsilon": epsilon})
    else:
        print_lines([f"{name} has epsilon {epsilon} for {dataset}"])


@curator.command(short_help="Make a token; it is shown once.")
def token(
    place: Place,
    *,
    owner: Annotated[bool, typer.Option("--owner", help="A token that opens everything.")] = False,
    analyst: Annotated[str | None, typer.Option(metavar="NAME", help="Whose token it is.")] = None,
    project: Annotated[
        str | None, typer.Option(metavar="NAME", help="Charges count against its budget too.")
    ] = None,
    dataset: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="What it opens; repeatable.")
    ] = None,
    days: Annotated[str, typer.Option(metavar="INTEGER", help="Until it expires.")] = "90",
    note: Annotated[str, typer.Option(metavar="TEXT", help="What it is for.")] = "",
    as_json: Json = False,
) -> None:
    r"""Make a token for an analyst or an owner. Only its hash is kept: it is shown this once.

    \b
    Examples:
      discreet curator token study.ledger --owner --days 7
      discreet curator token study.ledger --analyst ann --dataset census > ann.token
    """
    if owner == (analyst is not None):
        raise InvalidValue("analyst", analyst, "either --owner or --analyst")
    lifetime = count("days", days, at_least=1)
    with _opened(place) as (_, registry):
        for name in dataset or ():
            registry.dataset(name)
        text, made = registry.issue(
            "owner" if owner else "analyst",
            analyst=analyst,
            project=project,
            datasets=dataset or (),
            days=lifetime,
            note=note,
        )
    print_json({"token": text, **asdict(made)}) if as_json else print_lines([text])


@curator.command(short_help="End a token at once.")
def revoke(
    place: Place,
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="The id of the token.")],
) -> None:
    r"""End a token at once; the ids are in discreet curator show.

    \b
    Example:
      discreet curator revoke study.ledger 0123456789abcdef
    """
    with _opened(place) as (_, registry):
        registry.revoke(token)
    print_lines([f"{token} is revoked"])


@curator.command(short_help="Datasets, analysts and tokens.")
def show(place: Place, *, as_json: Json = False) -> None:
    r"""What is served, who may ask, and with which tokens; never the tokens themselves.

    \b
    Example:
      discreet curator show study.ledger
    """
    with _opened(place) as (_, registry):
        datasets, names, tokens = registry.datasets(), registry.analysts(), registry.tokens()
    if as_json:
        print_json(
            {
                "datasets": [asdict(one) for one in datasets],
                "analysts": names,
                "tokens": [asdict(one) for one in tokens],
            }
        )
        return
    rows = [(one.name, one.engine, one.source) for one in datasets]
    print_table(("dataset", "engine", "source"), rows, numeric=(False, False, False))
    print_lines(["", "analysts: " + (", ".join(names) or "none"), ""])
    told = [
        (
            one.id,
            one.analyst or one.role,
            ", ".join(one.datasets) or "all",
            one.expires[:10],
            "" if one.revoked is None else f"revoked {one.revoked[:10]}",
        )
        for one in tokens
    ]
    headings = ("token", "holder", "datasets", "expires", "")
    print_table(headings, told, numeric=(False, False, False, False, False))
