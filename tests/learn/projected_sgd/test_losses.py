"""S22: losses: slopes against differences, convexity, Lipschitz constants."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.errors import InvalidValue
from discreet.learn.projected_sgd import Hinge, Huber, Logistic, Squared, SquaredHinge

LOSSES = [Logistic(), Hinge(), Huber(0.7), Huber(3.0), Squared(), SquaredHinge()]
scores = st.floats(-30.0, 30.0)
signs = st.sampled_from([-1.0, 1.0])
shares = st.floats(-1.0, 1.0)


def value(loss, score, target):
    return float(loss.values(np.array([score]), np.array([target]))[0])


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@given(score=scores, sign=signs, share=shares)
def test_the_slope_is_the_derivative(loss, score, sign, share):
    target = sign if loss.for_classes else share
    h = 1e-4
    corners = [target] if isinstance(loss, Hinge) else []
    if any(abs(score - corner) < 2 * h for corner in corners):
        return
    rise = (value(loss, score + h, target) - value(loss, score - h, target)) / (2 * h)
    assert loss.slope(score, target) == pytest.approx(rise, abs=2e-4)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@given(first=scores, second=scores, sign=signs, share=shares)
def test_the_slope_is_a_subgradient(loss, first, second, sign, share):
    target = sign if loss.for_classes else share
    line = value(loss, first, target) + loss.slope(first, target) * (second - first)
    assert value(loss, second, target) >= line - 1e-9


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@given(first=scores, second=scores, sign=signs, share=shares)
def test_the_slope_bound_holds_and_bounds_differences(loss, first, second, sign, share):
    target = sign if loss.for_classes else share
    bound = loss.slope_bound(score_bound=30.0, target_bound=1.0)
    assert abs(loss.slope(first, target)) <= bound
    change = abs(value(loss, first, target) - value(loss, second, target))
    assert change <= bound * abs(first - second) * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize(
    ("loss", "score", "target"),
    [
        (Logistic(), -1e4, 1.0),
        (Hinge(), -30.0, 1.0),
        (Huber(0.7), 30.0, -1.0),
        (Squared(), 30.0, -1.0),
        (SquaredHinge(), -30.0, 1.0),
    ],
    ids=repr,
)
def test_the_slope_bound_is_reached(loss, score, target):
    bound = loss.slope_bound(score_bound=30.0, target_bound=1.0)
    assert abs(loss.slope(score, target)) == pytest.approx(bound)


def test_the_logistic_slope_is_exact_far_out():
    assert Logistic().slope(800.0, 1.0) == 0.0
    assert Logistic().slope(-800.0, 1.0) == -1.0
    assert Logistic().slope(30.0, 1.0) == pytest.approx(-math.exp(-30.0), rel=1e-12)
    assert Logistic().slope(0.0, -1.0) == 0.5


def test_the_squared_losses_need_a_bounded_set():
    for loss in (Squared(), SquaredHinge()):
        with pytest.raises(InvalidValue, match="bounded set"):
            loss.slope_bound(score_bound=math.inf, target_bound=1.0)
    with pytest.raises(InvalidValue, match="threshold"):
        Huber(0.0)
