"""The picture of a bench of defences: utility against leakage, one point with bars for each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from discreet.defences import RATES
from discreet.errors import NotApplicable
from discreet.report._drawing import COLOURS, finish_figure, in_house_style, new_figure, tidy_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from discreet.defences import BenchReport

_LOOKS = {
    "none": ("black", "s"),
    "data": ("green", "D"),
    "training": ("blue", "o"),
    "output": ("vermilion", "^"),
}
_TITLES = {"canaries": "canaries", "ordinary": "ordinary records"}


@in_house_style
def draw_defences(report: BenchReport, place: str | Path | None = None) -> Figure:
    """Draw accuracy against the share of members found, for canaries and ordinary records.

    Parameters
    ----------
    report
        What :meth:`discreet.defences.DefenceBench.run` returned.
    place
        A PNG, SVG or PDF file to write as well.

    Returns
    -------
    Figure
        One of matplotlib, which you may change and save again.

    Raises
    ------
    NotApplicable
        If no rate of false positives is supported by all rows.
    """
    rate = next(
        (
            one
            for one in RATES
            if all(row.leak(kind, one) is not None for row in report.rows for kind in _TITLES)
        ),
        None,
    )
    if rate is None:
        raise NotApplicable("no row has enough records for any rate of false positives")
    figure = new_figure(10.0, 4.2)
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, kind in ((left, "canaries"), (right, "ordinary")):
        _draw_points(axes, report, kind, rate)
    left.set_ylabel("accuracy on records that were not used")
    names = [
        f"{number}  {row.defence}: {row.guarantee}" for number, row in enumerate(report.rows, 1)
    ]
    figure.legend(
        handles=[
            *(
                left.plot([], [], mark, color=COLOURS[colour], label=f"acts at: {where}")[0]
                for where, (colour, mark) in _LOOKS.items()
                if any(row.where == where for row in report.rows)
            ),
            *(left.plot([], [], " ", label=name)[0] for name in names),
        ],
        loc="outside right upper",
        fontsize=8,
        handlelength=1.0,
    )
    return finish_figure(figure, place)


def _draw_points(axes: Axes, report: BenchReport, kind: str, rate: float) -> None:
    for number, row in enumerate(report.rows, 1):
        leak = row.leak(kind, rate)
        assert leak is not None
        colour, mark = _LOOKS[row.where]
        found, right = leak.found, row.accuracy
        axes.errorbar(
            found.share,
            right.share,
            xerr=[[found.share - found.low], [found.high - found.share]],
            yerr=[[right.share - right.low], [right.high - right.share]],
            fmt=mark,
            color=COLOURS[colour],
            ms=5,
            elinewidth=0.8,
        )
        axes.annotate(
            str(number),
            (found.share, right.share),
            textcoords="offset points",
            xytext=(5, 4),
            fontsize=8,
        )
    axes.axvline(rate, color=COLOURS["grey"], lw=0.8, ls="--")
    axes.set_xlabel(f"{_TITLES[kind]} found\nat {rate:.1%} false positives")
    tidy_axes(axes)
