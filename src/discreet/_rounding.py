"""Round bounds to few digits: upper bounds up, lower bounds down.

An upper bound is rounded up and a lower bound down, so that what is read is as safe as what was
computed: 3.04 is never shown as 3.0.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from functools import lru_cache

__all__ = ["as_written", "at_least", "at_most", "interval", "round_up"]


def at_most(value: float, *, digits: int = 5) -> str:
    """Return an upper bound in few digits, rounded up.

    >>> at_most(2.38158001), at_most(0.1), at_most(math.inf), at_most(3.04, digits=2)
    ('2.3816', '0.1', 'inf', '3.1')
    """
    return _round_to_digits(value, digits, ROUND_CEILING)


def at_least(value: float, *, digits: int = 5) -> str:
    """Return a lower bound in few digits, rounded down.

    >>> at_least(2.38158001), at_least(1.5e-7), at_least(2.99, digits=2)
    ('2.3815', '1.5e-07', '2.9')
    """
    return _round_to_digits(value, digits, ROUND_FLOOR)


def interval(low: float, high: float, *, digits: int = 4) -> str:
    """Return an interval that holds at least what it held.

    >>> interval(0.48127, 0.55121)
    '0.4812 to 0.5513'
    """
    return f"{at_least(low, digits=digits)} to {at_most(high, digits=digits)}"


def round_up(value: Fraction) -> float:
    """Return the smallest float that is not below an exact number; infinity if there is none."""
    try:
        near = float(value)
    except OverflowError:
        return math.inf
    return near if Fraction(near) >= value else math.nextafter(near, math.inf)


@lru_cache(maxsize=1024)
def as_written(value: float) -> Fraction:
    """Return the decimal that a float prints as, exactly."""
    return Fraction(repr(value))


def _round_to_digits(value: float, digits: int, rounding: str) -> str:
    if not math.isfinite(value):
        return str(value)
    # A float is read as the decimal that it prints as, so that 0.1 stays 0.1.
    short = Context(prec=digits, rounding=rounding).create_decimal(Decimal(repr(float(value))))
    return f"{float(short):.{digits}g}"
