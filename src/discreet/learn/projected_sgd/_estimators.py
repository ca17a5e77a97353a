"""Private projected SGD as scikit-learn estimators, for two classes and for numbers."""

# ruff: noqa: N803 (scikit-learn calls the features X)

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, final

import numpy as np
from sklearn.utils.metaestimators import available_if  # type: ignore[import-untyped]
from sklearn.utils.validation import check_is_fitted  # type: ignore[import-untyped]

from discreet import _validate
from discreet.errors import InvalidValue, SchemaError
from discreet.learn._declared import Declared
from discreet.learn._estimator import (
    PrivateClassifier,
    PrivateEstimator,
    PrivateRegressor,
    Track,
)
from discreet.learn._intake import Rows, open_rows
from discreet.learn.projected_sgd._losses import (
    Hinge,
    Huber,
    LinearLoss,
    Logistic,
    Squared,
    SquaredHinge,
)
from discreet.learn.projected_sgd._plan import SgdPlan
from discreet.learn.projected_sgd._projections import (
    Box,
    GivenProjection,
    L2Ball,
    Projection,
    Simplex,
)
from discreet.learn.projected_sgd._risk import ExcessRisk, excess_risk_without_privacy
from discreet.learn.projected_sgd._steps import train
from discreet.privacy import Relation
from discreet.randomness import Source, source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.certificate import Certificate
    from discreet.data import Schema

_LARGEST = 1e100
# Rows are made this much shorter than declared, so that rounding cannot make them longer.
_SHORTER = 1.0 - 2.0**-40
_SETS: dict[str, Callable[..., Projection]] = {
    "L2Ball": L2Ball,
    "Box": Box,
    "Simplex": Simplex,
    "given": GivenProjection.without_function,
}


class _ProjectedSGD(PrivateEstimator):
    """What the two estimators share; the number of rows is public."""

    delta: float
    projection: Projection | None
    feature_norm: float | None
    fit_intercept: bool
    lipschitz: float | None
    clip_norm: float | None
    steps: int | None
    calibration: str
    output: str
    relation = Relation.REPLACE

    @abstractmethod
    def _linear_loss(self) -> LinearLoss:
        """Return the loss that the parameters name."""

    @abstractmethod
    def _goals(self, targets: NDArray[Any]) -> NDArray[np.float64]:
        """Return the targets in [-1, 1], NaN for records that count for nothing."""

    @abstractmethod
    def _set_coefficients(self, inner: NDArray[np.float64], shift: float) -> None:
        """Publish coefficients and intercept, for shortened rows, in scikit-learn's shapes."""

    # --- learning -----------------------------------------------------------------------

    def _plan(self, declared: Declared) -> SgdPlan:
        if not isinstance(self.fit_intercept, bool | np.bool_):
            raise InvalidValue("fit_intercept", self.fit_intercept, "True or False")
        dimension = declared.features + bool(self.fit_intercept)
        length = self._longest_row(declared)
        region = self._region(declared)
        region.start(dimension)  # a function that does not work is found before the charge
        length *= math.sqrt(2.0) if self.fit_intercept else 1.0
        if self.lipschitz is not None and self.clip_norm is not None:
            raise InvalidValue("clip_norm", self.clip_norm, "None where lipschitz is stated")
        if self.clip_norm is not None:
            steep = _validate.real("clip_norm", self.clip_norm, above=0)
        elif self.lipschitz is not None:
            steep = _validate.real("lipschitz", self.lipschitz, above=0)
        else:
            reach = region.reach(dimension) * length
            slope = self._linear_loss().slope_bound(score_bound=reach, target_bound=1.0)
            steep = slope * length
        return SgdPlan.make(
            records=max(1, declared.planned_rows),
            dimension=dimension,
            lipschitz=steep,
            diameter=region.diameter(dimension),
            epsilon=self.epsilon,
            delta=self.delta,
            steps=self.steps,
            calibration=self.calibration,
            clipped=self.clip_norm is not None,
            output=self.output,
        )

    def _read_plan(self, document: Mapping[str, Any], declared: Declared) -> SgdPlan:
        return SgdPlan(**document)

    @classmethod
    def _stated_plan(cls, certificate: Certificate) -> SgdPlan:
        known = [one.name for one in fields(SgdPlan)]
        return SgdPlan(**{name: certificate.plan[name] for name in known})

    def _public_plan(self, plan: SgdPlan) -> dict[str, Any]:
        length = self._longest_row(self._facts)
        return {**plan.to_json(), "feature_norm": length, "loss": self._linear_loss().name}

    def _run_facts(self) -> dict[str, Any]:
        return self._region(self._facts).describe()

    def _learn(
        self, plan: SgdPlan, rows: Rows, source: Source, track: Track
    ) -> dict[str, NDArray[Any]]:
        batch = rows.all()
        table, goals = self._short_rows(batch.features), self._goals(batch.targets)
        if not len(table):  # then there is one record that counts for nothing
            table, goals = np.zeros((1, plan.dimension)), np.full(1, np.nan)
        run = train(
            table,
            goals,
            loss=self._linear_loss(),
            projection=self._region(self._facts),
            plan=plan,
            bits=source,
        )
        self._provenance = run.provenance
        return {"theta": run.theta}

    def _randomness(self, source: Source) -> Mapping[str, str]:
        return self._provenance

    def _restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        theta = arrays["theta"]
        if theta.shape != (self.plan_.dimension,):
            raise SchemaError("a saved model has weights of another shape")
        self.theta_ = theta
        self.excess_risk_bound_ = None if self.plan_.clipped else self.plan_.excess_risk_bound()
        inner, shift = theta, 0.0
        if self.fit_intercept:
            inner = theta[:-1]
            shift = float(theta[-1] * self._longest_row(self._facts) * _SHORTER)
        self._set_coefficients(inner, shift)

    @staticmethod
    def _longest_row(declared: Declared) -> float:
        given = 1.0 if declared.feature_norm is None else declared.feature_norm
        return _validate.real("feature_norm", given, above=1e-50, at_most=1e50)

    def _region(self, declared: Declared) -> Projection:
        region = self.projection
        if region is None:
            return L2Ball(5.0 / self._longest_row(declared))
        if not isinstance(region, Projection):
            raise InvalidValue("projection", region, "L2Ball, Box, Simplex or GivenProjection")
        return region

    def _short_rows(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Shorten rows to the declared norm and append the constant; NaN becomes 0."""
        rows = np.clip(np.nan_to_num(features, nan=0.0), -_LARGEST, _LARGEST)
        norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
        most = self._longest_row(self._facts) * _SHORTER
        rows *= (most / np.maximum(norms, most))[:, None]
        if self.fit_intercept:
            rows = np.concatenate([rows, np.full((rows.shape[0], 1), most)], axis=1)
        return rows

    def _scores(self, features: NDArray[Any]) -> NDArray[np.float64]:
        return np.asarray(self._short_rows(features) @ self.theta_)

    def excess_risk_without_privacy(self, X: Any, y: Any = None) -> ExcessRisk:
        """Measure the excess risk on the training records, next to its bound.

        It is computed without noise and is therefore as private as the records: not for
        release, except for public data.
        """
        check_is_fitted(self, "certificate_")
        opened = open_rows(self, self._facts, X, y)
        batch = Rows(opened, self._facts, source()).all()
        return excess_risk_without_privacy(
            self.theta_,
            self._short_rows(batch.features),
            self._goals(batch.targets),
            loss=self._linear_loss(),
            projection=self._region(self._facts),
            bound=self.excess_risk_bound_,
        )

    # --- files --------------------------------------------------------------------------

    def _make_head(self, ready: Any) -> dict[str, Any]:
        # The function of a given projection is not saved: the model predicts without it, and to
        # train again it must be given once more.
        head = super()._make_head(ready)
        head["parameters"]["projection"] = self._region(ready.declared).describe()
        return head

    @classmethod
    def _read_parameters(cls, parameters: dict[str, Any]) -> dict[str, Any]:
        region = dict(parameters["projection"])
        make = _SETS.get(region.pop("set"))
        if make is None:
            raise SchemaError("a saved model has a projection that is not known here")
        return {**parameters, "projection": make(**region)}


def _gives_probabilities(estimator: PrivateProjectedSGDClassifier) -> bool:
    if estimator.loss != "logistic":
        raise AttributeError("only the logistic loss has probabilities")
    return True


_OF_CLASSES: dict[str, type[LinearLoss]] = {
    kind.name: kind for kind in (Logistic, Hinge, SquaredHinge)
}


@final
class PrivateProjectedSGDClassifier(PrivateClassifier, _ProjectedSGD):
    """Private linear classification of two classes, one record a step.

    **Guarantee.** All iterates together are (epsilon, delta)-DP for one replaced row; the number of
    rows is public. Under ``calibration="formula"`` the noise is that of a closed form, and the
    certificate states the smaller epsilon that it really has.

    ``feature_norm`` is public: longer rows are shortened to it, NaN counts as 0. ``projection``
    acts on all parameters, the intercept included (default: a ball of radius 5 / feature_norm).
    Gradients are bounded by the Lipschitz constant of ``loss`` ("logistic", "hinge", or
    "squared_hinge", which needs a bounded set) on such rows, by a stated ``lipschitz`` (then they
    are cut there, and the excess-risk bound rests on the statement), or by ``clip_norm`` (then no
    such bound is given). Rows of an undeclared
    label count for nothing. ``steps`` None is n^2, at most ten million.

    >>> X = [[-1.0], [-0.8], [0.8], [1.0]] * 100
    >>> y = ["no", "no", "yes", "yes"] * 100
    >>> model = PrivateProjectedSGDClassifier(epsilon=2.0, classes=["no", "yes"], steps=5000)
    >>> model.fit(X, y).predict([[-1.0], [1.0]]).tolist()
    ['no', 'yes']
    >>> model.certificate_.epsilon <= 2.0, model.certificate_.relation
    (True, 'replace')
    """

    def __init__(
        self,
        *,
        loss: str = "logistic",
        epsilon: float = 1.0,
        delta: float = 1e-6,
        classes: Any = None,
        projection: Projection | None = None,
        feature_norm: float | None = None,
        fit_intercept: bool = True,
        lipschitz: float | None = None,
        clip_norm: float | None = None,
        steps: int | None = None,
        calibration: str = "calibrated",
        output: str = "average",
        schema: Schema | None = None,
        insecure_seed: int | None = None,
    ) -> None:
        self.loss = loss
        self.epsilon = epsilon
        self.delta = delta
        self.classes = classes
        self.projection = projection
        self.feature_norm = feature_norm
        self.fit_intercept = fit_intercept
        self.lipschitz = lipschitz
        self.clip_norm = clip_norm
        self.steps = steps
        self.calibration = calibration
        self.output = output
        self.schema = schema
        self.insecure_seed = insecure_seed

    _only_two_classes = True

    def _linear_loss(self) -> LinearLoss:
        name = _validate.one_of("loss", self.loss, tuple(_OF_CLASSES))
        return _OF_CLASSES[name]()

    def _goals(self, targets: NDArray[Any]) -> NDArray[np.float64]:
        return np.where(targets < 0, math.nan, 2.0 * targets - 1.0)

    def _set_coefficients(self, inner: NDArray[np.float64], shift: float) -> None:
        self.coef_, self.intercept_ = inner[None, :].copy(), np.array([shift])

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Return the score of each row: positive for the second class."""
        return self._scores(self._encoded_rows(X))

    def _class_scores(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        scores = self._scores(rows)
        return np.stack([np.zeros_like(scores), scores], axis=1)

    @available_if(_gives_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return P(class | row) of the logistic model, rows x 2."""
        return super().predict_proba(X)

    @available_if(_gives_probabilities)  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """Return log P(class | row) of the logistic model, rows x 2."""
        return super().predict_log_proba(X)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


@final
class PrivateProjectedSGDRegressor(PrivateRegressor, _ProjectedSGD):
    """Private linear regression, one record a step.

    **Guarantee** and parameters as for :class:`PrivateProjectedSGDClassifier`. ``target_bounds``
    are public: targets are clipped to them and moved to [-1, 1], where ``threshold`` of the Huber
    loss and the risk are measured; a NaN target counts for nothing. ``loss`` is "huber" or
    "squared".

    >>> X = [[-1.0], [0.0], [1.0]] * 100
    >>> y = [0.0, 5.0, 10.0] * 100
    >>> model = PrivateProjectedSGDRegressor(epsilon=5.0, target_bounds=(0.0, 10.0), steps=5000)
    >>> 2.0 < model.fit(X, y).predict([[0.0]])[0] < 8.0
    np.True_
    """

    def __init__(
        self,
        *,
        loss: str = "huber",
        threshold: float = 1.0,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        target_bounds: Any = None,
        projection: Projection | None = None,
        feature_norm: float | None = None,
        fit_intercept: bool = True,
        lipschitz: float | None = None,
        clip_norm: float | None = None,
        steps: int | None = None,
        calibration: str = "calibrated",
        output: str = "average",
        schema: Schema | None = None,
        insecure_seed: int | None = None,
    ) -> None:
        self.loss = loss
        self.threshold = threshold
        self.epsilon = epsilon
        self.delta = delta
        self.target_bounds = target_bounds
        self.projection = projection
        self.feature_norm = feature_norm
        self.fit_intercept = fit_intercept
        self.lipschitz = lipschitz
        self.clip_norm = clip_norm
        self.steps = steps
        self.calibration = calibration
        self.output = output
        self.schema = schema
        self.insecure_seed = insecure_seed

    def _linear_loss(self) -> LinearLoss:
        name = _validate.one_of("loss", self.loss, ("huber", "squared"))
        return Huber(self.threshold) if name == "huber" else Squared()

    def _goals(self, targets: NDArray[Any]) -> NDArray[np.float64]:
        return targets

    def _set_coefficients(self, inner: NDArray[np.float64], shift: float) -> None:
        assert self._facts.target_bounds is not None
        lower, upper = self._facts.target_bounds
        half = 0.5 * (upper - lower)
        self.coef_ = inner * half
        self.intercept_ = shift * half + lower + half

    def _values(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        return self._scores(rows)

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return the prediction for each row, in the units of the target."""
        values = self._values(self._encoded_rows(X))
        return self._facts.unscaled_target(values)
