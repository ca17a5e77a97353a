"""Smooth sensitivity of a figure that is read off a table of cells (S25).

A figure f(D) is the sum over queries of a value v(cell). A neighbour moves every query to an
adjacent cell at most. With ls(c) the largest |v(c') - v(c)| over adjacent c', and ls_d(c) the
largest ls within d moves of c,

    L_d(D) = sum over queries of ls_d(cell),     S(D) = max over d of e^(-beta d) L_d(D).

S is a beta-smooth upper bound of the local sensitivity (Nissim, Raskhodnikova and Smith 2007,
definition 2.1): L_0(D) is at least |f(D) - f(D')|, and since the cells within d moves of c
are within d + 1 moves of every adjacent cell, L_d(D) <= L_(d+1)(D'), so S(D) <= e^beta S(D').
Adding a public constant keeps both. Nothing is assumed of v, not even that it is monotone.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from discreet.pate.surface import Cells

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

__all__ = ["adjacent_change", "smooth_bound"]


def smooth_bound(values: Array, cells: Cells, *, beta: float, reach: tuple[int, int]) -> float:
    """Return S for queries in ``cells`` of the table ``values``; private.

    ``reach`` says how far adjacent cells are, in rows and columns.

    >>> line = np.array([[0.0, 0.0, 0.0, 1.0, 1.0]])
    >>> one = np.array([1])
    >>> cells = Cells(rows=0 * one, columns=0 * one, counts=one)
    >>> round(smooth_bound(line, cells, beta=0.5, reach=(0, 1)), 6)  # the jump is 2 moves away
    0.367879
    """
    widest = adjacent_change(values, reach)
    most = float(widest.max()) * float(cells.counts.sum())
    best, moves = 0.0, 0
    steps = max(
        math.ceil(size / by) for size, by in zip(values.shape, reach, strict=True) if by > 0
    )
    while True:
        total = float(cells.counts @ widest[cells.rows, cells.columns])
        best = max(best, math.exp(-beta * moves) * total)
        moves += 1
        # Nothing further away can matter once the largest of all would be discounted below.
        if moves > steps or math.exp(-beta * moves) * most <= best:
            return best
        widest = _largest(widest, reach)


def adjacent_change(values: Array, reach: tuple[int, int]) -> Array:
    """The largest change of the value from a cell to an adjacent one."""
    smallest = -_largest(-values, reach)
    return np.asarray(np.maximum(_largest(values, reach) - values, values - smallest))


def _largest(table: Array, reach: tuple[int, int]) -> Array:
    """The largest value among the cells within reach."""
    from scipy import ndimage

    size = (2 * reach[0] + 1, 2 * reach[1] + 1)
    return np.asarray(ndimage.maximum_filter(table, size=size, mode="nearest"))
