"""Looks at how a scalar loss was made from the losses of its examples.

Clipping needs the gradient of each example by itself. A mean or a sum keeps them apart. A
mean that is weighted by classes, or taken over the examples that are not masked, divides every
example by something that depends on the others: one record then changes all gradients of its
batch, and the noise no longer covers it. The autograd graph of a loss shows how it was
reduced, for the reductions in common use; a loss whose graph does not show it is refused.

What no graph shows: numbers that were computed from the other examples without gradients and
multiplied onto the losses before they were added up, such as ``softmax(losses.detach(), 0)``.
"""

from __future__ import annotations

import math
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

from discreet.errors import InvalidValue
from discreet.learn.dpsgd._tensors import tensors

_TRANSPARENT = ("Neg", "Squeeze", "View", "UnsafeView", "Clone", "ToCopy", "Reshape", "Alias")
_REDUCTIONS = {1: "mean", 2: "sum"}
_ADVICE = "per-example losses (reduction='none') passed to private.backward()"


def check_reduction(loss: Tensor, *, declared: str, rows: int) -> None:
    """Refuse a loss unless it is, by its graph, the declared reduction of ``rows`` examples.

    >>> from torch.nn import functional as F
    >>> scores, classes = torch.zeros(4, 3, requires_grad=True), torch.zeros(4, dtype=torch.int64)
    >>> check_reduction(F.cross_entropy(scores, classes), declared="mean", rows=4)
    >>> check_reduction(F.cross_entropy(scores, classes), declared="sum", rows=4)
    Traceback (most recent call last):
    discreet.errors.InvalidValue: reduction = 'sum': expected 'mean', because that is how ...
    """
    if loss.ndim != 0:
        raise InvalidValue("loss", f"a tensor of {loss.ndim} axes", f"a scalar, or {_ADVICE}")
    if loss.grad_fn is None:
        raise InvalidValue("loss", "a constant", "a loss that depends on the model's output")
    found = set(_walk(loss.grad_fn, rows, root=True))
    for reduction in found - {declared}:
        raise InvalidValue(
            "reduction", declared, f"{reduction!r}, because that is how the loss was reduced"
        )


def _walk(node: Any, rows: int, *, root: bool = False) -> Iterator[str]:
    if node is None:
        raise InvalidValue(
            "loss",
            "a sum with a term that no recorded output leads to",
            "a loss of the model's outputs; regularise by the optimizer's weight_decay",
        )
    name = _name(node)
    if getattr(node, "_saved_reduction", 0) in _REDUCTIONS:
        yield _reduced(node, name, rows)
    elif name in ("Mean", "Sum"):
        _check_count(math.prod(node._saved_self_sym_sizes), rows)
        _check_unmasked(node)
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
        yield from _walk(_multiplied(node), rows)
    else:
        raise InvalidValue(
            "loss",
            f"a scalar whose graph ({type(node).__name__}) does not show how it was reduced",
            "a plain mean or sum over the examples, or " + _ADVICE,
        )


def _name(node: Any) -> str:
    return type(node).__name__.rstrip("0123456789").removesuffix("Backward")


def _check_count(elements: int, rows: int) -> None:
    # Neither number is told: how many were drawn is private, and how many were selected too.
    if elements % rows or not elements:
        raise InvalidValue(
            "loss",
            "a reduction of numbers that are not equally many for every example",
            "as many losses of every example: a selection depends on all of them. Use " + _ADVICE,
        )


def _check_unmasked(node: Any) -> None:
    """Refuse what was selected by a mask, also where the count happens to be right this time."""
    while node.next_functions and node.next_functions[0][0] is not None:
        node = node.next_functions[0][0]
        masks = [
            index
            for index in getattr(node, "_saved_indices", None) or ()
            if isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)
        ]
        if masks or _name(node) == "MaskedSelect":
            raise InvalidValue(
                "loss",
                "a reduction of what a mask selected",
                "a divisor that does not depend on the other examples: " + _ADVICE,
            )
        if _name(node) not in (
            *_TRANSPARENT,
            "Index",
            "Sum",
            "Mean",
            "Mul",
            "Div",
            "NllLoss",
            "LogSoftmax",
        ):
            return


def _reduced(node: Any, name: str, rows: int) -> str:
    reduction = _REDUCTIONS[node._saved_reduction]
    judged = node._saved_target if name in ("NllLoss", "NllLoss2D") else None
    if judged is None:
        judged = getattr(node, "_saved_self", None)
    if judged is None:
        raise InvalidValue("loss", type(node).__name__, "a known reduction, or " + _ADVICE)
    _check_count(judged.numel(), rows)
    _check_unmasked(node)
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


def _multiplied(node: Any) -> Any:
    """The one factor of a product that has a graph, if the other is a plain number."""
    children = [child for child, _ in node.next_functions if child is not None]
    factor = getattr(node, "_saved_other", None)
    if factor is None:
        factor = getattr(node, "_saved_self", None)
    # torch keeps a number of Python as a double of no dimensions.
    plain = not isinstance(factor, Tensor) or (
        factor.ndim == 0 and factor.dtype in (torch.float64, torch.int64)
    )
    if len(children) != 1 or not plain:
        raise InvalidValue(
            "loss",
            "a product with a factor that may depend on the other examples",
            "terms weighted by plain numbers, or " + _ADVICE,
        )
    return children[0]


def _divided(node: Any, rows: int) -> str:
    children = [child for child, _ in node.next_functions]
    saved = node._saved_other
    constant = children[1:] in ([], [None]) and children[0] is not None
    is_rows = constant and (
        (saved.numel() == 1 if isinstance(saved, Tensor) else saved is not None)
        and float(saved) == rows
    )
    if is_rows and set(_walk(children[0], rows)) == {"sum"}:
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
        self.on = False

    def __call__(self, _: nn.Module, __: object, output: Any) -> None:
        if not self.on:
            return
        self.nodes += [one.grad_fn for one in tensors(output) if one.grad_fn is not None]

    def __deepcopy__(self, memo: object) -> Callable[..., None]:
        return _note_nothing


def _note_nothing(*_: object) -> None:
    """The hook of a copy."""


@final
class BackwardWatch(TorchFunctionMode):
    """Sees every ``loss.backward()`` of one model while it is on.

    ``check`` is called with losses that come from an output of the model, and with no others:
    several models may be trained side by side. ``heard`` says whether there was one since
    :meth:`start`; ``torch.autograd.backward`` is not seen, nor is another thread: torch keeps
    modes by thread. What another thread stops stays behind in the first one, and does nothing
    there until that one calls :meth:`start` or :meth:`leave`. ``note`` is called after every
    call of torch that is seen and makes tensors, with its arguments and its
    result.
    """

    needs_no_inner_calls = True

    def __init__(self, model: nn.Module, check: Callable[[Tensor], None]) -> None:
        super().__init__()
        self._check = check
        self.heard = False
        self.note: Callable[[Any, Any, Any, Any], None] | None = None
        self._outputs = _Outputs()
        self._hook = model.register_forward_hook(self._outputs)

    def start(self) -> None:
        """Watch from now on."""
        self.leave()
        self._outputs.on = True
        self.heard = False
        _push_mode(self)  # type: ignore[no-untyped-call]

    @property
    def is_on(self) -> bool:
        """Whether it watches."""
        return self._outputs.on

    @property
    def has_heard(self) -> bool:
        """Whether there was a backward pass to hear, if it watches."""
        return self.heard or not self._outputs.on

    def stop(self) -> None:
        """Watch no longer. Modes that others pushed meanwhile stay where they are."""
        if self._outputs.on:
            self.leave()

    def leave(self) -> None:
        """Watch no longer, and be gone from this thread even if another one has stopped this."""
        self._outputs.on = False
        self._outputs.nodes.clear()
        others = []
        while (mode := _get_current_function_mode()) is not None:  # type: ignore[no-untyped-call]
            _pop_mode()  # type: ignore[no-untyped-call]
            if mode is not self:
                others.append(mode)
        for mode in reversed(others):
            _push_mode(mode)  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """Watch never again."""
        self.leave()
        self._hook.remove()

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if (
            func is torch.Tensor.backward
            and self._outputs.on
            and self._comes_from_the_model(args[0])
        ):
            self._check(args[0])
            self.heard = True
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor | list | tuple) and self.note is not None and self._outputs.on:
            self.note(func, args, kwargs or {}, result)
        return result

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
