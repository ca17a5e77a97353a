"""A connection to a SQLite ledger: told how to behave, and held to the files that it opened."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from discreet.errors import (
    LedgerBusy,
    LedgerCorrupt,
    LedgerError,
    LedgerExists,
    LedgerFull,
    LedgerReadOnly,
    LedgerUnconfirmed,
)
from discreet.ledger import _rows, _shape
from discreet.ledger._custody import PATIENCE, ChangedOnArrivalError, Custody
from discreet.ledger._store import Meanings, translate_error
from discreet.ledger._turns import Turns

APPLICATION = 0x4453434C  # "DSCL"


class Link:
    """A connection with its place in the queue and among the users of the file."""

    def __init__(
        self,
        path: Path,
        *,
        given: Path,
        timeout: float,
        mode: str,
        examine: Callable[[], None] | None,
    ) -> None:
        """Without ``examine`` a connection that reads does not ask whether others write."""
        self._path = path
        self._fresh = mode == "rwc"
        self.read_only = mode == "ro"
        self.version = 0
        self._shape: int | None = None
        self._full: bool | None = None
        writes, compares = not self.read_only, examine is not None
        self.custody = Custody(path, given=given, timeout=timeout, writes=writes, compares=compares)
        self.turns = Turns(path, timeout=timeout, writes=writes)
        end = time.monotonic() + min(PATIENCE, timeout)
        try:
            while not self._arrive(mode, timeout, examine, may_fail=time.monotonic() < end):
                time.sleep(0.002)
        except BaseException:
            self._leave()
            raise

    def _arrive(
        self, mode: str, timeout: float, examine: Callable[[], None] | None, *, may_fail: bool
    ) -> bool:
        """Connect; the value says whether the files stayed the same meanwhile."""
        connection = None
        try:
            with self.custody.arriving(is_free=self._is_free, examine=examine, fresh=self._fresh):
                if self.read_only and examine is not None:
                    self.connection = connection = connect_to_read(self._path, timeout)
                else:
                    self.connection = connection = _connect(self._path, mode, timeout)
                self.prepare(fresh=self._fresh)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if may_fail and isinstance(error, ChangedOnArrivalError):
                return False
            raise
        return True

    def prepare(self, *, fresh: bool) -> None:
        """Set what a connection has to be told, and look at the file."""
        if not fresh:
            self.check()
        elif self.rows("SELECT 1 FROM sqlite_master LIMIT 1"):
            raise LedgerExists(f"{self._path} exists already; nothing was changed")
        if not self.read_only:
            [(mode,)] = self.rows("PRAGMA journal_mode = WAL")
            if mode != "wal":
                raise LedgerError(f"{self._path}: no write-ahead log can be kept here")
            self.run("PRAGMA wal_autocheckpoint = 4000")
            self.run("PRAGMA fullfsync = 1")
            self.run("PRAGMA checkpoint_fullfsync = 1")
            self.rows("SELECT 1 FROM sqlite_master LIMIT 1")  # the log is there from now on

    def check(self) -> None:
        """Refuse what is not a ledger, or a newer one, before anything is written."""
        [(application,)] = self.rows("PRAGMA application_id")
        if application != APPLICATION:
            raise LedgerCorrupt(f"{self._path} is not a ledger")
        self.version = _rows.check_version(self, str(self._path))

    def check_shape(self) -> None:
        """Refuse to write to tables, indexes or guards that are not those of a ledger.

        SQLite counts the changes of the schema, so this costs next to nothing while there
        are none.
        """
        [(count,)] = self.rows("PRAGMA schema_version")
        if count == self._shape:
            return
        odd = _shape.sqlite_differences(self, _rows.LATEST)
        if odd:
            raise LedgerCorrupt(f"{self._path}: {odd[0]}; nothing was charged, run verify")
        self._shape = count

    def commits(self) -> tuple[int, int]:
        """How many commits there were, and how many of them are known to be on the disk."""
        rows = self.rows("SELECT made, durable FROM commits")
        fault = _shape.commits_fault(rows)
        if fault:
            raise LedgerCorrupt(f"{self._path}: {fault}; nothing was charged, run verify")
        made, durable = rows[0]
        return made, durable

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        return self.connection.execute(statement, tuple(values)).fetchall()

    def run(self, statement: str, values: Sequence[object] = ()) -> int:
        return self.connection.execute(statement, tuple(values)).rowcount

    def begin(self, *, full: bool) -> None:
        """Start a transaction that has the write lock from its first moment."""
        if full is not self._full:
            self._full = None  # not known if this is interrupted
            self.run(f"PRAGMA synchronous = {'FULL' if full else 'NORMAL'}")
            self._full = full
        self.run("BEGIN IMMEDIATE")

    def roll_back(self) -> None:
        """End a transaction without a trace, if one is open."""
        if self.connection.in_transaction:
            with suppress(sqlite3.Error):
                self.run("ROLLBACK")

    def close(self) -> None:
        """Leave the users, then close, which may delete the log.

        In this order nobody compares with a log that is going: whoever comes now finds no users
        and asks for the file alone, which is not to be had before the connection is closed.
        """
        self._leave()
        self.roll_back()
        self.connection.close()

    def abandon(self) -> None:
        """Drop the locks of a connection that was inherited by a fork and must not be used."""
        self._leave()

    def _leave(self) -> None:
        self.turns.close()
        self.custody.close()

    def _is_free(self) -> bool:
        """Whether nobody has the file open, under whatever name."""
        try:
            with closing(_connect(self._path, "rw", 0.0)) as probe:
                # In this mode the first look at the file asks for all of it, if it has a log.
                probe.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
                probe.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
                probe.execute("BEGIN EXCLUSIVE").fetchall()
        except sqlite3.Error as error:
            # Any other fault shows when the file is opened in earnest.
            return not getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY")
        return True


def _connect(path: Path, mode: str, timeout: float) -> sqlite3.Connection:
    """A bare connection: ``mode`` is ``ro``, ``rw`` or ``rwc``."""
    return sqlite3.connect(
        f"{path.as_uri()}?mode={mode}",
        uri=True,
        timeout=timeout,
        isolation_level=None,
        check_same_thread=False,
    )


def connect_to_read(path: Path, timeout: float) -> sqlite3.Connection:
    """A connection that changes nothing, and leaves no log where it found none.

    SQLite makes a log for everyone who comes, and only one who could write deletes it again. A
    log that was there is left alone: nobody has looked yet whether it belongs to the file.
    """
    tidy = os.access(path, os.W_OK) and not any(
        Path(f"{path}{end}").exists() for end in ("-wal", "-journal")
    )
    connection = _connect(path, "rw" if tidy else "ro", timeout)
    connection.execute("PRAGMA query_only = 1")
    return connection


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """SQLite's errors in the words of a ledger."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorname", "")
        if not code and "decode" in str(error):  # the driver's own: a text is not UTF-8
            code = "SQLITE_CORRUPT"
        raise translate_error(str(path), code, str(error), _MEANINGS) from error


_MEANINGS: Meanings = (
    ("SQLITE_FULL", LedgerFull, "the disk is full, nothing was charged"),
    ("SQLITE_BUSY", LedgerBusy, "others held the ledger for too long, nothing was charged"),
    ("SQLITE_READONLY", LedgerReadOnly, "the ledger cannot be written, nothing was charged"),
    ("SQLITE_NOTADB", LedgerCorrupt, "this is not a ledger"),
    ("SQLITE_CORRUPT", LedgerCorrupt, "the file is damaged; restore a backup"),
    ("SQLITE_CONSTRAINT", LedgerCorrupt, "the tables refuse this, nothing was charged, run verify"),
    ("SQLITE_MISMATCH", LedgerCorrupt, "the tables hold what they cannot, run verify"),
    ("SQLITE_CANTOPEN", LedgerError, "the file cannot be opened"),
    ("SQLITE_IOERR", LedgerUnconfirmed, "the disk failed, a charge under way may be spent"),
    ("SQLITE_ERROR", LedgerCorrupt, "the tables are not those of a ledger"),
)
