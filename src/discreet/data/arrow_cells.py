"""Columns of Arrow arrays: the rules of :mod:`discreet.data.cells` on whole columns at once.

The common spelling of a number goes through Arrow's parser, which rounds correctly as Python's
does; every other cell goes through the rule for a single cell, so that the way a column
takes never shows in the result.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet.data.arrays import ArrayBatch, RawBatch, numbers_from_array
from discreet.data.cells import BLANKS
from discreet.data.columns import Boolean, Bounded, Categorical, Column, Date
from discreet.errors import NotApplicable

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ArrowBatch", "arrow_kind", "cells_of", "load", "numbers_from_text", "wall_clock"]

# Up to fifteen digits on both sides: no exponent, no leading plus, no bare point.
_COMMON_NUMBER = r"^-?[0-9]{1,15}(\.[0-9]{1,15})?$"


def load(module: str) -> Any:
    """Import a module of pyarrow, or say what to install."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise NotApplicable(
            "reading tables from files needs pyarrow: pip install 'discreet[tables]'"
        ) from None


@final
class ArrowBatch(RawBatch):
    """Rows of Arrow arrays; texts are of the binary type, for not all bytes are UTF-8."""

    def __init__(self, arrays: dict[str, Any], rows: int) -> None:
        self.rows = rows
        self._arrays = {name: _flattened(array) for name, array in arrays.items()}

    def numbers(self, name: str, column: Column) -> NDArray[np.float64]:
        array = self._arrays[name]
        if isinstance(array, np.ndarray):
            return numbers_from_array(array, column)
        return numbers_from_text(array, column)

    def texts(self, name: str) -> tuple[NDArray[np.int64], list[bytes]]:
        array = self._arrays[name]
        if isinstance(array, np.ndarray):
            return ArrayBatch({name: array}, self.rows).texts(name)
        return _distinct(_trimmed(array))

    def times(self, name: str) -> NDArray[np.datetime64] | None:
        array = self._arrays[name]
        return array if isinstance(array, np.ndarray) and array.dtype.kind == "M" else None


def numbers_from_text(array: Any, column: Column) -> NDArray[np.float64]:
    """Return what the texts of a binary Arrow array stand for in a column, or NaN."""
    trimmed = _trimmed(array)
    if isinstance(column, Bounded) and not isinstance(column, Date):
        return _numbers(trimmed, column)
    codes, distinct = _distinct(trimmed)
    if isinstance(column, Boolean | Categorical | Date):
        meanings = [column.read_text(text) for text in distinct]
        return np.array(meanings, dtype=np.float64)[codes] if distinct else np.empty(0)
    raise NotApplicable(f"no rule reads texts into {column!r}")


def _numbers(trimmed: Any, column: Column) -> NDArray[np.float64]:
    compute, pa = load("pyarrow.compute"), load("pyarrow")
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


def _trimmed(array: Any) -> Any:
    """Return the texts without blanks around them. They need not be UTF-8, only seem so."""
    pa, compute = load("pyarrow"), load("pyarrow.compute")
    return compute.ascii_trim(array.view(pa.string()), characters=BLANKS.decode())


def _distinct(trimmed: Any) -> tuple[NDArray[np.int64], list[bytes]]:
    coded = trimmed.view(load("pyarrow").binary()).dictionary_encode()
    codes = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes, coded.dictionary.to_pylist()


def _flattened(array: Any) -> Any:
    """Return texts as one binary array without nulls, and all else as a numpy array."""
    pa = load("pyarrow")
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
        return load("pyarrow.compute").local_timestamp(array)
    zoned = getattr(array.type, "tz", None) is not None
    return array.cast(load("pyarrow").timestamp(array.type.unit)) if zoned else array


def cells_of(array: Any) -> NDArray[Any]:
    """Return the cells of an Arrow array as a numpy array, texts as objects."""
    flat = _flattened(array)
    return flat if isinstance(flat, np.ndarray) else flat.to_numpy(zero_copy_only=False)


def arrow_kind(type_: Any) -> str | None:
    """Return what a type of Arrow holds (:func:`discreet.data.inputs.declared_kind`)."""
    types = load("pyarrow").types
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
    pa, compute = load("pyarrow"), load("pyarrow.compute")
    if not getattr(kind, "tz", None):
        return False
    try:
        compute.local_timestamp(pa.array([0], pa.int64()).cast(kind))
    except pa.ArrowException:
        return False
    return True
