"""S20: exact sufficient statistics of naive Bayes, added up over batches.

Both kinds are integers, so that sums do not depend on the order of batches and the sensitivity
is exact: a record adds cells that sum to ``unit`` in each feature's table and touches the block
of its class only.

**Categorical**: one count in each table, ``unit`` 1.

**Gaussian**: a value is clipped to its declared bounds, moved to u in [0, 1] and rounded to m / M,
M = 2**bits. It adds the three Bernstein weights

    (M - m)^2,   2 m (M - m),   m^2,        which sum to M^2 = ``unit``,

to the cells of its class: a soft histogram of three bins. These are an invertible linear image of
(count, sum, sum of squares), with half of the L1 sensitivity of the usual triple of
(1, z, z^2), z in [-1, 1], and they contain the count: sum u = b1/2 + b2, sum u^2 = b2 and
count = b0 + b1 + b2, in units of M^2.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["CategoryCounts", "SoftBins", "bits_for"]

_MOST_BITS, _LEAST_BITS = 16, 6
_CHUNK_CELLS, _LEAST_CHUNK = 1 << 16, 512
# Squares have 32 bits at most, so sums over this many rows fit 64.
_MOST_ROWS = 1 << 30


def bits_for(tables: int, epsilon: float) -> int:
    """How finely values are rounded so that the noise fits 64 bits; public numbers decide.

    >>> bits_for(20, 1.0), bits_for(1000, 0.001)
    (16, 15)
    """
    # The quotient by the least of all epsilons would be infinite.
    room = 51 - math.ceil(math.log2(min(tables / epsilon, 1e300)))
    bits = min(_MOST_BITS, (room - 1) // 2)
    if bits < _LEAST_BITS:
        raise InvalidValue("epsilon", epsilon, f"a larger value for {tables} noisy tables")
    return bits


@final
class CategoryCounts:
    """Joint counts of class and category, one table of classes x categories for each feature."""

    def __init__(self, classes: int, categories: Sequence[int]) -> None:
        self._tables = [np.zeros((classes, size), dtype=np.int64) for size in categories]

    def add(self, codes: NDArray[np.int64], columns: Sequence[NDArray[Any]]) -> None:
        """Count a batch; ``columns`` hold category numbers, and anything else is not counted.

        Rows whose class code is -1 count for nothing.
        """
        known = codes >= 0
        whole = bool(np.all(known))
        rows = codes if whole else codes[known]
        for table, column in zip(self._tables, columns, strict=True):
            classes, size = table.shape
            values = column if whole else column[known]
            with np.errstate(invalid="ignore"):
                inside = (values >= 0) & (values < size)
            places = np.where(inside, values, size).astype(np.int64)
            places += rows * (size + 1)
            found = np.bincount(places, minlength=classes * (size + 1))
            table += found.reshape(classes, size + 1)[:, :size]

    def cells(self) -> NDArray[np.int64]:
        """All tables in one row."""
        return np.concatenate([table.ravel() for table in self._tables])


@final
class SoftBins:
    """Sums of Bernstein weights: an array of classes x features x 3."""

    def __init__(
        self,
        classes: int,
        lower: NDArray[np.float64],
        upper: NDArray[np.float64],
        *,
        bits: int,
    ) -> None:
        self._lower = lower
        self._scale = math.ldexp(1.0, bits) / (upper - lower)
        self._bits = bits
        # Python integers: no number of rows overflows them.
        self._count = np.zeros((classes, 1), dtype=object)
        self._sum = np.zeros((classes, lower.size), dtype=object)
        self._square = np.zeros((classes, lower.size), dtype=object)

    def add(self, codes: NDArray[np.int64], features: NDArray[np.float64]) -> None:
        """Add a batch. Infinities are clipped, NaN stands for the middle of the bounds.

        A chunk has so few rows that its sums stay below 2**53 and are exact in doubles.
        """
        for start in range(0, codes.size, _MOST_ROWS):
            rows = slice(start, start + _MOST_ROWS)
            self._add_rows(codes[rows], features[rows])

    def _add_rows(self, codes: NDArray[np.int64], features: NDArray[np.float64]) -> None:
        classes, columns = self._sum.shape
        rows = max(_LEAST_CHUNK, _CHUNK_CELLS // columns)
        labels = np.arange(classes)[:, None]
        steps = math.ldexp(1.0, self._bits)
        count = np.zeros((classes, 1), dtype=np.int64)
        total, square = (np.zeros((classes, columns), dtype=np.int64) for _ in range(2))
        for start in range(0, codes.size, rows):
            chunk = codes[start : start + rows]
            member = (chunk == labels).astype(np.float64)
            with np.errstate(over="ignore", invalid="ignore"):
                values = features[start : start + rows] - self._lower
                values *= self._scale
            values += 0.5
            np.clip(values, 0.0, steps, out=values)
            np.floor(values, out=values)
            if math.isnan(float(values.sum())):
                values[np.isnan(values)] = 0.5 * steps
            total += (member @ values).astype(np.int64)
            np.multiply(values, values, out=values)
            square += (member @ values).astype(np.int64)
            count += member.sum(axis=1, keepdims=True).astype(np.int64)
        self._count += count.astype(object)
        self._sum += total.astype(object)
        self._square += square.astype(object)

    def cells(self) -> NDArray[Any]:
        """The weights of all classes and features, exact integers (dtype object)."""
        unit, step = 1 << (2 * self._bits), 1 << self._bits
        highest = self._square
        middle = 2 * (step * self._sum - self._square)
        lowest = unit * self._count - 2 * step * self._sum + self._square
        return np.stack([lowest, middle, highest], axis=-1)
