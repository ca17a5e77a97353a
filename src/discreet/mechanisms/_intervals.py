"""Tails of discrete noise: confidence intervals, and certified thresholds and deltas.

An interval speaks of the noise alone: the data are fixed, and over the draws of the noise
the true answer lies inside with at least the stated confidence. It is computed from the
released number and public parameters, so it costs no privacy.

Thresholds such as ln(1/delta)/epsilon are irrational and noise is an integer, so what is
compared and what is claimed are computed from enclosures of the exponential in integer
arithmetic. Claims come back as short decimals, rounded in the direction named.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

from discreet import _validate
from discreet.errors import InvalidValue
from discreet.mechanisms._release import Interval
from discreet.randomness import exp_negative

if TYPE_CHECKING:
    from numpy.typing import NDArray

Quantile = Callable[[float], int]

_BITS = 512
_LARGEST_SUM = 4096.0
_SAFE = 1e-11
_DIGITS = 12
_SMALLEST = Fraction(1, 10**300)
"""No delta below this is claimed or accepted: it would be zero in double precision."""


def each_of(count: int, risk: float) -> float:
    """Return the risk of each of ``count`` independent draws when all must hold together.

    Parameters
    ----------
    count : int
        How many draws there are.
    risk : float
        The risk that any of them may miss.

    Returns
    -------
    float
        The risk of each, rounded down.

    Examples
    --------
    >>> round(each_of(3, 1 - 0.9**3), 9)
    0.1
    """
    return risk if count == 1 else -math.expm1(math.log1p(-risk) / count) * (1.0 - 1e-12)


def laplace_quantile(scale: Fraction) -> Quantile:
    """Return risk -> the least t with P(|X| > t) <= risk, X discrete Laplace; exact.

    P(|X| > t) = 2 r^(t+1) / (1 + r), r = e^(-1/scale), is compared in integers; a
    comparison that 512 bits leave open goes to the safe side.

    Parameters
    ----------
    scale : Fraction
        The scale of the noise.

    Returns
    -------
    callable
        A function of the risk.

    Examples
    --------
    >>> laplace_quantile(Fraction(10))(0.05)
    30
    """

    def reach(risk: float) -> int:
        allowed = Fraction(risk)
        one = 1 << _BITS
        ratio, _ = exp_negative(1 / scale, _BITS)
        limit = allowed * (one + ratio)

        def covers(t: int) -> bool:
            return 2 * exp_negative((t + 1) / scale, _BITS)[1] <= limit

        return least_integer(covers, math.ceil(scale * Fraction(-math.log(risk) + 1.0)) + 1)

    return reach


def gaussian_quantile(stddev: float) -> Quantile:
    """Return risk -> t with P(|X| > t) <= risk, X discrete Gaussian of parameter ``stddev``.

    Up to a deviation of 4096 the sum of the tail is computed and t is the least one
    (within a relative 1e-11 of the risk). Beyond, P(X >= m) <= P(N(0, stddev^2) >= m - 1)
    (Canonne, Kamath and Steinke 2020, proposition 25) gives a t at most one step larger.

    >>> gaussian_quantile(10.0)(0.05)
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


def integer_bars(value: int, reach: Quantile) -> Callable[[float], Interval]:
    """Error bars of one integer."""

    def bars(confidence: float) -> Interval:
        t = reach(1.0 - confidence)
        return Interval(value - t, value + t)

    return bars


def integers_bars(
    answers: NDArray[np.int64], draws: NDArray[np.int64], reach: Quantile
) -> Callable[[float], Interval]:
    """Error bars of an integer array, for all coordinates together."""
    noisy = _sum(answers, draws)

    def bars(confidence: float) -> Interval:
        t = reach(each_of(noisy.size, 1.0 - confidence))
        lower, upper = (_clip(noisy.astype(object) + end) for end in (-t, t))
        return Interval(lower, upper)

    return bars


def saturate(answers: NDArray[np.int64], draws: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return answers + draws, cut to 64 bits: the type of a release must not depend on the data.

    >>> int(saturate(np.array([2**63 - 1]), np.array([5]))[0]) == 2**63 - 1
    True
    """
    return _clip(_sum(answers, draws))


def _sum(answers: NDArray[np.int64], draws: NDArray[np.int64]) -> NDArray[Any]:
    if _fits(answers, 1 << 62) and _fits(draws, 1 << 62):
        return answers + draws
    return np.asarray(answers.astype(object) + draws.astype(object))


def _clip(values: NDArray[Any]) -> NDArray[np.int64]:
    if values.dtype != object:
        return values.astype(np.int64, copy=False)
    ends = np.iinfo(np.int64)
    return np.asarray(np.clip(values, int(ends.min), int(ends.max)), dtype=np.int64)


def real_bars(
    steps: int | NDArray[Any], granularity: Fraction, reach: Quantile
) -> Callable[[float], Interval]:
    """Error bars on a grid: the reach, half a step for the rounding, and ends rounded outward.

    The bars of an array hold for all coordinates together.
    """

    def bars(confidence: float) -> Interval:
        count = steps.size if isinstance(steps, np.ndarray) else 1
        t = reach(each_of(count, 1.0 - confidence))
        if not isinstance(steps, np.ndarray):
            lower = round_outward((steps - t - Fraction(1, 2)) * granularity, -math.inf)
            return Interval(
                lower, round_outward((steps + t + Fraction(1, 2)) * granularity, math.inf)
            )
        return Interval(
            _shift(steps, -2 * t - 1, granularity), _shift(steps, 2 * t + 1, granularity)
        )

    return bars


def round_outward(exact: Fraction, direction: float) -> float:
    """Return the double next to ``exact`` in the direction of an infinity.

    Parameters
    ----------
    exact : Fraction
        The number to round.
    direction : float
        Plus or minus infinity.

    Returns
    -------
    float
        On that side of ``exact``, or equal to it.

    Examples
    --------
    >>> round_outward(Fraction(1, 3), math.inf) > Fraction(1, 3) > round_outward(
    ...     Fraction(1, 3), -math.inf
    ... )
    True
    """
    try:
        nearest = float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf
    inside = nearest < exact if direction > 0 else nearest > exact
    return math.nextafter(nearest, direction) if inside else nearest


def _shift(steps: NDArray[Any], halves: int, granularity: Fraction) -> NDArray[np.float64]:
    """Return (steps + halves / 2) * granularity as doubles, moved round_outward."""
    direction = math.inf if halves > 0 else -math.inf
    if steps.dtype == np.int64 and abs(halves) < 1 << 61 and _fits(steps, 1 << 61):
        doubled = (2 * steps + halves).astype(np.float64)
        ends = np.ldexp(
            doubled, granularity.numerator.bit_length() - 1 - granularity.denominator.bit_length()
        )
        return np.asarray(np.nextafter(ends, direction), dtype=np.float64)
    exact = [
        round_outward((int(s) + Fraction(halves, 2)) * granularity, direction)
        for s in steps.ravel()
    ]
    return np.array(exact, dtype=np.float64).reshape(steps.shape)


def _fits(steps: NDArray[Any], limit: int) -> bool:
    return -limit < int(steps.min()) and int(steps.max()) < limit


def least_integer(holds: Callable[[int], bool], start: int) -> int:
    """Return the least t >= 0 with ``holds(t)``, for a predicate that stays true.

    Parameters
    ----------
    holds : callable
        False below some integer and true from it on.
    start : int
        Where the search begins.

    Returns
    -------
    int
        The least integer.
    """
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


def check_epsilon(epsilon: object) -> Fraction:
    """Return an epsilon from 1e-9 to 1e6, for which thresholds can be certified, or raise."""
    exact = _validate.fraction("epsilon", epsilon, above=0)
    if not Fraction(1, 10**9) <= exact <= 10**6:
        raise InvalidValue("epsilon", epsilon, "a number with 1e-09 <= epsilon <= 1e+06")
    return exact


def check_delta(delta: object) -> Fraction:
    """Return a delta from 1e-300 up, below 1, or raise."""
    exact = _validate.fraction("delta", delta, above=0, below=1)
    if exact < _SMALLEST:
        raise InvalidValue("delta", delta, "a number with 1e-300 <= delta < 1")
    return exact


def decimal_up(value: Fraction) -> Fraction:
    """Return the smallest decimal of twelve digits that is at least ``value`` (> 0).

    >>> float(decimal_up(Fraction(1, 3)))
    0.333333333334
    """
    unit = _unit(value)
    return math.ceil(value / unit) * unit


def decimal_down(value: Fraction) -> Fraction:
    """Return the largest decimal of twelve digits that is at most ``value`` (> 0)."""
    unit = _unit(value)
    return math.floor(value / unit) * unit


def exp_bounds(exponent: Fraction) -> tuple[Fraction, Fraction]:
    """Return rationals that enclose exp(-exponent), for exponent >= 0.

    To about 38 digits up to an exponent of 2000; beyond, 0 and 10^-868 > e^-2000.
    """
    if exponent > 2000:
        return Fraction(0), Fraction(1, 10**868)
    bits = 128 + math.ceil(2 * exponent)
    lower, upper = exp_negative(exponent, bits)
    return Fraction(lower, 1 << bits), Fraction(upper, 1 << bits)


def threshold_above(rate: Fraction, delta: Fraction) -> int:
    """Return floor(T) + 1 for T = ln(1/delta) / rate: the least integer above T.

    It is the least m >= 0 with exp(-rate m) < delta. Equality is impossible for m > 0, and
    where an enclosure cannot decide the next integer is taken, which is safe.

    >>> threshold_above(Fraction(1), Fraction(1, 10**5))  # ln(1e5) = 11.51
    12
    """
    log = math.log(delta.denominator) - math.log(delta.numerator)
    guess = math.floor(log / rate) - 2 if log > 0 else 0
    threshold = max(0, guess)
    while exp_bounds(rate * threshold)[1] >= delta:
        threshold += 1
    return threshold


def laplace_tail(rate: Fraction, at_least: int) -> Fraction:
    """Return an upper bound on P(X >= m) = e^(-rate m) / (1 + e^-rate), m >= 0.

    X is discrete Laplace noise of scale 1 / rate. The bound exceeds the value by
    about one part in 10^11, and is 10^-300 at least.
    """
    far = exp_bounds(rate * at_least)[1]
    near = exp_bounds(rate)[0]
    return max(_SMALLEST, decimal_up(far / (1 + near)))


def laplace_difference_tail(scale: Fraction, at_least: int) -> Fraction:
    """Return an upper bound on P(N - R >= m), m >= 1.

    N and R are independent discrete Laplace noises of scales 2 ``scale`` and ``scale``. With
    p = e^(-1/(2 scale)), by partial fractions of the generating functions,

        P(N - R >= m) = ((1 + p) p^m - p^(2m+1) / (1 + p^2)) / (1 + p + p^2),

    which for a wide scale is the continuous (4 e^(-m/(2 scale)) - e^(-m/scale)) / 6.
    """
    rate = 1 / (2 * scale)
    low, high = exp_bounds(rate)
    far_low, far_high = exp_bounds(rate * at_least)
    gain = (1 + high) * far_high
    relief = far_low * far_low * low / (1 + high * high)
    return max(_SMALLEST, decimal_up((gain - relief) / (1 + low + low * low)))


def _unit(value: Fraction) -> Fraction:
    """Return the power of ten that is the last of twelve digits of ``value``."""
    exponent = math.floor(
        math.log10(value.numerator) - math.log10(value.denominator)
    )  # off by one at most, which costs or adds a digit
    place = exponent - _DIGITS + 1
    return Fraction(10**place) if place >= 0 else Fraction(1, 10**-place)
