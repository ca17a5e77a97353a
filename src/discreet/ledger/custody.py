"""One file, one log: whoever opens a SQLite ledger proves that all see the same three files.

SQLite names the write-ahead log after the path. A file that is renamed, linked, replaced or
deleted while it is open therefore gets a second log, and charges in the first are lost to those
who use the second. Three things stand against that:

* Every connection remembers which files it found (device and inode of the ledger, of its log
  and of the log's index). They are looked at again inside every transaction and after every
  commit, before a body may run. A file with several hard links is refused.
* Connections hold a shared lock on the file ``-users`` beside the ledger, and the first of them
  notes there which files it found. Later ones compare before they touch anything.
* The first one also asks for the ledger alone. The locks of SQLite belong to the inode, so this
  fails while somebody has the same file open under another name.

Never opened here is the ledger itself: to close any descriptor of a file drops all POSIX locks
that the process holds on it, those of SQLite included.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from discreet.errors import LedgerBusy, LedgerError, LedgerFull

try:
    import fcntl
except ImportError:
    _HAS_FLOCK = False
else:
    _HAS_FLOCK = True

__all__ = ["USERS_FILE", "Custody", "identity_of"]

USERS_FILE = "-users"
_LOGS = ("-wal", "-shm")
_PAUSE = 0.002
_PATIENCE = 2.0  # seconds to wait for users of another name
_ABSENT = "-"


class _Found(NamedTuple):
    """The identity of the ledger, its log and the index of the log; absent is ``-``."""

    ledger: str
    wal: str
    shm: str


class Custody:
    """The files of a ledger as one connection found them, and its place among the users."""

    def __init__(self, path: Path, *, given: Path, timeout: float) -> None:
        self._path = path
        self._given = given
        self._timeout = timeout
        self._logs = tuple(Path(f"{path}{end}") for end in _LOGS)
        self._found: _Found | None = None
        self._descriptor = self._open()
        self.hidden = _HAS_FLOCK and self._descriptor is None
        """Whether others look for users and cannot see this one, which may not write there."""

    def _open(self) -> int | None:
        if not _HAS_FLOCK:
            return None
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        try:
            return os.open(f"{self._path}{USERS_FILE}", flags, 0o666)
        except OSError:  # a directory or a file that cannot be written
            return None

    @contextmanager
    def arriving(self, *, is_free: Callable[[], bool], fresh: bool) -> Iterator[None]:
        """Connect inside this block; ``is_free`` says whether the file can be had alone."""
        if not fresh or self._path.exists():
            identity_of(self._path)
        if self._descriptor is None:
            yield
            self._found = self._look()
            return
        alone = self._enter(self._descriptor, is_free)
        if not alone:
            self._compare(self._noted(self._descriptor), self._look())
        yield
        self._found = self._look()
        if alone:
            self._note(self._descriptor, self._found)
            self._wait_for_share(self._descriptor)
        else:
            self._compare(self._noted(self._descriptor), self._found)

    def check(self) -> None:
        """Raise ``LedgerError`` unless every file is still the one that was opened."""
        if self._found is not None:
            self._compare(self._found, self._look())

    def close(self) -> None:
        """Leave the users."""
        if self._descriptor is not None:
            with suppress(OSError):
                os.close(self._descriptor)
        self._descriptor = None

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

    def _enter(self, descriptor: int, is_free: Callable[[], bool]) -> bool:
        """Take a place among the users; the value says whether we are the first."""
        began = time.monotonic()
        while True:
            if _locked(descriptor, fcntl.LOCK_EX):
                if is_free():
                    return True
                fcntl.flock(descriptor, fcntl.LOCK_UN)
                if time.monotonic() - began > min(_PATIENCE, self._timeout):
                    raise LedgerError(
                        f"{self._path} is in use under another name or by another program, and "
                        "so with another log; nothing was charged"
                    )
            elif _locked(descriptor, fcntl.LOCK_SH):
                return False
            elif time.monotonic() - began > self._timeout:
                raise LedgerBusy(f"{self._path}: others are opening it; nothing was charged")
            time.sleep(_PAUSE)

    def _wait_for_share(self, descriptor: int) -> None:
        # Another may come in between the two locks; it finds the ledger taken and lets go.
        while not _locked(descriptor, fcntl.LOCK_SH):
            time.sleep(_PAUSE)

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
