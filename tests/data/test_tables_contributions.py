"""Rows of persons: never more than the cap, and nobody's rows depend on anybody else."""

from collections import Counter
from collections.abc import Sequence
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from discreet.data import Integer, RawBatch, Schema, read_table, table_batches
from discreet.data._table import rows_and_owners
from discreet.randomness import Source, source

REJECT = 1e-9


class Played(Source):
    """Gives each row the number that the test wrote for it."""

    def __init__(self, words: Sequence[int]) -> None:
        self._bytes = np.array(words, dtype="<u8").tobytes()

    def read(self, count: int) -> bytes:
        given, self._bytes = self._bytes[:count], self._bytes[count:]
        return given

    @property
    def provenance(self) -> dict[str, str]:
        return {"randomness": "played"}

    def derive(self, *labels: str | int) -> Source:
        return self


def batches(persons: Sequence[object], size: int) -> list[RawBatch]:
    return [
        RawBatch({"who": np.array(persons[at : at + size], dtype=object)}, len(persons[at:][:size]))
        for at in range(0, len(persons), size)
    ]


def choose(persons, words, *, cap, size=3, how="random"):
    drawn = [word for person, word in zip(persons, words, strict=True) if person]
    rows, _ = rows_and_owners(
        batches(persons, size), person="who", cap=cap, choose=how, source=Played(drawn)
    )
    return rows.tolist()


def pooled(persons, words, *, cap, how="random"):
    """A wrong rule: rows without a name share one cap."""
    return choose([person or "nobody" for person in persons], words, cap=cap, how=how)


def in_all(persons, words, *, cap, how="random"):
    """A wrong rule: a cap on the rows of the whole table."""
    order = sorted(range(len(persons)), key=lambda row: words[row])
    return sorted(order[: 2 * cap])


PERSONS = st.lists(st.sampled_from(["a", "b", "c", "", None]), max_size=14)


def changed_by_removal(rule, persons, words, gone, cap, how) -> int:
    """How many used rows come or go, counting rows by what they are, when records are removed."""
    kept = [row for row in range(len(persons)) if row not in gone]
    before = set(rule(persons, words, cap=cap, how=how))
    fewer = rule([persons[row] for row in kept], [words[row] for row in kept], cap=cap, how=how)
    after = {kept[row] for row in fewer}
    return len(before ^ after)


@settings(max_examples=200)
@given(PERSONS, st.integers(1, 3), st.sampled_from(["random", "first"]), st.data())
def test_a_person_changes_at_most_cap_rows(persons, cap, how, data):
    words = data.draw(st.permutations(range(len(persons))))
    for person in ("a", "b", "c"):
        gone = {row for row, owner in enumerate(persons) if owner == person}
        assert changed_by_removal(choose, persons, words, gone, cap, how) <= cap
    nameless = [row for row, owner in enumerate(persons) if not owner]
    assert changed_by_removal(choose, persons, words, set(nameless), cap, how) == 0


def test_wrong_rules_change_more():
    # Row 0 has no name; with it goes one row and another one comes.
    assert changed_by_removal(pooled, ["", "", "a"], [0, 1, 2], {0}, 1, "random") == 2
    assert changed_by_removal(choose, ["", "", "a"], [0, 1, 2], {0}, 1, "random") == 0
    persons = ["a", "a", "b", "c"]
    assert changed_by_removal(in_all, persons, [0, 1, 2, 3], {0, 1}, 1, "random") == 4
    assert changed_by_removal(choose, persons, [0, 1, 2, 3], {0, 1}, 1, "random") == 1


@settings(max_examples=100)
@given(PERSONS, st.integers(1, 3), st.integers(1, 5), st.data())
def test_the_rows_with_the_smallest_numbers_are_kept(persons, cap, size, data):
    words = data.draw(st.lists(st.integers(0, 5), min_size=len(persons), max_size=len(persons)))
    expected = []
    for person in {owner for owner in persons if owner}:
        own = [row for row, owner in enumerate(persons) if owner == person]
        expected += sorted(own, key=lambda row: (words[row], row))[:cap]
    assert choose(persons, words, cap=cap, size=size) == sorted(expected)
    first = []
    for person in {owner for owner in persons if owner}:
        first += [row for row, owner in enumerate(persons) if owner == person][:cap]
    assert choose(persons, words, cap=cap, size=size, how="first") == sorted(first)


def test_many_rows_are_sorted_out_on_the_way():
    rng = np.random.default_rng(3)
    persons = rng.integers(0, 400, size=300_000).astype(str).astype(object)
    rows, _ = rows_and_owners(
        batches(persons, 20_000), person="who", cap=5, choose="random", source=source()
    )
    assert np.all(np.diff(rows) > 0)
    assert set(Counter(persons[rows]).values()) == {5}


def test_the_choice_is_uniform():
    # 6 choices of two rows among four, 6,000 draws from the system: chi-square at 1e-9.
    batch = batches(["a"] * 4, 2)
    bits = source()
    seen = Counter(
        tuple(rows_and_owners(batch, person="who", cap=2, choose="random", source=bits)[0].tolist())
        for _ in range(6000)
    )
    assert len(seen) == 6
    assert stats.chisquare(list(seen.values())).pvalue > REJECT
    # "first" always takes the same rows: the test would see a choice that is not random.
    assert stats.chisquare([6000, 0, 0, 0, 0, 0]).pvalue < REJECT


def test_tables_hold_at_most_cap_rows_of_a_person(tmp_path):
    schema = Schema({"age": Integer(0, 100)}, person="who", rows_per_person=2)
    who = ["a", " a ", "a", "b", "", None, "b", "c"]
    data = {"who": who, "age": list(range(8))}
    first = read_table(data, schema, choose="first").columns["age"].tolist()
    assert first == [0, 1, 3, 6, 7]
    rows = read_table(data, schema).columns["age"].astype(int).tolist()
    assert len(rows) == 5
    assert Counter((who[row] or "").strip() for row in rows) == {"a": 2, "b": 2, "c": 1}
    (tmp_path / "t.csv").write_text(
        "who,age\n" + "\n".join(f"{w or ''},{a}" for w, a in zip(who, range(8), strict=True))
    )
    again = read_table(tmp_path / "t.csv", schema, choose="first").columns["age"].tolist()
    assert again == first
    parts = list(table_batches(data, schema, batch_rows=1, choose="first"))
    assert [part.columns["age"].tolist() for part in parts] == [[age] for age in first]


def test_a_seed_repeats_the_choice():
    schema = Schema({"age": Integer(0, 100)}, person="who", rows_per_person=1)
    data = {"who": ["a"] * 50, "age": list(range(50))}
    chosen = [read_table(data, schema, insecure_seed=s).columns["age"][0] for s in (1, 1, 2)]
    assert chosen[0] == chosen[1] != chosen[2]
    numbers = {"who": np.array([7] * 50), "age": list(range(50))}
    assert read_table(numbers, schema).rows == 1


@pytest.mark.parametrize("cap", [1, 2])
def test_a_larger_cap_uses_more_rows(cap):
    schema = Schema({"age": Integer(0, 100)}, person="who", rows_per_person=cap)
    table = read_table({"who": ["a"] * 3 + ["b"], "age": [1, 2, 3, 4]}, schema)
    assert table.rows == cap + 1


def test_persons_may_be_known_by_uuids():
    names = [UUID(int=number) for number in (1, 2, 1, 3, 1)]
    schema = Schema({"age": Integer(0, 9)}, person="who", rows_per_person=2)
    as_objects = read_table({"age": range(5), "who": names}, schema, choose="first")
    as_texts = read_table({"age": range(5), "who": list(map(str, names))}, schema, choose="first")
    assert as_objects.columns["age"].tolist() == [0.0, 1.0, 2.0, 3.0]
    np.testing.assert_array_equal(as_objects.persons, as_texts.persons)
