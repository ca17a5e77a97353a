"""Open a bounded table on one of the engines."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from discreet import _validate
from discreet.data import Schema
from discreet.engines._arrow import ArrowTable, build_parts
from discreet.engines._lowering import stored_columns
from discreet.engines._rows import RULES
from discreet.engines._scratch import Storage, part_files, read_part, write_part
from discreet.engines._source import Source, open_source
from discreet.engines._table import Table
from discreet.errors import DiscreetError, InvalidValue, NotApplicable
from discreet.randomness import SystemSource

ENGINES = ("arrow", "duckdb", "postgres", "spark", "ray")


def open_table(
    source: Any,
    schema: Schema,
    *,
    engine: str | Callable[..., Table] = "duckdb",
    table: str | None = None,
    key: bytes | None = None,
    keep: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Table:
    """Read records once and return their bounded table.

    Parameters
    ----------
    source
        A CSV or Parquet file, a directory or address of Parquet files, a DuckDB file or an address
        of PostgreSQL (both with ``table``), or a table in memory.
    schema
        What the records are; it decides every cell.
    engine
        ``"arrow"`` (memory and numpy), ``"duckdb"``, ``"postgres"``, ``"spark"`` or ``"ray"``; or
        what makes a :class:`Table` of a schema, an iterator of parts and the options.
    table
        The table of a database that is the source.
    key
        At least 32 secret bytes that choose which rows of a person are used; drawn afresh without.
    keep
        A directory in which the bounded table is stored, so that opening it again reads no source
        (which has to be a file or a directory). It holds rows: only its owner may read it. Workers
        of Spark and Ray have to share it; PostgreSQL copies the stored rows into its server.
    options
        Of the engine: ``partitions`` (all of them; no number depends on it), ``threads`` and
        ``memory`` (duckdb; with it the rows lie in a private file), ``master`` (spark),
        ``address`` (postgres, ray).

    Returns
    -------
    Table
        The same integers on every engine.

    Raises
    ------
    InvalidValue
        The source or an option is not as described; no message has a cell in it.

    """
    if not isinstance(schema, Schema):
        raise InvalidValue("schema", type(schema).__name__, "a Schema")
    if not callable(engine):
        _validate.one_of("engine", engine, ENGINES)
    if key is not None and len(key) < 32:
        raise InvalidValue("key", "a key", "at least 32 secret bytes")
    stored_columns(schema)
    records = open_source(source, schema, table=table)
    storage = None if keep is None else Storage(keep, key)
    if storage is not None and records.identity is None:
        raise InvalidValue("keep", str(keep), "None: whether this source has changed is not known")
    secret = storage.key if storage is not None else key or SystemSource().read(32)
    try:
        return _open_engine(engine, records, schema, secret, storage, options)
    except Exception as error:
        if isinstance(error, DiscreetError | TypeError):
            raise
        if "No module named 'discreet'" in str(error):
            raise NotApplicable(
                "workers cannot import discreet: install it there, or set PYSPARK_PYTHON to a "
                "Python that has it, before the session of Spark begins"
            ) from None
        # What an engine says may have a cell in it.
        place = os.fspath(source) if isinstance(source, str | os.PathLike) else "a table"
        name = engine if isinstance(engine, str) else getattr(engine, "__name__", "the engine")
        expected = f"records that {name} can read ({type(error).__name__})"
        raise InvalidValue("source", place, expected) from None


def _open_engine(
    engine: str | Callable[..., Table],
    records: Source,
    schema: Schema,
    key: bytes,
    storage: Storage | None,
    options: dict[str, Any],
) -> Table:
    from discreet.engines._clusters import RayTable, SparkTable
    from discreet.engines._databases import DuckTable, PostgresTable

    if engine in ("spark", "ray"):
        cluster = SparkTable if engine == "spark" else RayTable
        made = cluster(schema, **options)
        if storage is None:
            made.load(records, key)
        else:
            identity = _identity(records, schema)
            home = storage.find(identity, lambda new: made.load(records, key, new))
            made.use(part_files(home))
        return made
    partitions = options.pop("partitions", None)
    parts = build_parts(records, schema, stored_columns(schema), key, partitions=partitions)
    if engine == "duckdb":
        if storage is None:
            return DuckTable(schema, parts, **options)
        identity = _identity(records, schema) + "|duckdb"
        home = storage.find(identity, lambda new: DuckTable.store(parts, new, **options))
        return DuckTable(schema, home, **options)

    def write(new: Path) -> None:
        for at, part in enumerate(parts):
            write_part(new, at, part)

    if storage is not None:
        home = storage.find(_identity(records, schema), write)
        parts = (read_part(place) for place in part_files(home))
    if callable(engine):
        return engine(schema, parts, **options)
    return (ArrowTable if engine == "arrow" else PostgresTable)(schema, parts, **options)


def _identity(records: Source, schema: Schema) -> str:
    return f"{schema.content_hash}|{RULES}|{schema.person}|{records.identity}"
