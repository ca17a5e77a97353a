"""Run compiled loops on the threads of torch.

Between two of its operations torch's own threads wait, and for some milliseconds they do so without
giving their cores away: a further thread would have to share a core with one of them. So
the work is handed to those threads, by the entry point of OpenMP through which torch does it.
Each takes a piece, then the next free one; the result does not depend on which thread did
it. Where torch has no such entry point, the calling thread does all of it. Needs numba.

:func:`one_thread` is for small fits, which lose by threads.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple, final

__all__ = ["Job", "Primitives", "numba_works", "one_thread", "primitives"]

_forked = False


def _forget_threads() -> None:
    global _forked  # noqa: PLW0603
    _forked = True  # a child has none of its parent's threads, and would wait for them for ever


if hasattr(os, "register_at_fork"):  # not on every system
    os.register_at_fork(after_in_child=_forget_threads)


@lru_cache(maxsize=1)
def numba_works() -> bool:
    """Whether functions can be compiled here: numba (the extra ``jit``) is installed, and runs.

    A numba that does not suit its numpy, or that was switched off, counts as none.
    """
    try:
        import numba

        settings: Any = numba.config
        if settings.DISABLE_JIT:
            return False
        compile_function: Any = numba.njit
        return bool(compile_function(_one_more)(1) == 2)
    except Exception:  # noqa: BLE001 - whatever it is, numpy and torch do without
        return False


def _one_more(number: int) -> int:
    return number + 1


@final
class Job:
    """A function of one address, where it finds its work, compiled.

    The function must take pieces of the work by :attr:`Primitives.next_of` until none is left,
    so that it may run in any number of threads at the same time. It must not raise.
    """

    def __init__(self, function: Callable[[int], None]) -> None:
        import numba

        compile_function: Any = numba.cfunc(numba.void(numba.int64))
        self._compiled = compile_function(function)
        self._address: int = self._compiled.address
        self._alone: Callable[[int], object] = ctypes.CFUNCTYPE(None, ctypes.c_int64)(self._address)
        self._parallel = _parallel_of_torch()

    def run(self, work: ctypes.Structure, *, shared: bool) -> None:
        """Have the work done; ``shared`` with the threads of torch."""
        if shared and self._parallel is not None and not _forked:
            self._parallel(self._address, ctypes.addressof(work), 0, 0)
        else:
            self._alone(ctypes.addressof(work))


class Primitives(NamedTuple):
    """What compiled functions need to get at their work, all from an address."""

    pointer: Any
    next_of: Any
    carray: Any


@lru_cache(maxsize=1)
def primitives() -> Primitives:
    """Pointers, the number at an address, which is made larger by one, and numba's arrays.

    No two threads get the same number.
    """
    from numba import carray, types  # type: ignore[attr-defined]
    from numba.extending import intrinsic

    @intrinsic
    def pointer(_: Any, address: Any) -> Any:  # noqa: ARG001
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.voidptr(types.int64), generate

    @intrinsic
    def next_of(_: Any, address: Any) -> Any:  # noqa: ARG001
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = context.get_value_type(signature.return_type)
            counter = builder.inttoptr(arguments[0], kind.as_pointer())
            return builder.atomic_rmw("add", counter, kind(1), "monotonic")

        return types.int64(types.int64), generate

    return Primitives(pointer, next_of, carray)


@lru_cache(maxsize=1)
def _parallel_of_torch() -> Callable[..., None] | None:
    """The function that runs another one in all threads of torch's pool, and waits for them."""
    try:
        import torch

        parallel: Any = ctypes.CDLL(torch._C.__file__).GOMP_parallel
    except (ImportError, OSError, AttributeError):
        return None
    parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    parallel.restype = None
    function: Callable[..., None] = parallel
    return function


def one_thread() -> AbstractContextManager[Any]:
    """Return a context in which linear algebra and OpenMP use one thread.

    Small fits gain nothing from a second one, and on a busy machine threads that wait for one
    another cost a hundredfold. Without the package threadpoolctl, which comes with scikit-learn,
    it does nothing.
    """
    libraries = _find_threaded_libraries("sklearn" in sys.modules, "torch" in sys.modules)
    return nullcontext() if libraries is None else libraries.limit(limits=1)


@lru_cache(maxsize=4)
def _find_threaded_libraries(*_loaded: bool) -> Any:
    """The libraries of this process that have threads of their own; looked for once."""
    try:
        return import_module("threadpoolctl").ThreadpoolController()
    except ImportError:
        return None
