"""Plans of quantiles and threshold streams: scores and comparisons instead of noisy numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet.curator import measures
from discreet.curator._queries import Quantile, ThresholdStream
from discreet.curator.expressions import Column
from discreet.curator.lowering import Lowered, Lowering
from discreet.curator.planning import (
    CONFIDENCE,
    Bar,
    ExpectedError,
    Facts,
    Plan,
    Released,
    shown,
)
from discreet.curator.statistics import measured
from discreet.mechanisms import (
    SparseVector,
    exponential_choice,
    read_epsilon,
    step_budget,
    utility_bound,
)
from discreet.privacy import Exponential, Loss, PureDP, Relation
from discreet.randomness import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["QuantilePlan", "ThresholdStreamPlan"]

Lower = Callable[[Any], Lowering]


@final
class QuantilePlan(Plan):
    """One of evenly spaced cells, by how far the wanted rank is from the ranks in it.

    The score of :func:`quantile_scores` moves by at most max(q, 1 - q) for each row,
    hence by k times that for a unit; the exponential mechanism is then epsilon-bounded range.
    A cell of a single value is released as that value, a wider one as its middle.
    """

    loss: Loss

    def __init__(self, query: Quantile, facts: Facts) -> None:
        super().__init__(query, facts)
        self._asked = query
        self.grid = self._measured(facts.lowering()).grid
        self.width = -(-(self.grid.high - self.grid.low + 1) // query.points)
        self.cells = (self.grid.high - self.grid.low) // self.width + 1
        self.sensitivity = facts.cap * score_sensitivity(query.share, Relation.ADD_REMOVE)
        self.loss = Exponential(read_epsilon(query.epsilon)[1], Relation.ADD_REMOVE)
        rate = query.epsilon / (2 * self.sensitivity) * query.share.denominator
        self._short = math.ceil(utility_bound(self.cells, rate=rate, beta=1 - CONFIDENCE))
        self.expected = (ExpectedError("rank, in rows", float(self._short)),)

    def _measured(self, lowering: Lowering) -> Lowered:
        return measured(lowering, self._asked.of, self._asked.lower, self._asked.upper)

    def build(self, table: Any, lower: Lower) -> Any:
        lowering = lower(table)
        cell = measures.part(lowering, self._measured(lowering), self.width)
        return measures.aggregated(table, keys={"cell": cell}, sums={})

    def parts(self, rows: Sequence[tuple[Any, ...]]) -> list[int]:
        """The exact counts of all cells."""
        counts = [0] * self.cells
        for cell, count in rows:
            counts[int(cell)] = int(count)
        return counts

    def scores(self, rows: Sequence[tuple[Any, ...]]) -> Any:
        """The exact scores, times the denominator of the share."""
        return quantile_scores(np.array(self.parts(rows), dtype=np.int64), share=self._asked.share)

    def release(self, rows: Sequence[tuple[Any, ...]], source: Source) -> Released:
        cell = exponential_choice(
            self.scores(rows),
            sensitivity=self.sensitivity,
            epsilon=self._asked.epsilon,
            source=source,
        ).value
        start = self.grid.low + cell * self.width
        last = min(start + self.width - 1, self.grid.high)
        value: Any = shown(Fraction(start + last, 2) * self.grid.step)
        of = self._asked.of
        if isinstance(of, Column) and self.facts.columns[of.name].dates:
            value = self.facts.columns[of.name].show((start + last) // 2)
        bar = Bar("rank, in rows from the wanted one", -self._short, self._short)
        return Released(value, (bar,))


@final
class ThresholdStreamPlan(Plan):
    """Counts against a threshold, one after another, by the sparse vector technique (S15).

    All counts grow when a unit comes, each by at most k: monotone queries of sensitivity k.
    """

    loss: Loss

    def __init__(self, query: ThresholdStream, facts: Facts) -> None:
        super().__init__(query, facts)
        self._asked = query
        for question in query.questions:
            facts.lowering().condition(question)
        step = step_budget(runs=query.answers, epsilon=query.epsilon).epsilon
        self.loss = query.answers * PureDP(step)
        scale = 2 * query.answers * facts.cap / query.epsilon
        self._each = 1 - (1 - CONFIDENCE) / len(query.questions)
        reach = 2 * math.ceil(float(scale) * math.log(2 / (1 - self._each))) + 1
        self.expected = (ExpectedError("rows from the threshold, all answers", float(reach)),)

    def build(self, table: Any, lower: Lower) -> Any:
        lowering = lower(table)
        sums = {
            f"q{at}": measures.truth_number(lowering, lowering.condition(question))
            for at, question in enumerate(self._asked.questions)
        }
        return measures.aggregated(table, keys={}, sums=sums)

    def parts(self, rows: Sequence[tuple[Any, ...]]) -> list[int]:
        """The exact counts."""
        return [int(count or 0) for count in rows[0][1:]]

    def release(self, rows: Sequence[tuple[Any, ...]], source: Source) -> Released:
        run = SparseVector(
            threshold=self._asked.threshold,
            answers=self._asked.answers,
            epsilon=self._asked.epsilon,
            sensitivity=self.facts.cap,
            monotone=True,
            granularity=1,
            source=source,
        )
        assert run.loss == self.loss
        values: list[bool | None] = []
        bars: list[Bar] = []
        for at, count in enumerate(self.parts(rows)):
            label = f"question {at + 1}"
            if run.halted:
                values.append(None)
                bars.append(Bar(label, None, None))
                continue
            answer = run.ask(count)
            low, high = answer.interval(confidence=self._each)
            values.append(answer.value)
            bars.append(
                Bar(
                    label,
                    math.floor(low) if math.isfinite(low) else None,
                    math.ceil(high) if math.isfinite(high) else None,
                )
            )
        return Released(values, tuple(bars))


def quantile_scores(counts: NDArray[np.int64], *, share: Fraction) -> NDArray[np.int64]:
    """Return the score of each cell for q = ``share``, times the denominator of q.

    With F(g) the number of values at or below g and n the number of values, the cell
    (g_i, g_{i+1}] scores -max(0, F(g_i) - q n, q n - F(g_{i+1})): 0 for the right cell and at most
    -n min(q, 1 - q) for the cells beyond all values. Adding a value changes each F(g) - q n by
    1 - q or by -q, hence each score by at most max(q, 1 - q); replacing one leaves q n alone and
    changes each score by at most 1.

    >>> quantile_scores(np.array([0, 2, 3, 5]), share=Fraction(1, 4))  # the rank is 2.5
    array([-10,  -2,   0, -10])
    """
    rank = share.numerator * int(counts.sum())
    up_to = share.denominator * np.cumsum(counts, dtype=np.int64)
    before = np.concatenate([np.zeros(1, dtype=np.int64), up_to[:-1]])
    distance = np.maximum(np.maximum(before - rank, rank - up_to), 0)
    return np.asarray(-distance, dtype=np.int64)


def score_sensitivity(share: Fraction, relation: Relation) -> int:
    """Return by how much a neighbour changes any of :func:`quantile_scores`, at most.

    >>> score_sensitivity(Fraction(1, 4), Relation.ADD_REMOVE)
    3
    """
    if relation is Relation.ADD_REMOVE:
        return max(share.numerator, share.denominator - share.numerator)
    return share.denominator
