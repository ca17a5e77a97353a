"""What an attacker can guess of an attribute without the model: imputation.

The imputation learns the attribute from the rest of the record and its label, on records that
the attacker has anyway. An attack on the model that does not beat it has shown a correlation of
the population, not a leak (Jayaraman and Evans 2022). A weak imputation flatters the attack, so
by default several classifiers compete on a held-out part of the attacker's own records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Imputation", "fit_imputation"]

_SELECTION_SHARE = 4  # one record in this many judges the contestants


@final
@dataclass(frozen=True, eq=False)
class Imputation:
    """A fitted guess of the attribute: ``probabilities(rest, labels)`` is (n, values)."""

    name: str
    classifier: Any
    values: int
    classes: int
    floor: float

    def probabilities(self, rest: NDArray[Any], labels: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the probability of each value given the rest of the record and its label.

        A value that the attacker has never met keeps a small probability.
        """
        inputs = _with_labels(rest, labels, self.classes)
        guessed = np.asarray(self.classifier.predict_proba(inputs), dtype=np.float64)
        full = np.zeros((len(rest), self.values))
        full[:, np.asarray(self.classifier.classes_, dtype=np.intp)] = guessed
        full = np.maximum(full, self.floor)
        return np.asarray(full / full.sum(axis=1, keepdims=True))


def fit_imputation(
    rest: NDArray[Any],
    labels: NDArray[np.intp],
    codes: NDArray[np.intp],
    *,
    values: int,
    classes: int,
    contestants: Sequence[Any] | None,
    order: NDArray[np.intp],
) -> Imputation:
    """Fit the contestants on three quarters of the records; refit the winner on all of them.

    ``order`` is a permutation of the records: its last quarter judges. A constant attribute
    cannot be learned from and is refused.
    """
    if len(np.unique(codes)) < 2:
        raise InvalidValue(
            "auxiliary", "one value only", "records with two values of the attribute"
        )
    models = list(_defaults() if contestants is None else contestants)
    if not models or not all(hasattr(model, "fit") for model in models):
        raise InvalidValue("imputer", contestants, "scikit-learn classifiers with predict_proba")
    inputs = _with_labels(rest, labels, classes)
    winner = models[0]
    if len(models) > 1:
        judged = order[len(order) - len(order) // _SELECTION_SHARE :]
        fitted = order[: len(order) - len(judged)]
        if len(judged) == 0 or len(np.unique(codes[fitted])) < 2:
            raise InvalidValue(
                "auxiliary", f"{len(codes)} records", "enough to choose an imputer on"
            )
        scores = [
            float(
                (
                    _fitted(model, inputs[fitted], codes[fitted]).predict(inputs[judged])
                    == codes[judged]
                ).mean()
            )
            for model in models
        ]
        winner = models[int(np.argmax(scores))]
    final_model = _fitted(winner, inputs, codes)
    if not hasattr(final_model, "predict_proba"):
        raise InvalidValue("imputer", winner, "a classifier with predict_proba")
    name = type(winner).__name__
    if hasattr(winner, "steps"):
        name = type(winner.steps[-1][1]).__name__
    return Imputation(name, final_model, values, classes, 1.0 / (len(codes) + values))


def _fitted(model: Any, inputs: NDArray[Any], codes: NDArray[np.intp]) -> Any:
    return import_module("sklearn.base").clone(model).fit(inputs, codes)


def _with_labels(rest: NDArray[Any], labels: NDArray[np.intp], classes: int) -> NDArray[np.float64]:
    """The attacker knows the label, so the imputation may use it."""
    return np.hstack([np.asarray(rest, dtype=np.float64), np.eye(classes)[labels]])


def _defaults() -> list[Any]:
    scaling = import_module("sklearn.preprocessing").StandardScaler()
    logistic = import_module("sklearn.linear_model").LogisticRegression(max_iter=2000)
    return [
        import_module("sklearn.dummy").DummyClassifier(strategy="prior"),
        import_module("sklearn.pipeline").make_pipeline(scaling, logistic),
        import_module("sklearn.ensemble").HistGradientBoostingClassifier(random_state=0),
    ]
