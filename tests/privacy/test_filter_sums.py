"""Filters and odometers: exact sums, lanes, caps, readings, settings and state (S9a)."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.errors import (
    BudgetExceeded,
    InvalidValue,
    NotApplicable,
    RelationMismatch,
    SchemaError,
)
from discreet.privacy import (
    GDP,
    ZCDP,
    ApproxDP,
    DiscreteGaussian,
    DiscreteLaplace,
    Exponential,
    Filter,
    Gaussian,
    Laplace,
    Odometer,
    PureDP,
    RandomizedResponse,
    Relation,
    RenyiDP,
    _charges,
    from_pair,
)
from discreet.privacy.theorems import gaussian_delta, rdp_laplace

# --- exact sums -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "tenth",
    [
        PureDP(0.1),
        Laplace(scale=10.0),
        Laplace(scale=1.0, sensitivity=0.1),
        DiscreteLaplace(scale=10.0),
        Exponential(0.1),
        ApproxDP(0.1, 0),
    ],
)
@pytest.mark.parametrize("kind", [None, "basic"])
def test_ten_tenths_exhaust_one(tenth, kind):
    budget = Filter(epsilon=1, kind=kind)
    for _ in range(10):
        assert budget.admits(tenth)
        budget.charge(tenth)
    assert budget.remaining() == {"basic": 0, "delta": 0}
    before = budget.state()
    for crumb in (PureDP(1e-12), PureDP(Fraction(1, 10**300)), tenth):
        assert not budget.admits(crumb)
        with pytest.raises(BudgetExceeded, match="has 0 left of 1"):
            budget.charge(crumb)
    assert budget.state() == before
    budget.charge(PureDP(0))
    assert budget.charges == 11


def test_ten_responses_and_a_plan_of_ten():
    budget = Filter(epsilon=1, relation="replace")
    budget.charge(10 * RandomizedResponse(0.1))
    assert budget.remaining()["basic"] == 0
    with pytest.raises(BudgetExceeded):
        Filter(epsilon=1, relation="replace").charge(11 * RandomizedResponse(0.1))


def test_deltas_are_exact_too():
    budget = Filter(epsilon=1, delta="1e-6", kind="basic")
    for _ in range(10):
        budget.charge(ApproxDP("1/10", "1e-7"))
    assert budget.spent == {"basic": 1, "delta": Fraction(1, 10**6)}
    with pytest.raises(BudgetExceeded, match="delta"):
        budget.charge(ApproxDP(0, "1e-30"))


@pytest.mark.slow
@given(st.lists(st.fractions(0, 1, max_denominator=10**4), max_size=30))
def test_the_basic_filter_is_the_obvious_one(amounts):
    budget = Filter(epsilon=2)
    total = Fraction(0)
    for amount in amounts:
        assert budget.admits(PureDP(amount)) == (total + amount <= 2)
        if total + amount <= 2:
            budget.charge(PureDP(amount))
            total += amount
        else:
            with pytest.raises(BudgetExceeded):
                budget.charge(PureDP(amount))
    assert budget.spent["basic"] == total


def test_sums_do_not_grow_without_end():
    budget = Filter(epsilon=10)
    for prime in range(10_001, 13_001, 2):
        budget.charge(PureDP(Fraction(1, prime)))
    spent = budget.spent["basic"]
    exact = sum(Fraction(1, prime) for prime in range(10_001, 13_001, 2))
    assert spent.denominator.bit_length() <= 4096
    assert exact <= spent <= exact + Fraction(1, 2**2000)
    assert Filter.from_state(json.loads(json.dumps(budget.state()))).spent == budget.spent


# --- lanes ----------------------------------------------------------------------------


def test_the_default_takes_few_large_and_many_small_charges():
    few = Filter(epsilon=1, delta=1e-6)
    assert few.kind == "auto"
    few.charge(PureDP(0.5))
    few.charge(PureDP(0.5))
    assert not few.admits(PureDP(0.001))

    many = Filter(epsilon=1, delta=1e-6)
    for _ in range(1000):
        many.charge(PureDP(0.005))
    assert "basic" not in many.spent  # five in all
    assert many.spent["zcdp"] < _charges.zcdp_budget(1.0, 5e-7)
    with pytest.raises(BudgetExceeded, match="basic: closed by an earlier charge; zcdp: needs"):
        many.charge(PureDP(0.5))


def test_a_lane_that_was_passed_over_stays_closed():
    budget = Filter(epsilon=1, delta=1e-6)
    budget.charge(Gaussian(100.0))
    assert set(budget.remaining()) == {"zcdp", "delta"}
    with pytest.raises(BudgetExceeded, match="closed"):
        budget.charge(PureDP(0.9))


def test_unreadable_is_refused_and_explained():
    sampled = Gaussian(1.0).poisson(rate=0.01)
    for kind in ("basic", "zcdp", "gdp", None):
        budget = Filter(epsilon=1, delta=1e-6, kind=kind)
        before = budget.state()
        for call in (budget.charge, budget.admits):
            with pytest.raises(NotApplicable, match=r"charge it with delta=\.\.\."):
                call(sampled)
        assert budget.state() == before
    with pytest.raises(NotApplicable, match="Gaussian-DP"):
        Filter(epsilon=1, delta=1e-6, kind="gdp").charge(DiscreteGaussian(100.0))
    with pytest.raises(NotApplicable, match="finitely many orders"):
        Filter(epsilon=1, delta=1e-6, kind="zcdp").charge(RenyiDP((2.0,), (0.001,)))
    with pytest.raises(NotApplicable, match="a charge is a loss"):
        Filter(epsilon=1).charge(0.1)


def test_relations_are_checked():
    budget = Filter(epsilon=1, relation="add_remove")
    with pytest.raises(RelationMismatch):
        budget.charge(RandomizedResponse(0.1))
    with pytest.raises(RelationMismatch):
        budget.admits(PureDP(0.1, "replace"))
    with pytest.raises(RelationMismatch):
        Odometer().charge(RandomizedResponse(0.1))
    assert budget.charges == 0
    assert budget.guarantee == ApproxDP(1, 0)


def test_a_sampled_plan_enters_with_a_delta():
    plan = 100 * Gaussian(2.0).poisson(rate=0.01)
    epsilon = plan.epsilon(delta=1e-7)
    budget = Filter(epsilon=1, delta=1e-6)
    budget.charge(plan, delta="1e-7")
    assert budget.spent["delta"] == Fraction(1, 10**7)
    assert epsilon <= budget.spent["basic"] < 1.0001 * epsilon
    with pytest.raises(BudgetExceeded, match="reserved"):
        budget.charge(plan, delta="1e-6")
    for bad in (0, 1, -1, math.nan, "x"):
        with pytest.raises(InvalidValue, match="delta"):
            budget.charge(plan, delta=bad)


def test_renyi_lanes_take_sampled_steps_one_by_one():
    step = Gaussian(2.0).poisson(rate=0.01)
    budget = Filter(epsilon=1, delta=1e-6, kind="rdp", reserved=0, orders=(8.0, 16.0, 32.0))
    granted = 0
    while budget.admits(100 * step):
        budget.charge(100 * step)
        granted += 100
    assert granted >= 500
    assert (granted * step).epsilon(delta=1e-6) <= 1.0


def test_a_filter_admits_no_more_than_a_declared_plan_would():
    for kind, step in (("gdp", Gaussian(50.0)), ("zcdp", Gaussian(50.0)), ("rdp", Gaussian(50.0))):
        budget = Filter(epsilon=1, delta=1e-6, kind=kind, reserved=0)
        while budget.admits(10 * step):
            budget.charge(10 * step)
        plan = 10 * budget.charges
        mu = math.sqrt(plan) / 50.0
        assert gaussian_delta(mu, 1.0) <= 1e-6
        assert gaussian_delta(1.35 * mu, 1.0) > 1e-6


# --- caps and readings against independent arithmetic ------------------------------------


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 10.0, 200.0])
@pytest.mark.parametrize("delta", [1e-15, 1e-6, 0.01, 0.4])
def test_caps_are_below_and_close_to_the_exact_ones(epsilon, delta):
    with mpmath.workdps(40):
        mu2 = mpmath.mpf(1)

        def exact_delta(mu):
            lower, upper = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
            return mpmath.ncdf(lower) - mpmath.exp(epsilon) * mpmath.ncdf(upper)

        cap = _charges.gdp_budget(epsilon, delta)
        mu2 = mpmath.mpf(cap.numerator) / cap.denominator
        assert exact_delta(mpmath.sqrt(mu2)) <= delta
        assert exact_delta(mpmath.sqrt(mu2) * (1 + mpmath.mpf("1e-6"))) > delta

        cap = _charges.zcdp_budget(epsilon, delta)
        rho = mpmath.mpf(cap.numerator) / cap.denominator

        def log_delta(order, value):
            above = order - 1
            return (
                above * (order * value - epsilon)
                + above * mpmath.log(above)
                - order * mpmath.log(order)
            )

        order = mpmath.mpf(_charges.zcdp_order(epsilon, delta))
        assert log_delta(order, rho) <= mpmath.log(delta)
        others = [1 + (order - 1) * mpmath.mpf(10) ** (mpmath.mpf(k) / 8) for k in range(-16, 17)]
        larger = rho * (1 + mpmath.mpf("1e-6"))
        assert all(log_delta(other, larger) > mpmath.log(delta) for other in others)

        for order in (1.5, 4.0, 64.0):
            room = _charges.rdp_budget(epsilon, delta, order=order)
            value = mpmath.mpf(room.numerator) / room.denominator / order
            if room > 0:
                assert log_delta(mpmath.mpf(order), value) <= mpmath.log(delta)


ORDERS = (1.0001, 1.5, 2.0, 5.0, 40.0)


def mixed(p: np.ndarray, q: np.ndarray, rate: float) -> tuple[np.ndarray, np.ndarray]:
    return rate * p + (1 - rate) * q, q


HALF = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
UNEVEN = np.array([0.9, 0.1]), np.array([0.4, 0.6])
TRUTH = np.array([math.exp(2), 1]) / (1 + math.exp(2))


@pytest.mark.parametrize(
    ("loss", "p", "q"),
    [
        (PureDP(2), TRUTH, TRUTH[::-1]),
        (from_pair(*HALF), *HALF),
        (from_pair(*UNEVEN), *UNEVEN),
        (PureDP(2).poisson(rate=0.1), *mixed(TRUTH, TRUTH[::-1], 0.1)),
        (from_pair(*UNEVEN).poisson(rate=0.3), *mixed(*UNEVEN, 0.3)),
    ],
)
def test_pure_losses_are_dominated_by_their_readings(loss, p, q):
    good = _charges.separate_delta(loss, relation=Relation.ADD_REMOVE)
    epsilon, rho = float(_charges.pure_epsilon(good)), float(_charges.rho(good))
    mu = math.sqrt(_charges.mu_squared(good))
    for a, b in ((p, q), (q, p)):
        assert float(np.max(np.log(a / b))) <= epsilon * (1 + 1e-9)
        for order in ORDERS:
            divergence = math.log(float(np.sum(a**order * b ** (1 - order)))) / (order - 1)
            assert divergence <= order * rho * (1 + 1e-9)
        for x in np.linspace(0, epsilon, 20):
            delta = float(np.maximum(a - math.exp(x) * b, 0).sum())
            assert delta <= gaussian_delta(mu, x) * (1 + 1e-9)


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 1.0, 5.0, 30.0])
def test_laplace_is_concentrated_as_read(epsilon):
    good = _charges.separate_delta(Laplace(scale=1 / epsilon), relation=Relation.ADD_REMOVE)
    rho = float(_charges.rho(good))
    assert rho < epsilon * math.tanh(epsilon / 2)
    for order in ORDERS:
        assert rdp_laplace(epsilon, order=order) <= order * rho * (1 + 1e-9)
    assert rdp_laplace(epsilon, order=1 + 1e-6) == pytest.approx(rho, rel=1e-4)


def test_claims_of_sampled_and_grouped_losses():
    def claim(loss):
        return tuple(float(value) for value in (loss).claim())

    assert claim(ApproxDP(1, "1e-3").poisson(rate=0.1)) == pytest.approx(
        (math.log1p(0.1 * math.expm1(1)), 1e-4), rel=1e-9
    )
    replaced = PureDP(1, "replace").sample_without_replacement(sample=1, population=4)
    assert claim(replaced) == pytest.approx((math.log1p(0.25 * math.expm1(1)), 0), rel=1e-9)
    assert claim(ApproxDP(1, "1e-3").group(3)) == pytest.approx(
        (3, 1e-3 * (1 + math.e + math.e**2)), rel=1e-9
    )
    assert claim((PureDP(1) + ApproxDP("1/2", 0.05)).group(2)) == pytest.approx(
        (3, 0.05 * (1 + math.exp(1.5)))
    )
    assert claim((PureDP(1) + ApproxDP("1/2", 0.25)).group(2)) == (3, 1)
    assert (from_pair([1.0, 0.0], [0.5, 0.5])).claim() is None
    assert (Gaussian(1.0).poisson(rate=0.5).group(2)).claim() is None
    far = (PureDP(1000).poisson(rate=0.5)).claim()[0]
    assert 1000 + math.log(0.5) <= far <= (1000 + math.log(0.5)) * (1 + 1e-11)


@given(st.floats(0.01, 5), st.floats(1e-6, 1), st.floats(1e-9, 0.1))
def test_sampled_claims_are_rounded_up(epsilon, rate, delta):
    found = (ApproxDP(epsilon, delta).poisson(rate=rate)).claim()
    with mpmath.workdps(50):
        exact = mpmath.log1p(mpmath.mpf(rate) * mpmath.expm1(mpmath.mpf(epsilon)))
        value = mpmath.mpf(found[0].numerator) / found[0].denominator
        assert exact * (1 - mpmath.mpf("1e-15")) <= value <= exact * (1 + mpmath.mpf("1e-9"))
    assert found[1] == Fraction(repr(rate)) * Fraction(repr(delta))


def test_nothing_is_free_by_underflow():
    for loss in (
        Gaussian(1e150),
        GDP(1e-150),
        PureDP(Fraction(1, 10**400)),
        PureDP(1e-300).poisson(rate=1e-300),
    ):
        for kind in ("zcdp", "gdp"):
            budget = Filter(epsilon=1, delta=1e-6, kind=kind)
            budget.charge(loss)
            assert budget.spent[kind] > 0
    assert not Filter(epsilon=1, delta=1e-6).admits(PureDP(Fraction(10**400, 99_999)))
    for absurd in (1e-200, 1e200):
        with pytest.raises(InvalidValue, match="noise_multiplier"):
            Gaussian(absurd)


# --- odometer -------------------------------------------------------------------------


def test_the_odometer_reads_sums_and_doubling_filters():
    meter = Odometer(delta=1e-6)
    assert meter.epsilon() == 0.0
    meter.charge(PureDP(0.1))
    assert meter.epsilon() == 0.1
    readings = []
    for _ in range(40):
        meter.charge(50 * PureDP(0.005))
        readings.append(meter.epsilon())
    assert readings == sorted(readings)
    assert readings[-1] < 0.7 * (0.1 + 40 * 0.25)  # sublinear by now
    meter.charge(Gaussian(1.0))
    assert "basic" not in meter.spent
    assert meter.charges == 42
    assert meter.epsilon() > 4.37  # a single Gaussian(1) at 1e-5 has 4.3772


def test_the_odometer_is_worth_having():
    """At most 1.6 times the epsilon of the plan, had it been declared."""
    meter = Odometer(delta=1e-6, kind="gdp", reserved=0)
    for count in (10, 100, 1000, 10_000):
        meter.charge(count * Gaussian(100.0))
        mu = math.sqrt(float(meter.spent["gdp"]))
        assert gaussian_delta(mu, meter.epsilon()) <= 1e-6
        assert gaussian_delta(mu, meter.epsilon() / 1.6) > 1e-6


def test_an_odometer_without_delta_left_says_so():
    meter = Odometer(delta=1e-6)
    meter.charge(ApproxDP(0.1, "5e-7"))
    assert math.isfinite(meter.epsilon())
    meter.charge(ApproxDP(0.1, "1e-9"))
    assert meter.epsilon() == math.inf
    before = meter.state()
    with pytest.raises(NotApplicable, match="cannot read"):
        meter.charge(RenyiDP((2.0,), (0.1,)))
    assert meter.state() == before


# --- settings and state -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"epsilon": -1}, "epsilon"),
        ({"epsilon": "one"}, "epsilon"),
        ({"epsilon": 1, "delta": 1}, "delta"),
        ({"epsilon": 1, "delta": -0.1}, "delta"),
        ({"epsilon": 1, "delta": 1e-6, "kind": "pld"}, "kind"),
        ({"epsilon": 1, "delta": 1e-6, "kind": "zcdp+zcdp"}, "kind"),
        ({"epsilon": 1, "delta": 1e-6, "kind": ""}, "kind"),
        ({"epsilon": 1, "delta": 1e-6, "kind": ["zcdp"]}, "kind"),
        ({"epsilon": 1, "kind": "zcdp"}, "kind"),
        ({"epsilon": 0, "delta": 1e-6, "kind": "zcdp"}, "epsilon"),
        ({"epsilon": 1, "delta": 1e-6, "reserved": 1e-5}, "reserved"),
        ({"epsilon": 1, "delta": 1e-6, "reserved": 1e-6}, "reserved"),
        ({"epsilon": 1, "delta": 1e-6, "orders": (2.0,)}, "orders"),
        ({"epsilon": 1, "delta": 1e-6, "kind": "rdp", "orders": ()}, "orders"),
        ({"epsilon": 1, "delta": 1e-6, "kind": "rdp", "orders": (1.0,)}, "orders"),
        ({"epsilon": 1, "delta": Fraction(1, 10**400)}, "delta"),
        ({"epsilon": 1, "relation": "swap"}, "relation"),
    ],
)
def test_bad_settings_are_named(arguments, named):
    with pytest.raises(InvalidValue) as caught:
        Filter(**arguments)
    assert caught.value.argument == named


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"delta": 2}, "delta"),
        ({"delta": 1e-6, "kind": "rdp"}, "kind"),
        ({"start": 0}, "start"),
        ({"growth": 1}, "growth"),
        ({"growth": 1.01}, "growth"),
    ],
)
def test_bad_odometer_settings_are_named(arguments, named):
    with pytest.raises(InvalidValue) as caught:
        Odometer(**arguments)
    assert caught.value.argument == named


def test_a_budget_of_failures_only():
    budget = Filter(epsilon=0, delta=0.1)
    assert budget.kind == "basic"
    budget.charge(ApproxDP(0, 0.1))
    assert not budget.admits(PureDP("1e-9"))


menu = st.sampled_from(
    [
        PureDP(0.01),
        PureDP("1/3"),
        Gaussian(30.0),
        GDP(0.01),
        7 * Laplace(scale=100.0),
        ApproxDP("1/100", "1e-9"),
        ZCDP(0.001),
    ]
)


@given(st.sampled_from([None, "basic", "zcdp", "gdp", "basic+zcdp+gdp"]), st.lists(menu))
@settings(max_examples=60, deadline=None)
def test_state_round_trip_changes_nothing(kind, losses):
    one = Filter(epsilon=1, delta="1e-6", kind=kind)
    meter = Odometer(delta="1e-6", kind=kind)
    for loss in losses:
        two = Filter.from_state(json.loads(json.dumps(one.state())))
        copied = Odometer.from_state(json.loads(json.dumps(meter.state())))
        outcomes = []
        for target in (one, two, meter, copied):
            try:
                target.charge(loss)
                outcomes.append("charged")
            except (BudgetExceeded, NotApplicable) as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]
        assert outcomes[2] == outcomes[3]
        assert one.state() == two.state()
        assert meter.state() == copied.state()
        assert meter.epsilon() == copied.epsilon()
        assert repr(one) == repr(two)


def test_a_state_must_be_whole():
    budget = Filter(epsilon=1, delta="1e-6", kind="rdp", orders=(4.0, 8.0))
    state = json.loads(json.dumps(budget.state()))
    assert Filter.from_state(state).state() == state
    for name in state:
        with pytest.raises(SchemaError, match=f"missing field '{name}'"):
            Filter.from_state({key: value for key, value in state.items() if key != name})
    changes = [
        {"version": 2},
        {"schema": "discreet.odometer"},
        {"extra": 1},
        {"kind": "pld"},
        {"charges": -1},
        {"charges": True},
        {"delta_spent": "1"},
        {"delta_spent": 0.0},
        {"lanes": []},
        {"lanes": [state["lanes"][0]] * 2},
        {"lanes": [lane | {"spent": "1000"} for lane in state["lanes"]]},
        {"lanes": [lane | {"budget": "1000"} for lane in state["lanes"]]},
        {"lanes": [lane | {"open": 1} for lane in state["lanes"]]},
        {"lanes": ["rdp", "rdp"]},
        {"orders": [4.0]},
    ]
    for change in changes:
        with pytest.raises(SchemaError):
            Filter.from_state(state | change)
    with pytest.raises(SchemaError, match="expected an object"):
        Filter.from_state(["discreet.filter"])
    meter = Odometer(delta="1e-6").state()
    for change in ({"growth": "1"}, {"lanes": [lane | {"budget": "1"} for lane in meter["lanes"]]}):
        with pytest.raises(SchemaError):
            Odometer.from_state(meter | change)


def test_they_say_what_is_left():
    budget = Filter(epsilon=1, delta="1e-6")
    budget.charge(PureDP("1/10"))
    assert repr(budget).startswith("<Filter basic+zcdp of epsilon=1, delta=1e-06, add_remove: 1 ch")
    assert "left basic 9/10, zcdp " in repr(budget)
    meter = Odometer()
    meter.charge(PureDP("1/4"))
    assert repr(meter) == "<Odometer basic at delta=0, add_remove: 1 charges, epsilon 0.25>"
