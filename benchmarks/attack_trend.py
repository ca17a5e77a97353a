"""The picture of the made-up purchases: precision by the number of classes, beside the paper's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from discreet.report import COLOURS, new_figure, save_figure, tidy_axes

OURS = (("as_in_the_paper", "the paper's attack", "blue"), ("ours", "shokri()", "orange"))


def draw(rows: list[dict[str, Any]], place: Path) -> None:
    figure = new_figure(5.2, 3.8)
    axes = figure.subplots()
    # The name of a setting ends with "... classes".
    classes = [int(row["setting"].split()[-2]) for row in rows]
    paper = [row["paper"]["precision"] for row in rows]
    axes.plot(classes, paper, "s--", color=COLOURS["grey"], ms=4, lw=1, label="paper, real data")
    for key, name, colour in OURS:
        shares = [row[key]["precision"] for row in rows]
        middle, low, high = (
            np.array([each[part] for each in shares]) for part in ("share", "low", "high")
        )
        axes.errorbar(
            classes,
            middle,
            yerr=[middle - low, high - middle],
            fmt="o-",
            ms=4,
            lw=1.4,
            capsize=2,
            color=COLOURS[colour],
            label=f"{name}, made-up data",
        )
    axes.axhline(0.5, color=COLOURS["grey"], lw=0.8, ls=":")
    axes.set_xscale("log")
    axes.set_xticks(classes, [str(each) for each in classes])
    axes.minorticks_off()
    axes.set_ylim(0.45, 1)
    axes.set_xlabel("classes")
    axes.set_ylabel("members among those called members")
    axes.legend(fontsize=8, loc="upper left", frameon=False)
    tidy_axes(axes)
    save_figure(figure, place)
