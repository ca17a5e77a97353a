"""Tables as an attacker compares them: every cell is a text, every column a row of codes.

Two cells agree when their texts do, without the blanks around them. Spellings that tools choose
for the same value are one text, whatever table they come from: ``3.0`` is ``3``, a time is written
``2020-03-01 10:00:00``, and midnight is its day, ``2020-03-01``; ``02139`` is not ``2139``.

Reading is that of :mod:`discreet.data`, so CSV and Parquet files, data frames, mappings of arrays,
matrices and Arrow tables all work, but two things differ: times are not cut to days, because they
single people out, and a CSV file whose rows have more or fewer cells than its heading is refused.
Texts are handled once for each distinct text, rows only as integers.
"""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet.data import (
    Categorical,
    CsvFormat,
    CsvInput,
    RawBatch,
    Schema,
    column_array,
    date_in_text,
    import_arrow,
    number_in_text,
    open_input,
    text_of,
)
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray


_BATCH_ROWS = 1 << 18
_LARGEST_SPAN = 2**62
_SAFE_TYPES = {str, bytes, float, dt.date, type(None)}
_WHOLE = re.compile(rb"(-?(?:0|[1-9][0-9]*))\.0+")
_TIME = re.compile(
    rb"([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([0-9]{2}:[0-9]{2})(?::([0-9]{2})(?:\.([0-9]+))?)?"
)


@final
@dataclass(frozen=True, eq=False)
class CodedColumn:
    """For each row the number of its text among ``texts``."""

    codes: NDArray[np.int64]
    texts: Sequence[bytes]

    def numbers(self) -> NDArray[np.float64]:
        """Return for each of ``texts`` the number or the day that it says, or NaN.

        A column is one of numbers or one of dates (days since 1970-01-01), whichever is true of
        more texts.
        """
        readings = [
            np.array([read(text) for text in self.texts], dtype=np.float64)
            for read in (number_in_text, date_in_text)
        ]
        finite = [np.where(np.isfinite(values), values, np.nan) for values in readings]
        return max(finite, key=lambda values: np.count_nonzero(~np.isnan(values)))


@final
@dataclass(frozen=True, eq=False)
class CodedTable:
    """Some columns of a table by name, as codes."""

    columns: Mapping[str, CodedColumn]
    rows: int


def column_names(argument: str, names: object) -> tuple[str, ...]:
    """Return the distinct names of at least one column, or raise.

    Columns of a matrix are named by their place, ``0`` or ``"0"``.
    """
    expected = "the distinct names of one or more columns"
    if isinstance(names, str | bytes) or not isinstance(names, Sequence) or not names:
        raise InvalidValue(argument, names, expected)
    texts = tuple(
        str(name) if isinstance(name, int) and not isinstance(name, bool) else name
        for name in names
    )
    if not all(isinstance(text, str) and text for text in texts) or len(set(texts)) < len(texts):
        raise InvalidValue(argument, list(names), expected)
    return texts


def read_coded(
    data: object,
    names: Sequence[str],
    *,
    delimiter: str = ",",
    argument: str = "data",
    dictionaries: Mapping[str, dict[bytes, int]] | None = None,
) -> CodedTable:
    """Read columns of a table; columns that share a dictionary have codes that agree.

    >>> table = read_coded({"zip": ["02139", " 02139 ", None]}, ["zip"])
    >>> table.columns["zip"].codes, table.columns["zip"].texts
    (array([0, 0, 1]), [b'02139', b''])

    Parameters
    ----------
    data
        What :func:`discreet.data.read_table` takes.
    names
        The columns to read.
    delimiter, argument
        Of CSV files; the name of the table in errors.
    dictionaries
        Codes of values that another table has already.

    Returns
    -------
    CodedTable
        Columns of codes, equal where cells are equal.

    Raises
    ------
    InvalidValue
        If a column is missing.
    """
    seen = {name: {} if dictionaries is None else dictionaries[name] for name in names}
    try:
        parts = list(_batches(data, names, delimiter, seen))
    except InvalidValue as error:
        renamed = error.argument.replace("data", argument, 1)
        raise InvalidValue(renamed, error.value, error.expected) from None
    columns = {}
    for name in names:
        codes = [part[name] for part in parts]
        joined = np.concatenate(codes) if codes else np.empty(0, dtype=np.int64)
        columns[name] = CodedColumn(joined, list(seen[name]))
    return CodedTable(columns, columns[names[0]].codes.size)


def _batches(
    data: object, names: Sequence[str], delimiter: str, seen: Mapping[str, dict[bytes, int]]
) -> Iterator[dict[str, NDArray[np.int64]]]:
    schema = Schema({name: Categorical() for name in names}, csv=CsvFormat(delimiter=delimiter))
    prepared = _prepare(data, names)
    table = open_input(prepared, schema)
    if isinstance(table, CsvInput):
        table.check_cells()
    if isinstance(prepared, Mapping):
        parts = iter([{name: _code_array(prepared[name]) for name in names}])
    else:
        batches = table.batches(names, _BATCH_ROWS)
        parts = ({name: _texts(batch, name) for name in names} for batch in batches)
    for part in parts:
        yield {name: _codes_in_dictionary(*part[name], seen[name]) for name in names}


def _codes_in_dictionary(
    codes: NDArray[np.int64], texts: Sequence[bytes], book: dict[bytes, int]
) -> NDArray[np.int64]:
    spelled = map(_spelling, texts)
    places = np.array([book.setdefault(text, len(book)) for text in spelled], dtype=np.int64)
    return places[codes] if places.size else codes


def _spelling(text: bytes) -> bytes:
    """Return the one text for all spellings of a whole number, or of a time.

    >>> _spelling(b"2139.0"), _spelling(b"02139.0"), _spelling(b"2020-03-01T10:00")
    (b'2139', b'02139.0', b'2020-03-01 10:00:00')
    >>> _spelling(b"2020-03-01 00:00:00.000"), _spelling(b"2020-03-01 00:00:00.5")
    (b'2020-03-01', b'2020-03-01 00:00:00.5')
    """
    whole = _WHOLE.fullmatch(text)
    if whole is not None:
        return b"0" if whole[1] == b"-0" else whole[1]
    time = _TIME.fullmatch(text)
    if time is None:
        return text
    day, minutes, seconds, fraction = time.groups(default=b"")
    clock = minutes + b":" + (seconds or b"00")
    fraction = fraction.rstrip(b"0")
    if clock == b"00:00:00" and not fraction:
        return day
    return day + b" " + clock + (b"." + fraction if fraction else b"")


def _texts(batch: RawBatch, name: str) -> tuple[NDArray[np.int64], list[bytes]]:
    times = batch.times(name)
    return batch.texts(name) if times is None else _code_times(times)


def _code_times(times: NDArray[np.datetime64]) -> tuple[NDArray[np.int64], list[bytes]]:
    if np.datetime_data(times.dtype)[0] in {"Y", "M", "W"}:
        times = times.astype("datetime64[D]")
    moments, codes = np.unique(times, return_inverse=True)
    texts = np.where(np.isnat(moments), "", np.datetime_as_string(moments))
    return codes.astype(np.int64), [str(text).encode() for text in texts]


def _prepare(data: object, names: Sequence[str]) -> object:
    """Return columns in memory as a mapping of arrays, a matrix by places; the rest as it is."""
    if isinstance(data, str | os.PathLike):
        return data
    if isinstance(data, np.ndarray):
        if data.ndim != 2:
            raise InvalidValue("data", f"an array of shape {data.shape}", "two dimensions")
        data = {str(at): data[:, at] for at in range(data.shape[1])}
    if type(data).__module__.partition(".")[0] == "pyarrow" and hasattr(data, "set_column"):
        return _dates_as_texts(data, names)
    is_frame = hasattr(data, "columns") and hasattr(data, "dtypes")
    if not isinstance(data, Mapping) and not is_frame:
        return data
    frame: Any = data
    if is_frame and any([*frame.columns].count(name) > 1 for name in names):
        return data  # the reader says what is wrong
    return {name: column_array(name, frame[name]) for name in names if name in frame}


def _dates_as_texts(table: Any, names: Sequence[str]) -> Any:
    """Return an Arrow table whose dates and times are texts, which are quick to tell apart."""
    pa = import_arrow("pyarrow")
    for name in names:
        for at in table.schema.get_all_field_indices(name):
            kind = table.schema.field(at).type
            if pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and kind.tz is None):
                table = table.set_column(at, name, table.column(at).cast(pa.string()))
    return table


def _code_array(array: NDArray[Any]) -> tuple[NDArray[np.int64], list[bytes]]:
    """Return what :meth:`RawBatch.texts` does, with each distinct object read once."""
    if array.dtype.kind == "M":
        return _code_times(array)
    cells = array.tolist()
    # Objects of these types are equal only if their texts are; 1 and True are equal objects.
    if array.dtype.kind in "biuf" or not set(map(type, cells)) <= _SAFE_TYPES:
        return RawBatch({"": array}, array.size).texts("")
    seen: dict[object, int] = {}
    codes = np.array([seen.setdefault(cell, len(seen)) for cell in cells], dtype=np.int64)
    return codes, [text_of(cell) for cell in seen]


def group_rows(columns: Sequence[NDArray[np.int64]]) -> tuple[NDArray[np.int64], int]:
    """Return for each row the number of its group of equal rows, and how many groups there are.

    >>> group_rows([np.array([5, 5, 7, 5]), np.array([0, 1, 0, 0])])
    (array([0, 1, 2, 0]), 3)
    """
    combined, span = columns[0], _span(columns[0])
    for codes in columns[1:]:
        size = _span(codes)
        if span > _LARGEST_SPAN // size:
            combined, span = _dense(combined, span)
        combined, span = combined * size + codes, span * size
    return _dense(combined, span)


def _span(codes: NDArray[np.int64]) -> int:
    return int(codes.max()) + 1 if codes.size else 1


def _dense(codes: NDArray[np.int64], span: int) -> tuple[NDArray[np.int64], int]:
    if span <= 8 * codes.size + 1024:
        present = np.bincount(codes, minlength=span) > 0
        return (np.cumsum(present) - 1)[codes], int(np.count_nonzero(present))
    values, dense = np.unique(codes, return_inverse=True)
    return dense.astype(np.int64), values.size
