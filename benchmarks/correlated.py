"""Correlated noise: its error of prefix sums, and what linear models gain by it.

The tables of published strategies, computed again, and softmax regression on MNIST and on SST-2
(hashed words) at equal epsilon: Poisson samples with independent noise against groups that take
turns with the number of bands that ``noise="best"`` chooses. Both have the same steps and batches,
and for both the better of the same learning rates is shown, on test data, which are public here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from discreet.privacy import Strategy
from harness import Run, Suite, found, target

if TYPE_CHECKING:
    from torch.utils.data import TensorDataset

# Steps, participations, separation, and root mean squared errors: of the square root cut to as
# many bands as the separation, and of the best bands. Computed on their own for FRONTIER.md.
TABLE = {(1024, 8, 128): (10.294, 9.965), (2048, 16, 128): (18.534, 17.137)}
STEPS_AN_EPOCH = 64
RATES = (0.5, 2.0)
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


def models(asked: Run) -> list[list[Any]]:
    """Return data, epochs, epsilon, bands, and accuracy with independent and correlated noise."""
    from discreet.learn.dpsgd import Plan

    rows = []
    for name, load in (("MNIST", pictures), ("SST-2", sentences)):
        people, test = load()
        for epochs, epsilon in (
            ((1, 8.0),) if asked.quick else ((1, 1.0), (1, 8.0), (4, 1.0), (4, 8.0))
        ):
            common: dict[str, Any] = {
                "steps": STEPS_AN_EPOCH * epochs,
                "expected_batch_size": len(people) / STEPS_AN_EPOCH,
                "epsilon": epsilon,
            }
            best = {"sampler": "cyclic", "noise": "best"}
            turns = Plan(examples=len(people), clip_norm=1.0, delta=1e-5, **common, **best)
            chosen = {"sampler": "cyclic", "noise": turns.noise}
            reached = [
                max(accuracy(people, test, {**common, **more}, rate) for rate in RATES)
                for more in ({}, chosen)
            ]
            rows.append([name, epochs, epsilon, turns.groups, *reached])
    return rows


def measure(asked: Run) -> dict[str, Any]:
    parts = {"errors": errors, "models": lambda: models(asked)}
    return {name: part() for name, part in parts.items() if asked.wants(name)}


def targets(record: dict[str, Any]) -> list[dict[str, Any]]:
    listed = []
    for steps, times, apart, *values in found(record, "errors"):
        known = TABLE[(steps, times, apart)]
        for what, value, expected in zip(("cut", "best"), values, known, strict=True):
            name = f"{steps} steps, {times} times, {apart} apart: error of {what} bands"
            listed.append(target(f"{name} off {expected}", abs(value - expected), at_most=6e-4))
    for name, epochs, epsilon, bands, plain, best in found(record, "models"):
        if epochs == 1:
            what = f"{name}, {epochs} epoch, epsilon {epsilon:g}, {bands} bands: accuracy gained"
            listed.append(target(what, best - plain, at_least=0.0))
    return listed


SUITE = Suite("correlated", measure, targets, parts=("errors", "models"))
