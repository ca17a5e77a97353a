"""Reading of private numbers: by their type and shape, never shown in an error.

A number that is not finite, or of the wrong type, is a programming error and is refused
before anything is drawn or spent. Such an error does depend on the data: whoever computes
an answer from records must clip and replace before (a mean over clipped values is never
NaN), so that it cannot occur.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet import _validate
from discreet._validate import withheld
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

_INTEGERS = "a non-empty array of integers that fit 64 bits"


def read_integer(
    argument: str, value: object, *, at_least: int | None = None, at_most: int | None = None
) -> int:
    """Return a private integer, of any size unless limited, or raise without showing it.

    Parameters
    ----------
    argument : str
        The name of the argument, for the error.
    value : int
        The private number.
    at_least, at_most : int, optional
        The range that is allowed.

    Returns
    -------
    int
        The same number.

    Raises
    ------
    InvalidValue
        If it cannot be used; it is not shown.
    """
    try:
        return _validate.integer(argument, value, at_least=at_least, at_most=at_most)
    except InvalidValue:
        bound = "" if at_least is None else f" >= {at_least}"
        raise withheld(argument, f"an integer{bound}") from None


def read_integers(argument: str, values: object) -> NDArray[np.int64]:
    """Return private integers as an int64 array, or raise without showing them.

    Parameters
    ----------
    argument : str
        The name of the argument, for the error.
    values : array of int
        At least one number.

    Returns
    -------
    array of int64
        The same numbers.

    Raises
    ------
    InvalidValue
        If they cannot be used; they are not shown.
    """
    array = _as_array(argument, values, _INTEGERS)
    if array.ndim == 0 or array.size == 0:
        raise withheld(argument, _INTEGERS)
    if array.dtype.kind not in "iu" or array.dtype == np.uint64:
        raise withheld(argument, _INTEGERS)
    return array.astype(np.int64)


def read_real(argument: str, value: Any, *, expected: str = "a finite number") -> Any:
    """Return a private finite number as it was given, or raise without showing it.

    Parameters
    ----------
    argument : str
        The name of the argument, for the error.
    value : number
        An int, float, Fraction or Decimal, or an array of no dimension.
    expected : str
        What the error says was expected.

    Returns
    -------
    number
        The same number.

    Raises
    ------
    InvalidValue
        If it cannot be used; it is not shown.
    """
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real | Decimal):
        raise withheld(argument, expected)
    if not isinstance(value, numbers.Rational) and not math.isfinite(value):
        raise withheld(argument, expected)
    return value


def read_reals(argument: str, values: object, *, may_be_empty: bool = False) -> NDArray[Any]:
    """Return private finite numbers as doubles or integers, or raise without showing them.

    Integers stay integers: above 2**53 a conversion would change their distances.

    Parameters
    ----------
    argument : str
        The name of the argument, for the error.
    values : array
        Finite numbers.
    may_be_empty : bool
        Whether an array without entries is allowed.

    Returns
    -------
    array
        Doubles, or integers.

    Raises
    ------
    InvalidValue
        If they cannot be used; they are not shown.
    """
    expected = f"{'an' if may_be_empty else 'a non-empty'} array of finite numbers"
    array = _as_array(argument, values, expected)
    if array.ndim == 0 or (array.size == 0 and not may_be_empty):
        raise withheld(argument, expected)
    if array.dtype.kind not in "iuf" or array.dtype.itemsize > 8:
        raise withheld(argument, expected)
    if array.dtype.kind == "f":
        array = array.astype(np.float64)
        if not np.all(np.isfinite(array)):
            raise withheld(argument, expected)
    return array


def read_row(argument: str, values: object) -> Sequence[Any] | NDArray[Any]:
    """Return a row of private finite numbers, each as it was given, or raise without showing it.

    Parameters
    ----------
    argument : str
        The name of the argument, for the error.
    values : sequence or array
        Finite numbers; a sequence may mix integers, fractions and floats of any size.

    Returns
    -------
    sequence or array
        The same numbers.

    Raises
    ------
    InvalidValue
        If they cannot be used; they are not shown.
    """
    expected = "a non-empty row of finite numbers"
    if isinstance(values, np.ndarray):
        if values.ndim != 1:
            raise withheld(argument, expected)
        return read_reals(argument, values)
    if not isinstance(values, Sequence) or isinstance(values, str | bytes) or not values:
        raise withheld(argument, expected)
    return [read_real(argument, value, expected=expected) for value in values]


def to_fraction(number: Any) -> Fraction:
    """Return a finite number exactly: a float is the binary number that it is.

    Parameters
    ----------
    number : number
        A finite int, float, Fraction or Decimal.

    Returns
    -------
    Fraction
        The same number.
    """
    if isinstance(number, numbers.Rational):
        return Fraction(int(number.numerator), int(number.denominator))
    return Fraction(number) if isinstance(number, Decimal) else Fraction(float(number))


def _as_array(argument: str, values: object, expected: str) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except (ValueError, TypeError, OverflowError):
        raise withheld(argument, expected) from None
