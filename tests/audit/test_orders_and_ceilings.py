"""What audits of training take for granted about their scores and coins, and now ask for."""

import numpy as np
import pytest

from discreet.audit import (
    Inclusion,
    audit_gaussian,
    audit_one_run,
    audit_one_run_curve,
    audit_runs,
    one_run_epsilon,
)
from discreet.errors import InvalidValue, NotApplicable
from discreet.privacy import PureDP
from discreet.randomness import source


def coins(canaries: int, guesses: tuple[int, int], seed: int, audits: int = 1) -> Inclusion:
    return Inclusion(canaries, guesses=guesses, audits=audits, source=source(insecure_seed=seed))


@pytest.mark.parametrize("kind", ["normal", "binary"])
@pytest.mark.parametrize("order", ["rising", "falling"])
def test_sorted_scores_cannot_be_held_out(kind: str, order: str) -> None:
    """With one list sorted, the Gaussian audit of equal lists alarmed in half of all cases."""
    rng = np.random.default_rng(1)
    scores, other = rng.normal(size=(2, 400))
    if kind == "binary":
        scores, other = (scores > 0.0).astype(float), (other > 0.0).astype(float)
    arranged = np.sort(scores) if order == "rising" else np.sort(scores)[::-1]
    for audit in (
        lambda *lists: audit_runs(*lists, epsilon=0.1, delta=1e-5),
        lambda *lists: audit_gaussian(*lists, epsilon=0.1, delta=1e-5, mechanism="gaussian"),
    ):
        with pytest.raises(InvalidValue, match=r"included_scores = .*order of the runs"):
            audit(arranged, other)
        with pytest.raises(InvalidValue, match=r"excluded_scores = .*order of the runs"):
            audit(other, arranged)
        assert not audit(scores, other).violated
    # A threshold that was fixed beforehand does not care about the order.
    assert not audit_runs(arranged, other, epsilon=0.1, delta=1e-5, thresholds=0.5).violated


def test_honest_orders_pass() -> None:
    """Constants, few values, heavy tails, small lists: the refusal has no false alarms here."""
    rng = np.random.default_rng(2)
    for size in (2, 3, 7, 50, 1001):
        for draw in (
            np.zeros(size),
            (rng.random(size) < 0.02).astype(float),
            rng.standard_cauchy(size),
            np.where(rng.random(size) < 0.5, np.inf, -np.inf),
        ):
            assert audit_runs(draw, draw[::-1], epsilon=5.0).verdict != "violated"


def test_coins_for_several_audits_are_not_taken_apart() -> None:
    """Twenty attacks at 5 % each are not one at 5 %: the caller would not divide the rate."""
    shared = coins(60, (1, 0), 1, audits=2)
    with pytest.raises(NotApplicable, match="share one false-alarm rate"):
        shared.split_scores(np.arange(60.0))
    assert shared.audits_left == 2
    included, excluded = coins(60, (1, 0), 1).split_scores(np.arange(60.0))
    assert included.size + excluded.size == 60


@pytest.mark.parametrize("seed", range(5))
def test_the_ceiling_is_what_the_best_attack_shows(seed: int) -> None:
    """Whoever must call half of the canaries included errs wherever fewer are."""
    for judge in (
        lambda game, scores: audit_one_run(game, scores, epsilon=5.0, delta=1e-5),
        lambda game, scores: audit_one_run_curve(
            game, scores, loss=PureDP(epsilon=5.0), delta=1e-5
        ),
    ):
        game = coins(300, (150, 150), seed)
        inside = int(game.included.sum())
        found = judge(game, game.included.astype(float))
        assert found.epsilon_lower == found.ceiling
        assert found.evidence["correct"] == found.evidence["could_be_correct"]
        assert found.evidence["could_be_correct"] == 300 - abs(inside - 150)
    naive = one_run_epsilon(canaries=300, guesses=300, correct=300, delta=1e-5, rate=0.05)
    if inside != 150:
        assert found.ceiling < naive


def test_an_audit_that_its_coins_make_too_weak_says_so() -> None:
    game = coins(300, (150, 150), 1)
    naive = one_run_epsilon(canaries=300, guesses=300, correct=300, delta=1e-5, rate=0.05)
    found = audit_one_run(game, game.included.astype(float), epsilon=naive - 0.1, delta=1e-5)
    assert int(game.included.sum()) != 150
    assert found.verdict == "too weak to tell"


def test_coins_stay_as_they_fell() -> None:
    game = coins(20, (5, 5), 1)
    with pytest.raises(ValueError, match="WRITEABLE"):
        game.included.flags.writeable = True
