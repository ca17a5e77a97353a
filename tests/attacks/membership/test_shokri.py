"""Attack models on shadow answers (S28)."""

from importlib import import_module

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.svm import LinearSVC

from attacks.membership.worlds import GaussianWorld, assert_chance, by_hand, forget_twins
from discreet.attacks import Observation, ShadowScores, shokri
from discreet.errors import InvalidValue


@pytest.fixture(scope="module")
def leaking() -> ShadowScores:
    return GaussianWorld(600, gain=3.0, base=1.0).pool(6).run()


@pytest.mark.parametrize(
    "attack_model", [None, LogisticRegression(), GaussianNB(), LinearSVC()], ids=repr
)
def test_finds_members_with_any_classifier(attack_model: object, leaking: ShadowScores) -> None:
    own = shokri(*leaking.leave_out(0), attack_model=attack_model, seed=3)
    # All the leak is in one number, of which the best threshold gets Phi(3 / sqrt(2) / 1.45).
    assert own.auc > 0.85
    assert own.advantage().low > 0.4
    assert own.metadata["attack_models"] == 2
    precision = own.precision()
    assert precision is not None
    assert precision.low > 0.7


@pytest.mark.parametrize("features", ["sorted", "vector"])
def test_other_views(features: str, leaking: ShadowScores) -> None:
    own = shokri(*leaking.leave_out(0), features=features, seed=3)
    assert own.metadata["features"] == features
    # Sorted confidences alone do not tell a sure right answer from a sure wrong one.
    assert own.auc > (0.85 if features == "vector" else 0.6)


def test_views_by_hand() -> None:
    p = np.log(np.array([[0.2, 0.7, 0.1]]))
    label = np.array([0])
    view = import_module("discreet.attacks._shokri")._View
    np.testing.assert_allclose(view("vector", 2).show(p, label), p)
    np.testing.assert_allclose(view("sorted", 2).show(p, label), np.log([[0.7, 0.2]]))
    both = view("sorted and true class", 2).show(p, label)
    np.testing.assert_allclose(both, [[np.log(0.7), np.log(0.2), np.log(0.25)]])


def test_chance_where_nothing_leaks() -> None:
    silent = GaussianWorld(2000, gain=0.0).pool(5).run()
    own = shokri(*silent.leave_out(0), seed=3)
    assert_chance(own)
    # Decisions are independent of membership: six standard deviations, 1000 on each side.
    assert abs(own.advantage().value) < 6 * np.sqrt(0.5 / 1000)


def test_attackers_own_records(leaking: ShadowScores) -> None:
    # The attacker's pool is over other people than those attacked.
    seen, shadows = leaking.leave_out(0)
    judged, own = np.arange(600) < 300, np.arange(600) >= 300
    theirs = ShadowScores(
        [scores[own] for scores in shadows.log_probabilities],
        shadows.inclusion[:, own],
        shadows.labels[own],
        shadows.digests[own],
    )
    assert shokri(seen.part(judged), theirs, seed=0).auc > 0.85


def test_a_class_without_lessons_uses_the_model_of_all() -> None:
    seen, shadows = GaussianWorld(200, gain=3.0).pool(5).run().leave_out(0)
    lonely = np.flatnonzero(seen.labels == 1)[:2]
    keep = np.sort(np.concatenate([np.flatnonzero(seen.labels == 0), lonely]))
    few = ShadowScores(
        [scores[keep] for scores in shadows.log_probabilities],
        shadows.inclusion[:, keep],
        shadows.labels[keep],
        shadows.digests[keep],
    )
    own = shokri(seen, few, seed=0)
    assert own.metadata["attack_models"] == 2
    assert own.auc > 0.6


def test_order_does_not_matter_and_seeds_repeat(leaking: ShadowScores) -> None:
    seen, shadows = leaking.leave_out(0)
    order = np.random.default_rng(0).permutation(len(seen))
    one = shokri(seen, shadows, seed=5, examples=400)
    two = shokri(seen.part(order), shadows, seed=5, examples=400)
    np.testing.assert_array_equal(two.scores, one.scores[order])


def test_the_target_among_its_shadows_is_caught(
    leaking: ShadowScores, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, others = leaking.leave_out(0)
    assert shokri(seen, leaking, seed=1).metadata["shadows"] == len(others)
    forget_twins(monkeypatch)
    with pytest.raises(AssertionError):
        assert shokri(seen, leaking, seed=1).metadata["shadows"] == len(others)


def test_bad_input(leaking: ShadowScores) -> None:
    seen, shadows = leaking.leave_out(0)
    with pytest.raises(InvalidValue, match="features"):
        shokri(seen, shadows, features="all")
    with pytest.raises(InvalidValue, match="top"):
        shokri(seen, shadows, top=0)
    with pytest.raises(InvalidValue, match="examples"):
        shokri(seen, shadows, examples=3)
    three = Observation(
        np.log(np.full((len(seen), 3), 1 / 3)), seen.labels, seen.members, seen.digests
    )
    with pytest.raises(InvalidValue, match="3 classes"):
        shokri(three, shadows)
    few = by_hand([1.0, 0.0], [[1.0, 0.0]], [[True, False]], [True, False])
    with pytest.raises(InvalidValue, match="at least 10 answers"):
        shokri(*few)
