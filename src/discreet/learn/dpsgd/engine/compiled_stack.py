"""One layer under cross-entropy, norms of stacks and clipping weights in compiled loops.

A step of logistic regression is short enough that the time between torch's calls counts more than
the calls. With numba (the extra ``jit``) a few loops in float32 take the place of a dozen calls,
once a run has been so long that compiling them pays. Their plain twins are in :mod:`.stack_loops`;
norms are those of :mod:`.rounding` up to the order of summation.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, final

import numpy as np
import torch
from torch import Tensor

from discreet._torch_threads import Job, numba_works, primitives
from discreet.errors import InvalidValue
from discreet.learn.dpsgd.engine.contributions import Versions
from discreet.learn.dpsgd.engine.rounding import allowance, lost
from discreet.learn.dpsgd.engine.stack_loops import (
    add_squared_norms,
    at_most,
    gradients_and_norms,
    linear,
    weigh,
)

__all__ = [
    "CompiledPass",
    "LinearLayer",
    "Loops",
    "compiled_loops",
    "loops_after",
    "ready_loops",
    "require_row",
]

# Passes: about so many have to be made faster before compiling has paid for itself.
_COMPILE_AFTER = 1 << 14
_WIDEST = 1 << 12  # longer sums are cut elsewhere, for the sake of their rounding
_ROWS = 16  # examples in a piece of the work
_FEW_ROWS = 8  # whose inputs stay in the first cache
_SMALL = 1 << 15  # so few numbers are done by one thread before others have begun


class LinearLayer(NamedTuple):
    """Weight and bias."""

    weight: Tensor
    bias: Tensor


class Loops(Protocol):
    """What is compiled, or in the tests is not."""

    def gradients_and_norms(
        self, layer: LinearLayer, targets: Tensor, inputs: Tensor, least: float, norms: Tensor
    ) -> tuple[Tensor | None, bool]:
        """Gradients of the outputs, if all targets are classes; whether all norms are finite.

        See :func:`.stack_loops.linear` and :func:`.stack_loops.gradients_and_norms`.
        """

    def weigh(
        self, gradients: Tensor, weights: Tensor, factor: float, weighted: Tensor, total: Tensor
    ) -> None:
        """See :func:`.stack_loops.weigh`."""

    def norms(
        self, lefts: Sequence[Tensor], rights: Sequence[Tensor], least: float, factor: float
    ) -> tuple[Tensor, bool]:
        """``factor`` times the sum over layers of ``(|left_i|^2 + least) (|right_i|^2 + 1)``.

        Also whether all of them are finite.
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
        self, layer: LinearLayer, targets: Tensor, inputs: Tensor, least: float, norms: Tensor
    ) -> tuple[Tensor | None, bool]:
        weight, bias = layer
        rows, classes, width = inputs.shape[0], *weight.shape
        found = inputs.new_empty(rows, classes)
        addresses = found.data_ptr(), targets.data_ptr(), inputs.data_ptr(), norms.data_ptr()
        work = _Work(0, rows, width, classes, *addresses, least)
        work.fifth, work.sixth = weight.data_ptr(), bias.data_ptr()
        pieces = -(-rows // _FEW_ROWS)
        _run(self._gradients, work, pieces=pieces, shared=rows * width > _SMALL)
        return (None if work.refused else found), not work.infinite

    def weigh(
        self, gradients: Tensor, weights: Tensor, factor: float, weighted: Tensor, total: Tensor
    ) -> None:
        rows, classes = gradients.shape
        addresses = gradients.data_ptr(), weights.data_ptr(), weighted.data_ptr(), total.data_ptr()
        work = _Work(0, rows, 0, classes, *addresses, factor)
        _run(self._weigh, work, pieces=1, shared=False)

    def norms(
        self, lefts: Sequence[Tensor], rights: Sequence[Tensor], least: float, factor: float
    ) -> tuple[Tensor, bool]:
        rows = lefts[0].shape[0]
        kept, table, width = [], [], 0
        for left, right in zip(lefts, rights, strict=True):
            for one in (left.contiguous(), right.contiguous()):
                kept.append(one)  # alive until all is done
                table += [one.data_ptr(), one.shape[1]]
                width += one.shape[1]
        totals = lefts[0].new_zeros(rows)
        entries = (ctypes.c_int64 * len(table))(*table)
        addresses = ctypes.addressof(entries), totals.data_ptr(), 0, 0
        work = _Work(0, rows, len(lefts), 0, *addresses, least, factor)
        _run(self._norms, work, pieces=-(-rows // _ROWS), shared=rows * width > _SMALL)
        return totals, not work.infinite

    def at_most(self, squared_norms: Tensor, bound: float, most: float) -> Tensor:
        weights = torch.empty_like(squared_norms)
        addresses = squared_norms.data_ptr(), weights.data_ptr(), 0, 0
        work = _Work(0, squared_norms.numel(), 0, 0, *addresses, bound, most)
        _run(self._at_most, work, pieces=1, shared=False)
        return weights


@lru_cache(maxsize=1)
def compiled_loops() -> CompiledLoops:
    """Return the loops compiled, which takes some seconds."""
    return CompiledLoops()


def ready_loops(one: Tensor) -> Loops | None:
    """The loops, if they were compiled before and for such tensors."""
    if not compiled_loops.cache_info().currsize:
        return None
    suits = one.dtype == torch.float32 and one.device.type == "cpu" and one.is_contiguous()
    return compiled_loops() if suits else None


def loops_after(passes: int) -> Loops | None:
    """The loops, if they were compiled before or it pays after so many passes."""
    if compiled_loops.cache_info().currsize:
        return compiled_loops()
    return compiled_loops() if passes >= _COMPILE_AFTER and numba_works() else None


def _compiled_jobs() -> tuple[Job, Job, Job, Job]:
    import numba

    pointer, next_of, carray = primitives()
    # Sums in any order and fused multiply-adds; infinities and NaN mean what they always do.
    compile_function: Any = numba.njit(error_model="numpy", fastmath={"contract", "reassoc"})
    compiled_linear, compiled_gradients, compiled_weigh, compiled_add, compiled_at_most = map(
        compile_function, (linear, gradients_and_norms, weigh, add_squared_norms, at_most)
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
            next_of(address + _DONE)

    def weigh_rows(address: int) -> None:
        work = carray(pointer(address), _ENTRIES, dtype=whole)
        rows, classes = work[1], work[3]
        given = carray(pointer(work[4]), (rows, classes), dtype=single)
        weights = carray(pointer(work[5]), rows, dtype=single)
        weighted = carray(pointer(work[6]), (rows, classes), dtype=single)
        total = carray(pointer(work[7]), classes, dtype=single)
        compiled_weigh(given, weights, single(whole(work[8]).view(np.float64)), weighted, total)
        next_of(address + _DONE)

    def norms_of_layers(address: int) -> None:
        work = carray(pointer(address), _ENTRIES, dtype=whole)
        rows = work[1]
        table = carray(pointer(work[4]), (work[2], 4), dtype=whole)
        totals = carray(pointer(work[5]), rows, dtype=single)
        least = single(whole(work[8]).view(np.float64))
        factor = single(whole(work[9]).view(np.float64))
        while True:
            start = next_of(address) * _ROWS
            if start >= rows:
                return
            end = min(start + _ROWS, rows)
            for at in range(len(table)):
                left = carray(pointer(table[at, 0]), (rows, table[at, 1]), dtype=single)
                right = carray(pointer(table[at, 2]), (rows, table[at, 3]), dtype=single)
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

    return Job(gradients), Job(weigh_rows), Job(norms_of_layers), Job(limited)


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


@final
class CompiledPass:
    """The pass of one layer: gradients of its outputs, its inputs, and norms that are known."""

    __slots__ = ("_left", "_loops", "_norms", "_right", "_versions", "is_finite")

    def __init__(
        self, left: Tensor, right: Tensor, norms: Tensor, loops: Loops, *, is_finite: bool
    ) -> None:
        self.is_finite = is_finite
        self._left = left
        self._right = right
        self._norms = norms
        self._loops = loops
        self._versions = Versions(left, right)

    @staticmethod
    def of(
        layer: LinearLayer, targets: Tensor, inputs: Tensor, loops: Loops
    ) -> CompiledPass | None:
        """Both passes of a layer; None if a target is no class."""
        norms = inputs.new_empty(1, inputs.shape[0])
        least = lost(layer.weight.shape[0], inputs)
        left, is_finite = loops.gradients_and_norms(layer, targets, inputs, least, norms[0])
        return (
            left if left is None else CompiledPass(left, inputs, norms, loops, is_finite=is_finite)
        )

    @staticmethod
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
        )

    @staticmethod
    def suit_norms(lefts: Sequence[Tensor], rights: Sequence[Tensor]) -> bool:
        """Whether the loop over layers was made for such factors."""
        widest = max([factor.shape[1] for factor in (*lefts, *rights)])
        return lefts[0].dtype == torch.float32 and widest <= _WIDEST

    def check(self) -> None:
        """Raise if a factor was written to since."""
        self._versions.check()

    def factors(self) -> tuple[list[Tensor], list[Tensor]]:
        """The left and the right ones, unchanged."""
        self.check()
        return [self._left], [self._right]

    def squared_norms(self, factor: float) -> Tensor:
        """``factor`` times the squared norms of all gradients, for clipping: (1, rows)."""
        factor *= allowance(self._left)
        return self._norms if factor == 1.0 else self._norms * factor

    def add_to(
        self, totals: Sequence[Tensor], weights: Tensor, factor: float, *, last: bool
    ) -> None:
        """Add the weighted sum to weight and bias; the gradients are ours to overwrite."""
        self.check()
        left, total = self._left, totals[1]
        require_row(total, left)
        weighted = left if last else torch.empty_like(left)
        weights = weights.to(left.dtype).contiguous()
        self._loops.weigh(left, weights, factor, weighted, total)
        totals[0].addmm_(weighted.t(), self._right)
