"""S16, S24: every distance equals the fewest changes - 1, found by trying all data sets."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable
from itertools import combinations_with_replacement, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.errors import InvalidValue
from discreet.mechanisms import StableFunction, median, mode, most_votes, votes_distance

Records = tuple[Hashable, ...]


def steps_between(first: Counter, second: Counter, relation: str) -> int:
    """The fewest single changes that lead from one multiset to the other."""
    removed, added = (first - second).total(), (second - first).total()
    return max(removed, added) if relation == "replace" else removed + added


def fewest_changes(
    answer: Callable[[Records], object], records: Records, every: list[Records], relation: str
) -> float:
    here = answer(records)
    mine = Counter(records)
    return min(
        (
            steps_between(mine, Counter(other), relation)
            for other in every
            if answer(other) != here and (relation == "add_remove" or len(other) == len(records))
        ),
        default=math.inf,
    )


def multisets(domain: list[Hashable], largest: int) -> list[Records]:
    return [
        records
        for size in range(largest + 1)
        for records in combinations_with_replacement(domain, size)
    ]


def check(function: StableFunction, domain: list[Hashable], tried: int, reach: int) -> int:
    """Compare the distance with brute force on all data of up to ``tried`` records."""
    relation = str(function.relation)
    every = multisets(domain, reach)[relation == "replace" :]  # no record, no replacement
    answers = {records: function.value(list(records)) for records in every}
    compared = 0
    for records in multisets(domain, tried)[relation == "replace" :]:
        expected = fewest_changes(answers.__getitem__, records, every, relation)
        assert function.distance(list(records)) == expected - 1, records
        compared += 1
    return compared


@pytest.mark.parametrize("relation", ["replace", "add_remove"])
def test_mode_is_exact(relation: str) -> None:
    assert check(mode(["a", "b", "c"], relation=relation), ["a", "b", "c"], 5, 9) > 40


def test_records_outside_the_domain_keep_the_mode_exact() -> None:
    function = mode([0, 1], relation="replace")
    assert check(function, [0, 1, "other"], 6, 6) > 80
    assert function.value([[], {}, 1, None]) == 1


@pytest.mark.parametrize("moved", [True, False])
def test_votes_are_exact(moved: bool) -> None:
    relation = "replace" if moved else "add_remove"
    function = most_votes(categories=3, relation=relation)
    by_records = mode([0, 1, 2], relation=relation)
    every = multisets([0, 1, 2], 9)
    for records in multisets([0, 1, 2], 5)[1:]:
        votes = np.bincount(records, minlength=3)
        assert function.value(votes) == by_records.value(records)
        expected = fewest_changes(by_records.value, records, every, relation) - 1
        assert votes_distance(votes, moved=moved) == function.distance(votes) == expected


def test_a_wrong_tie_rule_is_refuted_by_brute_force() -> None:
    def forgetful(votes: np.ndarray) -> int:  # floor(gap / 2) on both sides
        winner = int(np.argmax(votes))
        return int(np.delete(votes[winner] - votes, winner).min()) // 2

    every = multisets([0, 1], 6)
    answer = mode([0, 1], relation="replace").value
    wrong = [
        records
        for records in every[1:]
        if forgetful(np.bincount(records, minlength=2))
        != fewest_changes(answer, records, every, "replace") - 1
    ]
    assert (0, 0, 1, 1, 1, 1) in wrong  # gap 2: one moved vote ties, and ties go to 0


@pytest.mark.parametrize("relation", ["replace", "add_remove"])
@pytest.mark.parametrize("bounds", [(-1, 2), (0, 1)])
@pytest.mark.parametrize("default", [1, "upper"])
def test_median_within_bounds_is_exact(
    relation: str, bounds: tuple[int, int], default: object
) -> None:
    low, high = bounds
    function = median(
        relation=relation,
        lower=low,
        upper=high,
        default=high if default == "upper" else 1,
        integer=True,
    )
    assert check(function, list(range(low, high + 1)), 5, 11) >= 20


@pytest.mark.parametrize("relation", ["replace", "add_remove"])
def test_median_without_bounds_is_exact(relation: str) -> None:
    # The values in the middle have smaller and larger ones in the larger domain.
    function = median(relation=relation, default=1)
    every = multisets([0, 1, 2, 3], 11)
    answers = {records: function.value(records) for records in every if records}
    answers[()] = 1.0
    for records in multisets([1, 2], 5)[1:]:
        expected = fewest_changes(answers.__getitem__, records, every, relation) - 1
        assert function.distance(records) == expected


@given(
    st.lists(st.integers(-20, 20), min_size=1, max_size=40),
    st.integers(-20, 20),
    st.integers(0, 39),
    st.booleans(),
)
def test_neighbours_differ_by_one_at_most(
    records: list[int], new: int, place: int, replaced: bool
) -> None:
    relation = "replace" if replaced else "add_remove"
    other = list(records)
    if replaced:
        other[place % len(records)] = new
    else:
        other.insert(place, new)
    for function in (
        median(relation=relation, lower=-20, upper=20),
        median(relation=relation),
        mode(list(range(-20, 21)), relation=relation),
    ):
        (v, d), (w, e) = function.evaluate(records), function.evaluate(other)
        assert abs(d - e) <= 1
        assert d >= 0 <= e
        if v != w:
            assert d == e == 0


def test_an_ensemble_moves_one_vote_under_either_relation() -> None:
    for relation in ("replace", "add_remove"):
        function = most_votes(categories=2, relation=relation, voters="ensemble")
        assert function.evaluate([3, 9]) == (1, 2)
    assert most_votes(categories=2, relation="add_remove").evaluate([3, 9]) == (1, 5)


def test_answers_look_alike_whatever_the_records_are() -> None:
    plain = median(relation="add_remove", lower=-5, upper=5)
    for records in ([0], [0.0], [-0.0], [False], [np.float32(0)], [math.nan], ["x"], [None], []):
        assert repr(plain.value(records)) == "0.0"
    assert plain.value([10**400, 1, 1]) == 1.0
    assert plain.value(np.array([-math.inf, -math.inf, 3])) == -5.0
    whole = median(relation="add_remove", lower=-5, upper=5, integer=True)
    assert [repr(whole.value(r)) for r in ([2.7], [2], [np.int8(2)])] == ["2", "2", "2"]
    colours = mode([1, 2], relation="replace")
    assert repr(colours.value([True, 1.0, 2])) == "1"


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: mode(["a"], relation="replace"), "domain"),
        (lambda: mode(["a", "a"], relation="replace"), "domain"),
        (lambda: mode([math.nan, 1], relation="replace"), "domain"),
        (lambda: most_votes(categories=1, relation="replace"), "categories"),
        (lambda: most_votes(categories=2, relation="replace", voters="me"), "voters"),
        (lambda: median(relation="replace", lower=1, upper=1), "upper"),
        (lambda: median(relation="replace", lower=1), "default"),
        (lambda: median(relation="replace", integer=True), "lower"),
        (lambda: median(relation="replace", lower=0, upper=1.5, integer=True), "upper"),
        (lambda: median(relation="replace", lower=math.nan), "lower"),
        (lambda: median(relation="swap"), "relation"),
        (lambda: median(relation="replace").value([]), "data"),
        (lambda: median(relation="replace").value("123"), "data"),
        (lambda: most_votes(categories=2, relation="replace").value([1, 2, 3]), "data"),
        (lambda: most_votes(categories=2, relation="replace").value([1, -2]), "data"),
        (lambda: most_votes(categories=2, relation="replace").value([1.0, 2.0]), "data"),
    ],
)
def test_bad_input_is_named(make: Callable[[], object], argument: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        make()
    assert caught.value.argument == argument


def test_every_pattern_of_votes_keeps_the_table_of_distances() -> None:
    for votes in product(range(6), repeat=3):
        winner = max(range(3), key=lambda j: (votes[j], -j))
        gaps = {j: votes[winner] - votes[j] for j in range(3) if j != winner}
        moved = min(-(-g // 2) - 1 if j < winner else g // 2 for j, g in gaps.items())
        added = min(g - 1 if j < winner else g for j, g in gaps.items())
        assert votes_distance(votes, moved=True) == moved
        assert votes_distance(votes, moved=False) == added
