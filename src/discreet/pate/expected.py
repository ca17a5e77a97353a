"""What aggregators would do with public votes: chances of labels and of answers, in floats.

These numbers plan and compare. No guarantee rests on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Counts = NDArray[np.int64]

__all__ = ["gaussian_right", "laplace_right", "passing_stable", "passing_vector"]

_NODES = 96


def gaussian_right(votes: Counts, labels: Counts, noise: float) -> Array:
    """The chance that GNMax names ``labels``, for every histogram.

    >>> gaussian_right(np.array([[1, 1]]), np.array([0]), 3.0).round(6).tolist()
    [0.5]
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    weights = weights / weights.sum()
    gaps = _gaps(votes, labels) / noise
    total = np.zeros(len(votes))
    for node, weight in zip(nodes, weights, strict=True):
        if weight > 1e-14:
            total += weight * np.exp(special.log_ndtr(node + gaps).sum(axis=1))
    return np.minimum(total, 1.0)


def laplace_right(votes: Counts, labels: Counts, scale: float) -> Array:
    """The chance that LNMax names ``labels``, for every histogram (midpoints of quantiles)."""
    gaps = _gaps(votes, labels) / scale
    middles = (np.arange(2 * _NODES) + 0.5) / (2 * _NODES)
    nodes = np.where(middles < 0.5, np.log(2.0 * middles), -np.log(2.0 * (1.0 - middles)))
    total = np.zeros(len(votes))
    for node in nodes:
        x = node + gaps
        tail = 0.5 * np.exp(-np.abs(x))
        total += np.prod(np.where(x < 0, tail, 1.0 - tail), axis=1)
    return total / len(nodes)


def passing_stable(distances: Counts, *, epsilon: float, threshold: int) -> Array:
    """The chance that M_stab answers, for every distance."""
    beyond = threshold - distances.astype(np.float64)
    return _two_sided(beyond, lambda k: np.exp(-epsilon * k) / (1.0 + math.exp(-epsilon)))


def passing_vector(distances: Counts, *, scale: float, threshold: int) -> Array:
    """The chance that M_svec answers one query with fresh noise on the threshold."""
    p = math.exp(-1.0 / (2.0 * scale))

    def tail(k: Array) -> Array:
        gain = (1.0 + p) * np.exp(-k / (2.0 * scale))
        relief = p * np.exp(-k / scale) / (1.0 + p * p)
        return np.asarray((gain - relief) / (1.0 + p + p * p))

    return _two_sided(threshold - distances.astype(np.float64), tail)


def _two_sided(k: Array, tail: Callable[[Array], Array]) -> Array:
    """P(noise >= k) for symmetric integer noise from its tail at k >= 1."""
    near = tail(np.maximum(k, 1.0))
    far = 1.0 - tail(np.maximum(1.0 - k, 1.0))
    return np.asarray(np.where(k >= 1, near, far))


def _gaps(votes: Counts, labels: Counts) -> Array:
    """How far the label is ahead of each of the other classes."""
    rows = np.arange(len(votes))
    gaps = (votes[rows, labels][:, None] - votes).astype(np.float64)
    gaps[rows, labels] = np.inf
    return gaps
