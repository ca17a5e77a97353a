"""S20: naive Bayes over declared categories from noisy joint counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue
from discreet.learn.declared import as_numbers, declared_classes, label_codes
from discreet.learn.intake import schema_words
from discreet.learn.naive_bayes.estimation import (
    category_log_probabilities,
    class_log_priors,
    pooled_counts,
    split_tables,
)
from discreet.learn.naive_bayes.estimator import TableNaiveBayes
from discreet.learn.naive_bayes.noise import TableNoise
from discreet.learn.naive_bayes.statistics import CategoryCounts
from discreet.learn.schema_facts import feature_columns, labelled_facts
from discreet.privacy import Relation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.data.schema import Schema
    from discreet.data.tables import Table

__all__ = ["PrivateCategoricalNB"]

_MOST_CATEGORIES = 1 << 24


@final
class PrivateCategoricalNB(TableNaiveBayes):
    """Naive Bayes from noisy counts of class and category (S20).

    **Guarantee.** The fitted model is (epsilon, delta)-DP for one row under ``relation``; with
    delta 0 it is epsilon-DP. Each of the D tables gets epsilon / D, half of that under
    ``replace`` (:mod:`discreet.learn.naive_bayes.noise`).

    ``categories`` are public: a number K for features coded 0 .. K-1, a sequence with one
    number or one list of values for each feature (one is enough: such a feature says nothing, and
    a schema that was learned may have it). A value that was not declared is not counted
    in its table and says nothing in a prediction; a row with an undeclared label counts for
    nothing. ``alpha`` is the usual smoothing.

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
        schema_hash: str | None = None,
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
        self.schema_hash = schema_hash
        self.insecure_seed = insecure_seed

    @classmethod
    def from_schema(cls, schema: Schema, *, bins: int | None = None, **parameters: Any) -> Self:
        """Return an estimator that is told what the schema declares.

        It reads data frames, mappings of columns and tables of :func:`discreet.data.read_table`
        by itself, and cuts the interval of a column of numbers into ``bins`` equal parts.
        """
        facts = labelled_facts(schema, bins=bins)
        return cls(**{**schema_words(schema, **facts), "bins": bins, **parameters})

    def _encoded(self, table: Table) -> NDArray[Any]:
        return feature_columns(table, table.schema, bins=self.bins)

    def _open_statistics(self, classes: int) -> tuple[CategoryCounts, TableNoise]:
        _validate.real("alpha", self.alpha, at_least=0)
        sizes = self._sizes()
        noise = TableNoise.plan(
            features=len(sizes),
            unit=1,
            epsilon=self.epsilon,
            delta=self.delta,
            relation=self.relation,
            noise=self.noise,
        )
        return CategoryCounts(classes, sizes), noise

    def _has_values(self) -> bool:
        try:
            entries = list(self.categories)
        except TypeError:
            return False  # one number for all features, or a mistake that _declared names
        return any(not isinstance(one, int | np.integer) for one in entries)

    def _declared(self) -> list[int | NDArray[Any]]:
        """One entry a feature: how many codes it has, or the sorted values of its categories."""
        expected = (
            "the public categories: a number, or for each feature a number or a list of values "
            "(they are not read off the data)"
        )
        given, features = self.categories, int(self.n_features_in_)
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

    def _sizes(self) -> list[int]:
        return [one if isinstance(one, int) else one.size for one in self._declared()]

    def _batch(self, features: NDArray[Any]) -> list[NDArray[Any]]:
        return [
            as_numbers(features[:, j]) if isinstance(one, int) else label_codes(features[:, j], one)
            for j, one in enumerate(self._declared())
        ]

    def _set_model(self, noisy: NDArray[np.int64], noise: TableNoise) -> None:
        sizes = self._sizes()
        tables = split_tables(noisy.astype(np.float64), self.classes_.size, sizes)
        totals = np.stack([table.sum(axis=1) for table in tables])
        self.class_count_ = pooled_counts(totals, np.array(sizes, float), stddev=noise.stddev)
        self.class_log_prior_ = class_log_priors(self.class_count_)
        self.feature_log_prob_ = [
            category_log_probabilities(table, stddev=noise.stddev, alpha=float(self.alpha))
            for table in tables
        ]

    def _log_likelihoods(self, features: NDArray[Any]) -> NDArray[np.float64]:
        result = np.zeros((features.shape[0], self.classes_.size))
        for table, column in zip(self.feature_log_prob_, self._batch(features), strict=True):
            silent = np.zeros((1, self.classes_.size))
            lookup = np.concatenate([table.T, silent])
            with np.errstate(invalid="ignore"):
                inside = (column >= 0) & (column < table.shape[1])
            places = np.where(inside, column, table.shape[1]).astype(np.int64)
            result += lookup[places]
        return result

    def _plan(self) -> dict[str, Any]:
        return {"alpha": float(self.alpha), "categories": self._sizes()}

    def _saved_parameters(self) -> dict[str, Any]:
        declared = [one if isinstance(one, int) else one.tolist() for one in self._declared()]
        return {**super()._saved_parameters(), "categories": declared}

    def _saved_arrays(self) -> dict[str, NDArray[Any]]:
        tables = {f"table_{j}": table for j, table in enumerate(self.feature_log_prob_)}
        return {**super()._saved_arrays(), "class_count": self.class_count_, **tables}

    def _restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        super()._restore(arrays)
        self.class_count_ = arrays["class_count"]
        self.feature_log_prob_ = [arrays[f"table_{j}"] for j in range(self.n_features_in_)]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = True
        return tags
