"""Content hashes: they tell when two shadow models are the same.

A shadow model is known by the data, the records it was trained on, its seed and the training
function. A function is identified by its ``key`` attribute if it has one, else by its source
and by every value that the source reaches. What cannot be identified is refused: a cache that
guesses hands out the models of an older experiment.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["data_digest", "shadow_name", "train_key"]

FORMAT = "discreet.shadow.1"


def data_digest(records: Any, labels: NDArray[np.int64]) -> str:
    """Return a hash of all records and labels, in order."""
    state = hashlib.sha256()
    _feed_records(state, records)
    _feed_array(state, labels.astype("<i8"))
    return state.hexdigest()


def shadow_name(data: str, row: NDArray[np.bool_], seed: int, key: str) -> str:
    """Return the name under which one shadow model's scores are kept."""
    state = hashlib.sha256()
    for text in (FORMAT, data, str(len(row)), str(seed), key):
        state.update(text.encode() + b"\0")
    state.update(np.packbits(row).tobytes())
    return state.hexdigest()[:40]


def train_key(train: Callable[..., Any]) -> str:
    """Return a text that changes if the training function does, or refuse."""
    declared = getattr(train, "key", None)
    if isinstance(declared, str) and declared:
        return f"declared:{declared}"
    state = hashlib.sha256()
    _feed_value(state, train, "train", getattr(train, "__module__", ""), set())
    return f"source:{state.hexdigest()}"


def _feed_records(state: Any, records: Any) -> None:
    if hasattr(records, "detach"):
        records = records.detach().cpu().numpy()
    if hasattr(records, "iloc"):
        state.update(
            repr([(str(name), str(kind)) for name, kind in records.dtypes.items()]).encode()
        )
        for name in records.columns:
            _feed_array(state, np.asarray(records[name]))
        return
    _feed_array(state, np.asarray(records))


def _feed_array(state: Any, array: NDArray[Any]) -> None:
    state.update(f"{array.dtype.str}{array.shape}".encode())
    if array.dtype.hasobject:
        state.update(repr(array.tolist()).encode())
    else:
        state.update(np.ascontiguousarray(array).data)


def _feed_value(state: Any, value: Any, where: str, module: str, seen: set[int]) -> None:
    if isinstance(value, bool | int | float | complex | str | bytes | type(None) | range):
        state.update(f"{type(value).__name__}:{value!r};".encode())
    elif isinstance(value, np.ndarray | np.generic):
        _feed_array(state, np.asarray(value))
    elif type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "detach"):
        _feed_array(state, value.detach().cpu().numpy())
    elif isinstance(value, tuple | list):
        state.update(f"{type(value).__name__}{len(value)}".encode())
        for item in value:
            _feed_value(state, item, where, module, seen)
    elif isinstance(value, dict):
        state.update(f"dict{len(value)}".encode())
        for name, item in value.items():
            _feed_value(state, name, where, module, seen)
            _feed_value(state, item, f"{where}[{name!r}]", module, seen)
    elif isinstance(value, ModuleType):
        version = getattr(value, "__version__", "")
        state.update(f"module:{value.__name__}:{version};".encode())
    elif isinstance(value, FunctionType) and (where == "train" or value.__module__ == module):
        _feed_function(state, value, where, module, seen)
    elif isinstance(value, type) and value.__module__ == module:
        _feed_source(state, value, where)
    elif isinstance(value, type | FunctionType | BuiltinFunctionType):
        state.update(f"name:{value.__module__}.{value.__qualname__};".encode())
    else:
        raise InvalidValue(
            "key",
            None,
            f"a text that identifies the training function: {where} is a "
            f"{type(value).__name__}, whose content cannot be told",
        )


def _feed_function(
    state: Any, function: FunctionType, where: str, module: str, seen: set[int]
) -> None:
    if id(function) in seen:
        return
    seen.add(id(function))
    _feed_source(state, function, where)
    reached = inspect.getclosurevars(function)
    values: dict[str, dict[Any, Any]] = {
        "default": dict(enumerate(function.__defaults__ or ())),
        "keyword": dict(function.__kwdefaults__ or {}),
        "closure": dict(reached.nonlocals),
        "global": dict(reached.globals),
    }
    for kind, items in values.items():
        for name, item in sorted(items.items(), key=lambda pair: str(pair[0])):
            state.update(f"{kind}:{name}=".encode())
            _feed_value(state, item, f"{name}, which {function.__name__} uses,", module, seen)


def _feed_source(state: Any, thing: Any, where: str) -> None:
    try:
        text = inspect.getsource(thing)
    except (OSError, TypeError):
        raise InvalidValue(
            "key", None, f"a text that identifies the training function: {where} has no source"
        ) from None
    state.update(text.encode())
