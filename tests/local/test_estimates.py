"""S27: intervals for all shares together, and the biased shares that are called so."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from discreet._confidence import upper_bounds
from discreet.errors import InvalidValue
from discreet.local import METHODS, FrequencyOracle
from discreet.local._frequency import estimate_shares
from discreet.privacy import PureDP


def interval_of(count: int, people: int, p: float, q: float, confidence: float):
    found = estimate_shares([0], np.array([count]), people, (p, q), PureDP(1), {})
    low, high = found.interval(confidence=confidence)
    return low[0], high[0]


@pytest.mark.parametrize(("p", "q"), [(0.5, 0.27), (0.73, 0.05), (0.9999, 0.0001)])
@pytest.mark.parametrize("people", [1, 5, 12])
def test_coverage_is_at_least_as_stated_exactly(p: float, q: float, people: int) -> None:
    # Every number of people who have the value: the exact law of the count, no simulation.
    for belonging in range(people + 1):
        mass = np.convolve(
            stats.binom.pmf(range(belonging + 1), belonging, p),
            stats.binom.pmf(range(people - belonging + 1), people - belonging, q),
        )
        for confidence in (0.5, 0.9, 0.999):
            ends = [interval_of(count, people, p, q, confidence) for count in range(people + 1)]
            share = belonging / people
            covered = sum(
                chance
                for chance, (low, high) in zip(mass, ends, strict=True)
                if low - 1e-9 <= share <= high + 1e-9
            )
            assert covered >= confidence - 1e-9


def test_without_the_extra_report_the_tail_would_be_too_heavy() -> None:
    # Hoeffding's theorem stops one report before the mean: at a mean of 5.5 of 6 a sum of five
    # certain coins and a fair one is at most 5 more often than allowed for a binomial.
    certain = 0.5
    binomial = stats.binom.cdf(5, 6, 5.5 / 6)
    assert certain > binomial
    assert upper_bounds([5], 6, error=0.45)[0] < 5.5 / 6 < upper_bounds([6], 6, error=0.45)[0]


def test_intervals_hold_for_all_values_together() -> None:
    oracle = FrequencyOracle(30, 1, "PGR")
    values = np.repeat(np.arange(30), 20)
    truth = np.append(np.full(30, 1 / 30), 0.0)
    missed = 0
    for seed in range(100):
        server = oracle.server()
        server.aggregate(oracle.randomize_each(values, insecure_seed=seed))
        low, high = server.estimate().interval(confidence=0.8)
        missed += bool(((truth < low) | (truth > high)).any())
    # At most 20 of 100 on average; 60 or more would have probability below 1e-17.
    assert missed < 60


@pytest.mark.parametrize("method", METHODS)
def test_norm_sub_is_a_distribution_and_is_biased(method: str) -> None:
    oracle = FrequencyOracle(12, 1, method)
    total = np.zeros(13)
    for seed in range(40):
        server = oracle.server()
        server.aggregate(oracle.randomize_each([0] * 200, insecure_seed=seed))
        shares = server.estimate().norm_sub_biased()
        assert shares.min() >= 0
        assert shares.sum() == pytest.approx(1)
        total += shares / 40
    assert total[0] < 0.97  # the truth is 1
    assert total[1:].min() > 0  # the truth is 0


def test_variances_of_an_estimate_are_those_of_the_plan() -> None:
    oracle = FrequencyOracle(5, 1, "OUE")
    server = oracle.server()
    server.aggregate(oracle.randomize_each([0] * 900 + [1] * 100, insecure_seed=2))
    found = server.estimate()
    for share, variance in zip(found.shares, found.variances, strict=True):
        assert variance == pytest.approx(
            oracle.variance(1000, share=min(max(float(share), 0.0), 1.0))
        )
    for confidence in (0.4, 1, "0.9"):
        with pytest.raises(InvalidValue, match="confidence"):
            found.interval(confidence=confidence)
