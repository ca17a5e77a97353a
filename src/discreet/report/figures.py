"""Pictures as data: layouts, bars with intervals, curves on logarithmic axes.

A picture is a mapping with ``data`` and ``layout``, plain JSON values in the form that Plotly
reads, so that drawing needs no more than Plotly's script inside the page. Names are escaped:
Plotly reads a few tags in them, and a name may come from the data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet._confidence import proportion
from discreet.report.style import BLACK, DASHES, GREY, PALETTE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.attacks import MembershipResult

__all__ = ["Bar", "Figure", "bars", "curve", "dots", "histogram", "picture", "roc", "share_ticks"]

Figure = dict[str, Any]

_POINTS = 240
_GRID = "#E4E4E4"


def picture(
    data: Sequence[Mapping[str, Any]],
    *,
    x: Mapping[str, Any],
    y: Mapping[str, Any],
    height: int = 420,
    legend: bool = True,
) -> Figure:
    """Return a figure in the style of all pictures here."""
    axis = {
        "gridcolor": _GRID,
        "linecolor": GREY,
        "zeroline": False,
        "automargin": True,
        "ticks": "outside",
        "tickcolor": GREY,
    }
    layout = {
        "height": height,
        "margin": {"l": 56, "r": 16, "t": 40, "b": 48},
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "font": {"family": "system-ui, sans-serif", "size": 14, "color": "#1a1a1a"},
        "colorway": list(PALETTE),
        "showlegend": legend,
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0},
        "hoverlabel": {"font": {"size": 14}},
        "xaxis": {**axis, **x},
        "yaxis": {**axis, **y},
    }
    return {"data": [dict(trace) for trace in data], "layout": layout}


def share_ticks(smallest: float) -> dict[str, Any]:
    """Return a logarithmic axis of shares from ``smallest`` to 1, with words people read.

    >>> share_ticks(0.004)["ticktext"]
    ['0.1 %', '1 %', '10 %', '100 %']
    """
    low = math.floor(math.log10(min(smallest, 0.1)) + 1e-9)
    powers = list(range(low, 1))
    return {
        "type": "log",
        "range": [math.log10(min(smallest, 0.1)), 0.03],
        "tickvals": [10.0**power for power in powers],
        "ticktext": [f"{100 * 10.0**power:g} %" for power in powers],
    }


def roc(
    results: Sequence[MembershipResult],
    *,
    confidence: float = 0.95,
    allowed: tuple[Sequence[float], Sequence[float], str] | None = None,
) -> Figure:
    """Return ROC curves on two logarithmic axes, each with its interval.

    Curves start at the smallest false-positive rate that the non-members support. They are
    steps: between two thresholds nothing is gained. ``allowed`` is a curve that a guarantee
    implies: false-positive rates, the largest true-positive rates, and what to call them.
    """
    smallest = min(result.roc.smallest_fpr for result in results)
    least = min(1.0 / result.roc.members for result in results)
    chance = np.geomspace(smallest, 1.0, 60)
    data: list[dict[str, Any]] = []
    for at, result in enumerate(results):
        colour = PALETTE[at % len(PALETTE)]
        fpr, found = _sampled(result)
        shares = [proportion(int(k), result.roc.members, confidence=confidence) for k in found]
        floor = least / 10
        band = {"mode": "lines", "line": {"width": 0, "shape": "hv"}, "hoverinfo": "skip"}
        group = {"legendgroup": str(at), "showlegend": False}
        low = [max(share.low, floor) for share in shares]
        data += [
            {"type": "scatter", "x": fpr, "y": low, **band, **group},
            {
                "type": "scatter",
                "x": fpr,
                "y": [share.high for share in shares],
                "fill": "tonexty",
                "fillcolor": _faint(colour),
                **band,
                **group,
            },
            {
                "type": "scatter",
                "mode": "lines",
                "name": escape(result.attack),
                "legendgroup": str(at),
                "x": fpr,
                # A logarithmic axis has no zero: below one member the curve leaves the picture.
                "y": [share.share if share.successes else None for share in shares],
                "line": {
                    "color": colour,
                    "width": 2.5,
                    "dash": DASHES[at % len(DASHES)],
                    "shape": "hv",
                },
                "hovertemplate": "FPR %{x:.3%}<br>TPR %{y:.3%}",
            },
        ]
    data.append(_plain_line("chance", chance.tolist(), chance.tolist(), GREY, "dot"))
    if allowed is not None:
        data.append(_plain_line(allowed[2], list(allowed[0]), list(allowed[1]), BLACK, "dash"))
    return picture(
        data,
        x={"title": {"text": "wrongly accused (FPR)"}, **share_ticks(smallest)},
        y={"title": {"text": "members found (TPR)"}, **share_ticks(min(least, smallest))},
        height=480,
    )


def _plain_line(name: str, x: list[float], y: list[float], colour: str, dash: str) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": x,
        "y": y,
        "line": {"color": colour, "width": 1.5, "dash": dash},
        "hovertemplate": f"{name}<br>FPR %{{x:.3%}}<br>TPR %{{y:.3%}}<extra></extra>",
    }


def _sampled(result: MembershipResult) -> tuple[list[float], NDArray[np.int64]]:
    """Return rates on a logarithmic grid, and how many members are found at each at most."""
    total = result.roc.nonmembers
    wanted = np.unique(np.rint(np.geomspace(1, total, _POINTS)).astype(np.int64))
    places = np.searchsorted(result.roc.false_positives, wanted, side="right") - 1
    return (wanted / total).tolist(), result.roc.true_positives[places]


@final
@dataclass(frozen=True)
class Bar:
    """A bar: its name, its length, and the interval around its end where there is one."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None


def bars(
    series: Mapping[str, Sequence[Bar]],
    *,
    title: str,
    mark: tuple[float, str] | None = None,
) -> Figure:
    """Return lying bars of shares, series side by side; ``mark`` is a line to compare with."""
    data = []
    patterns = ("", "/", ".", "x")
    for at, (name, entries) in enumerate(series.items()):
        trace: dict[str, Any] = {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": [escape(bar.name) for bar in entries],
            "x": [bar.value for bar in entries],
            "marker": {
                "color": PALETTE[at % len(PALETTE)],
                "pattern": {
                    "shape": patterns[at % len(patterns)],
                    "fgcolor": "#ffffff",
                    # Over the colour: alone, white stripes would be all there is to see.
                    "fillmode": "overlay",
                    "solidity": 0.2,
                },
            },
            "hovertemplate": "%{y}: %{x:.2%}",
        }
        if all(bar.low is not None and bar.high is not None for bar in entries):
            trace["error_x"] = _intervals(entries, BLACK)
        data.append(trace)
    count = max(len(entries) for entries in series.values()) * len(series)
    figure = picture(
        data,
        x={"title": {"text": title}, "tickformat": ".0%", "rangemode": "tozero"},
        y={"autorange": "reversed", "type": "category", "ticks": ""},
        height=130 + 34 * count,
        legend=len(series) > 1,
    )
    return figure if mark is None else _marked(figure, mark)


def dots(entries: Sequence[Bar], *, title: str, mark: tuple[float, str]) -> Figure:
    """Return points with their intervals: for figures whose zero means nothing."""
    trace = {
        "type": "scatter",
        "mode": "markers",
        "y": [escape(bar.name) for bar in entries],
        "x": [bar.value for bar in entries],
        "marker": {"size": 10, "color": PALETTE[0]},
        "error_x": _intervals(entries, PALETTE[0]),
        "hovertemplate": "%{y}: %{x:.4f}<extra></extra>",
    }
    figure = picture(
        [trace],
        x={"title": {"text": title}},
        y={"autorange": "reversed", "type": "category", "ticks": ""},
        height=130 + 34 * len(entries),
        legend=False,
    )
    return _marked(figure, mark)


def _intervals(entries: Sequence[Bar], colour: str) -> dict[str, Any]:
    highs = [bar.value if bar.high is None else bar.high for bar in entries]
    lows = [bar.value if bar.low is None else bar.low for bar in entries]
    return {
        "type": "data",
        "symmetric": False,
        "array": [high - bar.value for high, bar in zip(highs, entries, strict=True)],
        "arrayminus": [bar.value - low for low, bar in zip(lows, entries, strict=True)],
        "color": colour,
        "thickness": 1.5,
    }


def _marked(figure: Figure, mark: tuple[float, str]) -> Figure:
    """Return the figure with an upright line to compare with, and its name."""
    figure["layout"]["shapes"] = [
        {
            "type": "line",
            "x0": mark[0],
            "x1": mark[0],
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "line": {"color": GREY, "dash": "dot", "width": 1.5},
        }
    ]
    figure["layout"]["annotations"] = [
        {
            "x": mark[0],
            "y": 1,
            "yref": "paper",
            "yanchor": "bottom",
            "xanchor": "center",
            "text": mark[1],
            "showarrow": False,
            "font": {"size": 12, "color": GREY},
        }
    ]
    return figure


def curve(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    x: Mapping[str, Any],
    y: Mapping[str, Any],
) -> Figure:
    """Return lines with marks at their points."""
    symbols = ("circle", "square", "diamond", "triangle-up", "x", "cross")
    data = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": escape(name),
            "x": list(points[0]),
            "y": list(points[1]),
            "line": {"color": PALETTE[at % len(PALETTE)], "dash": DASHES[at % len(DASHES)]},
            "marker": {"size": 8, "symbol": symbols[at % len(symbols)]},
        }
        for at, (name, points) in enumerate(series.items())
    ]
    return picture(data, x=x, y=y, legend=len(series) > 1)


def histogram(groups: Mapping[str, NDArray[np.float64]], *, title: str, bins: int = 60) -> Figure:
    """Return shares of two or more groups in the same bins; infinite values join the ends."""
    whole = np.concatenate(list(groups.values()))
    finite = whole[np.isfinite(whole)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    edges = np.linspace(low, high if high > low else low + 1.0, bins + 1)
    data = []
    for at, (name, values) in enumerate(groups.items()):
        counts, _ = np.histogram(np.clip(values, low, high), bins=edges)
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                "x": edges.tolist(),
                "y": [*(counts / values.size).tolist(), 0.0],
                "line": {
                    "shape": "hv",
                    "color": PALETTE[at % len(PALETTE)],
                    "dash": DASHES[at % len(DASHES)],
                },
                "fill": "tozeroy",
                "fillcolor": _faint(PALETTE[at % len(PALETTE)]),
            }
        )
    return picture(
        data,
        x={"title": {"text": title}},
        y={"title": {"text": "share of the group"}, "tickformat": ".0%"},
        height=340,
    )


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.15)"
