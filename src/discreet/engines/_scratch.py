"""Private directories for what is written meanwhile, and an end to those of dead processes.

Sources are staged and large queries spill into temporary directories, which hold rows. Each belongs
to the process that made it and is removed when that closes it, forgets it or ends. A process that
is killed cannot do so: the next one of the same user that needs a directory removes what it left.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path
from typing import final

if sys.platform != "win32":
    import fcntl

_PREFIX = "discreet-curator-"
_PID = "pid"


@final
class PrivateFolder:
    """A temporary directory that only its owner may read, bound to this process.

    Its file ``pid`` is locked as long as the process lives, so a number that the system gave to
    another process meanwhile, or a container that counts its own, deceives nobody.
    """

    def __init__(self) -> None:
        remove_stale()
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        # It is locked before it has its name: nobody finds it unlocked while the process lives.
        unnamed = self.path / "pid.new"
        lock = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.write(lock, f"{os.getpid()}\n".encode())
        if sys.platform != "win32":
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unnamed.rename(self.path / _PID)
        self._end = weakref.finalize(self, _remove, self.path, lock, os.getpid())

    def close(self) -> None:
        """Remove the directory; later calls do nothing."""
        self._end()


def _remove(folder: Path, lock: int, owner: int) -> None:
    if os.getpid() == owner:  # a forked child that ends leaves it alone
        shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


@final
class Scratch:
    """A private directory for everything temporary of a service."""

    def __init__(self) -> None:
        self._before = tempfile.tempdir
        self._folder = PrivateFolder()
        self.folder = self._folder.path
        tempfile.tempdir = str(self.folder)

    def close(self) -> None:
        """Remove the directory; temporary files go where they went before."""
        tempfile.tempdir = self._before
        self._folder.close()


def remove_stale(parent: str | None = None) -> list[Path]:
    """Remove the directories of this user's processes that are dead; return which."""
    removed = []
    for folder in sorted(Path(parent or tempfile.gettempdir()).glob(f"{_PREFIX}*")):
        if _is_own(folder) and _is_dead(folder / _PID):
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder)
    return removed


def _is_own(folder: Path) -> bool:
    """Whether it is a directory itself, no link to one, and belongs to this user."""
    if sys.platform == "win32":
        return False
    with suppress(OSError):
        found = folder.lstat()
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return False


def _is_dead(place: Path) -> bool:
    """Whether there is a file ``pid`` whose process holds it no more."""
    if sys.platform == "win32":
        return False
    try:
        descriptor = os.open(place, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
