"""S22: private projected SGD as scikit-learn estimators, for two classes and for numbers."""

# ruff: noqa: N803 (scikit-learn calls the features X)

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, final

import numpy as np
from sklearn.base import BaseEstimator  # type: ignore[import-untyped]
from sklearn.utils.metaestimators import available_if  # type: ignore[import-untyped]
from sklearn.utils.validation import check_is_fitted  # type: ignore[import-untyped]

from discreet import _validate
from discreet.certificate import Certificate
from discreet.errors import InvalidValue, SchemaError
from discreet.learn.charging import charged, stated_unit
from discreet.learn.declared import (
    as_numbers,
    declared_bounds,
    declared_classes,
    label_codes,
)
from discreet.learn.inputs import number_features
from discreet.learn.intake import (
    RehearsedEstimator,
    SchemaClassifier,
    SchemaRegressor,
    schema_words,
)
from discreet.learn.projected_sgd.losses import Hinge, Huber, LinearLoss, Logistic, Squared
from discreet.learn.projected_sgd.plan import SgdPlan
from discreet.learn.projected_sgd.projections import (
    Box,
    GivenProjection,
    L2Ball,
    Projection,
    Simplex,
)
from discreet.learn.projected_sgd.risk import ExcessRisk, excess_risk_without_privacy
from discreet.learn.projected_sgd.training import engine_for, train
from discreet.learn.saving import (
    conclude,
    feature_head,
    read_model,
    same_facts,
    set_features,
    write_model,
)
from discreet.learn.schema_facts import linear_facts
from discreet.privacy import Loss, Relation
from discreet.randomness import source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.data.schema import Schema
    from discreet.ledger import Ledger

__all__ = ["PrivateProjectedSGDClassifier", "PrivateProjectedSGDRegressor"]

_LARGEST = 1e100
# Rows are made this much shorter than declared, so that rounding cannot make them longer.
_SHORTER = 1.0 - 2.0**-40
_SETS: dict[str, Callable[..., Projection]] = {
    "L2Ball": L2Ball,
    "Box": Box,
    "Simplex": Simplex,
    "given": GivenProjection.without_function,
}


class _ProjectedSGD(RehearsedEstimator, BaseEstimator):  # type: ignore[misc]
    """Abstract base of the two estimators."""

    epsilon: float
    delta: float
    projection: Projection | None
    feature_norm: float
    fit_intercept: bool
    lipschitz: float | None
    clip_norm: float | None
    steps: int | None
    calibration: str
    output: str
    engine: str
    schema: Schema | None
    schema_hash: str | None
    insecure_seed: int | None

    @classmethod
    def from_schema(cls, schema: Schema, **parameters: Any) -> Self:
        """Return an estimator that is told what the schema declares.

        It reads data frames, mappings of columns and tables of :func:`discreet.data.read_table`
        by itself; the schema bounds the norm of their rows.
        """
        facts = linear_facts(schema, classification=cls._for_classes)
        return cls(**{**schema_words(schema, **facts), **parameters})

    @abstractmethod
    def _linear_loss(self) -> LinearLoss:
        """Return the loss that the parameters name."""

    @abstractmethod
    def _declare(self) -> None:
        """Check and keep what is declared about the target."""

    @abstractmethod
    def _goals(self, y: NDArray[Any]) -> NDArray[np.float64]:
        """Return the targets in [-1, 1], NaN for records that count for nothing."""

    # --- learning -----------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        ledger: Ledger | None = None,
        dataset: str | None = None,
        unit: str | None = None,
    ) -> Self:
        """Learn; with a ledger, charge ``dataset`` (relation replace) before reading records.

        ``unit`` says what one row is where the ledger has another word for it, such as "patient":
        it is the caller's promise that nobody owns two, and the certificate repeats it.
        """
        whose = stated_unit(unit, persons=False)
        self._declare()
        opened = self._open_rows(X, y, relation=Relation.REPLACE)
        plan = self._make_plan(opened.rows, opened.width)
        engine = engine_for(self.engine, self._set(), plan.steps)
        bits = source(insecure_seed=self.insecure_seed)
        purpose = f"{type(self).__name__}: projected SGD"
        loss = plan.loss
        with charged(
            ledger, dataset, loss=loss, delta=float(self.delta), purpose=purpose, unit=whose
        ) as charge:
            # What was fitted before is another release: its certificate must not outlive it.
            self.__dict__.pop("certificate_", None)
            features, answers, _ = opened.read(bits)
            rows, goals = self._rows(features), self._goals(answers)
            if not opened.rows:  # then there is one record that counts for nothing
                rows, goals = np.zeros((1, plan.dimension)), np.full(1, np.nan)
            run = train(
                rows,
                goals,
                loss=self._linear_loss(),
                projection=self._set(),
                plan=plan,
                engine=engine,
                bits=bits,
            )
            self.plan_ = plan
            self._keep(run.theta)
            self.excess_risk_bound_ = None if plan.clipped else plan.excess_risk_bound()
            certificate = Certificate.of(
                loss,
                delta=float(self.delta),
                learner=type(self).__name__,
                plan={
                    **plan.to_json(),
                    **self._set().describe(),
                    "feature_norm": float(self.feature_norm),
                    "loss": self._linear_loss().name,
                    "schema_hash": self.schema_hash,
                    "unit": whose,
                },
                randomness=run.provenance,
            )
            conclude(self, certificate, charge)
        return self

    def _planned_loss(self, X: Any, y: Any, persons: Any) -> Loss:
        self._declare()
        opened = self._open_rows(X, y, persons, relation=Relation.REPLACE)
        return self._make_plan(opened.rows, opened.width).loss

    def _make_plan(self, records: int, features: int) -> SgdPlan:
        if not isinstance(self.fit_intercept, bool | np.bool_):
            raise InvalidValue("fit_intercept", self.fit_intercept, "True or False")
        dimension = features + bool(self.fit_intercept)
        length = _validate.real("feature_norm", self.feature_norm, above=1e-50, at_most=1e50)
        region = self._set()
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
            records=max(1, records),
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

    def _set(self) -> Projection:
        region = (
            L2Ball(5.0 / float(self.feature_norm)) if self.projection is None else self.projection
        )
        if not isinstance(region, Projection):
            raise InvalidValue("projection", region, "L2Ball, Box, Simplex or GivenProjection")
        return region

    def _features_of(self, X: Any) -> NDArray[np.float64]:
        if self.schema is not None:
            return self._table_to_judge(X)
        return number_features(self, X, reset=False, relation=Relation.REPLACE)

    def _rows(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Shorten rows to ``feature_norm`` and append the constant; NaN becomes 0."""
        rows = np.clip(np.nan_to_num(features, nan=0.0), -_LARGEST, _LARGEST)
        norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
        most = float(self.feature_norm) * _SHORTER
        rows *= (most / np.maximum(norms, most))[:, None]
        if self.fit_intercept:
            rows = np.concatenate([rows, np.full((rows.shape[0], 1), most)], axis=1)
        return rows

    def _keep(self, theta: NDArray[np.float64]) -> None:
        self.theta_ = theta
        inner = theta[:-1] if self.fit_intercept else theta
        shift = theta[-1] * float(self.feature_norm) * _SHORTER if self.fit_intercept else 0.0
        self._set_coefficients(inner, float(shift))

    @abstractmethod
    def _set_coefficients(self, inner: NDArray[np.float64], shift: float) -> None:
        """Publish coefficients and intercept, for shortened rows, in scikit-learn's shapes."""

    def _scores(self, X: Any) -> NDArray[np.float64]:
        check_is_fitted(self, "certificate_")
        return np.asarray(self._rows(self._features_of(X)) @ self.theta_)

    def excess_risk_without_privacy(self, X: Any, y: Any = None) -> ExcessRisk:
        """Measure the excess risk on the training records, next to its bound.

        It is computed without noise and is therefore as private as the records: not for
        release, except for public data.
        """
        check_is_fitted(self, "certificate_")
        opened = self._open_rows(X, y, relation=Relation.REPLACE, reset=False)
        features, answers, _ = opened.read(source())
        return excess_risk_without_privacy(
            self.theta_,
            self._rows(features),
            self._goals(answers),
            loss=self._linear_loss(),
            projection=self._set(),
            bound=self.excess_risk_bound_,
        )

    # --- keeping ------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the fitted model to one file of arrays and JSON, atomically and without pickle.

        The function of a given projection is not saved: the model predicts without it, and to
        train again it must be given once more.
        """
        check_is_fitted(self, "certificate_")
        head, arrays = self._contents()
        head["certificate"] = self.certificate_.to_json()
        write_model(path, kind=type(self).__name__, head=head, arrays=arrays)

    def _contents(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        parameters = {**self.get_params(), **self._saved_parameters()}
        parameters["projection"] = self._set().describe()
        parameters["epsilon"] = self.plan_.epsilon
        head = {"parameters": parameters, "plan": self.plan_.to_json(), **feature_head(self)}
        return head, self._saved_arrays()

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a model that :meth:`save` wrote."""
        head, arrays = read_model(path, kind=cls.__name__)
        region = dict(head["parameters"].pop("projection"))
        make = _SETS.get(region.pop("set"))
        if make is None:
            raise SchemaError("a saved model has a projection that is not known here")
        model = cls(**head["parameters"], projection=make(**region))
        model._declare()
        set_features(model, head)
        model.plan_ = SgdPlan(**head["plan"])
        if arrays["theta"].shape != (model.plan_.dimension,):
            raise SchemaError("a saved model has weights of another shape")
        same_facts({"epsilon": model.epsilon}, {"epsilon": model.plan_.epsilon})
        model.excess_risk_bound_ = None if model.plan_.clipped else model.plan_.excess_risk_bound()
        model.certificate_ = Certificate.from_json(head["certificate"])
        told = {
            **head["plan"],
            "feature_norm": float(model.feature_norm),
            "schema_hash": model.schema_hash,
        }
        same_facts(told, model.certificate_.plan)
        model.certificate_.check_covers(model.plan_.loss)
        model._keep(arrays["theta"])
        return model

    def _saved_parameters(self) -> dict[str, Any]:
        return {}

    def _saved_arrays(self) -> dict[str, NDArray[Any]]:
        return {"theta": self.theta_}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.non_deterministic = self.insecure_seed is None
        return tags


def _gives_probabilities(estimator: PrivateProjectedSGDClassifier) -> bool:
    if estimator.loss != "logistic":
        raise AttributeError("only the logistic loss has probabilities")
    return True


@final
class PrivateProjectedSGDClassifier(SchemaClassifier, _ProjectedSGD):
    """Private linear classification of two classes, one record a step (S10, S22).

    **Guarantee.** All iterates together are (epsilon, delta)-DP for one replaced row; the number of
    rows is public. Under ``calibration="lecture"`` the noise is that of S10, and the
    certificate tells the smaller epsilon that it really has.

    ``feature_norm`` is public: longer rows are shortened to it, NaN counts as 0. ``projection``
    acts on all parameters, the intercept included (default: a ball of radius 5 / feature_norm).
    Gradients are bounded by the Lipschitz constant of ``loss`` ("logistic" or "hinge") on such
    rows, by a stated ``lipschitz`` (then they are cut there, and the excess-risk bound rests on
    the statement), or by ``clip_norm`` (then no such bound is given). Rows of an undeclared
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
        feature_norm: float = 1.0,
        fit_intercept: bool = True,
        lipschitz: float | None = None,
        clip_norm: float | None = None,
        steps: int | None = None,
        calibration: str = "calibrated",
        output: str = "average",
        engine: str = "auto",
        schema: Schema | None = None,
        schema_hash: str | None = None,
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
        self.engine = engine
        self.schema = schema
        self.schema_hash = schema_hash
        self.insecure_seed = insecure_seed

    def _linear_loss(self) -> LinearLoss:
        name = _validate.one_of("loss", self.loss, ("logistic", "hinge"))
        return Logistic() if name == "logistic" else Hinge()

    def _declare(self) -> None:
        self.classes_ = declared_classes(self.classes, binary=True)

    def _goals(self, y: NDArray[Any]) -> NDArray[np.float64]:
        codes = label_codes(y, self.classes_)
        return np.where(codes < 0, math.nan, 2.0 * codes - 1.0)

    def _set_coefficients(self, inner: NDArray[np.float64], shift: float) -> None:
        self.coef_, self.intercept_ = inner[None, :].copy(), np.array([shift])

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Return the score of each row: positive for the second class."""
        return self._scores(X)

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the class of each row."""
        second = (self._scores(X) > 0.0).astype(np.int64)
        return np.asarray(self.classes_[second])

    @available_if(_gives_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return P(class | row) of the logistic model, rows x 2."""
        second = 0.5 * (1.0 + np.tanh(0.5 * self._scores(X)))
        return np.stack([1.0 - second, second], axis=1)

    @available_if(_gives_probabilities)  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """Return log P(class | row) of the logistic model, rows x 2."""
        scores = self._scores(X)
        return -np.logaddexp(0.0, np.stack([scores, -scores], axis=1))

    def _saved_parameters(self) -> dict[str, Any]:
        return {"classes": self.classes_.tolist()}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


@final
class PrivateProjectedSGDRegressor(SchemaRegressor, _ProjectedSGD):
    """Private linear regression, one record a step (S10, S22).

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
        feature_norm: float = 1.0,
        fit_intercept: bool = True,
        lipschitz: float | None = None,
        clip_norm: float | None = None,
        steps: int | None = None,
        calibration: str = "calibrated",
        output: str = "average",
        engine: str = "auto",
        schema: Schema | None = None,
        schema_hash: str | None = None,
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
        self.engine = engine
        self.schema = schema
        self.schema_hash = schema_hash
        self.insecure_seed = insecure_seed

    def _linear_loss(self) -> LinearLoss:
        name = _validate.one_of("loss", self.loss, ("huber", "squared"))
        return Huber(self.threshold) if name == "huber" else Squared()

    def _declare(self) -> None:
        try:
            lower, upper = declared_bounds(self.target_bounds, 1)
        except InvalidValue as error:
            raise InvalidValue("target_bounds", self.target_bounds, error.expected) from None
        self._ends = [float(lower[0]), float(upper[0])]
        self._middle = float(lower[0] + 0.5 * (upper[0] - lower[0]))
        self._half = float(0.5 * (upper[0] - lower[0]))

    def _goals(self, y: NDArray[Any]) -> NDArray[np.float64]:
        values = np.clip(as_numbers(y), self._ends[0], self._ends[1])
        return np.clip((values - self._middle) / self._half, -1.0, 1.0)

    def _set_coefficients(self, inner: NDArray[np.float64], shift: float) -> None:
        self.coef_ = inner * self._half
        self.intercept_ = shift * self._half + self._middle

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return the prediction for each row, in the units of the target."""
        scores = self._scores(X)
        return scores * self._half + self._middle

    def _saved_parameters(self) -> dict[str, Any]:
        return {"target_bounds": self._ends}
