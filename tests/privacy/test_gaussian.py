"""The Gaussian closed forms against mpmath, and the safe side of their inverses (S4, S5, S12)."""

from __future__ import annotations

import math
import random

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf

from discreet.errors import InvalidValue, NotApplicable
from discreet.privacy import (
    GDP,
    DiscreteGaussian,
    DiscreteLaplace,
    Gaussian,
)
from discreet.privacy._renyi import (
    rdp,
)
from discreet.privacy.theorems import (
    GAUSSIAN_DELTA_ERROR,
    discrete_gaussian_mu,
    gaussian_classical_epsilon,
    gaussian_classical_stddev,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
)
from discreet.privacy.theorems._gaussian import SMALLEST_POSITIVE, least_satisfying
from mechanisms.exact_pairs import delta_of, product, shifted_gaussian
from oracles import exact_compositions as exact
from oracles import gaussian_mixtures as mixtures
from oracles.brackets import BRACKET_DELTAS, EPSILONS, contains, contains_delta
from oracles.renyi_curves import RENYI_ORDERS, finite_divergence, near

MUS = [10.0**power for power in range(-3, 4)] + [0.2499, 0.25, 0.2501, 3.7]


DELTAS = [1e-300, 1e-100, 1e-15, 1e-10, 1e-5, 1e-2, 0.1, 0.5, 0.99]


def exact_delta(mu: float, epsilon: float, *, digits: int = 400) -> mpmath.mpf:
    """Balle and Wang's formula as printed, with digits to spare."""
    with mpmath.workdps(digits):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)

        def tail(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.erfc(x / mpmath.sqrt(2)) / 2

        return tail(e / m - m / 2) - mpmath.exp(e) * tail(e / m + m / 2)


def naive_delta(mu: float, epsilon: float) -> float:
    """The formula as everyone writes it first: two tails and a subtraction."""
    first = math.erfc((epsilon / mu - mu / 2) / math.sqrt(2)) / 2
    return first - math.exp(epsilon) * math.erfc((epsilon / mu + mu / 2) / math.sqrt(2)) / 2


def relative_error(value: float, exact: mpmath.mpf) -> float:
    return abs(float(mpmath.mpf(value) / exact - 1))


def sample_points(count: int) -> list[tuple[float, float]]:
    generator = random.Random(20)
    points = []
    while len(points) < count:
        mu = 10.0 ** generator.uniform(-6, 3)
        points.append((mu, max(0.0, mu * generator.uniform(-5, 36.5) + mu * mu / 2)))
    return points


def test_delta_keeps_its_relative_accuracy_everywhere() -> None:
    worst = max(
        relative_error(gaussian_delta(*point), exact_delta(*point, digits=60))
        for point in sample_points(400)
    )
    assert worst < GAUSSIAN_DELTA_ERROR


def test_the_accuracy_test_rejects_the_naive_formula() -> None:
    for mu, epsilon in [(1e-3, 5e-3), (1e-6, 1e-5)]:
        error = relative_error(naive_delta(mu, epsilon), exact_delta(mu, epsilon))
        assert error > GAUSSIAN_DELTA_ERROR


@pytest.mark.parametrize("mu", MUS)
def test_delta_at_epsilon_zero_is_the_total_variation(mu: float) -> None:
    exact = mpmath.erf(mpmath.mpf(mu) / (2 * mpmath.sqrt(2)))
    assert relative_error(gaussian_delta(mu, 0.0), exact) < GAUSSIAN_DELTA_ERROR


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("mu", MUS)
def test_epsilon_truly_satisfies_delta_and_is_hardly_larger_than_needed(
    mu: float, delta: float
) -> None:
    epsilon = gaussian_epsilon(mu, delta)
    assert exact_delta(mu, epsilon) <= delta
    if epsilon > 0.0:
        assert exact_delta(mu, epsilon * (1 - 1e-9)) > delta * (1 - 1e-9)
        assert exact_delta(mu, epsilon) >= delta * (1 - 1e-8)


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("epsilon", [0.0, 1e-4, 0.1, 1.0, 10.0, 1000.0])
def test_mu_truly_satisfies_delta_and_is_hardly_smaller_than_needed(
    epsilon: float, delta: float
) -> None:
    mu = gaussian_mu(epsilon, delta)
    assert exact_delta(mu, epsilon) <= delta
    assert exact_delta(mu * (1 + 1e-9), epsilon) > delta


@given(
    mu=st.floats(1e-6, 1e4),
    delta=st.floats(1e-300, 0.999),
)
def test_inverses_stay_on_the_safe_side(mu: float, delta: float) -> None:
    epsilon = gaussian_epsilon(mu, delta)
    assert gaussian_delta(mu, epsilon) <= delta
    assert gaussian_delta(gaussian_mu(epsilon, delta), epsilon) <= delta
    assert gaussian_mu(epsilon, delta) >= mu * (1 - 1e-9)


@given(
    mu=st.floats(1e-4, 100.0),
    more=st.floats(1.001, 3.0),
    epsilon=st.floats(0.0, 50.0),
)
def test_delta_grows_with_mu_and_falls_with_epsilon(mu: float, more: float, epsilon: float) -> None:
    here = gaussian_delta(mu, epsilon)
    # Near 1 neighbouring values round to the same float.
    slack = 1 + 2 * GAUSSIAN_DELTA_ERROR
    assert 0.0 < here <= 1.0
    assert gaussian_delta(mu * more, epsilon) * slack >= here
    assert gaussian_delta(mu, epsilon * more) <= here * slack


def test_delta_underflows_to_the_smallest_positive_float_never_to_zero() -> None:
    for mu, epsilon in [(1.0, 100.0), (1e-3, 1000.0), (1e-300, 1.0), (1e-5, 1e5), (0.3, 1e20)]:
        assert gaussian_delta(mu, epsilon) == SMALLEST_POSITIVE
    assert gaussian_delta(0.0, 0.0) == 0.0
    assert gaussian_epsilon(0.0, 1e-5) == 0.0
    assert gaussian_delta(1e100, 1.0) == 1.0


@pytest.mark.parametrize("delta", [5e-324, 1e-310])
def test_the_inverses_survive_subnormal_deltas(delta: float) -> None:
    epsilon = gaussian_epsilon(1.0, delta)
    assert 37.0 < epsilon < 40.0
    assert exact_delta(1.0, epsilon) <= delta


@settings(max_examples=200)
@given(epsilon=st.floats(1e-6, 0.999999), delta=st.floats(1e-15, 0.999))
def test_classical_is_sound_below_one_and_never_beats_the_analytic(
    epsilon: float, delta: float
) -> None:
    stddev = gaussian_classical_stddev(epsilon, delta)
    assert gaussian_delta(1.0 / stddev, epsilon) <= delta
    assert 1.0 / stddev <= gaussian_mu(epsilon, delta) * (1 + 1e-12)


def test_the_classical_formula_is_false_for_large_epsilon() -> None:
    epsilon, delta = 10.0, 1e-5
    stddev = math.sqrt(2.0 * math.log(1.25 / delta)) / epsilon
    assert gaussian_delta(1.0 / stddev, epsilon) > delta


def test_classical_inverse_and_sensitivity() -> None:
    stddev = gaussian_classical_stddev(0.5, 1e-5, sensitivity=3.0)
    assert stddev == pytest.approx(3.0 * gaussian_classical_stddev(0.5, 1e-5), rel=1e-15)
    assert gaussian_classical_epsilon(stddev, 1e-5, sensitivity=3.0) == pytest.approx(0.5)


def test_classical_refuses_what_is_not_proved() -> None:
    with pytest.raises(NotApplicable, match="epsilon < 1"):
        gaussian_classical_stddev(1.0, 1e-5)
    with pytest.raises(NotApplicable, match=r"1\.21"):
        gaussian_classical_epsilon(4.0, 1e-5)


def test_search_returns_a_checked_point() -> None:
    seen: dict[float, bool] = {}

    def holds(x: float) -> bool:
        seen[x] = x >= 1e-200
        return seen[x]

    found = least_satisfying(holds, low=0.0, high=1.0)
    assert seen[found]
    assert found == pytest.approx(1e-200, rel=1e-12)


@pytest.mark.parametrize(
    ("function", "arguments", "name"),
    [
        (gaussian_delta, (-1.0, 1.0), "mu"),
        (gaussian_delta, (1e101, 1.0), "mu"),
        (gaussian_delta, (1.0, -1e-9), "epsilon"),
        (gaussian_delta, (1.0, math.inf), "epsilon"),
        (gaussian_delta, (math.nan, 1.0), "mu"),
        (gaussian_epsilon, (1.0, 0.0), "delta"),
        (gaussian_epsilon, (1.0, 1.0), "delta"),
        (gaussian_epsilon, ("1", 0.1), "mu"),
        (gaussian_mu, (1.0, 0.0), "delta"),
        (gaussian_mu, (-1.0, 0.1), "epsilon"),
        (gaussian_classical_stddev, (0.0, 0.1), "epsilon"),
        (gaussian_classical_stddev, (0.5, True), "delta"),
        (gaussian_classical_epsilon, (0.0, 0.1), "stddev"),
    ],
)
def test_bad_input_names_the_argument(function, arguments, name) -> None:
    with pytest.raises(InvalidValue) as caught:
        function(*arguments)
    assert caught.value.argument == name


@pytest.mark.parametrize("delta", BRACKET_DELTAS)
@pytest.mark.parametrize("noise", [0.2, 1.0, 50.0])
def test_gaussians_have_their_closed_form(noise, delta):
    contains(Gaussian(noise), lambda e: mixtures.gaussian_delta(1 / mpf(noise), e), delta=delta)


@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.2])
def test_composed_gaussians_are_one_gaussian(delta):
    plan = 7 * Gaussian(2.0) + 3 * GDP(0.25)
    mu = mp.sqrt(mpf(7) / 4 + mpf(3) / 16)
    contains(plan, lambda e: mixtures.gaussian_delta(mu, e), delta=delta)


def test_a_replaced_record_moves_a_gaussian_twice_as_far():
    contains(
        Gaussian(3.0, relation="replace"),
        lambda e: mixtures.gaussian_delta(mpf(2) / 3, e),
        delta=1e-6,
    )


@pytest.mark.parametrize("delta", [1e-12, 1e-6, 1e-2, 0.3])
@pytest.mark.parametrize(("stddev", "shift", "count"), [(0.7, 1, 3), (2.0, 1, 2), (3.0, 4, 1)])
def test_discrete_gaussian(stddev, shift, count, delta):
    def weight(x: int) -> mpf:
        return mp.exp(-(mpf(x) ** 2) / (2 * mpf(stddev) ** 2))

    reach = math.ceil(14 * stddev)
    contains(
        count * DiscreteGaussian(stddev, shift),
        lambda e: exact.integer_noise_delta(weight, shift, count, e, reach=reach),
        delta=delta,
    )


@pytest.mark.parametrize("epsilon", [0.01, 0.03, 0.1])
def test_a_truncated_normaliser_does_not_lift_the_lower_bound(epsilon):
    # Dividing by a sum without its tails would make every mass a little too large.
    def weight(x: int) -> mpf:
        return mp.exp(-(mpf(x) ** 2) / 800)

    contains_delta(
        DiscreteGaussian(20.0),
        lambda e: exact.integer_noise_delta(weight, 1, 1, e, reach=300),
        epsilon=epsilon,
    )


def test_a_large_discrete_gaussian_is_close_to_the_continuous_one():
    for stddev in (1.9e4, 2.1e4, 1e6):
        bounds = (4 * DiscreteGaussian(stddev, 5000)).epsilon_bounds(delta=1e-6)
        smooth = Gaussian(stddev / 5000).group(1)
        target = (4 * smooth).epsilon(delta=1e-6)
        assert bounds.lower <= target * (1 + 1e-6)
        assert bounds.upper >= target * (1 - 1e-6)
        assert bounds.width <= 1e-3 * bounds.upper


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
    assert np.all(rdp(loss, RENYI_ORDERS) <= RENYI_ORDERS * (2 / 0.7) ** 2 / 2 * (1 + 1e-15))
    huge = DiscreteGaussian(2.0**40, 2**40)
    assert np.allclose(rdp(huge, RENYI_ORDERS), RENYI_ORDERS / 2, rtol=1e-15)
    sampled = rdp(huge.poisson(rate=0.01), RENYI_ORDERS)
    assert np.allclose(sampled, rdp(Gaussian(1.0).poisson(rate=0.01), RENYI_ORDERS), rtol=1e-12)


@pytest.mark.parametrize("stddev", [2.0, 3.0, 5.0, 12.0])
@pytest.mark.parametrize("split", [(1, 0), (2, 0), (1, 1), (2, -1), (3, 4)])
def test_the_theorem_dominates_every_split(stddev: float, split: tuple[int, int]) -> None:
    shift = math.hypot(*split)
    mu = discrete_gaussian_mu(stddev, shift, coordinates=2)
    assert mu is not None
    reach = math.ceil(9 * stddev) + 5
    centre = shifted_gaussian(stddev, 0, reach)
    p = product(centre, centre)
    moved = [shifted_gaussian(stddev, step, reach) for step in split]
    q = product(moved[0], moved[1])
    for epsilon in [*EPSILONS, 3.0]:
        assert delta_of(p, q, epsilon) <= gaussian_delta(mu, epsilon) * (1 + 1e-9) + 1e-13


def test_the_theorem_is_not_vacuous() -> None:
    # The continuous mu itself is too small for discrete noise of one step: it is refuted.
    p, q = shifted_gaussian(1.0, 0, 60), shifted_gaussian(1.0, 1, 60)
    assert any(delta_of(p, q, eps) > gaussian_delta(1.0, eps) + 1e-3 for eps in EPSILONS)
    # The price falls with the square of the noise in steps.
    for stddev, price in ((5.0, 0.06), (20.0, 0.004), (1000.0, 1e-5), (1e12, 1e-13)):
        mu = discrete_gaussian_mu(stddev, 1.0, coordinates=100)
        assert mu is not None
        assert 1.0 < mu * stddev < 1.0 + price
    assert discrete_gaussian_mu(3.0, 1000.0, coordinates=1) is None
