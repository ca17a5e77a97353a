"""Rows from a fitted tree, by randomised rounding: every cell gets its expected count, rounded.

The model is public, so sampling costs nothing; its random bits hide nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from discreet.randomness import permutation
from discreet.synth._cells import uniforms
from discreet.synth._tree import JunctionTree

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.randomness import Source


def sample_rows(
    tree: JunctionTree, conditionals: Sequence[NDArray[np.float64]], rows: int, source: Source
) -> list[NDArray[np.int64]]:
    """Return the groups of each column for some rows, in random order.

    Rows go through the tree from its root. Those that agree on a separator are placed at evenly
    spaced points of the distribution given it, with one random offset for all of them, so that
    each cell gets its expected number of them, rounded up or down.

    Parameters
    ----------
    tree
        The junction tree.
    conditionals
        P(rest | separator) of each of its nodes.
    rows
        How many rows.
    source
        Where the random bits come from.

    """
    found: list[NDArray[np.int64]] = [np.zeros(0, dtype=np.int64)] * len(tree.sizes)
    for node, conditional in zip(tree.nodes, conditionals, strict=True):
        inner = len(node.separator)
        group = np.zeros(rows, dtype=np.int64)
        for column, size in zip(node.separator, node.shape[:inner], strict=True):
            group = group * size + found[column]
        cells = _place_evenly(group, conditional, source)
        for column, size in reversed(
            list(zip(node.columns[inner:], node.shape[inner:], strict=True))
        ):
            cells, found[column] = np.divmod(cells, size)
    order = permutation(rows, source=source)
    return [column[order] for column in found]


def _place_evenly(
    group: NDArray[np.int64], conditional: NDArray[np.float64], source: Source
) -> NDArray[np.int64]:
    """Return for each row a cell of the row of ``conditional`` that its group names."""
    groups, cells = conditional.shape
    rows = group.size
    shuffled = permutation(rows, source=source)
    order = shuffled[np.argsort(group[shuffled], kind="stable")]
    counts = np.bincount(group, minlength=groups)
    starts = np.cumsum(counts) - counts
    place = np.arange(rows) - starts[group[order]]
    offset = uniforms(groups, source)
    # Below 1 also after rounding, so that no row passes into the next group.
    point = np.minimum((place + offset[group[order]]) / counts[group[order]], 1.0 - 2.0**-30)
    ends = np.cumsum(conditional, axis=1)
    top = ends[:, -1:]
    ends = np.where(top > 0.0, ends / np.where(top > 0.0, top, 1.0), 1.0)
    ends += np.arange(groups)[:, None]
    index = np.searchsorted(ends.ravel(), point + group[order], side="right")
    # A point that rounding has put on the end of its group belongs to the last possible cell.
    found = np.empty(rows, dtype=np.int64)
    found[order] = np.clip(index - group[order] * cells, 0, cells - 1)
    return found
