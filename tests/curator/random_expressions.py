"""Random expressions over columns of very different sizes."""

import random
from typing import Any

import numpy as np

from discreet import engines as ex
from discreet.data import Categorical, Integer, Real, Schema
from discreet.engines import stored_columns

SCHEMA = Schema(
    {
        "a": Integer(-5, 100),
        "b": Real(-1e3, 1e3),
        "far": Real(1e15, 1e15 + 4),
        "long": Integer(-(2**53), 2**53),
        "tiny": Real(0, 1e-9),
        "label": Categorical(["x", "y"]),
        "text": Categorical(),
    }
)
STORED = stored_columns(SCHEMA)


def some_number(draw: random.Random, depth: int) -> Any:
    """A random expression over the columns; sizes far apart on purpose."""
    names = ["a", "b", "far", "long", "tiny"]
    if depth == 0 or draw.random() < 0.15:
        stated = draw.choice(["0", "1/3", "-7", "1000000000000", "1/1000000000", "0.1", "2"])
        return ex.Field(draw.choice(names)) if draw.random() < 0.7 else ex.Value(stated)
    one, two = (some_number(draw, depth - 1) for _ in range(2))
    match draw.randrange(11):
        case 0:
            return ex.Add(one, two)
        case 1:
            return ex.Subtract(one, two)
        case 2 | 3:
            return ex.Multiply(one, two)
        case 4:
            return ex.Divide(one, two, lower=-50, upper=draw.choice([3, 10**6]), default=1)
        case 5:
            return ex.Absolute(one)
        case 6:
            return ex.Least(one, two)
        case 7:
            return ex.Greatest(one, two)
        case 8:
            return ex.Clip(one, -10, "10.5")
        case 9:
            return ex.If(some_condition(draw, depth - 1), one, two)
    case = ex.Case(draw.choice("xyz"), "1/7")
    name = draw.choice(["label", "text"])
    return draw.choice([ex.Lookup(name, [case], default=-2), ex.ToNumber("text", -1, 100, "1/2")])


def some_condition(draw: random.Random, depth: int) -> Any:
    if depth > 0 and draw.random() < 0.4:
        parts = [some_condition(draw, depth - 1) for _ in range(2)]
        return draw.choice([ex.AllOf(parts), ex.AnyOf(parts), ex.Not(parts[0])])
    kind = draw.randrange(4)
    if kind == 0:
        return ex.OneOf(draw.choice(["label", "text"]), ["x", "é'", "no\\t"])
    if kind == 1:
        return ex.StartsWith(draw.choice(["label", "text"]), draw.choice(["x", "é", "%", "oth"]))
    how = draw.choice(["<", "<=", "==", "!=", ">=", ">"])
    return ex.Compare(how, some_number(draw, depth), some_number(draw, 0))


def some_rows(rows: int) -> dict[str, Any]:
    """A table of the schema, with the ends of the ranges in it."""
    draw = np.random.default_rng(8)
    ends = [-(2.0**53), 2.0**53, 0.0, 1.0, -1.0, 2.0**52 + 1]
    texts = np.array(["x", "é'", "12.5", "-3e-1", "no\\t", "", "%"], dtype=object)
    return {
        "a": draw.integers(-9, 110, rows),
        "b": np.where(draw.random(rows) < 0.2, 0.0, draw.normal(0, 500, rows)),
        "far": 1e15 + draw.integers(0, 5, rows),
        "long": np.array([ends[at] for at in draw.integers(0, 6, rows)]),
        "tiny": draw.random(rows) * 1e-9,
        "label": np.array(list("xyz"), dtype=object)[draw.integers(0, 3, rows)],
        "text": texts[draw.integers(0, 7, rows)],
    }
