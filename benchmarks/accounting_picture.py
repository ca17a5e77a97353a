"""The picture of the accounting benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt

from accountants import FINE_PEER, OPACUS_PRV, OPACUS_RDP, OURS, PEER, PRV
from accounting_targets import our_width, peer_width, usable

STYLE = {
    OURS: ("#1b6ca8", "o"),
    PEER: ("#d1495b", "s"),
    FINE_PEER: ("#edae49", "D"),
    PRV: ("#3a7d44", "^"),
    OPACUS_PRV: ("#8e6c8a", "v"),
    OPACUS_RDP: ("#9a9a9a", "x"),
}


def draw(results: dict[str, Any], path: Path) -> None:
    rows = results["rows"] + results["mixtures"]
    figure, (speed, width, steps) = plt.subplots(
        1,
        3,
        figsize=(15, 0.26 * len(rows) + 2.2),
        width_ratios=(1.25, 0.9, 0.9),
        constrained_layout=True,
    )
    heights = range(len(rows) - 1, -1, -1)
    for name, (color, marker) in STYLE.items():
        points = [
            (row["answers"][name]["seconds"], at)
            for row, at in zip(rows, heights, strict=True)
            if usable(row["answers"].get(name))
        ]
        if points:
            x, y = zip(*points, strict=True)
            speed.scatter(x, y, s=26, color=color, marker=marker, label=name, zorder=3)
    speed.axvline(1.0, color="#444444", lw=0.8, ls="--")
    speed.set_xscale("log")
    speed.set_yticks(list(heights), [row["row"] for row in rows], fontsize=7.5)
    speed.set_xlabel("seconds for one query (log scale); dashes: our limit")
    speed.set_title("Time: noise multiplier, rate, steps, delta", fontsize=10)
    speed.grid(axis="x", alpha=0.3)
    speed.legend(fontsize=7.5, loc="upper center", bbox_to_anchor=(0.4, -0.09), ncols=3)

    floor = 1e-12
    for row, at in zip(rows, heights, strict=True):
        width.plot(max(our_width(row), floor), at, "o", ms=5, color=STYLE[OURS][0])
        if usable(row["answers"].get(PEER)) and peer_width(row) is not None:
            width.plot(max(peer_width(row) or 0.0, floor), at, "s", ms=5, color=STYLE[PEER][0])
        if usable(row["answers"].get(PRV)):
            answer = row["answers"][PRV]
            wide = max(answer["upper"] - answer["lower"], floor)
            width.plot(wide, at, "^", ms=5, color=STYLE[PRV][0])
    width.set_xscale("log")
    width.set_yticks(list(heights), [])
    width.set_ylim(speed.get_ylim())
    width.set_xlabel("upper minus lower epsilon (log scale)")
    width.set_title("Width of the bracket, same rows", fontsize=10)
    width.grid(axis="x", alpha=0.3)

    for curve, line in zip(results["steps_curves"], ("-", "--"), strict=False):
        for name, (color, marker) in STYLE.items():
            points = [
                (entry["steps"], entry["seconds"][name])
                for entry in curve["points"]
                if entry["seconds"].get(name) is not None
            ]
            if points:
                x, y = zip(*points, strict=True)
                label = f"{name}, {curve['curve']}"
                steps.loglog(x, y, line, marker=marker, ms=4, color=color, label=label)
    steps.set_xlabel("steps")
    steps.set_ylabel("seconds")
    steps.set_title("Cost against the number of steps", fontsize=10)
    steps.grid(alpha=0.3)
    steps.legend(fontsize=7, loc="upper left")
    figure.savefig(path, dpi=120)
    plt.close(figure)
