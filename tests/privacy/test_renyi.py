"""The Renyi curve against integrals, sums, peers and the laws it must obey (S7, S8)."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaln, logsumexp

from discreet.privacy import (
    GDP,
    ZCDP,
    ApproxDP,
    DiscreteGaussian,
    DiscreteLaplace,
    Exponential,
    FinitePair,
    Gaussian,
    Grouped,
    Laplace,
    Loss,
    PoissonSampled,
    PureDP,
    RandomizedResponse,
    Relation,
    RenyiDP,
    _normal_mixtures,
    from_pair,
)
from discreet.privacy._renyi import (
    moments_epsilon,
    rdp,
    rdp_epsilon,
)

ORDERS = np.array([1.0001, 1.3, 2.0, 3.7, 12.0, 100.5, 4000.0, 1e6])
REPLACE = Relation.REPLACE


# --- oracles -------------------------------------------------------------------------


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


def finite_divergence(p: list, q: list, order: float, rate: float = 1.0) -> float:
    """The worst of the four directions of a finite pair, sampled, by plain sums."""
    with mpmath.workdps(40):
        a, r = mpmath.mpf(order), mpmath.mpf(rate)
        results = []
        for x, y in ((p, q), (q, p)):
            mixed = [(1 - r) * v + r * u for u, v in zip(x, y, strict=True)]
            for s, t in ((mixed, y), (y, mixed)):
                total = mpmath.fsum(u**a * v ** (1 - a) for u, v in zip(s, t, strict=True) if u > 0)
                results.append(mpmath.log(total) / (a - 1))
        return float(max(results))


def lattice_pair(loss: DiscreteLaplace | DiscreteGaussian, reach: int) -> tuple[list, list]:
    """The two distributions on integers, cut where nothing is left."""
    with mpmath.workdps(40):

        def density(x: int) -> mpmath.mpf:
            if isinstance(loss, DiscreteLaplace):
                return mpmath.exp(-abs(x) / mpmath.mpf(loss.scale))
            return mpmath.exp(-(mpmath.mpf(x) ** 2) / (2 * mpmath.mpf(loss.stddev) ** 2))

        xs = range(-reach, reach + 1)
        q = [density(x) for x in xs]
        p = [density(x - loss.sensitivity) for x in xs]
        total = mpmath.fsum(q)
        return [v / total for v in p], [v / total for v in q]


def near(value: float, expected: float, relative: float = 1e-9) -> bool:
    return abs(value - expected) <= relative * abs(expected)


# --- sampled Gaussians ---------------------------------------------------------------

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
        close = rdp(base.poisson(rate=1 - 1e-13), ORDERS[:6])
        assert np.allclose(close, rdp(base, ORDERS[:6]), rtol=1e-9)
        assert base.poisson(rate=1.0) is base


@pytest.mark.parametrize("stddev", [0.3, 0.8, 1.6, 4.0])
@pytest.mark.parametrize("sensitivity", [1, 3])
@pytest.mark.parametrize("rate", [1.0, 0.05])
def test_discrete_gaussian_is_the_sum(stddev, sensitivity, rate):
    loss = DiscreteGaussian(stddev, sensitivity)
    p, q = lattice_pair(loss, 160)
    for order in (1.05, 2.0, 3.7, 20.3):
        value = rdp(loss.poisson(rate=rate), [order])[0]
        assert near(value, finite_divergence(p, q, order, rate), 1e-11)


def test_discrete_gaussian_is_below_the_continuous_one_and_takes_any_size():
    loss = DiscreteGaussian(0.7, 2)
    assert np.all(rdp(loss, ORDERS) <= ORDERS * (2 / 0.7) ** 2 / 2 * (1 + 1e-15))
    huge = DiscreteGaussian(2.0**40, 2**40)
    assert np.allclose(rdp(huge, ORDERS), ORDERS / 2, rtol=1e-15)
    sampled = rdp(huge.poisson(rate=0.01), ORDERS)
    assert np.allclose(sampled, rdp(Gaussian(1.0).poisson(rate=0.01), ORDERS), rtol=1e-12)


# --- bounded losses ------------------------------------------------------------------


@pytest.mark.parametrize(("scale", "sensitivity"), [(1.0, 1), (3.0, 5), (1e3, 7), (40.0, 70)])
@pytest.mark.parametrize("rate", [1.0, 0.1, 1e-5])
def test_discrete_laplace_is_the_sum(scale, sensitivity, rate):
    """Everything below 0 and above the sensitivity has one loss each, so the sum is short."""
    loss = DiscreteLaplace(scale, sensitivity)
    values = rdp(loss.poisson(rate=rate), ORDERS[:6])
    with mpmath.workdps(40):
        t = 1 / mpmath.mpf(scale)
        share = 1 / (1 + mpmath.exp(-t))
        q = [share]
        q += [share * (1 - mpmath.exp(-t)) * mpmath.exp(-x * t) for x in range(1, sensitivity)]
        q += [share * mpmath.exp(-sensitivity * t)]
        expected = [finite_divergence(q[::-1], q, order, rate) for order in ORDERS[:6]]
    assert np.allclose(values, expected, rtol=1e-11)


def test_long_lattices_are_bounded_from_above_and_closely():
    for scale, steps in [(2000.0, 5000), (1e6, 5000)]:
        loss = DiscreteLaplace(scale, steps).poisson(rate=0.1)
        t = 1.0 / scale
        x = np.arange(1.0, steps)
        losses = np.concatenate((-steps * t * np.ones(1), (2 * x - steps) * t, [steps * t]))
        share = 1 / (1 + math.exp(-t))
        inner = share * -math.expm1(-t) * np.exp(-x * t)
        weights = np.concatenate(([share], inner, [share * math.exp(-steps * t)]))
        gains = 0.1 * np.expm1(losses)
        for order in (2.0, 10.0):
            plain = math.log1p(weights @ ((1 + gains) ** order - 1 - order * gains)) / (order - 1)
            value = rdp(loss, [order])[0]
            assert plain * (1 - 1e-9) <= value <= plain * (1 + 1e-5)
    huge = rdp(DiscreteLaplace(2.0**40, 2**40), ORDERS)
    assert np.allclose(huge, rdp(Laplace(1.0), ORDERS), rtol=1e-10)
    sampled = rdp(DiscreteLaplace(2.0**40, 2**40).poisson(rate=0.01), ORDERS[:5])
    assert np.allclose(sampled, rdp(Laplace(1.0).poisson(rate=0.01), ORDERS[:5]), rtol=1e-5)


@pytest.mark.parametrize("epsilon", [1e-4, 0.3, 2.0, 30.0])
@pytest.mark.parametrize("rate", [1.0, 0.05, 1e-6])
def test_laplace_is_the_integral(epsilon, rate):
    orders = [1.0001, 1.5, 3.3, 100.5]
    values = rdp(Laplace(1.0, epsilon).poisson(rate=rate), orders)
    with mpmath.workdps(40):  # as above: nodes of a quadrature are computed once a precision
        e, r = mpmath.mpf(epsilon), mpmath.mpf(rate)
        for order, value in zip(orders, values, strict=True):
            a = mpmath.mpf(order)

            def power(loss, a=a):
                return (1 - r + r * mpmath.exp(loss)) ** a

            ends = (power(-e) + mpmath.exp(-e) * power(e)) / 2
            cuts = [-e, 0, e / 2, e - e / 16, e - e / 256, e]
            scale = max(1, ends)  # as in gaussian_moment
            inner = scale * mpmath.quad(
                lambda x, c=scale: mpmath.exp(-(x + e) / 2) / 4 * power(x) / c,
                cuts,
                method="gauss-legendre",
            )
            assert near(value, float(mpmath.log(ends + inner) / (a - 1)), 1e-10)


@pytest.mark.parametrize("categories", [2, 3, 10])
def test_randomized_response_and_pure(categories):
    epsilon = 0.8
    truth = 1 / (1 + (categories - 1) * math.exp(-epsilon))
    lie = truth * math.exp(-epsilon)
    p = [truth, lie] + [lie] * (categories - 2)
    q = [lie, truth] + [lie] * (categories - 2)
    values = rdp(RandomizedResponse(epsilon, categories), ORDERS)
    expected = [finite_divergence(p, q, order) for order in ORDERS]
    # The oracle starts from probabilities that sum to one only within 1e-16.
    assert np.allclose(values[1:], expected[1:], rtol=1e-12)
    assert np.allclose(values, expected, rtol=1e-10)
    if categories == 2:
        assert np.array_equal(values, rdp(PureDP(epsilon), ORDERS))
        assert np.array_equal(values, rdp(ApproxDP(epsilon, 0), ORDERS))
        sampled = rdp(PureDP(epsilon).poisson(rate=0.03), [1.5, 40.0])
        expected = [finite_divergence(p, q, order, 0.03) for order in (1.5, 40.0)]
        assert np.allclose(sampled, expected, rtol=1e-12)


def test_finite_pairs_both_directions_and_infinities():
    p, q = [0.6, 0.3, 0.1], [0.2, 0.3, 0.5]
    loss = from_pair(p, q)
    for order in (1.01, 2.0, 7.5):
        assert near(rdp(loss, [order])[0], finite_divergence(p, q, order), 1e-12)
        sampled = rdp(loss.poisson(rate=0.2), [order])[0]
        assert near(sampled, finite_divergence(p, q, order, 0.2), 1e-12)
    # S3 prints the direction P against Q, ln 1.04; the other one is larger.
    both = rdp(from_pair([0.6, 0.4], [0.5, 0.5]), [2.0])[0]
    assert near(both, math.log(0.25 / 0.6 + 0.25 / 0.4), 1e-12)
    assert both > math.log(1.04)
    leaky = from_pair([0.5, 0.5, 0.0], [0.5, 0.4, 0.1])
    assert np.all(np.isinf(rdp(leaky, ORDERS)))
    assert np.all(np.isinf(rdp(leaky.poisson(rate=0.1), ORDERS)))
    assert rdp_epsilon(leaky, 1e-5) == math.inf


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 6.0])
def test_bounded_range_is_the_best_two_point_pair(epsilon):
    """A grid of ends t comes close to the closed form from below, never above."""
    orders = np.array([1.1, 2.0, 9.0])
    rate = 0.2
    plain, sampled = np.zeros(3), np.zeros(3)
    for t in np.linspace(0, epsilon, 402)[1:-1]:
        high = math.expm1(epsilon - t) / (math.exp(epsilon) - 1)
        q = [high, 1 - high]
        p = [high * math.exp(t), (1 - high) * math.exp(t - epsilon)]
        for i, order in enumerate(orders):
            both = [
                sum(u**order * v ** (1 - order) for u, v in zip(*d, strict=True))
                for d in ((p, q), (q, p))
            ]
            plain[i] = max(plain[i], math.log(max(both)) / (order - 1))
            mixed = [(1 - rate) * v + rate * u for u, v in zip(p, q, strict=True)]
            both = [
                sum(u**order * v ** (1 - order) for u, v in zip(*d, strict=True))
                for d in ((mixed, q), (q, mixed))
            ]
            sampled[i] = max(sampled[i], math.log(max(both)) / (order - 1))
    values = rdp(Exponential(epsilon), orders)
    assert np.all(plain <= values * (1 + 1e-9))
    assert np.all(values <= plain * (1 + 1e-4))
    assert np.all(values <= orders * epsilon**2 / 8 * (1 + 1e-12))
    bounds = rdp(Exponential(epsilon).poisson(rate=rate), orders)
    assert np.all(sampled <= bounds)
    assert np.all(bounds <= sampled * 1.05)


def test_known_curves_are_interpolated_safely():
    true = Laplace(1.3)
    known = [1.5, 2.0, 4.0, 32.0]
    curve = RenyiDP(tuple(known), tuple(rdp(true, known)))
    between = np.array([1.1, 1.5, 1.7, 3.0, 31.0, 32.0])
    values = rdp(curve, between)
    assert np.all(values >= rdp(true, between) * (1 - 1e-12))
    assert np.allclose(values[[1, 5]], rdp(true, [1.5, 32.0]))
    steps = np.array([curve.epsilons[k] for k in (0, 0, 1, 2, 3, 3)])
    assert np.all(values <= steps)
    assert values[3] < steps[3]
    assert np.isinf(rdp(curve, [32.1])[0])
    assert rdp(RenyiDP((2.0, 4.0), (3.0, 1.0)), [2.0])[0] == 1.0


# --- sampling without replacement, groups --------------------------------------------


def without_replacement(base: Loss, sample: int, population: int) -> Loss:
    return base.sample_without_replacement(sample=sample, population=population)


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


def test_an_asymmetric_pair_is_enveloped():
    pair = from_pair([0.7, 0.2, 0.1], [0.3, 0.3, 0.4], relation="replace")
    swapped = from_pair(pair.q, pair.p, relation="replace")
    one, two = (rdp(without_replacement(x, 1, 4), [1.5, 6.0]) for x in (pair, swapped))
    assert np.allclose(one, two, rtol=1e-12)
    for order, value in zip((1.5, 6.0), one, strict=True):
        mixed = [0.75 * v + 0.25 * u for u, v in zip(pair.p, pair.q, strict=True)]
        for u, v in ((mixed, pair.q), (pair.q, mixed)):
            moment = sum(s**order * t ** (1 - order) for s, t in zip(u, v, strict=True))
            assert math.log(moment) / (order - 1) <= value


def test_groups_are_exact_for_gaussians_and_safe_for_others():
    for size in (2, 3, 10, 64, 200):
        grouped = rdp(Grouped(Gaussian(5.0), size, Relation.ADD_REMOVE), [1.5, 4.0])
        exact = rdp(Gaussian(5.0).group(size), [1.5, 4.0])
        assert np.all(grouped >= exact * (1 - 1e-12))
        if size <= 64:
            assert np.allclose(grouped, exact, rtol=1e-12)
        else:
            assert np.all(grouped <= exact * 4)
    for base in (Laplace(3.0), Exponential(0.4), PureDP(0.4), DiscreteLaplace(4.0, 1)):
        generic = rdp(Grouped(base, 3, Relation.ADD_REMOVE), ORDERS)
        assert np.all(generic >= rdp(base.group(3), ORDERS) * (1 - 1e-9))
    sampled = Gaussian(1.0).poisson(rate=0.01)
    exact = rdp(sampled.group(2), [1.5, 3.0])
    assert np.all(rdp(Grouped(sampled, 2, Relation.ADD_REMOVE), [1.5, 3.0]) >= exact)


# --- laws ----------------------------------------------------------------------------

positive = st.floats(0.05, 20.0)
rates = st.floats(1e-6, 1.0)
atoms = st.one_of(
    positive.map(Gaussian),
    positive.map(Laplace),
    st.tuples(positive, st.integers(1, 100)).map(lambda t: DiscreteLaplace(*t)),
    st.tuples(positive, st.integers(1, 5)).map(lambda t: DiscreteGaussian(*t)),
    positive.map(PureDP),
    positive.map(Exponential),
    st.tuples(st.floats(0.01, 0.99), st.floats(0.01, 0.99)).map(
        lambda t: FinitePair((t[0], 1 - t[0]), (t[1], 1 - t[1]))
    ),
)
sampled_atoms = st.builds(lambda base, rate: base.poisson(rate=rate), atoms, rates)
losses = st.one_of(atoms, sampled_atoms)


@settings(max_examples=120, deadline=None)
@given(losses)
def test_curves_rise_and_are_convex(loss):
    orders = 1.0 + np.geomspace(1e-3, 1e4, 40)
    values = rdp(loss, orders)
    assert np.all(np.isfinite(values) & (values >= 0))
    assert np.all(np.diff(values) >= -1e-9 * values[1:])
    moments = (orders - 1) * values
    slopes = np.diff(moments) / np.diff(orders)
    assert np.all(np.diff(slopes) >= -1e-7 * slopes[1:])


@settings(max_examples=60, deadline=None)
@given(losses, losses, st.integers(1, 50))
def test_composition_adds(first, second, count):
    orders = np.array([1.2, 3.0, 50.0])
    together = rdp(first + count * second, orders)
    assert np.allclose(together, rdp(first, orders) + count * rdp(second, orders), rtol=1e-12)


@settings(max_examples=60, deadline=None)
@given(atoms, rates, st.floats(1e-3, 1.0))
def test_sampling_less_reveals_less(base, rate, share):
    orders = np.array([1.2, 3.0, 50.0, 1e4])
    more = rdp(base.poisson(rate=rate), orders)
    less = rdp(base.poisson(rate=rate * share), orders)
    slack = 1.02 if isinstance(base, Exponential) else 1 + 1e-9
    assert np.all(less <= more * slack + 1e-300)
    assert np.all(more <= rdp(base, orders) * slack)


@settings(max_examples=60, deadline=None)
@given(positive, rates)
def test_a_pure_bound_dominates(epsilon, rate):
    for loss in (Laplace(1.0, epsilon), PureDP(epsilon), DiscreteLaplace(1 / epsilon, 1)):
        pure = rdp(PureDP(epsilon), ORDERS) * (1 + 1e-9)
        assert np.all(rdp(loss, ORDERS) <= pure)
        assert np.all(pure <= epsilon * (1 + 1e-8))
        amplified = math.log1p(rate * math.expm1(epsilon))
        assert np.all(rdp(loss.poisson(rate=rate), ORDERS) <= amplified * (1 + 1e-9))


@pytest.mark.parametrize("sigma", [0.2, 1.0, 1e3])
@pytest.mark.parametrize("rate", [1e-6, 0.5, 1 - 1e-9])
@pytest.mark.parametrize("steps", [1, 10**7])
def test_the_corners_of_the_range(sigma, rate, steps):
    loss = steps * Gaussian(sigma).poisson(rate=rate)
    values = rdp(loss, [1 + 1e-6, 1.5, 64.0, 1e6])
    assert np.all(np.isfinite(values) & (values > 0))
    for delta in (1e-15, 0.5):
        for epsilon in (rdp_epsilon(loss, delta), moments_epsilon(loss, delta)):
            assert 0 <= epsilon < math.inf
        assert rdp_epsilon(loss, delta) <= moments_epsilon(loss, delta) * (1 + 1e-9)


@pytest.mark.parametrize(
    "base",
    [
        Gaussian(1e-150),
        Gaussian(5.0),
        Gaussian(1e150),
        Laplace(1e-300, 1e300),
        Laplace(1e-300),
        Laplace(1e300, 1e-300),
        DiscreteLaplace(1e-3, 2**40),
        DiscreteGaussian(1e-3, 2**40),
        DiscreteGaussian(1e3, 2**40),
        PureDP(0),
        PureDP("1e400"),
        Exponential(1e-300),
        Exponential(1e5),
        from_pair([1e-300, 1.0], [1e-10, 1 - 1e-10]),
    ],
)
def test_absurd_values_never_lower_the_curve(base):
    """Where floats no longer resolve the exponents, the bound may only become larger."""
    orders = np.array([1 + 1e-9, 1.5, 10.0, 1e3, 1e6, 1e8, 1e12])
    for rate in (1.0, 1 - 1e-16, 1e-6, 1e-300):
        values = rdp(base.poisson(rate=rate), orders)
        assert not np.any(np.isnan(values))
        assert np.all(values[1:] >= values[:-1] * (1 - 1e-6))
        assert rdp_epsilon(base.poisson(rate=rate), 1e-5) >= 0
