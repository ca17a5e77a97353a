"""Charts of pages: bars and points with intervals, curves on logarithmic axes, bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet._confidence import proportion
from discreet._rounding import at_most
from discreet.report._drawing import (
    COLOURS,
    DASHES,
    PALETTE,
    in_house_style,
    name_lines,
    new_figure,
    short_name,
    tidy_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from discreet.attacks import MembershipResult

_WIDTH = 4.8
_POINTS = 120
_HATCHES = ("", "///", "...", "xxx")
_MARKERS = "osD^vX"


@final
@dataclass(frozen=True)
class Bar:
    """A bar: its name, its length, and the interval around its end where there is one."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None


def _new_axes(height: float) -> tuple[Figure, Axes]:
    figure = new_figure(_WIDTH, height)
    axes = figure.subplots()
    tidy_axes(axes)
    return figure, axes


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Give each row of a lying chart its name, the first on top."""
    axes.set_yticks(range(len(names)), [short_name(name) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")


def _mark(axes: Axes, place: float, name: str = "", colour: str = COLOURS["grey"]) -> None:
    """Draw an upright line to compare with, and its name."""
    axes.axvline(place, color=colour, lw=1.2, ls=(0, (1, 1.4)), zorder=4)
    if name:
        axes.annotate(
            name,
            (place, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            color=colour,
            fontsize=9,
        )


def _intervals(entries: Sequence[Bar]) -> NDArray[np.float64] | None:
    if any(bar.low is None or bar.high is None for bar in entries):
        return None
    ends = [(bar.value - (bar.low or 0.0), (bar.high or 0.0) - bar.value) for bar in entries]
    return np.asarray(np.maximum(np.array(ends).T, 0.0))


@in_house_style
def bars(
    series: Mapping[str, Sequence[Bar]], *, title: str, mark: tuple[float, str] | None = None
) -> Figure:
    """Return lying bars of shares, series side by side; ``mark`` is a line to compare with."""
    from matplotlib.ticker import PercentFormatter

    names = list(dict.fromkeys(bar.name for entries in series.values() for bar in entries))
    figure, axes = _new_axes(0.9 + 0.32 * len(names) * max(1.0, 0.8 * len(series)))
    thick = 0.76 / len(series)
    handles = []
    for at, entries in enumerate(series.values()):
        shift = (at - (len(series) - 1) / 2) * thick
        handles.append(
            axes.barh(
                [names.index(bar.name) + shift for bar in entries],
                [bar.value for bar in entries],
                height=thick,
                xerr=_intervals(entries),
                color=PALETTE[at % len(PALETTE)],
                hatch=_HATCHES[at % len(_HATCHES)],
                edgecolor="white",
                error_kw={"lw": 1.2, "capsize": 2.5},
            )
        )
    _name_rows(axes, names)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    axes.set_xlim(left=0.0)
    axes.set_xlabel(title)
    if len(series) > 1:
        name_lines(axes, handles, list(series))
    if mark is not None:
        _mark(axes, *mark)
    return figure


@in_house_style
def dots(entries: Sequence[Bar], *, title: str, mark: tuple[float, str]) -> Figure:
    """Return points with intervals: an axis need not start at 0 for them."""
    figure, axes = _new_axes(0.9 + 0.3 * len(entries))
    axes.errorbar(
        [bar.value for bar in entries],
        range(len(entries)),
        xerr=_intervals(entries),
        fmt="o",
        color=COLOURS["blue"],
        lw=1.2,
        capsize=2.5,
    )
    _name_rows(axes, [bar.name for bar in entries])
    axes.set_xlabel(title)
    _mark(axes, *mark)
    return figure


@in_house_style
def small_groups(
    levels: Sequence[int], series: Mapping[str, Sequence[float]], *, x: str, y: str
) -> Figure:
    """Return shares at a few levels, which lie on a logarithmic axis; a line for each series."""
    from matplotlib.ticker import PercentFormatter

    figure, axes = _new_axes(3.4)
    handles = [
        axes.plot(
            levels,
            shares,
            color=PALETTE[at % len(PALETTE)],
            ls=DASHES[at % len(DASHES)],
            marker=_MARKERS[at % len(_MARKERS)],
            ms=5,
        )[0]
        for at, shares in enumerate(series.values())
    ]
    axes.set_xscale("log")
    _set_ticks(axes.xaxis, [float(level) for level in levels], [str(level) for level in levels])
    axes.set_ylim(0.0, 1.03)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set(xlabel=x, ylabel=y)
    if len(series) > 1:
        name_lines(axes, handles, list(series), columns=1)
    return figure


@in_house_style
def histogram(groups: Mapping[str, NDArray[np.float64]], *, title: str, bins: int = 60) -> Figure:
    """Return shares of two or more groups in the same bins; infinite values join the ends."""
    from matplotlib.ticker import PercentFormatter

    whole = np.concatenate(list(groups.values()))
    finite = whole[np.isfinite(whole)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    edges = np.linspace(low, high if high > low else low + 1.0, bins + 1)
    figure, axes = _new_axes(2.9)
    handles = []
    for at, values in enumerate(groups.values()):
        counts, _ = np.histogram(np.clip(values, low, high), bins=edges)
        look = {"color": PALETTE[at % len(PALETTE)], "ls": DASHES[at % len(DASHES)]}
        shares = counts / values.size
        axes.stairs(shares, edges, fill=True, color=look["color"], alpha=0.15, lw=0)
        handles.append(axes.stairs(shares, edges, lw=1.6, **look))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set(xlabel=title, ylabel="share of the group")
    name_lines(axes, handles, list(groups))
    return figure


def _set_ticks(axis: Axis, places: Sequence[float], names: Sequence[str]) -> None:
    axis.set_ticks(places, names)
    axis.set_ticks([], minor=True)


@in_house_style
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
    figure, axes = _new_axes(4.3)
    handles, names = [], []
    for at, result in enumerate(results):
        colour = PALETTE[at % len(PALETTE)]
        fpr, found = _sample_curve(result)
        shares = [proportion(int(k), result.roc.members, confidence=confidence) for k in found]
        low = [max(share.low, least / 10) for share in shares]
        high = [share.high for share in shares]
        axes.fill_between(fpr, low, high, step="post", color=colour, alpha=0.15, lw=0)
        # A logarithmic axis has no zero: below one member the curve leaves the picture.
        tpr = [share.share if share.successes else math.nan for share in shares]
        look = {"color": colour, "ls": DASHES[at % len(DASHES)], "lw": 2.0}
        handles += axes.step(fpr, tpr, where="post", **look)
        names.append(result.attack)
    chance = [smallest, 1.0]
    handles += axes.plot(chance, chance, color=COLOURS["grey"], lw=1.2, ls=(0, (1, 1.4)))
    names.append("chance")
    if allowed is not None:
        handles += axes.plot(allowed[0], allowed[1], color=COLOURS["black"], lw=1.4, ls=(0, (5, 2)))
        names.append(allowed[2])
    _rate_axes(axes, smallest, min(least, smallest))
    name_lines(axes, handles, names, columns=1 if max(map(len, names)) > 20 else 2)
    return figure


def _rate_axes(axes: Axes, x: float, y: float) -> None:
    axes.set(xscale="log", yscale="log")
    axes.set(xlabel="wrongly accused (FPR)", ylabel="members found (TPR)")
    for axis, set_limits, smallest in (
        (axes.xaxis, axes.set_xlim, x),
        (axes.yaxis, axes.set_ylim, y),
    ):
        powers = range(math.floor(math.log10(min(smallest, 0.1)) + 1e-9), 1)
        _set_ticks(axis, [10.0**p for p in powers], [f"{10.0 ** (p + 2):g} %" for p in powers])
        set_limits(min(smallest, 0.1), 1.07)


def _sample_curve(result: MembershipResult) -> tuple[list[float], NDArray[np.int64]]:
    """Return rates on a logarithmic grid, and how many members are found at each at most."""
    total = result.roc.nonmembers
    wanted = np.unique(np.rint(np.geomspace(1, total, _POINTS)).astype(np.int64))
    places = np.searchsorted(result.roc.false_positives, wanted, side="right") - 1
    return (wanted / total).tolist(), result.roc.true_positives[places]


# --- certificates ----------------------------------------------------------------------------


@in_house_style
def bounds_chart(epsilon: float, audits: Sequence[Mapping[str, Any]]) -> Figure:
    """Return the accountant's bound, and below it what each audit showed and could have shown."""
    names = ["accountant", *(f"audit {at}" for at in range(1, len(audits) + 1))]
    figure, axes = _new_axes(0.95 + 0.36 * len(names))
    handles = [axes.barh([0], [epsilon], color=COLOURS["blue"], height=0.66)]
    words = ["allowed by the accountant"]
    if audits:
        rows = range(1, len(names))
        lows = [audit["epsilon_lower"] for audit in audits]
        more = [max(0.0, audit["ceiling"] - audit["epsilon_lower"]) for audit in audits]
        look: dict[str, Any] = {"height": 0.66, "edgecolor": COLOURS["vermilion"]}
        handles.append(axes.barh(rows, lows, color=COLOURS["vermilion"], **look))
        handles.append(axes.barh(rows, more, left=lows, color="white", hatch="///", **look))
        words += ["shown by the audit", "it could have shown"]
    _name_rows(axes, names)
    axes.set_xlim(left=0.0)
    axes.set_xlabel("epsilon")
    _mark(axes, epsilon, colour=COLOURS["blue"])
    name_lines(axes, handles, words)
    return figure


@in_house_style
def accountants_chart(accountants: Mapping[str, float | str], epsilon: float) -> Figure:
    """Return what each accountant says, on a logarithmic axis."""
    there = {name: said for name, said in accountants.items() if isinstance(said, int | float)}
    ranked = sorted(there.items(), key=lambda pair: -pair[1])
    values = [value for _, value in ranked]
    figure, axes = _new_axes(0.85 + 0.27 * len(ranked))
    axes.plot(values, range(len(values)), "o", color=COLOURS["blue"], ms=6)
    for row, value in enumerate(values):
        axes.annotate(
            at_most(value, digits=3),
            (value, row),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    axes.set_xscale("log")
    positive = [value for value in values if value > 0] or [1.0]
    low, high = math.log10(min(positive)) - 0.15, math.log10(max(positive)) + 0.35
    steps = (1,) if high - low > 3 else (1, 2, 5)
    powers = range(math.floor(low), math.ceil(high) + 1)
    ticks = [step * 10.0**power for power in powers for step in steps]
    ticks = [tick for tick in ticks if low <= math.log10(tick) <= high]
    _set_ticks(axes.xaxis, ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xlim(10**low, 10**high)
    _name_rows(axes, [name for name, _ in ranked])
    axes.set_xlabel("epsilon (logarithmic)")
    _mark(axes, epsilon, colour=COLOURS["blue"])
    return figure


@in_house_style
def rates_chart(rates: Sequence[Mapping[str, float]]) -> Figure:
    """Return the most that any attack may find, at each rate of false accusations."""
    points = [*sorted((rate["fpr"], rate["tpr"]) for rate in rates), (1.0, 1.0)]
    figure, axes = _new_axes(3.4)
    least = points[0][0]
    fpr, tpr = zip(*points, strict=True)
    handles = [
        *axes.plot(fpr, tpr, color=COLOURS["black"], lw=2.0, ls=(0, (5, 2))),
        *axes.plot([least, 1.0], [least, 1.0], color=COLOURS["grey"], lw=1.2, ls=(0, (1, 1.4))),
    ]
    _rate_axes(axes, least, least)
    name_lines(axes, handles, ["any attack, at most", "guessing"])
    return figure
