"""The model under the probe: a private copy, in double precision, run from a fixed state.

The copy's parameters are moved a little. Isolation is a property of the code, not of the
weights, and weights that start at zero (the last scale of a residual block, the second factor
of an adapter) would hide a module that mixes examples as soon as training moves them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from discreet.errors import InvalidValue, NotApplicable
from discreet.learn.dpsgd.isolation.made_up import Batch, Description, draw
from discreet.learn.dpsgd.isolation.parts import close, exchanged, size_of, tensors

__all__ = ["Outcome", "Shaken", "Subject", "prepared", "shaken_copies", "still"]

_SEED = 20_240_229
_PLAIN = frozenset(vars(nn.Module()))
_REFUSALS = (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError)

Loss = Callable[..., Any]


@final
@dataclass
class Outcome:
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

    def run(
        self,
        batch: Batch,
        *,
        model: nn.Module | None = None,
        graph: bool = True,
    ) -> Outcome:
        """Run one batch, on a fresh copy unless ``model`` is given, with the fixed seed.

        Random draws are replaced by constants: equal seeds give equal dropout masks only to
        batches of equal shape and order, and not even then if how many numbers an example
        draws depends on its values. A dependence that vanishes with the draws is none.
        """
        model = self.fresh() if model is None else model
        positional, named, targets = _cloned(batch)
        with still(), torch.set_grad_enabled(graph):
            output = model(*positional, **named)
            loss = None if self.loss is None else self.loss(output, *targets)
        if loss is not None and not isinstance(loss, torch.Tensor):
            raise InvalidValue("loss", self.loss, f"a function that returns a tensor, got {loss!r}")
        return Outcome(list(tensors(output)), loss)

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
        with _StillRandomness():  # type: ignore[no-untyped-call]
            yield


class Shaken(NamedTuple):
    """A copy of a model with parameters that were moved, in training mode."""

    model: nn.Module
    tolerance: float

    def cast(self, batch: Any) -> Any:
        """A batch in the precision of the copy."""
        kind = next(self.model.parameters()).dtype

        def moved(one: torch.Tensor) -> torch.Tensor:
            return one.to("cpu", kind) if one.is_floating_point() else one.cpu()

        return exchanged(batch, moved)


def shaken_copies(model: nn.Module, *, double: bool, copies: int = 3) -> Iterator[Shaken]:
    """Copies of a model, each with its parameters moved otherwise."""
    for seed in range(copies):
        copied = copy.deepcopy(model).cpu().train()
        copied = copied.double() if double else copied
        _shake(copied, seed=seed)
        yield Shaken(copied, 1e-5 if double else 1e-3)


def prepared(model: nn.Module, *, loss: Loss | None, description: Description) -> Subject:
    """Copy ``model`` for probing and find value ranges that it accepts."""
    try:
        prototype = copy.deepcopy(model).to("cpu")
    except (RuntimeError, TypeError, NotImplementedError, AttributeError) as error:
        raise NotApplicable(
            f"the model cannot be copied, so it cannot be probed without touching it: {error}"
        ) from error
    # Not the modes that it is in: loops call train(), and what is frozen by eval() thaws then.
    prototype.train()
    _shake(prototype)
    failures = []
    for double in (True, False):
        changed = copy.deepcopy(prototype).double() if double else prototype
        subject = Subject(changed, _copied(loss, double), description, double)
        try:
            return _with_ranges(subject)
        except _REFUSALS as error:
            failures.append(error)
    raise InvalidValue(
        "inputs", description, f"examples that the model and the loss accept: {failures[-1]}"
    ) from failures[-1]


def _copied(loss: Loss | None, double: bool) -> Loss | None:
    if not isinstance(loss, nn.Module):
        return loss
    copied = copy.deepcopy(loss).to("cpu")
    return copied.double() if double else copied


def _shake(model: nn.Module, *, seed: int = 0) -> None:
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


def _cloned(batch: Batch) -> Batch:
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


def same(one: list[torch.Tensor], other: list[torch.Tensor], tolerance: float) -> bool:
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
