"""One cell at a time: what a text or an object says, and when it says nothing.

These are the rules in their slow and obvious form; :mod:`discreet.data.arrays` and
:mod:`discreet.data.arrow_cells` apply them to whole columns and are tested against them. A rule
looks at one cell and at nothing else and never raises: an error that one record can cause would
tell of that record. What cannot be read is *missing*, written NaN.

Blanks of ASCII around a text never count, and a text that is empty is missing.

Numbers
    Decimal digits with an optional sign, point and exponent, or ``inf``, ``infinity`` and
    ``nan`` in any case, in at most 400 characters. NaN is missing; an infinity, and what
    overflows to one, lies beyond every bound and is clipped later.
Dates
    ``YYYY-MM-DD``; whatever follows a ``T`` or a blank is a time of the day and is ignored.
    A date is the number of days since 1970-01-01.
Booleans
    ``true t yes y 1`` and ``false f no n 0`` in any case; the numbers 1 and 0.
"""

from __future__ import annotations

import datetime as dt
import math
import numbers
import re
from collections.abc import Callable
from decimal import Decimal
from uuid import UUID

import numpy as np

__all__ = [
    "BLANKS",
    "MISSING",
    "boolean_in_text",
    "date_in_text",
    "number_in_text",
    "read_boolean",
    "read_date",
    "read_number",
    "text_of",
    "to_days",
]

MISSING = math.nan
BLANKS = b" \t\n\r\x0b\x0c"

_NUMBER = re.compile(
    rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|[+-]?(?:inf|infinity|nan)", re.IGNORECASE
)
_LONGEST_NUMBER = 400
_DATE = re.compile(rb"([0-9]{4})-([0-9]{2})-([0-9]{2})(?:[T ].*)?", re.DOTALL)
_BOOLEANS = {
    **dict.fromkeys((b"true", b"t", b"yes", b"y", b"1"), 1.0),
    **dict.fromkeys((b"false", b"f", b"no", b"n", b"0"), 0.0),
}
_EPOCH = dt.date(1970, 1, 1).toordinal()
_EXACT = 2**53


def number_in_text(text: bytes) -> float:
    """Return the number that a text spells, or NaN.

    >>> number_in_text(b" -1.5e3 "), number_in_text(b"1e999"), number_in_text(b"12 kg")
    (-1500.0, inf, nan)
    """
    text = text.strip(BLANKS)
    if len(text) > _LONGEST_NUMBER or not _NUMBER.fullmatch(text):
        return MISSING
    return float(text)


def date_in_text(text: bytes) -> float:
    """Return the day that a text spells, counted from 1970-01-01, or NaN.

    >>> date_in_text(b"1970-02-01"), date_in_text(b"1970-01-02T12:00"), date_in_text(b"1970-02-30")
    (31.0, 1.0, nan)
    """
    found = _DATE.fullmatch(text.strip(BLANKS))
    if found is None:
        return MISSING
    try:
        text.decode()  # what is not UTF-8 is no date either, wherever it is read
        return to_days(dt.date(*map(int, found.groups())))
    except ValueError:
        return MISSING


def boolean_in_text(text: bytes) -> float:
    """Return 1.0, 0.0 or NaN.

    >>> boolean_in_text(b"Yes"), boolean_in_text(b"0"), boolean_in_text(b"maybe")
    (1.0, 0.0, nan)
    """
    return _BOOLEANS.get(text.strip(BLANKS).lower(), MISSING)


def to_days(date: dt.date) -> float:
    """Return the days from 1970-01-01 to a date."""
    return float(date.toordinal() - _EPOCH)


def read_number(cell: object) -> float:
    """Return the number that an object is, or that its text spells, or NaN."""
    return _read(cell, number_in_text, _number)


def read_date(cell: object) -> float:
    """Return the day that an object is, or that its text spells, or NaN; a number is no date."""
    return _read(cell, date_in_text, _date)


def read_boolean(cell: object) -> float:
    """Return 1.0 or 0.0 for an object or a text that says so, or NaN."""
    return _read(cell, boolean_in_text, _truth)


def text_of(cell: object) -> bytes:
    """Return the text by which an object is compared with categories; empty is missing.

    Whole numbers are written without a fraction, so that a column of numbers with gaps, which
    many tools turn into floats, still says ``3`` and not ``3.0``. What is neither text, number,
    truth value, date nor UUID is missing.

    >>> text_of(" Male "), text_of(3.0), text_of(2.5), text_of(True), text_of(None)
    (b'Male', b'3', b'2.5', b'True', b'')
    """
    try:
        cell = _plain(cell)
        if isinstance(cell, bytes):
            return cell.strip(BLANKS)
        if not isinstance(cell, numbers.Real | Decimal | dt.date | UUID) or cell != cell:
            return b""
        if isinstance(cell, bool | dt.date | UUID):
            return str(cell).encode()
        if isinstance(cell, numbers.Integral):
            return str(int(cell)).encode()
        number = float(cell)
    except Exception:  # noqa: BLE001 - an object may raise anything, and no cell may be an error
        return b""
    whole = abs(number) < _EXACT and number == math.floor(number)
    return (str(int(number)) if whole else repr(number)).encode()


def _read(
    cell: object, from_text: Callable[[bytes], float], from_object: Callable[[object], float]
) -> float:
    try:
        cell = _plain(cell)
        if isinstance(cell, bytes):
            return from_text(cell)
        return MISSING if cell is None else from_object(cell)
    except Exception:  # noqa: BLE001 - an object may raise anything, and no cell may be an error
        return MISSING


def _plain(cell: object) -> object:
    """Return texts as bytes, numpy scalars as what Python has for them, its dates as days."""
    if isinstance(cell, str):  # by its characters, whatever a class of its own makes of them
        return str.encode(cell, "utf-8", "surrogatepass")
    if isinstance(cell, bytes | bytearray):
        return memoryview(cell).tobytes()
    if isinstance(cell, np.datetime64):
        day = cell.astype("datetime64[D]")
        return None if np.isnat(day) else day.item()
    if isinstance(cell, np.timedelta64):
        return None  # an item of it may be a plain number
    if isinstance(cell, np.generic):
        item = cell.item()  # a long double is its own item
        return item if isinstance(item, np.generic) else _plain(item)
    if isinstance(cell, complex) and cell.imag == 0.0:
        # One complex cell makes pandas write the whole column so: the others stay what they are.
        return cell.real
    return cell


def _number(cell: object) -> float:
    if not isinstance(cell, numbers.Real | Decimal):
        return MISSING
    try:
        return float(cell)
    except OverflowError:
        return -math.inf if cell < 0 else math.inf


def _date(cell: object) -> float:
    # Not-a-time of pandas is a date by class, and differs from itself.
    if not isinstance(cell, dt.date) or cell != cell:
        return MISSING
    return to_days(cell)


def _truth(cell: object) -> float:
    number = _number(cell)
    return number if number in {0.0, 1.0} else MISSING
