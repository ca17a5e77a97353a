"""What all aggregators share: classes, teachers, the plan of a stream, and its session."""

from __future__ import annotations

import math
import numbers
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

from discreet import _validate
from discreet.errors import InvalidValue
from discreet.mechanisms.halting import Charge
from discreet.pate.session import Plan, Runner, Session, no_prediction
from discreet.privacy import GDP, Loss, Relation
from discreet.privacy.theorems_gaussian import gaussian_mu
from discreet.randomness import Source, choose_source

__all__ = ["Aggregator", "Costs", "QueryByQuery", "most_queries"]

_MOST_TEACHERS = 10**6
_MOST_QUERIES = 10**7


class Costs(NamedTuple):
    """What each query costs, and what is added if it is answered (None: nothing)."""

    query: Loss
    answer: Loss | None


@dataclass(frozen=True, kw_only=True)
class Aggregator(ABC):
    """Turns the votes of a fixed, public number of teachers into labels.

    The loss is data-independent and speaks of one moved vote in every query; what that
    means for records is written in :mod:`discreet.pate.votes`. Ties go to the lowest class.
    """

    classes: int
    teachers: int
    relation: Relation | str = Relation.ADD_REMOVE

    def __post_init__(self) -> None:
        self._set(
            classes=_validate.integer("classes", self.classes, at_least=2, at_most=10**6),
            teachers=_validate.integer(
                "teachers", self.teachers, at_least=1, at_most=_MOST_TEACHERS
            ),
            relation=Relation.parse(self.relation),
        )

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def neighbours(self) -> Relation:
        """The relation that the loss speaks of."""
        return Relation.parse(self.relation)

    @abstractmethod
    def plan(self) -> Plan:
        """State what a stream may cost; nothing is spent. Subclasses say by which arguments."""

    @abstractmethod
    def _runner(self, plan: Plan, source: Source) -> Runner:
        """Return what decides the queries of one session."""

    @abstractmethod
    def _spent(self, queries: int, answers: int) -> Loss | None:
        """What so many queries and answers cost."""

    def _open(
        self,
        plan: Plan,
        source: Source | None,
        insecure_seed: int | None,
        charge: Charge | None,
    ) -> Session:
        bits = choose_source(source, insecure_seed)
        if charge is not None:
            charge(plan.loss)
        return Session(
            plan=plan,
            classes=self.classes,
            teachers=self.teachers,
            run=self._runner(plan, bits),
            spent=self._spent,
            parameters={**self.parameters, **bits.provenance},
            check=self._check_predictions,
        )

    def _check_predictions(self, predictions: Any, queries: int) -> None:
        """Refuse predictions that this aggregator cannot use, before anything is drawn."""
        no_prediction(predictions, queries)

    @property
    def parameters(self) -> dict[str, Any]:
        """Name and public parameters, as JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        shown = {name: _written(value) for name, value in values.items()}
        return {"aggregator": type(self).__name__, **shown}


@dataclass(frozen=True, kw_only=True)
class QueryByQuery(Aggregator):
    """An aggregator whose queries are releases of their own, with one loss for each."""

    @property
    @abstractmethod
    def costs(self) -> Costs:
        """The data-independent loss of one query, and of its answer where that is apart."""

    def loss(self, *, queries: int, answers: int | None = None) -> Loss:
        """The loss of a stream of at most so many queries and answers (None: all answered)."""
        asked = _validate.integer("queries", queries, at_least=1, at_most=_MOST_QUERIES)
        given = asked
        if answers is not None:
            given = _validate.integer("answers", answers, at_least=1, at_most=asked)
        costs = self.costs
        total = asked * costs.query
        return total if costs.answer is None else total + given * costs.answer

    def plan(
        self,
        *,
        queries: int | None = None,
        answers: int | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
    ) -> Plan:
        """State a budget: numbers of ``queries`` and ``answers``, or ``epsilon`` and ``delta``.

        Nothing is spent. ``answers`` is for aggregators whose answers cost extra. Given
        ``epsilon`` and ``delta`` the stream goes on for as long as they allow, and at most for
        ``queries`` and ``answers`` if these are given as well.
        """
        if epsilon is None:
            if delta is not None:
                raise InvalidValue("delta", delta, "None where no epsilon is given")
            if queries is None:
                raise InvalidValue("queries", queries, "a number of queries, or epsilon and delta")
            return Plan(self.loss(queries=queries, answers=answers), queries, answers)
        target = _validate.real("epsilon", epsilon, above=0)
        point = _validate.real("delta", delta, at_least=0, below=1)
        return self._plan_within(target, point, queries, answers)

    def _plan_within(
        self, epsilon: float, delta: float, queries: int | None, answers: int | None
    ) -> Plan:
        costs = self.costs
        parts = [costs.query] if costs.answer is None else [costs.query, costs.answer]
        mus = [part.mu for part in parts if isinstance(part, GDP)]
        if len(mus) == len(parts) and delta > 0:
            return self._gaussian_plan(mus, epsilon, delta, queries, answers)
        each = parts[0] if len(parts) == 1 else parts[0] + parts[1]
        most = most_queries(each, epsilon=epsilon, delta=delta, at_most=queries)
        return Plan(most * each, most, _optional("answers", answers))

    def _gaussian_plan(
        self,
        mus: list[float],
        epsilon: float,
        delta: float,
        queries: int | None,
        answers: int | None,
    ) -> Plan:
        """The filter for Gaussian privacy: everything together is GDP(mu), and no less."""
        mu = gaussian_mu(epsilon, delta) * (1.0 - 1e-12)
        while GDP(mu, self.neighbours).epsilon(delta=delta) > epsilon:
            mu *= 1.0 - 1e-9
        query = Fraction(mus[0]) ** 2
        answer = Fraction(mus[1]) ** 2 if len(mus) > 1 else Fraction(0)
        plan = Plan(
            GDP(mu, self.neighbours),
            _optional("queries", queries),
            _optional("answers", answers),
            None,
            Fraction(mu) ** 2,
            query,
            answer,
        )
        if not plan.has_room(queries=0, answers=0):
            one = GDP(math.sqrt(math.fsum(value * value for value in mus)), self.neighbours)
            raise _too_little(epsilon, one.epsilon(delta=delta), delta)
        return plan

    def open(
        self,
        *,
        queries: int | None = None,
        answers: int | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        source: Source | None = None,
        insecure_seed: int | None = None,
        charge: Charge | None = None,
    ) -> Session:
        """Open a session under the plan of these arguments (see :meth:`plan`).

        ``charge`` is called with the plan's loss before anything is drawn; if it raises there is
        no session. ``insecure_seed`` is for experiments and is recorded in the provenance.
        """
        plan = self.plan(queries=queries, answers=answers, epsilon=epsilon, delta=delta)
        return self._open(plan, source, insecure_seed, charge)

    def _spent(self, queries: int, answers: int) -> Loss | None:
        if queries == 0:
            return None
        costs = self.costs
        total = queries * costs.query
        if costs.answer is None or answers == 0:
            return total
        return total + answers * costs.answer


def most_queries(each: Loss, *, epsilon: float, delta: float, at_most: int | None = None) -> int:
    """The largest number of repetitions of a loss that are (epsilon, delta)-DP, or raise.

    >>> from discreet.privacy import PureDP
    >>> most_queries(2 * PureDP("0.05"), epsilon=1, delta=0)
    10
    """
    limit = _MOST_QUERIES
    if at_most is not None:
        limit = _validate.integer("queries", at_most, at_least=1, at_most=_MOST_QUERIES)

    def fits(count: int) -> bool:
        return (count * each).epsilon(delta=delta) <= epsilon

    if not fits(1):
        raise _too_little(epsilon, each.epsilon(delta=delta), delta)
    low, high = 1, 2
    while high <= limit and fits(high):
        low, high = high, 2 * high
    high = min(high, limit + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _written(value: object) -> int | float | str | None:
    """A parameter as JSON: whole numbers and floats as they are, what is exact as text."""
    if value is None:
        return None
    if isinstance(value, str):
        return str(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    exact = isinstance(value, numbers.Rational | Decimal)
    return float(value) if isinstance(value, numbers.Real) and not exact else str(value)


def _optional(argument: str, value: int | None) -> int | None:
    if value is None:
        return None
    return _validate.integer(argument, value, at_least=1, at_most=_MOST_QUERIES)


def _too_little(epsilon: float, needed: float, delta: float) -> InvalidValue:
    return InvalidValue(
        "epsilon", epsilon, f"enough for one query, which needs {needed:.6g} at delta {delta:g}"
    )
