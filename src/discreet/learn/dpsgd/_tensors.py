"""Which part of a tensor belongs to which example.

Nobody tells the probe where the batch is in a tensor somewhere inside a model. It finds out by
running two batch sizes: the axis whose length follows the batch is the one. Where it is a
multiple of the batch (``(batch * time, features)``), both orders are possible readings, and the
probe keeps every reading under which the examples do not touch each other.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, final

import numpy as np
import torch
from torch.utils import _pytree as pytree

_DEPTH = 6


@final
@dataclass(frozen=True)
class Reading:
    """The batch is on ``axis``; if several entries belong to an example, in which order."""

    axis: int
    together: bool = True

    def part(self, whole: torch.Tensor, row: int, rows: int) -> torch.Tensor:
        """The view of ``whole`` that belongs to example ``row`` of ``rows``."""
        each = whole.shape[self.axis] // rows
        sizes = (rows, each) if self.together else (each, rows)
        split = torch.unflatten(whole, self.axis, sizes)
        return split.select(self.axis if self.together else self.axis + 1, row)


def readings(large: torch.Tensor, small: torch.Tensor, rows: tuple[int, int]) -> list[Reading]:
    """All readings that explain the shapes of one tensor at two batch sizes.

    >>> readings(torch.zeros(5, 2), torch.zeros(3, 2), (5, 3))
    [Reading(axis=0, together=True)]
    >>> readings(torch.zeros(4), torch.zeros(4), (5, 3))
    []
    """
    found: list[Reading] = []
    if large.dim() != small.dim():
        return found
    for axis, (one, other) in enumerate(zip(large.shape, small.shape, strict=True)):
        each, rest = divmod(one, rows[0])
        if one != other and rest == 0 and other == each * rows[1]:
            found += [Reading(axis)] if each == 1 else [Reading(axis), Reading(axis, False)]
    return found


def close(one: torch.Tensor, other: torch.Tensor, *, scale: float, tolerance: float) -> bool:
    """Whether two tensors agree up to rounding, NaN and infinities included."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if torch.equal(one, other):
        return True
    if not (one.is_floating_point() or one.is_complex()):
        return False
    if float((one - other).detach().abs().max()) <= tolerance * scale:
        return True
    return torch.allclose(one, other, rtol=0.0, atol=tolerance * scale, equal_nan=True)


def size_of(values: torch.Tensor) -> float:
    """The largest finite magnitude in a tensor, at least a tiny number."""
    if not values.is_floating_point() and not values.is_complex():
        return 1.0
    magnitudes = values.detach().abs()
    largest = float(magnitudes.max()) if magnitudes.numel() else 0.0
    if not math.isfinite(largest):
        magnitudes = magnitudes[magnitudes.isfinite()]
        largest = float(magnitudes.max()) if magnitudes.numel() else 1.0
    return max(largest, 1e-30)


def tensors(value: object, depth: int = 0) -> Iterator[torch.Tensor]:
    """All tensors and numbers in a nested structure, in a fixed order.

    Numbers count as tensors: a loss that was read with ``.item()`` depends on the batch too.
    """
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, bool | int | float | np.ndarray | np.generic):
        yield torch.as_tensor(value)
    elif depth < _DEPTH:
        for item in _items(value):
            yield from tensors(item, depth + 1)


def _items(value: object) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, str | bytes | type | torch.nn.Module) or callable(value):
        return []
    if is_dataclass(value):
        return [getattr(value, field.name) for field in fields(value)]
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if isinstance(value, list | tuple | deque):
        return list(value)
    return list(vars(value).values()) if hasattr(value, "__dict__") else []


def exchange_tensors(
    value: Any, change: Callable[[torch.Tensor], torch.Tensor], depth: int = 0
) -> Any:
    """The same structure with every tensor replaced by ``change(tensor)``.

    Containers are made anew. Dataclasses and other objects that hold tensors as attributes are
    copied, so that whoever else holds them keeps them as they were. What cannot be opened or
    copied comes back as it is.

    >>> exchange_tensors({"scores": torch.ones(2)}, lambda one: one + 1)
    {'scores': tensor([2., 2.])}
    """

    def opened(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return change(leaf)
        return leaf if depth >= _DEPTH else _exchange_in_object(leaf, change, depth + 1)

    return pytree.tree_map(opened, value)


def leaves_of(value: Any) -> list[torch.Tensor]:
    """The tensors in a structure, without numbers, in the order of :func:`exchange_tensors`."""
    found: list[torch.Tensor] = []

    def noted(one: torch.Tensor) -> torch.Tensor:
        found.append(one)
        return one

    exchange_tensors(value, noted)
    return found


def _exchange_in_object(value: Any, change: Callable[..., torch.Tensor], depth: int) -> Any:
    if isinstance(value, str | bytes | type | torch.nn.Module) or callable(value):
        return value
    found = False

    def noted(one: torch.Tensor) -> torch.Tensor:
        nonlocal found
        found = True
        return change(one)

    items: Any = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list | deque):
        items = enumerate(value)
    new_items = [(key, exchange_tensors(one, noted, depth)) for key, one in items]
    names = [name for kind in type(value).__mro__ for name in kind.__dict__.get("__slots__", ())]
    held = {name: getattr(value, name) for name in names if hasattr(value, name)}
    held |= getattr(value, "__dict__", {})
    new_held = [(name, exchange_tensors(one, noted, depth)) for name, one in held.items()]
    if not found:
        return value
    try:
        made = copy.copy(value)
        for key, one in new_items:
            made[key] = one
        for name, one in new_held:
            object.__setattr__(made, name, one)
    except (TypeError, AttributeError):
        return value
    return made
