"""Bounded tables on five engines, asked by expressions, with the same integers on each.

- :func:`open_table` reads records once, by the rules of their schema, and puts the rows of each
  person in line: on Arrow, DuckDB, PostgreSQL, Spark or Ray.
- :class:`Table` computes an :class:`Aggregation` (:meth:`Table.aggregate`), adds up what a function
  makes of batches where the rows are (:meth:`Table.fold`) and hands out rows
  (:meth:`Table.batches`). Derive from it for an engine of your own.
- Expressions (:class:`Field`, :class:`Add`, :class:`Compare` ...) are total, have a range that is
  known beforehand and are read from JSON; :class:`Lowering` makes integer terms of them.

Answers are exact and private: the caller adds the noise and pays for it.
Ibis, DuckDB, psycopg, pyspark and ray are imported when they are first used.
"""

from discreet.engines._expressions import (
    CONDITIONS,
    NUMBERS,
    Absolute,
    Add,
    AllOf,
    AnyOf,
    Bucket,
    Case,
    Clip,
    Compare,
    Condition,
    Day,
    Divide,
    Field,
    Greatest,
    If,
    Least,
    Lookup,
    Multiply,
    Not,
    Number,
    OneOf,
    StartsWith,
    Subtract,
    ToNumber,
    Value,
    condition,
    condition_from_json,
    number,
    number_from_json,
)
from discreet.engines._lowering import (
    Grid,
    Key,
    Lowered,
    Lowering,
    StoredColumn,
    bin_index,
    bucket_index,
    square_exactly,
    stored_columns,
    subtract_floor,
    truth_number,
)
from discreet.engines._open import ENGINES, open_table
from discreet.engines._scratch import PrivateFolder, Scratch, forget_tables, remove_stale
from discreet.engines._table import Aggregation, Table
from discreet.engines._term import Term, evaluate

__all__ = [
    "CONDITIONS",
    "ENGINES",
    "NUMBERS",
    "Absolute",
    "Add",
    "Aggregation",
    "AllOf",
    "AnyOf",
    "Bucket",
    "Case",
    "Clip",
    "Compare",
    "Condition",
    "Day",
    "Divide",
    "Field",
    "Greatest",
    "Grid",
    "If",
    "Key",
    "Least",
    "Lookup",
    "Lowered",
    "Lowering",
    "Multiply",
    "Not",
    "Number",
    "OneOf",
    "PrivateFolder",
    "Scratch",
    "StartsWith",
    "StoredColumn",
    "Subtract",
    "Table",
    "Term",
    "ToNumber",
    "Value",
    "bin_index",
    "bucket_index",
    "condition",
    "condition_from_json",
    "evaluate",
    "forget_tables",
    "number",
    "number_from_json",
    "open_table",
    "remove_stale",
    "square_exactly",
    "stored_columns",
    "subtract_floor",
    "truth_number",
]
