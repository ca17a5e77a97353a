"""The picture of the training benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt

from harness import found
from training_models import TASKS
from training_ways import ONE_CALL, OURS, PLAIN

OF_OURS = {OURS: "#1b6ca8", ONE_CALL: "#6db1e0"}


def draw(results: dict[str, Any], path: Path) -> None:
    """Ratios to plain SGD for every task, and how they grow."""
    curves = found(results, "growth")["curves"]
    figure, axes = plt.subplots(1, 1 + len(curves), figsize=(16, 4.6))
    figure.set_layout_engine("constrained")
    left = axes[0]
    parts = [part for task in TASKS if (part := found(results, task.name))]
    rows = [part["rows"][-1] for part in parts]
    ways = [way for way in rows[0]["ratios"] if way != PLAIN]
    height = 0.8 / len(ways)
    for at, way in enumerate(ways):
        values = [row["ratios"].get(way) for row in rows]
        places = [place + at * height for place in range(len(rows))]
        shown = [(p, v) for p, v in zip(places, values, strict=True) if v is not None]
        color = OF_OURS.get(way) or plt.get_cmap("Greys")(0.3 + 0.5 * at / len(ways))
        left.barh([p for p, _ in shown], [v for _, v in shown], height, label=way, color=color)
    left.plot(
        [row["target"] for row in rows],
        [place - height * 0.2 for place in range(len(rows))],
        "r|",
        markersize=14,
        label="target",
    )
    left.set_xscale("log")
    left.axvline(1.0, color="black", linewidth=0.8)
    left.set_yticks([place + 0.35 for place in range(len(rows))], [row["task"] for row in rows])
    left.invert_yaxis()
    left.set_xlabel("time of a step over plain SGD (log scale)")
    left.legend(fontsize=7)
    for axis, (name, curve) in zip(axes[1:], curves.items(), strict=True):
        for way, values in curve["milliseconds"].items():
            axis.plot(curve["sizes"], values, marker="o", label=way)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xlabel(name)
        axis.set_ylabel("ms for a step")
        axis.legend(fontsize=7)
    figure.savefig(path, dpi=120)
    plt.close(figure)
