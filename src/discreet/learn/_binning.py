"""Rows as one cell number a column, and the exact sums over such rows that a private fit needs.

A column of numbers is cut into public *cells*, so fine that nothing is lost; a column of labels has
one cell for each label. A row is then one small integer a column, and everything else is a public
matrix: the *features* of a cell are an indicator of its bin, times 64, and for numbers the middle
of the cell on [-64, 64]. Sums over rows are counts of cells, multiplied by these matrices.

Every sum is of integers and exact. What a row adds to it is computed from its own cells by single
operations on numbers, in one order, so that it does not depend on where the row stands.

**One unit counts once.** A person with m rows adds the mean of the rows' outer products to the
moments, in whole steps, so that a person counts as one row at most; to a gradient it adds the sum
of its rows' gradients, and that sum is clipped. Its length is computed from the inner products
of the turned rows of the person.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.data import Bounded, Labelled, Real
from discreet.errors import InvalidValue, NotApplicable
from discreet.learn._exact_descent import GRADIENT_STEPS, RAW_STEPS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.learn._declared import Declared
    from discreet.learn._intake import OwnedRows

FEATURE_STEPS = 1 << 6
"""The steps of an indicator, and of a number at the end of its interval."""
PERSON_STEPS = RAW_STEPS**2 // FEATURE_STEPS**2
"""The steps of a weight 1 in the moments; a person with m rows has that divided by m for each."""
BASIS_STEPS = 1 << 12
RESIDUAL_STEPS = GRADIENT_STEPS // FEATURE_STEPS // BASIS_STEPS
_MOST_BASIS = 1 << 20
_LIMB = float(1 << 20)
_GRID = float(1 << 20)
_FINE_CELLS = 256
_MOST_LABELS = 1 << 12
_BLOCK = 1 << 16
_SHORTER = 1.0 - 2.0**-40
_MARGIN = 2.0**-34


@final
@dataclass(frozen=True, eq=False)
class ColumnCells:
    """The public cells of one column.

    Parameters
    ----------
    name
        The name of the column.
    edges
        Where one cell ends and the next begins, for numbers; empty for labels.
    middles
        The middle of each cell in steps on [-64, 64]; empty for labels.
    labels
        The labels, for labels. Numbers have one cell more than intervals: what is no number.

    """

    name: str
    edges: NDArray[np.float64]
    middles: NDArray[np.float64]
    labels: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """How many cells there are."""
        return len(self.labels) or len(self.middles)

    @property
    def ordered(self) -> int:
        """How many of them have an order: the intervals of numbers."""
        return 0 if self.labels else self.count - 1

    def codes(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the cell of each value; every value has one, whatever it is."""
        if self.labels:
            near = np.clip(np.nan_to_num(values, nan=0.0), 0.0, self.count - 1.0)
            found = near.astype(np.int64)
        else:
            # NaN is sorted behind every edge, which is where its own cell is not.
            found = np.searchsorted(self.edges, values, side="right")
            found[np.isnan(values)] = self.count - 1
        return np.asarray(found, dtype=np.uint16 if self.count <= 1 << 16 else np.uint32)


def label_cells(name: str, labels: Sequence[str]) -> ColumnCells:
    """Return one cell for each label."""
    none = np.empty(0)
    return ColumnCells(name, none, none, tuple(labels))


def number_cells(
    name: str,
    lower: float,
    upper: float,
    *,
    whole: bool = False,
    points: Sequence[float] = (),
    cuts: Sequence[float] = (),
) -> ColumnCells:
    """Return the cells of a column of numbers.

    Few whole numbers have one cell each. Others have 256 equal cells and finer ones near both
    ends; the lower end and each of ``points`` have one of their own, because many rows often share
    such a value. ``cuts`` are edges too.

    >>> number_cells("children", 0, 3, whole=True).edges.tolist()
    [0.5, 1.5, 2.5]
    >>> number_cells("children", 0, 3, whole=True).codes(np.array([0.0, 2.0, 9.0, np.nan])).tolist()
    [0, 2, 3, 4]
    """
    width = upper - lower
    if whole and width < _FINE_CELLS:
        edges = lower + 0.5 + np.arange(round(width))
    else:
        parts = lower + width * (np.arange(1, _FINE_CELLS) / _FINE_CELLS)
        ends = width * 2.0 ** -np.arange(2.0, 12.0)
        own = np.array([lower, *points])
        found = np.concatenate(
            [parts, lower + ends, upper - ends, own, np.nextafter(own, np.inf), list(cuts)]
        )
        edges = np.unique(found[(found > lower) & (found <= upper)])
    sides = np.concatenate([[lower], edges, [upper]])
    shares = ((sides[:-1] - lower) / width + (sides[1:] - lower) / width) / 2.0
    middles = np.rint(np.clip(2.0 * shares - 1.0, -1.0, 1.0) * FEATURE_STEPS)
    return ColumnCells(name, np.asarray(edges, dtype=np.float64), np.append(middles, 0.0))


def column_names(declared: Declared) -> list[str]:
    """Return the names of the columns; those of an array are called 0, 1, ..."""
    if declared.schema is None:
        return [str(at) for at in range(declared.features)]
    return list(declared.schema.features)


def declared_cells(
    declared: Declared, *, cuts: Mapping[str, Sequence[float]] = MappingProxyType({})
) -> tuple[ColumnCells, ...]:
    """Return the cells of all columns, from a schema, or from bounds and numbers of labels.

    Raises
    ------
    InvalidValue, NotApplicable
        If the declarations do not fit together, or a column has too many labels.

    """
    lower, upper = declared.ends
    names = column_names(declared)
    sizes = [0] * len(names)
    if declared.schema is None and declared.categories is not None:
        given = declared.categories
        sizes = list(given) if isinstance(given, Sequence | np.ndarray) else []
        if len(sizes) != len(names):
            expected = f"for each of {len(names)} columns its number of labels, or 0"
            raise InvalidValue("categories", given, expected)
    known = {} if declared.schema is None else declared.schema.features
    found = []
    for at, (name, size) in enumerate(zip(names, sizes, strict=True)):
        column = known.get(name)
        if isinstance(column, Labelled):
            if len(column.labels) > _MOST_LABELS:
                raise NotApplicable(
                    f"column {name!r} has {len(column.labels)} labels; this learner takes at most "
                    f"{_MOST_LABELS}: put rare labels together, or use naive Bayes"
                )
            found.append(label_cells(name, column.labels))
        elif size:
            count = _validate.integer("categories", size, at_least=1, at_most=_MOST_LABELS)
            found.append(label_cells(name, [str(code) for code in range(count)]))
        else:
            points = [column.fill] if isinstance(column, Bounded) else []
            whole = isinstance(column, Bounded) and not isinstance(column, Real)
            ends = float(lower[at]), float(upper[at])
            edges = cuts.get(name, ())
            found.append(number_cells(name, *ends, whole=whole, points=points, cuts=edges))
    return tuple(found)


def equal_bins(cells: ColumnCells, bins: int) -> NDArray[np.int64]:
    """Return a bin for each cell: equal parts of the interval; what is no number has its own."""
    share = (cells.middles[:-1] / FEATURE_STEPS + 1.0) / 2.0
    return _number_bins(np.minimum((share * bins).astype(np.int64), bins - 1))


def bins_between(cells: ColumnCells, cuts: Sequence[float]) -> NDArray[np.int64]:
    """Return a bin for each cell: those between ``cuts``, which are edges of cells."""
    lower_sides = np.concatenate([[-math.inf], cells.edges])
    return _number_bins(np.searchsorted(np.asarray(cuts, dtype=float), lower_sides, side="right"))


def own_bins(cells: ColumnCells) -> NDArray[np.int64]:
    """Return a bin for each cell: its own."""
    return np.arange(cells.count)


def most_bins(bins: int) -> int:
    """Return how many bins :func:`quantile_bins` makes at most, with that of what is no number."""
    return bins + bins // 2 + 1


def quantile_bins(
    cells: ColumnCells, noisy: NDArray[np.float64], *, bins: int, stddev: float, units: float
) -> NDArray[np.int64]:
    """Return a bin for each cell, from noisy counts of the intervals.

    A cell with more than a sixteenth of the rows is a bin of its own. The others are merged from
    left to right until a bin has its share of the rows and more than the noise of its cells;
    eight equal parts of the interval are never merged with each other.
    """
    spikes = noisy > max(units / 16.0, 6.0 * stddev)
    if spikes.sum() > bins // 8:
        floor = np.sort(noisy)[-(bins // 8)]
        spikes &= noisy >= floor
    share = max(float(noisy[~spikes].sum()), 0.0) / bins
    eighth = np.minimum(((cells.middles[:-1] / FEATURE_STEPS + 1.0) * 4.0).astype(np.int64), 7)
    found = np.zeros(noisy.size, dtype=np.int64)
    current, mass, merged = 0, 0.0, 0
    for at in range(noisy.size):
        full = merged > 0 and mass >= max(share, stddev * math.sqrt(merged))
        apart = at > 0 and (spikes[at] or spikes[at - 1] or eighth[at] != eighth[at - 1])
        if full or apart:
            current, mass, merged = current + 1, 0.0, 0
        found[at] = current
        mass, merged = mass + float(noisy[at]), merged + 1
    return _number_bins(np.minimum(found, most_bins(bins) - 2))


def _number_bins(bins: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number bins 0, 1, ... without gaps, and append that of what is no number."""
    dense = np.unique(bins, return_inverse=True)[1]
    return np.append(dense, dense.max(initial=-1) + 1)


@final
@dataclass(frozen=True, eq=False)
class BinnedColumns:
    """The cells of all columns and the bin of each cell: what a row's features are."""

    cells: tuple[ColumnCells, ...]
    bins: tuple[NDArray[np.int64], ...]

    @cached_property
    def features(self) -> list[NDArray[np.float64]]:
        """For each column the features of its cells, in steps: cells x features."""
        found = []
        for cells, bins in zip(self.cells, self.bins, strict=True):
            block = np.zeros((cells.count, int(bins.max()) + 1 + bool(cells.ordered)))
            block[np.arange(cells.count), bins] = FEATURE_STEPS
            if cells.ordered:
                block[:, -1] = cells.middles
            found.append(block)
        return found

    @cached_property
    def places(self) -> list[slice]:
        """For each column where its features stand in the vector of all of them."""
        ends = np.cumsum([0, *(block.shape[1] for block in self.features)]).tolist()
        return [slice(begin, end) for begin, end in pairwise(ends)]

    @property
    def width(self) -> int:
        """The number of features."""
        return int(self.places[-1].stop)

    def roughness(self) -> NDArray[np.float64]:
        """Return the penalty: the identity, and twice the squared differences of next bins."""
        penalty = np.eye(self.width)
        for cells, place, bins in zip(self.cells, self.places, self.bins, strict=True):
            if not cells.ordered:
                span = np.arange(place.start, place.stop)
                penalty[span, span] += 2.0
                continue
            first = place.start + bins[: cells.ordered]
            for left, right in pairwise(first.tolist()):
                if left != right:
                    penalty[[left, right], [left, right]] += 2.0
                    penalty[[left, right], [right, left]] -= 2.0
        return penalty

    def values(self, weights: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        """Return for each column what its cells add to the scores: cells x outputs."""
        return [
            block @ weights[place] / FEATURE_STEPS
            for block, place in zip(self.features, self.places, strict=True)
        ]


def add_up(
    codes: Sequence[NDArray[Any]], values: Sequence[NDArray[np.float64]], rows: int
) -> NDArray[np.float64]:
    """Return the scores of rows, rows x outputs: the sum over columns of the values of cells."""
    scores = np.zeros((rows, values[0].shape[1]))
    for start in range(0, rows, _BLOCK):
        part = scores[start : start + _BLOCK]
        for column, table in zip(codes, values, strict=True):
            part += table[column[start : start + _BLOCK]]
    return scores


def cell_counts(cells: ColumnCells, codes: NDArray[Any]) -> NDArray[np.int64]:
    """Return how many rows are in each interval of a column of numbers."""
    return np.bincount(codes, minlength=cells.count)[: cells.ordered]


Residuals = Callable[["NDArray[np.float64]"], "NDArray[np.float64]"]
"""From the scores of all rows to their residuals, row by row."""


@final
class BinnedRows:
    """The exact sums over rows of cells; one unit is a row, or a person with all rows."""

    def __init__(
        self,
        columns: BinnedColumns,
        codes: Sequence[NDArray[Any]],
        rows: int,
        residuals: Residuals,
        owned: OwnedRows | None = None,
    ) -> None:
        self._columns, self._codes, self._residuals = columns, codes, residuals
        self._count, self._owned = rows, owned
        # The rows of each unit, rank by rank; -1 where a unit has no such row.
        self._ranks = [np.arange(rows)]
        if owned is not None:
            cap = int(owned.ranks.max(initial=0)) + 1
            table = owned.side_by_side(np.arange(rows), cap, empty=-1)
            self._ranks = [table[:, rank] for rank in range(cap)]
        self._basis: NDArray[np.float64] | None = None

    def gram(self) -> NDArray[np.int64]:
        """Return the sum over units of the mean of outer products, in steps of raw moments."""
        total = np.zeros((self._columns.width, self._columns.width), dtype=np.int64)
        weights = None
        if self._owned is not None:
            owners = self._owned.owners
            each = PERSON_STEPS // np.maximum(np.bincount(owners), 1)
            weights = each[owners].astype(np.float64)
        for i, j in _pairs(len(self._codes)):
            counts = self._pair_counts(i, j, weights)
            left, right = (self._columns.features[k] for k in (i, j))
            found = sum(
                (left.T @ limb @ right).astype(np.int64) * scale for limb, scale in _limbs(counts)
            )
            rows, others = self._columns.places[i], self._columns.places[j]
            total[rows, others], total[others, rows] = found, np.transpose(found)
        return total

    def _pair_counts(
        self, i: int, j: int, weights: NDArray[np.float64] | None
    ) -> NDArray[np.int64]:
        wide, size = self._columns.cells[j].count, self._columns.cells[i].count
        counts = np.zeros(size * wide, dtype=np.int64)
        for block in _blocks(self._count, 1 << 20):
            both = self._codes[i][block].astype(np.int64) * wide + self._codes[j][block]
            if weights is None:
                counts += np.bincount(both, minlength=counts.size) * PERSON_STEPS
            else:
                found = np.bincount(both, weights=weights[block], minlength=counts.size)
                counts += found.astype(np.int64)
        return counts.reshape(size, wide)

    def gradient(self, basis: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[Any]:
        """Return the sum of the units' clipped gradients in a basis, as integers of any size.

        ``basis`` is on the grid of :func:`on_basis_grid`.
        """
        self._turn(basis)
        inner = weights / _GRID
        turned = basis[:, None] * inner if basis.ndim == 1 else basis @ inner
        rest = self._on_grid(self._scores(turned))
        outputs = rest.shape[1]
        slack = self._sum_parts(self._lengths) * math.sqrt(outputs) + 1.0
        factors = np.maximum(RESIDUAL_STEPS - slack, 0.0) * _SHORTER
        factors /= np.maximum(self._unit_lengths(rest), 1.0)
        steps = np.zeros_like(rest)
        for rank in self._ranks:
            there = np.flatnonzero(rank >= 0)
            # Rounding towards zero; the slack has room for what it changes.
            steps[rank[there]] = np.trunc(rest[rank[there]] * factors[there, None])
        total = np.zeros((self._columns.width, outputs), dtype=np.int64)
        for column, block, place in zip(
            self._codes, self._columns.features, self._columns.places, strict=True
        ):
            cells = np.stack(
                [
                    np.bincount(column, weights=steps[:, one], minlength=block.shape[0])
                    for one in range(outputs)
                ],
                axis=1,
            )
            total[place] = sum(
                (block.T @ limb).astype(np.int64) * scale for limb, scale in _limbs(cells)
            )
        return _turn_sum(basis, total)

    def _scores(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        return add_up(self._codes, self._columns.values(weights), self._count)

    def _on_grid(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return residuals on a grid, on which their products add up exactly."""
        return np.asarray(np.rint(self._residuals(scores) * _GRID) / _GRID)

    def _turn(self, basis: NDArray[np.float64]) -> None:
        """Compute the inner products of the turned rows of each unit, once for a basis."""
        if self._basis is basis:
            return
        self._basis = basis
        turned = []
        for block, place in zip(self._columns.features, self._columns.places, strict=True):
            part = basis[place]
            turned.append((block * part if basis.ndim == 1 else block @ part) / FEATURE_STEPS)
        diagonal = basis.ndim == 1
        longest = max(float(np.einsum("ij,ij->i", one, one).max()) for one in turned)
        # Covers all rounding below: an inner product has at most `columns`^2 terms of that size.
        self._margin = len(turned) ** 2 * longest * _MARGIN * max(1.0, basis.shape[0] / 1024.0)
        self._inner = {
            (s, t): self._inner_products(turned, s, t, diagonal=diagonal)
            for s, t in _pairs(len(self._ranks))
        }
        self._lengths = [
            np.sqrt(np.where(rank >= 0, self._inner[s, s] + self._margin, 0.0))
            for s, rank in enumerate(self._ranks)
        ]

    def _inner_products(
        self, turned: list[NDArray[np.float64]], s: int, t: int, *, diagonal: bool
    ) -> NDArray[np.float64]:
        """Return the inner product of the turned rows of ranks s and t, for each unit."""
        found = np.zeros(len(self._ranks[s]))
        both = np.flatnonzero((self._ranks[s] >= 0) & (self._ranks[t] >= 0))
        left, right = self._ranks[s][both], self._ranks[t][both]
        part = np.zeros(both.size)
        for i, one in enumerate(turned):
            for j, other in enumerate(turned):
                # Features of different columns are different coordinates of a diagonal basis.
                if (s == t and j < i) or (diagonal and i != j):
                    continue
                table = (one @ other.T).ravel()
                if s == t and i != j:
                    table = table * 2.0
                wide = other.shape[0]
                for block in _blocks(both.size, _BLOCK):
                    at = self._codes[i][left[block]].astype(np.int64) * wide
                    part[block] += table[at + self._codes[j][right[block]]]
        found[both] = part
        return found

    def _unit_lengths(self, rest: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return an upper bound of the length of each unit's gradient, unclipped."""
        parts = [np.where((rank >= 0)[:, None], rest[rank], 0.0) for rank in self._ranks]
        squared = np.zeros(len(self._ranks[0]))
        for (s, t), inner in self._inner.items():
            both = np.einsum("ij,ij->i", parts[s], parts[t])
            squared += inner * both * (1.0 if s == t else 2.0)
        sizes = self._sum_parts([np.sqrt(np.einsum("ij,ij->i", part, part)) for part in parts])
        return np.asarray(np.sqrt(np.maximum(squared, 0.0) + self._margin * sizes**2))

    @staticmethod
    def _sum_parts(parts: list[NDArray[np.float64]]) -> NDArray[np.float64]:
        total = parts[0].copy()
        for part in parts[1:]:
            total += part
        return total


def on_basis_grid(basis: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round a basis to the grid on which turned sums are exact."""
    steps = np.clip(np.rint(basis * BASIS_STEPS), -_MOST_BASIS, _MOST_BASIS)
    return np.asarray(steps / BASIS_STEPS)


def _turn_sum(basis: NDArray[np.float64], total: NDArray[np.int64]) -> NDArray[Any]:
    """Return basis' total in steps, exactly, as Python integers.

    >>> _turn_sum(np.array([[1.0, -0.5], [0.0, 256.0]]), np.array([[1 << 50], [-1]])).tolist()
    [[4611686018427387904], [-2305843009214742528]]
    """
    steps = basis * BASIS_STEPS
    found: Any = 0
    for power in range(3):
        rest = total >> 20 * power
        limb = np.asarray(rest if power == 2 else rest % (1 << 20), dtype=np.float64)
        part = steps[:, None] * limb if basis.ndim == 1 else steps.T @ limb
        found = found + part.astype(np.int64).astype(object) * (1 << 20 * power)
    return np.asarray(found, dtype=object)


def _limbs(whole: NDArray[Any]) -> list[tuple[NDArray[np.float64], int]]:
    """Return integers in two parts, so that double precision holds sums of their products."""
    high, low = np.divmod(whole.astype(np.float64), _LIMB)
    return [(high, int(_LIMB)), (low, 1)]


def _pairs(count: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(count) for j in range(i, count)]


def _blocks(count: int, size: int) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))
