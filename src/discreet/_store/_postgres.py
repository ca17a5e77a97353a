"""A store in a PostgreSQL database, for teams: ``postgresql://user@host/database?ledger=name``.

Each store has a schema of its own (``discreet_name``; without ``ledger=`` it is ``discreet``). A
charge locks the row of its dataset, so charges of one dataset are serial and datasets do not wait
for one another. Commits are synchronous: what can be seen is on the disk; a server that runs
with ``fsync = off`` is refused. The driver is ``psycopg`` (the extra ``postgres``), imported on
first use.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

from discreet._store import _tables
from discreet._store._store import Meanings, Session, parse_url, translate_error
from discreet.errors import (
    LedgerBusy,
    LedgerCorrupt,
    LedgerError,
    LedgerExists,
    LedgerFull,
    LedgerMissing,
    LedgerReadOnly,
    LedgerUnconfirmed,
)

# Connections that a child inherited: to close them would end the parent's sessions.
_INHERITED: list[object] = []
_CREATION = 0x4453434C  # the advisory lock under which ledgers are made


class PostgresStore:
    """See the module; made by :meth:`create` and :meth:`open`."""

    row_lock = " FOR UPDATE"
    local = False

    def __init__(self, url: str, *, timeout: float, read_only: bool) -> None:
        self._driver = _load_driver()
        self._conninfo, name, self._place = parse_url(url)
        self._schema = f"discreet_{name}" if name else "discreet"
        self._timeout = timeout
        self._read_only = read_only
        self._closed = False
        self._start_afresh()

    def _start_afresh(self) -> None:
        self._process = os.getpid()
        self._guard = threading.Lock()
        self._idle: list[_Link] = []

    # --- opening -----------------------------------------------------------------------

    @classmethod
    def create(cls, url: str, *, timeout: float, ledger: str) -> PostgresStore:
        """Make the schema and its tables; an existing one is refused."""
        store = cls(url, timeout=timeout, read_only=False)
        with store._closing_on_error(), store._link() as link, store._transaction(link):
            link.rows("SELECT pg_advisory_xact_lock(?)", (_CREATION,))
            if link.exists("SELECT 1 FROM pg_namespace WHERE nspname = ?", store._schema):
                raise LedgerExists(f"{store.place} exists already; nothing was changed")
            link.run(f"CREATE SCHEMA {store._schema}")
            _tables.make_postgres(link, store._schema, start=0, ledger=ledger)
            store._check_shape(link)
        return store

    @classmethod
    def open(
        cls, url: str, *, timeout: float, read_only: bool = False, backup: bool = False
    ) -> PostgresStore:
        """Open an existing store, and bring an older one up to date; ``backup`` changes nothing."""
        del backup  # the copies of pg_dump are not marked
        store = cls(url, timeout=timeout, read_only=read_only)
        with store._closing_on_error(), store._link() as link:
            with store._translate_errors():
                found = link.exists("SELECT to_regclass(?)::text", f"{store._schema}.meta")
            if not found:
                raise LedgerMissing(
                    f"{store.place}: there is no such ledger (a new one is made by "
                    "Ledger.create, so that a mistyped name is not a fresh budget)"
                )
            with store._transaction(link):
                outdated = _tables.check_version(link, store.place) < _tables.LATEST
            if outdated and read_only:
                raise LedgerReadOnly(f"{store.place} has an older schema and cannot be written")
            if outdated:
                with store._transaction(link):
                    # Nobody opens a dataset or charges one meanwhile.
                    link.run("LOCK TABLE meta, datasets, budgets, entries")
                    # Somebody else may have done it while we waited.
                    start = _tables.check_version(link, store.place)
                    _tables.make_postgres(link, store._schema, start=start)
            if not read_only:
                with store._transaction(link):
                    store._check_shape(link)
        return store

    def _check_shape(self, link: _Link) -> None:
        found = _tables.compare_postgres(link, self._schema)
        if found:
            raise LedgerCorrupt(f"{self.place}: {found[0]}; nothing was charged, run verify")

    # --- transactions ------------------------------------------------------------------

    @property
    def place(self) -> str:
        return self._place

    @contextmanager
    def reading(self, *, durable: bool = True) -> Iterator[_Link]:
        """Run queries on one snapshot; never waits for writers."""
        del durable  # what can be seen is on the disk
        with (
            self._link() as link,
            self._transaction(link, "ISOLATION LEVEL REPEATABLE READ READ ONLY"),
        ):
            _tables.check_version(link, self.place)
            yield link

    @contextmanager
    def writing(self, *, durable: bool = True) -> Iterator[_Link]:
        """Run a transaction whose commit returns when the server has flushed it."""
        del durable
        if self._read_only:
            raise LedgerReadOnly(f"{self.place} was opened for reading; nothing was charged")
        with self._link() as link, self._transaction(link, "ISOLATION LEVEL READ COMMITTED"):
            _tables.check_version(link, self.place)
            yield link

    def faults(self) -> list[str]:
        """Damage shows when the entries are read; the server keeps its own checks."""
        return []

    def differences(self, session: Session) -> list[str]:
        """Tables, indexes and guards that are not those of a ledger."""
        return _tables.compare_postgres(session, self._schema)

    @contextmanager
    def _transaction(self, link: _Link, mode: str = "") -> Iterator[None]:
        ending = False
        try:
            with self._translate_errors():
                link.run(f"BEGIN {mode}")
                yield
                ending = True
                link.run("COMMIT")
        except BaseException as error:
            with suppress(self._driver.Error):
                link.run("ROLLBACK")
            if ending and isinstance(error, LedgerError) and link.broken:
                raise LedgerUnconfirmed(
                    f"{self.place}: the server did not confirm a charge: it may be spent, and "
                    "its body must not run"
                ) from error
            raise

    # --- connections -------------------------------------------------------------------

    @contextmanager
    def _link(self) -> Iterator[_Link]:
        if os.getpid() != self._process:
            _INHERITED.extend(self._idle)
            self._start_afresh()
        if self._closed:
            raise LedgerError(f"{self.place}: this ledger was closed")
        with self._guard:
            link = self._idle.pop() if self._idle else None
        link = link or self._connect()
        owner = os.getpid()
        try:
            yield link
        finally:
            if os.getpid() != owner:
                _INHERITED.append(link)
            else:
                self._give_back(link)

    def _connect(self) -> _Link:
        with self._translate_errors():
            connection = self._driver.connect(
                self._conninfo, autocommit=True, connect_timeout=max(2, int(self._timeout))
            )
        link = _Link(connection)
        try:
            with self._translate_errors():
                link.run(f"SET search_path TO {self._schema}")
                link.run("SET synchronous_commit TO on")
                link.run(f"SET lock_timeout TO {max(1, int(1000 * self._timeout))}")
                if link.rows("SHOW fsync") != [("on",)]:
                    raise LedgerError(f"{self.place}: the server runs with fsync = off")
        except BaseException:
            link.close()
            raise
        return link

    def _give_back(self, link: _Link) -> None:
        with self._guard:
            keep = not (self._closed or link.broken)
            if keep:
                self._idle.append(link)
        if not keep:
            link.close()

    @contextmanager
    def _closing_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connections that are idle; those in use follow when they are done."""
        if os.getpid() != self._process:
            _INHERITED.extend(self._idle)
            self._start_afresh()
        with self._guard:
            self._closed = True
            idle, self._idle = self._idle, []
        for link in idle:
            link.close()

    def __del__(self) -> None:
        if hasattr(self, "_guard"):
            self.close()

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """The driver's errors in the words of a ledger."""
        try:
            yield
        except self._driver.Error as error:
            code = error.sqlstate or ""
            raise translate_error(self.place, code, _first_line(error), _MEANINGS) from error


class _Link:
    """One session of the server."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._execute(statement, values).fetchall()
        return found

    def run(self, statement: str, values: Sequence[object] = ()) -> int:
        return int(self._execute(statement, values).rowcount)

    def exists(self, statement: str, value: str) -> bool:
        """Whether a query finds anything but NULL."""
        return any(row[0] is not None for row in self.rows(statement, (value,)))

    def _execute(self, statement: str, values: Sequence[object]) -> Any:
        return self._connection.execute(statement.replace("?", "%s"), tuple(values) or None)

    @property
    def broken(self) -> bool:
        """Whether the session is gone, or stuck in a transaction."""
        # 0 is the status of a session outside of any transaction.
        return bool(self._connection.closed or self._connection.info.transaction_status != 0)

    def close(self) -> None:
        self._connection.close()


def _load_driver() -> Any:
    try:
        return import_module("psycopg")
    except ImportError as error:
        raise LedgerError(
            f"ledgers in PostgreSQL need psycopg: pip install 'discreet[postgres]' ({error})"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


# By SQLSTATE (PostgreSQL, appendix A), the most particular first.
_MEANINGS: Meanings = (
    ("55P03", LedgerBusy, "others held the dataset for too long, nothing was charged"),
    ("40", LedgerBusy, "others were in the way, nothing was charged"),
    ("53100", LedgerFull, "the disk of the server is full, nothing was charged"),
    ("25006", LedgerReadOnly, "the database cannot be written, nothing was charged"),
    ("42501", LedgerReadOnly, "this role may not write, nothing was charged"),
    ("23", LedgerCorrupt, "the tables refuse this, nothing was charged, run verify"),
    ("P0001", LedgerCorrupt, "the tables refuse this, nothing was charged, run verify"),
    ("22", LedgerCorrupt, "the tables hold what they cannot, run verify"),
    ("42P01", LedgerCorrupt, "the tables are not those of a ledger"),
    ("42703", LedgerCorrupt, "the tables are not those of a ledger"),
    ("XX00", LedgerCorrupt, "the database is damaged; restore a backup"),
)
