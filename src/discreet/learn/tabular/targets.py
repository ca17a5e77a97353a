"""Declared classes and declared numbers: the two kinds of targets of the models for tables."""

# ruff: noqa: N803 (scikit-learn calls the features X)

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import log_softmax, softmax

from discreet.errors import InvalidValue
from discreet.learn.declared import as_numbers, declared_bounds, declared_classes, label_codes
from discreet.learn.intake import SchemaClassifier, SchemaRegressor

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ClassTargets", "NumberTargets"]


class ClassTargets(SchemaClassifier):
    """Targets that are one of the declared ``classes``; codes, -1 for an undeclared label."""

    classes: Any

    def _declare(self) -> None:
        self.classes_ = declared_classes(self.classes)

    def _targets(self, answers: NDArray[Any]) -> NDArray[np.int64]:
        return label_codes(answers, self.classes_)

    @abstractmethod
    def _class_scores(self, X: Any) -> NDArray[np.float64]:
        """Return a score for each class, rows x classes, whose softmax are the probabilities."""

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of each row."""
        best = np.argmax(self._class_scores(X), axis=1)
        return np.asarray(self.classes_[best])

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return P(class | row), rows x classes."""
        return np.asarray(softmax(self._class_scores(X), axis=1))

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """Return log P(class | row), rows x classes."""
        return np.asarray(log_softmax(self._class_scores(X), axis=1))


class NumberTargets(SchemaRegressor):
    """Targets that are numbers inside the declared ``target_bounds``, as numbers in [-1, 1]."""

    target_bounds: Any

    def _declare(self) -> None:
        try:
            lower, upper = declared_bounds(self.target_bounds, 1)
        except InvalidValue as error:
            raise InvalidValue("target_bounds", self.target_bounds, error.expected) from None
        self._ends = (float(lower[0]), float(upper[0]))

    def _targets(self, answers: NDArray[Any]) -> NDArray[np.float64]:
        """Clip to the bounds and scale; NaN, which counts for nothing, where there is no number."""
        lower, upper = self._ends
        numbers = np.clip(as_numbers(answers), lower, upper)
        return np.clip(2.0 * (numbers - lower) / (upper - lower) - 1.0, -1.0, 1.0)

    @abstractmethod
    def _values(self, X: Any) -> NDArray[np.float64]:
        """Return what the model says about each row, where the bounds are -1 and 1."""

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return the expected target of each row, inside its bounds."""
        values = self._values(X)
        lower, upper = self._ends
        return np.clip(lower + (values + 1.0) / 2.0 * (upper - lower), lower, upper)
