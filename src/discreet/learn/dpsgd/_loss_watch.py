"""Whether the losses of a loop keep the examples apart.

:func:`check_isolation` sees a loss only if it is told about it. In a loop of the user's own the
loss is computed between the model's output and the backward pass, where a contrastive loss or
a ranking loss can compare examples. The autograd graph shows it. If there is one loss for each
example, its gradient with respect to the outputs of the others must vanish. If there is only the
total, it must be a sum of functions of one example each, and then its mixed second derivatives
vanish. Like every probe these refute and cannot prove.
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn

from discreet.errors import NotApplicable
from discreet.learn.dpsgd._tensors import Reading, exchanged, leaves_behind, tensors

_MESSAGE = (
    "the loss of one example depends on the model's output for other examples, so clipping does "
    "not bound the influence of one of them: compute the losses of the examples one by one"
)

_UNSEEN = (
    "the loss uses tensors of the model that are not in what the model returned, or in an object "
    "that cannot be opened, so whether it keeps the examples apart cannot be seen: return them "
    "from forward() in tuples, dicts or dataclasses, or vouch for the loss by isolation='vouched'"
)


def require_losses_apart(losses: Tensor, outputs: object, *, examples_first: bool = False) -> None:
    """Raise unless each of two losses depends on its own row of the model's outputs only.

    ``losses`` holds one loss for each example, ``outputs`` is what the model returned for the
    batch. The graph is kept for the backward pass that follows. With a single example there is
    nothing to compare. With ``examples_first``, a first axis that has a row for each example is
    theirs; otherwise any axis may be, and one that the rows divide can be mistaken for it.

    >>> scores = torch.ones(3, 2, requires_grad=True)
    >>> require_losses_apart(scores.sum(1), scores)
    >>> require_losses_apart(scores.sum(1) / scores.sum(), scores)
    Traceback (most recent call last):
    discreet.errors.NotApplicable: the loss of one example depends on the model's output for ...
    """
    rows = losses.shape[0]
    found = [one for one in tensors(outputs) if one.requires_grad]
    if rows < 2 or not found or not losses.requires_grad:
        return
    possible = [_possible(one, rows, examples_first) for one in found]
    for row in (0, rows - 1):
        gradients = torch.autograd.grad(
            losses[row], found, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        _narrow(possible, gradients, row, rows)


def require_total_apart(
    total: Tensor, outputs: object, *, rows: int, examples_first: bool = False
) -> None:
    """Raise if the mixed second derivatives of a total loss show that it mixes examples.

    ``total`` is a scalar over ``rows`` examples. A factor that depends on no output, such as the
    divisor of a class-weighted mean, has no such derivatives and is not seen here, nor is a
    loss that is piecewise linear, or cannot be differentiated twice.

    >>> scores = torch.ones(3, 2, requires_grad=True)
    >>> require_total_apart(scores.square().mean(), scores, rows=3)
    >>> require_total_apart(scores.mean().square(), scores, rows=3)
    Traceback (most recent call last):
    discreet.errors.NotApplicable: the loss of one example depends on the model's output for ...
    """
    found = [one for one in tensors(outputs) if one.requires_grad]
    if rows < 2 or not found or not total.requires_grad:
        return
    try:
        slopes = torch.autograd.grad(
            total, found, create_graph=True, allow_unused=True, materialize_grads=True
        )
        possible = [_possible(one, rows, examples_first) for one in found]
        for place, slope in enumerate(slopes):
            if not slope.requires_grad or not possible[place]:
                continue
            if not any(
                _separate(found, slope, place, reading, possible, rows)
                for reading in possible[place]
            ):
                raise NotApplicable(_MESSAGE)
    except RuntimeError:
        # Not differentiable twice: nothing can be said.
        return


def _separate(
    outputs: list[Tensor],
    slope: Tensor,
    place: int,
    reading: Reading,
    possible: list[list[Reading]],
    rows: int,
) -> bool:
    """Whether a row of the slope at one output depends on no other row of any output.

    A product of two outputs has no second derivative with respect to one of them alone.
    """
    possible = [*possible[:place], [reading], *possible[place + 1 :]]
    for row in (0, rows - 1):
        part = reading.part(slope, row, rows).reshape(-1)
        weights = torch.arange(1, part.numel() + 1).to(part).cos()
        seconds = torch.autograd.grad(
            (weights * part).sum(),
            outputs,
            retain_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        try:
            _narrow(possible, seconds, row, rows)
        except NotApplicable:
            return False
    return True


@final
class LossWatch:
    """Keeps what a model returns until the losses of a batch of several examples were judged.

    A forward hook. It sees training-mode calls with gradients enabled and hands on the same
    values as new nodes of the graph, so that judging ends there and nothing inside the model
    is differentiated. A batch may have several losses. The watch takes itself off the model
    at the end of the first batch of at least two examples whose losses passed, and is inert in
    a copy. Where one call of the model feeds another, it cannot judge and gives up.
    """

    def __init__(self, model: nn.Module | None, *, examples_first: bool = True) -> None:
        self._examples_first = examples_first
        self._outputs: list[Tensor] = []
        self._chained = False
        self._judged = False
        self._handle = None
        if model is not None:
            self._handle = model.register_forward_hook(self, with_kwargs=True, prepend=True)

    @property
    def is_on(self) -> bool:
        """Whether a loss is still to be judged."""
        return self._handle is not None

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        if self._handle is None or not module.training or not torch.is_grad_enabled():
            return output
        self._chained |= any(one.requires_grad for one in tensors((args, kwargs)))
        return exchanged(output, self._noted)

    def _noted(self, one: Tensor) -> Tensor:
        if not one.requires_grad:
            return one
        node = one.view_as(one)
        self._outputs.append(node)
        return node

    def judge(self, loss: Tensor, *, rows: int) -> None:
        """Raise if the losses of ``rows`` examples, or their total, mix them."""
        if self._handle is None:
            return
        # What is read here is not read by the loop.
        with torch._C.DisableTorchFunctionSubclass():
            self._judge(loss, rows)

    def _judge(self, loss: Tensor, rows: int) -> None:
        nodes = [one.grad_fn for one in self._outputs]
        if loss.grad_fn not in nodes:
            for leaf in leaves_behind(loss, until=nodes):
                if hasattr(leaf, "of_engine"):
                    raise NotApplicable(_UNSEEN)
        if rows < 2 or not self._outputs:
            return
        if not self._chained:
            if loss.dim() == 0:
                require_total_apart(
                    loss, self._outputs, rows=rows, examples_first=self._examples_first
                )
            else:
                require_losses_apart(loss, self._outputs, examples_first=self._examples_first)
        self._judged = True

    def end_batch(self) -> None:
        """The backward passes of a batch are over: if its losses passed, no others are judged."""
        if self._judged:
            self.remove()
        else:
            self.forget()

    def forget(self) -> None:
        """Drop the outputs of a batch that was given up."""
        self._outputs, self._chained, self._judged = [], False, False

    def remove(self) -> None:
        """Take the hook off the model."""
        self.forget()
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def __deepcopy__(self, memo: object) -> LossWatch:
        return LossWatch(None)

    def __reduce__(self) -> tuple[Any, ...]:
        return LossWatch, (None,)


def _possible(output: Tensor, rows: int, examples_first: bool) -> list[Reading]:
    """Every way in which an output could consist of one part for each example."""
    if examples_first and output.shape[:1] == (rows,):
        return [Reading(0)]
    return [
        Reading(axis, together)
        for axis, size in enumerate(output.shape)
        if size and size % rows == 0
        for together in ((True,) if size == rows else (True, False))
    ]


def _narrow(
    possible: list[list[Reading]], gradients: tuple[Tensor, ...], row: int, rows: int
) -> None:
    """Keep the readings under which the gradients touch only ``row``; raise if none is left."""
    for place, gradient in enumerate(gradients):
        if not possible[place]:
            continue
        kept = [reading for reading in possible[place] if _only(gradient, reading, row, rows)]
        if not kept:
            raise NotApplicable(_MESSAGE)
        possible[place] = kept


def _only(gradient: Tensor, reading: Reading, row: int, rows: int) -> bool:
    # An infinite factor makes NaN of the zeros of the others; that says nothing about the code.
    rest = gradient.detach().to_dense().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    reading.part(rest, row, rows).zero_()
    return not bool(rest.any())
