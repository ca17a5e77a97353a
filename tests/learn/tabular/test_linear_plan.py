"""The plan of linear models: its noise against closed forms, and which changes it pays for."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from discreet.errors import InvalidValue, NotApplicable
from discreet.learn._exact_descent import WIDEST_WHITENED, LinearPlan, default_delta
from discreet.privacy import Relation


def plan(**changes):
    facts = {
        "rows": 2000,
        "features": 5,
        "outputs": 1,
        "norm": 2.0,
        "epsilon": 1.0,
        "delta": 1e-6,
        "relation": "add_remove",
    }
    return LinearPlan.make(**{**facts, **changes})


def closed_form_delta(epsilon: float, mu: float) -> float:
    """Balle and Wang 2018: the exact delta of a Gaussian shifted by mu deviations."""
    return float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu))


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([0.05, 0.5, 1.0, 8.0]),
    st.sampled_from([1e-9, 1e-6, 1e-4]),
    st.sampled_from(["add_remove", "replace"]),
    st.integers(1, 3),
)
def test_noise_is_what_the_closed_form_asks_for(epsilon, delta, relation, cap):
    if relation == "replace" and cap > 1:
        cap = 1
    made = plan(epsilon=epsilon, delta=delta, relation=relation, contributions=cap)
    changes = cap * (2 if relation == "replace" else 1)
    square = (made.norm**2 + 1) * 2.0**24
    moments = changes * math.sqrt((square**2 + square * 2.0**24) / 2) / made.moment_stddev
    gradients = changes * 2.0**34 / made.gradient_stddev
    mu = math.sqrt(moments**2 + made.steps * gradients**2)
    assert closed_form_delta(epsilon, mu) <= delta * (1 + 1e-6)
    assert closed_form_delta(epsilon, mu * 1.0001) > delta, "and hardly more noise than needed"
    assert made.loss.epsilon(delta=delta) <= epsilon
    assert made.loss.relation is Relation.parse(relation)


def test_replacing_a_row_and_persons_with_rows_take_more_noise():
    one, two, three = plan(), plan(relation="replace"), plan(contributions=3)
    assert two.gradient_shift == 2 * one.gradient_shift
    assert three.moment_shift == pytest.approx(3 * one.moment_shift)
    with pytest.raises(NotApplicable, match="replacing a person"):
        plan(relation="replace", contributions=2)


def test_defaults_follow_the_signal_and_stay_in_their_range():
    epsilons = [1e-3, 0.1, 1.0, 10.0]
    for squared in (False, True):
        made = [plan(epsilon=epsilon, squared=squared, rows=50_000) for epsilon in epsilons]
        total_step_sizes = [each.total_step_size for each in made]
        assert total_step_sizes == sorted(total_step_sizes)
        assert all(10 <= each.steps <= 80 for each in made)
        clips = [each.clip_ratio for each in made]
        assert clips == sorted(clips)


def test_wide_tables_do_without_moments():
    wide = plan(features=WIDEST_WHITENED, norm=3.0)
    assert wide.moment_share == 0.0
    assert wide.moment_stddev == 0.0
    assert wide.loss.epsilon(delta=1e-6) <= 1.0


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("epsilon", 0.0),
        ("epsilon", float("nan")),
        ("epsilon", 1e-14),
        ("delta", 0.0),
        ("delta", 1.0),
        ("rows", 0),
        ("norm", 0.0),
        ("contributions", 0),
        ("steps", 0),
        ("total_step_size", -1.0),
        ("clip_ratio", 0.0),
        ("moment_share", 1.0),
        ("relation", "edit"),
    ],
)
def test_values_that_make_no_sense_are_refused(argument, value):
    with pytest.raises((InvalidValue, NotApplicable)):
        plan(**{argument: value})


def test_default_delta_is_public_and_small():
    assert [default_delta(rows) for rows in (1, 10_000, 10_001, 10**9)] == [
        1e-5,
        1e-5,
        1e-6,
        1e-10,
    ]
    for rows in (1, 77, 32_561, 10**6):
        assert default_delta(rows) * rows * 10 <= 1.0 + 1e-9
