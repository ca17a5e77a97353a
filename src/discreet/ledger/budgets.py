"""Budgets of a dataset: one for all of it, and one for each analyst, project or purpose named.

Every budget is a :class:`~discreet.privacy.Filter`, which is valid however the charges
are chosen (S9a). A charge goes through when *all* the budgets that it touches admit it, so
analysts who pool their shares still meet the cap of the dataset.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from discreet import _validate
from discreet._json import canonical
from discreet._rounding import at_least
from discreet.errors import BudgetExceeded, InvalidValue
from discreet.ledger.entries import name_of, printable
from discreet.privacy import ApproxDP, Filter, Loss, from_json, to_json, write_fraction

__all__ = [
    "DATASET",
    "SCOPES",
    "Request",
    "charge_all",
    "label_of",
    "parse_label",
    "scope_of",
    "spent_of",
    "state_of",
]

DATASET = "dataset"
SCOPES = ("analyst", "project", "purpose")


def label_of(scope: str, name: str) -> str:
    """How a budget is called: ``dataset``, ``analyst:ann``."""
    return DATASET if scope == DATASET else f"{scope}:{name}"


def parse_label(label: str) -> tuple[str, str]:
    """Scope and name of the budget that :func:`label_of` calls so."""
    scope, _, name = label.partition(":")
    return scope, name


def scope_of(**names: str | None) -> tuple[str, str]:
    """The one scope that was named, with the name."""
    given = [(scope, name) for scope, name in names.items() if name is not None]
    if len(given) != 1:
        raise InvalidValue(
            "budget", [scope for scope, _ in given], "exactly one of " + ", ".join(SCOPES)
        )
    scope, name = given[0]
    return scope, name_of(scope, name)


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
                name_of(scope, name)
        return cls(loss, exact, dict(names), None if key is None else name_of("key", key))

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


def spent_of(budget: Filter) -> dict[str, str]:
    """The running sums of a filter as an entry keeps them: open lanes and delta, exactly."""
    return {name: write_fraction(value) for name, value in budget.spent.items()}


def state_of(budget: Filter) -> str:
    """A budget as its row keeps it."""
    return json.dumps(budget.state())
