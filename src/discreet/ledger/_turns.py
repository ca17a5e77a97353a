"""Whose turn it is to write: a queue of processes and threads beside a SQLite file.

SQLite alone keeps writers apart; this queue makes them share the slow part, the flush to the
disk. Whoever writes first says so (a shared lock on ``-queue``), then takes its turn (an
exclusive lock on ``-turn``). A writer that sees others in the queue may leave the flush to them.

The locks are ``flock`` locks on empty files: the system drops them when a process dies, and
nothing is lost if the files are deleted. Where there is no ``flock`` everyone flushes alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from discreet.errors import LedgerBusy
from discreet.ledger._custody import mode_beside

try:
    import fcntl
except ImportError:
    _HAS_FLOCK = False
else:
    _HAS_FLOCK = True

SIDE_FILES = ("-queue", "-turn", "-sync")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.001


class Turns:
    """The queue as one connection sees it: its own descriptors of the three files."""

    def __init__(self, path: Path, *, timeout: float, writes: bool = True) -> None:
        self._path = path
        self._timeout = timeout
        self._queue = self._turn = self._sync = None
        if writes:
            self._queue, self._turn, self._sync = (self._open(suffix) for suffix in SIDE_FILES)

    def _open(self, suffix: str) -> int | None:
        if not _HAS_FLOCK:
            return None
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            return os.open(f"{self._path}{suffix}", flags, mode_beside(self._path))
        except OSError:  # a directory that cannot be written: no queue, and SQLite will say why
            return None

    @property
    def available(self) -> bool:
        """Whether there is a queue at all."""
        return None not in (self._queue, self._turn, self._sync)

    def close(self) -> None:
        """Drop the descriptors, and with them every lock that only they hold."""
        for descriptor in (self._queue, self._turn, self._sync):
            if descriptor is not None:
                with suppress(OSError):
                    os.close(descriptor)
        self._queue = self._turn = self._sync = None

    @contextmanager
    def mine(self) -> Iterator[bool]:
        """Wait for a turn; the value says whether nobody else is in the queue."""
        if self._queue is None or self._turn is None:
            yield True
            return
        try:
            # To give back what was never granted is harmless, and an interrupt may come at any
            # moment after it was.
            self._acquire(self._queue, fcntl.LOCK_SH)
            self._acquire(self._turn, fcntl.LOCK_EX)
            yield self.nobody_waits()
        finally:
            self._release(self._turn)
            self._release(self._queue)

    @contextmanager
    def watch(self) -> Iterator[bool]:
        """Try to be the one who sees to the flush; the value says whether we are."""
        if self._sync is None:
            yield True
            return
        try:
            yield _granted(self._sync, fcntl.LOCK_EX)
        finally:
            self._release(self._sync)

    def nobody_waits(self) -> bool:
        """Leave the queue, and say whether it is empty now."""
        if self._queue is None:
            return True
        try:
            return _granted(self._queue, fcntl.LOCK_EX)
        finally:
            self._release(self._queue)

    def _acquire(self, descriptor: int, kind: int) -> None:
        """A lock that is asked for again and again, so that waiting has an end."""
        end, pause = time.monotonic() + self._timeout, _FIRST_PAUSE
        while not _granted(descriptor, kind):
            if time.monotonic() > end:
                raise LedgerBusy(
                    f"{self._path}: another process has held the ledger for more than "
                    f"{self._timeout:g} s; nothing was charged"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _release(self, descriptor: int | None) -> None:
        if descriptor is not None:
            with suppress(OSError):  # closed meanwhile, and so released
                fcntl.flock(descriptor, fcntl.LOCK_UN)


def _granted(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
