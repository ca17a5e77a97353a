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
from discreet.data import RawBatch, Schema, import_arrow
from discreet.engines._arrow import build_parts, no_rows, split_rows
from discreet.engines._lowering import stored_columns
from discreet.engines._rows import rank_rows, read_rows
from discreet.engines._scratch import part_files, read_part, write_part
from discreet.engines._source import Source, parquet_table, raw_batch
from discreet.engines._table import MOST_ROWS, Table, pack_rows
from discreet.errors import InvalidValue, NotApplicable

_MASTER = "local[1,4]"  # a task whose worker was killed runs again, as in a cluster
_FOUND, _PLACE = "found", "place"
_BLOCK_ROWS = 1 << 18


@final
class SparkTable(Table):
    """Spark at a master URL; rows travel between its workers as blocks of Arrow.

    The table is persisted in the cluster, each column by itself, unless it is stored in a
    directory that all workers share.
    """

    def __init__(
        self, schema: Schema, *, master: str = _MASTER, partitions: int | None = None
    ) -> None:
        super().__init__(schema)
        self._session = _spark_session(master)
        cores = int(self._session.sparkContext.defaultParallelism)
        self._count = _validate.integer("partitions", partitions or cores, at_least=1)
        self._is_stored = False

    def load(self, source: Source, key: bytes, folder: Path | None = None) -> None:
        """Read a source and persist its table, or write it into a directory."""
        context, count = self._session.sparkContext, self._count
        if source.parquet is None:
            given: Iterable[Any] = source.batches()
            read = context.parallelize(list(_read_blocks(given, schema=self.schema, parts=count)))
        else:
            table = parquet_table(source.parquet, self.schema)
            pieces = context.parallelize(_pieces(table), count)
            read = pieces.mapPartitions(
                partial(_read_blocks, schema=self.schema, parts=count, form=table.schema)
            )
        stored = [] if folder is not None else self._stored_names(None)
        place = None if folder is None else str(folder)
        rank = partial(_rank_blocks, schema=self.schema, key=key, names=stored, folder=place)
        ranked = read.partitionBy(count, int).mapPartitionsWithIndex(rank)
        form = ", ".join(["block_rows bigint", *(f"{name} binary" for name in stored)])
        self._frame = ranked.toDF(form)
        if folder is None:
            self._frame = self._frame.persist()
        _check_rows(sum(row[0] for row in self._frame.select("block_rows").collect()), folder)

    def use(self, places: Sequence[str]) -> None:
        """Ask the parts that :meth:`load` wrote into a directory."""
        self._is_stored = True
        rows = [(place,) for place in places]
        self._frame = self._session.createDataFrame(rows, f"{_PLACE} string")
        self._frame = self._frame.repartition(self._count)

    def map_parts(self, function: Callable[[Any], bytes], names: Sequence[str]) -> Iterable[bytes]:
        inner: Any
        if self._is_stored:
            frame, inner = self._frame, _ask_files
        else:
            frame, inner = self._frame.select(*names), _ask_blocks
        asked = partial(inner, function=function, names=list(names))
        return [bytes(row[0]) for row in frame.mapInArrow(asked, f"{_FOUND} binary").collect()]

    def close(self) -> None:
        self._frame.unpersist()


def _check_rows(rows: int, folder: Path | None) -> None:
    """Raise for too many rows, and where the files of the workers are not found here."""
    if rows > MOST_ROWS:
        raise NotApplicable(f"a table has at most {MOST_ROWS} rows")
    if folder is not None and rows != sum(read_part(one).num_rows for one in part_files(folder)):
        raise NotApplicable("the workers do not share the directory of keep")


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
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(_BLOCK_ROWS))
    session.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", str(1 << 28))
    return session


def _pieces(table: Any) -> list[Any]:
    """Return the row groups of Parquet files, for tasks that read them."""
    return [piece for one in table.get_fragments() for piece in one.split_by_row_group()]


def _read_pieces(pieces: Iterable[Any], form: Any, schema: Schema, *, parts: int) -> list[Any]:
    """Read row groups, or batches of cells, and divide their rows by persons into parts."""
    pa = import_arrow("pyarrow")
    columns = stored_columns(schema)
    held = [no_rows(schema, columns)]
    for piece in pieces:
        if isinstance(piece, RawBatch):
            held.append(read_rows(piece, schema, columns))
            continue
        batches = piece.to_batches(schema=form, columns=list(schema.file_columns))
        held += [read_rows(raw_batch(batch, schema), schema, columns) for batch in batches]
    return split_rows(pa.concat_tables(held), parts)


def _read_blocks(
    pieces: Iterable[Any], *, schema: Schema, parts: int, form: Any = None
) -> Iterator[tuple[int, bytes]]:
    for piece in pieces:
        for at, part in enumerate(_read_pieces([piece], form, schema, parts=parts)):
            yield at, pack_rows(part)


def _rank_blocks(
    bucket: int,
    blocks: Iterable[tuple[int, bytes]],
    *,
    schema: Schema,
    key: bytes,
    names: Sequence[str],
    folder: str | None,
) -> Iterator[tuple[Any, ...]]:
    pa = import_arrow("pyarrow")
    held = [_unpack(block) for _, block in blocks] or [no_rows(schema, stored_columns(schema))]
    ranked = rank_rows(pa.concat_tables(held), key, bucket=bucket)
    if folder is not None:
        write_part(folder, bucket, ranked)
        yield (ranked.num_rows,)
        return
    for start in range(0, max(1, ranked.num_rows), _BLOCK_ROWS):
        part = ranked.slice(start, _BLOCK_ROWS)
        yield (part.num_rows, *(pack_rows(part.select([name])) for name in names))


def _ask_blocks(
    batches: Iterator[Any], *, function: Callable[[Any], bytes], names: list[str]
) -> Iterator[Any]:
    pa = import_arrow("pyarrow")
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for batch in batches:
        for name, chunks in columns.items():
            for block in batch.column(name):
                chunks += _unpack(block.as_buffer()).column(0).chunks
    if any(columns.values()):
        part = pa.table({name: pa.chunked_array(chunks) for name, chunks in columns.items()})
        yield _record({_FOUND: function(part)})


def _ask_files(
    batches: Iterator[Any], *, function: Callable[[Any], bytes], names: list[str]
) -> Iterator[Any]:
    for batch in batches:
        for place in batch.column(_PLACE).to_pylist():
            yield _record({_FOUND: function(read_part(place).select(names))})


def _unpack(block: Any) -> Any:
    return import_arrow("pyarrow.ipc").open_stream(block).read_all()


def _record(row: Mapping[str, Any]) -> Any:
    return import_arrow("pyarrow").RecordBatch.from_pylist([dict(row)])


@final
class RayTable(Table):
    """Ray, here or at an address; the parts lie in its object store."""

    def __init__(self, schema: Schema, *, address: str | None = None, partitions: int = 2) -> None:
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
        self._count = _validate.integer("partitions", partitions, at_least=1)
        self._parts: list[Any] = []

    def load(self, source: Source, key: bytes, folder: Path | None = None) -> None:
        """Read a source into the object store, or write its table into a directory."""
        if source.parquet is None:
            parts = build_parts(source, self.schema, self.columns, key, partitions=self._count)
            self._parts = [self._ray.put(part) for part in parts]
        else:
            self._parts = self._read_there(source.parquet, key, self._count)
        finish = self._ray.remote(_finish_part)
        place = None if folder is None else str(folder)
        counted = [finish.remote(part, at, place) for at, part in enumerate(self._parts)]
        rows = sum(self._ray.get(counted))
        if rows > MOST_ROWS:
            raise NotApplicable(f"a table has at most {MOST_ROWS} rows")
        if folder is not None and rows != sum(
            read_part(one).num_rows for one in part_files(folder)
        ):
            raise NotApplicable("the workers of Ray do not share the directory of keep")

    def use(self, places: Sequence[str]) -> None:
        """Ask the parts that :meth:`load` wrote into a directory."""
        self._parts = list(places)

    def _read_there(self, place: str, key: bytes, count: int) -> list[Any]:
        """Divide the row groups of Parquet files among tasks, then the rows by persons."""
        table = parquet_table(place, self.schema)
        pieces = _pieces(table)
        read = self._ray.remote(_read_for_ray).options(num_returns=count)
        rank = self._ray.remote(_rank_pieces)
        given = [
            read.remote(pieces[at::count], table.schema, self.schema, parts=count)
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


def _read_for_ray(pieces: Sequence[Any], form: Any, schema: Schema, *, parts: int) -> Any:
    found = _read_pieces(pieces, form, schema, parts=parts)
    return found if parts > 1 else found[0]


def _rank_pieces(key: bytes, bucket: int, *pieces: Any) -> Any:
    return rank_rows(import_arrow("pyarrow").concat_tables(pieces), key, bucket=bucket)


def _ask_part(part: Any, function: Callable[[Any], bytes], names: list[str]) -> bytes:
    return function((read_part(part) if isinstance(part, str) else part).select(names))


def _finish_part(part: Any, at: int, folder: str | None) -> int:
    if folder is not None:
        write_part(folder, at, part)
    return int(part.num_rows)
