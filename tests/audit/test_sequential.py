"""Audits by betting hold at any time, and stop early on what is broken (S34)."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from audit.null_mechanisms import most_alarms, response, revealing
from discreet.audit import TrainingBets, _sequential, audit_mechanism_sequentially
from discreet.audit.zoo import SPECIMENS
from discreet.errors import InvalidValue, NotApplicable
from discreet.privacy import PureDP
from discreet.randomness import source

RATE = 0.05
AUDITS = 200


def alarms_of_training(scores_of: Any, epsilon: float, delta: float, runs: int) -> int:
    """How many of many audits ever call a claim violated that is exactly true."""
    found = 0
    for seed in range(AUDITS):
        bits, draw = source(insecure_seed=seed), np.random.default_rng(seed)
        bets = TrainingBets(epsilon=epsilon, delta=delta, false_alarm_rate=RATE, source=bits)
        scores = scores_of(draw)
        for _ in range(runs):
            included = bets.toss()
            bets.hand_in(float(scores(np.array([included]))[0]))
            if bets.violated:  # whoever may stop at any time stops at the worst one
                found += 1
                break
    return found


def respond(draw: Any) -> Any:
    return response(draw, 0.7)


def reveal(draw: Any) -> Any:
    return revealing(draw, 1.5, 0.1)


@pytest.mark.parametrize(
    ("scores_of", "epsilon", "delta"), [(respond, 0.7, 0.0), (reveal, 1.5, 0.1)]
)
def test_a_right_claim_is_ever_refuted_as_rarely_as_stated(
    scores_of: Any, epsilon: float, delta: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped at the worst moment; and bets that forget what epsilon allows do not hold."""
    monkeypatch.setattr(_sequential, "_threshold", lambda *_: 0.5)  # the best guesses at once
    assert alarms_of_training(scores_of, epsilon, delta, 60) <= most_alarms(AUDITS, RATE)
    begin = _sequential._Wealth.__init__

    def forgetful(wealth: Any, claim: Any) -> None:
        begin(wealth, replace(claim, epsilon=0.0))

    monkeypatch.setattr(_sequential._Wealth, "__init__", forgetful)
    assert alarms_of_training(scores_of, epsilon, delta, 60) > most_alarms(AUDITS, RATE)


def test_right_claims_survive_with_learned_thresholds() -> None:
    assert alarms_of_training(respond, 0.7, 0.0, 40) <= most_alarms(AUDITS, RATE)


def test_the_claim_of_a_mechanism_is_refuted_as_rarely_as_stated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Randomized response at its exact epsilon; bets that forget half of it do not hold."""

    def draw(seed: int) -> Any:
        generator = np.random.default_rng(seed)
        truth = math.exp(1) / (1 + math.exp(1))

        def mechanism(bit: int, count: int) -> Any:
            honest = generator.random(count) < truth
            return np.where(honest, bit, 1 - bit)

        return mechanism

    def alarms() -> int:
        return sum(
            audit_mechanism_sequentially(
                draw(seed), 0, 1, epsilon=1.0, most_samples=800, false_alarm_rate=RATE, batch=True
            ).violated
            for seed in range(60)
        )

    assert alarms() <= most_alarms(60, RATE)
    begin = _sequential._Wealth.__init__
    monkeypatch.setattr(
        _sequential._Wealth,
        "__init__",
        lambda wealth, claim: begin(wealth, replace(claim, epsilon=0.5)),
    )
    assert alarms() > most_alarms(60, RATE)


@pytest.mark.parametrize("name", ["laplace-halved-noise", "sparse-vector-5", "gaussian"])
def test_broken_specimens_are_refuted_early_and_right_ones_are_not(name: str) -> None:
    specimen = SPECIMENS[name]
    bits = source(insecure_seed=1)
    found = audit_mechanism_sequentially(
        lambda data, count: specimen.draw(data, count, bits),
        specimen.first,
        specimen.second,
        loss=specimen.loss,
        delta=specimen.delta,
        most_samples=specimen.samples,
        false_alarm_rate=1e-9,
        batch=True,
    )
    assert found.violated == specimen.broken, str(found)
    if specimen.broken:
        assert found.samples < specimen.samples
        assert found.log_e_value >= -math.log(1e-9)
    assert "whenever it is stopped" in str(found)


def test_a_trainer_that_tells_is_refuted_after_few_runs() -> None:
    for epsilon, most in ((0.0, 12), (1.0, 40), (3.0, 260)):
        bets = TrainingBets(epsilon=epsilon, source=source(insecure_seed=2))
        while not bets.violated and bets.runs < most:
            bets.hand_in(float(bets.toss()))
        assert bets.violated, epsilon
        assert bets.outcome().samples == bets.runs
    weak = TrainingBets(loss=PureDP(epsilon=5.0))
    weak.toss()
    weak.hand_in(1.0)
    assert weak.outcome().verdict == "too weak to tell"


def test_runs_cannot_be_dropped_or_bet_on_twice() -> None:
    bets = TrainingBets(epsilon=1.0)
    with pytest.raises(NotApplicable, match="toss"):
        bets.hand_in(1.0)
    bets.toss()
    with pytest.raises(NotApplicable, match="no score yet"):
        bets.toss()
    with pytest.raises(InvalidValue, match="score"):
        bets.hand_in(math.nan)
    bets.hand_in(0.5)
    with pytest.raises(InvalidValue, match="epsilon"):
        TrainingBets(epsilon=800.0)
    with pytest.raises(InvalidValue, match="most_samples"):
        audit_mechanism_sequentially(lambda bit: bit, 0, 1, epsilon=1.0, most_samples=10)
