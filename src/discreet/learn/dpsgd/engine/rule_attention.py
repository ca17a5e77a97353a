"""Attention: torch's own function, run so that the projections inside it are seen."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from discreet.learn.dpsgd.engine.recorder import NoRule, Recorder, Rule

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


def multi_head_attention(
    recorder: Recorder, func: Any, query: Tensor, *args: Any, **kwargs: Any
) -> Any:
    """Multi-head attention on (time, examples, features), as torch's modules pass it."""
    if query.ndim != 3:
        raise NoRule(func, recorder.names_in((query, *args), kwargs))
    # Where its axes go is known beforehand, so they need not be followed.
    before, recorder.follows = recorder.follows, False
    try:
        with recorder.knowing(1), recorder:
            return _attention(query, *args, **kwargs)
    finally:
        recorder.follows = before


RULES: dict[Any, Rule] = {F.multi_head_attention_forward: multi_head_attention}
