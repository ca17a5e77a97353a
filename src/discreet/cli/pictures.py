"""How pictures look: colours that the colour-blind tell apart, labels instead of legends.

Colours are those of Okabe and Ito (2008). The Agg canvas is used directly, so that
no display, no global state and no configuration file is involved.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

__all__ = ["COLOURS", "blank_figure", "save", "spread", "tidy"]

COLOURS = {
    "black": "#000000",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "green": "#009E73",
    "blue": "#0072B2",
    "vermilion": "#D55E00",
    "purple": "#CC79A7",
    "grey": "#6E6E6E",
}


def blank_figure(width: float, height: float) -> Figure:
    """A figure of the given size in inches that belongs to no window."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def tidy(axes: Axes) -> None:
    """Leave out what carries no information."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, which="major", color="#E4E4E4", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", color="#9A9A9A", labelsize=9)


def save(figure: Figure, place: Path) -> None:
    """Write the figure; the same figure gives the same bytes."""
    kind = place.suffix.lower().lstrip(".")
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    with mpl.rc_context({"svg.hashsalt": "discreet", "svg.fonttype": "path"}):
        figure.savefig(place, format=kind, dpi=120, metadata=metadata)


def spread(heights: list[float], *, gap: float) -> list[float]:
    """Move ascending heights apart by at least ``gap``, and as little as possible.

    This is the least-squares answer, by pooling neighbours that are too close.

    >>> spread([0.5, 0.5, 0.9], gap=0.2)
    [0.4, 0.6, 0.9]
    """
    pools: list[list[float]] = []
    for i, height in enumerate(heights):
        pools.append([height - i * gap])
        while len(pools) > 1 and fmean(pools[-2]) > fmean(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    starts = [fmean(pool) for pool in pools for _ in pool]
    return [round(start + i * gap, 12) for i, start in enumerate(starts)]
