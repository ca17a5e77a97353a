"""Findings of adversaries, each kept as a test."""

from __future__ import annotations

import math
import sys
import threading
from fractions import Fraction

import pytest

from discreet.errors import BudgetExceeded, InvalidValue
from discreet.privacy import (
    ApproxDP,
    Filter,
    Gaussian,
    PureDP,
    compose,
    from_pair,
    least_noise_multiplier,
)


@pytest.mark.parametrize("noise", [0.3, 0.2266, 0.14, 0.05, 0.03])
def test_large_shifts_beside_a_sampled_step(noise):
    # A step at rate 1e-9 adds nothing visible, so the closed form must lie in the bracket.
    alone = Gaussian(noise).epsilon(delta=1e-5)
    bounds = (Gaussian(noise) + Gaussian(5.0).poisson(rate=1e-9)).epsilon_bounds(delta=1e-5)
    assert bounds.lower <= alone * (1 + 1e-7)
    assert bounds.upper >= alone * (1 - 1e-9)


def test_many_large_shifts_beside_a_sampled_step():
    loss = 100 * Gaussian(0.6) + Gaussian(0.4).poisson(rate=0.001)
    bounds = loss.epsilon_bounds(delta=2.943965347998412e-06)
    # By mpmath the truth lies between 213.511 and 213.512.
    assert bounds.lower <= 213.512
    assert bounds.upper >= 213.511


def test_a_pair_may_be_given_in_either_order():
    absent, present = [0.99, 0.01], [0.5, 0.5]
    # The unit present and sampled at 0.1: P = 0.9 absent + 0.1 present against absent.
    mixed = [0.9 * a + 0.1 * b for a, b in zip(absent, present, strict=True)]
    for pair in (from_pair(absent, present), from_pair(present, absent)):
        loss = pair.poisson(rate=0.1)
        exact = sum(max(m - 2.718281828459045 * a, 0.0) for m, a in zip(mixed, absent, strict=True))
        assert loss.delta(epsilon=1.0) >= exact
    both = from_pair(absent, present) + from_pair(present, absent)
    twice = 2 * from_pair(present, absent)
    assert both.epsilon(delta=0.1) >= twice.epsilon_bounds(delta=0.1).lower


def test_threads_cannot_overdraw_a_filter():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        budget = Filter(epsilon=1)
        admitted = []

        def spend() -> None:
            for _ in range(30):
                try:
                    budget.charge(PureDP("0.05"))
                except BudgetExceeded:
                    return
                admitted.append(1)

        threads = [threading.Thread(target=spend) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert len(admitted) == 20
    assert budget.charges == 20


@pytest.mark.parametrize(
    "loss", [ApproxDP(1, "1e-5").group(3), PureDP(1000), 2 * PureDP(800), Gaussian(0.01)]
)
def test_tradeoffs_of_worthless_guarantees_are_one(loss):
    assert 0.1 <= loss.tradeoff(0.1) <= 1.0


# 1000 steps at 0.025 would cost 15 seconds; 0.0249 and 0.03 are its neighbours on both sides.
@pytest.mark.parametrize(
    ("steps", "noise"),
    [(2, 1e-3), (2, 0.0249), (2, 0.025), (2, 0.03), (1000, 1e-3), (1000, 0.0249), (1000, 0.03)],
)
def test_next_to_no_noise_is_never_called_private(steps: int, noise: float) -> None:
    # One step of rate 0.01 reveals a member with almost that probability, whatever the rest.
    loss = steps * Gaussian(noise).poisson(rate=0.01)
    assert loss.epsilon_bounds(delta=1e-5).upper > 100.0
    assert loss.epsilon(delta=1e-5) > 100.0
    assert loss.delta_bounds(epsilon=1.0).upper >= 0.009


def test_calibration_far_out_of_range_comes_to_an_end() -> None:
    noise = least_noise_multiplier(epsilon=10_000, delta=1e-5, rate=0.01, steps=1000)
    assert (1000 * Gaussian(noise).poisson(rate=0.01)).epsilon(delta=1e-5) <= 10_000


def test_a_claim_beyond_floating_point_is_an_infinite_epsilon() -> None:
    claim = PureDP(Fraction(10**400, 3))
    assert claim.epsilon(delta=1e-6) == math.inf
    assert claim.epsilon(delta=0) == math.inf
    assert claim.delta(epsilon=1.0) == 1.0


@pytest.mark.parametrize("least_noise", [1.0, 0.6])
@pytest.mark.slow
def test_a_thousand_distinct_steps_meet_the_tolerance(least_noise: float) -> None:
    steps = [
        Gaussian(least_noise + 3 * i / 1000).poisson(rate=1e-4 + 1e-5 * ((37 * i) % 1000))
        for i in range(1000)
    ]
    bounds = compose((step, 1) for step in steps).epsilon_bounds(delta=1e-5)
    assert bounds.tolerance_met
    assert bounds.upper - bounds.lower <= 1e-3 * bounds.upper


@pytest.mark.parametrize("steps", [2, 10, 1000])
def test_rare_losses_at_tiny_deltas_have_a_useful_lower_bound(steps: int) -> None:
    bounds = (steps * Gaussian(1.0).poisson(rate=1e-6)).epsilon_bounds(delta=1e-15)
    assert 0.9 * bounds.upper < bounds.lower <= bounds.upper


def test_an_integer_of_very_many_digits_is_refused_in_words() -> None:
    with pytest.raises(InvalidValue, match=r"steps = <int of too many digits>"):
        raise InvalidValue("steps", 10**10_000, "fewer digits")
    with pytest.raises(InvalidValue, match=r"x{499}\.\.\. \(100002 characters\): expected"):
        raise InvalidValue("name", "x" * 100_000, "a name")
