"""A small schema with every type of column, and the slow way of reading a CSV file by it."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np

from discreet.data import Boolean, Categorical, CsvFormat, Date, Integer, Real, Schema, Table
from discreet.data._csv import split_cells

COLUMNS = {
    "age": Integer(17, 90, missing=40),
    "height": Real(0.5, 2.5),
    "sex": Categorical(["F", "M", 3], other="other", missing="unknown"),
    "smokes": Boolean(missing=True),
    "born": Date(dt.date(1900, 1, 1), dt.date(2020, 12, 31), missing=dt.date(1970, 1, 1)),
}
SCHEMA = Schema(COLUMNS)
HEADING = b"age,height,sex,smokes,born"


def write(path: Path, lines: list[bytes], *, end: bytes = b"\n") -> Path:
    path.write_bytes(end.join([HEADING, *lines, b""]))
    return path


def rows_of(table: Table) -> np.ndarray:
    """The table as one matrix of numbers."""
    columns = [np.asarray(values, dtype=float) for values in table.columns.values()]
    return np.column_stack(columns) if columns else np.empty((table.rows, 0))


def slow_rows(lines: list[bytes], schema: Schema = SCHEMA) -> np.ndarray:
    """One line and one cell at a time."""
    rows = []
    delimiter = schema.csv.delimiter.encode()
    for line in lines:
        record = line[: 1 << 20]
        record = record[:-1] if record.endswith(b"\r") else record
        if not record:
            continue
        cells = split_cells(record, delimiter)
        cells += [b""] * len(schema.columns)
        rows.append(
            [
                float(column.to_domain(np.array([column.read_text(cell)]))[0])
                for column, cell in zip(schema.columns.values(), cells, strict=False)
            ]
        )
    return np.array(rows, dtype=float).reshape(len(rows), len(schema.columns))


def with_quoted_newlines() -> Schema:
    return Schema(COLUMNS, csv=CsvFormat(quoted_newlines=True))
