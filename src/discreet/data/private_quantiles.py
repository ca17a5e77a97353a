"""The score by which the exponential mechanism chooses the cell of a quantile (S13).

A grid g_1 < ... < g_m cuts the line into m + 1 cells (g_i, g_{i+1}]. With F(g) the number of values
at or below g and n the number of values, a cell is scored by how far the rank q n is from the
ranks in it,

    score(i) = -max(0, F(g_i) - q n, q n - F(g_{i+1})),

0 for the right cell and at most -n min(q, 1 - q) for the cells beyond all values.

**Guarantee.** Adding a value x changes each F(g) - q n by 1 - q or by -q, hence each score by at
most max(q, 1 - q); replacing a value leaves q n alone and changes each F(g) by at most 1, hence
each score by at most 1. The range of the score differences is truly twice the sensitivity for a
value beyond the quantile: cells to the left of the quantile lose what cells between the quantile
and the value gain.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from discreet.privacy import Relation

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["quantile_scores", "score_sensitivity"]


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
