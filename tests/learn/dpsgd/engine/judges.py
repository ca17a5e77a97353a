"""Slow, obvious twins of the engine: one example at a time, and ``torch.func``."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from discreet.learn.dpsgd.engine import GradientEngine

Inputs = tuple[Tensor, ...]


def example_losses(outputs: Any, axis: int = 0, first: int = 0) -> Tensor:
    """A loss for every row that depends on each output, differently in every row."""
    if isinstance(outputs, tuple):
        outputs = outputs[0]
    rows = outputs.movedim(axis, 0)
    flat = rows.reshape(rows.shape[0], rows[:1].numel() if rows.shape[0] else 1)
    at = torch.arange(flat.shape[1], dtype=flat.dtype)
    phase = torch.arange(first, first + flat.shape[0], dtype=flat.dtype).unsqueeze(1)
    return (flat * torch.cos(at + phase + 1)).sum(1) + (flat.square() * torch.sin(at)).sum(1) / 2


def one_row(inputs: Inputs, at: int, axes: Sequence[int | None]) -> Inputs:
    return tuple(
        value if axis is None else value.narrow(axis, at, 1).contiguous()
        for value, axis in zip(inputs, axes, strict=True)
    )


def by_microbatches(
    model: nn.Module, inputs: Inputs, axes: Sequence[int | None], out_axis: int, rows: int
) -> list[dict[str, Tensor]]:
    """The gradient of every row, computed from that row alone by plain autograd."""
    result = []
    for at in range(rows):
        model.zero_grad()
        loss = example_losses(model(*one_row(inputs, at, axes)), out_axis, at).sum()
        if loss.requires_grad:
            loss.backward()
        result.append(
            {
                name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
                for name, p in model.named_parameters()
                if p.requires_grad
            }
        )
    model.zero_grad()
    return result


def by_torch_func(
    model: nn.Module, inputs: Inputs, axes: Sequence[int | None], out_axis: int, rows: int
) -> list[dict[str, Tensor]]:
    """The same by ``vmap(grad(...))``."""
    parameters = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}

    def loss(values: dict[str, Tensor], at: Tensor, *row: Tensor) -> Tensor:
        single = tuple(
            value if axis is None else value.unsqueeze(axis)
            for value, axis in zip(row, axes, strict=True)
        )
        outputs = torch.func.functional_call(model, values, single)
        if isinstance(outputs, tuple):
            outputs = outputs[0]
        flat = outputs.reshape(-1)
        places = torch.arange(flat.shape[0], dtype=flat.dtype)
        return (flat * torch.cos(places + at + 1)).sum() + (
            flat.square() * torch.sin(places)
        ).sum() / 2

    numbers = torch.arange(rows, dtype=next(iter(parameters.values())).dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, *axes))(
            parameters, numbers, *inputs
        )
    return [{name: values[at] for name, values in gradients.items()} for at in range(rows)]


def by_engine(
    model: nn.Module,
    inputs: Inputs,
    out_axis: int,
    rows: int,
    weights: Tensor,
    *,
    repeats: int = 1,
    mean: bool = False,
    engine: GradientEngine | None = None,
    **options: Any,
) -> tuple[Tensor, dict[str, Tensor]]:
    engine = engine or GradientEngine(model, **options)
    with engine.recording(rows // repeats, rows_per_unit=repeats):
        losses = example_losses(model(*inputs), out_axis)
        total = losses.mean() if mean else losses.sum()
        if total.requires_grad:
            total.backward()
        norms = engine.squared_norms(scale=rows if mean else 1.0)
        sums = engine.clipped_sum(weights)
    engine.detach()
    assert all(p.grad is None for p in model.parameters()), "plain gradients were accumulated"
    return norms, sums


def difference(first: Tensor, second: Tensor) -> float:
    """Largest deviation in units of the largest entry."""
    if not first.numel():
        return 0.0
    scale = max(float(first.abs().max()), float(second.abs().max()), 1e-30)
    return float((first - second).abs().max()) / scale


def check(
    model: nn.Module,
    *inputs: Tensor,
    axes: Sequence[int | None] | None = None,
    out_axis: int = 0,
    repeats: int = 1,
    mean: bool = False,
    torch_func: bool = True,
    tolerance: float = 1e-5,
    groups: Sequence[Sequence[str]] | None = None,
    **options: Any,
) -> None:
    """Assert that the engine, the microbatch loop and torch.func agree."""
    axes = axes if axes is not None else (0,) * len(inputs)
    rows = next(v.shape[a] for v, a in zip(inputs, axes, strict=True) if a is not None)
    units = rows // repeats
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    sets = groups or [names]
    kind = next(p for p in model.parameters() if p.requires_grad).dtype
    generator = torch.Generator().manual_seed(5)
    weights = torch.rand(len(sets), units, generator=generator, dtype=kind)
    norms, sums = by_engine(
        model, inputs, out_axis, rows, weights, repeats=repeats, mean=mean, groups=groups, **options
    )
    twins = [by_microbatches(model, inputs, axes, out_axis, rows)]
    if torch_func and rows:
        twins.append(by_torch_func(model, inputs, axes, out_axis, rows))
    for rowwise in twins:
        per_unit = [
            {n: sum(rowwise[u * repeats + k][n] for k in range(repeats)) / repeats for n in names}
            for u in range(units)
        ]
        expected = torch.tensor(
            [[sum(float(g[n].square().sum()) for n in some) for g in per_unit] for some in sets],
            dtype=kind,
        ).reshape(len(sets), units)
        assert difference(norms, expected) < tolerance
        for at, some in enumerate(sets):
            for name in some:
                total = torch.zeros_like(sums[name])
                for unit in range(units):
                    total += weights[at, unit] * per_unit[unit][name]
                assert difference(sums[name], total) < tolerance, name
