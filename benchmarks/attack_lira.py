"""LiRA with 64 shadow models beside the loss threshold, on Fashion-MNIST.

`measure()` returns the rows and `draw(rows, path)` makes the picture; benchmarks/
reproduce_attacks.py calls both. 65 networks are trained on random halves of 4,000 images; each is
the target once, with the 64 others as references. One target has 2,000 non-members, so a
false-positive rate of 0.1 % is two of them; the results of all 65 are pooled for the figures, and
the range over single targets is given beside them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from attack_certificates import LOOKS, images, places_of
from discreet.attacks import (
    MembershipResult,
    NetworkTrainer,
    Observation,
    Perceptron,
    ShadowPool,
    ShadowScores,
    lira,
    pool_results,
    rmia,
    yeom,
)
from discreet.report import COLOURS, new_figure, save_figure, tidy_axes

SHADOWS = 64
LOW = 0.001
ATTACKS: dict[str, Callable[[Observation, ShadowScores], MembershipResult]] = {
    "yeom": lambda seen, _: yeom(seen),
    "lira online": lira,
    "lira offline": lambda seen, others: lira(seen, others, mode="offline"),
    "rmia offline": rmia,
}


def measure(
    *, seed: int = 1, records: int = 4000, shadows: int = SHADOWS, epochs: int = 40
) -> dict[str, Any]:
    """Return the figures of each attack, and how accurate the networks are."""
    x, y = images(records, 0, seed)
    trainer = NetworkTrainer(x, y, Perceptron(784, 10, hidden=(64,)), epochs=epochs)
    start = time.perf_counter()
    scores = ShadowPool(x, y, trainer, models=shadows + 1, classes=10, seed=seed).run()
    training = time.perf_counter() - start
    right = np.stack([part.argmax(axis=1) == y for part in scores.log_probabilities])
    rows = []
    for name, attack in ATTACKS.items():
        start = time.perf_counter()
        single = [attack(*scores.leave_out(row)) for row in range(len(scores))]
        together = pool_results(single)
        seconds = time.perf_counter() - start
        alone = sorted(result.tpr_at(LOW).share for result in single)
        roc = together.roc
        places = places_of(roc)
        curve = np.column_stack([roc.fpr[places], roc.tpr[places]]).round(6).tolist()
        low, high = together.auc_interval()
        rows.append(
            {
                "attack": name,
                "auc": {"value": together.auc, "low": low, "high": high},
                "tpr_at_fpr": [
                    {"fpr": point.asked_fpr, **point.tpr.to_json()}
                    for point in together.operating_points()
                ],
                "single_targets": {
                    "lowest": alone[0],
                    "median": alone[len(alone) // 2],
                    "highest": alone[-1],
                },
                "seconds": seconds,
                "curve": curve,
            }
        )
    return {
        "records": records,
        "targets": len(scores),
        "references": shadows,
        "train": float(right[scores.inclusion].mean()),
        "test": float(right[~scores.inclusion].mean()),
        "training_seconds": training,
        "attacks": rows,
    }


def at(row: dict[str, Any], fpr: float) -> dict[str, Any]:
    """The share of members found at a rate of false positives."""
    found: dict[str, Any] = next(point for point in row["tpr_at_fpr"] if point["fpr"] == fpr)
    return found


def draw(found: dict[str, Any], place: Path) -> None:
    figure = new_figure(5.2, 4.6)
    axes = figure.subplots()
    for row in found["attacks"]:
        fpr, tpr = np.array(row["curve"]).T
        axes.plot(
            np.maximum(fpr, 1e-5),
            np.maximum(tpr, 1e-5),
            color=LOOKS[row["attack"]],
            lw=1.4,
            label=f"{row['attack']}: {100 * at(row, LOW)['share']:.2f} % at 0.1 %",
        )
    axes.plot([1e-5, 1], [1e-5, 1], ":", color=COLOURS["grey"], lw=1)
    axes.axvline(LOW, color=COLOURS["grey"], lw=0.8, ls="--")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(1e-4, 1)
    axes.set_ylim(1e-4, 1)
    axes.set_xlabel("non-members accused")
    axes.set_ylabel("members found")
    axes.legend(fontsize=8, loc="lower right", frameon=False)
    tidy_axes(axes)
    save_figure(figure, place)


def line(found: dict[str, Any]) -> str:
    accuracies = f"train {found['train']:.3f} test {found['test']:.3f}"
    parts = [f"{accuracies} training {found['training_seconds']:.0f} s"]
    for row in found["attacks"]:
        low = at(row, LOW)
        parts.append(
            f"{row['attack']:13} auc {row['auc']['value']:.4f} TPR at 0.1 % {low['share']:.4f}"
            f" [{low['low']:.4f}, {low['high']:.4f}] single targets"
            f" {row['single_targets']['lowest']:.4f} .. {row['single_targets']['highest']:.4f}"
            f" {row['seconds']:.0f} s"
        )
    return "\n".join(parts)
