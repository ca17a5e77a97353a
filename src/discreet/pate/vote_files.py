"""Votes on the disk: one file for each teacher, complete or absent.

The files are private: they hold votes. A run that was interrupted finds the votes of the teachers
that had finished, and the key of its partition, and goes on.

A file is named after the data (records, labels, queries, seed), the versions of the libraries, a
description of teachers and preparation, and what these answered when they were tried on public
rows. Estimators of scikit-learn and of Discreet are described by class, parameters and fitted
state. Code of one's own is not read: it needs a ``cache_key``, a text that changes when it does. A
forgotten change is still noticed if it changes an answer about the public rows.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet._files import replace_file, write_file
from discreet.errors import FileUnusable, InvalidValue
from discreet.pate.partition import draw_key
from discreet.randomness import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "given_cache_key",
    "kept_key",
    "open_cache",
    "read_votes",
    "setup_name",
    "votes_name",
    "write_votes",
]

_FORMAT = "discreet.pate.votes.3"
_LIBRARIES = ("discreet", "numpy", "scipy", "scikit-learn", "torch")
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
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
            write_file(path, fresh, private=True)
        key = path.read_bytes()
    except OSError:
        key = b""
    if len(key) != len(fresh):
        raise FileUnusable("cache", str(directory), f"a cache whose {_KEY_FILE} is not damaged")
    return key


def given_cache_key(value: object) -> str | None:
    """Return the text under which an object's results are kept, if it has one of its own."""
    found = getattr(value, "cache_key", None)
    return found if isinstance(found, str) and found else None


def setup_name(
    parts: Sequence[object], tried: Sequence[NDArray[Any]], *, cache_key: str | None
) -> str:
    """Return a name for teachers and preparation, and for what they did with public rows.

    >>> from sklearn.linear_model import LogisticRegression
    >>> one, two = (setup_name([LogisticRegression(C=c)], [], cache_key=None) for c in (1, 2))
    >>> one == two
    False
    """
    given: object = cache_key
    if given is not None and not (isinstance(given, str) and given):
        raise InvalidValue("cache_key", given, "a text that is not empty, or nothing")
    texts = [cache_key or "", sys.version]
    for library in _LIBRARIES:
        try:
            texts.append(f"{library} {metadata.version(library)}")
        except metadata.PackageNotFoundError:
            texts.append(f"no {library}")
    try:
        for part in parts:
            texts += _described(part, strict=cache_key is None)
    except RecursionError:
        raise _no_description("an object that refers to itself") from None
    return _digest(texts, tried)


def _described(value: Any, *, strict: bool) -> Iterator[str]:
    """Yield texts that say what an object is; where ``strict``, all of it or an error."""
    kind = type(value)
    yield f"{kind.__module__}.{kind.__qualname__}"
    key = given_cache_key(value)
    if key is not None:
        yield key
        strict = False
    held: Sequence[object] | None = None
    if kind in _PLAIN:
        yield repr(value)
        return
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        yield _digest([], [np.asarray(value)])
        return
    if kind in (list, tuple):
        held = list(value)
    elif kind is np.ndarray:
        held = [value.shape, *value.ravel().tolist()]
    elif kind is dict:
        held = [item for pair in value.items() for item in pair]
    elif kind is MethodType:
        held = [value.__name__, value.__self__]
    elif kind is np.ufunc:
        held = [value.__name__]
    elif kind.__module__.partition(".")[0] in ("sklearn", "discreet") and hasattr(
        value, "__dict__"
    ):
        held = sorted(vars(value).items())
    elif not strict and hasattr(value, "get_params"):
        held = sorted(value.get_params(deep=False).items())
    if held is None:
        name = str(getattr(value, "__qualname__", kind.__qualname__))
        if strict:
            raise _no_description(name)
        yield name
        return
    yield str(len(held))
    for item in held:
        yield from _described(item, strict=strict)


def _no_description(name: str) -> InvalidValue:
    expected = (
        "a text that names teachers and representation, and that you change whenever they "
        f"change: votes are kept under it, and {name} is not described by parameters alone"
    )
    return InvalidValue("cache_key", None, expected)


def votes_name(texts: Sequence[str], arrays: Sequence[NDArray[Any]]) -> str:
    """Return the name for the votes that follow from these parameters and data."""
    return f"votes-{_digest([_FORMAT, *texts], arrays)[:40]}.npy"


def _digest(texts: Sequence[str], arrays: Sequence[NDArray[Any]]) -> str:
    state = hashlib.sha256()
    for text in texts:
        state.update(f"{len(text)}:{text}".encode("utf-8", "surrogatepass"))
    for array in arrays:
        state.update(f"{array.dtype.descr}{array.shape}".encode())
        state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()


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
    with replace_file(path, private=True) as draft, draft.open("wb") as stream:
        np.save(stream, votes, allow_pickle=False)
