"""Several losses of one plan, and the generic bound for a group of records."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, final

import numpy as np

from discreet import _validate
from discreet._rounding import round_up
from discreet.errors import InvalidValue, NotApplicable
from discreet.privacy._gaussian import Gaussian
from discreet.privacy._loss import (
    MOST,
    Bounds,
    Loss,
    Relation,
    check_group,
    check_loss,
    largest_loss,
    require_same,
    wrap,
)
from discreet.privacy._pair import Measure, Pair, Resolution, hull_of_profile
from discreet.privacy._renyi import Array, curve
from discreet.privacy._sampling import PoissonSampled, refuse_common_sample

NO_TIGHT_PAIR = (
    "no tight pair is known for a part of this loss, so only the upper bound is certified"
)
_LARGEST_GROUP = 64
_PAD = 1e-12


@final
@dataclass(frozen=True, repr=False)
class Composition(Loss):
    """Several losses of one declared plan; build it with ``+`` and ``*``.

    ``parts`` holds each distinct loss with its count, in a canonical order, so that
    ``a + b == b + a`` and ``a + a == 2 * a``.
    """

    is_sum: ClassVar[bool] = True

    parts: tuple[tuple[Loss, int], ...]

    def check(self) -> None:
        counts = _merge(self.parts)
        if sum(counts.values()) == 1:
            raise InvalidValue("parts", self.parts, "several releases; one loss stands for itself")
        self._set(parts=tuple(sorted(counts.items(), key=lambda item: _order(item[0]))))

    @property
    def relation(self) -> Relation:
        return self.parts[0][0].relation

    def __repr__(self) -> str:
        return " + ".join(repr(loss) if n == 1 else f"{n} * {loss!r}" for loss, n in self.parts)

    @property
    def tight(self) -> bool:
        return all(part.tight for part, _ in self.parts)

    def sampling_refusal(self, records: int) -> str | None:
        return refuse_common_sample(self)

    def sampled(self, rate: float) -> Loss:
        mus = [(part.gaussian_mu(), n) for part, n in self.parts]
        known = [(mu, n) for mu, n in mus if mu is not None]
        if self.relation is Relation.REPLACE or len(known) < len(mus):
            return super().sampled(rate)
        # Gaussian releases on one common sample are one Gaussian release.
        square = math.fsum(n * mu**2 for mu, n in known)
        joint = Gaussian(1.0 / (math.sqrt(square) * (1.0 + 1e-15)), self.relation)
        return PoissonSampled(joint, rate)

    def pair(self, resolution: Resolution) -> Pair:
        raise NotApplicable(
            f"{self!r} has no privacy-loss distribution of one step; nothing is assumed about it"
        )

    def renyi(self, orders: Array) -> Array:
        total = np.zeros_like(orders)
        for part, count in self.parts:
            total = total + count * curve(part, orders)
        return total

    def claim(self) -> tuple[Fraction, Fraction] | None:
        epsilon = delta = Fraction(0)
        for part, count in self.parts:
            claim = part.claim()
            if claim is None:
                return None
            epsilon += count * claim[0]
            delta += count * claim[1]
        return epsilon, min(delta, Fraction(1))

    def zcdp(self) -> float:
        return math.fsum(count * part.zcdp() for part, count in self.parts)

    @property
    def is_gaussian_noise(self) -> bool:
        return all(part.is_gaussian_noise for part, _ in self.parts)

    def exact_group(self, size: int, relation: Relation) -> Loss | None:
        grouped = [(loss.exact_group(size, relation), n) for loss, n in self.parts]
        exact = [(loss, n) for loss, n in grouped if loss is not None]
        return compose(exact) if len(exact) == len(grouped) else None

    def touched_mass(self) -> float:
        masses = [(part.touched_mass(), n) for part, n in self.parts]
        if any(mass >= 1.0 for mass, _ in masses):
            return 1.0
        none = math.fsum(n * math.log1p(-mass) for mass, n in masses)
        return min(1.0, -math.expm1(none) * (1.0 + 1e-14))

    def known_orders(self) -> list[float]:
        return sorted({order for part, _ in self.parts for order in part.known_orders()})


def compose(parts: Iterable[tuple[Loss, int]]) -> Loss:
    """Return the loss of several releases of one plan; a single one stays itself.

    Parameters
    ----------
    parts
        Losses under one relation, each with how often it happens.

    Returns
    -------
    Loss
        The composition, flattened, merged and in a canonical order.

    Raises
    ------
    RelationMismatch
        If the losses speak of different relations.

    Examples
    --------
    >>> from discreet.privacy import Gaussian, PureDP
    >>> compose([(PureDP(0.5), 1), (Gaussian(4.0), 10)]) == PureDP(0.5) + 10 * Gaussian(4.0)
    True
    """
    counts = _merge(parts)
    if sum(counts.values()) == 1:
        return next(iter(counts))
    return Composition(tuple(counts.items()))


def parts_of(loss: Loss) -> tuple[tuple[Loss, int], ...]:
    """Return the parts of a plan with their counts; a single loss is its own part."""
    return loss.parts if isinstance(loss, Composition) else ((loss, 1),)


def _merge(parts: Iterable[tuple[Loss, int]]) -> dict[Loss, int]:
    """Return each distinct loss of one relation, with its count."""
    counts: dict[Loss, int] = {}
    expected = "pairs of a loss and how often it happens"
    for pair in _validate.several("parts", parts, expected):
        loss, times = _validate.several("parts", pair, expected, count=2)
        n = _validate.integer("count", times, at_least=1)
        for part, m in parts_of(check_loss("parts", loss)):
            total = counts.get(part, 0) + n * m
            counts[part] = _validate.integer("count", total, at_most=MOST)
    if not counts:
        raise InvalidValue("parts", (), "at least one loss")
    first = next(iter(counts))
    for part in counts:
        require_same(first.relation, part.relation)
    return counts


@lru_cache(maxsize=4096)
def _order(loss: Loss) -> tuple[int, str, str]:
    text = repr(loss)
    return len(text), text, type(loss).__name__


@final
@dataclass(frozen=True, repr=False)
class Grouped(Loss):
    """The generic group bound on a whole loss, in its tight form; upper bounds only.

    delta of a group of k is at most (e^{k e} - 1) / (e^e - 1) times delta(e) at e = epsilon / k
    (one record at a time; Dwork and Roth 2014, theorem 2.2).
    """

    base: Loss
    size: int
    target: Relation

    def check(self) -> None:
        count, target = check_group(check_loss("base", self.base), self.size, self.target)
        if count == 1:
            raise InvalidValue("size", self.size, "an integer with 2 <= size")
        self.base.exact_group(count, target)  # raises where not even this bound is known
        self._set(size=count, target=target)

    @property
    def relation(self) -> Relation:
        return self.target

    def __repr__(self) -> str:
        extra = "" if self.target is self.base.relation else f", relation={self.target.value!r}"
        return f"{wrap(self.base)}.group({self.size}{extra})"

    @property
    def tight(self) -> bool:
        return False

    def sampling_refusal(self, records: int) -> str | None:
        return refuse_common_sample(self)

    def pair(self, resolution: Resolution) -> Pair:
        return Pair.of_hull(_group_hull(self, resolution.negligible))

    def renyi(self, orders: Array) -> Array:
        """Return the bound by Hoelder's inequality.

        With k = size, D_a(group of k) <= sum over j of (a k / (a k - j)) D_{a k - j}(one). For a
        chain P, R, Q of groups k1 + k2 = k (Mironov 2017, proposition 11, with the exponent
        p = 1 + (k2/k1)(a - 1)/a instead of 2),
        D_a(P||Q) <= (k / (k1 p)) D_{a + (k2/k1)(a-1)}(P||R) + D_{a k / k2}(R||Q);
        taking k1 = 1 again and again gives the sum. It is exact for Gaussians.
        """
        size = self.size
        if size > _LARGEST_GROUP:
            # Every term of the sum is at most the last factor times the first divergence.
            factor = orders * size / (orders * size - size + 1.0)
            return size * factor * curve(self.base, orders * size)
        powers = orders[:, None] * size - np.arange(size, dtype=np.float64)[None, :]
        values = curve(self.base, powers.ravel()).reshape(powers.shape)
        bound: Array = np.sum(powers[:, :1] / powers * values, axis=1)
        return bound

    def claim(self) -> tuple[Fraction, Fraction] | None:
        """Return (k eps, delta (e^(k eps) - 1) / (e^eps - 1))."""
        claim = self.base.claim()
        if claim is None:
            return None
        (epsilon, delta), size = claim, self.size
        if delta == 0 or epsilon == 0:
            return size * epsilon, min(size * delta, Fraction(1))
        factor = _group_factor(round_up(epsilon), size)
        whole = math.isinf(factor)
        return size * epsilon, Fraction(1) if whole else min(Fraction(factor) * delta, Fraction(1))

    def zcdp(self) -> float:
        """Return size squared times rho (Bun and Steinke 2016, proposition 27)."""
        return self.size**2 * self.base.zcdp()

    def exact_group(self, size: int, relation: Relation) -> Loss:
        return Grouped(self.base, self.size * size, relation)

    def touched_mass(self) -> float:
        return min(1.0, self.size * self.base.touched_mass() * (1.0 + 1e-15))

    def known_orders(self) -> list[float]:
        return [order / self.size for order in self.base.known_orders()]

    def closed_epsilon(self, delta: float) -> Bounds:
        return Bounds(0.0, _group_epsilon(self, delta), False, NO_TIGHT_PAIR)

    def closed_delta(self, epsilon: float) -> Bounds:
        return Bounds(0.0, _group_delta(self, epsilon), False, NO_TIGHT_PAIR)

    def closed_curve(self, epsilons: Array) -> Array:
        from discreet.privacy._accountants import delta_curve

        parts = epsilons / self.size
        deltas = delta_curve(self.base, parts)
        deltas[parts >= largest_loss(self.base)] = 0.0
        factors = np.array([_group_factor(part, self.size) for part in parts])
        # A delta of 0 times a factor beyond the floats is no number.
        return np.where(deltas > 0.0, np.minimum(factors * deltas, 1.0), 0.0)


def _group_factor(epsilon: float, size: int) -> float:
    """Return (e^(k eps) - 1) / (e^eps - 1), rounded up; infinite where it leaves the floats."""
    if epsilon == 0.0:
        return float(size)
    if size * epsilon > 700.0:
        return math.inf
    return math.expm1(size * epsilon) / math.expm1(epsilon) * (1.0 + _PAD)


def _group_delta(loss: Grouped, epsilon: float) -> float:
    """Return delta of a group: a factor times delta of the base at a share of epsilon."""
    from discreet.privacy._accountants import delta_upper

    part = epsilon / loss.size
    one = delta_upper(loss.base, part)
    return min(1.0, _group_factor(part, loss.size) * one) if one > 0.0 else 0.0


def _group_epsilon(loss: Grouped, delta: float) -> float:
    """Return the smallest epsilon, nearly, at which the group bound is at most ``delta``."""
    from discreet.privacy._accountants import epsilon_bracket

    if _group_delta(loss, 0.0) <= delta:
        return 0.0
    low, high = 0.0, loss.size * max(1e-6, epsilon_bracket(loss.base, delta).upper)
    if not math.isfinite(high):
        return high
    while _group_delta(loss, high) > delta:
        low, high = high, 1.3 * high
        if high > 1e5:
            return math.inf
    while high - low > 2e-5 * high:
        middle = 0.5 * (low + high)
        if _group_delta(loss, middle) <= delta:
            high = middle
        else:
            low = middle
    return high


@lru_cache(maxsize=64)
def _group_hull(loss: Grouped, negligible: float) -> Measure:
    """Return a dominating measure of a generic group, from its profile at many points."""
    top = _group_epsilon(loss, negligible)
    if not math.isfinite(top):
        return hull_of_profile(np.zeros(1), np.ones(1))
    pure = loss.size * largest_loss(loss.base) * (1.0 + _PAD)
    if pure <= 1.01 * top:
        top = pure  # nothing is lost outright there
    grid = np.linspace(0.0, top, 97)
    return hull_of_profile(grid, np.array([_group_delta(loss, e) for e in grid]))
