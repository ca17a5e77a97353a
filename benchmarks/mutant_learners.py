"""Learners with one fault each, and the right one that they differ from.

:class:`Learner` is DP-SGD for logistic regression in a page of numpy, as one writes it for
oneself: it is given a plan and claims the plan's loss. Every other class overrides one method
and is wrong there. :func:`votes` and :func:`bayes` do the same for PATE and for naive Bayes,
with the aggregator and the learner of the package.

Noise is seeded here; it protects nobody. Nothing in this file is meant to be used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.learn import PrivateCategoricalNB
from discreet.learn.dpsgd import Plan
from discreet.pate import GNMax, check_disjoint, partition_records
from discreet.randomness import source

Array = NDArray[np.float64]
LOUD = 1e3


class Learner:
    """DP-SGD as it should be: clip each gradient, add, noise, divide by a public number.

    A parameter has a coordinate for each feature and, after them, one for each canary, on
    which no ordinary record depends.
    """

    def __init__(self, plan: Plan, *, features: int, coordinates: int, seed: int) -> None:
        self.plan = plan
        self.features = features
        self.size = features + coordinates
        self.random = np.random.default_rng(seed)

    def batches(self, records: int) -> Iterator[NDArray[np.intp]]:
        """Poisson sampling, or everything."""
        rate = 1.0 if self.plan.sampler == "full" else self.plan.rate_of(self.plan.phases[0])
        for _ in range(self.plan.steps):
            yield np.flatnonzero(self.random.random(records) < rate)

    def prepared(self, inputs: Array) -> Array:
        return inputs

    def clipped_sum(self, gradients: Array) -> Array:
        norms = np.linalg.norm(gradients, axis=1)
        weights = np.minimum(1.0, self.plan.clip_norm / np.maximum(norms, 1e-300))
        return np.asarray(weights @ gradients)

    def noise(self, step: int) -> Array:
        stddev = self.plan.noise_multiplier * self.plan.clip_norm
        return stddev * self.random.standard_normal(self.size)

    def normaliser(self, batch: NDArray[np.intp]) -> float:
        return float(self.plan.expected_batch_size)

    def gradients(self, weights: Array, inputs: Array, labels: Array, marks: Any) -> Array:
        """One row for each record: of the logistic loss, or of the canary's own coordinate."""
        found = np.zeros((len(labels), self.size))
        seen = self.prepared(inputs)
        error = 1.0 / (1.0 + np.exp(-seen @ weights[: self.features])) - labels
        ordinary = marks < 0
        found[ordinary, : self.features] = (error[:, None] * seen)[ordinary]
        found[~ordinary, self.features + marks[~ordinary]] = LOUD
        return found

    def train(self, inputs: Array, labels: Array, marks: NDArray[np.int64]) -> Array:
        """What the run released, step by step: one noisy gradient for each."""
        weights = np.zeros(self.size)
        released = []
        for step, batch in enumerate(self.batches(len(labels))):
            rows = self.gradients(weights, inputs[batch], labels[batch], marks[batch])
            total = self.clipped_sum(rows) + self.noise(step)
            released.append(total / self.normaliser(batch))
            weights = weights - 0.5 * released[-1]
        return np.array(released)


class NoClipping(Learner):
    """Gradients are added as they are."""

    def clipped_sum(self, gradients: Array) -> Array:
        return np.asarray(gradients.sum(axis=0))


class ClippingAfterAveraging(Learner):
    """The mean gradient is clipped, not each gradient."""

    def clipped_sum(self, gradients: Array) -> Array:
        mean = gradients.mean(axis=0)
        weight = min(1.0, self.plan.clip_norm / max(float(np.linalg.norm(mean)), 1e-300))
        return np.asarray(self.plan.expected_batch_size * weight * mean)


class NoiseDividedTwice(Learner):
    """Noise for the mean, added to the sum, and divided by the batch size again."""

    def noise(self, step: int) -> Array:
        return super().noise(step) / self.plan.expected_batch_size


class ShuffledBatches(Learner):
    """Shuffled epochs, charged as Poisson sampling."""

    def batches(self, records: int) -> Iterator[NDArray[np.intp]]:
        count = round(1.0 / self.plan.rate_of(self.plan.phases[0]))
        left: list[NDArray[np.intp]] = []
        for _ in range(self.plan.steps):
            left = left or np.array_split(self.random.permutation(records), count)
            yield left.pop()


class NoiseOncePerEpoch(Learner):
    """Noise in the first step of every epoch only."""

    def noise(self, step: int) -> Array:
        drawn = super().noise(step)
        epoch = round(1.0 / self.plan.rate_of(self.plan.phases[0]))
        return drawn if step % epoch == 0 else 0.0 * drawn


class SeedReused(Learner):
    """The generator is seeded again in every step: the same noise each time."""

    def noise(self, step: int) -> Array:
        if step == 0:
            self.drawn = super().noise(step)
        return self.drawn


class RealisedNormaliser(Learner):
    """Divides by the number of records in the batch."""

    def normaliser(self, batch: NDArray[np.intp]) -> float:
        return float(max(1, batch.size))


class BatchNormLeftIn(Learner):
    """Inputs are normalised by mean and deviation of the batch."""

    def prepared(self, inputs: Array) -> Array:
        return np.asarray((inputs - inputs.mean(axis=0)) / (inputs.std(axis=0) + 1e-5))


# --- PATE --------------------------------------------------------------------------------


TEACHERS = 50
AGGREGATOR = GNMax(classes=2, teachers=TEACHERS, noise=3)


def votes(records: Array, labels: NDArray[np.int64], *, overlap: bool, seed: int) -> list[int]:
    """How the teachers vote on one query at 0, each by the nearest record that it has."""
    random = np.random.default_rng(seed)
    if overlap:
        # "Bagging": every teacher has a random four fifths of all records.
        parts = [np.flatnonzero(random.random(len(labels)) < 0.8) for _ in range(TEACHERS)]
    else:
        split = partition_records(records, labels, teachers=TEACHERS, insecure_seed=seed)
        parts = [split.members(teacher) for teacher in range(TEACHERS)]
        check_disjoint(parts, rows=len(labels))
    far = np.abs(records)
    chosen = [int(labels[part[np.argmin(far[part])]]) if part.size else 0 for part in parts]
    return [chosen.count(0), chosen.count(1)]


def aggregated(table: list[list[int]], *, seed: int) -> list[int]:
    """One label for each row of votes; each row is a run of its own."""
    session = AGGREGATOR.open(queries=len(table), source=source(insecure_seed=seed))
    labels = session.answer_many(table)
    return [int(label) for label in labels if label is not None]


# --- naive Bayes -------------------------------------------------------------------------


TOWNS = ("Aalen", "Bern", "Cork", "Zug")


def bayes(
    towns: list[str], labels: list[int], *, from_data: bool, epsilon: float, seed: int
) -> PrivateCategoricalNB:
    """A model whose categories are declared, or are those that occur."""
    categories = sorted(set(towns)) if from_data else list(TOWNS)
    model = PrivateCategoricalNB(
        epsilon=epsilon, classes=[0, 1], categories=[categories], insecure_seed=seed
    )
    return model.fit(np.array(towns, dtype=object)[:, None], labels)
