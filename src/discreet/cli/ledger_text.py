"""Ledgers in words and numbers: the rows of tables, and JSON with exact amounts."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from discreet.cli.tables import at_least, at_most

if TYPE_CHECKING:
    from discreet.ledger import DatasetView, HistoryRow

__all__ = [
    "budget_rows",
    "budgets_as_json",
    "exact_at_least",
    "history_as_json",
    "history_rows",
]

_LONGEST_LOSS = 60
_SUMS = {"basic": "epsilon", "zcdp": "rho", "gdp": "mu^2"}


def budget_rows(view: DatasetView) -> list[tuple[str, ...]]:
    """One row for each sum of each budget; what a budget has once is printed once."""
    rows: list[tuple[str, ...]] = []
    for budget in view.budgets:
        head = (
            budget.label,
            at_least(_down(budget.epsilon)),
            at_least(_down(budget.delta)),
            str(budget.charges),
        )
        if budget.closed:
            rows.append((*head, "closed", "", "0"))
            continue
        for name, spent in budget.spent.items():
            if name == "delta" and budget.delta == 0:
                continue
            amounts = at_most(_up(spent)), at_least(_down(budget.remaining[name]))
            rows.append((*head, _SUMS.get(name, name), *amounts))
            head = ("", "", "", "")
    return rows


def history_rows(view: DatasetView, rows: list[HistoryRow]) -> list[tuple[str, ...]]:
    """One row for each charge; ``used`` is the share of the dataset's budget after it."""
    from discreet.privacy import read_old

    shown: list[tuple[str, ...]] = []
    for row in rows:
        loss = repr(read_old(row.loss).loss)
        short = loss if len(loss) <= _LONGEST_LOSS else loss[: _LONGEST_LOSS - 3] + "..."
        names = [name for name in (row.purpose, row.analyst, row.project) if name is not None]
        used = f"{100 * view.budget.share_used(row.spent['dataset']):.1f} %"
        shown.append((str(row.seq), row.at[:19], short, ", ".join(names), used, row.outcome))
    return shown


def budgets_as_json(view: DatasetView) -> dict[str, Any]:
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


def history_as_json(row: HistoryRow) -> dict[str, Any]:
    """A charge with everything that its entry says."""
    return {
        "entry": row.seq,
        "at": row.at,
        "loss": row.loss,
        "delta": row.delta,
        "read_as": row.read_as,
        "analyst": row.analyst,
        "project": row.project,
        "purpose": row.purpose,
        "key": row.key,
        "outcome": row.outcome,
        "spent": row.spent,
        "hash": row.hash,
    }


def exact_at_least(value: Fraction) -> str:
    """Return an exact amount that is left, in few digits, rounded down."""
    return at_least(_down(value))


def _up(value: Fraction) -> float:
    near = float(value)
    return near if Fraction(repr(near)) >= value else math.nextafter(near, math.inf)


def _down(value: Fraction) -> float:
    near = float(value)
    return near if Fraction(repr(near)) <= value else math.nextafter(near, 0.0)
