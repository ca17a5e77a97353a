"""Norms of small stacks, and one layer under cross-entropy, in loops that numba compiles.

A step of logistic regression is short enough that the time between torch's calls counts more than
the calls. With numba (the extra ``jit``) loops over the examples take the place of a dozen
calls, once a run has been so long that compiling them pays. The loops run uncompiled, slowly, as
twins in the tests; norms are those of :mod:`.rounding` up to the order of summation.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from discreet.learn.dpsgd.engine.contributions import Versions
from discreet.learn.dpsgd.engine.rounding import lost

__all__ = [
    "CompiledPass",
    "Loops",
    "add_squared_norms",
    "compiled_loops",
    "compiled_norms",
    "gradients_and_norms",
    "loops_after",
    "weigh",
]

# Passes: about so many have to be made faster before compiling has paid for itself.
_COMPILE_AFTER = 1 << 14
_WIDEST = 1 << 12  # longer sums are cut elsewhere, for the sake of their rounding
_MANY = 1 << 20  # so many numbers and more are better divided among threads, which torch does


def gradients_and_norms(outputs: Any, targets: Any, inputs: Any, least: Any, norms: Any) -> bool:
    """Turn outputs into gradients of the losses, and write the squared norms of the parameters'.

    Returns no, and has written nothing, if a target is not a class.
    """
    zero, one = norms.dtype.type(0), norms.dtype.type(1)
    rows, classes = outputs.shape
    for row in range(rows):
        if targets[row] < 0 or targets[row] >= classes:
            return False
    for row in range(rows):
        most = outputs[row, 0]
        for at in range(1, classes):
            most = max(most, outputs[row, at])
        total = zero
        for at in range(classes):
            outputs[row, at] = np.exp(outputs[row, at] - most)
            total += outputs[row, at]
        for at in range(classes):
            outputs[row, at] /= total
        outputs[row, targets[row]] -= one
        left = zero
        for at in range(classes):
            left += outputs[row, at] * outputs[row, at]
        right = zero
        for at in range(inputs.shape[1]):
            right += inputs[row, at] * inputs[row, at]
        # |left|^2 |right|^2 for the weight and |left|^2 for its bias.
        norms[row] = (right + one) * (left + least)
    return True


def weigh(gradients: Any, weights: Any, factor: Any, weighted: Any, total: Any) -> None:
    """Weight each row, and add all of them to ``total``."""
    rows, classes = gradients.shape
    for row in range(rows):
        weight = weights[row] * factor
        for at in range(classes):
            weighted[row, at] = gradients[row, at] * weight
            total[at] += weighted[row, at]


def add_squared_norms(left: Any, right: Any, least: Any, totals: Any) -> None:
    """Add ``(|left_i|^2 + least) (|right_i|^2 + 1)``, a weight with its bias, to each total."""
    zero, one = totals.dtype.type(0), totals.dtype.type(1)
    for row in range(left.shape[0]):
        first = zero
        for at in range(left.shape[1]):
            first += left[row, at] * left[row, at]
        second = zero
        for at in range(right.shape[1]):
            second += right[row, at] * right[row, at]
        totals[row] += (first + least) * (second + one)


class Loops(NamedTuple):
    """All of them, compiled or not."""

    gradients_and_norms: Callable[..., bool]
    weigh: Callable[..., None]
    add_squared_norms: Callable[..., None]


@lru_cache(maxsize=1)
def compiled_loops() -> Loops:
    """Return the loops compiled; their first calls take about a second."""
    import numba

    # Sums in any order and fused multiply-adds; infinities and NaN mean what they always do.
    compile_function: Any = numba.njit(
        error_model="numpy", nogil=True, fastmath={"contract", "reassoc"}
    )
    return Loops(*map(compile_function, (gradients_and_norms, weigh, add_squared_norms)))


def loops_after(passes: int) -> Loops | None:
    """The loops, if they were compiled before or it pays after so many passes."""
    if compiled_loops.cache_info().currsize:
        return compiled_loops()
    return compiled_loops() if passes >= _COMPILE_AFTER and _numba_works() else None


@lru_cache(maxsize=1)
def _numba_works() -> bool:
    try:
        importlib.import_module("numba")
    except ImportError:
        return False
    return True


def compiled_norms(
    lefts: Sequence[Tensor], rights: Sequence[Tensor], least: float, loops: Loops
) -> Tensor | None:
    """The sum over layers of ``(|left_i|^2 + least) (|right_i|^2 + 1)``; None for large ones."""
    both = (*lefts, *rights)
    if sum([one.numel() for one in both]) > _MANY or max([one.shape[1] for one in both]) > _WIDEST:
        return None
    totals = np.zeros(lefts[0].shape[0], dtype=lefts[0].numpy().dtype)
    for left, right in zip(lefts, rights, strict=True):
        factors = left.contiguous().numpy(), right.contiguous().numpy()
        loops.add_squared_norms(*factors, totals.dtype.type(least), totals)
    return torch.from_numpy(totals)


@final
class CompiledPass:
    """The pass of one layer: gradients of its outputs, its inputs, and norms that are known."""

    __slots__ = ("_left", "_loops", "_norms", "_right", "_versions")

    def __init__(self, left: Tensor, right: Tensor, norms: Any, loops: Loops) -> None:
        self._left = left
        self._right = right
        self._norms = norms
        self._loops = loops
        self._versions = Versions(left, right)

    @staticmethod
    def of(outputs: Tensor, targets: Tensor, inputs: Tensor, loops: Loops) -> CompiledPass | None:
        """Both passes from the outputs, which are overwritten; None if a target is no class."""
        given, rows = outputs.numpy(), inputs.numpy()
        norms = np.empty(len(given), dtype=given.dtype)
        least = given.dtype.type(lost(given.shape[1], outputs))
        if not loops.gradients_and_norms(given, targets.numpy(), rows, least, norms):
            return None
        return CompiledPass(outputs, inputs, norms, loops)

    @staticmethod
    def suits(inputs: Tensor, targets: Tensor) -> bool:
        """Whether the loops were made for such inputs."""
        return (
            inputs.device.type == "cpu"
            and inputs.shape[1] <= _WIDEST
            and inputs.is_contiguous()
            and targets.is_contiguous()
        )

    def check(self) -> None:
        """Raise if a factor was written to since."""
        self._versions.check()

    def factors(self) -> tuple[list[Tensor], list[Tensor]]:
        """The left and the right ones, unchanged."""
        self.check()
        return [self._left], [self._right]

    def squared_norms(self, factor: float) -> Tensor:
        """``factor`` times the squared norms of all gradients, for clipping: (1, rows)."""
        norms = torch.from_numpy(self._norms).unsqueeze(0)
        return norms.clone() if factor == 1.0 else norms * factor

    def add_to(
        self, totals: Sequence[Tensor], weights: Tensor, factor: float, *, last: bool
    ) -> None:
        """Add the weighted sum to weight and bias; the gradients are ours to overwrite."""
        self.check()
        left = self._left
        weighted = left if last else torch.empty_like(left)
        kind = self._norms.dtype.type
        self._loops.weigh(
            left.numpy(), weights.numpy(), kind(factor), weighted.numpy(), totals[1].numpy()
        )
        totals[0].addmm_(weighted.t(), self._right)
