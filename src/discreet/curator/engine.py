"""The engine: builds the bounded table of a dataset, and runs questions on it.

A question is compiled once for each text without its privacy parameters, so that asking again, at
another price or by another analyst, costs no more than running it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, final

from discreet.curator.backends import Backend
from discreet.curator.bounding import RANK, first_in_line, ranked, without_persons
from discreet.curator.expressions import Condition
from discreet.curator.grids import PERSON, StoredColumn
from discreet.curator.ibis_algebra import IbisAlgebra
from discreet.curator.ingestion import kept_column, person_text
from discreet.curator.lowering import Lowering
from discreet.curator.sources import raw_names
from discreet.data import Schema
from discreet.errors import NotApplicable

__all__ = ["Engine", "build_bounded"]

_REMEMBERED = 1024
_DUCKDB_ONLY = (
    "on Spark, a dataset of persons answers no query with `where` and no count_persons yet: "
    "open it with engine='duckdb'"
)
Build = Callable[[Any, Callable[[Any], Lowering]], Any]


def build_bounded(
    backend: Backend,
    raw: Any,
    *,
    schema: Schema,
    columns: Mapping[str, StoredColumn],
    coded: bool,
    key: bytes,
) -> None:
    """Read, rank and keep a table; ``coded`` says that it was staged by the schema's rules."""
    kept: dict[str, Any] = {}
    for raw_name, name in raw_names(schema).items():
        if raw_name == PERSON:
            kept[PERSON] = raw[PERSON] if coded else person_text(raw[PERSON], name)
        else:
            stored = columns[name]
            cells = raw[raw_name]
            kept[stored.kept_as] = kept_column(cells, schema.columns[name], stored, coded=coded)
    table = raw.select(**kept)
    if schema.person is None:
        backend.keep(without_persons(table, columns))
    else:
        cap = None if backend.counts_persons else schema.rows_per_person
        backend.keep(ranked(table, columns, key=key, cap=cap))


@final
class Engine:
    """Runs questions on a bounded table; safe to share between threads."""

    def __init__(self, backend: Backend, columns: Mapping[str, StoredColumn]) -> None:
        self._backend = backend
        self._columns = columns
        self._table = backend.bounded()
        self._compiled: OrderedDict[str, str] = OrderedDict()
        self._guard = threading.Lock()

    def close(self) -> None:
        """Forget the bounded table."""
        self._backend.close()

    def ask(
        self,
        question: str,
        build: Build,
        *,
        where: Condition | None = None,
        cap: int | None = None,
    ) -> list[tuple[Any, ...]]:
        """Run a question: ``build`` turns the bounded table into the aggregates asked for.

        ``question`` names it, with everything that it depends on, for the memory of compiled texts.
        ``where`` keeps some rows, then ``cap`` at most that many of each person's; without ``cap``
        all of them.
        """
        return self._backend.rows(self.compiled(question, build, where=where, cap=cap))

    def compiled(
        self,
        question: str,
        build: Build,
        *,
        where: Condition | None = None,
        cap: int | None = None,
    ) -> str:
        """The text of a question for the engine, which has agreed to run it; no data are read.

        Raises ``NotApplicable`` for one that the engine refuses, which depends on the query alone.
        """
        with self._guard:
            known = self._compiled.get(question)
            if known is not None:
                self._compiled.move_to_end(question)
                return known
        has_cap, has_persons = (name in self._table.columns for name in (RANK, PERSON))
        if has_cap and not has_persons and (where is not None or cap is None):
            raise NotApplicable(_DUCKDB_ONLY)
        try:
            text = self._backend.compile(self._built(build, where, cap))
        except Exception as error:  # noqa: BLE001 - whatever it is, it comes from the query alone
            name = type(error).__name__
            raise NotApplicable(f"the query is too large for the engine ({name})") from None
        self._backend.check(text)
        with self._guard:
            self._compiled[question] = text
            while len(self._compiled) > _REMEMBERED:
                self._compiled.popitem(last=False)
        return text

    def _built(self, build: Build, where: Condition | None, cap: int | None) -> Any:
        table = self._table
        if where is not None:
            table = table.filter(self._lower(table).condition(where))
        if cap is not None:
            table = first_in_line(table, cap, filtered=where is not None)
        return build(table, self._lower)

    def _lower(self, table: Any) -> Lowering:
        return Lowering(self._columns, IbisAlgebra(table))
