"""Private networks for tables (multilayer perceptrons), as scikit-learn estimators."""

# ruff: noqa: N803 (scikit-learn calls the features X)

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet.errors import InvalidValue, SchemaError
from discreet.learn.tabular.estimator import TabularEstimator, Track
from discreet.learn.tabular.grid import RAW_STEPS
from discreet.learn.tabular.network import NetworkPlan, forward, hidden_sizes, train_network
from discreet.learn.tabular.persons import OwnedRows
from discreet.learn.tabular.targets import ClassTargets, NumberTargets
from discreet.privacy import Relation
from discreet.randomness import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from discreet.data.schema import Schema

__all__ = ["PrivateMLPClassifier", "PrivateMLPRegressor"]


class _Network(TabularEstimator):
    """What the two networks share."""

    hidden_layer_sizes: Any
    max_iter: int | None
    step_size: float | None
    _needs_persons = True

    def _outputs(self) -> int:
        return 1

    def _make_plan(self, rows: int, features: int, unit: str) -> NetworkPlan:
        return NetworkPlan.make(
            rows=rows,
            features=features + 1,
            outputs=self._outputs(),
            hidden=self.hidden_layer_sizes,
            epsilon=self.epsilon,
            delta=self._delta(rows),
            relation=self.relation,
            contributions=self.rows_per_person,
            squared=not self._for_classes,
            steps=self.max_iter,
            step_size=self.step_size,
            unit=unit,
        )

    def _read_plan(self, document: Mapping[str, Any]) -> NetworkPlan:
        plan = NetworkPlan.from_json(document)
        if plan.hidden != hidden_sizes(self.hidden_layer_sizes):
            raise SchemaError("the plan of a saved model belongs to another one")
        return plan

    def _check_count(self, plan: NetworkPlan, rows: int) -> None:
        # Samples of a fixed size out of a public number of rows: it must be the right one.
        fixed = plan.training.relation is Relation.REPLACE
        if fixed and plan.training.examples != rows:
            raise InvalidValue(
                "expected_rows", plan.training.examples, f"the number of rows, {rows}, or none"
            )

    def _learn(
        self,
        plan: NetworkPlan,
        rows: NDArray[np.float32],
        targets: NDArray[Any],
        owned: OwnedRows | None,
        bits: Source,
        track: Track,
    ) -> Mapping[str, Any]:
        counts = targets >= 0 if self._for_classes else ~np.isnan(targets)
        inputs = rows / np.float32(RAW_STEPS * self._length())
        goals = targets if self._for_classes else targets.astype(np.float32)
        cap = int(self.rows_per_person)
        if owned is not None and cap > 1:
            inputs = owned.side_by_side(inputs, cap, empty=0.0)
            goals = owned.side_by_side(goals, cap, empty=0)
            counts = owned.side_by_side(counts, cap, empty=False)
        self.layers_ = train_network(
            plan,
            inputs,
            goals,
            counts,
            self._losses,
            outputs=self._outputs(),
            bits=bits,
            track=track,
        )
        return {}

    @staticmethod
    @abstractmethod
    def _losses(outputs: Tensor, goals: Tensor) -> Tensor:
        """Return the loss of each row."""

    def _length(self) -> float:
        return math.sqrt(self._norm(int(self.n_features_in_)) ** 2 + 1.0)

    def _outcomes(self, X: Any) -> NDArray[np.float64]:
        rows = self._rows_to_judge(X)
        return forward(self.layers_, rows / self._length())

    def _model_arrays(self) -> dict[str, NDArray[Any]]:
        arrays: dict[str, NDArray[Any]] = {}
        for number, (weights, shift) in enumerate(self.layers_):
            arrays |= {f"weights_{number}": weights, f"shift_{number}": shift}
        return arrays

    def _set_model(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        count = sum(name.startswith("weights_") for name in arrays)
        if count != len(hidden_sizes(self.hidden_layer_sizes)) + 1:
            raise SchemaError("a saved model has another number of layers")
        self.layers_ = [(arrays[f"weights_{k}"], arrays[f"shift_{k}"]) for k in range(count)]
        inner = (*hidden_sizes(self.hidden_layer_sizes), self._outputs())
        widths = (int(self.n_features_in_) + 1, *inner)
        for (weights, shift), (width, size) in zip(self.layers_, pairwise(widths), strict=True):
            if weights.shape != (size, width) or shift.shape != (size,):
                raise SchemaError("a saved model has weights of another shape")


@final
class PrivateMLPClassifier(ClassTargets, _Network):
    """A private network for two or more classes, trained by DP-SGD.

    **Guarantee.** The fitted model is (epsilon, delta)-DP under ``relation`` for one row, or for a
    person with at most ``rows_per_person`` rows, by the loss of :class:`discreet.learn.dpsgd.Plan`.
    With persons, ``fit`` must be told whose rows they are: a person is one example, drawn with
    all rows, whose gradients are added up and clipped together. What must be declared, and how
    records that break a declaration are repaired, is said in
    :class:`~discreet.learn.tabular.PrivateLogisticRegression`.

    ``hidden_layer_sizes`` are the widths of the hidden layers, ``max_iter`` the number of noisy
    steps and ``step_size`` their size; None is chosen from public facts. Needs torch to fit.
    """

    def __init__(
        self,
        *,
        hidden_layer_sizes: Any = (32,),
        epsilon: float = 1.0,
        delta: float | None = None,
        classes: Any = None,
        bounds: Any = None,
        feature_norm: float | None = None,
        expected_rows: int | None = None,
        rows_per_person: int = 1,
        relation: Relation | str = "add_remove",
        max_iter: int | None = None,
        step_size: float | None = None,
        schema: Schema | None = None,
        schema_hash: str | None = None,
        insecure_seed: int | None = None,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.epsilon = epsilon
        self.delta = delta
        self.classes = classes
        self.bounds = bounds
        self.feature_norm = feature_norm
        self.expected_rows = expected_rows
        self.rows_per_person = rows_per_person
        self.relation = relation
        self.max_iter = max_iter
        self.step_size = step_size
        self.schema = schema
        self.schema_hash = schema_hash
        self.insecure_seed = insecure_seed

    def _outputs(self) -> int:
        return int(self.classes_.size)

    @staticmethod
    def _losses(outputs: Tensor, goals: Tensor) -> Tensor:
        from torch.nn.functional import cross_entropy

        return cross_entropy(outputs, goals, reduction="none")

    def _class_scores(self, X: Any) -> NDArray[np.float64]:
        return self._outcomes(X)

    def _model_arrays(self) -> dict[str, NDArray[Any]]:
        return {**super()._model_arrays(), "classes": self.classes_}


@final
class PrivateMLPRegressor(NumberTargets, _Network):
    """A private network for a target with public bounds, trained by DP-SGD.

    **Guarantee.** As :class:`PrivateMLPClassifier`; instead of classes, ``target_bounds`` is the
    public pair that bounds the target.
    """

    def __init__(
        self,
        *,
        hidden_layer_sizes: Any = (32,),
        epsilon: float = 1.0,
        delta: float | None = None,
        bounds: Any = None,
        target_bounds: Any = None,
        feature_norm: float | None = None,
        expected_rows: int | None = None,
        rows_per_person: int = 1,
        relation: Relation | str = "add_remove",
        max_iter: int | None = None,
        step_size: float | None = None,
        schema: Schema | None = None,
        schema_hash: str | None = None,
        insecure_seed: int | None = None,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.epsilon = epsilon
        self.delta = delta
        self.bounds = bounds
        self.target_bounds = target_bounds
        self.feature_norm = feature_norm
        self.expected_rows = expected_rows
        self.rows_per_person = rows_per_person
        self.relation = relation
        self.max_iter = max_iter
        self.step_size = step_size
        self.schema = schema
        self.schema_hash = schema_hash
        self.insecure_seed = insecure_seed

    @staticmethod
    def _losses(outputs: Tensor, goals: Tensor) -> Tensor:
        return 0.5 * (outputs[:, 0] - goals) ** 2

    def _values(self, X: Any) -> NDArray[np.float64]:
        return np.asarray(self._outcomes(X)[:, 0])
