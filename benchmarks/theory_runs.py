"""One cell of theory_practice.py: noise for a claim, and a run that is attacked and audited."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import TensorDataset

from attack_shokri import adult_records, location_records
from discreet.attacks import observe_split, yeom
from discreet.audit import Inclusion, audit_one_run, suggest_guesses
from discreet.learn.dpsgd import Plan, make_private
from discreet.learn.dpsgd.canaries import GradientCanaries
from discreet.privacy import GDP, Gaussian, Loss, calibrate

EPSILONS = (0.1, 0.5, 1.0, 5.0, 10.0, 50.0, 100.0, 500.0, 1000.0)
ACCOUNTANTS = ("naive", "advanced", "zcdp", "rdp", "pld")
MODELS = ("logistic regression", "network")
DELTA = 1e-5
CANARIES = 1000
MOST_GUESSES = 430
Records = tuple[NDArray[np.float32], NDArray[np.int64]]


@dataclass(frozen=True)
class Setting:
    """A data set and how it is trained on: as many members as non-members, all of it public."""

    name: str
    read: Callable[[], Records]
    members: int
    batch: int
    steps: int
    rates: tuple[float, float]

    @property
    def examples(self) -> int:
        return self.members + CANARIES // 2

    def plan(self, noise_multiplier: float) -> Plan:
        return Plan(
            examples=self.examples,
            expected_batch_size=self.batch,
            steps=self.steps,
            clip_norm=1.0,
            noise_multiplier=noise_multiplier,
            delta=DELTA,
        )

    def loss(self, noise_multiplier: float, accountant: str) -> Loss:
        """What is read by an accountant: zCDP knows no sampling, so it is left out there."""
        step = Gaussian(noise_multiplier=noise_multiplier)
        if accountant == "zcdp":
            return self.steps * step
        return self.steps * step.poisson(rate=self.batch / self.examples)

    def noise(self, epsilon: float, accountant: str) -> float:
        """The least noise that the accountant lets pass as (epsilon, 1e-5)."""
        return calibrate(
            lambda multiplier: self.loss(multiplier, accountant),
            epsilon=epsilon,
            delta=DELTA,
            bracket=(1e-3, 1e6),
            increasing=False,
            accountant=accountant,
        )


ADULT = Setting("Adult", adult_records, 5000, 275, 200, (2.0, 2.0))
LOCATION = Setting("Location-30", location_records, 2500, 300, 200, (4.0, 4.0))


@cache
def purchases(path: Path) -> Setting:
    """Purchase-100, if its file is given: the class (from 1), then 600 products, as text."""

    def read() -> Records:
        table = np.loadtxt(path, delimiter=",", dtype=np.int16)
        return table[:, 1:].astype(np.float32), table[:, 0].astype(np.int64) - 1

    return Setting("Purchase-100", read, 5000, 275, 200, (4.0, 4.0))


@cache
def records_of(setting: Setting) -> Records:
    return setting.read()


@cache
def halves(setting: Setting, seed: int) -> tuple[Records, Records]:
    """Members and non-members, disjoint, by a seeded permutation."""
    x, y = records_of(setting)
    order = np.random.default_rng(seed).permutation(len(y))
    inside, outside = order[: setting.members], order[setting.members : 2 * setting.members]
    return (x[inside], y[inside]), (x[outside], y[outside])


def model_for(kind: str, columns: int, classes: int) -> nn.Module:
    if kind == "logistic regression":
        return nn.Linear(columns, classes)
    return nn.Sequential(nn.Linear(columns, 64), nn.Tanh(), nn.Linear(64, classes))


def tensors(records: Records) -> TensorDataset:
    return TensorDataset(torch.from_numpy(records[0]), torch.from_numpy(records[1]))


def measured(model: nn.Module, members: Records, others: Records) -> dict[str, float]:
    """Accuracy on records that were not trained on, and what Yeom's attack gets."""
    model.eval()
    with torch.no_grad():
        right = model(torch.from_numpy(others[0])).argmax(1).numpy() == others[1]
    seen = observe_split(model, members=members, nonmembers=others)
    return {
        "accuracy": float(right.mean()),
        "advantage": float(yeom(seen).advantage().value),
    }


def plain_model(kind: str, records: Records, classes: int, seed: int) -> nn.Module:
    """A twin without privacy: Adam, thirty epochs."""
    torch.manual_seed(seed)
    model = model_for(kind, records[0].shape[1], classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    x, y = tensors(records).tensors
    for _ in range(30):
        for rows in torch.randperm(len(y)).split(100):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return model.eval()


def plain(setting: Setting, kind: str, seed: int) -> dict[str, float]:
    """The twin without privacy, attacked."""
    members, others = halves(setting, seed)
    model = plain_model(kind, members, int(members[1].max()) + 1, seed)
    return measured(model, members, others)


@cache
def guesses_at(setting: Setting, noise_multiplier: float) -> tuple[int, int]:
    """How many canaries to guess about, from the plan alone, by the central limit theorem."""
    rate = setting.batch / setting.examples
    spread = math.expm1(min(50.0, noise_multiplier**-2.0))
    mu = min(6.0, max(0.05, rate * math.sqrt(setting.steps * spread)))
    half = suggest_guesses(GDP(mu=mu), canaries=CANARIES, delta=DELTA)[0]
    # About 500 are included, give or take 16: guessing more would be wrong for certain.
    return min(half, MOST_GUESSES), min(half, MOST_GUESSES)


def private(
    setting: Setting, kind: str, *, noise_multiplier: float, epsilon: float, seed: int
) -> dict[str, Any]:
    """One run by the plan, with gradient canaries in it; noise and coins from the system."""
    start = time.perf_counter()
    members, others = halves(setting, seed)
    plan = setting.plan(noise_multiplier)
    coins = Inclusion(CANARIES, guesses=guesses_at(setting, noise_multiplier))
    torch.manual_seed(seed)
    canaries = GradientCanaries(
        model_for(kind, members[0].shape[1], int(members[1].max()) + 1),
        tensors(members),
        plan,
        included=coins.included,
        loss=nn.CrossEntropyLoss(reduction="none"),
    )
    rate = setting.rates[MODELS.index(kind)]
    optimizer = torch.optim.SGD(canaries.model.parameters(), lr=rate)
    canaries.watch(optimizer)
    loop = make_private(canaries.model, optimizer, plan, inputs=canaries.inputs)
    for batch in loop.batches(canaries.dataset):
        loop.backward(canaries.losses(canaries.model, batch))
        optimizer.step()
        optimizer.zero_grad()
    audit = audit_one_run(coins, canaries.scores(), epsilon=epsilon, delta=DELTA)
    return {
        **measured(canaries.model.model, members, others),
        "epsilon_lower": audit.epsilon_lower,
        "ceiling": audit.ceiling,
        "verdict": audit.verdict,
        "seconds": round(time.perf_counter() - start, 2),
    }
