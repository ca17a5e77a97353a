"""Which tensors hold several rows for every example, the rows of one example side by side.

``x.reshape(examples * time, d)`` and ``x.transpose(0, 1).reshape(time * examples, d)`` have the
same shape. Only the first has a first axis that the engine may cut into examples, so it must
have seen how the tensor came about: a reshaping of one whose first axis runs over the examples,
then operations that keep the rows where they are. A tensor of another or of unknown origin is
not cut; the module around it runs example by example instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, final
from weakref import ref

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

__all__ = ["FOLLOWED", "Folds", "flat"]

_RESHAPING = frozenset(
    {
        torch.Tensor.reshape,
        torch.Tensor.view,
        torch.Tensor.flatten,
        torch.Tensor.unflatten,
        torch.reshape,
        torch.flatten,
        torch.unflatten,
    }
)
_MOVING = frozenset(
    {
        torch.Tensor.transpose,
        torch.Tensor.permute,
        torch.Tensor.movedim,
        torch.Tensor.moveaxis,
        torch.Tensor.swapaxes,
        torch.Tensor.swapdims,
        torch.Tensor.t,
        torch.Tensor.flip,
        torch.Tensor.roll,
        torch.Tensor.__getitem__,
        torch.Tensor.index_select,
        torch.Tensor.contiguous,
        torch.Tensor.T.__get__,  # type: ignore[attr-defined]
        torch.Tensor.mT.__get__,  # type: ignore[attr-defined]
        torch.transpose,
        torch.permute,
        torch.movedim,
        torch.moveaxis,
        torch.swapaxes,
        torch.swapdims,
        torch.t,
        torch.flip,
        torch.roll,
        torch.index_select,
        torch.stack,
    }
)
_EXCHANGING = frozenset(
    {
        torch.Tensor.transpose,
        torch.Tensor.swapaxes,
        torch.Tensor.swapdims,
        torch.transpose,
        torch.swapaxes,
        torch.swapdims,
    }
)
_POINTWISE = (
    "add sub mul div neg exp log abs square sqrt rsqrt relu tanh sigmoid clamp pow "
    "sin cos erf add_ sub_ mul_ div_ relu_ tanh_ sigmoid_ __add__ __radd__ __sub__ __rsub__ "
    "__mul__ __rmul__ __truediv__ __neg__ __iadd__ __isub__ __imul__ __itruediv__ "
    "to float double half bfloat16 clone softmax log_softmax"
)
_ACTIVATIONS = (
    "relu gelu silu elu selu celu leaky_relu relu6 hardswish hardsigmoid hardtanh mish "
    "softplus softsign tanh sigmoid logsigmoid dropout alpha_dropout softmax log_softmax glu "
    "normalize layer_norm rms_norm group_norm instance_norm max_pool1d max_pool2d max_pool3d "
    "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d "
    "adaptive_max_pool1d adaptive_max_pool2d scaled_dot_product_attention pad"
)
_KEEPING = frozenset(
    {
        *(getattr(torch.Tensor, name) for name in _POINTWISE.split()),
        *(getattr(torch, name) for name in _POINTWISE.split() if hasattr(torch, name)),
        *(getattr(F, name) for name in _ACTIVATIONS.split()),
        torch.Tensor.matmul,
        torch.Tensor.__matmul__,
        torch.matmul,
        torch.bmm,
        torch.max_pool1d,
    }
)
FOLLOWED = _RESHAPING | _MOVING | _KEEPING


@final
class Folds:
    """Remembers, for one forward pass, tensors whose rows lie together or were moved."""

    def __init__(self) -> None:
        self.rows = 0
        self._together: dict[int, ref[Tensor]] = {}
        self._moved: dict[int, ref[Tensor]] = {}

    def open(self, rows: int) -> None:
        """Forget all, and expect so many rows."""
        self.rows = rows
        if self._together:
            self._together = {}
        if self._moved:
            self._moved = {}

    @property
    def any(self) -> bool:
        """Whether there is a tensor with several rows for each example."""
        return bool(self._together)

    def known(self, tensor: Tensor) -> bool:
        """Whether the rows of each example are known to lie together."""
        found = self._together.get(id(tensor))
        return found is not None and found() is tensor

    def follow(self, func: Any, args: Sequence[Any], data: list[Tensor], result: object) -> None:
        """Note what a call that keeps, moves or reshapes rows made of ``data``."""
        if not isinstance(result, Tensor) or not result.ndim or not self.rows or not data:
            return
        moved = func in _MOVING and moves_rows(func, args)
        if func in _MOVING and (moved or self._was_moved(data[0])):
            self._moved[id(result)] = ref(result)
        size = result.shape[0]
        if moved or size == self.rows or size % self.rows:
            return
        first = data[0]
        if func in _RESHAPING:
            outermost = first.ndim > 0 and first.shape[0] == self.rows
            together = (outermost and not self._was_moved(first)) or self.known(first)
        else:
            wide = [one for one in data if one.ndim]
            together = bool(wide) and all(self.known(one) and one.shape[0] == size for one in wide)
        if together:
            self._together[id(result)] = ref(result)

    def _was_moved(self, tensor: Tensor) -> bool:
        found = self._moved.get(id(tensor))
        return found is not None and found() is tensor


def moves_rows(func: Any, args: Sequence[Any]) -> bool:
    """Whether a call of ``_MOVING`` may change the order or the place of the first axis."""
    if func is torch.Tensor.contiguous:
        return False
    if func is torch.Tensor.__getitem__:
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        return not index or not (isinstance(index[0], slice) and index[0] == slice(None))
    axes = [axis for axis in flat(args[1:]) if isinstance(axis, int)]
    if func in _EXCHANGING and len(axes) == 2 and isinstance(args[0], Tensor):
        return any(axis % args[0].ndim == 0 for axis in axes)
    if func in (torch.Tensor.permute, torch.permute) and axes:
        return axes[0] != 0
    return True


def flat(values: Sequence[Any]) -> Iterator[Any]:
    """Arguments with lists and tuples opened."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from value
        else:
            yield value
