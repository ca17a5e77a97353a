"""Pictures of what can be read: shapes of an additive model, questions of a tree, whole tables.

All of it is a function of what was released and paid for.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet._rounding import at_most
from discreet.errors import InvalidValue
from discreet.report._drawing import (
    COLOURS,
    PALETTE,
    finish_figure,
    in_house_style,
    new_figure,
    short_name,
    tidy_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from discreet.learn import ColumnReport, Description, Shape, Tree

_MOST_SHAPES, _MOST_LABELS, _MOST_LEVELS, _MOST_COLUMNS = 12, 12, 4, 30


def draw_model(model: Any, place: str | Path | None = None) -> Figure:
    """Draw a fitted additive model, decision tree or forest (its first tree).

    Parameters
    ----------
    model
        The fitted estimator.
    place
        A PNG, SVG or PDF file to write as well.

    Returns
    -------
    Figure
        One of matplotlib, which you may change and save again.

    Raises
    ------
    InvalidValue
        If a model of this kind has no shapes and no questions.

    """
    _check_readable(model)
    draw = _draw_shapes if hasattr(model, "shapes_") else _draw_tree
    return finish_figure(draw(model), place)


def model_table(model: Any) -> dict[str, Any]:
    """Return what is released of an additive model, a tree or a forest, as JSON values.

    Parameters
    ----------
    model
        The fitted estimator.

    Returns
    -------
    dict
        The intercept and the shapes; or for each tree its nodes, which are a question, about how
        many rows there are, the share of the likeliest class, and that class.

    Raises
    ------
    InvalidValue
        If a model of this kind has no shapes and no questions.

    """
    _check_readable(model)
    if hasattr(model, "trees_"):
        numbers = range(len(model.trees_))
        nodes = [[list(map(_plain, node)) for node in model.node_facts(at)] for at in numbers]
        return {"trees": nodes}
    shapes = {
        name: {
            "labels": list(shape.labels),
            "edges": shape.edges.tolist(),
            "values": shape.values.tolist(),
            "mass": shape.mass.tolist(),
        }
        for name, shape in model.shapes_.items()
    }
    return {"intercept": model.intercept_.tolist(), "shapes": shapes}


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _check_readable(model: Any) -> None:
    if not (hasattr(model, "shapes_") or hasattr(model, "trees_")):
        kinds = "an additive model, a tree or a forest"
        raise InvalidValue("model", type(model).__name__, kinds)


def spread_of(shape: Shape) -> float:
    """Return how much a shape moves the score: the deviation over the noisy mass of its cells."""
    share = (shape.mass + 1e-9) / (shape.mass + 1e-9).sum()
    return float(np.sqrt(share @ (shape.values**2).sum(axis=1)))


def _cost(model: Any) -> str:
    certificate = model.certificate_
    cost = f"epsilon {at_most(certificate.epsilon, digits=3)}"
    return cost + f", delta {at_most(certificate.delta, digits=3)}"


@in_house_style
def draw_description(found: Description, place: str | Path | None = None) -> Figure:
    """Draw the noisy histograms of a table, with error bars.

    Parameters
    ----------
    found
        What :func:`discreet.learn.describe` released.
    place
        A PNG, SVG or PDF file to write as well.

    Returns
    -------
    Figure
        One of matplotlib, which you may change and save again.

    """
    listed = list(found.columns.items())[:_MOST_COLUMNS]
    wide = min(3, len(listed))
    high = math.ceil(len(listed) / wide)
    figure = new_figure(3.4 * wide, 2.1 * high + 0.5)
    panels = figure.subplots(high, wide, squeeze=False).ravel()
    for axes, (name, column) in zip(panels, listed, strict=False):
        tidy_axes(axes)
        axes.set_title(short_name(name, width=30), loc="left", fontsize=9)
        _draw_counts(axes, column)
    for axes in panels[len(listed) :]:
        axes.set_visible(False)
    left = len(found.columns) - len(listed)
    more = f"; {left} more columns are not shown" if left else ""
    cost = f"epsilon {at_most(found.epsilon, digits=3)}, delta {at_most(found.delta, digits=3)}"
    figure.suptitle(f"noisy counts {found.about}\nbars of 95 %: {cost}{more}", fontsize=10)
    return finish_figure(figure, place)


def _draw_counts(axes: Axes, column: ColumnReport) -> None:
    bar = 1.96 * column.stddev
    if column.labels:
        order = np.argsort(-column.counts)[:_MOST_LABELS]
        places = range(len(order))
        axes.barh(places, column.counts[order], xerr=bar, color=COLOURS["blue"], height=0.7)
        names = [short_name(column.labels[at], width=16).splitlines()[0] for at in order]
        axes.set_yticks(places, names, fontsize=7)
        axes.invert_yaxis()
        return
    edges = column.edges
    if column.is_date:
        edges = edges.astype("datetime64[D]")
    axes.stairs(column.counts, edges, fill=True, color=COLOURS["blue"], alpha=0.8)
    high, low = column.counts + bar, column.counts - bar
    axes.stairs(high, edges, baseline=low, fill=True, color=COLOURS["grey"], alpha=0.4)


@in_house_style
def _draw_shapes(model: Any) -> Figure:
    found = sorted(model.shapes_.items(), key=lambda item: -spread_of(item[1]))[:_MOST_SHAPES]
    wide = min(3, len(found))
    high = math.ceil(len(found) / wide)
    figure = new_figure(3.4 * wide, 2.3 * high + 0.5)
    panels = figure.subplots(high, wide, squeeze=False).ravel()
    noise = model.noise_of_shapes()
    for axes, (name, shape) in zip(panels, found, strict=False):
        tidy_axes(axes)
        axes.set_title(short_name(name, width=30), loc="left", fontsize=9)
        bars = None if noise is None else 2.0 * noise[name].std(axis=0, ddof=1)
        line = axes.axvline if shape.labels else axes.axhline
        line(0.0, color=COLOURS["grey"], linewidth=0.8)
        if shape.labels:
            _draw_labels(axes, shape, bars)
        else:
            _draw_steps(axes, model, name, shape, bars)
    for axes in panels[len(found) :]:
        axes.set_visible(False)
    left = len(model.shapes_) - len(found)
    more = f"; {left} weaker columns are not shown" if left else ""
    figure.suptitle(
        f"what each column adds to the score, and noise: {_cost(model)}{more}", fontsize=10
    )
    return figure


def _draw_steps(axes: Axes, model: Any, name: str, shape: Shape, bars: Any) -> None:
    lower, upper = model.ends_of(name)
    sides = np.concatenate([[lower], shape.edges, [upper]])
    for output, colour in zip(range(shape.values.shape[1]), PALETTE, strict=False):
        values = shape.values[:-1, output]
        axes.stairs(values, sides, color=colour, linewidth=1.4, baseline=None)
        if bars is not None:
            reach = bars[:-1, output]
            low = values - reach
            axes.stairs(values + reach, sides, baseline=low, fill=True, color=colour, alpha=0.2)
    share = shape.mass[:-1] / max(float(shape.mass.sum()), 1e-9)
    low, high = axes.get_ylim()
    height = 0.18 * (high - low)
    bars = low + height * share / max(float(share.max()), 1e-9)
    axes.stairs(bars, sides, baseline=low, fill=True, color=COLOURS["sky"], alpha=0.5, zorder=0)


def _draw_labels(axes: Axes, shape: Shape, bars: Any) -> None:
    order = np.argsort(-shape.mass)[:_MOST_LABELS]
    values = shape.values[order, 0]
    if shape.values.shape[1] > 1:
        values = shape.values[order].max(axis=1)
    reach = None if bars is None else bars[order].max(axis=1)
    axes.barh(range(len(order)), values, xerr=reach, color=COLOURS["blue"], height=0.7)
    names = [short_name(shape.labels[at], width=16).splitlines()[0] for at in order]
    axes.set_yticks(range(len(order)), names, fontsize=7)
    axes.invert_yaxis()


@in_house_style
def _draw_tree(model: Any) -> Figure:
    tree: Tree = model.trees_[0]
    levels = min(tree.depth, _MOST_LEVELS)
    figure = new_figure(max(7.5, 1.15 * 2**levels), 1.3 * (levels + 1) + 0.4)
    axes = figure.subplots()
    axes.set_axis_off()
    facts = model.node_facts()
    for node in range(2 ** (levels + 1) - 1):
        level = (node + 1).bit_length() - 1
        across = (node + 1 - 2**level + 0.5) / 2**level
        words, rows, share, best = facts[node]
        if level < levels:
            for child, answer in ((2 * node + 1, "yes"), (2 * node + 2, "no")):
                there = (child + 1 - 2 ** (level + 1) + 0.5) / 2 ** (level + 1)
                axes.plot([across, there], [-level, -level - 1], color=COLOURS["grey"], zorder=0)
                axes.text((across + there) / 2, -level - 0.5, answer, fontsize=7, ha="center")
        question = f"{short_name(words, width=24)}\n" if words and level < levels else ""
        text = f"{question}{short_name(str(best), width=14)} {share:.0%}\nabout {rows} rows"
        axes.text(
            across,
            -level,
            text,
            fontsize=7,
            ha="center",
            va="center",
            bbox={"boxstyle": "round", "facecolor": "white", "edgecolor": COLOURS["blue"]},
        )
    axes.set_xlim(0.0, 1.0)
    axes.set_ylim(-levels - 0.5, 0.5)
    shown = f"; {levels} of {tree.depth} levels" if levels < tree.depth else ""
    many = f"; tree 1 of {len(model.trees_)}" if len(model.trees_) > 1 else ""
    axes.set_title(f"noisy counts: {_cost(model)}{shown}{many}", loc="left", fontsize=10)
    return figure
