"""Naive Bayes from noisy sufficient statistics, as scikit-learn estimators."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue, SchemaError
from discreet.learn._declared import Declared, declared_classes
from discreet.learn._estimator import PrivateClassifier
from discreet.learn._intake import Batch, as_numbers, label_codes
from discreet.learn._noisy_counts import (
    CategoryCounts,
    SoftBins,
    TableNoise,
    bin_moments,
    bits_for,
    category_log_probabilities,
    class_log_priors,
    pooled_counts,
    split_tables,
)
from discreet.learn._one_pass import OnePassEstimator
from discreet.privacy import Loss, Relation
from discreet.randomness import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.certificate import Certificate
    from discreet.data import Schema

_MOST_CATEGORIES = 1 << 24
_BINS = 3


@final
@dataclass(frozen=True)
class CountsPlan:
    """The noise that all tables get, what it costs and what was asked for."""

    noise: TableNoise
    epsilon: float
    delta: float

    @property
    def loss(self) -> Loss:
        """What the noisy tables reveal about one row."""
        return self.noise.loss

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return {
            "noise": self.noise.kind,
            "noise_in_steps": self.noise.parameter,
            "steps_per_record": self.noise.unit,
            "target_epsilon": self.epsilon,
        }


class _NaiveBayes(PrivateClassifier, OnePassEstimator):
    """What the two estimators share."""

    delta: float
    noise: str
    _encoding = "codes"
    _changed_cells = 1

    @abstractmethod
    def _sums(self, declared: Declared) -> CategoryCounts | SoftBins:
        """Return empty sums for what was declared."""

    @abstractmethod
    def _noise(self, declared: Declared) -> TableNoise:
        """Check the parameters and return the noise that the sums will get."""

    @abstractmethod
    def _facts_of_kind(self) -> dict[str, Any]:
        """Return what a certificate says beside the noise."""

    @abstractmethod
    def _log_likelihoods(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        """Return log P(features | class), rows x classes."""

    def _plan(self, declared: Declared) -> CountsPlan:
        noise = self._noise(declared)
        self._sums(declared)  # what does not fit into memory is found before the charge
        return CountsPlan(noise, float(self.epsilon), float(self.delta))

    def _public_plan(self, plan: CountsPlan) -> dict[str, Any]:
        known = {"target_epsilon": plan.epsilon, "classes": self.classes_.tolist()}
        return {**known, **self._facts_of_kind()}

    @classmethod
    def _stated_plan(cls, certificate: Certificate) -> CountsPlan:
        plan = certificate.plan
        noise = TableNoise.stated(
            plan["noise"],
            plan["noise_in_steps"],
            features=plan["features"],
            unit=plan["steps_per_record"],
            relation=certificate.loss.relation,
            changed_cells=cls._changed_cells,
        )
        return CountsPlan(noise, float(plan["target_epsilon"]), certificate.delta)

    def _run_facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = self.plan_.to_json()
        return facts

    def _open(self, plan: CountsPlan) -> CategoryCounts | SoftBins:
        return self._sums(self._facts)

    def _class_scores(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        return np.asarray(self._log_likelihoods(rows) + self.class_log_prior_)

    def _prior_arrays(
        self, totals: NDArray[np.float64], sizes: NDArray[np.float64], stddev: float
    ) -> dict[str, NDArray[Any]]:
        counts = pooled_counts(totals, sizes, stddev=stddev)
        return {
            "classes": self.classes_,
            "class_count": counts,
            "class_log_prior": class_log_priors(counts),
        }

    def _restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.class_count_ = arrays["class_count"]
        self.class_log_prior_ = arrays["class_log_prior"]
        if not self.class_count_.shape == self.class_log_prior_.shape == self.classes_.shape:
            raise SchemaError("a saved model has another number of classes")

    def _in_order(
        self, arrays: dict[str, NDArray[Any]], order: list[int], declared: Declared
    ) -> dict[str, NDArray[Any]]:
        moved = {name: array[order] for name, array in arrays.items()}
        return {**moved, "classes": np.asarray(declared.classes)}


@final
class PrivateCategoricalNB(_NaiveBayes):
    """Naive Bayes from noisy counts of class and category.

    **Guarantee.** The fitted model is (epsilon, delta)-DP for one row under ``relation``; with
    delta 0 it is epsilon-DP. Each of the D tables gets epsilon / D, half of that under
    ``replace`` (:mod:`discreet.learn._noisy_counts`).

    Parameters
    ----------
    epsilon, delta
        The budget; with a delta the noise may be Gaussian.
    schema, bins
        What is public about a table, instead of classes and categories; the interval of a column
        of numbers is cut into ``bins`` equal parts.
    classes
        The public labels. A row with another one counts for nothing.
    categories
        A number K for features coded 0 .. K-1, or a sequence with one number or one list of
        values for each feature (one is enough: such a feature says nothing, and a schema that
        was learned may have it). A value that was not declared is not counted in its table and
        says nothing in a prediction.
    relation
        What the guarantee compares, ``"add_remove"`` or ``"replace"``.
    noise
        ``"laplace"``, ``"gaussian"``, or ``"auto"`` for the smaller of the two.
    alpha
        The usual smoothing.
    insecure_seed
        For tests only: the noise can be computed from it.

    >>> X = [[0, 1], [1, 1], [0, 0], [1, 0]] * 100
    >>> y = ["no", "yes", "no", "yes"] * 100
    >>> model = PrivateCategoricalNB(epsilon=1.0, classes=["no", "yes"], categories=2)
    >>> model.fit(X, y).predict([[1, 1]]).tolist()
    ['yes']
    >>> model.certificate_.loss, model.certificate_.epsilon
    (2 * DiscreteLaplace(scale=2.0), 1.0)

    """

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float = 0.0,
        classes: Any = None,
        categories: Any = None,
        relation: Relation | str = "add_remove",
        noise: str = "auto",
        alpha: float = 1.0,
        bins: int | None = None,
        schema: Schema | None = None,
        insecure_seed: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.classes = classes
        self.categories = categories
        self.relation = relation
        self.noise = noise
        self.alpha = alpha
        self.bins = bins
        self.schema = schema
        self.insecure_seed = insecure_seed

    def _sums(self, declared: Declared) -> CategoryCounts:
        assert declared.classes is not None
        return CategoryCounts(declared.classes.size, self._sizes(declared))

    def _noise(self, declared: Declared) -> TableNoise:
        _validate.real("alpha", self.alpha, at_least=0)
        return TableNoise.plan(
            features=len(self._sizes(declared)),
            unit=1,
            epsilon=self.epsilon,
            delta=self.delta,
            relation=declared.relation,
            noise=self.noise,
        )

    def _cells_are_values(self) -> bool:
        try:
            entries = list(self.categories)
        except TypeError:
            return False  # one number for all features, or a mistake that _categories names
        return any(not isinstance(one, int | np.integer) for one in entries)

    def _categories(self, declared: Declared) -> list[int | NDArray[Any]]:
        """Return for each feature how many codes it has, or the sorted values of its categories."""
        expected = (
            "the public categories: a number, or for each feature a number or a list of values "
            "(they are not read off the data)"
        )
        given, features = declared.categories, declared.features
        if isinstance(given, str | bytes) or given is None:
            raise InvalidValue("categories", given, expected)
        if isinstance(given, int | np.integer):
            given = [given] * features
        try:
            entries = list(given)
        except TypeError:
            raise InvalidValue("categories", given, expected) from None
        if len(entries) != features:
            raise InvalidValue("categories", given, f"one entry for each of {features} features")
        return [
            _validate.integer("categories", entry, at_least=1, at_most=_MOST_CATEGORIES)
            if isinstance(entry, int | np.integer)
            else declared_classes(entry, argument="categories", least=1)
            for entry in entries
        ]

    def _sizes(self, declared: Declared) -> list[int]:
        return [one if isinstance(one, int) else one.size for one in self._categories(declared)]

    def _columns(self, features: NDArray[Any]) -> list[NDArray[Any]]:
        return [
            as_numbers(features[:, j]) if isinstance(one, int) else label_codes(features[:, j], one)
            for j, one in enumerate(self._categories(self._facts))
        ]

    def _add(self, sums: CategoryCounts, batch: Batch) -> None:
        sums.add(batch.targets, self._columns(batch.features))

    def _release(
        self, plan: CountsPlan, sums: CategoryCounts, source: Source
    ) -> dict[str, NDArray[Any]]:
        noisy = plan.noise.release(sums.cells(), source).astype(np.float64)
        sizes, stddev = self._sizes(self._facts), plan.noise.stddev
        tables = split_tables(noisy, self.classes_.size, sizes)
        totals = np.stack([table.sum(axis=1) for table in tables])
        arrays = self._prior_arrays(totals, np.array(sizes, float), stddev)
        for j, table in enumerate(tables):
            arrays[f"table_{j}"] = category_log_probabilities(
                table, stddev=stddev, alpha=float(self.alpha)
            )
        return arrays

    def _restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        super()._restore(arrays)
        self.feature_log_prob_ = [arrays[f"table_{j}"] for j in range(self._facts.features)]

    def _log_likelihoods(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        result = np.zeros((rows.shape[0], self.classes_.size))
        for table, column in zip(self.feature_log_prob_, self._columns(rows), strict=True):
            silent = np.zeros((1, self.classes_.size))
            lookup = np.concatenate([table.T, silent])
            with np.errstate(invalid="ignore"):
                inside = (column >= 0) & (column < table.shape[1])
            places = np.where(inside, column, table.shape[1]).astype(np.int64)
            result += lookup[places]
        return result

    def _facts_of_kind(self) -> dict[str, Any]:
        return {"alpha": float(self.alpha), "categories": self._sizes(self._facts)}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = True
        return tags


@final
class PrivateGaussianNB(_NaiveBayes):
    """Naive Bayes with a normal distribution for each class and feature, from noisy moments.

    **Guarantee.** The fitted model is (epsilon, delta)-DP for one row under ``relation``; with
    delta 0 it is epsilon-DP. The statistics are exact integers
    (:mod:`discreet.learn._noisy_counts`), one table a feature, and each table gets
    epsilon / D, half of that under ``replace``.

    Parameters
    ----------
    epsilon, delta, classes, relation, noise, insecure_seed
        As for :class:`PrivateCategoricalNB`.
    schema
        What is public about a table of numbers, instead of classes and bounds.
    bounds
        A pair (lower, upper) of numbers, or of arrays with one for each feature. Values outside
        are clipped, NaN stands for the middle.
    var_smoothing
        The least variance, in units of the squared width of the bounds.
    var_pooling
        The share of the way by which a variance of a class that is below that over all classes is
        moved towards it, in the manner of regularized discriminant analysis (Friedman 1989): 0 is
        the plain model, which trusts tiny variances of skewed columns too much.

    >>> X = [[20.0], [21.0], [70.0], [72.0]] * 100
    >>> y = [0, 0, 1, 1] * 100
    >>> model = PrivateGaussianNB(epsilon=1.0, classes=[0, 1], bounds=(0.0, 100.0))
    >>> model.fit(X, y).predict([[25.0], [65.0]]).tolist()
    [0, 1]
    >>> model.certificate_.epsilon, model.certificate_.relation
    (1.0, 'add_remove')

    """

    _changed_cells = _BINS

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float = 0.0,
        classes: Any = None,
        bounds: Any = None,
        relation: Relation | str = "add_remove",
        noise: str = "auto",
        var_smoothing: float = 1e-9,
        var_pooling: float = 0.1,
        schema: Schema | None = None,
        insecure_seed: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.classes = classes
        self.bounds = bounds
        self.relation = relation
        self.noise = noise
        self.var_smoothing = var_smoothing
        self.var_pooling = var_pooling
        self.schema = schema
        self.insecure_seed = insecure_seed

    def _bits(self, declared: Declared) -> int:
        # Twice the features covers both relations.
        epsilon = _validate.real("epsilon", self.epsilon, above=0)
        return bits_for(2 * declared.features, epsilon)

    def _sums(self, declared: Declared) -> SoftBins:
        assert declared.classes is not None
        lower, upper = declared.ends
        return SoftBins(declared.classes.size, lower, upper, bits=self._bits(declared))

    def _noise(self, declared: Declared) -> TableNoise:
        _validate.real("var_smoothing", self.var_smoothing, at_least=1e-50, at_most=1)
        _validate.real("var_pooling", self.var_pooling, at_least=0, at_most=1)
        return TableNoise.plan(
            features=declared.features,
            unit=1 << (2 * self._bits(declared)),
            epsilon=self.epsilon,
            delta=self.delta,
            relation=declared.relation,
            noise=self.noise,
            changed_cells=self._changed_cells,
        )

    def _add(self, sums: SoftBins, batch: Batch) -> None:
        sums.add(batch.targets, batch.features)

    def _release(self, plan: CountsPlan, sums: SoftBins, source: Source) -> dict[str, NDArray[Any]]:
        noise = plan.noise
        bins = noise.release(sums.cells(), source) / float(noise.unit)
        stddev = noise.stddev / noise.unit
        totals = bins.sum(axis=2).T
        arrays = self._prior_arrays(totals, np.full(totals.shape[0], float(_BINS)), stddev)
        means, variances = bin_moments(
            bins,
            arrays["class_count"],
            stddev=stddev,
            smoothing=float(self.var_smoothing),
            pooling=float(self.var_pooling),
        )
        lower, upper = self._facts.ends
        scale = upper - lower
        return {**arrays, "theta": lower + means * scale, "var": variances * scale**2}

    def _restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        super()._restore(arrays)
        self.theta_, self.var_ = arrays["theta"], arrays["var"]

    def _log_likelihoods(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        lower, upper = self._facts.ends
        values = np.clip(rows, lower, upper)
        values = np.where(np.isnan(values), 0.5 * (lower + upper), values)
        constants = -0.5 * np.log(2.0 * math.pi * self.var_).sum(axis=1)
        columns = [
            constant - 0.5 * ((values - mean) ** 2 / variance).sum(axis=1)
            for constant, mean, variance in zip(constants, self.theta_, self.var_, strict=True)
        ]
        return np.stack(columns, axis=1)

    def _facts_of_kind(self) -> dict[str, Any]:
        lower, upper = self._facts.ends
        return {
            "var_smoothing": float(self.var_smoothing),
            "var_pooling": float(self.var_pooling),
            "lower": lower.tolist(),
            "upper": upper.tolist(),
        }
