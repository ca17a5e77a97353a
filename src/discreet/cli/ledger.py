"""``discreet ledger``: open budgets, look at them, verify them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discreet.cli.files import Output, picture_file
from discreet.cli.ledger_charge import charge
from discreet.cli.ledger_export import export
from discreet.cli.ledger_group import LedgerGroup
from discreet.cli.ledger_reader import open_to_read
from discreet.cli.ledger_text import budget_rows, budgets_as_json, history_as_json, history_rows
from discreet.cli.ledger_upkeep import migrate, repair, restore
from discreet.cli.options import Json, RelationName, real, shown
from discreet.cli.signing import PublicKeys, RevokedList, trusted_keys
from discreet.cli.tables import print_json, print_lines, print_table
from discreet.errors import DataCorrupt, InvalidValue, SchemaError, SignatureInvalid

if TYPE_CHECKING:
    from discreet._dsse import Envelope, TrustedKeys
    from discreet.ledger import DatasetView, Fault

__all__ = ["ledger"]

Place = Annotated[
    str, typer.Argument(metavar="LEDGER", help="The directory, or a postgresql:// URL.")
]
Dataset = Annotated[str, typer.Argument(metavar="DATASET", help="The name of the dataset.")]
Name = Annotated[str | None, typer.Option(metavar="NAME", help="A budget for this one alone.")]

ledger = typer.Typer(
    name="ledger",
    cls=LedgerGroup,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Budgets that survive crashes and races: every charge is on the disk before a release.",
)


@ledger.command(short_help="Open the budget of a dataset.")
def create(
    place: Place,
    dataset: Dataset,
    *,
    epsilon: Annotated[str, typer.Option(metavar="NUMBER", help="Exact: 1, 0.1 or 1/3.")],
    delta: Annotated[str, typer.Option(metavar="NUMBER", help="Exact: 0, 1e-6.")] = "0",
    unit: Annotated[
        str | None, typer.Option(metavar="WORD", help="Whose privacy.  [default: record]")
    ] = None,
    relation: RelationName = None,
    kind: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="How charges add up: basic, zcdp, gdp, rdp or several joined by +.  "
            "[default: the tightest valid one]",
        ),
    ] = None,
    reserved: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER",
            help="The part of delta for charges with a delta of their own.  [default: half]",
        ),
    ] = None,
    order: Annotated[
        list[str] | None,
        typer.Option(metavar="NUMBER", help="A Renyi order for rdp, above 1; may be repeated."),
    ] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(metavar="SCOPE", help="analyst, project or purpose; may be repeated."),
    ] = None,
    analyst: Name = None,
    project: Name = None,
    purpose: Name = None,
    as_json: Json = False,
) -> None:
    r"""Open the budget of a dataset; the ledger is made if there is none.

    With --analyst, --project or --purpose a further budget is opened for that one, inside
    the budget of the dataset. A budget cannot be changed afterwards.

    \b
    Examples:
      discreet ledger create study.ledger census --epsilon 1 --delta 1e-6 --unit person
      discreet ledger create study.ledger census --epsilon 0.3 --analyst ann
    """
    from discreet.ledger import Ledger

    orders = [real("order", text, above=1) for text in order] if order else None
    if any(name is not None for name in (analyst, project, purpose)):
        for option, value in (("unit", unit), ("relation", relation), ("require", require)):
            if value:
                raise InvalidValue(option, value, "only for the budget of the whole dataset")
        with Ledger.open(place) as book:
            book.create_budget(
                dataset,
                analyst=analyst,
                project=project,
                purpose=purpose,
                epsilon=epsilon,
                delta=delta,
                kind=kind,
                reserved=reserved,
                orders=orders,
            )
            view = book.show(dataset)
    else:
        from discreet.ledger import check_amount
        from discreet.privacy import Filter

        # Refused before a file is made for it.
        for option, value in (("epsilon", epsilon), ("delta", delta), ("reserved", reserved)):
            if value is not None:
                check_amount(option, value)
        Filter(
            epsilon=epsilon,
            delta=delta,
            kind=kind,
            relation=relation or "add_remove",
            reserved=reserved,
            orders=orders,
        )
        with _open_or_create(place) as book:
            book.create_dataset(
                dataset,
                epsilon=epsilon,
                delta=delta,
                unit=unit or "record",
                relation=relation or "add_remove",
                kind=kind,
                reserved=reserved,
                orders=orders,
                required=require or (),
            )
            view = book.show(dataset)
    _print_views(place, [view], as_json=as_json)


def _open_or_create(place: str) -> Any:
    from discreet.errors import LedgerMissing
    from discreet.ledger import Ledger

    try:
        return Ledger.open(place)
    except LedgerMissing:
        return Ledger.create(place)


@ledger.command(short_help="Budgets as they stand.")
def show(
    place: Place,
    dataset: Annotated[
        str | None, typer.Argument(metavar="[DATASET]", help="One dataset instead of all.")
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    r"""What is spent and what is left, for every budget.

    Amounts are exact in JSON. In the table they are rounded against you: up if spent, down
    if left.

    \b
    Example:
      discreet ledger show study.ledger census
    """
    with open_to_read(place) as book:
        names = book.datasets() if dataset is None else [dataset]
        views = [book.show(name) for name in names]
    _print_views(place, views, as_json=as_json)


def _print_views(place: str, views: Sequence[DatasetView], *, as_json: bool) -> None:
    if as_json:
        print_json({"ledger": place, "datasets": [budgets_as_json(view) for view in views]})
        return
    if not views:
        print_lines(["no datasets yet"])
    for view in views:
        wants = f", every charge names its {' and '.join(view.required)}" if view.required else ""
        print_lines(
            [
                f"{view.name}: unit {view.unit}, relation {view.relation.value}{wants}",
                f"{view.entries} entries, the last is {view.head[:16]}",
                *(f"restored from a backup: entry {seq}" for seq in view.restored),
                "",
            ]
        )
        headings = ("budget", "epsilon", "delta", "charges", "sum", "spent", "left")
        numeric = (False, True, True, True, False, True, True)
        print_table(headings, budget_rows(view), numeric=numeric)


@ledger.command(short_help="Every charge of a dataset.")
def history(
    place: Place,
    dataset: Dataset,
    *,
    output: Output = None,
    as_json: Json = False,
) -> None:
    r"""Every charge with its outcome, and a picture of the budgets over time.

    \b
    Example:
      discreet ledger history study.ledger census --output budget.png
    """
    with picture_file(output) as draft:
        with open_to_read(place) as book:
            rows = book.history(dataset)
            view = book.show(dataset)
        if draft is not None:
            from discreet.report import draw_history

            draw_history(view, rows, draft)
    if as_json:
        print_json({"dataset": dataset, "charges": [history_as_json(row) for row in rows]})
    elif not rows:
        print_lines(["no charges yet"])
    else:
        headings = ("entry", "time (UTC)", "loss", "for", "used", "outcome")
        numeric = (True, False, False, False, True, False)
        print_table(headings, history_rows(view, rows), numeric=numeric)
    if output is not None and not as_json:
        print_lines(["", f"picture: {shown(output)}"])


@ledger.command(short_help="Replay everything and look for tampering.")
def verify(
    place: Annotated[
        str, typer.Argument(metavar="LEDGER", help="A ledger, or an export that ends in .json.")
    ],
    *,
    receipt: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="A receipt that must be on the chain; repeatable."),
    ] = None,
    keys: PublicKeys = None,
    revoked: RevokedList = None,
    as_json: Json = False,
) -> None:
    r"""Replay every chain with fresh budgets; exit code 1 if anything is wrong.

    Finds changed, removed, moved and added entries, removed datasets, altered sums, tables
    and guards that are not those of a ledger, and exceeded budgets. A chain that was cut
    off at its end shows only against a receipt kept elsewhere. With --key every receipt and
    export must be signed by one of the keys; without it a signature is not checked (exit code 6).

    \b
    Examples:
      discreet ledger verify study.ledger --receipt receipt-17.json
      discreet ledger verify census.json
    """
    from discreet.ledger import check_receipt

    if revoked is not None and not keys:
        raise InvalidValue("revoked", revoked, "only with --key")
    trusted = trusted_keys(keys, revoked) if keys else None
    found = {name: _document("receipt", name) for name in receipt or ()}
    receipts = [document for document, _ in found.values()]
    no_notes: tuple[Fault, ...] = ()
    try:
        if place.endswith(".json"):
            found[place] = _document("place", place)
            document, _ = found[place]
            problems = tuple(check_receipt(document, receipts=receipts))
            entries, notes = len(document.get("chain", (document,))), no_notes
        else:
            with open_to_read(place) as book:
                verdict = book.verify(receipts=receipts)
            problems, entries, notes = verdict.problems, verdict.entries, verdict.notes
    except SchemaError as error:
        raise InvalidValue("document", place, f"a receipt or an export ({error})") from None
    unsigned, unchecked = _signatures(found, trusted)
    problems, notes = problems + unsigned, notes + unchecked
    _print_verdict(place, entries, problems, notes, as_json=as_json)
    if problems:
        raise typer.Exit(1)
    if unchecked:
        raise typer.Exit(6)


def _signatures(
    found: Mapping[str, tuple[Mapping[str, Any], Envelope | None]], trusted: TrustedKeys | None
) -> tuple[tuple[Fault, ...], tuple[Fault, ...]]:
    """Say which documents no trusted key signed, and which signatures nobody could check."""
    from discreet.ledger import Fault

    problems, unchecked = [], []
    for name, (_, envelope) in found.items():
        if trusted is None and envelope is not None:
            what = "it is signed, and the signature was not checked: no --key was given"
            unchecked.append(Fault(shown(name), None, what))
        elif trusted is not None and envelope is None:
            problems.append(Fault(shown(name), None, "it is not signed"))
        elif trusted is not None and envelope is not None:
            try:
                trusted.require_signature(envelope)
            except SignatureInvalid as error:
                problems.append(Fault(shown(name), None, str(error)))
    return tuple(problems), tuple(unchecked)


@ledger.command(short_help="Charge what version 0.1 charged too little.")
def correct(
    place: Place,
    dataset: Annotated[
        str | None, typer.Argument(metavar="[DATASET]", help="One dataset instead of all.")
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    r"""Charge what version 0.1 charged too little.

    Appends an entry for each charge that verify reports as undercharged. It charges the
    difference; a budget that is exceeded then is closed and refuses every further charge.

    \b
    Example:
      discreet ledger correct study.ledger
    """
    from discreet.ledger import Ledger

    with Ledger.open(place) as book:
        names = book.datasets() if dataset is None else [dataset]
        corrected = [problem for name in names for problem in book.correct(name)]
        views = [book.show(name) for name in names]
    closed = [
        f"{view.name}, {budget.label}" for view in views for budget in view.budgets if budget.closed
    ]
    if as_json:
        print_json({"ledger": place, "corrected": _listed(corrected), "closed": closed})
        return
    print_lines([f"{shown(place)}: {_counted(len(corrected), 'charge')} corrected"])
    print_lines(f"  {problem}" for problem in corrected)
    print_lines(f"  closed: {label}" for label in closed)


def _listed(problems: Sequence[Fault]) -> list[dict[str, Any]]:
    return [
        {"dataset": p.dataset, "entry": p.seq, "what": p.what, "undercharged": p.undercharged}
        for p in problems
    ]


def _print_verdict(
    place: str,
    entries: int,
    problems: tuple[Fault, ...],
    notes: tuple[Fault, ...],
    *,
    as_json: bool,
) -> None:
    if as_json:
        found = {"problems": _listed(problems), "notes": _listed(notes)}
        print_json({"ledger": place, "ok": not problems, "entries": entries, **found})
        return
    verdict = "everything fits" if not problems else _counted(len(problems), "problem")
    print_lines(
        [
            f"{shown(place)}: {_counted(entries, 'entry', 'entries')}, {verdict}",
            *(f"  {p}" for p in problems),
        ]
    )
    print_lines(f"  note: {note}" for note in notes)
    if any(problem.undercharged for problem in problems):
        print_lines([f"  to mend: discreet ledger correct {shown(place)}"])


def _counted(count: int, one: str, many: str | None = None) -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def _document(argument: str, name: str) -> tuple[Mapping[str, Any], Envelope | None]:
    from discreet.ledger import read_signed_document

    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
        return read_signed_document(text)
    except OSError as error:
        raise InvalidValue(argument, name, f"a readable file ({error.strerror})") from None
    except DataCorrupt:
        raise
    except ValueError as error:
        reason = " ".join(str(error).split())[:200]
        raise InvalidValue(argument, name, f"a receipt in JSON ({reason})") from None


ledger.command(short_help="Spend a loss, and run a command if it fits.")(charge)
ledger.command(short_help="A receipt, or a whole chain, as JSON.")(export)
ledger.command(short_help="Make a directory of a ledger in a single file.")(migrate)
ledger.command(short_help="Let a backup be charged.")(restore)
ledger.command(short_help="Copy a ledger after a failed flush.")(repair)
