"""Rows on a grid, so that sums over records are exact and the order of records cannot matter.

Floating-point sums round, and how they round depends on all records and on their order: the sum
that one record changes by at most C may change by a little more. Here every number that enters a
sum over records is an integer below 2**53 together with all partial sums, which double precision
then represents exactly. What is left is a function of one record alone.

A *raw row* is (x, 1) in steps of 2**-12, with every |x_j| <= 1 and |x| <= norm. A *turned row* is
a public linear image of it in steps of 2**-16, shortened to norm 16 where it is longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "RAW_STEPS",
    "TURNED_STEPS",
    "blocks",
    "exact_gram",
    "raw_rows",
    "squared_raw_norm",
    "turned_rows",
]

RAW_STEPS = 1 << 12
TURNED_STEPS = 1 << 16
LONGEST_TURNED = 16
BLOCK_ROWS, BLOCK_CELLS = 1 << 12, 1 << 22
# Shortening multiplies by a rounded factor; this much is left for the rounding.
_SHORTER = 1.0 - 2.0**-40
# A product of a raw row and a column stays below 2**52 in absolute value, term by term.
_PRODUCT = 2.0**52


def squared_raw_norm(norm: float) -> float:
    """The largest squared length of a raw row, the constant 1 included, in squared steps.

    >>> 5 <= squared_raw_norm(2.0) / RAW_STEPS**2 < 5 + 1e-12
    True
    """
    return (norm * norm * (1.0 + 2.0**-50) + 1.0) * RAW_STEPS**2


def raw_rows(
    features: NDArray[Any],
    *,
    norm: float,
    scale: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None,
) -> NDArray[np.float32]:
    """Return rows in [-1, 1]^d as integers, shortened to ``norm``, with the constant appended.

    ``scale`` takes rows of the features, block by block, to [-1, 1]^d.

    >>> raw_rows(np.array([[0.5, -1.0], [1.0, 1.0]]), norm=1.2).tolist()
    [[2048.0, -4096.0, 4096.0], [3475.0, 3475.0, 4096.0]]
    """
    count, width = features.shape
    result = np.empty((count, width + 1), dtype=np.float32)
    result[:, width] = RAW_STEPS
    most = norm * RAW_STEPS
    for start, stop in blocks(count, width):
        part = features[start:stop].astype(np.float64)
        steps = np.rint((part if scale is None else scale(part)) * RAW_STEPS)
        result[start:stop, :width] = _shortened(steps, most)
    return result


def turned_rows(rows: NDArray[np.float32], basis: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the turned rows ``row @ basis`` for raw rows; ``basis`` is public.

    A basis of one dimension is a diagonal. The basis is rounded to a grid on which every product
    is exact, so that a turned row does not depend on where its row stood in a matrix.
    """
    diagonal = basis.ndim == 1
    lengths = np.abs(basis) if diagonal else np.sqrt(np.einsum("ij,ij->j", basis, basis))
    longest = float(lengths.max())
    reach = RAW_STEPS * math.sqrt(rows.shape[1]) * max(longest, 1e-300)
    shift = math.floor(math.log2(_PRODUCT / reach)) - 1
    grid = np.rint(np.ldexp(basis, shift))
    result = np.empty((rows.shape[0], grid.shape[-1]), dtype=np.float32)
    scale = math.ldexp(TURNED_STEPS / RAW_STEPS, -shift)
    for start, stop in blocks(*rows.shape):
        part = rows[start:stop].astype(np.float64)
        steps = np.rint((part * grid if diagonal else part @ grid) * scale)
        result[start:stop] = _shortened(steps, float(LONGEST_TURNED * TURNED_STEPS))
    return result


def exact_gram(rows: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the sum of outer products of raw rows, exactly."""
    total = np.zeros((rows.shape[1], rows.shape[1]), dtype=np.int64)
    for start, stop in blocks(*rows.shape):
        part = rows[start:stop].astype(np.float64)
        total += (part.T @ part).astype(np.int64)
    return total


def blocks(count: int, width: int) -> Iterator[tuple[int, int]]:
    """Yield the bounds of blocks of rows whose sums double precision holds exactly.

    Wide rows come in smaller blocks: copies of them in double precision stay below 32 MB, or
    one row. The sums are exact, so nothing depends on where the bounds are.
    """
    size = min(BLOCK_ROWS, max(1, BLOCK_CELLS // width))
    for start in range(0, count, size):
        yield start, min(start + size, count)


def _shortened(steps: NDArray[np.float64], most: float) -> NDArray[np.float64]:
    """Cut rows of integers to a length; cutting rounds towards zero, so no row gets longer."""
    norms = np.sqrt(np.einsum("ij,ij->i", steps, steps))
    long = norms > most
    if long.any():
        steps[long] = np.trunc(steps[long] * (most * _SHORTER / norms[long])[:, None])
    return steps
