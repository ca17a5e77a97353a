"""Patches of images, copied so that products over positions run at full speed.

For kernels over one or two axes the image is first brought into channels-last order, where the
entries of one kernel row at one position lie side by side: a copy for each *column* of the kernel
is enough, because moving down one row is then only an offset in memory. So patches take the
width of the kernel times the image, not its area, and each row of the kernel is one product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from discreet.learn.dpsgd.engine.scratch import Scratch

__all__ = ["Geometry", "Patches"]

# Products narrower than this are slow, so the rows of a small kernel are copied out as well.
_NARROW = 96


@dataclass(frozen=True)
class Geometry:
    """How a convolution slides; ``before`` and ``after`` are the zeros added on each side."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    transposed: bool

    def padded(self, images: Tensor) -> Tensor:
        """Return the images with their zeros, contiguous."""
        if not any(self.before) and not any(self.after):
            return images.contiguous()
        sides = [side for pair in zip(self.before, self.after, strict=True) for side in pair[::-1]]
        return F.pad(images, sides[::-1]).contiguous()

    def overlap(self) -> int:
        """Return in how many patches an entry of an image can be."""
        steps = [s // math.gcd(s, h) for s, h in zip(self.stride, self.dilation, strict=True)]
        return math.prod(-(-k // step) for k, step in zip(self.kernel, steps, strict=True))

    def flat(self) -> Geometry:
        """Return the same with two axes, for one or two."""
        if len(self.kernel) == 2:
            return self
        return Geometry(
            (1, *self.kernel),
            (1, *self.stride),
            (0, *self.before),
            (0, *self.after),
            (1, *self.dilation),
            self.groups,
            self.transposed,
        )


@final
class Patches:
    """Forms gradients of a kernel from maps (examples, channels, *positions) and images."""

    def __init__(
        self,
        geometry: Geometry,
        maps: Sequence[int],
        images: Sequence[int],
        scratch: Scratch | None = None,
    ) -> None:
        self._scratch = Scratch() if scratch is None else scratch
        self._geometry = geometry
        self._maps = maps[1]
        self._channels = images[1]
        self._planar = len(geometry.kernel) <= 2 and geometry.groups == 1
        entries = math.prod(geometry.kernel)
        if self._planar:
            self._flat = geometry.flat()
            rows, columns = self._flat.kernel
            self._whole = self._channels * columns < _NARROW
            entries = columns * rows if self._whole else columns
        # Numbers in the patches of one example, about.
        self.size = self._channels * entries * math.prod(maps[2:])

    def width(self) -> tuple[int, int]:
        """Return the number of slices and the width of each."""
        per_group = self._channels // self._geometry.groups
        if not self._planar or self._whole:
            return 1, per_group * math.prod(self._geometry.kernel)
        return self._flat.kernel[0], per_group * self._flat.kernel[1]

    def products(self, maps: Tensor, images: Tensor, targets: Sequence[Tensor]) -> None:
        """Write the gradients into slices (examples, channels of the maps, width)."""
        if self._planar:
            self._by_rows(maps, images, targets)
        else:
            targets[0].copy_(self._by_entries(maps, images))

    def kernel(self, slices: Sequence[Tensor]) -> Tensor:
        """Put slices together to (examples, channels of maps, channels of images, *kernel)."""
        geometry = self._geometry
        shape = (-1, self._maps, self._channels // geometry.groups, *geometry.kernel)
        if not self._planar:
            return slices[0].reshape(shape)
        rows, columns = self._flat.kernel
        if self._whole:
            whole = slices[0].view(-1, self._maps, rows, columns, self._channels)
        else:
            parts = [part.view(-1, self._maps, columns, self._channels) for part in slices]
            whole = torch.stack(parts, dim=2)
        return whole.permute(0, 1, 4, 2, 3).reshape(shape)

    def _by_rows(self, maps: Tensor, images: Tensor, targets: Sequence[Tensor]) -> None:
        geometry = self._flat
        if images.ndim == 3:
            maps, images = maps.unsqueeze(2), images.unsqueeze(2)
        examples, channels, height, width = images.shape
        rows, columns = geometry.kernel
        down, right = geometry.stride
        up, left = geometry.before
        # Rows that share a remainder modulo the stride lie together; zeros fill the last ones.
        tall = max(height + up + geometry.after[0], geometry.dilation[0] * (rows - 1) + 1)
        tall = max(tall, (maps.shape[2] - 1) * down + geometry.dilation[0] * (rows - 1) + 1)
        tall += -tall % down
        wide = (maps.shape[3] - 1) * right + geometry.dilation[1] * (columns - 1) + 1
        wide = max(wide, width + left + geometry.after[1])
        framed = self._scratch.take("framed", (examples, tall, wide, channels), images)
        if tall != height or wide != width:
            framed.zero_()
        framed[:, up : up + height, left : left + width] = images.permute(0, 2, 3, 1)
        per_image, per_row, per_pixel, _ = framed.stride()
        high, broad = maps.shape[2], maps.shape[3]
        flat = maps.reshape(examples, maps.shape[1], high * broad)
        if self._whole:
            view = framed.as_strided(
                (examples, high, broad, rows, columns, channels),
                (
                    per_image,
                    per_row * down,
                    per_pixel * right,
                    per_row * geometry.dilation[0],
                    per_pixel * geometry.dilation[1],
                    1,
                ),
            )
            patches = self._copied(view, (examples, high * broad, rows * columns * channels))
            torch.bmm(flat, patches, out=targets[0])
            return
        lanes = tall // down
        view = framed.as_strided(
            (examples, down, lanes, broad, columns, channels),
            (
                per_image,
                per_row,
                per_row * down,
                per_pixel * right,
                per_pixel * geometry.dilation[1],
                1,
            ),
        )
        strips = self._copied(view, (examples, down * lanes * broad, columns * channels))
        for row in range(rows):
            offset = row * geometry.dilation[0]
            start = (offset % down * lanes + offset // down) * broad
            torch.bmm(flat, strips[:, start : start + high * broad], out=targets[row])

    def _copied(self, view: Tensor, shape: tuple[int, ...]) -> Tensor:
        copy = self._scratch.take("patches", tuple(view.shape), view)
        return copy.copy_(view).view(shape)

    def _by_entries(self, maps: Tensor, images: Tensor) -> Tensor:
        """Form them from whole patches, for any number of axes and groups."""
        geometry = self._geometry
        groups = geometry.groups
        padded = geometry.padded(images)
        examples, channels = padded.shape[:2]
        positions = maps.shape[2:]
        per_example, per_channel, *steps = padded.stride()
        patches = padded.as_strided(
            (examples, channels, *geometry.kernel, *positions),
            (
                per_example,
                per_channel,
                *(step * hole for step, hole in zip(steps, geometry.dilation, strict=True)),
                *(step * jump for step, jump in zip(steps, geometry.stride, strict=True)),
            ),
        ).reshape(examples * groups, -1, math.prod(positions))
        rows = maps.reshape(examples * groups, maps.shape[1] // groups, math.prod(positions))
        products = torch.bmm(rows, patches.transpose(1, 2))
        return products.view(examples, maps.shape[1], -1)
