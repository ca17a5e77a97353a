"""When a step needs no autograd: losses whose gradient is known, in models that nobody watches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

__all__ = ["is_plain_cross_entropy", "is_plainly_trained"]


_CROSS_ENTROPY = nn.CrossEntropyLoss.forward


def is_plain_cross_entropy(loss: object, targets: Any, *, rows: int) -> bool:
    """Whether a loss is the cross-entropy of each example with one class, and nothing else."""
    return (
        type(loss) is nn.CrossEntropyLoss
        and nn.CrossEntropyLoss.forward is _CROSS_ENTROPY
        and loss.reduction == "none"
        and getattr(loss, "weight", None) is None
        and loss.label_smoothing == 0.0
        and loss.ignore_index < 0
        and "forward" not in loss.__dict__
        and not _has_hooks(loss, before=0, after=0)
        and type(targets) is Tensor
        and targets.dtype == torch.int64
        and targets.shape == (rows,)
        and targets.device.type == "cpu"
    )


def is_plainly_trained(model: nn.Module, *, before: int, after: int) -> bool:
    """Whether a model would be recorded, and has no hooks but so many of our own."""
    return (
        model.training
        and torch.is_grad_enabled()
        and not _has_hooks(model, before=before, after=after)
    )


def _has_hooks(module: nn.Module, *, before: int, after: int) -> bool:
    return bool(
        len(module._forward_pre_hooks) > before
        or len(module._forward_hooks) > after
        or module._backward_hooks
        or module._backward_pre_hooks
        or torch_module._has_any_global_hook()  # type: ignore[no-untyped-call]
    )
