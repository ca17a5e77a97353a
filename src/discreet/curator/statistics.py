"""Plans of counts, sum, mean and variance: integer aggregates, then discrete Laplace noise.

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

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, final

from discreet.curator import measures
from discreet.curator._queries import Count, CountPersons, Mean, Query, Sum, Variance
from discreet.curator.expressions import Number
from discreet.curator.grids import PERSON, Grid
from discreet.curator.lowering import Lowered, Lowering
from discreet.curator.planning import (
    CONFIDENCE,
    Bar,
    ExpectedError,
    Facts,
    Noise,
    Plan,
    Released,
    shown,
)
from discreet.errors import InvalidValue
from discreet.privacy import Loss
from discreet.randomness import Source

__all__ = [
    "CountPersonsPlan",
    "CountPlan",
    "MeanPlan",
    "SumPlan",
    "VariancePlan",
    "measured",
    "quotient_bounds",
    "total_of",
]

_RISK = 1 - CONFIDENCE
_WIDEST = 2**52
_SQUARED = 2**26

Lower = Callable[[Any], Lowering]


def measured(
    lowering: Lowering, of: Number, lower: Fraction | None, upper: Fraction | None
) -> Lowered:
    """A number cut to its stated bounds, with room to be added up."""
    return lowering.coarser(lowering.clipped(lowering.number(of), lower, upper), _WIDEST)


def total_of(grid: Grid, limbs: Sequence[Any], rows: int) -> int:
    """The sum of a number in steps, from the sums of its limbs and the number of rows."""
    total = 0
    for limb in limbs:
        total = (total << measures.LIMB) + int(limb or 0)
    return total + grid.low * rows


def limb_terms(lowering: Lowering, of: Lowered, prefix: str) -> dict[str, Any]:
    """The limbs of a number, named for an aggregate."""
    return {f"{prefix}{at}": limb for at, limb in enumerate(measures.limbs(lowering, of))}


def middle_of(grid: Grid) -> int:
    """The middle of a range, in steps."""
    return (grid.low + grid.high) // 2


class _Counting(Plan):
    """A number of rows or persons, with noise of scale sensitivity / epsilon."""

    def __init__(self, query: Query, facts: Facts, *, what: str, sensitivity: int) -> None:
        super().__init__(query, facts)
        self._what = what
        self.noise = Noise(sensitivity=sensitivity, epsilon=query.epsilon)
        self.loss: Loss = self.noise.loss
        self.expected = (ExpectedError(what, self.noise.reach()),)

    def release(self, rows: Sequence[tuple[Any, ...]], source: Source) -> Released:
        noisy = int(rows[0][0]) + self.noise.draws(1, source)[0]
        reach = self.noise.reach()
        return Released(noisy, (Bar(self._what, noisy - reach, noisy + reach),))


@final
class CountPlan(_Counting):
    """The number of rows, with noise of scale k / epsilon."""

    def __init__(self, query: Count, facts: Facts) -> None:
        super().__init__(query, facts, what="count", sensitivity=facts.cap)

    def build(self, table: Any, lower: Lower) -> Any:
        return measures.aggregated(table, keys={}, sums={})


@final
class CountPersonsPlan(_Counting):
    """The number of persons with enough rows, with noise of scale 1 / epsilon."""

    def __init__(self, query: CountPersons, facts: Facts) -> None:
        if facts.schema.person is None:
            raise InvalidValue("kind", query.tag, "count: the schema of this dataset has no person")
        super().__init__(query, facts, what="persons", sensitivity=1)
        self._more_than = query.more_than

    @property
    def cap(self) -> None:
        return None

    @property
    def about(self) -> str:
        return "of all persons"

    def build(self, table: Any, lower: Lower) -> Any:
        owned = table.group_by(PERSON).aggregate(owned=table.count())
        many = owned.filter(owned.owned > self._more_than)
        return many.aggregate(rows=many.count())


@final
class SumPlan(Plan):
    """The sum of a number, with noise of scale k max(|low|, |high|) / epsilon steps."""

    def __init__(self, query: Sum, facts: Facts) -> None:
        super().__init__(query, facts)
        self._asked = query
        self.grid = measured(facts.lowering(), query.of, query.lower, query.upper).grid
        self.noise = Noise(sensitivity=facts.cap * self.grid.magnitude, epsilon=query.epsilon)
        self.loss: Loss = self.noise.loss
        width = self.grid.value(self.noise.reach())
        self.expected = (ExpectedError("sum", float(width)),)

    def build(self, table: Any, lower: Lower) -> Any:
        lowering = lower(table)
        of = measured(lowering, self._asked.of, self._asked.lower, self._asked.upper)
        return measures.aggregated(table, keys={}, sums=limb_terms(lowering, of, "s"))

    def total(self, row: Sequence[Any]) -> int:
        """The exact sum, in steps."""
        return total_of(self.grid, row[1:], int(row[0]))

    def release(self, rows: Sequence[tuple[Any, ...]], source: Source) -> Released:
        noisy = self.total(rows[0]) + self.noise.draws(1, source)[0]
        reach, step = self.noise.reach(), self.grid.step
        bar = Bar("sum", shown((noisy - reach) * step, -1), shown((noisy + reach) * step, 1))
        return Released(shown(noisy * step), (bar,))


@final
class MeanPlan(Plan):
    """The mean of a number: a noisy sum of distances from the middle by a noisy count."""

    def __init__(self, query: Mean, facts: Facts) -> None:
        super().__init__(query, facts)
        self._asked = query
        self.grid = measured(facts.lowering(), query.of, query.lower, query.upper).grid
        self.middle = middle_of(self.grid)
        self.half = max(self.grid.high - self.middle, self.middle - self.grid.low, 1)
        share = query.epsilon / 2
        self.count_noise = Noise(sensitivity=facts.cap, epsilon=share)
        self.sum_noise = Noise(sensitivity=facts.cap * self.half, epsilon=share)
        self.loss: Loss = self.count_noise.loss + self.sum_noise.loss
        self.expected = (ExpectedError("mean", self._expected_width()),)

    def build(self, table: Any, lower: Lower) -> Any:
        lowering = lower(table)
        of = measured(lowering, self._asked.of, self._asked.lower, self._asked.upper)
        return measures.aggregated(table, keys={}, sums=limb_terms(lowering, of, "s"))

    def parts(self, row: Sequence[Any]) -> tuple[int, int]:
        """The exact count, and the exact sum of distances from the middle in steps."""
        count = int(row[0])
        return count, total_of(self.grid, row[1:], count) - self.middle * count

    def release(self, rows: Sequence[tuple[Any, ...]], source: Source) -> Released:
        count, total = self.parts(rows[0])
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

    def _expected_width(self) -> float | None:
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
        shown((plan.middle + low) * step, -1),
        shown((plan.middle + high) * step, 1),
    )
    return shown((plan.middle + value) * step), bar


def quotient_bounds(
    total: int, off: int, counts: tuple[int, int], most: int
) -> tuple[Fraction, Fraction]:
    """The least and largest quotient of a sum within ``off`` of ``total`` by one of ``counts``."""
    if counts[0] < 1:
        return Fraction(-most), Fraction(most)
    ends = [Fraction(top, bottom) for top in (total - off, total + off) for bottom in counts]
    return max(min(ends), Fraction(-most)), min(max(ends), Fraction(most))


@final
class VariancePlan(Plan):
    """The variance of a number from noisy count, sum and sum of squares about the middle."""

    def __init__(self, query: Variance, facts: Facts) -> None:
        super().__init__(query, facts)
        self._asked = query
        distance, square = self._lowered(facts.lowering())
        self.grid, self.square = distance.grid, square.grid
        share = query.epsilon / 3
        self.count_noise = Noise(sensitivity=facts.cap, epsilon=share)
        self.sum_noise = Noise(sensitivity=facts.cap * self.grid.magnitude, epsilon=share)
        self.square_noise = Noise(sensitivity=facts.cap * self.square.high, epsilon=share)
        self.loss: Loss = self.count_noise.loss + self.sum_noise.loss + self.square_noise.loss
        self.expected = (ExpectedError("variance", None),)

    def _lowered(self, lowering: Lowering) -> tuple[Lowered, Lowered]:
        of = measured(lowering, self._asked.of, self._asked.lower, self._asked.upper)
        distance = lowering.coarser(measures.above(lowering, of, middle_of(of.grid)), _SQUARED)
        return distance, measures.squared(lowering, distance)

    def build(self, table: Any, lower: Lower) -> Any:
        lowering = lower(table)
        distance, square = self._lowered(lowering)
        sums = {**limb_terms(lowering, distance, "s"), **limb_terms(lowering, square, "q")}
        return measures.aggregated(table, keys={}, sums=sums)

    def parts(self, row: Sequence[Any]) -> tuple[int, int, int]:
        """The exact count, sum and sum of squares, in steps and squared steps."""
        count = int(row[0])
        limbs = 1 if self.grid.high - self.grid.low <= 2**measures.LIMB else 2
        total = total_of(self.grid, row[1 : 1 + limbs], count)
        return count, total, total_of(self.square, row[1 + limbs :], count)

    def release(self, rows: Sequence[tuple[Any, ...]], source: Source) -> Released:
        count, total, squares = self.parts(rows[0])
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
        bar = Bar("variance", shown(low * step, -1), shown(max(low, high) * step, 1))
        return Released(shown(min(max(value, Fraction(0)), Fraction(most)) * step), (bar,))
