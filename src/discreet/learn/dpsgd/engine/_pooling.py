"""Max pooling in the memory order that torch is fast in, with the same results bit by bit.

On a CPU torch goes through the windows of images channel by channel, several times slower
than with the channels innermost, and a small convolutional network spends half of its plain step
there. No parameter takes part, so this has nothing to do with privacy: it pays for the norms.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

# With fewer channels there is nothing to gain from having them innermost.
_CHANNELS = 8


class _ChannelsInnermost(torch.autograd.Function):
    """Forward with the channels innermost; backward, which does not look at values, as it is."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, *windows: Any) -> Tensor:
        laid = images.contiguous(memory_format=torch.channels_last)
        values, places = torch.ops.aten.max_pool2d_with_indices(laid, *windows)
        ctx.windows = windows
        ctx.save_for_backward(images, places.contiguous())
        result: Tensor = values.contiguous()
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        images, places = ctx.saved_tensors
        back = torch.ops.aten.max_pool2d_with_indices_backward(
            gradient.contiguous(), images, *ctx.windows, places
        )
        return back, *(None for _ in ctx.windows)


def _pair(value: Any) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)


def max_pool2d(
    input: Tensor,  # noqa: A002 - torch's name for it
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """``torch.nn.functional.max_pool2d``."""
    if (
        return_indices
        or input.device.type != "cpu"
        or input.ndim != 4
        or input.shape[1] < _CHANNELS
        or not input.numel()
        or not input.is_contiguous()
        or input.dtype not in (torch.float32, torch.float64)
    ):
        plain: Any = F.max_pool2d
        return plain(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    step = kernel_size if stride is None or stride == [] else stride
    windows = (_pair(kernel_size), _pair(step), _pair(padding), _pair(dilation), ceil_mode)
    return _ChannelsInnermost.apply(input, *windows)  # type: ignore[no-untyped-call]


FASTER: dict[Any, Any] = {F.max_pool2d: max_pool2d}
