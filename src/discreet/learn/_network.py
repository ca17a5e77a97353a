"""Private networks for tables (multilayer perceptrons) under DP-SGD, as scikit-learn estimators.

Training is :mod:`discreet.learn.dpsgd` (Poisson sampling under add_remove, samples of a fixed size
under replace); its noise is that of :class:`discreet.randomness.NormalStream`, so the loss is
that of ideal real-valued noise. The fitted network is a list of matrices and predicts without
torch.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.data import MOST_ROWS
from discreet.errors import InvalidValue, NotApplicable, SchemaError
from discreet.learn._declared import Declared
from discreet.learn._estimator import PrivateClassifier, PrivateRegressor, Track
from discreet.learn._exact_descent import MOST_STEPS, RAW_STEPS
from discreet.learn._intake import Rows
from discreet.learn._linear import ScaledEstimator, scaled_norm
from discreet.privacy import Loss, Relation
from discreet.privacy.theorems import gaussian_mu
from discreet.randomness import NormalStream, Source

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from discreet.certificate import Certificate
    from discreet.data import Schema
    from discreet.learn.dpsgd import Plan

Layers = list[tuple["NDArray[np.float64]", "NDArray[np.float64]"]]

_BATCH_SHARE = 16
_LEAST_BATCH, _MOST_BATCH = 256, 8192
_MOMENTUM = 0.9
_AVERAGED = 0.5
# Where a fit is good the curvature of logistic errors fades, and that of squared errors does not.
_SQUARED_SLOWER = 5.0
# Gradients are clipped to 1: larger steps carry single precision away in a few of them.
_LARGEST_STEP = 1e4
_LARGEST_WEIGHT = 1e30
_WIDEST_LAYER = 1 << 16


@final
@dataclass(frozen=True)
class NetworkPlan:
    """Public numbers of a run: a plan of DP-SGD, the shape of the network and the step size."""

    training: Plan
    hidden: tuple[int, ...]
    step_size: float

    @classmethod
    def make(
        cls,
        *,
        rows: int,
        features: int,
        outputs: int,
        hidden: Sequence[int],
        epsilon: float,
        delta: float,
        relation: Relation | str,
        contributions: int = 1,
        squared: bool = False,
        steps: int | None = None,
        step_size: float | None = None,
        unit: str | None = None,
    ) -> NetworkPlan:
        """Choose what is not given; defaults as in :mod:`discreet.learn._exact_descent`.

        With several ``contributions`` a person, an example is a person with all rows. ``unit`` is
        whom the guarantee protects: a row, or a person where there are several contributions.
        """
        try:
            from discreet.learn.dpsgd import Plan, make_private  # noqa: F401 - what fit needs
        except ImportError as error:
            raise NotApplicable(
                f"networks need torch to be trained: pip install 'discreet[torch]' ({error})"
            ) from None

        cap = _validate.integer("rows_per_person", contributions, at_least=1, at_most=MOST_ROWS)
        declared = _validate.integer("expected_rows", rows, at_least=1, at_most=MOST_ROWS)
        n = -(-declared // cap)
        target = _validate.real("epsilon", epsilon, above=0)
        point = _validate.real("delta", delta, above=0, below=1)
        kind = Relation.parse(relation)
        if kind is Relation.REPLACE and cap > 1:
            raise NotApplicable("replacing a person may change the number of rows: use add_remove")
        sizes = hidden_sizes(hidden)
        widths = [features, *sizes, outputs]
        weights = sum((a + 1) * b for a, b in pairwise(widths))
        signal = gaussian_mu(target, point) * n / math.sqrt(weights)
        count = min(400, max(20, round(25.0 * signal**0.5)))
        batch = min(n, _MOST_BATCH, max(_LEAST_BATCH, n // _BATCH_SHARE))
        plan = Plan(
            examples=n,
            expected_batch_size=batch,
            steps=_validate.integer(
                "max_iter", count if steps is None else steps, at_least=1, at_most=MOST_STEPS
            ),
            clip_norm=1.0,
            delta=point,
            epsilon=target,
            sampler="poisson" if kind is Relation.ADD_REMOVE else "without_replacement",
            relation=kind,
            unit=unit or ("row" if cap == 1 else "person"),
        )
        usual = min(32.0, max(4.0, 8.0 * (signal / 17.0) ** 0.3))
        usual /= _SQUARED_SLOWER if squared else 1.0
        size = usual if step_size is None else step_size
        return cls(plan, sizes, _validate.real("step_size", size, above=0, at_most=_LARGEST_STEP))

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> NetworkPlan:
        """Return the plan that :meth:`to_json` wrote."""
        from discreet.learn.dpsgd import Plan

        training = Plan.from_json(document["training"])
        return cls(training, hidden_sizes(document["hidden"]), float(document["step_size"]))

    @property
    def epsilon(self) -> float | None:
        """The epsilon that was asked for."""
        return self.training.target_epsilon

    @property
    def steps(self) -> int:
        """The number of noisy steps."""
        return self.training.steps

    @property
    def loss(self) -> Loss:
        """What the whole run reveals about one row."""
        return self.training.loss

    @property
    def delta(self) -> float:
        """The delta at which the loss is read."""
        return self.training.delta

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return {
            "training": self.training.to_json(),
            "hidden": list(self.hidden),
            "step_size": self.step_size,
        }


def hidden_sizes(hidden: object) -> tuple[int, ...]:
    """Return the widths of the hidden layers.

    >>> hidden_sizes([32, 16]), hidden_sizes(8)
    ((32, 16), (8,))
    """
    expected = "the widths of one to four hidden layers"
    if isinstance(hidden, np.ndarray) and hidden.ndim == 1:
        hidden = hidden.tolist()
    sizes = [hidden] if isinstance(hidden, int | np.integer) else hidden
    if not isinstance(sizes, list | tuple) or not 1 <= len(sizes) <= 4:
        raise InvalidValue("hidden_layer_sizes", hidden, expected)
    return tuple(
        _validate.integer("hidden_layer_sizes", size, at_least=1, at_most=_WIDEST_LAYER)
        for size in sizes
    )


def forward(layers: Layers, rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the outputs of the network for rows."""
    values = rows
    for number, (weights, shift) in enumerate(layers):
        values = values @ weights.T + shift
        if number < len(layers) - 1:
            values = np.tanh(values)
    return values


def train_network(
    plan: NetworkPlan,
    rows: NDArray[np.float32],
    targets: NDArray[Any],
    counts: NDArray[np.bool_],
    losses: Callable[[Tensor, Tensor], Tensor],
    *,
    outputs: int,
    bits: Source,
    track: Track,
) -> Layers:
    """Run the plan; rows for which ``counts`` is false have a loss of zero.

    The first axis counts examples; a second one, before that of the features, the rows of an
    example, whose losses are added up. Under add_remove an example of such rows is appended, so
    that no records at all are data like any other.
    """
    import torch
    from torch.utils.data import TensorDataset

    from discreet.learn.dpsgd import make_private

    if plan.training.relation is Relation.ADD_REMOVE:
        rows, targets, counts = (
            np.concatenate([part, np.zeros((1, *part.shape[1:]), dtype=part.dtype)])
            for part in (rows, targets, counts)
        )
    data = TensorDataset(
        torch.from_numpy(rows),
        torch.from_numpy(np.where(counts, targets, targets.dtype.type(0))),
        torch.from_numpy(counts.astype(np.float32)),
    )
    model = _network(rows.shape[-1], plan.hidden, outputs, bits.derive("weights"))
    optimizer = torch.optim.SGD(
        model.parameters(), lr=plan.step_size * (1.0 - _MOMENTUM), momentum=_MOMENTUM
    )
    # Linear layers and tanh act on each row alone, so there is nothing to probe for mixing.
    private = make_private(
        model, optimizer, plan.training, isolation="vouched", source=bits.derive("training")
    )
    total = [torch.zeros_like(parameter) for parameter in model.parameters()]
    first = plan.training.steps - math.ceil(_AVERAGED * plan.training.steps)
    batches = iter(private.batches(data))
    try:
        for number in track(range(plan.training.steps)):
            while True:
                inputs, goals, weights = next(batches)
                found = losses(model(inputs).flatten(0, -2), goals.flatten())
                private.backward((found * weights.flatten()).reshape(len(weights), -1).sum(1))
                optimizer.step()
                if private.stepped:
                    break
            if number >= first:
                for sum_, parameter in zip(total, model.parameters(), strict=True):
                    sum_ += parameter.detach()
    finally:
        private.detach()
    count = plan.training.steps - first
    means = [
        # A run that was carried away is a bad model, and not one that cannot be read back.
        np.nan_to_num(
            (sum_ / count).numpy().astype(np.float64),
            posinf=_LARGEST_WEIGHT,
            neginf=-_LARGEST_WEIGHT,
        )
        for sum_ in total
    ]
    return list(zip(means[::2], means[1::2], strict=True))


def _network(features: int, hidden: Sequence[int], outputs: int, bits: Source) -> Any:
    """Layers of tanh; the last one starts at zero, the others at random and data-independent."""
    import torch
    from torch import nn

    normals = NormalStream(source=bits)
    parts: list[nn.Module] = []
    width = features
    for size in hidden:
        parts += [nn.Linear(width, size), nn.Tanh()]
        width = size
    parts.append(nn.Linear(width, outputs))
    with torch.no_grad():
        for number, layer in enumerate(parts):
            if isinstance(layer, nn.Linear):
                layer.bias.zero_()
                layer.weight.zero_()
                if number < len(parts) - 1:
                    # Whole rows have length one, not each feature, so the first layer is wide.
                    gain = 2.0 if number == 0 else 1.0 / math.sqrt(layer.in_features)
                    layer.weight += normals.tensor(tuple(layer.weight.shape), stddev=gain)
    return nn.Sequential(*parts)


class _Network(ScaledEstimator):
    """What the two networks share."""

    hidden_layer_sizes: Any
    max_iter: int | None
    step_size: float | None
    _needs_persons = True

    def _outputs(self, declared: Declared) -> int:
        return 1

    def _plan(self, declared: Declared) -> NetworkPlan:
        scaled_norm(declared)
        plan = NetworkPlan.make(
            rows=declared.planned_rows,
            features=declared.features + 1,
            outputs=self._outputs(declared),
            hidden=self.hidden_layer_sizes,
            epsilon=self.epsilon,
            delta=self._delta(declared),
            relation=declared.relation,
            contributions=declared.rows_per_person,
            squared=self._target == "number",
            steps=self.max_iter,
            step_size=self.step_size,
            unit=declared.unit,
        )
        # Samples of a fixed size out of a public number of rows: it must be the right one.
        if declared.rows is not None and plan.training.examples != declared.rows:
            raise InvalidValue(
                "expected_rows",
                plan.training.examples,
                f"the number of rows, {declared.rows}, or none",
            )
        return plan

    def _read_plan(self, document: Mapping[str, Any], declared: Declared) -> NetworkPlan:
        plan = NetworkPlan.from_json(document)
        if plan.hidden != hidden_sizes(self.hidden_layer_sizes):
            raise SchemaError("the plan of a saved model belongs to another one")
        return plan

    @classmethod
    def _stated_plan(cls, certificate: Certificate) -> NetworkPlan:
        return NetworkPlan.from_json(certificate.plan)

    def _learn(
        self, plan: NetworkPlan, rows: Rows, source: Source, track: Track
    ) -> dict[str, NDArray[Any]]:
        batch = rows.all()
        classes = self._target == "classes"
        counts = batch.targets >= 0 if classes else ~np.isnan(batch.targets)
        inputs = self._scaled_rows(batch.features) / np.float32(RAW_STEPS * self._length())
        goals = batch.targets if classes else batch.targets.astype(np.float32)
        cap = self._facts.rows_per_person
        if batch.owned is not None and cap > 1:
            inputs = batch.owned.side_by_side(inputs, cap, empty=0.0)
            goals = batch.owned.side_by_side(goals, cap, empty=0)
            counts = batch.owned.side_by_side(counts, cap, empty=False)
        layers = train_network(
            plan,
            inputs,
            goals,
            counts,
            self._losses,
            outputs=self._outputs(self._facts),
            bits=source,
            track=track,
        )
        arrays: dict[str, NDArray[Any]] = {}
        for number, (weights, shift) in enumerate(layers):
            arrays |= {f"weights_{number}": weights, f"shift_{number}": shift}
        return arrays

    @staticmethod
    @abstractmethod
    def _losses(outputs: Tensor, goals: Tensor) -> Tensor:
        """Return the loss of each row."""

    def _length(self) -> float:
        return math.sqrt(scaled_norm(self._facts) ** 2 + 1.0)

    def _outcomes(self, features: NDArray[Any]) -> NDArray[np.float64]:
        rows = self._scaled_rows(features).astype(np.float64) / RAW_STEPS
        return forward(self.layers_, rows / self._length())

    def _restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        count = sum(name.startswith("weights_") for name in arrays)
        sizes = hidden_sizes(self.hidden_layer_sizes)
        if count != len(sizes) + 1:
            raise SchemaError("a saved model has another number of layers")
        self.layers_ = [(arrays[f"weights_{k}"], arrays[f"shift_{k}"]) for k in range(count)]
        widths = (self._facts.features + 1, *sizes, self._outputs(self._facts))
        for (weights, shift), (width, size) in zip(self.layers_, pairwise(widths), strict=True):
            if weights.shape != (size, width) or shift.shape != (size,):
                raise SchemaError("a saved model has weights of another shape")


@final
class PrivateMLPClassifier(PrivateClassifier, _Network):
    """A private network for two or more classes, trained by DP-SGD.

    **Guarantee.** The fitted model is (epsilon, delta)-DP under ``relation`` for one row, or for a
    person with at most ``rows_per_person`` rows, by the loss of :class:`discreet.learn.dpsgd.Plan`.
    With persons, ``fit`` must be told whose rows they are: a person is one example, drawn with
    all rows, whose gradients are added up and clipped together. What must be declared, and how
    records that break a declaration are repaired, is said in
    :class:`~discreet.learn.PrivateLogisticRegression`.

    Parameters
    ----------
    hidden_layer_sizes
        The widths of one to four hidden layers.
    max_iter, step_size
        The number of noisy steps and their size; None is chosen from public facts.
    epsilon, delta, schema, classes, bounds, feature_norm, expected_rows, rows_per_person, relation
        As for :class:`~discreet.learn.PrivateLogisticRegression`.
    insecure_seed
        For tests only: the noise can be computed from it.

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
        rows_per_person: int | None = None,
        relation: Relation | str = "add_remove",
        max_iter: int | None = None,
        step_size: float | None = None,
        schema: Schema | None = None,
        insecure_seed: int | None = None,
    ) -> None:
        # duplicate-code: scikit-learn asks for one parameter a line, in every class
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
        self.insecure_seed = insecure_seed

    def _outputs(self, declared: Declared) -> int:
        assert declared.classes is not None
        return int(declared.classes.size)

    @staticmethod
    def _losses(outputs: Tensor, goals: Tensor) -> Tensor:
        from torch.nn.functional import cross_entropy

        return cross_entropy(outputs, goals, reduction="none")

    def _class_scores(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        return self._outcomes(rows)

    def _learn(
        self, plan: NetworkPlan, rows: Rows, source: Source, track: Track
    ) -> dict[str, NDArray[Any]]:
        return {**super()._learn(plan, rows, source, track), "classes": self.classes_}

    def _in_order(
        self, arrays: dict[str, NDArray[Any]], order: list[int], declared: Declared
    ) -> dict[str, NDArray[Any]]:
        last = sum(name.startswith("weights_") for name in arrays) - 1
        moved = {name: arrays[name][order] for name in (f"weights_{last}", f"shift_{last}")}
        return {**arrays, **moved, "classes": np.asarray(declared.classes)}


@final
class PrivateMLPRegressor(PrivateRegressor, _Network):
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
        rows_per_person: int | None = None,
        relation: Relation | str = "add_remove",
        max_iter: int | None = None,
        step_size: float | None = None,
        schema: Schema | None = None,
        insecure_seed: int | None = None,
    ) -> None:
        # duplicate-code: scikit-learn asks for one parameter a line, in every class
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
        self.insecure_seed = insecure_seed

    @staticmethod
    def _losses(outputs: Tensor, goals: Tensor) -> Tensor:
        return 0.5 * (outputs[:, 0] - goals) ** 2

    def _values(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        return np.asarray(self._outcomes(rows)[:, 0])
