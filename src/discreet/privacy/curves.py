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

import numpy as np

from discreet.privacy.pairs import Array, Measure

__all__ = ["bounded_range_measure", "mirrored", "profile", "symmetric_measure"]


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
