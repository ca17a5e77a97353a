"""Certified numbers for thresholds and deltas: rational, and on the safe side.

Thresholds such as ln(1/delta)/epsilon are irrational and noise is an integer, so
what is compared and what is claimed are computed here from enclosures of the
exponential in integer arithmetic. Claims come back as short decimals, rounded in the
direction named.
"""

from __future__ import annotations

import math
from fractions import Fraction

from discreet import _validate
from discreet.errors import InvalidValue
from discreet.randomness import exp_negative

__all__ = [
    "decimal_down",
    "decimal_up",
    "exp_bounds",
    "laplace_difference_tail",
    "laplace_tail",
    "threshold_above",
    "workable_delta",
    "workable_epsilon",
]

_DIGITS = 12
_SMALLEST = Fraction(1, 10**300)
"""No delta below this is claimed or accepted: it would be zero in double precision."""


def workable_epsilon(epsilon: object) -> Fraction:
    """Return an epsilon from 1e-9 to 1e6, for which thresholds can be certified, or raise."""
    exact = _validate.fraction("epsilon", epsilon, above=0)
    if not Fraction(1, 10**9) <= exact <= 10**6:
        raise InvalidValue("epsilon", epsilon, "a number with 1e-09 <= epsilon <= 1e+06")
    return exact


def workable_delta(delta: object) -> Fraction:
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

    X is discrete Laplace noise of scale 1 / rate (S16). The bound exceeds the value by
    about one part in 10^11, and is 10^-300 at least.
    """
    far = exp_bounds(rate * at_least)[1]
    near = exp_bounds(rate)[0]
    return max(_SMALLEST, decimal_up(far / (1 + near)))


def laplace_difference_tail(scale: Fraction, at_least: int) -> Fraction:
    """Return an upper bound on P(N - R >= m), m >= 1, for noises N and R of S18.

    N and R are discrete Laplace of scales 2 ``scale`` and ``scale``. With
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
