"""The worst case of a synthesis, for audits: one record that moves every release as far as it can.

The table is constant, and the canary's cell is empty in every table. So with the canary every
histogram, every distance and every measured table moves by exactly what was charged for, and the
likelihood ratio of a run is a weighted sum of these numbers. Only they are drawn, by the same code
that adds the noise of a synthesis, so that a million runs take seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from discreet import _validate
from discreet.errors import NotApplicable
from discreet.randomness import choose_source
from discreet.synth._budget import STEPS, GaussianBudget

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.randomness import Source
    from discreet.synth._plan import SynthesisPlan

_CELLS = 1 << 22


def canary_scores(
    plan: SynthesisPlan,
    *,
    runs: int,
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the scores of runs with a worst-case record, and of as many runs without it.

    Parameters
    ----------
    plan
        The plan to audit.
    runs
        How many runs of each kind.
    source, insecure_seed
        Where the noise comes from, or a seed for experiments.

    Returns
    -------
    tuple of arrays
        For :func:`discreet.audit.audit_gaussian`: with the record, without it.

    Raises
    ------
    NotApplicable
        If the loss of the plan is not one Gaussian.

    """
    count = _validate.integer("runs", runs, at_least=1)
    budget = plan.budget
    if not isinstance(budget, GaussianBudget) or plan.open is not None:
        raise NotApplicable("only a plan whose loss is one Gaussian has a known worst case")
    bits = choose_source(source, insecure_seed)
    with_record, without = (
        np.concatenate(
            [
                _scores(budget, here, min(count - at, size), bits)
                for size in [max(1, _CELLS // max(1, budget.columns + budget.scores))]
                for at in range(0, count, size)
            ]
        )
        for here in (budget.rows_per_person, 0)
    )
    return with_record, without


def _scores(budget: GaussianBudget, rows: int, runs: int, source: Source) -> NDArray[np.float64]:
    """Return log likelihood ratios, up to a constant, of runs with some rows of the canary."""
    cells = np.full(runs * budget.columns, rows, dtype=np.int64)
    [noisy] = budget.add_to_columns([cells], source)
    found = noisy.reshape(runs, -1).sum(axis=1) / budget.column_stddev**2
    if budget.scores:
        moved = np.full(runs * budget.scores, rows * STEPS, dtype=np.int64)
        scores = budget.add_to_scores(moved, source).reshape(runs, -1)
        found += scores.sum(axis=1) / budget.score_stddev**2
    if budget.table_mu:
        [stddev] = budget.table_stddevs([1.0])
        table = budget.add_to_table(np.full(runs, rows, dtype=np.int64), stddev, source)
        found += table / stddev**2
    return np.asarray(found)
