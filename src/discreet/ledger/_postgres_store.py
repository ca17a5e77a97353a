"""A ledger in a PostgreSQL database, for teams: ``postgresql://user@host/database?ledger=name``.

Each ledger has a schema of its own (``discreet_name``; without ``ledger=`` it is ``discreet``). A
charge locks the row of its dataset, so charges of one dataset are serial and datasets do not wait
for one another. Commits are synchronous; a server that runs with ``fsync = off`` is refused.
The driver is ``psycopg`` (the extra ``postgres``), imported on first use.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from discreet.errors import (
    InvalidValue,
    LedgerBusy,
    LedgerCorrupt,
    LedgerError,
    LedgerExists,
    LedgerFull,
    LedgerMissing,
    LedgerReadOnly,
    LedgerUnconfirmed,
)
from discreet.ledger import _rows, _shape
from discreet.ledger._store import Meanings, Session, translate_error

# Connections that a child inherited: to close them would end the parent's sessions.
_INHERITED: list[object] = []
_CREATION = 0x4453434C  # the advisory lock under which ledgers are made


class PostgresStore:
    """See the module; made by :meth:`create` and :meth:`open`."""

    row_lock = " FOR UPDATE"

    def __init__(self, url: str, *, timeout: float, read_only: bool) -> None:
        self._driver = _load_driver()
        self._conninfo, self._schema, self._place = _parse(url)
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
        name = _parse(url)[1].removeprefix("discreet_")
        if name == "answers" or name.startswith("answers_"):
            raise InvalidValue(
                "ledger", name, "another name: discreet_answers... are schemas of stored answers"
            )
        store = cls(url, timeout=timeout, read_only=False)
        with store._closing_on_error(), store._link() as link, store._transaction(link):
            link.rows("SELECT pg_advisory_xact_lock(?)", (_CREATION,))
            if link.exists("SELECT 1 FROM pg_namespace WHERE nspname = ?", store._schema):
                raise LedgerExists(f"{store.place} exists already; nothing was changed")
            link.run(f"CREATE SCHEMA {store._schema}")
            _rows.migrate(link, "postgres", start=0)
            link.run("INSERT INTO meta (name, value) VALUES ('ledger', ?)", (ledger,))
            store._check_shape(link)
        return store

    @classmethod
    def open(cls, url: str, *, timeout: float, read_only: bool = False) -> PostgresStore:
        """Open an existing ledger, and bring an older one up to date."""
        store = cls(url, timeout=timeout, read_only=read_only)
        with store._closing_on_error(), store._link() as link:
            with store._translated():
                found = link.exists("SELECT to_regclass(?)::text", f"{store._schema}.meta")
            if not found:
                raise LedgerMissing(
                    f"{store.place}: there is no such ledger (a new one is made by "
                    "Ledger.create, so that a mistyped name is not a fresh budget)"
                )
            with store._transaction(link):
                outdated = _rows.check_version(link, store.place) < _rows.LATEST
            if outdated and read_only:
                raise LedgerReadOnly(f"{store.place} has an older schema and cannot be written")
            if outdated:
                with store._transaction(link):
                    # Nobody opens a dataset or charges one meanwhile.
                    link.run("LOCK TABLE meta, datasets, budgets, entries")
                    # Somebody else may have done it while we waited.
                    start = _rows.check_version(link, store.place)
                    _rows.migrate(link, "postgres", start=start)
            if not read_only:
                with store._transaction(link):
                    store._check_shape(link)
        return store

    def _check_shape(self, link: _Link) -> None:
        odd = _shape.postgres_differences(link, self._schema)
        if odd:
            raise LedgerCorrupt(f"{self.place}: {odd[0]}; nothing was charged, run verify")

    # --- transactions ------------------------------------------------------------------

    @property
    def place(self) -> str:
        return self._place

    @contextmanager
    def reading(self) -> Iterator[_Link]:
        """One snapshot for all queries; never waits for writers."""
        with (
            self._link() as link,
            self._transaction(link, "ISOLATION LEVEL REPEATABLE READ READ ONLY"),
        ):
            _rows.check_version(link, self.place)
            yield link

    @contextmanager
    def writing(self, *, durable: bool = True) -> Iterator[_Link]:
        """A transaction whose commit returns when the server has flushed it."""
        if self._read_only:
            raise LedgerReadOnly(f"{self.place} was opened for reading; nothing was charged")
        with self._link() as link, self._transaction(link, "ISOLATION LEVEL READ COMMITTED"):
            link.run(f"SET LOCAL synchronous_commit TO {'on' if durable else 'off'}")
            _rows.check_version(link, self.place)
            yield link

    def flush(self) -> None:
        """A synchronous commit flushes every commit before it."""
        if not self._read_only:
            with self.writing() as link:
                changed = link.run("UPDATE meta SET value = value WHERE name = 'schema'")
                if changed != 1:
                    raise LedgerCorrupt(f"{self.place} has lost its version; run verify")

    def faults(self) -> list[str]:
        """Damage shows when the entries are read; the server keeps its own checks."""
        return []

    def differences(self, session: Session) -> list[str]:
        """Tables, indexes and guards that are not those of a ledger."""
        return _shape.postgres_differences(session, self._schema)

    @contextmanager
    def _transaction(self, link: _Link, mode: str = "") -> Iterator[None]:
        ending = False
        try:
            with self._translated():
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
        with self._translated():
            connection = self._driver.connect(
                self._conninfo, autocommit=True, connect_timeout=max(2, int(self._timeout))
            )
        link = _Link(connection)
        try:
            with self._translated():
                link.run(f"SET search_path TO {self._schema}")
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
    def _translated(self) -> Iterator[None]:
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


def _parse(url: str) -> tuple[str, str, str]:
    """What the driver connects to, the schema, and a text without the password."""
    try:
        if not url.isprintable():
            raise ValueError(url)
        parts = urlsplit(url)
        host_in_url = parts.hostname
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
    except ValueError:
        # The whole text may hold a password, and is not shown.
        raise InvalidValue("place", url.partition("://")[0] + "://", _EXPECTED_URL) from None
    name = options.pop("ledger", "")
    if not re.fullmatch(r"[a-z0-9_]{0,50}", name):
        raise InvalidValue("ledger", name, "a name of small letters, digits and _ in the URL")
    query = f"?{urlencode(options)}" if options else ""
    conninfo = f"postgresql://{parts.netloc}{parts.path}{query}"
    user = f"{parts.username}@" if parts.username else ""
    host = host_in_url or options.get("host", "")
    shown = f"postgresql://{user}{host}{parts.path}" + (f"?ledger={name}" if name else "")
    return conninfo, f"discreet_{name}" if name else "discreet", shown


_EXPECTED_URL = "a URL such as postgresql://user@host/database?ledger=name"


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
