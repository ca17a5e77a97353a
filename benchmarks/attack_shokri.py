"""Shokri's attack in the settings of the paper: Location-30, Adult, MNIST, made-up purchases.

`measure()` returns the rows; benchmarks/reproduce_attacks.py calls it. In every setting the
target's members, the non-members it is judged on and the records of the shadow models are
three sets without a common record. The paper's targets were trained by a cloud service whose
models are not known: ours were chosen by their accuracies on training and test data.

Each target is attacked twice. "As in the paper" is a network of 64 units for each class that
sees the plain vector of confidences, trained as scikit-learn does without options. "Ours" is
`shokri()` without options. For Location the paper's attack is repeated with attack models that
were trained for shorter: the paper does not say for how long, and it matters.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from discreet.attacks import (
    MembershipResult,
    NetworkTrainer,
    Observation,
    Perceptron,
    ShadowPool,
    ShadowScores,
    observe_split,
    shokri,
)
from discreet.data import Encoding, location30, mnist, read_table
from discreet.data.made_up_purchases import made_up_purchases
from learners_tasks import adult_schema, census

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
PURCHASE_CLASSES = (2, 10, 20, 50, 100)
SHORTER = (10, 30, 100)


@dataclass(frozen=True)
class Setting:
    """A data set, a target and what the paper reports: train and test accuracy, precision."""

    name: str
    load: Callable[[], tuple[Any, Any]]
    members: int
    pool: int
    shadows: int
    network: Callable[[int, int], Perceptron]
    training: dict[str, Any]
    paper: tuple[float, float, float]
    within: float | None = None
    epochs: tuple[int, ...] = ()


def use_shared_data() -> None:
    if "DISCREET_DATA" not in os.environ and SHARED.is_dir():
        os.environ["DISCREET_DATA"] = str(SHARED)


def location_records() -> tuple[Any, Any]:
    data = location30()
    return data.x.astype(np.float32), data.y.astype(np.int64)


def adult_records() -> tuple[Any, Any]:
    """The training part of Adult; people who look alike count once."""
    train = census().train
    encoding = Encoding(adult_schema(train))
    table = read_table(train, encoding.schema)
    x, y = encoding.features(table).astype(np.float32), encoding.target(table)
    _, first = np.unique(np.column_stack([x, y]), axis=0, return_index=True)
    return x[first], np.asarray(y)[first].astype(np.int64)


def digit_records() -> tuple[Any, Any]:
    data = mnist()
    return data.x_train.reshape(-1, 784).astype(np.float32) / 255, data.y_train.astype(np.int64)


def basket_records(classes: int) -> tuple[Any, Any]:
    data = made_up_purchases(16_000, classes=classes, seed=1)
    return data.x.astype(np.float32), data.y


def wide(columns: int, classes: int) -> Perceptron:
    return Perceptron(columns, classes, hidden=(256,))


def papers_own(columns: int, classes: int) -> Perceptron:
    """The paper's local network for the purchases: 128 units, tanh."""
    return Perceptron(columns, classes, hidden=(128,), activation="tanh")


SETTINGS = (
    Setting(
        "Location-30",
        location_records,
        1600,
        1810,
        60,
        wide,
        {"epochs": 30, "weight_decay": 1e-3},
        (1.000, 0.673, 0.678),
        within=0.03,
        epochs=SHORTER,
    ),
    Setting(
        "Adult",
        adult_records,
        8000,
        16_000,
        20,
        Perceptron,
        {"epochs": 20},
        (0.848, 0.842, 0.503),
        within=0.03,
    ),
    Setting(
        "MNIST, 10,000 records",
        digit_records,
        10_000,
        20_000,
        10,
        Perceptron,
        {"epochs": 60},
        (0.984, 0.928, 0.517),
        within=0.03,
    ),
    *(
        Setting(
            f"made-up purchases, {classes} classes",
            lambda classes=classes: basket_records(classes),  # type: ignore[misc]
            4000,
            8000,
            5,
            papers_own,
            {"epochs": 30},
            figures,
        )
        for classes, figures in zip(
            PURCHASE_CLASSES,
            (
                (0.999, 0.984, 0.505),
                (0.990, 0.866, 0.550),
                (1.000, 0.781, 0.590),
                (1.000, 0.693, 0.860),
                (0.999, 0.659, 0.935),
            ),
            strict=True,
        )
    ),
)


@dataclass(frozen=True)
class Scene:
    """A target under attack: what it says, and what the shadow models say."""

    seen: Observation
    shadows: ShadowScores
    train_accuracy: float
    test_accuracy: float
    seconds: float


def scene(setting: Setting, seed: int) -> Scene:
    """Train the target and its shadow models on records that they do not share."""
    x, y = setting.load()
    classes = int(y.max()) + 1
    order = np.random.default_rng(seed).permutation(len(x))
    size = setting.members
    inside, outside, pool = np.split(order[: 2 * size + setting.pool], [size, 2 * size])
    network = setting.network(x.shape[1], classes)
    target = NetworkTrainer(x, y, network, **setting.training)(inside, seed)
    seen = observe_split(
        target, members=(x[inside], y[inside]), nonmembers=(x[outside], y[outside]), overlap="drop"
    )
    right = seen.log_probabilities.argmax(axis=1) == seen.labels
    start = time.perf_counter()
    trainer = NetworkTrainer(x[pool], y[pool], network, **setting.training)
    shadows = ShadowPool(
        x[pool], y[pool], trainer, models=setting.shadows, classes=classes, seed=seed
    ).run()
    seconds = time.perf_counter() - start
    train, test = float(right[seen.members].mean()), float(right[~seen.members].mean())
    return Scene(seen, shadows, train, test, seconds)


def plain_confidences(epochs: int | None, seed: int) -> Any:
    """The paper's attack model: 64 units on probabilities, not on their logarithms."""
    longest = {} if epochs is None else {"max_iter": epochs}
    return make_pipeline(
        FunctionTransformer(np.exp), MLPClassifier((64,), random_state=seed, **longest)
    )


@contextmanager
def cut_short() -> Iterator[None]:
    """Attack models that stop before they converge are what is being compared."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def figures(result: MembershipResult, seconds: float) -> dict[str, Any]:
    precision = result.precision()
    by_class = [
        float(result.members[called].mean())
        for label in np.unique(result.labels)
        if (called := (result.labels == label) & np.asarray(result.decisions)).any()
    ]
    return {
        "precision": None if precision is None else precision.to_json(),
        "mean_over_classes": statistics.fmean(by_class) if by_class else None,
        "recall": result.recall().to_json(),
        "accuracy": result.accuracy().to_json(),
        "auc": result.auc,
        "seconds": seconds,
    }


def attacked(found: Scene, seed: int, **options: Any) -> dict[str, Any]:
    start = time.perf_counter()
    result = shokri(found.seen, found.shadows, seed=seed, **options)
    return figures(result, time.perf_counter() - start)


def as_in_the_paper(found: Scene, epochs: int | None, seed: int) -> dict[str, Any]:
    with cut_short():
        model = plain_confidences(epochs, seed)
        return attacked(found, seed, features="vector", attack_model=model)


def row_of(setting: Setting, seed: int) -> dict[str, Any]:
    found = scene(setting, seed)
    train, test, precision = setting.paper
    return {
        "setting": setting.name,
        "within": setting.within,
        "paper": {"train": train, "test": test, "precision": precision},
        "train": found.train_accuracy,
        "test": found.test_accuracy,
        "members": int(found.seen.members.sum()),
        "nonmembers": int((~found.seen.members).sum()),
        "shadows": len(found.shadows),
        "shadow_records": int(found.shadows.inclusion[0].sum()),
        "training_seconds": found.seconds,
        "as_in_the_paper": as_in_the_paper(found, None, seed),
        "ours": attacked(found, seed),
        "shorter": [
            {"epochs": epochs, **as_in_the_paper(found, epochs, seed)} for epochs in setting.epochs
        ],
    }


def measure(*, seed: int = 1, only: str | None = None) -> list[dict[str, Any]]:
    """Return one row for each setting."""
    use_shared_data()
    rows = []
    for setting in SETTINGS:
        if only is None or only in setting.name:
            rows.append(row_of(setting, seed))
            print(line(rows[-1]), flush=True)
    return rows


def line(row: dict[str, Any]) -> str:
    def shown(part: dict[str, Any]) -> str:
        share = part["precision"]
        return "nobody called a member" if share is None else f"{share['share']:.3f}"

    shorter = ", ".join(f"{each['epochs']} epochs {shown(each)}" for each in row["shorter"])
    return (
        f"{row['setting']:30} train {row['train']:.3f} ({row['paper']['train']:.3f})"
        f" test {row['test']:.3f} ({row['paper']['test']:.3f})"
        f" precision: paper {row['paper']['precision']:.3f},"
        f" as in the paper {shown(row['as_in_the_paper'])}, ours {shown(row['ours'])}"
        f" {row['training_seconds']:.0f} + {row['as_in_the_paper']['seconds']:.0f}"
        f" + {row['ours']['seconds']:.0f} s" + (f" ({shorter})" if shorter else "")
    )


if __name__ == "__main__":
    torch.set_flush_denormal(True)
    measure(only=sys.argv[1] if len(sys.argv) > 1 else None)
