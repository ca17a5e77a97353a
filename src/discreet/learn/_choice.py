"""Which learner for which table: by public facts, or by paying for a private comparison.

The facts are the schema (task, columns, unit), the declared order of magnitude of rows, epsilon
and delta. They make s = mu n / sqrt(d m), the ratio of signal to noise of one gradient: n units, d
features, m scores, mu of (epsilon, delta). With d = 34 for each column of numbers and the labels
of the others, an **additive model** is taken from s = 20 on (50 for a number to predict). Below
that, **linear models**, wherever a gradient carries more signal than noise; and where their own s
is below 3 (:mod:`discreet.learn._exact_descent`) **naive Bayes**, which adds noise once and does
not wander. The two lines were drawn on Adult (500 to 32,561 of its rows), the breast cancer and
diabetes tables and Friedman's function, before other tables were tried.
Networks are never taken unasked: on such tables they did not beat linear models under privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.data import Encoding, Labelled, Schema
from discreet.errors import InvalidValue, NotApplicable
from discreet.learn._model_file import BINS, LEARNERS
from discreet.learn._selection import default_stop, run_mu, select_privately
from discreet.mechanisms import Release, gaussian_integer
from discreet.privacy import GDP, Loss, Relation
from discreet.privacy.theorems import gaussian_mu
from discreet.randomness import Source

if TYPE_CHECKING:
    from discreet.data import Table
    from discreet.learn._estimator import PrivateEstimator

_LEAST_SIGNAL = 3.0
_SIGNAL_FOR_SHAPES = {"classification": 20.0, "regression": 50.0}
# Features of a column of numbers in an additive model with its usual bins.
_NUMBER_FEATURES = 34
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


def make_learner(learner: str, schema: Schema, **parameters: Any) -> Any:
    """Return an unfitted estimator by the name that the command line has for it.

    Parameters
    ----------
    learner
        ``"logistic"``, ``"linear"``, ``"naive-bayes"``, ``"additive"``, ``"tree"``,
        ``"forest"`` or ``"mlp"``.
    schema
        What is public about the table; its target must suit the learner.
    **parameters
        Those of the estimator, such as epsilon.

    Returns
    -------
    PrivateEstimator
        An estimator of the schema.

    Raises
    ------
    InvalidValue
        If there is no such learner, or it is for another task than the schema's.

    """
    name = _validate.one_of("learner", learner, tuple(LEARNERS))
    task = schema.task
    if task is None:
        raise NotApplicable("the schema declares no target to learn")
    wrong = {
        "classification": ("linear",),
        "regression": ("logistic", "naive-bayes", "tree", "forest"),
    }
    if name in wrong[task]:
        raise InvalidValue("learner", learner, f"a learner for {task}")
    neighbours = Relation.parse(parameters.get("relation", "add_remove"))
    if schema.person is not None and neighbours is Relation.REPLACE:
        expected = "add_remove with persons: replacing one may change the number of rows"
        raise InvalidValue("relation", "replace", expected)
    if name == "naive-bayes":
        parameters = {"bins": BINS, **parameters}
    from discreet import learn

    kinds = LEARNERS[name]
    kind = getattr(learn, kinds[-1 if task == "regression" else 0])
    if "delta" not in kind._get_param_names():
        parameters.pop("delta", None)  # its guarantee is pure, which holds at every delta
    return kind(schema=schema, **parameters)


def automatic_learners(schema: Schema) -> tuple[str, ...]:
    """Return all learners that :func:`choose_learner` may choose for tables of this kind."""
    linear = "linear" if schema.task == "regression" else "logistic"
    found = (linear, "additive") if _takes_shapes(schema) else (linear,)
    alone = schema.task == "classification" and schema.person is None
    return (*found, "naive-bayes") if alone else found


def _takes_shapes(schema: Schema) -> bool:
    from discreet.learn._additive import MOST_PERSON_ROWS

    return (schema.rows_per_person or 1) <= MOST_PERSON_ROWS


def choose_learner(schema: Schema, *, epsilon: float, delta: float) -> Choice:
    """Choose by public facts alone, which costs nothing.

    Parameters
    ----------
    schema
        What is public about the table, with a target and the expected number of rows.
    epsilon, delta
        What training may cost.

    Returns
    -------
    Choice
        The learner and the reason.

    Raises
    ------
    NotApplicable
        If the schema has no target.
    InvalidValue
        If it does not say how many rows are expected.

    Examples
    --------
    >>> from discreet.data import Categorical, Integer
    >>> yes_no = Categorical(["yes", "no"], other="no")
    >>> facts = {"age": Integer(0, 100), "ill": yes_no}
    >>> schema = Schema(facts, target="ill", expected_rows=300)
    >>> choose_learner(schema, epsilon=8.0, delta=1e-6).learner
    'additive'
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
    regression = schema.task == "regression"
    outputs = 1 if regression or len(schema.classes) == 2 else len(schema.classes)
    units = schema.expected_rows / (schema.rows_per_person or 1)
    signal = gaussian_mu(epsilon, delta) * units / math.sqrt(outputs)
    sizes = [
        len(one.labels) if isinstance(one, Labelled) else _NUMBER_FEATURES
        for one in schema.features.values()
    ]
    if _takes_shapes(schema) and signal / math.sqrt(sum(sizes)) >= _SIGNAL_FOR_SHAPES[schema.task]:
        return Choice("additive", "enough declared rows for a shape of each column")
    if regression:
        return Choice("linear", "the target is a number, and there are few rows for shapes")
    signal /= math.sqrt(Encoding(schema).width + 1)
    if signal < _LEAST_SIGNAL and schema.person is None:
        reason = "few declared rows for this epsilon: noise is added once, to counts"
        return Choice("naive-bayes", reason)
    return Choice("logistic", "the target has classes, and there are few rows for shapes")


@final
@dataclass(frozen=True)
class Comparison:
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

    def run(
        self,
        table: Table,
        *,
        insecure_seed: int | None = None,
        source: Source | None = None,
    ) -> Release[PrivateEstimator]:
        """Run the comparison on a private table; charge ``loss`` before.

        Parameters
        ----------
        table
            The private table, of the schema of the comparison.
        source, insecure_seed
            The randomness, if not that of the operating system.

        Returns
        -------
        Release[PrivateEstimator]
            The best of the models that were trained. Its own certificate is that of one run; the
            loss of the release is that of all of them and of the choice.

        """
        cap = self.schema.rows_per_person or 1

        def run(candidate: tuple[str, dict[str, Any]], bits: Source) -> tuple[Any, float]:
            seed = None if insecure_seed is None else bits.bits(62)
            model = self._build_candidate(candidate, insecure_seed=seed).fit(table)
            del model._schema_is_counted
            self._check_cost(candidate[0], model.plan_.loss)
            noise = Fraction(cap * _SCORE_STEPS / self.score_mu * (1.0 + 2.0**-20))
            score = gaussian_integer(
                _score(model, table), sensitivity=cap * _SCORE_STEPS, stddev=noise, source=bits
            )
            return model, float(score.value)

        return select_privately(
            self.candidates,
            run,
            run_loss=self.run_loss,
            stop=self.stop,
            source=source,
            insecure_seed=insecure_seed,
        )

    def _build_candidate(self, candidate: tuple[str, dict[str, Any]], **more: Any) -> Any:
        name, parameters = candidate
        budget = {"epsilon": self.train_epsilon, "delta": _RUN_DELTA}
        model = make_learner(name, self.schema, **budget, **more, **parameters)
        model._schema_is_counted = True  # once for all runs, by whoever charges the comparison
        return model

    def _check_cost(self, name: str, training: Loss) -> None:
        if 2.0 * training.zcdp() + self.score_mu**2 > 2.0 * self.run_loss.zcdp():
            raise NotApplicable(f"a run of {name} costs more than was planned for it")


def compare_learners(schema: Schema, *, epsilon: float, delta: float) -> Comparison:
    """Plan to try several learners and keep the best; the loss covers trying *and* choosing.

    Every run, model and score together, has at most the Renyi curve of a mu-GDP loss, which is all
    that :func:`select_privately` asks of it. A candidate that cannot be planned within that, or at
    all, is an error here and not after the charge.

    Parameters
    ----------
    schema
        What is public about the table. What it cost to learn the schema is not in the loss.
    epsilon, delta
        What the whole comparison may cost.

    Returns
    -------
    Comparison
        The plan. Charge its ``loss``, then call ``run`` with the private table.

    Raises
    ------
    NotApplicable
        If the schema has no target, or a candidate has no plan within the budget.

    """
    candidates = _candidates(schema)
    stop = default_stop(len(candidates))
    mu = run_mu(epsilon=epsilon, delta=delta, stop=stop)
    train = mu * math.sqrt(1.0 - _SCORE_SHARE)
    score = mu * math.sqrt(_SCORE_SHARE)
    run = GDP(mu)
    # The budget of a run as epsilon at some delta, because learners are calibrated so.
    target = GDP(train).epsilon(delta=_RUN_DELTA) * (1.0 - 1e-6)
    loss = run.best_of(float(1 / stop))
    plan = Comparison(schema, candidates, stop, target, score, run, loss, epsilon, delta)
    for candidate in candidates:
        plan._check_cost(candidate[0], plan._build_candidate(candidate).planned().loss)
    return plan


def _score(model: Any, table: Table) -> int:
    """Sum over rows of a number in [0, 1], in steps: right or not, or one minus squared error."""
    if table.rows == 0:
        return 0
    predicted, answers = model.predict(table), model.targets_of(table)
    if model.schema.task == "classification":
        return int(np.sum(predicted == answers)) * _SCORE_STEPS
    lower, upper = model.schema.columns[model.schema.target].bounds
    errors = np.clip((predicted - answers) / (upper - lower), -1.0, 1.0)
    return int(np.sum(np.trunc((1.0 - errors**2) * _SCORE_STEPS)))


def _candidates(schema: Schema) -> tuple[tuple[str, dict[str, Any]], ...]:
    if schema.task is None:
        raise NotApplicable("the schema declares no target to learn")
    more = {"naive-bayes": {"noise": "gaussian"}}
    return tuple((name, more.get(name, {})) for name in automatic_learners(schema))
