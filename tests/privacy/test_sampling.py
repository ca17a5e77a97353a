"""Amplification against mechanisms that attain it, moments against integrals (S6, S7)."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from itertools import combinations

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp, mpf
from scipy.special import gammaln, logsumexp

from discreet.errors import InvalidValue, NotApplicable, RelationMismatch
from discreet.privacy import (
    GDP,
    ZCDP,
    DiscreteGaussian,
    DiscreteLaplace,
    Exponential,
    Gaussian,
    Laplace,
    PoissonSampled,
    PureDP,
    RandomizedResponse,
    Relation,
    _normal_mixtures,
    from_pair,
    theorems,
)
from discreet.privacy._renyi import (
    rdp,
)
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
    poisson_replace_delta,
    rdp_from_moment,
    rdp_gaussian,
)
from oracles import gaussian_mixtures as mixtures
from oracles.brackets import check_coarse_steps, contains
from oracles.renyi_curves import RENYI_ORDERS, near, without_replacement
from privacy.test_bracket_judges import plant

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


@pytest.mark.parametrize("delta", [1e-15, 1e-6, 1e-2])
@pytest.mark.parametrize(("noise", "rate"), [(0.3, 0.5), (1.0, 0.01), (1.0, 1e-4), (30.0, 0.2)])
def test_one_poisson_sampled_gaussian(noise, rate, delta):
    contains(
        Gaussian(noise).poisson(rate=rate),
        lambda e: mixtures.poisson_gaussian_delta(noise, rate, e),
        delta=delta,
    )


@pytest.mark.parametrize(("records", "rate"), [(2, 0.1), (5, 0.3), (40, 0.01)])
def test_a_group_on_a_poisson_sample_is_a_binomial_mixture(records, rate):
    weights = [
        mp.binomial(records, k) * mpf(rate) ** k * (1 - mpf(rate)) ** (records - k)
        for k in range(records + 1)
    ]
    shifts = [mpf(k) / 2 for k in range(records + 1)]
    contains(
        Gaussian(2.0).poisson(rate=rate).group(records),
        lambda e: max(mixtures.mixture_delta(weights, shifts, e, swapped=s) for s in (True, False)),
        delta=1e-6,
    )


@pytest.mark.parametrize(
    ("noise", "rate", "count", "epsilon"),
    [(1.5, 0.1, 20, 0.5), (0.9, 0.05, 10, 1.0), (4.0, 0.5, 40, 0.6), (3.0, 0.9, 8, 0.0)],
)
def test_composed_sampled_gaussians_against_a_plain_grid(noise, rate, count, epsilon):
    interval = 1e-4
    lower, upper = (
        max(
            mixtures.grid_delta([(noise, rate, count, s)], epsilon, interval=interval, up=up)
            for s in (False, True)
        )
        for up in (False, True)
    )
    bounds = (count * Gaussian(noise).poisson(rate=rate)).delta_bounds(epsilon=epsilon)
    assert upper - lower < 0.05 * upper
    assert bounds.lower <= upper
    assert bounds.upper >= lower
    assert bounds.width <= 0.02 * bounds.upper


@pytest.mark.parametrize(("noise", "rate"), [(1.5, 0.05), (0.8, 0.3), (4.0, 0.01)])
@pytest.mark.parametrize("order", [1, 2, 7, 2.5])
def test_the_moments_of_s7_by_numerical_integration(noise, rate, order):
    loss = Gaussian(noise).poisson(rate=rate)
    removed = mixtures.log_moment(noise, rate, order, added=False)
    added = mixtures.log_moment(noise, rate, order, added=True)
    assert removed >= added
    assert float(loss.rdp([order + 1.0])[0]) * order == pytest.approx(removed, rel=1e-9)
    if order == int(order):
        closed = theorems.moments_closed_form(int(order), noise_multiplier=noise, rate=rate)
        assert closed == pytest.approx(removed, rel=1e-9)


REPLACE = Relation.REPLACE


def gaussian_moment(mu: float, rate: float, power: float, records: int = 1) -> mpmath.mpf:
    """E (ratio)^power under N(0, 1) by adaptive quadrature in 40 digits."""
    with mpmath.workdps(40):
        m, q, b = mpmath.mpf(mu), mpmath.mpf(rate), mpmath.mpf(power)
        shares = [
            mpmath.binomial(records, k) * q**k * (1 - q) ** (records - k)
            for k in range(records + 1)
        ]
        far = b * m * records
        ends = (min(far, 0) - 16, max(far, 0) + 16)
        # Where the ratio leaves its floor; panels as short as that turn save whole degrees.
        turn = m / 2 + mpmath.log((1 - q) / q) / m
        bends = {turn + k / m for k in (-2, -1, 0, 1, 2)}
        inside = {x for x in bends if ends[0] < x < ends[1]}
        points = sorted({*ends, 0, far, far / 4, far / 2} | inside)

        def integrand(x: mpmath.mpf) -> mpmath.mpf:
            ratio = mpmath.fsum(
                c * mpmath.exp(k * m * x - (k * m) ** 2 / 2) for k, c in enumerate(shares)
            )
            return mpmath.npdf(x) * ratio**b

        # The quadrature goes on until its error is small against 1, so a large value is scaled.
        scale = max(1, *map(integrand, points))
        return scale * mpmath.quad(lambda x: integrand(x) / scale, points, method="gauss-legendre")


def gaussian_divergence(mu: float, rate: float, order: float, *, reverse: bool = False) -> float:
    with mpmath.workdps(40):
        power = 1 - mpmath.mpf(order) if reverse else mpmath.mpf(order)
        return float(mpmath.log(gaussian_moment(mu, rate, power)) / (mpmath.mpf(order) - 1))


def closed_form(mu: float, rate: float, moment: int) -> float:
    """The sum of S7 for E2 at an integer lambda, divided by lambda."""
    with mpmath.workdps(40):
        q, m = mpmath.mpf(rate), mpmath.mpf(mu)
        total = mpmath.fsum(
            mpmath.binomial(moment + 1, k)
            * (1 - q) ** (moment + 1 - k)
            * q**k
            * mpmath.exp((k * k - k) * m * m / 2)
            for k in range(moment + 2)
        )
        return float(mpmath.log(total) / moment)


SETTINGS = [
    (1.0, 0.01, 2.5),
    (0.02, 1e-3, 1.5),
    (1e-3, 1e-6, 3.3),
    (5.0, 1e-6, 7.7),
    (2.0, 0.3, 1.001),
    (0.1, 0.01, 200.5),
    (0.5, 0.9, 33.0),
    (0.25, 1e-4, 64.0),
]


@pytest.mark.parametrize(("mu", "rate", "order"), SETTINGS)
def test_poisson_gaussian_is_the_integral_and_the_larger_direction(mu, rate, order):
    value = rdp(Gaussian(1.0 / mu).poisson(rate=rate), [order])[0]
    forward = gaussian_divergence(1.0 / (1.0 / mu), rate, order)
    assert near(value, forward, 1e-12)
    assert gaussian_divergence(mu, rate, order, reverse=True) <= forward * (1 + 1e-15)


@pytest.mark.parametrize("mu", [1e-3, 0.05, 0.9, 2.0, 5.0])
@pytest.mark.parametrize("rate", [1e-6, 0.004, 0.4])
def test_poisson_gaussian_is_the_closed_form_at_integers(mu, rate):
    moments = [1, 2, 5, 31, 150, 700]
    mu = 1.0 / (1.0 / mu)
    values = rdp(Gaussian(1.0 / mu).poisson(rate=rate), np.array(moments) + 1.0)
    expected = np.array([closed_form(mu, rate, moment) for moment in moments])
    assert np.all(np.abs(values - expected) <= 1e-11 * expected)


def test_high_orders_keep_only_the_windows_that_matter():
    """Closed sums with 20,000 terms, over the place where the rule changes hands."""
    for mu, rate, order in [(0.03, 0.01, 20_000), (0.2, 0.5, 5_000), (1.0, 1e-6, 3_000)]:
        k = np.arange(order + 1.0)
        log_terms = (
            gammaln(order + 1.0)
            - gammaln(k + 1.0)
            - gammaln(order - k + 1.0)
            + k * math.log(rate)
            + (order - k) * math.log1p(-rate)
            + (k * k - k) * mu * mu / 2
        )
        expected = logsumexp(log_terms) / (order - 1)
        assert near(rdp(Gaussian(1.0 / mu).poisson(rate=rate), [order])[0], expected, 1e-9)


@pytest.mark.parametrize(("mu", "rate", "records"), [(0.7, 0.1, 3), (0.05, 0.3, 2), (2.0, 0.01, 4)])
def test_several_records_both_directions(mu, rate, records):
    orders = [1.2, 6.5]
    values = rdp(PoissonSampled(Gaussian(1.0 / mu), rate, records), orders)
    for order, value in zip(orders, values, strict=True):
        with mpmath.workdps(40):
            a = mpmath.mpf(order)
            moments = [gaussian_moment(mu, rate, b, records) for b in (a, 1 - a)]
            expected = float(mpmath.log(max(moments)) / (a - 1))
        assert near(value, expected, 1e-10)


def test_the_reverse_direction_of_several_records_is_the_integral():
    log_shares = np.log([0.9**3, 3 * 0.1 * 0.81, 3 * 0.01 * 0.9, 0.001])
    for order in (1.5, 9.0, 60.0):
        value = _normal_mixtures._reverse_binomial(order, 0.7, log_shares)
        expected = mpmath.log(gaussian_moment(0.7, 0.1, 1 - order, 3)) / (order - 1)
        assert near(value, float(expected), 1e-10)


def test_several_records_at_far_orders_stay_between_simple_bounds():
    orders = np.array([1e4, 1e5, 1e6])
    values = rdp(Gaussian(0.5).poisson(rate=0.2).group(5), orders)
    reach = orders * (5 * 2.0) ** 2 / 2
    lower = reach + orders / (orders - 1) * 5 * math.log(0.2)
    assert np.all(values <= reach * (1 + 1e-12))
    assert np.all(values >= lower * (1 - 1e-12))


def test_rate_one_is_the_unsampled_loss():
    for base in (Gaussian(0.8), Laplace(2.0), DiscreteGaussian(1.2), DiscreteLaplace(3.0, 2)):
        close = rdp(base.poisson(rate=1 - 1e-13), RENYI_ORDERS[:6])
        assert np.allclose(close, rdp(base, RENYI_ORDERS[:6]), rtol=1e-9)
        assert base.poisson(rate=1.0) is base


def test_without_replacement_covers_a_real_mechanism():
    """Sums of a random subset plus noise: the mixtures of two neighbours, by the integral."""
    for sigma, (sample, population) in itertools.product((0.7, 2.0), ((1, 4), (2, 5), (4, 5))):
        loss = without_replacement(Gaussian(sigma, REPLACE), sample, population)
        bound = rdp(loss, [1.5, 2.0, 8.0])
        x = np.linspace(-60, 60, 40_001)
        step = x[1] - x[0]
        for others in ([0.0] * (population - 1), [1.0, -1.0] * (population // 2)):
            densities = []
            for changed in (1.0, -1.0):
                rows = [changed, *others[: population - 1]]
                means = [sum(c) for c in itertools.combinations(rows, sample)]
                peaks = [np.exp(-0.5 * ((x - m) / sigma) ** 2) for m in means]
                densities.append(np.mean(peaks, axis=0) / (sigma * math.sqrt(2 * math.pi)))
            p, q = (np.maximum(d, 1e-300) for d in densities)
            for order, value in zip((1.5, 2.0, 8.0), bound, strict=True):
                for u, v in ((p, q), (q, p)):
                    power = np.exp(order * np.log(u) + (1 - order) * np.log(v))
                    inside = (u > 1e-200) & (v > 1e-200)
                    moment = np.sum(power[inside]) * step
                    assert math.log(moment) / (order - 1) <= value * (1 + 1e-9)


def test_without_replacement_gaussian_is_the_one_sided_integral():
    for sigma, order in [(1.1, 2.5), (4.0, 30.0), (200.0, 3.0), (0.5, 12.0), (20.0, 500.0)]:
        loss = without_replacement(Gaussian(sigma, REPLACE), 1, 100)
        with mpmath.workdps(24):
            mu, a, r = 2 / mpmath.mpf(sigma), mpmath.mpf(order), mpmath.mpf("0.01")

            def integrand(x, mu=mu, a=a, r=r):
                g = r * mpmath.expm1(mu * x - mu * mu / 2)
                return mpmath.npdf(x) * ((1 + g) ** a + (1 + g) ** (1 - a) - 2 - g)

            far = a * mu
            cuts = [mu / 2 + mpmath.mpf(k) for k in (0, 0.01, 0.1, 1, 4, 10, 20)]
            if far > 20:
                cuts += [mu / 2 + 20 + (far - 30) * k / 8 for k in range(1, 9)]
                cuts += [mu / 2 + far - 3, mu / 2 + far + 3, mu / 2 + far + 20]
            scale = max(1, *map(integrand, cuts))  # as in gaussian_moment
            total = scale * mpmath.quad(
                lambda x, c=scale, f=integrand: f(x) / c, sorted(set(cuts)), method="gauss-legendre"
            )
            expected = float(mpmath.log1p(total) / (a - 1))
        assert near(rdp(loss, [order])[0], expected, 1e-9)


def test_without_replacement_other_bases():
    orders = np.array([1.2, 2.0, 5.0, 40.0, 600.0])
    bases = [
        Gaussian(2.0, REPLACE),
        GDP(1.0, REPLACE),
        Laplace(1.0, 1.0, REPLACE),
        DiscreteLaplace(2.0, 2, REPLACE),
        DiscreteGaussian(3.0, 2, REPLACE),
        DiscreteGaussian(3000.0, 2000, REPLACE),
        RandomizedResponse(1.0, 4),
        PureDP(1, REPLACE),
        Exponential(1.0, REPLACE),
        from_pair([0.6, 0.3, 0.1], [0.2, 0.3, 0.5], relation="replace"),
        ZCDP(0.05, REPLACE),
        Gaussian(3.0, REPLACE) + Laplace(2.0, 1.0, REPLACE),
    ]
    for base in bases:
        values = rdp(without_replacement(base, 10, 1000), orders)
        assert np.all(np.isfinite(values) & (values > 0)), base
        assert np.all(values <= rdp(base, orders) * (1 + 1e-12)), base
        assert values[1] < 0.01 * rdp(base, [2.0])[0], base
    smooth = rdp(without_replacement(DiscreteGaussian(300.0, 600, REPLACE), 10, 1000), orders)
    gaussian = rdp(without_replacement(Gaussian(1.0, REPLACE), 10, 1000), orders)
    assert np.allclose(smooth, gaussian, rtol=1e-3)
    response = without_replacement(RandomizedResponse(1.0), 10, 1000)
    pure = math.log1p(0.01 * math.expm1(1.0))
    assert np.all(rdp(response, orders) <= rdp(PureDP(pure, REPLACE), orders) * (1 + 1e-9))


def sampled_gaussian_delta(noise: float, rate: float):
    weights, shifts = [1 - mpf(rate), mpf(rate)], [mpf(0), 1 / mpf(noise)]
    return lambda e, swapped: mixtures.mixture_delta(weights, shifts, e, swapped=swapped)


@pytest.mark.parametrize(("noise", "rate"), [(0.5, 0.3), (1.0, 0.01), (5.0, 0.9)])
def test_coarse_sampled_gaussian_steps_are_bounded(noise, rate):
    check_coarse_steps(Gaussian(noise).poisson(rate=rate), sampled_gaussian_delta(noise, rate))


# --- a replaced record on a Poisson sample ----------------------------------------------------


def replaced_delta(noise, rate, epsilon):
    """The hockey stick of ((1-q) N(0) + q N(1/s), (1-q) N(0) + q N(-1/s)), by quadrature."""
    with mpmath.workdps(30):
        q, m, gamma = mpmath.mpf(rate), 1 / mpmath.mpf(noise), mpmath.exp(epsilon)

        def excess(z):
            first = (1 - q) * mpmath.npdf(z) + q * mpmath.npdf(z, m)
            return max(0, first - gamma * ((1 - q) * mpmath.npdf(z) + q * mpmath.npdf(z, -m)))

        # Where the integrand begins to be positive; the loss is monotone.
        start, high = mpmath.mpf(0), mpmath.mpf(80)
        while high - start > mpmath.mpf(10) ** -12:
            middle = (start + high) / 2
            start, high = (start, middle) if excess(middle) > 0 else (middle, high)
        return mpmath.quad(excess, [start, start + 1, start + 4, start + 12, start + 40])


@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.1), (0.6, 0.01), (3.0, 0.7)])
@pytest.mark.parametrize("epsilon", [0.05, 0.5, 1.3])
def test_a_replaced_record_is_the_integral(noise, rate, epsilon):
    truth = float(replaced_delta(noise, rate, epsilon))
    assert poisson_replace_delta(epsilon, noise_multiplier=noise, rate=rate) == pytest.approx(
        truth, rel=1e-9, abs=1e-15
    )
    bounds = Gaussian(noise, "replace").poisson(rate=rate).delta_bounds(epsilon=epsilon)
    assert bounds.lower <= truth * (1 + 1e-12) + 1e-16
    assert truth * (1 - 1e-12) <= bounds.upper <= truth * 1.02 + 1e-15
    # Planted: one record that only comes or goes, and a shift of 2 / s on one side.
    for wrong in (Gaussian(noise).poisson(rate=rate), Gaussian(noise / 2).poisson(rate=rate)):
        found = wrong.delta(epsilon=epsilon)
        assert not 0.995 * truth <= found <= 1.005 * truth


@pytest.mark.parametrize(
    "wrong",
    ["Pair.exact(mixtures.replaced_cells(0.5 * shift, self.rate, resolution), reflected=True)",
     "Pair.exact(mixtures.replaced_cells(2.0 * shift, self.rate, resolution), reflected=True)",
     "Gaussian(1.0 / shift).sampled_pair(resolution, self.rate, 1)",
     "Gaussian(0.5 / shift).sampled_pair(resolution, self.rate, 1)"],
)  # fmt: skip
def test_a_bug_in_the_pair_of_a_replaced_record_is_found(monkeypatch, wrong):
    """Wrong shifts, a record that only comes or goes, and one that moves to one side only."""

    def agrees():
        truth = poisson_replace_delta(0.5, noise_multiplier=0.97, rate=0.13)
        bounds = Gaussian(0.97, "replace").poisson(rate=0.13).delta_bounds(epsilon=0.5)
        assert bounds.lower <= truth * (1 + 1e-9)
        assert truth <= bounds.upper * (1 + 1e-9)

    right = "Pair.exact(mixtures.replaced_cells(shift, self.rate, resolution), reflected=True)"
    plant(monkeypatch, PoissonSampled, "pair", right, wrong)
    with pytest.raises(AssertionError):
        agrees()


@pytest.mark.parametrize("rate", [0.05, 0.4])
def test_no_two_contributions_are_worse_than_opposite_ones(rate):
    axis = np.linspace(-7.0, 7.0, 281)
    x, y = np.meshgrid(axis, axis)
    area = (axis[1] - axis[0]) ** 2 / (2 * math.pi)

    def density(a, b):
        return area * np.exp(-0.5 * ((x - a) ** 2 + (y - b) ** 2))

    still = (1 - rate) * density(0.0, 0.0)
    for epsilon in (0.05, 0.4):
        worst = float(poisson_replace_delta(epsilon, noise_multiplier=1.0, rate=rate))
        assert worst > 0
        for first, second in ((1.0, 1.0), (1.0, 0.5), (0.5, 1.0), (1.0, 0.0)):
            for angle in (math.pi, 2.6, 1.9, 1.0):
                p = still + rate * density(first, 0.0)
                q = still + rate * density(second * math.cos(angle), second * math.sin(angle))
                for one, other in ((p, q), (q, p)):
                    found = float(np.maximum(one - math.exp(epsilon) * other, 0.0).sum())
                    assert found <= worst * (1 + 1e-3)  # the grid meets the kink


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "delta", "low", "high"),
    [
        (1.1, 256 / 60000, 14062, 1e-5, 4.2211, 4.2215),
        (1.0, 0.01, 1000, 1e-5, 2.8433, 2.8437),
        (2.0, 0.1, 500, 1e-6, 12.4988, 12.4995),
        (0.8, 0.05, 100, 1e-6, 8.2786, 8.2796),
        (4.0, 0.01, 10000, 1e-5, 1.9930, 1.9933),
    ],
)
def test_composed_steps_under_replace_as_dp_accounting_has_them(
    noise, rate, steps, delta, low, high
):
    bounds = (steps * Gaussian(noise, "replace").poisson(rate=rate)).epsilon_bounds(delta=delta)
    assert low <= bounds.lower <= bounds.upper <= high
    assert bounds.tolerance_met


def test_a_replaced_record_lies_between_one_change_and_two():
    step = Gaussian(1.0, "replace").poisson(rate=0.1)
    one, two = Gaussian(1.0).poisson(rate=0.1), Gaussian(1.0).poisson(rate=0.1).group(2)
    for epsilon in (0.0, 0.3, 1.0):
        assert one.delta(epsilon=epsilon) <= step.delta(epsilon=epsilon) * (1 + 1e-3)
    assert step.relation is Relation.REPLACE
    assert step.poisson(rate=0.5) == Gaussian(1.0, "replace").poisson(rate=0.05)
    assert (20 * step).epsilon(delta=1e-5) < (20 * two).epsilon(delta=1e-5)
    # The Renyi curve bounds the moments of the exact pair, seen through cells.
    assert (20 * step).epsilon(delta=1e-5) <= (20 * step).epsilon(delta=1e-5, accountant="rdp")
    for base in (GDP(1.0, "replace"), Laplace(1.0, relation="replace")):
        with pytest.raises(RelationMismatch, match="one Gaussian record only"):
            base.poisson(rate=0.1)
    with pytest.raises(RelationMismatch):
        PoissonSampled(Gaussian(1.0, "replace"), 0.1, 3)


# --- the lower end without replacement -----------------------------------------------------------


def every_profile(epsilon: float, noise: float) -> float:
    """The largest delta over all neighbours of 4 records in {-1, 0, 1}, of which 2 are summed."""
    grid = np.linspace(-12.0, 12.0, 6001)
    bells = {m: np.exp(-0.5 * ((grid - m) / noise) ** 2) for m in range(-2, 3)}
    norm = float(np.sum(bells[0]))

    def law(records: tuple[int, ...]) -> np.ndarray:
        sums = [sum(chosen) for chosen in combinations(records, 2)]
        return np.sum([bells[total] for total in sums], axis=0) / (len(sums) * norm)

    laws = {records: law(records) for records in itertools.product((-1, 0, 1), repeat=4)}
    return max(
        float(np.sum(np.maximum(laws[one] - math.exp(epsilon) * laws[(other, *one[1:])], 0.0)))
        for one in laws
        for other in (-1, 0, 1)
    )


def test_several_releases_on_one_sample_without_replacement_are_read() -> None:
    """Two Gaussian releases of one subset are one with less noise, whose lower end is attained."""
    noise = Gaussian(3.0, REPLACE)
    twice = without_replacement(2 * noise, 2, 200)
    once = without_replacement(Gaussian(3.0 / math.sqrt(2.0), REPLACE), 2, 200)
    unsampled = (2 * noise).epsilon(delta=1e-6)
    for delta in (1e-6, 1e-4):
        least = once.epsilon_bounds(delta=delta).lower
        assert 0 < least <= twice.epsilon(delta=delta) < 0.8 * unsampled
    assert twice.delta(epsilon=0.2) >= once.delta_bounds(epsilon=0.2).lower
    coins = without_replacement(3 * RandomizedResponse(1.0), 1, 100)
    assert coins.epsilon(delta=0) == pytest.approx(math.log1p(0.01 * math.expm1(3.0)), rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
def test_the_lower_end_without_replacement_is_attained(epsilon: float) -> None:
    step = Gaussian(1.5, relation="replace").sample_without_replacement(sample=2, population=4)
    bounds, truth = step.delta_bounds(epsilon=epsilon), every_profile(epsilon, 1.5)
    assert bounds.lower * (1 - 1e-5) <= truth <= bounds.upper * (1 + 1e-5)
    assert bounds.lower >= 0.999 * truth
    # Wrong shifts and rates, and the whole record, are no lower bounds: the judge refutes them.
    for wrong in (Gaussian(0.7).poisson(rate=0.5), Gaussian(0.75).poisson(rate=0.55)):
        assert wrong.delta_bounds(epsilon=epsilon).lower > truth * 1.01


@pytest.mark.parametrize(
    ("noise", "sample", "steps", "delta", "least", "most"),
    [
        (2.0, 6000, 2, 1e-4, 1.3848, 1.3928),
        (2.0, 6000, 10, 1e-5, 2.8545, 2.9254),
        (2.0, 6000, 100, 1e-6, 8.0587, 8.8246),
        (1.1, 256, 14_062, 1e-5, 14.718, 18.454),
    ],
)
def test_both_ends_of_many_steps_without_replacement(
    noise: float, sample: int, steps: int, delta: float, least: float, most: float
) -> None:
    """The same two data sets at every step, and the worst of each step, by quadrature."""
    step = Gaussian(noise, relation="replace").sample_without_replacement(
        sample=sample, population=60_000
    )
    bounds = (steps * step).epsilon_bounds(delta=delta)
    assert bounds.lower == pytest.approx(least, rel=1e-4)
    assert bounds.upper == pytest.approx(most, rel=1e-4)
    assert not bounds.tolerance_met
    assert (steps * step).epsilon(delta=delta) == bounds.upper
    mixed = (step + Gaussian(3.0, relation="replace")).epsilon_bounds(delta=delta)
    assert mixed.lower > 0.0
    assert (step + Laplace(3.0, relation="replace")).epsilon_bounds(delta=delta).lower == 0.0
