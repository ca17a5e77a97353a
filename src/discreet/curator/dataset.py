"""A dataset under curation: its public schema, where the records are, and the bounded table."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from discreet import _validate
from discreet._forms import checked_text
from discreet.curator.grids import stored_columns
from discreet.curator.scratch import PrivateFolder
from discreet.data import CSV_ENDINGS, PARQUET_ENDINGS, Bounded, Date, Labelled, Schema
from discreet.errors import DiscreetError, FileUnusable, InvalidValue
from discreet.randomness import SystemSource

if TYPE_CHECKING:
    from discreet.curator.engine import Engine

__all__ = ["CuratedDataset"]

_DATABASES = (".duckdb", ".db")
_FILES = (*_DATABASES, *PARQUET_ENDINGS, *CSV_ENDINGS)
_REMOTE = ("file", "hdfs", "https", "http", "s3", "s3a", "gs", "abfss")


@final
class CuratedDataset:
    """Records of a schema, read and put in line once, when the dataset is first used.

    ``source`` is a CSV or Parquet file, a directory or URL of Parquet files, a DuckDB file (with
    ``table``), or a table in memory. ``engine`` is ``"duckdb"``, with ``threads``, or ``"spark"``
    at the URL ``master``. ``key`` (32 bytes) chooses which rows of a person are used; without it
    each opening draws a fresh one. Workers that share a key see the same rows.

    Making one costs nothing. :meth:`prepare` reads the source and builds the bounded table; faults
    of the source show there, before anything is charged.

    >>> from discreet.data import Integer, Schema
    >>> schema = Schema({"age": Integer(0, 120)}, person="who", rows_per_person=2)
    >>> people = CuratedDataset("people", schema=schema, source={"age": [30, 40], "who": "ab"})
    >>> people.describe()["unit"], people.describe()["rows_per_person"]
    ('person', 2)
    """

    def __init__(
        self,
        name: str,
        *,
        schema: Schema,
        source: Any,
        engine: str = "duckdb",
        table: str | None = None,
        threads: int = 2,
        master: str = "local[1]",
        key: bytes | None = None,
    ) -> None:
        self.name = checked_text("name", name)
        if not isinstance(schema, Schema):
            raise InvalidValue("schema", type(schema).__name__, "a Schema")
        self.schema = schema
        self.columns = stored_columns(schema)
        self.engine_name = _validate.one_of("engine", engine, ("duckdb", "spark"))
        _validate.integer("threads", threads, at_least=1, at_most=1024)
        if key is not None and len(key) < 32:
            raise InvalidValue("key", "a key", "at least 32 secret bytes")
        if table is not None:
            checked_text("table", table)
        self._source = source
        self._table = table
        self._threads = threads
        self._master = master
        self._key = key
        self._engine: Engine | None = None
        self._opening = threading.Lock()

    def __repr__(self) -> str:
        return f"<CuratedDataset {self.name!r} on {self.engine_name}>"

    @property
    def cap(self) -> int:
        """How many rows of the bounded table one unit of privacy can own."""
        return self.schema.rows_per_person or 1

    def describe(self) -> dict[str, Any]:
        """Public facts only: the schema, the unit of privacy, the cap, the grids."""
        columns: dict[str, Any] = {}
        for name, column in self.schema.columns.items():
            facts: dict[str, Any] = {"type": column.kind}
            stored = self.columns[name]
            if isinstance(column, Labelled) and stored.labels is not None:
                facts["labels"] = list(stored.labels)
            elif isinstance(column, Bounded):
                facts["bounds"] = [
                    end.isoformat() if stored.dates else end for end in (column.lower, column.upper)
                ]
                assert stored.grid is not None
                facts["step"] = str(stored.grid.step)
            columns[name] = facts
        return {
            "name": self.name,
            "schema": self.schema.content_hash,
            "unit": self.schema.unit,
            "rows_per_person": self.schema.rows_per_person,
            "expected_rows": self.schema.expected_rows,
            "columns": columns,
            "engine": self.engine_name,
        }

    def prepare(self) -> None:
        """Read the source and build the bounded table, once; later calls do nothing."""
        self.engine()

    def engine(self) -> Engine:
        """The engine that asks the bounded table; it is built by the first call."""
        if self._engine is None:
            with self._opening:
                if self._engine is None:
                    self._engine = self._open()
        return self._engine

    def close(self) -> None:
        """Forget the bounded table; the next use reads the source again, under another key."""
        with self._opening:
            if self._engine is not None:
                self._engine.close()
                self._engine = None

    def _open(self) -> Engine:
        from discreet.curator.backends import open_backend
        from discreet.curator.engine import Engine, build_bounded
        from discreet.curator.sources import write_parquet

        key = SystemSource().read(32) if self._key is None else self._key
        staging = PrivateFolder()
        backend = open_backend(self.engine_name, threads=self._threads, master=self._master)
        place = os.fspath(self._source) if isinstance(self._source, str | os.PathLike) else None
        try:
            raw: Any = None
            if place is not None and self._read_by_engine(place):
                raw = (
                    backend.read_parquet(place, self.schema)
                    if self._table is None
                    else backend.read_database(place, self._table, self.schema)
                )
                if self._has_zoned_days(raw):
                    if self._table is not None or not Path(place).is_file():
                        expected = "days, times without a zone, or Parquet files read by DuckDB"
                        raise InvalidValue("source", "times of a zone", expected)
                    raw = None  # an engine has the moment, and not the day that it was there
            coded = raw is None
            if coded:
                rows = staging.path / "rows.parquet"
                write_parquet(self._source, self.schema, rows)
                raw = backend.read_staged(str(rows))
            build_bounded(
                backend, raw, schema=self.schema, columns=self.columns, coded=coded, key=key
            )
        except BaseException as error:
            backend.close()
            if not isinstance(error, Exception) or isinstance(error, DiscreetError):
                raise
            # What an engine says may have a cell in it.
            expected = f"records that {self.engine_name} can read ({type(error).__name__})"
            raise InvalidValue("source", place or "a table", expected) from None
        finally:
            staging.close()
        return Engine(backend, self.columns)

    def _has_zoned_days(self, raw: Any) -> bool:
        from discreet.curator.sources import raw_names

        kinds = (
            raw[raw_name].type()
            for raw_name, name in raw_names(self.schema).items()
            if isinstance(self.schema.columns.get(name), Date)
        )
        return any(kind.is_timestamp() and kind.timezone is not None for kind in kinds)

    def _read_by_engine(self, place: str) -> bool:
        """Whether the engine reads the source itself; CSV is read by the rules of the schema."""
        _check_source(place)
        if self._table is not None or place.lower().endswith(_DATABASES):
            if self._table is None:
                raise InvalidValue("table", None, "the table of a DuckDB file")
            return True
        return place.lower().endswith(PARQUET_ENDINGS) or "://" in place or Path(place).is_dir()


def _check_source(place: str) -> None:
    """Refuse by its name what no engine here can read, before anything is opened."""
    scheme, mark, _ = place.partition("://")
    if mark:
        known = scheme.lower() in _REMOTE
    else:
        path = Path(place)
        known = path.is_dir() or (path.is_file() and place.lower().endswith(_FILES))
    if not known:
        there = mark or Path(place).exists()
        missing = "" if there else " (there is no such file)"
        raise (InvalidValue if there else FileUnusable)(
            "source",
            place,
            "a CSV or Parquet file, a DuckDB file with its table, a directory of Parquet files or "
            f"an address of some ({', '.join(_REMOTE)}){missing}",
        )
