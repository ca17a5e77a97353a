"""DP-SGD the slow and obvious way: one example at a time through plain autograd."""

import copy
import math

import torch
from torch import Tensor, nn


def example_gradients(model: nn.Module, loss, inputs: Tensor, targets: Tensor):
    """The gradient of every row by itself, as a list of dictionaries by parameter name."""
    bare = copy.deepcopy(model)  # without the hooks of a plan
    named = {name: p for name, p in bare.named_parameters() if p.requires_grad}
    result = []
    for row in range(len(inputs)):
        value = loss(bare(inputs[row : row + 1]), targets[row : row + 1]).sum()
        grads = torch.autograd.grad(value, list(named.values()), allow_unused=True)
        result.append(
            {
                name: torch.zeros_like(p) if grad is None else grad
                for (name, p), grad in zip(named.items(), grads, strict=True)
            }
        )
    return result


def norm(gradient: dict[str, Tensor]) -> float:
    """The Euclidean norm of a whole gradient."""
    return math.sqrt(sum(float((part.double() ** 2).sum()) for part in gradient.values()))


def flat_clipped(gradient: dict[str, Tensor], clip_norm: float) -> dict[str, Tensor]:
    """g / max(1, |g| / C), and nothing at all of a gradient that is not finite."""
    length = norm(gradient)
    if not math.isfinite(length):
        return {name: torch.zeros_like(part) for name, part in gradient.items()}
    return {name: part / max(1.0, length / clip_norm) for name, part in gradient.items()}


def noiseless_step(gradients, *, clip, expected_batch_size: float) -> dict[str, Tensor]:
    """The sum of clipped gradients over the expected batch size."""
    total: dict[str, Tensor] = {}
    for gradient in gradients:
        for name, part in clip(gradient).items():
            total[name] = total.get(name, torch.zeros_like(part)) + part
    return {name: part / expected_batch_size for name, part in total.items()}
