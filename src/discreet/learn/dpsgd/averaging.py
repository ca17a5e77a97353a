"""Exponential moving average of the parameters: better models at no cost.

Every step's parameters are a function of released noisy gradients, so any average of them is
post-processing (S1) and costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor, nn

from discreet import _validate
from discreet.errors import SchemaError
from discreet.learn.dpsgd.written import announced

__all__ = ["ParameterAverage"]


@final
class ParameterAverage:
    """The average a <- d a + (1 - d) p of all trainable parameters, one update a step.

    d is ``decay``, but at most (1 + t) / (10 + t) after t updates, so that the
    initial parameters are soon forgotten.

    >>> model = nn.Linear(2, 1)
    >>> average = ParameterAverage(model, decay=0.99)
    >>> average.update()
    >>> sorted(average.tensors())
    ['bias', 'weight']
    """

    def __init__(self, model: nn.Module, *, decay: float = 0.999) -> None:
        self.decay = _validate.real("decay", decay, above=0, below=1)
        self.updates = 0
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._names = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        self._averages = [parameter.detach().clone() for parameter in self._parameters]
        self._present: list[Tensor] = list(self._parameters)

    @torch.no_grad()
    def update(self) -> None:
        """Take the present parameters into the average."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        torch._foreach_lerp_(self._averages, self._present, 1.0 - decay)

    def tensors(self) -> dict[str, Tensor]:
        """The averages by parameter name."""
        return dict(zip(self._names, self._averages, strict=True))

    @torch.no_grad()
    def exchange(self) -> None:
        """Exchange parameters and averages; a second call restores them."""
        with announced(self._parameters):
            for parameter, average in zip(self._parameters, self._averages, strict=True):
                held = parameter.detach().clone()
                parameter.copy_(average)
                average.copy_(held)

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor], *, updates: int) -> None:
        """Continue from what :meth:`tensors` gave."""
        if set(tensors) != set(self._names):
            raise SchemaError("the averages are not those of this model")
        for name, average in zip(self._names, self._averages, strict=True):
            average.copy_(tensors[name])
        self.updates = updates
