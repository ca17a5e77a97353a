"""Neighbours: a record that tries to make queries fail changes neither cost, status nor text.

Two services hold the same people; one of them holds one person more, whose cells are as nasty as
a file can hold. Whatever is asked, everything that leaves before the noise is the same.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from curator.service.studies import Local, Study, in_process, make_study, people

NASTY = ("zero", "0", "1e999999, '); DROP TABLE bounded; --")
AGE: dict[str, Any] = {"op": "column", "name": "age"}


def value(number: object) -> dict[str, Any]:
    return {"op": "value", "value": number}


def divided(right: dict[str, Any]) -> dict[str, Any]:
    ends = {"lower": "-1000", "upper": "1000", "default": "7"}
    return {"op": "divide", "left": value(1), "right": right, **ends}


def to_number(column: str) -> dict[str, Any]:
    return {"op": "to_number", "column": column, "lower": 0, "upper": 10, "default": 1}


def below(number: dict[str, Any], bound: object) -> dict[str, Any]:
    return {"op": "compare", "how": "<", "left": number, "right": value(bound)}


QUERIES: list[dict[str, Any]] = [
    # Division by zero: the age of the extra person is 0, and nobody else's.
    {"kind": "sum", "of": divided(AGE)},
    {"kind": "mean", "of": divided(AGE)},
    {"kind": "count", "where": below(divided(AGE), 3)},
    {"kind": "count", "where": below(divided({"op": "subtract", "left": AGE, "right": AGE}), 3)},
    # Overflow: powers of what is already at its bound.
    {"kind": "sum", "of": {"op": "multiply", "left": AGE, "right": AGE}},
    {
        "kind": "sum",
        "of": {
            "op": "multiply",
            "left": {"op": "multiply", "left": AGE, "right": AGE},
            "right": {"op": "multiply", "left": AGE, "right": AGE},
        },
    },
    # Casts.
    {"kind": "sum", "of": to_number("city")},
    {"kind": "group_by", "by": [{"op": "column", "name": "city"}]},
    {"kind": "top_k", "by": {"op": "column", "name": "city"}, "k": 2},
    # What would be a bomb for a matcher of patterns is a prefix here.
    {
        "kind": "count",
        "where": {"op": "starts_with", "column": "city", "prefix": "(a+)+" * 20 + "$"},
    },
    {"kind": "count", "where": {"op": "one_of", "column": "city", "values": ["'; DROP --", "%"]}},
    {"kind": "histogram", "of": divided(AGE), "edges": ["0", "1/2", "1"]},
    {"kind": "quantile", "of": divided(AGE), "share": "1/2"},
    {"kind": "variance", "of": divided(AGE)},
    # Refused alike: the schema says that it cannot be.
    {"kind": "sum", "of": {"op": "column", "name": "nothing"}},
    {"kind": "sum", "of": {"op": "column", "name": "city"}},
    {"kind": "count", "where": {"op": "regex", "column": "city", "pattern": "(a+)+$"}},
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[Study, Local]]]:
    common = [row for row in people(200) if row[1] != 0]
    studies = [
        make_study(tmp_path_factory.mktemp("without"), rows=common),
        make_study(tmp_path_factory.mktemp("with"), rows=[*common, NASTY]),
    ]
    with in_process(studies[0]) as first, in_process(studies[1]) as second:
        yield list(zip(studies, (first, second), strict=True))


def public_part(answer: Any) -> Any:
    """What may be compared: everything but the noisy value, its bars, times and hashes."""
    if not isinstance(answer, dict) or "receipt" not in answer:
        return answer
    content = answer["receipt"]["entry"]["content"]
    return {
        "query": answer["query"],
        "loss": answer["loss"],
        "spent": content["spent"],
        "cells": len(answer["errors"]),
        "labels": sorted(bar["label"] for bar in answer["errors"])
        if answer["query"]["kind"] != "top_k"
        else None,
        "confidence": sorted({bar["confidence"] for bar in answer["errors"]}),
        "fields": sorted(answer),
    }


@pytest.mark.parametrize("number", range(len(QUERIES)))
def test_both_neighbours_cost_and_answer_the_same(
    pair: list[tuple[Study, Local]], number: int
) -> None:
    query = {"epsilon": "1/4", **QUERIES[number]}
    replies = []
    for study, client in pair:
        quote = client.post(
            "/v1/datasets/people/quote", json={"query": query}, headers=study.token("ann")
        )
        reply = client.post(
            "/v1/datasets/people/ask", json={"query": query}, headers=study.token("ann")
        )
        assert reply.status_code in (200, 422), reply.text
        replies.append(
            (quote.status_code, quote.json(), reply.status_code, public_part(reply.json()))
        )
        if reply.status_code == 200:
            for bar in reply.json()["errors"]:
                assert all(end is None or math.isfinite(end) for end in (bar["low"], bar["high"]))
    assert replies[0] == replies[1]


def test_the_list_holds_answers_and_refusals(pair: list[tuple[Study, Local]]) -> None:
    study, client = pair[0]
    statuses = [
        client.post(
            "/v1/datasets/people/quote",
            json={"query": {"epsilon": "1/4", **query}},
            headers=study.token("bob"),
        ).status_code
        for query in QUERIES
    ]
    assert statuses[-3:] == [422, 422, 422]
    assert statuses.count(200) >= 12


@pytest.mark.slow
def test_a_source_full_of_nonsense_is_served_all_the_same(tmp_path: Path) -> None:
    rows: list[Any] = [
        ("p1", "", ""),
        ("p2", "NaN", "NaN"),
        ("p3", "-inf", "\u202e"),
        ("p4", "9" * 400, "x" * 5000),
        ("", "30", "Oslo"),
        ("p5", "-0.0", "a\u0301"),
        ("p6", "0x1F", "Oslo\u0000"),
    ]
    study = make_study(tmp_path, rows=rows)
    with in_process(study) as client:
        for query in QUERIES[:14]:
            reply = client.post(
                "/v1/datasets/people/ask",
                json={"query": {"epsilon": "1", **query}},
                headers=study.token("ann"),
            )
            assert reply.status_code in (200, 422), reply.text


STRINGS = [
    "'; DROP TABLE bounded; --",
    '" OR ""="',
    "${jndi:ldap://x}",
    "../../etc/passwd",
    "<script>alert(1)</script>",
    "{{7*7}}",
    "%00",
    "a' UNION SELECT * FROM bounded --",
    "\\x00\\'; SELECT 1",
    "read_csv('/etc/passwd')",
    "🦆" * 50,
    "\u202e",
]


@pytest.mark.parametrize("text", STRINGS)
def test_strings_are_values_everywhere(pair: list[tuple[Study, Local]], text: str) -> None:
    study, client = pair[0]
    where = [
        {"op": "one_of", "column": "city", "values": [text]},
        {"op": "starts_with", "column": "city", "prefix": text},
        {"op": "one_of", "column": text, "values": ["Oslo"]},
        {"op": "compare", "how": "<", "left": {"op": "column", "name": text}, "right": value(1)},
        {"op": "compare", "how": text, "left": AGE, "right": value(1)},
        {"op": "compare", "how": "<", "left": AGE, "right": value(text)},
        {"op": text},
    ]
    queries: list[dict[str, Any]] = [{"kind": "count", "where": one} for one in where]
    lookup = {"op": "lookup", "column": "city", "default": 0}
    queries += [
        {"kind": text},
        {"kind": "count", "epsilon": text},
        {"kind": "sum", "of": {**lookup, "cases": [{"op": "case", "text": text, "value": 1}]}},
        {"kind": "group_by", "by": [{"op": "column", "name": "city"}], "groups": [[text]]},
        {"kind": "top_k", "by": {"op": "column", "name": "city"}, "k": 1, "candidates": [text]},
    ]
    for query in queries:
        body = {"query": {"epsilon": "1/1000", **query}}
        reply = client.post("/v1/datasets/people/ask", json=body, headers=study.token("ann"))
        assert reply.status_code in (200, 422), (query, reply.text)
        assert "bounded" not in reply.text or "bounded" in text
        assert "root:" not in reply.text
        assert "Traceback" not in reply.text
    path = "/v1/datasets/people/ask"
    headers = study.token("ann")
    for name in ("people" + text, text):
        odd = client.get("/v1/datasets/" + _escaped(name), headers=headers)
        assert odd.status_code in (404, 422)
    owner = study.token("owner")
    for route, fields in (
        ("/v1/analysts", {"name": text}),
        ("/v1/tokens", {"role": "analyst", "analyst": text, "datasets": ["people"]}),
        ("/v1/datasets/people/budgets", {"analyst": text, "epsilon": 1}),
        ("/v1/datasets", {"name": text, "schema": text, "source": text, "epsilon": 1}),
    ):
        reply = client.post(route, json=fields, headers=owner)
        assert reply.status_code in (201, 404, 409, 422), (route, reply.text)
    still = client.post(path, json={"query": {"kind": "count", "epsilon": "1"}}, headers=headers)
    assert still.status_code == 200


def _escaped(text: str) -> str:
    from urllib.parse import quote

    return quote(text, safe="")
