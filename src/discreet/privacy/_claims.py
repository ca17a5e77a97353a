"""Losses that are claimed rather than derived: pure, approximate, zero-concentrated and Renyi."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, final

import numpy as np

from discreet import _validate
from discreet._rounding import round_up
from discreet.errors import InvalidValue, NotApplicable
from discreet.privacy._loss import Atom, Exact, Loss, Relation
from discreet.privacy._pair import Pair, Resolution, two_points
from discreet.privacy._renyi import Array, Listed, Spectrum, pure_rho, response_spectrum


@final
@dataclass(frozen=True, repr=False, init=False)
class PureDP(Listed):
    """An epsilon-DP release of which nothing more is known. ``epsilon`` is exact.

    Binary randomized response dominates it (Kairouz, Oh, Viswanath 2015).

    >>> 10 * PureDP(0.1)
    10 * PureDP(epsilon=0.1)
    >>> (10 * PureDP(0.1)).epsilon(delta=0)
    1.0

    Parameters
    ----------
    epsilon : number or str
        At least 0.
    relation : Relation or str
        What neighbours are.
    """

    argument_names: ClassVar[dict[str, str]] = {"pure_epsilon": "epsilon"}

    pure_epsilon: Fraction
    relation: Relation = Relation.ADD_REMOVE

    def __init__(self, epsilon: Exact, relation: Relation | str = Relation.ADD_REMOVE) -> None:
        self._set(pure_epsilon=epsilon, relation=relation)

    def check(self) -> None:
        self._set(
            pure_epsilon=_validate.fraction("epsilon", self.pure_epsilon, at_least=0),
        )

    def pair(self, resolution: Resolution) -> Pair:
        return two_points(float(self.pure_epsilon))

    def spectra(self) -> tuple[Spectrum, ...]:
        return (response_spectrum(round_up(self.pure_epsilon)),)

    def claim(self) -> tuple[Fraction, Fraction]:
        return self.pure_epsilon, Fraction(0)

    def zcdp(self) -> float:
        return pure_rho(round_up(self.pure_epsilon))

    def exact_group(self, size: int, relation: Relation) -> Loss:
        return PureDP(self.pure_epsilon * size, relation)


@final
@dataclass(frozen=True, repr=False, init=False)
class ApproxDP(Listed):
    """An (epsilon, delta)-DP release of which nothing more is known; exact.

    Parameters
    ----------
    epsilon, delta : number or str
        At least 0, and delta at most 1.
    relation : Relation or str
        What neighbours are.
    """

    argument_names: ClassVar[dict[str, str]] = {
        "claimed_epsilon": "epsilon",
        "claimed_delta": "delta",
    }

    claimed_epsilon: Fraction
    claimed_delta: Fraction
    relation: Relation = Relation.ADD_REMOVE

    def __init__(
        self, epsilon: Exact, delta: Exact, relation: Relation | str = Relation.ADD_REMOVE
    ) -> None:
        self._set(claimed_epsilon=epsilon, claimed_delta=delta, relation=relation)

    def check(self) -> None:
        self._set(
            claimed_epsilon=_validate.fraction("epsilon", self.claimed_epsilon, at_least=0),
            claimed_delta=_validate.fraction("delta", self.claimed_delta, at_least=0, at_most=1),
        )

    def pair(self, resolution: Resolution) -> Pair:
        return two_points(float(self.claimed_epsilon), float(self.claimed_delta))

    def spectra(self) -> tuple[Spectrum, ...]:
        if self.claimed_delta > 0:
            raise NotApplicable(
                f"{self!r} has no Renyi bound: with delta > 0 the divergence may be infinite"
            )
        return (response_spectrum(round_up(self.claimed_epsilon)),)

    def claim(self) -> tuple[Fraction, Fraction]:
        return self.claimed_epsilon, self.claimed_delta

    def zcdp(self) -> float:
        if self.claimed_delta > 0:
            raise NotApplicable(f"{self!r} has no Renyi bound, hence no zCDP one")
        return pure_rho(round_up(self.claimed_epsilon))


@final
@dataclass(frozen=True, repr=False)
class ZCDP(Atom):
    """A rho-zero-concentrated-DP release (Bun and Steinke 2016); upper bounds only.

    Parameters
    ----------
    rho : float
        Above 0.
    relation : Relation or str
        What neighbours are.
    """

    rho: float
    relation: Relation = Relation.ADD_REMOVE

    def check(self) -> None:
        self._set(
            rho=_validate.real("rho", self.rho, above=0),
        )

    def renyi(self, orders: Array) -> Array:
        return orders * self.rho

    def zcdp(self) -> float:
        return self.rho

    def exact_group(self, size: int, relation: Relation) -> Loss:
        return ZCDP(self.rho * size**2, relation)


@final
@dataclass(frozen=True, repr=False)
class RenyiDP(Atom):
    """A Renyi-DP curve known at finitely many orders (Mironov 2017); upper bounds only.

    Parameters
    ----------
    orders : tuple of float
        Distinct, above 1.
    epsilons : tuple of float
        The divergence at each order.
    relation : Relation or str
        What neighbours are.
    """

    orders: tuple[float, ...]
    epsilons: tuple[float, ...]
    relation: Relation = Relation.ADD_REMOVE

    def check(self) -> None:
        given = _validate.several("orders", self.orders, "numbers above 1")
        values = _validate.several("epsilons", self.epsilons, "a number for each order")
        orders = tuple(_validate.real("orders", order, above=1) for order in given)
        epsilons = tuple(_validate.real("epsilons", value, at_least=0) for value in values)
        if not orders or len(orders) != len(epsilons):
            raise InvalidValue("epsilons", self.epsilons, f"as many values as orders {orders}")
        if len(set(orders)) != len(orders):
            raise InvalidValue("orders", self.orders, "distinct orders")
        pairs = sorted(zip(orders, epsilons, strict=True))
        self._set(
            orders=tuple(order for order, _ in pairs),
            epsilons=tuple(value for _, value in pairs),
        )

    def renyi(self, orders: Array) -> Array:
        """Return the least of two bounds between known orders; infinite above the largest.

        The divergence does not fall with the order, and (order - 1) times it is convex and zero at
        order 1, so it lies below its chords.
        """
        known, values = np.array(self.orders), np.array(self.epsilons)
        values = np.minimum.accumulate(values[::-1])[::-1]
        xs = np.concatenate(([1.0], known))
        ys = np.concatenate(([0.0], (known - 1.0) * values))
        chord = np.interp(orders, xs, ys) / (orders - 1.0)
        index = np.searchsorted(known, orders, side="left")
        above = np.append(values, np.inf)[index]
        return np.where(np.isinf(above), above, np.minimum(above, chord))

    def known_orders(self) -> tuple[float, ...]:
        return self.orders

    def zcdp(self) -> float:
        raise NotApplicable(f"{self!r} is known at finitely many orders; zCDP speaks of all")
