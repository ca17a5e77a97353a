"""The loss threshold (S28): three ways to set it, and the way that cheats."""

from importlib import import_module

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier

from attacks.membership.worlds import GaussianWorld, assert_chance, by_hand, forget_twins
from discreet.attacks import Observation, ShadowScores, label_only, observe_split, yeom
from discreet.attacks._roc import roc_curve
from discreet.errors import InvalidValue

yeom_source = import_module("discreet.attacks._yeom")


def observed(losses: list[float], members: list[bool], first: int = 0) -> Observation:
    count = len(losses)
    with np.errstate(divide="ignore"):
        other = np.log(-np.expm1(-np.array(losses)))
    scores = np.column_stack([-np.array(losses), other])
    digests = np.arange(first, first + count, dtype=np.uint64)
    return Observation(scores, np.zeros(count, dtype=np.int64), np.array(members), digests)


def test_average_training_loss_by_hand() -> None:
    seen = observed([0.1, 0.3, 2.0, 0.25, 1.5], [True, True, False, False, False])
    own = yeom(seen)
    np.testing.assert_allclose(own.scores, [-0.1, -0.3, -2.0, -0.25, -1.5])
    assert own.decisions is not None
    assert own.threshold == pytest.approx(-0.2)
    assert own.decisions.tolist() == [True, False, False, False, False]
    told = yeom(seen, training_loss=0.3)
    assert told.decisions is not None
    assert told.decisions.tolist() == [True, True, False, True, False]
    assert told.auc == 5 / 6


def test_public_losses_by_hand() -> None:
    seen = observed([0.1, 0.3, 2.0, 0.25], [True, True, False, False])
    public = observed([0.2, 0.5, 0.9, 1.0], [False] * 4, first=100)
    # Rank floor(0.4 * 5) = 2: below the second smallest public loss, 0.5.
    own = yeom(seen, public=public, false_positive_rate=0.4)
    assert own.decisions is not None
    assert own.decisions.tolist() == [True, True, False, True]
    with pytest.raises(InvalidValue, match="at least 9 for a false-positive rate"):
        yeom(seen, public=public)
    with pytest.raises(InvalidValue, match="also evaluated"):
        yeom(seen, public=seen)
    used = observed([0.2, 0.5, 0.9, 1.0], [False, True, False, False], first=100)
    with pytest.raises(InvalidValue, match=r"public = .1 members.: expected records that were not"):
        yeom(seen, public=used, false_positive_rate=0.4)


def test_shadow_losses_by_hand() -> None:
    seen, shadows = by_hand(
        [2.0, -2.0],
        [[1.0, -1.0], [-1.0, 1.0]],
        [[True, False], [False, True]],
        [True, False],
    )
    own = yeom(seen, shadows=shadows)
    # Inside the loss is log(1 + 1/e), outside it is log(1 + e): half-way between.
    assert own.threshold == pytest.approx(-np.log1p(np.exp(-1.0)) - 0.5, rel=1e-6)
    assert own.decisions is not None
    assert own.decisions.tolist() == [True, False]


def judge_ties() -> None:
    """A model of few answers, as a small forest: equal up to single precision is equal."""
    for share in np.arange(0.51, 1.0, 0.02):
        logit = float(np.log(share / (1 - share)))
        inside, outside = [logit] * 4, [-logit] * 4
        seen, shadows = by_hand(
            inside + outside,
            [inside + outside, outside + inside],
            [[True] * 4 + [False] * 4, [False] * 4 + [True] * 4],
            [True] * 4 + [False] * 4,
        )
        own = yeom(seen, shadows=shadows)
        assert own.recall().share == 1.0
        assert own.false_positive_rate().share == 0.0


def test_shadow_losses_in_single_precision_tie_with_the_targets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judge_ties()

    def exact(shadows: ShadowScores) -> float:
        scores = -shadows.losses
        curve = roc_curve(scores[shadows.inclusion], scores[~shadows.inclusion])
        return -float(curve.thresholds[max(int(np.argmax(curve.tpr - curve.fpr)), 1)])

    monkeypatch.setattr(yeom_source, "_shadow_limit", exact)
    with pytest.raises(AssertionError):
        judge_ties()


def test_the_target_among_its_shadows_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = GaussianWorld(200, gain=2.0, base=1.0).pool(3).run()

    def judge() -> None:
        for row in range(3):
            seen, _ = scores.leave_out(row)
            others = scores._rows(np.delete(np.arange(3), row))
            own, wanted = yeom(seen, shadows=scores), yeom(seen, shadows=others)
            assert own.threshold == wanted.threshold
            np.testing.assert_array_equal(own.decisions, wanted.decisions)

    judge()
    forget_twins(monkeypatch)
    with pytest.raises(AssertionError):
        judge()


def test_the_largest_shadow_loss_has_no_next() -> None:
    seen, shadows = by_hand([0.1, 0.1], [[0.1, 0.1]], [[True, False]], [True, False])
    own = yeom(seen, shadows=shadows)
    assert own.decisions is not None
    assert own.decisions.tolist() == [True, True]


def test_the_result_says_how_the_threshold_was_set() -> None:
    seen = observed([0.1, 0.3, 0.2], [True, True, False])
    own, told = yeom(seen), yeom(seen, training_loss=0.2)
    assert own.threshold_saw_evaluated is True
    assert "evaluated members" in str(own.threshold_from)
    assert told.threshold_saw_evaluated is False
    decided = own.to_json()["decisions"]
    assert decided["threshold_from"] == own.threshold_from
    assert decided["threshold_saw_evaluated"] is True


@pytest.mark.parametrize("name", [0, 1, "a"])
def test_a_forest_that_met_one_class_gives_nobody_away(name: int | str) -> None:
    x = np.random.default_rng(0).normal(size=(40, 2))
    y = np.array([name] * 40)
    forest = RandomForestClassifier(3, random_state=0).fit(x[:20], y[:20])
    seen = observe_split(forest, members=(x[:20], y[:20]), nonmembers=(x[20:], y[20:]))
    assert yeom(seen).auc == 0.5
    assert (seen.confidences == 1.0).all()
    with pytest.raises(InvalidValue, match="labels some otherwise"):
        label_only(forest, x, y, members=np.arange(40) < 20)


def test_one_way_at_a_time() -> None:
    seen = observed([0.1, 0.3], [True, False])
    with pytest.raises(InvalidValue, match="one way"):
        yeom(seen, training_loss=0.1, public=observed([0.2], [False], first=9))
    with pytest.raises(InvalidValue, match="training_loss"):
        yeom(seen, training_loss=-1.0)


def test_infinite_losses_are_ordinary() -> None:
    seen = observed([0.1, 0.3], [True, False])
    scores = seen.log_probabilities.copy()
    scores[1] = [-np.inf, 0.0]
    own = yeom(Observation(scores, seen.labels, seen.members, seen.digests), training_loss=1.0)
    assert own.decisions is not None
    assert own.decisions.tolist() == [True, False]
    assert own.auc == 1.0


def test_one_member_at_probability_zero_does_not_accuse_everybody() -> None:
    losses = [0.1] * 99 + [np.inf, 0.3, 0.4, 2.0, np.inf]
    own = yeom(observed(losses, [True] * 100 + [False] * 4))
    # 53 log 2 stands for the infinite loss, in the average alone.
    assert own.threshold == pytest.approx(-(9.9 + 53 * np.log(2)) / 100)
    assert own.decisions is not None
    assert own.decisions[100:].tolist() == [True, True, False, False]
    assert own.scores[99] == -np.inf


def test_finds_members_and_nothing_where_nothing_leaks() -> None:
    leaking = GaussianWorld(800, gain=4.0, base=1.0).pool(5).run()
    seen, shadows = leaking.leave_out(0)
    for own in (yeom(seen), yeom(seen, shadows=shadows)):
        assert own.auc > 0.9
        assert own.advantage().low > 0.3
    assert_chance(yeom(GaussianWorld(2000, gain=0.0).pool(2).run().leave_out(0)[0]))


def test_order_does_not_matter() -> None:
    seen, shadows = GaussianWorld(200, gain=1.0).pool(5).run().leave_out(0)
    order = np.random.default_rng(0).permutation(len(seen))
    one, two = yeom(seen, shadows=shadows), yeom(seen.part(order), shadows=shadows)
    np.testing.assert_array_equal(two.scores, one.scores[order])
    assert two.threshold == one.threshold
    assert two.auc == one.auc


def judge_threshold(way: str) -> None:
    """On models that leak nothing, decisions have no advantage on average, over 300 runs.

    The advantage of one run has a standard deviation of at most sqrt(1/2 / 10): the mean of
    300 passes six of them in one of 1e9 runs.
    """
    draw = np.random.default_rng(11)
    total = 0.0
    for _ in range(300):
        losses = draw.exponential(size=40)
        seen = observed(losses[:20].tolist(), [True] * 10 + [False] * 10)
        if way == "public":
            public = observed(losses[20:].tolist(), [False] * 20, first=100)
            total += yeom(seen, public=public, false_positive_rate=0.3).advantage().value
        else:
            half = [bool(value) for value in draw.permutation(10) < 5]
            logits = (-np.log(np.expm1(losses[20:30]))).tolist()
            _, shadows = by_hand([0.0] * 10, [logits], [half], half)
            total += yeom(seen, shadows=shadows).advantage().value
    assert abs(total / 300) < 6 * np.sqrt(1 / 20 / 300)


@pytest.mark.parametrize("way", ["public", "shadows"])
def test_a_threshold_fitted_on_the_evaluated_records_is_caught(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge_threshold(way)
    source = import_module("discreet.attacks._observation")
    right = source.MembershipResult

    def fitted(name: str, scores: np.ndarray, members: np.ndarray, *rest: object) -> object:
        curve = roc_curve(scores[members], scores[~members])
        best = curve.thresholds[np.argmax(curve.tpr - curve.fpr)]
        return right(name, scores, members, rest[0], rest[1], scores >= best, best)

    monkeypatch.setattr(source, "MembershipResult", fitted)
    with pytest.raises(AssertionError):
        judge_threshold(way)


def test_public_threshold_keeps_its_promise() -> None:
    # 2000 runs, each with fresh public losses; exact rate 4/40 = 0.1 without ties.
    draw = np.random.default_rng(4)
    accused = 0
    for _ in range(2000):
        losses = draw.exponential(size=41)
        seen = observed([*losses[:2].tolist()], [True, False])
        public = observed(losses[2:].tolist(), [False] * 39, first=50)
        decisions = yeom(seen, public=public, false_positive_rate=0.1).decisions
        assert decisions is not None
        accused += int(decisions[1])
    sigma = np.sqrt(0.1 * 0.9 / 2000)
    assert abs(accused / 2000 - 0.1) < 6 * sigma
