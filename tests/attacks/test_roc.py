"""ROC curves (S28): exact for ties, refusing what the data cannot support."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.attacks._roc import area, area_interval, roc_curve
from discreet.errors import InvalidValue

SCORES = st.lists(st.integers(-3, 3), min_size=1, max_size=12)


@given(SCORES, SCORES)
def test_against_the_slow_definition(members: list[int], nonmembers: list[int]) -> None:
    ones, zeros = np.array(members, dtype=float), np.array(nonmembers, dtype=float)
    curve = roc_curve(ones, zeros)
    wanted = {(0.0, 0.0)} | {
        (float((zeros >= t).mean()), float((ones >= t).mean())) for t in {*members, *nonmembers}
    }
    assert set(zip(curve.fpr.tolist(), curve.tpr.tolist(), strict=True)) == wanted
    pairs = [(m > n) + (m == n) / 2 for m in members for n in nonmembers]
    assert area(ones, zeros) == pytest.approx(np.mean(pairs))
    # The trapezoids under the curve have the same area.
    assert np.trapezoid(curve.tpr, curve.fpr) == pytest.approx(np.mean(pairs))


@given(SCORES, SCORES)
def test_order_of_records_does_not_matter(members: list[int], nonmembers: list[int]) -> None:
    one = roc_curve(np.array(members, float), np.array(nonmembers, float))
    two = roc_curve(np.array(members[::-1], float), np.array(nonmembers[::-1], float))
    np.testing.assert_array_equal(one.tpr, two.tpr)
    np.testing.assert_array_equal(one.fpr, two.fpr)


def test_a_point_by_hand() -> None:
    members = np.array([9.0, 8.0, 3.0, 1.0])
    nonmembers = np.array([8.5, 2.0, 2.0, 0.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0])
    point = roc_curve(members, nonmembers).at(0.1)
    assert (point.threshold, point.tpr.successes, point.fpr.successes) == (3.0, 3, 1)
    assert (point.tpr.trials, point.fpr.trials) == (4, 10)
    # Two non-members share the score 2: at 20 % the next threshold would accuse three.
    assert roc_curve(members, nonmembers).at(0.2).fpr.successes == 1
    assert roc_curve(members, nonmembers).at(0.3).fpr.successes == 3


@pytest.mark.parametrize(("nonmembers", "fpr"), [(9, 0.1), (99, 0.01), (999, 0.001)])
def test_rates_that_cannot_be_supported_are_refused(nonmembers: int, fpr: float) -> None:
    members = np.ones(5)
    with pytest.raises(InvalidValue, match=f"{nonmembers} non-members cannot support"):
        roc_curve(members, np.zeros(nonmembers)).at(fpr)
    assert roc_curve(members, np.zeros(nonmembers + 1)).at(fpr).tpr.share == 1.0


def test_bad_scores() -> None:
    good = np.zeros(3)
    for bad in (np.array([]), np.array([np.nan]), np.zeros((2, 2))):
        with pytest.raises(InvalidValue, match="score"):
            roc_curve(bad, good)
        with pytest.raises(InvalidValue, match="score"):
            area(good, bad)


@pytest.mark.parametrize("shift", [0.0, 1.0, 2.5])
def test_interval_of_the_area_covers(shift: float) -> None:
    # 95 % nominal; 400 seeded repetitions, and 90 % would be missed by more than 4 sigma.
    from scipy.stats import norm

    truth = norm.cdf(shift / np.sqrt(2))
    draw = np.random.default_rng(5)
    hits = 0
    for _ in range(400):
        value = area(draw.normal(shift, 1, 60), draw.normal(0, 1, 40))
        low, high = area_interval(value, 60, 40)
        hits += low <= truth <= high
    assert hits >= 360


def test_interval_of_the_area_is_ordered_and_not_a_point() -> None:
    for value in (0.0, 0.3, 0.5, 1.0):
        low, high = area_interval(value, 30, 50)
        assert 0 <= low <= value <= high <= 1
        assert high - low > 0.01
    assert area_interval(1.0, 5000, 5000)[0] > 0.999
