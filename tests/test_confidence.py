"""Clopper-Pearson bounds, shares and their differences: exact sums, mpmath, coverage."""

import inspect
import itertools
import math
import re
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import discreet
from discreet._confidence import (
    Difference,
    excess,
    gain,
    gap,
    lower_bound,
    lower_bounds,
    proportion,
    upper_bound,
    upper_bounds,
)
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
    some = proportion(3, 10, confidence=0.9)
    assert (some.low, some.high) == pytest.approx((0.08726, 0.60662), abs=1e-5)
    assert proportion(0, 10, confidence=0.9).low == 0.0
    assert proportion(10, 10, confidence=0.9).high == 1.0


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


def test_no_other_module_computes_such_bounds() -> None:
    """Quantiles of Beta distributions are here; those of PATE's planning are made-up votes."""
    home = Path(inspect.getfile(discreet)).parent
    found = {
        path.relative_to(home).as_posix()
        for path in home.rglob("*.py")
        if re.search(r"\b(betainc+inv|btdtri|binomtest|beta\.ppf)\b", path.read_text("utf-8"))
    }
    assert found == {"_confidence.py", "pate/_planning.py"}
