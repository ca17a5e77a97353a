"""The picture of ``discreet explain``: how far a belief can move, how well a test can tell."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, PercentFormatter

from discreet.cli.pictures import COLOURS, blank_figure, save, spread, tidy
from discreet.cli.tables import at_least, at_most
from discreet.privacy.theorems import Explanation, PosteriorBounds, best_tpr, posterior_interval

__all__ = ["draw_explanation"]

_LEAST_FALSE_ALARM_RATE = 1e-4


def draw_explanation(explanation: Explanation, place: Path) -> None:
    """Draw both panels and write them to ``place``."""
    figure = blank_figure(9.6, 4.9)
    figure.suptitle(
        f"What epsilon {explanation.epsilon:g} and delta {explanation.delta:g} mean for one person",
        x=0.015,
        ha="left",
        fontsize=12.5,
    )
    beliefs, tests = figure.subplots(1, 2)
    _draw_beliefs(beliefs, explanation)
    _draw_tests(tests, explanation)
    save(figure, place)


def _draw_beliefs(axes: Axes, explanation: Explanation) -> None:
    prior = explanation.prior
    pure = explanation.delta == 0.0
    loss = explanation.epsilon if pure else explanation.beyond
    priors = [i / 400 for i in range(401)]
    bounds = [posterior_interval(p, loss) for p in priors]
    lower, upper = [b.lower for b in bounds], [b.upper for b in bounds]
    tidy(axes)
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
    heights = spread([min(low, 0.88), max(high, 0.12)], gap=0.07)
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
    alarms = [_LEAST_FALSE_ALARM_RATE ** (1 - i / 400) for i in range(401)]
    found = [best_tpr(f, epsilon=explanation.epsilon, delta=explanation.delta) for f in alarms]
    axes.set_xscale("log")
    axes.set_yscale("log")
    tidy(axes)
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
