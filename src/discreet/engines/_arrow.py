"""Bounded tables in the memory of this process, asked by numpy; and how a table is built here."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, final

import numpy as np

from discreet.data import RawBatch, Schema, import_arrow
from discreet.engines._lowering import StoredColumn
from discreet.engines._rows import rank_rows, read_rows
from discreet.engines._scratch import PrivateFolder
from discreet.engines._source import Source
from discreet.engines._table import MOST_ROWS, Table
from discreet.errors import NotApplicable

_IN_MEMORY = 1 << 28  # bytes of rows that are put in line at once
_BUCKETS = 64


@final
class ArrowTable(Table):
    """Parts in memory; ``partitions`` says how many, where the table is small."""

    def __init__(self, schema: Schema, parts: Iterable[Any]) -> None:
        super().__init__(schema)
        self._parts = list(parts)

    def map_parts(self, function: Callable[[Any], bytes], names: Sequence[str]) -> Iterable[bytes]:
        return (function(part.select(list(names))) for part in self._parts)

    def close(self) -> None:
        self._parts = []


def build_parts(
    source: Source,
    schema: Schema,
    columns: Mapping[str, StoredColumn],
    key: bytes,
    *,
    partitions: int | None = None,
) -> Iterator[Any]:
    """Read a source here and yield the parts of its bounded table.

    Many rows are divided by persons into files of a private directory first, so that only one
    part at a time is put in line in memory.
    """
    pa, ipc = import_arrow("pyarrow"), import_arrow("pyarrow.ipc")
    held: list[Any] = []
    rows = 0
    spilled: list[Any] = []
    folder = None
    try:
        for batch in source.batches():
            held.append(read_rows(batch, schema, columns))
            rows += held[-1].num_rows
            if rows > MOST_ROWS:
                raise NotApplicable(f"a table has at most {MOST_ROWS} rows")
            if sum(one.nbytes for one in held) > _IN_MEMORY:
                folder = folder or PrivateFolder()
                if not spilled:
                    form = held[0].schema
                    places = [folder.path / f"part{at}.arrow" for at in range(_BUCKETS)]
                    spilled = [ipc.new_stream(str(place), form) for place in places]
                for writer, part in zip(
                    spilled, split_rows(pa.concat_tables(held), _BUCKETS), strict=True
                ):
                    writer.write_table(part)
                held = []
        last = pa.concat_tables(held) if held else no_rows(schema, columns)
        if not spilled:
            for at, part in enumerate(split_rows(last, partitions or 1)):
                yield rank_rows(part, key, bucket=at)
            return
        for at, (writer, part) in enumerate(zip(spilled, split_rows(last, _BUCKETS), strict=True)):
            writer.write_table(part)
            writer.close()
            with pa.OSFile(str(folder.path / f"part{at}.arrow")) as file:  # type: ignore[union-attr]
                yield rank_rows(ipc.open_stream(file).read_all(), key, bucket=at)
    finally:
        if folder is not None:
            folder.close()


def no_rows(schema: Schema, columns: Mapping[str, StoredColumn]) -> Any:
    """Return what :func:`read_rows` makes of no records."""
    empty = {name: np.empty(0, dtype=object) for name in schema.file_columns}
    return read_rows(RawBatch(empty, 0), schema, columns)


def split_rows(table: Any, parts: int) -> list[Any]:
    """Divide rows as :func:`read_rows` made them into parts, all rows of a person into one."""
    if parts == 1:
        return [table]
    if "name" not in table.column_names:
        ends = [-(-at * table.num_rows // parts) for at in range(parts + 1)]
        return [table.slice(low, high - low) for low, high in pairwise(ends)]
    names = table.column("name").combine_chunks().dictionary_encode()
    bucket = np.array([zlib.crc32(one) % parts for one in names.dictionary.to_pylist()] or [0])
    which = bucket[names.indices.to_numpy(zero_copy_only=False)]
    return [table.filter(which == at) for at in range(parts)]
