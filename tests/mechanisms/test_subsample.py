"""S17: votes of subsets move by the cap at most; the printed numbers; abstentions; joblib."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from discreet.errors import InvalidValue
from discreet.mechanisms import (
    FAIL,
    printed_subsampling,
    stability_test,
    subsample_and_aggregate,
    subsample_and_aggregate_as_printed,
    subsampling_stability,
    subsampling_success,
)
from discreet.mechanisms import _subsample as subsample_module
from discreet.mechanisms._subsample import _deal, _members, _vote, _winner
from discreet.privacy import ApproxDP, Relation
from discreet.randomness import source
from randomness.scripted_source import ScriptedSource

REJECT = 1e-9
GOOD = {"subsets": 40, "epsilon": 1, "delta": 1e-5, "relation": "replace"}


def majority(part: object) -> int:
    return int(np.sum(part) * 2 > len(part))


def votes(records: list[int], homes: np.ndarray, subsets: int) -> list[object]:
    return [
        _vote(majority, [r for r, home in zip(records, homes, strict=True) if s in home])
        for s in range(subsets)
    ]


@given(
    st.lists(st.integers(0, 1), min_size=6, max_size=30),
    st.integers(0, 29),
    st.integers(1, 3),
    st.integers(3, 12),
    st.integers(0, 10**6),
    st.booleans(),
)
def test_one_record_moves_the_distance_by_one_at_most(
    records: list[int], place: int, cap: int, subsets: int, seed: int, replaced: bool
) -> None:
    relation = Relation.REPLACE if replaced else Relation.ADD_REMOVE
    homes = _deal(len(records), subsets, cap, relation, source(insecure_seed=seed))
    place %= len(records)
    if replaced:
        other, other_homes = list(records), homes
        other[place] = 1 - other[place]
    else:  # the record is gone; the others keep the subsets that they drew
        other = records[:place] + records[place + 1 :]
        other_homes = np.delete(homes, place, axis=0)
    results = [
        _winner(votes(data, where, subsets))
        for data, where in ((records, homes), (other, other_homes))
    ]
    distances = [lead // (2 * cap) - 1 for _, lead in results]
    assert abs(distances[0] - distances[1]) <= 1
    if results[0][0] != results[1][0]:
        assert max(distances) <= 0


def test_a_cap_that_is_exceeded_is_refuted() -> None:
    # Planted: the distance of disjoint subsets, but the first record is in all five.
    homes = np.array([[0, 1, 2, 3, 4]] + [[s] * 5 for s in range(5)])
    first, second = (_winner(votes([record, *[0] * 5], homes, 5)) for record in (0, 1))
    assert (first, second) == ((0, 5), (0, 5))  # a tie in a subset is a vote for 0
    first, second = (_winner(votes([record, *[1] * 5], homes, 5)) for record in (0, 1))
    assert (first, second) == ((0, 5), (1, 5))
    assert first[1] // 2 - 1 > 0  # different winners at a positive distance
    assert first[1] // (2 * 5) - 1 <= 0  # the true cap knows better


def test_assignments_respect_the_cap_and_are_even() -> None:
    bits = source(insecure_seed=401)
    homes = _deal(103, 10, 3, Relation.REPLACE, bits)
    assert homes.shape == (103, 3)
    for column in homes.T:
        assert set(np.bincount(column, minlength=10)) <= {10, 11}
    drawn = _deal(20_000, 10, 1, Relation.ADD_REMOVE, bits)
    counts = np.bincount(drawn[:, 0], minlength=10)
    assert stats.chisquare(counts).pvalue > REJECT
    dealt = [_deal(10, 2, 1, Relation.REPLACE, bits)[0, 0] for _ in range(4000)]
    assert stats.binomtest(int(sum(dealt)), 4000, 0.5).pvalue > REJECT


@given(st.integers(0, 40), st.integers(1, 9), st.integers(1, 4), st.booleans())
def test_subsets_hold_exactly_the_records_dealt_to_them(
    records: int, subsets: int, cap: int, replaced: bool
) -> None:
    relation = Relation.REPLACE if replaced else Relation.ADD_REMOVE
    homes = _deal(records, subsets, cap, relation, source(insecure_seed=records))
    parts = _members(homes, subsets)
    obvious = [[r for r in range(records) if s in homes[r]] for s in range(subsets)]
    assert [part.tolist() for part in parts] == obvious
    uses = np.bincount(np.concatenate(parts), minlength=records)
    assert np.all((uses >= 1) & (uses <= cap))


@pytest.mark.parametrize(("subsets", "cap"), [(24, 1), (30, 1), (60, 3)])
def test_agreement_is_released_as_often_as_it_should(subsets: int, cap: int) -> None:
    test = stability_test(epsilon=1, delta=1e-5)
    bits = source(insecure_seed=402)
    out = [
        subsample_and_aggregate(
            list(range(70)), lambda part: "same", subsets=subsets, cap=cap, epsilon=1,
            delta=1e-5, relation="replace", source=bits,
        ).value
        for _ in range(600)
    ]  # fmt: skip
    expected = test.passes(subsets // (2 * cap) - 1)
    released = out.count("same")
    assert released + out.count(FAIL) == 600
    assert stats.binomtest(released, 600, expected).pvalue > REJECT


def test_a_clear_answer_comes_out_with_its_loss() -> None:
    records = np.array([1] * 900 + [0] * 100)
    for relation in ("replace", "add_remove"):
        out = subsample_and_aggregate(
            records, majority, **{**GOOD, "subsets": 100, "relation": relation}, insecure_seed=5
        )
        test = stability_test(epsilon=1, delta=1e-5)
        assert out.value == 1
        assert out.loss == ApproxDP(1, test.delta, relation)
        assert out.provenance["randomness"] == "INSECURE seed 5"
        assert out.provenance["cap"] == 1


def test_errors_and_strange_estimates_abstain() -> None:
    def raises(part: object) -> int:
        raise ZeroDivisionError("a record is unusual")

    for estimator in (
        raises,
        lambda part: math.nan,
        lambda part: np.zeros(2),
        lambda part: [1],
        lambda part: (1, math.nan),
        lambda part: object(),
    ):
        out = subsample_and_aggregate([1, 2, 3], estimator, **GOOD)
        assert out.value is FAIL
        assert _vote(estimator, []) is None


def test_estimates_that_are_equal_but_look_different_are_different_votes() -> None:
    looks = [_vote(lambda _, v=v: v, [])[0] for v in (1, 1.0, True, 0.0, -0.0, (1,), (True,))]
    assert len(set(looks)) == 7
    assert _vote(lambda _: np.int64(3), []) == ("3", 3)
    winner, lead = _winner([("1", 1), ("1.0", 1.0), ("1", 1), None])
    assert (repr(winner), lead) == ("1", 1)
    assert _winner([None, None]) == (FAIL, 0)


def test_lists_keep_the_types_of_their_records() -> None:
    # One float in a list must not turn the integers of other subsets into floats.
    seen = []
    records = [*range(20), 0.5]
    subsample_and_aggregate(records, lambda part: seen.extend(map(type, part)), **GOOD)
    assert seen.count(float) == 1
    assert seen.count(int) == 20


def test_processes_give_the_same_answer() -> None:
    # Worker processes cannot import this file, so the estimator is one that they know.
    records = np.arange(300) % 3
    answers = {
        (out.value, out.loss)
        for jobs in (1, 2)
        for out in [subsample_and_aggregate(records, np.size, **GOOD, n_jobs=jobs, insecure_seed=6)]
    }
    assert len(answers) == 1


# --- the printed form -----------------------------------------------------------------------


def test_the_printed_form_needs_millions_of_subsets() -> None:
    printed = printed_subsampling(epsilon=1, delta=1e-5, records=10_000)
    rate = 1 / (32 * math.log(1e5))
    assert float(printed.rate) == pytest.approx(rate, rel=1e-12)
    assert printed.subsets == math.ceil(math.log(1e9) / rate**2)
    assert 2.8e6 < printed.subsets < 2.82e6
    assert printed.cap == int(2 * printed.rate * printed.subsets)
    with pytest.raises(InvalidValue, match="2812740"):
        subsample_and_aggregate_as_printed(
            [0] * 10_000, len, epsilon=1, delta=1e-5, relation="replace"
        )


def test_the_printed_form_answers_and_charges() -> None:
    records = [1] * 29 + [0]
    arguments = {"epsilon": 12, "delta": 0.01}
    test = stability_test(**arguments)
    out = subsample_and_aggregate_as_printed(
        records, majority, **arguments, relation="replace", insecure_seed=3
    )
    assert out.value == 1
    assert out.loss == ApproxDP(12, test.delta, "replace")
    added = subsample_and_aggregate_as_printed(
        records, majority, **arguments, relation="add_remove", public_size=30, insecure_seed=3
    )
    printed = printed_subsampling(**arguments, records=30)
    overuse = math.exp(-2 * float(printed.rate) ** 2 * printed.subsets)
    claimed = float(added.loss.claimed_delta)
    assert claimed == pytest.approx(float(test.delta) + math.exp(12) * overuse, rel=1e-9)
    assert added.provenance["subsets"] == printed.subsets


def test_an_overused_record_fails_before_any_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    tight = subsample_module.PrintedSubsampling(Fraction(1, 2), 50, 1)
    monkeypatch.setattr(subsample_module, "printed_subsampling", lambda **_: tight)
    called = []
    out = subsample_and_aggregate_as_printed(
        [1] * 10, called.append, epsilon=1, delta=0.1, relation="replace"
    )
    assert out.value is FAIL
    assert called == []


# --- bad input --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"subsets": 0}, "subsets"),
        ({"cap": 0}, "cap"),
        ({"cap": 41}, "cap"),
        ({"epsilon": 0}, "epsilon"),
        ({"delta": 1}, "delta"),
        ({"relation": "x"}, "relation"),
        ({"n_jobs": 0}, "n_jobs"),
        ({"n_jobs": 1.0}, "n_jobs"),
        ({"insecure_seed": 1}, "insecure_seed"),
        ({"estimator": None}, "estimator"),
        ({"records": 3}, "records"),
        ({"records": "text"}, "records"),
    ],
)
def test_bad_input_is_named_before_anything_is_drawn(
    change: dict[str, object], argument: str
) -> None:
    nothing = ScriptedSource()
    arguments = {"records": [1, 2], "estimator": len, "source": nothing, **GOOD, **change}
    with pytest.raises(InvalidValue) as caught:
        subsample_and_aggregate(**arguments)
    assert caught.value.argument == argument
    assert nothing.used == 0


def test_public_size_belongs_to_add_remove() -> None:
    for relation, size in (("replace", 10), ("add_remove", None)):
        with pytest.raises(InvalidValue, match="public_size"):
            subsample_and_aggregate_as_printed(
                [1], len, epsilon=1, delta=0.1, relation=relation, public_size=size
            )
    with pytest.raises(InvalidValue, match="32 ln"):
        printed_subsampling(epsilon=100, delta=0.5, records=5)


# --- what the printed form achieves ------------------------------------------------------------


def exact_success(epsilon: float, delta: float, records: int) -> float:
    """If exactly 3/4 of subsets agree and all others vote for one value; no record is overused."""
    test = stability_test(epsilon=epsilon, delta=delta)
    printed = printed_subsampling(epsilon=epsilon, delta=delta, records=records)
    middle, width = 0.75 * printed.subsets, 12.0 * math.sqrt(printed.subsets)
    votes = np.arange(max(0, int(middle - width)), min(printed.subsets, int(middle + width)) + 1)
    lead = (2 * votes - printed.subsets) / (4 * float(printed.rate) * printed.subsets)
    passes = {d: test.passes(int(d)) for d in np.unique(np.floor(lead) - 1)}
    released = [passes[d] for d in np.floor(lead) - 1]
    return float(stats.binom.pmf(votes, printed.subsets, 0.75) @ released)


@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-12])
@pytest.mark.parametrize("share", [0.05, 0.3, 0.8])
def test_stable_answers_come_out_with_probability_1_minus_3_delta(
    share: float, delta: float
) -> None:
    epsilon = share * math.log(1 / delta)
    proven = subsampling_success(epsilon=epsilon, delta=delta, records=1000)
    assert 1 - 3 * delta <= proven <= exact_success(epsilon, delta, 1000) + 1e-12


def test_without_the_condition_the_printed_statement_is_false() -> None:
    """Epsilon 40, delta 1e-5: the printed theorem says 1 - 3e-5."""
    assert exact_success(40, 1e-5, 10_000) < 0.2
    assert subsampling_success(epsilon=40, delta=1e-5, records=10_000) == 0.0
    for epsilon in np.geomspace(0.1, 200, 40).tolist():
        proven = subsampling_success(epsilon=epsilon, delta=1e-5, records=100)
        assert proven <= exact_success(epsilon, 1e-5, 100) + 1e-12


def test_a_stable_function_comes_out_of_the_mechanism() -> None:
    """Seeded: what most subsets say comes out, whether or not it is the answer on all records."""
    arguments = {"epsilon": 3.6, "delta": 1e-2}
    records = list(range(10))
    rate = printed_subsampling(**arguments, records=10).rate

    def small(part: object) -> bool:
        return len(part) < 5

    def even(part: object) -> bool:
        return len(part) != 5

    assert subsampling_stability(records, even, rate=rate).stable is True
    assert subsampling_stability(records, small, rate=rate).stable is False
    for estimator in (even, small):
        out = subsample_and_aggregate_as_printed(
            records, estimator, relation="replace", insecure_seed=1, **arguments
        )
        assert out.value is True


def test_stability_is_exact_for_few_records_and_bounded_for_many() -> None:
    def has_seven(part: object) -> bool:
        return 7 in part

    few = subsampling_stability([7, 1, 2], has_seven, rate="4/5")
    assert few == (0.8, 0.8)
    assert few.stable is True
    many = subsampling_stability([7] + 20 * [1], has_seven, rate=0.8, insecure_seed=3)
    assert many.lower < 0.8 < many.upper < many.lower + 0.1  # both fail with probability 1e-6
    assert many.stable is None or many.lower >= 0.75
    assert (
        subsampling_stability([7] + 20 * [1], has_seven, rate=0.5, insecure_seed=3).stable is False
    )
    sure = subsampling_stability(list(range(20)), lambda _: 1, rate=0.5, insecure_seed=3)
    assert sure.upper == 1.0
    assert sure.stable is True

    def fails(part: object) -> int:
        raise ZeroDivisionError

    assert subsampling_stability([1, 2], fails, rate=1) == (0.0, 0.0)
    for wrong in ({"rate": 0}, {"rate": 0.5, "trials": 0}, {"rate": 0.5, "failure": 0}):
        with pytest.raises(InvalidValue, match=[*wrong][-1]):
            subsampling_stability([1], fails, **wrong)
