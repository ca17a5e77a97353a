"""Noisy cells and the bounds that follow: sensitivity by enumeration, failures by counting."""

import datetime as dt
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

from discreet.data import Date, Integer, NoisyCells, Real, Schema, plan_cells, plan_schema
from discreet.data._noisy_cells import (
    CellCounts,
    _coarse_starts,
    _threshold,
    default_grid,
    grid_of,
    set_bounds,
)
from discreet.errors import InvalidValue
from discreet.privacy import DiscreteLaplace, Relation
from discreet.randomness import source

GRIDS = {"a": (-2.0, 0.0, 1.0, 3.0), "b": tuple(range(1, 20))}
VALUES = (-math.inf, -2.0, -1.0, 0.0, 0.5, 1.0, 2.0, 7.0, 25.0, math.inf, math.nan)


def exact_cells(rows):
    """All counts of both scales of a table of two columns, as the plan adds noise to them."""
    parts = []
    for place, grid in enumerate(GRIDS.values()):
        counts = CellCounts(grid)
        counts.add(np.array([row[place] for row in rows], dtype=float))
        parts += [counts.counts, np.add.reduceat(counts.counts, _coarse_starts(grid))]
    return np.concatenate(parts)


@pytest.mark.parametrize("relation", [Relation.ADD_REMOVE, Relation.REPLACE])
def test_the_noise_covers_what_one_row_changes(relation):
    rows = list(itertools.product(VALUES, repeat=2))
    empty = exact_cells([])
    moves = [exact_cells([row]) - empty for row in rows]
    if relation is Relation.REPLACE:
        moves = [a - b for a in moves for b in moves]
    sums = max(int(np.abs(move).sum()) for move in moves)
    squares = max(int((move**2).sum()) for move in moves)
    # Two columns, two scales: four counts change, or eight. Attained, so no smaller noise will do.
    assert sums == squares == (4 if relation is Relation.ADD_REMOVE else 8)
    laplace = plan_cells(GRIDS, epsilon=1, relation=relation)
    assert laplace.loss == sums * DiscreteLaplace(float(sums), 1, relation)
    assert laplace.loss.epsilon(delta=0) == pytest.approx(1.0, abs=1e-12)
    many = {f"{k}": GRIDS["a"] for k in range(40)}
    gaussian = plan_cells(many, epsilon=1, delta=1e-6, relation=relation)
    assert gaussian.kind == "gaussian"
    assert gaussian.loss.epsilon(delta=1e-6) <= 1.0
    assert gaussian.loss.mu >= math.sqrt(20 * squares) / gaussian.scale
    if relation is Relation.ADD_REMOVE:
        assert plan_cells({"a": GRIDS["a"]}, epsilon=1, delta=1e-6).kind == "laplace"


def test_the_noise_is_added_to_every_cell():
    plan = plan_cells(GRIDS, epsilon=1)
    released = plan.release(plan.counts(), source(insecure_seed=3))
    assert {name: cells.fine.size for name, cells in released.items()} == {"a": 5, "b": 20}
    again = plan.release(plan.counts(), source(insecure_seed=4))
    assert all(
        not np.array_equal(getattr(released[name], part), getattr(again[name], part))
        for name in GRIDS
        for part in ("fine", "coarse")
    )


def test_zero_is_a_coarse_cell_of_its_own_and_six_cells_are_a_decade():
    for column in (Real(), Integer()):
        grid = default_grid(column)
        starts = _coarse_starts(grid).tolist()
        zero = grid.index(0)
        assert zero in starts
        assert zero + 1 in starts
        assert starts[0] == 0
        assert starts == sorted(set(starts))
        assert max(np.diff([*starts, len(grid) + 1])) == 6
        decade = starts[starts.index(zero) + 2]
        assert grid[decade + 5] == pytest.approx(10 * grid[decade - 1])
    assert _coarse_starts(default_grid(Date()))[:3].tolist() == [0, 6, 12]
    assert _coarse_starts((0, 1, 2)).tolist() == [0, 1]


def test_the_thresholds_are_passed_by_noise_once_in_a_hundred():
    for scale in (0.5, 3.0, 40.0):
        level = math.exp(-1.0 / scale)
        for cells in (1, 40):
            first = math.floor(_threshold("laplace", scale, cells)) + 1
            assert cells * level**first / (1 + level) <= 0.01
    noise = np.random.default_rng(1).normal(0, 7.0, (20_000, 40))
    passed = np.mean(noise.max(axis=1) > _threshold("gaussian", 7.0, 40))
    assert 0.006 < passed < 0.014  # 1 % and a deviation of .07 %


def bounds_of(counts, grid=(0, 1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100)):
    cells = CellCounts(grid)
    cells.add(np.array(counts, dtype=float))
    starts = _coarse_starts(grid)
    coarse = np.add.reduceat(cells.counts, starts)
    return NoisyCells(grid, cells.counts, coarse, starts, "laplace", 1.0).bounds()


def test_bounds_are_the_ends_of_the_cells_that_are_believed():
    assert bounds_of([0] * 900 + [4] * 50) == (0, 5)
    assert bounds_of([4] * 50 + [60] * 50) == (3, 70)
    assert bounds_of([12] * 500 + [99] * 2) == (10, 15)
    for few in ([], [5], [500], [-500], [1, 2, 5]):
        low, high = bounds_of(few)
        assert low < high


def test_cells_are_counted_over_batches():
    values = np.random.default_rng(2).normal(size=1000) * 3
    whole, parts = (CellCounts((-2.0, 0.0, 1.0)) for _ in range(2))
    whole.add(values)
    for part in np.array_split(values, 7):
        parts.add(part)
    expected = [
        np.sum(values <= -2),
        np.sum((values > -2) & (values <= 0)),
        np.sum((values > 0) & (values <= 1)),
        np.sum(values > 1),
    ]
    assert whole.counts.tolist() == parts.counts.tolist() == expected
    whole.add(np.array([np.inf, -np.inf, np.nan]))
    assert int(whole.counts.sum()) == 1002


def made_up(rows, seed):
    rng = np.random.default_rng(seed)
    columns = {}
    for k in range(10):
        columns[f"integer {k}"] = Integer(), rng.integers(3, 9 + 40 * (k + 1), rows)
        zeros = rng.random(rows) < 0.8
        columns[f"zeros {k}"] = Integer(), np.where(zeros, 0, rng.geometric(0.3 / (k + 1), rows))
        columns[f"tail {k}"] = Real(), 10.0 ** (k % 4) * np.exp(rng.normal(0, 1.5, rows))
    return columns


def test_ten_times_too_many_or_too_few_declared_rows_change_no_bound():
    """False alarm: each column is absurd with probability 1 % at most, three in 120 ten times."""
    absurd = constants = 0
    for seed in range(4):
        data = made_up(5000, seed)
        values = {name: column for name, (_, column) in data.items()}
        learned = []
        for declared in (500, 5000, 50_000):
            schema = Schema(
                {name: kind for name, (kind, _) in data.items()}, expected_rows=declared
            )
            plan = plan_schema(schema, epsilon=1, delta=1e-6)
            learned.append(plan.run(values, insecure_seed=seed).value.columns)
        assert learned[0] == learned[1] == learned[2]
        for name, column in learned[0].items():
            lower, upper = column.bounds
            low, high = np.quantile(values[name], [0.0005, 0.9995])
            absurd += upper - lower > 20 * (high - low)
            outside = np.mean((values[name] < lower) | (values[name] > upper))
            constants += outside > (0.15 if name.startswith("zeros") else 0.1)
    assert absurd <= 5
    assert constants == 0


def test_the_page_quotes_the_record():
    root = Path(__file__).parents[2]
    record = json.loads((root / "benchmarks/results/schema_bounds.json").read_text())
    page = (root / "docs/schema.md").read_text(encoding="utf-8")
    assert {line["declared_times"] for line in record["lines"]} == {0.1, 1.0, 10.0}
    for line in record["lines"]:
        shares = f"{line['absurd']:.1%} | {line['cut_off']:.1%} |".replace("%", " %")
        assert f"| {line['rows']:,} | {line['epsilon']:g} | {shares}" in page
        if line["rows"] * line["epsilon"] >= 1000:
            assert line["absurd"] <= 0.015


def test_grids():
    for column in (Real(), Integer(), Date()):
        grid = default_grid(column)
        assert list(grid) == sorted(set(grid))
        assert set_bounds(column, (grid[0], grid[-1])).complete
    assert default_grid(Real())[-1] == 7e12
    assert 0 in default_grid(Integer())
    assert all(isinstance(point, int) for point in default_grid(Integer()))
    assert grid_of("x", Integer(), [1, 5, 9]) == (1, 5, 9)
    assert grid_of("x", Date(), [dt.date(2000, 1, 1), dt.date(2001, 1, 1)])
    for wrong in ([1], [2, 1], [1, 1], "12", [1, 2.5], [1, None], 3):
        with pytest.raises(InvalidValue, match=r"grids\['x'\]"):
            grid_of("x", Integer(), wrong)
    with pytest.raises(InvalidValue, match="grids"):
        plan_cells({}, epsilon=1)


def test_a_declared_missing_value_moves_inside_the_bounds():
    assert set_bounds(Integer(missing=-1), (10, 20)) == Integer(10, 20, missing=10)
    assert set_bounds(Real(missing=15.0), (10.0, 20.0)) == Real(10, 20, missing=15)
    assert set_bounds(Real(), (10.0, 20.0)) == Real(10, 20)
