"""Working memory that is used again and again: fresh pages cost more than what is done in them."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

__all__ = ["Scratch"]


@final
class Scratch:
    """Buffers by name, as large as the largest use so far.

    What a buffer holds is valid until the same name is asked for again.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return a contiguous tensor with undefined contents."""
        size = math.prod(shape)
        key = (name, like.dtype, like.device)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.numel() < size:
            buffer = torch.empty(size, dtype=like.dtype, device=like.device)
            self._buffers[key] = buffer
        return buffer[:size].view(shape)
