"""Made-up batches: tensors of a declared shape that were never anybody's data.

The isolation probe must not look at private examples, so it is told what an example looks
like and invents some. The draws come from a fixed seed of their own: they are public, and
two runs of the probe see the same batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import torch

from discreet import _validate
from discreet.errors import InvalidValue

__all__ = ["Batch", "TensorSpec", "describe", "draw", "join", "take"]

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

    def rebuilt(self, items: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any], tuple[Any, ...]]:
        """Put one item for each spec, in the order of :meth:`specs`, into its place."""
        first, last = len(self.positional), len(self.positional) + len(self.named)
        named = dict(zip(self.named, items[first:last], strict=True))
        return tuple(items[:first]), named, tuple(items[last:])

    def with_values(self, index: int, values: int) -> Description:
        """The same description with another range for one integer tensor."""
        specs: list[Any] = list(self.specs())
        specs[index] = replace(specs[index], values=values)
        return Description(*self.rebuilt(specs))


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
    return description.rebuilt(tensors)


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
    return _each(description, lambda spec, one: one.index_select(spec.batch_dim, _index(rows)))(
        batch
    )


def join(description: Description, keep: Batch, row: int, others: Batch) -> Batch:
    """``others`` with its row number ``row`` taken from ``keep``."""

    def joined(spec: TensorSpec, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        result = other.clone()
        result.select(spec.batch_dim, row).copy_(one.select(spec.batch_dim, row))
        return result

    return _each(description, joined)(keep, others)


def floats(description: Description, batch: Batch, change: Callable[[torch.Tensor], Any]) -> Batch:
    """The batch with ``change`` applied to its floating-point tensors."""
    return _each(description, lambda _, one: change(one) if one.is_floating_point() else one)(batch)


def _index(rows: list[int]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int64)


def _each(description: Description, change: Callable[..., torch.Tensor]) -> Callable[..., Batch]:
    def applied(*batches: Batch) -> Batch:
        columns = [[*one[0], *one[1].values(), *one[2]] for one in batches]
        tensors = [change(*row) for row in zip(description.specs(), *columns, strict=True)]
        return description.rebuilt(tensors)

    return applied
