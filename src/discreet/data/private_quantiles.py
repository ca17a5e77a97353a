"""Bounds of a numeric column, learned privately: two quantiles on a public grid.

A grid g_1 < ... < g_m cuts the line into m + 1 cells (g_i, g_{i+1}]. The exponential mechanism
(S13) chooses the cell that holds the q-quantile: with F(g) the number of values at or below g
and n the number of values, a cell is scored by how far the rank q n is from the ranks in it,

    score(i) = -max(0, F(g_i) - q n, q n - F(g_{i+1})),

0 for the right cell and at most -n min(q, 1 - q) for the cells beyond all values. The lower bound
is the left end of the cell of a small q, the upper bound the right end of the cell of 1 - q.

**Guarantee.** Adding a value x changes each F(g) - q n by 1 - q or by -q, hence each score by at
most max(q, 1 - q); replacing a value leaves q n alone and changes each F(g) by at most 1, hence
each score by at most 1. With that sensitivity each choice is epsilon-bounded range. The range of
the score differences is truly twice the sensitivity for a value beyond the quantile: cells to the
left of the quantile lose what cells between the quantile and the value gain.

Values out of the grid lie in its outermost cells. Missing values are not counted at all.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet.data.cells import to_days
from discreet.data.columns import Bounded, Date, Integer, Real
from discreet.errors import InvalidValue
from discreet.mechanisms import Selection, exponential_choice
from discreet.privacy import Exponential, Loss, Relation
from discreet.randomness import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "CellCounts",
    "QuantilePair",
    "bounded_by",
    "default_grid",
    "grid_of",
    "quantile_scores",
    "score_sensitivity",
]

_DENOMINATOR = 1000
_PLATEAU_RISK = 0.01
_MANTISSAS = (10, 15, 20, 30, 50, 70)  # in tenths
_REAL_EXPONENTS = range(-6, 13)


def default_grid(column: Bounded) -> tuple[Any, ...]:
    """Return a wide public grid: 1, 1.5, 2, 3, 5, 7 times powers of ten of both signs and 0.

    From 1e-6 to 7e12 for real numbers, whole numbers up to 7e12 for integers; the first days
    of the years from 1900 to 2100 for dates.
    """
    if isinstance(column, Date):
        return tuple(dt.date(year, 1, 1) for year in range(1900, 2101))
    sizes = [Fraction(m, 10) * Fraction(10) ** e for e in _REAL_EXPONENTS for m in _MANTISSAS]
    if isinstance(column, Integer):
        sizes = [size for size in sizes if size.denominator == 1]
    positive: list[Any] = [
        int(size) if isinstance(column, Integer) else float(size) for size in sizes
    ]
    zero: Any = 0 if isinstance(column, Integer) else 0.0
    return (*(-size for size in reversed(positive)), zero, *positive)


def grid_of(name: str, column: Bounded, grid: Sequence[Any] | None) -> tuple[Any, ...]:
    """Return a public grid of increasing values of the column, the default one or one given."""
    if grid is None:
        return default_grid(column)
    argument = f"grids[{name!r}]"
    expected = "at least two increasing values of the type of the column"
    if not isinstance(grid, list | tuple) or len(grid) < 2:
        raise InvalidValue(argument, grid, expected)
    try:
        for lower, upper in pairwise(grid):
            replace(_kind(column), lower=lower, upper=upper, missing=None)
    except InvalidValue:
        raise InvalidValue(argument, grid, expected) from None
    return tuple(grid)


def quantile_scores(counts: NDArray[np.int64], *, share: Fraction) -> NDArray[np.int64]:
    """Return the score of each cell for q = ``share``, times the denominator of q.

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


@final
class CellCounts:
    """How many values lie in each cell of a grid, counted over batches."""

    def __init__(self, points: NDArray[np.float64]) -> None:
        self._points = points
        self.counts = np.zeros(points.size + 1, dtype=np.int64)

    def add(self, raw: NDArray[np.float64]) -> None:
        """Count values as read; NaN is no value."""
        values = raw[~np.isnan(raw)]
        cells = np.searchsorted(self._points, values, side="left")
        self.counts += np.bincount(cells, minlength=self.counts.size)


@final
@dataclass(frozen=True)
class QuantilePair:
    """The plan for both bounds of one column: two choices of ``epsilon`` each."""

    grid: tuple[Any, ...]
    epsilon: Fraction
    tail: Fraction
    relation: Relation

    @classmethod
    def planned(
        cls,
        grid: tuple[Any, ...],
        *,
        epsilon: Fraction,
        relation: Relation,
        expected_units: int | None,
    ) -> QuantilePair:
        """Choose the share of values to be left out on each side from public numbers.

        Many cells lie beyond all values and have the score -q n. They win with probability 1 %
        at most if q n >= (ln of their number + ln 100) / rate; q is the least such share of
        the declared number of units, between 0.5 % and 25 %. Without a declared number it is 5 %.
        """
        tail = Fraction(1, 20)
        if expected_units is not None:
            rate = float(epsilon) / 2
            ranks = (math.log(len(grid) + 1) - math.log(_PLATEAU_RISK)) / rate
            share = math.ceil(min(0.25, ranks / expected_units) * _DENOMINATOR)
            tail = Fraction(max(5, share), _DENOMINATOR)
        return cls(grid, epsilon, tail, relation)

    @property
    def loss(self) -> Loss:
        """What both choices cost."""
        return 2 * Exponential(float(self.epsilon), self.relation)

    def counts(self) -> CellCounts:
        """Return empty counts over the grid."""
        return CellCounts(np.array([_number(point) for point in self.grid]))

    def choose(
        self, counts: CellCounts, source: Source
    ) -> tuple[tuple[Any, Any], list[Selection[int]]]:
        """Return both bounds and the releases that they come from."""
        releases = [
            exponential_choice(
                quantile_scores(counts.counts, share=share),
                sensitivity=score_sensitivity(share, self.relation),
                epsilon=self.epsilon,
                relation=self.relation,
                source=source,
            )
            for share in (self.tail, 1 - self.tail)
        ]
        return self._ends(*sorted(release.value for release in releases)), releases

    def _ends(self, first: int, last: int) -> tuple[Any, Any]:
        """Return the outer ends of two cells, which are the ends of the grid beyond it."""
        low, high = max(0, first - 1), min(len(self.grid) - 1, last)
        if low == high:
            low, high = (low, high + 1) if low == 0 else (low - 1, high)
        return self.grid[low], self.grid[high]


def _number(point: Any) -> float:
    return to_days(point) if isinstance(point, dt.date) else float(point)


def bounded_by(column: Bounded, bounds: tuple[Any, Any]) -> Bounded:
    """Return the column with these bounds; a declared missing value moves inside them."""
    lower, upper = bounds
    missing = column.missing
    if missing is not None:
        missing = min(max(missing, lower), upper)
    return replace(_kind(column), lower=lower, upper=upper, missing=missing)


def _kind(column: Bounded) -> Integer | Real | Date:
    if not isinstance(column, Integer | Real | Date):
        raise InvalidValue("column", column, "Integer, Real or Date")
    return column
