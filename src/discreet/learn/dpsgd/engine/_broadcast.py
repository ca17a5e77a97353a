"""Bare parameters in elementwise operations and concatenations: one copy for every example.

The copy is a view that repeats the parameter along the axis of the examples, so the usual
backward pass leaves each example's gradient at its own copy. Only the parameter's own size
per example is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from discreet.learn.dpsgd.engine._forms import make_leaf
from discreet.learn.dpsgd.engine._recorder import NoRule, Recorder, Rule


def copies(recorder: Recorder, tensor: Tensor, data: Tensor, func: Any) -> Tensor:
    """Return the source ``tensor`` once for every example, to be broadcast against ``data``."""
    source = recorder.source_of(tensor)
    assert source is not None
    base = source.repeats or source
    value = base.tensor.detach()
    site = recorder.site("broadcast", base)
    axis = recorder.axes.find(data, leading=data.ndim, site=site)
    rows = recorder.axes.rows
    depth = max(data.ndim, value.ndim)
    value = value.reshape(*(1,) * (depth - value.ndim), *value.shape)
    at = axis + depth - data.ndim
    if base.lookup_ids is not None and at == 0 and value.shape[0] == rows == data.shape[0]:
        # Rows of a table looked up for every example: each acts on its own example only.
        row_copies = make_leaf(value)
        base.row_copies.append(row_copies)
        return row_copies
    if axis < 0 or value.shape[at] != 1:
        raise NoRule(func, source.root_names())
    sizes = [-1] * depth
    sizes[at] = rows
    leaf = make_leaf(value.expand(sizes))
    base.leaves.append((leaf, at))
    terms = data.shape[axis] // rows if rows else 1
    if terms == 1:
        return leaf
    spread = leaf.unsqueeze(at + 1)
    sizes = [-1] * (depth + 1)
    sizes[at + 1] = terms
    return spread.expand(sizes).flatten(at, at + 1)


def elementwise(recorder: Recorder, func: Any, *args: Any, **kwargs: Any) -> Any:
    """Apply an operation that works element by element, with broadcasting."""
    tensors = [value for value in args if isinstance(value, Tensor)]
    data = [
        value
        for value in tensors
        if recorder.source_of(value) is None and not recorder.is_constant(value)
    ]
    if not data or any(isinstance(value, Tensor) for value in kwargs.values()):
        raise NoRule(func, recorder.names_in(args, kwargs))
    widest = max(data, key=lambda value: value.ndim)
    replaced = [
        copies(recorder, value, widest, func) if recorder.source_of(value) is not None else value
        for value in args
    ]
    return func(*replaced, **kwargs)


def concatenate(
    recorder: Recorder, func: Any, tensors: Sequence[Tensor], dim: int = 0, **kwargs: Any
) -> Tensor:
    """Put repeated parameters beside the examples' own values (a class token)."""
    data = [
        value
        for value in tensors
        if recorder.source_of(value) is None and not recorder.is_constant(value)
    ]
    replaced = []
    for value in tensors:
        source = recorder.source_of(value)
        if source is None:
            replaced.append(value)
            continue
        if not data or source.repeats is None or data[0].ndim != value.ndim:
            raise NoRule(func, recorder.names_in(tuple(tensors), {}))
        copy = copies(recorder, value, data[0], func)
        replaced.append(copy.expand(value.shape))
    return func(replaced, dim, **kwargs)  # type: ignore[no-any-return]


def prelu(recorder: Recorder, func: Any, input: Tensor, weight: Tensor) -> Tensor:  # noqa: A002
    """Slopes for negative inputs, one or one for each channel."""
    if recorder.source_of(input) is not None:
        raise NoRule(func, recorder.names_in((input, weight), {}))
    wide = weight
    if weight.numel() > 1:
        wide = recorder.derive(torch.Tensor.view, (weight, (-1, *(1,) * (input.ndim - 2))), {})
    slopes = copies(recorder, wide, input, func)
    return F.relu(input) + slopes * input.clamp(max=0)


def biased_attention(
    recorder: Recorder,
    func: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *options: Any,
    **named: Any,
) -> Tensor:
    """Attention with a mask that is made of parameters, as relative positions are."""
    inner = (query, key, value)
    if attn_mask is None or any(recorder.source_of(one) is not None for one in inner):
        raise NoRule(func, recorder.names_in((*inner, attn_mask), {}))
    mask = copies(recorder, attn_mask, query, func)
    return func(query, key, value, mask, *options, **named)  # type: ignore[no-any-return]


ELEMENTWISE = ("add", "sub", "mul", "div", "true_divide", "multiply", "subtract", "divide", "pow")
OPERATORS = (
    "__add__",
    "__radd__",
    "__iadd__",
    "__sub__",
    "__rsub__",
    "__isub__",
    "__mul__",
    "__rmul__",
    "__imul__",
    "__truediv__",
    "__rtruediv__",
    "__itruediv__",
    "__pow__",
    "__rpow__",
    "add_",
    "sub_",
    "mul_",
    "div_",
)

RULES: dict[Any, Rule] = {
    **{getattr(torch, name): elementwise for name in ELEMENTWISE},
    **{getattr(torch.Tensor, name): elementwise for name in (*ELEMENTWISE, *OPERATORS)},
    torch.where: elementwise,
    torch.maximum: elementwise,
    torch.minimum: elementwise,
    torch.rsub: elementwise,
    torch.addcmul: elementwise,
    torch.lerp: elementwise,
    torch.cat: concatenate,
    torch.concat: concatenate,
    torch.prelu: prelu,
    F.scaled_dot_product_attention: biased_attention,
}
