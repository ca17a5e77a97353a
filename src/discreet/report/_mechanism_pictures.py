"""What ``discreet explain --mechanism`` shows: noise on a count, and two ways to a private share.

Both are drawn from public numbers alone, for counts that are assumed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet._rounding import at_least, at_most
from discreet.errors import InvalidValue
from discreet.report._drawing import (
    COLOURS,
    finish_figure,
    in_house_style,
    name_lines,
    new_figure,
    tidy_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RECORDS = (10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000)


@final
@dataclass(frozen=True)
class NoiseComparison:
    """Laplace and Gaussian noise on a count that one record moves by 1.

    ``leaves_below`` and ``leaves_above`` are the outputs beyond which the log ratio of the two
    Gaussian densities is outside [-epsilon, epsilon]; ``outside`` is how likely that is.
    """

    epsilon: float
    delta: float
    laplace_scale: float
    gaussian_stddev: float
    leaves_below: float
    leaves_above: float
    outside: float

    @classmethod
    def at(cls, epsilon: float, delta: float) -> NoiseComparison:
        """Calibrate both kinds of noise: Laplace to epsilon, Gaussian to (epsilon, delta).

        Parameters
        ----------
        epsilon
            Above 0.
        delta
            Above 0: no Gaussian noise is (epsilon, 0)-DP.

        Returns
        -------
        NoiseComparison
            With the band around a count of 0.

        Raises
        ------
        InvalidValue
            If an argument is outside its range.
        """
        from scipy.special import ndtr

        from discreet.privacy.theorems import gaussian_mu

        target = _validate.real("epsilon", epsilon, above=0, at_most=100)
        if not delta > 0:
            raise InvalidValue(
                "delta", delta, "a number above 0: Gaussian noise has no pure epsilon"
            )
        stddev = 1.0 / gaussian_mu(target, delta)
        # log N(x; 0) - log N(x; 1) = (1 - 2 x) / (2 stddev^2), which is no longer bounded.
        reach = target * stddev**2
        below, above = 0.5 - reach, 0.5 + reach
        outside = float(ndtr(below / stddev) + ndtr(-above / stddev))
        return cls(target, delta, 1.0 / target, stddev, below, above, outside)

    def to_json(self) -> dict[str, Any]:
        """Return the numbers as JSON values."""
        return {"mechanism": "noise", **asdict(self)}

    def sentences(self) -> list[str]:
        """Say it in words, a sentence a line."""
        pure = (
            f"Laplace noise of scale {at_most(self.laplace_scale)}: whatever comes out, the two "
            f"densities differ by a factor of at most e^{self.epsilon:g}: pure epsilon-DP."
        )
        line = (
            f"Gaussian noise of standard deviation {at_most(self.gaussian_stddev)}: the log ratio "
            "of the densities is a line. It leaves the band of epsilon below "
            f"{self.leaves_below:.4g} and above {self.leaves_above:.4g}, for a true count of 0: "
            "the tails decide."
        )
        tail = (
            f"An output outside the band has probability {at_most(self.outside)}, and delta is "
            f"{self.delta:g}: it counts the excess over e^epsilon, not the whole tail."
        )
        return [
            f"A count that one record moves by 1, at epsilon {self.epsilon:g}.",
            pure,
            line,
            tail,
        ]


@in_house_style
def draw_noise(found: NoiseComparison, place: str | Path | None = None) -> Figure:
    """Draw both densities above their log ratio, with the band of epsilon.

    Parameters
    ----------
    found
        What to draw.
    place
        A file to write as well, whose name says its kind.

    Returns
    -------
    Figure
        One of matplotlib, which you may change and save again.
    """
    wide = 1.15 * max(found.leaves_above, 6.0 * found.laplace_scale, 3.5 * found.gaussian_stddev)
    x = np.linspace(0.5 - wide, 0.5 + wide, 1201)
    figure = new_figure(9.6, 5.6)
    panels = figure.subplots(2, 2, sharex=True, sharey="row")
    scale, stddev = found.laplace_scale, found.gaussian_stddev
    laplace = [-np.abs(x - m) / scale - math.log(2.0 * scale) for m in (0.0, 1.0)]
    normal = [
        -0.5 * ((x - m) / stddev) ** 2 - math.log(stddev * math.sqrt(2.0 * math.pi))
        for m in (0.0, 1.0)
    ]
    for column, (name, logs) in enumerate((("Laplace", laplace), ("Gaussian", normal))):
        _draw_densities(panels[0, column], x, logs, name)
        _draw_ratio(panels[1, column], x, logs[0] - logs[1], found.epsilon)
    panels[0, 0].set_ylabel("density (log scale)")
    panels[1, 0].set_ylabel("log ratio")
    right = panels[1, 1]
    for edge in (found.leaves_below, found.leaves_above):
        right.axvline(edge, color=COLOURS["vermilion"], lw=1.0, ls=(0, (4, 3)))
    right.set_title(
        f"left with probability {at_most(found.outside, digits=2)}", loc="left", fontsize=10
    )
    panels[1, 0].set_title("never left", loc="left", fontsize=10)
    return finish_figure(figure, place)


def _draw_densities(axes: Axes, x: Any, logs: Sequence[Any], name: str) -> None:
    tidy_axes(axes)
    lines = [
        axes.plot(x, np.exp(log), color=COLOURS[colour], lw=1.7)[0]
        for log, colour in zip(logs, ("blue", "orange"), strict=True)
    ]
    _use_log_scale(axes)
    axes.annotate(f"{name} noise", (0.03, 0.91), xycoords="axes fraction", fontsize=11)
    name_lines(axes, lines, ["without the record", "with it"])


def _draw_ratio(axes: Axes, x: Any, ratio: Any, epsilon: float) -> None:
    tidy_axes(axes)
    axes.axhspan(-epsilon, epsilon, color=COLOURS["sky"], alpha=0.3, lw=0)
    inside = np.abs(ratio) <= epsilon * (1.0 + 1e-9)
    axes.plot(x, np.where(inside, ratio, np.nan), color=COLOURS["blue"], lw=1.7)
    axes.plot(x, np.where(inside, np.nan, ratio), color=COLOURS["vermilion"], lw=1.7)
    axes.set_xlabel("output")


@final
@dataclass(frozen=True)
class FractionComparison:
    """Mean squared errors of a private share, by noisy counts and by a choice, over N."""

    epsilon: float
    share: float
    relation: str
    records: tuple[int, ...]
    laplace: tuple[float, ...]
    laplace_formula: tuple[float, ...]
    choice: tuple[float, ...]
    choice_formula: tuple[float, ...]

    @classmethod
    def at(
        cls, epsilon: float, *, share: float = 0.5, relation: str = "add_remove"
    ) -> FractionComparison:
        """Compute the errors of ``laplace_fraction`` and ``bernoulli_parameter``.

        Parameters
        ----------
        epsilon
            What either may cost, from 0.04 (0.02 under add_remove).
        share
            The assumed share.
        relation
            What neighbours are.

        Returns
        -------
        FractionComparison
            For 10 to 100,000 records.

        Raises
        ------
        InvalidValue
            If an argument is outside its range.
        """
        from discreet.mechanisms import bernoulli_parameter_error, laplace_fraction_error

        assumed = _validate.real("share", share, at_least=0, at_most=1)
        counts = [(round(n * assumed), n - round(n * assumed)) for n in RECORDS]
        noisy, chosen = (
            [error(*pair, epsilon=epsilon, relation=relation) for pair in counts]
            for error in (laplace_fraction_error, bernoulli_parameter_error)
        )
        return cls(
            float(epsilon),
            assumed,
            relation,
            RECORDS,
            tuple(one.exact for one in noisy),
            tuple(one.formula for one in noisy),
            tuple(one.exact for one in chosen),
            tuple(one.formula for one in chosen),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the numbers as JSON values."""
        return {"mechanism": "fraction", **asdict(self)}

    def sentences(self) -> list[str]:
        """Say it in words, a line for each number of records."""
        rows = [
            f"{n:>9,}   {math.sqrt(one):.2e}   {math.sqrt(other):.2e}"
            for n, one, other in zip(self.records, self.laplace, self.choice, strict=True)
        ]
        first, last = (self.choice[at] / self.laplace[at] for at in (0, -1))
        asked = (
            f"The share of records with a property, about {self.share:g}, at epsilon "
            f"{self.epsilon:g} under {self.relation}: typical errors."
        )
        laws = (
            "Two noisy counts: the variance falls like 1/N^2. A parameter that the exponential "
            "mechanism chooses: like 1/N."
        )
        ratios = (
            f"The choice has {at_least(last)} times the variance at {self.records[-1]:,} records "
            f"and {at_least(first)} times at {self.records[0]}."
        )
        advice = (
            "Take the noise for whatever can be counted. Take the exponential mechanism where "
            "the answer is no count: the best of several options, a median, a price."
        )
        return [asked, "  records   Laplace    choice", *rows, laws, ratios, advice]


@in_house_style
def draw_fractions(found: FractionComparison, place: str | Path | None = None) -> Figure:
    """Draw both errors over the number of records, with their formulas.

    Parameters
    ----------
    found
        What to draw.
    place
        A file to write as well, whose name says its kind.

    Returns
    -------
    Figure
        One of matplotlib, which you may change and save again.
    """
    figure = new_figure(7.2, 4.8)
    axes = figure.subplots()
    tidy_axes(axes)
    _use_log_scale(axes, x=True)
    handles = []
    for exact, formula, colour in (
        (found.choice, found.choice_formula, "vermilion"),
        (found.laplace, found.laplace_formula, "blue"),
    ):
        axes.plot(found.records, formula, color=COLOURS[colour], lw=1.2, ls=(0, (4, 3)))
        handles += axes.plot(found.records, exact, color=COLOURS[colour], lw=1.7, marker="o", ms=4)
    name_lines(axes, handles, ["exponential mechanism: 1/N", "Laplace noise on counts: 1/N^2"])
    axes.set(xlabel="records N", ylabel="mean squared error of the share")
    figure.suptitle(
        f"A share of {found.share:g} at epsilon {found.epsilon:g}, {found.relation}\n"
        "(exact; formulas for large N are dashed)",
        x=0.015,
        ha="left",
        fontsize=11,
    )
    return finish_figure(figure, place)


def _use_log_scale(axes: Axes, *, x: bool = False) -> None:
    from matplotlib.ticker import FuncFormatter

    plain = FuncFormatter(lambda value, _: f"{value:g}")
    if x:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(plain)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(plain)
