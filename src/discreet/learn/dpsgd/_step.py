"""Calls of the user's loss and model in which an error shows no private number."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn

from discreet._validate import withheld
from discreet.errors import DiscreetError, InvalidValue
from discreet.learn.dpsgd._plan import Plan


@final
class StepFactors:
    """Noise and normaliser by the number of the step; ``ranks`` members share the noise."""

    def __init__(self, plan: Plan, *, ranks: int) -> None:
        self.noise_share = 1.0 / math.sqrt(ranks)
        self._ends: list[int] = []
        self._values: list[tuple[float, float, float]] = []
        end = 0
        for phase in plan.phases:
            end += phase.steps
            size = phase.expected_batch_size
            ratio = plan.noise_multiplier * phase.noise_factor * self.noise_share / size
            self._ends.append(end)
            self._values.append((ratio * plan.clip_norm, ratio, 1.0 / size))
        self.steps = end

    def _at(self, step: int) -> tuple[float, float, float]:
        for end, values in zip(self._ends, self._values, strict=True):
            if step < end:
                return values
        return self._values[-1]  # noise may be prepared for steps that do not come

    def stddev(self, step: int) -> float:
        """Of the noise in the normalised gradient."""
        return self._at(step)[0]

    def stddev_over_clip(self, step: int) -> float:
        """The same for a clip norm of 1."""
        return self._at(step)[1]

    def normaliser(self, step: int) -> float:
        """One over the expected batch size."""
        return self._at(step)[2]

    def unit(self, _: int) -> float:
        """Where the clip norm is not known beforehand: scaled when it is used."""
        return 1.0


LOADED = (
    "load_state_dict() on a model under a plan: the parameters of another model would be under "
    "the certificate of this run. Load before the first batch, or call detach() first"
)
NOT_OF_THE_BATCH = (
    "the model was given tensors that do not come of the batch that private.batches(...) handed "
    "out, nor were made since: rows of another loader are not sampled, counted or paid for as the "
    "plan says. Put them into the data set, or prepare them there or in collate"
)
STALE = (
    "tensors of an earlier batch of private.batches(...) came back: their examples would have a "
    "hand in a step that did not draw them. Use those of the batch that was handed out last"
)
NO_BATCH = "optimizer.step() without a batch: each batch of private.batches(...) allows one"
NO_BACKWARD = "optimizer.step() without loss.backward() on this batch"
UNSEEN_BACKWARD = (
    "a backward pass that was not loss.backward() of a loss of model(...), in the thread that "
    "reads the batches: how it was reduced could not be seen; use private.backward(losses)"
)
OUTSIDE = (
    "the loss depends on a tensor that requires gradients and is not one of the parameters under "
    "the plan: it would get gradients that are neither clipped nor noisy, and what it learns "
    "from them would reach the model. Make it a parameter of the model before make_private() "
    "(a temperature, a head, a prompt), or take its detach()"
)
SKIPPED = (
    "a batch was not followed by optimizer.step(): batches may not be skipped, because which of "
    "them were would depend on the data"
)
BROKEN_OFF = (
    "the step broke off while its gradients were added up; it counts as taken. Go on with a new "
    "private.batches(...)"
)


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
        elif has_numbers(error):
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
    return withhold_numbers(model, model, *inputs)


def withhold_numbers(model: nn.Module, call: Callable[..., Result], *args: Any) -> Result:
    """``call(*args)``, in which the model runs; an error tells no more than above."""
    try:
        return call(*args)
    except (IndexError, RuntimeError, ValueError) as error:
        if not has_numbers(error):
            raise
        named = type(model).__name__
        refusal = withheld("inputs", f"those that the model takes; {_silent(named, error)}")
    raise refusal


def has_numbers(error: Exception) -> bool:
    """Whether words that are not ours hold numbers: those of rows, or values of examples."""
    ours = isinstance(error, DiscreetError | torch.OutOfMemoryError)
    return not ours and any(letter.isdigit() for letter in str(error))


def _silent(whose: str, error: Exception) -> str:
    return (
        f"{whose} raised {type(error).__name__} with numbers that may be private. Call it on "
        "public or made-up examples to read them"
    )


def wrong_loss_shape(losses: Tensor) -> InvalidValue:
    """An error about losses of the wrong shape; how many rows the batch has is private."""
    found = f"a tensor of {losses.ndim} axes" if losses.ndim != 1 else "too many or too few"
    expected = "one loss for each example: one axis, as long as the batch has rows"
    return InvalidValue("losses", found, expected)


def _no_class(outputs: Any) -> InvalidValue:
    known = isinstance(outputs, Tensor) and outputs.ndim > 1
    classes = f"from 0 to {outputs.shape[1] - 1}" if known else "that the outputs have"
    return withheld("targets", f"classes {classes}")
