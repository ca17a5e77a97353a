"""Defences at the output: what an interface answers instead of the probabilities of its model.

MemGuard (Jia and others 2019) adds noise to the scores so that a classifier of the defender no
longer tells members from others by them; the label stays. Here that classifier has one hidden layer
of 64, the noise is found in steps of one size, and for each query a coin that hangs on the record
decides whether the noise is added, so that asking again does not average it away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from discreet import _validate
from discreet.attacks import seeded_generator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.defences._contract import Answers

_LABEL, _DISTANCES = 10.0, (0.1, 1.0, 10.0)
_LARGEST = 30.0


@final
@dataclass(frozen=True)
class LabelOnly:
    """Answers with the class alone."""

    def __call__(self, answers: Answers) -> NDArray[np.float64]:
        """Return 0 for the class of each record and -inf for all others."""
        return _certain(answers.asked)


@final
@dataclass(frozen=True)
class Rounded:
    """Answers with the ``top`` largest probabilities, rounded to ``decimals``."""

    decimals: int = 1
    top: int = 3

    def __post_init__(self) -> None:
        _validate.integer("decimals", self.decimals, at_least=0, at_most=15)
        _validate.integer("top", self.top, at_least=1)

    def __call__(self, answers: Answers) -> NDArray[np.float64]:
        """Return logarithms of what is left, which need not sum to 1."""
        p = np.exp(answers.asked)
        rank = np.argsort(np.argsort(-p, axis=1, kind="stable"), axis=1)
        shown = np.where(rank < self.top, np.round(p, self.decimals), 0.0)
        with np.errstate(divide="ignore"):
            found = np.log(shown)
        # Where all is rounded to nothing the class is still said.
        return np.where((shown > 0).any(axis=1, keepdims=True), found, _certain(answers.asked))


@final
@dataclass(frozen=True)
class RandomScores:
    """Answers with the scores of a random input, in the order of the true ones (HAMP)."""

    def __call__(self, answers: Answers) -> NDArray[np.float64]:
        """Return sorted scores of reference records under the ranks of the asked ones."""
        draw = seeded_generator(answers.seed, 11)
        drawn = answers.reference[draw.integers(len(answers.reference), size=len(answers.asked))]
        rank = np.argsort(np.argsort(answers.asked, axis=1, kind="stable"), axis=1)
        return np.take_along_axis(np.sort(drawn, axis=1), rank, axis=1)


@final
@dataclass(frozen=True)
class MemGuard:
    """Adds noise to the scores that fools a classifier of members, and keeps the label."""

    iterations: int = 60
    step: float = 0.1
    budget: float = 1.0

    def __post_init__(self) -> None:
        _validate.integer("iterations", self.iterations, at_least=1)
        _validate.real("step", self.step, above=0)
        _validate.real("budget", self.budget, above=0)

    def __call__(self, answers: Answers) -> NDArray[np.float64]:
        """Return the scores with noise, for the records whose coin says so."""
        with torch.enable_grad():
            judge = _train_judge(answers)
            logits = torch.from_numpy(np.maximum(answers.asked, -_LARGEST)).float()
            found = self._fool(judge, logits)
        true = functional.softmax(logits, dim=1)
        with torch.no_grad():
            before = (torch.sigmoid(judge(true.sort(dim=1).values)) - 0.5).abs()[:, 0].numpy()
            after = (torch.sigmoid(judge(found.sort(dim=1).values)) - 0.5).abs()[:, 0].numpy()
        distance = (found - true).abs().sum(dim=1).numpy()
        chance = np.minimum(self.budget / np.maximum(distance, 1e-9), 1.0)
        added = (after < before) & (_coins(answers) < chance)
        with np.errstate(divide="ignore"):
            noisy = np.log(found.numpy().astype(np.float64))
        return np.where(added[:, None], noisy, answers.asked)

    def _fool(self, judge: nn.Module, logits: torch.Tensor) -> torch.Tensor:
        """Scores with the same label at which the judge is less sure, as near as they are found."""
        true = functional.softmax(logits, dim=1)
        label = logits.argmax(dim=1, keepdim=True)
        best = true.clone()
        for weight in _DISTANCES:
            noise = torch.zeros_like(logits, requires_grad=True)
            for _ in range(self.iterations):
                moved = logits + noise
                scores = functional.softmax(moved, dim=1)
                rest = moved.scatter(1, label, -torch.inf).max(dim=1, keepdim=True).values
                kept = functional.relu(rest - moved.gather(1, label)).sum(dim=1)
                unsure = judge(scores.sort(dim=1).values)[:, 0].abs()
                cost = unsure + _LABEL * kept + weight * (scores - true).abs().sum(dim=1)
                (slope,) = torch.autograd.grad(cost.sum(), noise)
                length = slope.norm(dim=1, keepdim=True).clamp(min=1e-12)
                noise = (noise - self.step * slope / length).detach().requires_grad_()
            with torch.no_grad():
                scores = functional.softmax(logits + noise, dim=1)
                same = (scores.argmax(dim=1, keepdim=True) == label)[:, 0]
                unsure = judge(scores.sort(dim=1).values)[:, 0].abs()
                fooled = same & (unsure < judge(true.sort(dim=1).values)[:, 0].abs())
                best = torch.where(fooled[:, None], scores, best)
        return best.detach()


def _train_judge(answers: Answers) -> nn.Module:
    """The defender's classifier of sorted scores: members against reference records."""
    both = np.concatenate([answers.members, answers.reference])
    x = torch.from_numpy(np.sort(np.exp(both), axis=1)).float()
    sizes = torch.tensor([float(len(answers.members)), float(len(answers.reference))])
    truth = torch.cat([torch.ones(len(answers.members)), torch.zeros(len(answers.reference))])
    weight = torch.where(truth == 1, 0.5 / sizes[0], 0.5 / sizes[1])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(answers.seed)
        judge = nn.Sequential(nn.Linear(x.shape[1], 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(judge.parameters(), lr=0.01)
    for _ in range(200):
        optimizer.zero_grad()
        losses = functional.binary_cross_entropy_with_logits(
            judge(x)[:, 0], truth, reduction="none"
        )
        (losses * weight).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return judge.requires_grad_(False)


def _coins(answers: Answers) -> NDArray[np.float64]:
    """A number from 0 to 1 that hangs on the record and on the defender's secret alone."""
    mixed = answers.names ^ np.uint64(answers.seed)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return (mixed ^ (mixed >> np.uint64(31))) / 2.0**64


def _certain(scores: NDArray[np.floating]) -> NDArray[np.float64]:
    found = np.full(scores.shape, -np.inf)
    np.put_along_axis(found, scores.argmax(axis=1)[:, None], 0.0, axis=1)
    return found
