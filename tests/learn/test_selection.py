"""Selecting among candidates: its cost against exact enumeration, and mutants that pay too little.

The toys are finite: one run has finitely many outcomes (model and score), so the distribution of
the best of a geometric number of runs is known in closed form. With F the distribution function
of one run in the order of scores and G(s) = sum_k gamma (1-gamma)^(k-1) s^k, the best is at most j
with probability G(F(j)).
"""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.errors import InvalidValue
from discreet.learn import (
    default_stop,
    run_mu,
    select_privately,
    selection_loss,
)
from discreet.privacy import GDP, Gaussian, PureDP, RenyiDP

ORDERS = [1.1, 1.5, 2.0, 4.0, 16.0, 64.0]


def best_of(run: np.ndarray, gamma: float) -> np.ndarray:
    """Probabilities of the outcome with the highest score; outcomes are sorted by score."""
    below = np.concatenate([[0.0], np.cumsum(run)])
    below[-1] = 1.0
    at_most = gamma * below / (1.0 - (1.0 - gamma) * below)
    return np.diff(at_most)


def renyi(p: np.ndarray, q: np.ndarray, order: float) -> float:
    return math.log(np.sum(p**order * q ** (1.0 - order))) / (order - 1.0)


def hockey_stick(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    return float(np.sum(np.maximum(p - math.exp(epsilon) * q, 0.0)))


def test_the_closed_form_agrees_with_runs():
    run = np.array([0.5, 0.3, 0.2])
    slow = np.zeros(3)
    for k in range(1, 400):
        below = np.concatenate([[0.0], np.cumsum(run)]) ** k
        slow += 0.2 * 0.8 ** (k - 1) * np.diff(below)
    assert np.allclose(best_of(run, 0.2), slow, atol=1e-12)


distributions = st.lists(st.integers(1, 1000), min_size=4, max_size=4).map(
    lambda weights: np.array(weights) / sum(weights)
)


@settings(max_examples=40, deadline=None)
@given(distributions, distributions, st.sampled_from(["1/2", "1/10", "1/100"]))
def test_the_cost_is_never_below_the_truth(p, q, stop):
    gamma = float(Fraction(stop))
    pairs = [(p, q), (q, p)]
    curve = [max(renyi(a, b, order) for a, b in pairs) * (1 + 1e-9) + 1e-12 for order in ORDERS]
    charged = selection_loss(RenyiDP(tuple(ORDERS), tuple(curve)), stop=stop)
    pure = max(float(np.max(np.abs(np.log(p) - np.log(q)))), 1e-6) * (1 + 1e-9)
    epsilon = charged.epsilon(delta=1e-4, accountant="rdp")
    assert selection_loss(PureDP(pure), stop=stop).pure_epsilon >= 3.0 * pure
    for a, b in pairs:
        best, other = best_of(a, gamma), best_of(b, gamma)
        for order in (1.5, 4.0, 16.0):
            assert renyi(best, other, order) <= charged.rdp([order])[0] + 1e-9
        assert hockey_stick(best, other, epsilon) <= 1e-4 * (1 + 1e-6)
        assert hockey_stick(best, other, 3.0 * pure) <= 1e-9


def worst_toy(epsilon: float, gamma: float) -> float:
    """The largest log-ratio of selected outcomes over toys whose single runs are epsilon-DP."""
    worst = 0.0
    for top in np.geomspace(1e-5, 1e-1, 30):
        for low in np.geomspace(1e-6, 1e-2, 30):
            up, down = top * math.exp(epsilon), low * math.exp(-epsilon)
            if up + low < 1:
                p = np.array([1 - low - top, low, top])
                q = np.array([1 - down - up, down, up])
                if np.max(np.abs(np.log(p) - np.log(q))) <= epsilon + 1e-9:
                    best, other = best_of(p, gamma), best_of(q, gamma)
                    worst = max(worst, float(np.max(np.abs(np.log(best / other)))))
    return worst


@pytest.mark.parametrize("mutant", [1.0, 1.5, 2.0], ids=["for free", "half more", "twice"])
def test_charging_less_than_the_theorem_is_refuted_by_enumeration(mutant):
    """Runs that are 1-DP, selected as if it cost 1, 1.5 or 2: an outcome tells more than that."""
    told = worst_toy(1.0, 1e-4)
    assert told > mutant * 1.05
    assert told <= selection_loss(PureDP(1.0), stop="1/10000").epsilon(delta=0.0)


def test_the_cost_grows_with_the_expected_number_of_runs():
    once = Gaussian(noise_multiplier=5.0)
    costs = [selection_loss(once, stop=stop).epsilon(delta=1e-6) for stop in ("1/2", "1/8", "1/64")]
    assert once.epsilon(delta=1e-6) < costs[0] < costs[1] < costs[2]
    assert selection_loss(once, stop=1) is once


def test_run_mu_uses_the_budget():
    mu = run_mu(epsilon=2.0, delta=1e-6, stop=default_stop(4))
    spent = selection_loss(GDP(mu), stop=default_stop(4)).epsilon(delta=1e-6)
    assert 1.98 <= spent <= 2.0


@pytest.mark.slow
def test_selection_follows_the_enumerated_distribution():
    """3000 seeded selections against the exact law; false alarm below 1e-9."""
    run_law = np.array([0.6, 0.3, 0.1])
    counts = np.zeros(3)

    def run(candidate, source):
        u = source.bits(30) / 2**30
        outcome = int(np.searchsorted(np.cumsum(run_law), u, side="right"))
        return outcome, float(outcome)

    for seed in range(3000):
        chosen = select_privately(
            ["only"], run, run_loss=PureDP(0.1), stop="1/5", insecure_seed=seed
        )
        counts[chosen.value] += 1
    expected = 3000 * best_of(run_law, 0.2)
    chi_square = float(np.sum((counts - expected) ** 2 / expected))
    assert chi_square < 41.5  # 2 degrees of freedom: P(larger) < 1e-9
    planted = 3000 * run_law  # the first run, as if nothing were selected
    assert float(np.sum((counts - planted) ** 2 / planted)) > 41.5


def test_every_candidate_is_tried_and_scores_that_are_no_numbers_lose():
    def run(candidate, source):
        return candidate, math.nan if candidate == "broken" else 1.0

    found = {
        select_privately(
            ["broken", "good"], run, run_loss=PureDP(0.1), stop="1/40", insecure_seed=seed
        ).value
        for seed in range(20)
    }
    assert found == {"good"}
    told = select_privately(["good"], run, run_loss=PureDP(0.1), insecure_seed=1).provenance
    assert "INSECURE" in told["randomness"]
    assert "runs" not in told  # how many there were must stay secret


@pytest.mark.parametrize("stop", [0, 1.5, "x", -0.1])
def test_a_stop_that_is_no_probability_is_refused(stop):
    with pytest.raises(InvalidValue, match="stop"):
        selection_loss(PureDP(1.0), stop=stop)


def test_no_candidates_and_no_loss_are_refused():
    with pytest.raises(InvalidValue, match="candidates"):
        select_privately([], lambda c, s: (c, 0.0), run_loss=PureDP(1.0))
    with pytest.raises(InvalidValue, match="run"):
        selection_loss(1.0, stop="1/2")
