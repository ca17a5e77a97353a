"""Queries are the same in Python and in JSON, and nothing unknown gets in."""

import json
from fractions import Fraction
from typing import Any

import pytest

from curator.worlds import AGE, FILTER, PERSONS, queries
from discreet.curator._plan import quote
from discreet.curator._queries import (
    QUERIES,
    Count,
    GroupBy,
    Histogram,
    Query,
    Sum,
    TopK,
    query_from_json,
)
from discreet.engines import (
    CONDITIONS,
    NUMBERS,
    Case,
    Compare,
    Day,
    Divide,
    Field,
    Lookup,
    Value,
    condition_from_json,
    number_from_json,
)
from discreet.errors import InvalidValue


@pytest.mark.parametrize("query", queries(), ids=lambda query: query.tag)
def test_json_and_back(query: Query) -> None:
    document = json.loads(json.dumps(query.to_json()))
    again = query_from_json(document)
    assert again == query
    assert again.digest() == query.digest()
    assert again.canonical == query.canonical
    assert quote(again, PERSONS).epsilon == query.epsilon


def test_every_kind_is_tried() -> None:
    assert {query.tag for query in queries()} == set(QUERIES)
    seen: set[str] = set()

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            seen.add(node.get("op", ""))
            for one in node.values():
                walk(one)
        elif isinstance(node, list):
            for one in node:
                walk(one)

    walk([query.to_json() for query in queries()])
    assert seen >= {*NUMBERS, *CONDITIONS, "case"}


def test_digests_are_stable_and_tell_queries_apart() -> None:
    query = Count(epsilon="0.1")
    assert query.digest() == Count(epsilon=Fraction(1, 10)).digest() == Count(epsilon=0.1).digest()
    assert query.canonical == '{"epsilon":"1/10","kind":"count"}'
    digests = {one.digest() for one in queries()}
    assert len(digests) == len(queries())


def test_the_question_is_the_query_without_its_price() -> None:
    assert Count(epsilon=1).question == Count(epsilon=2).question
    assert Count(epsilon=1).question != Count(epsilon=1, where=FILTER).question


DEEP: Any = {"op": "column", "name": "age"}
for _ in range(60):
    DEEP = {"op": "absolute", "of": DEEP}


@pytest.mark.parametrize(
    ("document", "argument"),
    [
        ({}, "query"),
        ([], "query"),
        ({"kind": "drop"}, "kind"),
        ({"kind": ["count"]}, "kind"),
        ({"kind": "count"}, "epsilon"),
        ({"kind": "count", "epsilon": 0}, "epsilon"),
        ({"kind": "count", "epsilon": -1}, "epsilon"),
        ({"kind": "count", "epsilon": "1e9999999"}, "epsilon"),
        ({"kind": "count", "epsilon": True}, "epsilon"),
        ({"kind": "count", "epsilon": "9" * 400}, "epsilon"),
        ({"kind": "count", "epsilon": 1e-30}, "epsilon"),
        ({"kind": "count", "epsilon": 1, "sql": "select"}, "sql"),
        ({"kind": "count", "epsilon": 1, "where": "age < 3"}, "where"),
        ({"kind": "count", "epsilon": 1, "where": {"op": "regex"}}, "where.op"),
        ({"kind": "count", "epsilon": 1, "rows_per_person": 0}, "rows_per_person"),
        ({"kind": "sum", "epsilon": 1, "of": DEEP}, "of.of"),
        ({"kind": "sum", "epsilon": 1, "of": {"op": "column", "name": "a\x00"}}, "of.name"),
        ({"kind": "sum", "epsilon": 1, "of": {"op": "column", "name": "\ud800"}}, "of.name"),
        ({"kind": "sum", "epsilon": 1, "of": {"op": "column", "name": "x" * 999}}, "of.name"),
        ({"kind": "histogram", "epsilon": 1, "of": DEEP["of"], "edges": []}, "of.of"),
        ({"kind": "top_k", "epsilon": 1, "by": {"op": "column", "name": "a"}, "k": 1.0}, "k"),
    ],
)
def test_what_is_wrong_is_named(document: Any, argument: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        query_from_json(document)
    assert caught.value.argument.startswith(argument)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "make",
    [
        lambda: Sum(of=AGE, epsilon=1, lower=3, upper=3),
        lambda: Histogram(of=AGE, edges=(1, 1), epsilon=1),
        lambda: GroupBy(by=(AGE,), epsilon=1, of=AGE),
        lambda: GroupBy(by=(AGE,), epsilon=1, statistic="sum"),
        lambda: GroupBy(by=(AGE,), epsilon=1, groups=((1,),), delta="1/10"),
        lambda: GroupBy(by=(AGE,), epsilon=1, groups=((1, 2),)),
        lambda: GroupBy(by=(AGE,), epsilon=1, groups=((1,), (1,))),
        lambda: GroupBy(by=(AGE,), epsilon=1, groups=((Fraction(1, 3),),)),
        lambda: TopK(by=AGE, k=1, epsilon=1, candidates=("a", "a")),
        lambda: Divide(AGE, AGE, lower=1, upper=0, default=0),
        lambda: Divide(AGE, AGE, lower=0, upper=1, default=2),
        lambda: Lookup("city", [Case("a", 1), Case("a", 2)], default=0),
        lambda: Compare("~", AGE, AGE),
        lambda: Compare("<", AGE, 3),
        lambda: Day("2020-02-30"),
        lambda: Value("nan"),
        lambda: Field(3),
    ],
)
def test_objects_are_checked_as_they_are_made(make: Any) -> None:
    with pytest.raises(InvalidValue):
        make()


@pytest.mark.parametrize(
    "document",
    [
        {"kind": "count", "epsilon": 1, "rows_per_person": 3},
        {"kind": "count", "epsilon": 1, "where": Compare("<", Field("no"), Value(1)).to_json()},
        {"kind": "sum", "epsilon": 1, "of": {"op": "column", "name": "city"}},
        {"kind": "sum", "epsilon": 1, "of": {"op": "bucket", "of": AGE.to_json(), "width": "1/3"}},
        {"kind": "group_by", "epsilon": 1, "by": [AGE.to_json()]},
        {"kind": "group_by", "epsilon": 1, "by": [AGE.to_json()], "groups": [["x"]]},
        {"kind": "group_by", "epsilon": 1, "by": [AGE.to_json()], "groups": [[121]]},
        {"kind": "group_by", "epsilon": 1, "by": [AGE.to_json()], "delta": "9/10"},
        {"kind": "top_k", "epsilon": 1, "by": {"op": "column", "name": "city"}, "k": 50},
        {
            "kind": "workload",
            "epsilon": 1,
            "questions": [Compare("<", Field("income"), Value(3)).to_json()],
            "method": "weights",
        },
    ],
)
def test_a_plan_refuses_by_the_schema_alone(document: Any) -> None:
    query = query_from_json(document)
    with pytest.raises(InvalidValue):
        quote(query, PERSONS)


def test_expressions_are_read_by_themselves() -> None:
    assert number_from_json(AGE.to_json()) == AGE
    assert condition_from_json(FILTER.to_json()) == FILTER


def test_a_quote_is_plain_json() -> None:
    document = quote(Count(epsilon="1/10"), PERSONS).to_json()
    assert json.loads(json.dumps(document)) == document
    assert document["epsilon"] == "1/10"
    assert document["expected_error"][0]["half_width"] == 60
