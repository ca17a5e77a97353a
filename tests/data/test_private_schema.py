"""Completing a schema: the loss is fixed first, spent whatever comes, and one row a unit counts."""

import datetime as dt
from fractions import Fraction

import numpy as np
import pytest

from discreet.data import (
    MOST_LEARNED,
    Boolean,
    Categorical,
    Date,
    Integer,
    Real,
    Schema,
    complete_schema,
    plan_schema,
    read_table,
)
from discreet.data._schema_learning import TextCounts
from discreet.errors import InvalidValue
from discreet.privacy import ApproxDP, DiscreteLaplace, from_json, to_json
from discreet.randomness import source

ROWS = 4000


def made_up(rows=ROWS):
    rng = np.random.default_rng(7)
    return {
        "age": rng.integers(18, 80, size=rows),
        "income": np.exp(rng.normal(10, 0.5, size=rows)),
        "ward": rng.choice(["north", "south", "east"], p=[0.5, 0.3, 0.2], size=rows),
        "seen": np.datetime64("2010-01-01") + rng.integers(0, 3650, size=rows),
        "flag": rng.integers(0, 2, size=rows),
    }


OPEN = Schema(
    {
        "age": Integer(),
        "income": Real(),
        "ward": Categorical(),
        "seen": Date(),
        "flag": Boolean(),
    },
    expected_rows=ROWS,
)


def test_a_schema_is_completed_and_fits_the_data():
    plan = plan_schema(OPEN, epsilon=2, delta=1e-6)
    release = plan.run(made_up(), insecure_seed=4)
    done = release.value
    assert done.incomplete == ()
    assert list(done.columns) == list(OPEN.columns)
    age, income, ward, seen = (done.columns[name] for name in ("age", "income", "ward", "seen"))
    assert -10 <= age.lower <= 20
    assert 70 <= age.upper <= 150
    assert 1000 <= income.lower <= 15_000
    assert 30_000 <= income.upper <= 200_000
    assert ward.categories == ("north", "south", "east")
    assert dt.date(2008, 1, 1) <= seen.lower <= dt.date(2011, 1, 1)
    assert dt.date(2019, 1, 1) <= seen.upper <= dt.date(2022, 1, 1)
    assert read_table(made_up(), done).rows == ROWS
    assert release.loss == plan.loss
    assert release.provenance["randomness"] == "INSECURE seed 4"
    assert set(release.provenance["columns"]) == {"age", "income", "ward", "seen"}


@pytest.mark.parametrize("epsilon", [1, 0.1, 0.3, "1/3", 2.0])
@pytest.mark.parametrize("relation", ["add_remove", "replace"])
def test_the_shares_never_pass_the_budget(epsilon, relation):
    plan = plan_schema(OPEN, epsilon=epsilon, delta=1e-6, relation=relation)
    spent = Fraction(3, 4) * Fraction(str(epsilon))
    slack = Fraction(1, 2 * 10**6) if plan.cells.kind == "gaussian" else Fraction(0)
    assert plan.cells.loss.epsilon(delta=float(slack)) <= float(spent) * (1 + 1e-9)
    for step in plan.categories.values():
        times = 1 if relation == "add_remove" else 2
        spent += times * step.test.epsilon
        slack += times * step.test.delta
    budget = Fraction(str(epsilon))
    assert budget * (1 - Fraction(1, 10**9)) <= spent <= budget * (1 + Fraction(1, 10**15))
    assert slack <= Fraction(1, 10**6)
    assert plan.loss.epsilon(delta=1e-6) <= float(budget) * (1 + 1e-9)
    assert from_json(to_json(plan.loss)) == plan.loss


def test_the_loss_is_spelled_out():
    plan = plan_schema(
        Schema({"a": Real(), "b": Categorical()}), epsilon=1, delta=1e-6, relation="add_remove"
    )
    step = plan.categories["b"].test
    assert plan.loss == 2 * DiscreteLaplace(4.0) + ApproxDP(Fraction(1, 2), step.delta)
    bounds_only = plan_schema(Schema({"a": Real()}), epsilon=1)
    assert bounds_only.loss.epsilon(delta=0) == 1.0


def test_one_row_of_each_person_is_looked_at():
    schema = Schema({"age": Integer(), "ward": Categorical()}, person="who", rows_per_person=9)
    who = ["greedy"] * 500 + ["a", "b", "c", "", None]
    data = {"who": who, "age": [70] * 500 + [20] * 5, "ward": ["rare"] * 500 + ["north"] * 5}
    plan = plan_schema(schema, epsilon=1, delta=1e-6)
    ranks = plan.cells.counts()
    texts = {"ward": TextCounts()}
    plan._count(data, ranks, texts, source())
    assert int(ranks["age"].counts.sum()) == 4
    assert texts["ward"].counts == {"rare": 1, "north": 3}


@pytest.mark.parametrize(
    "data",
    [
        {"age": [], "ward": []},
        {"age": [None], "ward": [None]},
        {"age": ["?", "x"], "ward": [b"\xff", ""]},
        {"age": [np.inf, -np.inf], "ward": ["once", "twice"]},
        {"age": [5] * 50, "ward": ["same"] * 50},
    ],
)
def test_no_data_are_an_error(data):
    schema = Schema({"age": Integer(missing=7), "ward": Categorical()}, target="ward")
    for seed in range(5):
        done = complete_schema(data, schema, epsilon=1, delta=1e-6, insecure_seed=seed).value
        assert done.incomplete == ()
        assert done.columns["ward"].labels
        assert done.columns["age"].lower <= done.columns["age"].missing


def test_a_learned_target_has_only_its_own_classes():
    schema = Schema({"x": Real(0, 1), "ward": Categorical()}, target="ward")
    data = {"x": [0] * 9000, "ward": ["n"] * 5000 + ["s"] * 4000}
    done = complete_schema(data, schema, epsilon=1, delta=1e-6).value
    assert done.classes == ("n", "s")
    assert done.columns["ward"].other == "n"


def test_given_grids_are_used():
    plan = plan_schema(OPEN, epsilon=1, delta=1e-6, grids={"age": [0, 20, 40, 60, 80, 100]})
    assert plan.cells.grids["age"] == (0, 20, 40, 60, 80, 100)


def test_the_plan_reads_files(tmp_path):
    lines = ["x,c", *(f"{at % 100},{'ab'[at % 2]}" for at in range(3000))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    schema = Schema({"x": Real(), "c": Categorical()})
    done = complete_schema(tmp_path / "t.csv", schema, epsilon=2, delta=1e-6, insecure_seed=1)
    assert set(done.value.columns["c"].categories) == {"a", "b"}
    assert done.value.columns["x"].upper in (100.0, 150.0)


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"schema": Schema({"a": Real(0, 1)})}, "schema"),
        ({"schema": "schema"}, "schema"),
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": "a lot"}, "epsilon"),
        ({"delta": None}, "delta"),
        ({"delta": 0}, "delta"),
        ({"delta": 1}, "delta"),
        ({"relation": "bounded"}, "relation"),
        ({"grids": {"flag": [0, 1]}}, "grids"),
        ({"grids": {"age": [1, 0]}}, "grids['age']"),
        ({"grids": [0, 1]}, "grids"),
    ],
)
def test_wrong_arguments_are_named_before_anything_is_read(change, argument):
    options = {"schema": OPEN, "epsilon": 1, "delta": 1e-6} | change
    with pytest.raises(InvalidValue) as caught:
        plan_schema(options.pop("schema"), **options)
    assert caught.value.argument == argument


def test_a_missing_column_is_an_error_of_the_form():
    data = made_up()
    del data["ward"]
    with pytest.raises(InvalidValue, match="one column 'ward'"):
        complete_schema(data, OPEN, epsilon=1, delta=1e-6)


def test_no_more_categories_are_kept_than_memory_is_planned_for():
    # Every text is far above the threshold; those of the second half occur twice as often.
    rare, frequent = range(MOST_LEARNED), range(MOST_LEARNED, 2 * MOST_LEARNED)
    texts = [str(number) for number in (*rare, *frequent, *frequent)] * 100
    for target in (None, "ward"):
        schema = Schema({"ward": Categorical()}, target=target)
        done = complete_schema({"ward": texts}, schema, epsilon=20, delta=1e-3).value
        assert set(done.columns["ward"].categories) == set(map(str, frequent))
