"""One step: its states, what looks for mistakes in it, and calls of the user's code in it.

Errors of the user's model and loss show no private number here, and an example that they cannot
take adds nothing: a label that is no class or a token that the vocabulary lacks makes torch raise,
and whether a run fails would then tell that one record is there, after its budget was spent. So
the rows that raise alone are found on a copy of the model and replaced by zeros, of which nothing
is counted.
"""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from discreet._validate import withheld
from discreet.errors import DiscreetError, InvalidValue, PlanViolation
from discreet.learn.dpsgd._tensors import exchange_tensors

if TYPE_CHECKING:
    from discreet.learn.dpsgd._batches import Chunk, Loading


class State(Enum):
    """Where a run is between two steps of its plan."""

    IDLE = "no batch is open"
    OPEN = "a batch was handed out"
    PARTIAL = "some pieces of a step were added up, more are to come"
    BROKEN = "a sum is under way, or broke off: nothing of it is used"
    DELIVERING = "the optimizer has the noisy gradients"
    ENDED = "the plan was ended"


@final
@dataclass(slots=True)
class OpenBatch:
    """A batch between ``private.batches(...)`` and ``optimizer.step()``, as a watch sees it.

    ``step`` is the number of its step, from 0, and ``last`` says whether it is the last piece of
    it. ``rows`` is private, as are all values; none of them may be shown. ``form`` is ``"each"``
    after losses that came one by one, ``"total"`` after a backward pass from their ``reduction``;
    ``is_ours`` while losses come one by one, ``was_seen`` after a total whose graph was seen.
    """

    step: int
    rows: int
    reduction: str
    chunk: Chunk
    data: Any = None
    loading: Loading | None = None
    form: Literal["each", "total"] | None = None
    is_ours: bool = False
    was_seen: bool = False
    buffers: Sequence[tuple[Tensor, Tensor]] = ()

    @property
    def last(self) -> bool:
        """Whether the step ends with this batch."""
        return self.chunk.last

    @property
    def scale(self) -> float:
        """What undoes the reduction of the losses."""
        return float(self.rows) if self.form != "each" and self.reduction == "mean" else 1.0

    def require(self, form: Literal["each", "total"]) -> None:
        """Raise if the batch had a backward pass of the other form.

        What a pass leaves is scaled as a whole before it is clipped. Two forms in one batch would
        be scaled wrongly, and only losses that come one by one need no look at their reduction.
        """
        if self.form not in (None, form):
            raise PlanViolation(MIXED)

    def hear(self) -> None:
        """Note that a gradient arrives, however it was sent, before anything of it is kept."""
        if not self.is_ours:
            self.require("total")
            self.form = "total"


class Watch:
    """Looks for one honest mistake in a private loop.

    All methods do nothing here. Each may raise :class:`PlanViolation`; none may show a value of an
    example, or how many rows a batch has. Give watches of your own to
    ``make_private(..., watches=[...])``.
    """

    def open(self, batch: OpenBatch) -> None:
        """Look at a batch that is about to be handed out."""

    def backward(self, loss: Tensor, batch: OpenBatch) -> None:
        """Look at a loss, or at the losses one by one, before their gradients arrive."""

    def close(self, batch: OpenBatch) -> bool:
        """Look at the batch after its passes, before clipping; return ``False`` to look no more."""
        return True

    def remove(self) -> None:
        """Take hooks off: the batch was given up, the plan has ended, or this has seen enough.

        After a batch that was given up, :meth:`open` may be called again.
        """


class GradientSource(Protocol):
    """Where the gradients of single examples come from."""

    def expect(self, batch_size: int, *, rows_per_unit: int = 1) -> None:
        """Begin to record passes of a batch."""

    @property
    def heard(self) -> bool:
        """Whether a backward pass arrived."""

    @property
    def is_half(self) -> bool:
        """Whether half precision was met."""

    def squared_norms(self, *, scale: float = 1.0) -> Tensor:
        """Return squared norms, of shape (groups, units)."""

    def add_clipped_sum(self, weights: Tensor, totals: Sequence[Tensor]) -> None:
        """Add the weighted sum of the gradients to totals."""

    def forget(self) -> None:
        """Drop what was recorded."""

    def detach(self) -> None:
        """Leave the model."""


@final
class Step:
    """The state of a run, and the numbers of its steps.

    ``number`` steps were taken or given up, ``begun`` is one more from the moment on at which a
    batch of the next one is handed out, ``drawn`` counts those whose examples were drawn.
    """

    __slots__ = ("batch", "begun", "depth", "drawn", "number", "state", "stepped", "sum", "thread")

    def __init__(self) -> None:
        self.state = State.IDLE
        self.number = self.begun = self.drawn = 0
        self.batch: OpenBatch | None = None
        self.sum: list[Tensor] | None = None
        self.depth = 0
        self.stepped = False
        self.thread: int | None = None

    def open(self, batch: OpenBatch) -> None:
        """A batch is handed out."""
        self.state, self.batch = State.OPEN, batch
        self.stepped, self.depth = False, 0
        self.begun = self.number + 1

    def require_thread(self) -> None:
        """Raise in another thread than that which reads the batches.

        What torch calls is seen in one thread only.
        """
        if self.thread is not None and self.thread != threading.get_ident():
            raise PlanViolation(OTHER_THREAD)

    def require_open(self) -> OpenBatch:
        """Return the batch that ``optimizer.step()`` is to end; raise if there is none."""
        if self.state is not State.OPEN or self.batch is None:
            raise PlanViolation(NO_BATCH)
        return self.batch

    def require_closed(self) -> OpenBatch | None:
        """Return an inner piece that is still to be added up when the next batch is asked for."""
        if self.state is State.BROKEN:
            raise PlanViolation(BROKEN_OFF)
        if self.state is State.OPEN and self.batch is not None:
            if self.batch.last:
                raise PlanViolation(SKIPPED)
            return self.batch
        return None

    def leave(self) -> bool:
        """Give up what is unfinished; it counts as taken. Whether gradients were delivered."""
        delivered = self.state is State.DELIVERING
        self.number = max(self.number, self.begun)
        self.batch = self.sum = self.thread = None
        self.depth = 0
        if self.state is not State.ENDED:
            self.state = State.IDLE
        return delivered


def refuse_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise if ``optimizer.step(...)``, whose first argument is the optimizer, got a closure."""
    if (len(args) > 1 or kwargs) and any(one is not None for one in (*args[1:], *kwargs.values())):
        raise PlanViolation("optimizer.step(closure): a closure would read the data again")


_STEP_FILE = Optimizer.profile_hook_step.__code__.co_filename


def is_inside_step_of(optimizer: Optimizer) -> bool:
    """Whether a pre-hook of ``optimizer.step()`` runs inside of another call of it.

    The stack tells what no counter can: a call that raised left no trace there.
    """
    calls = 0
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "wrapper" and code.co_filename == _STEP_FILE:
            calls += frame.f_locals.get("self") is optimizer
        frame = frame.f_back
    return calls > 1


OTHER_THREAD = (
    "a line of the loop ran in another thread than the one that reads the batches, where it cannot "
    "be looked at: read, call the model, go backward and step in one thread"
)
MIXED = (
    "one form of backward for each batch: either private.backward(losses) or private.step(...), "
    "with one loss for each example, or loss.backward() of their total, not both"
)
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
HALF = (
    "the backward pass of a mean in half precision: gradients there are rounded at another place "
    "for each size of a batch, so one record more would change those of all others. Use "
    "private.backward(losses) with one loss for each example, or declare reduction='sum'"
)
UNSEEN_BACKWARD = (
    "a backward pass that was not loss.backward() of a loss of model(...), in the thread that "
    "reads the batches: how it was reduced could not be seen; use private.backward(losses)"
)


def describe_mixing(what: str, operation: str) -> str:
    """Words about a tensor in which examples were mixed, by which call of torch."""
    return (
        f"{what} a tensor in which the examples of the batch may be mixed, by "
        f"{operation or 'a change of their order'}: one record could then change the gradients of "
        "others, and no clipping bounds that. Do it to each example by itself: in the data set, "
        "along other axes than the first, or with numbers that are public. If the examples do "
        "stay apart, vouch for it by isolation='vouched'"
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


Compute = Callable[[nn.Module, Any], Tensor]
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


def blank_rows(
    compute: Compute, model: nn.Module, batch: Any, *, rows: int, axis: int
) -> tuple[Any, Tensor] | None:
    """The batch with zeros in the rows on which ``compute(model, row)`` raises, and those rows.

    ``None`` if no row raises alone, or zeros raise too: then it is the shape or the type of
    the batch, or the code, and no single example is the reason. ``axis`` is where the examples
    are in tensors that have rows there.
    """
    try:
        twin = copy.deepcopy(model)
    except Exception:  # noqa: BLE001 - whatever a model's own code raises
        return None

    def runs(part: Any) -> bool:
        try:
            with torch.no_grad():
                compute(twin, part)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # noqa: BLE001 - of which kind, and its words, would tell values
            return False
        return True

    found = [
        row for row in range(rows) if not runs(_change_rows(batch, rows, axis, _pick_row(row)))
    ]
    if not found:
        return None
    places = torch.tensor(found)
    blank = lambda one, at: one.index_fill(at, places.to(one.device), 0)  # noqa: E731
    zeros = _change_rows(batch, rows, axis, blank)
    if not runs(zeros):
        return None
    mask = torch.zeros(rows, dtype=torch.bool)
    mask[places] = True
    return zeros, mask


def _pick_row(row: int) -> Callable[[Tensor, int], Tensor]:
    return lambda one, at: one.narrow(at, row, 1)


def _change_rows(batch: Any, rows: int, axis: int, change: Callable[[Tensor, int], Tensor]) -> Any:
    def changed(one: Tensor) -> Tensor:
        for at in (axis, 0):
            if at < one.ndim and one.shape[at] == rows:
                return change(one, at)
        return one

    return exchange_tensors(batch, changed)
