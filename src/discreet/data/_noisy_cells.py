"""Noisy counts of cells on two scales, and robust bounds from them.

A public grid g_1 < ... < g_m cuts the line into m + 1 fine cells (g_i, g_{i+1}]. Six neighbouring
fine cells, on the default grid a decade, are one coarse cell; the cell that ends in 0 is one by
itself, because many columns of counts are mostly 0. Every value is counted in its fine cell and in
its coarse one, and all counts of all columns get noise together.

**Guarantee.** One row, or one chosen row of a person, adds 1 to two cells of each of p columns.
So the vector of all counts has L2 sensitivity sqrt(2 p) and L1 sensitivity 2 p, and twice as many
cells change under ``replace``. With a delta the noise is the discrete Gaussian or the discrete
Laplace, whichever needs the smaller counts to be seen; without one it is Laplace, which is pure.

**Bounds** are post-processing. Coarse cells whose noisy count is above what noise alone reaches
with probability 1 % in any of them are believed; if there is none, the largest of those three
neighbours whose sum is largest is. The lower bound is the left end of the first such
cell, narrowed to the first of its fine cells that is believed by the same rule, and the upper
bound alike. No number of rows is declared or used: far cells are empty, and that an empty one is
believed has probability 1 % in a column, however many rows there are. What is cut off is what no
cell shows above the noise.

The noisy counts are paid for, so they can also serve as a rough distribution.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

import numpy as np
from scipy.special import ndtri

from discreet import _validate
from discreet.data._cells import to_days
from discreet.data._columns import Bounded, Date, Integer, Real
from discreet.errors import InvalidValue, NotApplicable
from discreet.mechanisms import (
    gaussian_integers,
    laplace_integers,
    read_epsilon,
    round_up,
)
from discreet.privacy import GDP, DiscreteLaplace, Loss, Relation
from discreet.privacy.theorems import discrete_gaussian_mu, gaussian_mu
from discreet.randomness import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

_COARSE = 6  # fine cells in a coarse one
_RISK = 0.01
_MANTISSAS = (10, 15, 20, 30, 50, 70)  # in tenths
_REAL_EXPONENTS = range(-6, 13)
_USUAL_CELLS = 40  # coarse cells of a column, about


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


@final
class CellCounts:
    """How many values lie in each fine cell of a grid, counted over batches; private."""

    def __init__(self, grid: Sequence[Any]) -> None:
        self._points = np.array([_number(point) for point in grid])
        self.counts = np.zeros(self._points.size + 1, dtype=np.int64)

    def add(self, raw: NDArray[np.float64]) -> None:
        """Count values as read; NaN is no value."""
        values = raw[~np.isnan(raw)]
        cells = np.searchsorted(self._points, values, side="left")
        self.counts += np.bincount(cells, minlength=self.counts.size)


@final
@dataclass(frozen=True, eq=False)
class NoisyCells:
    """The released counts of one column: ``fine``, and ``coarse`` with the first cell of each.

    ``threshold(k)`` is what noise alone passes in any of k cells with probability 1 % at most.
    """

    grid: tuple[Any, ...]
    fine: NDArray[np.int64]
    coarse: NDArray[np.int64]
    starts: NDArray[np.int64]
    kind: str
    scale: float

    def threshold(self, cells: int) -> float:
        """Return the least noisy count that is believed, among ``cells`` cells."""
        return _threshold(self.kind, self.scale, cells)

    @property
    def rows(self) -> float:
        """The noisy number of rows that have a value here."""
        return float(self.coarse.sum())

    def bounds(self) -> tuple[Any, Any]:
        """Return robust bounds (see the module), two different points of the grid."""
        believed = np.flatnonzero(self.coarse > self.threshold(self.coarse.size))
        if believed.size == 0:
            # Three neighbours together stand out where none of them does alone.
            sums = np.convolve(self.coarse, np.ones(3), mode="same")
            near = max(0, int(np.argmax(sums)) - 1)
            believed = np.array([near + np.argmax(self.coarse[near : near + 3])])
        first = self._narrow(int(believed[0]))[0]
        last = self._narrow(int(believed[-1]))[-1]
        low, high = max(0, first - 1), min(len(self.grid) - 1, last)
        if low >= high:
            low, high = (0, 1) if high == 0 else (high - 1, high)
        return self.grid[low], self.grid[high]

    def _narrow(self, place: int) -> list[int]:
        """Return the fine cells of a coarse one that are believed, or all of them."""
        ends = np.append(self.starts, self.fine.size)
        cells = range(int(ends[place]), int(ends[place + 1]))
        least = self.threshold(2 * _COARSE)
        return [cell for cell in cells if self.fine[cell] > least] or list(cells)


@final
@dataclass(frozen=True)
class CellPlan:
    """Which columns are counted on which grids, with which noise, at what cost."""

    grids: Mapping[str, tuple[Any, ...]]
    relation: Relation
    kind: str
    scale: float
    loss: Loss

    def counts(self) -> dict[str, CellCounts]:
        """Return empty counts for each column."""
        return {name: CellCounts(grid) for name, grid in self.grids.items()}

    def release(self, counts: Mapping[str, CellCounts], source: Source) -> dict[str, NoisyCells]:
        """Add the noise, once, to all counts of both scales."""
        starts = {name: _coarse_starts(grid) for name, grid in self.grids.items()}
        parts: list[NDArray[np.int64]] = []
        for name in self.grids:
            fine = counts[name].counts
            parts += [fine, np.add.reduceat(fine, starts[name])]
        changed = _count_changed(len(self.grids), self.relation)
        exact = np.concatenate(parts)
        if self.kind == "laplace":
            noisy = laplace_integers(
                exact, sensitivity=changed, scale=self.scale, relation=self.relation, source=source
            ).value
        else:
            noisy = gaussian_integers(
                exact,
                sensitivity=Fraction(_length(changed)),
                changed=changed,
                stddev=self.scale,
                relation=self.relation,
                source=source,
            ).value
        released = np.split(noisy, np.cumsum([part.size for part in parts])[:-1])
        return {
            name: NoisyCells(
                grid,
                released[2 * place],
                released[2 * place + 1],
                starts[name],
                self.kind,
                self.scale,
            )
            for place, (name, grid) in enumerate(self.grids.items())
        }


def plan_cells(
    grids: Mapping[str, Sequence[Any]],
    *,
    epsilon: object,
    delta: object = None,
    relation: Relation | str = Relation.ADD_REMOVE,
) -> CellPlan:
    """Plan noisy cells of some columns on public grids, all for one (epsilon, delta).

    >>> plan = plan_cells({"height": (0.0, 50.0, 100.0, 150.0, 200.0, 250.0)}, epsilon=1)
    >>> plan.kind, plan.loss
    ('laplace', 2 * DiscreteLaplace(scale=2.0))
    >>> many = {f"column {k}": (0, 1, 10, 100) for k in range(20)}
    >>> plan = plan_cells(many, epsilon=1, delta=1e-6)
    >>> plan.kind, plan.loss.epsilon(delta=1e-6) <= 1.0
    ('gaussian', True)
    """
    budget, _ = read_epsilon(epsilon)
    neighbours = Relation.parse(relation)
    if not grids:
        raise InvalidValue("grids", grids, "at least one column")
    fixed = MappingProxyType({name: tuple(grid) for name, grid in grids.items()})
    changed = _count_changed(len(fixed), neighbours)
    scale = round_up("epsilon", epsilon, changed / budget)
    plain = CellPlan(
        fixed, neighbours, "laplace", scale, changed * DiscreteLaplace(scale, 1, neighbours)
    )
    if delta is None:
        return plain
    slack = float(_validate.fraction("delta", delta, above=0, below=1))
    target = math.nextafter(float(budget), 0.0)
    stddev = _length(changed) / gaussian_mu(target, slack)
    if _threshold("laplace", scale, _USUAL_CELLS) <= _threshold("gaussian", stddev, _USUAL_CELLS):
        return plain
    for _ in range(2000):
        mu = discrete_gaussian_mu(stddev, _length(changed), coordinates=changed)
        if mu is not None:
            loss = GDP(mu, neighbours)
            if loss.epsilon(delta=slack) <= target:
                return CellPlan(fixed, neighbours, "gaussian", stddev, loss)
        # Discrete noise needs about 4 / stddev^2 more, relatively, than continuous noise.
        stddev *= 1.0 + min(2.0**-6, 2.0**-46 + stddev**-2)
    raise NotApplicable(f"no noise was certified for epsilon {epsilon!r} and delta {delta!r}")


def _count_changed(columns: int, relation: Relation) -> int:
    """How many counts a neighbour changes, each by 1."""
    return 2 * columns * (2 if relation is Relation.REPLACE else 1)


def _length(changed: int) -> float:
    return math.sqrt(changed) * (1.0 + 2.0**-50)


def _threshold(kind: str, scale: float, cells: int) -> float:
    risk = _RISK / cells
    if kind == "gaussian":
        return float(scale * -ndtri(risk))
    # P(noise >= t) = e^(-t / scale) / (1 + e^(-1 / scale)) for a discrete Laplace and whole t.
    return 1.0 - scale * math.log(risk * (1.0 + math.exp(-1.0 / scale)))


def _coarse_starts(grid: Sequence[Any]) -> NDArray[np.int64]:
    """Return the first fine cell of each coarse one; that of 0, if there is one, is alone."""
    cells = len(grid) + 1
    zero = next(
        (
            place
            for place, point in enumerate(grid)
            if not isinstance(point, dt.date) and point == 0
        ),
        None,
    )
    if zero is None:
        return np.arange(0, cells, _COARSE)
    left = sorted({0, *range(zero - _COARSE, 0, -_COARSE)}) if zero else []
    return np.array([*left, zero, *range(zero + 1, cells, _COARSE)])


def _number(point: Any) -> float:
    return to_days(point) if isinstance(point, dt.date) else float(point)


def set_bounds(column: Bounded, bounds: tuple[Any, Any]) -> Bounded:
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
