"""Expressions: total, inside their declared range, and the same on an engine as in Python."""

import random
from fractions import Fraction
from typing import Any

import ibis  # type: ignore[import-untyped]
import numpy as np
import pytest
from scipy import stats

from curator.random_expressions import SCHEMA, STORED, some_condition, some_number, some_rows
from curator.row_oracle import evaluate_row
from curator.worlds import KEY, PERSONS
from discreet import engines as ex
from discreet.curator import Count
from discreet.curator._dataset import CuratedDataset
from discreet.curator._few_draws import one_laplace
from discreet.curator._plan import Facts
from discreet.engines import Grid, Lowering, evaluate, truth_number
from discreet.engines._lowering import grid_between, grid_holding
from discreet.engines._sql import _Writer, bounded_table
from discreet.engines._table import _array
from discreet.errors import NotApplicable
from discreet.privacy import DiscreteLaplace
from discreet.randomness import source


@pytest.fixture(scope="module")
def found() -> CuratedDataset:
    return CuratedDataset("found", schema=SCHEMA, source=some_rows(60), key=KEY, threads=1)


@pytest.mark.slow
def test_engines_and_python_agree_and_stay_in_range(found: CuratedDataset) -> None:
    """DuckDB, numpy and the row-by-row oracle, on every row."""
    engine: Any = found.engine()
    table = bounded_table(list(STORED.values()), persons=False)
    draw = random.Random(20)
    lowering = Lowering(STORED)
    grids, terms = [], []
    for one in [some_number(draw, 3) for _ in range(80)]:
        try:
            lowered = lowering.number(one)
        except NotApplicable:  # by the sizes of declared bounds, before any data
            continue
        grids.append(lowered.grid)
        terms.append(lowered.term)
    assert len(terms) > 60
    conditions = [lowering.condition(some_condition(draw, 2)) for _ in range(30)]
    terms += [truth_number(one).term for one in conditions]
    writer = _Writer(table, str)
    names = [stored.stored_name for stored in STORED.values()]
    written = {f"t{at}": writer.write(term) for at, term in enumerate(terms)}
    select = table.select(**{name: table[name] for name in names}, **written)
    rows = engine.rows(str(ibis.to_sql(select, dialect="duckdb")))
    assert len(rows) == 60
    read = engine.arrow(f"SELECT {', '.join(names)} FROM bounded")
    columns = {name: _array(read.column(name)) for name in names}
    order = list(zip(*(read.column(name).to_pylist() for name in names), strict=True))
    at_once = [np.broadcast_to(evaluate(term, columns), 60) for term in terms]
    by_numpy = {row: [int(found[at]) for found in at_once] for at, row in enumerate(order)}
    for row in rows:
        stored = dict(zip(names, row, strict=False))
        expected = [int(evaluate_row(term, stored)) for term in terms]
        assert list(row[len(names) :]) == expected
        assert by_numpy[tuple(row[: len(names)])] == expected
        for grid, value in zip(grids, expected, strict=False):
            assert grid.low <= value <= grid.high


def test_numbers_mean_what_they_say() -> None:
    """Against exact fractions, up to the stated grid."""
    named = {"a": 40, "b": STORED["b"].grid.step.denominator, "text": "12.5", "label": 1}
    # b is 1 exactly.
    row = {STORED[name].stored_name: value for name, value in named.items()}
    lowering = Lowering(STORED)
    a, b = ex.Field("a"), ex.Field("b")

    def value(expression: Any) -> Fraction:
        lowered = lowering.number(expression)
        return Fraction(lowered.grid.value(evaluate_row(lowered.term, row)))

    def holds(condition: Any) -> Any:
        return evaluate_row(lowering.condition(condition), row)

    assert value(ex.Add(a, b)) == 41
    assert value(ex.Subtract(b, a)) == -39
    assert value(ex.Multiply(a, ex.Value("1/4"))) == 10
    assert abs(value(ex.Multiply(a, ex.Value("1/3"))) - Fraction(40, 3)) < Fraction(1, 10**7)
    assert value(ex.Divide(a, ex.Subtract(b, b), lower=0, upper=9, default=5)) == 5
    assert value(ex.Divide(a, b, lower=0, upper=9, default=5)) == 9
    assert abs(value(ex.Divide(b, a, lower=0, upper=1, default=0)) - Fraction(1, 40)) < 1e-9
    assert value(ex.Bucket(a, 15)) == 30
    assert value(ex.Bucket(ex.Subtract(b, a), 15)) == -45
    assert value(ex.ToNumber("text", 0, 100, 1)) == 12.5
    assert value(ex.Clip(a, "10.5", 20)) == 20
    assert holds(ex.Compare("<", a, ex.Value("40.000000001")))
    assert holds(ex.Compare("!=", a, ex.Value("40.000000001")))
    assert not holds(ex.Compare(">=", a, ex.Value("40.000000001")))
    assert holds(ex.Compare("<", ex.Value(1), ex.Value(2)))


def test_grids_hold_their_bounds() -> None:
    far = 10**15
    for lower, upper in ((0, 1), (-3, Fraction(1, 7)), (far, far + 1), (0, Fraction(1, far))):
        grid = grid_between(Fraction(lower), Fraction(upper))
        assert abs(grid.bounds[0] - lower) <= grid.step
        assert abs(grid.bounds[1] - upper) <= grid.step
        assert grid.magnitude <= 2**53
    assert grid_holding(Fraction(1, 3)).step < Fraction(1, 2**30)
    with pytest.raises(NotApplicable):
        Grid(Fraction(1), 0, 2**53 + 1)
    with pytest.raises(NotApplicable):
        grid_between(Fraction(0), Fraction(1, 10**300))


def test_grids_need_no_data() -> None:
    facts = Facts.of(PERSONS, Count(epsilon=1))
    lowered = facts.lowering().number(ex.Multiply(ex.Field("age"), ex.Field("age")))
    assert lowered.grid == Grid(Fraction(1), 0, 14400)


@pytest.mark.parametrize("scale", [Fraction(1, 3), Fraction(5, 2), Fraction(40)])
def test_single_draws_are_discrete_laplace(scale: Fraction) -> None:
    """Chi-square against the exact probabilities; false alarm 1e-9; half the scale is caught."""
    count = 4000
    bits = source(insecure_seed=17)
    draws = np.array([one_laplace(scale, bits) for _ in range(count)])
    assert chi_square(draws, float(scale)) > 1e-9
    assert chi_square(np.round(draws / 2), float(scale)) < 1e-9
    assert DiscreteLaplace(float(scale)).sensitivity == 1


def chi_square(draws: Any, scale: float) -> float:
    width = max(1, round(scale / 2))
    ratio = np.exp(-1 / scale)
    edges = np.array([-3 * width, -width, 0, 1, width + 1, 3 * width + 1])
    # P(X < e) of the discrete Laplace distribution.
    below = np.where(
        edges <= 0, ratio ** (1.0 - edges) / (1 + ratio), 1 - ratio**edges / (1 + ratio)
    )
    below = np.unique(below)
    edges = np.unique(edges)
    shares = np.diff(np.concatenate([[0.0], below, [1.0]]))
    seen = np.bincount(np.searchsorted(edges, draws, side="right"), minlength=len(edges) + 1)
    return float(stats.chisquare(seen, shares * len(draws)).pvalue)
