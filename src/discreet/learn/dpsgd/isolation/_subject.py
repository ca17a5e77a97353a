"""The model under the probe: a private copy, in double precision, run from a fixed state.

The copy's parameters are moved a little. Isolation is a property of the code, not of the
weights, and weights that start at zero (the last scale of a residual block, the second factor
of an adapter) would hide a module that mixes examples as soon as training moves them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, final

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable
from discreet.learn.dpsgd._checkpointing import watch_checkpoints
from discreet.learn.dpsgd._tensors import close, exchange_tensors, size_of, tensors

# One batch: the positional and the keyword arguments of the model, then the targets.
Batch = tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor], tuple[torch.Tensor, ...]]


@final
@dataclass(frozen=True)
class TensorSpec:
    """The public description of one example's tensor.

    ``shape`` is that of a single example, without the batch. ``values`` is the number of
    different integers that an integer tensor may hold (the vocabulary, the classes); without it
    the probe takes the largest power of two up to 1024 that the model accepts. Made-up floats
    lie between ``low`` and ``high``. ``batch_dim`` is where the batch goes: 0, or 1 for
    ``(time, batch, features)``.

    >>> TensorSpec((3, 32, 32))
    TensorSpec(shape=(3, 32, 32), dtype=torch.float32, values=None, low=-1.0, high=1.0, batch_dim=0)
    >>> TensorSpec.like(torch.zeros(7, 5, dtype=torch.int64)).shape
    (5,)
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    values: int | None = None
    low: float = -1.0
    high: float = 1.0
    batch_dim: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.shape, tuple):
            raise InvalidValue("shape", self.shape, "a tuple of sizes, such as (3, 32, 32) or ()")
        for size in self.shape:
            _validate.integer("shape", size, at_least=1)
        dtype: object = self.dtype
        if not isinstance(dtype, torch.dtype) or dtype.is_complex:
            raise InvalidValue("dtype", dtype, "a real, integer or boolean torch dtype")
        if self.values is not None:
            _validate.integer("values", self.values, at_least=2)
            if self.dtype.is_floating_point:
                raise InvalidValue("values", self.values, f"None for {self.dtype}")
        low = _validate.real("low", self.low)
        _validate.real("high", self.high, above=low)
        _validate.integer("batch_dim", self.batch_dim, at_least=0, at_most=len(self.shape))

    @classmethod
    def like(cls, batch: torch.Tensor, *, batch_dim: int = 0) -> TensorSpec:
        """Return the description of the examples of a batch: shape and type, no values."""
        if batch.dim() <= batch_dim:
            raise InvalidValue("batch", tuple(batch.shape), "a tensor with a batch dimension")
        shape = batch.shape[:batch_dim] + batch.shape[batch_dim + 1 :]
        return cls(tuple(shape), dtype=batch.dtype, batch_dim=batch_dim)


@final
@dataclass(frozen=True)
class Description:
    """What a batch consists of: specs in the places where the tensors go."""

    positional: tuple[TensorSpec, ...]
    named: Mapping[str, TensorSpec]
    targets: tuple[TensorSpec, ...]

    def specs(self) -> list[TensorSpec]:
        """All specs in a fixed order."""
        return [*self.positional, *self.named.values(), *self.targets]

    def rebuild(self, items: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any], tuple[Any, ...]]:
        """Put one item for each spec, in the order of :meth:`specs`, into its place."""
        first, last = len(self.positional), len(self.positional) + len(self.named)
        named = dict(zip(self.named, items[first:last], strict=True))
        return tuple(items[:first]), named, tuple(items[last:])

    def with_values(self, index: int, values: int) -> Description:
        """The same description with another range for one integer tensor."""
        specs: list[Any] = list(self.specs())
        specs[index] = replace(specs[index], values=values)
        return Description(*self.rebuild(specs))


def describe(inputs: object, targets: object) -> Description:
    """Read the ``inputs`` and ``targets`` arguments of the probe."""
    named: dict[str, TensorSpec] = {}
    positional: tuple[TensorSpec, ...] = ()
    if isinstance(inputs, Mapping):
        named = {str(key): _spec("inputs", value) for key, value in inputs.items()}
    else:
        positional = _specs("inputs", inputs)
    if not named and not positional:
        raise InvalidValue("inputs", inputs, "at least one tensor description")
    return Description(positional, named, () if targets is None else _specs("targets", targets))


def _specs(argument: str, given: object) -> tuple[TensorSpec, ...]:
    items = given if isinstance(given, tuple | list) else (given,)
    return tuple(_spec(argument, item) for item in items)


def _spec(argument: str, given: object) -> TensorSpec:
    if isinstance(given, TensorSpec):
        return given
    if isinstance(given, torch.Tensor):
        return TensorSpec.like(given)
    expected = "a TensorSpec or a batch whose shape to take, or a tuple or dict of them"
    raise InvalidValue(argument, given, expected)


def draw(description: Description, *, rows: int, seed: int, double: bool) -> Batch:
    """Invent a batch of ``rows`` examples; equal seeds give equal batches."""
    generator = torch.Generator().manual_seed(seed)
    tensors = [_draw_one(spec, rows, generator, double) for spec in description.specs()]
    return description.rebuild(tensors)


def _draw_one(
    spec: TensorSpec, rows: int, generator: torch.Generator, double: bool
) -> torch.Tensor:
    shape = (*spec.shape[: spec.batch_dim], rows, *spec.shape[spec.batch_dim :])
    uniform = torch.empty(shape, dtype=torch.float64).uniform_(generator=generator)
    if spec.dtype.is_floating_point:
        values = spec.low + (spec.high - spec.low) * uniform
        return values if double else values.to(spec.dtype)
    if spec.dtype == torch.bool:
        # Mostly False: as a mask, True everywhere would hide all there is to see.
        return uniform > 0.75
    return (uniform * (spec.values or 2)).floor().to(spec.dtype)


def take(description: Description, batch: Batch, rows: list[int]) -> Batch:
    """The batch that consists of the named rows, in that order."""
    return _change_each(
        description, lambda spec, one: one.index_select(spec.batch_dim, _index(rows))
    )(batch)


def join(description: Description, keep: Batch, row: int, others: Batch) -> Batch:
    """``others`` with its row number ``row`` taken from ``keep``."""

    def joined(spec: TensorSpec, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        result = other.clone()
        result.select(spec.batch_dim, row).copy_(one.select(spec.batch_dim, row))
        return result

    return _change_each(description, joined)(keep, others)


def floats(description: Description, batch: Batch, change: Callable[[torch.Tensor], Any]) -> Batch:
    """The batch with ``change`` applied to its floating-point tensors."""
    return _change_each(
        description, lambda _, one: change(one) if one.is_floating_point() else one
    )(batch)


def _index(rows: list[int]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int64)


def _change_each(
    description: Description, change: Callable[..., torch.Tensor]
) -> Callable[..., Batch]:
    def apply(*batches: Batch) -> Batch:
        columns = [[*one[0], *one[1].values(), *one[2]] for one in batches]
        tensors = [change(*row) for row in zip(description.specs(), *columns, strict=True)]
        return description.rebuild(tensors)

    return apply


_SEED = 20_240_229
# Models with more parameters are probed in their own precision, which takes a third of the memory.
LARGEST_DOUBLE = 10_000_000
_PLAIN = frozenset(vars(nn.Module()))
_REFUSALS = (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError)

Loss = Callable[..., Any]


@final
@dataclass
class RunOutcome:
    """What one run gave: the model's tensors, and the loss' if there is one."""

    outputs: list[torch.Tensor]
    loss: torch.Tensor | None = None

    @property
    def per_example(self) -> list[torch.Tensor]:
        """The tensors to judge: the loss of each example, else the outputs."""
        if self.loss is not None and self.loss.dim() > 0:
            return [self.loss]
        return self.outputs


@final
@dataclass
class Subject:
    """A copy of a model that can be run again and again from the same state."""

    prototype: nn.Module
    loss: Loss | None
    description: Description
    double: bool

    def fresh(self) -> nn.Module:
        """A copy with its own buffers and attributes; the parameters are shared."""
        shared: dict[int, Any] = {id(one): one for one in self.prototype.parameters()}
        return copy.deepcopy(self.prototype, shared)

    def in_double(self) -> Subject | None:
        """The same in double precision, or None if it is that already or does not run there."""
        if self.double:
            return None
        exact = copy.deepcopy(self.prototype).double()
        subject = Subject(exact, _copy_loss(self.loss, True), self.description, double=True)
        try:
            return _with_ranges(subject)
        except _REFUSALS:
            return None

    def run(
        self,
        batch: Batch,
        *,
        model: nn.Module | None = None,
        graph: bool = True,
    ) -> RunOutcome:
        """Run one batch, on a fresh copy unless ``model`` is given, with the fixed seed.

        Random draws are replaced by constants: equal seeds give equal dropout masks only to
        batches of equal shape and order, and not even then if how many numbers an example
        draws depends on its values. A dependence that vanishes with the draws is none.
        """
        model = self.fresh() if model is None else model
        positional, named, targets = _clone(batch)
        with still(), torch.set_grad_enabled(graph):
            output = model(*positional, **named)
            loss = None if self.loss is None else self.loss(output, *targets)
        if loss is not None and not isinstance(loss, torch.Tensor):
            raise InvalidValue("loss", self.loss, f"a function that returns a tensor, got {loss!r}")
        return RunOutcome(list(tensors(output)), loss)

    def trainable(self) -> dict[str, nn.Parameter]:
        """The parameters that training would move."""
        return {name: one for name, one in self.prototype.named_parameters() if one.requires_grad}

    @property
    def fine(self) -> float:
        """Tolerance between runs of one shape.

        Equal shapes take equal kernels, which treat a row in the same order whatever is in
        the others, so these runs usually agree to the last bit.
        """
        return 1e-10 if self.double else 1e-5

    @property
    def coarse(self) -> float:
        """Tolerance between runs of different shapes or orders.

        Another shape may take another kernel, and a model may round to single precision
        inside; a dependence on the batch size or order is of relative size 1/batch.
        """
        return 1e-5 if self.double else 1e-3


@contextmanager
def still() -> Iterator[None]:
    """Inside, torch draws constants, and its generators are as they were afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        with _StillRandomness(), watch_checkpoints("draws", _still_again):  # type: ignore[no-untyped-call]
            yield


def _still_again() -> tuple[Any, Any]:
    return nullcontext(), _StillRandomness()  # type: ignore[no-untyped-call]


class Shaken(NamedTuple):
    """A copy of a model with parameters that were moved, in training mode."""

    model: nn.Module
    tolerance: float

    def cast(self, batch: Any) -> Any:
        """A batch in the precision of the copy."""
        kind = next(self.model.parameters()).dtype

        def move(one: torch.Tensor) -> torch.Tensor:
            return one.to("cpu", kind) if one.is_floating_point() else one.cpu()

        return exchange_tensors(batch, move)


def shaken_copies(model: nn.Module, *, double: bool, copies: int = 3) -> Iterator[Shaken]:
    """Copies of a model, each with its parameters moved otherwise."""
    for seed in range(copies):
        copied = copy.deepcopy(model).cpu().train()
        copied = copied.double() if double else copied
        perturb_weights(copied, seed=seed)
        yield Shaken(copied, 1e-5 if double else 1e-3)


def copy_for_probing(
    model: nn.Module, *, loss: Loss | None, description: Description, as_it_is: bool = False
) -> Subject:
    """Copy ``model`` for probing and find value ranges that it accepts.

    It is probed in training mode, or ``as_it_is``; in double precision if that is possible and
    does not take much memory.
    """
    try:
        prototype = copy.deepcopy(model).to("cpu")
    except (RuntimeError, TypeError, NotImplementedError, AttributeError) as error:
        raise NotApplicable(
            f"the model cannot be copied, so it cannot be probed without touching it: {error}"
        ) from error
    if not as_it_is:
        # Loops call train(), and what is frozen by eval() thaws then.
        prototype.train()
    perturb_weights(prototype)
    failures = []
    is_large = sum(one.numel() for one in model.parameters()) > LARGEST_DOUBLE
    for double in (False,) if is_large else (True, False):
        changed = copy.deepcopy(prototype).double() if double else prototype
        subject = Subject(changed, _copy_loss(loss, double), description, double)
        try:
            return _with_ranges(subject)
        except _REFUSALS as error:
            failures.append(error)
    raise InvalidValue(
        "inputs", description, f"examples that the model and the loss accept: {failures[-1]}"
    ) from failures[-1]


def _copy_loss(loss: Loss | None, double: bool) -> Loss | None:
    if not isinstance(loss, nn.Module):
        return loss
    copied = copy.deepcopy(loss).to("cpu")
    return copied.double() if double else copied


def perturb_weights(model: nn.Module, *, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(_SEED + seed)
    with torch.no_grad():
        for one in model.parameters():
            if one.is_floating_point() and one.numel():
                typical = float(one.detach().double().square().mean().sqrt())
                step = torch.empty(one.shape, dtype=torch.float64).uniform_(
                    -1.0, 1.0, generator=generator
                )
                one.add_(step.to(one.dtype) * max(0.1 * typical, 0.05))


def _with_ranges(subject: Subject) -> Subject:
    """Fix the number of values of every integer tensor that does not declare it."""
    description = subject.description
    for index, spec in enumerate(description.specs()):
        if spec.dtype.is_floating_point or spec.dtype == torch.bool or spec.values is not None:
            continue
        for values in (1024 >> shift for shift in range(10)):
            trial = description.with_values(index, values)
            # The largest value must occur, or the trial would prove nothing.
            batch = draw(trial, rows=5, seed=_SEED, double=subject.double)
            _flat(batch)[index].reshape(-1)[0] = values - 1
            try:
                subject.run(batch)
            except _REFUSALS:
                if values == 2:
                    raise
                continue
            description = trial
            break
    subject.description = description
    subject.run(draw(description, rows=5, seed=_SEED, double=subject.double))
    return subject


def _flat(batch: Batch) -> list[torch.Tensor]:
    return [*batch[0], *batch[1].values(), *batch[2]]


def _clone(batch: Batch) -> Batch:
    # Modules may write into their input; the next run needs the batch as it was.
    return (
        tuple(one.clone() for one in batch[0]),
        {name: one.clone() for name, one in batch[1].items()},
        tuple(one.clone() for one in batch[2]),
    )


def state_of(model: nn.Module) -> dict[tuple[str, str], list[torch.Tensor]]:
    """Whatever a model holds beside its parameters: buffers and attributes, by module."""
    found: dict[tuple[str, str], list[torch.Tensor]] = {}
    for name, module in model.named_modules():
        for key, buffer in module.named_buffers(recurse=False):
            found[name, key] = [buffer.detach().clone()]
        for key, value in vars(module).items():
            if key not in _PLAIN:
                found[name, key] = [one.detach().clone() for one in tensors(value)]
    return found


def agree(one: list[torch.Tensor], other: list[torch.Tensor], tolerance: float) -> bool:
    """Whether two lists of tensors agree."""
    return len(one) == len(other) and all(
        close(a, b, scale=size_of(a), tolerance=tolerance) for a, b in zip(one, other, strict=True)
    )


_CONSTANT = frozenset(
    {
        "aten::bernoulli_",
        "aten::cauchy_",
        "aten::exponential_",
        "aten::geometric_",
        "aten::log_normal_",
        "aten::normal_",
        "aten::rand",
        "aten::rand_like",
        "aten::randn",
        "aten::randn_like",
        "aten::uniform_",
    }
)


# Not one half: what is multiplied by (draw - 1/2) must not vanish.
_DRAW = 0.3719


class _StillRandomness(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's hook
    """Random draws return one constant, so that dropout keeps everything.

    Operations that mix draws with their input return what they would on average; those that
    are not known here are left alone, and draw from the fixed seed.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func._schema.name
        if name in ("aten::bernoulli", "aten::poisson"):
            return args[0].clone()
        if name == "aten::rrelu_with_noise":
            values, noise, lower, upper = args[:4]
            noise.copy_(torch.where(values > 0, 1.0, 0.5 * (float(lower) + float(upper))))
            return values * noise
        result = func(*args, **(kwargs or {}))
        if name == "aten::native_dropout":
            return args[0].clone(), torch.ones_like(result[1])
        if name in _CONSTANT and isinstance(result, torch.Tensor) and result.is_floating_point():
            result.fill_(_DRAW)
        return result
