"""Pictures of a certificate, from the numbers of its document."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from discreet._rounding import at_most
from discreet.report.figures import Figure, picture, share_ticks
from discreet.report.style import BLACK, GREY, PALETTE

__all__ = ["accountants_picture", "bounds_picture", "rates_picture"]

_BLUE, _VERMILION, _ORANGE = PALETTE[0], PALETTE[1], PALETTE[3]


def bounds_picture(epsilon: float, audits: Sequence[Mapping[str, Any]]) -> Figure:
    """The accountant's bound, and below it what each audit showed and could have shown."""
    names = ["accountant", *(f"audit {at}" for at in range(1, len(audits) + 1))]
    lows = [audit["epsilon_lower"] for audit in audits]
    ceilings = [audit["ceiling"] for audit in audits]
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": "shown by the audit",
            "y": names[1:],
            "x": lows,
            "marker": {"color": _VERMILION},
            "hovertemplate": "epsilon \u2265 %{x:.3f}<extra></extra>",
        },
        {
            "type": "bar",
            "orientation": "h",
            "name": "it could have shown",
            "y": names[1:],
            "x": [max(0.0, top - low) for top, low in zip(ceilings, lows, strict=True)],
            "customdata": ceilings,
            "marker": {
                "color": "#ffffff",
                "line": {"color": _VERMILION, "width": 1.5},
                "pattern": {"shape": "/", "fgcolor": _VERMILION, "solidity": 0.15},
            },
            "hovertemplate": "ceiling %{customdata:.3f}<extra></extra>",
        },
        {
            "type": "bar",
            "orientation": "h",
            "name": "allowed by the accountant",
            "y": names[:1],
            "x": [epsilon],
            "marker": {"color": _BLUE},
            "hovertemplate": "epsilon \u2264 %{x:.3f}<extra></extra>",
        },
    ]
    figure = picture(
        data,
        x={"title": {"text": "epsilon"}, "rangemode": "tozero"},
        y={"autorange": "reversed", "type": "category", "ticks": "", "categoryarray": names},
        height=230 + 52 * len(names),
    )
    figure["layout"]["barmode"] = "stack"
    figure["layout"]["legend"] = {"orientation": "h", "yanchor": "bottom", "y": 1.04, "x": 0}
    figure["layout"]["shapes"] = [_upright(epsilon)]
    return figure


def accountants_picture(accountants: Mapping[str, float | str], epsilon: float) -> Figure:
    """What each accountant says, on a logarithmic axis."""
    there = {name: said for name, said in accountants.items() if isinstance(said, int | float)}
    ranked = sorted(there.items(), key=lambda pair: -pair[1])
    figure = picture(
        [
            {
                "type": "scatter",
                "mode": "markers+text",
                "y": [escape(name) for name, _ in ranked],
                "x": [value for _, value in ranked],
                "text": [at_most(value, digits=3) for _, value in ranked],
                "textposition": "middle right",
                "cliponaxis": False,
                "marker": {"size": 11, "color": _BLUE},
                "hovertemplate": "%{y}: %{x:.4g}<extra></extra>",
            }
        ],
        x={"title": {"text": "epsilon (logarithmic)"}, **_log_axis([v for _, v in ranked])},
        y={"autorange": "reversed", "type": "category", "ticks": ""},
        height=150 + 32 * len(ranked),
        legend=False,
    )
    figure["layout"]["margin"] |= {"t": 36, "r": 40}
    figure["layout"]["shapes"] = [_upright(epsilon)]
    return figure


def rates_picture(rates: Sequence[Mapping[str, float]]) -> Figure:
    """The most that any attack may find, at each rate of false accusations."""
    points = sorted((rate["fpr"], rate["tpr"]) for rate in rates)
    least = points[0][0]
    line = {"type": "scatter", "mode": "lines"}
    data = [
        {
            **line,
            "name": "any attack, at most",
            "x": [fpr for fpr, _ in points] + [1.0],
            "y": [tpr for _, tpr in points] + [1.0],
            "line": {"color": BLACK, "width": 2.5, "dash": "dash"},
            "hovertemplate": "FPR %{x:.2%}<br>TPR at most %{y:.2%}<extra></extra>",
        },
        {
            **line,
            "name": "guessing",
            "x": [least, 1.0],
            "y": [least, 1.0],
            "line": {"color": GREY, "width": 1.5, "dash": "dot"},
            "hovertemplate": "guessing<extra></extra>",
        },
    ]
    return picture(
        data,
        x={"title": {"text": "wrongly accused (FPR)"}, **share_ticks(least)},
        y={"title": {"text": "members found (TPR)"}, **share_ticks(least)},
        height=400,
    )


def _upright(at: float) -> dict[str, Any]:
    return {
        "type": "line",
        "x0": at,
        "x1": at,
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "line": {"color": _BLUE, "dash": "dot", "width": 1.5},
    }


def _log_axis(values: Sequence[float]) -> dict[str, Any]:
    positive = [value for value in values if value > 0] or [1.0]
    low, high = math.log10(min(positive)) - 0.15, math.log10(max(positive)) + 0.3
    steps = (1,) if high - low > 3 else (1, 2, 5)
    powers = range(math.floor(low), math.ceil(high) + 1)
    ticks = [step * 10.0**power for power in powers for step in steps]
    ticks = [tick for tick in ticks if low <= math.log10(tick) <= high]
    return {
        "type": "log",
        "range": [low, high],
        "tickvals": ticks,
        "ticktext": [f"{tick:g}" for tick in ticks],
    }
