"""Reading of private answers: by their type and shape, never shown in an error.

A number that is not finite, or of the wrong type, is a programming error and is refused
before anything is drawn or spent. Such an error does depend on the data: whoever computes
an answer from records must clip and replace before (a mean over clipped values is never
NaN), so that it cannot occur.
"""

from __future__ import annotations

import math
import numbers
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet.randomness.arguments import withheld

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["integer_answer", "integer_answers", "real_answer", "real_answers"]

_INTEGERS = "a non-empty array of integers that fit 64 bits"
_REALS = "a non-empty array of finite numbers"


def integer_answer(argument: str, value: object) -> int:
    """Return a Python integer of any size, or raise without showing it."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Integral):
        raise withheld(argument, "an integer")
    return int(value)


def real_answer(argument: str, value: Any) -> Any:
    """Return a finite real number as it was given, or raise without showing it."""
    expected = "a finite number"
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real | Decimal):
        raise withheld(argument, expected)
    if not isinstance(value, numbers.Rational) and not math.isfinite(value):
        raise withheld(argument, expected)
    return value


def integer_answers(argument: str, values: object) -> NDArray[np.int64]:
    """Return an int64 array with at least one entry, or raise without showing it."""
    array = _array(argument, values, _INTEGERS)
    if array.dtype.kind not in "iu" or array.dtype == np.uint64:
        raise withheld(argument, _INTEGERS)
    return array.astype(np.int64)


def real_answers(argument: str, values: object) -> NDArray[Any]:
    """Return an array of doubles or integers, all finite, or raise without showing it.

    Integers stay integers: above 2**53 a conversion would change their distances.
    """
    array = _array(argument, values, _REALS)
    if array.dtype.kind not in "iuf" or array.dtype.itemsize > 8:
        raise withheld(argument, _REALS)
    if array.dtype.kind == "f":
        array = array.astype(np.float64)
        if not np.all(np.isfinite(array)):
            raise withheld(argument, _REALS)
    return array


def _array(argument: str, values: object, expected: str) -> NDArray[Any]:
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError):
        raise withheld(argument, expected) from None
    if array.ndim == 0 or array.size == 0:
        raise withheld(argument, expected)
    return array
