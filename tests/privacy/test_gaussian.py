"""The Gaussian closed forms against mpmath, and the safe side of their inverses (S4, S5, S12)."""

from __future__ import annotations

import math
import random

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.errors import InvalidValue, NotApplicable
from discreet.privacy.theorems import (
    GAUSSIAN_DELTA_ERROR,
    gaussian_classical_epsilon,
    gaussian_classical_stddev,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
)
from discreet.privacy.theorems._gaussian import SMALLEST_POSITIVE, least_satisfying

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
