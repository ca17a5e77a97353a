"""Read cells, one by one and by column: texts, objects, arrays of numpy and of Arrow.

A rule looks at one cell and at nothing else and never raises: an error that one record can cause
would tell of that record. What cannot be read is *missing*, written NaN.

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

The rules for a single cell come first, in their slow and obvious form. Whole columns follow, and
are tested against them: the common spelling of a number goes through Arrow's parser, which rounds
correctly as Python's does; every other cell goes through the rule for a single cell, so that
the way a column takes never shows in the result.
"""

from __future__ import annotations

import datetime as dt
import importlib
import math
import numbers
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, final
from uuid import UUID

import numpy as np

from discreet.errors import InvalidValue, NotApplicable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.data._columns import Column

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
# Up to fifteen digits on both sides: no exponent, no leading plus, no bare point.
_COMMON_NUMBER = r"^-?[0-9]{1,15}(\.[0-9]{1,15})?$"


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
    many tools turn into floats, still says ``3`` and not ``3.0``. A time is written as its day,
    because one other cell makes pandas turn a column of times into one of objects. What is neither
    text, number, truth value, date nor UUID is missing.

    >>> text_of(" Male "), text_of(3.0), text_of(2.5), text_of(True), text_of(None)
    (b'Male', b'3', b'2.5', b'True', b'')
    """
    try:
        cell = _plain(cell)
        if isinstance(cell, dt.datetime):
            cell = cell.date()
        if isinstance(cell, bytes):
            return cell.strip(BLANKS)
        if not isinstance(cell, numbers.Real | Decimal | dt.date | UUID) or cell != cell:
            return b""
        if isinstance(cell, bool | dt.date | UUID):
            return str(cell).encode()
        if isinstance(cell, numbers.Integral):
            return str(int(cell)).encode()
        number = float(cell)
        if isinstance(cell, Decimal | numbers.Rational) and math.isfinite(number):
            return _exact_text(cell, number)
    except Exception:  # noqa: BLE001 - an object may raise anything, and no cell may be an error
        return b""
    whole = abs(number) < _EXACT and number == math.floor(number)
    return (str(int(number)) if whole else repr(number)).encode()


def _exact_text(cell: Decimal | numbers.Rational, number: float) -> bytes:
    """Write a decimal or a fraction with all its digits, by which persons may differ."""
    if isinstance(cell, Decimal) and cell and abs(cell.adjusted()) > _LONGEST_NUMBER:
        return b""  # as for a text of that many digits
    exact, near = Fraction(cell), repr(number)
    return (near if exact.denominator > 1 and exact == Fraction(near) else str(exact)).encode()


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


def import_arrow(module: str) -> Any:
    """Import a module of pyarrow, or say what to install."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise NotApplicable(
            "reading tables from files needs pyarrow: pip install 'discreet[tables]'"
        ) from None


@final
class RawBatch:
    """Some rows of a table as they came; every method works cell by cell.

    ``arrays`` holds an array of numpy or of Arrow for each column. Texts of Arrow need not be
    UTF-8.
    """

    def __init__(self, arrays: dict[str, Any], rows: int) -> None:
        self.rows = rows
        self._arrays = {
            name: array if isinstance(array, np.ndarray) else _flatten(array)
            for name, array in arrays.items()
        }

    def numbers(self, name: str, column: Column) -> NDArray[np.float64]:
        """Return what the cells of one column stand for, NaN where they are missing."""
        array = self._arrays[name]
        read = numbers_from_array if isinstance(array, np.ndarray) else numbers_from_text
        return read(array, column)

    def texts(self, name: str) -> tuple[NDArray[np.int64], list[bytes]]:
        """Return the distinct texts of one column, and for each row which one it has."""
        array = self._arrays[name]
        if not isinstance(array, np.ndarray):
            return _distinct(_trim(array))
        if array.dtype.kind in "biuf":
            values, codes = np.unique(array, return_inverse=True)
            if array.dtype.kind in "iu":  # as text_of writes them, all at once
                return codes.astype(np.int64), values.astype(np.bytes_).tolist()
            return codes.astype(np.int64), [text_of(value) for value in values]
        return number_texts([text_of(cell) for cell in array])

    def times(self, name: str) -> NDArray[np.datetime64] | None:
        """Return a column of dates or of times as it came, and nothing for any other."""
        array = self._arrays[name]
        return array if isinstance(array, np.ndarray) and array.dtype.kind == "M" else None


def number_texts(texts: Sequence[bytes]) -> tuple[NDArray[np.int64], list[bytes]]:
    """Return the number of each text among the distinct ones, and these.

    >>> number_texts([b"x", b"y", b"x"])
    (array([0, 1, 0]), [b'x', b'y'])
    """
    seen: dict[bytes, int] = {}
    codes = [seen.setdefault(text, len(seen)) for text in texts]
    return np.array(codes, dtype=np.int64), list(seen)


def column_array(name: str, values: object, *, argument: str | None = None) -> NDArray[Any]:
    """Return a column as an array of one dimension, or raise.

    What is neither numbers, truth values, dates nor fixed-width text is kept as objects, which
    are read one by one. ``argument`` is what an error calls the column.
    """
    argument = argument or f"data[{name!r}]"
    home = type(values).__module__.partition(".")[0]
    if home == "pandas" and _in_arrow(getattr(values, "dtype", None)):
        home, values = "pyarrow", values.array.__arrow_array__()  # type: ignore[attr-defined]
    if home == "pyarrow":
        if not hasattr(values, "type"):
            found, expected = f"{values.num_columns} columns", "one: rename or drop the others"  # type: ignore[attr-defined]
            raise InvalidValue(argument, found, expected)
        values = cells_of(values)
    elif home == "polars":
        series: Any = values
        # Wall-clock time of the column's own zone, as for Arrow.
        zoned = getattr(series.dtype, "time_zone", None) is not None
        series = series.dt.replace_time_zone(None) if zoned else series
        # numpy has no integers of 128 bits.
        values = series.to_list() if "128" in str(series.dtype) else series.to_numpy()
    elif hasattr(values, "to_numpy"):
        values = values.to_numpy()
    if not isinstance(values, np.ndarray):
        if isinstance(values, str | bytes) or not isinstance(values, Sequence):
            raise InvalidValue(argument, type(values).__name__, "an array or a list")
        listed = np.empty(len(values), dtype=object)
        for at, value in enumerate(values):
            listed[at] = value
        values = listed
    if isinstance(values, np.ma.MaskedArray):
        # What is masked is missing, whatever lies below the mask.
        values = np.asarray(np.ma.filled(values.astype(object), None))
    if values.ndim != 1:
        expected = "an array of one dimension, one cell for each row"
        raise InvalidValue(argument, f"{values.ndim} dimensions", expected)
    return values


def _in_arrow(dtype: Any) -> bool:
    """Whether pandas keeps a column in Arrow; its own way out fails at texts that are not UTF-8."""
    return type(dtype).__name__ == "ArrowDtype" or getattr(dtype, "storage", None) == "pyarrow"


def numbers_from_array(array: NDArray[Any], column: Column) -> NDArray[np.float64]:
    """Return what the cells of an array stand for in a column, NaN where they are missing."""
    if array.dtype.kind in "biufM":
        return column.read_array(array)
    seen: dict[str, float] = {}
    result = np.empty(array.size, dtype=np.float64)
    for at, cell in enumerate(array):
        if type(cell) is str:
            number = seen.get(cell)
            if number is None:
                number = seen[cell] = column.read_object(cell)
            result[at] = number
        else:
            result[at] = column.read_object(cell)
    return result


def numbers_from_text(array: Any, column: Column) -> NDArray[np.float64]:
    """Return what the texts of a binary Arrow array stand for in a column, or NaN."""
    trimmed = _trim(array)
    if column.kind in ("integer", "real"):
        return _numbers(trimmed, column)
    codes, distinct = _distinct(trimmed)
    meanings = [column.read_text(text) for text in distinct]
    return np.array(meanings, dtype=np.float64)[codes] if distinct else np.empty(0)


def _numbers(trimmed: Any, column: Column) -> NDArray[np.float64]:
    compute, pa = import_arrow("pyarrow.compute"), import_arrow("pyarrow")
    common = compute.match_substring_regex(trimmed, _COMMON_NUMBER)
    chosen = compute.if_else(common, trimmed, pa.scalar(None, pa.string()))
    values = chosen.cast(pa.float64()).to_numpy(zero_copy_only=False)
    rest = np.flatnonzero(~common.to_numpy(zero_copy_only=False))
    if rest.size == 0:
        return np.asarray(values, dtype=np.float64)
    values = np.array(values, dtype=np.float64)
    codes, distinct = _distinct(trimmed.take(pa.array(rest)))
    meanings = np.array([column.read_text(text) for text in distinct], dtype=np.float64)
    values[rest] = meanings[codes]
    return values


def _trim(array: Any) -> Any:
    """Return the texts without blanks around them. They need not be UTF-8, only seem so."""
    pa, compute = import_arrow("pyarrow"), import_arrow("pyarrow.compute")
    return compute.ascii_trim(array.view(pa.string()), characters=BLANKS.decode())


def _distinct(trimmed: Any) -> tuple[NDArray[np.int64], list[bytes]]:
    coded = trimmed.view(import_arrow("pyarrow").binary()).dictionary_encode()
    codes = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes, coded.dictionary.to_pylist()


def _flatten(array: Any) -> Any:
    """Return texts as one binary array without nulls, and all else as a numpy array."""
    pa = import_arrow("pyarrow")
    types = pa.types
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    if types.is_string(kind) or types.is_binary(kind):
        return array.view(pa.binary()).fill_null(b"")
    if types.is_large_string(kind) or types.is_large_binary(kind):
        return array.view(pa.large_binary()).cast(pa.binary()).fill_null(b"")
    whole = types.is_integer(kind) or types.is_boolean(kind)
    if types.is_floating(kind) or (whole and array.null_count == 0):
        numbers = array.cast(pa.float64()) if types.is_float16(kind) else array
        return numbers.to_numpy(zero_copy_only=False)
    if types.is_date(kind) or types.is_timestamp(kind):
        return wall_clock(array).to_numpy(zero_copy_only=False)
    objects = np.empty(len(array), dtype=object)
    for at, cell in enumerate(array):
        try:
            objects[at] = cell.as_py()
        except (ValueError, ArithmeticError, ImportError):
            objects[at] = None  # Python has no such value
    return objects


def wall_clock(array: Any) -> Any:
    """Return times as the clocks of their own zone showed them, as pandas and Python do."""
    if _zone_is_known(array.type):
        return import_arrow("pyarrow.compute").local_timestamp(array)
    zoned = getattr(array.type, "tz", None) is not None
    return array.cast(import_arrow("pyarrow").timestamp(array.type.unit)) if zoned else array


def cells_of(array: Any) -> NDArray[Any]:
    """Return the cells of an Arrow array as a numpy array, texts as objects."""
    flat = _flatten(array)
    return flat if isinstance(flat, np.ndarray) else flat.to_numpy(zero_copy_only=False)


def arrow_kind(type_: Any) -> str | None:
    """Return what a type of Arrow holds by itself, or None where its cells may be anything."""
    types = import_arrow("pyarrow").types
    if types.is_dictionary(type_):
        type_ = type_.value_type
    if types.is_boolean(type_):
        return "truth values"
    if types.is_integer(type_) or types.is_floating(type_) or types.is_decimal(type_):
        return "numbers"
    if types.is_date(type_) or types.is_timestamp(type_):
        return "times"
    if types.is_duration(type_) or types.is_time(type_) or types.is_interval(type_):
        return "durations"
    return None


def _zone_is_known(kind: Any) -> bool:
    """Whether a type has a time zone that this machine knows; times of others count as UTC.

    The type decides, and no cell.
    """
    pa, compute = import_arrow("pyarrow"), import_arrow("pyarrow.compute")
    if not getattr(kind, "tz", None):
        return False
    try:
        compute.local_timestamp(pa.array([0], pa.int64()).cast(kind))
    except pa.ArrowException:
        return False
    return True
