"""The attack model of Shokri et al. (2017): 64 units on plain confidences, trained by plain SGD.

The paper trains its networks record by record with a rate of 0.001 that decays by 1e-7 for each
record. Here a step is made for a batch, with the sum of the gradients of its records: as long
as the rate is small the weights hardly change within a batch, and the path is the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin

RATE = 1e-3
DECAY = 1e-7
EPOCHS = 100
BATCH = 32
UNITS = 64


class PapersAttackModel(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """From log-confidences to member or not: ReLU units and softmax, for `shokri()`."""

    def __init__(self, *, epochs: int = EPOCHS, units: int = UNITS, seed: int = 0) -> None:
        self.epochs = epochs
        self.units = units
        self.seed = seed

    def fit(self, x: Any, y: Any) -> PapersAttackModel:
        draw = np.random.default_rng(self.seed)
        confidences = np.exp(x).astype(np.float32)
        self.classes_, place = np.unique(y, return_inverse=True)
        wanted = np.eye(len(self.classes_), dtype=np.float32)[place]
        widths = (confidences.shape[1], self.units, len(self.classes_))
        self.weights_ = [
            draw.uniform(-1, 1, size=shape).astype(np.float32) / np.float32(np.sqrt(fan_in))
            for fan_in, fan_out in ((widths[0], widths[1]), (widths[1], widths[2]))
            for shape in ((fan_in, fan_out), (fan_out,))
        ]
        seen = 0
        for _ in range(self.epochs):
            order = draw.permutation(len(confidences))
            for start in range(0, len(order), BATCH):
                batch = order[start : start + BATCH]
                self._step(confidences[batch], wanted[batch], RATE / (1 + seen * DECAY))
                seen += len(batch)
        return self

    def predict_proba(self, x: Any) -> Any:
        return self._forward(np.exp(x).astype(np.float32))[1]

    def predict(self, x: Any) -> Any:
        return self.classes_[self.predict_proba(x).argmax(axis=1)]

    def _forward(self, x: Any) -> tuple[Any, Any]:
        first, first_bias, second, second_bias = self.weights_
        hidden = np.maximum(x @ first + first_bias, 0)
        logits = hidden @ second + second_bias
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        return hidden, odds / odds.sum(axis=1, keepdims=True)

    def _step(self, x: Any, wanted: Any, rate: float) -> None:
        hidden, said = self._forward(x)
        slope = np.float32(rate) * (said - wanted)
        back = (slope @ self.weights_[2].T) * (hidden > 0)
        slopes = (x.T @ back, back.sum(axis=0), hidden.T @ slope, slope.sum(axis=0))
        for weight, change in zip(self.weights_, slopes, strict=True):
            weight -= change
