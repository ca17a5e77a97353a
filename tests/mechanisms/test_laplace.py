"""S11: the Laplace mechanism against exact probabilities and brute-force pairs."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.errors import InvalidValue
from discreet.mechanisms import (
    LaplaceNoise,
    laplace_integer,
    laplace_integers,
    laplace_real,
    laplace_vector,
    read_epsilon,
)
from discreet.privacy import DiscreteLaplace, Exponential, RandomizedResponse
from discreet.randomness import source
from mechanisms.exact_pairs import REJECT, chi_square, delta_of, product, shifted_laplace
from randomness.goodness import chi_square_p, laplace_pmf

EPSILONS = [0.0, 0.05, 0.2, 0.31, 0.6, 0.99, 1.2]


@pytest.mark.parametrize(("epsilon", "scale"), [(0.1, 10.0), (0.5, 2.0), (1, 1.0), ("1/3", 3.0)])
def test_epsilon_sets_the_scale_and_the_reading(epsilon: object, scale: float) -> None:
    release = laplace_integer(120, sensitivity=1, epsilon=epsilon)
    assert release.loss == DiscreteLaplace(scale)
    assert Fraction(release.loss.epsilon(delta=0)) >= Fraction(1) / Fraction(scale)
    twice = laplace_integer(120, sensitivity=2, epsilon=epsilon, relation="replace")
    assert twice.loss == DiscreteLaplace(2 * scale, 2, "replace")


@pytest.mark.slow
@settings(max_examples=40)
@given(
    epsilon=st.floats(1e-6, 100.0),
    sensitivity=st.integers(1, 10**6),
    real=st.floats(1e-9, 1e9),
)
def test_the_loss_never_exceeds_what_was_asked(
    epsilon: float, sensitivity: int, real: float
) -> None:
    counted = laplace_integer(0, sensitivity=sensitivity, epsilon=epsilon)
    assert counted.loss.epsilon(delta=0) <= epsilon
    assert counted.loss.epsilon(delta=0) >= epsilon * (1 - 1e-14)
    on_grid = laplace_real(0.5, sensitivity=real, epsilon=epsilon)
    assert epsilon * (1 - 1e-14) <= on_grid.loss.epsilon(delta=0) <= epsilon
    many = laplace_vector([0.5, 0.25, 7.0], sensitivity=real, epsilon=epsilon)
    assert epsilon * (1 - 1e-14) <= many.loss.epsilon(delta=0) <= epsilon


def test_integer_outputs_have_the_exact_distribution() -> None:
    bits = source(insecure_seed=11)
    draws = np.array(
        [laplace_integer(40, sensitivity=2, epsilon=0.5, source=bits).value for _ in range(8000)]
    )
    assert chi_square_p(draws - 40, laplace_pmf(Fraction(4)), 60) > REJECT
    bulk = laplace_integers(np.full(200_000, -7), sensitivity=2, epsilon=0.5, source=bits)
    assert bulk.value.dtype == np.int64
    assert chi_square_p(bulk.value + 7, laplace_pmf(Fraction(4)), 80) > REJECT
    # The same draws must refute half of the noise, and noise for twice the sensitivity.
    for wrong in (Fraction(2), Fraction(8), Fraction(39, 10)):
        assert chi_square_p(bulk.value + 7, laplace_pmf(wrong), 80) < REJECT


def test_real_outputs_are_multiples_of_the_grid_with_the_exact_distribution() -> None:
    granularity = Fraction(1, 8)
    release = laplace_vector(
        np.full(100_000, 0.7), sensitivity=1, changed=1, scale=1, granularity=granularity
    )
    steps = release.value * 8
    assert np.array_equal(steps, np.round(steps))
    # 0.7 is rounded to 6 eighths.
    assert chi_square_p(steps.astype(int) - 6, laplace_pmf(Fraction(8)), 120) > REJECT
    default = laplace_real(0.7, sensitivity=1, scale=1)
    assert default.provenance["granularity"] == str(Fraction(1, 2**40))
    assert (Fraction(default.value) * 2**40).denominator == 1


@pytest.mark.parametrize("sensitivity", [1, 2, 5])
def test_the_loss_is_the_pair_of_outputs(sensitivity: int) -> None:
    loss = laplace_integer(0, sensitivity=sensitivity, scale=4.0).loss
    p = shifted_laplace(4.0, 0, 60)
    q = shifted_laplace(4.0, sensitivity, 60)
    for epsilon in EPSILONS:
        exact = delta_of(p, q, epsilon)
        low, high = loss.delta_bounds(epsilon=epsilon)
        assert low * (1 - 1e-9) - 1e-15 <= exact <= high * (1 + 1e-9) + 1e-15
    # A mechanism that halves its sensitivity claims less than the truth somewhere.
    claimed = DiscreteLaplace(8.0, sensitivity)
    assert any(
        delta_of(p, q, epsilon) > claimed.delta(epsilon=epsilon) + 1e-6 for epsilon in EPSILONS
    )


@pytest.mark.parametrize("split", [(3, 0), (2, 1), (1, 2), (-1, 2), (1, 1)])
def test_one_shift_dominates_every_split_of_it(split: tuple[int, int]) -> None:
    loss = laplace_integers([0, 0], sensitivity=3, scale=4.0).loss
    centre = shifted_laplace(4.0, 0, 50)
    p = product(centre, centre)
    q = product(shifted_laplace(4.0, split[0], 50), shifted_laplace(4.0, split[1], 50))
    for epsilon in EPSILONS:
        exact, high = delta_of(p, q, epsilon), loss.delta(epsilon=epsilon)
        assert exact <= high * (1 + 1e-9) + 1e-15
        if split == (3, 0):
            assert exact == pytest.approx(high, rel=1e-3, abs=1e-12)


@given(
    first=st.lists(st.floats(-50, 50), min_size=3, max_size=3),
    moves=st.lists(st.floats(-1, 1), min_size=3, max_size=3),
    exponent=st.integers(-3, 3),
)
def test_neighbours_stay_within_the_charged_steps(
    first: list[float], moves: list[float], exponent: int
) -> None:
    second = [a + b for a, b in zip(first, moves, strict=True)]
    norm = sum(abs(Fraction(a) - Fraction(b)) for a, b in zip(first, second, strict=True))
    if norm == 0:
        return
    granularity = Fraction(2) ** exponent
    charged = laplace_vector(first, sensitivity=norm, scale=1, granularity=granularity).loss
    rounded = [
        [math.floor(Fraction(v) / granularity + Fraction(1, 2)) for v in row]
        for row in (first, second)
    ]
    change = sum(abs(a - b) for a, b in zip(*rounded, strict=True))
    assert isinstance(charged, DiscreteLaplace)
    assert change <= charged.sensitivity


def test_the_time_honoured_default_grid_costs_nothing_for_one_number() -> None:
    release = laplace_real(3.25, sensitivity=1, epsilon=0.1)
    assert release.loss.epsilon(delta=0) == 0.1
    assert release.loss == DiscreteLaplace(10.0 * 2**37, 2**37)


@pytest.mark.parametrize("epsilon", [10.0, 1e-3, 1e-6, 1e-9, 1e-30])
@pytest.mark.parametrize("sensitivity", ["1", "1/3", "1e-7"])
def test_the_default_grid_wastes_no_noise(epsilon: float, sensitivity: str) -> None:
    release = laplace_real(0.0, sensitivity=sensitivity, epsilon=epsilon)
    noise = Fraction(release.loss.scale) * Fraction(release.provenance["granularity"])
    assert 1 <= noise * Fraction(epsilon) / Fraction(sensitivity) <= 1 + Fraction(1, 2**19)


def test_the_default_grid_of_arrays_fits_64_bits() -> None:
    for epsilon in (10.0, 1e-3, 1e-8):
        release = laplace_vector(np.zeros(1000), sensitivity=1, epsilon=epsilon)
        assert release.loss.scale < 2**51
        noise = Fraction(release.loss.scale) * Fraction(release.provenance["granularity"])
        assert noise * Fraction(epsilon) <= (1 + Fraction(1, 1000) if epsilon > 1e-8 else 2)
    with pytest.raises(InvalidValue, match=r"granularity = None: .* fewer than 2\*\*51 steps"):
        laplace_vector(np.zeros(1000), sensitivity=1, epsilon=1e-40)


@pytest.mark.parametrize(
    "call",
    [
        lambda **kw: laplace_integer(120, sensitivity=1, epsilon=0.1, **kw),
        lambda **kw: laplace_integers([1, 2], sensitivity=1, epsilon=0.1, **kw),
        lambda **kw: laplace_real(1.5, sensitivity=1, epsilon=0.1, **kw),
        lambda **kw: laplace_vector([1.5, 2.5], sensitivity=1, epsilon=0.1, **kw),
    ],
)
def test_an_insecure_seed_repeats_and_is_recorded(call: Callable[..., object]) -> None:
    first, again, other = call(insecure_seed=3), call(insecure_seed=3), call(insecure_seed=4)
    assert np.array_equal(first.value, again.value)
    assert not np.array_equal(first.value, other.value)
    assert first.provenance["randomness"] == "INSECURE seed 3"
    assert call().provenance["randomness"] == "operating system"
    assert first.provenance["mechanism"].startswith("laplace_")


def test_intervals_cover_as_often_as_they_say() -> None:
    bits = source(insecure_seed=21)
    missed = 0
    for _ in range(2000):
        low, high = laplace_integer(9, sensitivity=1, scale=3, source=bits).interval(confidence=0.8)
        missed += not low <= 9 <= high
    # P(|X| > 5) = 0.158 for scale 3: the least t whose risk is at most 0.2.
    risk = 2 * math.exp(-6 / 3) / (1 + math.exp(-1 / 3))
    assert chi_square([missed, 2000 - missed], [risk, 1 - risk]) > REJECT


def test_vector_intervals_hold_together() -> None:
    bits = source(insecure_seed=22)
    truth = np.array([0.3, -2.0, 5.0, 1e6])
    missed = 0
    for _ in range(400):
        release = laplace_vector(truth, sensitivity=1, scale=2, source=bits)
        low, high = release.interval(confidence=0.9)
        assert np.all(high - low < 2 * 2 * math.log(1 / 0.02))
        missed += not np.all((low <= truth) & (truth <= high))
    assert chi_square([missed, 400 - missed], [0.1, 0.9]) > REJECT


def test_integers_saturate_instead_of_changing_type() -> None:
    top = 2**63 - 1
    release = laplace_integers([top, -top - 1, 5], sensitivity=1, scale=1000, insecure_seed=1)
    assert release.value.dtype == np.int64
    assert release.value[2] != 5
    low, high = release.interval(confidence=0.999999)
    assert low[0] <= top <= high[0]
    assert low[1] <= -top - 1 <= high[1]


def test_values_of_any_size_and_kind_are_read_exactly() -> None:
    huge = laplace_integer(10**40, sensitivity=1, scale=0.01)
    assert huge.value == 10**40
    assert (
        laplace_real(Fraction(1, 3), sensitivity=1, scale=2**-60, granularity="1/4").value == 0.25
    )
    assert laplace_real(np.float32(1.5), sensitivity=1, scale=2**-60).value == 1.5
    assert laplace_real(5e-324, sensitivity=1, scale=2**-60, granularity=1).value == 0.0
    spread = laplace_vector([1e300, -1e300], sensitivity=1, scale=1, granularity=1)
    assert spread.value.tolist() == [1e300, -1e300]
    low, high = spread.interval()
    assert np.all(low <= spread.value)
    assert np.all(spread.value <= high)


@given(st.floats(1e-3, 1e3), st.integers(1, 9))
def test_noise_is_never_drawn_below_what_is_charged(number: float, sensitivity: int) -> None:
    """A budget reads a scale as the decimal that it prints as, a sampler as a binary number."""
    for asked in ({"scale": number}, {"epsilon": number}, {"epsilon": Fraction(number)}):
        stated = {"scale": None, "epsilon": None, **asked}
        noise = LaplaceNoise.read(sensitivity=sensitivity, relation="replace", **stated)
        charged = noise.loss.claim()
        assert charged is not None
        assert sensitivity / noise.exact_scale <= charged[0]
    for epsilon in (number, Fraction(number), Fraction(number) / 3):
        aim, reported = read_epsilon(epsilon)
        response, selection = RandomizedResponse(reported), Exponential(reported)
        assert aim <= Fraction(reported)
        for loss in (response, selection):
            charged = loss.claim()
            assert charged is not None
            assert aim <= charged[0]


def test_a_scale_that_prints_larger_than_it_is() -> None:
    noise = LaplaceNoise.read(sensitivity=1, epsilon=None, scale=0.3, relation="add_remove")
    assert noise.loss.claim() == (Fraction(10, 3), 0)
    assert noise.exact_scale == Fraction(3, 10) > Fraction(0.3)
