"""Bounds of the audits of training (S34) against closed forms, their verdicts, what they refuse."""

import copy
import json
import math
import pickle
from functools import cache

import numpy as np
import pytest
from scipy import special, stats

from audit.null_mechanisms import coins, gaussian, pair
from discreet.audit import (
    Inclusion,
    audit_gaussian,
    audit_one_run,
    audit_one_run_curve,
    audit_runs,
    audit_tradeoff,
    one_run_epsilon,
    suggest_guesses,
)
from discreet.audit._one_run import one_run_p_value
from discreet.errors import InvalidValue, NotApplicable
from discreet.privacy import GDP, ApproxDP, Gaussian, PureDP
from discreet.privacy.theorems import gaussian_mu
from discreet.randomness import source

RIGHT, WRONG = [1.0] * 400, [0.0] * 400


# --- many runs -------------------------------------------------------------------------------


def test_perfect_runs_reach_the_closed_form() -> None:
    audit = audit_runs(RIGHT, WRONG, epsilon=1.0, delta=0.01, thresholds=0.5)
    least = 0.025 ** (1 / 400)
    assert audit.epsilon_lower == pytest.approx(math.log((least - 0.01) / (1 - least)), abs=1e-8)
    assert audit.ceiling == audit.epsilon_lower
    assert (audit.verdict, audit.confidence) == ("violated", 0.95)


def test_the_figures_of_the_peers() -> None:
    """At delta 1e-5 and 95 %, the most that can be certified (PEERS)."""
    for guesses, most in ((100, 3.49), (1000, 5.78), (5000, 7.28)):
        bound = one_run_epsilon(
            canaries=guesses, guesses=guesses, correct=guesses, delta=1e-5, rate=0.05
        )
        assert bound == pytest.approx(most, abs=0.005)
    runs = audit_runs([1.0] * 500, [0.0] * 500, epsilon=1.0, delta=1e-5, thresholds=0.5)
    assert runs.ceiling == pytest.approx(4.91, abs=0.01)


def test_both_directions_are_read() -> None:
    """Scores that are seldom large but then sure, and the mirror image."""
    seldom = [1.0] * 40 + [0.0] * 360
    sure = audit_runs(seldom, WRONG, epsilon=0.1, thresholds=0.5)
    mirrored = audit_runs(RIGHT, [1.0] * 360 + [0.0] * 40, epsilon=0.1, thresholds=0.5)
    assert sure.epsilon_lower == pytest.approx(mirrored.epsilon_lower, abs=1e-7)
    assert sure.epsilon_lower > 1.9


def test_more_thresholds_cost_confidence_and_held_out_halves_cost_scores() -> None:
    one, many, half = (
        audit_runs(RIGHT, WRONG, epsilon=1.0, thresholds=rule)
        for rule in (0.5, (0.25, 0.5, 0.75), "held-out")
    )
    assert one.epsilon_lower > many.epsilon_lower > half.epsilon_lower
    assert many.evidence["thresholds_tested"] == 3
    assert half.evidence["included"] == half.evidence["excluded"] == 200
    assert all(audit.ceiling == audit.epsilon_lower for audit in (one, many, half))


def test_the_gaussian_bound_is_that_of_mu() -> None:
    with_it, without = [1.0] * 300 + [0.0] * 100, [1.0] * 100 + [0.0] * 300
    audit = audit_gaussian(
        with_it, without, mechanism="gaussian", epsilon=4.0, delta=1e-5, thresholds=0.5
    )
    tpr = float(special.betaincinv(300, 101, 0.025))
    mu = float(special.ndtri(tpr) - special.ndtri(1 - tpr))
    assert audit.evidence["mu_lower"] == pytest.approx(mu, abs=1e-8)
    exact = GDP(mu=mu).epsilon_bounds(delta=1e-5)
    assert audit.epsilon_lower <= exact.upper
    assert audit.epsilon_lower == pytest.approx(exact.lower, rel=2e-3)


@pytest.mark.parametrize("mechanism", ["subsampled gaussian", "", "dpsgd", None])
def test_the_gaussian_bound_wants_the_word(mechanism) -> None:
    with pytest.raises(NotApplicable, match="not rigorous for subsampled runs"):
        audit_gaussian(RIGHT, WRONG, mechanism=mechanism, epsilon=1.0, delta=1e-5)


def test_the_gaussian_bound_refuses_losses_that_are_not_gaussian() -> None:
    step = Gaussian(noise_multiplier=1.0)
    for loss in (step.poisson(rate=0.1), 5 * step.poisson(rate=0.1), step + PureDP(epsilon=1.0)):
        with pytest.raises(NotApplicable, match="valid only for Gaussian mechanisms"):
            audit_gaussian(RIGHT, WRONG, mechanism="gaussian", loss=loss, delta=1e-5)
        with pytest.raises(NotApplicable, match="valid only for Gaussian mechanisms"):
            audit_one_run_curve(
                coins(4, (1, 1), 1), [0.0] * 4, loss=loss, delta=1e-5, mechanism="gaussian"
            )
    audit = audit_gaussian(RIGHT, WRONG, mechanism="gaussian", loss=10 * step, delta=1e-5)
    assert audit.claimed_epsilon == (10 * step).epsilon(delta=1e-5)
    with pytest.raises(InvalidValue, match="delta = 0"):
        audit_gaussian(RIGHT, WRONG, mechanism="gaussian", epsilon=1.0)


def test_a_curve_is_violated_although_no_single_delta_shows_it() -> None:
    scores = pair(gaussian(np.random.default_rng(3), 2.0), 1000)
    audit = audit_tradeoff(*scores, loss=GDP(mu=1.5), delta=1e-5, thresholds=1.0)
    assert audit.violated
    assert audit.epsilon_lower < audit.claimed_epsilon
    assert audit.evidence["tpr"] > audit.evidence["allowed_tpr"]
    runs = audit_runs(*scores, loss=GDP(mu=1.5), delta=1e-5, thresholds=1.0)
    assert not runs.violated


def test_an_approximate_claim_is_tested_where_it_is_made() -> None:
    claim = ApproxDP(epsilon=1.0, delta=0.05)
    with_it, without = [1.0] * 360 + [0.0] * 40, [1.0] * 40 + [0.0] * 360
    curve = audit_tradeoff(with_it, without, loss=claim, delta=0.05, thresholds=0.5)
    runs = audit_runs(with_it, without, loss=claim, delta=0.05, thresholds=0.5)
    assert curve.violated
    assert runs.violated
    assert curve.epsilon_lower == runs.epsilon_lower


# --- one run ---------------------------------------------------------------------------------


def slow_p_value(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """The theorem as it is printed, by summing probabilities."""
    law = stats.binom.pmf(np.arange(r + 1), r, 1 / (1 + math.exp(-epsilon)))
    most = max(law[v - i : v].sum() / i for i in range(1, v + 1))
    return min(1.0, law[v:].sum() + 2 * m * delta * most)


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.01, 0.3])
def test_p_values_are_those_of_the_theorem(epsilon: float, delta: float) -> None:
    for m, r, v in ((10, 10, 10), (50, 20, 15), (200, 31, 16), (7, 1, 1)):
        found = one_run_p_value(canaries=m, guesses=r, correct=v, epsilon=epsilon, delta=delta)
        assert found == pytest.approx(slow_p_value(m, r, v, epsilon, delta), rel=1e-7)


def test_everything_below_the_bound_is_refuted_even_where_the_bound_is_not_monotone() -> None:
    for m, r, v, delta in ((100, 50, 45, 0.0), (1000, 200, 195, 0.001), (500, 100, 100, 0.002)):
        bound = one_run_epsilon(canaries=m, guesses=r, correct=v, delta=delta, rate=0.05)
        for epsilon in np.linspace(0, bound, 12):
            assert slow_p_value(m, r, v, float(epsilon), delta) <= 0.05 * (1 + 1e-6)
        assert bound > 0.3
        assert slow_p_value(m, r, v, bound + 1e-3, delta) > 0.05


def test_bounds_grow_with_right_guesses_and_shrink_with_delta() -> None:
    bounds = [
        one_run_epsilon(canaries=200, guesses=100, correct=v, delta=1e-5, rate=0.05)
        for v in range(40, 101, 5)
    ]
    assert bounds == sorted(bounds)
    assert bounds[0] == 0.0
    with_delta = [
        one_run_epsilon(canaries=200, guesses=100, correct=90, delta=delta, rate=0.05)
        for delta in (0.0, 1e-5, 1e-3, 0.1)
    ]
    assert with_delta == sorted(with_delta, reverse=True)


def test_guesses_are_the_extremes() -> None:
    game = coins(10, (2, 3), 5)
    best = game.correct(game.included.astype(float))
    assert best == min(2, game.included.sum()) + min(3, (~game.included).sum())
    other = coins(10, (2, 3), 5)
    assert other.correct(-other.included.astype(float)) <= 5 - best or best < 5


@pytest.mark.slow
def test_suggested_guesses_beat_guessing_all() -> None:
    mu = gaussian_mu(4.0, 1e-5)
    k = sum(suggest_guesses(GDP(mu=mu), canaries=1000, delta=1e-5))
    assert 20 < k < 300
    generator = np.random.default_rng(4)
    shown = {k: [], 1000: []}
    for _ in range(12):
        included = generator.random(1000) < 0.5
        order = np.argsort(mu * included + generator.standard_normal(1000))
        for r, found in shown.items():
            right = included[order[1000 - r // 2 :]].sum() + (~included[order[: r // 2]]).sum()
            found.append(
                one_run_epsilon(canaries=1000, guesses=r, correct=int(right), delta=1e-5, rate=0.05)
            )
    assert np.median(shown[k]) > 1.3 > np.median(shown[1000])


@pytest.mark.slow
def test_a_perfect_attack_is_not_spoiled_by_more_guesses_than_there_are_coins() -> None:
    """However weak the claim: a half of m is included, give or take sqrt(m) / 2."""
    generator = np.random.default_rng(5)
    for size in (50, 200, 500):  # the example of suggest_guesses has a thousand
        half, other = suggest_guesses(GDP(mu=30.0), canaries=size, delta=1e-5)
        assert half == other
        remembered = cache(one_run_epsilon)  # most coins agree on `right`
        shown: dict[int, list[float]] = {half: [], size // 2: [], size // 4: []}
        for inside in generator.binomial(size, 0.5, 60).tolist():
            for called, found in shown.items():
                right = 2 * called - max(0, called - min(inside, size - inside))
                bound = remembered(
                    canaries=size, guesses=2 * called, correct=right, delta=1e-5, rate=0.05
                )
                found.append(bound)
        assert np.mean(shown[half]) > np.mean(shown[size // 2]) + 0.2
        assert np.mean(shown[half]) > np.mean(shown[size // 4])
    assert suggest_guesses(GDP(mu=30.0), canaries=2, delta=1e-5) == (1, 1)


def test_guesses_are_suggested_for_pure_claims_too() -> None:
    called_in, called_out = suggest_guesses(PureDP(epsilon=1.0), canaries=100, delta=0.0)
    assert 1 <= called_in == called_out <= 50
    with pytest.raises(InvalidValue, match="loss"):
        suggest_guesses(1.0, canaries=100, delta=0.0)


def test_the_curve_shows_more_of_a_gaussian_if_it_may_assume_one() -> None:
    mu = gaussian_mu(4.0, 1e-5)
    bounds = []
    for mechanism in (None, "gaussian"):
        game = coins(1000, (60, 60), 6)
        scores = gaussian(np.random.default_rng(7), mu)(game.included)
        audit = audit_one_run_curve(game, scores, loss=GDP(mu=mu), delta=1e-5, mechanism=mechanism)
        assert not audit.violated
        bounds.append(audit.epsilon_lower)
    assert bounds[1] > bounds[0] + 0.4 > 1.0


def test_a_curve_is_violated_by_one_run() -> None:
    game = coins(1000, (60, 60), 8)
    scores = gaussian(np.random.default_rng(9), 2.0)(game.included)
    audit = audit_one_run_curve(game, scores, loss=GDP(mu=1.0), delta=1e-5)
    assert audit.violated
    assert "claimed trade-off curve" in audit.reason


# --- coins -----------------------------------------------------------------------------------


def test_coins_are_fair_independent_and_from_the_system() -> None:
    game = Inclusion(100_000, guesses=(1, 1))
    bits = game.included.astype(float)
    assert stats.binomtest(int(bits.sum()), bits.size).pvalue > 1e-9
    same = int((bits[1:] == bits[:-1]).sum())
    assert stats.binomtest(same, bits.size - 1).pvalue > 1e-9
    assert game.provenance == {"randomness": "operating system"}
    seeded = Inclusion(10, guesses=(1, 1), source=source(insecure_seed=1))
    audit = audit_one_run(seeded, [0.0] * 10, epsilon=1.0)
    assert "INSECURE" in audit.evidence["randomness"]


def test_coins_are_judged_as_often_as_was_said_and_cannot_be_copied() -> None:
    game = coins(20, (5, 5), 1)
    audit_one_run(game, np.arange(20.0), epsilon=1.0)
    with pytest.raises(NotApplicable, match="new run with new coins"):
        audit_one_run(game, np.arange(20.0), epsilon=1.0)
    with pytest.raises(NotApplicable, match="new run with new coins"):
        game.split_scores(np.arange(20.0))
    twice = coins(20, (5, 5), 1, audits=2)
    first = audit_one_run(twice, np.arange(20.0), epsilon=1.0)
    assert twice.audits_left == 1
    assert first.evidence["audits_of_these_coins"] == 2
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(NotApplicable, match="cannot be copied"):
            copied(twice)
    with pytest.raises(ValueError, match="read-only"):
        twice.included[0] = True


def test_sharing_coins_lowers_the_ceiling() -> None:
    alone, shared = (
        audit_one_run(game, game.included.astype(float), epsilon=1.0)
        for game in (coins(50, (10, 10), 2), coins(50, (10, 10), 2, audits=3))
    )
    assert shared.ceiling < alone.ceiling
    assert shared.confidence == alone.confidence


def test_coins_are_not_used_up_by_a_mistake() -> None:
    game = coins(20, (5, 5), 1)
    for scores in ([0.0] * 19, [math.nan] * 20, "abc", [[0.0] * 20]):
        with pytest.raises(InvalidValue, match="scores"):
            audit_one_run(game, scores, epsilon=1.0)
    with pytest.raises(InvalidValue, match="epsilon"):
        audit_one_run(game, [0.0] * 20, epsilon=-1.0)
    with pytest.raises(InvalidValue, match="false_alarm_rate"):
        audit_one_run(game, [0.0] * 20, epsilon=1.0, false_alarm_rate=0.7)
    assert game.audits_left == 1
    included, excluded = game.split_scores(np.arange(20.0))
    assert sorted([*included, *excluded]) == list(range(20))


@pytest.mark.parametrize("guesses", [(0, 0), (11, 10), (-1, 2), (1.5, 1), 3, (1, 2, 3), None])
def test_impossible_guesses_are_refused(guesses) -> None:
    with pytest.raises(InvalidValue, match="guesses"):
        Inclusion(20, guesses=guesses)


# --- verdicts and arguments ------------------------------------------------------------------


def test_the_three_verdicts_with_reasons() -> None:
    violated = audit_runs(RIGHT, WRONG, epsilon=1.0, thresholds=0.5)
    consistent = audit_runs(WRONG, WRONG, epsilon=1.0, thresholds=0.5)
    weak = audit_runs(RIGHT, WRONG, epsilon=9.0, thresholds=0.5)
    assert [a.verdict for a in (violated, consistent, weak)] == [
        "violated",
        "consistent",
        "too weak to tell",
    ]
    assert "more than the claimed 1" in violated.reason
    assert "ceiling" in weak.reason
    assert "9" in weak.reason
    curve = audit_tradeoff(RIGHT[:3], WRONG[:3], loss=GDP(mu=3.0), delta=1e-5, thresholds=0.5)
    assert curve.verdict == "too weak to tell"
    game = coins(10, (2, 2), 1)
    few = audit_one_run_curve(game, [0.0] * 10, loss=GDP(mu=2.0), delta=1e-5)
    assert (few.verdict, few.epsilon_lower) == ("too weak to tell", 0.0)


def test_outcomes_are_frozen_and_become_json() -> None:
    game = coins(100, (10, 10), 1)
    audits = [
        audit_runs(RIGHT, WRONG, epsilon=1.0),
        audit_gaussian(RIGHT, WRONG, mechanism="gaussian", epsilon=1.0, delta=1e-5),
        audit_tradeoff(RIGHT, WRONG, loss=GDP(mu=1.0), delta=1e-5),
        audit_one_run(game, np.zeros(100), epsilon=1.0),
    ]
    for audit in audits:
        body = json.loads(json.dumps(audit.to_json()))
        assert body["schema"] == "discreet.audit.training"
        assert body["epsilon_lower"] == audit.epsilon_lower <= audit.ceiling + 1e-12
        assert body["assumptions"]
        assert body["evidence"]
        assert str(audit).startswith(audit.verdict)
        assert "could have shown" in str(audit)
        with pytest.raises(AttributeError):
            audit.epsilon_lower = 9.0
        with pytest.raises(TypeError):
            audit.evidence["correct"] = 9


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"thresholds": "best"}, "thresholds"),
        ({"thresholds": ()}, "thresholds"),
        ({"thresholds": math.nan}, "thresholds"),
        ({"thresholds": (0.1, "x")}, "thresholds"),
        ({"epsilon": None}, "loss"),
        ({"loss": PureDP(epsilon=1.0)}, "loss"),
        ({"delta": 1.0}, "delta"),
        ({"false_alarm_rate": 0.0}, "false_alarm_rate"),
    ],
)
def test_wrong_arguments_are_named(changes, named: str) -> None:
    with pytest.raises(InvalidValue, match=named):
        audit_runs(RIGHT, WRONG, **{"epsilon": 1.0, **changes})


@pytest.mark.parametrize("scores", [[], [math.nan], ["a"], [[1.0]], None, 3.0])
def test_scores_that_cannot_be_ranked_are_refused(scores) -> None:
    with pytest.raises(InvalidValue, match="included_scores"):
        audit_runs(scores, WRONG, epsilon=1.0)
    with pytest.raises(InvalidValue, match="excluded_scores"):
        audit_runs(RIGHT, scores, epsilon=1.0)


def test_infinite_scores_have_a_place() -> None:
    audit = audit_runs([math.inf] * 50, [-math.inf] * 50, epsilon=1.0)
    assert audit.epsilon_lower == audit.ceiling > 0
    with pytest.raises(InvalidValue, match="hold one half out"):
        audit_runs([1.0], [0.0], epsilon=1.0)


def test_equal_scores_say_nothing_where_coins_came_in_order() -> None:
    """A list of those who took part after those who did not: by place, every guess was right."""
    elsewhere = Inclusion.from_coins([0] * 250 + [1] * 250, guesses=(100, 100))
    right = elsewhere.correct([0.0] * 500)
    assert stats.binom.cdf(right - 1, 200, 0.5) < 1 - 1e-12
