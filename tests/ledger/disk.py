"""A double of a disk: what was not flushed is lost with the power."""

import shutil
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from discreet._store import MARK, _sqlite
from ledger.tampering import database_of


class Disk:
    """A disk that loses what was not flushed, and fails or waits when it is told to.

    A flush covers what was there when it began.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.flushed: dict[Path, bytes] = {}
        self._began: dict[Path, int] = {}
        self._number, self._lock = count(1), threading.Lock()
        self.fails = False
        self.before: Callable[[], None] = lambda: None
        self._sync = _sqlite.sync
        monkeypatch.setattr(_sqlite, "sync", self.sync)

    def sync(self, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        with self._lock:
            began = next(self._number)
            held = path.read_bytes() if path.name.endswith("-wal") else b""
        self.before()
        if self.fails and path.name.endswith("-wal"):
            raise OSError(5, "Input/output error")
        self._sync(descriptor)
        with self._lock:
            if path.is_file() and began > self._began.get(path, 0):
                self.flushed[path], self._began[path] = held, began

    def cut_power(self, place: Path, target: Path) -> Path:
        """What is found at a place when the power is back, as a ledger of its own."""
        target.mkdir(mode=0o700)
        database = database_of(place)
        shutil.copyfile(database, target / database.name)
        log = Path(f"{database}-wal")
        (target / log.name).write_bytes(self.flushed.get(log, b""))
        if (place / MARK).exists():
            (target / MARK).touch()
        return target
