"""Where records are: files, directories, databases and memory, all of them as batches of cells."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from discreet.data import (
    CSV_ENDINGS,
    PARQUET_ENDINGS,
    Date,
    RawBatch,
    Schema,
    import_arrow,
    open_input,
)
from discreet.errors import FileUnusable, InvalidValue

DATABASES = (".duckdb", ".db")
_FILES = (*DATABASES, *PARQUET_ENDINGS, *CSV_ENDINGS)
_REMOTE = ("file", "hdfs", "https", "http", "s3", "s3a", "gs", "abfss")
_POSTGRES = ("postgresql://", "postgres://")
_BATCH_ROWS = 1 << 16


@dataclass(frozen=True)
class Source:
    """Records that can be read: their batches, and what is known of their place.

    ``identity`` changes when the records do; None where that is unknown. ``parquet`` is the
    place of Parquet files that a cluster can read by itself.
    """

    batches: Callable[[], Iterator[RawBatch]]
    identity: str | None = None
    parquet: str | None = None


def open_source(source: Any, schema: Schema, *, table: str | None = None) -> Source:
    """Return the records behind a path, an address, a data frame, a mapping or an Arrow table.

    Parameters
    ----------
    source
        A CSV or Parquet file, a directory of Parquet files, an address of some, a DuckDB file or
        an address of PostgreSQL (both with ``table``), or a table in memory.
    schema
        What the records are.
    table
        The table of a database.

    Raises
    ------
    InvalidValue
        What is there is no such source, or lacks a column.
    FileUnusable
        There is no such file.

    """
    if not isinstance(source, str | os.PathLike):
        return Source(_in_memory(source, schema))
    place = os.fspath(source)
    if place.startswith(_POSTGRES):
        return Source(lambda: _from_postgres(place, _require_table(table), schema))
    _check_place(place)
    if table is not None or place.lower().endswith(DATABASES):
        log = Path(place + ".wal")  # rows that are not in the file yet
        files = [place, *([str(log)] if log.exists() else [])]
        return Source(
            lambda: _from_duckdb(place, _require_table(table), schema), _identity(files, table)
        )
    if "://" in place:
        return Source(lambda: _from_address(place, schema), parquet=place)
    if Path(place).is_dir():
        files = _files_in(Path(place))
        return Source(lambda: _from_directory(place, schema), _identity(files), place)
    parquet = place if place.lower().endswith(PARQUET_ENDINGS) else None
    return Source(_in_memory(place, schema), _identity([place]), parquet)


def _require_table(table: str | None) -> str:
    if table is None:
        raise InvalidValue("table", None, "the table of a database")
    return table


def _in_memory(source: Any, schema: Schema) -> Callable[[], Iterator[RawBatch]]:
    return lambda: open_input(source, schema).batches(schema.file_columns, _BATCH_ROWS)


def _identity(files: Sequence[str], table: str | None = None) -> str:
    states = [(Path(one).resolve(), Path(one).stat()) for one in files]
    found = [
        (str(place), state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
        for place, state in states
    ]
    return repr((sorted(found), table))


def _check_place(place: str) -> None:
    """Refuse by its name what no engine here can read, before anything is opened."""
    scheme, mark, _ = place.partition("://")
    path = Path(place)
    if mark:
        known = scheme.lower() in _REMOTE
    else:
        known = path.is_dir() or (path.is_file() and place.lower().endswith(_FILES))
    if not known:
        there = mark or path.exists()
        missing = "" if there else " (there is no such file)"
        raise (InvalidValue if there else FileUnusable)(
            "source",
            place,
            "a CSV or Parquet file, a DuckDB file with its table, a directory of Parquet files or "
            f"an address of some ({', '.join(_REMOTE)}){missing}",
        )


def _files_in(folder: Path) -> list[str]:
    """Return the Parquet files of a directory and of the partitions in it, at every level.

    Names that begin with _ or . are notes of the program that wrote it, as in Spark.
    """
    files = []
    for one in sorted(folder.rglob("*")):
        if any(part[0] in "_." for part in one.relative_to(folder).parts):
            continue
        if one.is_dir():
            if one.is_symlink():
                raise InvalidValue(
                    "source", str(folder), f"directories, and not the link {one.name!r}"
                )
            continue
        if one.suffix.lower() not in {".parquet", ".pq"}:
            raise InvalidValue("source", str(folder), f"Parquet files only, and not {one.name!r}")
        files.append(str(one))
    if not files:
        raise InvalidValue("source", str(folder), "a directory with Parquet files")
    return files


def _from_directory(place: str, schema: Schema) -> Iterator[RawBatch]:
    table = parquet_table(place, schema)
    try:
        names = list(schema.file_columns)
        for batch in table.to_batches(columns=names, batch_size=_BATCH_ROWS):
            yield raw_batch(batch, schema)
    except (OSError, import_arrow("pyarrow").ArrowException):
        raise InvalidValue("source", place, "readable Parquet files") from None


def parquet_table(place: str, schema: Schema) -> Any:
    """Return a Parquet file, a directory or an address of some, as a dataset of Arrow.

    Its files have to have the columns of the schema, of one type each. What stands in the names of
    its directories is text: a type read off all of them would let one record change every other.
    """
    pa, ds = import_arrow("pyarrow"), import_arrow("pyarrow.dataset")
    local = Path(place)
    is_folder = local.is_dir()
    files = _files_in(local) if is_folder else place.replace("s3a://", "s3://")
    base = place if is_folder else None
    try:
        table = ds.dataset(files, format="parquet")
        start = len(local.parts) if is_folder else 0
        paths = [Path(file) for file in (files if is_folder else table.files)]
        parts = {unquote(part) for path in paths for part in path.parts[start:-1]}
        keys = {part.partition("=")[0] for part in parts if "=" in part}
        in_path = sorted(keys.intersection(schema.file_columns).difference(table.schema.names))
        if in_path:
            texts = ds.partitioning(
                pa.schema([(key, pa.string()) for key in in_path]), flavor="hive"
            )
            table = ds.dataset(files, format="parquet", partitioning=texts, partition_base_dir=base)
        kinds = {name: _type_of(table.schema, name) for name in schema.file_columns}
        for part in table.get_fragments():
            for name in kinds.keys() - ds.get_partition_keys(part.partition_expression).keys():
                if _type_of(part.physical_schema, name) != kinds[name]:
                    expected = f"one type of column {name!r} in all its files"
                    raise InvalidValue("source", place, expected)
    except (OSError, pa.ArrowException):
        raise InvalidValue("source", place, "readable Parquet files") from None
    open_input(table.schema.empty_table(), schema)
    return table


def _type_of(form: Any, name: str) -> Any:
    if list(form.names).count(name) != 1:
        raise InvalidValue("source", "a table", f"one column {name!r}")
    return form.field(name).type


def raw_batch(batch: Any, schema: Schema) -> RawBatch:
    """Return the columns of a schema in an Arrow batch as cells to be read."""
    return RawBatch({name: batch.column(name) for name in schema.file_columns}, batch.num_rows)


def _from_duckdb(place: str, table: str, schema: Schema) -> Iterator[RawBatch]:
    import duckdb

    with duckdb.connect(place, read_only=True) as connection:
        names = ", ".join(_quote(name) for name in schema.file_columns)
        yield from _read_query(connection, f"SELECT {names} FROM {_quote(table)}", schema)


def _from_address(place: str, schema: Schema) -> Iterator[RawBatch]:
    import duckdb

    with duckdb.connect(":memory:") as connection:
        names = ", ".join(_quote(name) for name in schema.file_columns)
        address = place.replace("'", "''")
        # A type read off the names of all directories would let one record change every other.
        given = f"'{address}', hive_types_autocast = false"
        yield from _read_query(connection, f"SELECT {names} FROM read_parquet({given})", schema)


def _read_query(connection: Any, query: str, schema: Schema) -> Iterator[RawBatch]:
    reader = connection.sql(query).to_arrow_reader(_BATCH_ROWS)
    check_types(reader.schema, schema)
    for batch in reader:
        yield raw_batch(batch, schema)


def check_types(form: Any, schema: Schema) -> None:
    """Raise where a declared type fits no column, or a database has lost the zone of a time."""
    for name, column in schema.columns.items():
        if isinstance(column, Date) and getattr(_type_of(form, name), "tz", None) is not None:
            expected = "days, times without a zone, or Parquet files read by DuckDB"
            raise InvalidValue("source", "times of a zone", expected)
    open_input(form.empty_table(), schema)


def _from_postgres(place: str, table: str, schema: Schema) -> Iterator[RawBatch]:
    import psycopg

    from discreet.data import column_array

    names = ", ".join(_quote(name) for name in schema.file_columns)
    with psycopg.connect(place) as connection, connection.cursor(name="records") as cursor:
        query = f"SELECT {names} FROM {_quote(table)}"
        cursor.execute(query.encode())
        for name, column in zip(schema.file_columns, cursor.description or (), strict=True):
            if isinstance(schema.columns.get(name), Date) and column.type_display == "timestamptz":
                raise InvalidValue("source", "times of a zone", "days, or times without a zone")
        while rows := cursor.fetchmany(_BATCH_ROWS):
            arrays = {
                name: column_array(name, list(cells))
                for name, cells in zip(schema.file_columns, zip(*rows, strict=True), strict=True)
            }
            yield RawBatch(arrays, len(rows))


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
