"""Tensors through which parameters act: the parameters, and what is computed from them alone."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from discreet.learn.dpsgd.engine.contributions import (
    Contribution,
    Lookup,
    Outer,
    PerExample,
    merged,
)

__all__ = ["Site", "Source", "own_leaf"]


@final
class Site:
    """One use of a source in a forward pass; its name is made only when it is needed."""

    __slots__ = ("count", "source")

    def __init__(self, source: Source, count: int) -> None:
        self.source = source
        self.count = count

    def __str__(self) -> str:
        return f"{', '.join(self.source.root_names())} (use {self.count})"


@final
class Source:
    """A parameter, or a tensor derived from parameters and constants (a slice, a product).

    The forward pass uses ``tensor``; no gradient of plain autograd ever reaches it. Its uses
    leave contributions, and those of a derived tensor are carried on to the parameters by the
    derivative of the derivation (``origin`` with ``parents``), example by example.
    """

    def __init__(
        self,
        tensor: Tensor,
        *,
        name: str = "",
        origin: Tensor | None = None,
        parents: tuple[Source, ...] = (),
        transposes: Source | None = None,
        repeats: Source | None = None,
    ) -> None:
        self.tensor = tensor
        self.name = name
        self.origin = origin
        self.parents = parents
        self.transposes = transposes
        self.repeats = repeats
        self.looked_up: Tensor | None = None
        self.aligned: list[Tensor] = []
        self.contributions: list[Contribution] = []
        self.leaves: list[tuple[Tensor, int]] = []
        self.uses = 0
        self.rules: set[str] = set()

    def used(self, rule: str) -> Site:
        """Count and name one more use."""
        self.uses += 1
        if rule not in self.rules:
            self.note(rule)
        return Site(self, self.uses)

    def note(self, rule: str) -> None:
        """Remember which rules handled the parameters behind this tensor."""
        self.rules.add(rule)
        for parent in self.parents:
            parent.note(rule)

    def clear(self) -> None:
        """Forget the uses of one pass."""
        self.contributions = []
        self.leaves = []
        self.uses = 0

    def root_names(self) -> list[str]:
        """Names of the parameters behind this tensor."""
        if not self.parents:
            return [self.name]
        return sorted({name for parent in self.parents for name in parent.root_names()})

    def gather_leaves(self, units: int) -> None:
        """Turn gradients of per-example copies into contributions."""
        for leaf, axis in self.leaves:
            if leaf.grad is None:
                continue
            rows = leaf.grad.movedim(axis, 0)
            per_unit = rows.reshape(units, rows.shape[0] // units, *self.tensor.shape)
            values = per_unit.squeeze(1) if per_unit.shape[1] == 1 else per_unit.sum(1)
            self.contributions.append(PerExample(values))
        self.leaves.clear()

    def hand_to_parents(self, units: int) -> None:
        """Move the contributions of a derived tensor to what it was derived from."""
        for leaf in self.aligned:
            if leaf.grad is not None and self.looked_up is not None:
                table = self.parents[0]
                rows = leaf.grad.reshape(units, -1, leaf.shape[-1])
                ids = self.looked_up.reshape(units, -1)
                table.contributions.append(
                    rows_looked_up(ids, PerExample(rows), table.tensor.shape)
                )
        self.aligned.clear()
        if not self.contributions or not self.parents:
            return
        whole = merged(self.contributions)
        self.contributions = []
        if self.transposes is not None and isinstance(whole, Outer):
            target = self.transposes
            target.contributions.append(whole.transposed(target.tensor.shape))
            return
        if self.looked_up is not None:
            target = self.parents[0]
            target.contributions.append(rows_looked_up(self.looked_up, whole, target.tensor.shape))
            return
        assert self.origin is not None
        gradients = torch.autograd.grad(
            self.origin,
            [parent.tensor for parent in self.parents],
            grad_outputs=whole.per_example(),
            is_grads_batched=True,
            retain_graph=True,
            allow_unused=True,
        )
        for parent, values in zip(self.parents, gradients, strict=True):
            if values is not None:
                parent.contributions.append(PerExample(values))


def own_leaf(tensor: Tensor) -> Tensor:
    """Have a tensor collect gradients, as one of the engine's own leaves of the graph."""
    tensor.of_engine = True  # type: ignore[attr-defined]
    return tensor.requires_grad_()


def rows_looked_up(ids: Tensor, whole: Contribution, shape: torch.Size) -> Lookup:
    """Carry gradients of looked-up rows to their table.

    ``ids`` are (examples, places), or of any shape that all examples looked up alike.
    """
    values = whole.per_example()
    examples = values.shape[0]
    places = values[:1].numel() // shape[1]
    flat = ids.reshape(-1, places).expand(examples, places).reshape(-1)
    owner = torch.arange(examples, device=ids.device).repeat_interleave(places)
    return Lookup(owner, flat.long(), values.reshape(-1, shape[1]), examples=examples, shape=shape)
