"""``discreet ledger``: open budgets, charge them, look at them, verify them, mend them."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from discreet._rounding import at_least, at_most
from discreet.cli._app import (
    Group,
    format_value,
    print_answer,
    print_json,
    print_lines,
    print_table,
)
from discreet.cli._options import (
    Count,
    F,
    Mechanism,
    Real,
    combine_options,
    mechanism_options,
    output_file,
    passphrase_option,
    picture_option,
    read_text,
    relation_option,
    trust_options,
)
from discreet.errors import (
    DataCorrupt,
    FileUnusable,
    InvalidValue,
    LedgerMissing,
    SchemaError,
    SignatureInvalid,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from discreet._dsse import Envelope, TrustedKeys
    from discreet.ledger import Charge, DatasetView, Fault, HistoryRow, Ledger
    from discreet.privacy import Loss, Relation

_LONGEST_LOSS = 60
_SUMS = {"basic": "epsilon", "zcdp": "rho", "gdp": "mu^2"}

place_argument = click.argument(
    "place", metavar="LEDGER", help="The directory, or a postgresql:// URL."
)
dataset_argument = click.argument("dataset", metavar="DATASET", help="The name of the dataset.")
one_dataset_argument = click.argument(
    "dataset", metavar="[DATASET]", required=False, help="One dataset instead of all."
)


def scope_options(about: str) -> Callable[[F], F]:
    """Return the options that name an analyst, a project and a purpose."""
    return combine_options(
        click.option("--analyst", metavar="NAME", help=about),
        click.option("--project", metavar="NAME", help=about),
        click.option("--purpose", metavar="NAME", help=about),
    )


@click.group(cls=Group)
def ledger() -> None:
    """Budgets that survive crashes and races: every charge is on the disk before a release."""


def open_to_read(place: str) -> Ledger:
    """Open a ledger for reading; a reader does not wait for writers.

    One who only reads may also open what a writer refuses, and say all that is wrong with it.
    """
    from discreet.errors import LedgerReadOnly
    from discreet.ledger import Ledger

    try:
        return Ledger.open(place, read_only=True)
    except LedgerReadOnly:  # an older schema is brought up to date first
        return Ledger.open(place)


def open_or_create(place: str) -> Ledger:
    """A ledger to charge, which is made if there is none."""
    from discreet.ledger import Ledger

    try:
        return Ledger.open(place)
    except LedgerMissing:
        return Ledger.create(place)


@ledger.command(short_help="Open the budget of a dataset.")
@place_argument
@dataset_argument
@click.option("--epsilon", metavar="NUMBER", required=True, help="Exact: 1, 0.1 or 1/3.")
@click.option("--delta", metavar="NUMBER", default="0", help="Exact: 0, 1e-6.")
@click.option("--unit", metavar="WORD", help="Whose privacy.  [default: record]")
@relation_option
@click.option(
    "--kind",
    metavar="KIND",
    help="How charges add up: basic, zcdp, gdp, rdp or several joined by +.  "
    "[default: the tightest valid one]",
)
@click.option(
    "--reserved",
    metavar="NUMBER",
    help="The part of delta for charges with a delta of their own.  [default: half]",
)
@click.option(
    "--order",
    "orders",
    type=Real(above=1),
    multiple=True,
    help="A Renyi order for rdp, above 1; may be repeated.",
)
@click.option(
    "--require",
    metavar="SCOPE",
    multiple=True,
    help="analyst, project or purpose; may be repeated.",
)
@scope_options("A budget for this one alone.")
def create(
    place: str,
    dataset: str,
    epsilon: str,
    delta: str,
    unit: str | None,
    relation: str | None,
    kind: str | None,
    reserved: str | None,
    orders: tuple[float, ...],
    require: tuple[str, ...],
    as_json: bool,
    **scope: Any,
) -> None:
    """Open the budget of a dataset; the ledger is made if there is none.

    With --analyst, --project or --purpose a further budget is opened for that one, inside
    the budget of the dataset. A budget cannot be changed afterwards.

    Examples:
      discreet ledger create study.ledger census --epsilon 1 --delta 1e-6 --unit person
      discreet ledger create study.ledger census --epsilon 0.5 --delta 1e-6 --analyst ann
    """
    from discreet.ledger import Ledger, check_amount
    from discreet.privacy import Filter

    budget: dict[str, Any] = {
        "epsilon": epsilon,
        "delta": delta,
        "kind": kind,
        "reserved": reserved,
        "orders": list(orders) or None,
    }
    if any(name is not None for name in scope.values()):
        for option, value in (("unit", unit), ("relation", relation), ("require", require)):
            if value:
                raise InvalidValue(option, value, "only for the budget of the whole dataset")
        with Ledger.open(place) as book:
            book.create_budget(dataset, **scope, **budget)
            view = book.show(dataset)
    else:
        # Refused before a file is made for it.
        for name in ("epsilon", "delta", "reserved"):
            if budget[name] is not None:
                check_amount(name, budget[name])
        neighbours = relation or "add_remove"
        Filter(relation=neighbours, **budget)
        with open_or_create(place) as book:
            book.create_dataset(
                dataset, unit=unit or "record", relation=neighbours, required=require, **budget
            )
            view = book.show(dataset)
    _print_views(place, [view], as_json=as_json)


@ledger.command(short_help="Budgets as they stand.")
@place_argument
@one_dataset_argument
def show(place: str, dataset: str | None, as_json: bool) -> None:
    """What is spent and what is left, for every budget.

    Amounts are exact in JSON. In the table they are rounded against you: up if spent, down
    if left.

    Example:
      discreet ledger show study.ledger census
    """
    with open_to_read(place) as book:
        names = book.datasets() if dataset is None else [dataset]
        views = [book.show(name) for name in names]
    _print_views(place, views, as_json=as_json)


def _print_views(place: str, views: Sequence[DatasetView], *, as_json: bool) -> None:
    if as_json:
        print_json({"ledger": place, "datasets": [_budgets_as_json(view) for view in views]})
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
        print_table(headings, _budget_rows(view), numbers=(1, 2, 3, 5, 6))


def _budget_rows(view: DatasetView) -> list[tuple[str, ...]]:
    """One row for each sum of each budget; what a budget has once is printed once."""
    rows: list[tuple[str, ...]] = []
    for budget in view.budgets:
        limits = exact_at_least(budget.epsilon), exact_at_least(budget.delta)
        head = (budget.label, *limits, str(budget.charges))
        if budget.closed:
            rows.append((*head, "closed", "", "0"))
            continue
        for name, spent in budget.spent.items():
            if name == "delta" and budget.delta == 0:
                continue
            amounts = at_most(_round_up(spent)), exact_at_least(budget.remaining[name])
            rows.append((*head, _SUMS.get(name, name), *amounts))
            head = ("", "", "", "")
    return rows


def _budgets_as_json(view: DatasetView) -> dict[str, Any]:
    """A dataset with exact amounts as text such as ``9/10``."""
    return {
        "name": view.name,
        "unit": view.unit,
        "relation": view.relation.value,
        "required": list(view.required),
        "entries": view.entries,
        "head": view.head,
        "genesis": view.genesis,
        "restored": list(view.restored),
        "budgets": [
            {
                "label": budget.label,
                "epsilon": str(budget.epsilon),
                "delta": str(budget.delta),
                "kind": budget.kind,
                "charges": budget.charges,
                "spent": {name: str(value) for name, value in budget.spent.items()},
                "remaining": {name: str(value) for name, value in budget.remaining.items()},
            }
            for budget in view.budgets
        ],
    }


def exact_at_least(value: Fraction) -> str:
    """Return an exact amount that is left, in few digits, rounded down."""
    near = float(value)
    return at_least(near if Fraction(repr(near)) <= value else math.nextafter(near, 0.0))


def _round_up(value: Fraction) -> float:
    near = float(value)
    return near if Fraction(repr(near)) >= value else math.nextafter(near, math.inf)


@ledger.command(short_help="Every charge of a dataset.")
@place_argument
@dataset_argument
@picture_option
def history(place: str, dataset: str, output: str | None, as_json: bool) -> None:
    """Every charge with its outcome, and a picture of the budgets over time.

    Example:
      discreet ledger history study.ledger census --output budget.png
    """
    with output_file(output, ".png", ".svg") as draft:
        with open_to_read(place) as book:
            rows = book.history(dataset)
            view = book.show(dataset)
        if draft is not None:
            from discreet.report import draw_history

            draw_history(view, rows, draft)
    if as_json:
        print_json({"dataset": dataset, "charges": [_history_as_json(row) for row in rows]})
        return
    if not rows:
        print_lines(["no charges yet"])
    else:
        headings = ("entry", "time (UTC)", "loss", "for", "used", "outcome")
        print_table(headings, _history_rows(view, rows), numbers=(0, 4))
    if output is not None:
        print_lines(["", f"picture: {format_value(output)}"])


def _history_rows(view: DatasetView, rows: Sequence[HistoryRow]) -> list[tuple[str, ...]]:
    """One row for each charge; ``used`` is the share of the dataset's budget after it."""
    from discreet.privacy import read_old

    table: list[tuple[str, ...]] = []
    for row in rows:
        loss = repr(read_old(row.loss).loss)
        short = loss if len(loss) <= _LONGEST_LOSS else loss[: _LONGEST_LOSS - 3] + "..."
        names = [name for name in (row.purpose, row.analyst, row.project) if name is not None]
        used = f"{100 * view.budget.share_used(row.spent['dataset']):.1f} %"
        table.append((str(row.seq), row.at[:19], short, ", ".join(names), used, row.outcome))
    return table


def _history_as_json(row: HistoryRow) -> dict[str, Any]:
    """A charge with everything that its entry says."""
    names = ("at", "loss", "delta", "read_as", "analyst", "project", "purpose", "key", "outcome")
    return {"entry": row.seq, **{name: getattr(row, name) for name in (*names, "spent", "hash")}}


@ledger.command(short_help="Replay everything and look for tampering.")
@click.argument("place", metavar="LEDGER", help="A ledger, or an export that ends in .json.")
@click.option(
    "--receipt",
    "receipts",
    metavar="FILE",
    multiple=True,
    help="A receipt that must be on the chain; repeatable.",
)
@trust_options
def verify(
    place: str,
    receipts: tuple[str, ...],
    keys: tuple[str, ...],
    revoked: str | None,
    as_json: bool,
) -> int:
    """Replay every chain with fresh budgets; exit code 1 if anything is wrong.

    Finds changed, removed, moved and added entries, removed datasets, altered sums, tables
    and guards that are not those of a ledger, and exceeded budgets. A chain that was cut
    off at its end shows only against a receipt kept elsewhere. With --key every receipt and
    export must be signed by one of the keys; without it a signature is not checked (exit code 6).

    Examples:
      discreet ledger verify study.ledger --receipt receipt-17.json
      discreet ledger verify census.json
    """
    trusted = trusted_keys(keys, revoked)
    found = {name: _document("receipt", name) for name in receipts}
    known = [document for document, _ in found.values()]
    notes: tuple[Fault, ...] = ()
    for name, (document, _) in found.items():
        _check_document("receipt", name, document)
    if place.endswith(".json"):
        found[place] = _document("place", place)
        document, _ = found[place]
        problems = _check_document("place", place, document, receipts=known)
        entries = len(document.get("chain", (document,)))
    else:
        with open_to_read(place) as book:
            verdict = book.verify(receipts=known)
        problems, entries, notes = verdict.problems, verdict.entries, verdict.notes
    unsigned, unchecked = _signatures(found, trusted)
    _print_verdict(place, entries, problems + unsigned, notes + unchecked, as_json=as_json)
    return 1 if problems or unsigned else 6 if unchecked else 0


def trusted_keys(keys: tuple[str, ...], revoked: str | None) -> TrustedKeys | None:
    """Read the public keys and the list of revoked ones that a reader trusts, if any."""
    if not keys:
        if revoked is not None:
            raise InvalidValue("revoked", revoked, "only with --key")
        return None
    from discreet._dsse import TrustedKeys, read_public_key, read_revoked

    return TrustedKeys(
        [read_public_key(path) for path in keys], {} if revoked is None else read_revoked(revoked)
    )


def read_key_file(path: str, passphrase_file: str | None) -> Ed25519PrivateKey:
    """Read a private key, with a passphrase from a file or, on a terminal, by asking."""
    from discreet._dsse import read_private_key

    if passphrase_file is not None:
        return read_private_key(path, passphrase=read_passphrase(passphrase_file))
    try:
        return read_private_key(path)
    except InvalidValue as error:
        if "passphrase" not in error.expected or not sys.stdin.isatty():
            raise
    secret = click.prompt("passphrase", hide_input=True).encode()
    return read_private_key(path, passphrase=secret)


def read_passphrase(name: str) -> bytes:
    """Read a passphrase from the first line of a file."""
    return read_text("passphrase_file", name).partition("\n")[0].rstrip("\r").encode()


def _signatures(
    found: Mapping[str, tuple[Mapping[str, Any], Envelope | None]], trusted: TrustedKeys | None
) -> tuple[tuple[Fault, ...], tuple[Fault, ...]]:
    """Say which documents no trusted key signed, and which signatures could not be checked."""
    from discreet.ledger import Fault

    problems, unchecked = [], []
    for name, (_, envelope) in found.items():
        if trusted is None and envelope is not None:
            what = "it is signed, and the signature was not checked: no --key was given"
            unchecked.append(Fault(format_value(name), None, what))
        elif trusted is not None and envelope is None:
            problems.append(Fault(format_value(name), None, "it is not signed"))
        elif trusted is not None and envelope is not None:
            try:
                trusted.require_signature(envelope)
            except SignatureInvalid as error:
                problems.append(Fault(format_value(name), None, str(error)))
    return tuple(problems), tuple(unchecked)


def _document(argument: str, name: str) -> tuple[Mapping[str, Any], Envelope | None]:
    from discreet.ledger import read_signed_document

    text = read_text(argument, name)
    try:
        return read_signed_document(text)
    except DataCorrupt:
        raise
    except ValueError as error:
        reason = " ".join(str(error).split())[:200]
        raise FileUnusable(argument, name, f"a receipt in JSON ({reason})") from None


def _check_document(
    argument: str, name: str, document: Mapping[str, Any], **more: Any
) -> tuple[Fault, ...]:
    """Return what is wrong in a receipt or an export; another document is refused by its name."""
    from discreet.ledger import check_receipt

    try:
        return tuple(check_receipt(document, **more))
    except SchemaError as error:
        raise FileUnusable(argument, name, f"a receipt or an export ({error})") from None


def _list_problems(problems: Sequence[Fault]) -> list[dict[str, Any]]:
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
        found = {"problems": _list_problems(problems), "notes": _list_problems(notes)}
        print_json({"ledger": place, "ok": not problems, "entries": entries, **found})
        return
    verdict = (
        "everything fits" if not problems else _count_words(len(problems), "problem", "problems")
    )
    print_lines([f"{format_value(place)}: {_count_words(entries, 'entry', 'entries')}, {verdict}"])
    print_lines(f"  {problem}" for problem in problems)
    print_lines(f"  note: {note}" for note in notes)
    if any(problem.undercharged for problem in problems):
        print_lines([f"  to mend: discreet ledger correct {format_value(place)}"])


def _count_words(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


@ledger.command(short_help="Charge what version 0.1 charged too little.")
@place_argument
@one_dataset_argument
def correct(place: str, dataset: str | None, as_json: bool) -> None:
    """Charge what version 0.1 charged too little.

    Appends an entry for each charge that verify reports as undercharged. It charges the
    difference; a budget that is exceeded then is closed and refuses every further charge.

    Example:
      discreet ledger correct study.ledger
    """
    from discreet.ledger import Ledger

    with Ledger.open(place) as book:
        names = book.datasets() if dataset is None else [dataset]
        corrected = [problem for name in names for problem in book.correct(name)]
        views = [book.show(name) for name in names]
    closed = [f"{view.name}, {one.label}" for view in views for one in view.budgets if one.closed]
    if as_json:
        print_json({"ledger": place, "corrected": _list_problems(corrected), "closed": closed})
        return
    print_lines(
        [f"{format_value(place)}: {_count_words(len(corrected), 'charge', 'charges')} corrected"]
    )
    print_lines(f"  {problem}" for problem in corrected)
    print_lines(f"  closed: {label}" for label in closed)


@ledger.command(short_help="Spend a loss, and run a command if it fits.")
@place_argument
@dataset_argument
@click.argument(
    "command",
    metavar="[-- COMMAND...]",
    nargs=-1,
    help="Run after the charge, never without it.",
)
@click.option("--epsilon", metavar="NUMBER", help="A stated epsilon, exact: 0.1 or 1/3.")
@click.option(
    "--delta",
    metavar="NUMBER",
    help="With --epsilon the stated delta; otherwise the accountant reads the plan at it.",
)
@mechanism_options
@scope_options("Recorded, and its budget charged.")
@click.option("--key", metavar="TEXT", help="Idempotency: the same key is charged once.")
def charge(
    place: str,
    dataset: str,
    command: tuple[str, ...],
    epsilon: str | None,
    delta: str | None,
    mechanism: Mechanism,
    key: str | None,
    as_json: bool,
    **scope: str | None,
) -> int:
    r"""Spend a loss; it is on the disk before anything else happens.

    A charge that does not fit is refused and changes nothing. With a command after -- the
    command runs only once the charge is durable, its exit code becomes ours, and a failure
    is recorded without a refund; 125 says that it could not be started. Under a key that was
    charged before it does not run.

    Examples:
      discreet ledger charge study.ledger census --epsilon 0.1 --purpose "median age"
      discreet ledger charge study.ledger census --noise-multiplier 1.1 --rate 256/60000 \
        --steps 100 --delta 1e-7 --analyst ann -- python train.py
    """
    from discreet.ledger import Ledger

    with Ledger.open(place) as book:
        loss = _loss(mechanism, epsilon, delta)
        read_at = None if epsilon is not None else delta
        made = book.charge(dataset, loss, delta=read_at, key=key, **scope)
        code = _run(made, command)
        _report(book, made, as_json=as_json)
    return code


def _loss(mechanism: Mechanism, epsilon: str | None, delta: str | None) -> Loss:
    if epsilon is None:
        return mechanism.loss()
    from discreet.privacy import ApproxDP, PureDP

    if mechanism != Mechanism(relation=mechanism.relation):
        raise InvalidValue("epsilon", epsilon, "only without --noise-multiplier and the like")
    relation = mechanism.relation or "add_remove"
    return PureDP(epsilon, relation) if delta is None else ApproxDP(epsilon, delta, relation)


class _CommandFailed(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def _run(made: Charge, command: tuple[str, ...]) -> int:
    if not command or made.replayed:
        return 0
    try:
        with made:
            try:
                code = subprocess.run(command, check=False).returncode
            except OSError as error:
                reason = f"expected a program ({error.strerror}); the charge stays spent"
                print(f"command = {format_value(command[0])}: {reason}", file=sys.stderr)
                raise _CommandFailed(125) from None
            if code:
                raise _CommandFailed(code if code > 0 else 128 - code)
    except _CommandFailed as failure:
        return failure.code
    return 0


def _report(book: Ledger, made: Charge, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "dataset": made.dataset,
                "entry": made.seq,
                "hash": made.hash,
                "replayed": made.replayed,
                "outcome": made.outcome,
                "receipt": made.receipt(),
            }
        )
        return
    view = book.remaining(made.dataset)
    said = "was charged before" if made.replayed else "charged"
    left = ", ".join(f"{name} {exact_at_least(value)}" for name, value in view.remaining.items())
    print_lines(
        [f"{said}: entry {made.seq} of {made.dataset}, {made.outcome}", f"left of it: {left}"]
    )


@ledger.command(short_help="A receipt, or a whole chain, as JSON.")
@place_argument
@dataset_argument
@click.option(
    "--entry",
    type=Count(at_least=0, at_most=2**63 - 1),
    help="The receipt of one entry instead of the chain.",
)
@click.option("--output", "-o", metavar="FILE", help="Write to a file instead of stdout.")
@click.option("--sign-key", metavar="FILE", help="Sign it with this private key.")
@passphrase_option
def export(
    place: str,
    dataset: str,
    entry: int | None,
    output: str | None,
    sign_key: str | None,
    passphrase_file: str | None,
    as_json: bool,
) -> None:
    """Print the chain of a dataset, or the receipt of one entry, as JSON.

    Keep receipts where the keeper of the ledger cannot reach them: they show later whether
    the chain was cut off. An export is replayed by discreet ledger verify FILE.json. With
    --sign-key it comes in a signed envelope (discreet certificate keygen makes the key).

    Examples:
      discreet ledger export study.ledger census --output census.json
      discreet ledger export study.ledger census --entry 17 > receipt-17.json
      discreet ledger export study.ledger census --entry 17 --sign-key clinic.key > signed-17.json
    """
    own = None if sign_key is None else read_key_file(sign_key, passphrase_file)
    with open_to_read(place) as book:
        document = book.export(dataset) if entry is None else book.receipt(dataset, entry)
    if own is not None:
        from discreet.ledger import sign_document

        document = sign_document(document, own).to_json()
    if output is None:
        print_json(document)
        return
    with output_file(output) as draft:
        assert draft is not None
        text = json.dumps(document, indent=2, allow_nan=False) + "\n"
        draft.write_text(text, encoding="utf-8")
    print_answer({"written": output}, f"written: {format_value(output)}", as_json=as_json)


@ledger.command(short_help="Make a directory of a ledger in a single file.")
@click.argument("place", metavar="FILE", help="A ledger in a single file.")
def migrate(place: str, as_json: bool) -> None:
    """Make a directory of a ledger in a single file, as version 0.1 kept it.

    The ledger is verified first, and every entry stays as it is. Close it everywhere before.
    The old file is kept beside it as FILE.before-4; older programs refuse it. A migration that
    was cut short can be repeated.

    Example:
      discreet ledger migrate study.ledger
    """
    from discreet.ledger import Ledger

    old = str(Ledger.migrate(place))
    line = f"{format_value(place)}: migrated; the old file is {format_value(old)}"
    print_answer({"ledger": place, "old": old}, line, as_json=as_json)


@ledger.command(short_help="Let a backup be charged.")
@click.argument("place", metavar="LEDGER", help="A backup, or a URL.")
@click.option("--receipts", metavar="DIR", help="A directory with all receipts since the backup.")
@click.option(
    "--spent",
    metavar="DATASET=EPSILON[,DELTA]",
    multiple=True,
    help="What was spent of a dataset since the backup, at most; repeatable.",
)
def restore(place: str, receipts: str | None, spent: tuple[str, ...], as_json: bool) -> None:
    """Let a backup be charged, after telling what was spent since it was made.

    A backup has forgotten every charge that was made after it. Receipts of these charges are
    spent again; a loss is spent from every budget of its dataset. A dataset of which nothing is
    told has its budgets closed. An entry on every chain says what was done.

    Examples:
      discreet ledger restore study.ledger --receipts kept-receipts
      discreet ledger restore study.ledger --spent census=0.3 --spent survey=1/2,1e-6
    """
    from discreet.ledger import Ledger, read_signed_document

    found: list[Mapping[str, Any]] = []
    for path in sorted(Path(receipts).glob("*.json")) if receipts is not None else ():
        try:
            found.append(read_signed_document(path.read_text(encoding="utf-8"))[0])
        except (OSError, ValueError) as error:
            raise InvalidValue("receipts", str(path), f"a receipt in JSON ({error})") from None
    if receipts is not None and not found:
        raise InvalidValue("receipts", receipts, "a directory with receipts (*.json)")
    with Ledger.open(place, read_only=True) as book:
        relations = {name: book.show(name).relation for name in book.datasets()}
    losses = dict(_parse_loss(text, relations) for text in spent)
    with Ledger.restore(place, receipts=found, spent=losses) as book:
        views = [book.show(name) for name in book.datasets()]
    if as_json:
        print_json({"ledger": place, "datasets": [_budgets_as_json(view) for view in views]})
        return
    closed = {view.name: all(budget.closed for budget in view.budgets) for view in views}
    print_lines(
        f"{name}: {'closed, it refuses every further charge' if shut else 'restored'}"
        for name, shut in closed.items()
    )


def _parse_loss(text: str, relations: Mapping[str, Relation]) -> tuple[str, Loss]:
    """Read ``DATASET=EPSILON`` or ``DATASET=EPSILON,DELTA``."""
    from discreet.ledger import check_amount
    from discreet.privacy import ApproxDP, PureDP

    name, _, amounts = text.rpartition("=")
    epsilon, _, delta = amounts.partition(",")
    if name not in relations:
        raise InvalidValue("spent", text, "DATASET=EPSILON[,DELTA], with a dataset of the ledger")
    for value in (epsilon, delta or "0"):
        check_amount("spent", value)
    if delta:
        return name, ApproxDP(epsilon, delta, relation=relations[name])
    return name, PureDP(epsilon, relation=relations[name])


@ledger.command(short_help="Copy a ledger after a failed flush.")
@click.argument("place", metavar="LEDGER", help="The directory.")
def repair(place: str, as_json: bool) -> None:
    """Copy a ledger into a new file, after the disk failed to confirm what was written.

    Until then every process refuses to charge: what was written later would rest on what may
    be lost. Run discreet ledger verify afterwards.

    Example:
      discreet ledger repair study.ledger
    """
    from discreet.ledger import Ledger

    done = Ledger.repair(place)
    words = "copied into a new file; run discreet ledger verify" if done else "nothing to repair"
    print_answer(
        {"ledger": place, "repaired": done}, f"{format_value(place)}: {words}", as_json=as_json
    )
