"""Exact output probabilities of the stateful mechanisms, by summation over the threshold noise.

Slow and obvious: noise is discrete Laplace on integers, a run is a list of yes and no, and
the probability of a run is a sum over the noisy threshold of products of tails.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import product

import mpmath
import numpy as np


@lru_cache(maxsize=256)
def pmf(scale: float, reach: int) -> np.ndarray:
    """P(X = x) for x = -reach .. reach."""
    ratio = np.exp(-1.0 / scale)
    return (1 - ratio) / (1 + ratio) * ratio ** np.abs(np.arange(-reach, reach + 1))


def at_least(scale: float, bound: np.ndarray) -> np.ndarray:
    """P(X >= bound), elementwise, for integers."""
    ratio = np.exp(-1.0 / scale)
    upper = ratio ** np.maximum(bound, 0) / (1 + ratio)
    lower = 1 - ratio ** np.maximum(1 - bound, 0) / (1 + ratio)
    return np.where(bound >= 1, upper, lower)


def less_than(scale: float, bound: np.ndarray) -> np.ndarray:
    """P(X < bound) = P(X >= 1 - bound), without cancellation."""
    return at_least(scale, 1 - bound)


def round_probability(
    gaps: Sequence[int], pattern: Sequence[bool], threshold_scale: float, query_scale: float
) -> float:
    """P(pattern) for one threshold; ``gaps`` are threshold - value, True means value passes."""
    reach = int(60 * threshold_scale) + 200
    noise = np.arange(-reach, reach + 1)
    weights = pmf(threshold_scale, reach).copy()
    for gap, passes in zip(gaps, pattern, strict=True):
        side = at_least if passes else less_than
        weights = weights * side(query_scale, gap + noise)
    return float(weights.sum())


def run_probability(
    gaps: Sequence[int],
    pattern: Sequence[bool],
    threshold_scale: float,
    query_scale: float,
    *,
    ends_a_round: bool = True,
    refreshed: bool = True,
) -> float:
    """P(pattern) of a run whose threshold is drawn again after each ``ends_a_round``."""
    if not refreshed:
        return round_probability(gaps, pattern, threshold_scale, query_scale)
    total, start = 1.0, 0
    for at, passes in enumerate(pattern):
        if passes is ends_a_round or at == len(pattern) - 1:
            part = slice(start, at + 1)
            total *= round_probability(gaps[part], pattern[part], threshold_scale, query_scale)
            start = at + 1
    return total


def patterns(questions: int, ends: int, *, ends_a_round: bool = True) -> list[tuple[bool, ...]]:
    """All runs of at most ``questions`` answers that stop at the ``ends``-th end of a round."""
    found = []
    for length in range(1, questions + 1):
        for pattern in product((False, True), repeat=length):
            seen = sum(answer is ends_a_round for answer in pattern)
            stopped = seen == ends and pattern[-1] is ends_a_round
            if stopped or (length == questions and seen < ends):
                found.append(pattern)
    return found


def largest_log_ratio(first: Sequence[float], second: Sequence[float]) -> float:
    """The exact pure epsilon of a pair of distributions on the same outcomes, both directions."""
    ratios = np.log(np.asarray(first)) - np.log(np.asarray(second))
    return float(np.abs(ratios).max())


def exact_tail(rate: object, bound: int) -> mpmath.mpf:
    """P(X >= bound) for discrete Laplace noise of scale 1 / rate, by mpmath."""
    with mpmath.workdps(60):
        ratio = mpmath.exp(-mpmath.mpf(rate.numerator) / rate.denominator)
        if bound >= 1:
            return ratio**bound / (1 + ratio)
        return 1 - ratio ** (1 - bound) / (1 + ratio)
