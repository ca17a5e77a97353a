"""Where a registry is kept: a SQLite file beside the ledger, or a schema beside it in PostgreSQL.

Statements use ``?`` for values and only the SQL that both databases share. A transaction that
writes is serial and is on the disk when its block has ended.
"""

from __future__ import annotations

import os
import re
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit

from discreet.errors import LedgerBusy, LedgerError

__all__ = ["RegistryStore", "Rows", "open_store"]

TABLES = (
    "CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    (
        "CREATE TABLE IF NOT EXISTS datasets (name TEXT PRIMARY KEY, schema TEXT NOT NULL,"
        " source TEXT NOT NULL, part TEXT NOT NULL, engine TEXT NOT NULL, created TEXT NOT NULL,"
        " UNIQUE (source, part))"
    ),
    "CREATE TABLE IF NOT EXISTS analysts (name TEXT PRIMARY KEY, created TEXT NOT NULL)",
    (
        "CREATE TABLE IF NOT EXISTS tokens (id TEXT PRIMARY KEY, digest TEXT NOT NULL,"
        " role TEXT NOT NULL, analyst TEXT, project TEXT, datasets TEXT NOT NULL,"
        " note TEXT NOT NULL, created TEXT NOT NULL, expires TEXT NOT NULL, revoked TEXT)"
    ),
    "INSERT INTO facts (name, value) VALUES ('version', '1') ON CONFLICT (name) DO NOTHING",
)
_WRITERS = 0x44534352  # the advisory lock that keeps writers apart


class Rows(Protocol):
    """One open transaction."""

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run a query and return its rows."""

    def run(self, statement: str, values: Sequence[object] = ()) -> int:
        """Run a statement and return how many rows it touched."""


class _Connection:
    """A connection of either driver; ``mark`` is how it writes a value's place."""

    def __init__(self, connection: Any, mark: str) -> None:
        self.connection = connection
        self._mark = mark

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._execute(statement, values).fetchall()
        return found

    def run(self, statement: str, values: Sequence[object] = ()) -> int:
        return int(self._execute(statement, values).rowcount)

    def _execute(self, statement: str, values: Sequence[object]) -> Any:
        written = statement if self._mark == "?" else statement.replace("?", self._mark)
        return self.connection.execute(written, tuple(values))


class RegistryStore:
    """Transactions on a registry; made by :func:`open_store`."""

    place: str
    local = True  # whether a question is answered from this machine, in microseconds
    _errors: type[Exception]
    _begin: str
    _lock = ""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._idle: list[_Connection] = []
        self._closed = False

    @contextmanager
    def reading(self) -> Iterator[Rows]:
        """A connection to ask single questions of; never waits for writers."""
        with self._lease() as link, self._in_words():
            yield link

    @contextmanager
    def writing(self) -> Iterator[Rows]:
        """A serial transaction that commits when the block ends and rolls back when it fails."""
        with self._lease() as link, self._in_words():
            link.run(self._begin)
            try:
                if self._lock:
                    link.rows(self._lock)
                yield link
                link.run("COMMIT")
            except BaseException:
                with suppress(self._errors):
                    link.run("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the connections that are idle; those in use follow when they are done."""
        with self._guard:
            self._closed = True
            idle, self._idle = self._idle, []
        for link in idle:
            link.connection.close()

    @contextmanager
    def _lease(self) -> Iterator[_Connection]:
        with self._guard:
            link = self._idle.pop() if self._idle else None
        if link is None:
            with self._in_words():
                link = self._connect()
        sound = False
        try:
            yield link
            sound = True
        finally:
            with self._guard:
                keep = sound and not self._closed
                if keep:
                    self._idle.append(link)
            if not keep:
                link.connection.close()

    def _connect(self) -> _Connection:
        raise NotImplementedError

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            text = str(error).strip().partition("\n")[0]
            busy = "locked" in text or "timeout" in text
            kind = LedgerBusy if busy else LedgerError
            raise kind(f"{self.place}: {text}") from error


class _SqliteRegistry(RegistryStore):
    _errors = sqlite3.Error
    _begin = "BEGIN IMMEDIATE"

    def __init__(self, path: Path, *, timeout: float) -> None:
        super().__init__()
        self._path = path.absolute()
        self._timeout = timeout
        self.place = str(path)
        try:
            # Only its owner may read it, from the first moment.
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise LedgerError(f"{path}: cannot be opened ({error.strerror})") from None
        with self.writing() as rows:
            for statement in TABLES:
                rows.run(statement)

    def _connect(self) -> _Connection:
        connection = sqlite3.connect(
            self._path, timeout=self._timeout, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
        connection.execute("PRAGMA synchronous = FULL").fetchall()
        return _Connection(connection, "?")


class _PostgresRegistry(RegistryStore):
    local = False
    _begin = "BEGIN ISOLATION LEVEL READ COMMITTED"
    _lock = f"SELECT pg_advisory_xact_lock({_WRITERS})"

    def __init__(self, url: str, *, timeout: float) -> None:
        super().__init__()
        try:
            self._driver = import_module("psycopg")
        except ImportError as error:
            raise LedgerError(
                "a registry in PostgreSQL needs psycopg: pip install 'discreet[postgres]' "
                f"({error})"
            ) from error
        self._errors = self._driver.Error
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        name = options.pop("ledger", "")
        if not re.fullmatch(r"[a-z0-9_]{0,50}", name):
            raise LedgerError("ledger = a name of small letters, digits and _ in the URL")
        query = f"?{urlencode(options)}" if options else ""
        self._conninfo = f"postgresql://{parts.netloc}{parts.path}{query}"
        self._schema = f"curator_{name}" if name else "curator"
        self._timeout = timeout
        self.place = f"the registry {self._schema} in PostgreSQL"
        with self.writing() as rows:
            rows.run(f"CREATE SCHEMA IF NOT EXISTS {self._schema}")
            for statement in TABLES:
                rows.run(statement)

    def _connect(self) -> _Connection:
        connection = self._driver.connect(
            self._conninfo, autocommit=True, connect_timeout=max(2, int(self._timeout))
        )
        link = _Connection(connection, "%s")
        link.run(f"SET search_path TO {self._schema}")
        link.run(f"SET lock_timeout TO {max(1, int(1000 * self._timeout))}")
        link.run("SET synchronous_commit TO on")
        return link


def open_store(ledger: str | Path, *, timeout: float = 60.0) -> RegistryStore:
    """The registry that belongs to a ledger; it is made if there is none.

    For a file ``study.ledger`` it is ``study.ledger.registry``; for a URL with ``ledger=name`` it
    is the schema ``curator_name`` of the same database.
    """
    text = str(ledger)
    if text.startswith(("postgresql://", "postgres://")):
        return _PostgresRegistry(text, timeout=timeout)
    path = Path(text)
    return _SqliteRegistry(path.with_name(f"{path.name}.registry"), timeout=timeout)
