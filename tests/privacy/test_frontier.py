"""The tables of FRONTIER.md that no test of a subject has: computed there by other programs."""

import math

import numpy as np
import pytest

from discreet.privacy import ZCDP, Gaussian, Strategy, from_pair
from discreet.privacy.theorems import prefix_errors, square_root_coefficients

# --- section 1: random allocation -----------------------------------------------------------


def test_several_participations_cost_what_their_blocks_cost():
    bounds = Gaussian(1.0).allocate(batches=100, participations=4).epsilon_bounds(delta=1e-6)
    assert bounds.upper == pytest.approx(2.8352, rel=1e-3)
    assert (
        bounds.upper
        < (100 * Gaussian(1.0).poisson(rate=0.04)).epsilon(delta=1e-6)
        == (pytest.approx(3.3260, abs=1e-3))
    )


@pytest.mark.slow
def test_ten_thousand_batches():
    bounds = (10 * Gaussian(1.0).allocate(batches=10_000)).epsilon_bounds(delta=1e-5)
    assert bounds.width <= 2e-3 * bounds.upper
    assert bounds.upper <= 0.1312
    poisson = (100_000 * Gaussian(1.0).poisson(rate=1e-4)).epsilon(delta=1e-5)
    assert bounds.upper < poisson == pytest.approx(0.1319, abs=1e-4)


# --- section 2: correlated noise ------------------------------------------------------------


def total_error(strategy, steps, times, apart):
    reach = strategy.sensitivity(steps=steps, separation=apart, participations=times)
    return reach * strategy.error(steps=steps)


@pytest.mark.parametrize(
    ("steps", "times", "apart", "independent", "whole", "inverse", "bands"),
    [
        (1024, 8, 128, 64.03, 13.02, 10.613, 64),
        (2048, 16, 128, 128.03, 25.00, 18.618, 128),
        pytest.param(4096, 16, 256, 181.0, 26.08, 19.505, 256, marks=pytest.mark.slow),
    ],
)
def test_errors_with_several_participations(
    steps, times, apart, independent, whole, inverse, bands
):
    shape = steps, times, apart
    assert total_error(Strategy.independent(), *shape) == pytest.approx(independent, abs=0.05)
    assert total_error(Strategy.square_root(steps), *shape) == pytest.approx(whole, abs=6e-3)
    found = total_error(Strategy.inverse_square_root(bands), *shape)
    assert found == pytest.approx(inverse, abs=6e-4)


@pytest.mark.slow
def test_errors_of_ten_thousand_steps():
    for steps, largest, mean in ((5000, 3.7774, 3.6148), (10_000, 3.9980, 3.8356)):
        c = square_root_coefficients(steps)
        errors = prefix_errors(c / c[0], steps=steps) / c[0]
        assert errors.max() == pytest.approx(largest, abs=6e-5)
        assert math.sqrt(np.mean(errors**2)) == pytest.approx(mean, abs=6e-5)
    for bands, known in ((4, 39.8), (16, 21.1), (64, 11.6)):
        one = Strategy.inverse_square_root(bands)
        found = one.sensitivity(steps=10_000, participations=1) * one.errors(steps=10_000).max()
        assert found == pytest.approx(known, abs=0.05)
    assert total_error(Strategy.independent(), 10_000, 10, 1000) == pytest.approx(223.6, abs=0.05)


def test_the_rho_of_a_published_keyboard_model():
    """rho .81 at delta 1e-10 is published as epsilon 8.9; the exact Gaussian costs less."""
    assert ZCDP(0.81).epsilon(delta=1e-10) == pytest.approx(8.922, abs=6e-4)
    assert Gaussian(1 / math.sqrt(1.62)).epsilon(delta=1e-10) == pytest.approx(8.549, abs=6e-4)


# --- sections 6 and 7: pairs of unknown order, large groups -----------------------------------


def test_a_pair_that_turns_around_is_covered():
    p, q = (0.01812071, 0.16188536, 0.81999393), (0.66319185, 0.00036058, 0.33644757)
    bounds = (2 * from_pair(p, q)).epsilon_bounds(delta=0.044534)
    assert bounds.lower == pytest.approx(7.0933, abs=6e-5)  # the same order twice
    assert bounds.upper >= 9.1711  # one release in each order
    assert bounds.upper == pytest.approx(9.3173, abs=6e-5)


@pytest.mark.slow
def test_a_group_of_two_thousand():
    loss = Gaussian(50).poisson(rate=0.5).group(2000)
    bounds = loss.epsilon_bounds(delta=1e-5)
    assert bounds.lower <= 294.2495
    assert bounds.upper >= 294.2485
    assert bounds.width <= 1e-3 * bounds.upper


# --- section 8: risk, selection -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "rates", "advantage"),
    [
        (10_000 * Gaussian(0.5).poisson(rate=0.002), (0.1606, 0.35104, 0.47845), 0.44140),
        (1000 * Gaussian(1.0).poisson(rate=0.01), (0.02914, 0.11100, 0.19420), 0.16102),
    ],
)
def test_the_power_of_attacks_lies_just_above_its_lower_bound(loss, rates, advantage):
    """The rates are the least of lines, e^eps f + delta(eps), by dp-accounting (grid 1e-4).

    riskcal 1.5.1 reads 0.15719 off the same grid for the first of them, below what is certified
    here from below; with grid 1e-3 it reads 0.16061.
    """
    assert loss.advantage() == pytest.approx(advantage, rel=1e-4)
    for rate, known in zip((0.01, 0.05, 0.1), rates, strict=True):
        found = loss.tradeoff(rate)
        assert found == pytest.approx(known, rel=1e-3)
        epsilons = np.linspace(0.5, 2.5, 9)
        lines = [math.exp(e) * rate + loss.delta_bounds(epsilon=e).upper for e in epsilons]
        assert found <= min(lines) * (1 + 5e-4)


@pytest.mark.parametrize(
    ("mean", "shape", "known"),
    [(10, 0, 3.8506), (10, 0.5, 4.1586), (10, 1, 4.4312), (100, 1, 5.5938)],
)
def test_the_best_of_several_trainings(mean, shape, known):
    runs = 1000 * Gaussian(1.0).poisson(rate=0.01)
    assert runs.best_of(mean, shape).epsilon(delta=1e-6) == pytest.approx(known, abs=6e-4)


def test_a_poisson_number_of_trainings_costs_less_by_a_certified_delta():
    runs = 1000 * Gaussian(1.0).poisson(rate=0.01)
    single = runs.epsilon(delta=1e-6)
    assert single == pytest.approx(2.1246, abs=1e-3)
    # dp-accounting, with a delta that comes from moments: 4.6705.
    assert single < runs.best_of(10, "poisson").epsilon(delta=1e-6) < 4.6705
