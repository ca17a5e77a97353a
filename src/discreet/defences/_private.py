"""Training by DP-SGD as a row of the bench: the only kind of row here that has a guarantee.

With next to no noise the epsilon is vacuous, and the row shows what clipping and batches do by
themselves. Every canary is one record, so the loss is that of one record under add_remove.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from discreet import _validate
from discreet.errors import InvalidValue
from discreet.learn.dpsgd import Plan, Trainer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.privacy import Loss


@final
@dataclass(frozen=True)
class PrivateTraining:
    """``train(records, labels, seed)`` for networks of one hidden layer, by DP-SGD.

    ``examples`` is the public number of records that the plan is made for. Give ``epsilon`` or
    ``noise_multiplier``.
    """

    classes: int
    examples: int
    epsilon: float | None = None
    noise_multiplier: float | None = None
    delta: float = 1e-5
    hidden: int = 128
    steps: int = 200
    expected_batch_size: int = 512
    clip_norm: float = 1.0
    learning_rate: float = 2.0

    def __post_init__(self) -> None:
        _validate.integer("classes", self.classes, at_least=2)
        _validate.integer("hidden", self.hidden, at_least=1)
        _validate.real("learning_rate", self.learning_rate, above=0)
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise InvalidValue("epsilon", self.epsilon, "epsilon or noise_multiplier, not both")

    @property
    def cache_key(self) -> str:
        """All settings, as a text."""
        return repr(self)

    @property
    def plan(self) -> Plan:
        """The plan of every model."""
        asked: dict[str, Any] = {"noise_multiplier": self.noise_multiplier}
        if self.epsilon is not None:
            asked = {"epsilon": self.epsilon}
        return Plan(
            examples=self.examples,
            expected_batch_size=self.expected_batch_size,
            steps=self.steps,
            clip_norm=self.clip_norm,
            delta=self.delta,
            **asked,
        )

    @property
    def loss(self) -> Loss:
        """What is proved about every model, for one record."""
        return self.plan.loss

    def __call__(self, records: NDArray[Any], labels: NDArray[np.int64], seed: int) -> nn.Module:
        """Return one network; its noise comes from the operating system, whatever the seed."""
        flat = np.ascontiguousarray(records.reshape(len(records), -1), dtype=np.float32)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layers = nn.Linear(flat.shape[1], self.hidden), nn.Linear(self.hidden, self.classes)
            model = nn.Sequential(nn.Flatten(), layers[0], nn.ReLU(), layers[1])
        trainer = Trainer(
            model,
            self.plan,
            loss=nn.CrossEntropyLoss(reduction="none"),
            optimizer=lambda weights: torch.optim.SGD(weights, lr=self.learning_rate),
        )
        data = TensorDataset(torch.from_numpy(flat), torch.from_numpy(labels.astype(np.int64)))
        return trainer.fit(data, progress=False).model
