"""S20: from noisy tables to a model. All of it is post-processing and costs nothing.

The noise is known, so it is used: what cannot be told from noise is not believed. Conditional
probabilities lean towards what all classes have in common by as many pseudo-counts as the noise
has standard deviations, means and variances of the classes are drawn together as far as noise may
have torn them apart, and no variance is believed to be smaller than its own error. Without noise
the categorical model is exactly the smoothed maximum-likelihood one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = [
    "bin_moments",
    "category_log_probabilities",
    "class_log_priors",
    "pooled_counts",
    "split_tables",
]

_UNIFORM_VARIANCE = 1.0 / 12.0
_LARGEST_VARIANCE = 0.25
# How far apart the means of classes are taken to be where the noise tells nothing of it: a tenth of
# the width of the bounds. To draw them together altogether would lose the little that is there.
_APART = 0.1
# With one or two numbers, the rule of James and Stein leaves them as they are.
_LEAST_FEATURES = 3


def pooled_counts(
    totals: NDArray[np.float64], cells: NDArray[np.float64], *, stddev: float
) -> NDArray[np.float64]:
    """Return the size of each class from the totals (features x classes) of the noisy tables.

    Each total estimates the same number with variance cells * stddev^2; the mean with inverse
    weights has the least error. It is cut at that error, and at 1, from below.
    """
    weights = 1.0 / cells
    pooled = weights @ totals / weights.sum()
    error = stddev / np.sqrt(weights.sum())
    return np.asarray(np.maximum(pooled, max(1.0, float(error))), dtype=np.float64)


def class_log_priors(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the logarithms of the shares of the classes."""
    return np.asarray(np.log(counts / counts.sum()), dtype=np.float64)


def category_log_probabilities(
    table: NDArray[np.float64], *, stddev: float, alpha: float
) -> NDArray[np.float64]:
    """Return log P(category | class) for a noisy table of classes x categories.

    Rows are projected on non-negative numbers of the same sum (least squares), then smoothed
    with ``alpha`` for each category and with ``stddev`` for each category in the proportions
    of all classes together.
    """
    categories = table.shape[1]
    counts = np.stack([_nonnegative(row, total=max(0.0, float(row.sum()))) for row in table])
    shared = counts.sum(axis=0) + alpha
    shared /= max(float(shared.sum()), np.finfo(np.float64).tiny)
    smoothed = counts + alpha + stddev * categories * shared
    smoothed = np.maximum(smoothed, np.finfo(np.float64).tiny)
    return np.asarray(
        np.log(smoothed) - np.log(smoothed.sum(axis=1, keepdims=True)), dtype=np.float64
    )


def bin_moments(
    bins: NDArray[np.float64],
    counts: NDArray[np.float64],
    *,
    stddev: float,
    smoothing: float,
    pooling: float = 0.0,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return means and variances (classes x features) in [0, 1] from noisy soft bins.

    With (b0, b1, b2) in units of one record, u - 1/2 sums to (b2 - b0)/2, whose noise has standard
    deviation stddev / sqrt(2), and (u - 1/2)^2 to (b0 - b1 + b2)/4, with sqrt(3)/4 stddev. What
    tells the classes apart is drawn together as far as it may be noise
    (:func:`_drawn_together`). No variance is below its own error, and one that is below that of
    all classes is moved towards it by the share ``pooling``.
    """
    size = counts[:, None]
    centred = np.clip((bins[..., 2] - bins[..., 0]) / (2.0 * size), -0.5, 0.5)
    second = (bins[..., 0] - bins[..., 1] + bins[..., 2]) / (4.0 * size)
    error = np.sqrt(3.0) / 4.0 * stddev / size
    least = np.minimum(np.maximum(error, smoothing), _UNIFORM_VARIANCE)
    means = _drawn_together(centred, counts, spread=stddev * np.sqrt(0.5), apart=_APART)
    plain = np.clip(second - centred**2, smoothing, _LARGEST_VARIANCE)
    own, believed = (
        _drawn_together(part, counts, spread=stddev * np.sqrt(3.0) / 4.0)
        for part in (plain, np.maximum(plain, least))
    )
    shared = (1.0 - pooling) * own + pooling * (counts @ own / counts.sum())
    return means + 0.5, np.minimum(np.maximum(believed, shared), _LARGEST_VARIANCE)


def _drawn_together(
    values: NDArray[np.float64], counts: NDArray[np.float64], *, spread: float, apart: float = 0.0
) -> NDArray[np.float64]:
    """Draw the classes' values towards their common ones, by the rule of James and Stein (1961).

    The sum of a class has noise of standard deviation ``spread``, its value spread / count. The
    deviations of a class from the common values are a vector over features; where its square is
    not larger than that of noise alone is expected to be, nothing is left of it, or what a normal
    prior of standard deviation ``apart`` leaves.
    """
    classes, features = values.shape
    if features < _LEAST_FEATURES or spread == 0.0:
        return values
    total = counts.sum()
    common = counts @ values / total
    deviations = values - common
    noise = spread**2 * (counts**-2 - 2.0 / (counts * total) + classes / total**2)
    square = np.einsum("kj,kj->k", deviations, deviations)
    kept = 1.0 - (features - 2) * noise / np.maximum(square, np.finfo(np.float64).tiny)
    kept = np.clip(kept, apart**2 / (apart**2 + noise), 1.0)
    return np.asarray(common + kept[:, None] * deviations)


def _nonnegative(row: NDArray[np.float64], *, total: float) -> NDArray[np.float64]:
    """The point of {x >= 0, sum x = total} nearest to ``row`` (Held, Wolfe and Crowder 1974)."""
    if np.all(row >= 0.0):
        return row
    ranked = np.sort(row)[::-1]
    excess = (np.cumsum(ranked) - total) / np.arange(1, row.size + 1)
    kept = int(np.nonzero(ranked - excess > 0.0)[0][-1]) if total > 0.0 else -1
    return np.maximum(row - excess[kept], 0.0) if kept >= 0 else np.zeros_like(row)


def split_tables(
    cells: NDArray[np.float64], classes: int, categories: Sequence[int]
) -> list[NDArray[np.float64]]:
    """Cut one row of cells into tables of classes x categories."""
    ends = np.cumsum([classes * size for size in categories])[:-1]
    parts = np.split(cells, ends)
    return [part.reshape(classes, -1) for part in parts]
