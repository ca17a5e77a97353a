"""Random small changes of images that keep what they show, for students (public data)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

__all__ = ["jittered"]


def jittered(images: Tensor, *, generator: torch.Generator) -> Tensor:
    """Return images (n, 1, height, width), each turned, scaled, sheared, shifted and bent.

    Up to 15 degrees, 12 % of size, 0.2 of shear, 8 % of the width, and a smooth bend.
    """
    count = len(images)

    def between(limit: float) -> Tensor:
        return (torch.rand(count, generator=generator) * 2.0 - 1.0) * limit

    angle, shear = between(math.pi / 12), between(0.2)
    across, along = 1.0 + between(0.12), 1.0 + between(0.12)
    cosine, sine = torch.cos(angle), torch.sin(angle)
    rows = torch.stack(
        [
            torch.stack([across * cosine, across * (shear * cosine - sine), between(0.16)], dim=1),
            torch.stack([along * sine, along * (shear * sine + cosine), between(0.16)], dim=1),
        ],
        dim=1,
    )
    grid = nn.functional.affine_grid(rows, list(images.shape), align_corners=False)
    bend = torch.rand(count, 2, 4, 4, generator=generator) * 0.24 - 0.12
    smooth = nn.functional.interpolate(
        bend, size=images.shape[-2:], mode="bicubic", align_corners=True
    )
    return nn.functional.grid_sample(
        images, grid + smooth.permute(0, 2, 3, 1), align_corners=False, padding_mode="border"
    )
