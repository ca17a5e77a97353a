"""The recursion for one run against a curve, beside a linear programme that solves the same."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, special, stats

from audit.null_mechanisms import accuracy
from discreet.audit._one_run import (
    ApproximateCurve,
    GaussianCurve,
    LossCurve,
    contradicts_curve,
    one_run_p_value,
)
from discreet.privacy import GDP, ApproxDP, Gaussian, PureDP


def largest_tail(epsilon: float, delta: float, m: int, r: int, v: int) -> float:
    """The slow twin: maximise P(C >= v) over all laws of C that the inequalities allow.

    For every j: sum over l > j of l p_l / m <= power(sum over l >= j of (r - l) p_l / m), where
    the power at x is the least of e^eps x + delta and 1 - e^-eps (1 - x - delta).
    """
    counts = np.arange(r + 1)
    rows, limits = [], []
    for j in range(r):
        right = np.where(counts > j, counts, 0) / m
        wrong = np.where(counts >= j, r - counts, 0) / m
        rows += [right - np.exp(epsilon) * wrong, right - np.exp(-epsilon) * wrong]
        limits += [delta, 1 - np.exp(-epsilon) * (1 - delta)]
    answer = optimize.linprog(
        -(counts >= v).astype(float),
        A_ub=np.array(rows),
        b_ub=np.array(limits),
        A_eq=np.ones((1, r + 1)),
        b_eq=[1.0],
        method="highs",
    )
    assert answer.success
    return float(-answer.fun)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    epsilon=st.floats(0, 3),
    delta=st.sampled_from([0.0, 1e-4, 0.01, 0.1]),
    r=st.integers(1, 12),
    idle=st.integers(0, 10),
    data=st.data(),
)
def test_the_recursion_solves_the_programme(
    epsilon: float, delta: float, r: int, idle: int, data: st.DataObject
) -> None:
    m, v = r + idle, data.draw(st.integers(1, r))
    most = largest_tail(epsilon, delta, m, r, v)
    curve = ApproximateCurve(epsilon, delta)
    below, above = max(1e-12, most * (1 - 1e-5)), most * (1 + 1e-5) + 1e-9
    assert not contradicts_curve(curve, canaries=m, guesses=r, correct=v, rate=below)
    if above < 1:
        assert contradicts_curve(curve, canaries=m, guesses=r, correct=v, rate=above)


@pytest.mark.parametrize("epsilon", [0.05, 0.7, 2.0])
def test_randomized_response_is_allowed(epsilon: float) -> None:
    """Its number of right guesses is binomial; no tail of it may be called impossible."""
    curve = ApproximateCurve(epsilon, 0.0)
    coarse = LossCurve(PureDP(epsilon=epsilon), delta=0.0)
    for r in (1, 5, 40):
        for v in range(r + 1):
            tail = float(stats.binom.sf(v - 1, r, accuracy(epsilon)))
            assert not contradicts_curve(curve, canaries=50, guesses=r, correct=v, rate=tail)
            assert not contradicts_curve(coarse, canaries=50, guesses=r, correct=v, rate=tail)


@pytest.mark.parametrize("mu", [0.5, 1.5])
def test_the_gaussian_is_allowed_and_little_more(mu: float) -> None:
    """Guess every canary by its sign: binomial with accuracy Phi(mu / 2)."""
    r = 60
    right = float(special.ndtr(mu / 2))
    for v in range(r // 2, r + 1):
        tail = float(stats.binom.sf(v - 1, r, right))
        assert not contradicts_curve(GaussianCurve(mu), canaries=r, guesses=r, correct=v, rate=tail)
        assert not contradicts_curve(
            LossCurve(GDP(mu=mu), delta=1e-5), canaries=r, guesses=r, correct=v, rate=tail
        )
    assert contradicts_curve(GaussianCurve(mu / 2), canaries=r, guesses=r, correct=r, rate=0.05)


@pytest.mark.parametrize(
    ("loss", "exact", "close"),
    [
        (GDP(mu=1.0), GaussianCurve(1.0), 2e-3),
        (PureDP(epsilon=1.3), ApproximateCurve(1.3, 0.0), 1e-3),
        (ApproxDP(epsilon=0.8, delta=0.02), ApproximateCurve(0.8, 0.02), 1e-12),
    ],
)
def test_curves_of_losses_are_safe_and_close(loss, exact, close: float) -> None:
    curve = LossCurve(loss, delta=0.02)
    for power in np.linspace(0.001, 0.999, 200).tolist():
        assert curve.least_fpr(power) <= exact.least_fpr(power) + 1e-12
        assert curve.least_fpr(power) >= exact.least_fpr(power) - close


def test_the_curve_of_a_loss_is_the_inverse_of_its_best_power() -> None:
    loss = Gaussian(noise_multiplier=0.7).poisson(rate=0.3)
    curve = LossCurve(loss, delta=1e-5)
    for fpr in (0.01, 0.1, 0.4, 0.8):
        assert curve.least_fpr(float(loss.tradeoff(fpr))) == pytest.approx(fpr, abs=2e-3)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    epsilon=st.floats(0, 4),
    r=st.integers(2, 60),
    rate=st.sampled_from([0.05, 0.2]),
    data=st.data(),
)
def test_more_right_guesses_and_lower_curves_refute_more(
    epsilon: float, r: int, rate: float, data: st.DataObject
) -> None:
    v = data.draw(st.integers(1, r - 1))
    facts = {"canaries": 80, "guesses": r, "rate": rate}
    first = contradicts_curve(ApproximateCurve(epsilon, 0.001), correct=v, **facts)
    assert contradicts_curve(ApproximateCurve(epsilon, 0.001), correct=v + 1, **facts) >= first
    assert contradicts_curve(ApproximateCurve(epsilon / 2, 0.001), correct=v, **facts) >= first


def test_it_agrees_with_the_other_theorem_where_delta_is_0() -> None:
    """Both are exact for pure epsilon at the largest number of right guesses."""
    for r in (10, 50):
        p_value = one_run_p_value(canaries=r, guesses=r, correct=r, epsilon=1.0, delta=0.0)
        curve = ApproximateCurve(1.0, 0.0)
        assert not contradicts_curve(curve, canaries=r, guesses=r, correct=r, rate=p_value * 0.999)
        assert contradicts_curve(curve, canaries=r, guesses=r, correct=r, rate=p_value * 1.5)
