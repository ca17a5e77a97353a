"""Which way a model grows more confident: exact for torch modules, measured for black boxes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from discreet.attacks.targets import Target
from discreet.errors import InvalidValue

__all__ = ["Climb", "DifferenceClimb", "ExactClimb"]


class Climb(Protocol):
    """Log-confidence in wanted classes at given inputs, and its gradient there.

    ``queries`` is how many records the model is asked about for one input.
    """

    queries: int

    def __call__(
        self, inputs: NDArray[np.float64], classes: NDArray[np.intp]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return (inputs,) log-confidences and (inputs, coordinates) gradients."""


@final
class ExactClimb:
    """Gradients of a torch module by backpropagation; its parameters and modes stay untouched."""

    queries = 1

    def __init__(self, module: Any, shape: tuple[int, ...], *, probabilities: bool) -> None:
        self._module = module
        self._shape = shape
        self._probabilities = probabilities

    def __call__(
        self, inputs: NDArray[np.float64], classes: NDArray[np.intp]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        torch = import_module("torch")
        first = next((p for p in self._module.parameters() if p.is_floating_point()), None)
        kind = torch.float64 if first is None else first.dtype
        place = None if first is None else first.device
        batch = torch.tensor(inputs.reshape(-1, *self._shape), dtype=kind, device=place)
        batch.requires_grad_(True)
        with _evaluating(self._module), torch.enable_grad():
            scores = self._module(batch)
            if not torch.is_tensor(scores) or scores.ndim not in (1, 2):
                raise InvalidValue("the model's output", type(scores).__name__, "(n, classes)")
            scores = scores.double()
            if scores.numel() == len(batch):
                # One column belongs to class 1, as in Target: its logit beside 0, or p and 1 - p.
                one = scores.reshape(len(batch))
                zero = 1.0 - one if self._probabilities else torch.zeros_like(one)
                scores = torch.stack([zero, one], dim=1)
            if self._probabilities:
                logs = scores.clamp_min(1e-30).log()
            else:
                logs = torch.log_softmax(scores, dim=1)
            wanted = logs[torch.arange(len(batch)), torch.as_tensor(classes)]
            (gradient,) = torch.autograd.grad(wanted.sum(), batch)
        flat = gradient.double().cpu().numpy().reshape(len(inputs), -1)
        return wanted.detach().cpu().numpy(), flat


@final
class DifferenceClimb:
    """Gradients by finite differences along orthonormal directions: a black box is enough.

    The gradient is the projection of the true one on the span of the directions. Queries stay
    inside [lower, upper], as an interface may insist on.
    """

    def __init__(
        self,
        target: Target,
        shape: tuple[int, ...],
        directions: NDArray[np.float64],
        *,
        step: float,
        bounds: tuple[float, float],
    ) -> None:
        self.queries = 1 + len(directions)
        self._target = target
        self._shape = shape
        self._directions = directions
        self._step = step
        self._bounds = bounds

    def __call__(
        self, inputs: NDArray[np.float64], classes: NDArray[np.intp]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        moves = np.vstack([np.zeros(inputs.shape[1]), self._step * self._directions])
        values = np.empty(len(inputs))
        gradients = np.empty_like(inputs)
        for row, (point, wanted) in enumerate(zip(inputs, classes, strict=True)):
            asked = np.clip(point + moves, *self._bounds).reshape(-1, *self._shape)
            logs = np.maximum(self._target.log_probabilities(asked)[:, wanted], -1e3)
            values[row] = logs[0]
            gradients[row] = ((logs[1:] - logs[0]) / self._step) @ self._directions
        return values, gradients


@contextmanager
def _evaluating(module: Any) -> Iterator[None]:
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
