"""Format numbers so that the text never promises more than the number."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from typing import TYPE_CHECKING

from discreet._rounding import at_most

if TYPE_CHECKING:
    from discreet._confidence import Difference, Proportion


def format_percent(share: float, *, rounding: str = ROUND_HALF_EVEN) -> str:
    """A share as a percentage, with enough digits to tell small ones apart.

    >>> (
    ...     format_percent(0.5),
    ...     format_percent(0.0123),
    ...     format_percent(0.00042),
    ...     format_percent(0.0),
    ...     format_percent(1.0),
    ... )
    ('50.0 %', '1.2 %', '0.042 %', '0 %', '100 %')
    >>> format_percent(0.9959), format_percent(0.99999)
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


def format_level(share: float) -> str:
    """A share that somebody chose, as it was written.

    >>> format_level(0.95), format_level(0.001)
    ('95 %', '0.1 %')
    """
    return f"{100 * share:.12g} %"


def format_interval(low: float, high: float) -> str:
    """An interval of shares, which holds at least what it held.

    >>> format_interval(0.1, 0.2), format_interval(0.10049, 0.20001)
    ('10.0 % to 20.0 %', '10.0 % to 20.1 %')
    """
    least = format_percent(low, rounding=ROUND_FLOOR)
    return f"{least} to {format_percent(high, rounding=ROUND_CEILING)}"


def format_proportion(share: Proportion) -> str:
    """A share with its interval."""
    return f"{format_percent(share.share)} ({format_interval(share.low, share.high)})"


def format_difference(difference: Difference) -> str:
    """A difference of shares in percentage points, with its interval."""
    low = math.floor(1000 * difference.low) / 10
    high = math.ceil(1000 * difference.high) / 10
    return f"{100 * difference.value:+.1f} points ({low:+.1f} to {high:+.1f})"


def format_count(count: int) -> str:
    """A count with separated thousands.

    >>> format_count(1234567)
    '1,234,567'
    """
    return f"{count:,}"


def format_number(value: float) -> str:
    """A number in few digits; infinities by name.

    >>> format_number(0.123456), format_number(-math.inf)
    ('0.1235', 'minus infinity')
    """
    if math.isinf(value):
        return "infinity" if value > 0 else "minus infinity"
    return f"{value:.4g}"


def format_probability(value: float) -> str:
    """A small probability as people write it; it is an upper bound, so more digits round up.

    >>> format_probability(1e-05), format_probability(0.001), format_probability(1.2345644e-6)
    ('1e-5', '0.001', '1.23457e-6')
    """
    return at_most(value, digits=6).replace("e-0", "e-")
