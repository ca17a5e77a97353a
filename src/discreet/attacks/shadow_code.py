"""A hash of what a function runs: its code, and every value, function and class it reaches.

Functions and classes of the user are followed wherever they lie, through nested functions,
methods, bases and class attributes. What belongs to an installed library is known by its name
and version. Anything else whose content cannot be told is refused: values that carry state of
their own, modules of the user's that are handed on as a whole, names of their parts that are made
up at run time, and what reads files, the environment or the network. The last are known by name,
so that a library's own ways to read a file may pass, and so may parts of a library that are
looked up by a text: see :mod:`discreet.attacks.outside_reads`.
"""

from __future__ import annotations

import builtins
import dataclasses
import enum
import functools
import hashlib
import importlib
import importlib.util
import sys
import types
from collections.abc import Iterable
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, final

import numpy as np

from discreet.attacks.code_origin import attributes_of, library_version, released, uses_of
from discreet.attacks.outside_reads import reads_outside
from discreet.attacks.record_identity import value_bytes
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["CodeWalk", "feed_array"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), range, slice)
# What they reach is decided only when they run.
_DYNAMIC = ("eval", "exec", "compile", "globals", "locals", "vars", "__import__")
_DYNAMIC_MODULES = ("importlib", "runpy", "imp")
# What Python itself writes into a class, or what does not change what it does.
_CLASS_FURNITURE = {
    "__dict__",
    "__weakref__",
    "__doc__",
    "__module__",
    "__qualname__",
    "__annotations__",
    "__annotate__",
    "__annotate_func__",
    "__annotations_cache__",
    "__static_attributes__",
    "__firstlineno__",
    "__abstractmethods__",
    "_abc_impl",
    "__dataclass_params__",
    "__dataclass_fields__",
    "__orig_bases__",
    "__parameters__",
    "__type_params__",
}
_DATACLASS_METHODS = frozenset(
    {"__init__", "__repr__", "__eq__", "__hash__", "__lt__", "__le__", "__gt__", "__ge__"}
    | {"__setattr__", "__delattr__", "__getstate__", "__setstate__", "__replace__"}
)
# Descriptors that named tuples and scikit-learn make from the rest of the class.
_MADE_FROM_REST = ("_tuplegetter", "RequestMethod")
_DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType)


def feed_array(state: Any, array: NDArray[Any]) -> None:
    """Feed an array's kind, shape and values."""
    state.update(f"{array.dtype.str}{array.shape}".encode())
    if array.dtype.hasobject:
        for one in array.ravel().tolist():
            state.update(value_bytes(one, typed=True))
    else:
        state.update(np.ascontiguousarray(array).data)


def _refuse(where: str, why: str) -> NoReturn:
    raise InvalidValue("key", None, f"a text that identifies the training function: {where} {why}")


def _refuse_outside(where: str, module: str, name: str) -> None:
    if reads_outside(module, name.rpartition(".")[2]):
        _refuse(where, f"may read from outside by {module}.{name}, and what that gives is unknown")


@final
class CodeWalk:
    """Feeds values, and all that they reach, into one hash."""

    def __init__(self) -> None:
        self._state = hashlib.sha256(f"{sys.implementation.cache_tag};".encode())
        # The values are kept: an id may be given again once its owner is gone.
        self._seen: dict[int, tuple[int, object]] = {}

    def hexdigest(self) -> str:
        """Return the hash of all that was fed."""
        return self._state.hexdigest()

    def feed(self, value: Any, where: str) -> None:
        """Feed a value; ``where`` says in an error how it was reached."""
        kind = type(value)
        if kind in _PLAIN:
            self._text(f"{kind.__name__}:{value!r}")
        elif isinstance(value, np.ndarray | np.generic):
            array = np.asarray(value)
            if array.dtype.hasobject:
                self._text(f"objects{array.shape}")
                self._items(array.ravel().tolist(), where)
            else:
                feed_array(self._state, array)
        elif kind.__module__.partition(".")[0] == "torch" and hasattr(value, "detach"):
            feed_array(self._state, value.detach().cpu().numpy())
        elif isinstance(value, ModuleType):
            self._module(value, (), (), where)
        elif isinstance(value, enum.Enum):
            self._text(f"member:{value.name}")
            self.feed(kind, where)
        elif kind.__module__ == "typing" or isinstance(value, types.GenericAlias | types.UnionType):
            self._text(f"annotation:{value!r}")
        elif isinstance(value, BuiltinFunctionType):
            self._builtin(value, where)
        elif isinstance(value, np.ufunc):
            self._text(f"ufunc:{value.__name__}:{np.__version__}")
        elif not self._known(value):
            self._structured(value, where)

    def _text(self, text: str) -> None:
        self._state.update(f"{len(text)}:{text};".encode("utf-8", "surrogatepass"))

    def _known(self, value: Any) -> bool:
        if id(value) in self._seen:
            self._text(f"seen:{self._seen[id(value)][0]}")
            return True
        self._seen[id(value)] = (len(self._seen), value)
        return False

    def _structured(self, value: Any, where: str) -> None:
        kind = type(value)
        if isinstance(value, FunctionType):
            self._function(value, where)
        elif isinstance(value, type):
            self._class(value, where)
        elif kind in (list, tuple):
            self._text(f"{kind.__name__}{len(value)}")
            self._items(value, where)
        elif isinstance(value, tuple) and hasattr(kind, "_fields"):
            self.feed(kind, where)
            self._items(value, where)
        elif kind in (set, frozenset):
            self._text(f"{kind.__name__}{len(value)}")
            self._items(sorted(value, key=lambda one: (type(one).__name__, repr(one))), where)
        elif kind is dict:
            self._text(f"dict{len(value)}")
            for name, item in value.items():
                self.feed(name, where)
                self.feed(item, f"{where}[{name!r}]")
        elif isinstance(value, MethodType):
            self.feed(value.__func__, where)
            self.feed(value.__self__, where)
        elif isinstance(value, staticmethod | classmethod):
            self._text(kind.__name__)
            self.feed(value.__func__, where)
        elif isinstance(value, property):
            self._text("property")
            self._items((value.fget, value.fset, value.fdel), where)
        elif isinstance(value, functools.cached_property):
            self._text("cached_property")
            self.feed(value.func, where)
        elif isinstance(value, functools._lru_cache_wrapper):
            self._text("lru_cache")
            self.feed(value.__wrapped__, where)
        else:
            self._compiled(value, where)

    def _compiled(self, value: Any, where: str) -> None:
        """Feed a function of a library that is not written in Python; refuse all the rest."""
        module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        version = None
        if callable(value) and isinstance(module, str) and isinstance(name, str):
            version = released(module, name, value)
        if version is None:
            _refuse(where, f"is a {type(value).__name__}, whose content cannot be told")
        _refuse_outside(where, str(module), str(name))
        self._text(f"library:{module}.{name}:{version}")

    def _items(self, items: Any, where: str) -> None:
        for item in items:
            self.feed(item, where)

    def _builtin(self, value: Any, where: str) -> None:
        owner = value.__self__
        if not (owner is None or isinstance(owner, ModuleType | type)):
            self.feed(owner, where)
        if value.__name__ in _DYNAMIC and owner is builtins:
            _refuse(where, f"calls {value.__name__}, and what that reaches cannot be told")
        _refuse_outside(where, value.__module__ or "builtins", value.__name__)
        version = library_version(value.__module__ or "builtins")
        self._text(f"builtin:{value.__module__}.{value.__qualname__}:{version}")

    def _module(
        self, module: ModuleType, chain: tuple[str, ...], attributes: Iterable[str], where: str
    ) -> None:
        """Feed what is read of a module: all of it would be all that it imports.

        Where nothing is read at once, ``attributes`` are what may be read of it later.
        """
        name = module.__name__
        if name.partition(".")[0] in _DYNAMIC_MODULES:
            _refuse(where, f"is {name}, and what that reaches cannot be told")
        version = library_version(name)
        if version is not None:
            self._library(module, chain, attributes, where)
            self._text(f"module:{name}:{version}")
            return
        if not chain:
            _refuse(where, f"is the module {name}, of which any part may be used")
        self._text(f"module:{name}.{chain[0]}")
        if not hasattr(module, chain[0]):
            _refuse(where, f"is the module {name}, which has no {chain[0]} (yet)")
        part = getattr(module, chain[0])
        if isinstance(part, ModuleType):
            self._module(part, chain[1:], attributes, f"{where.rstrip(',')}.{chain[0]}")
        else:
            self.feed(part, f"{where.rstrip(',')}.{chain[0]}")

    def _library(
        self, module: ModuleType, chain: tuple[str, ...], attributes: Iterable[str], where: str
    ) -> None:
        """Refuse what reads from outside of the code, on the way along the chain."""
        place: Any = module
        for name in chain:
            _refuse_outside(where, place.__name__, name)
            place = getattr(place, name, None)
            if not isinstance(place, ModuleType):
                return
        for name in attributes:
            if hasattr(place, name):
                _refuse_outside(where, place.__name__, name)

    def _function(self, function: FunctionType, where: str) -> None:
        name = f"{function.__module__}.{function.__qualname__}"
        version = released(function.__module__ or "", function.__qualname__, function)
        own = library_version(function.__globals__.get("__name__", "") or "")
        if version is not None and own is not None:
            if name == "importlib.import_module":
                _refuse(where, f"is {name}, and what that reaches cannot be told")
            _refuse_outside(where, function.__module__, function.__qualname__)
            self._text(f"library:{name}:{version}")
            return
        self._code(function.__code__)
        self._text("defaults")
        self._items(function.__defaults__ or (), f"a default of {function.__name__}")
        for key, item in sorted((function.__kwdefaults__ or {}).items()):
            self._text(key)
            self.feed(item, f"the default of {key} of {function.__name__}")
        for key, item in sorted(vars(function).items()):
            self._text(f"attribute:{key}")
            self.feed(item, f"{key}, an attribute of {function.__name__},")
        if own is None:
            self._reached(function)
        else:  # made by a library around what is in its closure
            self._text(f"library:{function.__code__.co_qualname}:{own}")
            for cell in function.__closure__ or ():
                self.feed(cell.cell_contents, f"what {function.__name__} wraps")

    def _reached(self, function: FunctionType) -> None:
        attributes = sorted(attributes_of(function.__code__))
        closure = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        for kind, name, chain in dict.fromkeys(uses_of(function.__code__)):
            where = f"{name}, which {function.__name__} uses,"
            if kind == "import":
                self._imported(function, name, chain, attributes, where)
                continue
            if kind == "closure":
                if name not in closure:
                    continue  # of a function inside, whose code is fed
                try:
                    value = closure[name].cell_contents
                except ValueError:
                    self._text(f"empty:{name}")
                    continue
            elif name in function.__globals__:
                value = function.__globals__[name]
            elif hasattr(builtins, name):
                value = getattr(builtins, name)
            else:
                self._text(f"absent:{name}")
                continue
            self._text(f"{kind}:{name}")
            if isinstance(value, ModuleType):
                self._module(value, chain, attributes, where)
            else:
                self.feed(value, where)

    def _imported(
        self,
        function: FunctionType,
        name: str,
        chain: tuple[str, ...],
        attributes: Iterable[str],
        where: str,
    ) -> None:
        package = function.__globals__.get("__package__") or None
        try:
            full = importlib.util.resolve_name(name, package)
            module = importlib.import_module(full)
            if chain and not hasattr(module, chain[0]) and hasattr(module, "__path__"):
                importlib.import_module(f"{full}.{chain[0]}")
        except ImportError as error:
            _refuse(where, f"cannot be imported ({error})")
        self._text(f"import:{full}")
        if chain and isinstance(getattr(module, chain[0], None), ModuleType):
            part = getattr(module, chain[0])
            if library_version(part.__name__) is None:
                _refuse(where, f"imports the module {part.__name__} inside a function")
        if not chain and library_version(full) is not None:  # the name may be that of the package
            self._library(sys.modules[full.partition(".")[0]], (), attributes, where)
        self._module(module, chain, attributes, where)

    def _code(self, code: CodeType) -> None:
        """Feed what runs, and nothing of where it is written."""
        self._text(f"code:{code.co_name}")
        for part in (code.co_code, code.co_exceptiontable):
            self._state.update(len(part).to_bytes(8, "little") + part)
        shape = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        self._text(repr((shape, names)))
        self._constants(code.co_consts)

    def _constants(self, constants: Any) -> None:
        self._text(f"constants{len(constants)}")
        for constant in constants:
            if isinstance(constant, CodeType):
                self._code(constant)
            elif isinstance(constant, tuple):
                self._constants(constant)
            elif isinstance(constant, frozenset):
                self._constants(sorted(constant, key=lambda one: (type(one).__name__, repr(one))))
            else:
                self._text(f"{type(constant).__name__}:{constant!r}")

    def _class(self, made: type, where: str) -> None:
        version = released(made.__module__, made.__qualname__, made)
        if version is not None:
            _refuse_outside(where, made.__module__, made.__qualname__)
            self._text(f"library:{made.__module__}.{made.__qualname__}:{version}")
            return
        self._text(f"class:{made.__qualname__}")
        self.feed(type(made), f"the class of {made.__name__}")
        self._items(made.__bases__, f"a base of {made.__name__}")
        if issubclass(made, enum.Enum):
            members = made.__members__.items()
            self._text(repr([name for name, _ in members]))
            self._items([member.value for _, member in members], f"a value of {made.__name__}")
        generated = self._fields(made)
        for name, item in sorted(vars(made).items()):
            if name in _CLASS_FURNITURE or (name in generated and _is_generated(item)):
                continue
            if issubclass(made, enum.Enum) and not isinstance(
                item, FunctionType | classmethod | staticmethod | property
            ):
                continue
            self._text(f"member:{name}")
            if isinstance(item, _DESCRIPTORS) or type(item).__name__ in _MADE_FROM_REST:
                self._text(f"{type(item).__name__}:{name}")
            else:
                self.feed(item, f"{name} of {made.__name__}, which {where.rstrip(',')} reaches,")

    def _fields(self, made: type) -> frozenset[str]:
        """Feed the fields of a data class; return the methods that are made from them."""
        if "__dataclass_fields__" not in vars(made) or not dataclasses.is_dataclass(made):
            return frozenset()
        self._text(repr(vars(made).get("__dataclass_params__")))
        for field in dataclasses.fields(made):
            self._text(f"field:{field.name}:{field.init}:{field.compare}:{field.kw_only}")
            for given in (field.default, field.default_factory):
                if given is not dataclasses.MISSING:
                    self.feed(given, f"the default of {field.name} of {made.__name__}")
        return _DATACLASS_METHODS


def _is_generated(item: Any) -> bool:
    """Whether the function was written by ``dataclasses`` and not by the user."""
    inner = getattr(item, "__wrapped__", item)
    if not isinstance(inner, FunctionType):
        return item is None
    return (
        inner.__code__.co_filename == "<string>"
        or inner.__globals__.get("__name__") == "dataclasses"
    )
