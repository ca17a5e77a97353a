"""Working memory that is used again and again: fresh pages cost more than what is done in them."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

__all__ = ["Scratch", "keep_freed_memory"]

_LARGEST = 31 << 20


def keep_freed_memory() -> None:
    """Let the allocator keep memory that one step frees for the next, instead of giving it back.

    Activations and output gradients live until a step ends and are then freed together. The
    allocator of glibc returns freed memory to the system beyond twice the size of the largest
    block (up to 32 MB) that it ever saw freed, and every page of it must then be fetched and
    cleared again in the next step, a tenth of the step's time. Freeing one such block tells it
    that blocks of that size come and go. The block itself is never touched, so it costs nothing;
    with other allocators nothing happens.
    """
    torch.empty(_LARGEST, dtype=torch.uint8)


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
