"""Looks at how a scalar loss was made from the losses of its examples.

Clipping needs the gradient of each example by itself. A mean or a sum keeps them apart. A
mean that is weighted by classes, or taken over the examples that are not masked, divides every
example by something that depends on the others: one record then changes all gradients of its
batch, and the noise no longer covers it. The autograd graph of a loss shows how it was
reduced, for the reductions in common use; what it cannot tell is let pass with a note in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode,
    _pop_mode,
    _push_mode,
)
from torch.utils import _pytree as pytree

from discreet.errors import InvalidValue

__all__ = ["BackwardWatch", "check_reduction"]

_log = logging.getLogger("discreet.learn.dpsgd")

_TRANSPARENT = ("Neg", "Squeeze", "View", "UnsafeView", "Clone", "ToCopy", "Reshape", "Alias")
_REDUCTIONS = {1: "mean", 2: "sum"}
_ADVICE = "per-example losses (reduction='none') passed to private.backward()"


def check_reduction(loss: Tensor, *, declared: str, rows: int) -> None:
    """Refuse a loss that contradicts the declared reduction or mixes its examples.

    >>> from torch.nn import functional as F
    >>> scores, classes = torch.zeros(4, 3, requires_grad=True), torch.zeros(4, dtype=torch.int64)
    >>> check_reduction(F.cross_entropy(scores, classes), declared="mean", rows=4)
    >>> check_reduction(F.cross_entropy(scores, classes), declared="sum", rows=4)
    Traceback (most recent call last):
    discreet.errors.InvalidValue: reduction = 'sum': expected 'mean', because that is how ...
    """
    if loss.ndim != 0:
        raise InvalidValue("loss", tuple(loss.shape), f"a scalar, or {_ADVICE}")
    if loss.grad_fn is None:
        raise InvalidValue("loss", "a constant", "a loss that depends on the model's output")
    found = set(_walk(loss.grad_fn, rows, root=True))
    for reduction in found - {declared, "unknown"}:
        raise InvalidValue(
            "reduction", declared, f"{reduction!r}, because that is how the loss was reduced"
        )
    if "unknown" in found:
        _log.warning(
            "the graph of the loss does not show how it was reduced (%s); it is taken as the %s "
            "over examples that you declared",
            type(loss.grad_fn).__name__,
            declared,
        )


def _walk(node: Any, rows: int, *, root: bool = False) -> Iterator[str]:
    if node is None:
        raise InvalidValue(
            "loss",
            "a sum with a term that no recorded output leads to",
            "a loss of the model's outputs; regularise by the optimizer's weight_decay",
        )
    name = type(node).__name__.removesuffix("0").removesuffix("Backward")
    if hasattr(node, "_saved_reduction"):
        yield _reduced(node, name)
    elif name in ("Mean", "Sum"):
        yield name.lower()
    elif name in ("Add", "Sub"):
        for child, _ in node.next_functions:
            yield from _walk(child, rows)
    elif name in _TRANSPARENT:
        yield from _walk(node.next_functions[0][0], rows, root=root)
    elif name == "Div":
        yield _divided(node, rows)
    elif name == "Mul":
        if root:
            raise InvalidValue(
                "loss", "a scaled loss", "no loss scaling (GradScaler, accumulation): " + _ADVICE
            )
        for child, _ in node.next_functions:
            if child is not None:
                yield from _walk(child, rows)
    else:
        yield "unknown"


def _reduced(node: Any, name: str) -> str:
    reduction = _REDUCTIONS.get(node._saved_reduction)
    if reduction is None:
        return "unknown"
    if reduction == "mean" and name in ("NllLoss", "NllLoss2D"):
        if node._saved_weight is not None:
            raise InvalidValue(
                "loss",
                "a mean weighted by classes",
                "a loss whose divisor does not depend on the other examples: " + _ADVICE,
            )
        counted = float(node._saved_total_weight)
        if counted != node._saved_target.numel():
            raise InvalidValue(
                "loss",
                "a mean over the targets that are not ignore_index",
                "a divisor that does not depend on the other examples: " + _ADVICE,
            )
    return reduction


def _divided(node: Any, rows: int) -> str:
    dividend, divisor = node.next_functions[0][0], node.next_functions[1][0]
    saved = node._saved_other
    is_rows = divisor is None and saved.numel() == 1 and float(saved) == rows
    if is_rows and set(_walk(dividend, rows)) == {"sum"}:
        return "mean"
    raise InvalidValue(
        "loss",
        "a quotient whose divisor may depend on the other examples",
        "a plain mean or sum, or " + _ADVICE,
    )


@final
class _Outputs:
    """A forward hook that notes the graph nodes of outputs; copies of the model note nothing."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []

    def __call__(self, _: nn.Module, __: object, output: Any) -> None:
        tensors = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
        self.nodes += [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]

    def __deepcopy__(self, memo: object) -> Callable[..., None]:
        return _note_nothing


def _note_nothing(*_: object) -> None:
    """The hook of a copy."""


@final
class BackwardWatch(TorchFunctionMode):
    """Sees every ``loss.backward()`` of one model while it is on: in the first step of a run.

    ``check`` is called with losses that come from an output of the model, and with no others:
    several models may be trained side by side.
    """

    def __init__(self, model: nn.Module, check: Callable[[Tensor], None]) -> None:
        super().__init__()
        self._check = check
        self._outputs = _Outputs()
        self._hook = model.register_forward_hook(self._outputs)

    def start(self) -> None:
        """Watch from now on."""
        self._outputs.nodes.clear()
        _push_mode(self)  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        """Watch no longer. Modes that others pushed meanwhile stay where they are."""
        self._outputs.nodes.clear()
        above = []
        while (mode := _get_current_function_mode()) is not None:  # type: ignore[no-untyped-call]
            _pop_mode()  # type: ignore[no-untyped-call]
            if mode is self:
                break
            above.append(mode)
        for mode in reversed(above):
            _push_mode(mode)  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """Watch never again."""
        self.stop()
        self._hook.remove()

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is torch.Tensor.backward and self._comes_from_the_model(args[0]):
            self._check(args[0])
        return func(*args, **(kwargs or {}))

    def _comes_from_the_model(self, loss: Tensor) -> bool:
        seen: set[Any] = set()
        waiting = [loss.grad_fn]
        while waiting:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            if any(node is output for output in self._outputs.nodes):
                return True
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
        return False
