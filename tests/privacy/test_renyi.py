"""The Renyi curve against integrals, sums, peers and the laws it must obey (S7, S8)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.privacy import (
    DiscreteGaussian,
    DiscreteLaplace,
    Exponential,
    Gaussian,
    Laplace,
    PureDP,
    from_pair,
)
from discreet.privacy._renyi import (
    moments_epsilon,
    rdp,
    rdp_epsilon,
)
from oracles.renyi_curves import (
    RENYI_ORDERS,
    atoms,
    losses,
    positive,
    rates,
)


@settings(max_examples=120, deadline=None)
@given(losses)
def test_curves_rise_and_are_convex(loss):
    orders = 1.0 + np.geomspace(1e-3, 1e4, 40)
    values = rdp(loss, orders)
    assert np.all(np.isfinite(values) & (values >= 0))
    assert np.all(np.diff(values) >= -1e-9 * values[1:])
    moments = (orders - 1) * values
    slopes = np.diff(moments) / np.diff(orders)
    assert np.all(np.diff(slopes) >= -1e-7 * slopes[1:])


@settings(max_examples=60, deadline=None)
@given(losses, losses, st.integers(1, 50))
def test_composition_adds(first, second, count):
    orders = np.array([1.2, 3.0, 50.0])
    together = rdp(first + count * second, orders)
    assert np.allclose(together, rdp(first, orders) + count * rdp(second, orders), rtol=1e-12)


@settings(max_examples=60, deadline=None)
@given(atoms, rates, st.floats(1e-3, 1.0))
def test_sampling_less_reveals_less(base, rate, share):
    orders = np.array([1.2, 3.0, 50.0, 1e4])
    more = rdp(base.poisson(rate=rate), orders)
    less = rdp(base.poisson(rate=rate * share), orders)
    slack = 1.02 if isinstance(base, Exponential) else 1 + 1e-9
    assert np.all(less <= more * slack + 1e-300)
    assert np.all(more <= rdp(base, orders) * slack)


@settings(max_examples=60, deadline=None)
@given(positive, rates)
def test_a_pure_bound_dominates(epsilon, rate):
    for loss in (Laplace(1.0, epsilon), PureDP(epsilon), DiscreteLaplace(1 / epsilon, 1)):
        pure = rdp(PureDP(epsilon), RENYI_ORDERS) * (1 + 1e-9)
        assert np.all(rdp(loss, RENYI_ORDERS) <= pure)
        assert np.all(pure <= epsilon * (1 + 1e-8))
        amplified = math.log1p(rate * math.expm1(epsilon))
        assert np.all(rdp(loss.poisson(rate=rate), RENYI_ORDERS) <= amplified * (1 + 1e-9))


@pytest.mark.parametrize("sigma", [0.2, 1.0, 1e3])
@pytest.mark.parametrize("rate", [1e-6, 0.5, 1 - 1e-9])
@pytest.mark.parametrize("steps", [1, 10**7])
def test_the_corners_of_the_range(sigma, rate, steps):
    loss = steps * Gaussian(sigma).poisson(rate=rate)
    values = rdp(loss, [1 + 1e-6, 1.5, 64.0, 1e6])
    assert np.all(np.isfinite(values) & (values > 0))
    for delta in (1e-15, 0.5):
        for epsilon in (rdp_epsilon(loss, delta), moments_epsilon(loss, delta)):
            assert 0 <= epsilon < math.inf
        assert rdp_epsilon(loss, delta) <= moments_epsilon(loss, delta) * (1 + 1e-9)


@pytest.mark.parametrize(
    "base",
    [
        Gaussian(1e-150),
        Gaussian(5.0),
        Gaussian(1e150),
        Laplace(1e-300, 1e300),
        Laplace(1e-300),
        Laplace(1e300, 1e-300),
        DiscreteLaplace(1e-3, 2**40),
        DiscreteGaussian(1e-3, 2**40),
        DiscreteGaussian(1e3, 2**40),
        PureDP(0),
        PureDP("1e400"),
        Exponential(1e-300),
        Exponential(1e5),
        from_pair([1e-300, 1.0], [1e-10, 1 - 1e-10]),
    ],
)
def test_absurd_values_never_lower_the_curve(base):
    """Where floats no longer resolve the exponents, the bound may only become larger."""
    orders = np.array([1 + 1e-9, 1.5, 10.0, 1e3, 1e6, 1e8, 1e12])
    for rate in (1.0, 1 - 1e-16, 1e-6, 1e-300):
        values = rdp(base.poisson(rate=rate), orders)
        assert not np.any(np.isnan(values))
        assert np.all(values[1:] >= values[:-1] * (1 - 1e-6))
        assert rdp_epsilon(base.poisson(rate=rate), 1e-5) >= 0
