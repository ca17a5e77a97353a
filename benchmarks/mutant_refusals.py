"""What the package does when it is asked for the faults of mutant_learners.py.

Where a fault can be asked for, the package must refuse it; the rest cannot be asked for,
because the plan decides it, and ``why`` says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from discreet.errors import InvalidValue, PlanViolation
from discreet.learn import PrivateCategoricalNB
from discreet.learn.dpsgd import Plan, make_private
from discreet.pate import check_disjoint


@dataclass(frozen=True)
class Refusal:
    """An attempt at a fault and the error that must end it, or why there is none to make."""

    why: str
    attempt: Callable[[], object] | None = None
    error: type[Exception] = InvalidValue


def small_plan(clip_norm: float = 1.0) -> Plan:
    return Plan(
        examples=16,
        expected_batch_size=4,
        steps=2,
        clip_norm=clip_norm,
        noise_multiplier=1.0,
        delta=1e-3,
    )


def loop_with(model: nn.Module) -> None:
    """Two steps in a loop of one's own."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = make_private(model, optimizer, small_plan())
    data = TensorDataset(torch.zeros(16, 3), torch.zeros(16, dtype=torch.int64))
    for inputs, targets in private.batches(data):
        losses = nn.functional.cross_entropy(model(inputs), targets, reduction="none")
        private.backward(losses)
        optimizer.step()
        optimizer.zero_grad()


def own_batches() -> None:
    """A step on a shuffled batch that the plan did not draw."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    make_private(model, optimizer, small_plan())
    inputs, targets = torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64)
    nn.functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()


REFUSALS = {
    "no clipping": Refusal("no infinite clip norm", lambda: small_plan(math.inf)),
    "clipping after averaging": Refusal("the engine clips each record; there is no option"),
    "noise divided by the batch size twice": Refusal("the plan sets noise and normaliser"),
    "noise once per epoch": Refusal("every step of the plan takes fresh noise"),
    "one seed in every step": Refusal(
        "noise is the operating system's; a seed is certified INSECURE"
    ),
    "shuffling accounted as Poisson": Refusal(
        "only batches that the plan drew", own_batches, PlanViolation
    ),
    "normaliser read off the data": Refusal("the plan's expected batch size, always"),
    "BatchNorm left in": Refusal(
        "the model mixes records",
        lambda: loop_with(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))),
        PlanViolation,
    ),
    "PATE teachers that overlap": Refusal(
        "every part is checked",
        lambda: check_disjoint([np.array([0, 1]), np.array([1, 2])], rows=3),
    ),
    "categories read off the data": Refusal(
        "categories must be declared",
        lambda: PrivateCategoricalNB(classes=[0, 1]).fit([["Zug"], ["Bern"]], [0, 1]),
    ),
}
