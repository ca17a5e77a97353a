"""Numbers in words that do not promise more than the numbers do."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from typing import TYPE_CHECKING

from discreet._rounding import at_least, at_most

if TYPE_CHECKING:
    from discreet._confidence import Difference, Proportion

__all__ = [
    "between",
    "level",
    "percent",
    "plain",
    "points",
    "rounded_down",
    "rounded_up",
    "shown",
    "small",
    "with_interval",
]


def percent(share: float, *, rounding: str = ROUND_HALF_EVEN) -> str:
    """A share as a percentage, with enough digits to tell small ones apart.

    >>> percent(0.5), percent(0.0123), percent(0.00042), percent(0.0), percent(1.0)
    ('50.0 %', '1.2 %', '0.042 %', '0 %', '100 %')
    >>> percent(0.9959), percent(0.99999)
    ('99.6 %', '99.999 %')
    """
    if share in {0.0, 1.0}:
        return f"{100 * share:.0f} %"
    small, rest = 100 * share, 100 * (1.0 - share)
    # However close a share is to 0 or to 1, it is told apart from them.
    digits = 1
    if small < 0.95:
        digits = 1 - math.floor(math.log10(small) + 1e-9)
    elif rest < 0.05:
        digits = -math.floor(math.log10(max(rest, 1e-12)) + 1e-9)
    step = Decimal(1).scaleb(-min(digits, 12))
    # A float is read as the decimal that it prints as, so that 0.1 stays 0.1.
    return f"{(100 * Decimal(repr(share))).quantize(step, rounding=rounding):f} %"


def level(share: float) -> str:
    """A share that somebody chose, as it was written.

    >>> level(0.95), level(0.001)
    ('95 %', '0.1 %')
    """
    return f"{100 * share:.12g} %"


def between(low: float, high: float) -> str:
    """An interval of shares, which holds at least what it held.

    >>> between(0.1, 0.2), between(0.10049, 0.20001)
    ('10.0 % to 20.0 %', '10.0 % to 20.1 %')
    """
    return f"{percent(low, rounding=ROUND_FLOOR)} to {percent(high, rounding=ROUND_CEILING)}"


def with_interval(share: Proportion) -> str:
    """A share with its interval."""
    return f"{percent(share.share)} ({between(share.low, share.high)})"


def points(difference: Difference) -> str:
    """A difference of shares in percentage points, with its interval."""
    low = math.floor(1000 * difference.low) / 10
    high = math.ceil(1000 * difference.high) / 10
    return f"{100 * difference.value:+.1f} points ({low:+.1f} to {high:+.1f})"


def plain(count: int) -> str:
    """A count with separated thousands.

    >>> plain(1234567)
    '1,234,567'
    """
    return f"{count:,}"


def shown(value: float) -> str:
    """A number in few digits; infinities by name.

    >>> shown(0.123456), shown(-math.inf)
    ('0.1235', 'minus infinity')
    """
    if math.isinf(value):
        return "infinity" if value > 0 else "minus infinity"
    return f"{value:.4g}"


def small(value: float) -> str:
    """A small probability as people write it; it is an upper bound, so more digits round up.

    >>> small(1e-05), small(0.001), small(1.2345644e-6)
    ('1e-5', '0.001', '1.23457e-6')
    """
    return at_most(value, digits=6).replace("e-0", "e-")


def rounded_up(value: float) -> str:
    """An upper bound in four digits that are not below it.

    >>> rounded_up(2.99996), rounded_up(3.0), rounded_up(0.12341)
    ('3', '3', '0.1235')
    """
    return at_most(value, digits=4)


def rounded_down(value: float) -> str:
    """A lower bound in four digits that are not above it.

    >>> rounded_down(2.99996), rounded_down(0.0)
    ('2.999', '0')
    """
    return at_least(value, digits=4)
