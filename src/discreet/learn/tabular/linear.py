"""Private logistic and linear regression by exact gradient descent, as scikit-learn estimators."""

# ruff: noqa: N803 (scikit-learn calls the features X)

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

import numpy as np
from scipy.special import expit, softmax

from discreet.errors import SchemaError
from discreet.learn.tabular.descent import descend
from discreet.learn.tabular.estimator import TabularEstimator, Track
from discreet.learn.tabular.persons import OwnedRows
from discreet.learn.tabular.plan import LinearPlan
from discreet.learn.tabular.targets import ClassTargets, NumberTargets
from discreet.privacy import Relation
from discreet.randomness import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.data.schema import Schema

__all__ = ["PrivateLinearRegression", "PrivateLogisticRegression"]


class _Linear(TabularEstimator):
    """What the two linear models share."""

    max_iter: int | None
    pace: float | None
    clip_ratio: float | None
    moment_share: float | None

    def _outputs(self) -> int:
        return 1

    def _make_plan(self, rows: int, features: int, unit: str) -> LinearPlan:
        return LinearPlan.make(
            rows=rows,
            features=features,
            outputs=self._outputs(),
            norm=self._norm(features),
            epsilon=self.epsilon,
            delta=self._delta(rows),
            relation=self.relation,
            contributions=self.rows_per_person,
            squared=not self._for_classes,
            steps=self.max_iter,
            pace=self.pace,
            clip_ratio=self.clip_ratio,
            moment_share=self.moment_share,
        )

    def _learn(
        self,
        plan: LinearPlan,
        rows: NDArray[np.float32],
        targets: NDArray[Any],
        owned: OwnedRows | None,
        bits: Source,
        track: Track,
    ) -> Mapping[str, Any]:
        # Whose row is whose does not matter: the noise covers all rows that a person may own.
        def residuals(scores: NDArray[np.float64], start: int, stop: int) -> NDArray[np.float64]:
            return self._residuals(scores, targets[start:stop])

        done = descend(rows, residuals, plan, bits, track=track)
        arrays = {"coef": done.weights[:-1].T, "intercept": done.weights[-1]}
        self._set_model(arrays if done.moments is None else {**arrays, "moments": done.moments})
        return {"clip_norm": done.clip_norm}

    def _read_plan(self, document: Mapping[str, Any]) -> LinearPlan:
        plan = LinearPlan.from_json(document)
        found = (plan.features, plan.outputs, plan.norm, plan.contributions)
        features = int(self.n_features_in_)
        if found != (features, self._outputs(), self._norm(features), self.rows_per_person):
            raise SchemaError("the plan of a saved model belongs to another one")
        return plan

    @abstractmethod
    def _residuals(self, scores: NDArray[np.float64], targets: NDArray[Any]) -> NDArray[np.float64]:
        """Return the derivatives of the rows' losses by their scores, row by row."""

    def _model_arrays(self) -> dict[str, NDArray[Any]]:
        arrays = {"coef": self.coef_, "intercept": self.intercept_}
        return arrays if self.moments_ is None else {**arrays, "moments": self.moments_}

    def _set_model(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.coef_ = np.array(arrays["coef"])
        self.intercept_ = np.array(arrays["intercept"])
        outputs = self._outputs()
        if self.coef_.shape[0] != outputs or self.intercept_.shape != (outputs,):
            raise SchemaError("a saved model has weights of another shape")
        self.moments_ = arrays.get("moments")

    def _scores(self, X: Any) -> NDArray[np.float64]:
        rows = self._rows_to_judge(X)
        return np.asarray(rows[:, :-1] @ self.coef_.T + self.intercept_)


@final
class PrivateLogisticRegression(ClassTargets, _Linear):
    """Private logistic regression for two or more classes.

    **Guarantee.** The fitted model is (epsilon, delta)-DP under ``relation`` for one row, or for a
    person with at most ``rows_per_person`` rows. Sums over records and noise are exact
    (:mod:`~discreet.learn.tabular.grid`, :mod:`~discreet.learn.tabular.plan`).

    Public, and never read off the data: ``classes``; ``bounds``, a pair (lower, upper) of numbers
    or of arrays with one for each feature; ``expected_rows``, the order of magnitude of the number
    of rows (under ``replace`` the number itself may be used); ``feature_norm``, the largest length
    of a row whose features are scaled to [-1, 1], if it is below sqrt(features). Values out of
    bounds are clipped, what is no number is the middle, a row of an undeclared label has no
    gradient (it is in the noisy moments like any other row).
    ``delta`` None is :func:`~discreet.learn.tabular.plan.default_delta` of the declared rows.

    ``max_iter``, ``pace``, ``clip_ratio`` and ``moment_share`` are those of
    :class:`~discreet.learn.tabular.plan.LinearPlan`, which chooses them if they are None.
    ``coef_`` and ``intercept_`` are for features scaled to [-1, 1]; ``moments_`` are the noisy
    second moments of these and a constant, which the same loss covers.

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
        rows_per_person: int = 1,
        relation: Relation | str = "add_remove",
        max_iter: int | None = None,
        pace: float | None = None,
        clip_ratio: float | None = None,
        moment_share: float | None = None,
        schema: Schema | None = None,
        schema_hash: str | None = None,
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
        self.max_iter = max_iter
        self.pace = pace
        self.clip_ratio = clip_ratio
        self.moment_share = moment_share
        self.schema = schema
        self.schema_hash = schema_hash
        self.insecure_seed = insecure_seed

    def _outputs(self) -> int:
        return 1 if self.classes_.size == 2 else int(self.classes_.size)

    def _residuals(self, scores: NDArray[np.float64], targets: NDArray[Any]) -> NDArray[np.float64]:
        if scores.shape[1] == 1:
            rest = expit(scores) - (targets == 1)[:, None]
        else:
            rest = softmax(scores, axis=1)
            rest[np.arange(targets.size), np.maximum(targets, 0)] -= 1.0
        rest[targets < 0] = 0.0
        return np.asarray(rest)

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Return the scores: one a row for two classes, else one for each class."""
        scores = self._scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def _class_scores(self, X: Any) -> NDArray[np.float64]:
        scores = self._scores(X)
        return scores if scores.shape[1] > 1 else np.concatenate([0.0 * scores, scores], axis=1)

    def _model_arrays(self) -> dict[str, NDArray[Any]]:
        return {**super()._model_arrays(), "classes": self.classes_}


@final
class PrivateLinearRegression(NumberTargets, _Linear):
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
        rows_per_person: int = 1,
        relation: Relation | str = "add_remove",
        max_iter: int | None = None,
        pace: float | None = None,
        clip_ratio: float | None = None,
        moment_share: float | None = None,
        schema: Schema | None = None,
        schema_hash: str | None = None,
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
        self.pace = pace
        self.clip_ratio = clip_ratio
        self.moment_share = moment_share
        self.schema = schema
        self.schema_hash = schema_hash
        self.insecure_seed = insecure_seed

    def _residuals(self, scores: NDArray[np.float64], targets: NDArray[Any]) -> NDArray[np.float64]:
        return np.asarray(np.nan_to_num(scores - targets[:, None], nan=0.0))

    def _values(self, X: Any) -> NDArray[np.float64]:
        return np.asarray(self._scores(X)[:, 0])
