"""Partitions (S23): disjoint, complete, and moved in one part by one record."""

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.errors import InvalidValue, NotApplicable
from discreet.pate import check_disjoint, partition_records, shared_records
from discreet.privacy import Relation
from discreet.randomness import source


def contents(rows: Any, labels: Any, parts: Any) -> list[list[tuple[float, ...]]]:
    """What each teacher sees, in its order."""
    return [
        [(*rows[at].tolist(), int(labels[at])) for at in parts.members(teacher)]
        for teacher in range(parts.teachers)
    ]


def changed(before: list[Any], after: list[Any]) -> int:
    return sum(a != b for a, b in zip(before, after, strict=True))


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.integers(0, 3), min_size=1, max_size=30),
    teachers=st.integers(1, 7),
    at=st.integers(0, 29),
    seed=st.integers(0, 5),
    order=st.randoms(use_true_random=False),
)
def test_a_removed_record_changes_one_teacher_and_order_none(
    values: list[int], teachers: int, at: int, seed: int, order: Any
) -> None:
    # Few distinct values: many records are equal.
    rows = np.array(values, dtype=np.float64)[:, None]
    labels = np.array([value % 2 for value in values])
    at %= len(values)
    whole = contents(
        rows, labels, partition_records(rows, labels, teachers=teachers, insecure_seed=seed)
    )
    kept = np.delete(np.arange(len(values)), at)
    less = contents(
        rows[kept],
        labels[kept],
        partition_records(rows[kept], labels[kept], teachers=teachers, insecure_seed=seed),
    )
    assert changed(whole, less) == 1
    mixed = list(range(len(values)))
    order.shuffle(mixed)
    again = contents(
        rows[mixed],
        labels[mixed],
        partition_records(rows[mixed], labels[mixed], teachers=teachers, insecure_seed=seed),
    )
    assert again == whole


def cut_after_shuffling(rows: Any, labels: Any, *, teachers: int, seed: int) -> Any:
    """The mutant: shuffle and cut. Removing a record shifts the later parts."""
    order = np.random.default_rng(seed).permutation(len(rows))
    members = tuple(np.array_split(order, teachers))
    made = partition_records(rows, labels, teachers=teachers, insecure_seed=seed)
    object.__setattr__(made, "_members", members)
    return made


def test_the_check_catches_a_partition_that_shifts() -> None:
    rows = np.arange(40.0)[:, None]
    labels = np.zeros(40, dtype=np.int64)
    whole = contents(rows, labels, cut_after_shuffling(rows, labels, teachers=5, seed=1))
    less = contents(
        rows[1:], labels[1:], cut_after_shuffling(rows[1:], labels[1:], teachers=5, seed=1)
    )
    assert changed(whole, less) > 1


def test_parts_are_disjoint_and_complete_and_about_equal() -> None:
    rows = np.random.default_rng(0).normal(size=(20_000, 3))
    parts = partition_records(rows, teachers=50, insecure_seed=2)
    members = [parts.members(teacher) for teacher in range(50)]
    assert sorted(np.concatenate(members).tolist()) == list(range(20_000))
    sizes = np.array([len(part) for part in members])
    # Multinomial: chi-square with 49 degrees of freedom; above 130 with probability 1e-9.
    assert np.sum((sizes - 400.0) ** 2) / 400.0 < 130
    # Equal records are spread as well.
    same = partition_records(np.zeros((2000, 1)), teachers=50, insecure_seed=2)
    assert min(len(same.members(teacher)) for teacher in range(50)) > 5


@settings(max_examples=40, deadline=None)
@given(
    owners=st.lists(st.sampled_from(["ann", "bob", "cy", "di", ""]), min_size=1, max_size=25),
    teachers=st.integers(1, 5),
    seed=st.integers(0, 5),
)
def test_a_person_changes_one_teacher_with_all_rows(
    owners: list[str], teachers: int, seed: int
) -> None:
    rows = np.arange(float(len(owners)))[:, None]
    labels = np.zeros(len(owners), dtype=np.int64)
    names = np.array(owners, dtype=object)

    def seen(kept: Any) -> list[Any]:
        parts = partition_records(
            rows[kept], labels[kept], teachers=teachers, persons=names[kept], insecure_seed=seed
        )
        return contents(rows[kept], labels[kept], parts)

    everybody = np.arange(len(owners))
    whole = seen(everybody)
    for person in set(owners) - {""}:
        less = seen(everybody[names != person])
        assert changed(whole, less) == 1
    # Rows without a name can be charged to nobody.
    total = sum(len(part) for part in whole)
    assert total == sum(name != "" for name in owners)


def test_under_replace_a_replaced_record_changes_one_teacher() -> None:
    rows = np.arange(30.0)[:, None]
    other = rows.copy()
    other[7] = 99.0
    labels = np.zeros(30, dtype=np.int64)
    key = source(insecure_seed=1).read(32)
    first, second = (
        contents(
            table, labels, partition_records(table, labels, teachers=6, relation="replace", key=key)
        )
        for table in (rows, other)
    )
    assert changed(first, second) == 1
    # By content it can be two.
    moved = [
        changed(
            *(
                contents(
                    table, labels, partition_records(table, labels, teachers=6, insecure_seed=seed)
                )
                for table in (rows, other)
            )
        )
        for seed in range(20)
    ]
    assert set(moved) == {1, 2}


def test_overlapping_parts_are_refused() -> None:
    with pytest.raises(InvalidValue, match="at most one part"):
        check_disjoint([np.array([0, 1]), np.array([1])], rows=3)
    with pytest.raises(InvalidValue, match="at most one part"):
        check_disjoint([np.array([0, 3])], rows=3)
    check_disjoint([np.array([0, 1]), np.array([], dtype=np.int64)], rows=3)


def test_only_public_facts_are_recorded() -> None:
    rows = np.arange(12.0)[:, None]
    one = partition_records(rows, teachers=4, insecure_seed=1)
    other = partition_records(rows[:3], teachers=4, insecure_seed=1)
    assert one.record == other.record
    assert one.record["disjoint"] is True
    assert (
        one.record["key_commitment"] != partition_records(rows, teachers=4).record["key_commitment"]
    )
    assert "12" not in repr(one)
    with pytest.raises(NotApplicable):
        pickle.dumps(one)


def test_the_key_makes_the_partition_again() -> None:
    rows = np.arange(12.0)[:, None]
    key = source(insecure_seed=5).read(32)
    first, again = (partition_records(rows, teachers=4, key=key) for _ in range(2))
    for teacher in range(4):
        assert first.members(teacher).tolist() == again.members(teacher).tolist()
        assert first.seed(teacher) == again.seed(teacher)
    assert len({first.seed(teacher) for teacher in range(4)}) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"teachers": 0}, "teachers = 0"),
        ({"teachers": 3, "key": b"short"}, "32 secret bytes"),
        ({"teachers": 3, "persons": ["a"]}, "one person for each row"),
        ({"teachers": 3, "persons": ["a", "b"], "relation": "replace"}, "add_remove where"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        partition_records(np.arange(2.0), **arguments)


def test_bad_columns_and_empty_tables() -> None:
    with pytest.raises(InvalidValue, match="arrays of numbers"):
        partition_records(np.array(["a"]), teachers=2)
    with pytest.raises(InvalidValue, match="one length"):
        partition_records(np.arange(2.0), np.arange(3), teachers=2)
    empty = partition_records(np.empty((0, 3)), teachers=2, relation=Relation.ADD_REMOVE)
    assert [len(empty.members(teacher)) for teacher in range(2)] == [0, 0]
    named = partition_records(np.empty((0, 3)), teachers=2, persons=[])
    assert len(named.members(1)) == 0


def test_shared_records_are_found_for_the_keeper() -> None:
    found = shared_records([[0.0, 1.0]], [[-0.0, 1.0], [1.0, 0.0]])
    assert found.tolist() == [True, False]
