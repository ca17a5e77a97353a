"""The page of a local collection: reports, their cost, and the error under other trust."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from discreet._rounding import at_most
from discreet.report._drawing import COLOURS, finish_figure, in_house_style, new_figure, tidy_axes
from discreet.report._page import Page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from discreet.local import Deployment, FrequencyEstimate, FrequencyOracle

_SHOWN = 40


@in_house_style
def _draw(oracle: FrequencyOracle, rows: Sequence[Deployment], people: int) -> Figure:
    from matplotlib.ticker import FuncFormatter

    figure = new_figure(6.4, 3.8)
    axes = figure.subplots()
    counts = [10.0**power for power in range(2, max(7, math.ceil(math.log10(people)) + 2))]
    local, central = rows[0], rows[2]
    for row, slope, colour in ((local, 0.5, COLOURS["orange"]), (central, 1.0, COLOURS["green"])):
        heights = [row.deviation * (people / count) ** slope for count in counts]
        name = f"{row.name}, epsilon {row.epsilon:.3g}: 1/n{'' if slope == 1.0 else '^0.5'}"
        axes.plot(counts, heights, color=colour, label=name)
        axes.plot([people], [row.deviation], "o", color=colour)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("people")
    axes.set_ylabel("standard deviation of a share")
    axes.legend(frameon=False, fontsize=9)
    axes.set_title(f"{oracle.method}, {oracle.domain.size - 1} values", fontsize=10, loc="left")
    tidy_axes(axes)
    return figure


def draw_deployments(
    oracle: FrequencyOracle,
    rows: Sequence[Deployment],
    people: int,
    place: str | Path | None = None,
) -> Figure:
    """Draw the error of local reports beside that of a trusted curator to a file.

    Parameters
    ----------
    oracle
        The plan.
    rows
        What ``discreet.local.compare_deployments`` returned.
    people
        How many people report.
    place
        A PNG, SVG or PDF file to write as well.

    Returns
    -------
    Figure
        One of matplotlib, which you may change and save again.

    """
    return finish_figure(_draw(oracle, rows, people), place)


def deployment_rows(rows: Sequence[Deployment]) -> list[tuple[str, ...]]:
    """Return the deployments as texts: name, who is trusted, epsilon, delta, deviation.

    Parameters
    ----------
    rows
        What ``discreet.local.compare_deployments`` returned.

    Returns
    -------
    list
        A row of five texts each.

    """
    return [
        (
            row.name if number == 0 else f"{row.name} (hypothetical)",
            row.trusted,
            at_most(row.epsilon),
            f"{row.delta:g}",
            f"{row.deviation:.3g}",
        )
        for number, row in enumerate(rows)
    ]


def local_page(
    oracle: FrequencyOracle,
    estimate: FrequencyEstimate,
    rows: Sequence[Deployment],
    spending: Mapping[int, int] | None = None,
) -> Page:
    """Return the collector's page.

    Parameters
    ----------
    oracle
        The plan.
    estimate
        What came in.
    rows
        What ``discreet.local.compare_deployments`` returned.
    spending
        How many people sent 0, 1, 2, ... reports; by default each report is of another person.

    Returns
    -------
    Page
        A public page: everything in it follows from randomized reports.

    """
    low, high = estimate.interval()
    order = sorted(range(len(estimate.shares)), key=lambda at: -estimate.shares[at])[:_SHOWN]
    shares = [
        (
            str(estimate.values[at]),
            f"{estimate.shares[at]:.4f}",
            f"{low[at]:.4f}",
            f"{high[at]:.4f}",
        )
        for at in order
    ]
    turned_away = [(reason, str(count)) for reason, count in estimate.rejected.items()]
    page = Page("Local collection", internal=False)
    page.finding(
        f"{estimate.people} reports were counted, {sum(estimate.rejected.values())} were not.",
        f"Each report cost its person epsilon {oracle.epsilon} at delta 0, whoever reads it.",
    )
    values, size = oracle.domain.size - 1, oracle.report_bytes
    about = f"{values} values by {oracle.method}, {size} bytes a report"
    page.heading("What was collected").text(f"Shares of {about}. The method: {oracle.why}.")
    if turned_away:
        page.table(("not counted because", "reports"), turned_away, numeric=(False, True))
    people = {1: estimate.people} if spending is None else spending
    spent = [(str(sent), str(sent * oracle.epsilon), str(n)) for sent, n in sorted(people.items())]
    page.table(
        ("reports of a person", "epsilon she spent", "people"),
        spent,
        numeric=(True, True, True),
        caption="What each person has spent here; her reports elsewhere come on top",
    )
    caption = f"The {len(shares)} largest shares; intervals hold together with 95 %"
    page.table(
        ("value", "share", "from", "to"),
        shares,
        numeric=(False, True, True, True),
        caption=caption,
    )
    page.heading("What trust would buy")
    page.text(
        "Only the first line describes this collection. The others say what the same people would "
        "have got from a trusted shuffler or curator; nothing here rests on them."
    )
    page.table(
        ("deployment", "trusted", "epsilon", "delta", "deviation of a share"),
        deployment_rows(rows),
        numeric=(False, False, True, True, True),
    )
    figure = _draw(oracle, rows, estimate.people)
    return page.picture(figure, caption="The error of a share against the number of people.")
