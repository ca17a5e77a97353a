"""The picture of ``discreet compare``: epsilon against steps, one line per accountant."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes

from discreet.cli.compare import Comparison
from discreet.cli.pictures import COLOURS, blank_figure, save, spread, tidy
from discreet.cli.tables import at_most

__all__ = ["draw_comparison"]

# Name, colour, dash pattern and width: each line differs in two ways at least.
_STYLES = {
    "naive": ("naive composition", "grey", (0, (1, 1.4)), 1.8),
    "advanced": ("advanced composition", "vermilion", "solid", 1.8),
    "optimal": ("optimal composition", "orange", (0, (5, 2)), 1.8),
    "zcdp": ("zCDP", "purple", (0, (3, 1.5, 1, 1.5)), 1.8),
    "moments": ("moments accountant", "blue", "solid", 1.8),
    "rdp": ("Renyi DP", "sky", (0, (4, 1.5)), 1.8),
    "pld": ("privacy-loss distribution", "black", "solid", 2.4),
}


def draw_comparison(comparison: Comparison, place: Path) -> None:
    """Draw the comparison on logarithmic axes and write it to ``place``."""
    figure = blank_figure(8.4, 4.8)
    axes = figure.subplots()
    axes.set_xscale("log")
    axes.set_yscale("log")
    tidy(axes)
    ends: list[_End] = []
    for name, (label, colour, dashes, width) in _STYLES.items():
        values = comparison.epsilons.get(name, [])
        line = [(n, e) for n, e in zip(comparison.steps, values, strict=False) if 0 < e < math.inf]
        if not line:
            continue
        steps, epsilons = zip(*line, strict=True)
        marker = "o" if len(line) == 1 else ""
        axes.plot(
            steps, epsilons, color=COLOURS[colour], ls=dashes, lw=width, marker=marker, zorder=3
        )
        ends.append(_End(label, steps[-1], epsilons[-1], COLOURS[colour]))
    axes.margins(x=0.0)
    _label_ends(axes, ends)
    axes.set_xlabel("steps")
    axes.set_ylabel("epsilon (upper bound)")
    axes.set_title(
        "The same run, read by different accountants\n"
        f"noise multiplier {comparison.noise_multiplier:g}, rate {comparison.rate:g}, "
        f"delta {comparison.delta:g}",
        loc="left",
        fontsize=11,
    )
    save(figure, place)


class _End(NamedTuple):
    label: str
    steps: int
    epsilon: float
    colour: str


def _label_ends(axes: Axes, ends: list[_End]) -> None:
    """Name every line in the right margin, with what it says at its end."""
    low, high = (math.log(limit) for limit in axes.get_ylim())
    ends = sorted(ends, key=lambda end: end.epsilon)
    heights = spread([(math.log(end.epsilon) - low) / (high - low) for end in ends], gap=0.062)
    for end, height in zip(ends, heights, strict=True):
        axes.annotate(
            f"{end.label}  {at_most(end.epsilon, digits=3)}",
            xy=(end.steps, end.epsilon),
            xytext=(1.035, height),
            textcoords="axes fraction",
            color=end.colour,
            fontsize=9.5,
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": end.colour,
                "lw": 0.7,
                "relpos": (0.0, 0.5),
                "shrinkA": 1,
                "shrinkB": 0,
            },
        )
