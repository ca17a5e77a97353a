"""Reading of exact parameters and private values for the samplers.

Parameters (scales, probabilities) are public, and an error shows them. Values
and scores may be private: an error about them names what was expected and
withholds what was given.
"""

from __future__ import annotations

from fractions import Fraction

from discreet import _validate
from discreet.errors import InvalidValue

__all__ = ["rational", "withheld"]


def rational(
    argument: str,
    value: object,
    *,
    above: int | None = None,
    at_least: int | None = None,
    below: int | None = None,
    at_most: int | None = None,
) -> Fraction:
    """Return the exact rational number, made of Python integers that cannot overflow.

    >>> import numpy as np
    >>> rational("scale", np.int64(2**40), above=0) ** 2 == 2**80
    True
    """
    exact = _validate.fraction(
        argument, value, above=above, at_least=at_least, below=below, at_most=at_most
    )
    return Fraction(int(exact.numerator), int(exact.denominator))


def withheld(argument: str, expected: str) -> InvalidValue:
    """Return an error about private data that does not show it."""
    return InvalidValue(argument, "withheld", expected)
