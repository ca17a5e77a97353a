"""The Renyi family and its conversions against integrals, brute force and each other (S4, S8)."""

from __future__ import annotations

import math

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.errors import InvalidValue
from discreet.privacy import theorems
from discreet.privacy.theorems import (
    approx_delta,
    bounded_range_delta,
    bounded_range_from_pure,
    gaussian_delta,
    gaussian_epsilon,
    gdp_composition,
    gdp_from_pure,
    gdp_to_approx,
    hockey_stick,
    laplace_delta,
    optimal_composition_delta,
    pure_delta,
    pure_from_bounded_range,
    randomized_response_delta,
    rdp_gaussian,
    rdp_laplace,
    rdp_pure,
    rdp_pure_simple,
    rdp_randomized_response,
    rdp_to_approx_mironov,
    rdp_to_approx_tight,
    rdp_to_delta_mironov,
    rdp_to_delta_tight,
    rdp_zcdp,
    renyi,
    zcdp_from_bounded_range,
    zcdp_from_gdp,
    zcdp_from_pure,
    zcdp_to_approx,
    zcdp_to_approx_tight,
)

EPSILONS = [1e-9, 1e-3, 0.1, 0.7, 2.0, 40.0, 1000.0]
ORDERS = [1.0 + 1e-9, 1.01, 1.5, 2.0, 7.3, 64.0, 4096.0]


def response_row(epsilon: float, categories: int, truth: int) -> list[float]:
    rest = 1 / (math.exp(epsilon) + categories - 1)
    return [math.exp(epsilon) * rest if i == truth else rest for i in range(categories)]


def two_point_pair(spread: float, loss: float) -> tuple[list[float], list[float]]:
    """The pair whose losses are exactly ``loss`` and ``loss - spread``."""
    q = math.expm1(spread - loss) / math.expm1(spread)
    return [q * math.exp(loss), (1 - q) * math.exp(loss - spread)], [q, 1 - q]


def exact_laplace(epsilon: float, order: float) -> float:
    """Mironov's formula as printed, with digits to spare."""
    with mpmath.workdps(60):
        e, a = mpmath.mpf(epsilon), mpmath.mpf(order)
        first = a / (2 * a - 1) * mpmath.exp((a - 1) * e)
        second = (a - 1) / (2 * a - 1) * mpmath.exp(-a * e)
        return float(mpmath.log(first + second) / (a - 1))


def exact_response(epsilon: float, order: float, categories: int) -> float:
    with mpmath.workdps(60):
        e, a = mpmath.mpf(epsilon), mpmath.mpf(order)
        top = mpmath.exp(a * e) + mpmath.exp((1 - a) * e) + categories - 2
        return float(mpmath.log(top / (mpmath.exp(e) + categories - 1)) / (a - 1))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_curves_keep_their_relative_accuracy(epsilon: float, order: float) -> None:
    assert rdp_laplace(epsilon, order=order) == pytest.approx(
        exact_laplace(epsilon, order), rel=1e-11
    )
    for categories in (2, 10):
        assert rdp_randomized_response(
            epsilon, order=order, categories=categories
        ) == pytest.approx(exact_response(epsilon, order, categories), rel=1e-11)


@pytest.mark.parametrize(("epsilon", "order"), [(0.5, 2.0), (1.0, 3.7), (2.0, 1.2)])
def test_laplace_formula_is_the_integral(epsilon: float, order: float) -> None:
    def integrand(x: mpmath.mpf) -> mpmath.mpf:
        return mpmath.exp(-order * abs(x) - (1 - order) * abs(x - epsilon)) / 2

    total = mpmath.quad(integrand, [-mpmath.inf, 0, epsilon, mpmath.inf])
    expected = float(mpmath.log(total)) / (order - 1)
    assert rdp_laplace(epsilon, order=order) == pytest.approx(expected, rel=1e-10)


@given(epsilon=st.floats(0.01, 5.0), order=st.floats(1.0, 50.0), categories=st.integers(2, 12))
def test_response_formula_is_the_finite_divergence(
    epsilon: float, order: float, categories: int
) -> None:
    p, q = response_row(epsilon, categories, 0), response_row(epsilon, categories, 1)
    closed = rdp_randomized_response(epsilon, order=order, categories=categories)
    assert closed == pytest.approx(renyi(p, q, order=order), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("curve", [rdp_laplace, rdp_randomized_response, rdp_pure, rdp_pure_simple])
@given(epsilon=st.floats(0.0, 30.0), order=st.floats(1.0, 1000.0))
def test_curves_grow_with_order_up_to_epsilon(curve, epsilon: float, order: float) -> None:
    here = curve(epsilon, order=order)
    assert 0.0 <= here <= epsilon * (1 + 1e-12)
    assert here <= curve(epsilon, order=2 * order) * (1 + 1e-12)
    assert curve(epsilon, order=math.inf) == epsilon


@given(
    epsilon=st.floats(0.01, 4.0),
    order=st.floats(1.01, 40.0),
    tilt=st.lists(st.floats(-1.0, 1.0), min_size=2, max_size=6),
)
def test_pure_bound_dominates_every_pure_pair(
    epsilon: float, order: float, tilt: list[float]
) -> None:
    """q uniform, p proportional to e^(eps t / 2): an eps-DP pair, whatever the tilts."""
    weights = [math.exp(epsilon * t / 2) for t in tilt]
    p = [w / math.fsum(weights) for w in weights]
    q = [1 / len(p)] * len(p)
    assert renyi(p, q, order=order) <= rdp_pure(epsilon, order=order) * (1 + 1e-9) + 1e-12
    assert rdp_pure(epsilon, order=order) <= rdp_pure_simple(epsilon, order=order) * (1 + 1e-12)


@given(epsilon=st.floats(1e-6, 50.0))
def test_zcdp_from_pure_is_the_supremum_of_the_curve(epsilon: float) -> None:
    rho = zcdp_from_pure(epsilon)
    ratios = [
        rdp_pure(epsilon, order=1 + 10.0**power) / (1 + 10.0**power)
        for power in [-9, -6, -3, -2, -1, 0, 0.5, 1, 2, 3]
    ]
    assert all(ratio <= rho * (1 + 1e-12) for ratio in ratios)
    assert ratios[0] == pytest.approx(rho, rel=1e-6)
    assert rho <= epsilon * epsilon / 2 * (1 + 1e-15)


def test_half_of_the_tight_rho_would_be_refuted() -> None:
    assert rdp_pure(1.0, order=1.001) > 1.001 * 0.5 * zcdp_from_pure(1.0)


@given(spread=st.floats(0.01, 6.0), place=st.floats(0.001, 0.999), order=st.floats(1.01, 50.0))
def test_bounded_range_pairs_obey_their_delta_and_rho(
    spread: float, place: float, order: float
) -> None:
    """The two-point pair with losses t and t - spread, for t anywhere in (0, spread)."""
    pair = two_point_pair(spread, place * spread)
    assert renyi(*pair, order=order) <= order * zcdp_from_bounded_range(spread) * (1 + 1e-9) + 1e-12
    for epsilon in (0.0, 0.3 * spread, 0.9 * spread):
        bound = bounded_range_delta(spread, epsilon)
        assert hockey_stick(*pair, epsilon) <= bound + 1e-12
        assert bound <= pure_delta(pure_from_bounded_range(spread), epsilon) + 1e-15


@pytest.mark.parametrize("epsilon", [0.0, 0.2, 0.9])
def test_bounded_range_delta_is_attained(epsilon: float) -> None:
    best = 0.0
    for step in range(1, 2000):
        best = max(best, hockey_stick(*two_point_pair(1.0, step / 2000), epsilon))
    assert bounded_range_delta(1.0, epsilon) == pytest.approx(best, rel=1e-4)
    assert bounded_range_delta(1.0, epsilon) >= best * (1 - 1e-12)
    assert bounded_range_delta(1.0, 1.0) == 0.0
    assert bounded_range_delta(0.0, 0.0) == 0.0
    assert bounded_range_from_pure(1.0) == 2.0


@given(mu=st.floats(0.01, 10.0), order=st.floats(1.01, 200.0), delta=st.floats(1e-12, 0.5))
def test_renyi_conversions_are_sound_and_ordered(mu: float, order: float, delta: float) -> None:
    point = rdp_gaussian(mu, order=order)
    mironov = rdp_to_approx_mironov(point, order=order, delta=delta)
    tight = rdp_to_approx_tight(point, order=order, delta=delta)
    assert gaussian_delta(mu, tight) <= delta * (1 + 1e-9)
    assert 0.0 <= tight <= mironov
    for epsilon in (0.1, mironov, tight + 0.5):
        loose = rdp_to_delta_mironov(point, order=order, epsilon=epsilon)
        sharp = rdp_to_delta_tight(point, order=order, epsilon=epsilon)
        assert gaussian_delta(mu, epsilon) <= sharp * (1 + 1e-9)
        assert sharp <= loose * (1 + 1e-9)


@given(rdp=st.floats(0.0, 20.0), order=st.floats(1.01, 100.0), delta=st.floats(1e-12, 0.5))
def test_renyi_conversions_are_inverse(rdp: float, order: float, delta: float) -> None:
    epsilon = rdp_to_approx_mironov(rdp, order=order, delta=delta)
    assert rdp_to_delta_mironov(rdp, order=order, epsilon=epsilon) == pytest.approx(delta, rel=1e-8)
    epsilon = rdp_to_approx_tight(rdp, order=order, delta=delta)
    if epsilon > 0.0:
        back = rdp_to_delta_tight(rdp, order=order, epsilon=epsilon)
        assert back == pytest.approx(delta, rel=1e-8)


def test_infinite_order_is_pure() -> None:
    assert rdp_to_approx_mironov(0.7, order=math.inf, delta=1e-5) == 0.7
    assert rdp_to_approx_tight(0.7, order=math.inf, delta=1e-5) == 0.7
    for conversion in (rdp_to_delta_mironov, rdp_to_delta_tight):
        assert conversion(0.7, order=math.inf, epsilon=0.7) == 0.0
        assert conversion(0.7, order=math.inf, epsilon=0.8) == 0.0
        assert conversion(0.7, order=math.inf, epsilon=0.6) == 1.0


@given(rho=st.floats(1e-6, 100.0), delta=st.floats(1e-15, 0.9))
def test_zcdp_conversions_are_sound_and_ordered(rho: float, delta: float) -> None:
    simple, tight = zcdp_to_approx(rho, delta), zcdp_to_approx_tight(rho, delta)
    assert tight <= simple
    assert gaussian_delta(math.sqrt(2 * rho), tight) <= delta * (1 + 1e-9)


@pytest.mark.parametrize(("rho", "delta"), [(1e-4, 1e-5), (0.125, 1e-5), (3.0, 1e-10), (50.0, 0.1)])
def test_zcdp_tight_finds_the_minimum(rho: float, delta: float) -> None:
    scan = min(
        rdp_to_approx_tight(rho * (1 + 10 ** (p / 500)), order=1 + 10 ** (p / 500), delta=delta)
        for p in range(-1500, 2500)
    )
    assert zcdp_to_approx_tight(rho, delta) == pytest.approx(scan, rel=1e-4)
    assert zcdp_to_approx_tight(rho, delta) <= scan


@pytest.mark.parametrize("rho", [0.0, 1e-300, 1e-30, 1e30, 1e150])
def test_zcdp_tight_survives_extremes(rho: float) -> None:
    for delta in (1e-300, 1e-5, 1 - 1e-12):
        result = zcdp_to_approx_tight(rho, delta)
        assert 0.0 <= result <= zcdp_to_approx(rho, delta) * (1.0 + 1e-14)  # rounded up


@given(epsilon=st.floats(0.0, 100.0), at=st.floats(0.0, 1.0))
def test_gdp_from_pure_covers_the_trade_off_of_pure(epsilon: float, at: float) -> None:
    mu = gdp_from_pure(epsilon)
    assert pure_delta(epsilon, at * epsilon) <= gaussian_delta(mu, at * epsilon) * (1 + 1e-9)


@pytest.mark.parametrize("epsilon", [1e-12, 1e-3, 1.0, 1.999, 2.0, 10.0, 100.0, 700.0])
def test_gdp_from_pure_against_mpmath(epsilon: float) -> None:
    mu = gdp_from_pure(epsilon)
    with mpmath.workdps(80):
        tail = mpmath.erfc(mpmath.mpf(mu) / (2 * mpmath.sqrt(2))) / 2
        implied = mpmath.log((1 - tail) / tail)
    assert float(implied) == pytest.approx(epsilon, rel=1e-12)


def test_gdp_conversions_agree_with_the_gaussian() -> None:
    assert gdp_to_approx(0.5, 1e-5) == gaussian_epsilon(0.5, 1e-5)
    assert zcdp_from_gdp(0.5) == rdp_zcdp(zcdp_from_gdp(0.5), order=1)
    assert rdp_zcdp(zcdp_from_gdp(0.3), order=5) == pytest.approx(rdp_gaussian(0.3, order=5))
    assert gdp_composition(*[0.1] * 100) == pytest.approx(1.0)
    assert gdp_composition() == 0.0


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 0.9, 1.0, 1.5])
def test_laplace_delta_is_the_integral(epsilon: float) -> None:
    pure = 1.0

    def integrand(x: mpmath.mpf) -> mpmath.mpf:
        p, q = mpmath.exp(-abs(x)) / 2, mpmath.exp(-abs(x - pure)) / 2
        return max(mpmath.mpf(0), p - mpmath.exp(epsilon) * q)

    kink = (pure - epsilon) / 2
    cuts = sorted({-mpmath.inf, 0.0, kink, pure}) + [mpmath.inf]
    assert laplace_delta(pure, epsilon) == pytest.approx(
        float(mpmath.quad(integrand, cuts)), abs=1e-10
    )


@given(pure=st.floats(0.0, 5.0), epsilon=st.floats(0.0, 6.0), categories=st.integers(2, 9))
def test_response_delta_is_the_hockey_stick(pure: float, epsilon: float, categories: int) -> None:
    p, q = response_row(pure, categories, 0), response_row(pure, categories, 1)
    closed = randomized_response_delta(pure, epsilon, categories=categories)
    assert closed == pytest.approx(hockey_stick(p, q, epsilon), abs=1e-14)


@given(known=st.floats(0.0, 5.0), delta=st.floats(0.0, 1.0), epsilon=st.floats(0.0, 6.0))
def test_approx_delta_is_optimal_composition_of_one(
    known: float, delta: float, epsilon: float
) -> None:
    once = approx_delta(known, delta, epsilon=epsilon)
    composed = optimal_composition_delta(known, delta, k=1, epsilon=epsilon)
    assert once == pytest.approx(composed, rel=1e-12, abs=1e-300)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: rdp_gaussian(1.0, order=math.inf), "order"),
        (lambda: rdp_gaussian(1.0, order=0.9), "order"),
        (lambda: rdp_laplace(-1.0, order=2), "epsilon"),
        (lambda: rdp_laplace(1.0, order=math.nan), "order"),
        (lambda: rdp_randomized_response(1.0, order=2, categories=1), "categories"),
        (lambda: rdp_to_approx_mironov(0.1, order=1, delta=0.1), "order"),
        (lambda: rdp_to_approx_tight(-0.1, order=2, delta=0.1), "rdp"),
        (lambda: rdp_to_approx_tight(0.1, order=2, delta=0.0), "delta"),
        (lambda: rdp_to_delta_tight(0.1, order=2, epsilon=-1.0), "epsilon"),
        (lambda: zcdp_to_approx(-0.1, 0.1), "rho"),
        (lambda: zcdp_to_approx_tight(0.1, 1.0), "delta"),
        (lambda: gdp_from_pure(math.inf), "epsilon"),
        (lambda: gdp_composition(0.1, -0.1), "mu"),
        (lambda: laplace_delta(1.0, "0"), "epsilon"),
        (lambda: bounded_range_delta(-1.0, 0.0), "spread"),
    ],
)
def test_bad_input_names_the_argument(call, name) -> None:
    with pytest.raises(InvalidValue) as caught:
        call()
    assert caught.value.argument == name


def test_no_conversion_from_approx_to_renyi_is_offered() -> None:
    offered = set(theorems.__all__)
    assert not {name for name in offered if name.endswith("_from_approx")}
    assert "rdp_approx" not in offered
