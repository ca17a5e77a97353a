"""One grammar of queries: what its JSON Schema takes is what the forms read.

Where they differ is said by name: what a schema cannot express is left to the form, and its refusal
must be one of those below. What the form reads, the schema takes, without exception.
"""

import copy
import json
import random
from typing import Any

import jsonschema_rs
import pytest

from curator.worlds import queries
from discreet.curator import query_from_json
from discreet.curator._queries import QUERIES, describe_queries
from discreet.engines import CONDITIONS, NUMBERS
from discreet.errors import InvalidValue

# The form alone: bounds of numbers in texts and of exact digits, fields that depend on one
# another, days that are not in the calendar, a 1.0 for a whole number, the depth.
BEYOND_THE_SCHEMA = (
    "an exact number",
    "at most 18 digits",
    "few decimal digits",
    "denominator of at most",
    "a number above lower",
    "a number from",
    "numbers that increase",
    "distinct",
    "none for a count",
    "none where groups",
    "a value for each of by",
    "a day as",
    "an integer",
    "levels",
)


@pytest.fixture(scope="module")
def validator() -> Any:
    document = {"$ref": "#/components/schemas/Query", "components": {"schemas": describe_queries()}}
    return jsonschema_rs.Draft202012Validator(document)


def refusal(document: Any) -> str | None:
    try:
        query_from_json(document)
    except InvalidValue as error:
        return str(error)
    return None


def agree(validator: Any, document: Any) -> tuple[bool, bool]:
    """Whether schema and form take a document; fails where they must not differ."""
    valid, said = validator.is_valid(document), refusal(document)
    if said is None:
        assert valid, document
    elif valid:
        assert any(word in said for word in BEYOND_THE_SCHEMA), (said, document)
    return valid, said is None


def test_every_form_is_described() -> None:
    components = describe_queries()
    forms = {**QUERIES, **NUMBERS, **CONDITIONS}.values()
    assert {form.__name__ for form in forms} <= set(components)
    for form in forms:
        described = components[form.__name__]
        assert described["properties"][form.key] == {"const": form.tag}
        assert described["additionalProperties"] is False
        assert described["description"]


def test_good_queries_are_taken_by_both(validator: Any) -> None:
    for query in queries():
        document = json.loads(json.dumps(query.to_json()))
        assert agree(validator, document) == (True, True)


ATOMS: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 1.0, 0.5, -3.5, 1e-30, 1e300, 10**18, 10**19, 10**30, 2**31),
    *("", "a", "x" * 200, "x" * 201, "a\x00", "a\n", "\x7f", "é", "1", "0", "1/10", "0.1", "1/0"),
    *("-1/3", "1e-6", "1e999", ".5", "5.", " 1", "1_0", "1/2/3", "nan", "inf", "٣", "9" * 19),
    *("2020-02-29", "2021-02-29", "2020-W05-3", "20200229", "count", "compare", "<", "~"),
    *([], {}, [1], ["a"], [[1]], [["a", 1]], {"op": "column", "name": "age"}, {"op": "value"}),
]


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            found += places(value, (*path, key))
    return found


def change(document: Any, draw: random.Random, parts: list[Any]) -> Any:
    """Replace, remove or add something somewhere, by an atom or by a part of another query."""
    document = {"": copy.deepcopy(document)}
    *above, last = ("", *draw.choice(places(document[""])))
    node = document
    for key in above:
        node = node[key]
    other = draw.choice([*ATOMS, copy.deepcopy(draw.choice(parts))])
    how = draw.randrange(4)
    if how == 0 and last != "":
        del node[last]
    elif how == 1 and isinstance(node[last], dict):
        name = draw.choice(["where", "rows_per_person", "lower", "sql", "epsilon", "of", ""])
        node[last][name] = other
    elif how == 1 and isinstance(node[last], list):
        node[last] = node[last] * draw.choice([2, 30, 3000])
    else:
        node[last] = other
    return document[""]


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_changed_queries_are_judged_alike(validator: Any, seed: int) -> None:
    draw = random.Random(seed)
    good = [json.loads(json.dumps(query.to_json())) for query in queries()]
    parts = []
    for document in good:
        for path in places(document):
            part = document
            for key in path:
                part = part[key]
            parts.append(part)
    verdicts = {}
    for _ in range(1500 if seed == 1 else 20_000):
        document = change(draw.choice(good), draw, parts)
        if draw.randrange(3) == 0:
            document = change(document, draw, parts)
        verdict = agree(validator, document)
        verdicts[verdict] = verdicts.get(verdict, 0) + 1
    # Both agree on many of each kind, and few are for the form alone.
    assert verdicts[True, True] > 50
    assert verdicts[False, False] > 500
    assert verdicts.get((True, False), 0) < 0.2 * sum(verdicts.values())


def test_a_planted_difference_is_seen(validator: Any) -> None:
    loose = {"$ref": "#/components/schemas/Query", "components": {"schemas": describe_queries()}}
    loose["components"]["schemas"]["Count"]["additionalProperties"] = True
    with pytest.raises(AssertionError):
        agree(
            jsonschema_rs.Draft202012Validator(loose),
            {"kind": "count", "epsilon": 1, "sql": "drop"},
        )
    strict = {"$ref": "#/components/schemas/Query", "components": {"schemas": describe_queries()}}
    strict["components"]["schemas"]["Count"]["required"].append("where")
    with pytest.raises(AssertionError):
        agree(jsonschema_rs.Draft202012Validator(strict), {"kind": "count", "epsilon": 1})
