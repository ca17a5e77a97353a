"""Plans of counts, sum, mean, variance, histogram and quantile.

All but quantiles are integer aggregates with discrete Laplace noise.

**Sensitivity.** A unit of privacy owns at most k of the rows that a query uses (its cap). Adding or
removing it changes a count by at most k; a count of persons, for which no row is dropped, by one;
a sum of numbers n * step with low <= n <= high by at most k max(|low|, |high|) steps. A mean is
the noisy sum of distances from the middle of the range divided by the noisy count, a variance
uses squares of those distances as well; each of the two or three parts gets an equal share of
epsilon, and the rest is post-processing.

**No overflow.** Engines add up n - low >= 0 in limbs of at most 2**30. With at most 2**32 rows
no sum of limbs passes 2**62.

**Error bars** of a mean or a variance follow from those of its parts, which hold together: the
true parts lie in a box, and the ends are the least and the largest quotient in it.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet.curator._plan import (
    CONFIDENCE,
    Bar,
    ExpectedError,
    Facts,
    Found,
    Noise,
    QueryPlan,
    Released,
    json_number,
)
from discreet.curator._queries import (
    Count,
    CountPersons,
    Histogram,
    Mean,
    Quantile,
    Query,
    Sum,
    Variance,
)
from discreet.engines import (
    Aggregation,
    Field,
    Grid,
    Lowered,
    Number,
    bin_index,
    bucket_index,
    square_exactly,
    subtract_floor,
)
from discreet.errors import InvalidValue
from discreet.mechanisms import exponential_choice, read_epsilon, utility_bound
from discreet.privacy import Exponential, Loss, Relation
from discreet.randomness import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

_RISK = 1 - CONFIDENCE
_WIDEST = 2**52
_SQUARED = 2**26


def measure(facts: Facts, of: Number, lower: Fraction | None, upper: Fraction | None) -> Lowered:
    """A number cut to its stated bounds, with room to be added up."""
    lowering = facts.lowering()
    return lowering.coarser(lowering.clip(lowering.number(of), lower, upper), _WIDEST)


def middle_of(grid: Grid) -> int:
    """The middle of a range, in steps."""
    return (grid.low + grid.high) // 2


class _Counting(QueryPlan):
    """A number of rows or persons, with noise of scale sensitivity / epsilon."""

    def __init__(self, query: Query, facts: Facts, *, what: str, sensitivity: int) -> None:
        super().__init__(query, facts)
        self._what = what
        self.noise = Noise(sensitivity=sensitivity, epsilon=query.epsilon)
        self.loss: Loss = self.noise.loss
        self.expected = (ExpectedError(what, self.noise.reach()),)

    def release(self, found: Found, source: Source) -> Released:
        noisy = found[()][0] + self.noise.draws(1, source)[0]
        reach = self.noise.reach()
        return Released(noisy, (Bar(self._what, noisy - reach, noisy + reach),))


@final
class CountPlan(_Counting):
    """The number of rows, with noise of scale k / epsilon."""

    def __init__(self, query: Count, facts: Facts) -> None:
        super().__init__(query, facts, what="count", sensitivity=facts.cap)


@final
class CountPersonsPlan(_Counting):
    """The number of persons with enough rows, with noise of scale 1 / epsilon."""

    def __init__(self, query: CountPersons, facts: Facts) -> None:
        if facts.schema.person is None:
            raise InvalidValue("kind", query.tag, "count: the schema of this dataset has no person")
        self._more_than = query.more_than
        super().__init__(query, facts, what="persons", sensitivity=1)

    @property
    def cap(self) -> None:
        return None

    @property
    def about(self) -> str:
        return "of all persons"

    def aggregate(self, *_: Any) -> Aggregation:
        persons = {"count": "persons", "more_than": self._more_than}
        return Aggregation(where=self.where, **persons)  # type: ignore[arg-type]


@final
class SumPlan(QueryPlan):
    """The sum of a number, with noise of scale k max(|low|, |high|) / epsilon steps."""

    def __init__(self, query: Sum, facts: Facts) -> None:
        super().__init__(query, facts)
        self._asked = query
        of = measure(facts, query.of, query.lower, query.upper)
        self.grid = of.grid
        self.aggregation = self.aggregate(sums=[of])
        self.noise = Noise(sensitivity=facts.cap * self.grid.magnitude, epsilon=query.epsilon)
        self.loss: Loss = self.noise.loss
        width = self.grid.value(self.noise.reach())
        self.expected = (ExpectedError("sum", float(width)),)

    def release(self, found: Found, source: Source) -> Released:
        noisy = found[()][1] + self.noise.draws(1, source)[0]
        reach, step = self.noise.reach(), self.grid.step
        bar = Bar(
            "sum", json_number((noisy - reach) * step, -1), json_number((noisy + reach) * step, 1)
        )
        return Released(json_number(noisy * step), (bar,))


@final
class MeanPlan(QueryPlan):
    """The mean of a number: a noisy sum of distances from the middle by a noisy count."""

    def __init__(self, query: Mean, facts: Facts) -> None:
        super().__init__(query, facts)
        self._asked = query
        of = measure(facts, query.of, query.lower, query.upper)
        self.grid = of.grid
        self.aggregation = self.aggregate(sums=[of])
        self.middle = middle_of(self.grid)
        self.half = max(self.grid.high - self.middle, self.middle - self.grid.low, 1)
        share = query.epsilon / 2
        self.count_noise = Noise(sensitivity=facts.cap, epsilon=share)
        self.sum_noise = Noise(sensitivity=facts.cap * self.half, epsilon=share)
        self.loss: Loss = self.count_noise.loss + self.sum_noise.loss
        self.expected = (ExpectedError("mean", self._expect_width()),)

    def parts(self, found: Found) -> tuple[int, int]:
        """The exact count, and the exact sum of distances from the middle in steps."""
        count, total = found[()]
        return count, total - self.middle * count

    def release(self, found: Found, source: Source) -> Released:
        count, total = self.parts(found)
        count += self.count_noise.draws(1, source)[0]
        total += self.sum_noise.draws(1, source)[0]
        few = self.count_noise.reach(risk=_RISK / 2)
        value, bar = mean_of(
            self,
            total,
            count,
            off=self.sum_noise.reach(risk=_RISK / 2),
            counts=(count - few, count + few),
            label="mean",
        )
        return Released(value, (bar,))

    def _expect_width(self) -> float | None:
        rows = self.facts.schema.expected_rows
        if rows is None or self.query.where is not None:
            return None
        off, few = self.sum_noise.reach(risk=_RISK / 2), self.count_noise.reach(risk=_RISK / 2)
        if few >= rows:
            return float(self.grid.value(self.half))
        width = min(Fraction(off + self.half * few, rows - few), Fraction(self.half))
        return float(width * self.grid.step)


def mean_of(
    plan: Any, total: int, count: int, *, off: int, counts: tuple[int, int], label: str
) -> tuple[Any, Bar]:
    """A mean and its error bar; ``plan`` has middle, half and grid.

    The true sum is within ``off`` of ``total`` and the true count within ``counts``.
    """
    value = min(max(Fraction(total, max(count, 1)), Fraction(-plan.half)), Fraction(plan.half))
    low, high = quotient_bounds(total, off, counts, plan.half)
    step = plan.grid.step
    bar = Bar(
        label,
        json_number((plan.middle + low) * step, -1),
        json_number((plan.middle + high) * step, 1),
    )
    return json_number((plan.middle + value) * step), bar


def quotient_bounds(
    total: int, off: int, counts: tuple[int, int], most: int
) -> tuple[Fraction, Fraction]:
    """The least and largest quotient of a sum within ``off`` of ``total`` by one of ``counts``."""
    if counts[0] < 1:
        return Fraction(-most), Fraction(most)
    ends = [Fraction(top, bottom) for top in (total - off, total + off) for bottom in counts]
    return max(min(ends), Fraction(-most)), min(max(ends), Fraction(most))


@final
class VariancePlan(QueryPlan):
    """The variance of a number from noisy count, sum and sum of squares about the middle."""

    def __init__(self, query: Variance, facts: Facts) -> None:
        super().__init__(query, facts)
        self._asked = query
        of = measure(facts, query.of, query.lower, query.upper)
        distance = facts.lowering().coarser(subtract_floor(of, middle_of(of.grid)), _SQUARED)
        square = square_exactly(distance)
        self.grid, self.square = distance.grid, square.grid
        self.aggregation = self.aggregate(sums=[distance, square])
        share = query.epsilon / 3
        self.count_noise = Noise(sensitivity=facts.cap, epsilon=share)
        self.sum_noise = Noise(sensitivity=facts.cap * self.grid.magnitude, epsilon=share)
        self.square_noise = Noise(sensitivity=facts.cap * self.square.high, epsilon=share)
        self.loss: Loss = self.count_noise.loss + self.sum_noise.loss + self.square_noise.loss
        self.expected = (ExpectedError("variance", None),)

    def parts(self, found: Found) -> tuple[int, ...]:
        """The exact count, sum and sum of squares, in steps and squared steps."""
        return found[()]

    def release(self, found: Found, source: Source) -> Released:
        count, total, squares = self.parts(found)
        count += self.count_noise.draws(1, source)[0]
        total += self.sum_noise.draws(1, source)[0]
        squares += self.square_noise.draws(1, source)[0]
        most, step = self.square.high, self.square.step
        n = max(count, 1)
        value = Fraction(squares, n) - Fraction(total, n) ** 2
        risk = _RISK / 3
        few = self.count_noise.reach(risk=risk)
        counts = (count - few, count + few)
        mean = quotient_bounds(total, self.sum_noise.reach(risk=risk), counts, self.grid.magnitude)
        mean_square = quotient_bounds(squares, self.square_noise.reach(risk=risk), counts, most)
        nearest = Fraction(0) if mean[0] <= 0 <= mean[1] else min(map(abs, mean))
        low = max(Fraction(0), mean_square[0] - max(map(abs, mean)) ** 2)
        high = min(Fraction(most), mean_square[1] - nearest**2)
        bar = Bar("variance", json_number(low * step, -1), json_number(max(low, high) * step, 1))
        return Released(json_number(min(max(value, Fraction(0)), Fraction(most)) * step), (bar,))


@final
class HistogramPlan(QueryPlan):
    """Counts between public edges, each with noise of scale k / epsilon."""

    loss: Loss

    def __init__(self, query: Histogram, facts: Facts) -> None:
        super().__init__(query, facts)
        self._asked = query
        of = facts.lowering().number(query.of)
        self.grid = of.grid
        self._edges = [math.ceil(edge / self.grid.step) for edge in query.edges]
        self.cells = [
            at
            for at in range(len(query.edges) + 1)
            if self._first(at) <= self._last(at)  # the others are empty whatever the data
        ]
        # An edge outside of the range of the number is reached by all or by none.
        edges = [min(max(edge, self.grid.low), self.grid.high + 1) for edge in self._edges]
        self.aggregation = self.aggregate(keys=[bin_index(of, edges)])
        self.noise = Noise(sensitivity=facts.cap, epsilon=query.epsilon)
        self.loss = self.noise.loss
        reach = self.noise.reach(together=len(self.cells))
        self.expected = (ExpectedError("count of each bin", reach),)

    def _first(self, cell: int) -> int:
        low = self.grid.low
        return low if cell == 0 else max(low, self._edges[cell - 1])

    def _last(self, cell: int) -> int:
        high = self.grid.high
        return high if cell == len(self._edges) else min(high, self._edges[cell] - 1)

    def parts(self, found: Found) -> list[int]:
        """The exact counts of the cells that can hold anything."""
        return [found.get((cell,), (0,))[0] for cell in self.cells]

    def release(self, found: Found, source: Source) -> Released:
        counts = self.parts(found)
        reach = self.noise.reach(together=len(self.cells))
        values, bars = [], []
        edges = self._asked.edges
        draws = self.noise.draws(len(counts), source)
        for cell, count, draw in zip(self.cells, counts, draws, strict=True):
            start = None if cell == 0 else json_number(edges[cell - 1])
            stop = None if cell == len(edges) else json_number(edges[cell])
            noisy = count + draw
            values.append({"from": start, "to": stop, "value": noisy})
            bars.append(Bar(f"from {start} to {stop}", noisy - reach, noisy + reach))
        return Released(values, tuple(bars))


@final
class QuantilePlan(QueryPlan):
    """One of evenly spaced cells, by how far the wanted rank is from the ranks in it.

    The score of :func:`quantile_scores` moves by at most max(q, 1 - q) for each row,
    hence by k times that for a unit; the exponential mechanism is then epsilon-bounded range.
    A cell of a single value is released as that value, a wider one as its middle.
    """

    loss: Loss

    def __init__(self, query: Quantile, facts: Facts) -> None:
        super().__init__(query, facts)
        self._asked = query
        of = measure(facts, query.of, query.lower, query.upper)
        self.grid = of.grid
        self.width = -(-(self.grid.high - self.grid.low + 1) // query.points)
        self.cells = (self.grid.high - self.grid.low) // self.width + 1
        self.aggregation = self.aggregate(keys=[bucket_index(of, self.width)])
        self.sensitivity = facts.cap * score_sensitivity(query.share, Relation.ADD_REMOVE)
        self.loss = Exponential(read_epsilon(query.epsilon)[1], Relation.ADD_REMOVE)
        rate = query.epsilon / (2 * self.sensitivity) * query.share.denominator
        self._short = math.ceil(utility_bound(self.cells, rate=rate, beta=1 - CONFIDENCE))
        self.expected = (ExpectedError("rank, in rows", float(self._short)),)

    def parts(self, found: Found) -> list[int]:
        """The exact counts of all cells."""
        return [found.get((cell,), (0,))[0] for cell in range(self.cells)]

    def scores(self, found: Found) -> Any:
        """The exact scores, times the denominator of the share."""
        counts = np.array(self.parts(found), dtype=np.int64)
        return quantile_scores(counts, share=self._asked.share)

    def release(self, found: Found, source: Source) -> Released:
        cell = exponential_choice(
            self.scores(found),
            sensitivity=self.sensitivity,
            epsilon=self._asked.epsilon,
            source=source,
        ).value
        start = self.grid.low + cell * self.width
        last = min(start + self.width - 1, self.grid.high)
        value: Any = json_number(Fraction(start + last, 2) * self.grid.step)
        of = self._asked.of
        if isinstance(of, Field) and self.facts.columns[of.name].dates:
            value = self.facts.columns[of.name].show((start + last) // 2)
        bar = Bar("rank, in rows from the wanted one", -self._short, self._short)
        return Released(value, (bar,))


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


PLANS = {
    Count: CountPlan,
    CountPersons: CountPersonsPlan,
    Sum: SumPlan,
    Mean: MeanPlan,
    Variance: VariancePlan,
    Histogram: HistogramPlan,
    Quantile: QuantilePlan,
}
