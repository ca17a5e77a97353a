"""Repaired cells: what could be, without a look at any cell, and how many are, with noise."""

import datetime as dt
import itertools

import numpy as np
import pandas as pd
import polars as pl
import pytest

from discreet.data import (
    Boolean,
    Categorical,
    CsvFormat,
    Date,
    Integer,
    Real,
    Schema,
    open_input,
    plan_repairs,
    possible_mistakes,
)
from discreet.errors import InvalidValue, NotApplicable
from discreet.privacy import DiscreteLaplace, Relation
from discreet.randomness import source

SCHEMA = Schema(
    {
        "age": Integer(0, 90),
        "size": Real(0.5, 2.5),
        "born": Date(dt.date(1930, 1, 1), dt.date(2020, 12, 31)),
        "smokes": Boolean(),
        "ward": Categorical(["north", "south", 3]),
        "ill": Categorical(["well", "ill"], other="well"),
    },
    target="ill",
)
GOOD = {
    "age": "38",
    "size": 1.5,
    "born": "1980-05-05",
    "smokes": True,
    "ward": "3.0",
    "ill": " well ",
}
BAD = {"age": "38 y", "size": 17.0, "born": 12, "smokes": 2, "ward": "North", "ill": ""}


def table(rows):
    return {name: [row[name] for row in rows] for name in SCHEMA.columns}


def exact(rows, schema=SCHEMA, **more):
    plan = plan_repairs(schema, epsilon=1)
    data = {**table(rows), **more}
    return plan._count(open_input(data, schema), source(insecure_seed=1)).tolist()


def test_every_kind_of_repair_is_counted():
    assert exact([]) == [0] * 7
    assert exact([GOOD] * 4) == [0] * 6 + [4]
    for name in SCHEMA.columns:
        counts = exact([GOOD, {**GOOD, name: BAD[name]}, {**GOOD, name: None}])
        expected = dict.fromkeys(SCHEMA.columns, 0) | {name: 2}
        assert counts == [*expected.values(), 3]
    # What is spelled as the other label is declared, although it is where repairs go.
    assert exact([{**GOOD, "ward": "other"}])[4] == 0


@pytest.mark.parametrize("relation", [Relation.ADD_REMOVE, Relation.REPLACE])
def test_the_noise_covers_one_row(relation):
    rows = [
        {name: (BAD if bad else GOOD)[name] for name, bad in zip(SCHEMA.columns, some, strict=True)}
        for some in itertools.product([False, True], repeat=6)
    ]
    moves = [np.array(exact([row])) for row in rows]
    if relation is Relation.REPLACE:
        moves = [a - b for a in moves for b in moves]
    most = max(int(np.abs(move).sum()) for move in moves)
    stated = 7 if relation is Relation.ADD_REMOVE else 14
    assert most <= stated
    if relation is Relation.ADD_REMOVE:
        assert most == stated  # attained: no smaller noise will do
    plan = plan_repairs(SCHEMA, epsilon="0.1", relation=relation)
    assert plan.loss == stated * DiscreteLaplace(plan.scale, 1, relation)
    assert plan.loss.epsilon(delta=0) <= 0.1 * (1 + 1e-12)


def test_one_row_of_a_person_counts():
    schema = Schema(dict(SCHEMA.columns), target="ill", person="who", rows_per_person=5)
    assert exact([BAD] * 6, schema, who=["a"] * 4 + ["b", ""])[-1] == 2


def test_the_shares_are_near_the_truth_and_inside_0_and_1():
    frame = pd.DataFrame(table([GOOD] * 3000 + [{**GOOD, "age": "?"}] * 1000))
    release = plan_repairs(SCHEMA, epsilon=1).run(frame, insecure_seed=2)
    assert release.value["age"] == pytest.approx(0.25, abs=0.03)
    assert max(share for name, share in release.value.items() if name != "age") < 0.03
    empty = plan_repairs(SCHEMA, epsilon=0.01).run(table([]), insecure_seed=2).value
    assert all(0.0 <= share <= 1.0 for share in empty.values())


class Unread(str):
    """A cell that must not be looked at."""

    __slots__ = ()

    def encode(self, *_):
        raise AssertionError("a cell was read")

    def strip(self, *_):
        raise AssertionError("a cell was read")


def test_what_could_be_wrong_is_said_without_reading_a_cell(tmp_path):
    cells = {name: [Unread("x")] * 3 for name in SCHEMA.columns}
    said = [str(one) for one in possible_mistakes(cells, SCHEMA)]
    assert said[0].startswith("age: every cell could be no number")
    assert any(one.startswith("ill: labels that were not declared") for one in said)
    assert any(one.startswith("ward: texts that were not declared") for one in said)
    assert any("out of [1930-01-01, 2020-12-31]" in one for one in said)
    # A declared type rules out what cannot be.
    typed = pl.DataFrame({"age": [1], "smokes": [True]})
    short = Schema({"age": Integer(0, 90), "smokes": Boolean()})
    [left] = possible_mistakes(typed, short)
    assert "clipped" in left.what
    # Records do not matter, only the heading.
    (tmp_path / "t.csv").write_text("age,a;b\n1;2,3\n")
    schema = Schema({"age": Integer(0, 9)})
    before = possible_mistakes(tmp_path / "t.csv", schema)
    assert "a name holds ';', and the declared separator is ','" in before[0].what
    (tmp_path / "t.csv").write_text("age,a;b\nx;y;z\n\n,,,,\n")
    assert possible_mistakes(tmp_path / "t.csv", schema) == before
    quiet = Schema({"age": Integer(0, 9)}, csv=CsvFormat(delimiter=";"))
    with pytest.raises(InvalidValue, match="'age'; it is not there"):
        possible_mistakes(tmp_path / "t.csv", quiet)


def test_wrong_arguments():
    with pytest.raises(InvalidValue, match="epsilon"):
        plan_repairs(SCHEMA, epsilon=0)
    with pytest.raises(InvalidValue, match="schema"):
        plan_repairs("schema", epsilon=1)
    with pytest.raises(InvalidValue, match="schema"):
        possible_mistakes({}, "schema")
    with pytest.raises(NotApplicable, match="'a'"):
        plan_repairs(Schema({"a": Real()}), epsilon=1)
