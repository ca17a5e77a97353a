"""Evaluation that is paid for: one noisy histogram, and everything else is post-processing.

Every row is in one cell: its score, its declared label, its slice. For two classes the score is the
probability of the second one in 64 equal parts of [0, 1]; for more classes it is the predicted
class. So one row changes one count by 1, replacing it moves two, and a person with k rows k times
as much. The counts get exact Laplace noise once. Accuracy, AUC, average precision, calibration,
confusion, slices and thresholds are functions of the released counts, however many are asked for.

Which cell a row is in must not depend on other rows, not even in the last bit of a sum: products of
matrices are rounded by position. So every row is scored alone, at the same place in memory.

**Intervals** repeat the release: counts are drawn again around the released ones (Poisson, for
the rows that happened to be in the table) with the same noise, and the interval is the estimate
plus and minus the normal quantile times the deviation of what comes out. They need large samples,
and say nothing below about fifty rows of a class.
"""

# ruff: noqa: N803 (scikit-learn calls the features X)

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, final

import numpy as np
from scipy.special import ndtri, softmax
from sklearn.base import clone  # type: ignore[import-untyped]

from discreet import _validate
from discreet._confidence import rows_meant
from discreet.data import Boolean, Categorical, Encoding, Schema
from discreet.errors import InvalidValue, NotApplicable
from discreet.learn._declared import Declared, charged, stated_unit
from discreet.learn._intake import Batch, RowCells, Rows, grouped_owners, hold_batch, open_rows
from discreet.mechanisms import laplace_integers
from discreet.privacy import DiscreteLaplace, Loss, Relation
from discreet.randomness import Source, source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.learn._estimator import PreparedFit, PrivateClassifier
    from discreet.ledger import Ledger

_BINS = 64
_REPLAYS = 400

Measure = Callable[["NDArray[np.float64]"], "NDArray[np.float64]"]
"""From counts, ... x labels x scores, to a number each."""


@final
@dataclass(frozen=True, eq=False)
class Evaluation:
    """A released histogram of labels and scores, and what follows from it.

    Parameters
    ----------
    counts
        Noisy counts: slices x labels x scores.
    classes
        The labels.
    slices
        The names of the slices; one without a name where no column was asked for.
    scale
        The scale of the Laplace noise of each count.
    loss
        What the release reveals about one unit; its epsilon is the same at every delta.
    about
        Of which rows the figures and their error bars speak: of persons with many, some are
        dropped.

    """

    counts: NDArray[np.int64]
    classes: tuple[Any, ...]
    slices: tuple[str, ...]
    scale: float
    loss: Loss
    about: str = rows_meant(None)

    @property
    def binary(self) -> bool:
        """Whether there are two classes, and scores are probabilities."""
        return len(self.classes) == 2

    def table(self, slice_name: str | None = None) -> NDArray[np.float64]:
        """Return noisy counts, labels x scores, of one slice or of all together."""
        if slice_name is None:
            return np.asarray(self.counts.sum(axis=0), dtype=np.float64)
        _validate.one_of("slice_name", slice_name, self.slices)
        return np.asarray(self.counts[self.slices.index(slice_name)], dtype=np.float64)

    def accuracy(self, slice_name: str | None = None, *, threshold: float = 0.5) -> float:
        """Return the share of right predictions by noisy counts, moved into [0, 1]."""
        return float(_accuracy(self.confusion(slice_name, threshold=threshold)))

    def confusion(
        self, slice_name: str | None = None, *, threshold: float = 0.5
    ) -> NDArray[np.float64]:
        """Return noisy counts, labels x predictions; noise can make one negative."""
        return _confusion(self.table(slice_name), self._cut(threshold))

    def auc(self, slice_name: str | None = None) -> float:
        """Return the share of pairs of the two classes that scores put in order."""
        self._need_two()
        return float(_auc(self.table(slice_name)))

    def average_precision(self, slice_name: str | None = None) -> float:
        """Return the mean precision over the recall of the second class."""
        self._need_two()
        return float(_average_precision(self.table(slice_name)))

    def calibration(self, parts: int = 8) -> list[tuple[float, float, float]]:
        """Return for equal parts of [0, 1]: its middle, the noisy share of the second class, rows.

        What is calibrated has shares like the middles.
        """
        self._need_two()
        count = _validate.integer("parts", parts, at_least=1, at_most=_BINS)
        found = []
        for at, part in enumerate(np.array_split(self.table(), count, axis=1)):
            rows = max(float(part.sum()), 1.0)
            share = min(max(float(part[1].sum()) / rows, 0.0), 1.0)
            found.append(((at + 0.5) / count, share, rows))
        return found

    def best_threshold(self, *, cost_of_missing: float = 1.0) -> float:
        """Return the threshold with the least noisy cost; a false alarm costs 1.

        It was chosen on these rows: what it is worth on others is a little less.
        """
        self._need_two()
        cost = _validate.real("cost_of_missing", cost_of_missing, above=0)
        table = self.table()
        missed = np.concatenate([[0.0], np.cumsum(table[1])])
        alarms = table[0].sum() - np.concatenate([[0.0], np.cumsum(table[0])])
        return int(np.argmin(cost * missed + alarms)) / _BINS

    def interval(
        self, measure: str, slice_name: str | None = None, *, confidence: float = 0.95
    ) -> tuple[float, float]:
        """Return where the accuracy, auc or average precision of such rows is, noise included."""
        known: dict[str, Measure] = {"accuracy": self._accuracy_of}
        if self.binary:
            known |= {"auc": _auc, "average_precision": _average_precision}
        found = known[_validate.one_of("measure", measure, tuple(known))]
        level = _validate.real("confidence", confidence, above=0, below=1)
        table = self.table(slice_name)
        coins = np.random.default_rng(0)  # noqa: TID251 - of released counts only
        size = len(self.slices) if slice_name is None else 1
        drawn = coins.poisson(np.maximum(table, 0.0), (_REPLAYS, *table.shape))
        noise = coins.laplace(0.0, self.scale, (size, *drawn.shape)).sum(axis=0)
        again = found(drawn - np.maximum(-table, 0.0) + noise)
        reach = float(ndtri(0.5 + level / 2.0) * np.std(again))
        middle = float(found(table))
        return max(middle - reach, 0.0), min(middle + reach, 1.0)

    def to_json(self) -> dict[str, Any]:
        """Return what is usually asked for, as JSON values."""
        names = [None, *self.slices] if len(self.slices) > 1 else [None]
        measures = ("accuracy", "auc", "average_precision") if self.binary else ("accuracy",)
        return {
            "classes": [str(one) for one in self.classes],
            "about": self.about,
            "rows": [float(self.table(name).sum()) for name in names],
            "slices": ["all rows", *names[1:]],
            **{
                measure: [
                    {
                        "value": getattr(self, measure)(name),
                        "interval": list(self.interval(measure, name)),
                    }
                    for name in names
                ]
                for measure in measures
            },
            "confusion": self.confusion().tolist(),
        }

    def lines(self) -> list[str]:
        """Say it in lines of text."""
        found = self.to_json()
        lines = [] if self.about == rows_meant(None) else [f"all figures are {self.about}"]
        for at, name in enumerate(found["slices"]):
            said = []
            for measure in ("accuracy", "auc", "average_precision"):
                if measure in found:
                    low, high = found[measure][at]["interval"]
                    value = found[measure][at]["value"]
                    said.append(f"{measure.replace('_', ' ')} {value:.3f} [{low:.3f}, {high:.3f}]")
            lines.append(f"{name} (about {max(found['rows'][at], 0.0):.0f}): " + ", ".join(said))
        return lines

    def _accuracy_of(self, table: NDArray[np.float64]) -> NDArray[np.float64]:
        return _accuracy(_confusion(table, self._cut(0.5)))

    def _cut(self, threshold: float) -> int | None:
        if not self.binary:
            return None
        share = _validate.real("threshold", threshold, at_least=0, at_most=1)
        return round(share * _BINS)

    def _need_two(self) -> None:
        if not self.binary:
            raise NotApplicable("scores are probabilities where there are two classes only")


def evaluate(
    model: PrivateClassifier,
    X: Any,
    y: Any = None,
    *,
    epsilon: float,
    by: str | None = None,
    persons: Any = None,
    ledger: Ledger | None = None,
    dataset: str | None = None,
    unit: str | None = None,
    insecure_seed: int | None = None,
) -> Evaluation:
    """Pay for one noisy histogram of how a classifier does on rows; then ask it anything.

    Parameters
    ----------
    model
        A fitted private classifier. Its own certificate is not touched: if the rows are those it
        was trained on, both losses add up.
    X, y, persons
        The rows, as for ``fit``.
    epsilon
        What it costs.
    by
        A categorical or boolean column of the model's schema: who is served how well.
    ledger, dataset, unit
        As for ``fit``; the charge comes before a cell is read.
    insecure_seed
        For tests only: the noise can be computed from it.

    Returns
    -------
    Evaluation
        The release.

    Raises
    ------
    InvalidValue, NotApplicable
        If the form of the data or an argument does not fit; nothing was charged.

    Examples
    --------
    >>> from discreet.learn import PrivateGaussianNB
    >>> rows, labels = [[20.0], [21.0], [70.0], [72.0]] * 500, [0, 0, 1, 1] * 500
    >>> model = PrivateGaussianNB(epsilon=1.0, classes=[0, 1], bounds=(0.0, 100.0))
    >>> found = evaluate(model.fit(rows, labels), rows, labels, epsilon=1.0)
    >>> found.auc() > 0.9, found.loss
    (True, DiscreteLaplace(scale=1.0))

    """
    if not hasattr(model, "_class_scores") or "certificate_" not in vars(model):
        raise InvalidValue("model", type(model).__name__, "a fitted private classifier")
    declared = model._facts
    positions, slices = _slices(declared.schema, model.takes_codes, by)
    opened = open_rows(model, declared, X, y, persons)
    loss = _count_loss(declared, epsilon)
    bits = source(insecure_seed=insecure_seed)
    word = stated_unit(unit, persons=opened.owned or declared.rows_per_person > 1)
    with charged(ledger, dataset, loss=loss, delta=0.0, purpose="evaluate a model", unit=word):
        batch = Rows(opened, replace(declared, rows=None), bits).all()
        counts = _no_counts(declared, slices)
        _count_rows(model, batch, positions, counts)
        noisy = _add_noise(counts, loss, bits)
    about = rows_meant(declared.rows_per_person if opened.owned else None)
    return Evaluation(noisy, tuple(model.classes_.tolist()), slices, loss.scale, loss, about)


@final
@dataclass(frozen=True, eq=False)
class FoldedEvaluation:
    """How a kind of model does on rows that it did not learn from, and what that cost.

    Parameters
    ----------
    evaluation
        The release; its own loss is that of the histogram alone.
    loss
        What all of it reveals about one unit: k - 1 fits, one evaluation, and the schema if that
        was learned and nobody has paid for it.
    delta
        The delta at which the fits were planned.

    """

    evaluation: Evaluation
    loss: Loss
    delta: float

    @property
    def epsilon(self) -> float:
        """The epsilon of the whole loss at its delta."""
        return self.loss.epsilon(delta=self.delta)


def evaluate_folds(
    model: PrivateClassifier,
    X: Any,
    y: Any = None,
    *,
    epsilon: float,
    folds: int = 5,
    by: str | None = None,
    persons: Any = None,
    ledger: Ledger | None = None,
    dataset: str | None = None,
    unit: str | None = None,
    insecure_seed: int | None = None,
) -> FoldedEvaluation:
    """Train on all folds but one, count on that one, for each in turn; release one histogram.

    A record is in k - 1 of the k fits and in one cell of the histogram, so it pays for k - 1 fits
    and one evaluation. Each record draws its fold alone, so no record moves another one; all rows
    of a person are in one fold. The models are not released.

    Parameters
    ----------
    model
        An unfitted private classifier under ``add_remove``; its epsilon is that of one fit.
    X, y, persons
        The rows, as for ``fit``; where a person may own several, whose they are has to be known.
    epsilon
        What the histogram costs.
    folds
        How many; from 2 to 100.
    by, ledger, dataset, unit, insecure_seed
        As for :func:`evaluate`; one charge covers everything.

    Returns
    -------
    FoldedEvaluation
        The evaluation and the whole loss.

    Raises
    ------
    InvalidValue, NotApplicable
        If the form of the data or an argument does not fit; nothing was charged.

    Examples
    --------
    >>> from discreet.learn import PrivateGaussianNB
    >>> rows, labels = [[20.0], [21.0], [70.0], [72.0]] * 500, [0, 0, 1, 1] * 500
    >>> model = PrivateGaussianNB(epsilon=0.5, classes=[0, 1], bounds=(0.0, 100.0))
    >>> found = evaluate_folds(model, rows, labels, epsilon=1.0, folds=3)
    >>> found.evaluation.accuracy() > 0.8, round(found.epsilon, 3)  # two fits and one evaluation
    (True, 2.0)

    """
    if not hasattr(model, "_class_scores"):
        raise InvalidValue("model", type(model).__name__, "a private classifier")
    parts = _validate.integer("folds", folds, at_least=2, at_most=100)
    fresh = clone(model)
    ready = fresh._plan_fit(X, y, persons, unit)
    declared = ready.declared
    if declared.relation is not Relation.ADD_REMOVE:
        expected = "add_remove: under replace the number of rows of a fold would be public"
        raise InvalidValue("relation", declared.relation.value, expected)
    if declared.rows_per_person > 1 and not ready.opened.owned:
        expected = "whose row each one is: all rows of a person are in one fold"
        raise InvalidValue("persons", None, expected)
    if ready.opened.table is not None:
        raise NotApplicable("folds are for rows in memory and files, not for tables of an engine")
    positions, slices = _slices(declared.schema, fresh.takes_codes, by)
    counted = _count_loss(declared, epsilon)
    schema = () if ready.loss == ready.plan.loss else (declared.schema.unpaid_loss(),)
    loss = reduce(add, ((parts - 1) * ready.plan.loss, counted, *schema))
    bits = source(insecure_seed=insecure_seed)
    delta = float(ready.plan.delta)
    with charged(
        ledger, dataset, loss=loss, delta=delta, purpose="evaluate by folds", unit=declared.unit
    ):
        features, answers, owners = Rows(ready.opened, declared, bits).cells()
        own = np.arange(len(answers)) if owners is None else grouped_owners(owners)
        drawn = bits.words64(int(own.max(initial=-1)) + 1) % np.uint64(parts)
        fold_of = drawn[own]
        counts = _no_counts(declared, slices)
        for fold in range(parts):
            outside, inside = (
                (features[at], answers[at], None if owners is None else owners[at])
                for at in (fold_of != fold, fold_of == fold)
            )
            one = _learn_from(outside, clone(model), ready, bits)
            _count_rows(one, hold_batch(declared, *inside), positions, counts)
        noisy = _add_noise(counts, counted, bits)
    assert declared.classes is not None
    names = tuple(declared.classes.tolist())
    about = rows_meant(declared.rows_per_person if ready.opened.owned else None)
    found = Evaluation(noisy, names, slices, counted.scale, counted, about)
    return FoldedEvaluation(found, loss, delta)


def _learn_from(cells: RowCells, model: Any, ready: PreparedFit, bits: Source) -> Any:
    """Run the planned fit on other rows than those it was planned for; it costs the same."""
    opened = replace(ready.opened, read=lambda _: iter([cells]))
    model._look_at(opened.looks)
    model._begin(ready)
    arrays = model._learn(ready.plan, Rows(opened, ready.declared, bits), bits, iter)
    model._set_plan(ready.plan)
    model._restore(arrays)
    return model


def _count_loss(declared: Declared, epsilon: float) -> DiscreteLaplace:
    """Return what one histogram of rows costs: its noise is calibrated to epsilon."""
    changes = declared.rows_per_person * (2 if declared.relation is Relation.REPLACE else 1)
    target = _validate.real("epsilon", epsilon, at_least=1e-6, at_most=1e3)
    scale = changes / target
    while DiscreteLaplace(scale, changes, declared.relation).epsilon(delta=0.0) > target:
        scale = math.nextafter(scale, math.inf)
    return DiscreteLaplace(scale, changes, declared.relation)


def _no_counts(declared: Declared, slices: tuple[str, ...]) -> NDArray[np.int64]:
    assert declared.classes is not None
    classes = declared.classes.size
    return np.zeros((len(slices), classes, _BINS if classes == 2 else classes), dtype=np.int64)


def _count_rows(
    model: Any,
    batch: Batch,
    positions: Callable[[NDArray[Any]], int],
    counts: NDArray[np.int64],
) -> None:
    """Add every row of a declared label to its cell, scored alone."""
    alone = np.empty((1, batch.features.shape[1]), dtype=batch.features.dtype)
    for at in np.flatnonzero(batch.targets >= 0):
        alone[0] = batch.features[at]
        scores = model._class_scores(alone)[0]
        place = int(np.argmax(scores))
        if len(scores) == 2:
            place = min(int(softmax(scores)[1] * _BINS), _BINS - 1)
        counts[positions(alone[0]), batch.targets[at], place] += 1


def _add_noise(counts: NDArray[np.int64], loss: DiscreteLaplace, bits: Source) -> Any:
    return laplace_integers(
        counts,
        sensitivity=loss.sensitivity,
        scale=loss.scale,
        relation=loss.relation,
        source=bits,
    ).value


def _slices(
    schema: Schema | None, takes_codes: bool, by: str | None
) -> tuple[Callable[[NDArray[Any]], int], tuple[str, ...]]:
    """Return from an encoded row to its slice, and the names of the slices."""
    if by is None:
        return (lambda _: 0), ("",)
    known: Mapping[str, Any] = {} if schema is None else schema.features
    column = known.get(by)
    if schema is None or not isinstance(column, Categorical | Boolean):
        raise InvalidValue("by", by, "a categorical or boolean column of the model's schema")
    if isinstance(column, Boolean):
        names: tuple[str, ...] = (f"{by}=no", f"{by}=yes")
    else:
        names = tuple(f"{by}={label}" for label in column.labels)
    if takes_codes:
        at = list(known).index(by)
        return (lambda row: min(max(int(row[at]), 0), len(names) - 1)), names
    encoded = Encoding(schema).names
    if isinstance(column, Boolean):
        place = encoded.index(by)
        return (lambda row: int(row[place] > 0.0)), names
    block = [encoded.index(name) for name in names]
    return (lambda row: int(np.argmax(row[block]))), names


def _confusion(table: NDArray[np.float64], cut: int | None) -> NDArray[np.float64]:
    if cut is None:
        return table
    return np.stack([table[..., :cut].sum(axis=-1), table[..., cut:].sum(axis=-1)], axis=-1)


def _accuracy(confusion: NDArray[np.float64]) -> NDArray[np.float64]:
    right = np.trace(confusion, axis1=-2, axis2=-1)
    share = right / np.maximum(confusion.sum(axis=(-2, -1)), 1.0)
    return np.asarray(np.clip(share, 0.0, 1.0))


def _auc(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """Pairs in order, half for ties; the noise of the two classes is independent, so no bias."""
    first, second = table[..., 0, :], table[..., 1, :]
    lower = np.cumsum(first, axis=-1) - 0.5 * first
    totals = [np.maximum(part.sum(axis=-1), 1.0) for part in (first, second)]
    share = (second * lower).sum(axis=-1) / (totals[0] * totals[1])
    return np.asarray(np.clip(share, 0.0, 1.0))


def _average_precision(table: NDArray[np.float64]) -> NDArray[np.float64]:
    second = table[..., 1, ::-1]
    every = np.cumsum(table.sum(axis=-2)[..., ::-1], axis=-1)
    precision = np.clip(np.cumsum(second, axis=-1) / np.maximum(every, 1.0), 0.0, 1.0)
    found = (precision * second).sum(axis=-1) / np.maximum(second.sum(axis=-1), 1.0)
    return np.asarray(np.clip(found, 0.0, 1.0))
