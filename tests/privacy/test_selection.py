"""Selections of bounded range against every exponential mechanism."""

from __future__ import annotations

import math

import numpy as np
import pytest

from discreet.errors import NotApplicable
from discreet.privacy import (
    ApproxDP,
    Exponential,
)
from discreet.privacy._renyi import (
    rdp,
)
from oracles import exact_compositions as exact


def test_bounded_range_dominates_every_exponential_mechanism():
    # Two outcomes whose log ratios are 0.8 apart, at any position.
    worst = Exponential(0.8)
    for t in np.linspace(0.02, 0.78, 7):
        p = -math.expm1(t - 0.8) * math.exp(t) / (math.exp(t) - math.exp(t - 0.8))
        q = p * math.exp(-t)
        pair = ([p, 1 - p], [q, 1 - q])
        for count, epsilon in ((1, 0.1), (1, 0.5), (3, 0.2), (3, 1.0)):
            value = exact.pair_delta([(*pair, count)], epsilon)
            assert (count * worst).delta(epsilon=epsilon) >= value * (1 - 1e-9)


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 6.0])
def test_bounded_range_is_the_best_two_point_pair(epsilon):
    """A grid of ends t comes close to the closed form from below, never above."""
    orders = np.array([1.1, 2.0, 9.0])
    rate = 0.2
    plain, sampled = np.zeros(3), np.zeros(3)
    for t in np.linspace(0, epsilon, 402)[1:-1]:
        high = math.expm1(epsilon - t) / (math.exp(epsilon) - 1)
        q = [high, 1 - high]
        p = [high * math.exp(t), (1 - high) * math.exp(t - epsilon)]
        for i, order in enumerate(orders):
            both = [
                sum(u**order * v ** (1 - order) for u, v in zip(*d, strict=True))
                for d in ((p, q), (q, p))
            ]
            plain[i] = max(plain[i], math.log(max(both)) / (order - 1))
            mixed = [(1 - rate) * v + rate * u for u, v in zip(p, q, strict=True)]
            both = [
                sum(u**order * v ** (1 - order) for u, v in zip(*d, strict=True))
                for d in ((mixed, q), (q, mixed))
            ]
            sampled[i] = max(sampled[i], math.log(max(both)) / (order - 1))
    values = rdp(Exponential(epsilon), orders)
    assert np.all(plain <= values * (1 + 1e-9))
    assert np.all(values <= plain * (1 + 1e-4))
    assert np.all(values <= orders * epsilon**2 / 8 * (1 + 1e-12))
    bounds = rdp(Exponential(epsilon).poisson(rate=rate), orders)
    assert np.all(sampled <= bounds)
    assert np.all(bounds <= sampled * 1.05)


@pytest.mark.parametrize("run", [ApproxDP(1.0, 1e-6), 3 * ApproxDP(1.0, 1e-6)])
def test_the_best_of_runs_without_a_renyi_curve_is_refused_at_once(run):
    with pytest.raises(NotApplicable, match="no Renyi bound"):
        run.best_of(5)
    assert ApproxDP(1.0, 0).best_of(5).epsilon(delta=0) == pytest.approx(3.0)
