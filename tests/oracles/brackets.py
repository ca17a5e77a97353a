"""What several tests of the calculus are judged by: what brackets must contain."""

from __future__ import annotations

import itertools

import numpy as np
from mpmath import mpf

from discreet.privacy import (
    Loss,
)
from discreet.privacy._pair import Resolution, orient


def contains_delta(loss: Loss, delta_at, *, epsilon: float) -> None:
    """The bracket of delta holds the exact value and is narrow."""
    bounds = loss.delta_bounds(epsilon=epsilon)
    value = delta_at(epsilon)
    assert mpf(bounds.lower) <= value <= mpf(bounds.upper)
    assert bounds.tolerance_met
    assert bounds.width <= max(0.02 * bounds.upper, 1e-15)


BRACKET_DELTAS = (1e-15, 1e-9, 1e-5, 1e-2, 0.3)


def contains(loss: Loss, delta_at, *, delta: float) -> None:
    """The bracket of epsilon holds the exact value and is as narrow as promised."""
    bounds = loss.epsilon_bounds(delta=delta)
    assert 0.0 <= bounds.lower <= bounds.upper
    if bounds.tolerance_met:
        assert bounds.width <= max(1e-3 * bounds.upper, 1e-6)
    else:
        # A lattice of losses and an epsilon near 0 may cost a little more than was promised.
        assert bounds.note
        assert bounds.width <= 1e-5
    # Tested through delta, where the oracle is exact: epsilon is where it crosses.
    assert delta_at(bounds.upper) <= mpf(delta)
    assert bounds.lower == 0.0 or delta_at(bounds.lower) >= mpf(delta)


def profile(measure, epsilon: float) -> float:
    """delta of one measure, straight from the definition."""
    gain = -np.expm1(np.minimum(epsilon - measure.loss[0], 0.0))
    return float(measure.infinite[0] + np.dot(measure.mass[0], gain))


def check_coarse_steps(loss: Loss, delta_at) -> None:
    """Both measures stay on their side with few cells and thick tails, also for eps < 0."""
    epsilons = (-2.0, -0.3, -0.01, 0.0, 0.01, 0.2, 1.0, 2.5)
    truth = {(e, s): float(delta_at(e, s)) for e in epsilons for s in (False, True)}
    for swapped, cells, tail in itertools.product((False, True), (20, 90), (1e-2, 1e-6)):
        resolution = Resolution(cells, 0.7, tail, swapped=swapped)
        lower, upper = orient(loss.pair(resolution), swapped=swapped)
        for epsilon in epsilons:
            value = truth[epsilon, swapped]
            assert profile(upper, epsilon) >= value - 1e-13
            assert profile(lower, epsilon) <= value + 1e-13


EPSILONS = [0.0, 0.1, 0.3, 0.7, 1.0, 1.5]
