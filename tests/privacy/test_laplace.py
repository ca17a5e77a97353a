"""Laplace noise, continuous and discrete, against integrals and sums."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
from mpmath import mp, mpf

from discreet.privacy import (
    DiscreteLaplace,
    Laplace,
)
from discreet.privacy._renyi import (
    rdp,
)
from oracles import exact_compositions as exact
from oracles.brackets import check_coarse_steps, contains
from oracles.renyi_curves import RENYI_ORDERS, finite_divergence, near


@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1])
@pytest.mark.parametrize(("scale", "count"), [(1.0, 1), (1.0, 6), (5.0, 10), (0.25, 3)])
def test_laplace_compositions_are_elementary_integrals(scale, count, delta):
    contains(
        count * Laplace(scale),
        lambda e: exact.laplace_delta(1 / mpf(scale), count, e),
        delta=delta,
    )


def test_the_laplace_oracle_agrees_with_the_textbook_and_with_a_quadrature():
    # One release: delta = 1 - exp((eps - 1) / 2); two: integrate one against the other.
    assert mp.almosteq(exact.laplace_delta(1, 1, 0.25), 1 - mp.exp(-mpf(3) / 8), 1e-40)
    one = exact.laplace_delta

    def inner(loss: mpf) -> mpf:
        rest = mpf(1) / 4 - loss
        value = one(1, 1, rest) if rest >= 0 else 1 - mp.exp(rest) + mp.exp(rest) * one(1, 1, -rest)
        return value * mp.exp((loss - 1) / 2) / 4

    def at(loss: float) -> mpf:
        return inner(mpf(loss)) / (mp.exp((mpf(loss) - 1) / 2) / 4)

    with mp.workdps(20):
        between = mp.quad(inner, [-1, -0.75, 0.25, 1])
    by_quadrature = between + at(1.0) / 2 + mp.exp(-1) / 2 * max(mpf(0), at(-1.0))
    assert mp.almosteq(one(1, 2, 0.25), by_quadrature, 1e-15)


@pytest.mark.parametrize("delta", [1e-9, 1e-4, 0.2])
@pytest.mark.parametrize(("scale", "shift", "count"), [(1.0, 1, 4), (2.0, 3, 3), (10.0, 7, 2)])
def test_discrete_laplace(scale, shift, count, delta):
    def weight(x: int) -> mpf:
        return mp.exp(-abs(x) / mpf(scale))

    reach = math.ceil(120 * scale) if count == 2 else math.ceil(40 * scale)
    reach = min(reach, 160)
    # The tails beyond the shift are two atoms; the oracle sums integers, so cut generously.
    table = {x: weight(x) for x in range(-reach - 2 * shift, reach + 2 * shift + 1)}
    norm = (1 + mp.exp(-1 / mpf(scale))) / (1 - mp.exp(-1 / mpf(scale)))
    losses: dict[int, mpf] = {}
    for x in range(1, shift):
        losses[2 * x - shift] = table[x - shift] / norm
    outer = mp.exp(-shift / mpf(scale)) / (1 + mp.exp(-1 / mpf(scale)))
    losses[-shift] = losses.get(-shift, mpf(0)) + outer
    losses[shift] = losses.get(shift, mpf(0)) + 1 / (1 + mp.exp(-1 / mpf(scale)))
    assert mp.almosteq(mp.fsum(losses.values()), 1, 1e-30)
    sums = {0: mpf(1)}
    for _ in range(count):
        fresh: dict[int, mpf] = {}
        for (a, p), (b, q) in itertools.product(sums.items(), losses.items()):
            fresh[a + b] = fresh.get(a + b, mpf(0)) + p * q
        sums = fresh

    def delta_at(epsilon: float) -> mpf:
        return mp.fsum(
            p * (1 - mp.exp(epsilon - k / mpf(scale)))
            for k, p in sums.items()
            if k / mpf(scale) > epsilon
        )

    contains(count * DiscreteLaplace(scale, shift), delta_at, delta=delta)


def test_coarse_laplace_steps_are_bounded():
    def delta_at(epsilon: float, swapped: bool) -> mpf:
        if abs(epsilon) >= 2:
            return max(mpf(0), 1 - mp.exp(mpf(epsilon)))
        if epsilon >= 0:
            return exact.laplace_delta(2, 1, epsilon)
        return 1 - mp.exp(epsilon) + mp.exp(epsilon) * exact.laplace_delta(2, 1, -epsilon)

    check_coarse_steps(Laplace(0.5), delta_at)


@pytest.mark.parametrize(("scale", "sensitivity"), [(1.0, 1), (3.0, 5), (1e3, 7), (40.0, 70)])
@pytest.mark.parametrize("rate", [1.0, 0.1, 1e-5])
def test_discrete_laplace_is_the_sum(scale, sensitivity, rate):
    """Everything below 0 and above the sensitivity has one loss each, so the sum is short."""
    loss = DiscreteLaplace(scale, sensitivity)
    values = rdp(loss.poisson(rate=rate), RENYI_ORDERS[:6])
    with mpmath.workdps(40):
        t = 1 / mpmath.mpf(scale)
        share = 1 / (1 + mpmath.exp(-t))
        q = [share]
        q += [share * (1 - mpmath.exp(-t)) * mpmath.exp(-x * t) for x in range(1, sensitivity)]
        q += [share * mpmath.exp(-sensitivity * t)]
        expected = [finite_divergence(q[::-1], q, order, rate) for order in RENYI_ORDERS[:6]]
    assert np.allclose(values, expected, rtol=1e-11)


def test_long_lattices_are_bounded_from_above_and_closely():
    for scale, steps in [(2000.0, 5000), (1e6, 5000)]:
        loss = DiscreteLaplace(scale, steps).poisson(rate=0.1)
        t = 1.0 / scale
        x = np.arange(1.0, steps)
        losses = np.concatenate((-steps * t * np.ones(1), (2 * x - steps) * t, [steps * t]))
        share = 1 / (1 + math.exp(-t))
        inner = share * -math.expm1(-t) * np.exp(-x * t)
        weights = np.concatenate(([share], inner, [share * math.exp(-steps * t)]))
        gains = 0.1 * np.expm1(losses)
        for order in (2.0, 10.0):
            plain = math.log1p(weights @ ((1 + gains) ** order - 1 - order * gains)) / (order - 1)
            value = rdp(loss, [order])[0]
            assert plain * (1 - 1e-9) <= value <= plain * (1 + 1e-5)
    huge = rdp(DiscreteLaplace(2.0**40, 2**40), RENYI_ORDERS)
    assert np.allclose(huge, rdp(Laplace(1.0), RENYI_ORDERS), rtol=1e-10)
    sampled = rdp(DiscreteLaplace(2.0**40, 2**40).poisson(rate=0.01), RENYI_ORDERS[:5])
    assert np.allclose(sampled, rdp(Laplace(1.0).poisson(rate=0.01), RENYI_ORDERS[:5]), rtol=1e-5)


@pytest.mark.parametrize("epsilon", [1e-4, 0.3, 2.0, 30.0])
@pytest.mark.parametrize("rate", [1.0, 0.05, 1e-6])
def test_laplace_is_the_integral(epsilon, rate):
    orders = [1.0001, 1.5, 3.3, 100.5]
    values = rdp(Laplace(1.0, epsilon).poisson(rate=rate), orders)
    with mpmath.workdps(40):  # as above: nodes of a quadrature are computed once a precision
        e, r = mpmath.mpf(epsilon), mpmath.mpf(rate)
        for order, value in zip(orders, values, strict=True):
            a = mpmath.mpf(order)

            def power(loss, a=a):
                return (1 - r + r * mpmath.exp(loss)) ** a

            ends = (power(-e) + mpmath.exp(-e) * power(e)) / 2
            cuts = [-e, 0, e / 2, e - e / 16, e - e / 256, e]
            scale = max(1, ends)  # as in gaussian_moment
            inner = scale * mpmath.quad(
                lambda x, c=scale: mpmath.exp(-(x + e) / 2) / 4 * power(x) / c,
                cuts,
                method="gauss-legendre",
            )
            assert near(value, float(mpmath.log(ends + inner) / (a - 1)), 1e-10)
