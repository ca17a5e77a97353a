"""Votes on the disk: one file for each teacher, complete or absent, named by content.

The files are private: they hold votes. A run that was interrupted finds the votes of the teachers
that had finished, and the key of its partition, and goes on.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from discreet.errors import InvalidValue
from discreet.pate.partition import draw_key
from discreet.randomness import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["kept_key", "open_cache", "read_votes", "votes_name", "write_votes"]

_FORMAT = "discreet.pate.votes.2"
_KEY_FILE = "partition.key"


def open_cache(directory: str | Path) -> Path:
    """Return the directory of a cache, made if need be so that others cannot read it."""
    if not isinstance(directory, str | os.PathLike):
        raise InvalidValue("cache", directory, "the path of a directory")
    place = Path(directory)
    try:
        place.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryFile(dir=place):
            pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        expected = f"a directory to write to, or a place for one ({reason})"
        raise InvalidValue("cache", str(directory), expected) from None
    return place


def kept_key(directory: Path, source: Source) -> bytes:
    """Return the key that this cache was begun with, or keep a fresh one."""
    path = directory / _KEY_FILE
    fresh = draw_key(source)
    try:
        if not path.exists():
            _replace(path, lambda stream: stream.write(fresh))
        key = path.read_bytes()
    except OSError:
        key = b""
    if len(key) != len(fresh):
        raise InvalidValue("cache", str(directory), f"a cache whose {_KEY_FILE} is not damaged")
    return key


def votes_name(texts: Sequence[str], arrays: Sequence[NDArray[Any]]) -> str:
    """Return the name for the votes that follow from these parameters and data."""
    state = hashlib.sha256()
    for text in (_FORMAT, *texts):
        state.update(f"{len(text)}:{text}".encode())
    for array in arrays:
        state.update(f"{array.dtype.str}{array.shape}".encode())
        state.update(np.ascontiguousarray(array).data)
    return f"votes-{state.hexdigest()[:40]}.npy"


def read_votes(path: Path, queries: int, *, classes: int) -> NDArray[np.int64] | None:
    """Return a teacher's votes, or None if they are not there whole: it is then asked again."""
    header = 4096  # far more than the header of such a file
    try:
        if path.stat().st_size > 8 * queries + header:
            return None
        with path.open("rb") as stream:
            votes = np.lib.format.read_array(stream, allow_pickle=False)
    except (OSError, ValueError, EOFError, MemoryError):
        return None
    if votes.shape != (queries,) or votes.dtype != np.int64:
        return None
    if queries and not 0 <= votes.min() <= votes.max() < classes:
        return None
    return np.asarray(votes)


def write_votes(path: Path, votes: NDArray[np.int64]) -> None:
    """Put the votes in their place in one step."""
    _replace(path, lambda stream: np.save(stream, votes, allow_pickle=False))


def _replace(path: Path, write: Callable[[BinaryIO], object]) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
