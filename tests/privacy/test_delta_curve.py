"""The privacy profile at many epsilons: bounds from few looks, judged point by point (S9)."""

import math
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from discreet.privacy import (
    GDP,
    ApproxDP,
    DiscreteGaussian,
    Gaussian,
    Laplace,
    Loss,
    PureDP,
    RandomizedResponse,
    _accountants,
    _bracket,
)
from discreet.privacy._accountants import delta_curve, make_terms

SAMPLED = 200 * Gaussian(noise_multiplier=1.0).poisson(rate=0.1)
LOSSES = {
    "sampled": SAMPLED,
    "little noise": 200 * Gaussian(noise_multiplier=0.45).poisson(rate=0.1),
    "much noise": 200 * Gaussian(noise_multiplier=60.0).poisson(rate=0.1),
    "Laplace": 40 * Laplace(scale=8.0, sensitivity=1.0),
    "sampled Laplace": 300 * Laplace(scale=2.0, sensitivity=1.0).poisson(rate=0.05),
    "mixed": 100 * Gaussian(noise_multiplier=1.1).poisson(rate=0.01)
    + Laplace(scale=20.0, sensitivity=1.0),
    "discrete": 20 * DiscreteGaussian(stddev=9.0, sensitivity=1),
    "once": Gaussian(noise_multiplier=1.0).poisson(rate=0.1),
    "group": (50 * Gaussian(noise_multiplier=3.0).poisson(rate=0.05)).group(2),
    "failing": 3 * ApproxDP(0.8, 0.02),
    "Gaussian": GDP(mu=0.7),
    "of the pool": 20
    * Gaussian(noise_multiplier=1.0, relation="replace").sample_without_replacement(
        sample=10, population=100
    ),
}


@cache
def reach(loss: Loss) -> float:
    far = loss.epsilon(delta=1e-9)
    return far if math.isfinite(far) else 5.0


@pytest.mark.parametrize("name", LOSSES)
def test_the_curve_is_certified_and_close_to_single_answers(name: str) -> None:
    loss = LOSSES[name]
    epsilons = np.linspace(0.0, 1.2 * reach(loss), 97)
    curve = delta_curve(loss, epsilons)
    assert np.all(np.diff(curve) <= 0.0)
    for at in (0, 3, 11, 30, 50, 71, 96):
        single = loss.delta_bounds(epsilon=float(epsilons[at]))
        assert curve[at] >= single.lower
        assert curve[at] <= 1.01 * single.upper + 1e-12


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("name", ["sampled", "little noise", "much noise", "mixed"])
def test_every_look_is_a_bound_at_every_epsilon(name: str, swapped: bool) -> None:
    """However far from the epsilon that it was made for: the minimum of looks rests on it."""
    plan = make_terms(LOSSES[name], 1e-12)
    epsilons = np.linspace(0.0, 1.2 * reach(LOSSES[name]), 13)
    looks = np.array(
        [_bracket._curve_look(plan, epsilons, at, swapped=swapped) for at in (0, 3, 6, 12)]
    )
    truth = [
        _bracket._delta_one_way(plan, float(e), (swapped, False), below=-1.0, rounds=3).lower
        for e in epsilons
    ]
    assert np.all(looks >= np.array(truth))
    # Each is tight somewhere: they are not all 1.
    assert looks.min(axis=0).max() < 1.0


def test_many_coins_have_the_binomial_profile() -> None:
    """k answers by randomized response, e^eps odds each: delta by exact fractions."""
    k, odds = 30, Fraction(5, 4)
    right = odds / (1 + odds)
    loss = k * RandomizedResponse(epsilon=math.log(1.25))
    epsilons = np.linspace(0.0, 0.9 * k * math.log(1.25), 40)
    curve = delta_curve(loss, epsilons)
    for epsilon, found in zip(epsilons.tolist(), curve.tolist(), strict=True):
        factor = Fraction(math.exp(epsilon))
        terms = (
            math.comb(k, j)
            * (right**j * (1 - right) ** (k - j) - factor * right ** (k - j) * (1 - right) ** j)
            for j in range(k + 1)
        )
        exact = float(sum(term for term in terms if term > 0))
        assert exact * (1 - 1e-9) <= found <= exact * 1.01 + 1e-12


def test_few_looks_serve_a_long_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    look = _bracket._curve_look

    def counted(*arguments: object, **keywords: object) -> object:
        looked.append(1)
        return look(*arguments, **keywords)

    monkeypatch.setattr(_bracket, "_curve_look", counted)
    _accountants._profile.cache_clear()
    SAMPLED.tradeoff(0.1)
    assert 4 <= len(looked) <= 24
    assert len(_accountants._profile(SAMPLED)[0]) > 150


def test_numbers_beyond_the_floats_fall_back_to_single_points(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        raise OverflowError

    monkeypatch.setattr(_bracket, "delta_curve", broken)
    epsilons = np.array([0.0, 2.0, 9.0])
    expected = [SAMPLED.delta_bounds(epsilon=e).upper for e in epsilons]
    assert delta_curve(SAMPLED, epsilons).tolist() == expected
    assert delta_curve(PureDP(0), epsilons).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("fpr", [0.001, 0.01, 0.05, 0.1])
@pytest.mark.parametrize(
    "loss", [10_000 * Gaussian(0.5).poisson(rate=0.002), 1000 * Gaussian(1.0).poisson(rate=0.01)]
)
def test_the_trade_off_is_tight_at_small_rates(loss, fpr: float) -> None:
    """A lower bound by convexity, a thousandth below: g fpr + delta(log g) is convex in g = e^eps.

    Its least value over all g is the best true-positive rate. Between certified points it lies
    above the lines through their neighbours.
    """
    claimed = float(loss.tradeoff(fpr))
    coarse = np.linspace(0.0, 12.0, 601)
    near = coarse[np.argmin(np.exp(coarse) * fpr + delta_curve(loss, coarse))]
    points = near + 0.02 * np.arange(-4, 5)
    found = [loss.delta_bounds(epsilon=float(at)) for at in points]
    g = np.exp(points)
    low = g * fpr + [bounds.lower for bounds in found]
    high = g * fpr + [bounds.upper for bounds in found]
    assert min(low[0], low[-1]) > high[4]  # so the least value lies between
    fine = np.linspace(g[1], g[-2], 4001)
    lines = [np.full(len(fine), -np.inf)]
    for i in range(1, len(g)):
        slope = (low[i] - high[i - 1]) / (g[i] - g[i - 1])
        lines.append(np.where(fine >= g[i], low[i] + slope * (fine - g[i]), -np.inf))
        slope = (high[i] - low[i - 1]) / (g[i] - g[i - 1])
        lines.append(np.where(fine <= g[i - 1], low[i - 1] + slope * (fine - g[i - 1]), -np.inf))
    least = min(float(np.max(lines, axis=0).min()), low[1], low[-2])
    assert 0.999 * claimed <= least <= claimed * (1 + 1e-9)
