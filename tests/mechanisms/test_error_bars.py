"""Quantiles of discrete noise against mpmath, and joint confidence."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.errors import InvalidValue, NotApplicable
from discreet.mechanisms import (
    each_of,
    laplace_integer,
    laplace_quantile,
    permute_and_flip,
    round_outward,
)
from discreet.mechanisms._intervals import gaussian_quantile, real_bars

RISKS = [0.9, 0.5, 0.05, 1e-3, 1e-9, 2.0**-53]


@pytest.mark.parametrize("scale", ["1/50", "1/2", "1", "10", "2500/7", str(10**12)])
@pytest.mark.parametrize("risk", RISKS)
def test_laplace_reach_is_the_least_that_covers(scale: str, risk: float) -> None:
    exact = Fraction(scale)
    t = laplace_quantile(exact)(risk)
    with mpmath.workdps(60):
        unit = mpmath.mpf(exact.denominator) / exact.numerator

        def tail(m: int) -> mpmath.mpf:
            return 2 * mpmath.exp(-(m + 1) * unit) / (1 + mpmath.exp(-unit))

        assert tail(t) <= risk
        assert t == 0 or tail(t - 1) > risk


@pytest.mark.parametrize("stddev", [0.1, 0.5, 1.0, 3.7, 40.0])
@pytest.mark.parametrize("risk", RISKS)
def test_gaussian_reach_is_the_least_that_covers(stddev: float, risk: float) -> None:
    t = gaussian_quantile(stddev)(risk)
    with mpmath.workdps(40):
        variance = mpmath.mpf(stddev) ** 2

        def weight(x: int) -> mpmath.mpf:
            return mpmath.exp(-mpmath.mpf(x * x) / (2 * variance))

        reach = int(20 * stddev) + 20
        total = 1 + 2 * mpmath.fsum(weight(x) for x in range(1, reach))

        def tail(m: int) -> mpmath.mpf:
            return 2 * mpmath.fsum(weight(x) for x in range(m + 1, reach)) / total

        assert tail(t) <= risk
        assert t == 0 or tail(t - 1) > risk * (1 - 1e-10)


@pytest.mark.parametrize("risk", RISKS)
def test_gaussian_reach_at_large_deviations_is_close_and_safe(risk: float) -> None:
    # Where both are available the bound is at most two steps wider than the sum.
    summed = gaussian_quantile(4096.0)(risk)
    bounded = gaussian_quantile(math.nextafter(4096.0, 5000.0))(risk)
    assert summed <= bounded <= summed + 2
    assert gaussian_quantile(2.0**60)(0.05) == pytest.approx(1.959963984540054 * 2.0**60, rel=1e-9)


@given(count=st.integers(1, 10**6), risk=st.floats(1e-12, 0.99))
def test_each_of_many_independent_draws(count: int, risk: float) -> None:
    each = each_of(count, risk)
    with mpmath.workdps(40):
        assert 1 - (1 - mpmath.mpf(each)) ** count <= risk
    assert each >= risk / count * (1 - 1e-9)


@given(steps=st.integers(-(2**70), 2**70), exponent=st.integers(-60, 20), t=st.integers(0, 2**40))
def test_real_ends_are_rounded_outward(steps: int, exponent: int, t: int) -> None:
    grid = Fraction(2) ** exponent
    single = real_bars(steps, grid, lambda _: t)(0.9)
    row = real_bars(np.array([steps, 0], dtype=object), grid, lambda _: t)(0.9)
    exact = (steps - t - Fraction(1, 2)) * grid, (steps + t + Fraction(1, 2)) * grid
    assert Fraction(single.lower) <= exact[0]
    assert exact[1] <= Fraction(single.upper)
    assert (row.lower[0], row.upper[0]) == tuple(single)
    if abs(steps) < 2**62:
        fast = real_bars(np.array([steps, 0], dtype=np.int64), grid, lambda _: t)(0.9)
        assert Fraction(fast.lower[0]) <= exact[0]
        assert exact[1] <= Fraction(fast.upper[0])
        assert fast.lower[0] >= math.nextafter(math.nextafter(single.lower, -math.inf), -math.inf)


def test_outward_of_what_no_double_holds() -> None:
    assert round_outward(Fraction(10) ** 400, math.inf) == math.inf
    assert round_outward(-(Fraction(10) ** 400), -math.inf) == -math.inf
    assert round_outward(Fraction(1, 2), math.inf) == 0.5


@pytest.mark.parametrize("confidence", [0, 1, -0.1, math.nan, True, "0.9", None])
def test_confidence_is_a_probability(confidence: object) -> None:
    release = laplace_integer(3, sensitivity=1, epsilon=1)
    with pytest.raises(InvalidValue, match=r"^confidence = "):
        release.interval(confidence=confidence)


def test_a_selection_has_no_interval() -> None:
    chosen = permute_and_flip([1, 2], sensitivity=1, epsilon=1)
    with pytest.raises(NotApplicable, match="permute_and_flip"):
        chosen.interval()
