"""Bounded tables in DuckDB and PostgreSQL, asked by SQL."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from discreet import _validate
from discreet.data import Schema, import_arrow, number_in_text
from discreet.engines._rows import OWNED, PERSON, RANK
from discreet.engines._scratch import PrivateFolder
from discreet.engines._table import Aggregation, Group, Sums, Table, join_limbs
from discreet.errors import NotApplicable

_REMEMBERED = 1024
_STORED = "bounded.duckdb"


class DatabaseTable(Table):
    """A table that is asked by SQL; texts of aggregations are remembered."""

    dialect: str

    def __init__(self, schema: Schema) -> None:
        super().__init__(schema)
        self._compiled: OrderedDict[Aggregation, str] = OrderedDict()
        self._guard = threading.Lock()

    def check(self, aggregation: Aggregation) -> None:
        self.require_persons(aggregation)
        self.compile_sql(aggregation)

    def aggregate(self, aggregation: Aggregation) -> Sums:
        width = len(aggregation.keys)
        found: Sums = {}
        for row in self.rows(self.compile_sql(aggregation)):
            group: Group = tuple(
                self.text(one) if isinstance(one, str) else int(one) for one in row[:width]
            )
            count = int(row[width])
            sums = [int(one or 0) for one in row[width + 1 :]]
            found[group] = (count, *join_limbs(aggregation.sums, count, sums))
        return found

    def compile_sql(self, aggregation: Aggregation) -> str:
        """Return the SQL of an aggregation, which the database has agreed to run."""
        from discreet.engines._sql import bounded_table, write_sql

        with self._guard:
            if aggregation in self._compiled:
                self._compiled.move_to_end(aggregation)
                return self._compiled[aggregation]
            persons = self.schema.person is not None
            try:
                table = bounded_table(list(self.columns.values()), persons=persons)
                text = write_sql(aggregation, table, dialect=self.dialect, text=self.literal)
            except Exception as error:  # noqa: BLE001 - whatever it is, it comes from the query alone
                name = type(error).__name__
                raise NotApplicable(f"the query is too large for the engine ({name})") from None
        self.explain(text)
        with self._guard:
            self._compiled[aggregation] = text
            while len(self._compiled) > _REMEMBERED:
                self._compiled.popitem(last=False)
        return text

    def map_parts(self, function: Callable[[Any], bytes], names: Sequence[str]) -> Iterable[bytes]:
        yield function(self.arrow(self._all_rows(names)))

    def _all_rows(self, names: Sequence[str]) -> str:
        line = "" if self.schema.person is None else f" ORDER BY {PERSON}, {RANK}"
        return f"SELECT {', '.join(names)} FROM bounded{line}"

    def literal(self, text: str) -> str:
        """Return what the database has for a text."""
        return text

    def text(self, stored: str) -> str:
        """Return the text that the database has stored so."""
        return stored

    def rows(self, text: str) -> Sequence[tuple[Any, ...]]:
        """Run a query; any thread may call this."""
        raise NotImplementedError

    def arrow(self, text: str) -> Any:
        """Run a query and return an Arrow table."""
        raise NotImplementedError

    def explain(self, text: str) -> None:
        """Raise ``NotApplicable`` for a query that the database cannot plan."""
        raise NotImplementedError


def for_database(part: Any) -> Any:
    """Return a part with what a database cannot find out as fast, or by rules of its own.

    That is the number that each text spells, NULL where it spells none, and how many rows the
    person of a row has: all of them are in this part, side by side. The columns are those of
    :func:`~discreet.engines._sql.bounded_table`, in its order.
    """
    from discreet.engines._sql import HUGE, SPELLED

    pa = import_arrow("pyarrow")
    for name in part.column_names:
        if pa.types.is_string(part.column(name).type):
            coded = pa.chunked_array(part.column(name)).combine_chunks().dictionary_encode()
            if isinstance(coded, pa.ChunkedArray):
                coded = coded.combine_chunks()
            spelled = np.array(
                [number_in_text(one.encode()) for one in coded.dictionary.to_pylist()] or [0.0]
            )
            numbers = pa.array(np.clip(spelled, -HUGE, HUGE), from_pandas=True)
            behind = part.column_names.index(name) + 1
            part = part.add_column(behind, name + SPELLED, numbers.take(coded.indices))
    if PERSON in part.column_names:
        persons = part.column(PERSON).to_numpy()
        starts = np.flatnonzero(np.diff(persons, prepend=-1))
        owned = np.diff(starts, append=persons.size)
        part = part.append_column(OWNED, pa.array(np.repeat(owned, owned).astype(np.int32)))
    return part


@final
class DuckTable(DatabaseTable):
    """DuckDB in memory, spilling to a private directory; one cursor for each thread.

    With ``memory`` the rows lie in a file of that directory: what is read of them can be forgotten
    at once, where rows in memory have to be written out first.

    Instead of parts it takes the directory where :meth:`store` has written the table, and reads
    the file there.
    """

    dialect = "duckdb"

    def __init__(
        self,
        schema: Schema,
        parts: Iterable[Any] | Path,
        *,
        threads: int = 2,
        memory: str | None = None,
    ) -> None:
        super().__init__(schema)
        self._spill = PrivateFolder()
        place = ":memory:" if memory is None else str(self._spill.path / _STORED)
        self._connection = _duckdb(place, self._spill, threads, memory)
        self._local = threading.local()
        try:
            if isinstance(parts, Path):
                place = str(parts / _STORED).replace("'", "''")
                self._connection.execute(f"ATTACH '{place}' AS stored (READ_ONLY)")
                self._connection.execute("CREATE VIEW bounded AS FROM stored.bounded")
            else:
                _insert(self._connection, parts)
        except BaseException:
            self.close()
            raise
        # From here on no query reads a file, whatever it says.
        self._connection.execute("SET enable_external_access = false")
        self._connection.execute("SET lock_configuration = true")

    @staticmethod
    def store(
        parts: Iterable[Any], folder: Path, *, threads: int = 2, memory: str | None = None
    ) -> None:
        """Write the parts of a table into a file of DuckDB, which only its owner may read."""
        spill = PrivateFolder()
        place = folder / _STORED
        try:
            with _duckdb(str(place), spill, threads, memory) as connection:
                _insert(connection, parts)
        finally:
            spill.close()
        place.chmod(0o600)
        with place.open("rb") as file:
            os.fsync(file.fileno())

    def explain(self, text: str) -> None:
        import duckdb

        try:
            self.rows(f"EXPLAIN {text}")
        except duckdb.Error as error:
            raise NotApplicable(f"DuckDB refuses this query: {type(error).__name__}") from None

    def rows(self, text: str) -> Sequence[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._cursor().execute(text).fetchall()
        return found

    def map_parts(self, function: Callable[[Any], bytes], names: Sequence[str]) -> Iterable[bytes]:
        read = list(names)
        if self.schema.person is not None and PERSON not in names:
            read.append(PERSON)
        pa = import_arrow("pyarrow")
        # A cursor of its own: rows are still being read when other queries are asked.
        rows = self._connection.cursor().sql(self._all_rows(read))
        for part in _whole_persons(pa.RecordBatchReader.from_stream(rows)):
            yield function(part.select(list(names)))

    def arrow(self, text: str) -> Any:
        return self._cursor().sql(text).to_arrow_table()

    def _cursor(self) -> Any:
        cursor = getattr(self._local, "cursor", None)
        if cursor is None:
            cursor = self._local.cursor = self._connection.cursor()
        return cursor

    def close(self) -> None:
        self._connection.close()
        self._spill.close()


def _whole_persons(batches: Any) -> Iterator[Any]:
    """Yield parts of a sorted table, each with all rows of its persons; at least one part."""
    pa = import_arrow("pyarrow")
    held, parts = batches.schema.empty_table(), 0
    for batch in batches:
        held = pa.concat_tables([held, pa.Table.from_batches([batch])])
        cut = held.num_rows
        if cut and PERSON in held.column_names:
            persons = held.column(PERSON).to_numpy()
            cut = int(np.searchsorted(persons, persons[-1]))
        if cut:
            yield held.slice(0, cut)
            held, parts = held.slice(cut), parts + 1
    if held.num_rows or not parts:
        yield held


def _duckdb(place: str, spill: PrivateFolder, threads: int, memory: str | None) -> Any:
    import duckdb

    settings: dict[str, Any] = {
        "threads": _validate.integer("threads", threads, at_least=1, at_most=1024),
        "temp_directory": str(spill.path),
        "preserve_insertion_order": False,
    }
    if memory is not None:
        settings["memory_limit"] = memory
    return duckdb.connect(place, config=settings)


def _insert(connection: Any, parts: Iterable[Any]) -> None:
    for at, part in enumerate(parts):
        connection.register("given", for_database(part))
        into = "INSERT INTO bounded" if at else "CREATE TABLE bounded AS"
        connection.execute(f"{into} SELECT * FROM given")
        connection.unregister("given")


# PostgreSQL has no text with a zero byte. Both characters become two, so that equal texts and
# prefixes stay what they are.
_ESCAPED = {"\x00": "\uf8ff0", "\uf8ff": "\uf8ff1"}
_KINDS = {"int8": "smallint", "int16": "smallint", "int32": "integer", "int64": "bigint"}


@final
class PostgresTable(DatabaseTable):
    """A temporary table of one connection to PostgreSQL, which no other connection can read."""

    dialect = "postgres"

    def __init__(self, schema: Schema, parts: Iterable[Any], *, address: str) -> None:
        import psycopg

        from discreet.engines._sql import SPELLED

        super().__init__(schema)
        self._asking = threading.Lock()
        self._connection = psycopg.connect(address, autocommit=True)
        kinds = []
        for stored in self.columns.values():
            kinds.append(f"{stored.stored_name} {_KINDS.get(stored.storage or '', 'text')}")
            if stored.is_text:
                kinds.append(f"{stored.stored_name}{SPELLED} double precision")
        if schema.person is not None:
            kinds += [f"{PERSON} bigint", f"{RANK} integer", f"{OWNED} integer"]
        try:
            self._run(f"CREATE TEMPORARY TABLE bounded ({', '.join(kinds)})")
            for part in parts:
                self._copy(for_database(part))
            self._run("ANALYZE bounded")
        except BaseException:
            self.close()
            raise

    def _run(self, text: str) -> None:
        self._connection.execute(text.encode())

    def _copy(self, part: Any) -> None:
        names = [one.split(" ")[0] for one in part.column_names]
        pa = import_arrow("pyarrow")
        lists = []
        for name in names:
            values = part.column(name).to_pylist()
            is_text = pa.types.is_string(part.column(name).type)
            lists.append([self.literal(one) for one in values] if is_text else values)
        with (
            self._connection.cursor() as cursor,
            cursor.copy(f"COPY bounded ({', '.join(names)}) FROM STDIN".encode()) as copy,
        ):
            for row in zip(*lists, strict=True):
                copy.write_row(row)

    def literal(self, text: str) -> str:
        return "".join(_ESCAPED.get(one, one) for one in text)

    def text(self, stored: str) -> str:
        return stored.replace("\uf8ff0", "\x00").replace("\uf8ff1", "\uf8ff")

    def explain(self, text: str) -> None:
        import psycopg

        try:
            self.rows(f"EXPLAIN {text}")
        except psycopg.Error as error:
            raise NotApplicable(f"PostgreSQL refuses this query: {type(error).__name__}") from None

    def rows(self, text: str) -> Sequence[tuple[Any, ...]]:
        with self._asking:
            return self._connection.execute(text.encode()).fetchall()

    def arrow(self, text: str) -> Any:
        pa = import_arrow("pyarrow")
        with self._asking:
            cursor = self._connection.execute(text.encode())
            rows = cursor.fetchall()
            names = [one.name for one in cursor.description or ()]
        columns: list[Sequence[Any]] = list(zip(*rows, strict=True)) or [()] * len(names)
        texts = {one.stored_name for one in self.columns.values() if one.is_text}
        return pa.table(
            {
                name: pa.array([self.text(one) for one in cells], pa.string())
                if name in texts
                else pa.array(cells, pa.int64())
                for name, cells in zip(names, columns, strict=True)
            }
        )

    def close(self) -> None:
        self._connection.close()
