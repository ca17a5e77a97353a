"""Which learner for which table: by public facts, or by paying for a private comparison.

The facts are the schema (task, columns, unit), the declared order of magnitude of rows, epsilon
and delta. Linear models are taken wherever a gradient carries more signal than noise; below that
(s < 3, :mod:`discreet.learn.tabular.plan`) naive Bayes, which adds noise once, is no worse and does
not wander. ``benchmarks/learners.py`` shows both on either side of the line. Networks are never
taken unasked: on tables of this size they did not beat linear models under privacy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.data.encoding import Encoding
from discreet.data.schema import Schema
from discreet.errors import InvalidValue, NotApplicable
from discreet.learn.selection import default_stop, run_mu, select_privately, selection_loss
from discreet.mechanisms import Release, gaussian_integer
from discreet.privacy import GDP, Loss, Relation
from discreet.privacy.theorems import gaussian_mu
from discreet.randomness import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.data.tables import Table

__all__ = [
    "LEARNERS",
    "BestPlan",
    "Choice",
    "TableLearner",
    "automatic_learners",
    "best_learner",
    "choose_learner",
    "plan_best",
]

LEARNERS = ("logistic", "linear", "naive-bayes", "mlp")
BINS = 8
"""Into how many parts naive Bayes cuts the interval of a number."""

_LEAST_SIGNAL = 3.0
# The share of a run's mu^2 that goes into its score; a score is a single number.
_SCORE_SHARE = 0.05
_RUN_DELTA = 1e-6
_SCORE_STEPS = 1 << 16


@final
@dataclass(frozen=True)
class Choice:
    """A learner and the public reason for it."""

    learner: str
    reason: str


@final
@dataclass(frozen=True)
class TableLearner:
    """An estimator with the features that it takes of a table; the file form of a model."""

    learner: str
    schema: Schema
    estimator: Any

    @classmethod
    def make(cls, learner: str, schema: Schema, **parameters: Any) -> TableLearner:
        """Return an unfitted learner that is told what the schema declares."""
        kind = _validate.one_of("learner", learner, LEARNERS)
        _fits_task(kind, schema)
        neighbours = Relation.parse(parameters.get("relation", "add_remove"))
        if schema.person is not None and neighbours is Relation.REPLACE:
            expected = "add_remove with persons: replacing one may change the number of rows"
            raise InvalidValue("relation", "replace", expected)
        made = _estimator_class(kind, schema)
        if kind == "naive-bayes":
            parameters = {"bins": BINS, **parameters}
        return cls(kind, schema, made.from_codes(schema, **parameters))

    def features(self, table: Table) -> NDArray[Any]:
        """Return the features of a table, with or without a target."""
        if self.learner == "naive-bayes":
            from discreet.learn.schema_facts import feature_columns

            return feature_columns(table, table.schema, bins=BINS)
        return Encoding(table.schema).features(table, dtype=np.float32)

    def targets(self, table: Table) -> NDArray[Any]:
        """Return the targets of a training table."""
        return Encoding(table.schema).target(table)

    def loss(self) -> Loss:
        """Return what :meth:`fit` costs; it depends on declared facts only, and nothing is read."""
        by_column = self.learner == "naive-bayes"
        width = len(self.schema.features) if by_column else Encoding(self.schema).width
        found: Loss = self.estimator.loss_for(width)
        return found

    def fit(self, table: Table, **keywords: Any) -> TableLearner:
        """Fit the estimator on a table; keywords are those of its ``fit``."""
        return self.fit_batches([table], **keywords)

    def fit_batches(self, batches: Iterable[Table], **keywords: Any) -> TableLearner:
        """Fit the estimator on a table that comes in parts, none of which is kept.

        Naive Bayes keeps its sums only; the others keep the encoded features, once.
        """
        if self.learner == "naive-bayes":
            parts = 0
            for batch in batches:
                first = keywords if parts == 0 else {}
                self.estimator.partial_fit(self.features(batch), self.targets(batch), **first)
                parts += 1
            if parts == 0:
                nobody = np.empty((0, len(self.schema.features)))
                self.estimator.partial_fit(nobody, np.empty(0, dtype=np.int64), **keywords)
            self.estimator.finish()
            return self
        features, targets, persons = self._gathered(batches)
        self.estimator.fit(features, targets, persons=persons, **keywords)
        return self

    def _gathered(
        self, batches: Iterable[Table]
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64] | None]:
        parts, targets, persons = [], [np.empty(0)], [np.empty(0, dtype=np.int64)]
        for batch in batches:
            parts.append(self.features(batch))
            targets.append(self.targets(batch))
            if batch.persons is not None:
                persons.append(batch.persons)
        rows = sum(part.shape[0] for part in parts)
        features = np.empty((rows, Encoding(self.schema).width), dtype=np.float32)
        while parts:
            # From the last part to the first, so that no row is held twice for long.
            part = parts.pop()
            features[rows - part.shape[0] : rows] = part
            rows -= part.shape[0]
        owners = None if self.schema.person is None else np.concatenate(persons)
        return features, np.concatenate(targets), owners

    def predicted(self, table: Table) -> dict[str, NDArray[Any]]:
        """Return columns of predictions: the target, and for classes their probabilities."""
        features = self.features(table)
        target = str(self.schema.target)
        if self.schema.task == "regression":
            return {target: self.estimator.predict(features)}
        shares = self.estimator.predict_proba(features)
        labels = np.array(self.schema.classes, dtype=object)
        columns: dict[str, NDArray[Any]] = {target: labels[np.argmax(shares, axis=1)]}
        for place, label in enumerate(self.schema.classes):
            columns[f"probability of {label}"] = shares[:, place]
        return columns

    def save(self, path: Path) -> None:
        """Write the fitted estimator to one file, without pickle."""
        self.estimator.save(path)

    @classmethod
    def load(cls, learner: str, schema: Schema, path: Path) -> TableLearner:
        """Read what :meth:`save` wrote."""
        kind = _validate.one_of("learner", learner, LEARNERS)
        return cls(kind, schema, _estimator_class(kind, schema).load(path))


def automatic_learners(schema: Schema) -> tuple[str, ...]:
    """Return all learners that :func:`choose_learner` may choose for tables of this kind."""
    if schema.task == "regression":
        return ("linear",)
    return ("logistic",) if schema.person is not None else ("logistic", "naive-bayes")


def choose_learner(schema: Schema, *, epsilon: float, delta: float) -> Choice:
    """Choose by public facts alone, which costs nothing.

    >>> from discreet.data import Categorical, Integer
    >>> yes_no = Categorical(["yes", "no"], other="no")
    >>> facts = {"age": Integer(0, 100), "ill": yes_no}
    >>> schema = Schema(facts, target="ill", expected_rows=1000)
    >>> choose_learner(schema, epsilon=1.0, delta=1e-6).learner
    'logistic'
    >>> choose_learner(schema, epsilon=0.01, delta=1e-6).learner
    'naive-bayes'
    """
    if schema.task is None:
        raise NotApplicable("the schema declares no target to learn")
    if schema.expected_rows is None:
        expected = "the public order of magnitude of the number of rows"
        raise InvalidValue("expected_rows", None, expected)
    if schema.task == "regression":
        return Choice("linear", "the target is a number")
    width = Encoding(schema).width + 1
    outputs = 1 if len(schema.classes) == 2 else len(schema.classes)
    units = schema.expected_rows / (schema.rows_per_person or 1)
    signal = gaussian_mu(epsilon, delta) * units / math.sqrt(width * outputs)
    if signal < _LEAST_SIGNAL and schema.person is None:
        reason = "few declared rows for this epsilon: noise is added once, to counts"
        return Choice("naive-bayes", reason)
    return Choice("logistic", "the target has classes and gradients carry signal")


@final
@dataclass(frozen=True)
class BestPlan:
    """A private comparison that was planned: candidates, their budget, and the loss of it all."""

    schema: Schema
    candidates: tuple[tuple[str, dict[str, Any]], ...]
    stop: Fraction
    train_epsilon: float
    score_mu: float
    run_loss: Loss
    loss: Loss
    epsilon: float
    delta: float


def plan_best(schema: Schema, *, epsilon: float, delta: float) -> BestPlan:
    """Plan to try several learners and keep the best; the loss covers trying *and* choosing.

    Every run, model and score together, has at most the Renyi curve of a mu-GDP loss, which is all
    that :mod:`discreet.learn.selection` asks of it. A candidate that cannot be planned within
    that, or at all, is an error here and not after the charge.
    """
    candidates = _candidates(schema)
    stop = default_stop(len(candidates))
    mu = run_mu(epsilon=epsilon, delta=delta, stop=stop)
    train = mu * math.sqrt(1.0 - _SCORE_SHARE)
    score = mu * math.sqrt(_SCORE_SHARE)
    run = GDP(mu)
    # The budget of a run as epsilon at some delta, because learners are calibrated so.
    target = GDP(train).epsilon(delta=_RUN_DELTA) * (1.0 - 1e-6)
    loss = selection_loss(run, stop=stop)
    plan = BestPlan(schema, candidates, stop, target, score, run, loss, epsilon, delta)
    for candidate in candidates:
        _check_cost(plan, candidate[0], _made(plan, candidate).loss())
    return plan


def best_learner(
    plan: BestPlan,
    table: Table,
    *,
    insecure_seed: int | None = None,
    source: Source | None = None,
) -> Release[TableLearner]:
    """Run the comparison on a private table; charge ``plan.loss`` before."""
    cap = plan.schema.rows_per_person or 1

    def run(candidate: tuple[str, dict[str, Any]], bits: Source) -> tuple[TableLearner, float]:
        seed = None if insecure_seed is None else bits.bits(62)
        made = _made(plan, candidate, insecure_seed=seed).fit(table)
        _check_cost(plan, candidate[0], made.estimator.certificate_.loss)
        noise = Fraction(cap * _SCORE_STEPS / plan.score_mu * (1.0 + 2.0**-20))
        score = gaussian_integer(
            _score(made, table), sensitivity=cap * _SCORE_STEPS, stddev=noise, source=bits
        )
        return made, float(score.value)

    return select_privately(
        plan.candidates,
        run,
        run_loss=plan.run_loss,
        stop=plan.stop,
        source=source,
        insecure_seed=insecure_seed,
    )


def _score(made: TableLearner, table: Table) -> int:
    """Sum over rows of a number in [0, 1], in steps: right or not, or one minus squared error."""
    features, targets = made.features(table), made.targets(table)
    if features.shape[0] == 0:
        return 0
    predicted = made.estimator.predict(features)
    if made.schema.task == "classification":
        return int(np.sum(predicted == targets)) * _SCORE_STEPS
    lower, upper = made.estimator.target_bounds
    errors = np.clip((predicted - targets) / (upper - lower), -1.0, 1.0)
    return int(np.sum(np.trunc((1.0 - errors**2) * _SCORE_STEPS)))


def _made(plan: BestPlan, candidate: tuple[str, dict[str, Any]], **more: Any) -> TableLearner:
    name, parameters = candidate
    budget = {"epsilon": plan.train_epsilon, "delta": _RUN_DELTA}
    return TableLearner.make(name, plan.schema, **budget, **more, **parameters)


def _check_cost(plan: BestPlan, name: str, training: Loss) -> None:
    if 2.0 * training.zcdp() + plan.score_mu**2 > 2.0 * plan.run_loss.zcdp():
        raise NotApplicable(f"a run of {name} costs more than was planned for it")


def _candidates(schema: Schema) -> tuple[tuple[str, dict[str, Any]], ...]:
    slow = {"pace": 5.0, "clip_ratio": 0.3}
    if schema.task == "regression":
        return (("linear", {}), ("linear", {"pace": 3.0, "clip_ratio": 0.2}))
    if schema.task != "classification":
        raise NotApplicable("the schema declares no target to learn")
    linear: tuple[tuple[str, dict[str, Any]], ...] = (("logistic", {}), ("logistic", slow))
    if schema.person is not None:
        return linear
    return (*linear, ("naive-bayes", {"noise": "gaussian"}))


def _fits_task(learner: str, schema: Schema) -> None:
    task = schema.task
    wrong = {"classification": ("linear",), "regression": ("logistic", "naive-bayes")}
    if task is None:
        raise NotApplicable("the schema declares no target to learn")
    if learner in wrong[task]:
        raise InvalidValue("learner", learner, f"a learner for {task}")


def _estimator_class(learner: str, schema: Schema) -> Any:
    if learner == "naive-bayes":
        from discreet.learn.naive_bayes import PrivateCategoricalNB

        return PrivateCategoricalNB
    from discreet.learn import tabular

    if learner == "mlp":
        network: Any = tabular.PrivateMLPClassifier
        return network if schema.task == "classification" else tabular.PrivateMLPRegressor
    linear: Any = tabular.PrivateLinearRegression
    return tabular.PrivateLogisticRegression if learner == "logistic" else linear
