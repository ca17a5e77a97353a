"""Worlds with known answers, for judging membership attacks.

In the Gaussian world a model's scaled logit on record i is base_i + gain [i used] + noise_i,
exactly: the likelihood-ratio attack is optimal there, and its area is known.
"""

import numpy as np
import pytest
from numpy.typing import NDArray

from discreet.attacks import (
    MembershipResult,
    Observation,
    ShadowPool,
    ShadowScores,
    Target,
    as_target,
)
from discreet.attacks import _shadow_scores as shadow_scores

# Six standard deviations, two sides: a false alarm in 5e8 runs, were the seeds not fixed.
SIX_SIGMA = 6.0


class GaussianWorld:
    """``train`` for a pool over ``records``; two classes, the true one has the drawn logit."""

    def __init__(self, count: int, *, gain: float, base: float = 3.0, seed: int = 0) -> None:
        draw = np.random.default_rng(seed)
        self.records = np.arange(count, dtype=np.float64)[:, None]
        self.labels = draw.integers(0, 2, count)
        self.base = base * draw.standard_normal(count)
        self.noise = draw.uniform(0.5, 1.5, count)
        self.gain = gain

    def logits(self, used: NDArray[np.bool_], seed: int) -> NDArray[np.float64]:
        draw = np.random.default_rng(seed)
        return self.base + self.gain * used + self.noise * draw.standard_normal(len(used))

    def train(self, indices: NDArray[np.intp], seed: int) -> Target:
        used = np.zeros(len(self.labels), dtype=bool)
        used[indices] = True
        values = self.logits(used, seed)

        def answer(x: NDArray[np.float64]) -> NDArray[np.float64]:
            place = x[:, 0].astype(int)
            logits = np.zeros((len(x), 2))
            logits[np.arange(len(x)), self.labels[place]] = values[place]
            return logits

        return as_target(answer, output="logits")

    def pool(self, models: int, *, seed: int = 1) -> ShadowPool:
        return ShadowPool(self.records, self.labels, self.train, models=models, seed=seed)


def by_hand(
    target: list[float],
    shadows: list[list[float]],
    inclusion: list[list[bool]],
    members: list[bool],
) -> tuple[Observation, ShadowScores]:
    """Scaled logits written down: two classes, every record of class 1."""
    count = len(target)
    digests = np.arange(count, dtype=np.uint64)
    labels = np.ones(count, dtype=np.int64)

    def log_probabilities(values: list[float]) -> NDArray[np.float64]:
        z = np.array(values)
        return np.column_stack([-np.logaddexp(0, z), -np.logaddexp(0, -z)])

    seen = Observation(log_probabilities(target), labels, np.array(members), digests)
    rows = [log_probabilities(row).astype(np.float32) for row in shadows]
    return seen, without_twins(ShadowScores(rows, np.array(inclusion), labels, digests))


def without_twins(shadows: ShadowScores) -> ShadowScores:
    """By decree: so few records cannot tell a twin of the target from chance, and are refused."""
    vars(shadows)["_twins_of"] = lambda _: np.zeros(len(shadows), dtype=bool)
    return shadows


def forget_twins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a bug: the target and its twins are taken for ordinary references."""
    monkeypatch.setattr(
        shadow_scores, "find_twins", lambda rows, _: np.zeros(len(rows), dtype=bool)
    )
    monkeypatch.setattr(ShadowScores, "_twins_of", lambda self, _: np.zeros(len(self), dtype=bool))


def assert_chance(result: MembershipResult) -> None:
    """The area is 1/2 up to six standard deviations of the Mann-Whitney statistic."""
    m, n = result.roc.members, result.roc.nonmembers
    sigma = np.sqrt((m + n + 1) / (12 * m * n))
    assert abs(result.auc - 0.5) < SIX_SIGMA * sigma


def permuted(seen: Observation, order: NDArray[np.intp]) -> Observation:
    return seen.part(order)
