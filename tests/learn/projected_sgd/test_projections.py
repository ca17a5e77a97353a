"""S22: projections by their optimality conditions, and the compiled ones by equality."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.errors import InvalidValue
from discreet.learn.projected_sgd import Box, GivenProjection, L2Ball, Simplex
from discreet.learn.projected_sgd._steps import project_in_place

LOW, HIGH = np.array([-1.0, 0.0, 2.0]), np.array([1.0, 0.5, 5.0])
SETS = [L2Ball(1.5), L2Ball(0.01), Box(-1.0, 2.0), Box(LOW, HIGH), Simplex(), Simplex(3.0)]
BY_NAME = pytest.mark.parametrize("region", SETS, ids=lambda region: str(region.describe()))

coordinate = st.one_of(st.floats(-10.0, 10.0), st.floats(-1e12, 1e12), st.just(0.0))
points = st.lists(coordinate, min_size=3, max_size=3).map(np.array)


def inside(region, point, slack=1e-9):
    if isinstance(region, L2Ball):
        return np.linalg.norm(point) <= region.radius * (1 + slack)
    if isinstance(region, Simplex):
        return np.all(point >= 0) and abs(point.sum() - region.total) <= slack * region.total
    low, high = region.numbers(point.size)
    return np.all(point >= low) and np.all(point <= high)


@BY_NAME
@given(points)
def test_kkt_the_rest_is_normal_to_the_set(region, point):
    """p is the projection iff p is in the set and <v - p, w - p> <= 0 for all w in it."""
    nearest = region.project(point.copy())
    # The sum of a simplex is as exact as the largest coordinate that went into it.
    assert inside(region, nearest, slack=1e-9 + 1e-14 * float(np.abs(point).max()))
    rest = point - nearest
    highest = -region.lowest(-rest)
    scale = 1.0 + float(np.linalg.norm(point)) ** 2
    assert highest - float(rest @ nearest) <= 1e-9 * scale


@BY_NAME
@given(points)
def test_projecting_twice_is_projecting_once(region, point):
    once = region.project(point.copy())
    slack = 1e-9 + 1e-15 * float(np.abs(point).max())
    assert region.project(once.copy()) == pytest.approx(once, rel=1e-9, abs=slack)


@BY_NAME
@given(points, points)
def test_projections_bring_nothing_apart(region, first, second):
    apart = np.linalg.norm(region.project(first.copy()) - region.project(second.copy()))
    slack = 1e-9 + 1e-13 * float(np.abs(first).max() + np.abs(second).max())
    assert apart <= np.linalg.norm(first - second) + slack


@BY_NAME
@given(points, points)
def test_reach_diameter_and_lowest_are_bounds(region, first, second):
    a, b = region.project(np.clip(first, -50, 50)), region.project(np.clip(second, -50, 50))
    assert np.linalg.norm(a) <= region.reach(3) * (1 + 1e-9)
    assert np.linalg.norm(a - b) <= region.diameter(3) * (1 + 1e-9)
    direction = np.clip(second, -50, 50)
    assert float(direction @ a) >= region.lowest(direction) - 1e-7


def test_reach_and_diameter_are_reached():
    assert L2Ball(2.0).diameter(5) == 4.0
    assert Box(-1.0, 2.0).reach(4) == pytest.approx(4.0)
    assert Box(-1.0, 2.0).diameter(4) == pytest.approx(6.0)
    assert Simplex(3.0).reach(4) == pytest.approx(3.0)
    assert Simplex(3.0).diameter(4) == pytest.approx(3.0 * math.sqrt(2.0))


@BY_NAME
@given(points)
def test_the_scalar_loop_projects_to_the_same_bits(region, point):
    scalar = point.copy()
    project_in_place(region.kind, scalar, *region.numbers(3), np.zeros(3))
    assert np.array_equal(scalar, region.project(point.copy()))


def test_a_given_projection_is_held_to_its_radius():
    ball = GivenProjection(lambda point: np.clip(point, -1.0, 1.0), radius=2.0)
    assert ball.project(np.array([5.0, 0.0])).tolist() == [1.0, 0.0]
    assert ball.lowest(np.ones(2)) is None
    for function in (lambda point: 9.0 * np.ones(2), lambda point: point * math.nan):
        with pytest.raises(InvalidValue, match=r"norm at most 2"):
            GivenProjection(function, radius=2.0).project(np.ones(2))
    with pytest.raises(InvalidValue, match="shape"):
        GivenProjection(lambda point: point[:1], radius=2.0).project(np.ones(2))


@pytest.mark.parametrize(
    "make",
    [
        lambda: L2Ball(0.0),
        lambda: L2Ball(math.inf),
        lambda: Box(1.0, 1.0),
        lambda: Box(0.0, math.nan),
        lambda: Box("a", "b"),
        lambda: Box([0.0, 0.0], [1.0, 1.0]).numbers(3),
        lambda: Simplex(-1.0),
        lambda: GivenProjection(3, radius=1.0),
        lambda: GivenProjection(abs, radius=0.0),
    ],
)
def test_improper_sets_are_refused(make):
    with pytest.raises(InvalidValue):
        make()
