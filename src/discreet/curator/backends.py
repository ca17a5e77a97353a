"""Where the bounded table lives and is asked: DuckDB in this process, or Spark.

Both are driven by the same Ibis expressions. A backend keeps one table, which has no names of
persons in it and no NULL, double or user-chosen column name, and runs compiled queries on it.
"""

from __future__ import annotations

import secrets
import threading
from pathlib import Path
from typing import Any, Protocol, final

import duckdb
import ibis  # type: ignore[import-untyped]

from discreet import _validate
from discreet.curator.scratch import PrivateFolder
from discreet.curator.sources import NOT_UTF8, one_column, open_parquet, raw_names
from discreet.data import Schema
from discreet.errors import InvalidValue, NotApplicable

__all__ = ["MOST_ROWS", "Backend", "DuckBackend", "SparkBackend", "open_backend"]

# With parts of at most 2**30 in a row, no sum over a table passes 2**62.
MOST_ROWS = 2**32

# What curator.sources makes of a text in Python: without the blanks, in hexadecimal digits, where
# it is not UTF-8.
_BLANK = "(09|0A|0B|0C|0D|20)+"
_UTF8_IN_DUCKDB = (
    f"CASE WHEN contains(coalesce(TRY(decode({{0}})), '{NOT_UTF8}'), '{NOT_UTF8}') THEN "
    f"'{NOT_UTF8}' || regexp_replace(hex({{0}}), '^{_BLANK}|{_BLANK}$', '', 'g') "
    "ELSE TRY(decode({0})) END"
)
_UTF8_IN_SPARK = (
    f"CASE WHEN NOT is_valid_utf8({{0}}) OR contains(CAST({{0}} AS STRING), '{NOT_UTF8}') THEN "
    f"concat('{NOT_UTF8}', regexp_replace(hex({{0}}), '^{_BLANK}|{_BLANK}$', '')) "
    "ELSE CAST({0} AS STRING) END"
)


class Backend(Protocol):
    """One bounded table."""

    # Whether queries can tell persons apart: the table then has all their rows, numbered.
    counts_persons: bool

    def read_parquet(self, place: str, schema: Schema) -> Any:
        """The columns of a schema in a Parquet file or directory, as Ibis sees them."""

    def read_staged(self, place: str) -> Any:
        """A Parquet file that was written here."""

    def read_database(self, place: str, table: str, schema: Schema) -> Any:
        """The columns of a schema in a table of a database file."""

    def keep(self, table: Any) -> None:
        """Compute a table once and keep it as the bounded table."""

    def bounded(self) -> Any:
        """The bounded table, as Ibis sees it."""

    def compile(self, expression: Any) -> str:
        """The text of a query for this engine."""

    def check(self, compiled: str) -> None:
        """Raise ``NotApplicable`` for a query that the engine cannot plan; no row is read."""

    def rows(self, compiled: str) -> list[tuple[Any, ...]]:
        """Run a compiled query; any thread may call this."""

    def close(self) -> None:
        """Forget the table."""


@final
class DuckBackend:
    """DuckDB in memory, spilling to a private directory; one cursor for each thread."""

    counts_persons = True

    def __init__(self, *, threads: int = 2, memory: str | None = None) -> None:
        self._spill = PrivateFolder()
        settings: dict[str, Any] = {
            "threads": _validate.integer("threads", threads, at_least=1, at_most=1024),
            "temp_directory": str(self._spill.path),
            "preserve_insertion_order": False,
            # The statistics of a Parquet file leave NaN out, and DuckDB 2.0 believes them: without
            # this, isnan() is false for a NaN among numbers.
            "disabled_optimizers": "statistics_propagation",
        }
        if memory is not None:
            settings["memory_limit"] = memory
        self._connection = duckdb.connect(":memory:", config=settings)
        self._ibis = ibis.duckdb.from_connection(self._connection)
        self._local = threading.local()
        self._compiling = threading.Lock()

    def read_parquet(self, place: str, schema: Schema) -> Any:
        if "://" in place:
            return _by_raw_names(self._ibis.read_parquet(place), schema)
        path = Path(place)
        files = _files_in(path) if path.is_dir() else [place]
        self._connection.register("given", open_parquet(files, place, schema))
        found = self._connection.execute("DESCRIBE given").fetchall()
        texts = (name for name, kind, *_ in found if kind == "BLOB")
        replaced = ", ".join(f"{_UTF8_IN_DUCKDB.format(name)} AS {name}" for name in texts)
        replaced = f" REPLACE ({replaced})" if replaced else ""
        self._connection.execute(f"CREATE TEMP VIEW texts AS SELECT *{replaced} FROM given")
        return self._ibis.table("texts")

    def read_staged(self, place: str) -> Any:
        return self._ibis.read_parquet(place)

    def read_database(self, place: str, table: str, schema: Schema) -> Any:
        self._ibis.attach(place, name="source", read_only=True)
        return _by_raw_names(self._ibis.table(table, database=("source", "main")), schema)

    def keep(self, table: Any) -> None:
        self._connection.execute(f"CREATE TABLE bounded AS {self.compile(table)}")
        _few_enough(self._connection.execute("SELECT count(*) FROM bounded").fetchall())
        self._connection.execute("SET disabled_optimizers = ''")
        # From here on no query reads a file, whatever it says.
        self._connection.execute("SET enable_external_access = false")
        self._connection.execute("SET lock_configuration = true")

    def bounded(self) -> Any:
        return self._ibis.table("bounded")

    def compile(self, expression: Any) -> str:
        with self._compiling:
            return str(self._ibis.compile(expression))

    def check(self, compiled: str) -> None:
        try:
            self.rows(f"EXPLAIN {compiled}")
        except duckdb.Error as error:
            raise NotApplicable(f"DuckDB refuses this query: {type(error).__name__}") from None

    def rows(self, compiled: str) -> list[tuple[Any, ...]]:
        cursor = getattr(self._local, "cursor", None)
        if cursor is None:
            cursor = self._local.cursor = self._connection.cursor()
        found: list[tuple[Any, ...]] = cursor.execute(compiled).fetchall()
        return found

    def close(self) -> None:
        self._connection.close()
        self._spill.close()


@final
class SparkBackend:
    """Spark at a master URL, ``local[1]`` or a cluster; the table is persisted there."""

    counts_persons = False

    def __init__(self, *, master: str = "local[1]") -> None:
        try:
            from pyspark.sql import SparkSession
        except ImportError:
            raise NotApplicable(
                "Spark needs the package pyspark: pip install 'discreet[spark]'"
            ) from None
        builder = SparkSession.builder.master(master).appName("discreet curator")
        builder = builder.config("spark.ui.enabled", "false")
        builder = builder.config("spark.ui.showConsoleProgress", "false")
        session = builder.getOrCreate()
        found = session.sparkContext.master  # that of the first session of this process
        if found != master:
            raise InvalidValue("master", master, f"{found}, where this process runs Spark already")
        self._session = session.newSession()
        # Times of the day must not depend on where a worker stands, and nothing may wrap around.
        self._session.conf.set("spark.sql.session.timeZone", "UTC")
        self._session.conf.set("spark.sql.ansi.enabled", "true")
        # A text of a query that reads ${env:HOME} is that text, not what the variable holds.
        self._session.conf.set("spark.sql.variable.substitute", "false")
        self._session.conf.set("spark.sql.parser.escapedStringLiterals", "false")
        self._ibis = ibis.pyspark.connect(self._session)
        self._name = "bounded_" + secrets.token_hex(8)
        self._kept: Any = None
        self._compiling = threading.Lock()

    def read_parquet(self, place: str, schema: Schema) -> Any:
        frame = self._session.read.parquet(place)
        kinds = dict(frame.dtypes)
        columns = []
        for raw, name in raw_names(schema).items():
            one_column(frame.columns, name)
            cell = "`" + name.replace("`", "``") + "`"
            is_text = kinds[name] in {"string", "binary"}
            columns.append(f"{_UTF8_IN_SPARK.format(cell) if is_text else cell} AS {raw}")
        return self._seen(frame.selectExpr(*columns))

    def read_staged(self, place: str) -> Any:
        return self._seen(self._session.read.parquet(place))

    def _seen(self, frame: Any) -> Any:
        view = self._name + "_source"
        frame.createOrReplaceTempView(view)
        return self._ibis.table(view)

    def read_database(self, place: str, table: str, schema: Schema) -> Any:
        raise InvalidValue("engine", "spark", "duckdb for a database file of DuckDB")

    def keep(self, table: Any) -> None:
        self._kept = self._session.sql(self.compile(table)).persist()
        _few_enough([(self._kept.count(),)])
        self._kept.createOrReplaceTempView(self._name)

    def bounded(self) -> Any:
        return self._ibis.table(self._name)

    def compile(self, expression: Any) -> str:
        with self._compiling:
            return str(self._ibis.compile(expression))

    def check(self, compiled: str) -> None:
        from pyspark.errors import PySparkException

        try:
            self._session.sql(compiled)  # analysed now, run only when its rows are collected
        except PySparkException as error:
            raise NotApplicable(f"Spark refuses this query: {type(error).__name__}") from None

    def rows(self, compiled: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._session.sql(compiled).collect()]

    def close(self) -> None:
        if self._kept is not None:
            self._kept.unpersist()
            self._session.catalog.dropTempView(self._name)


def open_backend(engine: str, *, threads: int, master: str) -> Backend:
    """The backend of a dataset."""
    if _validate.one_of("engine", engine, ("duckdb", "spark")) == "spark":
        return SparkBackend(master=master)
    return DuckBackend(threads=threads)


def _by_raw_names(table: Any, schema: Schema) -> Any:
    columns = {}
    for raw, name in raw_names(schema).items():
        one_column(table.columns, name)
        columns[raw] = table[name]
    return table.select(**columns)


def _files_in(folder: Path) -> list[str]:
    """The Parquet files of a directory and of the partitions in it, at every level.

    Names that begin with _ or . are notes of whoever wrote it, as Spark has them too.
    """
    files = []
    for one in sorted(folder.rglob("*")):
        if one.is_dir() or any(part[0] in "_." for part in one.relative_to(folder).parts):
            continue
        if one.suffix.lower() not in {".parquet", ".pq"}:
            raise InvalidValue("source", str(folder), f"Parquet files only, and not {one.name!r}")
        files.append(str(one))
    if not files:
        raise InvalidValue("source", str(folder), "a directory with Parquet files")
    return files


def _few_enough(counted: list[tuple[Any, ...]]) -> None:
    if int(counted[0][0]) > MOST_ROWS:
        raise NotApplicable(f"a curated dataset has at most {MOST_ROWS} bounded rows")
