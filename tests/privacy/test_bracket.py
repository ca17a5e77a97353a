"""S9: the bracket contains what exact arithmetic and closed forms say, at any number of steps."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import special

from discreet.privacy import (
    ApproxDP,
    DiscreteLaplace,
    Gaussian,
    Laplace,
    PureDP,
    RandomizedResponse,
)


def binomial_delta(epsilon_step: float, steps: int, epsilon: float) -> float:
    """delta of ``steps`` randomized responses, summed term by term."""
    k = np.arange(steps + 1)
    loss = (2 * k - steps) * epsilon_step
    log_mass = (
        special.gammaln(steps + 1)
        - special.gammaln(k + 1)
        - special.gammaln(steps - k + 1)
        - k * math.log1p(math.exp(-epsilon_step))
        - (steps - k) * math.log1p(math.exp(epsilon_step))
    )
    above = loss > epsilon
    return float(-np.sum(np.exp(log_mass[above]) * np.expm1(epsilon - loss[above])))


@pytest.mark.parametrize(
    ("epsilon_step", "steps", "delta"),
    [
        (math.log(3), 100, 1e-5),
        (1.0, 10, 1e-15),
        (1.0, 10, 1e-3),
        (0.01, 1000, 1e-6),
        (3.0, 2, 0.3),
    ],
)
def test_randomized_response_is_a_binomial_sum(epsilon_step, steps, delta):
    bounds = (steps * RandomizedResponse(epsilon_step)).epsilon_bounds(delta=delta)
    assert bounds.tolerance_met
    assert bounds.width <= 1e-3 * bounds.upper
    assert binomial_delta(epsilon_step, steps, bounds.upper) <= delta
    assert binomial_delta(epsilon_step, steps, bounds.lower) >= delta * (1 - 1e-9)


def test_the_peers_randomized_response_defect_is_not_ours():
    # Peers' defect 1: a count that is ignored gives 1.0987 here.
    assert (100 * RandomizedResponse.two_coin()).epsilon(delta=1e-5) == pytest.approx(
        90.78, abs=0.01
    )


def test_one_laplace_has_its_closed_form():
    bounds = Laplace(scale=1.0).epsilon_bounds(delta=1e-3)
    assert bounds.lower <= 1 + 2 * math.log1p(-1e-3) <= bounds.upper


@pytest.mark.parametrize("steps", [1, 10, 10**3, 10**5, 10**7])
def test_the_bracket_is_narrow_at_any_number_of_steps(steps):
    loss = steps * Gaussian(2.0 * math.sqrt(steps)).poisson(rate=0.5)
    bounds = loss.epsilon_bounds(delta=1e-6)
    assert bounds.tolerance_met
    assert 0 < bounds.lower <= bounds.upper


def test_many_small_steps_approach_the_gaussian_limit():
    # The central limit of S9: mu = rate * sqrt(steps * (exp(1 / sigma^2) - 1)).
    steps, rate, sigma = 10**6, 1e-3, 10.0
    mu = rate * math.sqrt(steps * math.expm1(sigma**-2))
    bounds = (steps * Gaussian(sigma).poisson(rate=rate)).epsilon_bounds(delta=1e-5)
    limit = Gaussian(1 / mu).epsilon(delta=1e-5)
    assert bounds.upper == pytest.approx(limit, rel=0.01)


def test_pure_claims_end_at_their_sum():
    assert (10 * PureDP(0.1)).epsilon_bounds(delta=0).upper == 1.0
    assert (10 * PureDP(0.1)).epsilon(delta=1e-300) <= 1.0


@pytest.mark.parametrize("excess", [1e-15, 1e-13, 1e-12, 1e-9, 1e-6, 1e-3])
@pytest.mark.parametrize("epsilon", ["1/2", "2"])
def test_delta_just_above_what_is_lost_outright(epsilon: str, excess: float) -> None:
    """Sums that cancel are not read as epsilon 0: nearly all of delta pays for infinite losses."""
    loss = ApproxDP(epsilon, "1e-6") + DiscreteLaplace(480.0, 240)
    pure = float(Fraction(epsilon)) + 0.5
    # The largest finite loss has a mass above 1/4: so much of it delta takes off at most.
    assert loss.epsilon(delta=1e-6 * (1 + excess)) >= pure - 4 * excess * 1e-6 - 1e-11
