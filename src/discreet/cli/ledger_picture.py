"""The picture of ``discreet ledger history``: how much of each budget is gone, over time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.ticker import PercentFormatter

from discreet.cli.ledger_text import share_used
from discreet.cli.pictures import COLOURS, blank_figure, save, spread, tidy
from discreet.ledger import DatasetView, HistoryRow

__all__ = ["draw_history"]

_ORDER = ("vermilion", "blue", "green", "orange", "purple", "sky", "grey")
_MOST_LINES = 7
_LABEL_GAP = 0.055


def draw_history(view: DatasetView, rows: Sequence[HistoryRow], place: Path) -> None:
    """Draw one line of steps for each budget (the dataset and up to six others)."""
    figure = blank_figure(9.6, 4.9)
    axes = figure.subplots()
    tidy(axes)
    times, label = _times(rows)
    budgets = sorted(view.budgets, key=lambda b: (b.label != "dataset", -b.used))[:_MOST_LINES]
    ends: list[tuple[float, str, str]] = []
    for budget, name in zip(budgets, _ORDER, strict=False):
        xs: list[Any] = []
        ys: list[float] = []
        for time, row in zip(times, rows, strict=True):
            if budget.label in row.spent:
                xs.append(time)
                ys.append(share_used(budget, row.spent[budget.label]))
        last = ys[-1] if ys else 0.0
        if times:
            xs, ys = [times[0], *xs, times[-1]], [0.0, *ys, last]
            width = 2.2 if budget.label == "dataset" else 1.4
            axes.step(xs, ys, where="post", color=COLOURS[name], lw=width)
        ends.append((last, budget.label, COLOURS[name]))
    for row, time in zip(rows, times, strict=True):
        if row.outcome == "failed":
            axes.plot(
                [time],
                [share_used(view.budget, row.spent["dataset"])],
                "x",
                color=COLOURS["black"],
                ms=6,
            )
    ends.sort()
    heights = spread([end[0] for end in ends], gap=_LABEL_GAP)
    for height, (last, text, colour) in zip(heights, ends, strict=True):
        axes.annotate(
            f"{text} {100 * last:.0f} %",
            (1.0, height),
            xycoords=("axes fraction", "data"),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            color=colour,
            fontsize=9,
            annotation_clip=False,
        )
    axes.axhline(1.0, color=COLOURS["grey"], lw=1.0, ls=(0, (4, 3)))
    axes.set_ylim(0.0, 1.06)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylabel("share of the budget that is spent")
    axes.set_xlabel(label)
    if times and isinstance(times[0], datetime):
        locator = AutoDateLocator()  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    budget = view.budget
    title = f"{view.name}: epsilon {float(budget.epsilon):g}, delta {float(budget.delta):g}"
    failed = any(row.outcome == "failed" for row in rows)
    note = "   (x: the body failed, the charge stays)" if failed else ""
    axes.set_title(f"{title}, {len(rows)} charges{note}", loc="left", fontsize=11.5)
    save(figure, place)


def _times(rows: Sequence[HistoryRow]) -> tuple[list[Any], str]:
    """Dates where the clock ran forward; the order of the chain where it did not."""
    moments = [datetime.fromisoformat(row.at) for row in rows]
    forward = all(before <= after for before, after in pairwise(moments))
    if len(moments) > 1 and forward and moments[0] < moments[-1]:
        return list(moments), "time (UTC)"
    return [row.seq for row in rows], "entry"
