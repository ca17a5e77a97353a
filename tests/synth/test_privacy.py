"""S33: what a synthesis costs, and that no neighbour moves a release further than that."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from discreet.data import Categorical, Integer, Real, Schema, complete_schema, plan_schema
from discreet.engines import open_table
from discreet.errors import BudgetExceeded, InvalidValue, NotApplicable
from discreet.ledger import Ledger
from discreet.privacy import GDP, Relation
from discreet.privacy.theorems import gaussian_mu
from discreet.synth import OneShot, Synthesizer
from discreet.synth._budget import STEPS, GaussianBudget
from discreet.synth._cells import fine_cells
from discreet.synth._counting import count_tables
from discreet.synth._selection import distance_in_steps, independent_table, list_candidates
from synth.worlds import ODD_TABLES, SCHEMA, some_rows


@pytest.mark.parametrize("relation", ["add_remove", "replace"])
@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0, 10.0])
def test_the_loss_is_one_gaussian_that_uses_the_budget(epsilon: float, relation: str) -> None:
    plan = OneShot().plan(SCHEMA, epsilon=epsilon, delta=1e-9, relation=relation)
    assert isinstance(plan.loss, GDP)
    right = gaussian_mu(epsilon, 1e-9)
    assert plan.loss.mu == pytest.approx(right, rel=1e-6)
    assert plan.loss.epsilon(delta=1e-9) <= epsilon


def test_a_schema_learned_by_gaussian_cells_adds_one_gaussian(tmp_path: Path) -> None:
    """By hand: the squares of both mu add up; what a ledger was charged for is not added."""
    open_schema = Schema({"height": Real(), "age": Integer()}, expected_rows=3_000)
    rows = {"height": np.linspace(150.0, 190.0, 3_000), "age": np.arange(3_000) % 90}
    learned = complete_schema(rows, open_schema, epsilon=0.2, delta=1e-7, insecure_seed=1)
    plan = OneShot().plan(learned.value, epsilon=1.0, delta=1e-6)
    parts = [plan.loss, learned.loss]
    assert all(isinstance(one, GDP) for one in parts)
    both = GDP(math.hypot(*(one.mu for one in parts))).epsilon(delta=1e-6)
    assert both > 1.02
    model = plan.run(rows, insecure_seed=1)
    for loss in (plan.whole_loss(), model.certificate_.loss):
        assert loss.epsilon(delta=1e-6) == pytest.approx(both, rel=1e-9)
    assert f"which was not charged: epsilon {both:.3f}"[:-1] in "\n".join(plan.explain())
    with Ledger.create(tmp_path / "book") as ledger:
        ledger.create_dataset("rows", epsilon=3, delta="1e-4", unit="row")
        with ledger.charge("rows", learned.loss) as charge:
            learning = plan_schema(open_schema, epsilon=0.2, delta=1e-7)
            paid = learning.run(rows, receipt=charge.receipt())
    done = OneShot().plan(paid.value, epsilon=1.0, delta=1e-6)
    assert done.whole_loss() == done.loss
    assert "not charged" not in "\n".join(done.explain())


def test_the_parts_add_up_in_squares() -> None:
    """By hand: sqrt(d) / s for the histograms, sqrt(m) / s for the distances, the rest."""
    plan = OneShot().plan(SCHEMA, epsilon=1.0, delta=1e-6)
    budget = plan.budget
    assert (budget.columns, budget.scores) == (5, 20)
    square = 5 / budget.column_stddev**2 + 20 / budget.score_stddev**2 + budget.table_mu**2
    assert plan.loss.mu == pytest.approx(math.sqrt(square), rel=1e-6)
    assert 5 / budget.column_stddev**2 == pytest.approx(0.2 * square, rel=1e-6)
    stddevs = budget.table_stddevs([0.5, 0.3, 0.2])
    spent = sum(1 / one**2 for one in stddevs)
    assert spent <= budget.table_mu**2
    assert spent == pytest.approx(budget.table_mu**2, rel=1e-6)
    changed = OneShot().plan(SCHEMA, epsilon=1.0, delta=1e-6, relation="replace").budget
    assert changed.column_stddev == pytest.approx(math.sqrt(2.0) * budget.column_stddev, rel=1e-6)
    assert changed.score_stddev == pytest.approx(2.0 * budget.score_stddev, rel=1e-6)


SMALL = {"a": Integer(0, 2), "b": Categorical(["x", "y"], other="y"), "c": Integer(0, 1)}


def releases(rows: list[tuple[object, ...]], schema: Schema) -> tuple[np.ndarray, np.ndarray]:
    """What gets noise, exactly: all histograms, and all distances from a public table."""
    names = schema.file_columns
    data = {
        name: np.array([row[at] for row in rows], dtype=object) for at, name in enumerate(names)
    }
    table = open_table(data, schema, engine="arrow", key=bytes(32))
    cells = fine_cells(schema)
    count = len(cells)
    columns = [one for _, one in count_tables(table, cells, [None] * count, [(0,), (1,), (2,)])]
    parts = [np.full(one.size, 3.7 / one.size) for one in cells]
    scores = [
        distance_in_steps(counts, independent_table([parts[at] for at in one], 3.7))
        for one, counts in count_tables(table, cells, [None] * count, list_candidates(3, 3))
    ]
    return np.concatenate(columns), np.array(scores)


def test_no_row_moves_a_release_further_than_charged() -> None:
    """All tables of up to 2 rows of a small domain, and all of their neighbours."""
    schema = Schema(SMALL)
    domain = list(itertools.product([0, 1, 2], ["x", "y"], [0, 1]))
    known = {
        rows: releases(list(rows), schema)
        for size in range(3)
        for rows in itertools.combinations_with_replacement(domain, size)
    }
    added, swapped = [0.0, 0.0], [0.0, 0.0]
    for rows, (columns, scores) in known.items():
        if len(rows) < 2:
            for row in domain:
                there = known[tuple(sorted((*rows, row)))]
                added[0] = max(added[0], float(np.linalg.norm(there[0] - columns)))
                added[1] = max(added[1], float(np.abs(there[1] - scores).max()))
        for at, row in itertools.product(range(len(rows)), domain):
            there = known[tuple(sorted((*rows[:at], *rows[at + 1 :], row)))]
            swapped[0] = max(swapped[0], float(np.linalg.norm(there[0] - columns)))
            swapped[1] = max(swapped[1], float(np.abs(there[1] - scores).max()))
    assert added == pytest.approx([math.sqrt(3), STEPS])  # attained, and no more
    assert swapped[0] == pytest.approx(math.sqrt(6))
    assert STEPS < swapped[1] <= 2 * STEPS


def test_no_person_moves_a_release_further_than_charged() -> None:
    schema = Schema(SMALL, person="who", rows_per_person=2)
    others = [(0, "x", 1, "ann"), (1, "y", 0, "ben"), (1, "y", 0, "ben")]
    columns, scores = releases(others, schema)
    worst = 0.0
    for row in itertools.product([0, 1, 2], ["x", "y"], [0, 1]):
        more = releases([*others, *[(*row, "cat")] * 5], schema)
        worst = max(worst, float(np.linalg.norm(more[0] - columns)))
        assert np.abs(more[1] - scores).max() <= 2 * STEPS
    assert worst == pytest.approx(2 * math.sqrt(3))
    one, two = (
        GaussianBudget.make(
            columns=3,
            scores=4,
            epsilon=1.0,
            delta=1e-6,
            relation=Relation.ADD_REMOVE,
            rows_per_person=rows,
            column_share=0.2,
            score_share=0.05,
        )
        for rows in (1, 2)
    )
    assert two.column_stddev == pytest.approx(2 * one.column_stddev, rel=1e-6)
    assert two.score_stddev == pytest.approx(2 * one.score_stddev, rel=1e-6)
    assert two.table_stddevs([1.0])[0] == pytest.approx(2 * one.table_stddevs([1.0])[0], rel=1e-6)


@pytest.mark.parametrize("name", ODD_TABLES)
def test_odd_tables_run_and_cost_the_same(name: str, tmp_path: object) -> None:
    """Empty, one row, one class, values outside: no error, no warning, the same charge."""
    plan = OneShot().plan(SCHEMA, epsilon=1.0, delta=1e-6)
    with Ledger.create(f"{tmp_path}/book") as ledger:
        ledger.create_dataset("rows", epsilon=1.2, delta="1e-6", unit="row")
        model = plan.run(ODD_TABLES[name], ledger=ledger, dataset="rows")
        with pytest.raises(BudgetExceeded):
            plan.run(ODD_TABLES[name], ledger=ledger, dataset="rows")
    usual = plan.run(some_rows(100))
    assert model.certificate_.loss == usual.certificate_.loss == plan.loss
    assert model.certificate_.plan == usual.certificate_.plan
    rows = model.sample(40)
    assert rows.schema == usual.sample(40).schema
    assert 0 <= min(rows["age"].to_pylist()) <= max(rows["age"].to_pylist()) <= 99
    assert model.sample().num_rows == round(model.total) >= 1


def test_the_number_of_rows_is_noisy() -> None:
    """A false alarm is impossible: the seeds are fixed."""
    plan = OneShot().plan(SCHEMA, epsilon=1.0, delta=1e-6)
    assert {plan.run(some_rows(200), insecure_seed=at).sample().num_rows for at in range(4)} != {
        200
    }


def test_bad_input_is_refused_before_a_charge(tmp_path: object) -> None:
    good = {"epsilon": 1.0, "delta": 1e-6, "schema": SCHEMA}
    with Ledger.create(f"{tmp_path}/book") as ledger:
        ledger.create_dataset("rows", epsilon=9, delta="1e-3", unit="row")
        ledger.create_dataset("patients", epsilon=9, delta="1e-3", unit="patient")
        where = {"ledger": ledger, "dataset": "rows"}
        for change in (
            {"schema": None},
            {"schema": "schema.toml"},
            {"epsilon": 0.0},
            {"epsilon": math.nan},
            {"delta": 0.0},
            {"delta": 2.0},
            {"method": "wish"},
            {"target": "weight"},
            {"groups": 1},
            {"max_cells": 1},
            {"bins": {"weight": 3}},
            {"bins": {"town": 3}},
            {"bins": {"paid": [3, 2]}},
            {"relation": "edit"},
            {"forbid": [{"town": "ham", "day": np.datetime64("2020-01-01")}]},
            {"forbid": None},
            {"ordered": None},
            {"missing": "age"},
        ):
            with pytest.raises(InvalidValue):
                Synthesizer(**{**good, **change}).fit(some_rows(9), **where)
        with pytest.raises(InvalidValue):
            Synthesizer(**good).fit({"age": [1]}, **where)
        with pytest.raises(InvalidValue):
            Synthesizer(**good).fit(some_rows(9), [1], **where)
        with pytest.raises(InvalidValue, match="patient"):
            Synthesizer(**good).fit(some_rows(9), ledger=ledger, dataset="patients")
        unbounded = Schema({"n": Integer()}, expected_rows=9)
        with pytest.raises(NotApplicable, match="bounds"):
            Synthesizer(**{**good, "schema": unbounded}).fit({"n": [1]}, **where)
        many = Schema({"n": Integer(0, 1 << 40)}, expected_rows=9)
        with pytest.raises(InvalidValue, match="bins"):
            Synthesizer(**{**good, "schema": many, "bins": {"n": 1 << 30}}).fit({"n": [1]}, **where)
        assert ledger.show("rows").entries == ledger.show("patients").entries == 1
    owned = Schema(SMALL, person="who", rows_per_person=2, expected_rows=9)
    with pytest.raises(NotApplicable):
        OneShot().plan(owned, epsilon=1.0, relation="replace")


def test_too_many_columns_are_not_compared_and_the_plan_says_so() -> None:
    wide = Schema({f"c{at}": Integer(0, 3) for at in range(40)}, target="c0", expected_rows=100)
    plan = OneShot().plan(wide, epsilon=1.0, delta=1e-6)
    assert plan.budget.scores == 0
    assert "too many for about 100 rows" in plan.reason
    assert any("too many" in line for line in plan.explain())
    model = plan.run({name: [0, 1, 2, 3] * 25 for name in wide.columns}, insecure_seed=1)
    assert {one.columns for one in model.measured} == {(0, at) for at in range(1, 40)}


def test_more_cells_than_fit_into_memory_are_refused_and_the_error_says_what_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schema = Schema({"a": Integer(0, 99), "b": Integer(0, 9)}, expected_rows=9)
    monkeypatch.setattr("discreet.synth._methods._MOST_CELLS", 60)
    with pytest.raises(InvalidValue, match="'a' has 100, and would have to have 50"):
        OneShot().plan(schema, epsilon=1.0)
    monkeypatch.undo()
    monkeypatch.setattr("discreet.synth._methods._BYTES_A_CELL", 1 << 40)
    with pytest.raises(InvalidValue, match="fit into memory"):
        OneShot().plan(schema, epsilon=1.0)


def test_the_plan_says_what_the_noise_does_to_every_marginal() -> None:
    """By hand: n cells with noise of standard deviation s have an L1 error of n s sqrt(2/pi)."""
    plan = OneShot().plan(SCHEMA, epsilon=1.0, delta=1e-6)
    lines = plan.explain()
    for one in plan.cells:
        [line] = [found for found in lines if found.startswith(f"{one.name}: ")]
        error = one.size * plan.budget.column_stddev * math.sqrt(2 / math.pi) / 3000
        assert f"{min(2.0, error):.3f}" in line
    pairs = [found for found in lines if " x " in found]
    assert len(pairs) == 4  # every other column with the target
    stddev = plan.budget.table_stddevs([0.05])[0]
    error = 4 * 2 * stddev * math.sqrt(2 / math.pi) / 3000
    [line] = [found for found in pairs if found.startswith("town x ill")]
    assert f"about 8 cells, L1 error of the table about {error:.3f}" in line
    every = OneShot().plan(Schema(SMALL, expected_rows=9000), epsilon=1.0).explain()
    assert sum(" x " in found for found in every) == 3


NEIGHBOURS = {
    "none and one": ([], [(3, "ham", 1.0)]),
    "one class and two": ([(3, "ham", 1.0)] * 9, [(3, "ham", 1.0)] * 9 + [(4, "ware", 0.0)]),
    "with and without a strange row": (
        [(3, "ham", 1.0)],
        [(3, "ham", 1.0), ("\x00?", 1e400, b"\xff")],
    ),
    "with and without an object": ([(1, "ham", 2.0)], [(1, "ham", 2.0), (object(), None, [3])]),
}


@pytest.mark.parametrize("name", NEIGHBOURS)
@pytest.mark.parametrize("method", ["oneshot", pytest.param("aim", marks=pytest.mark.slow)])
def test_neighbours_both_succeed_or_both_fail(name: str, method: str) -> None:
    """What a run does, but for its noise, does not depend on a row: errors, cost, form, file."""
    schema = Schema(
        {"n": Integer(0, 9), "town": Categorical(["ham"]), "x": Integer(0, 5)}, expected_rows=50
    )
    good = Synthesizer(schema=schema, epsilon=1.0, delta=1e-6, method=method)
    open_town = Schema({**schema.columns, "town": Categorical()}, expected_rows=50)
    left = Synthesizer(schema=open_town, epsilon=1.0, delta=1e-6, method=method)
    lacking = Synthesizer(
        schema=Schema({**schema.columns, "y": Integer(0, 1)}), epsilon=1.0, delta=1e-6
    )
    seen = []
    for rows in NEIGHBOURS[name]:
        data = {}
        for at, column in enumerate(schema.columns):
            data[column] = np.empty(len(rows), dtype=object)
            data[column][:] = [row[at] for row in rows]
        made = [one.fit(data) for one in (good, left)]
        with pytest.raises(InvalidValue) as refused:
            lacking.fit(data)
        seen.append(
            [
                str(refused.value),
                *(one.certificate_.loss for one in made),
                *(one.sample(3).schema for one in made),
                good.certificate_.plan,
                {key: type(value) for key, value in left.certificate_.plan.items()},
            ]
        )
    assert seen[0] == seen[1]


@pytest.mark.parametrize("method", ["oneshot", pytest.param("mst", marks=pytest.mark.slow)])
def test_neighbouring_files_both_succeed(method: str, tmp_path: Path) -> None:
    """Rows with too few cells, too many, an open quote or bytes that are no text."""
    schema = Schema({"n": Integer(0, 9), "town": Categorical(["ham"])}, expected_rows=50)
    losses = set()
    for at, row in enumerate((b"", b"7\n", b"1,2,3,4\n", b'"1,ham\n', b"\xff\xfe,\x00\n")):
        place = tmp_path / f"{at}.csv"
        place.write_bytes(b"n,town\n3,ham\n" + row)
        made = Synthesizer(schema=schema, epsilon=1.0, delta=1e-6, method=method).fit(place)
        losses.add(made.certificate_.loss)
    assert len(losses) == 1
