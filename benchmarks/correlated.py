"""Correlated noise: its error of prefix sums, and what linear models gain by it.

The tables of published strategies, computed again, and softmax regression on MNIST and on SST-2
(hashed words) at equal epsilon: Poisson samples with independent noise against groups that take
turns with the number of bands that ``noise="best"`` chooses. Both have the same steps and batches,
and for both the best of the same learning rates is shown, on test data, which are public here.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet.privacy import Strategy
from harness import Run, Suite, found, target

if TYPE_CHECKING:
    from torch.utils.data import TensorDataset

# Steps, participations, separation, and root mean squared errors: of the square root cut to as
# many bands as the separation, and of the best bands. Computed on their own for FRONTIER.md.
TABLE = {(1024, 8, 128): (10.294, 9.965), (2048, 16, 128): (18.534, 17.137)}
STEPS_AN_EPOCH = 256
SETTINGS = ((1, 1.0), (1, 8.0), (4, 1.0), (4, 8.0))  # epochs, epsilon
RATES = (0.5, 2.0, 8.0)
RUNS = 2
WORDS = 1024


def errors() -> list[list[float]]:
    """Return the errors of the table, as they are computed now."""
    rows = []
    for steps, times, apart in TABLE:
        row: list[float] = [steps, times, apart]
        for strategy in (Strategy.square_root(apart), Strategy.optimised(apart, steps=steps)):
            reach = strategy.sensitivity(steps=steps, separation=apart, participations=times)
            row.append(reach * strategy.error(steps=steps))
        rows.append(row)
    return rows


def pictures() -> tuple[TensorDataset, TensorDataset]:
    """Return MNIST as rows of norm 1."""
    import torch
    from torch import nn
    from torch.utils.data import TensorDataset

    from discreet import data

    split = data.mnist()

    def rows(images: Any, labels: Any) -> TensorDataset:
        flat = torch.as_tensor(np.asarray(images), dtype=torch.float32).reshape(len(images), -1)
        return TensorDataset(
            nn.functional.normalize(flat), torch.as_tensor(np.asarray(labels)).long()
        )

    return rows(split.x_train, split.y_train), rows(split.x_test, split.y_test)


def sentences() -> tuple[TensorDataset, TensorDataset]:
    """Return SST-2 as hashed words and pairs of words, of norm 1."""
    import torch
    from sklearn.feature_extraction.text import HashingVectorizer
    from torch.utils.data import TensorDataset

    from discreet import data

    hashed = HashingVectorizer(n_features=WORDS, ngram_range=(1, 2), alternate_sign=True)
    split = data.sst2()

    def rows(texts: Any, labels: Any) -> TensorDataset:
        dense = torch.from_numpy(hashed.transform(texts).toarray().astype(np.float32))
        return TensorDataset(dense, torch.as_tensor(np.asarray(labels)).long())

    return tuple(rows(split.texts[part], split.labels[part]) for part in ("train", "test"))  # type: ignore[return-value]


def accuracy(
    people: TensorDataset, test: TensorDataset, budget: dict[str, Any], rate: float
) -> float:
    """Train a linear model by a plan and return its accuracy on test data."""
    import torch
    from torch import nn

    from discreet.learn.dpsgd import Plan, Trainer

    torch.manual_seed(0)
    classes = int(people.tensors[1].max()) + 1
    model = nn.Linear(people.tensors[0].shape[1], classes)
    nn.init.zeros_(model.weight)
    run = Trainer(
        model,
        Plan(examples=len(people), clip_norm=1.0, delta=1e-5, **budget),
        loss=nn.CrossEntropyLoss(reduction="none"),
        optimizer=lambda p: torch.optim.SGD(p, lr=rate, momentum=0.9),
    )
    trained = run.fit(people, progress=False)
    with torch.no_grad():
        return float((trained.model(test.tensors[0]).argmax(1) == test.tensors[1]).float().mean())


def models(load: Callable[[], tuple[TensorDataset, TensorDataset]], asked: Run) -> list[list[Any]]:
    """Return epochs, epsilon, bands, and accuracy with independent and with correlated noise."""
    from discreet.learn.dpsgd import Plan

    people, test = load()
    runs, rates = (1, RATES[:1]) if asked.quick else (RUNS, RATES)
    rows = []
    for epochs, epsilon in SETTINGS[:1] if asked.quick else SETTINGS:
        common: dict[str, Any] = {
            "steps": STEPS_AN_EPOCH * epochs,
            "expected_batch_size": len(people) / STEPS_AN_EPOCH,
            "epsilon": epsilon,
        }
        best = {"sampler": "cyclic", "noise": "best"}
        turns = Plan(examples=len(people), clip_norm=1.0, delta=1e-5, **common, **best)
        reached = [
            max(
                statistics.fmean(
                    accuracy(people, test, {**common, **more}, rate) for _ in range(runs)
                )
                for rate in rates
            )
            for more in ({}, {"sampler": "cyclic", "noise": turns.noise})
        ]
        rows.append([epochs, epsilon, turns.groups, *reached])
        print(rows[-1], flush=True)
    return rows


def measure(asked: Run) -> dict[str, Any]:
    parts = {
        "errors": errors,
        "MNIST": lambda: models(pictures, asked),
        "SST-2": lambda: models(sentences, asked),
    }
    return {name: part() for name, part in parts.items() if asked.wants(name)}


def targets(record: dict[str, Any]) -> list[dict[str, Any]]:
    listed = []
    for steps, times, apart, *values in found(record, "errors"):
        known = TABLE[(steps, times, apart)]
        for what, value, expected in zip(("cut", "best"), values, known, strict=True):
            name = f"{steps} steps, {times} times, {apart} apart: error of {what} bands"
            listed.append(target(f"{name} off {expected}", abs(value - expected), at_most=6e-4))
    return listed


def table(record: dict[str, Any]) -> str:
    """Return the accuracies as a table of the documentation."""
    lines = [
        "| data | epochs | ε | bands | independent noise | correlated noise |",
        "|---|---|---|---|---|---|",
    ]
    for name in ("MNIST", "SST-2"):
        for epochs, epsilon, bands, *reached in found(record, name):
            shown = " | ".join(f"{100 * value:.1f} %" for value in reached)
            lines.append(f"| {name} | {epochs} | {epsilon:g} | {bands} | {shown} |")
    return "\n".join(lines)


SUITE = Suite(
    "correlated",
    measure,
    targets,
    parts=("errors", "MNIST", "SST-2"),
    tables={("docs/accounting.md", "correlated.json"): table},
)
