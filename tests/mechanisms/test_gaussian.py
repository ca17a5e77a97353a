"""S12: the Gaussian mechanism: both calibrations, exact losses, the domination theorem."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.errors import InvalidValue, NotApplicable
from discreet.mechanisms import (
    gaussian_integer,
    gaussian_integers,
    gaussian_real,
    gaussian_vector,
)
from discreet.privacy import GDP, ZCDP, DiscreteGaussian
from discreet.privacy.theorems import (
    gaussian_classical_stddev,
    gaussian_delta,
    gaussian_mu,
)
from discreet.privacy.theorems._gaussian import _absorb
from discreet.randomness import source
from mechanisms.exact_pairs import REJECT, chi_square, delta_of, shifted_gaussian
from oracles.brackets import EPSILONS
from randomness.goodness import chi_square_p, gaussian_pmf


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 1.0, 4.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-8])
def test_analytic_noise_meets_the_target_and_wastes_little(epsilon: float, delta: float) -> None:
    ideal = 1 / gaussian_mu(epsilon, delta)
    counted = gaussian_integer(5, sensitivity=1, epsilon=epsilon, delta=delta)
    assert isinstance(counted.loss, DiscreteGaussian)
    assert counted.loss.epsilon(delta=delta) <= epsilon
    assert ideal <= counted.loss.stddev <= ideal * 1.1
    on_grid = gaussian_real(0.5, sensitivity=2, epsilon=epsilon, delta=delta)
    assert isinstance(on_grid.loss, DiscreteGaussian)
    assert on_grid.loss.epsilon(delta=delta) <= epsilon
    ratio = on_grid.loss.stddev / on_grid.loss.sensitivity
    assert ideal * (1 - 1e-9) <= ratio <= ideal * 1.002
    many = gaussian_vector(np.zeros(9), sensitivity=2, epsilon=epsilon, delta=delta)
    assert isinstance(many.loss, GDP)
    assert many.loss.epsilon(delta=delta) <= epsilon
    assert 1 / ideal * (1 - 2e-3) <= many.loss.mu <= 1 / ideal


def test_classical_noise_is_the_formula_and_never_less_than_needed() -> None:
    expected = gaussian_classical_stddev(0.5, 1e-5)
    release = gaussian_integer(5, sensitivity=1, epsilon=0.5, delta=1e-5, calibration="classical")
    assert isinstance(release.loss, DiscreteGaussian)
    assert expected <= release.loss.stddev <= expected * (1 + 1e-15)
    assert release.loss.epsilon(delta=1e-5) <= 0.5
    analytic = gaussian_integer(5, sensitivity=1, epsilon=0.5, delta=1e-5)
    assert analytic.loss.stddev < expected
    assert release.provenance["calibration"] == "classical"


@pytest.mark.parametrize("epsilon", [1.0, 1, 2.5])
def test_the_classical_theorem_ends_below_one(epsilon: float) -> None:
    for call in (gaussian_integer, gaussian_real):
        with pytest.raises(NotApplicable, match="epsilon < 1"):
            call(5, sensitivity=1, epsilon=epsilon, delta=1e-5, calibration="classical")
    with pytest.raises(NotApplicable, match="epsilon < 1"):
        gaussian_vector([5.0], sensitivity=1, epsilon=epsilon, delta=1e-5, calibration="classical")


def test_outputs_have_the_exact_distribution() -> None:
    bits = source(insecure_seed=41)
    draws = np.array(
        [gaussian_integer(7, sensitivity=1, stddev=2.5, source=bits).value for _ in range(5000)]
    )
    assert chi_square_p(draws - 7, gaussian_pmf(Fraction(25, 4)), 25) > REJECT
    bulk = gaussian_integers(np.full(200_000, 7), sensitivity=1, stddev=2.5, source=bits)
    assert chi_square_p(bulk.value - 7, gaussian_pmf(Fraction(25, 4)), 25) > REJECT
    for wrong in (Fraction(25, 16), Fraction(6), Fraction(25)):
        assert chi_square_p(bulk.value - 7, gaussian_pmf(wrong), 25) < REJECT
    row = gaussian_vector(
        np.full(100_000, 0.3), sensitivity=1, stddev=1, granularity="1/4", source=bits
    )
    steps = row.value * 4
    assert np.array_equal(steps, np.round(steps))
    assert chi_square_p(steps.astype(int) - 1, gaussian_pmf(Fraction(16)), 40) > REJECT


@pytest.mark.parametrize(("stddev", "sensitivity"), [(0.7, 1), (2.0, 1), (5.0, 3)])
def test_the_loss_of_one_number_is_its_pair(stddev: float, sensitivity: int) -> None:
    loss = gaussian_integer(0, sensitivity=sensitivity, stddev=stddev).loss
    p, q = shifted_gaussian(stddev, 0, 120), shifted_gaussian(stddev, sensitivity, 120)
    for epsilon in EPSILONS:
        exact = delta_of(p, q, epsilon)
        low, high = loss.delta_bounds(epsilon=epsilon)
        assert low * (1 - 1e-9) - 1e-13 <= exact <= high * (1 + 1e-9) + 1e-13
    halved = DiscreteGaussian(2 * stddev, sensitivity)
    assert any(delta_of(p, q, eps) > halved.delta(epsilon=eps) + 1e-4 for eps in EPSILONS)


@pytest.mark.parametrize("smoothing", [0.75, 1.0, 1.5])
def test_the_density_of_the_proof_rounds_to_the_discrete_gaussian(smoothing: float) -> None:
    stddev, shift = 3.0, 2
    tau = math.sqrt(stddev**2 - smoothing**2)
    y = np.linspace(-40, 40, 80_001)
    grid = np.arange(-60, 61)
    kernel = np.exp(-0.5 * ((grid[:, None] - y) / smoothing) ** 2)
    theta = kernel.sum(axis=0)
    density = np.exp(-0.5 * ((y - shift) / tau) ** 2) * theta
    rounded = (kernel / theta) @ density
    assert rounded / rounded.sum() == pytest.approx(
        shifted_gaussian(stddev, shift, 60), rel=1e-6, abs=1e-12
    )
    q = math.exp(-2 * (math.pi * smoothing) ** 2)
    plain = np.exp(-0.5 * ((y - shift) / tau) ** 2)
    assert theta.max() / ((theta * plain).sum() / plain.sum()) <= 1 + 2 * q / (1 - q) + 1e-12


@pytest.mark.parametrize("smoothing", [0.75, 0.9, 1.2])
@pytest.mark.parametrize("coordinates", [1, 10**4])
def test_the_periodic_factor_is_absorbed(smoothing: float, coordinates: int) -> None:
    stddev, shift = 40.0, 20.0
    absorbed = _absorb(stddev, shift, coordinates, smoothing)
    assert absorbed is not None
    mu = shift / math.sqrt(stddev**2 - smoothing**2)
    q = math.exp(-2 * (math.pi * smoothing) ** 2)
    factor = (1 + 2 * q / (1 - q)) ** coordinates
    for epsilon in (0.0, 0.1, 0.5, 1.0, 3.0, 6.0):
        needed = min(1.0, factor * gaussian_delta(mu, epsilon))
        assert needed <= gaussian_delta(absorbed, epsilon) * (1 + 1e-9)


@given(
    first=st.lists(st.floats(-50, 50), min_size=4, max_size=4),
    moves=st.lists(st.floats(-1, 1), min_size=4, max_size=4),
)
def test_neighbours_stay_within_the_charged_steps(first: list[float], moves: list[float]) -> None:
    second = [a + b for a, b in zip(first, moves, strict=True)]
    norm = math.sqrt(
        sum((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(first, second, strict=True))
    )
    if norm < 1e-6:
        return
    sensitivity = norm * (1 + 1e-12)
    release = gaussian_vector(first, sensitivity=sensitivity, stddev=100, granularity=1)
    assert isinstance(release.loss, GDP)
    rounded = [[math.floor(Fraction(v) + Fraction(1, 2)) for v in row] for row in (first, second)]
    change = math.dist(*rounded)
    assert change <= release.loss.mu * 100


def test_noise_below_a_step_falls_back_to_zcdp() -> None:
    release = gaussian_integers([1, 2], sensitivity=1, stddev=0.5)
    assert release.loss == ZCDP(2.0)
    centre, moved = shifted_gaussian(0.5, 0, 30), shifted_gaussian(0.5, 1, 30)
    for epsilon in (0.0, 1.0, 4.0, 6.0):
        assert delta_of(centre, moved, epsilon) <= release.loss.delta(epsilon=epsilon) + 1e-13


def test_intervals_cover() -> None:
    bits = source(insecure_seed=42)
    truth = np.array([0.3, -7.5, 1e5])
    missed = np.zeros(3, dtype=int)
    for _ in range(600):
        one = gaussian_integer(9, sensitivity=1, stddev=6, source=bits)
        low, high = one.interval(confidence=0.9)
        missed[0] += not low <= 9 <= high
        real = gaussian_real(0.3, sensitivity=1, stddev=6, source=bits)
        low, high = real.interval(confidence=0.9)
        missed[1] += not low <= 0.3 <= high
        row = gaussian_vector(truth, sensitivity=1, stddev=6, source=bits)
        low, high = row.interval(confidence=0.9)
        missed[2] += not np.all((low <= truth) & (truth <= high))
    assert all(chi_square([m, 600 - m], [0.1, 0.9]) > REJECT for m in missed[1:])
    assert 0 < missed[0] <= 600 * 0.1 + 6.5 * math.sqrt(600 * 0.09)


@pytest.mark.parametrize(
    "call",
    [
        lambda **kw: gaussian_integer(120, sensitivity=1, stddev=9, **kw),
        lambda **kw: gaussian_integers([1, 2], sensitivity=1, stddev=9, **kw),
        lambda **kw: gaussian_real(1.5, sensitivity=1, stddev=9, **kw),
        lambda **kw: gaussian_vector([1.5, 2.5], sensitivity=1, stddev=9, **kw),
    ],
)
def test_an_insecure_seed_repeats_and_is_recorded(call: Callable[..., object]) -> None:
    first, again, other = call(insecure_seed=3), call(insecure_seed=3), call(insecure_seed=4)
    assert np.array_equal(first.value, again.value)
    assert not np.array_equal(first.value, other.value)
    assert first.provenance["randomness"] == "INSECURE seed 3"
    assert call().provenance["randomness"] == "operating system"


@pytest.mark.parametrize(
    ("wrong", "argument"),
    [
        ({"stddev": 1, "epsilon": 1.0, "delta": 1e-5}, "stddev"),
        ({"stddev": 1, "delta": 1e-5}, "delta"),
        ({"epsilon": 1.0}, "delta"),
        ({"epsilon": 1.0, "delta": 0}, "delta"),
        ({"epsilon": 1.0, "delta": 1}, "delta"),
        ({"epsilon": 0, "delta": 1e-5}, "epsilon"),
        ({"delta": 1e-5}, "stddev"),
        ({"stddev": 1, "calibration": "magic"}, "calibration"),
        ({"stddev": 1, "relation": "swap"}, "relation"),
    ],
)
def test_parameters_must_fit_together(wrong: dict[str, object], argument: str) -> None:
    with pytest.raises(InvalidValue, match=f"^{argument} = "):
        gaussian_integer(5, sensitivity=1, **wrong)


def test_replace_is_carried_into_every_loss() -> None:
    assert gaussian_integer(5, sensitivity=2, stddev=4, relation="replace").loss == (
        DiscreteGaussian(4.0, 2, "replace")
    )
    row = gaussian_vector([5.0], sensitivity=2, stddev=4, relation="replace")
    assert row.loss.relation.value == "replace"
    assert row.loss.epsilon(delta=1e-5) == pytest.approx(GDP(0.5).epsilon(delta=1e-5), rel=1e-6)
