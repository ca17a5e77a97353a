"""One file, one log: whoever writes to a SQLite ledger proves that all see the same three files.

SQLite names the write-ahead log after the path. A file that is renamed, linked, replaced or
deleted while it is open therefore gets a second log, and charges in the first are lost to those
who use the second. Three things stand against that:

* Every connection remembers which files it found (device and inode of the ledger, of its log
  and of the log's index). They are looked at again inside every transaction and after every
  commit, before a body may run. A file with several hard links is refused.
* Connections that write hold a shared lock on the file ``-users`` beside the ledger, and the
  first of them notes there which files it found. Later ones compare before they touch anything.
* The first one also asks for the ledger alone. The locks of SQLite belong to the inode, so this
  fails while somebody has the same file open under another name.

Those who only read prove nothing and therefore stand for nothing: they compare with the note of
those who write, and they let go of the file after each transaction.

Never opened here is the ledger itself: to close any descriptor of a file drops all POSIX locks
that the process holds on it, those of SQLite included.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from discreet.errors import LedgerBusy, LedgerCorrupt, LedgerError, LedgerFull, LedgerReadOnly

try:
    import fcntl
except ImportError:
    _HAS_FLOCK = False
else:
    _HAS_FLOCK = True

USERS_FILE = "-users"
_LOGS = ("-wal", "-shm")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.05
PATIENCE = 2.0  # seconds in which files that do not fit may still come to fit
_ABSENT = "-"


class _Found(NamedTuple):
    """The identity of the ledger, its log and the index of the log; absent is ``-``."""

    ledger: str
    wal: str
    shm: str


class ChangedOnArrivalError(LedgerError):
    """The last of the users left, and the log with them, while another one arrived."""


def mode_beside(path: Path) -> int:
    """Who may read and write a file beside the ledger: those who may do so with the ledger."""
    try:
        return path.stat().st_mode & 0o666
    except OSError:  # it is being made
        return 0o600


class Custody:
    """The files of a ledger as one connection found them, and its place among the users."""

    def __init__(
        self, path: Path, *, given: Path, timeout: float, writes: bool, compares: bool = True
    ) -> None:
        self._path = path
        self._given = given
        self._timeout = timeout
        self._writes = writes
        self._logs = tuple(Path(f"{path}{end}") for end in _LOGS)
        self._found: _Found | None = None
        self._descriptor = self._open() if writes or compares else None

    def _open(self) -> int | None:
        if not _HAS_FLOCK:
            return None
        flags = os.O_RDWR | os.O_CREAT if self._writes else os.O_RDONLY
        name = f"{self._path}{USERS_FILE}"
        try:
            return os.open(name, flags | os.O_CLOEXEC, mode_beside(self._path))
        except OSError as error:
            if not self._writes:
                return None
            kind = _REFUSALS.get(error.errno or 0, LedgerError)
            raise kind(
                f"{name} cannot be opened ({error.strerror}), and without it nobody can tell "
                "that all who write use one log; nothing was charged"
            ) from None

    @contextmanager
    def arriving(
        self, *, is_free: Callable[[], bool], examine: Callable[[], None] | None, fresh: bool
    ) -> Iterator[None]:
        """Connect inside this block.

        ``is_free`` says whether the file can be had alone. ``examine`` raises if the file and
        a log that was left beside it do not belong together.
        """
        if not fresh or self._path.exists():
            identity_of(self._path)
        if self._descriptor is None:
            yield
            self._found = self._look()
        elif not self._writes:
            self._look_as_guest(self._descriptor)
            yield
            self._found = self._look_as_guest(self._descriptor)
            self.close()
        else:
            first = self._enter(self._descriptor, is_free, None if fresh else examine)
            yield
            self._found = self._look()
            if first:
                self._note(self._descriptor, self._found)
                self._wait_for_share(self._descriptor)
            else:
                try:
                    self._compare(self._noted(self._descriptor), self._found)
                except LedgerError as error:
                    fcntl.flock(self._descriptor, fcntl.LOCK_UN)
                    raise ChangedOnArrivalError(str(error)) from None

    def check(self) -> None:
        """Raise ``LedgerError`` unless every file is still the one that was opened."""
        if self._found is not None:
            self._compare(self._found, self._look())

    def close(self) -> None:
        """Leave the users."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):
                os.close(descriptor)

    def _look(self) -> _Found:
        ledger = identity_of(self._path)
        if self._given != self._path and identity_of(self._given) != ledger:
            raise LedgerError(
                f"{self._given} leads to another file than when it was opened; nothing was "
                "charged, open it again"
            )
        return _Found(ledger, *map(_identity_or_absent, self._logs))

    def _compare(self, before: _Found | None, now: _Found) -> None:
        if before is None or before == now:
            return
        for what, then, today in zip(("", *_LOGS), before, now, strict=True):
            if then not in (_ABSENT, today):
                raise LedgerError(
                    f"{self._path}{what} was replaced, moved or deleted while in use; "
                    "nothing was charged: close it everywhere, put the files back and run verify"
                )

    # --- the users ---------------------------------------------------------------------

    def _enter(
        self, descriptor: int, is_free: Callable[[], bool], examine: Callable[[], None] | None
    ) -> bool:
        """Take a place among the users; the value says whether we are the first."""
        began, pause = time.monotonic(), _FIRST_PAUSE
        while True:
            waited = time.monotonic() - began
            if _locked(descriptor, fcntl.LOCK_EX):
                if examine is not None:
                    self._check_leftovers(examine)
                if is_free():
                    return True
                fcntl.flock(descriptor, fcntl.LOCK_UN)
                if waited > self._timeout:
                    raise LedgerError(
                        f"{self._path} is in use under another name, and so with another log, or "
                        "by another program such as a database shell; nothing was charged: close "
                        "it there, or open it for reading only"
                    )
            elif _locked(descriptor, fcntl.LOCK_SH):
                try:
                    self._compare(self._noted(descriptor), self._look())
                except LedgerError:
                    # The last of the users may just have closed the ledger, log and all.
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
                    if waited > min(PATIENCE, self._timeout):
                        raise
                else:
                    return False
            elif waited > self._timeout:
                raise LedgerBusy(f"{self._path}: others are opening it; nothing was charged")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _look_as_guest(self, descriptor: int) -> _Found:
        """What one who only reads finds; it must be what the users have, if there are any.

        A guest never holds a shared lock, so nobody takes it for a user.
        """
        began = time.monotonic()
        while True:
            found = self._look()
            if _locked(descriptor, fcntl.LOCK_EX):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
                return found
            try:
                self._compare(self._noted(descriptor), found)
            except LedgerError:
                if time.monotonic() - began > min(PATIENCE, self._timeout):
                    raise
            else:
                return found
            time.sleep(_FIRST_PAUSE)

    def _check_leftovers(self, examine: Callable[[], None]) -> None:
        """Before the first user touches anything, ask whether file and log belong together."""
        wal, shm = self._logs
        # SQLite deletes the index before the log, so an index alone was robbed of its log.
        if not wal.exists() and shm.exists() and not wal.exists():
            raise LedgerCorrupt(
                f"{wal} is missing, and with it charges that are not in the ledger yet; nothing "
                f"was charged: put it back (to go on without those charges, delete {shm.name})"
            )
        try:
            ledger, log = self._path.stat(), wal.stat()
        except OSError:
            return
        # A log that ends a crash is the last that was written. A file that was touched since
        # then may be another one, such as a backup, and the log would be mixed into it.
        if log.st_size > 0 and ledger.st_ctime_ns >= log.st_mtime_ns:
            examine()

    def _wait_for_share(self, descriptor: int) -> None:
        # Another may come in between the two locks; it finds the ledger taken and lets go.
        while not _locked(descriptor, fcntl.LOCK_SH):
            time.sleep(_FIRST_PAUSE)

    def _note(self, descriptor: int, found: _Found) -> None:
        with suppress(OSError):  # whoever may write the ledger may register, if we may say so
            os.fchmod(descriptor, self._path.stat().st_mode & 0o666)
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, " ".join(found).encode("ascii"), 0)
        except OSError as error:
            raise LedgerFull(
                f"{self._path}{USERS_FILE} cannot be written ({error.strerror}); "
                "nothing was charged"
            ) from None

    def _noted(self, descriptor: int) -> _Found | None:
        words = os.pread(descriptor, 1000, 0).decode("ascii", "replace").split()
        return _Found(*words) if len(words) == len(_Found._fields) else None


_REFUSALS: dict[int, type[LedgerError]] = {
    errno.EACCES: LedgerReadOnly,
    errno.EPERM: LedgerReadOnly,
    errno.EROFS: LedgerReadOnly,
    errno.ENOSPC: LedgerFull,
    errno.EDQUOT: LedgerFull,
}


def identity_of(path: Path) -> str:
    """Device and inode of a ledger, or ``LedgerError`` if it is gone or has several names."""
    try:
        status = path.stat()
    except OSError as error:
        raise LedgerError(
            f"{path} is no longer there ({error.strerror}): it was moved or deleted while the "
            "ledger is in use; nothing was charged"
        ) from None
    if status.st_nlink > 1:
        raise LedgerError(
            f"{path} has {status.st_nlink} hard links, and every name would have a log of its "
            "own; nothing was charged: keep one name"
        )
    return f"{status.st_dev}:{status.st_ino}"


def _identity_or_absent(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return _ABSENT
    return f"{status.st_dev}:{status.st_ino}"


def _locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
