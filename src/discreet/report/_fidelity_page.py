"""The page about a synthetic table: measured tables beside those of the model.

Everything on it was paid for with the model: noisy tables, the size of their noise, and tables of
the model. No private row is looked at again. Figures that need real rows are answers that were paid
for themselves, or the page is an internal one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from discreet._confidence import rows_meant
from discreet._rounding import at_most
from discreet.report._charts import Bar, bars
from discreet.report._page import Page

if TYPE_CHECKING:
    from discreet._confidence import Proportion
    from discreet.certificate import PaidAnswer
    from discreet.synth import SyntheticModel

_MOST_PICTURES = 12
_MOST_BARS = 14
_MOST_LINES = 40
_TWO_SIDED = 1.96


def write_fidelity_page(
    model: SyntheticModel,
    path: str | Path,
    *,
    answers: Sequence[PaidAnswer] = (),
    internal: Mapping[str, Proportion] | None = None,
) -> Path:
    """Write the page of a synthetic model: one HTML file with pictures and no script.

    Parameters
    ----------
    model
        The released model.
    path
        Where to write the page.
    answers
        Figures about real rows that were paid for, such as that of
        :func:`discreet.synth.judge_classifier` with an epsilon.
    internal
        Figures that were computed from private rows and not paid for, by what they say. With any of
        them the page is marked as internal: it must not be published.

    Returns
    -------
    Path
        The same place.

    """
    stated = model.certificate_
    cost = f"epsilon {at_most(stated.epsilon)} at delta {at_most(stated.delta)}"
    page = Page("Synthetic table", internal=bool(internal))
    page.finding(
        f"The model costs {cost} for one {stated.unit} ({stated.relation}).",
        f"It was fitted to {len(model.columns)} noisy histograms and {len(model.measured)} noisy "
        "tables. Rows drawn from it, and all on this page, cost nothing more.",
        f"Score of the measured tables: {_score(model):.0f} of 1000 (1000 less 1000 times the "
        "mean total variation between the noisy tables and the model; noise counts against it).",
    )
    for warning in stated.warnings:
        page.warning(warning)
    page.heading("Columns")
    page.text(
        "Measured: the noisy histograms, with intervals of 95 % for their noise. Model: the shares "
        "that synthetic rows follow. Shares, intervals and bounds of this page are "
        f"{rows_meant(model.schema.rows_per_person)}."
    )
    for name in model.columns[:_MOST_PICTURES]:
        one = model.marginal(name)
        if one.noisy is None or one.stddev is None:
            continue
        order = np.sort(np.argsort(-one.counts, kind="stable")[:_MOST_BARS])
        labels = [one.labels[0][at] for at in order]
        spread = _TWO_SIDED * one.stddev / model.total
        measured = [
            Bar(label, max(0.0, share), max(0.0, share - half), max(0.0, share + half))
            for label, share, half in zip(
                labels, one.noisy[order] / model.total, spread[order], strict=True
            )
        ]
        model_bars = [
            Bar(label, share)
            for label, share in zip(labels, one.counts[order] / model.total, strict=True)
        ]
        page.picture(
            bars({"measured": measured, "model": model_bars}, title=f"share of {name}"),
            caption=f"{name}: {one.counts.size} groups of values, the largest {len(labels)} shown",
        )
        ends = [(bar.low or 0.0, bar.high or 0.0) for bar in measured]
        page.table(
            [name, "measured", "from", "to", "model"],
            [
                [seen.name, *(f"{100 * x:.2f} %" for x in (seen.value, *end, made.value))]
                for seen, end, made in zip(measured, ends, model_bars, strict=True)
            ],
            numeric=[False, True, True, True, True],
        )
    page.heading("Measured tables")
    rows = []
    for measured_table in model.measured[:_MOST_LINES]:
        names = [model.columns[at] for at in measured_table.columns]
        one = model.marginal(*names)
        if one.bound is None:
            continue
        noise = float(np.sqrt(measured_table.variance.flat[0]))
        bound = min(2.0, one.bound / model.total)
        rows.append([" x ".join(names), f"{one.counts.size}", f"{noise:.1f}", f"{bound:.3f}"])
    page.table(
        ["columns", "cells", "noise of a cell, in rows", "L1 error at most (95 %)"],
        rows,
        numeric=[False, True, True, True],
    )
    _add_real_rows(page, answers, internal or {})
    return page.write(path)


def _add_real_rows(
    page: Page, answers: Sequence[PaidAnswer], internal: Mapping[str, Proportion]
) -> None:
    if not answers and not internal:
        return
    page.heading("On real rows")
    rows = [
        [
            one.question,
            f"{one.value:.3f}",
            "-" if one.low is None or one.high is None else f"{one.low:.3f} to {one.high:.3f}",
            f"epsilon {at_most(one.loss.epsilon(delta=one.delta))}",
        ]
        for one in answers
    ]
    rows += [
        [what, f"{one.share:.3f}", f"{one.low:.3f} to {one.high:.3f}", "not paid for: internal"]
        for what, one in internal.items()
    ]
    page.table(
        ["figure", "value", "interval", "cost, for those rows"],
        rows,
        numeric=[False, True, True, False],
    )


def _score(model: SyntheticModel) -> float:
    """Return the k-marginal score of the measured tables, from what was released alone."""
    found = []
    for one in model.measured or ():
        names = [model.columns[at] for at in one.columns]
        gap = np.abs(model.marginal(*names).counts - one.values).sum() / model.total
        found.append(min(1.0, 0.5 * float(gap)))
    return 1000.0 * (1.0 - float(np.mean(found))) if found else 1000.0
