"""Halves of records for a few shadow models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["halves"]


def halves(records: int, models: int, *, seed: int | None = None) -> NDArray[np.bool_]:
    """Random halves, each with the other half after it; an odd number of models is rounded up.

    So every record is inside and outside of as many models, however few there are. The target is
    none of them, and what they say about one another is not used.

    >>> halves(4, 5, seed=1).sum(axis=0)
    array([3, 3, 3, 3])
    """
    from discreet.attacks import chance

    start = chance.fresh_seed() if seed is None else seed
    rows = []
    for at in range(-(-models // 2)):
        inside = np.zeros(records, dtype=bool)
        inside[chance.generator(start, at).permutation(records)[: records // 2]] = True
        rows += [inside, ~inside]
    return np.array(rows)
