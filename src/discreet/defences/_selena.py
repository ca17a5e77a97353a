"""SELENA: answers by models that have not seen a record, distilled (Tang and others 2022).

Each of ``splits`` networks is trained without a share of the records, so that each is left out of
``left_out`` of them. Their mean answer about it, as if it were new, is what the released network
is trained to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import nn

from discreet import _validate
from discreet.attacks import seeded_generator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.defences._networks import NetworkTraining


@final
@dataclass(frozen=True, eq=False)
class Selena:
    """``train(records, labels, seed)`` by way of ``splits`` networks of the given training."""

    network: NetworkTraining
    splits: int = 25
    left_out: int = 10

    def __post_init__(self) -> None:
        _validate.integer("splits", self.splits, at_least=2)
        _validate.integer("left_out", self.left_out, at_least=1, at_most=self.splits - 1)

    @property
    def cache_key(self) -> str:
        """All settings, as a text."""
        return f"Selena:{self.splits},{self.left_out}:{self.network.cache_key}"

    def __call__(self, records: NDArray[Any], labels: NDArray[np.int64], seed: int) -> nn.Module:
        """Return the distilled network."""
        draw = seeded_generator(seed, 31)
        absent = leave_out(len(records), self.splits, self.left_out, seed)
        seeds: Sequence[int] = [int(one) for one in draw.integers(2**32, size=self.splits)]
        parts = [(records[~own], labels[~own]) for own in absent]
        models = self.network.many(parts, seeds)
        x = torch.from_numpy(np.ascontiguousarray(records, dtype=np.float32))
        answers = np.zeros((len(records), self.network.classes))
        with torch.no_grad():
            for model, own in zip(models, absent, strict=True):
                answers[own] += model(x[torch.from_numpy(own)]).softmax(dim=1).numpy()
        return self.network(records, answers / self.left_out, seed)


def leave_out(records: int, splits: int, left_out: int, seed: int) -> NDArray[np.bool_]:
    """Return which records each model is trained without, (splits, records).

    >>> leave_out(9, 5, 2, seed=1).sum(axis=0).tolist() == [2] * 9
    True
    """
    draw = seeded_generator(seed, 32)
    rank = np.argsort(draw.random((records, splits)), axis=1)
    absent = np.zeros((splits, records), dtype=bool)
    for place in range(left_out):
        absent[rank[:, place], np.arange(records)] = True
    return absent
