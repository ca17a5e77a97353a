"""Half precision behind the engine's back: autocast exchanges the numbers within products."""

from __future__ import annotations

import torch

from discreet.errors import PlanViolation

__all__ = ["refuse_autocast"]

_DEVICES = ("cpu", "cuda", "mps", "xpu")


def refuse_autocast() -> None:
    """Raise where products would be of half precision, in passes, norms and sums alike."""
    if any(map(torch.is_autocast_enabled, _DEVICES)):
        raise PlanViolation(
            "a training step under autocast: norms of gradients in half precision are off by "
            "up to a percent, and so would be the bound that the noise is made for. Leave autocast "
            "out of the forward pass, backward() and optimizer.step()"
        )
