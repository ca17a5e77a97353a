"""S20: naive Bayes with a normal distribution for each class and feature, from noisy moments."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Self, final

import numpy as np

from discreet import _validate
from discreet.learn.declared import declared_bounds
from discreet.learn.intake import schema_words
from discreet.learn.naive_bayes.estimation import bin_moments, class_log_priors, pooled_counts
from discreet.learn.naive_bayes.estimator import TableNaiveBayes
from discreet.learn.naive_bayes.noise import TableNoise
from discreet.learn.naive_bayes.statistics import SoftBins, bits_for
from discreet.learn.schema_facts import bounded_facts
from discreet.privacy import Relation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.data.schema import Schema

__all__ = ["PrivateGaussianNB"]

_BINS = 3


@final
class PrivateGaussianNB(TableNaiveBayes):
    """Naive Bayes from noisy counts, sums and sums of squares (S20).

    **Guarantee.** The fitted model is (epsilon, delta)-DP for one row under ``relation``; with
    delta 0 it is epsilon-DP. The statistics are exact integers
    (:mod:`discreet.learn.naive_bayes.statistics`), one table a feature, and each table gets
    epsilon / D, half of that under ``replace``.

    ``bounds`` are public: a pair (lower, upper) of numbers, or of arrays with one for each
    feature. Values outside are clipped, NaN stands for the middle. A row with an undeclared
    label counts for nothing. ``var_smoothing`` is the least variance, in units of the squared
    width of the bounds. ``var_pooling`` is the share of
    the way by which a variance of a class that is below that over all classes is moved towards
    it, in the manner of regularized discriminant analysis (Friedman 1989): 0 is the plain
    model, which trusts tiny variances of skewed columns too much.

    >>> X = [[20.0], [21.0], [70.0], [72.0]] * 100
    >>> y = [0, 0, 1, 1] * 100
    >>> model = PrivateGaussianNB(epsilon=1.0, classes=[0, 1], bounds=(0.0, 100.0))
    >>> model.fit(X, y).predict([[25.0], [65.0]]).tolist()
    [0, 1]
    >>> model.certificate_.epsilon, model.certificate_.relation
    (1.0, 'add_remove')
    """

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
        schema_hash: str | None = None,
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
        self.schema_hash = schema_hash
        self.insecure_seed = insecure_seed

    @classmethod
    def from_schema(cls, schema: Schema, **parameters: Any) -> Self:
        """Return an estimator that is told what the schema declares.

        It reads data frames, mappings of columns and tables of :func:`discreet.data.read_table`
        by itself; :mod:`discreet.learn.schema_facts` says for which schemas.
        """
        return cls(**{**schema_words(schema, **bounded_facts(schema)), **parameters})

    def _open_statistics(self, classes: int) -> tuple[SoftBins, TableNoise]:
        features = int(self.n_features_in_)
        _validate.real("var_smoothing", self.var_smoothing, at_least=1e-50, at_most=1)
        _validate.real("var_pooling", self.var_pooling, at_least=0, at_most=1)
        lower, upper = declared_bounds(self.bounds, features)
        epsilon = _validate.real("epsilon", self.epsilon, above=0)
        # Twice the features covers both relations.
        bits = bits_for(2 * features, epsilon)
        noise = TableNoise.plan(
            features=features,
            unit=1 << (2 * bits),
            epsilon=self.epsilon,
            delta=self.delta,
            relation=self.relation,
            noise=self.noise,
            changed_cells=_BINS,
        )
        return SoftBins(classes, lower, upper, bits=bits), noise

    def _batch(self, features: NDArray[Any]) -> NDArray[Any]:
        return features

    def _set_model(self, noisy: NDArray[np.int64], noise: TableNoise) -> None:
        bins = noisy / float(noise.unit)
        stddev = noise.stddev / noise.unit
        totals = bins.sum(axis=2).T
        sizes = np.full(totals.shape[0], float(_BINS))
        self.class_count_ = pooled_counts(totals, sizes, stddev=stddev)
        self.class_log_prior_ = class_log_priors(self.class_count_)
        means, variances = bin_moments(
            bins,
            self.class_count_,
            stddev=stddev,
            smoothing=float(self.var_smoothing),
            pooling=float(self.var_pooling),
        )
        lower, upper = declared_bounds(self.bounds, int(self.n_features_in_))
        self.theta_ = lower + means * (upper - lower)
        self.var_ = variances * (upper - lower) ** 2

    def _log_likelihoods(self, features: NDArray[Any]) -> NDArray[np.float64]:
        lower, upper = declared_bounds(self.bounds, int(self.n_features_in_))
        values = np.clip(features, lower, upper)
        values = np.where(np.isnan(values), 0.5 * (lower + upper), values)
        constants = -0.5 * np.log(2.0 * math.pi * self.var_).sum(axis=1)
        columns = [
            constant - 0.5 * ((values - mean) ** 2 / variance).sum(axis=1)
            for constant, mean, variance in zip(constants, self.theta_, self.var_, strict=True)
        ]
        return np.stack(columns, axis=1)

    def _plan(self) -> dict[str, Any]:
        lower, upper = declared_bounds(self.bounds, int(self.n_features_in_))
        return {
            "var_smoothing": float(self.var_smoothing),
            "var_pooling": float(self.var_pooling),
            "lower": lower.tolist(),
            "upper": upper.tolist(),
        }

    def _saved_parameters(self) -> dict[str, Any]:
        lower, upper = declared_bounds(self.bounds, int(self.n_features_in_))
        return {**super()._saved_parameters(), "bounds": [lower.tolist(), upper.tolist()]}

    def _saved_arrays(self) -> dict[str, NDArray[Any]]:
        model = {"theta": self.theta_, "var": self.var_, "class_count": self.class_count_}
        return {**super()._saved_arrays(), **model}

    def _restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        super()._restore(arrays)
        self.theta_, self.var_ = arrays["theta"], arrays["var"]
        self.class_count_ = arrays["class_count"]
