"""The audits of training alarm at most as often as they say, and spoiled ones alarm more often.

Audited is always the exact truth, so every "violated" is a false alarm. A right audit fails one of
these tests with probability below 1e-7; the draws are seeded, so it does so always or never.
"""

import math
from typing import Any

import numpy as np
import pytest
from scipy import special

from audit.null_mechanisms import (
    coins,
    fewest_alarms,
    gaussian,
    most_alarms,
    pair,
    response,
    revealing,
    revealing_some,
    sampled_gaussian,
    tight_threshold,
)
from discreet._confidence import lower_bounds, upper_bounds
from discreet.audit import _many_runs as runs_module
from discreet.audit import (
    audit_gaussian,
    audit_one_run,
    audit_one_run_curve,
    audit_runs,
    audit_tradeoff,
)
from discreet.audit._one_run import GaussianCurve, contradicts_curve, one_run_p_value
from discreet.privacy import GDP, Gaussian, PureDP

AUDITS = 400
RATE = 0.1
MU, POINT = 1.0, 0.02
GAUSSIAN_EPSILON, GAUSSIAN_CUT = tight_threshold(MU, POINT)
RULES = [
    pytest.param("held-out", id="held-out"),
    pytest.param((-0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5), id="grid"),
]


def test_the_planted_mechanisms_have_the_stated_epsilon() -> None:
    generator = np.random.default_rng(1)
    with_it, without = pair(revealing(generator, 1.0, 0.1), 200_000)
    tpr, fpr = (with_it > 0.5).mean(), (without > 0.5).mean()
    assert tpr == pytest.approx(math.e * fpr + 0.1, abs=0.01)
    with_it, without = pair(gaussian(generator, MU), 200_000)
    tpr, fpr = (with_it > GAUSSIAN_CUT).mean(), (without > GAUSSIAN_CUT).mean()
    assert tpr == pytest.approx(math.exp(GAUSSIAN_EPSILON) * fpr + POINT, abs=0.01)


@pytest.mark.parametrize(
    ("kind", "epsilon", "delta", "thresholds"),
    [
        pytest.param("response", 1.0, 0.0, 0.5, id="response"),
        pytest.param("response", 1.0, 0.0, "held-out", id="response, held-out"),
        pytest.param("revealing", 1.0, 0.1, 0.5, id="revealing"),
        pytest.param("revealing", 1.0, 0.1, (-0.5, 0.5, 1.5), id="revealing, grid"),
        pytest.param("gaussian", GAUSSIAN_EPSILON, POINT, GAUSSIAN_CUT, id="gaussian"),
        pytest.param("gaussian", GAUSSIAN_EPSILON, POINT, "held-out", id="gaussian, held-out"),
    ],
)
def test_many_runs(kind: str, epsilon: float, delta: float, thresholds: Any) -> None:
    generator = np.random.default_rng(2)
    scores = {
        "response": response(generator, 1.0),
        "revealing": revealing(generator, 1.0, 0.1),
        "gaussian": gaussian(generator, MU),
    }[kind]
    alarms = sum(
        audit_runs(
            *pair(scores, 300),
            epsilon=epsilon,
            delta=delta,
            thresholds=thresholds,
            false_alarm_rate=RATE,
        ).violated
        for _ in range(AUDITS)
    )
    assert alarms <= most_alarms(AUDITS, RATE)


def test_many_runs_is_not_silent() -> None:
    """At the claim 0.6 the same randomized response of epsilon 1 is found out almost always."""
    scores = response(np.random.default_rng(3), 1.0)
    audits = [audit_runs(*pair(scores, 2000), epsilon=0.6, thresholds=0.5) for _ in range(40)]
    assert sum(audit.violated for audit in audits) >= 38
    assert np.median([audit.epsilon_lower for audit in audits]) > 0.8


def test_spoiled_without_the_delta_term(monkeypatch: pytest.MonkeyPatch) -> None:
    true = runs_module.epsilons_from_rates
    monkeypatch.setattr(
        runs_module, "epsilons_from_rates", lambda fpr, tpr, *, delta: true(fpr, tpr, delta=0.0)
    )
    scores = revealing(np.random.default_rng(4), 1.0, 0.1)
    alarms = sum(
        audit_runs(
            *pair(scores, 300), epsilon=1.0, delta=0.1, thresholds=0.5, false_alarm_rate=RATE
        ).violated
        for _ in range(AUDITS)
    )
    assert alarms >= fewest_alarms(AUDITS, RATE)


def best_of_all(with_it: np.ndarray, without: np.ndarray, rate: float) -> tuple[float, float]:
    """The planted bug: epsilon and mu from the best of all thresholds, none corrected.

    As in a peer, at the full error for each side.
    """
    cuts = np.concatenate([with_it, without])
    hits = with_it.size - np.searchsorted(np.sort(with_it), cuts, side="right")
    alarms = without.size - np.searchsorted(np.sort(without), cuts, side="right")
    tpr = lower_bounds(hits, with_it.size, error=rate)
    fpr = upper_bounds(alarms, without.size, error=rate)
    mus = special.ndtri(tpr) - special.ndtri(fpr)
    return float(runs_module.epsilons_from_rates(fpr, tpr, delta=0.0).max()), float(mus.max())


def test_spoiled_by_the_best_of_all_thresholds() -> None:
    """Where the scores say nothing, and for the Gaussian bound at the exact mu."""
    generator = np.random.default_rng(5)
    nothing, true = gaussian(generator, 0.0), gaussian(generator, MU)
    audits = 100
    epsilons = sum(best_of_all(*pair(nothing, 600), RATE)[0] > 0.0 for _ in range(audits))
    mus = sum(best_of_all(*pair(true, 600), RATE)[1] > MU for _ in range(audits))
    assert epsilons >= fewest_alarms(audits, RATE)
    assert mus >= fewest_alarms(audits, RATE)


@pytest.mark.parametrize("thresholds", [*RULES, pytest.param(MU / 2, id="fixed")])
def test_gaussian_bound(thresholds: Any) -> None:
    scores = gaussian(np.random.default_rng(6), MU)
    alarms = sum(
        audit_gaussian(
            *pair(scores, 200),
            mechanism="gaussian",
            loss=GDP(mu=MU),
            delta=1e-5,
            thresholds=thresholds,
            false_alarm_rate=RATE,
        ).violated
        for _ in range(AUDITS // 2)
    )
    assert alarms <= most_alarms(AUDITS // 2, RATE)


def test_the_gaussian_bound_is_wrong_for_other_mechanisms() -> None:
    """Randomized response of epsilon 1 would be "shown" to exceed 3: why the word is asked for."""
    scores = response(np.random.default_rng(7), 1.0)
    audit = audit_gaussian(
        *pair(scores, 2000), mechanism="gaussian", epsilon=1.0, delta=1e-5, thresholds=0.5
    )
    assert audit.epsilon_lower > 3.0
    assert any("valid only for Gaussian mechanisms" in text for text in audit.assumptions)


@pytest.mark.parametrize("thresholds", [*RULES, pytest.param(0.5, id="fixed")])
def test_tradeoff_curve(thresholds: Any) -> None:
    scores = gaussian(np.random.default_rng(8), MU)
    alarms = sum(
        audit_tradeoff(
            *pair(scores, 200),
            loss=GDP(mu=MU),
            delta=1e-5,
            thresholds=thresholds,
            false_alarm_rate=RATE,
        ).violated
        for _ in range(AUDITS)
    )
    assert alarms <= most_alarms(AUDITS, RATE)


def test_tradeoff_curve_of_a_subsampled_step() -> None:
    loss = Gaussian(noise_multiplier=0.5).poisson(rate=0.4)
    scores = sampled_gaussian(np.random.default_rng(9), 0.5, 0.4)
    alarms = sum(
        audit_tradeoff(
            *pair(scores, 300), loss=loss, delta=1e-5, thresholds=0.0, false_alarm_rate=RATE
        ).violated
        for _ in range(AUDITS)
    )
    assert alarms <= most_alarms(AUDITS, RATE)
    half = Gaussian(noise_multiplier=1.0).poisson(rate=0.4)
    audit = audit_tradeoff(*pair(scores, 3000), loss=half, delta=1e-5, thresholds=0.0)
    assert audit.violated
    assert audit.epsilon_lower < audit.claimed_epsilon  # no single delta shows it


# --- one run ---------------------------------------------------------------------------------


def one_run_alarms(scores: Any, canaries: int, guesses: tuple[int, int], **claim: Any) -> int:
    alarms = 0
    for seed in range(AUDITS):
        game = coins(canaries, guesses, seed)
        seen = scores(game.included)
        alarms += audit_one_run(game, seen, false_alarm_rate=RATE, **claim).violated
    return alarms


def test_one_run_at_its_tightest() -> None:
    """Randomized response, all guessed: the bound is exact, so the rate is almost used up."""
    alarms = one_run_alarms(response(np.random.default_rng(10), 1.0), 80, (40, 40), epsilon=1.0)
    # Calling exactly half included loses a little against guessing each by itself.
    assert alarms <= most_alarms(AUDITS, RATE)
    generator = np.random.default_rng(11)
    p_values = np.array(
        [
            one_run_p_value(canaries=80, guesses=80, correct=int(right), epsilon=1.0, delta=0.0)
            for right in generator.binomial(80, math.e / (1 + math.e), 2000)
        ]
    )
    assert (p_values <= RATE).sum() <= most_alarms(2000, RATE)
    assert (p_values <= RATE).mean() > RATE / 2


@pytest.mark.parametrize(
    ("scores", "guesses", "epsilon", "delta"),
    [
        pytest.param(revealing(np.random.default_rng(12), 1.0, 0.05), (8, 8), 1.0, 0.05, id="each"),
        pytest.param(
            revealing_some(np.random.default_rng(13), 10, 0.01), (5, 5), 0.0, 0.01, id="together"
        ),
    ],
)
def test_one_run_with_delta_and_spoiled_without_it(
    scores: Any, guesses: tuple[int, int], epsilon: float, delta: float
) -> None:
    honest = spoiled = 0
    for seed in range(AUDITS):
        game = coins(200, guesses, seed)
        seen = scores(game.included)
        correct = game.correct(seen)
        facts = {"canaries": 200, "guesses": sum(guesses), "correct": correct, "epsilon": epsilon}
        honest += one_run_p_value(**facts, delta=delta) <= RATE
        spoiled += one_run_p_value(**facts, delta=0.0) <= RATE
    assert honest <= most_alarms(AUDITS, RATE)
    assert spoiled >= fewest_alarms(AUDITS, RATE)


def test_one_run_spoiled_by_guesses_chosen_after_looking() -> None:
    scores = response(np.random.default_rng(14), 1.0)
    fixed = chosen = 0
    for seed in range(AUDITS):
        game = coins(100, (20, 20), seed)
        included, seen = game.included, scores(game.included)
        order = np.argsort(seen)
        right_in = np.cumsum(included[order[::-1]])
        right_out = np.cumsum(~included[order])
        p_values = {
            k: one_run_p_value(
                canaries=100,
                guesses=2 * k,
                correct=int(right_in[k - 1] + right_out[k - 1]),
                epsilon=1.0,
                delta=0.0,
            )
            for k in range(1, 51)
        }
        correct = game.correct(seen)
        assert correct == right_in[19] + right_out[19]
        fixed += p_values[20] <= RATE
        chosen += min(p_values.values()) <= RATE
    assert fixed <= most_alarms(AUDITS, RATE)
    assert chosen >= fewest_alarms(AUDITS, RATE)


@pytest.mark.parametrize(
    ("scores", "loss"),
    [
        pytest.param(gaussian(np.random.default_rng(15), MU), GDP(mu=MU), id="gaussian"),
        pytest.param(
            response(np.random.default_rng(16), 1.0),
            PureDP(epsilon=1.0),
            id="response",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            sampled_gaussian(np.random.default_rng(17), 0.5, 0.4),
            Gaussian(noise_multiplier=0.5).poisson(rate=0.4),
            id="subsampled",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_one_run_against_a_curve(scores: Any, loss: Any) -> None:
    alarms = 0
    for seed in range(AUDITS):
        game = coins(150, (12, 12), seed)
        audit = audit_one_run_curve(
            game, scores(game.included), loss=loss, delta=1e-5, false_alarm_rate=RATE
        )
        alarms += audit.violated
    assert alarms <= most_alarms(AUDITS, RATE)


def test_one_run_gaussian_curve_holds_its_rate_and_finds_half_of_the_noise() -> None:
    generator = np.random.default_rng(18)
    true, loud = gaussian(generator, MU), gaussian(generator, 2 * MU)
    alarms = found = 0
    for seed in range(AUDITS):
        correct = [
            coins(300, (30, 30), seed).correct(kind(coins(300, (30, 30), seed).included))
            for kind in (true, loud)
        ]
        refuted = [
            contradicts_curve(GaussianCurve(MU), canaries=300, guesses=60, correct=c, rate=RATE)
            for c in correct
        ]
        alarms += refuted[0]
        found += refuted[1]
    assert alarms <= most_alarms(AUDITS, RATE)
    assert found > 0.7 * AUDITS


def test_two_audits_of_the_same_coins_share_the_rate() -> None:
    """The larger of the two bounds is still one at the stated confidence."""
    scores = response(np.random.default_rng(19), 1.0)
    alarms = 0
    for seed in range(AUDITS):
        game = coins(60, (30, 30), seed, audits=2)
        seen = scores(game.included)
        other = np.roll(np.sort(seen), seed)[np.argsort(np.argsort(seen))]  # another attack
        first = audit_one_run(game, seen, epsilon=1.0, false_alarm_rate=RATE)
        second = audit_one_run(game, other, epsilon=1.0, false_alarm_rate=RATE)
        alarms += first.violated or second.violated
    assert alarms <= most_alarms(AUDITS, RATE)
