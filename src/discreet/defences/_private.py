"""Training with a guarantee, as rows of the bench: DP-SGD, PATE, and synthetic records.

With next to no noise the epsilon of DP-SGD is vacuous, and the row shows what clipping and batches
do by themselves. Every canary is one record, so losses are those of one record under add_remove.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from discreet import _validate
from discreet.data import Categorical, Schema
from discreet.errors import InvalidValue
from discreet.learn.dpsgd import Plan, Trainer
from discreet.pate import PATEClassifier
from discreet.synth import Synthesizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.defences._networks import NetworkTraining
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


@final
@dataclass(frozen=True, eq=False)
class PateTraining:
    """``train(records, labels, seed)``: teachers vote on public records, and a student learns.

    ``public`` are records without labels that everybody has.
    """

    classes: int
    public: NDArray[Any]
    epsilon: float = 8.0
    delta: float = 1e-5
    teachers: int = 20

    def __post_init__(self) -> None:
        _validate.integer("classes", self.classes, at_least=2)
        _validate.integer("teachers", self.teachers, at_least=2)

    @property
    def cache_key(self) -> str:
        """All settings, as a text."""
        named = self.classes, len(self.public), self.epsilon, self.delta, self.teachers
        return f"PATE:{named}"

    @property
    def loss(self) -> Loss:
        """What is proved about every student, for one record."""
        return self._classifier().planned_loss(public_rows=len(self.public))

    def _classifier(self) -> PATEClassifier:
        return PATEClassifier(
            classes=list(range(self.classes)),
            epsilon=self.epsilon,
            delta=self.delta,
            teachers=self.teachers,
        )

    def __call__(self, records: NDArray[Any], labels: NDArray[np.int64], seed: int) -> Any:
        """Return one student; votes and noise come from the operating system, whatever the seed."""
        flat = records.reshape(len(records), -1)
        return self._classifier().fit(flat, labels, public=self.public.reshape(-1, flat.shape[1]))


@final
@dataclass(frozen=True, eq=False)
class SyntheticTraining:
    """``train(records, labels, seed)`` on synthetic records, drawn from a private model of them.

    ``categories`` says how many columns each question has: a record is bits, of which exactly one
    in each group is 1. ``network`` is trained on as many synthetic records as the model draws.
    """

    network: NetworkTraining
    categories: tuple[int, ...]
    epsilon: float = 8.0
    delta: float = 1e-5

    def __post_init__(self) -> None:
        if not self.categories or any(one < 2 for one in self.categories):
            raise InvalidValue("categories", self.categories, "at least 2 columns in each group")

    @property
    def cache_key(self) -> str:
        """All settings, as a text."""
        named = self.categories, self.epsilon, self.delta
        return f"synthetic:{named}:{self.network.cache_key}"

    @property
    def loss(self) -> Loss:
        """What is proved about every model, for one record."""
        return self._synthesizer.planned_loss()

    @property
    def _questions(self) -> list[str]:
        return [f"question {place}" for place in range(len(self.categories))]

    @cached_property
    def _synthesizer(self) -> Synthesizer:
        sizes = dict(zip(self._questions, self.categories, strict=True))
        sizes["label"] = self.network.classes
        columns = {
            name: Categorical([str(code) for code in range(size)], other="0")
            for name, size in sizes.items()
        }
        schema = Schema(columns, target="label")
        return Synthesizer(epsilon=self.epsilon, delta=self.delta, schema=schema)

    def __call__(self, records: NDArray[Any], labels: NDArray[np.int64], seed: int) -> nn.Module:
        """Return one network; the noise comes from the operating system, whatever the seed."""
        ends = np.cumsum((0, *self.categories))
        if records.shape[1:] != (ends[-1],) or not np.isin(records, (0, 1)).all():
            expected = f"bits in {ends[-1]} columns, one of each group"
            raise InvalidValue("records", f"shape {records.shape}", expected)
        table = {
            name: records[:, start:end].argmax(axis=1).astype(str)
            for name, start, end in zip(self._questions, ends[:-1], ends[1:], strict=True)
        }
        drawn = self._synthesizer.fit({**table, "label": labels.astype(str)}).sample()
        codes = [
            np.asarray(drawn.column(name).to_pylist()).astype(np.int64)
            for name in drawn.column_names
        ]
        bits = [
            np.eye(size, dtype=np.float32)[own]
            for size, own in zip(self.categories, codes[:-1], strict=True)
        ]
        return self.network(np.concatenate(bits, axis=1), codes[-1], seed)
