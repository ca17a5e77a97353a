"""Expressions: total, inside their declared range, and the same on an engine as in Python."""

import random
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import stats

from curator.random_expressions import SCHEMA, STORED, some_condition, some_number, some_rows
from curator.worlds import KEY, PERSONS
from discreet.curator import Count
from discreet.curator import expressions as ex
from discreet.curator.dataset import CuratedDataset
from discreet.curator.few_draws import one_laplace
from discreet.curator.grids import Grid, grid_between, grid_holding
from discreet.curator.ibis_algebra import IbisAlgebra
from discreet.curator.lowering import Lowering
from discreet.curator.measures import truth_number
from discreet.curator.planning import Facts
from discreet.curator.row_algebra import RowAlgebra
from discreet.errors import NotApplicable
from discreet.privacy import DiscreteLaplace
from discreet.randomness import source


@pytest.fixture(scope="module")
def found() -> CuratedDataset:
    return CuratedDataset("found", schema=SCHEMA, source=some_rows(60), key=KEY, threads=1)


@pytest.mark.slow
def test_engine_and_python_agree_and_stay_in_range(found: CuratedDataset) -> None:
    backend = found.engine()._backend
    table = backend.bounded()
    draw = random.Random(20)
    numbers = [some_number(draw, 3) for _ in range(80)]
    conditions = [some_condition(draw, 2) for _ in range(30)]
    on_engine = Lowering(STORED, IbisAlgebra(table))
    grids, terms, kept = [], {}, []
    for at, one in enumerate(numbers):
        try:
            lowered = on_engine.number(one)
        except NotApplicable:  # by the sizes of declared bounds, before any data
            continue
        grids.append(lowered.grid)
        kept.append(one)
        terms[f"n{at}"] = lowered.term
    assert len(kept) > 60
    for at, one in enumerate(conditions):
        terms[f"w{at}"] = truth_number(on_engine, on_engine.condition(one))
    columns = {f"c{stored.position}": table[stored.kept_as] for stored in STORED.values()}
    rows = backend.rows(backend.compile(table.select(**columns, **terms)))
    assert len(rows) == 60
    width = len(STORED)
    for row in rows:
        values = dict(zip(STORED, row[:width], strict=True))
        by_hand = Lowering(STORED, RowAlgebra(values))
        for at, (one, grid) in enumerate(zip(kept, grids, strict=True)):
            expected = by_hand.number(one)
            assert expected.grid == grid
            assert row[width + at] == expected.term, one
            assert grid.low <= expected.term <= grid.high, one
        for at, one in enumerate(conditions):
            assert row[width + len(kept) + at] == by_hand.condition(one), one


def test_numbers_mean_what_they_say() -> None:
    """Against exact fractions, up to the stated grid."""
    row = {"a": 40, "b": STORED["b"].grid.step.denominator, "text": "12.5", "label": 1}
    # b is 1 exactly.
    lowering = Lowering(STORED, RowAlgebra(row))
    a, b = ex.Column("a"), ex.Column("b")

    def value(expression: Any) -> Fraction:
        lowered = lowering.number(expression)
        return Fraction(lowered.grid.value(lowered.term))

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
    assert lowering.condition(ex.Compare("<", a, ex.Value("40.000000001")))
    assert lowering.condition(ex.Compare("!=", a, ex.Value("40.000000001")))
    assert not lowering.condition(ex.Compare(">=", a, ex.Value("40.000000001")))
    assert lowering.condition(ex.Compare("<", ex.Value(1), ex.Value(2)))


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


def test_shapes_need_no_data() -> None:
    facts = Facts.of(PERSONS, Count(epsilon=1))
    lowered = facts.lowering().number(ex.Multiply(ex.Column("age"), ex.Column("age")))
    assert lowered.grid == Grid(Fraction(1), 0, 14400)
    assert lowered.term is None


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
