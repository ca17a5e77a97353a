"""What engines are given to read: CSV files and tables in memory, and the columns of Parquet files.

CSV files and tables in memory are read by :mod:`discreet.data`, whose rules know what one record is
(a line, whatever it holds) and read each cell alone, so that both engines see the same numbers, and
are put into Parquet once. Numbers are written as doubles, NULL where missing, labels as their
codes, texts and names of persons as texts.

Parquet files on this machine are handed to DuckDB as Arrow batches. Its own reader stops at a text
that is not UTF-8 and shows it, and knows no day of a time zone.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from discreet.curator.grids import LONGEST_KEPT_TEXT, PERSON
from discreet.data import (
    Categorical,
    Column,
    Date,
    Labelled,
    RawBatch,
    Schema,
    open_input,
    wall_clock,
)
from discreet.errors import InvalidValue

__all__ = ["NOT_UTF8", "one_column", "open_parquet", "raw_names", "write_parquet"]

# Stands before the hexadecimal digits of a text that is not UTF-8. It is longer than any text that
# is kept, so the cell is no label and no number; names of persons stay apart.
NOT_UTF8 = "?" * (LONGEST_KEPT_TEXT + 1)
_BATCH_ROWS = 1 << 16


def raw_names(schema: Schema) -> dict[str, str]:
    """Return the columns that a schema needs by what they are called where an engine reads them."""
    names = {f"raw{position}": name for position, name in enumerate(schema.columns)}
    return names if schema.person is None else {**names, PERSON: schema.person}


def one_column(names: Sequence[str], name: str) -> None:
    """Raise unless a column is there exactly once."""
    if list(names).count(name) != 1:
        raise InvalidValue("source", "a table", f"one column {name!r}")


def write_parquet(data: object, schema: Schema, target: Path) -> None:
    """Read a table by the rules of its schema and write it, row by row the same."""
    pa, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    table = open_input(data, schema)
    kinds = [
        (pa.int64() if column.complete else pa.string())
        if isinstance(column, Labelled)
        else pa.float64()
        for column in schema.columns.values()
    ]
    form = pa.schema(list(zip(raw_names(schema), [*kinds, pa.string()], strict=False)))
    with parquet.ParquetWriter(target, form) as writer:
        for batch in table.batches(schema.file_columns, _BATCH_ROWS):
            arrays = _arrays(batch, schema, pa)
            writer.write_table(pa.Table.from_arrays(arrays, schema=form))


def open_parquet(files: Sequence[str], folder: str, schema: Schema) -> Any:
    """Return the columns of a schema in Parquet files as Arrow batches, under their raw names.

    Texts come as bytes; a time in a column of days comes as the day that it was in its own zone.
    """
    pa, ds = import_module("pyarrow"), import_module("pyarrow.dataset")
    try:
        table = ds.dataset(
            list(files), format="parquet", partitioning="hive", partition_base_dir=folder
        )
        kinds = {name: _type_of(table.schema, name) for name in schema.file_columns}
        for part in table.get_fragments():
            in_path = ds.get_partition_keys(part.partition_expression)
            for name in kinds.keys() - in_path.keys():
                if _type_of(part.physical_schema, name) != kinds[name]:
                    expected = f"one type of column {name!r} in all its files"
                    raise InvalidValue("source", folder, expected)
    except (OSError, pa.ArrowException):
        raise InvalidValue("source", folder, "readable Parquet files") from None
    names = raw_names(schema)

    def handed(batch: Any) -> Any:
        arrays = [
            _handed(batch.column(name), schema.columns.get(name), pa) for name in names.values()
        ]
        return pa.record_batch(arrays, names=list(names))

    nothing = pa.record_batch({name: pa.nulls(0, kind) for name, kind in kinds.items()})
    batches = table.to_batches(columns=list(kinds), batch_size=_BATCH_ROWS)
    return pa.RecordBatchReader.from_batches(handed(nothing).schema, map(handed, batches))


def _type_of(form: Any, name: str) -> Any:
    one_column(form.names, name)
    return form.field(name).type


def _handed(array: Any, column: Column | None, pa: Any) -> Any:
    types = pa.types
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    if any(
        is_text(kind) for is_text in (types.is_string, types.is_large_string, types.is_large_binary)
    ):
        return array.cast(pa.binary())
    if isinstance(column, Date) and types.is_timestamp(kind):
        return wall_clock(array).cast(pa.date32())
    return array.cast(pa.float32()) if types.is_float16(kind) else array


def _arrays(batch: RawBatch, schema: Schema, pa: Any) -> list[Any]:
    arrays = []
    for name, column in schema.columns.items():
        if isinstance(column, Categorical) and not column.complete:
            arrays.append(_texts(batch, name, pa))
        elif isinstance(column, Labelled):
            arrays.append(pa.array(column.to_domain(batch.numbers(name, column)), type=pa.int64()))
        else:
            numbers = np.asarray(batch.numbers(name, column), dtype=np.float64)
            arrays.append(pa.array(numbers, type=pa.float64(), mask=np.isnan(numbers)))
    if schema.person is not None:
        codes, names = batch.texts(schema.person)
        arrays.append(_taken(codes, [_text(name) for name in names], pa))
    return arrays


def _texts(batch: RawBatch, name: str, pa: Any) -> Any:
    codes, texts = batch.texts(name)
    return _taken(codes, [_text(text) for text in texts], pa)


def _taken(codes: Any, values: list[str | None], pa: Any) -> Any:
    if not values:
        return pa.nulls(len(codes), type=pa.string())
    return pa.array(values, type=pa.string()).take(pa.array(codes))


def _text(text: bytes) -> str | None:
    """A text of its own for each, None for an empty one: two names of persons never share one."""
    try:
        read = text.decode()
    except UnicodeDecodeError:
        read = NOT_UTF8
    return NOT_UTF8 + text.hex().upper() if NOT_UTF8 in read else read or None
