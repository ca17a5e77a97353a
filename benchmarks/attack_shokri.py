"""Shokri's attack in the settings of the paper: Location-30, Adult, MNIST, made-up tables.

`measure()` returns the rows; benchmarks/reproduce_attacks.py calls it. No shadow model is trained
on a record of the target's. In all settings but Location-30 the non-members that the target is
judged on are others than the shadow models' records, too; there, as many records as the target has
are left for each shadow model only if these may be among them, as in the paper. The paper's targets
were trained by a cloud service whose models are not known. Location-30 and the purchases get the
network that the authors trained themselves, the others a model with the accuracies of the paper's.

Each target is attacked twice. "As in the paper" is a network of 64 units for each class that
sees the plain vector of confidences, trained as the paper trains networks: see attack_network.py.
On Location the paper's attack found almost every member; its precision there is held against the
precision at a recall of 99.5 %, beside the one at the attack's own threshold.
"Ours" is `shokri()` without options. For Location the paper's attack is repeated with attack models
that were trained for shorter, for longer, and as scikit-learn does without options.

The stays in hospitals of Texas that the paper attacks are not ours to pass on. A made-up table of
the same shape (6,170 yes-or-no columns, 100 classes) stands in for them, trained as long as it
takes to the paper's training accuracy. `other_networks()` attacks one target with shadow models
of its own and of other architectures.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from attack_network import EPOCHS, RATE, PapersAttackModel
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
from discreet.data import Encoding, location30, made_up_purchases, mnist, read_table
from learners_tasks import adult_schema, census

PURCHASE_CLASSES = (2, 10, 20, 50, 100)
# The rate of the paper is for single records: 64 at once move 64 times as far.
PAPERS_SGD = {"optimizer": "sgd", "batch_size": 64, "learning_rate": 64 * RATE}


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
    recall: float | None = None
    other_epochs: tuple[int, ...] = ()
    judged_on_shadow_records: bool = False


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
    data = made_up_purchases(40_000, draw=np.random.default_rng(1), classes=classes)
    return data.x.astype(np.float32), data.y


def stay_records() -> tuple[Any, Any]:
    draw = np.random.default_rng(1)
    data = made_up_purchases(20_000, draw=draw, classes=100, products=6170, habits=8, strength=1.5)
    return data.x.astype(np.float32), data.y


def papers_own(columns: int, classes: int) -> Perceptron:
    """The network that the authors of the paper trained themselves: 128 units, tanh."""
    return Perceptron(columns, classes, hidden=(128,), activation="tanh")


SETTINGS = (
    Setting(
        "Location-30",
        location_records,
        1600,
        3200,
        60,
        papers_own,
        {"epochs": 100, **PAPERS_SGD},
        (1.000, 0.673, 0.678),
        within=0.03,
        recall=0.995,
        other_epochs=(10, 30),
        judged_on_shadow_records=True,
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
            10_000,
            20_000,
            20,
            papers_own,
            {"epochs": 20, "batch_size": 256, "learning_rate": 5e-3},
            figures,
        )
        for classes, figures in zip(
            PURCHASE_CLASSES,
            (
                (0.999, 0.984, 0.505),
                (0.999, 0.866, 0.550),
                (1.000, 0.781, 0.590),
                (1.000, 0.693, 0.860),
                (0.999, 0.659, 0.935),
            ),
            strict=True,
        )
    ),
    Setting(
        "made-up hospital stays",
        stay_records,
        5000,
        10_000,
        10,
        papers_own,
        {"epochs": 3, "batch_size": 256},
        (0.668, 0.517, 0.657),
    ),
)
# The target of other_networks() is the first of these.
NETWORKS: dict[str, Callable[[int, int], Perceptron]] = {
    "the target's: 128 tanh units": papers_own,
    "64 ReLU units": lambda columns, classes: Perceptron(columns, classes, hidden=(64,)),
    "two layers of 64 tanh units": lambda columns, classes: Perceptron(
        columns, classes, hidden=(64, 64), activation="tanh"
    ),
    "logistic regression": Perceptron,
}


@dataclass(frozen=True)
class Scene:
    """A target under attack: what it says, and what the shadow models say."""

    seen: Observation
    shadows: ShadowScores
    train_accuracy: float
    test_accuracy: float
    seconds: float


def scene(
    setting: Setting, seed: int, shadow_network: Callable[[int, int], Perceptron] | None = None
) -> Scene:
    """Train the target, and its shadow models on records that are not its own."""
    x, y = setting.load()
    classes = int(y.max()) + 1
    order = np.random.default_rng(seed).permutation(len(x))
    size = setting.members
    inside, outside = order[:size], order[size : 2 * size]
    start = size if setting.judged_on_shadow_records else 2 * size
    pool = order[start : start + setting.pool]
    network = setting.network(x.shape[1], classes)
    target = NetworkTrainer(x, y, network, **setting.training)(inside, seed)
    seen = observe_split(
        target, members=(x[inside], y[inside]), nonmembers=(x[outside], y[outside]), overlap="drop"
    )
    right = seen.log_probabilities.argmax(axis=1) == seen.labels
    began = time.perf_counter()
    shadow = network if shadow_network is None else shadow_network(x.shape[1], classes)
    trainer = NetworkTrainer(x[pool], y[pool], shadow, **setting.training)
    shadows = ShadowPool(
        x[pool],
        y[pool],
        trainer,
        models=setting.shadows,
        classes=classes,
        seed=seed,
        pairs=False,  # as in the paper
    ).run()
    seconds = time.perf_counter() - began
    train, test = float(right[seen.members].mean()), float(right[~seen.members].mean())
    return Scene(seen, shadows, train, test, seconds)


@contextmanager
def cut_short() -> Iterator[None]:
    """scikit-learn warns of attack models that were still learning at the end."""
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
        "median_over_classes": statistics.median(by_class) if by_class else None,
        "recall": result.recall().to_json(),
        "at_recall": [at_recall(result, recall) for recall in (0.9, 0.95, 0.99, 0.995, 0.999)],
        "accuracy": result.accuracy().to_json(),
        "auc": result.auc,
        "seconds": seconds,
    }


def at_recall(result: MembershipResult, recall: float) -> dict[str, float]:
    """The precision of the strictest threshold that finds such a share of the members."""
    threshold = np.quantile(result.scores[result.members], 1 - recall, method="lower")
    called = result.scores >= threshold
    return {
        "wanted": recall,
        "recall": float(called[result.members].mean()),
        "precision": float(result.members[called].mean()),
    }


def attacked(found: Scene, seed: int, **options: Any) -> dict[str, Any]:
    start = time.perf_counter()
    result = shokri(found.seen, found.shadows, seed=seed, **options)
    return figures(result, time.perf_counter() - start)


def as_in_the_paper(found: Scene, seed: int, epochs: int = EPOCHS) -> dict[str, Any]:
    model = PapersAttackModel(epochs=epochs, seed=seed)
    return attacked(found, seed, features="vector", attack_model=model)


def by_other_training(found: Scene, seed: int, epochs: tuple[int, ...]) -> list[dict[str, Any]]:
    """The same network, trained for shorter or longer, or as scikit-learn does."""
    rows = [{"trained": f"{each} epochs", **as_in_the_paper(found, seed, each)} for each in epochs]
    # Adam; it sees probabilities, not their logarithms, as the others do.
    adam = make_pipeline(FunctionTransformer(np.exp), MLPClassifier((64,), random_state=seed))
    with cut_short():
        last = attacked(found, seed, features="vector", attack_model=adam)
    return [*rows, {"trained": "as scikit-learn does (Adam)", **last}]


def row_of(setting: Setting, seed: int) -> dict[str, Any]:
    found = scene(setting, seed)
    train, test, precision = setting.paper
    return {
        "setting": setting.name,
        "within": setting.within,
        "paper": {"train": train, "test": test, "precision": precision, "recall": setting.recall},
        "train": found.train_accuracy,
        "test": found.test_accuracy,
        "members": int(found.seen.members.sum()),
        "nonmembers": int((~found.seen.members).sum()),
        "shadows": len(found.shadows),
        "shadow_records": int(found.shadows.inclusion[0].sum()),
        "training_seconds": found.seconds,
        "as_in_the_paper": as_in_the_paper(found, seed),
        "ours": attacked(found, seed),
        "other_training": (
            by_other_training(found, seed, setting.other_epochs) if setting.other_epochs else []
        ),
    }


def measure(*, seed: int = 1, only: str | None = None) -> list[dict[str, Any]]:
    """Return one row for each setting."""
    rows = []
    for setting in SETTINGS:
        if only is None or only in setting.name:
            rows.append(row_of(setting, seed))
            print(line(rows[-1]), flush=True)
    return rows


def other_networks(*, seed: int = 1) -> list[dict[str, Any]]:
    """Attack one target with shadow models of its own architecture and of others."""
    setting = next(one for one in SETTINGS if one.name == "made-up purchases, 100 classes")
    setting = replace(setting, shadows=8)
    rows = []
    for name, network in NETWORKS.items():
        found = scene(setting, seed, network)
        rows.append({"shadows": name, "models": len(found.shadows), "ours": attacked(found, seed)})
        print(name, rows[-1]["ours"]["precision"], rows[-1]["ours"]["auc"], flush=True)
    return rows


def line(row: dict[str, Any]) -> str:
    def shown(part: dict[str, Any]) -> str:
        share = part["precision"]
        return "nobody called a member" if share is None else f"{share['share']:.3f}"

    others = ", ".join(f"{each['trained']} {shown(each)}" for each in row["other_training"])
    return (
        f"{row['setting']:30} train {row['train']:.3f} ({row['paper']['train']:.3f})"
        f" test {row['test']:.3f} ({row['paper']['test']:.3f})"
        f" precision: paper {row['paper']['precision']:.3f},"
        f" as in the paper {shown(row['as_in_the_paper'])}, ours {shown(row['ours'])}"
        f" {row['training_seconds']:.0f} + {row['as_in_the_paper']['seconds']:.0f}"
        f" + {row['ours']['seconds']:.0f} s" + (f" ({others})" if others else "")
    )
