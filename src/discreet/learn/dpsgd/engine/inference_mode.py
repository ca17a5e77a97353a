"""Tensors made under ``torch.inference_mode()``: torch does not count the writes to them.

What the engine keeps for the step must be what the norms were taken of, and autograd keeps no
such tensors at all. So they fail in words of torch's own, about version counters or about what
is saved for backward; here the words are put right, at no cost as long as nothing fails.
"""

from __future__ import annotations

from typing import Any

from discreet.errors import DiscreetError, InvalidValue
from discreet.learn.dpsgd.isolation.parts import tensors

__all__ = ["refuse_inference"]


def refuse_inference(argument: str, values: Any, error: Exception) -> None:
    """Raise in place of an error of torch's if such tensors are among the values."""
    if isinstance(error, DiscreetError):
        return
    if any(one.is_inference() for one in tensors(values)):
        raise InvalidValue(
            argument,
            "made under torch.inference_mode()",
            "tensors made outside of it, or their clone(): writes to the others are not counted, "
            "and what a step keeps of a batch must stay as it was",
        ) from None
