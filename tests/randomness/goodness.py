"""Exact probabilities by mpmath, and the chi-square test that judges counts against them."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import mpmath
import numpy as np
from scipy import stats

REJECT = 1e-9
"""False-alarm rate of one test. Draws come from fixed seeds, so a pass stays a pass."""


def laplace_pmf(scale: Fraction) -> Callable[[int], mpmath.mpf]:
    ratio = mpmath.exp(-mpmath.mpf(scale.denominator) / scale.numerator)
    return lambda x: (1 - ratio) / (1 + ratio) * ratio ** abs(x)


def gaussian_pmf(variance: Fraction) -> Callable[[int], mpmath.mpf]:
    twice = 2 * mpmath.mpf(variance.numerator) / variance.denominator
    reach = int(30 * mpmath.sqrt(twice)) + 30
    total = 1 + 2 * mpmath.fsum(mpmath.exp(-(x * x) / twice) for x in range(1, reach))
    return lambda x: mpmath.exp(-(x * x) / twice) / total


def chi_square_p(draws: np.ndarray, pmf: Callable[[int], object], reach: int) -> float:
    """Return the p-value of integer draws against ``pmf`` on [-reach, reach] and beyond.

    Cells expecting fewer than ten draws are pooled into one.
    """
    support = np.arange(-reach, reach + 1)
    expected = np.array([float(pmf(int(x))) for x in support]) * draws.size
    inside = draws[np.abs(draws) <= reach]
    observed = np.bincount(inside + reach, minlength=support.size).astype(float)
    kept = expected >= 10
    observed = np.append(observed[kept], draws.size - observed[kept].sum())
    expected = np.append(expected[kept], draws.size - expected[kept].sum())
    if expected[-1] < 10:
        # Too rare for chi-square: a Poisson bound of the pooled rest, and the cells without it.
        rare = float(stats.poisson.sf(observed[-1] - 1, max(expected[-1], 1e-12)))
        if observed[-1] > 0 and rare < REJECT:
            return rare
        observed, expected = observed[:-1], expected[:-1]
        expected *= observed.sum() / expected.sum()
    if observed.size == 1:
        return 1.0
    statistic = float(((observed - expected) ** 2 / expected).sum())
    return float(stats.chi2.sf(statistic, observed.size - 1))
