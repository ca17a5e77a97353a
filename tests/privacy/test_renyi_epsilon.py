"""Epsilon from the Renyi curve: RDP, moments and zCDP readings, and refusals (S4, S7, S8)."""

from __future__ import annotations

import itertools
import math
import time

import mpmath
import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.errors import InvalidValue, NotApplicable
from discreet.privacy import (
    GDP,
    ZCDP,
    ApproxDP,
    DiscreteGaussian,
    DiscreteLaplace,
    Exponential,
    FinitePair,
    Gaussian,
    Grouped,
    Laplace,
    Loss,
    PureDP,
    RandomizedResponse,
    Relation,
    RenyiDP,
    SampledWithoutReplacement,
    from_pair,
)
from discreet.privacy._renyi import (
    moments_epsilon,
    rdp,
    rdp_epsilon,
    zcdp_epsilon,
)
from oracles import gaussian_mixtures as mixtures

REPLACE = Relation.REPLACE


def near(value: float, expected: float, relative: float = 1e-9) -> bool:
    return abs(value - expected) <= relative * abs(expected)


positive = st.floats(0.05, 20.0)
atoms = st.one_of(
    positive.map(Gaussian),
    positive.map(Laplace),
    st.tuples(positive, st.integers(1, 100)).map(lambda t: DiscreteLaplace(*t)),
    st.tuples(positive, st.integers(1, 5)).map(lambda t: DiscreteGaussian(*t)),
    positive.map(PureDP),
    positive.map(Exponential),
    st.tuples(st.floats(0.01, 0.99), st.floats(0.01, 0.99)).map(
        lambda t: FinitePair((t[0], 1 - t[0]), (t[1], 1 - t[1]))
    ),
)


# --- conversions ---------------------------------------------------------------------


def test_peers_defect_2_orders_do_not_stop_at_63():
    loss = 10_000 * Gaussian(50.0).poisson(rate=1e-3)
    assert 0.0060 < rdp_epsilon(loss, 1e-6) <= 0.0079
    assert 0.0060 < moments_epsilon(loss, 1e-6) < 0.02
    assert rdp_epsilon(Gaussian(10.0), 0.9) == 0.0


@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "delta"),
    [
        (1.1, 256 / 60_000, 14_062, 1e-5),
        (3.0, 0.0819, 2500, 1e-5),
        (0.5, 0.01, 1000, 1e-5),
        (1.0, 1e-4, 10**6, 1e-8),
    ],
)
def test_dp_accounting_agrees(sigma, rate, steps, delta):
    orders = [1.5, 2.0, 3.0, 3.7, 8.0, 16.0, 32.5, 64.0]
    peer = RdpAccountant(orders)
    event = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(sigma))
    peer.compose(event, steps)
    loss = steps * Gaussian(sigma).poisson(rate=rate)
    theirs = peer.get_epsilon(delta)
    curve = rdp(loss, orders)
    whole = np.array(orders) == np.rint(orders)
    assert np.allclose(curve[whole], peer._rdp[whole], rtol=1e-6)
    # At fractional orders the peer truncates its series upwards: 2.02 at order 1.5 of the
    # second setting, above its own value at order 2.
    assert np.all(curve <= peer._rdp * (1 + 1e-6))
    assert rdp_epsilon(loss, delta) <= theirs * (1 + 1e-9)
    assert rdp_epsilon(loss, delta) >= 0.85 * theirs


def test_no_listed_order_beats_the_search():
    for loss in (
        100 * Gaussian(4.0).poisson(rate=0.1),
        7 * Laplace(3.0) + Gaussian(2.0),
        RenyiDP((2.0, 3.0, 8.0), (0.1, 0.15, 0.6)),
        10**6 * Gaussian(0.4),
    ):
        orders = 1.0 + np.geomspace(1e-6, 1e5, 3000)
        orders = np.concatenate((orders, [2.0, 3.0, 8.0]))
        for delta in (1e-12, 1e-5, 0.1):
            curve = rdp(loss, orders)
            listed = (
                curve + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
            )
            assert rdp_epsilon(loss, delta) <= max(0.0, np.min(listed)) * (1 + 1e-5) + 1e-12
            moments = np.arange(1.0, 3000.0)
            every = np.min(rdp(loss, moments + 1) - math.log(delta) / moments)
            assert moments_epsilon(loss, delta) <= every * (1 + 1e-11)


REALS = (0.5, 0.7, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2.0, 3.0)
# Orders, direction and shift with which alpha(lambda) is integrated; one of them is right.
MOMENTS = {
    "as it is": (REALS, False, 0.0),
    "wrong direction": (REALS, True, 0.0),
    "order without + 1": (REALS[4:], False, -1.0),
    "integers alone": ((1.0, 2.0, 3.0), False, 0.0),
}


@pytest.mark.parametrize("kind", MOMENTS)
def test_the_moments_accountant_takes_every_real_lambda(kind):
    """S7: the least of (alpha(lambda) + ln(1/delta)) / lambda over real lambda, by integration."""
    noise, rate, delta = 0.3, 0.5, 1e-5
    orders, added, shift = MOMENTS[kind]
    wanted = min(
        (mixtures.log_moment(noise, rate, x + shift, added=added) - math.log(delta)) / x
        for x in orders
    )
    found = moments_epsilon(Gaussian(noise).poisson(rate=rate), delta)
    assert near(found, wanted, 2e-3) == (kind == "as it is")
    if kind == "as it is":
        assert found <= wanted * (1 + 1e-9)


def test_the_best_lambda_of_a_gaussian_is_no_integer():
    """S7: alpha = lambda (lambda + 1) mu^2 / 2 is least at lambda = sqrt(2 ln(1/delta)) / mu."""
    for mu in (0.05, 0.7, 3.0, 10.0, 40.0):
        for delta in (1e-9, 1e-5, 0.2):
            exact = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta))
            assert near(moments_epsilon(Gaussian(1 / mu), delta), exact, 1e-6)


def test_the_bounds_hold_for_the_exact_gaussian():
    """delta(epsilon) of a Gaussian is known in closed form."""
    for mu in (0.01, 0.3, 2.0, 12.0):
        for delta in (1e-10, 1e-3, 0.2):
            for reading in (rdp_epsilon, moments_epsilon, zcdp_epsilon):
                epsilon = mpmath.mpf(reading(Gaussian(1 / mu), delta))
                low = mpmath.ncdf(mu / 2 - epsilon / mu)
                exact = low - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)
                assert exact <= delta
            assert near(
                rdp_epsilon(Gaussian(1 / mu), delta), zcdp_epsilon(Gaussian(1 / mu), delta), 1e-6
            )


def test_pure_bounds_are_the_limit_of_infinite_order():
    for reading in (rdp_epsilon, moments_epsilon):
        assert reading(Gaussian(1.0), 0.0) == math.inf
        assert reading(10 * PureDP(0.1), 0.0) >= 1.0
        assert near(reading(10 * PureDP(0.1), 0.0), 1.0, 1e-14)
        assert near(reading(PureDP(1).poisson(rate=0.1), 0), math.log1p(0.1 * math.expm1(1)), 2e-12)
        assert reading(Laplace(1.0), 1e-300) <= 1.0 + 1e-15
        assert near(reading(PureDP(800).poisson(rate=0.1), 0), 800 + math.log(0.1), 2e-12)
    assert zcdp_epsilon(PureDP(1), 0.0) == math.inf
    assert zcdp_epsilon(PureDP(0), 0.0) == 0.0


def test_a_query_takes_milliseconds():
    loss = 14_062 * Gaussian(1.1).poisson(rate=256 / 60_000)
    rdp_epsilon(loss, 1e-5)
    times = []
    for _ in range(7):
        begin = time.perf_counter()
        rdp_epsilon(loss, 1e-5)
        times.append(time.perf_counter() - begin)
    assert min(times) < 0.1


# --- zero-concentrated ---------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(atoms)
def test_rho_bounds_the_whole_curve(loss):
    orders = 1.0 + np.geomspace(1e-4, 1e6, 60)
    ratio = float(np.max(rdp(loss, orders) / orders))
    rho = loss.zcdp()
    assert ratio <= rho * (1 + 1e-9)
    if not isinstance(loss, DiscreteGaussian):
        tight = 0.25 if isinstance(loss, Exponential) else 0.99
        assert rho * tight <= ratio * 1.01


def test_rho_of_each_kind():
    assert Gaussian(2.0).zcdp() == 0.125
    assert Gaussian(2.0, REPLACE).zcdp() == 0.5
    assert GDP(0.5).zcdp() == 0.125
    assert DiscreteGaussian(4.0, 2).zcdp() == 0.125
    assert near(PureDP(1).zcdp(), math.tanh(0.5), 1e-14)
    assert near(ApproxDP(1, 0).zcdp(), math.tanh(0.5), 1e-14)
    assert near(Laplace(1.0).zcdp(), math.exp(-1), 1e-14)
    assert near(Laplace(1e5).zcdp(), 0.5e-10, 1e-5)
    assert Exponential(0.4).zcdp() == pytest.approx(0.02)
    assert Exponential(40.0).zcdp() <= 40.0
    assert near(RandomizedResponse(1.0).zcdp(), math.tanh(0.5), 1e-3)
    assert (3 * ZCDP(0.1) + Gaussian(1.0)).zcdp() == pytest.approx(0.8)
    assert (Grouped(ZCDP(0.1), 3, Relation.ADD_REMOVE)).zcdp() == pytest.approx(0.9)


def test_zcdp_epsilon_is_the_least_over_orders():
    for rho, delta in itertools.product((1e-6, 0.01, 0.5, 30.0), (1e-12, 1e-5, 0.3)):
        orders = 1 + np.geomspace(1e-4, 1e5, 20_000)
        curve = rho * orders + np.log1p(-1 / orders)
        curve -= (math.log(delta) + np.log(orders)) / (orders - 1)
        value = zcdp_epsilon(ZCDP(rho), delta)
        assert max(0.0, np.min(curve) * (1 - 1e-6) - 1e-12) <= value
        assert value <= max(0.0, np.min(curve)) + 1e-12
        # The weaker and famous rho + 2 sqrt(rho log(1/delta)) is never better.
        assert value <= rho + 2 * math.sqrt(-rho * math.log(delta))


# --- refusals ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "loss",
    [
        ApproxDP(1, "1e-6"),
        Gaussian(1.0) + ApproxDP(1, "1e-6"),
        ApproxDP(1, "1e-6").poisson(rate=0.1),
        ApproxDP(1, "1e-6", REPLACE).sample_without_replacement(sample=1, population=9),
        Grouped(ApproxDP(1, "1e-6"), 2, Relation.ADD_REMOVE),
    ],
)
@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_what_has_no_curve_is_refused(loss, delta):
    for reading in (rdp_epsilon, moments_epsilon, zcdp_epsilon):
        with pytest.raises(NotApplicable):
            reading(loss, delta)
    with pytest.raises(NotApplicable):
        rdp(loss, [2.0])


def test_what_has_no_rho_is_refused():
    for loss in (
        Gaussian(1.0).poisson(rate=0.1),
        SampledWithoutReplacement(Gaussian(1.0, REPLACE), 1, 10),
        RenyiDP((2.0,), (0.1,)),
        from_pair([1.0, 0.0], [0.5, 0.5]),
    ):
        with pytest.raises(NotApplicable, match=r"zCDP|orders"):
            loss.zcdp()


class Unknown(Loss):
    @property
    def relation(self) -> Relation:
        return Relation.ADD_REMOVE

    def __repr__(self) -> str:
        return "Unknown()"


def test_unknown_losses_are_named():
    for reading in (lambda x: rdp(x, [2.0]), lambda x: x.zcdp(), lambda x: rdp_epsilon(x, 0.0)):
        with pytest.raises(NotApplicable, match=r"Unknown\(\)"):
            reading(Unknown())


@pytest.mark.parametrize("orders", [[], [1.0], [2.0, math.inf], [math.nan], ["two"], -3])
def test_bad_orders(orders):
    with pytest.raises(InvalidValue, match="orders"):
        rdp(Gaussian(1.0), orders)


@pytest.mark.parametrize("delta", [-1e-9, 1.0, math.nan, True, "0.1"])
def test_bad_deltas(delta):
    for reading in (rdp_epsilon, moments_epsilon, zcdp_epsilon):
        with pytest.raises(InvalidValue, match="delta"):
            reading(Gaussian(1.0), delta)


def test_shapes_are_kept():
    assert rdp(Gaussian(1.0), 2.0).shape == ()
    assert rdp(Gaussian(1.0), np.full((2, 3), 2.0)).shape == (2, 3)
    assert Gaussian(1.0).rdp([2, 4]).tolist() == [1.0, 2.0]
