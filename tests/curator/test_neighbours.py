"""One person or one row less changes what an engine computes by no more than is claimed (S35)."""

from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from curator.worlds import KEY, PERSONS, ROWS, bounded_rows, change, dataset, exact, queries
from discreet.curator import Count
from discreet.engines import _table

NO_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)  # an example costs a second
NUMBERS = st.sampled_from(
    [0, 1, -1, 17, 64, 65, 120, 1e300, -1e300, 0.5, -0.0, float("nan"), float("inf"), None,
     "", " 30 ", "1e999", "x", "0x1F", "\u0661\u0662", "1_0", 2**62, True]
)  # fmt: skip
TEXTS = st.sampled_from(
    ["Oslo", " Bergen ", "3", "3.0", "", None, "é'", "é'; DROP TABLE bounded; --", "x" * 300,
     "12.5",
     "\x00", "\u202e", "-1e400", "nan", 3.0, "none", "other"]
)  # fmt: skip
DAYS = st.sampled_from(["2020-02-30", "2020-07-01", "2019-01-01T10:00", "0000-01-01", None, 5])
RECORDS = st.tuples(NUMBERS, NUMBERS, TEXTS, st.sampled_from([True, "no", None, 2]), DAYS, TEXTS)


def counted(plan_and_rows: Any) -> int:
    return int(plan_and_rows[1][()][0])


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.sampled_from("abc"), RECORDS), max_size=12),
    st.lists(RECORDS, min_size=1, max_size=6),
)
@settings(max_examples=7, phases=NO_SHRINKING)
def test_a_person_changes_no_aggregate_by_more_than_its_sensitivity(
    others: list[Any], mine: list[Any]
) -> None:
    rows = [(who, *record) for who, record in others]
    with_me = dataset([*rows, *(("me", *record) for record in mine)])
    without = dataset(rows)
    for query in queries():
        plan, one = exact(query, with_me)
        _, other = exact(query, without)
        for apart, claimed in change(plan, one, other):
            assert apart <= claimed, query
    with_me.close()
    without.close()


@pytest.mark.slow
@given(st.lists(RECORDS, max_size=10), RECORDS)
@settings(max_examples=4, phases=NO_SHRINKING)
def test_a_row_changes_no_aggregate_by_more_than_its_sensitivity(
    others: list[Any], mine: Any
) -> None:
    rows = [("", *record) for record in others]
    with_me, without = dataset([*rows, ("", *mine)], ROWS), dataset(rows, ROWS)
    for query in queries():
        if query.rows_per_person is None and query.tag != "count_persons":
            plan, one = exact(query, with_me)
            _, other = exact(query, without)
            for apart, claimed in change(plan, one, other):
                assert apart <= claimed, query
    with_me.close()
    without.close()


RECORD = (30, 1000.0, "Oslo", True, "2020-03-01", "x")


def many(person: str, times: int) -> list[Any]:
    return [(person, *RECORD[:1], float(at), *RECORD[2:]) for at in range(times)]


def test_a_cap_that_is_ignored_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = many("a", 5)
    true = _table._in_line

    def greedy(persons: Any, used: Any) -> Any:
        return true(persons, used) - 1

    def apart() -> tuple[float, float]:
        with_me, without = dataset([*rows, *many("me", 9)]), dataset(rows)
        plan, one = exact(Count(epsilon=1), with_me)
        return change(plan, one, exact(Count(epsilon=1), without)[1])[0]

    assert apart() == (2, 2)
    monkeypatch.setattr(_table, "_in_line", greedy)
    assert apart() == (3, 2)


def test_nobody_pushes_out_the_rows_of_another() -> None:
    rows = [row for person in "abcdef" for row in many(person, 4)]
    alone = bounded_rows(dataset(rows))
    with_me = bounded_rows(dataset([*many("me", 9), *rows]))
    assert len(with_me) == len(alone) + 9
    for row in alone:
        with_me.remove(row)
    assert sorted(rank for *_, rank in with_me) == list(range(1, 10))


def test_rows_that_name_nobody_are_left_out() -> None:
    found = dataset([("", *RECORD), (None, *RECORD), (" ", *RECORD), ("a", *RECORD)])
    assert counted(exact(Count(epsilon=1), found)) == 1


def test_the_choice_depends_on_content_and_not_on_order() -> None:
    rows = [row for person in range(40) for row in many(f"p{person}", 1 + person % 5)]
    rows += rows[::3]  # rows that are there twice
    shuffled = [rows[at] for at in np.random.default_rng(5).permutation(len(rows))]
    assert bounded_rows(dataset(rows)) == bounded_rows(dataset(shuffled))


def test_another_key_chooses_other_rows() -> None:
    rows = [row for person in range(40) for row in many(f"p{person}", 6)]
    one, other = dataset(rows), dataset(rows)
    other._key = bytes(32)
    assert bounded_rows(one) != bounded_rows(other)


def test_all_subsets_of_a_person_are_chosen_equally_often() -> None:
    """Six persons' worth of pairs among four rows, one of them twice; false alarm below 1e-9."""
    people = 3000
    rows = [
        (f"p{person}", 30, float(at), "Oslo", True, "2020-03-01", "x")
        for person in range(people)
        for at in (0, 1, 2, 2)
    ]
    incomes = []
    found = dataset(rows)
    step = float(found.columns["income"].grid.step)
    kept = [(row[1], row[-1]) for row in bounded_rows(found) if row[-1] <= 2]
    incomes = [round(income * step) for income, _ in kept]
    assert len(incomes) == 2 * people
    # Each of the four rows is kept with probability 1/2, so 2 is seen twice as often.
    for income, expected in ((0, people / 2), (1, people / 2), (2, people)):
        spread = 6.2 * np.sqrt(people / 4 * (1 if income < 2 else 2))
        assert abs(incomes.count(income) - expected) < spread
    first = [round(income * step) for income, rank in kept if rank == 1]
    assert abs(first.count(0) - people / 4) < 6.2 * np.sqrt(people * 3 / 16)


def test_a_lower_cap_keeps_a_subset() -> None:
    found = dataset([row for person in "abc" for row in many(person, 3)])
    assert counted(exact(Count(epsilon=1), found)) == 6
    assert counted(exact(Count(epsilon=1, rows_per_person=1), found)) == 3
    assert found._key == KEY
    assert PERSONS.rows_per_person == 2
