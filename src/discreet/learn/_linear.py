"""Private logistic and linear regression by exact gradient descent, as scikit-learn estimators."""

# ruff: noqa: N803 (scikit-learn calls the features X)

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, final

import numpy as np
from scipy.special import expit, softmax

from discreet import _validate
from discreet.errors import InvalidValue, SchemaError
from discreet.learn._declared import Declared
from discreet.learn._estimator import (
    PrivateClassifier,
    PrivateEstimator,
    PrivateRegressor,
    Track,
)
from discreet.learn._exact_descent import (
    COUNT_STEPS,
    RAW_STEPS,
    ExactSums,
    FoldedRows,
    HeldRows,
    LinearPlan,
    PersonRows,
    default_delta,
    descend,
    noisy_class_counts,
    raw_rows,
    whitening_matrix,
)
from discreet.learn._intake import Batch, Rows
from discreet.learn._replays import replay_fit
from discreet.privacy import Relation
from discreet.randomness import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.certificate import Certificate
    from discreet.data import Schema


_COUNT_SHARE = 0.02
_TYPICAL_RESIDUAL = 0.3


class ScaledEstimator(PrivateEstimator):
    """Estimators whose rows are scaled to [-1, 1] by their bounds, and shortened to a norm."""

    delta: float | None
    _takes_persons = True
    _single_precision = True
    _takes_sparse = True

    def _set_plan(self, plan: Any) -> None:
        super()._set_plan(plan)
        self.n_iter_ = plan.steps

    def _delta(self, declared: Declared) -> float:
        if self.delta is None:
            return default_delta(declared.planned_rows)
        return _validate.real("delta", self.delta, above=0, below=1)

    @property
    def _count_share(self) -> float:
        """The share of mu^2 for the counts of the classes."""
        return 0.0

    def _weigh_classes(
        self, plan: LinearPlan, rows: Rows, held: Batch | None, source: Source
    ) -> None:
        """Fix the weights of the classes, where there are any."""

    def _scaled_rows(self, features: NDArray[Any]) -> NDArray[np.float32]:
        """Return raw rows: integers, with the constant appended."""
        return raw_rows(features, norm=scaled_norm(self._facts), scale=self._facts.scaled)


def class_counts(classes: int, batch: Batch) -> NDArray[np.int64]:
    """Count units by class: rows, or persons by their first row."""
    first = slice(None) if batch.owned is None else batch.owned.ranks == 0
    known = batch.targets[first]
    return np.bincount(known[known >= 0], minlength=classes).astype(np.int64)


def number_targets(scores: NDArray[np.float64], coins: Any) -> NDArray[np.float64]:
    """Return made-up targets around scores; how far from them is a guess, and rather too far."""
    noisy = scores[:, 0] + coins.normal(0.0, _TYPICAL_RESIDUAL, len(scores))
    return np.asarray(np.clip(noisy, -1.0, 1.0))


def scaled_norm(declared: Declared) -> float:
    """Return the largest length of a row whose features are scaled to [-1, 1]."""
    declared.ends  # noqa: B018 - bounds that are none are found before the charge
    widest = math.sqrt(declared.features) * (1.0 + 2.0**-50)
    if declared.feature_norm is None:
        return widest
    return min(_validate.real("feature_norm", declared.feature_norm, above=0), widest)


def class_residuals(scores: NDArray[np.float64], targets: NDArray[Any]) -> NDArray[np.float64]:
    """Return the derivatives of logistic losses by the scores; 0 for a label that is none."""
    if scores.shape[1] == 1:
        rest = expit(scores) - (targets == 1)[:, None]
    else:
        rest = softmax(scores, axis=1)
        rest[np.arange(targets.size), np.maximum(targets, 0)] -= 1.0
    rest[targets < 0] = 0.0
    return np.asarray(rest)


def both_classes(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a score for each class, where two classes have one score: that of the first is 0."""
    return scores if scores.shape[1] > 1 else np.concatenate([0.0 * scores, scores], axis=1)


class WeightedClasses(PrivateClassifier, ScaledEstimator):
    """Classifiers whose classes may have weights, which multiply gradients before they are clipped.

    Weights are divided by the largest, because a longer gradient would only be clipped. The
    guarantee is the same for any weights; ``"balanced"`` weighs a class by the inverse of its
    noisy count, which is paid for.
    """

    class_weight: Any
    _relative: NDArray[np.float64] | None = None

    @property
    def _count_share(self) -> float:
        return _COUNT_SHARE if isinstance(self.class_weight, str) else 0.0

    def _stated_weights(self, declared: Declared) -> NDArray[np.float64] | None:
        """Return the weights that were declared, None where there are none or they are counted."""
        assert declared.classes is not None
        given, known = self.class_weight, declared.classes.tolist()
        if given is None:
            return None
        if isinstance(given, str):
            _validate.one_of("class_weight", given, ("balanced",))
            return None
        expected = f"a number above 0 for each of the classes {known}, or 'balanced', or None"
        if not isinstance(given, Mapping) or set(given) != set(known):
            raise InvalidValue("class_weight", given, expected)
        return np.array([_validate.real("class_weight", given[one], above=0) for one in known])

    def _weigh_classes(
        self, plan: LinearPlan, rows: Rows, held: Batch | None, source: Source
    ) -> None:
        weights = self._stated_weights(self._facts)
        if plan.count_share:
            classes = self.classes_.size
            step = partial(class_counts, classes)
            none = np.zeros(classes, dtype=np.int64)
            exact = rows.fold(step, none) if held is None else step(held)
            noisy = noisy_class_counts(exact, plan, source)
            # No class weighs more than it would with as many units as the noise could hide.
            least = plan.count_stddev / COUNT_STEPS + 1.0
            weights = 1.0 / np.maximum(noisy, least)
        self._relative = None if weights is None else weights / weights.max()

    def _residuals(self, scores: NDArray[np.float64], targets: NDArray[Any]) -> NDArray[np.float64]:
        rest = class_residuals(scores, targets)
        if self._relative is not None:
            rest *= self._relative[np.maximum(targets, 0)][:, None]
        return rest

    def _draw_targets(self, scores: NDArray[np.float64], coins: Any) -> NDArray[Any]:
        scores = both_classes(scores)
        if self._relative is not None:
            scores = scores - np.log(self._relative)
        noisy = scores + coins.gumbel(size=scores.shape)
        return np.asarray(np.argmax(noisy, axis=1))

    def _restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._relative = arrays.get("class_weights")
        super()._restore(arrays)  # type: ignore[safe-super]  # of the class beside this one

    def _learn(
        self, plan: Any, rows: Rows, source: Source, track: Track
    ) -> dict[str, NDArray[Any]]:
        learned = super()._learn(plan, rows, source, track)  # type: ignore[safe-super]  # likewise
        arrays = {**learned, "classes": self.classes_}
        return arrays if self._relative is None else {**arrays, "class_weights": self._relative}


class _Linear(ScaledEstimator):
    """What the two linear models share."""

    max_iter: int | None
    total_step_size: float | None
    clip_ratio: float | None
    moment_share: float | None

    def _outputs(self, declared: Declared) -> int:
        return 1

    def _plan(self, declared: Declared) -> LinearPlan:
        cap = declared.rows_per_person
        return LinearPlan.make(
            rows=-(-declared.planned_rows // cap) if declared.together else declared.planned_rows,
            features=declared.features,
            outputs=self._outputs(declared),
            norm=scaled_norm(declared),
            epsilon=self.epsilon,
            delta=self._delta(declared),
            relation=declared.relation,
            contributions=1 if declared.together else cap,
            squared=self._target == "number",
            steps=self.max_iter,
            total_step_size=self.total_step_size,
            clip_ratio=self.clip_ratio,
            moment_share=self.moment_share,
            count_share=self._count_share,
        )

    def _read_plan(self, document: Mapping[str, Any], declared: Declared) -> LinearPlan:
        plan = LinearPlan.from_json(document)
        found = (plan.features, plan.outputs, plan.norm)
        known = (declared.features, self._outputs(declared), scaled_norm(declared))
        if found != known or plan.contributions not in (1, declared.rows_per_person):
            raise SchemaError("the plan of a saved model belongs to another one")
        return plan

    @classmethod
    def _stated_plan(cls, certificate: Certificate) -> LinearPlan:
        known = [one.name for one in fields(LinearPlan)]
        names = ["pace" if name == "total_step_size" else name for name in known]
        stated = certificate.plan
        # Only fits with balanced classes state that they counted.
        return LinearPlan.from_json({name: stated[name] for name in names if name in stated})

    def _learn(
        self, plan: LinearPlan, rows: Rows, source: Source, track: Track
    ) -> dict[str, NDArray[Any]]:
        # Whose row is whose does not matter to an engine: the noise covers all rows of a person.
        sums: ExactSums
        held = None if rows.are_elsewhere else rows.all()
        self._weigh_classes(plan, rows, held, source)
        if held is None:
            sums = FoldedRows(rows.fold, self._hold_rows, plan.features + 1)
        else:
            sums = self._hold_rows(held)
        done = descend(sums, plan, source, track=track)
        self._clip_norm = done.clip_norm
        arrays = {"coef": done.weights[:-1].T, "intercept": done.weights[-1]}
        return arrays if done.moments is None else {**arrays, "moments": done.moments}

    def _hold_rows(self, batch: Batch) -> HeldRows | PersonRows:
        """Return the exact sums over rows that are in memory, with all rows of each person."""
        targets, owned = batch.targets, batch.owned

        def residuals(scores: NDArray[np.float64], start: int, stop: int) -> NDArray[np.float64]:
            return self._residuals(scores, targets[start:stop])

        rows = self._scaled_rows(batch.features)
        if owned is None or not self._facts.together:
            return HeldRows(rows, residuals)
        cap = self._facts.rows_per_person
        ranks = owned.side_by_side(np.arange(len(rows)), cap, empty=-1)
        return PersonRows(rows, residuals, [ranks[:, rank] for rank in range(cap)])

    def _run_facts(self) -> dict[str, Any]:
        return {"clip_norm": self._clip_norm}

    @abstractmethod
    def _residuals(self, scores: NDArray[np.float64], targets: NDArray[Any]) -> NDArray[np.float64]:
        """Return the derivatives of the rows' losses by their scores, row by row."""

    def _restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.coef_ = np.array(arrays["coef"])
        self.intercept_ = np.array(arrays["intercept"])
        outputs, features = self._outputs(self._facts), self._facts.features
        if self.coef_.shape != (outputs, features) or self.intercept_.shape != (outputs,):
            raise SchemaError("a saved model has weights of another shape")
        self.moments_ = arrays.get("moments")

    def noise_of_coefficients(self) -> NDArray[np.float64] | None:
        """Return coefficients as noise alone could have moved them: replays x outputs x features.

        The fit is played again on made-up rows with the released moments, answered by the released
        model, with new noise each time (:mod:`discreet.learn._replays`). Differences between the
        replays are noise; that costs nothing. None without moments (1,024 features and more).
        """
        if self.moments_ is None:
            return None
        weights = np.concatenate([self.coef_.T, self.intercept_[None, :]])
        found = replay_fit(
            self.plan_,
            self.moments_,
            self.moments_[:, -1],
            weights,
            draw=self._draw_targets,
            residuals=self._residuals,
            whiten=whitening_matrix,
        )
        return np.asarray(np.swapaxes(found[:, :-1], 1, 2))

    @abstractmethod
    def _draw_targets(self, scores: NDArray[np.float64], coins: Any) -> NDArray[Any]:
        """Return made-up targets of rows by the scores that a model gives them."""

    def _scores(self, features: NDArray[Any]) -> NDArray[np.float64]:
        rows = self._scaled_rows(features).astype(np.float64) / RAW_STEPS
        return np.asarray(rows[:, :-1] @ self.coef_.T + self.intercept_)


@final
class PrivateLogisticRegression(WeightedClasses, _Linear):
    """Private logistic regression for two or more classes.

    **Guarantee.** The fitted model is (epsilon, delta)-DP under ``relation`` for one row, or for a
    person with at most ``rows_per_person`` rows. Sums over records and noise are exact
    (:mod:`~discreet.learn._exact_descent`). With ``persons`` in ``fit``, or a column of them in the
    schema, each person is clipped as one row; without, the noise is ``rows_per_person`` times
    larger, and so it is for rows that an engine holds.

    Parameters
    ----------
    epsilon, delta
        The budget. ``delta`` None is :func:`~discreet.learn.default_delta` of the declared rows.
    schema
        What is public about a table; instead of the six declarations below.
    classes
        The public labels. A row of another label has no gradient (it is in the noisy moments
        like any other row).
    bounds
        A pair (lower, upper) of numbers, or of arrays with one for each feature. Values outside
        are clipped, what is no number is the middle.
    feature_norm
        The largest length of a row whose features are scaled to [-1, 1], if it is below
        sqrt(features).
    expected_rows
        The order of magnitude of the number of rows; under ``replace`` the number itself may be
        used.
    rows_per_person
        How many rows one person may own; None is 1.
    relation
        What the guarantee compares, ``"add_remove"`` or ``"replace"``.
    class_weight
        A weight above 0 for each class, as a mapping, or ``"balanced"``: the inverse of noisy
        counts, for 2 % of mu^2. Probabilities are then those of a table with such weights.
    max_iter, total_step_size, clip_ratio, moment_share
        The number of steps, the sum of their sizes, the clipping norm as a share of the expected
        length of a whitened row, and the share of mu^2 for the moments; None is chosen from
        public facts.
    insecure_seed
        For tests only: the noise can be computed from it.

    Attributes
    ----------
    coef_, intercept_
        The model, for features scaled to [-1, 1].
    moments_
        The noisy second moments of these and a constant, which the same loss covers.

    >>> X = [[20.0], [25.0], [70.0], [72.0]] * 250
    >>> y = ["no", "no", "yes", "yes"] * 250
    >>> model = PrivateLogisticRegression(
    ...     epsilon=1.0, classes=["no", "yes"], bounds=(0.0, 100.0), expected_rows=1000
    ... )
    >>> model.fit(X, y).predict([[15.0], [80.0]]).tolist()
    ['no', 'yes']
    >>> model.certificate_.epsilon <= 1.0, model.certificate_.delta
    (True, 1e-05)

    """

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        classes: Any = None,
        bounds: Any = None,
        feature_norm: float | None = None,
        expected_rows: int | None = None,
        rows_per_person: int | None = None,
        relation: Relation | str = "add_remove",
        class_weight: Any = None,
        max_iter: int | None = None,
        total_step_size: float | None = None,
        clip_ratio: float | None = None,
        moment_share: float | None = None,
        schema: Schema | None = None,
        insecure_seed: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.classes = classes
        self.bounds = bounds
        self.feature_norm = feature_norm
        self.expected_rows = expected_rows
        self.rows_per_person = rows_per_person
        self.relation = relation
        self.class_weight = class_weight
        self.max_iter = max_iter
        self.total_step_size = total_step_size
        self.clip_ratio = clip_ratio
        self.moment_share = moment_share
        self.schema = schema
        self.insecure_seed = insecure_seed

    def _outputs(self, declared: Declared) -> int:
        assert declared.classes is not None
        return 1 if declared.classes.size == 2 else int(declared.classes.size)

    def _plan(self, declared: Declared) -> LinearPlan:
        self._stated_weights(declared)  # what cannot be is found before the charge
        return super()._plan(declared)

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Return the scores: one a row for two classes, else one for each class."""
        scores = self._scores(self._encoded_rows(X))
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def _class_scores(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        return both_classes(self._scores(rows))

    def _in_order(
        self, arrays: dict[str, NDArray[Any]], order: list[int], declared: Declared
    ) -> dict[str, NDArray[Any]]:
        moved = {name: arrays[name] for name in ("coef", "intercept")}
        if len(order) > 2:
            moved = {name: array[order] for name, array in moved.items()}
        elif order == [1, 0]:
            moved = {name: -array for name, array in moved.items()}
        return {**arrays, **moved, "classes": np.asarray(declared.classes)}


@final
class PrivateLinearRegression(PrivateRegressor, _Linear):
    """Private least squares for a target with public bounds.

    **Guarantee.** As :class:`PrivateLogisticRegression`, which also says what must be declared;
    instead of classes, ``target_bounds`` is the public pair that bounds the target. Targets
    outside are clipped, and a row whose target is no number has no gradient. Residuals are clipped
    with the gradients, which makes the fit robust, not only private.

    >>> X = [[x / 500] for x in range(1000)]
    >>> y = [3.0 * x[0] + 1.0 for x in X]
    >>> model = PrivateLinearRegression(
    ...     epsilon=1.0, bounds=(0.0, 2.0), target_bounds=(0.0, 10.0), expected_rows=1000
    ... )
    >>> 3.0 < float(model.fit(X, y).predict([[1.0]])[0]) < 5.0
    True
    """

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        bounds: Any = None,
        target_bounds: Any = None,
        feature_norm: float | None = None,
        expected_rows: int | None = None,
        rows_per_person: int | None = None,
        relation: Relation | str = "add_remove",
        max_iter: int | None = None,
        total_step_size: float | None = None,
        clip_ratio: float | None = None,
        moment_share: float | None = None,
        schema: Schema | None = None,
        insecure_seed: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.bounds = bounds
        self.target_bounds = target_bounds
        self.feature_norm = feature_norm
        self.expected_rows = expected_rows
        self.rows_per_person = rows_per_person
        self.relation = relation
        self.max_iter = max_iter
        self.total_step_size = total_step_size
        self.clip_ratio = clip_ratio
        self.moment_share = moment_share
        self.schema = schema
        self.insecure_seed = insecure_seed

    def _residuals(self, scores: NDArray[np.float64], targets: NDArray[Any]) -> NDArray[np.float64]:
        return np.asarray(np.nan_to_num(scores - targets[:, None], nan=0.0))

    def _draw_targets(self, scores: NDArray[np.float64], coins: Any) -> NDArray[Any]:
        return number_targets(scores, coins)

    def _values(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        return np.asarray(self._scores(rows)[:, 0])
