"""Selecting among candidates: its cost against exact enumeration, and mutants that pay too little.

The toys are finite: one run has finitely many outcomes (model and score), so the distribution of
the best of a geometric number of runs is known in closed form. With F the distribution function
of one run in the order of scores and G(s) = sum_k gamma (1-gamma)^(k-1) s^k, the best is at most j
with probability G(F(j)).
"""

import logging
import math
import sys
import warnings
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.errors import BudgetExceeded, InvalidValue, NotApplicable, RelationMismatch
from discreet.learn import default_stop, run_mu, select_privately
from discreet.learn._selection import dearest
from discreet.ledger import Ledger
from discreet.privacy import GDP, ApproxDP, Gaussian, Laplace, PureDP, RenyiDP, from_json, to_json

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
    charged = RenyiDP(tuple(ORDERS), tuple(curve)).best_of(1 / gamma)
    pure = max(float(np.max(np.abs(np.log(p) - np.log(q)))), 1e-6) * (1 + 1e-9)
    epsilon = charged.epsilon(delta=1e-4, accountant="rdp")
    assert PureDP(pure).best_of(1 / gamma).epsilon(delta=0.0) >= 3.0 * pure
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
    assert told <= PureDP(1.0).best_of(10_000).epsilon(delta=0.0)


def test_the_cost_grows_with_the_expected_number_of_runs():
    once = Gaussian(noise_multiplier=5.0)
    costs = [once.best_of(mean).epsilon(delta=1e-6) for mean in (2, 8, 64)]
    assert once.epsilon(delta=1e-6) < costs[0] < costs[1] < costs[2]


def old_curve(run, stop):
    """The formula of theorem 2 with eta = 1 as older certificates have it, written out."""
    orders = 1.0 + np.exp(np.linspace(math.log(0.02), math.log(1e6), 160))
    curve, penalty = run.rdp(orders), math.log(1 / stop)
    extra = np.min(2.0 * (1.0 - 1.0 / orders) * curve + 2.0 * penalty / orders)
    return RenyiDP(tuple(orders), tuple(curve + extra + penalty / (orders - 1.0)))


@pytest.mark.parametrize("run", [GDP(0.2), 50 * Gaussian(2.0).poisson(rate=0.05)])
def test_older_certificates_state_the_same_formula(run):
    """best_of(1 / stop) is what they were charged by, and never reads above it."""
    before, now = old_curve(run, 1 / 12), run.best_of(12)
    assert np.allclose(now.rdp(before.orders), before.epsilons, rtol=1e-9)
    assert 0.99 < now.epsilon(delta=1e-6) / before.epsilon(delta=1e-6) <= 1.0 + 1e-9
    assert from_json(to_json(before)) == before
    pure = PureDP(math.nextafter(1.5, 2.0))  # what they state for the best of runs that are 0.5-DP
    assert PureDP(0.5).best_of(12).epsilon(delta=0.0) <= pure.epsilon(delta=0.0)


def test_the_dearest_candidate_is_charged():
    assert dearest([PureDP(1), PureDP("0.5")]) == PureDP(1)
    assert dearest([GDP(0.5), Gaussian(4.0), Gaussian(1.0)]) == GDP(1.0)
    assert dearest([Laplace(3.0), Laplace(3.0)]) == Laplace(3.0)
    mixed = dearest([PureDP(0.1), Gaussian(2.0)])
    for order in (1.5, 3.0, 40.0):
        most = max(PureDP(0.1).rdp([order])[0], Gaussian(2.0).rdp([order])[0])
        assert most <= mixed.rdp([order])[0] <= most * 1.2
    with pytest.raises(NotApplicable, match="Renyi"):
        dearest([ApproxDP(1, 1e-5), Gaussian(2.0)])
    with pytest.raises(RelationMismatch):
        dearest([Gaussian(2.0), Gaussian(2.0, relation="replace")])
    chosen = select_privately(
        [1, 2], lambda c, s: (c, c), run_loss=[PureDP(1), PureDP(3)], insecure_seed=1
    )
    assert chosen.loss == PureDP(3).best_of(8)


def test_a_mutant_that_charges_the_mean_candidate_is_refuted():
    """Two candidates, one free, one 1-DP: half an epsilon a run does not cover the choice."""
    gamma, epsilon, top, low = 1e-4, 1.0, 1e-3, 1e-4
    free = np.array([1.0, 0.0, 0.0])
    p = np.array([1 - low - top, low, top])
    q = np.array([0.0, low * math.exp(-epsilon), top * math.exp(epsilon)])
    q[0] = 1 - q.sum()
    best, other = (best_of(0.5 * (free + law), gamma) for law in (p, q))
    told = float(np.max(np.abs(np.log(best / other))))
    assert told > 3.0 * 0.5 * 1.05
    assert told <= dearest([PureDP(0), PureDP(1)]).best_of(1 / gamma).epsilon(delta=0.0)


def test_one_charge_before_the_first_run_and_nothing_else_is_left(tmp_path, capsys, caplog):
    """No entry, directory, log line, warning or count tells how many runs there were."""
    seen = []

    def run(candidate, source):
        seen.append(len(ledger.history("d")))
        print("run")
        print("run", file=sys.stderr)
        logging.getLogger("discreet.learn").error("run")
        warnings.warn("run", stacklevel=1)
        return candidate, 1.0

    with Ledger.create(tmp_path / "l.db") as ledger:
        ledger.create_dataset("d", epsilon=4, delta="1e-6")
        call = partial(select_privately, ["a", "b"], run, ledger=ledger, dataset="d", delta=1e-7)
        chosen = call(run_loss=GDP(0.1), stop="1/200", insecure_seed=2)
        assert len(seen) > 3
        assert set(seen) == {1}
        (entry,) = ledger.history("d")
        assert from_json(entry.loss) == chosen.loss == GDP(0.1).best_of(200)
        runs = len(seen)
        with pytest.raises(BudgetExceeded):
            call(run_loss=GDP(5.0), stop="1/20", insecure_seed=2)
        assert len(seen) == runs, "no run without a charge"
    assert capsys.readouterr() == ("", "")
    assert not caplog.records
    assert all(path.name.startswith("l.db") for path in tmp_path.iterdir())
    assert str(runs) not in {str(value) for value in chosen.provenance.values()}
    assert not logging.root.manager.disable


def test_a_list_tried_once_each_costs_the_sum():
    tried = []

    def run(candidate, source):
        tried.append(candidate)
        return candidate, candidate

    once = partial(select_privately, [1, 3, 2], run, insecure_seed=1, each_once=True)
    chosen = once(run_loss=Gaussian(2.0))
    assert chosen.value == 3
    assert tried == [1, 3, 2]
    assert chosen.loss == 3 * Gaussian(2.0)
    assert once(run_loss=[PureDP(1), PureDP(2), PureDP(3)]).loss.epsilon(delta=0) == 6.0
    with pytest.raises(InvalidValue, match="stop"):
        once(run_loss=PureDP(1), stop="1/2")


def test_run_mu_uses_the_budget():
    mu = run_mu(epsilon=2.0, delta=1e-6, stop=default_stop(4))
    spent = GDP(mu).best_of(16).epsilon(delta=1e-6)
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
        select_privately([1], lambda c, s: (c, 0.0), run_loss=PureDP(1.0), stop=stop)


@pytest.mark.parametrize(
    ("candidates", "loss", "match"),
    [
        ([], PureDP(1.0), "candidates"),
        ([1], [1.0], "run_loss"),
        ([1], [PureDP(1), PureDP(2)], "run_loss"),
        ([1], ApproxDP(1, 1e-5), "Renyi"),
    ],
)
def test_what_has_no_cost_is_refused_before_a_run(candidates, loss, match):
    def run(candidate, source):
        pytest.fail("nothing may run")

    with pytest.raises((InvalidValue, NotApplicable), match=match):
        select_privately(candidates, run, run_loss=loss)
