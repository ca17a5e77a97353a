"""Opening a bounded table on one of the engines, and keeping it where its holder says."""

from __future__ import annotations

import hashlib
import hmac
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from discreet import _validate
from discreet.data import Schema, import_arrow
from discreet.engines._arrow import ArrowTable, build_parts
from discreet.engines._lowering import stored_columns
from discreet.engines._rows import RULES
from discreet.engines._source import Source, open_source
from discreet.engines._table import Table
from discreet.errors import DiscreetError, InvalidValue, NotApplicable
from discreet.randomness import SystemSource

ENGINES = ("arrow", "duckdb", "postgres", "spark", "ray")
_KEY_FILE = "key"


def open_table(
    source: Any,
    schema: Schema,
    *,
    engine: str = "duckdb",
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
        ``"arrow"`` (memory and numpy), ``"duckdb"``, ``"postgres"``, ``"spark"`` or ``"ray"``.
    table
        The table of a database that is the source.
    key
        At least 32 secret bytes that choose which rows of a person are used; drawn afresh without.
    keep
        A directory for the bounded table, so that opening it again takes no reading (engines
        ``"arrow"`` and ``"duckdb"``, files only). It holds rows: only its owner may read it.
    options
        Of the engine: ``partitions`` (arrow, spark, ray), ``threads`` and ``memory`` (duckdb),
        ``master`` (spark), ``address`` (postgres, ray).

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
    _validate.one_of("engine", engine, ENGINES)
    if key is not None and len(key) < 32:
        raise InvalidValue("key", "a key", "at least 32 secret bytes")
    if keep is not None and engine not in ("arrow", "duckdb"):
        raise InvalidValue("keep", str(keep), "None: only arrow and duckdb tables are kept")
    records = open_source(source, schema, table=table)
    secret = _kept_key(Path(keep), key) if keep is not None else key or SystemSource().read(32)
    try:
        return _opened(
            engine, records, schema, secret, None if keep is None else Path(keep), options
        )
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
        expected = f"records that {engine} can read ({type(error).__name__})"
        raise InvalidValue("source", place, expected) from None


def _opened(
    engine: str,
    records: Source,
    schema: Schema,
    key: bytes,
    keep: Path | None,
    options: dict[str, Any],
) -> Table:
    if engine in ("spark", "ray"):
        from discreet.engines._clusters import RayTable, SparkTable

        kind = SparkTable if engine == "spark" else RayTable
        return kind(schema, records, key, **options)
    partitions = options.pop("partitions", None) if engine == "arrow" else None
    parts = build_parts(records, schema, stored_columns(schema), key, partitions=partitions)
    if keep is not None:
        parts = _kept_parts(parts, records, schema, key, keep)
    if engine == "arrow":
        return ArrowTable(schema, parts, **options)
    from discreet.engines._databases import DuckTable, PostgresTable

    return (DuckTable if engine == "duckdb" else PostgresTable)(schema, parts, **options)


def _kept_key(folder: Path, key: bytes | None) -> bytes:
    """Return the key of a directory of kept tables, which is made where there is none."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    if key is not None:
        return key
    place = folder / _KEY_FILE
    if not place.exists():
        fresh = folder / f"{_KEY_FILE}.{os.getpid()}"
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(SystemSource().read(32))
        try:
            os.link(fresh, place)  # whoever was first wins
        except FileExistsError:
            pass
        finally:
            fresh.unlink()
    return place.read_bytes()


def _kept_parts(
    parts: Iterator[Any], records: Source, schema: Schema, key: bytes, folder: Path
) -> Iterator[Any]:
    """Yield the parts of a kept table, or those that are built and kept now."""
    parquet = import_arrow("pyarrow.parquet")
    if records.identity is None:
        raise InvalidValue(
            "keep", str(folder), "None: whether this source has changed is not known"
        )
    told = f"{schema.content_hash}|{RULES}|{schema.person}|{records.identity}"
    home = folder / hmac.new(key, told.encode(), hashlib.sha256).hexdigest()
    if home.is_dir():
        for place in sorted(home.glob("*.parquet")):
            yield parquet.read_table(place)
        return
    new = folder / f"{home.name}.{os.getpid()}.new"
    new.mkdir(mode=0o700)
    try:
        for at, part in enumerate(parts):
            place = new / f"{at:06}.parquet"
            with os.fdopen(
                os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
            ) as file:
                parquet.write_table(part, file)
                file.flush()
                os.fsync(file.fileno())
            yield part
        new.rename(home)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def forget_tables(folder: str | os.PathLike[str]) -> int:
    """Remove the bounded tables that were kept in a directory, with their key; return how many.

    Parameters
    ----------
    folder
        What was given as ``keep`` to :func:`open_table`.

    """
    home = Path(folder)
    gone = [one for one in home.glob("*") if one.is_dir() and len(one.name.split(".")[0]) == 64]
    for one in gone:
        shutil.rmtree(one)
    (home / _KEY_FILE).unlink(missing_ok=True)
    return len(gone)
