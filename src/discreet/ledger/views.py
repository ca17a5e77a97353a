"""What a ledger shows: budgets as they stand, and the history of a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from discreet.ledger.entries import Entry
from discreet.privacy.adaptive import Filter
from discreet.privacy.relation import Relation

__all__ = ["BudgetView", "DatasetView", "HistoryRow", "history_of", "view_budget"]


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
    def used(self) -> float:
        """The share of the budget that is gone, by the sum that has the most room left."""
        shares = []
        for name, spent in self.spent.items():
            if name != "delta":
                cap = spent + self.remaining[name]
                shares.append(float(spent / cap) if cap else 1.0)
        return min(shares)


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


def history_of(entries: Iterable[Entry]) -> list[HistoryRow]:
    """The charges of a chain, in order."""
    charges: dict[int, Entry] = {}
    outcomes: dict[int, str] = {}
    for entry in entries:
        if entry.kind == "charge":
            charges[entry.seq] = entry
        elif entry.kind == "outcome":
            outcomes[entry.content["charge"]] = entry.content["outcome"]
    return [
        HistoryRow(
            seq=seq,
            at=entry.at,
            hash=entry.hash,
            outcome=outcomes.get(seq, "open"),
            key=entry.content.get("key"),  # the first version had none
            **{name: entry.content[name] for name in _FROM_CONTENT},
        )
        for seq, entry in charges.items()
    ]


_FROM_CONTENT = (
    "loss",
    "delta",
    "read_as",
    "analyst",
    "project",
    "purpose",
    "spent",
)
