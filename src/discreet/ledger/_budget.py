"""Budgets of a dataset: one for all of it, and one for each analyst, project or purpose named.

Every budget is a :class:`~discreet.privacy.Filter`, which is valid however the charges
are chosen. A charge goes through when *all* the budgets that it touches admit it, so
analysts who pool their shares still meet the cap of the dataset.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple, cast

from discreet import _validate
from discreet._html import html_table
from discreet._json import canonical
from discreet._rounding import at_least
from discreet.errors import BudgetExceeded, InvalidValue, LedgerCorrupt
from discreet.ledger._entry import Entry, check_name, parse_entry, printable
from discreet.privacy import (
    ApproxDP,
    Filter,
    Loss,
    Relation,
    from_json,
    read_fraction,
    read_old,
    to_json,
    write_fraction,
)

DATASET = "dataset"
SCOPES = ("analyst", "project", "purpose")
_MOST_DIGITS = 2000  # of numerator and denominator
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError)


def format_label(scope: str, name: str) -> str:
    """How a budget is called: ``dataset``, ``analyst:ann``."""
    return DATASET if scope == DATASET else f"{scope}:{name}"


def parse_label(label: str) -> tuple[str, str]:
    """Scope and name of the budget that :func:`format_label` calls so."""
    scope, _, name = label.partition(":")
    return scope, name


def find_scope(**names: str | None) -> tuple[str, str]:
    """The one scope that was named, with the name."""
    given = [(scope, name) for scope, name in names.items() if name is not None]
    if len(given) != 1:
        raise InvalidValue(
            "budget", [scope for scope, _ in given], "exactly one of " + ", ".join(SCOPES)
        )
    scope, name = given[0]
    return scope, check_name(scope, name)


@dataclass(frozen=True)
class Request:
    """What a charge asks for, checked, and as JSON."""

    loss: Loss
    delta: Fraction | None
    names: Mapping[str, str | None]
    key: str | None

    @classmethod
    def build(
        cls, loss: object, *, delta: object, names: Mapping[str, str | None], key: str | None
    ) -> Request:
        """Check every argument of a charge before anything happens."""
        if not isinstance(loss, Loss):
            raise InvalidValue("loss", printable(loss), "a loss from discreet.privacy")
        _check_readable(loss)
        exact = None if delta is None else _validate.fraction("delta", delta, above=0, below=1)
        for scope, name in names.items():
            if name is not None:
                check_name(scope, name)
        return cls(loss, exact, dict(names), None if key is None else check_name("key", key))

    def labels(self) -> list[tuple[str, str]]:
        """The budgets that the charge touches, if they exist."""
        named = [(scope, name) for scope, name in self.names.items() if name is not None]
        return [(DATASET, ""), *named]

    def as_json(self) -> dict[str, Any]:
        """The fields that an entry keeps; two requests are the same if these are."""
        return {
            "loss": to_json(self.loss),
            "delta": None if self.delta is None else write_fraction(self.delta),
            "key": self.key,
            **self.names,
        }

    def same_as(self, content: Mapping[str, Any]) -> bool:
        """Whether an entry answers this very request."""
        mine = self.as_json()
        return canonical(mine) == canonical({name: content.get(name) for name in mine})


def _check_readable(loss: Loss) -> None:
    """Refuse a loss that an entry cannot hold, so that ``verify`` reads what was charged.

    Its numbers may have thousands of digits, or it is no loss of this library.
    """
    reason = "it comes back as another loss"
    try:
        same = from_json(canonical(to_json(loss))) == loss
    except ValueError as error:  # SchemaError, or more digits than Python writes
        same, reason = False, str(error)
    if not same:
        expected = f"a loss that can be written as JSON and read again: {reason}"
        raise InvalidValue("loss", f"a {type(loss).__name__}", expected)


def charge_all(budgets: Sequence[tuple[str, Filter]], loss: Loss, claim: ApproxDP | None) -> None:
    """Charge every filter, or raise for the first that refuses.

    ``claim`` is what the accountant certified for a plan that is charged with a delta.
    The filters are private copies: when one refuses, the caller drops them all.
    """
    for label, budget in budgets:
        try:
            budget.charge(loss, claim=claim)
        except BudgetExceeded as error:
            left = budget.remaining()
            amounts = ", ".join(
                f"{name} {at_least(float(value), digits=6)}" for name, value in left.items()
            )
            raise BudgetExceeded(
                f"the budget {label!r} cannot pay for this charge, nothing was charged: {error} "
                f"(left: {amounts})",
                budget=label,
                remaining=left,
            ) from None


def write_sums(budget: Filter) -> dict[str, str]:
    """The running sums of a filter as an entry keeps them: open lanes and delta, exactly."""
    return {name: write_fraction(value) for name, value in budget.spent.items()}


def write_state(budget: Filter) -> str:
    """A budget as its row keeps it."""
    return json.dumps(budget.state())


# --- arguments of budgets ----------------------------------------------------------------


def check_amount(argument: str, value: object) -> object:
    """Return an epsilon or a delta as it was given, or raise; the budget checks its range."""
    if isinstance(value, bool | bytes | list | tuple | Mapping) or printable(value) is not value:
        raise InvalidValue(argument, printable(value), "an exact number such as 0.1 or '1/3'")
    try:
        number = _validate.fraction(argument, value)
    except InvalidValue:
        return value  # the budget says what it expects
    if max(abs(number.numerator), number.denominator) >= 10**_MOST_DIGITS:
        raise InvalidValue(
            argument,
            f"a number of more than {_MOST_DIGITS} digits",
            f"an exact number of at most {_MOST_DIGITS} digits",
        )
    return value


def check_orders(orders: object) -> Sequence[float] | None:
    """Renyi orders; their range is checked by the budget."""
    if orders is None:
        return None
    if isinstance(orders, str | bytes | Mapping) or not isinstance(orders, Iterable):
        raise InvalidValue("orders", printable(orders), "a sequence of numbers above 1")
    return [_validate.real("orders", printable(order), above=1) for order in orders]


def check_scopes(required: object) -> list[str]:
    """Scopes that every charge has to name."""
    expected = "scopes among " + ", ".join(SCOPES)
    if isinstance(required, str | bytes | Mapping) or not isinstance(required, Iterable):
        raise InvalidValue("required", printable(required), expected)
    scopes = list(required)
    if not all(isinstance(scope, str) and scope in SCOPES for scope in scopes):
        raise InvalidValue("required", [printable(scope) for scope in scopes], expected)
    return sorted(set(scopes))


# --- what a ledger shows -----------------------------------------------------------------


def require_scopes(
    dataset: str, required: Iterable[str], budgets: Iterable[tuple[str, str]]
) -> None:
    """Raise ``BudgetExceeded`` unless a charge touches a budget of every required scope."""
    touched = {scope for scope, _ in budgets}
    for scope in required:
        if scope not in touched:
            raise BudgetExceeded(
                f"{dataset!r} asks every charge to name a{'n' * (scope == 'analyst')} {scope} with "
                "a budget; nothing was charged",
                budget=scope,
            )


@dataclass(frozen=True)
class BudgetView:
    """One budget now. ``spent`` and ``remaining`` are exact, for every open sum and delta."""

    label: str
    epsilon: Fraction
    delta: Fraction
    kind: str
    charges: int
    spent: Mapping[str, Fraction]
    remaining: Mapping[str, Fraction]

    def __str__(self) -> str:
        percent = math.ceil(round(100.0 * self.used, 9))
        return (
            f"{percent}% of epsilon {float(self.epsilon):g}, delta {float(self.delta):g} used "
            f"by {self.charges} charges"
        )

    @property
    def closed(self) -> bool:
        """Whether no sum is open: a correction or a restored backup closed the budget."""
        return set(self.remaining) <= {"delta"}

    @property
    def used(self) -> float:
        """The share of the budget that is gone, by the sum that has the most room left."""
        return self.share_used(self.spent)

    def share_used(self, spent: Mapping[str, Fraction | str]) -> float:
        """Return the share that sums leave behind, such as those of a row of the history."""
        shares = []
        for name in (self.spent.keys() & spent.keys()) - {"delta"}:
            cap = self.spent[name] + self.remaining[name]
            shares.append(float(Fraction(spent[name]) / cap) if cap else 1.0)
        return min(shares, default=1.0)  # no open sum: the budget was closed by a correction


@dataclass(frozen=True)
class DatasetView:
    """A dataset now: whose privacy, under which relation, and its budgets.

    ``restored`` has the positions of the entries that tell of a restored backup.
    """

    name: str
    unit: str
    relation: Relation
    required: tuple[str, ...]
    budgets: tuple[BudgetView, ...]
    entries: int
    head: str
    genesis: str
    restored: tuple[int, ...] = ()

    def _repr_html_(self) -> str:
        rows: list[tuple[str, object]] = [("one", self.unit), ("neighbours", self.relation.value)]
        rows += [(f"budget: {one.label}", one) for one in self.budgets]
        return html_table(f"dataset {self.name}", [*rows, ("entries", self.entries)])

    @property
    def budget(self) -> BudgetView:
        """The budget of the whole dataset."""
        return next(view for view in self.budgets if view.label == "dataset")


@dataclass(frozen=True)
class HistoryRow:
    """One charge, with what became of its body and the sums after it."""

    seq: int
    at: str
    loss: Mapping[str, Any]
    delta: str | None
    read_as: Mapping[str, Any] | None
    analyst: str | None
    project: str | None
    purpose: str | None
    key: str | None
    outcome: str
    spent: Mapping[str, Mapping[str, str]]
    hash: str


def view_budget(label: str, budget: Filter) -> BudgetView:
    """A filter as it stands."""
    promise = budget.guarantee
    return BudgetView(
        label=label,
        epsilon=promise.claimed_epsilon,
        delta=promise.claimed_delta,
        kind=budget.kind,
        charges=budget.charges,
        spent=budget.spent,
        remaining=budget.remaining(),
    )


class Opening(NamedTuple):
    """What the first entry of a dataset says of it."""

    unit: str
    relation: Relation
    required: tuple[str, ...]


def read_opening(genesis: Entry) -> Opening:
    """Read the first entry of a dataset, or raise ``LedgerCorrupt``."""
    content = genesis.content
    try:
        relation = Relation.parse(content["relation"], zero_out=True)
        unit, required = content["unit"], tuple(content["required"])
        if isinstance(unit, str) and all(scope in SCOPES for scope in required):
            return Opening(unit, relation, required)
    except _MALFORMED:
        pass
    raise LedgerCorrupt(f"the first entry of {genesis.dataset!r} cannot be read; run verify")


def list_history(dataset: str, chain: Iterable[tuple[str, str]]) -> list[HistoryRow]:
    """The charges of a chain of texts with their hashes, in order, or ``LedgerCorrupt``."""
    charges: dict[int, Entry] = {}
    outcomes: dict[int, str] = {}
    try:
        for text, hash_ in chain:
            entry = parse_entry(text)
            if entry.hash != hash_:
                raise ValueError(f"entry {entry.seq} was changed")
            if entry.kind == "charge":
                charges[entry.seq] = entry
            elif entry.kind == "outcome":
                outcomes[entry.content["charge"]] = str(entry.content["outcome"])
        return [_row(entry, outcomes.get(seq, "open")) for seq, entry in charges.items()]
    except _MALFORMED as error:
        raise LedgerCorrupt(f"{dataset!r} cannot be read, run verify: {error}") from error


def make_history_row(entry: Entry, outcome: Mapping[str, Any] | None) -> HistoryRow:
    """One charge with the content of its outcome, if it has one, or ``LedgerCorrupt``."""
    try:
        return _row(entry, "open" if outcome is None else str(outcome["outcome"]))
    except _MALFORMED as error:
        raise LedgerCorrupt(f"entry {entry.seq} cannot be read, run verify: {error}") from error


def _row(entry: Entry, outcome: str) -> HistoryRow:
    content = entry.content
    read_old(content["loss"])  # losses that only 0.1 could build are shown as they are
    for sums in (content["spent"][DATASET], *content["spent"].values()):
        for name, text in sums.items():
            read_fraction(text, name)
    return HistoryRow(
        seq=entry.seq,
        at=entry.at,
        hash=entry.hash,
        outcome=outcome,
        key=content.get("key"),  # the first version had none
        **{name: content[name] for name in _FROM_CONTENT},
    )


_FROM_CONTENT = (
    "loss",
    "delta",
    "read_as",
    "analyst",
    "project",
    "purpose",
    "spent",
)


def new_filter(
    *,
    epsilon: object,
    delta: object,
    kind: object,
    relation: object,
    reserved: object,
    orders: object,
) -> Filter:
    """Return the filter of a new budget, every argument checked."""
    return Filter(
        epsilon=check_amount("epsilon", epsilon),
        delta=check_amount("delta", delta),
        kind=cast("str | None", printable(kind)),
        relation=cast("str", printable(relation)),
        reserved=None if reserved is None else check_amount("reserved", reserved),
        orders=check_orders(orders),
    )
