"""Store arrays on disk between runs, under names made of fingerprints.

An entry is named by everything that its content follows from: the data, the seed, the versions of
the libraries, and a description of the objects that computed it. Code is not read. Estimators of
scikit-learn and of Discreet are described by class, parameters and fitted state; anything else
needs a ``cache_key``, a text that its author changes whenever it changes, as an argument or as an
attribute.

Callers find stale entries by behaviour: the name of stored votes contains the teachers' answers
about public rows, and a pool of shadow models trains one stored model again and compares.
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
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet._files import replace_file
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LIBRARIES = ("discreet", "numpy", "scipy", "scikit-learn", "torch")
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def fingerprint(*parts: str | NDArray[Any]) -> str:
    """Return 64 hexadecimal digits that depend on all texts and arrays, in order.

    >>> fingerprint("ab", "c") == fingerprint("a", "bc")
    False
    """
    state = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            state.update(f"{len(part)}:{part}".encode("utf-8", "surrogatepass"))
            continue
        state.update(f"{part.dtype.descr}{part.shape}".encode())
        if part.dtype.hasobject:
            state.update(_texts_of_objects(part))
        else:
            state.update(np.ascontiguousarray(part).tobytes())
    return state.hexdigest()


def describe(*objects: object, cache_key: str | None = None) -> str:
    """Return a fingerprint of what objects are, and of the versions that they run on.

    With a ``cache_key``, or an attribute of that name, an object may be anything; without one it
    must be described by class and parameters alone.

    Raises
    ------
    InvalidValue
        If ``cache_key`` is empty, or is needed and missing.

    >>> from sklearn.linear_model import LogisticRegression
    >>> describe(LogisticRegression(C=1)) == describe(LogisticRegression(C=2))
    False
    """
    check_cache_key(cache_key)
    texts = [cache_key or "", *versions()]
    try:
        for one in objects:
            texts += _describe_parts(one, strict=cache_key is None)
    except RecursionError:
        raise _no_description("an object that refers to itself") from None
    return fingerprint(*texts)


def check_cache_key(cache_key: object) -> None:
    """Refuse what is neither a text nor nothing."""
    if cache_key is not None and not (isinstance(cache_key, str) and cache_key):
        raise InvalidValue("cache_key", cache_key, "a text that is not empty, or nothing")


def own_cache_key(value: object) -> str | None:
    """Return the text under which an object's results are stored, if it has one of its own."""
    found = getattr(value, "cache_key", None)
    return found if isinstance(found, str) and found else None


def versions() -> list[str]:
    """The versions of Python and of the libraries that results depend on."""
    texts = [sys.version]
    for library in _LIBRARIES:
        try:
            texts.append(f"{library} {metadata.version(library)}")
        except metadata.PackageNotFoundError:
            texts.append(f"no {library}")
    return texts


def _describe_parts(value: Any, *, strict: bool) -> Iterator[str]:
    """Yield texts that say what an object is; where ``strict``, all of it or an error."""
    kind = type(value)
    yield f"{kind.__module__}.{kind.__qualname__}"
    key = own_cache_key(value)
    if key is not None:
        yield key
        strict = False
    held: Sequence[object] | None = None
    if kind in _PLAIN:
        yield repr(value)
        return
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        yield fingerprint(np.asarray(value))
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
        yield from _describe_parts(item, strict=strict)


def _no_description(name: str) -> InvalidValue:
    expected = (
        "a text that you change whenever what is trained changes: results are kept under it, "
        f"and {name} is not described by parameters alone"
    )
    return InvalidValue("cache_key", None, expected)


def _texts_of_objects(array: NDArray[Any]) -> bytes:
    return repr(array.tolist()).encode("utf-8", "surrogatepass")


@final
class ArrayCache:
    """A directory of arrays, one file each, complete or absent. The files are private.

    A file ends with the checksum of its array, so that half a file, or one that was changed, is
    not taken for a whole one.
    """

    def __init__(self, directory: str | Path, *, argument: str = "cache") -> None:
        self.argument = argument
        if not isinstance(directory, str | os.PathLike):
            raise InvalidValue(argument, directory, "the path of a directory")
        self.path = Path(directory)
        try:
            self.path.mkdir(mode=0o700, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path):
                pass
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            expected = f"a directory to write to, or a place for one ({reason})"
            raise InvalidValue(argument, str(directory), expected) from None

    def get(
        self, name: str, shape: tuple[int, ...], dtype: Any, *, mapped: bool = False
    ) -> NDArray[Any] | None:
        """Return the array of this name, or None if it is not there whole and of this form."""
        path = self.path / f"{name}.npy"
        if path.is_dir():
            expected = f"a directory of kept arrays: {path.name} is a directory, not a file"
            raise InvalidValue(self.argument, str(self.path), expected)
        header = 4096  # far more than the header and the checksum of such a file
        try:
            if path.stat().st_size > int(np.prod(shape)) * np.dtype(dtype).itemsize + header:
                return None
            found = _read_array(path, mapped=mapped)
            wanted = _checksum(found)
            with path.open("rb") as stream:
                stream.seek(-len(wanted), os.SEEK_END)
                whole = stream.read() == wanted
        except (OSError, ValueError, EOFError, MemoryError):
            return None
        good = whole and found.shape == shape and found.dtype == dtype
        return found if good else None

    def put(self, name: str, array: NDArray[Any]) -> None:
        """Put an array in its place in one step, and its checksum behind it."""
        place = self.path / f"{name}.npy"
        with replace_file(place, private=True) as draft, draft.open("wb") as stream:
            np.save(stream, array, allow_pickle=False)
            stream.write(_checksum(array))


def _read_array(path: Path, *, mapped: bool) -> NDArray[Any]:
    """Read one array and nothing else that numpy could read; raise on any fault."""
    if mapped:
        return np.lib.format.open_memmap(path, mode="r")
    with path.open("rb") as stream:
        array: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
        return array


def _checksum(array: NDArray[Any]) -> bytes:
    state = hashlib.sha256(f"{array.shape}{array.dtype.str}".encode())
    state.update(np.ascontiguousarray(array).data)
    return state.digest()
