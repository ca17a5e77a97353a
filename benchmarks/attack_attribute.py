"""Attribute inference on Adult: what models leak of their members, beside what anybody can impute.

`measure()` returns the rows and `draw(rows, path)` makes the picture; benchmarks/
reproduce_attacks.py calls both. Run alone, the script prints the rows. Data: $DISCREET_DATA, or
../shared/data beside the project, or a download.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

from discreet.attacks import Attribute, NetworkTrainer, Perceptron, attribute_inference
from discreet.attacks._attribute import PRIORS
from discreet.data import Encoding, read_table
from learners_tasks import adult_schema, census

ATTRIBUTES = ("marital-status", "race", "sex")
BLUE, ORANGE, GREY = "#0072B2", "#E69F00", "#999999"


def people(seed: int, members: int, others: int, known: int) -> tuple[Encoding, list[Any]]:
    """Members, non-members and the attacker's own records; people who look alike count once."""
    train = census().train
    encoding = Encoding(adult_schema(train))
    table = read_table(train, encoding.schema)
    x, y = encoding.features(table), encoding.target(table)
    _, first = np.unique(np.column_stack([x, y]), axis=0, return_index=True)
    order = np.random.default_rng(seed).permutation(first)
    cuts = np.cumsum([members, others, known])
    parts = np.split(order, cuts)[:3]
    return encoding, [(x[rows], y[rows]) for rows in parts]


def models(members: tuple[Any, Any], seed: int) -> dict[str, Any]:
    """Models that generalise, and models that memorise."""
    x, y = members
    trainer = NetworkTrainer(
        x.astype(np.float32), y, Perceptron(x.shape[1], 2, hidden=(256,)), epochs=150
    )
    forest = RandomForestClassifier(100, bootstrap=False, random_state=seed)
    return {
        "logistic regression": LogisticRegression(max_iter=2000).fit(x, y),
        "network, 150 epochs": trainer(np.arange(len(x)), seed),
        "random forest": forest.fit(x, y),
    }


def measure(
    *, seed: int = 1, members: int = 2000, others: int = 5000, known: int = 10000
) -> list[dict[str, Any]]:
    """Return one row for each model, attribute and prior."""
    encoding, (inside, outside, auxiliary) = people(seed, members, others, known)
    rows = []
    fitted: dict[str, Any] = {}
    for name, model in models(inside, seed).items():
        for column in ATTRIBUTES:
            attribute = Attribute.from_encoding(encoding, column)
            for prior in PRIORS:
                start = time.perf_counter()
                result = attribute_inference(
                    model,
                    attribute=attribute,
                    members=inside,
                    nonmembers=outside,
                    auxiliary=auxiliary,
                    prior=prior,
                    imputer=fitted.get(column),
                    seed=seed,
                )
                fitted[column] = result.imputation
                seconds = time.perf_counter() - start
                rows.append({"model": name, "seconds": seconds, **result.to_json()})
    return rows


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Accuracies on members and others, attack beside imputation, for two of the priors."""
    shown = [row for row in rows if row["prior"] != "marginal"]
    names = list(dict.fromkeys(row["model"] for row in shown))
    figure, axes = plt.subplots(1, len(names), figsize=(4.4 * len(names), 5.6), sharey=True)
    figure.set_layout_engine("constrained")
    looks = {
        "attack_on_members": ("attack, members", BLUE, "o"),
        "attack_on_nonmembers": ("attack, non-members", BLUE, "x"),
        "imputation_on_members": ("imputation, members", ORANGE, "o"),
        "imputation_on_nonmembers": ("imputation, non-members", ORANGE, "x"),
    }
    for axis, name in zip(np.atleast_1d(axes), names, strict=True):
        mine = [row for row in shown if row["model"] == name]
        for place, (key, (label, color, marker)) in enumerate(looks.items()):
            share = np.array([row[key]["share"] for row in mine])
            low = share - [row[key]["low"] for row in mine]
            high = np.array([row[key]["high"] for row in mine]) - share
            heights = np.arange(len(mine)) + 0.14 * (place - 2)
            axis.errorbar(
                share, heights, xerr=[low, high], fmt=marker, color=color, label=label, capsize=2
            )
        for place, row in enumerate(mine):
            excess = row["excess"]
            text = f"excess {excess['value']:+.3f} [{excess['low']:+.3f}, {excess['high']:+.3f}]"
            color = "black" if row["leaks"] else GREY
            axis.text(0.02, place + 0.38, text, fontsize=8, color=color, va="center")
        axis.set_yticks(
            range(len(mine)), [f"{row['attribute']}\n{row['prior']} prior" for row in mine]
        )
        axis.set_ylim(len(mine) - 0.4, -0.5)
        axis.set_xlim(0, 1)
        axis.set_title(name, fontsize=10)
        axis.set_xlabel("share guessed right")
    handles, labels = np.atleast_1d(axes)[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=140)
    plt.close(figure)


def line(row: dict[str, Any]) -> str:
    return (
        f"{row['model']:20} {row['attribute']:15} {row['prior']:9}"
        f" members {row['attack_on_members']['share']:.3f}"
        f" others {row['attack_on_nonmembers']['share']:.3f}"
        f" imputation {row['imputation_on_members']['share']:.3f}"
        f" / {row['imputation_on_nonmembers']['share']:.3f} ({row['imputer']})"
        f" excess {row['excess']['value']:+.3f}"
        f" [{row['excess']['low']:+.3f}, {row['excess']['high']:+.3f}]"
        f" leaks {row['leaks']} beats {row['beats_imputation']} {row['seconds']:.1f} s"
    )
