"""Argument checks in one place: each error names argument, value and expectation.

Values are never taken by truthiness or coerced from strings, booleans or
arrays: a privacy parameter of the wrong type is a mistake, not an input.
"""

from __future__ import annotations

import math
import numbers
import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

from discreet.errors import InvalidValue

# Longer numbers are not written as text: Python refuses that beyond 4300 digits.
_MOST_BITS = 13_280

__all__ = ["exactly_one", "flag", "fraction", "integer", "one_of", "real", "several", "withheld"]


def real(
    argument: str,
    value: object,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
) -> float:
    """Return ``value`` as a finite float inside the given range, or raise.

    >>> real("delta", 1e-5, above=0, below=1)
    1e-05
    >>> real("delta", 2, above=0, below=1)
    Traceback (most recent call last):
    discreet.errors.InvalidValue: delta = 2: expected a number with 0 < delta < 1
    """
    expected = _range_in_words(argument, "a number", above, at_least, below, at_most)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InvalidValue(argument, value, expected)
    try:
        number = float(value)
    except OverflowError:
        raise InvalidValue(argument, value, expected) from None
    if not math.isfinite(number) or not _inside(number, above, at_least, below, at_most):
        raise InvalidValue(argument, value, expected)
    return number


def integer(
    argument: str, value: object, *, at_least: int | None = None, at_most: int | None = None
) -> int:
    """Return ``value`` as an ``int`` inside the given range, or raise.

    >>> integer("steps", 3.0, at_least=1)
    Traceback (most recent call last):
    discreet.errors.InvalidValue: steps = 3.0: expected an integer with 1 <= steps
    """
    expected = _range_in_words(argument, "an integer", None, at_least, None, at_most)
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise InvalidValue(argument, value, expected)
    number = int(value)
    if not _inside(number, None, at_least, None, at_most):
        raise InvalidValue(argument, value, expected)
    return number


def fraction(
    argument: str,
    value: object,
    *,
    above: int | None = None,
    at_least: int | None = None,
    below: int | None = None,
    at_most: int | None = None,
) -> Fraction:
    """Return the exact rational that the caller wrote.

    A float is read as the shortest decimal that prints as it, so ``0.1`` is one
    tenth and ten of them are one. Strings such as ``"1/3"`` and ``"0.1"`` and
    ``Decimal`` are read exactly.

    >>> 10 * fraction("epsilon", 0.1)
    Fraction(1, 1)
    """
    try:
        number = _read_exactly(value)
    except (ValueError, ArithmeticError):
        number = None
    if number is None or not _inside(number, above, at_least, below, at_most):
        expected = _range_in_words(argument, "an exact number", above, at_least, below, at_most)
        raise InvalidValue(argument, value, expected)
    if max(abs(number.numerator), number.denominator).bit_length() > _MOST_BITS:
        raise InvalidValue(argument, value, "an exact number of fewer than 4000 digits")
    return number


def _read_exactly(value: object) -> Fraction:
    # Plain ints: a numpy integer would keep its width inside the fraction.
    if type(value) is Fraction and type(value.numerator) is type(value.denominator) is int:
        return value
    if isinstance(value, bool) or _is_enormous(value):
        raise ValueError
    if isinstance(value, numbers.Rational):
        return Fraction(int(value.numerator), int(value.denominator))
    if isinstance(value, numbers.Real):
        return Fraction(repr(float(value)))
    return Fraction(str(value))


def _is_enormous(value: object) -> bool:
    """Whether reading the text exactly would need millions of digits."""
    text = str(value) if isinstance(value, str | Decimal) else ""
    exponent = re.search(r"[eE]([+-]?\d+)\s*$", text)
    return len(text) > 5000 or (exponent is not None and abs(int(exponent[1])) > 5000)


def several(
    argument: str, value: object, expected: str, *, count: int | None = None
) -> tuple[Any, ...]:
    """Return the members of a sequence, or raise.

    >>> several("orders", 3, "a sequence of numbers")
    Traceback (most recent call last):
    discreet.errors.InvalidValue: orders = 3: expected a sequence of numbers
    """
    try:
        members: tuple[Any, ...] | None = tuple(value)  # type: ignore[arg-type]
    except TypeError:
        members = None
    if members is None or (count is not None and len(members) != count):
        raise InvalidValue(argument, value, expected)
    return members


def one_of(argument: str, value: object, choices: tuple[str, ...]) -> str:
    """Return ``value`` if it is one of the named choices, or raise."""
    if not isinstance(value, str) or value not in choices:
        raise InvalidValue(argument, value, "one of " + ", ".join(choices))
    return value


def exactly_one(**given: object) -> str:
    """Return the name of the one argument that is not None, or raise.

    >>> exactly_one(epsilon=0.1, scale=None)
    'epsilon'
    >>> exactly_one(epsilon=None, scale=None)
    Traceback (most recent call last):
    discreet.errors.InvalidValue: epsilon = None: expected exactly one of epsilon, scale
    """
    names = [name for name, value in given.items() if value is not None]
    if len(names) == 1:
        return names[0]
    wrong = names[0] if names else next(iter(given))
    raise InvalidValue(wrong, given[wrong], "exactly one of " + ", ".join(given))


def flag(argument: str, value: object) -> bool:
    """Return a genuine True or False, or raise."""
    if not isinstance(value, bool):
        raise InvalidValue(argument, value, "True or False")
    return value


def withheld(argument: str, expected: str) -> InvalidValue:
    """Return an error about private data that does not show it."""
    return InvalidValue(argument, "withheld", expected)


def _inside(
    number: float | Fraction,
    above: float | None,
    at_least: float | None,
    below: float | None,
    at_most: float | None,
) -> bool:
    return (
        (above is None or number > above)
        and (at_least is None or number >= at_least)
        and (below is None or number < below)
        and (at_most is None or number <= at_most)
    )


def _range_in_words(
    argument: str,
    kind: str,
    above: float | None,
    at_least: float | None,
    below: float | None,
    at_most: float | None,
) -> str:
    left = (
        f"{above:g} < "
        if above is not None
        else f"{at_least:g} <= "
        if at_least is not None
        else ""
    )
    right = (
        f" < {below:g}" if below is not None else f" <= {at_most:g}" if at_most is not None else ""
    )
    return f"{kind} with {left}{argument}{right}" if left or right else f"{kind}, finite"
