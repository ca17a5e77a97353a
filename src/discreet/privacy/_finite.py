"""Finite output distributions: a given pair of them, and randomized response."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, final

import numpy as np

from discreet import _validate
from discreet._rounding import as_written, round_up
from discreet.errors import InvalidValue, RelationMismatch
from discreet.privacy._loss import Loss, Relation
from discreet.privacy._pair import Array, Cells, Pair, Resolution, log_ratio, two_points
from discreet.privacy._renyi import Listed, Spectrum, pure_rho, response_spectrum


@final
@dataclass(frozen=True, repr=False, init=False)
class RandomizedResponse(Listed):
    """k-ary randomized response: the truth with odds exp(epsilon) against each lie.

    Warner 1965 for two categories; Kairouz, Oh and Viswanath 2016 for more.

    Parameters
    ----------
    epsilon : float
        The log of the odds of the truth against each lie.
    categories : int
        How many answers there are.
    relation : Relation or str
        Only replace: an answer changes.
    """

    default_relation: ClassVar[Relation] = Relation.REPLACE

    argument_names: ClassVar[dict[str, str]] = {"pure_epsilon": "epsilon"}

    pure_epsilon: float
    categories: int = 2
    relation: Relation = Relation.REPLACE

    def __init__(
        self,
        epsilon: float,
        categories: int = 2,
        relation: Relation | str = Relation.REPLACE,
    ) -> None:
        self._set(pure_epsilon=epsilon, categories=categories, relation=relation)

    def check(self) -> None:
        self._set(
            pure_epsilon=_validate.real("epsilon", self.pure_epsilon, above=0),
            categories=_validate.integer(
                "categories", self.categories, at_least=2, at_most=10**300
            ),
        )
        if self.relation is not Relation.REPLACE:
            raise RelationMismatch(
                "randomized response speaks of a changed answer, so its relation is 'replace'; "
                f"got {self.relation.value!r}"
            )

    @classmethod
    def two_coin(cls) -> RandomizedResponse:
        """Return the two-coin survey: heads, the truth; tails, a second coin. epsilon = ln 3."""
        return cls(math.log(3.0))

    @property
    def truth_probability(self) -> float:
        """How often the true category is reported."""
        return 1.0 / (1.0 + (self.categories - 1) * math.exp(-self.pure_epsilon))

    def pair(self, resolution: Resolution) -> Pair:
        share = self.truth_probability * (1.0 + math.exp(-self.pure_epsilon))
        return two_points(self.pure_epsilon, 0.0, min(share, 1.0))

    def spectra(self) -> tuple[Spectrum, ...]:
        return (response_spectrum(self.pure_epsilon, self.categories),)

    def claim(self) -> tuple[Fraction, Fraction]:
        return as_written(self.pure_epsilon), Fraction(0)

    def zcdp(self) -> float:
        if self.categories == 2:
            return pure_rho(round_up(as_written(self.pure_epsilon)))  # tight
        return super().zcdp()

    def exact_group(self, size: int, relation: Relation) -> Loss:
        # Every record passes through a channel of its own, so a group is a composition.
        return size * self


@final
@dataclass(frozen=True, repr=False)
class FinitePair(Listed):
    """The pair of output distributions of one mechanism on two neighbours.

    Either distribution may belong to either data set, anew in every release: each release
    counts as the pair whose profile is the larger one of both orders
    (:func:`worst_order`). With ``oriented`` P belongs to the same data
    set in every release, under ``add_remove`` to the one with the unit; both directions of the
    whole plan still count. The caller asserts that no other neighbours are worse.
    """

    p: tuple[float, ...]
    q: tuple[float, ...]
    relation: Relation = Relation.ADD_REMOVE
    oriented: bool = False

    def check(self) -> None:
        if not isinstance(self.oriented, bool):
            raise InvalidValue("oriented", self.oriented, "True or False")
        p, q = _distribution("P", self.p), _distribution("Q", self.q)
        if len(p) != len(q):
            raise InvalidValue("Q", self.q, f"as many probabilities as P has ({len(p)})")
        pairs = sorted((a, b) for a, b in zip(p, q, strict=True) if a > 0 or b > 0)
        self._set(
            p=tuple(a for a, _ in pairs),
            q=tuple(b for _, b in pairs),
        )

    def pair(self, resolution: Resolution) -> Pair:
        p, q = np.array(self.p), np.array(self.q)
        exact, worst = _point_cells(p, q), worst_order(self.p, self.q)
        if self.oriented:
            return Pair.exact(exact, reflected=worst.both_ways)
        above = Cells.points(
            worst.p, worst.q, worst.loss, only_p=worst.infinite, only_q=worst.infinite
        )
        below = (exact,) if worst.both_ways else (exact, _point_cells(q, p))
        return Pair(above, below, reflected=True)

    def unoriented(self) -> Loss:
        return replace(self, oriented=False)

    def spectra(self) -> tuple[Spectrum, ...]:
        p, q = np.array(self.p), np.array(self.q)
        return _seen_from(p, q), _seen_from(q, p)

    def claim(self) -> tuple[Fraction, Fraction] | None:
        if 0.0 in self.p or 0.0 in self.q:
            return None
        most = float(np.abs(log_ratio(np.array(self.p), np.array(self.q))).max())
        return Fraction(most * (1 + 2**-50)), Fraction(0)


def from_pair(
    P: Sequence[float],  # noqa: N803 - the distributions are called P and Q everywhere
    Q: Sequence[float],  # noqa: N803
    *,
    relation: Relation | str = Relation.ADD_REMOVE,
    oriented: bool = False,
) -> FinitePair:
    """Return the loss of a mechanism whose worst neighbours give the distributions P and Q.

    Parameters
    ----------
    P, Q
        Probabilities of the outcomes on two neighbouring data sets.
    relation
        The neighbouring relation that the pair stands for.
    oriented
        Whether P belongs to the same data set in all releases, under ``add_remove`` to the one
        with the unit. Otherwise in ``n * from_pair(P, Q)`` each release may have P on either
        side, which costs more.

    Returns
    -------
    FinitePair
        The loss.

    Raises
    ------
    InvalidValue
        If P or Q is not a distribution, or they differ in length.

    Examples
    --------
    >>> pair, same_way = [0.9, 0.1], from_pair([0.9, 0.1], [0.5, 0.5], oriented=True)
    >>> (2 * same_way).delta(epsilon=1) < (2 * from_pair(pair, [0.5, 0.5])).delta(epsilon=1)
    True
    """
    return FinitePair(P, Q, relation, oriented)  # type: ignore[arg-type] # it checks itself


def _distribution(argument: str, values: Sequence[float] | np.ndarray) -> list[float]:
    given = _validate.several(argument, values, "the probabilities of the outcomes")
    numbers = [_validate.real(argument, value, at_least=0, at_most=1) for value in given]
    if not numbers or abs(math.fsum(numbers) - 1.0) > 1e-12:
        raise InvalidValue(argument, values, "probabilities that sum to 1 within 1e-12")
    return numbers


def _point_cells(p: Array, q: Array) -> Cells:
    """Return cells for finite distributions: every outcome is its own cell, and exact."""
    both = (p > 0) & (q > 0)
    only_p, only_q = float(p[q <= 0].sum()), float(q[p <= 0].sum())
    p, q = p[both], q[both]
    return Cells.points(p, q, log_ratio(p, q), only_p=only_p, only_q=only_q)


def _seen_from(p: Array, q: Array) -> Spectrum:
    """Return the pair P against Q as seen from Q."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        known = (q > 0) & (p / q < 1e300)  # a ratio beyond the floats counts as infinite
    missing = float(np.sum(p[~known]))
    p, q = p[known], q[known]
    with np.errstate(divide="ignore"):
        gain = (p - q) / q
        near = np.abs(gain) < 0.5
        log_ratio = np.where(near, np.log1p(np.where(near, gain, 0.0)), np.log(p) - np.log(q))
    return Spectrum(np.log(q), log_ratio, gain, missing)


# --- finite pairs of unknown order ------------------------------------------------------------


@dataclass(frozen=True)
class SymmetricPair:
    """A finite pair that equals its exchanged pair: masses ``p`` and ``q`` at each loss.

    ``infinite`` is the mass of P where Q has none, and of Q where P has none. ``both_ways``
    says that the pair it was made from has the same profile in both orders already.
    """

    loss: Array
    p: Array
    q: Array
    infinite: float
    both_ways: bool


@lru_cache(maxsize=256)
def worst_order(p: tuple[float, ...], q: tuple[float, ...]) -> SymmetricPair:
    """Return the pair whose profile is the larger one of (P, Q) and (Q, P), at every epsilon.

    A maximum of two profiles is a profile (convex, falling, 1 at 0), so a pair has it, and that
    pair dominates both orders: hence also any sequence of releases that turns around as it
    likes. It is computed for x = exp(eps) > 1 and mirrored. Between neighbouring ratios both
    profiles are straight; the larger one bends at its own ratios and where the two cross. The
    arithmetic is exact; only the result is rounded, masses upwards.
    """
    first, second = _as_integers(p), _as_integers(q)
    sums = sum(first), sum(second)
    pairs = [(a * sums[1], b * sums[0]) for a, b in zip(first, second, strict=True)]
    total = sums[0] * sums[1]
    ways = (_Falling(pairs), _Falling([(b, a) for a, b in pairs]))
    same = ways[0].masses == ways[1].masses and ways[0].left == ways[1].left
    corners: list[tuple[Fraction, int]] = []
    infinite = max(way.left for way in ways)
    leader, slope = (ways if ways[0].left >= ways[1].left else ways[::-1])[0], 0
    for ratio in sorted({*ways[0].masses, *ways[1].masses}, reverse=True):
        other = ways[1] if leader is ways[0] else ways[0]
        if other.at(ratio) > leader.at(ratio):
            crossing = Fraction(leader.left - other.left, leader.right - other.right)
            corners.append((crossing, other.right - slope))
            slope = other.right
        for way in ways:
            way.pass_by(ratio)
        leader = max(ways, key=lambda way: (way.at(ratio), way.right))
        corners.append((ratio, leader.right - slope))
        slope = leader.right
    corners = [(ratio, mass) for ratio, mass in reversed(corners) if mass > 0]
    above = np.array([_log_of(ratio) for ratio, _ in corners])
    under_q = np.array([round_up(Fraction(mass, total)) for _, mass in corners])
    under_p = np.array([round_up(ratio * Fraction(mass, total)) for ratio, mass in corners])
    rest = total - infinite - sum((1 + ratio) * mass for ratio, mass in corners)
    middle = round_up(Fraction(rest) / total)
    return SymmetricPair(
        np.concatenate([-above[::-1], [0.0], above]),
        np.concatenate([under_q[::-1], [middle], under_p]),
        np.concatenate([under_p[::-1], [middle], under_q]),
        round_up(Fraction(infinite, total)),
        same,
    )


class _Falling:
    """The profile of one order, walked from x = infinity down to 1: it is left - right x."""

    def __init__(self, pairs: Sequence[tuple[int, int]]) -> None:
        self.left = sum(a for a, b in pairs if b == 0)
        self.right = 0
        self.masses: dict[Fraction, tuple[int, int]] = {}
        for a, b in pairs:
            if a > b > 0:
                ratio = Fraction(a, b)
                known = self.masses.get(ratio, (0, 0))
                self.masses[ratio] = (known[0] + a, known[1] + b)

    def pass_by(self, ratio: Fraction) -> None:
        a, b = self.masses.get(ratio, (0, 0))
        self.left += a
        self.right += b

    def at(self, ratio: Fraction) -> int:
        """The value, times the denominator of the ratio."""
        return self.left * ratio.denominator - self.right * ratio.numerator


def _as_integers(values: Sequence[float]) -> list[int]:
    """The values exactly, in a common unit."""
    parts = [value.as_integer_ratio() for value in values]
    unit = max(denominator for _, denominator in parts)
    return [numerator * (unit // denominator) for numerator, denominator in parts]


def _log_of(ratio: Fraction) -> float:
    """log of a ratio above 1, as precisely as floats have it."""
    if ratio < 2:
        return math.log1p(float(ratio - 1))
    if ratio < 10**300:
        return math.log(float(ratio))
    return math.log(ratio.numerator) - math.log(ratio.denominator)
