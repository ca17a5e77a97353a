"""Columns that are in memory already: numpy arrays, lists, columns of a data frame."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet.data import cells
from discreet.data.columns import Boolean, Bounded, Column, Date
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ArrayBatch", "RawBatch", "column_array", "grouped", "numbers_from_array"]

_TYPED = "biuf"


class RawBatch:
    """Some rows of a table as they came; both methods work cell by cell."""

    rows: int

    def numbers(self, name: str, column: Column) -> NDArray[np.float64]:
        """Return what the cells of one column stand for, NaN where they are missing."""
        raise NotImplementedError

    def texts(self, name: str) -> tuple[NDArray[np.int64], list[bytes]]:
        """Return the distinct texts of one column, and for each row which one it has."""
        raise NotImplementedError

    def times(self, name: str) -> NDArray[np.datetime64] | None:
        """Return a column of dates or of times as it came, and nothing for any other."""
        raise NotImplementedError


@final
class ArrayBatch(RawBatch):
    """Rows of arrays of the same length."""

    def __init__(self, arrays: dict[str, NDArray[Any]], rows: int) -> None:
        self.rows = rows
        self._arrays = arrays

    def numbers(self, name: str, column: Column) -> NDArray[np.float64]:
        return numbers_from_array(self._arrays[name], column)

    def texts(self, name: str) -> tuple[NDArray[np.int64], list[bytes]]:
        array = self._arrays[name]
        if array.dtype.kind in _TYPED:
            values, codes = np.unique(array, return_inverse=True)
            return codes.astype(np.int64), [cells.text_of(value) for value in values]
        return grouped([cells.text_of(cell) for cell in array])

    def times(self, name: str) -> NDArray[np.datetime64] | None:
        array = self._arrays[name]
        return array if array.dtype.kind == "M" else None


def grouped(texts: Sequence[bytes]) -> tuple[NDArray[np.int64], list[bytes]]:
    """Return the number of each text among the distinct ones, and these.

    >>> grouped([b"x", b"y", b"x"])
    (array([0, 1, 0]), [b'x', b'y'])
    """
    seen: dict[bytes, int] = {}
    codes = [seen.setdefault(text, len(seen)) for text in texts]
    return np.array(codes, dtype=np.int64), list(seen)


def column_array(name: str, values: object) -> NDArray[Any]:
    """Return a column as an array of one dimension, or raise.

    What is neither numbers, truth values, dates nor fixed-width text is kept as objects, which
    are read one by one.
    """
    home = type(values).__module__.partition(".")[0]
    if home == "pandas" and _in_arrow(getattr(values, "dtype", None)):
        home, values = "pyarrow", values.array.__arrow_array__()  # type: ignore[attr-defined]
    if home == "pyarrow":
        from discreet.data.arrow_cells import cells_of

        if not hasattr(values, "type"):
            found, expected = f"{values.num_columns} columns", "one: rename or drop the others"  # type: ignore[attr-defined]
            raise InvalidValue(f"data[{name!r}]", found, expected)
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
            raise InvalidValue(f"data[{name!r}]", type(values).__name__, "an array or a list")
        listed = np.empty(len(values), dtype=object)
        for at, value in enumerate(values):
            listed[at] = value
        values = listed
    if isinstance(values, np.ma.MaskedArray):
        # What is masked is missing, whatever lies below the mask.
        values = np.asarray(np.ma.filled(values.astype(object), None))
    if values.ndim != 1:
        expected = "an array of one dimension, one cell for each row"
        raise InvalidValue(f"data[{name!r}]", f"{values.ndim} dimensions", expected)
    return values


def _in_arrow(dtype: Any) -> bool:
    """Whether pandas keeps a column in Arrow; its own way out fails at texts that are not UTF-8."""
    return type(dtype).__name__ == "ArrowDtype" or getattr(dtype, "storage", None) == "pyarrow"


def numbers_from_array(array: NDArray[Any], column: Column) -> NDArray[np.float64]:
    """Return what the cells of an array stand for in a column, NaN where they are missing."""
    kind = array.dtype.kind
    if kind in _TYPED:
        return _from_numbers(array, column)
    if kind == "M" and isinstance(column, Date):
        days = array.astype("datetime64[D]")
        return np.where(np.isnat(days), math.nan, days.astype(np.int64).astype(np.float64))
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


def _from_numbers(array: NDArray[Any], column: Column) -> NDArray[np.float64]:
    if isinstance(column, Date):
        return np.full(array.size, math.nan)
    if isinstance(column, Bounded | Boolean):
        # An x86 long double can lie beyond every double: it becomes infinite, as by float().
        with np.errstate(over="ignore"):
            numbers = array.astype(np.float64)
        if isinstance(column, Boolean):
            return np.where((numbers == 0.0) | (numbers == 1.0), numbers, math.nan)
        return numbers
    values, codes = np.unique(array, return_inverse=True)
    meanings = [column.read_object(value) for value in values]
    return np.array(meanings, dtype=np.float64)[codes]
