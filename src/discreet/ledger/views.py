"""What a ledger shows: budgets as they stand, and the history of a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from discreet.errors import LedgerCorrupt
from discreet.ledger.budgets import DATASET, SCOPES
from discreet.ledger.entries import Entry, parse_entry
from discreet.privacy import Filter, Relation, read_fraction, read_old

__all__ = [
    "BudgetView",
    "DatasetView",
    "HistoryRow",
    "Opening",
    "history_of",
    "history_row",
    "opening_of",
    "view_budget",
]

_MALFORMED = (KeyError, TypeError, ValueError, AttributeError)


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

    @property
    def closed(self) -> bool:
        """Whether no sum is open: a correction exceeded the budget, and it pays for nothing."""
        return set(self.remaining) <= {"delta"}

    @property
    def used(self) -> float:
        """The share of the budget that is gone, by the sum that has the most room left."""
        shares = []
        for name, spent in self.spent.items():
            if name != "delta":
                cap = spent + self.remaining[name]
                shares.append(float(spent / cap) if cap else 1.0)
        return min(shares, default=1.0)  # no open sum: the budget was closed by a correction


@dataclass(frozen=True)
class DatasetView:
    """A dataset now: whose privacy, under which relation, and its budgets."""

    name: str
    unit: str
    relation: Relation
    required: tuple[str, ...]
    budgets: tuple[BudgetView, ...]
    entries: int
    head: str
    genesis: str

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


def opening_of(genesis: Entry) -> Opening:
    """Read the first entry of a dataset, or raise ``LedgerCorrupt``."""
    content = genesis.content
    try:
        unit, relation = content["unit"], Relation.parse(content["relation"])
        required = tuple(content["required"])
        if isinstance(unit, str) and all(scope in SCOPES for scope in required):
            return Opening(unit, relation, required)
    except _MALFORMED:
        pass
    raise LedgerCorrupt(f"the first entry of {genesis.dataset!r} cannot be read; run verify")


def history_of(dataset: str, chain: Iterable[tuple[str, str]]) -> list[HistoryRow]:
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


def history_row(entry: Entry, outcome: Mapping[str, Any] | None) -> HistoryRow:
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
