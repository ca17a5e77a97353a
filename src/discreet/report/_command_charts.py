"""Pictures that commands write: accountants, beliefs, budgets over time, models, the flow of PATE.

All are drawn from public facts: losses, certificates, entries of a ledger, released weights.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from discreet._rounding import at_least, at_most
from discreet.errors import InvalidValue
from discreet.report._drawing import (
    COLOURS,
    finish_figure,
    in_house_style,
    new_figure,
    spread_labels,
    tidy_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from discreet.certificate import Certificate
    from discreet.ledger import DatasetView, HistoryRow
    from discreet.privacy.theorems import Explanation, PosteriorBounds

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
_LEAST_FALSE_ALARM_RATE = 1e-4
_ORDER = ("vermilion", "blue", "green", "orange", "purple", "sky", "grey")
_MOST_LINES = 7
_LABEL_GAP = 0.055
_INSIDE, _BORDER, _OUTSIDE = COLOURS["vermilion"], COLOURS["grey"], COLOURS["blue"]
_KINDS = (".png", ".svg", ".pdf")
# Left, low, width, height, colour; then from where to where.
_BOXES = {
    "private": (0.2, 1.75, 1.9, 0.9, _INSIDE),
    "teachers": (2.5, 1.65, 2.7, 1.1, _INSIDE),
    "aggregator": (5.65, 1.65, 2.5, 1.1, _BORDER),
    "labels": (8.7, 1.75, 2.1, 0.9, _OUTSIDE),
    "public": (2.9, 0.35, 1.9, 0.8, _OUTSIDE),
    "student": (8.7, 0.35, 2.1, 0.8, _OUTSIDE),
}
_ARROWS = (
    ((2.1, 2.2), (2.5, 2.2)),
    ((5.2, 2.2), (5.65, 2.2)),
    ((8.15, 2.2), (8.7, 2.2)),
    ((3.85, 1.15), (3.85, 1.65)),
    ((9.75, 1.75), (9.75, 1.15)),
    ((4.8, 0.75), (8.7, 0.75)),
)


# --- compare -------------------------------------------------------------------------------


@dataclass(frozen=True)
class AccountantComparison:
    """Epsilon by accountant and number of steps, for one Poisson-sampled Gaussian.

    ``epsilons`` holds one value for each entry of ``steps``, infinite where no finite epsilon
    holds; an accountant that does not apply is in ``reasons`` instead.
    """

    noise_multiplier: float
    rate: float
    delta: float
    steps: list[int]
    epsilons: dict[str, list[float]]
    reasons: dict[str, str]


def compare_accountants(
    noise_multiplier: float,
    rate: float,
    *,
    delta: float,
    max_steps: int,
    points: int = 20,
    track: Callable[[list[int]], Iterable[int]] | None = None,
) -> AccountantComparison:
    """Ask every accountant about DP-SGD, for more and more steps.

    Parameters
    ----------
    noise_multiplier, rate, delta
        The run: noise over the clip norm, probability of a record, delta of every epsilon.
    max_steps, points
        The largest number of steps, and how many numbers up to it, evenly in ratio.
    track
        Is given the numbers of steps and yields them, such as a progress bar.

    Returns
    -------
    AccountantComparison
        Epsilons, and why some accountants do not apply.

    Raises
    ------
    InvalidValue
        If noise, rate or delta are out of range.

    Examples
    --------
    >>> found = compare_accountants(4.0, 0.01, delta=1e-5, max_steps=10, points=2)
    >>> found.steps, found.epsilons["pld"][-1] <= found.epsilons["rdp"][-1]
    ([1, 10], True)
    """
    from discreet.privacy import Gaussian, every_accountant

    step = Gaussian(noise_multiplier).poisson(rate=rate)
    grid = spaced_steps(max_steps, points)
    found = [every_accountant(n * step, delta=delta) for n in (track or list)(grid)]
    epsilons: dict[str, list[float]] = {}
    reasons: dict[str, str] = {}
    for name in found[-1]:
        column = [answer[name] for answer in found]
        refusals = [value for value in column if isinstance(value, str)]
        if refusals:
            reasons[name] = refusals[-1]
        if len(refusals) < len(column):
            epsilons[name] = [math.inf if isinstance(value, str) else value for value in column]
    return AccountantComparison(noise_multiplier, rate, delta, grid, epsilons, reasons)


def spaced_steps(last: int, points: int) -> list[int]:
    """Return distinct integers from 1 to ``last``, about evenly spaced in ratio.

    >>> spaced_steps(1000, 4), spaced_steps(3, 10), spaced_steps(500, 1)
    ([1, 10, 100, 1000], [1, 2, 3], [500])
    """
    inner = {round(math.exp(math.log(last) * i / (points - 1))) for i in range(points - 1)}
    return sorted(inner | {last})


@in_house_style
def draw_comparison(comparison: AccountantComparison, place: str | Path | None = None) -> Figure:
    """Draw the comparison on logarithmic axes and write it to ``place``.

    Parameters
    ----------
    comparison
        What to draw.
    place
        A file to write as well, whose name says its kind.

    Returns
    -------
    Figure
        One of matplotlib, which you may change and save again.
    """
    figure = new_figure(8.4, 4.8)
    axes = figure.subplots()
    axes.set_xscale("log")
    axes.set_yscale("log")
    tidy_axes(axes)
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
    return finish_figure(figure, place)


class _End(NamedTuple):
    label: str
    steps: int
    epsilon: float
    colour: str


def _label_ends(axes: Axes, ends: list[_End]) -> None:
    """Name every line in the right margin, with what it says at its end."""
    low, high = (math.log(limit) for limit in axes.get_ylim())
    ends = sorted(ends, key=lambda end: end.epsilon)
    heights = spread_labels(
        [(math.log(end.epsilon) - low) / (high - low) for end in ends], gap=0.062
    )
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


# --- explain -------------------------------------------------------------------------------


@in_house_style
def draw_explanation(explanation: Explanation, place: str | Path | None = None) -> Figure:
    """Draw both panels and write them to ``place``.

    Parameters
    ----------
    explanation
        What to draw.
    place
        A file to write as well, whose name says its kind.

    Returns
    -------
    Figure
        One of matplotlib, which you may change and save again.

    Examples
    --------
    >>> from discreet.privacy.theorems import explain
    >>> figure = draw_explanation(explain(1.0, 1e-5, prior=0.5))
    >>> len(figure.axes)
    2
    """
    figure = new_figure(9.6, 4.9)
    figure.suptitle(
        f"What epsilon {explanation.epsilon:g} and delta {explanation.delta:g} mean for one person",
        x=0.015,
        ha="left",
        fontsize=12.5,
    )
    beliefs, tests = figure.subplots(1, 2)
    _draw_beliefs(beliefs, explanation)
    _draw_tests(tests, explanation)
    return finish_figure(figure, place)


def _draw_beliefs(axes: Axes, explanation: Explanation) -> None:
    from matplotlib.ticker import PercentFormatter

    from discreet.privacy.theorems import posterior_interval

    prior = explanation.prior
    pure = explanation.delta == 0.0
    loss = explanation.epsilon if pure else explanation.beyond
    priors = [i / 400 for i in range(401)]
    bounds = [posterior_interval(p, loss) for p in priors]
    lower, upper = [b.lower for b in bounds], [b.upper for b in bounds]
    tidy_axes(axes)
    axes.fill_between(priors, lower, upper, color=COLOURS["sky"], alpha=0.3, lw=0)
    axes.plot(priors, upper, color=COLOURS["blue"], lw=1.6)
    axes.plot(priors, lower, color=COLOURS["blue"], lw=1.6)
    axes.plot([0, 1], [0, 1], color=COLOURS["grey"], lw=1.2, ls=(0, (4, 3)))
    axes.annotate(
        "nothing learned",
        (0.86, 0.86) if prior < 0.6 else (0.3, 0.3),
        xytext=(0, -5),
        textcoords="offset points",
        ha="center",
        va="top",
        rotation=45,
        rotation_mode="anchor",
        color=COLOURS["grey"],
        fontsize=9,
    )
    here = posterior_interval(prior, loss)
    axes.vlines(prior, here.lower, here.upper, color=COLOURS["vermilion"], lw=2.0, zorder=4)
    axes.plot(
        [prior] * 3,
        [here.lower, prior, here.upper],
        ls="",
        marker="o",
        ms=5,
        color=COLOURS["vermilion"],
        zorder=5,
    )
    _name_limits(axes, prior, here)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="belief before the release", ylabel="belief after it")
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    failure = at_most(explanation.failure_probability, digits=2)
    scope = "always" if pure else f"except with probability {failure}"
    axes.set_title(f"How far a belief can move\n({scope})", loc="left", fontsize=10.5)


def _name_limits(axes: Axes, prior: float, here: PosteriorBounds) -> None:
    """Say both limits: outside the band where the frame leaves room, else inside it."""
    upper = f"at most {at_most(100 * here.upper, digits=3)} %"
    lower = f"at least {at_least(100 * here.lower, digits=3)} %"
    if 0.35 < prior < 0.65 and here.lower > 0.07 and here.upper < 0.93:
        _remark(axes, prior, here.upper, upper, above=True)
        _remark(axes, prior, here.lower, lower, above=False)
        return
    low, high = max(0.05, here.lower), min(0.95, here.upper)
    heights = spread_labels([min(low, 0.88), max(high, 0.12)], gap=0.07)
    shift, side = (8, "left") if prior < 0.5 else (-8, "right")
    for height, text in zip(heights, (lower, upper), strict=True):
        axes.annotate(
            text,
            (prior, height),
            xytext=(shift, 0),
            textcoords="offset points",
            ha=side,
            va="center",
            color=COLOURS["vermilion"],
            fontsize=10,
            zorder=6,
        )


def _remark(axes: Axes, x: float, y: float, text: str, *, above: bool) -> None:
    """Name a point at its upper left or at its lower right."""
    axes.annotate(
        text,
        (x, y),
        xytext=(-7 if above else 7, 4 if above else -4),
        textcoords="offset points",
        ha="right" if above else "left",
        va="bottom" if above else "top",
        color=COLOURS["vermilion"],
        fontsize=10,
        zorder=6,
    )


def _draw_tests(axes: Axes, explanation: Explanation) -> None:
    from matplotlib.ticker import FuncFormatter

    from discreet.privacy.theorems import best_tpr

    alarms = [_LEAST_FALSE_ALARM_RATE ** (1 - i / 400) for i in range(401)]
    found = [best_tpr(f, epsilon=explanation.epsilon, delta=explanation.delta) for f in alarms]
    axes.set_xscale("log")
    axes.set_yscale("log")
    tidy_axes(axes)
    axes.fill_between(alarms, alarms, found, color=COLOURS["sky"], alpha=0.3, lw=0)
    axes.plot(alarms, alarms, color=COLOURS["grey"], lw=1.2, ls=(0, (4, 3)))
    axes.plot(alarms, found, color=COLOURS["blue"], lw=1.6)
    for rate, tpr in (
        (0.001, explanation.tpr_at_fpr_0_1_percent),
        (0.01, explanation.tpr_at_fpr_1_percent),
        (0.1, explanation.tpr_at_fpr_10_percent),
    ):
        axes.plot([rate], [tpr], marker="o", ms=5, color=COLOURS["vermilion"], zorder=5)
        _remark(axes, rate, tpr, f"{at_most(100 * tpr, digits=3)} %", above=tpr < 0.5)
    axes.annotate(
        "blind guessing",
        (0.02, 0.02),
        xytext=(4, -4),
        textcoords="offset points",
        va="top",
        color=COLOURS["grey"],
        fontsize=9,
    )
    axes.set(
        xlim=(_LEAST_FALSE_ALARM_RATE, 1),
        ylim=(_LEAST_FALSE_ALARM_RATE, 1.3),
        xlabel="non-members wrongly accused",
        ylabel="members found, at most",
    )
    percent = FuncFormatter(lambda value, _: f"{100 * value:g}%")
    axes.xaxis.set_major_formatter(percent)
    axes.yaxis.set_major_formatter(percent)
    axes.set_title("How well the best test can tell\nwho took part", loc="left", fontsize=10.5)


# --- ledger history ------------------------------------------------------------------------


@in_house_style
def draw_history(
    view: DatasetView, rows: Sequence[HistoryRow], place: str | Path | None = None
) -> Figure:
    """Draw one line of steps for each budget (the dataset and up to six others).

    Parameters
    ----------
    view, rows
        A dataset of a ledger, and its charges.
    place
        A file to write as well, whose name says its kind.

    Returns
    -------
    Figure
        One of matplotlib, which you may change and save again.
    """
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.ticker import PercentFormatter

    figure = new_figure(9.6, 4.9)
    axes = figure.subplots()
    tidy_axes(axes)
    times, label = _times(rows)
    budgets = sorted(view.budgets, key=lambda b: (b.label != "dataset", -b.used))[:_MOST_LINES]
    ends: list[tuple[float, str, str]] = []
    for budget, name in zip(budgets, _ORDER, strict=False):
        xs: list[Any] = []
        ys: list[float] = []
        for time, row in zip(times, rows, strict=True):
            if budget.label in row.spent:
                xs.append(time)
                ys.append(budget.share_used(row.spent[budget.label]))
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
                [view.budget.share_used(row.spent["dataset"])],
                "x",
                color=COLOURS["black"],
                ms=6,
            )
    ends.sort()
    heights = spread_labels([end[0] for end in ends], gap=_LABEL_GAP)
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
    return finish_figure(figure, place)


def _times(rows: Sequence[HistoryRow]) -> tuple[list[Any], str]:
    """Dates where the clock ran forward; the order of the chain where it did not."""
    moments = [datetime.fromisoformat(row.at) for row in rows]
    forward = all(before <= after for before, after in pairwise(moments))
    if len(moments) > 1 and forward and moments[0] < moments[-1]:
        return list(moments), "time (UTC)"
    return [row.seq for row in rows], "entry"


# --- PATE ----------------------------------------------------------------------------------


def flow_lines(certificate: Certificate) -> dict[str, str]:
    """What each stage of the run was, in words; public."""
    try:
        return _lines(certificate.plan, certificate.relation)
    except (KeyError, TypeError, IndexError):
        raise InvalidValue("certificate", certificate.learner, "the certificate of PATE") from None


@in_house_style
def flow_chart(plan: Mapping[str, Any], *, relation: str) -> Figure | None:
    """Return the flow of a PATE run for a page, or None if the plan is not one of PATE.

    >>> flow_chart({"steps": 100}, relation="add_remove") is None
    True
    """
    try:
        words = _lines(plan, relation)
    except (KeyError, TypeError, IndexError):
        return None
    return _draw_boxes(words, top=3.05)[0]


@in_house_style
def draw_flow(certificate: Certificate, place: str | Path | None = None) -> Figure:
    """Draw the run of a certificate of PATE to a file.

    Parameters
    ----------
    certificate
        What the classifier certified.
    place
        A PNG, SVG or PDF file to write as well.

    Returns
    -------
    Figure
        One of matplotlib, which you may change and save again.

    Raises
    ------
    InvalidValue
        If it is not the certificate of a PATE run, or the file has another suffix.

    """
    if place is not None and Path(place).suffix.lower() not in _KINDS:
        raise InvalidValue("place", str(place), "a file that ends in " + ", ".join(_KINDS))
    figure, axes = _draw_boxes(flow_lines(certificate), top=3.6)
    change = "added or removed" if certificate.relation == "add_remove" else "changed"
    title = (
        f"epsilon {at_most(certificate.epsilon, digits=4)} at delta {at_most(certificate.delta)} "
        f"for one {certificate.unit} {change}, data-independent"
    )
    axes.text(0.2, 3.28, title, fontsize=12, weight="bold", va="center")
    if certificate.insecure:
        axes.text(0.2, 2.98, "INSECURE seed: protects nobody", fontsize=9, color=_INSIDE)
    return finish_figure(figure, place)


def _draw_boxes(words: Mapping[str, str], *, top: float) -> tuple[Figure, Axes]:
    figure = new_figure(11, top)
    figure.set_layout_engine("none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, 11)
    axes.set_ylim(0, top)
    axes.axis("off")
    for key, (left, low, width, height, colour) in _BOXES.items():
        _box(axes, left, low, width, height, colour, words[key])
    for start, end in _ARROWS:
        axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": "black", "lw": 1.2})
    axes.text(5.42, 2.32, "votes", ha="center", fontsize=7)
    axes.text(3.95, 1.38, "queries", ha="left", va="center", fontsize=7)
    axes.plot([8.4, 8.4], [0.95, 2.95], color=_BORDER, lw=1.0, ls=(0, (4, 3)))
    axes.text(8.32, 2.88, "stays inside", ha="right", fontsize=8, color=_INSIDE)
    axes.text(8.48, 2.88, "may leave", ha="left", fontsize=8, color=_OUTSIDE)
    return figure, axes


def _lines(plan: Mapping[str, Any], relation: str) -> dict[str, str]:
    parts, aggregator = plan["partition"], dict(plan["aggregator"])
    asked, answered = plan["queries_asked"], plan["labels_answered"]
    student = plan["student"]["kind"]
    teachers, public = plan["teachers"], plan["public_rows"]
    name = aggregator.pop("aggregator")
    hidden = ("classes", "teachers", "relation")
    noise = ", ".join(
        f"{key.replace('_', ' ')} {_short(value)}"
        for key, value in aggregator.items()
        if key not in hidden and value is not None
    )
    number = "private" if relation == "add_remove" else "public"
    apart = (
        "disjoint" if parts.get("disjoint", True) else f"{parts['teachers_per_record']} a record"
    )
    return {
        "private": f"private records\ntheir number is {number}",
        "teachers": f"{teachers} teachers, {apart}\nby {parts['rule']}\n{_kinds(plan['teacher'])}",
        "aggregator": f"{name}\n{noise}",
        "labels": f"{asked} queries asked\n{answered} labels answered",
        "public": f"{public} public rows\nwithout labels",
        "student": f"student ({student})\nthe release",
    }


def _box(
    axes: Any, left: float, low: float, width: float, height: float, colour: str, text: str
) -> None:
    from matplotlib.patches import FancyBboxPatch

    shape = FancyBboxPatch(
        (left, low),
        width,
        height,
        boxstyle="round,pad=0,rounding_size=0.08",
        linewidth=1.4,
        edgecolor=colour,
        facecolor="white",
    )
    axes.add_patch(shape)
    heading, *more = _wrap(text)
    rest = "\n".join(more)
    middle = left + width / 2
    top = low + height - 0.12
    axes.text(middle, top, heading, ha="center", va="top", fontsize=10, color=colour)
    axes.text(middle, top - 0.25, rest, ha="center", va="top", fontsize=8, linespacing=1.25)


def _wrap(text: str) -> list[str]:
    return [part for line in text.split("\n") for part in textwrap.wrap(line, 34) or [""]]


def _kinds(names: list[str]) -> str:
    if len(names) > 1:
        return f"{len(names)} kinds of teachers"
    if names[0].startswith("Pipeline("):
        return " + ".join(re.findall(r"[A-Z]\w+(?=\()", names[0])[1:])
    return textwrap.shorten(names[0], 34, placeholder=" ...")


def _short(value: Any) -> str:
    if isinstance(value, str):
        try:
            return f"{float(Fraction(value)):.4g}"
        except ValueError:
            return value
    return f"{value:.4g}" if isinstance(value, float) else str(value)
