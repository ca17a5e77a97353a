"""The cap acts once on a query: after ``where``, over all its groups, bins and questions together.

The enumeration goes through every table that some of three persons make, and every person who comes
or goes. One of them has cap + 2 rows that all differ in city, age, spend and day.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import ibis  # type: ignore[import-untyped]
import numpy as np
import pytest
from scipy.stats import binom

from curator.worlds import KEY, change
from discreet.curator import (
    Answer,
    Count,
    CountPersons,
    CuratedDataset,
    Curator,
    GroupBy,
    Histogram,
    Mean,
    Quantile,
    Query,
    Sum,
    ThresholdStream,
    TopK,
    Variance,
    Workload,
    _curator,
)
from discreet.curator._answers import NewAnswer
from discreet.curator._plan import make_plan, quote
from discreet.data import Categorical, Integer, Schema
from discreet.engines import Aggregation, Compare, Field, OneOf, Value, _sql
from discreet.errors import InvalidValue
from discreet.ledger import Ledger
from discreet.privacy import DiscreteLaplace
from discreet.randomness import SystemSource

CAP = 2
CITIES = ["Oslo", "Bergen", "Bodo", "Hamar"]
SCHEMA = Schema(
    {"city": Categorical([*CITIES, "other"]), "age": Integer(0, 99), "note": Categorical()},
    person="who",
    rows_per_person=CAP,
)
# (city, age, note); the first has cap + 2 rows in different groups, the second many in one.
PERSONS: dict[str, list[tuple[str, int, str]]] = {
    "a": [("Oslo", 5, "u"), ("Bergen", 25, "v"), ("Bodo", 45, "w"), ("Hamar", 65, "x")],
    "b": [("Oslo", 5, "u")] * 4 + [("Bodo", 90, "z")],
    "c": [("Hamar", 30, "x"), ("Oslo", 31, "x"), ("Oslo", 32, "v")],
}
CITY, AGE = Field("city"), Field("age")
YOUNG = Compare("<", AGE, Value(80))
EACH_CITY = [OneOf("city", [city]) for city in CITIES]
BY_AGE = tuple(Compare("<", AGE, Value(age)) for age in (20, 40, 60, 80))
E = Fraction(1)


def asked(where: Any) -> list[Query]:
    """Every kind of query that counts or adds up rows."""
    one: dict[str, Any] = {"epsilon": E, "where": where}
    return [
        Count(**one),
        Count(**one, rows_per_person=1),
        CountPersons(**one),
        CountPersons(**one, more_than=CAP),
        Sum(of=AGE, **one),
        Mean(of=AGE, **one),
        Variance(of=AGE, **one),
        Histogram(of=AGE, edges=(20, 40, 60), **one),
        Quantile(of=AGE, share="1/3", points=10, **one),
        GroupBy(by=(CITY,), **one),
        GroupBy(by=(CITY,), statistic="sum", of=AGE, **one),
        GroupBy(by=(Field("note"),), groups=(("u",), ("v",), ("w",), ("x",)), **one),
        GroupBy(by=(Field("note"),), delta="1/1000000", statistic="mean", of=AGE, **one),
        TopK(by=CITY, k=1, **one),
        ThresholdStream(questions=EACH_CITY, threshold=1, **one),
        Workload(questions=EACH_CITY, **one),
        Workload(questions=BY_AGE, **one),
        Workload(questions=[OneOf("note", [note]) for note in "uvwx"], **one),  # no small domain
    ]


def table(rows: Mapping[str, list[tuple[str, int, str]]]) -> dict[str, list[Any]]:
    flat = [(who, *row) for who, mine in rows.items() for row in mine]
    names = ("who", "city", "age", "note")
    return {name: [row[at] for row in flat] for at, name in enumerate(names)}


def curated(rows: Mapping[str, list[tuple[str, int, str]]], schema: Schema = SCHEMA) -> Any:
    return CuratedDataset("p", schema=schema, source=table(rows), key=KEY, threads=1)


@pytest.fixture(scope="module")
def worlds() -> Iterator[dict[frozenset[str], Any]]:
    """The engines of all eight tables, without what they remember."""
    found = {
        frozenset(some): curated({who: PERSONS[who] for who in some})
        for size in range(len(PERSONS) + 1)
        for some in combinations(PERSONS, size)
    }
    yield {who: one.engine() for who, one in found.items()}
    for one in found.values():
        one.close()


def enumerated(
    worlds: Mapping[frozenset[str], Any], query: Query
) -> Iterator[tuple[Any, Any, Any]]:
    """The plan, and its aggregates on every pair of neighbours."""
    plan = make_plan(query, SCHEMA)
    compiled: Any = OrderedDict()
    rows = {}
    for some, asked_engine in worlds.items():
        asked_engine._compiled = compiled  # the text does not depend on the rows
        rows[some] = plan.rows(asked_engine)
    for some in worlds:
        for who in some:
            yield plan, rows[some], rows[some - {who}]


def together(plan: Any, one: Any, other: Any) -> int:
    """How far the counts of all cells of a query move; no row is in two of its cells."""
    left, right = plan.parts(one), plan.parts(other)
    if isinstance(plan.query, GroupBy):
        groups = {*left, *right}
        left, right = ([all_.get(g, (0, 0))[0] for g in groups] for all_ in (left, right))
    return sum(abs(a - b) for a, b in zip(left, right, strict=True))


def in_cells(where: Any) -> list[Query]:
    """The queries with cells that share no row."""
    kinds = (Histogram, Quantile, GroupBy, TopK, ThresholdStream, Workload)
    return [
        query
        for query in asked(where)
        if isinstance(query, kinds) and getattr(query, "questions", None) != BY_AGE
    ]


@pytest.mark.parametrize(
    "query",
    [query for query in asked(YOUNG) if query not in in_cells(YOUNG)],
    ids=lambda query: query.tag,
)
def test_no_neighbour_changes_an_aggregate_by_more_than_is_claimed(
    worlds: Mapping[frozenset[str], Any], query: Query
) -> None:
    for neighbours in enumerated(worlds, query):
        for apart, claimed in change(*neighbours):
            assert apart <= claimed


@pytest.mark.slow
@pytest.mark.parametrize("query", asked(None), ids=lambda query: query.tag)
def test_nor_does_one_without_a_filter(worlds: Mapping[frozenset[str], Any], query: Query) -> None:
    for neighbours in enumerated(worlds, query):
        for apart, claimed in change(*neighbours):
            assert apart <= claimed


@pytest.mark.parametrize("query", in_cells(YOUNG), ids=lambda query: query.tag)
def test_all_cells_together_change_by_the_cap_and_mutants_are_rejected(
    worlds: Mapping[frozenset[str], Any], monkeypatch: pytest.MonkeyPatch, query: Query
) -> None:
    """Exactly by the cap, so that the enumeration is tight and the mutants have to show."""
    pairs = list(enumerated(worlds, query))
    assert all(apart <= claimed for pair in pairs for apart, claimed in change(*pair))
    assert max(together(*pair) for pair in pairs) == CAP
    monkeypatch.setattr(_sql, "first_in_line", uncapped)
    monkeypatch.setattr(_sql, "add_up", capped_apart)
    assert max(together(*pair) for pair in enumerated(worlds, query)) == CAP + 2


def uncapped(table: Any, cap: int, *, filtered: bool) -> Any:
    return table


def capped_apart(table: Any, aggregation: Aggregation, text: Any) -> Any:
    """A mutant of ``add_up``: a cap for each group, and where there is none, each question."""
    if aggregation.among is not None:
        table = table.filter(_sql._Writer(table, text).write(aggregation.among))
    writer = _sql._Writer(table, text)
    keys = {f"k{at}": writer.write(key) for at, key in enumerate(aggregation.keys)}
    sums = {f"s{at}": writer.write(one.term) for at, one in enumerate(aggregation.sums)}
    if not keys:
        terms = table.select(**sums, person=table.person)
        each = terms.group_by("person").aggregate(
            **{name: ibis.least(terms[name].sum(), CAP) for name in sums}
        )
        return each.aggregate(rows=each.count(), **{name: each[name].sum() for name in sums})
    terms = table.select(**keys, **sums, person=table.person, rank=table["rank"])
    place = ibis.row_number().over(
        group_by=[terms.person, *(terms[name] for name in keys)], order_by=[terms["rank"]]
    )
    terms = terms.mutate(place=place).filter(lambda one: one.place < CAP)
    totals = {name: terms[name].sum() for name in sums}
    return terms.group_by(list(keys)).aggregate(rows=terms.count(), **totals)


def rank_before_where(table: Any, cap: int, *, filtered: bool) -> Any:
    """What version 0.1 did: the cap first, the filter after it."""
    return table.filter(table["rank"] <= cap)


def count_before_where(table: Any, cap: int) -> Any:
    first = table.filter(table["rank"] <= cap)
    return first.aggregate(rows=first.count())


def count_everybody(table: Any, cap: int) -> Any:
    """A mutant of ``count_capped``: nobody owns more than the cap."""
    return table.aggregate(rows=table.count())


@pytest.mark.parametrize("cap", [CAP, 1])
def test_a_count_without_its_cap_is_noticed(
    worlds: Mapping[frozenset[str], Any], monkeypatch: pytest.MonkeyPatch, cap: int
) -> None:
    query = Count(epsilon=E, where=YOUNG, rows_per_person=cap)
    monkeypatch.setattr(_sql, "count_capped", count_everybody)
    found = [change(*neighbours) for neighbours in enumerated(worlds, query)]
    assert any(apart > claimed for one in found for apart, claimed in one)


def test_the_columns_of_a_database_stand_in_the_order_of_its_queries() -> None:
    """A union matches columns by place, and a text has the number that it spells behind it."""
    columns = {"note": Categorical(), "age": Integer(0, 99), "word": Categorical()}
    schema = Schema(columns, person="who", rows_per_person=1)
    rows = {"who": ["a", "a", "b"], "note": list("xyz"), "age": [1, 2, 3], "word": list("123")}
    found = CuratedDataset("p", schema=schema, source=rows, threads=1)
    stored = [str(row[0]) for row in found.engine().rows("DESCRIBE bounded")]
    asked_for = _sql.bounded_table(list(found.engine().columns.values()), persons=True)
    assert stored == list(asked_for.columns)
    found.close()


def test_counts_and_sums_are_those_of_a_slow_twin() -> None:
    """Persons of one row, of as many as the cap and of more, before the filter and after it."""
    numbers = np.random.default_rng(5)
    for cap in (1, 2, 3):
        owned = numbers.integers(1, 7, 40)
        who = np.repeat(np.arange(40), owned)
        rows = {"who": who, "age": numbers.integers(0, 100, who.size)}
        schema = Schema({"age": Integer(0, 99)}, person="who", rows_per_person=cap)
        asked_of = CuratedDataset("p", schema=schema, source=rows, threads=1)
        lines: dict[int, list[int]] = {}
        order = "SELECT person, c0 FROM bounded ORDER BY person, rank"
        for person, age in asked_of.engine().rows(order):
            lines.setdefault(person, []).append(age)
        for most in (5, 50, 95):
            where = Compare("<", AGE, Value(most))
            first = [age for mine in lines.values() for age in [a for a in mine if a < most][:cap]]
            count = make_plan(Count(epsilon=E, where=where), schema)
            total = make_plan(Sum(of=AGE, epsilon=E, where=where), schema)
            assert count.rows(asked_of.engine()) == {(): (len(first),)}
            assert total.rows(asked_of.engine())[()][-1] == sum(first)
        asked_of.close()


def test_other_persons_and_the_order_of_rows_change_nothing_for_a_person(
    worlds: Mapping[frozenset[str], Any],
) -> None:
    plan = make_plan(GroupBy(by=(CITY,), statistic="sum", of=AGE, epsilon=E, where=YOUNG), SCHEMA)
    alone = {who: plan.parts(plan.rows(worlds[frozenset(who)])) for who in PERSONS}
    for some, asked_engine in worlds.items():
        added: dict[Any, tuple[int, int]] = {}
        for who in some:
            for group, (count, total) in alone[who].items():
                before = added.get(group, (0, 0))
                added[group] = (before[0] + count, before[1] + total)
        assert plan.parts(plan.rows(asked_engine)) == added
    turned = curated({who: rows[::-1] for who, rows in reversed(PERSONS.items())})
    assert plan.parts(plan.rows(turned.engine())) == plan.parts(
        plan.rows(worlds[frozenset(PERSONS)])
    )
    turned.close()


# --- error bars ---------------------------------------------------------------------------

VISITS = Schema(
    {"event": Integer(0, 1), "cost": Integer(0, 100), "ward": Categorical(["x", "y", "z"])},
    person="who",
    rows_per_person=3,
)
EVENT = Compare("==", Field("event"), Value(1))


@pytest.fixture(scope="module")
def visits() -> Any:
    """Persons with one to thirty visits; some have events among them."""
    draw = np.random.default_rng(8)
    who = np.repeat(np.arange(800), draw.integers(1, 31, 800))
    event = (draw.random(who.size) < 0.15) & (who % 2 == 0)
    return {
        "who": who,
        "event": event.astype(int),
        "cost": np.where(event, 60, 0) + draw.integers(0, 40, who.size),
        "ward": np.array(["x", "y", "z"], dtype=object)[draw.integers(0, 3, who.size)],
    }


@pytest.fixture
def hospital(visits: Any) -> Iterator[Any]:
    found = CuratedDataset("visits", schema=VISITS, source=visits, key=KEY, threads=1)
    yield found
    found.close()


def events_of(visits: Any) -> Any:
    """How many events each person had."""
    return np.bincount(visits["who"][visits["event"] == 1])


def misses(found: Any, query: Query, truth: float, times: int = 200) -> int:
    plan = make_plan(query, VISITS)
    rows = plan.rows(found.engine())
    released = [plan.release(rows, SystemSource()) for _ in range(times)]
    return sum(not one.bars[0].low <= truth <= one.bars[0].high for one in released)


# At most 5 % miss: more than this many of 200 happen once in 10**9.
ALARM = int(binom.isf(1e-9, 200, 0.05))


def test_persons_who_ever_had_an_event(hospital: Any, visits: Any) -> None:
    truth = int((events_of(visits) > 0).sum())
    query = CountPersons(epsilon="1/2", where=EVENT)
    assert make_plan(query, VISITS).rows(hospital.engine()) == {(): (truth,)}
    assert misses(hospital, query, truth) <= ALARM
    one_row_each = Count(epsilon="1/2", where=EVENT, rows_per_person=1)
    assert misses(hospital, one_row_each, truth) <= ALARM


def test_bars_cover_the_rows_kept(hospital: Any, visits: Any) -> None:
    events = events_of(visits)
    kept = int(np.minimum(events, 3).sum())
    assert kept < events.sum()
    assert misses(hospital, Count(epsilon="1/2", where=EVENT), kept) <= ALARM
    lines = rows_in_line(hospital)
    chosen = [row for mine in lines.values() for row in [r for r in mine if r[0] == 1][:3]]
    assert len(chosen) == kept
    total = sum(cost for _, cost, _ in chosen)
    cost = Field("cost")
    assert misses(hospital, Sum(of=cost, epsilon=1, where=EVENT), total) <= ALARM
    assert misses(hospital, Mean(of=cost, epsilon=1, where=EVENT), total / kept) <= ALARM
    groups = GroupBy(by=(Field("ward"),), epsilon=1, where=EVENT)
    assert misses(hospital, groups, sum(ward == 0 for *_, ward in chosen)) <= ALARM


def rows_in_line(found: Any) -> dict[int, list[tuple[int, ...]]]:
    """The rows of each person, in the order of their ranks: a slow twin starts from these."""
    lines: dict[int, list[tuple[int, ...]]] = {}
    order = "SELECT person, c0, c1, c2 FROM bounded ORDER BY person, rank"
    for person, *row in found.engine().rows(order):
        lines.setdefault(person, []).append(tuple(row))
    return lines


def test_a_cap_before_the_filter_is_noticed(
    hospital: Any, visits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = events_of(visits)
    monkeypatch.setattr(_sql, "first_in_line", rank_before_where)
    monkeypatch.setattr(_sql, "count_capped", count_before_where)
    one_row_each = Count(epsilon="1/2", where=EVENT, rows_per_person=1)
    assert misses(hospital, one_row_each, int((events > 0).sum())) > ALARM
    kept = int(np.minimum(events, 3).sum())
    assert misses(hospital, Count(epsilon="1/2", where=EVENT), kept) > ALARM


def test_an_answer_about_dropped_rows(hospital: Any, visits: Any) -> None:
    events = events_of(visits)
    query = CountPersons(epsilon=1, where=EVENT, more_than=3)
    assert make_plan(query, VISITS).rows(hospital.engine()) == {(): (int((events > 3).sum()),)}
    assert quote(query, VISITS).loss == DiscreteLaplace(1)
    owned = np.bincount(visits["who"])
    every = make_plan(CountPersons(epsilon=1, more_than=3), VISITS)
    assert every.rows(hospital.engine()) == {(): (int((owned > 3).sum()),)}


# --- what an answer says of itself ----------------------------------------------------------


def test_a_quote_says_of_what_it_speaks() -> None:
    rows = Schema(SCHEMA.columns)
    kept = "of the rows kept: at most 2 of each person's rows"
    assert quote(Count(epsilon=1), SCHEMA).about == f"{kept}, chosen at random"
    filtered = quote(Sum(of=AGE, epsilon=1, where=YOUNG, rows_per_person=1), SCHEMA)
    assert filtered.about == (
        "of the rows kept: at most 1 of each person's rows that satisfy the condition, "
        "chosen at random"
    )
    assert quote(CountPersons(epsilon=1, where=YOUNG), SCHEMA).about == "of all persons"
    assert quote(Count(epsilon=1), rows).about == "of all rows"
    assert filtered.to_json()["about"] == filtered.about
    for query in asked(YOUNG):
        said = make_plan(query, SCHEMA).about
        assert ("of the rows kept" in said) == (query.tag != "count_persons")


def test_without_persons_there_are_none_to_count() -> None:
    with pytest.raises(InvalidValue, match="count: the schema of this dataset has no person"):
        quote(CountPersons(epsilon=1), Schema(SCHEMA.columns))


def test_count_persons_takes_no_cap() -> None:
    from discreet.curator import query_from_json

    with pytest.raises(InvalidValue, match="rows_per_person"):
        query_from_json({"kind": "count_persons", "epsilon": 1, "rows_per_person": 1})
    with pytest.raises(InvalidValue, match="more_than"):
        CountPersons(epsilon=1, more_than=-1)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[tuple[Curator, Ledger]]:
    ledger = Ledger.create(tmp_path / "l.ledger")
    ledger.create_dataset("p", epsilon=100, unit="person")
    found = curated(PERSONS)
    curator = Curator(ledger, {"p": found})
    yield curator, ledger
    found.close()
    ledger.close()


def name_of_0_1(curator: Curator, query: Query) -> str:
    """The name under which version 0.1 kept the answer to a question."""
    import hashlib

    found = curator._dataset("p")
    text = f"{found.schema.content_hash}|{query.digest()}|{curator._genesis_for(found)}"
    return hashlib.sha256(text.encode()).hexdigest()


def test_answers_of_0_1_to_filtered_questions_are_not_handed_out(
    opened: tuple[Curator, Ledger],
) -> None:
    curator, ledger = opened
    for query, same in ((Count(epsilon=1, where=YOUNG), False), (Count(epsilon=1), True)):
        fresh = curator.ask("p", Count(epsilon=2, where=query.where), analyst="ann")
        document = {**fresh.to_json(), "value": 12345, "query": query.to_json()}
        del document["about"]
        old = Answer.from_json(document)
        name = name_of_0_1(curator, query)
        with ledger.store.writing() as session:
            NewAnswer(old, name, analyst="ann", key=None).write(session)
        assert curator.quote("p", query, analyst="ann").answered_before == same
        answer = curator.ask("p", query, analyst="ann")
        assert (answer.value == 12345, answer.answered_before) == (same, same)
        assert answer.about == fresh.about
        assert "of the rows kept" in answer.about
    schema = curator._dataset("p").schema
    plain, filtered = (Count(epsilon=1, where=where) for where in (None, YOUNG))
    assert _curator._name(schema, plain, "c") != _curator._name(schema, filtered, "c")


def test_an_answer_carries_what_it_speaks_of(opened: tuple[Curator, Ledger]) -> None:
    curator, _ = opened
    answer = curator.ask("p", CountPersons(epsilon=1, where=YOUNG), analyst="ann")
    assert answer.about == "of all persons"
    assert Answer.from_json(answer.to_json()) == answer
    assert curator.ask("p", answer.query, analyst="bob").about == answer.about
