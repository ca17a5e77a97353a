"""Certified thresholds and tails against mpmath and plain summation (S16, S18)."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.errors import InvalidValue
from discreet.mechanisms._intervals import (
    check_delta,
    check_epsilon,
    decimal_down,
    decimal_up,
    exp_bounds,
    laplace_difference_tail,
    laplace_tail,
    threshold_above,
)
from mechanisms.exact_runs import exact_tail

rates = st.fractions(Fraction(1, 500), 20, max_denominator=500)


def mp(value: Fraction) -> mpmath.mpf:
    return mpmath.mpf(value.numerator) / value.denominator


@given(st.fractions(Fraction(1, 10**9), 10**9))
def test_decimals_enclose_and_are_short(value: Fraction) -> None:
    low, high = decimal_down(value), decimal_up(value)
    assert low <= value <= high
    assert high - low <= value * Fraction(1, 10**10)
    assert Fraction(repr(float(high))) == high  # prints as it is


@given(st.fractions(0, 800, max_denominator=1000))
def test_exponentials_are_enclosed(exponent: Fraction) -> None:
    low, high = exp_bounds(exponent)
    with mpmath.workdps(400):
        exact = mpmath.exp(-mp(exponent))
        assert mp(low) <= exact <= mp(high)
        assert mp(high) - mp(low) <= exact * mpmath.mpf(10) ** -36


@given(rates, st.sampled_from(["0.9", "0.5", "1e-3", "1e-5", "1e-12", "1e-300"]))
def test_threshold_is_the_floor_plus_one(rate: Fraction, delta: str) -> None:
    exact = Fraction(delta)
    with mpmath.workdps(400):
        expected = int(mpmath.floor(mpmath.log(1 / mp(exact)) / mp(rate))) + 1
    assert threshold_above(rate, exact) == expected


@given(rates, st.integers(0, 300))
def test_tail_is_tight_from_above(rate: Fraction, bound: int) -> None:
    with mpmath.workdps(60):
        exact = exact_tail(rate, bound)
        claimed = mp(laplace_tail(rate, bound))
        assert exact <= claimed
        assert claimed <= exact * (1 + mpmath.mpf(10) ** -10) or claimed == mp(Fraction("1e-300"))


@pytest.mark.parametrize("scale", [Fraction(1, 3), Fraction(1), Fraction(7, 2), Fraction(20)])
@pytest.mark.parametrize("bound", [1, 2, 5, 40])
def test_tail_of_the_difference_is_the_sum(scale: Fraction, bound: int) -> None:
    with mpmath.workdps(40):
        narrow = mpmath.exp(-1 / mp(scale))
        reach = int(100 * scale) + 60
        exact = mpmath.fsum(
            (1 - narrow) / (1 + narrow) * narrow ** abs(r) * exact_tail(1 / (2 * scale), bound + r)
            for r in range(-reach, reach + 1)
        )
        claimed = mp(laplace_difference_tail(scale, bound))
        assert exact <= claimed * (1 + mpmath.mpf(10) ** -25)
        assert claimed <= exact * (1 + mpmath.mpf(10) ** -10)


def test_wide_scales_approach_the_continuous_tail() -> None:
    scale, bound = Fraction(10**6), 3 * 10**7
    with mpmath.workdps(30):
        continuous = (4 * mpmath.exp(-15) - mpmath.exp(-30)) / 6
        assert abs(mp(laplace_difference_tail(scale, bound)) / continuous - 1) < 1e-6


def test_far_tails_are_bounded_without_effort() -> None:
    for rate in (Fraction(10**6), Fraction(1)):
        assert laplace_tail(rate, 10**6) == Fraction("1e-300")
    assert laplace_difference_tail(Fraction(1), 10**9) == Fraction("1e-300")
    low, high = exp_bounds(Fraction(2001))
    with mpmath.workdps(20):
        assert mp(low) < mpmath.exp(-2001) < mp(high)


def test_parameters_that_cannot_be_certified_are_refused() -> None:
    for epsilon in (0, "1e-10", 1e7, float("nan"), 10**400, True):
        with pytest.raises(InvalidValue, match="epsilon"):
            check_epsilon(epsilon)
    for delta in (0, "1e-301", 1, -1, float("inf")):
        with pytest.raises(InvalidValue, match="delta"):
            check_delta(delta)
    assert check_epsilon("1e-9") == Fraction(1, 10**9)
    assert check_delta(1e-300) == Fraction(1, 10**300)
