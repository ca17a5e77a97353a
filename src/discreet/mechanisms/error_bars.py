"""Confidence intervals for the true answer under discrete noise.

An interval speaks of the noise alone: the data are fixed, and over the draws of the noise
the true answer lies inside with at least the stated confidence. It is computed from the
released number and public parameters, so it costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

from discreet.mechanisms.release import Interval
from discreet.randomness import exp_negative

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "each_of",
    "gaussian_reach",
    "integer_bars",
    "integers_bars",
    "laplace_reach",
    "least",
    "outward",
    "real_bars",
    "saturated",
]

Reach = Callable[[float], int]

_BITS = 512
_LARGEST_SUM = 4096.0
_SAFE = 1e-11


def each_of(count: int, risk: float) -> float:
    """Return the risk of each of ``count`` independent draws when all must hold together.

    >>> round(each_of(3, 1 - 0.9**3), 9)
    0.1
    """
    return risk if count == 1 else -math.expm1(math.log1p(-risk) / count) * (1.0 - 1e-12)


def laplace_reach(scale: Fraction) -> Reach:
    """Return risk -> the least t with P(|X| > t) <= risk, X discrete Laplace; exact.

    P(|X| > t) = 2 r^(t+1) / (1 + r), r = e^(-1/scale), is compared in integers; a
    comparison that 512 bits leave open goes to the safe side.

    >>> laplace_reach(Fraction(10))(0.05)
    30
    """

    def reach(risk: float) -> int:
        allowed = Fraction(risk)
        one = 1 << _BITS
        ratio, _ = exp_negative(1 / scale, _BITS)
        limit = allowed * (one + ratio)

        def covers(t: int) -> bool:
            return 2 * exp_negative((t + 1) / scale, _BITS)[1] <= limit

        return least(covers, math.ceil(scale * Fraction(-math.log(risk) + 1.0)) + 1)

    return reach


def gaussian_reach(stddev: float) -> Reach:
    """Return risk -> t with P(|X| > t) <= risk, X discrete Gaussian of parameter ``stddev``.

    Up to a deviation of 4096 the sum of the tail is computed and t is the least one
    (within a relative 1e-11 of the risk). Beyond, P(X >= m) <= P(N(0, stddev^2) >= m - 1)
    (Canonne, Kamath and Steinke 2020, proposition 25) gives a t at most one step larger.

    >>> gaussian_reach(10.0)(0.05)
    20
    """

    def reach(risk: float) -> int:
        normal = float(-special.ndtri(risk / 2.0))
        beyond = math.ceil(stddev * normal * (1.0 + _SAFE)) + 1
        if stddev > _LARGEST_SUM:
            return beyond
        x = np.arange(beyond + math.ceil(40.0 * stddev) + 2, dtype=np.float64)
        with np.errstate(over="ignore"):
            weight = np.exp(-0.5 * (x / stddev) ** 2)
        tail = 2.0 * np.cumsum(weight[::-1])[::-1]
        total = tail[1] + 1.0
        # tail[t + 1] is the weight of all magnitudes above t.
        covered = np.flatnonzero(tail[1:] * (1.0 + _SAFE) <= risk * total)
        return int(covered[0])

    return reach


def integer_bars(value: int, reach: Reach) -> Callable[[float], Interval]:
    """Error bars of one integer."""

    def bars(confidence: float) -> Interval:
        t = reach(1.0 - confidence)
        return Interval(value - t, value + t)

    return bars


def integers_bars(
    answers: NDArray[np.int64], draws: NDArray[np.int64], reach: Reach
) -> Callable[[float], Interval]:
    """Error bars of an integer array, for all coordinates together."""
    noisy = _sum(answers, draws)

    def bars(confidence: float) -> Interval:
        t = reach(each_of(noisy.size, 1.0 - confidence))
        lower, upper = (_clipped(noisy.astype(object) + end) for end in (-t, t))
        return Interval(lower, upper)

    return bars


def saturated(answers: NDArray[np.int64], draws: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return answers + draws, cut to 64 bits: the type of a release must not depend on the data.

    >>> int(saturated(np.array([2**63 - 1]), np.array([5]))[0]) == 2**63 - 1
    True
    """
    return _clipped(_sum(answers, draws))


def _sum(answers: NDArray[np.int64], draws: NDArray[np.int64]) -> NDArray[Any]:
    if _fits(answers, 1 << 62) and _fits(draws, 1 << 62):
        return answers + draws
    return np.asarray(answers.astype(object) + draws.astype(object))


def _clipped(values: NDArray[Any]) -> NDArray[np.int64]:
    if values.dtype != object:
        return values.astype(np.int64, copy=False)
    ends = np.iinfo(np.int64)
    return np.asarray(np.clip(values, int(ends.min), int(ends.max)), dtype=np.int64)


def real_bars(
    steps: int | NDArray[Any], granularity: Fraction, reach: Reach
) -> Callable[[float], Interval]:
    """Error bars on a grid: the reach, half a step for the rounding, and ends rounded outward.

    The bars of an array hold for all coordinates together.
    """

    def bars(confidence: float) -> Interval:
        count = steps.size if isinstance(steps, np.ndarray) else 1
        t = reach(each_of(count, 1.0 - confidence))
        if not isinstance(steps, np.ndarray):
            lower = outward((steps - t - Fraction(1, 2)) * granularity, -math.inf)
            return Interval(lower, outward((steps + t + Fraction(1, 2)) * granularity, math.inf))
        return Interval(
            _shifted(steps, -2 * t - 1, granularity), _shifted(steps, 2 * t + 1, granularity)
        )

    return bars


def outward(exact: Fraction, direction: float) -> float:
    """Return the double next to ``exact`` in the direction of an infinity.

    >>> outward(Fraction(1, 3), math.inf) > Fraction(1, 3) > outward(Fraction(1, 3), -math.inf)
    True
    """
    try:
        nearest = float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf
    inside = nearest < exact if direction > 0 else nearest > exact
    return math.nextafter(nearest, direction) if inside else nearest


def _shifted(steps: NDArray[Any], halves: int, granularity: Fraction) -> NDArray[np.float64]:
    """Return (steps + halves / 2) * granularity as doubles, moved outward."""
    direction = math.inf if halves > 0 else -math.inf
    if steps.dtype == np.int64 and abs(halves) < 1 << 61 and _fits(steps, 1 << 61):
        doubled = (2 * steps + halves).astype(np.float64)
        ends = np.ldexp(
            doubled, granularity.numerator.bit_length() - 1 - granularity.denominator.bit_length()
        )
        return np.asarray(np.nextafter(ends, direction), dtype=np.float64)
    exact = [
        outward((int(s) + Fraction(halves, 2)) * granularity, direction) for s in steps.ravel()
    ]
    return np.array(exact, dtype=np.float64).reshape(steps.shape)


def _fits(steps: NDArray[Any], limit: int) -> bool:
    return -limit < int(steps.min()) and int(steps.max()) < limit


def least(holds: Callable[[int], bool], start: int) -> int:
    """Return the least t >= 0 with ``holds(t)``, for a predicate that stays true."""
    high = max(start, 1)
    while not holds(high):
        high *= 2
    low = -1
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high
