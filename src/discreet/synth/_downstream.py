"""Test a classifier of synthetic rows on real ones: an internal figure, or a private release."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet import _validate
from discreet._confidence import Proportion, proportion
from discreet.certificate import PaidAnswer
from discreet.data import Labelled, read_table
from discreet.errors import InvalidValue, NotApplicable
from discreet.learn import charged
from discreet.mechanisms import laplace_count
from discreet.randomness import choose_source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.ledger import Ledger
    from discreet.synth._model import SyntheticModel

_QUESTION = "share of right answers about {rows} rows outside, by a classifier of synthetic rows"


def judge_classifier(
    model: SyntheticModel,
    held_out: Any,
    *,
    epsilon: float | None = None,
    rows: int | None = None,
    ledger: Ledger | None = None,
    dataset: str | None = None,
    insecure_seed: int | None = None,
) -> Proportion | PaidAnswer:
    """Train boosted trees on synthetic rows and test them on real rows that were not used.

    Without ``epsilon`` the figure is exact: it is computed from private rows, and internal. With
    it, the number of right answers gets Laplace noise and is charged to the held-out rows.

    Parameters
    ----------
    model
        A released model whose target is a column of labels.
    held_out
        Real rows with all columns of the schema, apart from those that the model learned from.
    epsilon
        What the figure may cost, for those rows.
    rows
        How many rows are held out, as a public number to divide by; needed with ``epsilon``.
    ledger, dataset
        The ledger to charge, and the dataset of the held-out rows in it.
    insecure_seed
        For tests only.

    Returns
    -------
    Proportion or PaidAnswer
        The internal share, or the share that was paid for.

    Raises
    ------
    InvalidValue
        If a parameter does not do; nothing was charged.
    NotApplicable
        If the model has no target of labels.

    """
    schema, target = model.schema, model.plan.target
    if target is None or not isinstance(schema.columns[target], Labelled):
        raise NotApplicable("a classifier needs a target that is a column of labels")
    if schema.rows_per_person is not None and epsilon is not None:
        raise NotApplicable("a paid figure needs a schema with one row for each person")
    bits = choose_source(None, insecure_seed)
    count = 0
    if epsilon is not None:
        _validate.real("epsilon", epsilon, above=0)
        count = _validate.integer("rows", rows, at_least=1)
    tested = read_table(held_out, schema).columns
    if epsilon is None and not len(tested[target]):
        raise InvalidValue("held_out", "no rows", "at least one row")
    guess = _train(model, target, insecure_seed)
    if epsilon is None:
        return proportion(_count_right(guess, tested, target), len(tested[target]))
    loss = laplace_count(0, epsilon=epsilon, source=bits).loss  # the same for every count
    with charged(
        ledger, dataset, loss=loss, delta=0.0, purpose="test of a classifier", unit="row"
    ) as charge:
        release = laplace_count(_count_right(guess, tested, target), epsilon=epsilon, source=bits)
        assert release.loss == loss
        receipt = None if charge is None else charge.receipt()
    return PaidAnswer.of(
        release, question=_QUESTION.format(rows=count), divided_by=count, receipt=receipt
    )


def _train(model: SyntheticModel, target: str, seed: int | None) -> Any:
    """Return what guesses the target of rows that were read by the schema; it is public."""
    from sklearn.ensemble import HistGradientBoostingClassifier  # type: ignore[import-untyped]

    made = read_table(model.sample(seed=seed), model.schema).columns
    labels = np.asarray(made[target])
    if len(np.unique(labels)) < 2:
        return lambda rows: np.full(len(rows), labels[0] if labels.size else 0)
    trees = HistGradientBoostingClassifier(random_state=0)
    return trees.fit(_features(made, target), labels).predict


def _count_right(guess: Any, rows: Mapping[str, Any], target: str) -> int:
    """Return how many rows the classifier is right about."""
    truth = np.asarray(rows[target])
    return int((guess(_features(rows, target)) == truth).sum()) if truth.size else 0


def _features(rows: Mapping[str, Any], target: str) -> NDArray[np.float64]:
    return np.stack(
        [np.asarray(one, dtype=np.float64) for name, one in rows.items() if name != target], axis=1
    )
