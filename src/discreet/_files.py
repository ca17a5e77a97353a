"""Write files and directories so that a crash leaves them complete or absent."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from discreet.errors import FileUnusable, ResumeRefused

__all__ = [
    "create_file",
    "flush_directory",
    "hold_directory",
    "new_directory",
    "replace_file",
    "write_file",
]

_IN_USE: set[Path] = set()


@contextmanager
def replace_file(path: str | Path, *, private: bool = False) -> Iterator[Path]:
    """Yield a draft beside ``path``, which takes its place when the block succeeds.

    The draft exists, is empty and has the same suffix. If the block fails it is removed, and an
    older file stays as it was. After the block the content is on the disk, not only in memory.

    Parameters
    ----------
    path
        The file to write. Its directory must exist.
    private
        Whether only its owner may read the file (0600). Otherwise the umask decides.

    Raises
    ------
    OSError
        If the directory does not exist or cannot be written.

    """
    target = Path(path)
    draft = target.with_name(f".{target.stem[:64]}.{secrets.token_hex(8)}{target.suffix}")
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666))
    try:
        yield draft
        _flush(draft)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    flush_directory(target.parent)


def write_file(path: str | Path, content: bytes | str, *, private: bool = False) -> Path:
    """Write ``content`` (text as UTF-8) to ``path`` in one step, and return the path."""
    with replace_file(path, private=private) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)
    return Path(path)


def create_file(path: str | Path, content: bytes | str, *, private: bool = False) -> bool:
    """Write ``content`` to ``path`` unless there is a file; return whether it was written.

    Of several processes that do this at the same time, one succeeds. Another process never finds
    half of the content, except on file systems without hard links.
    """
    target = Path(path)
    draft = target.with_name(f".{target.stem[:64]}.{secrets.token_hex(8)}.part")
    try:
        write_file(draft, content, private=private)
        try:
            os.link(draft, target)
        except FileExistsError:
            return False
        except OSError:
            try:
                descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:
                return False
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(draft.read_bytes())
            target.chmod(draft.stat().st_mode & 0o777)
            _flush(target)
    finally:
        draft.unlink(missing_ok=True)
    flush_directory(target.parent)
    return True


@contextmanager
def new_directory(out: str | Path, *, argument: str = "out") -> Iterator[Path]:
    """Yield a directory to write into, which becomes ``out`` when the block succeeds.

    Entering the block proves that it can be made; an existing place is refused. If the place is
    taken while the block runs, the directory stays where it is and the error says where. A process
    that is asked to end (SIGTERM) leaves nothing, as after an error.

    Parameters
    ----------
    out
        The directory to make. Its parent must exist.
    argument
        What errors call it.

    Raises
    ------
    FileUnusable
        If there is something of that name already, or no directory can be made there.

    """
    target = Path(out)
    expected = "a directory that does not exist yet, in one that does"
    try:
        # os.lstat and not exists(), which takes a name that is too long for one that is free.
        os.lstat(target)
        taken = True
    except FileNotFoundError:
        taken = not target.name
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no such name is possible"
        raise FileUnusable(argument, str(out), f"{expected} ({reason})") from None
    if taken:
        raise FileUnusable(argument, str(out), expected)
    draft = target.with_name(f".{target.name[:64]}.{secrets.token_hex(8)}")
    try:
        draft.mkdir()
    except OSError as error:
        raise FileUnusable(argument, str(out), f"{expected} ({error.strerror})") from None
    try:
        with _end_as_an_error():
            yield draft
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    try:
        draft.rename(target)
    except OSError as error:
        # Another process took the place meanwhile; what is in the draft was paid for.
        kept = f"{expected} ({error.strerror}); what was to be there is complete, in {draft}"
        raise FileUnusable(argument, str(out), kept) from None
    flush_directory(target.parent)


def flush_directory(path: str | Path) -> None:
    """Write the names in a directory to the disk, on systems that can."""
    with suppress(OSError):
        _flush(Path(path))


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _end_as_an_error() -> Iterator[None]:
    """Turn SIGTERM into an exit that unwinds the block, unless it has a handler already."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    owner = os.getpid()

    def end(number: int, _: FrameType | None) -> NoReturn:
        if os.getpid() != owner:
            os._exit(128 + number)  # a forked worker, whose end removes nothing
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def lock_file(path: str | Path) -> Iterator[None]:
    """Shut out other processes that want this file; they wait, unlike those for a directory."""
    with Path(f"{path}.lock").open("a") as handle:
        try:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX)
        except ImportError:  # pragma: no cover (Windows: one process at a time)
            pass
        yield


def hold_directory(path: str | Path) -> Callable[[], None]:
    """Hold a directory of a run until the process ends, however it ends.

    Parameters
    ----------
    path
        The directory.

    Returns
    -------
    Callable
        Lets it go; a second call does nothing.

    Raises
    ------
    ResumeRefused
        If this process or another one holds it.

    """
    place = Path(path).resolve()
    if place in _IN_USE:
        raise ResumeRefused(f"the run in {place.name!r} is in use in this process")
    handle = os.open(place / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            # A record lock: forked workers that read data do not inherit it.
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise ResumeRefused(f"the run in {place.name!r} is in use by another process") from None
    _IN_USE.add(place)

    held = [handle]

    def release() -> None:
        if held:
            _IN_USE.discard(place)
            os.close(held.pop())

    return release
