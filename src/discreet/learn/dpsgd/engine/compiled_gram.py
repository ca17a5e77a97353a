"""Norms of sequences by Gram matrices, one of which is never written: in a compiled loop.

The Gram matrix of many short rows takes torch about as long as the weighted sum of the gradients
themselves, and both of its halves are the same. With numba (the extra ``jit``), on processors with
vectors of 512 bits, a loop multiplies every pair of rows once and adds up the products at once. Its
plain twin is in :mod:`.gram_loops`.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, NamedTuple, Protocol, final

import numpy as np
import torch
from torch import Tensor

from discreet._threads import Job, numba_works, primitives
from discreet.errors import InvalidValue
from discreet.learn.dpsgd.engine.gram_loops import weighted_gram_loop

__all__ = ["GramLoop", "GramSums", "compiled_gram", "gram_loop_for"]

_COMPILE_AFTER = 1 << 12  # calls: about so many have to be made faster before compiling has paid
_NARROWEST = 192  # below, adding up the sums takes as long as the sums
_WIDEST = 512  # longer sums are cut elsewhere, for the sake of their rounding
_SMALL = 1 << 16  # so few products are added by one thread before others have begun


class GramSums(NamedTuple):
    """For each example, ``sum_{s,t} gram[s, t] <rows_s, rows_t>`` and what bounds it.

    ``spread_squares`` are ``(sum_t sqrt((|rows_t|^2 + least) (gram[t, t] + other_least)))^2``.
    """

    totals: Tensor
    spread_squares: Tensor


class GramLoop(Protocol):
    """What is compiled, or in the tests is not."""

    def sums(self, rows: Tensor, gram: Tensor, least: float, other_least: float) -> GramSums:
        """Of rows (examples, terms, width) and symmetric matrices (examples, terms, terms)."""


class _Work(ctypes.Structure):
    """What the loop has to know, eight bytes for each entry."""

    _fields_ = (
        ("taken", ctypes.c_int64),
        ("examples", ctypes.c_int64),
        ("terms", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("gram", ctypes.c_int64),
        ("squares", ctypes.c_int64),
        ("found", ctypes.c_int64),
        ("least", ctypes.c_double),
        ("other_least", ctypes.c_double),
        ("done", ctypes.c_int64),
    )


_ENTRIES, _DONE = len(_Work._fields_), _Work.done.offset


@final
class CompiledGram:
    """The loop, compiled, for tensors of float32 that lie contiguously in the host's memory."""

    def __init__(self) -> None:
        self._job = _compiled_job()

    def sums(self, rows: Tensor, gram: Tensor, least: float, other_least: float) -> GramSums:
        examples, terms, width = rows.shape
        suitable = gram.dtype == rows.dtype == torch.float32 and gram.device == rows.device
        if gram.shape != (examples, terms, terms) or not suitable or not gram.is_contiguous():
            raise InvalidValue("gram", f"{gram.dtype} {tuple(gram.shape[1:])}", "one for the rows")
        if not rows.is_contiguous():
            raise InvalidValue("rows", rows.stride(), "contiguous memory")
        found, squares = rows.new_empty(2, examples), rows.new_empty(examples, terms)
        addresses = rows.data_ptr(), gram.data_ptr(), squares.data_ptr(), found.data_ptr()
        work = _Work(0, examples, terms, width, *addresses, least, other_least)
        self._job.run(work, shared=examples * terms * width > _SMALL)
        if work.done != examples:
            raise RuntimeError("a compiled loop broke off, as when memory runs out")
        return GramSums(found[0], found[1])


_made: CompiledGram | None = None
_wanted = 0


def compiled_gram() -> CompiledGram | None:
    """Compile, which takes some seconds the first time; None where that would gain nothing."""
    global _made  # noqa: PLW0603
    if _made is None and numba_works() and _has_wide_vectors():
        _made = CompiledGram()
    return _made


def gram_loop_for(rows: Tensor) -> GramLoop | None:
    """The loop, if it was made for such rows, and was compiled before or is wanted often enough."""
    global _wanted  # noqa: PLW0603
    if (
        not _NARROWEST <= rows.shape[2] <= _WIDEST
        or rows.dtype != torch.float32
        or rows.device.type != "cpu"
        or not rows.is_contiguous()
        or rows.is_neg()
    ):
        return None
    _wanted += 1
    return compiled_gram() if _made is None and _wanted == _COMPILE_AFTER else _made


def _has_wide_vectors() -> bool:
    import llvmlite.binding as llvm  # type: ignore[import-untyped]

    features = llvm.get_host_cpu_features()
    return bool(features.get("avx512f") and features.get("avx512vl"))


def _compiled_job() -> Job:
    import numba
    from numba import types
    from numba.extending import intrinsic

    pointer, next_of, carray = primitives()

    def in_wide_vectors(_: Any) -> Any:
        def generate(context: Any, builder: Any, *_: Any) -> Any:
            # The class refuses what it does not know; the compiler does know this one.
            set.add(builder.function.attributes, '"prefer-vector-width"="512"')
            return context.get_dummy_value()

        return types.none(), generate

    by_wide_vectors: Any = intrinsic(in_wide_vectors)
    # Sums in any order and fused multiply-adds; infinities and NaN mean what they always do.
    compile_function: Any = numba.njit(error_model="numpy", fastmath={"contract", "reassoc"})
    weighted_gram = compile_function(weighted_gram_loop(by_wide_vectors))
    single, whole = np.float32, np.int64

    def job(address: int) -> None:
        work = carray(pointer(address), _ENTRIES, dtype=whole)
        examples, terms, width = work[1], work[2], work[3]
        rows = carray(pointer(work[4]), (examples, terms, width), dtype=single)
        grams = carray(pointer(work[5]), (examples, terms, terms), dtype=single)
        squares = carray(pointer(work[6]), (examples, terms), dtype=single)
        found = carray(pointer(work[7]), (2, examples), dtype=single)
        least, other_least = whole(work[8]).view(np.float64), whole(work[9]).view(np.float64)
        while True:
            at = next_of(address)
            if at >= examples:
                return
            gram, square = grams[at], squares[at]
            found[0, at] = weighted_gram(rows[at], gram, square)
            spread = 0.0
            for term in range(terms):
                spread += math.sqrt((square[term] + least) * (gram[term, term] + other_least))
            found[1, at] = spread * spread
            next_of(address + _DONE)

    return Job(job)
