"""Private directories for rows: temporary ones, and tables stored in a named place.

**Temporary.** Sources are staged and large queries spill into temporary directories. Each belongs
to the process that made it and is removed when that closes it, forgets it or ends. A process that
is killed cannot do so: the next one of the same user that needs a directory removes what it left.

**Stored.** A bounded table is stored only in a directory that its holder names and that only its
owner may read, as ``<keyed digest>/``: Arrow files, one for each part, or a database of DuckDB.
It is built as a temporary directory inside, flushed and renamed, so it is complete or absent; of
two processes that build the same one, one wins. Another digest is another table.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import shutil
import stat
import sys
import tempfile
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, final

from discreet._files import create_file, flush_directory, replace_file
from discreet.data import import_arrow
from discreet.errors import FileUnusable, InvalidValue
from discreet.randomness import SystemSource

if sys.platform != "win32":
    import fcntl

_PREFIX = "discreet-curator-"
_PID = "pid"
_KEY = "key"
_DIGEST = re.compile("[0-9a-f]{64}")


@final
class PrivateFolder:
    """A temporary directory that only its owner may read, bound to this process.

    Its file ``pid`` is locked as long as the process lives, so a number that the system gave to
    another process meanwhile, or a container that counts its own, does not matter.
    """

    def __init__(self, parent: str | None = None) -> None:
        remove_stale(parent)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
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
    """Remove the directories of this user's dead processes, and return which they were."""
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


@final
class Storage:
    """A directory of bounded tables, which only its owner may read; it is made if there is none.

    Parameters
    ----------
    folder
        The directory.
    key
        The secret of its tables; without it the directory gets one of its own.

    Raises
    ------
    InvalidValue
        Others may read the directory.
    FileUnusable
        There is no such directory and none can be made.

    """

    def __init__(self, folder: str | os.PathLike[str], key: bytes | None = None) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            expected = f"a directory that can be made ({error.strerror})"
            raise FileUnusable("keep", str(folder), expected) from None
        if sys.platform != "win32" and self.folder.stat().st_mode & 0o077:
            raise InvalidValue("keep", str(folder), "a directory that only its owner may read")
        if key is None:
            place = self.folder / _KEY
            if not place.exists():
                create_file(place, SystemSource().read(32), private=True)
            key = place.read_bytes()
        self.key = key

    def find(self, identity: str, build: Callable[[Path], None]) -> Path:
        """Return the directory of a table, which ``build`` fills if there is none.

        Parameters
        ----------
        identity
            Everything that the table depends on, beside the key.
        build
            Writes files into an empty directory, flushed each.

        Returns
        -------
        pathlib.Path
            A directory that does not change any more.

        """
        home = self.folder / hmac.new(self.key, identity.encode(), hashlib.sha256).hexdigest()
        if not home.is_dir():
            draft = PrivateFolder(str(self.folder))
            try:
                new = draft.path / "table"
                new.mkdir(mode=0o700)
                build(new)
                flush_directory(new)
                try:
                    new.rename(home)
                except OSError:
                    if not home.is_dir():  # otherwise another process was first
                        raise
                flush_directory(self.folder)
            finally:
                draft.close()
        return home


def forget_tables(folder: str | os.PathLike[str]) -> int:
    """Remove the bounded tables that are stored in a directory, with their key.

    Parameters
    ----------
    folder
        What was given as ``keep`` to :func:`open_table`.

    Returns
    -------
    int
        How many tables there were. What a killed process had begun is removed too.

    Raises
    ------
    FileUnusable
        There is no such directory.

    """
    home = Path(folder)
    if not home.is_dir():
        raise FileUnusable("keep", str(folder), "a directory with bounded tables")
    gone = [one for one in home.iterdir() if _DIGEST.fullmatch(one.name)]
    for one in gone:
        shutil.rmtree(one)
    remove_stale(str(home))
    (home / _KEY).unlink(missing_ok=True)
    return len(gone)


def write_part(folder: str | os.PathLike[str], at: int, part: Any) -> None:
    """Write one part of a table, readable for its owner only; a repeated task writes it again."""
    with (
        replace_file(Path(folder) / f"{at:06}.arrow", private=True) as draft,
        import_arrow("pyarrow.ipc").new_file(str(draft), part.schema) as writer,
    ):
        writer.write_table(part)


def read_part(place: str | os.PathLike[str]) -> Any:
    """Return a part that :func:`write_part` wrote, as an Arrow table that maps the file."""
    source = import_arrow("pyarrow").memory_map(str(place))
    return import_arrow("pyarrow.ipc").open_file(source).read_all()


def part_files(folder: Path) -> list[str]:
    """Return the parts that were written into a directory."""
    return sorted(str(one) for one in folder.glob("[0-9]*.arrow"))
