"""A dataset under curation: its public schema, where the records are, and the bounded table."""

from __future__ import annotations

import os
import threading
from typing import Any, final

from discreet import _validate
from discreet._forms import checked_text
from discreet.data import Bounded, Labelled, Schema
from discreet.engines import ENGINES, Table, open_table, stored_columns
from discreet.errors import InvalidValue


@final
class CuratedDataset:
    """Records of a schema, read and put in line once, when the dataset is first used.

    Making one costs nothing. :meth:`prepare` reads the source and builds the bounded table; faults
    of the source show there, before anything is charged.

    Parameters
    ----------
    name
        What analysts and the ledger call it.
    schema
        What the records are.
    source
        What :func:`discreet.engines.open_table` takes, or a :class:`discreet.engines.Table`.
    engine, table, key, keep
        As of :func:`discreet.engines.open_table`. Workers that share a key see the same rows.
    threads
        How many threads DuckDB uses.
    options
        Other options of the engine.

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
        key: bytes | None = None,
        keep: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        self.name = checked_text("name", name)
        if not isinstance(schema, Schema):
            raise InvalidValue("schema", type(schema).__name__, "a Schema")
        self.schema = schema
        self.columns = stored_columns(schema)
        self.engine_name = type(source).__name__ if isinstance(source, Table) else engine
        if engine not in ENGINES:
            raise InvalidValue("engine", engine, "one of " + ", ".join(ENGINES))
        _validate.integer("threads", threads, at_least=1, at_most=1024)
        if isinstance(source, Table) and source.schema != schema:
            raise InvalidValue("source", "a table of another schema", "one of this schema")
        if key is not None and len(key) < 32:
            raise InvalidValue("key", "a key", "at least 32 secret bytes")
        if table is not None:
            checked_text("table", table)
        if engine == "duckdb":
            options["threads"] = threads
        self._source = source
        self._key = key
        self._options = {"engine": engine, "table": table, "keep": keep, **options}
        self._table: Table | None = None
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

    def engine(self) -> Table:
        """The bounded table; it is built by the first call."""
        if self._table is None:
            with self._opening:
                if self._table is None:
                    self._table = (
                        self._source
                        if isinstance(self._source, Table)
                        else open_table(self._source, self.schema, key=self._key, **self._options)
                    )
        return self._table

    def close(self) -> None:
        """Forget the bounded table; the next use reads the source again, under another key."""
        with self._opening:
            if self._table is not None:
                self._table.close()
                self._table = None
