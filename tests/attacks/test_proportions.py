"""Intervals for shares and their differences cover the truth as often as they say."""

import itertools

import numpy as np
import pytest
from scipy import stats

from discreet.attacks.proportions import Difference, excess, gain, gap, proportion
from discreet.errors import InvalidValue


def outcomes(right: int, total: int) -> np.ndarray:
    return np.arange(total) < right


@pytest.mark.parametrize(("hits", "total"), [(0, 7), (7, 7), (3, 7), (41, 400), (1, 1)])
def test_an_interval_is_that_of_scipy(hits: int, total: int) -> None:
    ours = proportion(hits, total, confidence=0.9)
    theirs = stats.binomtest(hits, total).proportion_ci(confidence_level=0.9, method="exact")
    assert ours.low == pytest.approx(theirs.low, abs=1e-9)
    assert ours.high == pytest.approx(theirs.high, abs=1e-9)
    assert ours.low <= ours.share <= ours.high
    assert ours.to_json()["successes"] == hits


def coverage_of_the_gap(interval, one: float, two: float, sizes: tuple[int, int]) -> float:
    """The exact probability that the interval holds p1 - p2."""
    total = 0.0
    for a, b in itertools.product(range(sizes[0] + 1), range(sizes[1] + 1)):
        low, high = interval(a, b)
        if low <= one - two <= high:
            total += stats.binom.pmf(a, sizes[0], one) * stats.binom.pmf(b, sizes[1], two)
    return float(total)


def test_the_gap_covers_always_and_the_normal_one_does_not() -> None:
    sizes = (9, 6)

    def ours(a: int, b: int) -> tuple[float, float]:
        found = gap(outcomes(a, 9), outcomes(b, 6), confidence=0.9)
        return found.low, found.high

    def normal(a: int, b: int) -> tuple[float, float]:
        p, q = a / 9, b / 6
        half = 1.645 * np.sqrt(p * (1 - p) / 9 + q * (1 - q) / 6)
        return p - q - half, p - q + half

    truths = [(0.05, 0.05), (0.5, 0.5), (0.9, 0.1), (0.97, 0.9), (0.3, 0.6)]
    assert min(coverage_of_the_gap(ours, *truth, sizes) for truth in truths) >= 0.9
    assert min(coverage_of_the_gap(normal, *truth, sizes) for truth in truths) < 0.9


def test_the_gain_covers_for_every_agreement() -> None:
    total = 8
    for won, lost in [(0.1, 0.1), (0.4, 0.05), (0.5, 0.5), (0.02, 0.0)]:
        covered = 0.0
        for a in range(total + 1):
            for b in range(total + 1 - a):
                right = np.array([True] * a + [False] * b + [True] * (total - a - b))
                base = np.array([False] * a + [True] * b + [True] * (total - a - b))
                found = gain(right, base, confidence=0.9)
                assert found.value == pytest.approx((a - b) / total)
                if found.low <= won - lost <= found.high:
                    chances = [won, lost, 1 - won - lost]
                    covered += stats.multinomial.pmf([a, b, total - a - b], total, chances)
        assert covered >= 0.9


def test_excess_is_the_difference_of_two_gains_and_wider_than_each() -> None:
    first = outcomes(90, 100), outcomes(60, 100)
    second = outcomes(62, 100), outcomes(60, 100)
    found = excess(first, second)
    assert found.value == pytest.approx(0.28)
    assert found.positive
    one, two = gain(*first), gain(*second)
    assert found.low < one.low - two.high < one.high - two.low < found.high
    assert not Difference(0.1, 0.0, 0.2, 0.95).positive


@pytest.mark.parametrize(
    ("hits", "total", "confidence"), [(1, 0, 0.9), (-1, 5, 0.9), (6, 5, 0.9), (1, 5, 1.0)]
)
def test_impossible_counts_are_refused(hits: int, total: int, confidence: float) -> None:
    with pytest.raises(InvalidValue):
        proportion(hits, total, confidence=confidence)
