"""Many small networks at once: teachers whose parameters are stacked and trained together.

Every step takes a batch of public size from each teacher's records, with replacement, so that
no shape depends on how many records anyone has; groups are filled up to a fixed size. All
operations act on each network by itself.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from discreet import _validate
from discreet.errors import InvalidValue
from discreet.pate._teacher_task import own_generators

if TYPE_CHECKING:
    from numpy.typing import NDArray


_QUERIES_AT_ONCE = 512
_DECAYS = (0.9, 0.999)


@final
@dataclass(frozen=True)
class NetworkTeachers:
    """Teachers made by ``factory``, a function that returns a new module for flat rows.

    Each network has an initialisation of its own and takes ``steps`` steps of Adam on batches of
    ``batch`` records. Modules must treat the rows of a batch apart (no batch normalisation), and
    are as in evaluation: no dropout. ``cache_key`` is a text that changes whenever the factory
    does; votes are kept under it, and the certificate names it.

    >>> from torch import nn
    >>> teachers = NetworkTeachers(lambda: nn.Linear(4, 3), cache_key="linear 4-3", steps=50)
    """

    factory: Callable[[], nn.Module]
    cache_key: str
    steps: int = 200
    batch: int = 32
    rate: float = 1e-2
    group: int = 50

    def __post_init__(self) -> None:
        if not callable(self.factory):
            raise InvalidValue("factory", self.factory, "a function that returns a module")
        if not self.cache_key:
            raise InvalidValue("cache_key", self.cache_key, "a text that names the factory")
        _validate.integer("steps", self.steps, at_least=1)
        _validate.integer("batch", self.batch, at_least=1)
        _validate.real("rate", self.rate, above=0)
        _validate.integer("group", self.group, at_least=1)
        object.__setattr__(
            self,
            "cache_key",
            f"{self.cache_key}, {self.steps} steps of {self.batch} at {self.rate:g}",
        )

    def vote_together(
        self,
        parts: Sequence[tuple[NDArray[np.float64], NDArray[np.int64]]],
        queries: Sequence[NDArray[np.float64]],
        *,
        classes: int,
        seeds: Sequence[int],
    ) -> list[NDArray[np.int64]]:
        """Train a network on each part and return its classes for the queries."""
        votes: list[NDArray[np.int64]] = []
        for start in range(0, len(parts), self.group):
            some = slice(start, start + self.group)
            votes += self._group(parts[some], queries[some], classes, seeds[some])
        return votes

    def _group(
        self,
        parts: Sequence[tuple[NDArray[np.float64], NDArray[np.int64]]],
        queries: Sequence[NDArray[np.float64]],
        classes: int,
        seeds: Sequence[int],
    ) -> list[NDArray[np.int64]]:
        missing = self.group - len(parts)
        full = [*parts, *[parts[0]] * missing]
        asked = [*queries, *[queries[0]] * missing]
        models = [self._make(seed) for seed in [*seeds, *[seeds[0]] * missing]]
        weights, fixed = stack_module_state(models)
        base = copy.deepcopy(models[0]).eval()
        weights = {name: value.detach() for name, value in weights.items()}
        weights = self._train(base, weights, fixed, full, [*seeds, *[seeds[0]] * missing])

        def answer(one: dict[str, Tensor], kept: dict[str, Tensor], rows: Tensor) -> Tensor:
            return torch.argmax(functional_call(base, (one, kept), (rows,))[:, :classes], dim=1)

        found = []
        for start in range(0, len(asked[0]), _QUERIES_AT_ONCE):
            some = slice(start, start + _QUERIES_AT_ONCE)
            tables = [torch.tensor(table[some], dtype=torch.float32) for table in asked]
            with torch.no_grad():
                found.append(vmap(answer)(weights, fixed, torch.stack(tables)))
        codes = torch.cat(found, dim=1).numpy().astype(np.int64)
        return list(codes[: len(parts)])

    def _make(self, seed: int) -> nn.Module:
        with own_generators(seed):
            return self.factory()

    def _train(
        self,
        base: nn.Module,
        weights: dict[str, Tensor],
        fixed: dict[str, Tensor],
        parts: Sequence[tuple[Any, Any]],
        seeds: Sequence[int],
    ) -> dict[str, Tensor]:
        rows = [torch.tensor(features, dtype=torch.float32) for features, _ in parts]
        labels = [torch.tensor(codes) for _, codes in parts]
        shape = (self.steps, self.batch)
        picks = [
            torch.randint(len(codes), shape, generator=torch.Generator().manual_seed(seed))
            for codes, seed in zip(labels, seeds, strict=True)
        ]

        def loss(
            one: dict[str, Tensor], kept: dict[str, Tensor], batch: Tensor, goals: Tensor
        ) -> Tensor:
            outputs = functional_call(base, (one, kept), (batch,))
            return nn.functional.cross_entropy(outputs, goals)

        slope = vmap(grad(loss))
        first = {name: torch.zeros_like(value) for name, value in weights.items()}
        second = {name: torch.zeros_like(value) for name, value in weights.items()}
        for step in range(self.steps):
            batch = torch.stack([r[p[step]] for r, p in zip(rows, picks, strict=True)])
            goals = torch.stack([c[p[step]] for c, p in zip(labels, picks, strict=True)])
            found = slope(weights, fixed, batch, goals)
            scale = self.rate * (1.0 - step / self.steps)
            for name, value in found.items():
                first[name].lerp_(value, 1.0 - _DECAYS[0])
                second[name].lerp_(value * value, 1.0 - _DECAYS[1])
                mean = first[name] / (1.0 - _DECAYS[0] ** (step + 1))
                size = (second[name] / (1.0 - _DECAYS[1] ** (step + 1))).sqrt()
                weights[name] = weights[name] - scale * mean / (size + 1e-8)
        return weights
