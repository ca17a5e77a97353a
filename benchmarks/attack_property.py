"""Property inference on Adult: the share of women in a training set, read off the model.

`measure()` returns the rows and `draw(rows, path)` makes the picture; benchmarks/
reproduce_attacks.py calls both. The control is a made-up mark that has nothing to do with the
people who carry it: no attack may find it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

from discreet.attacks import (
    NetworkTrainer,
    Perceptron,
    property_inference,
    property_sets,
    train_shadows,
)
from discreet.attacks._property import ACCESS
from discreet.data import Encoding, read_table
from learners_tasks import adult_schema, census

COLORS = dict(zip(ACCESS, ("#0072B2", "#E69F00", "#009E73"), strict=True))
FEW = 10  # records that the model is asked about, beside 300
PROPERTIES = {
    "women: 33 % or 67 %": ("sex=Female", (0.33, 0.67)),
    "women: 33 % or 50 %": ("sex=Female", (0.33, 0.50)),
    "married: 47 % or 57 %": ("marital-status=Married-civ-spouse", (0.47, 0.57)),
    "control (a made-up mark)": (None, (0.33, 0.67)),
}


def records() -> tuple[Any, Any, Any, Encoding]:
    """The attacker's records with labels, public queries, and the encoding."""
    data = census()
    encoding = Encoding(adult_schema(data.train))
    train = read_table(data.train, encoding.schema)
    queries = encoding.features(read_table(data.test, encoding.schema))[:300]
    x = encoding.features(train).astype(np.float32)
    return x, encoding.target(train), queries.astype(np.float32), encoding


def measure(
    *, seed: int = 1, shadows: int = 400, size: int = 2000, epochs: int = 8
) -> list[dict[str, Any]]:
    """Return one row for each property and way of looking at the models."""
    x, y, queries, encoding = records()
    trainer = NetworkTrainer(
        x, y, Perceptron(x.shape[1], 2, hidden=(16,)), epochs=epochs, learning_rate=3e-3
    )
    mark = np.random.default_rng(seed).random(len(x)) < 0.5
    rows = []
    for name, (column, shares) in PROPERTIES.items():
        has = mark if column is None else x[:, encoding.names.index(column)] > 0
        sets = property_sets(has, shares=shares, size=size, sets=shadows, seed=seed)
        start = time.perf_counter()
        models = train_shadows(trainer, sets, group=50)
        training = time.perf_counter() - start
        for access, asked in (*((one, queries) for one in ACCESS), ("outputs", queries[:FEW])):
            start = time.perf_counter()
            result = property_inference(
                models,
                sets.holds,
                held_out=sets.held_out,
                access=access,
                queries=asked,
                seed=seed,
            )
            seconds = time.perf_counter() - start
            figures = {"training_seconds": training, "seconds": seconds, "queries": len(asked)}
            rows.append({"property": name, **figures, **result.to_json()})
    return rows


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Accuracy on held-out shadow models with intervals."""
    names = list(dict.fromkeys(row["property"] for row in rows))
    figure, axis = plt.subplots(figsize=(7.5, 0.7 * len(names) + 1.4))
    figure.set_layout_engine("constrained")
    for place, access in enumerate(ACCESS):
        mine = [row for row in rows if row["access"] == access and row.get("queries") != FEW]
        share = np.array([row["accuracy"]["share"] for row in mine])
        low = share - [row["accuracy"]["low"] for row in mine]
        high = np.array([row["accuracy"]["high"] for row in mine]) - share
        heights = np.arange(len(mine)) + 0.2 * (place - 1)
        axis.errorbar(
            share, heights, xerr=[low, high], fmt="o", color=COLORS[access], label=access, capsize=3
        )
    axis.axvline(0.5, color="black", linewidth=0.8, linestyle=":")
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.set_xlim(0.4, 1.005)
    axis.set_xlabel("accuracy on held-out shadow models (95 % interval; dotted: chance)")
    axis.legend(fontsize=8, title="the attacker sees", title_fontsize=8)
    figure.savefig(path, dpi=140)
    plt.close(figure)


def line(row: dict[str, Any]) -> str:
    accuracy = row["accuracy"]
    return (
        f"{row['property']:26} {row['access']:15} accuracy {accuracy['share']:.3f}"
        f" [{accuracy['low']:.3f}, {accuracy['high']:.3f}] auc {row['auc']:.3f}"
        f" training {row['training_seconds']:.0f} s attack {row['seconds']:.0f} s"
    )
