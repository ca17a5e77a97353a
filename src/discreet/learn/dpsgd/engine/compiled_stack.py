"""One layer under cross-entropy, norms of stacks and clipping weights in compiled loops.

A step of logistic regression is short enough that the time between torch's calls counts more than
the calls. With numba (the extra ``jit``) a few loops in float32 take the place of a dozen calls,
once a run has been so long that compiling them pays. Their plain twins are in :mod:`.stack_loops`;
norms are those of :mod:`.rounding` up to the order of summation.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, final

import numpy as np
import torch
from torch import Tensor

from discreet._threads import Job, numba_works, primitives
from discreet.errors import InvalidValue
from discreet.learn.dpsgd.engine.stack_loops import (
    add_squared_norms,
    at_most,
    back_through,
    gradients_and_norms,
    linear,
    rectify,
    weigh,
)

__all__ = [
    "LinearLayer",
    "Loops",
    "compiled_loops",
    "loops_after",
    "ready_loops",
    "require_row",
    "suit_norms",
    "suits",
]

# Passes: about so many have to be made faster before compiling has paid for itself.
_COMPILE_AFTER = 1 << 14
_WIDEST = 1 << 12  # longer sums are cut elsewhere, for the sake of their rounding
_ROWS = 16  # examples in a piece of the work
_FEW_ROWS = 8  # whose inputs stay in the first cache
_COLUMNS = 256  # in a piece of what is weighted
_SMALL = 1 << 15  # so few numbers are done by one thread before others have begun


class LinearLayer(NamedTuple):
    """Weight and bias."""

    weight: Tensor
    bias: Tensor


class Loops(Protocol):
    """What is compiled, or in the tests is not."""

    def gradients_and_norms(
        self,
        layer: LinearLayer,
        targets: Tensor,
        inputs: Tensor,
        least: float,
        norms: Tensor,
        *,
        below: Tensor | None = None,
        rectified: bool = False,
    ) -> tuple[Tensor | None, bool]:
        """Gradients of the outputs, if all targets are classes; whether all norms are finite.

        Those of the inputs are written to ``below``, if it is given; ``rectified`` says that the
        inputs come out of a ReLU, and that those before it are wanted. See
        :func:`.stack_loops.linear`, :func:`.stack_loops.gradients_and_norms` and
        :func:`.stack_loops.back_through`.
        """

    def weigh(
        self, lefts: Sequence[Tensor], weights: Tensor, factor: float, totals: Sequence[Tensor]
    ) -> None:
        """:func:`.stack_loops.weigh` for each of them and its total."""

    def norms(
        self,
        lefts: Sequence[Tensor],
        rights: Sequence[Tensor],
        least: float,
        factor: float,
        *,
        begun: Tensor | None = None,
        rectified: bool = False,
    ) -> tuple[Tensor, bool]:
        """``factor`` times the sum over layers of ``(|left_i|^2 + least) (|right_i|^2 + 1)``.

        Also whether all of them are finite. What was ``begun`` is part of the sum. If
        ``rectified``, the first gradient has yet to come back through a ReLU, whose result is the
        second of ``rights``: it is changed in place.
        """

    def at_most(self, squared_norms: Tensor, bound: float, most: float) -> Tensor:
        """See :func:`.stack_loops.at_most`."""


class _Work(ctypes.Structure):
    """What the loops have to know, eight bytes for each entry: addresses, sizes and two numbers."""

    _fields_ = (
        ("taken", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("classes", ctypes.c_int64),
        ("first", ctypes.c_int64),
        ("second", ctypes.c_int64),
        ("third", ctypes.c_int64),
        ("fourth", ctypes.c_int64),
        ("number", ctypes.c_double),
        ("other", ctypes.c_double),
        ("refused", ctypes.c_int64),
        ("infinite", ctypes.c_int64),
        ("fifth", ctypes.c_int64),
        ("sixth", ctypes.c_int64),
        ("seventh", ctypes.c_int64),
        ("rectified", ctypes.c_int64),
        ("done", ctypes.c_int64),
    )


_ENTRIES, _DONE = len(_Work._fields_), _Work.done.offset


def _run(job: Job, work: _Work, *, pieces: int, shared: bool) -> None:
    """Run a job, which cannot raise: that a piece was done it says by counting it."""
    job.run(work, shared=shared)
    if work.done != pieces:
        raise RuntimeError("a compiled loop broke off, as when memory runs out")


@final
class CompiledLoops:
    """All of them, compiled, for tensors of float32 that lie contiguously in the host's memory."""

    def __init__(self) -> None:
        jobs = _compiled_jobs()
        self._gradients, self._weigh, self._norms, self._at_most = jobs

    def gradients_and_norms(
        self,
        layer: LinearLayer,
        targets: Tensor,
        inputs: Tensor,
        least: float,
        norms: Tensor,
        *,
        below: Tensor | None = None,
        rectified: bool = False,
    ) -> tuple[Tensor | None, bool]:
        weight, bias = layer
        rows, classes, width = inputs.shape[0], *weight.shape
        found = inputs.new_empty(rows, classes)
        addresses = found.data_ptr(), targets.data_ptr(), inputs.data_ptr(), norms.data_ptr()
        work = _Work(0, rows, width, classes, *addresses, least)
        work.fifth, work.sixth = weight.data_ptr(), bias.data_ptr()
        if below is not None:
            work.seventh, work.rectified = below.data_ptr(), rectified
        pieces = -(-rows // _FEW_ROWS)
        _run(self._gradients, work, pieces=pieces, shared=rows * width > _SMALL)
        return (None if work.refused else found), not work.infinite

    def weigh(
        self, lefts: Sequence[Tensor], weights: Tensor, factor: float, totals: Sequence[Tensor]
    ) -> None:
        table, pieces, width = [], 0, 0
        for left, total in zip(lefts, totals, strict=True):
            columns = left.shape[1]
            pieces += -(-columns // _COLUMNS)
            table += [left.data_ptr(), total.data_ptr(), columns, pieces]
            width += columns
        rows = weights.shape[0]
        entries = (ctypes.c_int64 * len(table))(*table)
        addresses = ctypes.addressof(entries), weights.data_ptr(), 0, 0
        work = _Work(0, rows, len(lefts), 0, *addresses, factor)
        _run(self._weigh, work, pieces=pieces, shared=rows * width > _SMALL)

    def norms(
        self,
        lefts: Sequence[Tensor],
        rights: Sequence[Tensor],
        least: float,
        factor: float,
        *,
        begun: Tensor | None = None,
        rectified: bool = False,
    ) -> tuple[Tensor, bool]:
        rows = lefts[0].shape[0]
        kept, table, width = [], [], 0
        for left, right in zip(lefts, rights, strict=True):
            for one in (left.contiguous(), right.contiguous()):
                kept.append(one)  # alive until all is done
                columns = one.shape[1]
                table += [one.data_ptr(), columns]
                width += columns
        totals = kept[0].new_empty(1, rows)
        entries = (ctypes.c_int64 * len(table))(*table)
        start = 0 if begun is None else begun.data_ptr()
        addresses = ctypes.addressof(entries), totals.data_ptr(), start, 0
        work = _Work(0, rows, len(lefts), 0, *addresses, least, factor)
        work.rectified = rectified
        _run(self._norms, work, pieces=-(-rows // _ROWS), shared=rows * width > _SMALL)
        return totals, not work.infinite

    def at_most(self, squared_norms: Tensor, bound: float, most: float) -> Tensor:
        weights = torch.empty_like(squared_norms)
        addresses = squared_norms.data_ptr(), weights.data_ptr(), 0, 0
        work = _Work(0, squared_norms.numel(), 0, 0, *addresses, bound, most)
        _run(self._at_most, work, pieces=1, shared=False)
        return weights


_made: CompiledLoops | None = None


def compiled_loops() -> CompiledLoops:
    """Return the loops compiled, which takes some seconds the first time."""
    global _made  # noqa: PLW0603 - asked for in every step, where a cache would take its time
    if _made is None:
        _made = CompiledLoops()
    return _made


def ready_loops(one: Tensor) -> Loops | None:
    """The loops, if they were compiled before and for such tensors."""
    if _made is None or one.dtype != torch.float32 or one.device.type != "cpu":
        return None
    return _made if one.is_contiguous() else None


def loops_after(passes: int) -> Loops | None:
    """The loops, if they were compiled before or it pays after so many passes."""
    if _made is None and passes >= _COMPILE_AFTER and numba_works():
        return compiled_loops()
    return _made


def _compiled_jobs() -> tuple[Job, Job, Job, Job]:
    import numba

    pointer, next_of, carray = primitives()
    # Sums in any order and fused multiply-adds; infinities and NaN mean what they always do.
    compile_function: Any = numba.njit(error_model="numpy", fastmath={"contract", "reassoc"})
    compiled_linear, compiled_gradients, compiled_back, compiled_rectify = map(
        compile_function, (linear, gradients_and_norms, back_through, rectify)
    )
    compiled_weigh, compiled_add, compiled_at_most = map(
        compile_function, (weigh, add_squared_norms, at_most)
    )
    single, whole = np.float32, np.int64

    @compile_function  # type: ignore[untyped-decorator]
    def all_finite(numbers: Any) -> bool:
        return bool(np.isfinite(numbers.sum()))

    def gradients(address: int) -> None:
        work = carray(pointer(address), _ENTRIES, dtype=whole)
        rows, width, classes = work[1], work[2], work[3]
        outputs = carray(pointer(work[4]), (rows, classes), dtype=single)
        targets = carray(pointer(work[5]), rows, dtype=whole)
        inputs = carray(pointer(work[6]), (rows, width), dtype=single)
        norms = carray(pointer(work[7]), rows, dtype=single)
        weight = carray(pointer(work[12]), (classes, width), dtype=single)
        bias = carray(pointer(work[13]), classes, dtype=single)
        below = carray(pointer(work[14]), (rows, width), dtype=single)
        least = single(whole(work[8]).view(np.float64))
        while True:
            start = next_of(address) * _FEW_ROWS
            if start >= rows:
                return
            end = min(start + _FEW_ROWS, rows)
            compiled_linear(inputs[start:end], weight, bias, outputs[start:end])
            here = outputs[start:end], targets[start:end], inputs[start:end]
            if not compiled_gradients(*here, least, norms[start:end]):
                work[10] = 1
            elif not all_finite(norms[start:end]):
                work[11] = 1
            if work[14]:
                compiled_back(outputs[start:end], weight, below[start:end])
            if work[15]:
                compiled_rectify(below[start:end], inputs[start:end])
            next_of(address + _DONE)

    def weigh_columns(address: int) -> None:
        work = carray(pointer(address), _ENTRIES, dtype=whole)
        rows, count = work[1], work[2]
        table = carray(pointer(work[4]), (count, 4), dtype=whole)
        weights = carray(pointer(work[5]), rows, dtype=single)
        factor = single(whole(work[8]).view(np.float64))
        at = before = 0
        while True:
            piece = next_of(address)
            while at < count and piece >= table[at, 3]:
                before = table[at, 3]
                at += 1
            if at == count:
                return
            width = table[at, 2]
            left = carray(pointer(table[at, 0]), (rows, width), dtype=single)
            total = carray(pointer(table[at, 1]), width, dtype=single)
            start = (piece - before) * _COLUMNS
            compiled_weigh(left, weights, factor, total, start, min(start + _COLUMNS, width))
            next_of(address + _DONE)

    def norms_of_layers(address: int) -> None:
        work = carray(pointer(address), _ENTRIES, dtype=whole)
        rows = work[1]
        table = carray(pointer(work[4]), (work[2], 4), dtype=whole)
        totals = carray(pointer(work[5]), rows, dtype=single)
        begun = carray(pointer(work[6]), rows, dtype=single)
        least = single(whole(work[8]).view(np.float64))
        factor = single(whole(work[9]).view(np.float64))
        while True:
            start = next_of(address) * _ROWS
            if start >= rows:
                return
            end = min(start + _ROWS, rows)
            if work[6]:
                totals[start:end] = begun[start:end]
            else:
                totals[start:end] = 0
            for at in range(len(table)):
                left = carray(pointer(table[at, 0]), (rows, table[at, 1]), dtype=single)
                right = carray(pointer(table[at, 2]), (rows, table[at, 3]), dtype=single)
                if at == 0 and work[15]:
                    result = carray(pointer(table[1, 2]), (rows, table[1, 3]), dtype=single)
                    compiled_rectify(left[start:end], result[start:end])
                compiled_add(left[start:end], right[start:end], least, totals[start:end])
            if not all_finite(totals[start:end]):
                work[11] = 1
            totals[start:end] *= factor
            next_of(address + _DONE)

    def limited(address: int) -> None:
        work = carray(pointer(address), _ENTRIES, dtype=whole)
        norms = carray(pointer(work[4]), work[1], dtype=single)
        weights = carray(pointer(work[5]), work[1], dtype=single)
        bound = single(whole(work[8]).view(np.float64))
        most = single(whole(work[9]).view(np.float64))
        compiled_at_most(norms, bound, most, weights)
        next_of(address + _DONE)

    return Job(gradients), Job(weigh_columns), Job(norms_of_layers), Job(limited)


def require_row(total: Tensor, rows: Tensor) -> None:
    """Raise unless loops may add rows to it: they would not notice that it is shorter."""
    if (
        total.shape != rows.shape[1:]
        or total.dtype != rows.dtype
        or total.device != rows.device
        or not total.is_contiguous()
    ):
        raise InvalidValue(
            "totals", tuple(total.shape), f"a row like those of {tuple(rows.shape[1:])}"
        )


def suits(layer: LinearLayer, inputs: Tensor, targets: Tensor) -> bool:
    """Whether the loops were made for such a layer and such inputs."""
    weight, bias = layer
    return (
        inputs.dtype == weight.dtype == bias.dtype == torch.float32
        and inputs.device.type == "cpu"
        and inputs.shape[1] == weight.shape[1] <= _WIDEST
        and bias.shape == weight.shape[:1]
        and inputs.is_contiguous()
        and targets.is_contiguous()
        and weight.is_contiguous()
        and bias.is_contiguous()
        and not inputs.is_neg()
        and not targets.is_neg()
        and all(map(_is_backed, (inputs, targets, weight, bias)))
    )


def _is_backed(one: Tensor) -> bool:
    """Whether the memory of a contiguous tensor is there: others may have let go of it."""
    needed = (one.storage_offset() + one.numel()) * one.itemsize
    return one.untyped_storage().nbytes() >= needed


def suit_norms(lefts: Sequence[Tensor], rights: Sequence[Tensor]) -> bool:
    """Whether the loop over layers was made for such factors."""
    widest = max([factor.shape[1] for factor in (*lefts, *rights)])
    return lefts[0].dtype == torch.float32 and widest <= _WIDEST
