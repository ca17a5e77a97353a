"""Does the engine give every example its own gradient? A trial on made-up inputs.

The engine reads from shapes which rows of an activation belong to which example. A model may
fold, stack or reorder its examples in a way that no shape shows; then norms are taken of mixed
gradients and nothing is clipped as promised. So before the first private step, a copy of the
model runs made-up batches through the engine, and the same examples one by one through plain
autograd.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, final

import torch
from torch import Tensor, nn

from discreet.errors import DiscreetError, InvalidValue, NotApplicable, PlanViolation
from discreet.learn.dpsgd._batches import template_of
from discreet.learn.dpsgd._plan import Plan
from discreet.learn.dpsgd._tensors import Reading, close, readings, size_of
from discreet.learn.dpsgd._watches import CHECKPOINTED
from discreet.learn.dpsgd.engine._engine import GradientEngine
from discreet.learn.dpsgd.engine._layout import contains_sequence_first
from discreet.learn.dpsgd.isolation import check_isolation
from discreet.learn.dpsgd.isolation._subject import (
    Batch,
    Subject,
    TensorSpec,
    copy_for_probing,
    describe,
    draw,
    take,
)

_log = logging.getLogger("discreet.learn.dpsgd")

# Small, so that every inner size is likely to be a multiple of one of them.
_SIZES = (2, 3, 4)
# One of these is tried that no inner size is a multiple of.
_COPRIME = (5, 7, 11, 13, 17, 19)
# An order that depends on values differs from draw to draw. By chance it leaves all rows where
# they were with probability 1/2! 1/3! 1/4! for one draw of each size: for two, below 2e-5.
_DRAWS = 2
_LARGEST = 16
_ERRORS = (RuntimeError, TypeError, ValueError, IndexError, AttributeError, KeyError)
_LARGEST_REAL = 64


def verify_attribution(
    model: nn.Module,
    inputs: Any,
    *,
    groups: Sequence[Sequence[str]] | None = None,
    batch_axis: int | None = None,
    batch_sizes: Sequence[int] = (),
) -> None:
    """Raise :class:`NotApplicable` where the engine mistakes whose gradient is whose.

    ``inputs`` describes the examples as for :func:`~discreet.learn.dpsgd.check_isolation`: a
    tensor stands for its shape and type, its values are never read. A copy of the model, in
    double precision where it can be, gets batches of several sizes and draws; with a random
    linear function of each example's outputs as its loss, the squared norm of every example's
    gradient with respect to every parameter, and sums with random weights, are compared with
    those of the examples taken one by one. ``groups`` and ``batch_axis`` are the engine's.
    A batch of one of ``batch_sizes`` is tried too if an axis of the examples is as long.
    Of the gradients taken one by one only norms and running sums are kept, so the memory that a
    trial needs is a few copies of the model, however many examples it has.

    A trial refutes, it cannot prove: agreement is evidence from made-up inputs. That examples do
    not feel one another is taken for granted here; ``check_isolation`` looks at that.

    >>> verify_attribution(nn.Linear(3, 2), torch.zeros(1, 3))
    """
    if not isinstance(model, nn.Module):
        raise InvalidValue("model", model, "a torch.nn.Module")
    subject = copy_for_probing(model, loss=None, description=describe(inputs, None))
    names = list(subject.trainable())
    if not names:
        raise InvalidValue("model", type(model).__name__, "at least one trainable parameter")
    with _quiet():
        for size, draws in _sizes(subject, batch_sizes).items():
            for number in range(draws):
                groupings = [[[name] for name in names]]
                if number == 0:
                    groupings.append([list(group) for group in groups or [names]])
                _try_out(subject, size, groupings, 100 * size + number, batch_axis)


def _try_out(
    subject: Subject, size: int, groupings: list[list[list[str]]], seed: int, axis: int | None
) -> None:
    """Compare engine and examples; what single precision calls different, double must confirm.

    A unit that rounding turns on or off changes gradients by far more than rounding does.
    """
    try:
        _Trial(subject, size, groupings, seed=seed).judge(axis)
    except NotApplicable:
        exact = subject.in_double()
        if exact is None:
            raise
        _Trial(exact, size, groupings, seed=seed).judge(axis)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hold back the engine's notes: it will make them again where it trains."""

    def hold_back(_: logging.LogRecord) -> bool:
        return False

    _log.addFilter(hold_back)
    try:
        yield
    finally:
        _log.removeFilter(hold_back)


def _sizes(subject: Subject, sizes: Sequence[int]) -> dict[int, int]:
    """Batch sizes to try, and how often each.

    The lengths of the inputs are among them: a batch as large as a sequence is long is the one
    in which axes are easily mistaken. Sequence-first models refuse those by themselves.
    """
    lengths = {size for spec in subject.description.specs() for size in spec.shape}
    if contains_sequence_first(subject.prototype):
        free = [size for size in (*_SIZES, *_COPRIME) if size not in lengths]
        return dict.fromkeys(free[:3], _DRAWS)
    longer = sorted(size for size in lengths if max(_SIZES) < size <= _LARGEST)[:2]
    foreign = [size for size in _COPRIME if all(length % size for length in lengths)]
    # A batch of the real size, if an axis of its examples is as long.
    real = [size for size in sizes if size in lengths and size <= _LARGEST_REAL]
    more = dict.fromkeys([*longer, *foreign[:1], *real[:1]], 1)
    return dict.fromkeys(_SIZES, _DRAWS) | more


@final
@dataclass
class _Single:
    """What one example gave by itself: its outputs, and the loss' coefficients for them."""

    outputs: list[Tensor]
    coefficients: list[Tensor]


@final
@dataclass
class _Expected:
    """Sums of the gradients with random weights, for each group and example, of a grouping."""

    groups: list[list[str]]
    weights: Tensor
    sums: dict[str, Tensor]

    def add(self, row: int, gradients: dict[str, Tensor]) -> None:
        """Add the gradients of one example."""
        for weights, group in zip(self.weights.double(), self.groups, strict=True):
            for name in group:
                self.sums[name].add_(gradients[name], alpha=float(weights[row]))


@final
class _Trial:
    """One made-up batch, and norms and sums of the gradients of its examples one by one."""

    def __init__(
        self, subject: Subject, size: int, groupings: list[list[list[str]]], *, seed: int
    ) -> None:
        self._subject = subject
        self._size = size
        self._generator = torch.Generator().manual_seed(seed)
        self._batch = draw(subject.description, rows=size, seed=seed, double=subject.double)
        named = subject.trainable()
        kind = next(iter(named.values())).dtype
        self._expected = [
            _Expected(
                groups,
                self._uniform((len(groups), size)).to(kind),
                {name: torch.zeros_like(p, dtype=torch.float64) for name, p in named.items()},
            )
            for groups in groupings
        ]
        self._norms: dict[str, list[float]] = {name: [] for name in named}
        self._largest = 0.0
        self._singles = [self._run_alone(row) for row in range(size)]

    def _run_alone(self, row: int) -> _Single:
        batch: Batch = take(self._subject.description, self._batch, [row])
        try:
            outputs = self._subject.run(batch).outputs
        except DiscreetError:
            raise
        except (RuntimeError, ValueError, IndexError) as error:
            raise NotApplicable(
                "the model cannot run one example by itself, so examples have no gradients of "
                f"their own; does a module mix them? {error}"
            ) from error
        coefficients = [self._uniform(one.shape).sub_(0.5).to(one.dtype) for one in outputs]
        parameters = self._subject.trainable()
        losses = [
            (weights * one).sum().double()
            for weights, one in zip(coefficients, outputs, strict=True)
            if one.requires_grad
        ]
        if not losses:
            raise NotApplicable(
                "no output of the model depends on its trainable parameters in a way that can be "
                "differentiated, so whose gradient is whose cannot be tried out"
            )
        found = torch.autograd.grad(
            torch.stack(losses).sum(),
            list(parameters.values()),
            allow_unused=True,
            materialize_grads=True,
        )
        gradients = {
            name: one.to_dense().double() for name, one in zip(parameters, found, strict=True)
        }
        for name, gradient in gradients.items():
            self._norms[name].append(float(gradient.square().sum()))
            self._largest = max(self._largest, size_of(gradient))
        for expected in self._expected:
            expected.add(row, gradients)
        return _Single([one.detach() for one in outputs], coefficients)

    def _uniform(self, shape: Sequence[int]) -> Tensor:
        return torch.empty(shape, dtype=torch.float64).uniform_(generator=self._generator)

    def judge(self, batch_axis: int | None) -> None:
        """Compare the engine with the examples one by one."""
        for expected in self._expected:
            self._judge(expected, batch_axis)

    def _judge(self, expected: _Expected, batch_axis: int | None) -> None:
        model = self._subject.fresh()
        engine = GradientEngine(model, groups=expected.groups, batch_axis=batch_axis)
        try:
            with engine.recording(self._size):
                self._loss(self._subject.run(self._batch, model=model).outputs).backward()  # type: ignore[no-untyped-call]
                norms = engine.squared_norms()
                sums = engine.clipped_sum(expected.weights)
        except InvalidValue as error:
            raise NotApplicable(
                f"in a made-up batch of {self._size} examples it cannot be told which rows belong "
                f"to which example: {error}"
            ) from error
        finally:
            engine.detach()
        self._compare_norms(expected.groups, norms)
        self._compare_sums(expected, sums)

    def _loss(self, outputs: list[Tensor]) -> Tensor:
        """The sum of all examples' losses, each from its own part of the outputs."""
        total = torch.zeros((), dtype=torch.float64)
        found = False
        for at, whole in enumerate(outputs):
            if not whole.requires_grad:
                continue
            reading = self._reading(at, whole)
            if reading is None:
                continue
            found = True
            for row, single in enumerate(self._singles):
                part = reading.part(whole, row, self._size)
                weights = reading.part(single.coefficients[at], 0, 1)
                total = total + (weights * part).sum()
        if not found:
            raise NotApplicable(
                "no output of the model has an axis that follows the number of examples, so whose "
                "gradient is whose cannot be tried out"
            )
        return total

    def _reading(self, at: int, whole: Tensor) -> Reading | None:
        """Find which part of an output belongs to which example, by its values."""
        small = self._singles[0].outputs[at]
        candidates = readings(whole, small, (self._size, 1))
        for reading in candidates:
            if all(
                close(
                    reading.part(whole.detach(), row, self._size),
                    reading.part(single.outputs[at], 0, 1),
                    scale=size_of(whole),
                    tolerance=self._subject.coarse,
                )
                for row, single in enumerate(self._singles)
            ):
                return reading
        if candidates or whole.shape != small.shape:
            raise NotApplicable(
                "an example's output in a batch is not its output by itself, so it has no "
                "gradient of its own; dpsgd.check_isolation says which module mixes examples"
            )
        return None

    def _compare_norms(self, groups: list[list[str]], norms: Tensor) -> None:
        expected = torch.tensor(
            [
                [sum(self._norms[name][row] for name in group) for row in range(self._size)]
                for group in groups
            ],
            dtype=torch.float64,
        )
        floor = 1e-6 * float(expected.max())
        for group, given, right in zip(groups, norms.double(), expected, strict=True):
            scale = max(float(right.max()), floor)
            # One that is too large is safe: its example is clipped more than it need be.
            if bool((given >= right - self._tolerance * scale).all()):
                continue
            heard = bool((given > self._tolerance * scale).any())
            raise self._wrong(group) if heard else self._refuse_unheard(group)

    def _compare_sums(self, expected: _Expected, sums: dict[str, Tensor]) -> None:
        for name, right in expected.sums.items():
            scale = max(size_of(right), 1e-3 * self._largest)
            given = sums[name].double()
            if not close(given, right, scale=scale, tolerance=self._tolerance):
                heard = size_of(given) > self._tolerance * scale
                raise self._wrong([name]) if heard else self._refuse_unheard([name])

    @property
    def _tolerance(self) -> float:
        return 1e-6 if self._subject.double else 1e-2

    def _name_group(self, group: Sequence[str]) -> str:
        named = group[0] if len(group) == 1 else f"one of {', '.join(group)}"
        owner = group[0].rpartition(".")[0] if len(group) == 1 else ""
        return named + (f" (in {owner}, a {self._kind(owner)})" if owner else "")

    def _refuse_unheard(self, group: Sequence[str]) -> NotApplicable:
        return NotApplicable(
            f"{self._name_group(group)}: in a made-up batch of {self._size} examples, no gradient "
            "of it was heard, though it has one: something changes what it computed, or uses it, "
            "where that cannot be seen (in place through .data, in an operation of its own)"
        )

    def _wrong(self, group: Sequence[str]) -> NotApplicable:
        return NotApplicable(
            f"{self._name_group(group)}: in a made-up batch of {self._size} examples, its "
            "gradients are given to the wrong examples, because the model folds, stacks or "
            "reorders its examples before this parameter is used; keep the examples along the "
            "first axis, each in its place (reshape to (examples, ...) first, not (time, "
            "examples, ...))"
        )

    def _kind(self, owner: str) -> str:
        return type(self._subject.prototype.get_submodule(owner)).__name__


@final
class SecondLook:
    """Tries a model out again, in the state that it is in: three made-up examples."""

    def __init__(self, model: nn.Module, inputs: Any, *, batch_axis: int | None) -> None:
        self._model = model
        self._description = describe(inputs, None)
        self._batch_axis = batch_axis

    def __call__(self) -> bool:
        """Raise if the model mixes or reorders its examples now; whether it could be tried out."""
        try:
            subject = copy_for_probing(
                self._model, loss=None, description=self._description, as_it_is=True
            )
        except (InvalidValue, NotApplicable, *_ERRORS):
            return False  # it holds what cannot be copied, or takes no made-up inputs now
        if not any(module.training for module in subject.prototype.modules()):
            subject.prototype.train()
        self._description = subject.description
        groupings = [[[name] for name in subject.trainable()]]
        with _quiet(), torch.enable_grad():
            try:
                seed = secrets.randbelow(1 << 31)
                _try_out(subject, 3, groupings, seed, self._batch_axis)
            except NotApplicable as error:
                raise PlanViolation(
                    "the model treats its examples otherwise than when it was tried out before the "
                    f"first step: {error}"
                ) from None
            except _ERRORS:
                return False
        return True


_ANSWERS = ("label", "labels", "target", "targets", "label_ids", "start_positions", "end_positions")


def inputs_like(
    model: nn.Module, data: Any, inputs_of: Callable[[list[Tensor]], Any] | None
) -> Any:
    """The shapes of what the model is given, from a batch of which no value is read.

    Of a batch with names, what ``forward`` takes and what is no label; of a sequence as many
    tensors as ``forward`` must be given.
    """
    taken = signature(model.forward).parameters.values()
    if isinstance(data, Mapping):
        anything = any(one.kind is one.VAR_KEYWORD for one in taken)
        names = {one.name for one in taken}
        named = {
            str(name): value
            for name, value in data.items()
            if (anything or name in names) and name not in _ANSWERS
        }
        shapes = template_of(list(named.values()))
        if named and shapes is not None:
            return {
                name: _describe_tensor(name, one) for name, one in zip(named, shapes, strict=True)
            }
    parts = template_of(data)
    if parts is None:
        raise InvalidValue(
            "inputs",
            None,
            "a description of the model's inputs for the isolation check, because the batches "
            "are neither plain tensors nor named as forward takes them (or isolation='vouched')",
        )
    if inputs_of is not None:
        return inputs_of(parts)
    needed = sum(
        one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) and one.default is one.empty
        for one in taken
    )
    return tuple(parts[: max(needed, 1)])


def _describe_tensor(name: str, shape: Tensor) -> TensorSpec:
    spec = TensorSpec.like(shape)
    is_flag = "mask" in name and not spec.dtype.is_floating_point and spec.dtype != torch.bool
    return replace(spec, values=2) if is_flag else spec


def probe(
    model: nn.Module,
    inputs: Any,
    *,
    targets: Any = None,
    loss: Callable[..., Tensor] | None = None,
    groups: Sequence[Sequence[str]] | None = None,
    batch_axis: int | None = None,
    plan: Plan | None = None,
) -> frozenset[str]:
    """Refuse a model that mixes examples, or whose gradients the engine would mistake.

    The answer names the buffers that a training pass changes in a way that does not depend on
    the examples.
    """
    try:
        report = check_isolation(model, inputs=inputs, targets=targets, loss=loss)
        if report.ok:
            phases = () if plan is None else plan.phases
            sizes = [round(phase.expected_batch_size) for phase in phases]
            verify_attribution(
                model, inputs, groups=groups, batch_axis=batch_axis, batch_sizes=sizes
            )
    except RuntimeError as error:
        # Either variant fails in words of torch's own, which advise to use the other one.
        if "torch.utils.checkpoint" in str(error):
            raise PlanViolation(CHECKPOINTED) from error
        raise
    except (InvalidValue, NotApplicable) as error:
        error.add_note(
            "the probes could not run the model, or failed: describe its inputs by inputs=, or "
            "vouch for it by isolation='vouched'"
        )
        raise
    if not report.ok:
        raise PlanViolation(report.explain())
    return frozenset(report.writes)
