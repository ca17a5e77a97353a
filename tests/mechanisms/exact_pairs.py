"""Output distributions by enumeration, hockey-stick divergences by their definition."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

REJECT = 1e-9
"""False-alarm rate of one statistical test. Seeds are fixed, so a pass stays a pass."""


def shifted_laplace(scale: float, shift: int, reach: int) -> np.ndarray:
    """Discrete Laplace noise around ``shift`` on [-reach, reach]; tails in the end points."""
    x = np.arange(-reach, reach + 1)
    r = math.exp(-1.0 / scale)
    mass = (1 - r) / (1 + r) * r ** np.abs(x - shift)
    mass[0] = r ** (reach + shift) / (1 + r)
    mass[-1] = r ** (reach - shift) / (1 + r)
    return mass


def shifted_gaussian(stddev: float, shift: int, reach: int) -> np.ndarray:
    """Discrete Gaussian noise around ``shift`` on [-reach, reach], all but its far tails."""
    x = np.arange(-reach, reach + 1)
    weight = np.exp(-0.5 * ((x - shift) / stddev) ** 2)
    return weight / weight.sum()


def product(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The joint distribution of two independent outputs, flattened."""
    return np.outer(first, second).ravel()


def delta_of(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    """The larger of both directions' sum max(0, p - e^eps q)."""
    factor = math.exp(epsilon)
    return max(
        float(np.maximum(p - factor * q, 0).sum()), float(np.maximum(q - factor * p, 0).sum())
    )


def chi_square(observed: Sequence[int], probabilities: Sequence[float]) -> float:
    """The p-value of counts against probabilities; cells that expect under ten are pooled."""
    counts = np.array(observed, dtype=float)
    expected = np.array(probabilities, dtype=float) * counts.sum()
    kept = expected >= 10
    counts = np.append(counts[kept], counts[~kept].sum())
    expected = np.append(expected[kept], expected[~kept].sum())
    if expected[-1] < 10:
        rare = float(stats.poisson.sf(counts[-1] - 1, max(expected[-1], 1e-12)))
        if counts[-1] > 0 and rare < REJECT:
            return rare
        counts, expected = counts[:-1], expected[:-1]
        expected *= counts.sum() / expected.sum()
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return float(stats.chi2.sf(statistic, max(counts.size - 1, 1)))
