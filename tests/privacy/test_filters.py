"""Filters and odometers against analysts who choose the next loss by the answers (S9a).

The judge is :func:`strongest`: it plays every adaptive strategy over a menu of small finite
mechanisms and returns the largest delta that any of them reaches, exactly, by enumeration.
"""

from __future__ import annotations

import functools
import json
import math
import random
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
from scipy.special import ndtr

from discreet.errors import (
    BudgetExceeded,
    InvalidValue,
    NotApplicable,
    SchemaError,
)
from discreet.privacy import (
    GDP,
    ZCDP,
    ApproxDP,
    Filter,
    Gaussian,
    Odometer,
    PureDP,
    RandomizedResponse,
    _charges,
    theorems,
)

# --- mechanisms with finitely many answers ---------------------------------------------


class Mechanism(NamedTuple):
    """The loss that is charged (at a delta), the answers' probabilities on two neighbours."""

    loss: object
    p: tuple[float, ...]
    q: tuple[float, ...]
    delta: float | None = None


def response(epsilon: float) -> Mechanism:
    truth = 1.0 / (1.0 + math.exp(-epsilon))
    return Mechanism(RandomizedResponse(epsilon), (truth, 1 - truth), (1 - truth, truth))


def leak(delta: float) -> Mechanism:
    """Says nothing, or everything with probability delta."""
    loss = ApproxDP(0, Fraction(delta), "replace")
    return Mechanism(loss, (delta, 0.0, 1 - delta), (0.0, delta, 1 - delta))


def worst_approx(epsilon: float, delta: float) -> Mechanism:
    truth = (1 - delta) / (1.0 + math.exp(-epsilon))
    lie = 1 - delta - truth
    loss = ApproxDP(epsilon, Fraction(delta), "replace")
    return Mechanism(loss, (delta, truth, lie, 0.0), (0.0, lie, truth, delta))


def binned_gaussian(mu: float, *cuts: float) -> Mechanism:
    """A Gaussian answer reported in cells; coarser than what is charged."""
    edges = np.array([-np.inf, *(0.5 * mu + c for c in cuts), np.inf])
    p, q = np.diff(ndtr(edges - mu)), np.diff(ndtr(edges))
    return Mechanism(GDP(mu, "replace"), tuple(p), tuple(q))


def concentrated_response(epsilon: float) -> Mechanism:
    rho = epsilon * math.tanh(epsilon / 2)
    return response(epsilon)._replace(loss=ZCDP(rho, "replace"))


def composed_delta(mechanisms: list[Mechanism], epsilon: float) -> float:
    """The exact delta of a fixed sequence, in the worse direction."""
    p = functools.reduce(np.multiply.outer, [np.array(m.p) for m in mechanisms], np.array(1.0))
    q = functools.reduce(np.multiply.outer, [np.array(m.q) for m in mechanisms], np.array(1.0))
    e = math.exp(epsilon)
    return max(float(np.maximum(a - e * b, 0).sum()) for a, b in ((p, q), (q, p)))


# --- the judge ------------------------------------------------------------------------


class FilterGame:
    """A filter as a state machine: which mechanisms may follow, and the reading at a stop."""

    def __init__(self, start: Filter | Odometer, epsilon: float | None = None) -> None:
        self.kind = type(start)
        self.epsilon = epsilon
        self.start = json.dumps(start.state())
        self._cache: dict[object, object] = {}

    def after(self, state, mechanism):
        key = state, mechanism
        if key not in self._cache:
            meter = self.kind.from_state(json.loads(state))
            try:
                meter.charge(mechanism.loss, delta=mechanism.delta)
                self._cache[key] = json.dumps(meter.state())
            except (BudgetExceeded, NotApplicable):
                self._cache[key] = None
        return self._cache[key]

    def reading(self, state) -> float:
        if self.epsilon is not None:
            return self.epsilon
        if state not in self._cache:
            self._cache[state] = self.kind.from_state(json.loads(state)).epsilon()
        return self._cache[state]


class RealizedSequence:
    """The tempting wrong filter: the exact delta of the losses that happened to be run."""

    start = ()

    def __init__(self, epsilon: float, delta: float) -> None:
        self.epsilon, self.delta = epsilon, delta

    def after(self, state, mechanism):
        grown = tuple(sorted((*state, mechanism), key=lambda m: m.p))
        return grown if composed_delta(list(grown), self.epsilon) <= self.delta else None

    def reading(self, state) -> float:
        return self.epsilon


class RealizedReading:
    """The tempting wrong odometer: the exact epsilon of the losses that happened to be run."""

    start = ()

    def __init__(self, delta: float) -> None:
        self.delta = delta
        self._cache: dict[tuple, float] = {}

    def after(self, state, mechanism):
        return tuple(sorted((*state, mechanism), key=lambda m: m.p))

    def reading(self, state) -> float:
        if state not in self._cache:
            low, high = 0.0, 20.0
            while high - low > 1e-9:
                middle = 0.5 * (low + high)
                within = composed_delta(list(state), middle) <= self.delta
                low, high = (low, middle) if within else (middle, high)
            self._cache[state] = high
        return self._cache[state]


class ReopeningLanes:
    """A wrong combination: a sum of epsilon and a sum of rho, each counting only its own."""

    def __init__(self, epsilon: float, rho: float) -> None:
        self.epsilon, self.rho, self.start = epsilon, rho, (0.0, 0.0)

    def after(self, state, mechanism):
        epsilon, rho = state
        cost = mechanism.loss.pure_epsilon
        if epsilon + cost <= self.epsilon:
            return epsilon + cost, rho
        if rho + cost * math.tanh(cost / 2) <= self.rho:
            return epsilon, rho + cost * math.tanh(cost / 2)
        return None

    def reading(self, state) -> float:
        return self.epsilon


def strongest(game, menu: list[Mechanism], *, depth: int) -> float:
    """The most that the sum over transcripts t of (P(t) - e^eps(t) Q(t))+ can be."""

    def play(state, p: float, q: float, left: int) -> float:
        reading = game.reading(state)
        # An infinite reading claims nothing.
        best = max(0.0, p - math.exp(reading) * q) if math.isfinite(reading) else 0.0
        if left == 0 or p == 0.0:
            return best
        for mechanism in menu:
            following = game.after(state, mechanism)
            if following is not None:
                answers = zip(mechanism.p, mechanism.q, strict=True)
                value = sum(play(following, p * a, q * b, left - 1) for a, b in answers)
                best = max(best, value)
        return best

    return play(game.start, 1.0, 1.0, depth)


# --- the counterexample of S9a ----------------------------------------------------------

FIRST, SECOND = response(0.5), response(0.6)
DELTA = composed_delta([FIRST, SECOND], 1.0)
LEAK = leak(DELTA)


def adaptive_delta() -> float:
    """RR(0.5), then RR(0.6) after the first answer and the leak after the second."""
    total = 0.0
    for a, b, following in zip(FIRST.p, FIRST.q, (SECOND, LEAK), strict=True):
        for x, y in zip(following.p, following.q, strict=True):
            total += max(0.0, a * x - math.e * b * y)
    return total


def test_each_sequence_is_within_the_budget_but_the_choice_is_not():
    assert round(DELTA, 4) == 0.0382
    assert composed_delta([FIRST, LEAK], 1.0) == pytest.approx(DELTA, abs=1e-15)
    assert round(adaptive_delta(), 4) == 0.0527
    assert adaptive_delta() > 1.37 * DELTA


def test_the_realized_sequence_is_not_a_filter():
    wrong = RealizedSequence(1.0, DELTA + 1e-12)
    reached = strongest(wrong, [FIRST, SECOND, LEAK], depth=2)
    assert reached == pytest.approx(adaptive_delta(), abs=1e-12)
    assert reached > DELTA + 0.01


def test_the_realized_sequence_is_not_an_odometer():
    wrong = RealizedReading(DELTA)
    assert strongest(wrong, [FIRST, SECOND, LEAK], depth=2) > DELTA + 0.01


@pytest.mark.parametrize("kind", ["basic", "zcdp", "gdp", "rdp", "basic+zcdp", "basic+gdp", None])
def test_no_filter_admits_the_counterexample(kind):
    delta = Fraction(DELTA) + Fraction(1, 10**15)

    def admitted(*mechanisms: Mechanism) -> bool:
        budget = Filter(epsilon=1, delta=delta, kind=kind, relation="replace")
        try:
            for mechanism in mechanisms:
                budget.charge(mechanism.loss)
        except BudgetExceeded:
            return False
        return True

    assert not (admitted(FIRST, SECOND) and admitted(FIRST, LEAK))


# --- every strategy -------------------------------------------------------------------

SMALL = [response(0.1), response(0.25), leak(0.01), worst_approx(0.15, 0.005)]
SMOOTH = [binned_gaussian(0.3, -1, 0, 1), binned_gaussian(0.5, 0, 1.2), response(0.2)]
PLANNED = [
    binned_gaussian(0.3, -1, 0, 1)._replace(delta=0.01),
    binned_gaussian(0.5, 0, 1.2)._replace(delta=0.02),
    response(0.4)._replace(delta=0.02),
    response(0.2),
]
CONCENTRATED = [concentrated_response(0.3), concentrated_response(0.15), leak(0.02)]

SETTINGS = [
    ("basic", 0.5, 0.02, None, SMALL, 4),
    ("basic", 1.0, 0.0, None, [response(0.5), response(0.3), response(0.2)], 5),
    ("zcdp", 0.5, 0.05, 0.02, SMALL, 4),
    ("zcdp", 0.6, 0.08, 0.04, CONCENTRATED, 4),
    ("zcdp", 0.5, 0.1, 0, SMOOTH, 4),
    ("gdp", 0.5, 0.05, 0.02, SMALL, 4),
    ("gdp", 0.4, 0.1, 0, SMOOTH, 4),
    ("rdp", 0.5, 0.06, 0.02, SMALL, 4),
    ("rdp", 0.5, 0.1, 0, SMOOTH, 4),
    ("basic+zcdp", 0.5, 0.06, 0.02, SMALL, 4),
    ("basic+zcdp+gdp", 0.5, 0.1, 0.02, [*SMALL, SMOOTH[0]], 4),
    (None, 0.7, 0.1, 0.03, [*SMALL, SMOOTH[1]], 4),
    ("gdp", 0.5, 0.1, 0.04, PLANNED, 4),
    ("basic+gdp", 0.5, 0.1, 0.04, PLANNED, 4),
    ("basic+zcdp+gdp", 0.5, 0.12, 0.04, [*PLANNED, leak(0.02)], 4),
    (None, 0.5, 0.1, 0.04, PLANNED, 4),
]


@pytest.mark.parametrize(("kind", "epsilon", "delta", "reserved", "menu", "depth"), SETTINGS)
def test_no_strategy_passes_the_filter(kind, epsilon, delta, reserved, menu, depth):
    budget = Filter(
        epsilon=epsilon,
        delta=delta,
        kind=kind,
        relation="replace",
        reserved=reserved,
        orders=(4.0, 9.0) if kind == "rdp" else None,
    )
    assert any(budget.admits(mechanism.loss, delta=mechanism.delta) for mechanism in menu)
    for direction in (menu, [m._replace(p=m.q, q=m.p) for m in menu]):
        reached = strongest(FilterGame(budget, epsilon), direction, depth=depth)
        assert 0.0 <= reached <= delta + 1e-12


def test_the_basic_filter_is_as_good_as_it_can_be():
    """The strongest strategy spends the whole delta: the cap could not be smaller."""
    budget = Filter(epsilon=0.5, delta="1/32", relation="replace", kind="basic")
    menu = [response(0.25), leak(1 / 64)]
    assert strongest(FilterGame(budget, 0.5), menu, depth=4) == pytest.approx(1 / 32, rel=0.01)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.05), (1.0, DELTA)])
def test_the_judge_refutes_the_realized_sequence(epsilon, delta):
    menu = [response(0.3 * epsilon), response(0.5 * epsilon), response(0.6 * epsilon), leak(delta)]
    wrong = RealizedSequence(epsilon, delta + 1e-12)
    assert strongest(wrong, menu, depth=3) > 1.1 * delta


def test_the_judge_refutes_lanes_that_open_again():
    rho = float(_charges.zcdp_budget(0.5, 0.05))
    wrong = ReopeningLanes(0.5, rho)
    assert strongest(wrong, [response(0.25), response(0.12)], depth=5) > 0.05


def test_the_judge_refutes_a_cap_that_is_too_large(monkeypatch):
    right = _charges.gdp_budget
    monkeypatch.setattr(_charges, "gdp_budget", lambda epsilon, delta: 2 * right(epsilon, delta))
    wrong = Filter(epsilon=0.4, delta=0.1, kind="gdp", relation="replace", reserved=0)
    menu = [binned_gaussian(0.4, -1, 0, 1), binned_gaussian(0.5, -1, 0, 1)]
    assert strongest(FilterGame(wrong, 0.4), menu, depth=4) > 0.11


def test_the_judge_refutes_claims_without_their_deltas(monkeypatch):
    """What one lane reads as it is, and another as a claim, must still pay for the claim."""
    right = _charges.readings

    def without_deltas(loss, claim, *, relation):
        return tuple(good._replace(delta=0) for good in right(loss, claim, relation=relation))

    menu = [binned_gaussian(0.2, -0.5, 0.5)._replace(delta=0.05)]
    budget = {"epsilon": 0.2, "delta": 0.05, "kind": "basic+gdp", "reserved": 0.03}
    for wrong in (False, True):
        if wrong:
            monkeypatch.setattr(_charges, "readings", without_deltas)
        game = FilterGame(Filter(**budget, relation="replace"), 0.2)
        assert (strongest(game, menu, depth=5) > 0.05) == wrong


@pytest.mark.parametrize("kind", ["gdp", "basic+gdp", None])
def test_four_gaussian_plans_fit_where_their_claims_would_allow_two(kind):
    """Fits of (1, 1e-5) in a budget of (2, 1e-4): together 1.84 for four and 2.09 for five."""
    plan = 10 * GDP(theorems.gaussian_mu(1.0, 1e-5) / math.sqrt(10.0))
    assert (4 * plan).epsilon(delta=1e-4) == pytest.approx(1.839, abs=1e-3)
    assert (5 * plan).epsilon(delta=1e-4) == pytest.approx(2.091, abs=1e-3)
    budget = Filter(epsilon=2, delta="1e-4", kind=kind)
    for _ in range(4):
        budget.charge(plan, delta="1e-5")
    with pytest.raises(BudgetExceeded):
        budget.charge(plan, delta="1e-5")


def test_a_plan_is_never_dearer_than_its_claim():
    """Whatever follows: a budget that could pay for the claims can pay for the plans."""
    rng = random.Random(5)
    for _ in range(60):
        kind = rng.choice(["basic", "basic+zcdp", "zcdp", "basic+gdp", "rdp"])
        new, old = (Filter(epsilon=2, delta="1e-4", kind=kind) for _ in range(2))
        for _ in range(8):
            loss = rng.choice([GDP(rng.uniform(0.05, 0.4)), PureDP(rng.choice(["1/20", "1/4"]))])
            delta = rng.choice([1e-5, 1e-3]) if isinstance(loss, GDP) else None
            claim = loss if delta is None else _charges.plan_claim(loss, delta)
            if not old.admits(claim):
                break
            old.charge(claim)
            new.charge(loss, delta=delta)
            assert new.spent.keys() >= old.spent.keys()
            assert all(new.spent[name] <= amount for name, amount in old.spent.items())


def test_the_first_charge_chooses_the_sums():
    plan, count = GDP(0.01), PureDP("1/1000")
    for first, delta, kind in (
        (plan, 1e-6, "basic+gdp"),
        (plan, None, "basic+zcdp"),
        (count, None, "basic+zcdp"),
        (plan + count, 1e-6, "basic+zcdp"),
    ):
        budget = Filter(epsilon=1, delta=1e-4)
        assert budget.kind == budget.state()["kind"] == "auto"
        budget = Filter.from_state(budget.state())
        budget.charge(first, delta=delta)
        assert budget.kind == kind
        budget.charge(plan, delta=1e-6)
        assert Filter.from_state(budget.state()).kind == kind
    with pytest.raises(InvalidValue, match="kind"):
        Filter(epsilon=1, kind="auto")
    with pytest.raises(SchemaError, match="auto"):
        Filter.from_state({**Filter(epsilon=1, delta=1e-4).state(), "charges": 1})


def test_the_judge_refutes_a_charge_that_is_too_small(monkeypatch):
    """mu = epsilon / 2 for an epsilon-DP release, instead of 1.25 epsilon."""
    _charges._mu_squared_of.cache_clear()
    monkeypatch.setattr(_charges, "gdp_from_pure", lambda epsilon: 0.5 * epsilon)
    wrong = Filter(epsilon=0.4, delta=0.1, kind="gdp", relation="replace", reserved=0)
    try:
        reached = strongest(FilterGame(wrong, 0.4), [response(0.5), response(0.4)], depth=5)
    finally:
        _charges._mu_squared_of.cache_clear()
    assert reached > 0.11


@pytest.mark.parametrize(
    ("kind", "delta", "reserved", "menu"),
    [
        ("basic", 0.03, None, SMALL),
        ("zcdp", 0.1, 0.02, SMALL),
        ("gdp", 0.1, 0, SMOOTH),
        (None, 0.1, 0.02, SMALL),
        ("zcdp", 0.3, 0, CONCENTRATED[:2]),
    ],
)
def test_no_strategy_beats_the_odometer(kind, delta, reserved, menu):
    meter = Odometer(
        delta=delta, kind=kind, reserved=reserved, relation="replace", start=0.01, growth=1.5
    )
    assert 0.0 <= strongest(FilterGame(meter), menu, depth=4) <= delta + 1e-12


def test_what_was_raised_is_not_forgotten_by_the_first_charge():
    budget = Filter(epsilon=1, delta="1e-5")
    budget.raise_sums({"basic": Fraction(1), "zcdp": Fraction(1)})
    with pytest.raises(BudgetExceeded):
        budget.charge(Gaussian(6.0), delta="1e-6")
    state = Filter(epsilon=1, delta="1e-5").state()
    state["lanes"] = [lane | {"spent": "1/1000"} for lane in state["lanes"]]
    with pytest.raises(SchemaError):
        Filter.from_state(state)


def test_a_claim_below_the_cost_is_refused():
    budget = Filter(epsilon=1, delta="1e-5", kind="basic")
    with pytest.raises(InvalidValue, match="claim"):
        budget.charge(Gaussian(0.1), claim=ApproxDP("1/1000", "1/1000000"))
    assert budget.charges == 0
