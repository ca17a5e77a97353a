"""Calls of the user's loss and model in which an error shows no private number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from discreet._validate import withheld
from discreet.errors import DiscreetError, InvalidValue

__all__ = [
    "are_classes",
    "losses_of",
    "not_one_each",
    "outputs_of",
    "silenced",
]

Result = TypeVar("Result")


def losses_of(loss: Callable[[Any, Any], Tensor], outputs: Any, targets: Any) -> Tensor:
    """``loss(outputs, targets)``, where an error tells neither a target nor the number of rows.

    For a target that is no class, torch's words name the target, which is private.

    >>> each = nn.CrossEntropyLoss(reduction="none")
    >>> losses_of(each, torch.zeros(2, 3), torch.tensor([0, 31]))
    Traceback (most recent call last):
    discreet.errors.InvalidValue: targets = 'withheld': expected classes from 0 to 2
    """
    device = getattr(targets, "device", None)
    if device is not None and device.type != "cpu" and not are_classes(loss, outputs, targets):
        raise _no_class(outputs)
    try:
        return loss(outputs, targets)
    except (IndexError, RuntimeError, ValueError) as error:
        if "out of bounds" in str(error):
            refusal = _no_class(outputs)
        elif _tells(error):
            refusal = withheld("targets", f"those that the loss takes; {_silent('it', error)}")
        else:
            raise
    raise refusal  # out here, where it has no other error behind it


def are_classes(loss: object, outputs: Any, targets: Any) -> bool:
    """Whether a loss over classes would take the targets; other devices than the CPU do not ask."""
    known = isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss | nn.MultiMarginLoss)
    if not known or not isinstance(outputs, Tensor) or targets.is_floating_point():
        return True
    classes = outputs.shape[1] if outputs.ndim > 1 else outputs.shape[0]
    right = (targets >= 0) & (targets < classes)
    return bool((right | (targets == getattr(loss, "ignore_index", 0))).all())


def outputs_of(model: nn.Module, inputs: Sequence[Any]) -> Any:
    """``model(*inputs)``, where an error tells neither a value nor the number of rows.

    >>> outputs_of(nn.Linear(4, 3), [torch.zeros(15, 8)])
    Traceback (most recent call last):
    discreet.errors.InvalidValue: inputs = 'withheld': expected those that the model takes; ...
    """
    return silenced(model, model, *inputs)


def silenced(model: nn.Module, call: Callable[..., Result], *args: Any) -> Result:
    """``call(*args)``, in which the model runs; an error tells no more than above."""
    try:
        return call(*args)
    except (IndexError, RuntimeError, ValueError) as error:
        if not _tells(error):
            raise
        named = type(model).__name__
        refusal = withheld("inputs", f"those that the model takes; {_silent(named, error)}")
    raise refusal


def _tells(error: Exception) -> bool:
    """Whether words that are not ours hold numbers: those of rows, or values of examples."""
    ours = isinstance(error, DiscreetError | torch.OutOfMemoryError)
    return not ours and any(letter.isdigit() for letter in str(error))


def _silent(whose: str, error: Exception) -> str:
    return (
        f"{whose} raised {type(error).__name__} with numbers that may be private. Call it on "
        "public or made-up examples to read them"
    )


def not_one_each(losses: Tensor) -> InvalidValue:
    """An error about losses of the wrong shape; how many rows the batch has is private."""
    found = f"a tensor of {losses.ndim} axes" if losses.ndim != 1 else "too many or too few"
    expected = "one loss for each example: one axis, as long as the batch has rows"
    return InvalidValue("losses", found, expected)


def _no_class(outputs: Any) -> InvalidValue:
    known = isinstance(outputs, Tensor) and outputs.ndim > 1
    classes = f"from 0 to {outputs.shape[1] - 1}" if known else "that the outputs have"
    return withheld("targets", f"classes {classes}")
