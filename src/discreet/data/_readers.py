"""Tables from anywhere: CSV and Parquet files, data frames, mappings of arrays, matrices.

Each input knows its column names before a record is looked at, and can be read again from the
start. An error about an input speaks of its form, which is public, and never shows what it holds:
the first line of a file without a heading would be somebody's record.
"""

from __future__ import annotations

import gzip
import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet.data import _cells
from discreet.data._cells import RawBatch, arrow_kind, column_array, import_arrow
from discreet.data._columns import Boolean, Bounded, Categorical, Column, Date
from discreet.data._csv import (
    BLOCK_BYTES,
    Readable,
    RecordBlock,
    cut,
    misshapen,
    record_blocks,
    split_cells,
)
from discreet.data._schema import CsvFormat, Schema
from discreet.errors import FileUnusable, InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

CSV_ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".data", ".data.gz", ".txt", ".txt.gz")
PARQUET_ENDINGS = (".parquet", ".pq")
_CHECKED_ROWS = 1 << 14
# By default Arrow reads all of a row group, which may be the whole file, before its first row.
_BUFFERED_BYTES = 1 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class TableInput(ABC):
    """A table that can be read from its start, again and again, in batches."""

    @abstractmethod
    def names(self) -> Sequence[str] | None:
        """Return the names of the columns, or None for a file without a single byte."""

    @abstractmethod
    def batches(self, names: Sequence[str], batch_rows: int) -> Iterator[RawBatch]:
        """Yield all rows in order, in batches of at most ``batch_rows``."""

    @final
    def check(self, names: Sequence[str]) -> None:
        """Raise unless every one of these columns is there exactly once."""
        found = self.names()
        if found is None:
            return
        for name in names:
            count = list(found).count(name)
            if count != 1:
                what = "is not there" if count == 0 else f"is there {count} times"
                expected = f"a table with one column {name!r}; it {what}"
                raise InvalidValue("data", self.title, expected)
        self._check_form(names)

    @abstractmethod
    def _check_form(self, names: Sequence[str]) -> None:
        """Raise unless these columns hold one single value for each row."""

    @final
    def check_types(self, schema: Schema) -> None:
        """Raise where a declared type can hold nothing that a column of the schema means."""
        for name, kind in self._kinds(list(schema.columns)).items():
            if kind is not None and not _can_hold(schema.columns[name], kind):
                expected = f"a column {name!r} that fits {schema.columns[name]!r}; it holds {kind}"
                raise InvalidValue("data", self.title, expected)

    def _kinds(self, names: Sequence[str]) -> dict[str, str | None]:
        """Return what columns hold by their declared types, which no cell decides."""
        return {}

    @abstractmethod
    def check_integrity(self, names: Sequence[str]) -> None:
        """Raise where the bytes of these columns are damaged; what they say is not looked at."""

    @property
    @abstractmethod
    def title(self) -> str:
        """What errors call this input."""


def open_input(data: object, schema: Schema) -> TableInput:
    """Return the table behind a path, a data frame, a mapping, a matrix or an Arrow table.

    Every column that the schema needs is there, or an error names it; nothing else has been read.
    """
    table = _open(data, schema)
    table.check(schema.file_columns)
    if table.names() is not None:
        table.check_types(schema)
    return table


def open_columns(data: object, form: CsvFormat) -> TableInput:
    """Return a table whose columns have names, before a schema says which of them are needed."""
    if isinstance(data, str | os.PathLike):
        return _open_file(Path(data), form)
    named = named_columns(data)
    if named is None:
        expected = "the path of a file, a data frame or a mapping of names to columns"
        raise InvalidValue("data", type(data).__name__, expected)
    return MemoryInput(named)


def _open_file(path: Path, form: CsvFormat) -> TableInput:
    if path.name.lower().endswith(PARQUET_ENDINGS):
        return ParquetInput(path)
    if path.name.lower().endswith(CSV_ENDINGS):
        return CsvInput(path, form)
    raise InvalidValue(
        "data", str(path), "a file name ending in " + ", ".join(CSV_ENDINGS + PARQUET_ENDINGS)
    )


def _open(data: object, schema: Schema) -> TableInput:
    if isinstance(data, str | os.PathLike):
        return _open_file(Path(data), schema.csv)
    if isinstance(data, np.ndarray):
        return _matrix(data, schema.file_columns)
    if isinstance(data, Mapping):
        return MemoryInput(data)
    if type(data).__module__.partition(".")[0] == "pyarrow":
        if type(data).__name__ == "RecordBatch":
            return ArrowInput(import_arrow("pyarrow").Table.from_batches([data]))
        if hasattr(data, "to_batches"):
            return ArrowInput(data)
    if type(data).__name__ == "LazyFrame":
        raise InvalidValue("data", "LazyFrame", "a frame that holds its rows: call collect()")
    if hasattr(data, "columns") and hasattr(data, "__getitem__"):
        return MemoryInput({name: _frame_column(data, name) for name in _frame_names(data, schema)})
    expected = "the path of a file, a data frame, a mapping of arrays or a matrix"
    raise InvalidValue("data", type(data).__name__, expected)


@final
class MemoryInput(TableInput):
    """Columns in memory, by name."""

    def __init__(self, columns: Mapping[Any, Any]) -> None:
        self._columns = columns
        self._arrays: dict[str, NDArray[Any]] = {}

    @property
    def title(self) -> str:
        return "columns in memory"

    def names(self) -> Sequence[str]:
        return list(self._columns)

    def _check_form(self, names: Sequence[str]) -> None:
        self._arrays = {name: column_array(name, self._columns[name]) for name in names}
        for name, array in self._arrays.items():
            if array.size != self._arrays[names[0]].size:
                raise InvalidValue(f"data[{name!r}]", "another length", "columns of one length")

    def _kinds(self, names: Sequence[str]) -> dict[str, str | None]:
        return {name: declared_kind(self._columns[name]) for name in names}

    def check_integrity(self, names: Sequence[str]) -> None:
        """Nothing to check: memory is not damaged."""

    def batches(self, names: Sequence[str], batch_rows: int) -> Iterator[RawBatch]:
        arrays = {name: self._arrays[name] for name in names}
        rows = arrays[names[0]].size
        for start in range(0, rows, batch_rows):
            stop = min(start + batch_rows, rows)
            part = {name: array[start:stop] for name, array in arrays.items()}
            yield RawBatch(part, stop - start)


@final
class ArrowInput(TableInput):
    """A table of Arrow in memory."""

    def __init__(self, table: Any) -> None:
        self._table = table

    @property
    def title(self) -> str:
        return "an Arrow table"

    def names(self) -> Sequence[str]:
        return list(self._table.schema.names)

    def _check_form(self, names: Sequence[str]) -> None:
        _refuse_nested(self.title, self._table.schema, names)

    def _kinds(self, names: Sequence[str]) -> dict[str, str | None]:
        return {name: arrow_kind(self._table.schema.field(name).type) for name in names}

    def check_integrity(self, names: Sequence[str]) -> None:
        """Nothing to check, as above."""

    def batches(self, names: Sequence[str], batch_rows: int) -> Iterator[RawBatch]:
        for batch in self._table.select(list(names)).to_batches(max_chunksize=batch_rows):
            yield RawBatch({name: batch.column(name) for name in names}, batch.num_rows)


class FileInput(TableInput):
    """A file that must stay as it is while it is read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state = self._stat()

    @property
    def title(self) -> str:
        return str(self._path)

    def _stat(self) -> tuple[int, int]:
        try:
            found = self._path.stat()
        except OSError as error:
            raise self._unreadable(error) from None
        if not self._path.is_file():
            raise FileUnusable("data", self.title, "a file")
        return found.st_size, found.st_mtime_ns

    def _unreadable(self, error: OSError) -> InvalidValue:
        reason = f" ({error.strerror})" if error.strerror else ""
        return InvalidValue("data", self.title, f"a readable file{reason}")

    def _still_the_same(self) -> None:
        if self._stat() != self._state:
            raise InvalidValue("data", self.title, "a file that does not change while it is read")


@final
class CsvInput(FileInput):
    """A CSV file, plain or compressed by gzip."""

    def __init__(self, path: Path, form: CsvFormat) -> None:
        super().__init__(path)
        self._form = form
        self._packed = path.name.lower().endswith(".gz")
        self._delimiter = form.delimiter.encode()
        self._names = self._heading()

    def names(self) -> Sequence[str] | None:
        return self._names

    def _check_form(self, names: Sequence[str]) -> None:
        """Nothing to check: each cell of a CSV file is a text."""

    def check_integrity(self, names: Sequence[str]) -> None:
        if self._packed:
            with self._stream() as stream:
                while stream.read(BLOCK_BYTES):
                    pass

    def check_cells(self) -> None:
        """Raise where a record has more or fewer cells than there are names.

        That tells something about records, so it is nothing for data under a guarantee.
        """
        if self._names is None:
            return
        width = len(self._names)
        wrong = sum(misshapen(block, width, self._delimiter) for block in self._body())
        if wrong:
            expected = f"rows of {width} cells, as in its heading; {wrong} have more or fewer"
            raise InvalidValue("data", self.title, expected)

    def batches(self, names: Sequence[str], batch_rows: int) -> Iterator[RawBatch]:
        if self._names is None:
            return
        places = [list(self._names).index(name) for name in names]
        for block in self._body():
            for first in range(0, len(block.starts), batch_rows):
                part = block.rows(first, first + batch_rows)
                columns = cut(
                    part, width=len(self._names), delimiter=self._delimiter, wanted=places
                )
                arrays = dict(zip(names, columns, strict=True))
                yield RawBatch(arrays, len(part.starts))
        self._still_the_same()

    def _body(self) -> Iterator[RecordBlock]:
        """Yield the records after the heading."""
        heading = self._form.names is None
        with self._stream() as stream:
            for block in record_blocks(stream, quoted_newlines=self._form.quoted_newlines):
                yield block.rows(1 if heading else 0, len(block.starts))
                heading = False

    def _heading(self) -> Sequence[str] | None:
        if self._form.names is not None:
            return self._form.names
        with self._stream() as stream:
            blocks = record_blocks(stream, quoted_newlines=self._form.quoted_newlines)
            first = next(blocks, None)
        if first is None:
            return None
        cells = split_cells(first.record(0), self._delimiter)
        return tuple(cell.decode("utf-8", "replace").strip() for cell in cells)

    @contextmanager
    def _stream(self) -> Iterator[Readable]:
        try:
            with gzip.open(self._path) if self._packed else self._path.open("rb") as stream:
                start = stream.read(len(_BYTE_ORDER_MARK))
                yield _Resumed(b"" if start == _BYTE_ORDER_MARK else start, stream)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise InvalidValue("data", self.title, "a whole file in the gzip format") from None
        except OSError as error:
            raise self._unreadable(error) from None


@final
class ParquetInput(FileInput):
    """A Parquet file, read a part of a row group at a time."""

    def names(self) -> Sequence[str]:
        with self._file() as file:
            return list(file.schema_arrow.names)

    def _check_form(self, names: Sequence[str]) -> None:
        with self._file() as file:
            _refuse_nested(self.title, file.schema_arrow, names)

    def _kinds(self, names: Sequence[str]) -> dict[str, str | None]:
        with self._file() as file:
            return {name: arrow_kind(file.schema_arrow.field(name).type) for name in names}

    def check_integrity(self, names: Sequence[str]) -> None:
        with self._file() as file:
            for _ in file.iter_batches(
                batch_size=_CHECKED_ROWS, columns=list(names), use_threads=False
            ):
                pass

    def batches(self, names: Sequence[str], batch_rows: int) -> Iterator[RawBatch]:
        with self._file() as file:
            for batch in file.iter_batches(
                batch_size=batch_rows, columns=list(names), use_threads=False
            ):
                yield RawBatch({name: batch.column(name) for name in names}, batch.num_rows)
        self._still_the_same()

    @contextmanager
    def _file(self) -> Iterator[Any]:
        parquet, pa = import_arrow("pyarrow.parquet"), import_arrow("pyarrow")
        try:
            with parquet.ParquetFile(
                self._path, memory_map=False, pre_buffer=False, buffer_size=_BUFFERED_BYTES
            ) as file:
                yield file
        except (OSError, pa.ArrowException):
            raise InvalidValue("data", self.title, "a readable Parquet file") from None


class _Resumed:
    """A stream whose first bytes have been read already."""

    def __init__(self, start: bytes, stream: Any) -> None:
        self._start = start
        self._stream = stream

    def read(self, count: int) -> bytes:
        start, self._start = self._start, b""
        data: bytes = start + self._stream.read(count - len(start))
        return data


def _refuse_nested(title: str, schema: Any, names: Sequence[str]) -> None:
    types = import_arrow("pyarrow").types
    for name in names:
        if types.is_nested(schema.field(name).type):
            expected = f"a table whose column {name!r} holds single values, not {{}}"
            raise InvalidValue("data", title, expected.format(schema.field(name).type))


def declared_kind(values: object) -> str | None:
    """Return what a column holds by its type alone, or None where its cells may be anything.

    Arrow, polars and numpy declare a type; pandas may have read it off the cells, and one cell
    must not decide whether a table is refused.
    """
    home = type(values).__module__.partition(".")[0]
    if home == "pyarrow" and hasattr(values, "type"):
        return arrow_kind(values.type)
    if home == "polars" and hasattr(values, "dtype"):
        return _POLARS_KINDS.get(type(values.dtype).__name__) or _POLARS_KINDS.get(
            str(values.dtype)
        )
    if isinstance(values, np.ndarray) and not isinstance(values, np.ma.MaskedArray):
        return _NUMPY_KINDS.get(values.dtype.kind)
    return None


_NUMPY_KINDS = {
    **dict.fromkeys("iuf", "numbers"),
    "b": "truth values",
    "M": "times",
    "m": "durations",
    "c": "complex numbers",
    "V": "records",
}
_POLARS_KINDS = {
    **{f"{sign}Int{bits}": "numbers" for sign in ("", "U") for bits in (8, 16, 32, 64, 128)},
    **dict.fromkeys(("Float16", "Float32", "Float64", "Decimal"), "numbers"),
    "Boolean": "truth values",
    **dict.fromkeys(("Date", "Datetime"), "times"),
    **dict.fromkeys(("Duration", "Time"), "durations"),
    **dict.fromkeys(("List", "Array", "Struct"), "lists or records"),
}


def _can_hold(column: Column, kind: str) -> bool:
    """Whether cells of a kind can be something else than missing or other in a column."""
    if isinstance(column, Date):
        return kind == "times"
    if isinstance(column, Bounded | Boolean):
        return kind in ("numbers", "truth values")
    if not isinstance(column, Categorical) or column.categories is None or column.hashed:
        return kind in ("numbers", "truth values", "times")
    names = [str(name).encode() for name in column.categories]
    if kind == "truth values":
        return b"True" in names or b"False" in names
    if kind == "numbers":
        return any(not np.isnan(_cells.number_in_text(name)) for name in names)
    return kind == "times" and any(not np.isnan(_cells.date_in_text(name)) for name in names)


def named_columns(data: object) -> Mapping[str, Any] | None:
    """Return the columns of a data frame, an Arrow table or a mapping by name; None: it is none.

    A name that is there twice has the columns side by side, which nothing accepts.
    """
    if isinstance(data, Mapping):
        return data
    home, kind = type(data).__module__.partition(".")[0], type(data).__name__
    if home == "pyarrow" and hasattr(data, "schema"):
        names = list(data.schema.names)
        places = {name: [at for at, one in enumerate(names) if one == name] for name in names}
        return {
            name: data.column(at[0]) if len(at) == 1 else data.select(at)  # type: ignore[attr-defined]
            for name, at in places.items()
        }
    if home in ("pandas", "polars") and kind == "DataFrame":
        return {name: data[name] for name in dict.fromkeys(data.columns)}  # type: ignore[index, attr-defined]
    return None


def _matrix(data: NDArray[Any], names: Sequence[str]) -> TableInput:
    if data.ndim != 2 or data.shape[1] != len(names):
        expected = f"two dimensions and {len(names)} columns, in the order of the schema"
        found = f"{data.shape[1]} columns" if data.ndim == 2 else f"{data.ndim} dimensions"
        raise InvalidValue("data", f"an array of {found}", expected)
    return MemoryInput({name: data[:, at] for at, name in enumerate(names)})


def _frame_names(frame: Any, schema: Schema) -> list[str]:
    found = list(frame.columns)
    for name in schema.file_columns:
        if found.count(name) > 1:
            expected = f"a table with one column {name!r}; it is there {found.count(name)} times"
            raise InvalidValue("data", type(frame).__name__, expected)
    return [name for name in schema.file_columns if name in found]


def _frame_column(frame: Any, name: str) -> Any:
    return frame[name]
