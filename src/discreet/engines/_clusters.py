"""Bounded tables on Spark and on Ray: cells are read, and terms evaluated, inside the workers.

Workers need discreet and pyarrow. A part that is lost with its worker is made again from the
source: it depends on records and key alone, so neither an answer nor a charge changes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, final

from discreet import _validate
from discreet.data import Date, Schema, import_arrow
from discreet.engines._arrow import build_parts, split_rows
from discreet.engines._lowering import StoredColumn, stored_columns
from discreet.engines._rows import PERSON, RANK, rank_rows, read_rows
from discreet.engines._source import Source, raw_batch
from discreet.engines._table import MOST_ROWS, Table
from discreet.errors import InvalidValue, NotApplicable

_SPARK_KINDS = {"int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint"}
_FOUND = "found"


@final
class SparkTable(Table):
    """Spark at a master URL, ``local[1]`` or a cluster; the table is persisted there."""

    def __init__(
        self,
        schema: Schema,
        source: Source,
        key: bytes,
        *,
        master: str = "local[1]",
        partitions: int | None = None,
    ) -> None:
        super().__init__(schema)
        self._session = _spark_session(master)
        parts = _validate.integer("partitions", partitions or _cores(self._session), at_least=1)
        if source.parquet is None:
            read = self._read_here(source)
        else:
            frame = self._session.read.parquet(source.parquet)
            _check_frame(frame, schema)
            names = ["`" + name.replace("`", "``") + "`" for name in schema.file_columns]
            inner = partial(_read_batches, schema=schema, columns=self.columns)
            read = frame.select(*names).mapInArrow(inner, self._form(named=True))
        if schema.person is None:
            self._frame = read if partitions is None else read.repartition(parts)
        else:
            ranked = partial(_rank_batches, key=key)
            self._frame = read.repartition(parts, "name").mapInArrow(ranked, self._form())
        self._frame = self._frame.persist()
        if self._frame.count() > MOST_ROWS:
            raise NotApplicable(f"a table has at most {MOST_ROWS} rows")

    def _read_here(self, source: Source) -> Any:
        pa = import_arrow("pyarrow")
        read = [read_rows(batch, self.schema, self.columns) for batch in source.batches()]
        form = self._form(named=True)
        if not any(one.num_rows for one in read):
            return self._session.createDataFrame([], form)
        return self._session.createDataFrame(pa.concat_tables(read), form)

    def _form(self, *, named: bool = False) -> str:
        kinds = [
            f"{one.stored_name} {_SPARK_KINDS.get(one.storage or '', 'string')}"
            for one in self.columns.values()
        ]
        if self.schema.person is not None:
            kinds += ["name binary"] if named else [f"{PERSON} bigint", f"{RANK} int"]
        return ", ".join(kinds)

    def map_parts(self, function: Callable[[Any], bytes], names: Sequence[str]) -> Iterable[bytes]:
        inner = partial(_ask_batches, function=function)
        found = self._frame.select(*names).mapInArrow(inner, f"{_FOUND} binary")
        return [bytes(row[0]) for row in found.collect()]

    def close(self) -> None:
        self._frame.unpersist()


def _spark_session(master: str) -> Any:
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise NotApplicable(
            "Spark needs the package pyspark: pip install 'discreet[spark]'"
        ) from None
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName("discreet")
    builder = builder.config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    session = builder.getOrCreate()
    found = session.sparkContext.master  # that of the first session of this process
    if found != master:
        raise InvalidValue("master", master, f"{found}, where this process runs Spark already")
    session = session.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "65536")
    return session


def _cores(session: Any) -> int:
    return int(session.sparkContext.defaultParallelism)


def _check_frame(frame: Any, schema: Schema) -> None:
    """Raise unless the columns are there, each once, and days have no zone that Spark forgets."""
    from pyspark.sql.types import TimestampType

    for name in schema.file_columns:
        if frame.columns.count(name) != 1:
            raise InvalidValue("source", "a table", f"one column {name!r}")
        zoned = isinstance(frame.schema[name].dataType, TimestampType)
        if zoned and isinstance(schema.columns.get(name), Date):
            expected = "days, times without a zone, or Parquet files read by DuckDB"
            raise InvalidValue("source", "times of a zone", expected)


def _read_batches(
    batches: Iterator[Any], *, schema: Schema, columns: Mapping[str, StoredColumn]
) -> Iterator[Any]:
    for batch in batches:
        yield from read_rows(raw_batch(batch, schema), schema, columns).to_batches()


def _rank_batches(batches: Iterator[Any], *, key: bytes) -> Iterator[Any]:
    from pyspark import TaskContext

    pa = import_arrow("pyarrow")
    held = list(batches)
    if held:
        bucket = TaskContext.get().partitionId()  # type: ignore[union-attr]
        yield from rank_rows(pa.Table.from_batches(held), key, bucket=bucket).to_batches()


def _ask_batches(batches: Iterator[Any], *, function: Callable[[Any], bytes]) -> Iterator[Any]:
    pa = import_arrow("pyarrow")
    held = list(batches)
    if held:
        found = function(pa.Table.from_batches(held))
        yield pa.record_batch({_FOUND: pa.array([found], pa.binary())})


@final
class RayTable(Table):
    """Ray, here or at an address; the parts lie in its object store."""

    def __init__(
        self,
        schema: Schema,
        source: Source,
        key: bytes,
        *,
        address: str | None = None,
        partitions: int = 2,
    ) -> None:
        super().__init__(schema)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            import ray
        except ImportError:
            raise NotApplicable("Ray needs the package ray: pip install 'discreet[ray]'") from None
        if not ray.is_initialized():
            ray.init(address=address, include_dashboard=False, log_to_driver=False)
        self._ray: Any = ray
        count = _validate.integer("partitions", partitions, at_least=1)
        if source.parquet is None:
            parts = build_parts(source, schema, self.columns, key, partitions=count)
            self._parts = [ray.put(part) for part in parts]
        else:
            self._parts = self._read_there(source.parquet, key, count)
        count_rows = self._ray.remote(_count_rows)
        if sum(ray.get([count_rows.remote(part) for part in self._parts])) > MOST_ROWS:
            raise NotApplicable(f"a table has at most {MOST_ROWS} rows")

    def _read_there(self, place: str, key: bytes, count: int) -> list[Any]:
        """Divide the row groups of Parquet files among tasks, then the rows by persons."""
        ds = import_arrow("pyarrow.dataset")
        base = place if Path(place).is_dir() else None
        files = ds.dataset(place, format="parquet", partitioning="hive", partition_base_dir=base)
        pieces = [piece for one in files.get_fragments() for piece in one.split_by_row_group()]
        read = self._ray.remote(_read_pieces)
        rank = self._ray.remote(_rank_pieces)
        given = [
            read.options(num_returns=count).remote(
                pieces[at::count], files.schema, self.schema, parts=count
            )
            for at in range(count)
        ]
        columns = [[one] if count == 1 else one for one in given]
        return [rank.remote(key, at, *(column[at] for column in columns)) for at in range(count)]

    def map_parts(self, function: Callable[[Any], bytes], names: Sequence[str]) -> Iterable[bytes]:
        ask = self._ray.remote(_ask_part)
        found = [ask.remote(part, function, list(names)) for part in self._parts]
        return list(self._ray.get(found))

    def close(self) -> None:
        self._parts = []


def _read_pieces(pieces: Sequence[Any], form: Any, schema: Schema, *, parts: int) -> Any:
    pa = import_arrow("pyarrow")
    columns = stored_columns(schema)
    held = [read_rows(raw_batch(form.empty_table(), schema), schema, columns)]
    for piece in pieces:
        batches = piece.to_batches(schema=form, columns=list(schema.file_columns))
        held += [read_rows(raw_batch(batch, schema), schema, columns) for batch in batches]
    found = split_rows(pa.concat_tables(held), parts)
    return found if parts > 1 else found[0]


def _rank_pieces(key: bytes, bucket: int, *pieces: Any) -> Any:
    return rank_rows(import_arrow("pyarrow").concat_tables(pieces), key, bucket=bucket)


def _ask_part(part: Any, function: Callable[[Any], bytes], names: list[str]) -> bytes:
    return function(part.select(names))


def _count_rows(part: Any) -> int:
    return int(part.num_rows)
