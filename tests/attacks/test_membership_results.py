"""Results of membership attacks (S28)."""

import json

import numpy as np
import pytest

from discreet.attacks import SMALLEST_SLICE, MembershipResult, pool_results
from discreet.errors import InvalidValue, NotApplicable


def result(decided: bool = True) -> MembershipResult:
    scores = np.array([0.9, 0.8, 0.7, 0.2, 0.75, 0.1, 0.2, 0.0])
    members = np.array([True] * 4 + [False] * 4)
    return MembershipResult(
        "hand",
        scores,
        members,
        np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        np.arange(8) + 100,
        scores >= 0.5 if decided else None,
        0.5,
        {"note": "by hand"},
    )


def test_figures_by_hand() -> None:
    one = result()
    assert one.recall().share == 3 / 4
    assert one.false_positive_rate().share == 1 / 4
    precision = one.precision()
    assert precision is not None
    assert (precision.successes, precision.trials) == (3, 4)
    assert one.accuracy().share == 6 / 8
    assert one.advantage().value == 0.5
    # 16 pairs: 0.9 and 0.8 win 4 each, 0.7 wins 3, 0.2 wins 2 and draws 1.
    assert one.auc == 13.5 / 16
    assert one.best_advantage == 0.5
    assert one.tpr_at(0.25).share == 3 / 4
    with pytest.raises(InvalidValue, match="4 non-members cannot support"):
        one.tpr_at(0.1)
    assert one.operating_points() == ()


def test_precision_is_about_those_accused() -> None:
    # Two of five members are accused, and one of four others: two of three are right.
    members = np.arange(9) < 5
    said = np.array([True, True, False, False, False, True, False, False, False])
    one = MembershipResult(
        "hand", said * 1.0, members, np.zeros(9, dtype=np.int64), np.arange(9), said, 1.0
    )
    precision, recall = one.precision(), one.recall()
    assert precision is not None
    assert (precision.successes, precision.trials) == (2, 3)
    assert (recall.successes, recall.trials) == (2, 5)


def test_single_scores_do_not_get_into_logs() -> None:
    assert repr(result()) == "MembershipResult('hand', members=4, nonmembers=4, auc=0.8438)"


def test_most_exposed_are_members_by_score() -> None:
    exposed = result().most_exposed(2)
    assert [(one.record, one.label, one.score) for one in exposed] == [(100, 0, 0.9), (101, 0, 0.8)]
    assert exposed[0].fpr.successes == 0
    assert exposed[0].fpr.high > 0.4  # four non-members say little
    assert [one.record for one in result().most_exposed(9)] == [100, 101, 102, 103]


def test_slices() -> None:
    parts = result().slices()
    assert [(part.name, part.members, part.nonmembers) for part in parts] == [
        ("0", 2, 2),
        ("1", 2, 2),
    ]
    assert parts[0].auc == 1.0
    assert parts[1].auc == 3.5 / 4
    groups = ["a"] * 4 + ["b"] * 4  # neither has both kinds
    assert result().slices(groups) == []
    with pytest.raises(InvalidValue, match="groups"):
        result().slices(["a"])


def test_whoever_has_no_group_is_in_a_group() -> None:
    one, nobody = result(), float("nan")
    by_number = one.slices(np.array([1.0, nobody] * 4))
    assert [(part.name, part.members) for part in by_number] == [("1.0", 2), ("missing", 2)]
    mixed = np.array(["a", None, nobody, np.float64("nan")] * 2, dtype=object)
    named = [(part.name, part.members, part.nonmembers) for part in one.slices(mixed)]
    assert named == [("None", 1, 1), ("a", 1, 1), ("missing", 2, 2)]
    days = np.array(["2020-01-01", "NaT"] * 4, dtype="datetime64[ns]")
    assert [part.members for part in one.slices(days)] == [2, 2]
    assert one.slices(days)[1].name == "missing"


def test_small_slices_are_left_out_where_no_single_record_may_show() -> None:
    # Classes with 9, 10 and 40 members; as many non-members, but 9 in the last.
    labels = np.repeat([0, 0, 1, 1, 2, 2, 3, 3], [9, 40, 10, 10, 40, 40, 40, 9])
    members = np.repeat([True, False] * 4, [9, 40, 10, 10, 40, 40, 40, 9])
    one = MembershipResult("x", np.arange(198.0) % 17, members, labels, np.arange(198))
    assert [part.name for part in one.slices()] == ["0", "1", "2", "3"]
    assert [part.name for part in one.slices(smallest=SMALLEST_SLICE)] == ["1", "2"]
    assert [part["name"] for part in one.to_json(exposed=0)["slices"]] == ["1", "2"]
    assert len(one.to_json(exposed=1)["slices"]) == 4
    with pytest.raises(InvalidValue, match="smallest"):
        one.slices(smallest=0)


def test_what_set_the_threshold_is_told_or_unknown() -> None:
    assert result().threshold_from is None
    assert result().threshold_saw_evaluated is None
    assert result().to_json()["decisions"]["threshold_from"] is None


def test_no_decisions_no_precision() -> None:
    one = result(decided=False)
    for figure in (one.precision, one.recall, one.advantage, one.accuracy):
        with pytest.raises(NotApplicable, match="read the curve"):
            figure()
    assert one.to_json()["decisions"] is None


def test_json_is_json() -> None:
    one = result()
    text = json.dumps(one.to_json(), allow_nan=False)
    back = json.loads(text)
    assert back["decisions"]["precision"]["share"] == 0.75
    assert back["most_exposed"][0]["record"] == 100
    assert one.to_json(exposed=0)["most_exposed"] == []
    assert back["smallest_supported_fpr"] == 0.25
    infinite = MembershipResult(
        "x", np.array([np.inf, -np.inf]), np.array([True, False]), np.zeros(2, int), np.arange(2)
    )
    json.dumps(infinite.to_json(), allow_nan=False)


def test_bad_results_are_refused() -> None:
    scores, both = np.array([0.0, 1.0]), np.array([True, False])
    labels = np.zeros(2, dtype=np.int64)
    with pytest.raises(InvalidValue, match="members and non-members"):
        MembershipResult("x", scores, np.array([True, True]), labels, np.arange(2))
    with pytest.raises(InvalidValue, match="not a number"):
        MembershipResult("x", np.array([np.nan, 0.0]), both, labels, np.arange(2))
    with pytest.raises(InvalidValue, match="labels"):
        MembershipResult("x", scores, both, labels[:1], np.arange(2))


def test_pooled() -> None:
    many = pool_results([result(), result()])
    assert len(many.scores) == 16
    assert many.auc == result().auc
    assert many.threshold == 0.5
    assert many.metadata["pooled_targets"] == 2
    assert pool_results([result(), result(decided=False)]).decisions is None
    with pytest.raises(InvalidValue, match="results"):
        pool_results([])


@pytest.mark.parametrize("each", [50, 500])
def test_scores_without_a_signal_leak_no_more_often_than_the_intervals_may_fail(each):
    """Two ends at 97.5 %: at most 5 % of nulls. Of 300, 33 come with a probability below 1e-5."""
    rng = np.random.default_rng(each)
    members, codes = np.arange(2 * each) < each, np.zeros(2 * each, dtype=np.int64)
    alarms = against_asked = 0
    for _ in range(300):
        scores = rng.normal(size=2 * each)
        result = MembershipResult("made up", scores, members, codes, np.arange(2 * each))
        alarms += result.leaks
        asked = min(one.asked_fpr for one in result.operating_points())
        against_asked += result.finding.low > asked
    assert alarms < 33
    # The rate that was asked for is no chance: the threshold was set on these non-members.
    assert against_asked > 20
