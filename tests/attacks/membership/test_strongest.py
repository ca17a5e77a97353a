"""Settings and attacks are chosen on shadow models, never on the target, and are strong."""

from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.ensemble import RandomForestClassifier

from attacks.membership.worlds import GaussianWorld, assert_chance, by_hand
from discreet.attacks import (
    Observation,
    ShadowPool,
    ShadowScores,
    lira,
    mark_strongest,
    observe,
    pool_results,
    rmia,
    shokri,
    strongest_of_three,
    yeom,
)
from discreet.attacks._shadow_scores import strength, trials
from discreet.attacks._signals import RESOLUTION
from discreet.errors import InvalidValue
from discreet.report import membership_page, strongest_attack
from discreet.report._membership_page import quoted_confidence

lira_source = import_module("discreet.attacks._lira")
rmia_source = import_module("discreet.attacks._rmia")


@pytest.fixture(scope="module")
def forests() -> ShadowScores:
    """Small forests on 500 pictures of digits: every second answer is exactly 0 or 1."""
    x, y = (part[:500] for part in load_digits(return_X_y=True))

    def train(indices: NDArray[np.intp], seed: int) -> RandomForestClassifier:
        return RandomForestClassifier(12, random_state=seed).fit(x[indices], y[indices])

    return ShadowPool(x, y, train, models=24, classes=10, seed=1).run()


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_saturated_answers_do_not_hide_the_rest(forests: ShadowScores, mode: str) -> None:
    some = [forests.leave_out(row) for row in range(0, 24, 3)]
    default = pool_results([lira(*one, mode=mode) for one in some])
    old = pool_results(
        [lira(*one, mode=mode, variance="moderated", limit=RESOLUTION) for one in some]
    )
    # Eight targets with 250 non-members each: 20 false positives.
    new, before = (one.tpr_at(0.01, confidence=0.999) for one in (default, old))
    assert new.low > before.high
    assert new.share > 2 * before.share
    assert default.auc > old.auc + 0.05


def disguised(seen: Observation) -> Observation:
    """Another target: other answers, and other members of its own."""
    draw = np.random.default_rng(5)
    answers = np.log(draw.dirichlet(np.ones(seen.classes), len(seen)))
    return replace(seen, log_probabilities=answers, members=draw.permutation(seen.members))


def test_the_target_takes_no_part_in_the_choice(forests: ShadowScores) -> None:
    seen, others = forests.leave_out(0)
    other = disguised(seen)
    for attack in (lira, rmia):
        one, two = attack(seen, others).metadata, attack(other, others).metadata
        assert "8 shadow models" in one["settings_chosen_on"]
        for name in ("variance", "limit", "offline_a", "settings_chosen_on"):
            assert one.get(name) == two.get(name)
    chosen = [
        [
            "strongest_on" in one.metadata
            for one in mark_strongest(
                [yeom(target), lira(target, others), rmia(target, others)], target, others
            )
        ]
        for target in (seen, other)
    ]
    assert chosen[0] == chosen[1]
    assert sum(chosen[0]) == 1
    # What is picked on the target does follow the target: luck is quoted.
    assert strongest_attack([yeom(seen), lira(seen, others)]).attack == "lira online"
    confident = replace(
        seen, log_probabilities=np.where(seen.members, -1e-9, -3.0)[:, None] + np.zeros(10)
    )
    assert strongest_attack([yeom(confident), lira(other, others)]).attack == "yeom"


def test_the_choice_is_the_best_of_all_on_the_shadow_models(forests: ShadowScores) -> None:
    seen, others = forests.leave_out(3)
    both = others.align(seen, signal="scaled_logit")
    tried = trials(both, fewest=2)
    found = {
        (variance, limit): strength(
            lambda one, v=variance, m=limit: lira_source.lira_scores(one, "online", v, m), tried
        )
        for variance in lira_source.VARIANCES
        for limit in lira_source.LIMITS
    }
    said = lira(seen, others).metadata
    assert found[said["variance"], said["limit"]] == max(found.values())
    # A trial is what leave_out says: the twin in slow steps.
    (scores, truth), row = tried[0], 0
    target, rest = others.leave_out(row)
    np.testing.assert_allclose(scores.target, target.scaled_logits(), rtol=1e-5)
    np.testing.assert_array_equal(truth, target.members)
    assert len(scores.shadow) == len(rest)


def test_what_is_given_is_not_chosen(forests: ShadowScores) -> None:
    seen, others = forests.leave_out(1)
    assert (
        lira(seen, others, variance="shared", limit=5.0).metadata["settings_chosen_on"] == "given"
    )
    assert lira(seen, others, limit=5.0).metadata["limit"] == 5.0
    assert lira(seen, others, variance="shared").metadata["variance"] == "shared"
    assert rmia(seen, others, offline_a=0.5).metadata["offline_a"] == 0.5
    assert "settings_chosen_on" not in rmia(seen, others, mode="online").metadata


def test_no_twin_of_a_model_is_its_reference_in_a_trial() -> None:
    """In a pool of pairs every model has its complement, which would turn the attack around."""
    world = GaussianWorld(400, gain=2.0)
    pool = ShadowPool(world.records, world.labels, world.train, models=8, seed=2, pairs=True)
    seen = pool.observe(world.train(np.arange(200), 7), members=np.arange(400) < 200)
    tried = trials(pool.run().align(seen, signal="scaled_logit"), fewest=1)
    assert len(tried) == 8
    for scores, truth in tried:
        alike = (scores.inclusion == truth).mean(axis=1)
        assert len(alike) == 6
        assert ((alike > 0.3) & (alike < 0.7)).all()


@pytest.mark.parametrize("models", [4, 8])
def test_rmia_works_with_four_and_eight_models(models: int) -> None:
    x, y = load_breast_cancer(return_X_y=True)

    def train(indices: NDArray[np.intp], seed: int) -> RandomForestClassifier:
        return RandomForestClassifier(8, random_state=seed).fit(x[indices], y[indices])

    draw = np.random.default_rng(3)
    members = draw.permutation(len(y)) < len(y) // 2
    seen = observe(train(np.flatnonzero(members), 0), x, y, members=members)
    shadows = ShadowPool(x, y, train, models=models, seed=1).run()
    for mode in ("offline", "online"):
        # Chance is 0.5; the standard deviation of the area is 0.024.
        assert rmia(seen, shadows, mode=mode).auc > 0.6
    names = [
        one.attack
        for one in strongest_of_three(seen, ShadowPool(x, y, train, models=models, seed=1))
    ]
    assert names == ["yeom", "lira online", "rmia offline"]


def test_too_few_models_are_refused_before_any_is_trained() -> None:
    world = GaussianWorld(200, gain=2.0)
    trained: list[int] = []

    def train(indices: NDArray[np.intp], seed: int) -> Any:
        trained.append(seed)
        return world.train(indices, seed)

    seen = observe(
        world.train(np.arange(100), 3), world.records, world.labels, members=np.arange(200) < 100
    )
    alone = ShadowPool(world.records, world.labels, train, models=1, seed=1)
    with pytest.raises(InvalidValue, match="only 0 without it"):
        strongest_of_three(seen, alone)
    bare = ShadowPool(world.records, world.labels, train, models=4, seed=1, pairs=False)
    with pytest.raises(InvalidValue, match="only 0 without it"):
        rmia_source.check_rmia_models(bare.inclusion)
    with pytest.raises(InvalidValue, match="only 0 without it"):
        lira_source.check_lira_models(bare.inclusion)
    assert not trained
    # One pair is enough for RMIA, and not for LiRA.
    pair = ShadowPool(world.records, world.labels, train, models=2, seed=1)
    results = strongest_of_three(seen, pair)
    assert [one.attack for one in results] == ["yeom", "rmia offline"]
    assert "too few" in results[1].metadata["strongest_on"]
    assert len(trained) == 2


def test_at_chance_the_strongest_is_at_chance() -> None:
    world = GaussianWorld(600, gain=0.0)
    scores = ShadowPool(world.records, world.labels, world.train, models=16, seed=4).run()
    for row in range(3):
        seen, others = scores.leave_out(row)
        results = mark_strongest([yeom(seen), lira(seen, others), rmia(seen, others)], seen, others)
        assert_chance(strongest_attack(results))


def test_pages_say_how_the_attack_was_chosen(forests: ShadowScores) -> None:
    seen, others = forests.leave_out(2)
    results = [yeom(seen), lira(seen, others), rmia(seen, others)]
    marked = mark_strongest(results, seen, others)
    assert quoted_confidence(marked, 0.95) == 0.95
    assert quoted_confidence(results, 0.95) == pytest.approx(1 - 0.05 / 3)
    text = membership_page(list(marked), exposed=0).html().replace("\u00a0", " ")
    assert "was chosen as the strongest on shadow models: members found at 1 % FPR" in text
    text = membership_page(results, exposed=0).html()
    assert "was picked in hindsight as the best of 3 attacks" in text
    assert "only attack" in membership_page(results[:1], exposed=0).html()


def test_other_attacks_are_left_as_they_are(forests: ShadowScores) -> None:
    seen, others = forests.leave_out(2)
    other = shokri(seen, others, seed=1)
    marked = mark_strongest([other, yeom(seen)], seen, others)
    assert marked[0] is other
    assert "yeom" in marked[1].metadata["strongest_on"]
    with pytest.raises(InvalidValue, match="results"):
        mark_strongest([other], seen, others)
    few = by_hand(
        [2.0, 3.0], [[1.0, 0.0], [3.0, 1.0]], [[True, False], [False, True]], [True, False]
    )
    assert "too few" in rmia(*few).metadata["settings_chosen_on"]
