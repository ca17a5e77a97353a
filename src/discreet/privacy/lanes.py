"""The running sums behind filters and odometers, their settings and their state.

A *lane* is one sum along the path that was taken, of one of the kinds that
:mod:`discreet.privacy.adaptive` lists, with a cap if it belongs to a filter. A lane that cannot
read a charge, or has no room for it, is closed for good.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable, SchemaError
from discreet.privacy import charges, serial

__all__ = [
    "FILTER_KINDS",
    "STATE_VERSION",
    "Lane",
    "Step",
    "bounded",
    "check_state",
    "delta_share",
    "joined_kinds",
    "parse_kinds",
    "parse_orders",
    "parse_reserved",
    "read_count",
    "read_lanes",
    "round_down",
    "show",
    "write_lane",
]

FILTER_KINDS = ("basic", "zcdp", "gdp", "rdp")
STATE_VERSION = 1
# Sums whose exact form would grow without end are rounded up to a multiple of 2^-2048.
_DENOMINATOR_BITS = 4096
_GRID = 2**2048


@dataclass(frozen=True)
class Lane:
    """One running sum: its kind, the order if it is a Renyi one, and the cap if it has one."""

    kind: str
    order: float | None = None
    budget: Fraction | None = None
    spent: Fraction = Fraction(0)
    open: bool = True

    @property
    def name(self) -> str:
        """The kind, with the order if there is one."""
        return self.kind if self.order is None else f"{self.kind}@{self.order!r}"

    def cost(self, good: charges.GoodPart) -> Fraction:
        """What a charge adds to this sum, or ``NotApplicable``."""
        if self.order is not None:
            return charges.renyi(good, order=self.order)
        return _READINGS[self.kind](good)

    def after(self, readings: Sequence[charges.GoodPart]) -> Step:
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
        return Step(replace(self, spent=bounded(self.spent + cost)), reading=reading)


class Step(NamedTuple):
    """A lane after a charge, the reading that it took, and why it is closed if it is."""

    lane: Lane
    reason: str = ""
    over_budget: bool = False
    reading: charges.GoodPart | None = None


_READINGS: dict[str, Callable[[charges.GoodPart], Fraction]] = {
    "basic": charges.pure_epsilon,
    "zcdp": charges.rho,
    "gdp": charges.mu_squared,
}


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


def joined_kinds(lanes: Sequence[Lane]) -> str:
    """The kinds of some lanes as one setting."""
    return "+".join(dict.fromkeys(lane.kind for lane in lanes))


def bounded(total: Fraction) -> Fraction:
    """The sum itself, or a little more where its exact form would grow without end."""
    if total.denominator.bit_length() <= _DENOMINATOR_BITS:
        return total
    return Fraction(math.ceil(total * _GRID), _GRID)


def show(value: Fraction) -> str:
    """An exact number for messages: as it is where it is short."""
    return str(value) if value.denominator <= 10**4 else f"{charges.round_up(value):.6g}"


# --- state ---------------------------------------------------------------------------


def write_lane(lane: Lane) -> dict[str, Any]:
    """A lane as JSON."""
    budget = None if lane.budget is None else serial.write_fraction(lane.budget)
    return {
        "name": lane.name,
        "budget": budget,
        "spent": serial.write_fraction(lane.spent),
        "open": lane.open,
    }


def read_lanes(states: object, fresh: Sequence[Lane]) -> list[Lane]:
    """Lanes with their sums; the caps stay the ones that the budget was opened with."""
    if not isinstance(states, list) or len(states) != len(fresh):
        raise SchemaError(f"lanes: expected {len(fresh)} of them")
    lanes = []
    for state, lane in zip(states, fresh, strict=True):
        body = _object(state, f"lanes.{lane.name}", ("name", "budget", "spent", "open"))
        if body["name"] != lane.name or not isinstance(body["open"], bool):
            raise SchemaError(f"lanes.{lane.name}: name {body['name']!r}, open {body['open']!r}")
        spent = serial.read_fraction(body["spent"], f"lanes.{lane.name}.spent")
        budget = None
        if lane.budget is not None:
            budget = serial.read_fraction(body["budget"], f"lanes.{lane.name}.budget")
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
