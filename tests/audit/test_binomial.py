"""Clopper-Pearson bounds against exact sums, mpmath and their own coverage."""

import math
from fractions import Fraction

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.audit.binomial import interval, lower_bound, lower_bounds, upper_bound, upper_bounds
from discreet.errors import InvalidValue

CASES = [
    (successes, trials, error)
    for trials in (1, 7, 40, 300)
    for successes in sorted({0, 1, trials // 3, trials - 1, trials})
    for error in (0.3, 1e-3, 1e-9, 1e-20, 1e-35)
]


def binomial_tail(at_least: int, trials: int, p: mpmath.mpf) -> mpmath.mpf:
    """P(X >= at_least), summed term by term."""
    return mpmath.fsum(
        mpmath.binomial(trials, k) * p**k * (1 - p) ** (trials - k)
        for k in range(at_least, trials + 1)
    )


@pytest.mark.parametrize(("successes", "trials", "error"), CASES)
def test_bounds_solve_their_equations(successes: int, trials: int, error: float) -> None:
    with mpmath.workdps(60):
        low = mpmath.mpf(lower_bound(successes, trials, error=error))
        high = mpmath.mpf(upper_bound(successes, trials, error=error))
        # On the safe side, and hardly wider than the exact bound.
        if successes == 0:
            assert low == 0
        else:
            assert binomial_tail(successes, trials, low) <= error
            assert binomial_tail(successes, trials, low * (1 + mpmath.mpf("1e-10"))) >= error
        if successes == trials:
            assert high == 1
        else:
            below = 1 - binomial_tail(successes + 1, trials, high)
            assert below <= error * (1 + mpmath.mpf("1e-15"))
            if high < 1:
                inside = high * (1 - mpmath.mpf("1e-10"))
                assert 1 - binomial_tail(successes + 1, trials, inside) >= error


@pytest.mark.parametrize("trials", [1, 10, 5000, 10**6])
@pytest.mark.parametrize("error", [0.2, 1e-3, 1e-12])
def test_closed_forms_at_the_ends(trials: int, error: float) -> None:
    root = math.exp(math.log(error) / trials)
    assert lower_bound(trials, trials, error=error) == pytest.approx(root, rel=1e-9)
    assert upper_bound(0, trials, error=error) == pytest.approx(
        -math.expm1(math.log(error) / trials), rel=1e-9
    )


@given(
    trials=st.integers(1, 60),
    p=st.fractions(0, 1, max_denominator=1000),
    error=st.sampled_from([0.4, 0.05, 1e-3]),
)
def test_coverage_is_exact_by_enumeration(trials: int, p: Fraction, error: float) -> None:
    """The probability that a bound is wrong, summed over all counts in rational arithmetic."""
    weights = [math.comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in range(trials + 1)]
    low = lower_bounds(range(trials + 1), trials, error=error)
    high = upper_bounds(range(trials + 1), trials, error=error)
    too_high = sum((w for w, bound in zip(weights, low, strict=True) if bound > p), Fraction(0))
    too_low = sum((w for w, bound in zip(weights, high, strict=True) if bound < p), Fraction(0))
    assert too_high <= Fraction(error)
    assert too_low <= Fraction(error)


@given(st.integers(1, 10**6), st.data())
def test_bounds_are_monotone_and_symmetric(trials: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, trials - 1))
    error = data.draw(st.sampled_from([0.1, 1e-4, 1e-9]))
    low, high = (
        lower_bound(successes, trials, error=error),
        upper_bound(successes, trials, error=error),
    )
    assert low <= successes / trials <= high
    assert low <= lower_bound(successes + 1, trials, error=error)
    assert high <= upper_bound(successes + 1, trials, error=error)
    mirrored = 1 - upper_bound(trials - successes, trials, error=error)
    assert mirrored == pytest.approx(low, rel=1e-9, abs=1e-9)


def test_the_two_sided_interval_has_half_of_the_error_on_each_side() -> None:
    # Clopper and Pearson's interval for 3 of 10 at 90 %, as printed in tables.
    assert interval(3, 10, confidence=0.9) == pytest.approx((0.08726, 0.60662), abs=1e-5)
    assert interval(0, 10, confidence=0.9)[0] == 0.0
    assert interval(10, 10, confidence=0.9)[1] == 1.0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"successes": -1, "trials": 4, "error": 0.1}, "successes"),
        ({"successes": 5, "trials": 4, "error": 0.1}, "successes"),
        ({"successes": 1.0, "trials": 4, "error": 0.1}, "successes"),
        ({"successes": 0, "trials": 0, "error": 0.1}, "trials"),
        ({"successes": 1, "trials": 4, "error": 0.0}, "error"),
        ({"successes": 1, "trials": 4, "error": 1.0}, "error"),
        ({"successes": 1, "trials": 4, "error": math.nan}, "error"),
    ],
)
def test_bad_input_is_named(arguments: dict, named: str) -> None:
    for bound in (lower_bound, upper_bound):
        with pytest.raises(InvalidValue) as refused:
            bound(arguments["successes"], arguments["trials"], error=arguments["error"])
        assert refused.value.argument == named
    with pytest.raises(InvalidValue):
        interval(1, 4, confidence=1.0)
