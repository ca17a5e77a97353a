"""What the loss of a loop must be: examples kept apart, and a reduction that keeps them apart.

:func:`check_isolation` sees a loss only if it is given one. In a loop of the user's own the
loss is computed between the model's output and the backward pass, where a contrastive loss or
a ranking loss can compare examples. The autograd graph shows it. If there is one loss for each
example, its gradient with respect to the outputs of the others must vanish. If there is only the
total, it must be a sum of functions of one example each, and then its mixed second derivatives
vanish. Like every probe these refute and cannot prove.

Clipping needs the gradient of each example by itself. A mean or a sum keeps them apart. A
mean that is weighted by classes, or taken over the examples that are not masked, divides every
example by something that depends on the others: one record then changes all gradients of its
batch, and the noise no longer covers it. The autograd graph of a loss shows how it was
reduced, for the reductions in common use; a loss whose graph does not show it is refused.

What no graph shows: numbers that were computed from the other examples without gradients and
multiplied onto the losses before they were added up, such as ``softmax(losses.detach(), 0)``. Those
are found by :mod:`~discreet.learn.dpsgd._mixing`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, final

import torch
from torch import Tensor, nn

from discreet.errors import InvalidValue, NotApplicable
from discreet.learn.dpsgd._step import OpenBatch, Watch
from discreet.learn.dpsgd._tensors import Reading, close, exchange_tensors, size_of, tensors
from discreet.learn.dpsgd.engine._recorder import leaves_behind

_TRANSPARENT = ("Neg", "Squeeze", "View", "UnsafeView", "Clone", "ToCopy", "Reshape", "Alias")
_REDUCTIONS = {1: "mean", 2: "sum"}
_ADVICE = "per-example losses (reduction='none') passed to private.backward()"
_MESSAGE = (
    "the loss of one example depends on the model's output for other examples, so clipping does "
    "not bound the influence of one of them: compute the losses of the examples one by one"
)

# Beyond what a backward pass may cut gradients to.
_STEEP = 1e4
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
    for factor in (1.0, _STEEP):
        weights = torch.full_like(losses.detach(), factor)
        together = _slopes(losses, weights, found)
        for row in (0, rows - 1):
            alone = torch.zeros_like(weights)
            alone[row] = factor
            gradients = _slopes(losses, alone, found)
            _narrow(possible, gradients, row, rows)
            for candidates, one, other in zip(possible, gradients, together, strict=True):
                if candidates and not _agree(candidates[0], one, other, row, rows):
                    raise NotApplicable(_MESSAGE)


def _slopes(losses: Tensor, weights: Tensor, outputs: list[Tensor]) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = torch.autograd.grad(
        losses,
        outputs,
        weights,
        retain_graph=True,
        allow_unused=True,
        materialize_grads=True,
    )
    return found


def _agree(reading: Reading, alone: Tensor, together: Tensor, row: int, rows: int) -> bool:
    """Whether a backward pass gives one example the same with the others and without them."""
    one, other = (reading.part(each.detach().to_dense(), row, rows) for each in (alone, together))
    if not bool(one.isfinite().all() and other.isfinite().all()):
        return True
    scale = max(size_of(one), 1e-6 * size_of(together))
    return close(one, other, scale=scale, tolerance=1e-2)


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
class LossWatch(Watch):
    """Guards against losses that compare examples: contrastive, ranking, normalised by the batch.

    It keeps what the model returns until the losses of a batch of several examples were judged. As
    a forward hook it sees training-mode calls with gradients enabled and hands on the same
    values as new nodes of the graph, so that judging ends there and nothing inside the model
    is differentiated. A batch may have several losses. The watch has seen enough at the end of
    the first batch of at least two examples whose losses passed, and is inert in a copy. Where one
    call of the model feeds another, it cannot judge and gives up.
    """

    def __init__(self, model: nn.Module, *, examples_first: bool = True) -> None:
        self._model = model
        self._examples_first = examples_first
        self._handle: Any = None
        self._chained = self._judged = False
        self._forget()

    def open(self, batch: OpenBatch) -> None:
        """Begin to keep outputs."""
        self._forget()
        if self._handle is None:
            hook = _OutputHook(self)
            self._handle = self._model.register_forward_hook(hook, with_kwargs=True, prepend=True)

    def see(self, args: Any, kwargs: Any, output: Any) -> Any:
        """Keep what a call of the model returned; return it as new nodes."""
        self._chained |= any(one.requires_grad for one in tensors((args, kwargs)))
        return exchange_tensors(output, self._note)

    def _note(self, one: Tensor) -> Tensor:
        if not one.requires_grad:
            return one
        node = one.view_as(one)
        self._outputs.append(node)
        return node

    def backward(self, loss: Tensor, batch: OpenBatch) -> None:
        """Raise if the losses of the examples, or their total, mix them."""
        # What is read here is not read by the loop.
        with torch._C.DisableTorchFunctionSubclass():
            self._judge(loss, batch.rows)

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

    def close(self, batch: OpenBatch) -> bool:
        """Whether other losses are to be judged."""
        enough = self._judged
        self._forget()
        return not enough

    def remove(self) -> None:
        """Take the hook off the model."""
        self._forget()
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _forget(self) -> None:
        self._outputs: list[Tensor] = []
        self._chained = self._judged = False


@final
class _OutputHook:
    """The forward hook of a :class:`LossWatch`; that of a copy does nothing."""

    def __init__(self, watch: LossWatch | None) -> None:
        self._watch = watch

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        if self._watch is None or not module.training or not torch.is_grad_enabled():
            return output
        return self._watch.see(args, kwargs, output)

    def __deepcopy__(self, memo: object) -> _OutputHook:
        return _OutputHook(None)

    def __reduce__(self) -> tuple[Any, ...]:
        return _OutputHook, (None,)


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
        kept = [reading for reading in possible[place] if _reads_only(gradient, reading, row, rows)]
        if not kept:
            raise NotApplicable(_MESSAGE)
        possible[place] = kept


def _reads_only(gradient: Tensor, reading: Reading, row: int, rows: int) -> bool:
    # An infinite factor makes NaN of the zeros of the others; that says nothing about the code.
    rest = gradient.detach().to_dense().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    reading.part(rest, row, rows).zero_()
    return not bool(rest.any())


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
        yield _judge_reduction(node, name, rows)
    elif name in ("Mean", "Sum"):
        _check_count(math.prod(node._saved_self_sym_sizes), rows)
        _check_unmasked(node)
        yield name.lower()
    elif name in ("Add", "Sub"):
        for child, _ in node.next_functions:
            yield from _walk(child, rows)
    elif name in _TRANSPARENT or (name == "Div" and _is_divided_by_one(node)):
        yield from _walk(node.next_functions[0][0], rows, root=root)
    elif name == "Div":
        yield _judge_division(node, rows)
    elif name == "Mul":
        if root:
            raise InvalidValue(
                "loss", "a scaled loss", "no loss scaling (GradScaler, accumulation): " + _ADVICE
            )
        yield from _walk(_find_factor(node), rows)
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


def _judge_reduction(node: Any, name: str, rows: int) -> str:
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


def _find_factor(node: Any) -> Any:
    """The one factor of a product that has a graph, if the other is a plain number."""
    children = [child for child, _ in node.next_functions if child is not None]
    factor = getattr(node, "_saved_other", None)
    if factor is None:
        factor = getattr(node, "_saved_self", None)
    if len(children) != 1 or not _is_number(factor):
        raise InvalidValue(
            "loss",
            "a product with a factor that may depend on the other examples",
            "terms weighted by plain numbers, or " + _ADVICE,
        )
    return children[0]


def _is_number(factor: Any) -> bool:
    """Whether a factor is one of Python, which torch keeps as a double of no dimensions."""
    return not isinstance(factor, Tensor) or (
        factor.ndim == 0 and factor.dtype in (torch.float64, torch.int64)
    )


def _is_divided_by_one(node: Any) -> bool:
    """Whether this is the division of a framework that may accumulate gradients and does not."""
    return _is_number(node._saved_other) and float(node._saved_other or 0) == 1.0


def _judge_division(node: Any, rows: int) -> str:
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
