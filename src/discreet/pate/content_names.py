"""Names by content: a digest of all that an object's behaviour follows from.

What prints alike need not be alike (numpy abbreviates long arrays, a function prints as an
address), so nothing here is read off a ``repr``. Arrays go in by dtype, shape and bytes;
functions of one's own by their code, defaults and whatever they refer to; what belongs to an
installed package by its name and the version of the package; other objects by what pickle would
keep of them. What has no readable content has no name, and that is an error.
"""

from __future__ import annotations

import builtins
import dis
import hashlib
import struct
import sys
import sysconfig
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from discreet.errors import InvalidValue

__all__ = ["content_name", "given_identity"]

# What every class has, or what says nothing about what it does.
_NOT_OF_THE_CLASS = {
    "__abstractmethods__",
    "__annotate__",
    "__annotate_func__",
    "__annotations__",
    "__annotations_cache__",
    "__dict__",
    "__doc__",
    "__firstlineno__",
    "__module__",
    "__orig_bases__",
    "__parameters__",
    "__static_attributes__",
    "__weakref__",
    "_abc_impl",
}
_ITEMS, _PAIRS = 3, 4
_WRAPPERS = (staticmethod, classmethod)
_CALLED_IN_C = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    np.ufunc,
)


def content_name(argument: str, value: object) -> str:
    """Return a name of 64 letters that two objects share only if they have the same content.

    >>> long = np.zeros(3000)
    >>> other = long.copy()
    >>> other[1500] = 1
    >>> repr(long) == repr(other), content_name("w", long) == content_name("w", other)
    (True, False)
    """
    try:
        return _Reader().digest(value).hex()
    except Exception as error:  # noqa: BLE001 - told, and public
        reason = f"{type(error).__name__}: {error}"
        expected = f"something whose content can be read, where votes are kept ({reason})"
        raise InvalidValue(argument, type(value).__qualname__, expected) from None


def given_identity(value: object) -> str | None:
    """The text by which an object says what it is, if it has one."""
    found = getattr(value, "identity", None)
    return found if isinstance(found, str) and found else None


class _Reader:
    """Digests of one object and of what it refers to; each is read once."""

    def __init__(self) -> None:
        self._known: dict[int, bytes] = {}
        self._open: dict[int, int] = {}
        self._held: list[object] = []  # so that no address is used twice

    def digest(self, value: object) -> bytes:
        place = id(value)
        if place in self._known:
            return self._known[place]
        if place in self._open:  # it refers to itself: how far up is all there is to say
            return _joined([b"again", str(self._open[place]).encode()])
        self._open[place] = len(self._open)
        found = _joined(list(self._parts(value)))
        del self._open[place]
        self._held.append(value)
        self._known[place] = found
        return found

    def _parts(self, value: Any) -> Iterator[bytes]:
        kind = type(value)
        yield f"{kind.__module__}.{kind.__qualname__}".encode()
        plain = _plain(value)
        if plain is not None:
            yield plain
        elif isinstance(value, np.ndarray | np.generic):
            yield from self._array(value)
        elif kind in (list, tuple):
            yield from map(self.digest, value)
        elif kind in (dict, types.MappingProxyType):
            for key, entry in value.items():
                yield self.digest(key)
                yield self.digest(entry)
        elif kind in (set, frozenset):
            yield from sorted(map(self.digest, value))
        elif isinstance(value, types.ModuleType):
            yield _home(value.__name__).encode()
        elif isinstance(value, type):
            yield from self._class(value)
        elif isinstance(value, types.FunctionType):
            yield from self._function(value)
        elif isinstance(value, types.CodeType):
            yield from self._code(value)
        elif isinstance(value, types.MethodType):
            yield self.digest(value.__func__)
            yield self.digest(value.__self__)
        elif isinstance(value, _WRAPPERS):
            yield self.digest(value.__func__)
        elif isinstance(value, property):
            yield from map(self.digest, (value.fget, value.fset, value.fdel))
        elif isinstance(value, _CALLED_IN_C):
            yield from self._called_in_c(value)
        elif given_identity(value) is not None and not hasattr(value, "get_params"):
            yield str(given_identity(value)).encode()
        else:
            yield from self._reduced(value)

    def _array(self, value: Any) -> Iterator[bytes]:
        array = np.asarray(value)
        yield repr(array.dtype.descr if array.dtype.names else array.dtype.str).encode()
        yield repr(array.shape).encode()
        if array.dtype.hasobject:
            yield from map(self.digest, array.ravel().tolist())
        else:
            yield np.ascontiguousarray(array).tobytes()
        if type(value) not in (np.ndarray, type(array[()])):  # such as a mask
            yield from map(self.digest, value.__reduce__())

    def _class(self, value: type) -> Iterator[bytes]:
        yield f"{value.__module__}.{value.__qualname__}".encode()
        version = _version(value.__module__)
        if version is not None:
            yield version.encode()
            return
        yield from map(self.digest, value.__bases__)
        for name, member in sorted(vars(value).items()):
            if name not in _NOT_OF_THE_CLASS:
                yield name.encode()
                yield self.digest(member)

    def _function(self, value: types.FunctionType) -> Iterator[bytes]:
        yield value.__qualname__.encode()
        version = _version(value.__module__)
        if version is not None and "<" not in value.__qualname__:
            yield _home(value.__module__).encode()
            return
        yield self.digest(value.__code__)
        yield self.digest(value.__defaults__)
        yield self.digest(value.__kwdefaults__)
        for cell in value.__closure__ or ():
            try:
                yield self.digest(cell.cell_contents)
            except ValueError:  # not yet filled
                yield b"empty"
        for name in sorted(_names_in(value.__code__)):
            if name in value.__globals__:
                yield name.encode()
                yield self.digest(value.__globals__[name])

    def _code(self, value: types.CodeType) -> Iterator[bytes]:
        yield value.co_code
        yield repr((value.co_argcount, value.co_kwonlyargcount, value.co_flags)).encode()
        for texts in (value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars):
            yield self.digest(texts)
        yield from map(self.digest, value.co_consts)

    def _called_in_c(self, value: Any) -> Iterator[bytes]:
        yield str(getattr(value, "__qualname__", value.__name__)).encode()
        yield str(getattr(value, "__module__", None)).encode()
        owner = getattr(value, "__self__", None)
        if owner is not None and owner is not builtins:
            yield self.digest(owner)
        yield self.digest(getattr(value, "__objclass__", None))

    def _reduced(self, value: Any) -> Iterator[bytes]:
        kept = value.__reduce_ex__(4)
        if isinstance(kept, str):
            yield kept.encode()
            yield self.digest(type(value))
            return
        for at, part in enumerate(kept):
            # A callable, its arguments, the state; then iterators over items and over pairs.
            listed = at in (_ITEMS, _PAIRS) and part is not None
            yield self.digest([*part] if listed else part)


def _plain(value: object) -> bytes | None:
    kind = type(value)
    if value is None or value is Ellipsis or value is NotImplemented or kind in (bool, int):
        return repr(value).encode()
    if kind is float:
        return struct.pack("<d", value)
    if kind is complex:
        return struct.pack("<2d", value.real, value.imag)  # type: ignore[attr-defined]
    if kind is str:
        return str(value).encode("utf-8", "surrogatepass")
    if kind is bytes or kind is bytearray:
        return bytes(value)  # type: ignore[call-overload, no-any-return]
    return None


def _joined(parts: list[bytes]) -> bytes:
    state = hashlib.sha256()
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.digest()


def _names_in(code: types.CodeType) -> set[str]:
    """The names that some code, or code inside it, looks up in its module."""
    names = {
        str(step.argval)
        for step in dis.get_instructions(code)
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names_in(constant)
    return names


def _home(module: str) -> str:
    return f"{module} {_version(module)}"


def _version(module: str | None) -> str | None:
    """The version of the installed package that a module belongs to; None for one's own code."""
    top = (module or "").partition(".")[0]
    if top == "__main__":
        return None
    if top in sys.stdlib_module_names:
        return sys.version.split()[0]
    package = sys.modules.get(top)
    version = getattr(package, "__version__", None)
    source = getattr(package, "__file__", None)
    if not isinstance(version, str) or source is None:
        return None
    paths = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")}
    inside = paths & set(Path(source).resolve().parents)
    return version if inside or top == "discreet" else None
