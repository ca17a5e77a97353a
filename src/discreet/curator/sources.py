"""Sources that no engine reads by itself: CSV files and tables in memory, put into Parquet once.

They are read by :mod:`discreet.data`, whose rules know what one record is (a line, whatever
it holds) and read each cell alone, so that both engines see the same numbers. Numbers are written
as doubles, NULL where missing, labels as their codes, texts and names of persons as texts.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from discreet.curator.grids import PERSON
from discreet.data.arrays import RawBatch
from discreet.data.columns import Categorical, Labelled
from discreet.data.inputs import open_table
from discreet.data.schema import Schema

__all__ = ["raw_name", "write_parquet"]

_BATCH_ROWS = 1 << 16


def raw_name(position: int) -> str:
    """What a column is called in the Parquet file."""
    return f"raw{position}"


def write_parquet(data: object, schema: Schema, target: Path) -> None:
    """Read a table by the rules of its schema and write it, row by row the same."""
    pa, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    table = open_table(data, schema)
    fields = []
    for position, column in enumerate(schema.columns.values()):
        kind = pa.float64()
        if isinstance(column, Labelled):
            kind = pa.int64() if column.complete else pa.string()
        fields.append(pa.field(raw_name(position), kind))
    if schema.person is not None:
        fields.append(pa.field(PERSON, pa.string()))
    form = pa.schema(fields)
    with parquet.ParquetWriter(target, form) as writer:
        for batch in table.batches(schema.file_columns, _BATCH_ROWS):
            arrays = _arrays(batch, schema, pa)
            writer.write_table(pa.Table.from_arrays(arrays, schema=form))


def _arrays(batch: RawBatch, schema: Schema, pa: Any) -> list[Any]:
    arrays = []
    for name, column in schema.columns.items():
        if isinstance(column, Categorical) and not column.complete:
            arrays.append(_texts(batch, name, pa))
        elif isinstance(column, Labelled):
            arrays.append(pa.array(column.settle(batch.numbers(name, column)), type=pa.int64()))
        else:
            numbers = np.asarray(batch.numbers(name, column), dtype=np.float64)
            arrays.append(pa.array(numbers, type=pa.float64(), mask=np.isnan(numbers)))
    if schema.person is not None:
        codes, names = batch.texts(schema.person)
        arrays.append(_taken(codes, [_person(name) for name in names], pa))
    return arrays


def _texts(batch: RawBatch, name: str, pa: Any) -> Any:
    codes, texts = batch.texts(name)
    return _taken(codes, [_text(text) for text in texts], pa)


def _taken(codes: Any, values: list[str | None], pa: Any) -> Any:
    if not values:
        return pa.nulls(len(codes), type=pa.string())
    return pa.array(values, type=pa.string()).take(pa.array(codes))


def _text(text: bytes) -> str | None:
    """A text, None where there is none; what is not UTF-8 is longer than any kept text."""
    try:
        return text.decode() if text else None
    except UnicodeDecodeError:
        return "?" * 1000


def _person(name: bytes) -> str | None:
    """A text for each name; two names never share one, or one's rows would push out another's."""
    if not name:
        return None
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return "\x00" + name.hex()
    return "\x00" + name.hex() if text.startswith("\x00") else text
