"""Amplification against mechanisms that attain it, moments against integrals (S6, S7)."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.errors import InvalidValue, NotApplicable
from discreet.privacy.theorems import (
    amplification_linear,
    amplification_poisson,
    amplification_teaching,
    amplification_with_replacement,
    amplification_without_replacement,
    channel_epsilon,
    gaussian_delta,
    hockey_stick,
    moments_closed_form,
    moments_to_delta,
    moments_to_epsilon,
    rdp_from_moment,
    rdp_gaussian,
)

EPSILONS = st.floats(0.0, 20.0)
RATES = st.floats(0.0, 1.0)


def worst_pair(epsilon: float, delta: float) -> tuple[list[float], list[float]]:
    """The pair that dominates every (epsilon, delta)-DP mechanism: reveal, or respond."""
    truth = (1 - delta) / (1 + math.exp(-epsilon))
    lie = 1 - delta - truth
    return [delta, truth, lie, 0.0], [0.0, lie, truth, delta]


@given(epsilon=st.floats(0.01, 6.0), delta=st.floats(0.0, 0.5), rate=st.floats(0.001, 1.0))
def test_poisson_is_attained_by_the_worst_pair(epsilon: float, delta: float, rate: float) -> None:
    included, excluded = worst_pair(epsilon, delta)
    sampled = [rate * a + (1 - rate) * b for a, b in zip(included, excluded, strict=True)]
    amplified = amplification_poisson(epsilon, delta, rate=rate)
    assert hockey_stick(sampled, excluded, amplified.epsilon) == pytest.approx(
        amplified.delta, abs=1e-12
    )
    assert hockey_stick(excluded, sampled, amplified.epsilon) <= amplified.delta + 1e-12
    if amplified.epsilon > 1e-3:
        assert hockey_stick(sampled, excluded, amplified.epsilon * 0.99) > amplified.delta


def test_without_replacement_is_attained_by_a_real_mechanism() -> None:
    """Release a noisy answer to 'is the special record in the sample?', over all subsets."""
    truth, lie = Fraction(3, 4), Fraction(1, 4)
    population, size = 6, 2
    subsets = list(combinations(range(population), size))
    hit = Fraction(sum(0 in subset for subset in subsets), len(subsets))
    with_record = (hit * truth + (1 - hit) * lie, hit * lie + (1 - hit) * truth)
    without = (lie, truth)
    amplified = amplification_without_replacement(
        math.log(3), 0.0, sample_size=size, population=population
    )
    assert channel_epsilon((with_record, without)) == pytest.approx(amplified.epsilon, rel=1e-14)


@given(epsilon=EPSILONS, rate=RATES)
def test_teaching_bounds_are_ordered_and_looser(epsilon: float, rate: float) -> None:
    tight = amplification_poisson(epsilon, 0.0, rate=rate).epsilon
    ratio, product = amplification_teaching(epsilon, rate=rate)
    assert tight <= ratio * (1 + 1e-12)
    assert ratio <= product * (1 + 1e-12)
    assert tight <= epsilon * (1 + 1e-12)


def test_teaching_bounds_as_the_lecture_prints_them() -> None:
    epsilon, g = 0.7, 0.2
    up, down = math.exp(epsilon), math.exp(-epsilon)
    ratio, product = amplification_teaching(epsilon, rate=g)
    assert ratio == pytest.approx(math.log((1 + g * (up - 1)) / (1 + g * (down - 1))), rel=1e-14)
    assert product == pytest.approx(2 * g * (up - down), rel=1e-14)


@pytest.mark.parametrize("rate", [1e-12, 1e-3, 0.5, 0.999])
@pytest.mark.parametrize("epsilon", [1e-12, 1e-3, 0.99, 1.0, 30.0, 800.0, 1e5])
def test_amplified_epsilon_against_mpmath(epsilon: float, rate: float) -> None:
    with mpmath.workdps(60):
        exact = mpmath.log1p(mpmath.mpf(rate) * mpmath.expm1(mpmath.mpf(epsilon)))
    result = amplification_poisson(epsilon, 0.0, rate=rate).epsilon
    assert result == pytest.approx(float(exact), rel=1e-11, abs=1e-15)


def test_degenerate_rates() -> None:
    assert amplification_poisson(3.0, 0.25, rate=1.0) == (3.0, 0.25)
    assert amplification_poisson(3.0, 0.25, rate=0.0) == (0.0, 0.0)
    assert amplification_without_replacement(3.0, 0.1, sample_size=5, population=5) == (3.0, 0.1)
    assert amplification_teaching(2.0, rate=1.0)[0] == 4.0


@given(epsilon=st.floats(0.0, 1.2564), rate=RATES)
def test_linear_bound_holds_where_it_is_offered(epsilon: float, rate: float) -> None:
    linear = amplification_linear(epsilon, 1e-6, rate=rate)
    tight = amplification_poisson(epsilon, 1e-6, rate=rate)
    assert tight.epsilon <= linear.epsilon * (1 + 1e-12)
    assert tight.delta == linear.delta


def test_linear_bound_is_refused_where_it_would_be_false() -> None:
    with pytest.raises(NotApplicable, match=r"1\.2564"):
        amplification_linear(1.3, 0.0, rate=0.01)
    assert amplification_poisson(1.3, 0.0, rate=1e-4).epsilon > 2 * 1e-4 * 1.3


def exact_with_replacement(draws: int, population: int, epsilon: float, mu: float) -> mpmath.mpf:
    with mpmath.workdps(50):
        p = mpmath.mpf(1) / population
        return mpmath.fsum(
            mpmath.binomial(draws, k)
            * p**k
            * (1 - p) ** (draws - k)
            * gaussian_delta(mu * k, epsilon)
            for k in range(1, draws + 1)
        )


@pytest.mark.parametrize(("draws", "population"), [(1, 1), (1, 7), (3, 2), (50, 1000), (200, 100)])
def test_with_replacement_against_the_whole_sum(draws: int, population: int) -> None:
    result = amplification_with_replacement(
        1.0, lambda k: gaussian_delta(0.2 * k, 1.0), draws=draws, population=population
    )
    exact = exact_with_replacement(draws, population, 1.0, 0.2)
    assert exact * (1 - mpmath.mpf(1e-14)) <= result.delta
    assert result.delta == pytest.approx(float(exact), rel=1e-10)
    rate = 1 - (1 - Fraction(1, population)) ** draws
    assert result.epsilon == pytest.approx(math.log1p(float(rate) * math.expm1(1.0)), rel=1e-12)


def test_with_replacement_stops_early_for_many_draws() -> None:
    asked = []

    def group_delta(k: int) -> float:
        asked.append(k)
        return gaussian_delta(0.2 * k, 1.0)

    amplification_with_replacement(1.0, group_delta, draws=100_000, population=1_000_000)
    assert asked == list(range(1, len(asked) + 1))
    assert len(asked) < 40


def test_with_replacement_refuses_a_profile_that_is_no_probability() -> None:
    with pytest.raises(InvalidValue, match=r"group_delta\(1\)"):
        amplification_with_replacement(1.0, lambda k: 1.5, draws=3, population=10)


def moment(order: int, sigma: float, rate: float, *, forward: bool) -> mpmath.mpf:
    """E2 (forward) and E1 of the lecture by numerical integration."""
    with mpmath.workdps(30):
        s, g = mpmath.mpf(sigma), mpmath.mpf(rate)

        def ratio(z: mpmath.mpf) -> mpmath.mpf:
            return 1 - g + g * mpmath.exp((2 * z - 1) / (2 * s * s))

        def integrand(z: mpmath.mpf) -> mpmath.mpf:
            base = mpmath.npdf(z, 0, s)
            return base * (ratio(z) ** (order + 1) if forward else ratio(z) ** -order)

        low, high = -14 * s, 14 * s + order + 1
        cuts = [low + (high - low) * i / 24 for i in range(25)]
        return mpmath.log(mpmath.quad(integrand, cuts))


@pytest.mark.parametrize(
    ("order", "sigma", "rate"),
    [(1, 4.0, 0.01), (8, 4.0, 0.01), (32, 4.0, 0.01), (5, 1.1, 256 / 60000), (3, 0.6, 0.3)],
)
def test_moments_agree_with_the_integral_and_e2_is_the_larger(
    order: int, sigma: float, rate: float
) -> None:
    closed = moments_closed_form(order, noise_multiplier=sigma, rate=rate)
    e2 = moment(order, sigma, rate, forward=True)
    assert closed == pytest.approx(float(e2), rel=1e-9)
    assert moment(order, sigma, rate, forward=False) <= e2


@given(order=st.integers(1, 300), sigma=st.floats(0.2, 1000.0))
def test_moments_at_rate_one_are_those_of_the_gaussian(order: int, sigma: float) -> None:
    closed = moments_closed_form(order, noise_multiplier=sigma, rate=1.0)
    renyi_order, renyi = rdp_from_moment(closed, order=order)
    assert renyi == pytest.approx(rdp_gaussian(1 / sigma, order=renyi_order), rel=1e-11)


def test_moments_keep_tiny_values_and_survive_huge_ones() -> None:
    tiny = moments_closed_form(1, noise_multiplier=1e3, rate=1e-6)
    assert tiny == pytest.approx(1e-12 * math.expm1(1e-6), rel=1e-9)
    assert moments_closed_form(3, noise_multiplier=1.0, rate=0.0) == 0.0
    huge = moments_closed_form(10_000, noise_multiplier=0.2, rate=0.5)
    assert math.isfinite(huge)
    assert huge == pytest.approx(10_000 * 10_001 / 0.08 - 10_001 * math.log(2), rel=1e-12)


@given(moment=st.floats(0, 50), order=st.floats(0.5, 500), delta=st.floats(1e-30, 0.9))
def test_moment_conversions_are_inverse(moment: float, order: float, delta: float) -> None:
    epsilon = moments_to_epsilon(moment, order=order, delta=delta)
    assert moments_to_delta(moment, order=order, epsilon=epsilon) == pytest.approx(delta, rel=1e-9)
    assert moments_to_delta(moment, order=order, epsilon=0.0) == 1.0


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: amplification_poisson(1.0, 0.0, rate=1.1), "rate"),
        (lambda: amplification_poisson(-1.0, 0.0, rate=0.1), "epsilon"),
        (lambda: amplification_poisson(1.0, 2.0, rate=0.1), "delta"),
        (
            lambda: amplification_without_replacement(1.0, 0.0, sample_size=3, population=2),
            "sample_size",
        ),
        (
            lambda: amplification_without_replacement(1.0, 0.0, sample_size=1.0, population=2),
            "sample_size",
        ),
        (
            lambda: amplification_with_replacement(1.0, lambda k: 0.0, draws=0, population=2),
            "draws",
        ),
        (lambda: amplification_teaching(1.0, rate=-0.1), "rate"),
        (lambda: moments_closed_form(0, noise_multiplier=1.0, rate=0.1), "order"),
        (lambda: moments_closed_form(1, noise_multiplier=0.0, rate=0.1), "noise_multiplier"),
        (lambda: moments_to_delta(-1.0, order=1, epsilon=1.0), "log_moment"),
        (lambda: moments_to_epsilon(1.0, order=1, delta=0.0), "delta"),
    ],
)
def test_bad_input_names_the_argument(call, name) -> None:
    with pytest.raises(InvalidValue) as caught:
        call()
    assert caught.value.argument == name
