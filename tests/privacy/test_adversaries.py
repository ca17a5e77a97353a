"""Findings of adversaries, each kept as a test."""

from __future__ import annotations

import sys
import threading

import pytest

from discreet.errors import BudgetExceeded
from discreet.privacy import ApproxDP, Filter, Gaussian, PureDP, from_pair


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
