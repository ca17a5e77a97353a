"""Budgets for losses that are chosen after seeing earlier answers.

A composition ``a + b`` is one plan that was declared beforehand. When the next loss depends
on earlier answers, the sequence that happened to be run says too little: another answer
would have led to another sequence, and an attacker gains from the mixture. Reading the
accountant's epsilon of the sequence so far is *not* valid, neither for stopping nor for
reporting; ``tests/privacy/test_filters.py`` holds the counterexample.

Valid are sums that bound every path, with a cap that is fixed in advance:

``basic``
    sum of epsilon, and of delta; exact rationals.
``zcdp``
    sum of rho (Whitehouse, Ramdas, Rogers, Wu 2023, theorem 1; Feldman, Zrnic 2021).
``gdp``
    sum of mu^2 (Smith, Thakurta 2022; Koskela, Tobaben, Honkela 2023): every mu-GDP release
    is computed from a Brownian motion with drift observed for a time mu^2, and whatever is
    asked in whatever order, it is observed for at most the sum.
``rdp``
    sum of the Renyi divergences at an order fixed in advance (Feldman, Zrnic 2021).

**Several at once.** ``kind="basic+zcdp"`` keeps a *lane* for each and admits a charge while at
least one lane has room; a lane that was passed over once is closed for good. A transcript that
ends with lane i open has the same probabilities in the process that lane i alone would have
stopped, so the positive part of P - e^eps Q is at most the sum over the lanes, and the filter is
valid when the lanes share delta. A ``basic`` lane needs no share. Several Renyi orders are
lanes in the same way.

**The first charge may choose.** Nothing has been answered when it is asked for, so it depends on
no record, and whatever it decides is as good as decided beforehand. By default it chooses between
``basic+gdp`` and ``basic+zcdp`` (see :class:`Filter`).

Losses that state a delta spend it from ``reserved``, see :mod:`discreet.privacy._charges`.
"""

# S9a of docs/coverage.md.

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple, final

from discreet import _validate
from discreet._rounding import at_most, round_up
from discreet.errors import BudgetExceeded, InvalidValue, NotApplicable, SchemaError
from discreet.privacy import _charges
from discreet.privacy._charges import Reading
from discreet.privacy._claims import ApproxDP
from discreet.privacy._json import read_fraction, write_fraction
from discreet.privacy._loss import Loss, Relation
from discreet.privacy.theorems import gaussian_epsilon, zcdp_to_approx_tight

FILTER_KINDS = ("basic", "zcdp", "gdp", "rdp")
STATE_VERSION = 1
# Sums whose exact form would grow without end are rounded up to a multiple of 2^-2048.
_DENOMINATOR_BITS = 4096
_GRID = 2**2048
# Reading what is left and spending it is one act, whichever thread does it.
_CHARGING = threading.RLock()
# Another version may read the same plan a little differently.
_AGREE = Fraction(1, 10**6)


@dataclass(frozen=True)
class RunningSum:
    """One sum along the path that was taken, a *lane*: its kind, its order and its cap, if any.

    A lane that cannot read a charge, or has no room for it, is closed for good.
    """

    kind: str
    order: float | None = None
    budget: Fraction | None = None
    spent: Fraction = Fraction(0)
    open: bool = True

    @property
    def name(self) -> str:
        """The kind, with the order if there is one."""
        return self.kind if self.order is None else f"{self.kind}@{self.order!r}"

    def cost(self, good: Reading) -> Fraction:
        """What a charge adds to this sum, or ``NotApplicable``."""
        if self.order is not None:
            return _charges.renyi(good, order=self.order)
        return _READINGS[self.kind](good)

    def after(self, readings: Sequence[Reading]) -> Step:
        """What a charge makes of this lane, by its cheapest reading; nothing is changed."""
        if not self.open:
            return Step(self, f"{self.name}: closed by an earlier charge", over_budget=True)
        cost, reading, reasons = None, None, []
        for good in readings:
            try:
                found = self.cost(good)
            except NotApplicable as reason:
                reasons.append(str(reason))
                continue
            if cost is None or found < cost:
                cost, reading = found, good
        if cost is None:
            return Step(replace(self, open=False), f"{self.name}: {'; '.join(reasons)}")
        if self.budget is not None and self.spent + cost > self.budget:
            needs = f"{self.name}: needs {show(cost)}, has {show(self.budget - self.spent)} left"
            of = f" of {show(self.budget)}"
            return Step(replace(self, open=False), needs + of, over_budget=True)
        return Step(replace(self, spent=shorten_sum(self.spent + cost)), reading=reading)


class Step(NamedTuple):
    """A lane after a charge, the reading that it took, and why it is closed if it is."""

    lane: RunningSum
    reason: str = ""
    over_budget: bool = False
    reading: Reading | None = None


_READINGS: dict[str, Callable[[Reading], Fraction]] = {
    "basic": _charges.pure_epsilon,
    "zcdp": _charges.rho,
    "gdp": _charges.mu_squared,
}


def _claim_of(loss: Loss, delta: object) -> ApproxDP | None:
    if not isinstance(loss, Loss):
        raise NotApplicable(f"a charge is a loss, not {loss!r}")
    return None if delta is None else _charges.plan_claim(loss, delta)


class _Budget:
    """What a filter and an odometer have in common: their sums."""

    _relation: Relation
    _lanes: list[RunningSum]
    _delta_spent: Fraction
    _charges: int

    @property
    def kind(self) -> str:
        """The kinds of the lanes, joined by ``+``."""
        return "+".join(dict.fromkeys(lane.kind for lane in self._lanes))

    @property
    def relation(self) -> Relation:
        """The neighbouring relation of every charge."""
        return self._relation

    @property
    def charges(self) -> int:
        """How many charges were taken."""
        return self._charges

    @property
    def spent(self) -> dict[str, Fraction]:
        """The sum in each open lane and of the deltas, exactly."""
        sums = {lane.name: lane.spent for lane in self._lanes if lane.open}
        return sums | {"delta": self._delta_spent}

    def _write_sums(self) -> dict[str, Any]:
        return {
            "charges": self._charges,
            "delta_spent": write_fraction(self._delta_spent),
            "lanes": [write_lane(lane) for lane in self._lanes],
        }

    def _read_sums(self, body: Mapping[str, Any]) -> None:
        self._charges = read_count(body["charges"])
        self._delta_spent = read_fraction(body["delta_spent"], "delta_spent")
        self._lanes = read_lanes(body["lanes"], self._lanes)


@final
class Filter(_Budget):
    """Stops before a budget is exceeded, however the losses were chosen.

    Everything that was admitted is together (``epsilon``, ``delta``)-DP under ``relation``.

    Parameters
    ----------
    epsilon, delta : number or str
        The budget, exact.
    kind : str, optional
        One of :data:`FILTER_KINDS` or several joined by ``+`` (see the module). By default
        ``basic`` for a pure budget (or epsilon 0) and ``auto`` otherwise, which the first charge
        turns into ``basic+gdp`` if it is a plan (charged with a delta) of Gaussian noise only, as
        a fit of a linear model is, and into ``basic+zcdp`` if not: sums of rho are the tightest
        for many small charges, sums of epsilon for few large ones, and the second lane costs
        nothing. Choose ``gdp`` for Gaussian noise only (its conversion is exact) and ``rdp`` for
        sampled Gaussians that are charged step by step.
    relation : Relation or str
        What neighbours are, for every charge.
    reserved : number or str, optional
        The part of delta for charges that state or are given a delta: by default all of it for
        ``basic`` and half of it otherwise.
    orders : sequence of float, optional
        The Renyi orders of ``rdp``; by default the one that suits a Gaussian curve best.

    Raises
    ------
    InvalidValue
        If a setting is outside its range, or does not fit the others.

    Examples
    --------
    >>> from discreet.privacy import PureDP
    >>> budget = Filter(epsilon=1)
    >>> for _ in range(10):
    ...     budget.charge(PureDP(0.1))
    >>> budget.admits(PureDP(1e-12))
    False
    """

    def __init__(
        self,
        *,
        epsilon: object,
        delta: object = 0,
        kind: str | None = None,
        relation: Relation | str = Relation.ADD_REMOVE,
        reserved: object = None,
        orders: Sequence[float] | None = None,
    ) -> None:
        self._epsilon = _validate.fraction("epsilon", epsilon, at_least=0, at_most=10**9)
        self._delta = _validate.fraction("delta", delta, at_least=0, below=1)
        self._relation = Relation.parse(relation, zero_out=True)
        if kind is None:
            kind = "basic" if self._epsilon == 0 or self._delta == 0 else "auto"
        self._auto = type(kind) is str and kind == "auto"
        kinds = parse_kinds(None if self._auto else kind, self._delta, FILTER_KINDS)
        if self._auto and "zcdp" not in kinds:
            raise InvalidValue("kind", kind, "basic where delta is 0: the others need a delta")
        self._reserved = parse_reserved(reserved, kinds, self._delta)
        self._lanes = self._open_lanes(kinds, orders)
        self._delta_spent = Fraction(0)
        self._charges = 0

    def _open_lanes(
        self, kinds: tuple[str, ...], orders: Sequence[float] | None
    ) -> list[RunningSum]:
        if orders is not None and "rdp" not in kinds:
            raise InvalidValue("orders", orders, "no orders unless the kind includes rdp")
        fixed = None if orders is None else parse_orders(orders)
        lanes = [RunningSum("basic", budget=self._epsilon)] if "basic" in kinds else []
        others = [kind for kind in kinds if kind != "basic"]
        if not others:
            return lanes
        epsilon = round_down(self._epsilon)
        if epsilon <= 0:
            raise InvalidValue("epsilon", self._epsilon, f"a positive number for {others[0]}")
        count = len(others) - ("rdp" in others) + (len(fixed or (1,)) if "rdp" in others else 0)
        share = delta_share(self._delta - self._reserved, count)
        if "zcdp" in others:
            lanes.append(RunningSum("zcdp", budget=_charges.zcdp_budget(epsilon, share)))
        if "gdp" in others:
            lanes.append(RunningSum("gdp", budget=_charges.gdp_budget(epsilon, share)))
        if "rdp" in others:
            for order in fixed or (_charges.zcdp_order(epsilon, share),):
                room = _charges.rdp_budget(epsilon, share, order=order)
                lanes.append(RunningSum("rdp", order=order, budget=room))
        return lanes

    # --- what it is ------------------------------------------------------------------

    @property
    def guarantee(self) -> ApproxDP:
        """What everything that was and will be admitted satisfies together."""
        return ApproxDP(self._epsilon, self._delta, self._relation)

    @property
    def kind(self) -> str:
        """The kinds of the lanes, joined by ``+``; ``auto`` until the first charge chose them."""
        return "auto" if self._auto else super().kind

    def remaining(self) -> dict[str, Fraction]:
        """What is left in each open lane and of the reserved delta, exactly."""
        room = {
            lane.name: lane.budget - lane.spent
            for lane in self._lanes
            if lane.open and lane.budget is not None
        }
        return room | {"delta": self._reserved - self._delta_spent}

    def __repr__(self) -> str:
        left = ", ".join(f"{name} {show(value)}" for name, value in self.remaining().items())
        return (
            f"<Filter {self.kind} of epsilon={show(self._epsilon)}, delta={show(self._delta)}, "
            f"{self._relation.value}: {self._charges} charges, left {left}>"
        )

    # --- spending --------------------------------------------------------------------

    def admits(self, loss: Loss, *, delta: object = None) -> bool:
        """Say whether :meth:`charge` with the same arguments would go through; nothing is spent."""
        try:
            self._step_after(loss, _claim_of(loss, delta))
        except BudgetExceeded:
            return False
        return True

    def charge(self, loss: Loss, *, delta: object = None, claim: ApproxDP | None = None) -> None:
        """Spend a loss *before* its release, or raise and change nothing.

        Parameters
        ----------
        loss : Loss
            One release or a whole plan.
        delta : number or str, optional
            Where the accountant reads the loss, which is how a sampled plan such as a training
            run enters; it comes from ``reserved``. A lane that can read the loss as it is, and
            cheaper so, does that and needs no delta.
        claim : ApproxDP, optional
            That reading, where the caller has it already.

        Raises
        ------
        BudgetExceeded
            If there is too little left; the message says how much.
        RelationMismatch
            If the loss speaks of another relation.
        NotApplicable
            If no theorem covers the loss in any open lane.
        """
        with _CHARGING:
            known = _claim_of(loss, delta) if claim is None else claim
            if claim is not None:
                right = _charges.plan_claim(loss, claim.claimed_delta).claimed_epsilon
                if claim.claimed_epsilon < right * (1 - _AGREE):
                    raise InvalidValue("claim", claim, f"at least epsilon {show(right)}")
            self._lanes, self._delta_spent = self._step_after(loss, known)
            self._auto = False
            self._charges += 1

    def _step_after(self, loss: Loss, claim: ApproxDP | None) -> tuple[list[RunningSum], Fraction]:
        readings = _charges.readings(loss, claim, relation=self._relation)
        lanes = self._lanes
        if self._auto and claim is not None and _charges.all_gaussian(loss):
            lanes = self._open_lanes(("basic", "gdp"), None)
        left = self._reserved - self._delta_spent
        affordable = [good for good in readings if good.delta <= left]
        if not affordable:
            raise BudgetExceeded(
                f"{loss!r} needs delta {show(readings[-1].delta)}, of the reserved "
                f"{show(self._reserved)} there is {show(left)} left"
            )
        steps = [lane.after(affordable) for lane in lanes]
        if not any(step.lane.open for step in steps):
            reasons = "; ".join(step.reason for step in steps)
            short = len(affordable) < len(readings)
            if short:
                reasons += f"; {show(left)} of the reserved delta {show(self._reserved)} is left"
            if short or any(step.over_budget for step in steps):
                raise BudgetExceeded(f"{loss!r} does not fit: {reasons}")
            raise NotApplicable(f"no lane of this filter can read {loss!r}: {reasons}")
        taken = [good for good in affordable if any(step.reading is good for step in steps)]
        total = shorten_sum(self._delta_spent + sum(good.delta for good in taken))
        return [step.lane for step in steps], total

    def costs(self, loss: Loss) -> dict[str, Fraction]:
        """What a loss adds to each open lane that can read it; nothing is spent."""
        good = _charges.separate_delta(loss, relation=self._relation)
        found = {}
        for lane in self._lanes:
            if lane.open:
                with contextlib.suppress(NotApplicable):
                    found[lane.name] = lane.cost(good)
        return found

    def raise_sums(
        self, amounts: Mapping[str, Fraction], *, delta: Fraction = Fraction(0), charges: int = 0
    ) -> None:
        """Add what earlier charges cost, where the ledger knows the amounts.

        Parameters
        ----------
        amounts : mapping
            What to add to each lane. A lane that is not named, or has no room for its amount, is
            closed; a filter without an open lane refuses every further charge.
        delta : Fraction
            What to add to the deltas that were spent.
        charges : int
            How many charges these were.
        """
        with _CHARGING:
            self._lanes = [_add_to_lane(lane, amounts.get(lane.name)) for lane in self._lanes]
            self._delta_spent = shorten_sum(self._delta_spent + delta)
            if self._delta_spent > self._reserved:
                self._delta_spent = self._reserved
                self._lanes = [replace(lane, open=False) for lane in self._lanes]
            self._charges += charges
            self._auto = False

    # --- persistence -----------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Everything as JSON, exactly; :meth:`from_state` goes on from there."""
        return {
            "schema": "discreet.filter",
            "version": STATE_VERSION,
            "epsilon": write_fraction(self._epsilon),
            "delta": write_fraction(self._delta),
            "reserved": write_fraction(self._reserved),
            "relation": self._relation.value,
            "kind": self.kind,
            "orders": [lane.order for lane in self._lanes if lane.order is not None],
            **self._write_sums(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Filter:
        """Restore what :meth:`state` wrote; anything inconsistent is a ``SchemaError``."""
        names = (
            "schema",
            "version",
            "epsilon",
            "delta",
            "reserved",
            "relation",
            "kind",
            "orders",
            "charges",
            "delta_spent",
            "lanes",
        )
        body = check_state(state, "discreet.filter", names)
        try:
            filter_ = cls(
                epsilon=read_fraction(body["epsilon"], "epsilon"),
                delta=read_fraction(body["delta"], "delta"),
                kind=body["kind"],
                relation=body["relation"],
                reserved=read_fraction(body["reserved"], "reserved"),
                orders=body["orders"] or None,
            )
        except InvalidValue as error:
            raise SchemaError(f"discreet.filter: {error}") from error
        filter_._read_sums(body)
        spent = filter_._delta_spent or any(lane.spent for lane in filter_._lanes)
        if filter_._auto and (filter_._charges or spent):
            raise SchemaError("discreet.filter: the first charge decides what auto is")
        if filter_._delta_spent > filter_._reserved:
            raise SchemaError("discreet.filter: delta_spent is more than was reserved")
        return filter_


def _add_to_lane(lane: RunningSum, amount: Fraction | None) -> RunningSum:
    if not lane.open:
        return lane
    full = lane.budget is not None and amount is not None and lane.spent + amount > lane.budget
    if amount is None or full:
        return replace(lane, open=False)
    return replace(lane, spent=shorten_sum(lane.spent + amount))


@final
class Odometer(_Budget):
    """Says how much was spent so far, at every moment, however the losses were chosen.

    The guarantee: stop whenever you like, and let eps(t) be :meth:`epsilon` at the end of
    the transcript t. Then the sum over all transcripts with a finite reading of the positive
    part of P(t) - e^eps(t) Q(t) is at most ``delta``. In particular P(E) <= e^eps Q(E) + delta for
    any set E of transcripts that end with a reading of at most eps. (For a pure loss this
    says that the privacy loss never exceeds the reading.)

    ``basic`` reads the sum of epsilon. ``zcdp`` and ``gdp`` read the smallest of a family of
    filters that is not exceeded yet, with budgets ``start * growth^i`` and shares of delta
    proportional to 1 / (i + 1)^2 (Rogers, Roth, Ullman, Vadhan 2016; Lecuyer 2021;
    Whitehouse et al. 2023); a transcript counts for the filter that it ends with, which
    is why the shares add up. Together (the default) the smaller reading counts.

    Parameters
    ----------
    delta : number or str
        The delta of every reading.
    kind : str, optional
        ``basic``, ``zcdp`` and ``gdp``, or several joined by ``+``.
    relation : Relation or str
        What neighbours are, for every charge.
    reserved : number or str, optional
        The part of delta for charges that state or are given a delta, as in :class:`Filter`.
    start, growth : number or str
        The first budget of the family, and the ratio of two neighbours.

    Raises
    ------
    InvalidValue
        If a setting is outside its range.

    Examples
    --------
    >>> from discreet.privacy import PureDP
    >>> meter = Odometer(delta=1e-6)
    >>> meter.charge(PureDP(0.25))
    >>> meter.epsilon()
    0.25
    """

    def __init__(
        self,
        *,
        delta: object = 0,
        kind: str | None = None,
        relation: Relation | str = Relation.ADD_REMOVE,
        reserved: object = None,
        start: object = "1/10000",
        growth: object = "3/2",
    ) -> None:
        self._delta = _validate.fraction("delta", delta, at_least=0, below=1)
        self._relation = Relation.parse(relation, zero_out=True)
        kinds = parse_kinds(kind, self._delta, FILTER_KINDS[:3])
        self._reserved = parse_reserved(reserved, kinds, self._delta)
        self._start = _validate.fraction("start", start, above=0, at_most=1)
        self._growth = _validate.fraction("growth", growth, above=1, at_most=16)
        if self._growth < Fraction(17, 16):
            raise InvalidValue("growth", growth, "an exact number with 17/16 <= growth <= 16")
        families = sum(kind != "basic" for kind in kinds)
        self._share = delta_share(self._delta - self._reserved, families) if families else 0.0
        self._lanes = [RunningSum(kind) for kind in kinds]
        self._delta_spent = Fraction(0)
        self._charges = 0

    def __repr__(self) -> str:
        return (
            f"<Odometer {self.kind} at delta={show(self._delta)}, {self._relation.value}: "
            f"{self._charges} charges, epsilon {at_most(self.epsilon(), digits=6)}>"
        )

    def charge(self, loss: Loss, *, delta: object = None) -> None:
        """Record a loss *before* its release.

        Parameters
        ----------
        loss : Loss
            One release or a whole plan.
        delta : number or str, optional
            Where the accountant reads the loss, if it is to enter as a claim.

        Raises
        ------
        NotApplicable
            If no theorem covers the loss in any open lane.
        """
        with _CHARGING:
            read_as = _claim_of(loss, delta) or loss
            good = _charges.separate_delta(read_as, relation=self._relation)
            steps = [lane.after((good,)) for lane in self._lanes]
            if not any(step.lane.open for step in steps):
                reasons = "; ".join(step.reason for step in steps)
                raise NotApplicable(f"this odometer cannot read {loss!r}: {reasons}")
            self._lanes = [step.lane for step in steps]
            self._delta_spent = shorten_sum(self._delta_spent + good.delta)
            self._charges += 1

    def epsilon(self) -> float:
        """The reading now; infinite once the charges' own deltas exceed ``reserved``."""
        if self._delta_spent > self._reserved:
            return math.inf
        return min(self._reading(lane) for lane in self._lanes if lane.open)

    def _reading(self, lane: RunningSum) -> float:
        if lane.kind == "basic" or lane.spent == 0:
            return round_up(lane.spent)
        index, budget = 0, self._start
        while budget < lane.spent:
            index, budget = index + 1, budget * self._growth
        # 0.6079 < 6 / pi^2, so the shares of all i = 0, 1, ... add up to less than one.
        share = self._share * 0.6079 / (index + 1) ** 2
        padded = round_up(budget * (1 + Fraction(1, 10**12)))
        if padded > 1e18:
            return math.inf
        if lane.kind == "gdp":
            return gaussian_epsilon(math.sqrt(padded) * (1.0 + 1e-15), share)
        return zcdp_to_approx_tight(padded, share) * (1.0 + 1e-12)

    def state(self) -> dict[str, Any]:
        """Everything as JSON, exactly; :meth:`from_state` goes on from there."""
        return {
            "schema": "discreet.odometer",
            "version": STATE_VERSION,
            "delta": write_fraction(self._delta),
            "reserved": write_fraction(self._reserved),
            "relation": self._relation.value,
            "kind": self.kind,
            "start": write_fraction(self._start),
            "growth": write_fraction(self._growth),
            **self._write_sums(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Odometer:
        """Restore what :meth:`state` wrote; anything inconsistent is a ``SchemaError``."""
        names = (
            "schema",
            "version",
            "delta",
            "reserved",
            "relation",
            "kind",
            "start",
            "growth",
            "charges",
            "delta_spent",
            "lanes",
        )
        body = check_state(state, "discreet.odometer", names)
        try:
            odometer = cls(
                delta=read_fraction(body["delta"], "delta"),
                kind=body["kind"],
                relation=body["relation"],
                reserved=read_fraction(body["reserved"], "reserved"),
                start=read_fraction(body["start"], "start"),
                growth=read_fraction(body["growth"], "growth"),
            )
        except InvalidValue as error:
            raise SchemaError(f"discreet.odometer: {error}") from error
        odometer._read_sums(body)
        return odometer


# --- settings ------------------------------------------------------------------------


def parse_kinds(kind: object, delta: Fraction, known: tuple[str, ...]) -> tuple[str, ...]:
    """The kinds that a setting names, in a fixed order; ``None`` is the default."""
    if kind is None:
        return ("basic",) if delta == 0 else ("basic", "zcdp")
    chosen = kind.split("+") if isinstance(kind, str) else []
    if not chosen or len(set(chosen)) != len(chosen) or not set(chosen) <= set(known):
        raise InvalidValue("kind", kind, "one of " + ", ".join(known) + ", or several joined by +")
    if delta == 0 and chosen != ["basic"]:
        raise InvalidValue("kind", kind, "basic where delta is 0: the others need a delta")
    return tuple(name for name in known if name in chosen)


def parse_reserved(reserved: object, kinds: tuple[str, ...], delta: Fraction) -> Fraction:
    """The part of delta for charges that have a delta of their own."""
    alone = kinds == ("basic",)
    if reserved is None:
        return delta if alone else delta / 2
    value = _validate.fraction("reserved", reserved, at_least=0)
    if value > delta or (value == delta and not alone):
        raise InvalidValue(
            "reserved", reserved, f"at most delta = {show(delta)}, and less unless kind is basic"
        )
    return value


def parse_orders(orders: Sequence[float]) -> tuple[float, ...]:
    """Distinct Renyi orders above 1, in increasing order."""
    fixed = sorted({_validate.real("orders", order, above=1) for order in orders})
    if not fixed:
        raise InvalidValue("orders", orders, "at least one order above 1")
    return tuple(fixed)


def delta_share(delta: Fraction, count: int) -> float:
    """An equal share of delta, rounded down."""
    share = round_down(delta / count)
    if share < 1e-290:
        raise InvalidValue("delta", float(delta), "a delta of at least 1e-290 for each lane")
    return share


def round_down(value: Fraction) -> float:
    """A float that is below an exact positive number."""
    return math.nextafter(float(value), 0.0)


def shorten_sum(total: Fraction) -> Fraction:
    """The sum itself, or a little more where its exact form would grow without end."""
    if total.denominator.bit_length() <= _DENOMINATOR_BITS:
        return total
    return Fraction(math.ceil(total * _GRID), _GRID)


def show(value: Fraction) -> str:
    """An exact number for messages: as it is where it is short."""
    return str(value) if value.denominator <= 10**4 else f"{round_up(value):.6g}"


# --- state ---------------------------------------------------------------------------


def write_lane(lane: RunningSum) -> dict[str, Any]:
    """A lane as JSON."""
    budget = None if lane.budget is None else write_fraction(lane.budget)
    return {
        "name": lane.name,
        "budget": budget,
        "spent": write_fraction(lane.spent),
        "open": lane.open,
    }


def read_lanes(states: object, fresh: Sequence[RunningSum]) -> list[RunningSum]:
    """Lanes with their sums; the caps stay the ones that the budget was opened with."""
    if not isinstance(states, list) or len(states) != len(fresh):
        raise SchemaError(f"lanes: expected {len(fresh)} of them")
    lanes = []
    for state, lane in zip(states, fresh, strict=True):
        body = _object(state, f"lanes.{lane.name}", ("name", "budget", "spent", "open"))
        if body["name"] != lane.name or not isinstance(body["open"], bool):
            raise SchemaError(f"lanes.{lane.name}: name {body['name']!r}, open {body['open']!r}")
        spent = read_fraction(body["spent"], f"lanes.{lane.name}.spent")
        budget = None
        if lane.budget is not None:
            budget = read_fraction(body["budget"], f"lanes.{lane.name}.budget")
            # Another version may find the cap a little sharper, but not differ.
            if spent > budget or abs(budget - lane.budget) > lane.budget / 10**6:
                raise SchemaError(f"lanes.{lane.name}: budget or spent do not fit the settings")
        elif body["budget"] is not None:
            raise SchemaError(f"lanes.{lane.name}: this lane has no budget")
        lanes.append(replace(lane, budget=budget, spent=spent, open=body["open"]))
    return lanes


def check_state(state: object, schema: str, names: tuple[str, ...]) -> Mapping[str, Any]:
    """The fields of a state, if the schema, the version and their names are right."""
    body = _object(state, schema, names)
    if body["schema"] != schema:
        raise SchemaError(f"schema {body['schema']!r}: expected {schema!r}")
    if isinstance(body["version"], (bool, float)) or body["version"] != STATE_VERSION:
        raise SchemaError(f"version {body['version']!r} of {schema!r}: expected {STATE_VERSION}")
    return body


def _object(node: object, where: str, names: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(node, Mapping):
        raise SchemaError(f"{where}: expected an object")
    for name in names:
        if name not in node:
            raise SchemaError(f"{where}: missing field {name!r}")
    for name in node:
        if name not in names:
            raise SchemaError(f"{where}: unknown field {name!r}")
    return node


def read_count(value: object) -> int:
    """The number of charges in a state."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise SchemaError(f"charges: {value!r}: expected a number of charges")
    return value
