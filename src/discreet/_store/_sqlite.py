"""A store in a directory: a SQLite database, its log, and the lock of those who write.

``study.ledger/`` (0700) holds ``ledger-<8 hex>.sqlite``, SQLite's ``-wal`` and ``-shm`` of it, and
the empty file ``lock``. File and log share a directory, so neither can be used without the other. A
directory is filled under another name, flushed and renamed: it is whole or absent.

**Visible is durable.** A commit is written with ``synchronous=NORMAL`` under the lock, which keeps
the database consistent but does not wait for the disk. The writer then flushes the log itself,
without the lock, so that concurrent ones share the disk, and only then returns. Others may see a
commit before that: whoever has read flushes as well before anything leaves, unless this process has
flushed since the newest commit that was read; commits are counted. SQLite flushes the log before it
copies pages into the database, and the database before it starts the log again. The log is flushed
through a descriptor of its own: to close any descriptor of the database drops the locks of SQLite.

**A failed flush** leaves the file ``unflushed``. What the log holds may be lost, and whatever
follows rests on it: everybody refuses to write, and to let out what was not flushed before, until
:meth:`SqliteStore.repair` has copied the database into a new, flushed file.

**Threads and fork.** Connections are leased from a pool, one per running transaction; a connection
and its lock are one object, which is dropped when it is interrupted. SQLite keeps its locks in
memory of the process, and a fork copies that memory but not the locks. So a fork waits until no
transaction runs and closes the connections first; parent and child open new ones. A child that was
forked inside a transaction is refused the database.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from discreet._store import _tables
from discreet._store._store import Meanings, Session, translate_error
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

try:
    import fcntl
except ImportError:  # Windows: SQLite alone keeps writers apart
    _HAS_FLOCK = False
else:
    _HAS_FLOCK = True

APPLICATION = 0x4453434C  # "DSCL"
DATABASES = "ledger-*.sqlite"
MARK = "unflushed"
_LOCK, _REPAIRED, _REPLACED = "lock", "repaired-", "replaced-"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.001  # seconds between two looks at the lock
_FORK_PATIENCE = 10.0  # seconds that a fork waits for transactions of other threads
_MOST_COMMITS = 2**62
_FORGET_PAGES = "PRAGMA shrink_memory"  # to see the file as it is, not as it was read before
_STORES: weakref.WeakSet[SqliteStore] = weakref.WeakSet()


class Link:
    """One configured connection, with descriptors of its own of the log and of the lock."""

    def __init__(self, store: SqliteStore) -> None:
        self._database, self._timeout = store.database, store.timeout
        self.inherited = False  # by a child that was forked inside a transaction
        self._log: int | None = None
        self._lock: int | None = None
        self._log_is_listed = False
        self._compared: int | None = None
        writable = os.access(self._database, os.W_OK)
        self.connection = _connect(self._database, "rw" if writable else "ro", self._timeout)
        try:
            self._prepare(read_only=store.read_only)
            logs = [Path(f"{self._database}{end}") for end in ("-wal", "-shm")]
            if logs[0].exists():
                self._log = os.open(
                    logs[0], (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC
                )
            if not store.read_only and _HAS_FLOCK:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                self._lock = os.open(self._database.with_name(_LOCK), flags, 0o600)
            paths = [store.given, self._database.parent, self._database]
            self._files = {path: identify(path) for path in paths + logs if path.exists()}
        except BaseException:
            self.close()
            raise

    def _prepare(self, *, read_only: bool) -> None:
        if read_only:
            self.run("PRAGMA query_only = 1")
        if self.rows("PRAGMA application_id") != [(APPLICATION,)]:
            raise LedgerCorrupt(f"{self._database} is not a ledger")
        if not read_only:
            if self.rows("PRAGMA journal_mode = WAL") != [("wal",)]:
                raise LedgerError(f"{self._database}: no write-ahead log can be kept here")
            self.run("PRAGMA synchronous = NORMAL")
            self.run("PRAGMA wal_autocheckpoint = 4000")
            self.run("PRAGMA fullfsync = 1")
            self.run("PRAGMA checkpoint_fullfsync = 1")
        self.rows("SELECT 1 FROM sqlite_master LIMIT 1")  # from now on the log is not deleted

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        return self.connection.execute(statement, tuple(values)).fetchall()

    def run(self, statement: str, values: Sequence[object] = ()) -> int:
        return self.connection.execute(statement, tuple(values)).rowcount

    def roll_back(self) -> None:
        """End a transaction without a trace, if one is open."""
        if self.connection.in_transaction:
            with suppress(sqlite3.Error):
                self.run("ROLLBACK")

    def check_files(self) -> None:
        """Raise ``LedgerError`` unless every path still leads to the file that was opened."""
        for path, then in self._files.items():
            if identify(path) != then:
                raise LedgerError(
                    f"{path} was replaced, moved or deleted while in use; nothing was charged: "
                    "close it everywhere, put the files back and run verify"
                )

    def check_tables(self) -> None:
        """Refuse to write to tables, indexes or guards that are not those of a ledger.

        SQLite counts the changes of the schema, so this costs next to nothing while there
        are none.
        """
        [(count,)] = self.rows("PRAGMA schema_version")
        if count != self._compared:
            found = _tables.compare_sqlite(self)
            if found:
                raise LedgerCorrupt(
                    f"{self._database}: {found[0]}; nothing was charged, run verify"
                )
            self._compared = count

    def flush_log(self) -> None:
        """Write the log to the disk; what is not in the log is there already."""
        if self._log is None:
            return
        sync(self._log)
        if not self._log_is_listed:  # a log that was just made is to be found after a crash
            sync_path(self._database.parent)
            self._log_is_listed = True

    @contextmanager
    def write_lock(self) -> Iterator[None]:
        """Wait for the lock of those who write, so that they take turns."""
        if self._lock is None:
            yield
            return
        end, pause = time.monotonic() + self._timeout, _FIRST_PAUSE
        try:
            while not _try_lock(self._lock):
                if time.monotonic() > end:
                    raise LedgerBusy(
                        f"{self._database.parent}: another process has held the ledger for more "
                        f"than {self._timeout:g} s; nothing was charged"
                    )
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            yield
        finally:  # to give back what was never granted is harmless
            if self._lock is not None:
                fcntl.flock(self._lock, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the connection, which may delete the log, and let go of the lock."""
        self.abandon()
        self.connection.close()

    def abandon(self) -> None:
        """Let go of the descriptors, and so of the lock; a fork must not touch the connection."""
        for descriptor in (self._log, self._lock):
            if descriptor is not None:
                with suppress(OSError):
                    os.close(descriptor)
        self._log = self._lock = None

    def __del__(self) -> None:  # one that was interrupted on its way back to the pool
        if hasattr(self, "connection") and not self.inherited:
            self.close()


class SqliteStore:
    """See the module; made by :meth:`create` and :meth:`open`."""

    row_lock = ""  # a transaction that writes has the whole database
    local = True

    def __init__(
        self, path: Path, *, timeout: float, read_only: bool = False, backup: bool = False
    ) -> None:
        self.given = path.absolute()
        with _reachable(path):
            self.directory = Path(os.path.realpath(path))
            self.database = _find_database(self.directory)
            self._identity = identify(self.directory), identify(self.database)
            read_only = read_only or not os.access(self.database, os.W_OK)
        self.timeout = timeout
        self.read_only = read_only
        self._may_restore = backup
        self._closed = False
        self._flushed = 0  # every commit up to this one is on the disk
        self._committed = 0  # the newest commit of this process
        self._failed = False
        self._start_afresh()
        _STORES.add(self)

    def _start_afresh(self) -> None:
        self._guard = threading.Condition()
        self._flushing = threading.Lock()
        self._leased: weakref.WeakKeyDictionary[Link, int] = weakref.WeakKeyDictionary()
        self._idle: list[Link] = []
        self._forking = False

    @property
    def place(self) -> str:
        return str(self.given)

    # --- opening -----------------------------------------------------------------------

    @classmethod
    def create(cls, path: Path, *, timeout: float, ledger: str) -> SqliteStore:
        """Make a new directory; refuse a path where something is already."""
        with new_directory(path) as database, _translate_errors(path):
            fill_database(database, ledger)
        return cls.open(path, timeout=timeout)

    @classmethod
    def open(
        cls, path: Path, *, timeout: float, read_only: bool = False, backup: bool = False
    ) -> SqliteStore:
        """Open an existing directory; a ledger in a single file is named as such."""
        with _reachable(path):
            _check_kind(path)
        store = cls(path, timeout=timeout, read_only=read_only, backup=backup)
        try:
            with store.reading(durable=False) as session:
                if not store.read_only:
                    session.check_tables()
        except BaseException:
            store.close()
            raise
        return store

    # --- transactions ------------------------------------------------------------------

    @contextmanager
    def reading(self, *, durable: bool = True) -> Iterator[Link]:
        """Run queries on one consistent view; what it could see is on the disk at the end."""
        seen = 0
        with self._link() as link:
            try:
                with _translate_errors(self.given):
                    before = self._flushed
                    link.run("BEGIN")
                    _tables.check_version(link, self.place)
                    link.check_files()
                    seen = self._count_commits(link, before)
                    yield link
            finally:
                link.roll_back()
                if durable:
                    self._flush(link, seen)

    @contextmanager
    def writing(self, *, durable: bool = True) -> Iterator[Link]:
        """Run one immediate transaction, on the disk when the block has ended."""
        if self.read_only:
            raise LedgerReadOnly(f"{self.given} can be read but not written; nothing was charged")
        seen = 0
        with self._link() as link:
            try:
                with _translate_errors(self.given), link.write_lock():
                    before = self._flushed
                    link.run("BEGIN IMMEDIATE")
                    try:
                        self._check_writable(link)
                        seen = self._count_commits(link, before)
                        yield link
                        if link.run("UPDATE commits SET made = ?", (seen + 1,)) != 1:
                            raise LedgerCorrupt(f"{self.given}: the count of commits is lost")
                        link.run("COMMIT")
                    except BaseException:
                        link.roll_back()
                        raise
                    seen = self._committed = seen + 1
            finally:
                if durable:
                    self._flush(link, seen)
            if durable:
                _check_after(link)

    def _check_writable(self, link: Link) -> None:
        link.check_files()
        self._check_mark(LedgerError)
        _tables.check_version(link, self.place)
        link.check_tables()
        if not self._may_restore and link.rows("SELECT 1 FROM meta WHERE name = 'backup'"):
            raise LedgerReadOnly(
                f"{self.given} is a backup, and forgets what was charged since it was made; "
                f"nothing was charged: run discreet ledger restore {self.given}"
            )

    def _count_commits(self, link: Link, flushed: int) -> int:
        """Return the number of the newest commit that a transaction sees."""
        rows = link.rows("SELECT made FROM commits")
        if len(rows) != 1 or not isinstance(rows[0][0], int):
            raise LedgerCorrupt(f"{self.given}: the count of commits is lost; run verify")
        made = int(rows[0][0])
        if not flushed <= made < _MOST_COMMITS:
            raise LedgerCorrupt(
                f"{self.given}: {made} commits were counted, and {flushed} were there before; "
                "run verify"
            )
        return made

    def _flush(self, link: Link, number: int) -> None:
        """Return when a commit and all before it are on the disk."""
        if number <= self._flushed:
            return
        with self._flushing:  # those who wait here share the flush of the one before them
            if number <= self._flushed:
                return
            self._check_mark()
            covered = max(number, self._committed)
            self._flush_log(link)
            self._check_mark()  # another one's flush may have failed meanwhile
            self._flushed = covered

    def _flush_log(self, link: Link) -> None:
        try:
            link.flush_log()
        except OSError as error:
            self._failed = True
            with suppress(OSError):
                os.close(os.open(self.directory / MARK, os.O_WRONLY | os.O_CREAT, 0o600))
                sync_path(self.directory)
            raise LedgerUnconfirmed(
                f"{self.given}: the disk did not confirm what was written ({error.strerror}): a "
                "charge under way may be spent, and its body must not run; run discreet ledger "
                f"repair {self.given}"
            ) from None

    def _check_mark(self, kind: type[LedgerError] = LedgerUnconfirmed) -> None:
        if self._failed or (self.directory / MARK).exists():
            raise kind(
                f"{self.given}: the disk did not confirm what was written earlier, so nothing "
                f"may rest on it; nothing was charged: run discreet ledger repair {self.given}"
            )

    def faults(self) -> list[str]:
        """Return what SQLite finds wrong with the pages of the database."""
        with self._link() as link:
            link.run(_FORGET_PAGES)
            try:
                found = [str(row[0]) for row in link.rows("PRAGMA integrity_check(20)")]
            except sqlite3.DatabaseError as error:
                return [str(error)]
        return [] if found == ["ok"] else found

    def differences(self, session: Session) -> list[str]:
        """Return tables, indexes and guards that are not those of a ledger."""
        session.run(_FORGET_PAGES)
        return _tables.compare_sqlite(session)

    # --- copies ------------------------------------------------------------------------

    def backup(self, target: Path, *, at: str) -> None:
        """Copy everything while others go on charging; the copy is complete or absent.

        The copy is marked as a backup: it can be read, and written to after it was restored.
        """
        with (
            new_directory(target) as database,
            self._link() as link,
            _translate_errors(target),
            closing(sqlite3.connect(database, isolation_level=None)) as copy,
        ):
            link.connection.backup(copy)
            copy.execute("INSERT OR REPLACE INTO meta (name, value) VALUES ('backup', ?)", (at,))
            [(made,)] = copy.execute("SELECT made FROM commits").fetchall()
            self._flush(link, int(made))  # what the copy holds is on the disk here as well

    @classmethod
    def repair(cls, path: Path, *, timeout: float) -> bool:
        """Copy the database into a new, flushed file after a failed flush; say whether one failed.

        Every step may be interrupted and repeated.
        """
        with _reachable(path):
            _check_kind(path)
            directory = Path(os.path.realpath(path))
        if not (directory / MARK).exists() and any(directory.glob(DATABASES)):
            return False
        for half in directory.glob(f"{_REPAIRED}*.part*"):
            half.unlink()
        if not any(directory.glob(f"{_REPAIRED}*")):
            old = _find_database(directory)
            new = directory / f"{_REPAIRED}{secrets.token_hex(4)}.sqlite"
            part = new.with_name(f"{new.name}.part")
            with _translate_errors(path), closing(_connect(old, "rw", timeout)) as source:
                source.execute("BEGIN IMMEDIATE")  # no commit is half done
                os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
                with (
                    closing(sqlite3.connect(part, isolation_level=None)) as copy,
                    closing(_connect(old, "ro", timeout)) as reader,
                ):
                    reader.backup(copy)
            sync_path(part)
            part.rename(new)
            sync_path(directory)
        # Without a database of the old name the directory is not opened, and a copy is whole.
        logs = list(directory.glob(f"{DATABASES}-*"))
        for old in directory.glob(DATABASES):
            old.rename(old.with_name(f"{_REPLACED}{old.name}"))
        sync_path(directory)
        for new in directory.glob(f"{_REPAIRED}*.sqlite"):
            new.rename(new.with_name(new.name.replace(_REPAIRED, "ledger-")))
        sync_path(directory)
        for left in [*directory.glob(f"{_REPLACED}*"), *logs]:
            left.unlink(missing_ok=True)
        (directory / MARK).unlink(missing_ok=True)
        sync_path(directory)
        return True

    # --- connections -------------------------------------------------------------------

    @contextmanager
    def _link(self) -> Iterator[Link]:
        link, sound = self._take(), False
        try:
            yield link
            sound = True
        except Exception:
            sound = True
            raise
        finally:
            self._give_back(link, sound=sound)

    def _take(self) -> Link:
        # A new connection is made under the guard, so that no fork comes in between.
        with self._guard:
            while self._forking:
                self._guard.wait()
            if self._closed:
                raise LedgerError(f"{self.given}: this ledger was closed")
            link = self._idle.pop() if self._idle else self._connect()
            self._leased[link] = threading.get_ident()
            return link

    def _connect(self) -> Link:
        if self.database in _REFUSED:
            raise LedgerError(
                f"{self.given}: this process was forked while its parent wrote to the ledger; "
                "start it anew, or fork outside of transactions"
            )
        if self._identity != (identify(self.directory), identify(self.database)):
            raise LedgerError(
                f"{self.given} was replaced since it was opened; nothing was charged, open it again"
            )
        with _translate_errors(self.given):
            return Link(self)

    def _give_back(self, link: Link, *, sound: bool) -> None:
        if link.inherited:
            return
        with self._guard:
            self._leased.pop(link, None)
            if sound and not link.connection.in_transaction and not self._closed:
                self._idle.append(link)
            else:
                link.close()
            self._guard.notify_all()

    def close(self) -> None:
        """Close the connections that are idle; those in use follow when they are done."""
        with self._guard:
            self._closed = True
            self._close_idle()

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def __del__(self) -> None:
        if hasattr(self, "_guard"):
            self.close()

    # --- fork --------------------------------------------------------------------------

    def _before_fork(self) -> None:
        """Wait for the transactions of other threads, then let go of the database."""
        self._guard.acquire()
        self._forking = True
        me, end = threading.get_ident(), time.monotonic() + _FORK_PATIENCE
        while set(self._leased.values()) - {me} and time.monotonic() < end:
            self._guard.wait(0.05)
        self._close_idle()

    def _after_fork_in_parent(self) -> None:
        self._forking = False
        self._guard.notify_all()
        self._guard.release()

    def _after_fork_in_child(self) -> None:
        for link in list(self._leased):
            # To close the connection here could harm the parent: it is kept and never used.
            link.abandon()
            link.inherited = True
            _REFUSED[self.database] = link
        self._start_afresh()


# Databases that this process must not open, with a connection that it inherited in use.
_REFUSED: dict[Path, Link] = {}


class _Forks:
    """One fork at a time, with all stores at rest."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.stores: list[SqliteStore] = []

    def before(self) -> None:
        self.lock.acquire()
        self.stores = list(_STORES)
        for store in self.stores:
            store._before_fork()

    def in_parent(self) -> None:
        for store in self.stores:
            store._after_fork_in_parent()
        self.stores = []
        self.lock.release()

    def in_child(self) -> None:
        for store in self.stores:
            store._after_fork_in_child()
        self.stores = []
        self.lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    _forks = _Forks()
    os.register_at_fork(
        before=_forks.before,
        after_in_parent=_forks.in_parent,
        after_in_child=_forks.in_child,
    )


# --- files -------------------------------------------------------------------------------


@contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """Yield the path of an empty database, whose directory becomes ``target`` at the end."""
    with _reachable(target):
        if os.path.lexists(target):
            raise LedgerExists(f"{target} exists already; nothing was changed")
        if not target.absolute().parent.is_dir():
            raise LedgerMissing(f"{target}: there is no directory {str(target.parent)!r}")
        draft = target.with_name(f"{target.name}.new-{os.getpid()}-{secrets.token_hex(4)}")
        draft.mkdir(0o700)
        try:
            database = draft / f"ledger-{secrets.token_hex(4)}.sqlite"
            for path in (database, draft / _LOCK):
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            yield database
            for path in (database, draft):
                sync_path(path)
            draft.rename(target)
            sync_path(target.absolute().parent)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def fill_database(database: Path, ledger: str) -> None:
    """Make the tables of a ledger in an empty database."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute("BEGIN")
        _tables.make_sqlite(BareSession(connection), ledger)
        connection.execute("COMMIT")


class BareSession:
    """A bare connection as a session."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement, tuple(values)).fetchall()

    def run(self, statement: str, values: Sequence[object] = ()) -> int:
        return self._connection.execute(statement, tuple(values)).rowcount


def is_old_file(path: Path) -> bool:
    """Say whether a path is a ledger in a single file, as versions 1 to 3 kept it."""
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        head = stream.read(100)
    return head.startswith(b"SQLite format 3\0") and head[68:72] == APPLICATION.to_bytes(4, "big")


def _check_kind(path: Path) -> None:
    if is_old_file(path):
        raise LedgerError(
            f"{path} is a ledger in a single file, as earlier versions kept it; nothing was "
            f"changed: run discreet ledger migrate {path}"
        )
    if path.is_file():
        raise LedgerCorrupt(f"{path} is not a ledger")
    if not path.is_dir():
        raise LedgerMissing(
            f"{path}: there is no such ledger (a new one is made by Ledger.create, so that "
            "a mistyped name is not a fresh budget)"
        )


def _find_database(directory: Path) -> Path:
    """Return the one database of a directory."""
    found = sorted(directory.glob(DATABASES))
    if len(found) == 1:
        return found[0]
    if found:
        raise LedgerCorrupt(
            f"{directory} holds {len(found)} databases ({', '.join(path.name for path in found)}):"
            " one was laid over the other; nothing was changed: keep one, with its own -wal"
        )
    if any(directory.glob(f"{_REPAIRED}*")):
        raise LedgerCorrupt(
            f"{directory}: a repair was cut short; run discreet ledger repair {directory}"
        )
    raise LedgerMissing(f"{directory}: there is no ledger in this directory")


def identify(path: Path) -> tuple[int, int]:
    """Return device and inode of a file, or raise ``LedgerError``."""
    try:
        status = path.stat()
    except OSError as error:
        raise LedgerError(
            f"{path} is no longer there ({error.strerror}): it was moved or deleted while the "
            "ledger is in use; nothing was charged"
        ) from None
    if status.st_nlink > 1 and path.suffix == ".sqlite":
        raise LedgerError(
            f"{path} has {status.st_nlink} hard links, and every name would have a log of its "
            "own; nothing was charged: keep one name"
        )
    return status.st_dev, status.st_ino


def sync(descriptor: int) -> None:
    """Write a file to the disk itself; on macOS ``fsync`` stops at the cache of the drive."""
    full = getattr(fcntl, "F_FULLFSYNC", None) if _HAS_FLOCK else None
    if full is None:
        os.fsync(descriptor)
    else:
        fcntl.fcntl(descriptor, full)


def sync_path(path: Path) -> None:
    """Write a file, or the names in a directory, to the disk; Windows cannot do the latter."""
    if os.name == "nt" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def _check_after(link: Link) -> None:
    """Raise if others no longer find a commit: it must not be followed by a release."""
    try:
        link.check_files()
    except LedgerError as error:
        raise LedgerUnconfirmed(
            f"a charge was recorded where others may not see it: {error}; it may be spent, "
            "and its body must not run"
        ) from error


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _connect(database: Path, mode: str, timeout: float) -> sqlite3.Connection:
    """Return a bare connection: ``mode`` is ``ro`` or ``rw``."""
    return sqlite3.connect(
        f"{database.as_uri()}?mode={mode}",
        uri=True,
        timeout=timeout,
        isolation_level=None,
        check_same_thread=False,
    )


@contextmanager
def _reachable(path: Path) -> Iterator[None]:
    """Say in plain words what the system has against a path, such as a name that is too long."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise LedgerExists(f"{path} exists already; nothing was changed") from None
        kind = _REFUSALS.get(error.errno or 0, LedgerError)
        raise kind(f"{path}: cannot be used ({error.strerror})") from None


_REFUSALS: dict[int, type[LedgerError]] = {
    errno.EACCES: LedgerReadOnly,
    errno.EPERM: LedgerReadOnly,
    errno.EROFS: LedgerReadOnly,
    errno.ENOSPC: LedgerFull,
    errno.EDQUOT: LedgerFull,
}


@contextmanager
def _translate_errors(path: Path) -> Iterator[None]:
    """Raise SQLite's errors in the words of a ledger."""
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
