"""From a privacy profile to a measure of losses that dominates it (S9).

Some losses have no tight pair of distributions: bounded range, sampling without
replacement, Renyi curves, generic groups. What is known is a bound on the hockey-stick
divergence H(x), x = exp(eps), at some points. Every convex function below those points
lies below their lower convex hull, and a piecewise linear convex decreasing function from
H(0) = 1 is itself the profile of a pair: the change of slope at x_j is the mass of Q at
loss log x_j. That pair dominates, so it may be composed; it gives upper bounds only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from discreet.privacy.pairs import Array, Measure

__all__ = [
    "SymmetricPair",
    "bounded_range_measure",
    "mirrored",
    "profile",
    "symmetric_measure",
    "worst_order",
]


def symmetric_measure(epsilon: Array, delta: Array) -> Measure:
    """The measure for a bound delta(eps) at increasing eps >= 0 that holds in both directions.

    For eps < 0 it follows from H(x) = 1 - x + x H(1 / x). Beyond the last point the
    remaining delta is mass at infinity.
    """
    x = np.exp(epsilon)
    value = np.clip(delta, 0.0, 1.0)
    mirrored = epsilon > 0
    inverse = np.exp(-epsilon[mirrored])[::-1]
    reflected = 1.0 - inverse + inverse * value[mirrored][::-1]
    return _hull_measure(
        np.concatenate([[0.0], inverse, x]),
        np.concatenate([[1.0], reflected, value]),
        np.concatenate([[-math.inf], -epsilon[mirrored][::-1], epsilon]),
    )


def _hull_measure(x: Array, value: Array, loss: Array) -> Measure:
    """Masses at the corners of the lower convex hull of the points (x, value)."""
    corners: list[int] = []
    for i in range(len(x)):
        while len(corners) >= 2 and _above(x, value, corners[-2], corners[-1], i):
            corners.pop()
        corners.append(i)
    # A profile never rises: cut the hull where it would.
    lowest = int(np.argmin(value[corners]))
    corners = corners[: lowest + 1]
    cx, cv = x[corners], value[corners]
    slope = np.diff(cv) / np.diff(cx)
    q = np.append(np.diff(slope), -slope[-1])
    mass = np.maximum(q * cx[1:], 0.0)
    keep = mass > 0
    return Measure.single(loss[corners][1:][keep], mass[keep], float(cv[-1]), mass_error=1e-12)


def _above(x: Array, value: Array, a: int, b: int, c: int) -> bool:
    """Whether the middle point is on or above the chord of its neighbours."""
    left = (value[b] - value[a]) * (x[c] - x[a])
    right = (value[c] - value[a]) * (x[b] - x[a])
    return bool(left >= right)


def profile(measure: Measure, epsilon: Array) -> Array:
    """H(exp(eps)) of one measure, without composition; rounded up."""
    order = np.argsort(measure.loss[0])
    loss, mass = measure.loss[0, order], measure.mass[0, order]
    first = np.searchsorted(loss, epsilon, side="right")
    finite = [
        -float(np.dot(mass[start:], np.expm1(eps - loss[start:])))
        for start, eps in zip(first, epsilon, strict=True)
    ]
    slack = 1.0 + measure.mass_error + 1e-13
    return np.asarray(np.minimum(np.array(finite) * slack + measure.infinite[0], 1.0))


def mirrored(measure: Measure) -> Measure | None:
    """The symmetric measure whose profile for eps >= 0 is that of ``measure``.

    For eps < 0 it follows from H(x) = 1 - x + x H(1 / x): every positive loss l of mass p
    appears again as -l with mass p e^-l. ``None`` where that leaves less than no mass at 0.
    """
    positive = measure.loss[0] > 0
    loss, mass = measure.loss[0, positive], measure.mass[0, positive]
    other = mass * np.exp(-loss)
    rest = 1.0 - math.fsum(mass) - math.fsum(other) - float(measure.infinite[0])
    if rest < 0.0:
        return None
    return Measure.single(
        np.concatenate([-loss, [0.0], loss]),
        np.concatenate([other, [rest], mass]),
        float(measure.infinite[0]),
        measure.mass_error + 1e-15,
    )


def bounded_range_measure(epsilon: float, points: int) -> Measure:
    """The dominating measure of an epsilon-bounded-range mechanism.

    Its log ratios lie in [t - epsilon, t] for some t; over all t the profile is at most
    (e^{epsilon/2} - e^{eps/2})^2 / (e^epsilon - 1) for |eps| <= epsilon (Dong, Durfee and
    Rogers 2020).
    """
    grid = np.linspace(0.0, epsilon, points)
    delta = np.expm1(0.5 * (grid - epsilon)) ** 2 / -math.expm1(-epsilon)
    return symmetric_measure(grid, delta)


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
    """The pair whose profile is the larger one of (P, Q) and (Q, P), at every epsilon.

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
    under_q = np.array([_round_up(Fraction(mass, total)) for _, mass in corners])
    under_p = np.array([_round_up(ratio * Fraction(mass, total)) for ratio, mass in corners])
    rest = total - infinite - sum((1 + ratio) * mass for ratio, mass in corners)
    middle = _round_up(Fraction(rest) / total)
    return SymmetricPair(
        np.concatenate([-above[::-1], [0.0], above]),
        np.concatenate([under_q[::-1], [middle], under_p]),
        np.concatenate([under_p[::-1], [middle], under_q]),
        _round_up(Fraction(infinite, total)),
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


def _round_up(value: Fraction) -> float:
    near = float(value)
    return near if Fraction(near) >= value else math.nextafter(near, math.inf)
