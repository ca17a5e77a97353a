"""Claims of pure, approximate and Renyi privacy, against exact sums and known curves."""

from __future__ import annotations

import math

import numpy as np
import pytest

from discreet.privacy import (
    ApproxDP,
    Laplace,
    PureDP,
    RenyiDP,
    theorems,
)
from discreet.privacy._renyi import (
    rdp,
)
from oracles import exact_compositions as exact
from oracles.brackets import contains_delta


@pytest.mark.parametrize("delta", [0.011, 0.05, 0.3])
@pytest.mark.parametrize(
    ("claim", "count"), [((0.5, 1e-3), 10), ((1.0, 0.0), 12), ((0.0, 1e-3), 9)]
)
def test_approximate_dp_composes_as_kairouz_oh_and_viswanath_say(claim, count, delta):
    plan = count * ApproxDP(*claim)
    bounds = plan.epsilon_bounds(delta=delta)
    closed = theorems.optimal_composition_epsilon(*claim, k=count, delta=delta)
    assert bounds.lower <= closed * (1 + 1e-9)
    assert bounds.upper >= closed * (1 - 1e-9)
    assert bounds.width <= max(1e-3 * bounds.upper, 1e-6)
    assert exact.approximate_delta(claim, count, bounds.upper) <= delta


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
def test_delta_of_approximate_dp(epsilon):
    contains_delta(
        10 * ApproxDP(0.5, 1e-3),
        lambda e: exact.approximate_delta((0.5, 1e-3), 10, e),
        epsilon=epsilon,
    )


def test_a_claim_holds_at_its_own_delta():
    assert ApproxDP(1, 1e-5).epsilon(delta=1e-5) == 1.0
    assert (ApproxDP(1, 1e-5) + PureDP(2)).epsilon(delta=1e-5) == 3.0
    bounds = ApproxDP(1, 1e-5).epsilon_bounds(delta=1e-5)
    assert bounds.tolerance_met
    assert 1.0 - 1e-9 <= bounds.lower <= bounds.upper == 1.0
    assert ApproxDP(1, 1e-5).epsilon(delta=0.99e-5) == math.inf
    assert (2 * ApproxDP(1, 1e-5)).epsilon(delta=1.9e-5) == math.inf
    assert (3 * ApproxDP(1, "1e-5")).epsilon(delta=3e-5) <= 3.0


def test_known_curves_are_interpolated_safely():
    true = Laplace(1.3)
    known = [1.5, 2.0, 4.0, 32.0]
    curve = RenyiDP(tuple(known), tuple(rdp(true, known)))
    between = np.array([1.1, 1.5, 1.7, 3.0, 31.0, 32.0])
    values = rdp(curve, between)
    assert np.all(values >= rdp(true, between) * (1 - 1e-12))
    assert np.allclose(values[[1, 5]], rdp(true, [1.5, 32.0]))
    steps = np.array([curve.epsilons[k] for k in (0, 0, 1, 2, 3, 3)])
    assert np.all(values <= steps)
    assert values[3] < steps[3]
    assert np.isinf(rdp(curve, [32.1])[0])
    assert rdp(RenyiDP((2.0, 4.0), (3.0, 1.0)), [2.0])[0] == 1.0
