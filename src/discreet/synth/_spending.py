"""The cost of the methods: Gaussian noise, exact choices, and categories that were left open.

- ``oneshot``: Gaussian noise only (:class:`GaussianBudget`).
- ``mst``: Gaussian noise and d - 1 exponential mechanisms (:class:`SpanningBudget`), whose losses
  the algebra adds.
- ``aim``: steps whose size follows from earlier results (:class:`RoundsBudget`). Each is zCDP, and
  a filter holds their sum at rho (Feldman and Zrnic 2021; Whitehouse and others 2023).

A neighbour changes the score of a choice, a distance in L1, by 1 for each row (by 2 under
``replace``), up or down: at epsilon a choice has probabilities in exp(epsilon score / (2 change)).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable
from discreet.privacy import ZCDP, Exponential, Loss, Relation
from discreet.privacy.theorems import (
    zcdp_from_bounded_range,
    zcdp_from_gdp,
    zcdp_to_approx_tight,
)
from discreet.synth._budget import STEPS, GaussianBudget
from discreet.synth._categories import OpenCategories

_BISECTIONS = 60
_UP = 1.0 + 2.0**-40  # more than all roundings of a sum of rho


@final
@dataclass(frozen=True)
class SpanningBudget:
    """The noise of the histograms and pairs, and the epsilon of each choice of a pair."""

    gaussian: GaussianBudget
    choices: int
    choice_epsilon: float

    @classmethod
    def make(
        cls, *, columns: int, epsilon: float, delta: float, relation: Relation, rows_per_person: int
    ) -> SpanningBudget:
        """Give a third each to histograms, choices and pairs, by their zCDP, and use it up.

        Parameters
        ----------
        columns
            How many columns there are.
        epsilon, delta
            The budget.
        relation, rows_per_person
            What neighbours are.

        """
        rho = largest_rho(epsilon, delta, relation)
        best = cls._of(columns, rho, relation, rows_per_person)
        if columns == 1:
            return best
        # The algebra reads less than zCDP does: what is left is used, the shares stay.
        used = best.loss.epsilon(delta=delta)
        unused = epsilon / used if used > 0.0 else 1.0
        for power in (1.9, 1.7, 1.0, 0.0):
            trial = cls._of(columns, rho * unused**power, relation, rows_per_person)
            if trial.loss.epsilon(delta=delta) <= epsilon:
                return trial
        raise NotApplicable(f"no noise was certified for epsilon {epsilon} and delta {delta}")

    @classmethod
    def _of(cls, columns: int, rho: float, relation: Relation, rows: int) -> SpanningBudget:
        pairs = columns - 1
        part = rho / 3.0 if pairs else rho
        choice = math.sqrt(8.0 * part / pairs) if pairs else 0.0
        return cls(_gaussian(columns, part, part if pairs else 0.0, relation, rows), pairs, choice)

    @property
    def loss(self) -> Loss:
        """What histograms, choices and pairs reveal together."""
        if not self.choices:
            return self.gaussian.loss
        pick = Exponential(self.choice_epsilon, self.gaussian.relation)
        return self.gaussian.loss + self.choices * pick

    def to_json(self) -> dict[str, Any]:
        """Return the numbers from which the loss follows."""
        return {
            **self.gaussian.to_json(),
            "choices": self.choices,
            "choice_epsilon": self.choice_epsilon,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any], relation: Relation) -> SpanningBudget:
        """Return what :meth:`to_json` wrote; a damaged document raises."""
        return cls(
            GaussianBudget.from_json(document, relation),
            _validate.integer("choices", document["choices"], at_least=0),
            _validate.real("choice_epsilon", document["choice_epsilon"], at_least=0),
        )


@final
@dataclass(frozen=True)
class RoundsBudget:
    """rho in all, and the noise of the histograms, with which the rounds begin."""

    gaussian: GaussianBudget
    rho: float

    @classmethod
    def make(
        cls,
        *,
        columns: int,
        rounds: int,
        epsilon: float,
        delta: float,
        relation: Relation,
        rows_per_person: int,
    ) -> RoundsBudget:
        """Divide rho by as many rounds as there may be; nine tenths of each are for its table.

        Parameters
        ----------
        columns
            How many columns there are.
        rounds
            The most rounds at the first size of noise, the histograms counted.
        epsilon, delta
            The budget.
        relation, rows_per_person
            What neighbours are.

        """
        rho = largest_rho(epsilon, delta, relation)
        part = 0.9 * rho * columns / rounds if columns > 1 else rho
        return cls(_gaussian(columns, part, 0.0, relation, rows_per_person), rho)

    @property
    def loss(self) -> ZCDP:
        """What all rounds reveal together, however many there are."""
        return ZCDP(self.rho, self.gaussian.relation)

    @property
    def rho_of_columns(self) -> float:
        """What the histograms take of rho."""
        return zcdp_from_gdp(self.gaussian.loss.mu) * _UP

    def rho_of_table(self, stddev: float) -> float:
        """Return what a table with this noise takes of rho."""
        return zcdp_from_gdp(self.gaussian.mu_of_table(stddev)) * _UP

    @staticmethod
    def rho_of_choice(epsilon: float) -> float:
        """Return what a choice takes of rho (Cesar and Rogers 2021)."""
        return zcdp_from_bounded_range(epsilon) * _UP

    def to_json(self) -> dict[str, Any]:
        """Return the numbers from which the loss follows."""
        return {**self.gaussian.to_json(), "rho": self.rho}

    @classmethod
    def from_json(cls, document: Mapping[str, Any], relation: Relation) -> RoundsBudget:
        """Return what :meth:`to_json` wrote; a damaged document raises."""
        return cls(
            GaussianBudget.from_json(document, relation),
            _validate.real("rho", document["rho"], above=0),
        )


Budget = GaussianBudget | SpanningBudget | RoundsBudget
BUDGETS: dict[str, Any] = {"oneshot": GaussianBudget, "mst": SpanningBudget, "aim": RoundsBudget}


@final
@dataclass(frozen=True)
class Spending:
    """Everything that a synthesis costs: its method, and the categories that it learns."""

    budget: Budget
    open: OpenCategories | None = None

    @property
    def loss(self) -> Loss:
        """The sum of both, by the algebra of losses."""
        return self.budget.loss if self.open is None else self.budget.loss + self.open.loss

    def to_json(self) -> dict[str, Any]:
        """Return the numbers from which the loss follows."""
        known = self.budget.to_json()
        return known if self.open is None else {**known, "open": self.open.to_json()}

    @classmethod
    def from_json(cls, document: Mapping[str, Any], relation: Relation) -> Spending:
        """Return what :meth:`to_json` wrote; a damaged document raises."""
        if document["method"] not in BUDGETS:
            raise InvalidValue("method", document["method"], f"one of {', '.join(BUDGETS)}")
        budget = BUDGETS[document["method"]].from_json(document, relation)
        left = document.get("open")
        return cls(budget, None if left is None else OpenCategories.from_json(left, relation))


def score_change(budget: GaussianBudget) -> int:
    """Return by how much a distance in steps changes between neighbours, at most."""
    apart = 2 if budget.relation is Relation.REPLACE else 1
    return STEPS * apart * budget.rows_per_person


def largest_rho(epsilon: float, delta: float, relation: Relation) -> float:
    """Return about the largest rho whose zCDP stays within (epsilon, delta)."""
    low, high = 0.0, epsilon + epsilon**2
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        if middle > 0.0 and zcdp_to_approx_tight(middle, delta) <= epsilon:
            low = middle
        else:
            high = middle
    if low <= 0.0 or ZCDP(low, relation).epsilon(delta=delta) > epsilon:
        raise NotApplicable(f"no noise was certified for epsilon {epsilon} and delta {delta}")
    return low


def _gaussian(
    columns: int, columns_rho: float, tables_rho: float, relation: Relation, rows: int
) -> GaussianBudget:
    """Return Gaussian noise that costs at most these parts of rho (mu^2 = 2 rho)."""
    return GaussianBudget.of_mu(
        columns,
        math.sqrt(2.0 * columns_rho),
        math.sqrt(2.0 * tables_rho),
        relation,
        rows,
    )
