"""``discreet curator``, ``serve`` and ``query``: a service, by its owner and by an analyst."""

from __future__ import annotations

import ipaddress
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from discreet._rounding import at_least, at_most
from discreet.cli._app import Command, Group, print_answer, print_json, print_lines, print_table
from discreet.cli._ledger import open_or_create
from discreet.cli._options import Count, Real, read_text
from discreet.errors import InvalidValue, NotApplicable, SchemaError

if TYPE_CHECKING:
    from discreet.curator import Client
    from discreet.curator.service import Registry
    from discreet.ledger import Ledger

TOKEN_VARIABLE = "DISCREET_TOKEN"

place_argument = click.argument("place", metavar="LEDGER", help="The file, or a postgresql:// URL.")
exact_delta_option = click.option("--delta", metavar="NUMBER", default="0", help="Exact: 0, 1e-6.")


def name_argument(about: str) -> Callable[[Any], Any]:
    """Return the argument that names what is entered."""
    return click.argument("name", metavar="NAME", help=about)


@click.group(cls=Group)
def curator() -> None:
    """Datasets, analysts and tokens of a service (discreet serve)."""


@contextmanager
def _open_place(place: str, *, create: bool = False) -> Iterator[tuple[Ledger, Registry]]:
    from discreet.curator.service import Registry
    from discreet.ledger import Ledger

    with open_or_create(place) if create else Ledger.open(place) as ledger:
        yield ledger, Registry(ledger)


@curator.command(short_help="Serve a file or table, with a budget.")
@place_argument
@name_argument("What analysts call it.")
@click.argument("source", metavar="SOURCE", help="A file: CSV, Parquet, DuckDB.")
@click.option("--schema", metavar="FILE", required=True, help="The schema, a TOML file.")
@click.option(
    "--epsilon",
    metavar="NUMBER",
    help="Exact. Without it the ledger has the budget already.",
)
@exact_delta_option
@click.option("--table", metavar="NAME", help="The table of a DuckDB file.")
@click.option("--engine", metavar="duckdb|spark", default="duckdb", help="What computes.")
def dataset(
    place: str,
    name: str,
    source: str,
    schema: str,
    epsilon: str | None,
    delta: str,
    table: str | None,
    engine: str,
    as_json: bool,
) -> None:
    r"""Register a source under a name and open its budget, which cannot be raised later.

    The ledger is made if there is none. Every charge has to name an analyst who has a budget.

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
    with _open_place(place, create=epsilon is not None) as (ledger, registry):
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
        budget = {"epsilon": str(view.epsilon), "delta": str(view.delta)}
        print_json({"dataset": name, "source": path, "engine": engine, **budget, "copies": copies})
        return
    for known in copies:
        print(
            f"warning: this file has the same content as that of {known!r}: budgets of two "
            "names do not add up, so the same people can be asked about twice",
            file=sys.stderr,
        )
    print_lines([f"{name} is served with epsilon {view.epsilon}, delta {view.delta}"])


@curator.command(short_help="Enter an analyst, or give one a budget.")
@place_argument
@name_argument("The analyst.")
@click.option("--dataset", metavar="NAME", help="Open a budget for this dataset.")
@click.option("--epsilon", metavar="NUMBER", help="Exact: 1, 0.1 or 1/3.")
@exact_delta_option
def analyst(
    place: str, name: str, dataset: str | None, epsilon: str | None, delta: str, as_json: bool
) -> None:
    """Enter an analyst; with --dataset and --epsilon open the analyst's budget for it.

    Example:
      discreet curator analyst study.ledger ann --dataset census --epsilon 0.5
    """
    from discreet.curator.service import give_budget

    if (dataset is None) != (epsilon is None):
        argument, value = ("epsilon", epsilon) if epsilon is None else ("dataset", dataset)
        raise InvalidValue(argument, value, "both --dataset and --epsilon, or neither")
    with _open_place(place) as (ledger, registry):
        if dataset is not None:
            registry.dataset(dataset)
        if name not in registry.analysts() or dataset is None:
            registry.add_analyst(name)
        if dataset is not None:
            give_budget(ledger, registry, dataset, analyst=name, epsilon=epsilon, delta=delta)
    entered = {"analyst": name, "dataset": dataset, "epsilon": epsilon}
    budget = "" if dataset is None else f", with epsilon {epsilon} for {dataset}"
    print_answer(entered, f"{name} is an analyst{budget}", as_json=as_json)


@curator.command(short_help="Open the budget of a project.")
@place_argument
@name_argument("The project.")
@click.option("--dataset", metavar="NAME", required=True, help="For this dataset.")
@click.option("--epsilon", metavar="NUMBER", required=True, help="Exact: 1, 0.1 or 1/3.")
@exact_delta_option
def project(place: str, name: str, dataset: str, epsilon: str, delta: str, as_json: bool) -> None:
    """Open a budget that all tokens of a project share, within that of the dataset.

    Example:
      discreet curator project study.ledger wages --dataset census --epsilon 0.5
    """
    from discreet.curator.service import give_budget

    with _open_place(place) as (ledger, registry):
        give_budget(ledger, registry, dataset, project=name, epsilon=epsilon, delta=delta)
    entered = {"project": name, "dataset": dataset, "epsilon": epsilon}
    print_answer(entered, f"{name} has epsilon {epsilon} for {dataset}", as_json=as_json)


@curator.command(short_help="Make a token; it is shown once.")
@place_argument
@click.option("--owner", is_flag=True, help="A token that opens everything.")
@click.option("--analyst", metavar="NAME", help="Whose token it is.")
@click.option("--project", metavar="NAME", help="Charges count against its budget too.")
@click.option(
    "--dataset", "datasets", metavar="NAME", multiple=True, help="What it opens; repeatable."
)
@click.option("--days", type=Count(at_least=1), default="90", help="Until it expires.")
@click.option("--note", metavar="TEXT", default="", help="What it is for.")
def token(
    place: str,
    owner: bool,
    analyst: str | None,
    project: str | None,
    datasets: tuple[str, ...],
    days: int,
    note: str,
    as_json: bool,
) -> None:
    """Make a token for an analyst or an owner. Only its hash is kept: it is shown this once.

    Examples:
      discreet curator token study.ledger --owner --days 7
      discreet curator token study.ledger --analyst ann --dataset census > ann.token
    """
    if owner == (analyst is not None):
        raise InvalidValue("analyst", analyst, "either --owner or --analyst")
    with _open_place(place) as (_, registry):
        for name in datasets:
            registry.dataset(name)
        text, made = registry.issue(
            "owner" if owner else "analyst",
            analyst=analyst,
            project=project,
            datasets=datasets,
            days=days,
            note=note,
        )
    print_answer({"token": text, **asdict(made)}, text, as_json=as_json)


@curator.command(short_help="End a token at once.")
@place_argument
@click.argument("token", metavar="TOKEN", help="The id of the token.")
def revoke(place: str, token: str, as_json: bool) -> None:
    """End a token at once; the ids are in discreet curator show.

    Example:
      discreet curator revoke study.ledger 0123456789abcdef
    """
    with _open_place(place) as (_, registry):
        registry.revoke(token)
    print_answer({"revoked": token}, f"{token} is revoked", as_json=as_json)


@curator.command(short_help="Remove stored tables.")
@click.argument("folder", metavar="DIRECTORY", help="What discreet serve --keep was given.")
def forget(folder: str, as_json: bool) -> None:
    """Remove the bounded tables of a directory, and the key under which they were stored.

    A service that still runs goes on with what it has open; the next start reads the records.

    Example:
      discreet curator forget tables
    """
    from discreet.engines import forget_tables

    gone = forget_tables(folder)
    print_answer({"forgotten": gone}, f"{gone} tables are removed", as_json=as_json)


@curator.command(short_help="Datasets, analysts and tokens.")
@place_argument
def show(place: str, as_json: bool) -> None:
    """What is served, who may ask, and with which tokens; never the tokens themselves.

    Example:
      discreet curator show study.ledger
    """
    with _open_place(place) as (_, registry):
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
    print_table(("dataset", "engine", "source"), rows)
    print_lines(["", "analysts: " + (", ".join(names) or "none"), ""])
    cells = [
        (
            one.id,
            one.analyst or one.role,
            ", ".join(one.datasets) or "all",
            one.expires[:10],
            "" if one.revoked is None else f"revoked {one.revoked[:10]}",
        )
        for one in tokens
    ]
    print_table(("token", "holder", "datasets", "expires", ""), cells)


_SERVED = {
    "quantum": ("SECONDS", Real(above=0), "0.05", "Answers leave after 1, 2, 4, ... times this."),
    "settle": ("SECONDS", Real(above=0), "300", "Quotes tell of answers older than this."),
    "rate": ("NUMBER", Real(above=0), "20", "Requests a second of one token."),
    "burst": ("INTEGER", Count(at_least=1), "40", "Requests at once."),
    "threads": ("INTEGER", Count(at_least=1), "8", "Requests worked on at a time, per worker."),
    "engine-threads": ("INTEGER", Count(at_least=1), "2", "Threads of DuckDB for one query."),
    "workers": ("INTEGER", Count(at_least=1), "1", "Processes."),
    "body-limit": ("BYTES", Count(at_least=1024), "65536", "The largest request."),
}


def _served_options(function: Any) -> Any:
    for name, (metavar, kind, default, about) in reversed(_SERVED.items()):
        option = click.option(f"--{name}", metavar=metavar, type=kind, default=default, help=about)
        function = option(function)
    return function


@click.command(cls=Command)
@place_argument
@click.option(
    "--host",
    metavar="ADDRESS",
    default="127.0.0.1",
    help="Where to listen; TLS is a proxy's work.",
)
@click.option("--port", type=Count(at_least=0, at_most=65535), default="8080", help="The port.")
@click.option("--data", metavar="DIRECTORY", help="Owners may register files of it on the page.")
@click.option("--keep", metavar="DIRECTORY", help="Store bounded tables there, for restarts.")
@_served_options
def serve(
    place: str,
    host: str,
    port: int,
    data: str | None,
    keep: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Answer analysts over HTTP; nothing leaves that was not charged before.

    The ledger, the registry beside it (discreet curator) and every dataset are opened before
    the first request is taken. The page is at /, the interface at /openapi.json. For a network
    put a proxy with TLS in front.

    Examples:
      discreet serve study.ledger
      discreet serve study.ledger --data data --quantum 0.1 --port 8443
      discreet serve "postgresql://curator@db/study" --workers 4
    """
    from discreet.curator.service import Settings

    settings = Settings(
        ledger=place if "://" in place else str(Path(place).absolute()),
        data=None if data is None else str(Path(data).absolute()),
        keep=None if keep is None else str(Path(keep).absolute()),
        quote_delay=given.pop("settle"),
        **given,
    )
    if not _is_local(host):
        print(
            f"note: {host} can be reached from elsewhere; tokens need TLS, which a proxy adds",
            file=sys.stderr,
        )
    try:
        from discreet.curator.service import run_service
    except ImportError as error:
        raise NotApplicable(
            f"the service needs more packages: pip install 'discreet[serve]' ({error})"
        ) from None
    with _open_place(settings.ledger):
        pass  # refused here, before anything is said, also where workers open it later
    if as_json:
        facts = {"ledger": place, "host": host, "port": port, "workers": settings.workers}
        print(json.dumps({"serving": facts}), flush=True)
    run_service(settings, host=host, port=port)


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise InvalidValue("host", host, "an address such as 127.0.0.1 or ::1") from None


@click.command(cls=Command)
@click.argument("url", metavar="URL", help="Where the service is.")
@click.argument("dataset", metavar="[DATASET]", required=False, help="Without it: what there is.")
@click.argument(
    "question",
    metavar="[QUERY]",
    required=False,
    help="JSON, a file that holds it, or - for standard input.",
)
@click.option("--cost", is_flag=True, help="Only say what it would cost; nothing is charged.")
@click.option(
    "--token-file", metavar="FILE", help=f"Holds the token.  [default: ${TOKEN_VARIABLE}]"
)
@click.option("--key", metavar="TEXT", help="Idempotency: the same key is charged once.")
@click.option("--receipt", metavar="FILE", help="Write the receipt to this file.")
def query(
    url: str,
    dataset: str | None,
    question: str | None,
    cost: bool,
    token_file: str | None,
    key: str | None,
    receipt: str | None,
    as_json: bool,
) -> None:
    """Ask a service a question; the answer comes with error bars and a receipt.

    Attempts that got no answer are repeated under one idempotency key, so a question is
    charged once. The same question again costs nothing and has the same answer.

    Examples:
      discreet query http://127.0.0.1:8080
      discreet query http://127.0.0.1:8080 census '{"kind": "count", "epsilon": "1/10"}' --cost
      discreet query http://127.0.0.1:8080 census count.json --receipt receipt.json
    """
    from discreet.curator import Client

    if receipt is not None and (cost or question is None):
        raise InvalidValue("receipt", receipt, "a file only where a question is asked")
    asked = None if question is None else _read_question(question)
    with Client(url, token=_token(token_file)) as client:
        if dataset is None:
            _print_overview(client, as_json=as_json)
        elif asked is None:
            _print_facts(client.facts(dataset), as_json=as_json)
        elif cost:
            _print_quote(client.quote(dataset, asked), as_json=as_json)
        else:
            answer = client.ask(dataset, asked, key=key)
            _keep_receipt(receipt, answer)
            _print_answer(answer, as_json=as_json)


def _token(token_file: str | None) -> str:
    if token_file is not None:
        return read_text("token_file", token_file).strip()
    found = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not found:
        expected = f"a file, or the token in the variable {TOKEN_VARIABLE}"
        raise InvalidValue("token_file", None, expected)
    return found


def _read_question(text: str) -> dict[str, Any]:
    from discreet._json import read_json

    written = text if text.lstrip().startswith("{") else read_text("question", text)
    try:
        content = read_json(written, "question")
    except SchemaError as error:
        reason = " ".join(str(error).split())[:200]
        raise InvalidValue("question", text[:80], f"a query in JSON ({reason})") from None
    if not isinstance(content, dict):
        raise InvalidValue("question", text[:80], "a JSON object with a kind and an epsilon")
    return content


def _keep_receipt(receipt: str | None, answer: dict[str, Any]) -> None:
    if receipt is None:
        return
    try:
        Path(receipt).write_text(json.dumps(answer["receipt"], indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        print(f"discreet: the receipt cannot be written ({error.strerror})", file=sys.stderr)


def _print_overview(client: Client, *, as_json: bool) -> None:
    found = client.datasets()
    if as_json:
        print_json({"datasets": found})
    elif not found:
        print_lines(["no datasets for this token"])
    else:
        for facts in found:
            _print_facts(facts, as_json=False)


def _print_facts(facts: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(facts)
        return
    print_lines([f"{facts['name']}: unit {facts['unit']}, relation {facts['relation']}", ""])
    rows = [
        (
            budget["label"],
            budget["epsilon"],
            budget["delta"],
            str(budget["charges"]),
            f"{100 * budget['used']:.1f} %",
        )
        for budget in facts["budgets"]
    ]
    headings = ("budget", "epsilon", "delta", "charges", "used")
    print_table(headings, rows, numbers=(1, 2, 3, 4))


def _print_quote(quote: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(quote)
        return
    print_lines([f"costs epsilon {quote['epsilon']}, delta {quote['delta']}; {quote['about']}"])
    print_lines(
        f"{error['label']}: within {at_most(error['half_width'], digits=6)} "
        f"at {100 * error['confidence']:g} %"
        for error in quote["expected_error"]
    )


def _print_answer(answer: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
        return
    value = answer["value"]
    for one in value if isinstance(value, list) else [value]:
        print_lines([_cell_text(one)])
    rows = [
        (bar["label"], _end(bar["low"], at_least), _end(bar["high"], at_most))
        for bar in answer["errors"]
    ]
    confidence = max((bar["confidence"] for bar in answer["errors"]), default=0)
    print_lines(["", answer["about"]])
    print_lines([f"error bars, which hold together at {100 * confidence:g} %:", ""])
    print_table(("of", "from", "to"), rows, numbers=(1, 2))
    entry = answer["receipt"]["entry"]["seq"]
    free = "asked before, at no cost" if answer["answered_before"] else "charged"
    print_lines(["", f"{free}: entry {entry} of the ledger"])


def _cell_text(value: object) -> str:
    """One cell of an answer in words."""
    if isinstance(value, dict):
        fields = {**value}
        number = fields.pop("value", None)
        group = fields.pop("group", None)
        named = [", ".join(map(str, group))] if isinstance(group, list) else []
        named += [f"{name} {field}" for name, field in fields.items() if field is not None]
        return f"{' '.join(named)}: {_cell_text(number)}"
    if value is None:
        return "no answer"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _end(value: float | None, rounded: Callable[..., str]) -> str:
    return "unknown" if value is None else rounded(value, digits=7)
