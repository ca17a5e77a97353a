"""A ledger in one SQLite file: write-ahead log, full synchronisation, immediate transactions.

**Durable before the body runs.** A flush to the disk takes milliseconds and serves every commit
before it, so writers share it. A writer with nobody behind it commits with
``synchronous=FULL``, and so does everyone on a disk so fast that waiting for others costs more
than a flush. One with others in the queue commits with ``synchronous=NORMAL``, which
keeps the file consistent but does not wait for the disk, and then returns only when the row of
``commits`` says that a later FULL commit covered it. That row is written in the FULL commit
itself, and SQLite shows a commit to others after the flush; the first who waits too long makes
the FULL commit. So nobody depends on another process staying alive.

**Threads and fork.** Connections are leased from a pool, one per running transaction. SQLite keeps
its locks in memory of the process, and a fork copies that memory but not the locks. So a fork
waits until no transaction runs and closes the connections first; parent and child open new ones.
Where that cannot be done, the child is refused the file.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from discreet.errors import (
    LedgerCorrupt,
    LedgerError,
    LedgerExists,
    LedgerMissing,
    LedgerReadOnly,
    LedgerUnconfirmed,
)
from discreet.ledger import _rows, _shape
from discreet.ledger._custody import USERS_FILE, identity_of
from discreet.ledger._sqlite_link import APPLICATION, Link, connect_to_read, translated
from discreet.ledger._store import Session

_LONGEST_GATHERING = 0.02  # seconds to wait for somebody else's flush
_LOOK_AGAIN = 0.003
_QUICK_FLUSH = 0.001  # seconds of a commit with its flush that nobody needs to share
_FORK_PATIENCE = 10.0  # seconds that a fork waits for transactions of other threads
_STORES: weakref.WeakSet[SqliteStore] = weakref.WeakSet()


class _Ticket:
    """A place for the connection that a transaction leases."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.link: Link | None = None
        self.sound = True  # what was interrupted is not used again
        self.done = False


class SqliteStore:
    """See the module; made by :meth:`create` and :meth:`open`."""

    row_lock = ""  # a transaction that writes has the whole file

    def __init__(
        self, path: Path, *, timeout: float, read_only: bool, examines: bool = False
    ) -> None:
        with _reachable(path):
            # SQLite keeps the log beside the file itself, wherever a link to it may be.
            self._given = path.absolute()
            self._path = Path(os.path.realpath(path))
        self._examines = examines
        self._identity: str | None = None
        self._timeout = timeout
        self._read_only = read_only
        self._closed = False
        self._flush_seconds = 8 * _QUICK_FLUSH  # until some were measured, as if they were slow
        self._start_afresh()
        _STORES.add(self)

    def _start_afresh(self) -> None:
        self._guard = threading.Condition()
        self._leased: dict[_Ticket, int] = {}  # with the thread that has it
        self._idle: list[Link] = []
        self._forking = False

    # --- opening -----------------------------------------------------------------------

    @classmethod
    def create(cls, path: Path, *, timeout: float, ledger: str) -> SqliteStore:
        """Make a new file; an existing one is refused, an empty one is filled."""
        with _reachable(path):
            found = path.parent.is_dir()
            path.exists()  # a name that is too long fails here
        if not found:
            raise LedgerMissing(f"{path}: there is no directory {str(path.parent)!r}")
        store = cls(path, timeout=timeout, read_only=False)
        try:
            store._look_before_creating()
            with _reachable(path):
                new = not path.exists()
                # Only its owner may read it, from the first moment.
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            try:
                store._fill(ledger)
            except BaseException:
                if new and path.stat().st_size == 0:
                    path.unlink()
                raise
        except BaseException:
            store.close()
            raise
        return store

    def _look_before_creating(self) -> None:
        """Leave alone what is there, and leave no files beside it."""
        with _reachable(self._path):
            empty = not self._path.exists() or self._path.stat().st_size == 0
        if not empty and self._glance("SELECT 1 FROM sqlite_master LIMIT 1"):
            raise LedgerExists(f"{self._path} exists already; nothing was changed")

    def _glance(self, query: str) -> list[tuple[object, ...]]:
        with translated(self._path), closing(connect_to_read(self._path, self._timeout)) as look:
            return list(look.execute(query).fetchall())

    def _fill(self, ledger: str) -> None:
        with self._link(fresh=True) as link, translated(self._path):
            with link.turns.mine():
                link.begin(full=True)
                try:
                    if link.rows("SELECT 1 FROM sqlite_master LIMIT 1"):
                        raise LedgerExists(f"{self._path} exists already; nothing was changed")
                    link.run(f"PRAGMA application_id = {APPLICATION}")
                    _rows.migrate(link, "sqlite", start=0)
                    link.run("INSERT INTO meta (name, value) VALUES ('ledger', ?)", (ledger,))
                    link.custody.check()
                    link.run("COMMIT")
                except BaseException:
                    link.roll_back()
                    raise
            link.custody.check()
            link.check()
            link.check_shape()
        self._identity = identity_of(self._path)

    @classmethod
    def open(cls, path: Path, *, timeout: float, read_only: bool = False) -> SqliteStore:
        """Open an existing file, and bring an older one up to date."""
        with _reachable(path):
            found = path.is_file()
        if not found:
            raise LedgerMissing(
                f"{path}: there is no such ledger (a new one is made by Ledger.create, so that "
                "a mistyped name is not a fresh budget)"
            )
        store = cls(path, timeout=timeout, read_only=read_only or not os.access(path, os.W_OK))
        try:
            if not Path(f"{store._path}{USERS_FILE}").exists() and store._glance(
                "PRAGMA application_id"
            ) != [(APPLICATION,)]:
                raise LedgerCorrupt(f"{path} is not a ledger")
            with store._link() as link, translated(path):
                outdated = link.version < _rows.LATEST
            if outdated:
                store._update()
            elif not store._read_only:
                with store._link() as link, translated(path):
                    link.check_shape()
            store._identity = identity_of(store._path)
        except BaseException:
            store.close()
            raise
        return store

    def _update(self) -> None:
        if self._read_only:
            raise LedgerReadOnly(f"{self._path} has an older schema and cannot be written")
        with self._link() as link, translated(self._path), link.turns.mine():
            link.begin(full=True)
            try:
                link.custody.check()
                # Somebody else may have done it while we waited.
                start = _rows.check_version(link, str(self._path))
                _rows.migrate(link, "sqlite", start=start)
                link.check_shape()
                link.run("COMMIT")
            except BaseException:
                link.roll_back()
                raise
            link.version = _rows.LATEST

    # --- transactions ------------------------------------------------------------------

    @property
    def place(self) -> str:
        return str(self._given)

    @contextmanager
    def reading(self) -> Iterator[Link]:
        """A consistent view; never waits for writers."""
        with self._link() as link, translated(self._path):
            link.run("BEGIN")
            try:
                _rows.check_version(link, self.place)
                link.custody.check()
                yield link
            finally:
                link.roll_back()

    @contextmanager
    def writing(self, *, durable: bool = True) -> Iterator[Link]:
        """One immediate transaction, on the disk when the block has ended."""
        if self._read_only:
            raise LedgerReadOnly(f"{self._path} can be read but not written; nothing was charged")
        with self._link() as link:
            with translated(self._path), link.turns.mine() as alone:
                full = durable and (alone or self._flush_seconds < _QUICK_FLUSH)
                link.begin(full=full)
                try:
                    link.custody.check()
                    _rows.check_version(link, self.place)
                    link.check_shape()
                    yield link
                    made, flushed = link.commits()
                    number = made + 1
                    account = (number, number if full else flushed)
                    if link.run("UPDATE commits SET made = ?, durable = ?", account) != 1:
                        raise LedgerCorrupt(f"{self._path}: the account of commits is lost")
                    began = time.monotonic()
                    link.run("COMMIT")
                    if full:
                        self._flush_seconds += (time.monotonic() - began - self._flush_seconds) / 8
                except BaseException:
                    link.roll_back()
                    raise
            if durable and not full:
                self._await_flush(link, number)
            if durable:  # what may be lost may be lost with its file as well
                self._check_after(link)

    def _check_after(self, link: Link) -> None:
        """A commit to a file that others no longer find must not be followed by a release."""
        try:
            link.custody.check()
        except LedgerError as error:
            raise LedgerUnconfirmed(
                f"a charge was recorded where others may not see it: {error}; it may be spent, "
                "and its body must not run"
            ) from error

    def flush(self) -> None:
        """Return when everything that can be seen now is on the disk."""
        if self._read_only:
            self._flush_log()
            return
        with self._link() as link:
            with translated(self._path):
                made, durable = link.commits()
            if durable < made:
                self._await_flush(link, made)
            self._check_after(link)

    def _flush_log(self) -> None:
        """What one who reads can do: all that is not in the log is on the disk already."""
        try:
            _flush(Path(f"{self._path}-wal"))
        except FileNotFoundError:
            return
        except OSError as error:
            raise LedgerUnconfirmed(
                f"{self._path}: the disk did not confirm what the ledger holds ({error.strerror})"
            ) from None

    def _await_flush(self, link: Link, number: int) -> None:
        """Return when a commit is on the disk; see to it if nobody else does."""
        end = time.monotonic() + _LONGEST_GATHERING
        try:
            with translated(self._path):
                while link.commits()[1] < number:
                    with link.turns.watch() as watching:
                        if watching and (time.monotonic() > end or link.turns.nobody_waits()):
                            self._flush_all(link)
                            return
                    time.sleep(_LOOK_AGAIN)
        except LedgerError as error:
            link.roll_back()
            raise LedgerUnconfirmed(
                f"{self._path}: a charge was recorded, but the disk did not confirm it: {error}; "
                "it counts as spent and its body must not run"
            ) from error

    def _flush_all(self, link: Link) -> None:
        with link.turns.mine():
            link.begin(full=True)
            link.run("UPDATE commits SET durable = made")
            link.run("COMMIT")

    def faults(self) -> list[str]:
        """What SQLite finds wrong with the pages of the file."""
        with self._link() as link:
            try:
                found = [str(row[0]) for row in link.rows("PRAGMA integrity_check(20)")]
            except sqlite3.DatabaseError as error:
                return [str(error)]
        return [] if found == ["ok"] else found

    def differences(self, session: Session) -> list[str]:
        """Tables, indexes and guards that are not those of a ledger, and impossible commits."""
        odd = _shape.sqlite_differences(session, _rows.LATEST)
        rows = session.rows("SELECT made, durable FROM commits")
        [(entries,)] = session.rows("SELECT COUNT(*) FROM entries")
        fault = _shape.commits_fault(rows, entries=entries)
        return odd + ([fault] if fault else [])

    def backup(self, target: Path) -> None:
        """A consistent copy while others go on charging; complete or absent.

        The copy is a ledger of its own with the same identity: charging both spends the budget
        twice, so a copy is for reading and for restoring.
        """
        with _reachable(target):
            if target.exists():
                raise LedgerExists(f"{target} exists already; nothing was copied")
        draft = target.with_name(f".{target.name[:64]}.{os.getpid()}.{threading.get_ident()}")
        try:
            with self._link() as link, translated(target):
                os.close(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
                with closing(sqlite3.connect(draft, isolation_level=None)) as copy:
                    link.connection.backup(copy)
                    # One file without a log beside it; it becomes durable like any other file.
                    copy.execute("PRAGMA journal_mode = DELETE").fetchall()
                _flush(draft)
                os.link(draft, target)  # refuses to replace a file that came in between
                _flush(target.parent)
        except FileExistsError:
            raise LedgerExists(f"{target} exists already; nothing was copied") from None
        except OSError as error:
            raise LedgerError(f"{target}: cannot be written ({error.strerror})") from None
        finally:
            draft.unlink(missing_ok=True)

    # --- connections -------------------------------------------------------------------

    @contextmanager
    def _link(self, *, fresh: bool = False) -> Iterator[Link]:
        # An interrupt may come at any moment, so a lease has a ticket before it begins and is
        # given back a second time if the first was cut short.
        ticket = _Ticket()
        try:
            try:
                yield self._lease(ticket, fresh=fresh)
            except Exception:
                raise
            except BaseException:
                ticket.sound = False
                raise
            finally:
                self._give_back(ticket)
        finally:
            self._give_back(ticket)

    def _lease(self, ticket: _Ticket, *, fresh: bool) -> Link:
        # A new connection is made under the guard, so that no fork comes in between.
        with self._guard:
            while self._forking:
                self._guard.wait()
            if self._closed:
                raise LedgerError(f"{self._path}: this ledger was closed")
            self._leased[ticket] = threading.get_ident()
            ticket.link = self._idle[-1] if self._idle else self._connect(fresh=fresh)
            del self._idle[-1:]
            return ticket.link

    def _connect(self, *, fresh: bool) -> Link:
        if self._path in _REFUSED:
            raise LedgerError(
                f"{self._path}: this process was forked while its parent wrote to the ledger; "
                "start it anew, or fork outside of transactions"
            )
        mode = "ro" if self._read_only else "rwc" if fresh else "rw"
        if self._identity is not None and self._identity != identity_of(self._path):
            raise LedgerError(
                f"{self._path} was replaced since it was opened; nothing was charged, open it again"
            )
        with translated(self._path):
            return Link(
                self._path,
                given=self._given,
                timeout=self._timeout,
                mode=mode,
                examine=None if self._examines else self._examine,
            )

    def _examine(self) -> None:
        """Replay a ledger as the log that was left beside it would make it, before it does."""
        from discreet.ledger._replay import verify_store

        reader = SqliteStore(self._path, timeout=self._timeout, read_only=True, examines=True)
        try:
            with reader._link() as link:
                version = link.version
            faults = reader.faults()
            if not faults and version == _rows.LATEST:
                faults = [str(problem) for problem in verify_store(reader).problems]
        except LedgerError as error:
            faults = [str(error)]
        finally:
            reader.close()
        if faults:
            raise LedgerCorrupt(
                f"{self._path} and the log that was left beside it do not belong together "
                f"({' '.join(faults[0].split())[:200]}); nothing was charged or changed: if the "
                "file was restored from a backup, delete -wal and -shm beside it; otherwise "
                "restore a backup"
            )

    def _give_back(self, ticket: _Ticket) -> None:
        if ticket.done or os.getpid() != ticket.owner:
            return
        with self._guard:
            self._leased.pop(ticket, None)
            link = ticket.link
            if link is not None:
                if link in self._idle:  # interrupted between the two
                    self._idle.remove(link)
                # One who reads must not keep a writer from the file for longer.
                unused = ticket.sound and not link.connection.in_transaction
                if unused and not (self._closed or link.read_only):
                    self._idle.append(link)
                else:
                    link.close()
            ticket.done = True
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
        """Wait for the transactions of other threads, then let go of the file."""
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
        for ticket in self._leased:
            if ticket.link is not None:
                # To close the connection here could harm the parent: it is kept and never used.
                ticket.link.abandon()
                _REFUSED[self._path] = ticket.link
        self._start_afresh()


# Files that this process must not open, with a connection that it inherited in use.
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


@contextmanager
def _reachable(path: Path) -> Iterator[None]:
    """A name that the system cannot even look up, such as one that is too long, in plain words."""
    try:
        yield
    except OSError as error:
        raise LedgerError(f"{path}: cannot be looked at ({error.strerror})") from None


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
