"""Attention: its projections are linear maps, and what is between them has no parameters.

Self-attention on batches in which the examples come first, as most models have it, is computed
in that order from end to end. Torch's own function goes through (time, examples, features), which
costs several copies of the activations and of their gradients. In all other cases it is torch's
function that runs, opened so that the projections inside it are seen.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend

from discreet.learn.dpsgd.engine.contributions import pieces
from discreet.learn.dpsgd.engine.recorder import NoRule, Recorder, Rule
from discreet.learn.dpsgd.engine.rule_linear import linear

__all__ = ["RULES"]


def opened(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a composite torch function that does not hand itself to the recorder again.

    Its body is torch's; only the question whether someone overrides the function as a whole is
    answered with no, so that the recorder meets the operations inside.
    """
    assert isinstance(function, FunctionType)
    namespace = dict(function.__globals__)
    for question in (
        "has_torch_function",
        "has_torch_function_unary",
        "has_torch_function_variadic",
    ):
        namespace[question] = lambda *_: False
    body = FunctionType(
        function.__code__, namespace, function.__name__, function.__defaults__, function.__closure__
    )
    body.__kwdefaults__ = function.__kwdefaults__
    return body


_attention = opened(F.multi_head_attention_forward)
_SIGNATURE = signature(F.multi_head_attention_forward)
# Arguments that only torch's own function deals with.
UNUSUAL = ("bias_k", "bias_v", "key_padding_mask", "static_k", "static_v")


def side_by_side(projected: Tensor, heads: int) -> Tensor:
    """Return a view (examples, time, queries keys values, heads, width) of one projection."""
    examples, time, width = projected.shape
    parts: Tensor = projected.view(examples, time, 3, heads, width // (3 * heads))
    return parts


def split_heads(projected: Tensor, heads: int) -> tuple[Tensor, ...]:
    """Return queries, keys and values as views (examples, heads, time, width)."""
    return side_by_side(projected, heads).permute(2, 0, 3, 1, 4).unbind(0)


class _Attention(torch.autograd.Function):
    """Torch's fused attention, whose gradients take the place of what they are gradients of.

    Going through a few examples at a time, it needs no memory for the gradients of queries, keys
    and values, and they lie as the backward pass of the projection wants them. Saved tensors have
    versions: a second backward pass raises.
    """

    @staticmethod
    def forward(ctx: Any, projected: Tensor, heads: int, causal: bool) -> Tensor:
        query, key, value = split_heads(projected, heads)
        mixed, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal
        )
        mixed = mixed.transpose(1, 2).contiguous()
        ctx.save_for_backward(projected, mixed, sums)
        ctx.heads, ctx.causal = heads, causal
        result: Tensor = mixed.flatten(2)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        projected, mixed, sums = ctx.saved_tensors
        gradient = gradient.reshape(mixed.shape).transpose(1, 2)
        query, key, value = split_heads(projected, ctx.heads)
        mixed = mixed.transpose(1, 2)
        for piece in pieces(projected.shape[0], projected[0].numel()):
            parts = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                *(part[piece] for part in (gradient, query, key, value, mixed, sums)),
                0.0,
                ctx.causal,
            )
            target = side_by_side(projected[piece], ctx.heads)
            torch.stack([part.transpose(1, 2) for part in parts], dim=2, out=target)
        return projected, None, None


def attend(projected: Tensor, heads: int, *, dropout: float, causal: bool) -> Tensor:
    """Attention (examples, time, features) from queries, keys and values side by side."""
    query, key, value = split_heads(projected, heads)
    choice = torch._fused_sdp_choice(query, key, value, None, dropout, causal)
    if projected.device.type == "cpu" and choice == SDPBackend.FLASH_ATTENTION.value:
        mixed: Tensor = _Attention.apply(projected, heads, causal)  # type: ignore[no-untyped-call]
        return mixed
    mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=causal)
    return mixed.transpose(1, 2).flatten(2)


def can_stay_in_order(call: dict[str, Any], rows: int) -> bool:
    """Whether a call is plain self-attention on examples that come first in memory."""
    query, width = call["query"], call["embed_dim_to_check"]
    weight = call["in_proj_weight"]
    return (
        query is call["key"] is call["value"]
        and query.shape[1:] == (rows, width)
        and query.numel() > 0
        and query.transpose(0, 1).is_contiguous()
        and weight is not None
        and weight.shape == (3 * width, width)
        and width % call["num_heads"] == 0
        and (call["attn_mask"] is not None) == call["is_causal"]
        and not any(call[name] for name in ("add_zero_attn", "need_weights"))
        and all(call[name] is None for name in UNUSUAL)
        and not call["use_separate_proj_weight"]
    )


def self_attention(recorder: Recorder, call: dict[str, Any]) -> Tensor:
    """Self-attention on (examples, time, features), a view of what the call was given."""
    data = call["query"].transpose(0, 1)
    dropout = call["dropout_p"] if call["training"] else 0.0
    with recorder.knowing(0):
        projected = linear(recorder, F.linear, data, call["in_proj_weight"], call["in_proj_bias"])
        # A mask beside is_causal is but its description, which torch does not read either.
        mixed = attend(projected, call["num_heads"], dropout=dropout, causal=call["is_causal"])
        return linear(recorder, F.linear, mixed, call["out_proj_weight"], call["out_proj_bias"])


def multi_head_attention(
    recorder: Recorder, func: Any, query: Tensor, *args: Any, **kwargs: Any
) -> Any:
    """Multi-head attention on (time, examples, features), as torch's modules pass it."""
    if query.ndim != 3:
        raise NoRule(func, recorder.names_in((query, *args), kwargs))
    bound = _SIGNATURE.bind(query, *args, **kwargs)
    bound.apply_defaults()
    # Where its axes go is known beforehand, so they need not be followed.
    before, recorder.follows = recorder.follows, False
    try:
        if can_stay_in_order(bound.arguments, recorder.axes.rows):
            return self_attention(recorder, bound.arguments).transpose(0, 1), None
        with recorder.knowing(1), recorder:
            return _attention(query, *args, **kwargs)
    finally:
        recorder.follows = before


RULES: dict[Any, Rule] = {F.multi_head_attention_forward: multi_head_attention}
