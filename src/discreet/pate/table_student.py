"""A student for tables: logistic regression on released labels, which then teaches itself.

Self-training: a model of the released labels labels the public rows that it is sure of, and is
fitted again on both; by ``method="spreading"`` the labels come from the graph of nearest
neighbours instead. Rows are scaled by statistics of the public data. All of it is post-processing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

import numpy as np
from scipy.special import softmax

from discreet import _validate
from discreet.errors import InvalidValue
from discreet.pate.spreading import neighbour_graph, spread_labels

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["TableStudent"]

_METHODS = ("self-training", "spreading", "labels-only")


@final
class TableStudent:
    """Learns a linear model from public rows, some of which have released labels."""

    kind = "table"

    def __init__(
        self,
        *,
        method: str = "self-training",
        rounds: int = 3,
        sure: float = 0.9,
        weight: float = 0.2,
        penalty: float = 1.0,
        neighbours: int = 10,
    ) -> None:
        self.method = _validate.one_of("method", method, _METHODS)
        self.rounds = _validate.integer("rounds", rounds, at_least=1)
        self.sure = _validate.real("sure", sure, above=0, at_most=1)
        self.weight = _validate.real("weight", weight, above=0, at_most=1)
        self.penalty = _validate.real("penalty", penalty, above=0)
        self.neighbours = _validate.integer("neighbours", neighbours, at_least=1)
        self._weights: NDArray[np.float64] | None = None

    @property
    def parameters(self) -> dict[str, Any]:
        """What it is, as JSON."""
        return {
            "method": self.method,
            "rounds": self.rounds,
            "sure": self.sure,
            "weight": self.weight,
            "penalty": self.penalty,
            "neighbours": self.neighbours,
        }

    def features(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Features by which public rows are compared: each column on the scale of its spread.

        A column of two values is put on the scale of their distance instead: by its spread, a
        rare category would outweigh all else.
        """
        self._centre = rows.mean(axis=0)
        lowest, highest = rows.min(axis=0), rows.max(axis=0)
        two = np.all((rows == lowest) | (rows == highest), axis=0)
        spread = np.where(two, highest - lowest, rows.std(axis=0))
        self._scale = np.where(spread > 0, spread, 1.0)
        return np.asarray((rows - self._centre) / self._scale)

    def fit(
        self,
        rows: NDArray[np.float64],
        examples: NDArray[np.int64],
        labels: NDArray[np.int64],
        *,
        classes: int,
        features: NDArray[np.float64] | None = None,
    ) -> TableStudent:
        """Learn from public ``rows`` of which ``examples`` have released ``labels``."""
        del features  # those of the same rows, which are as quickly made again
        table = self.features(rows)
        width = table.shape[1]
        if len(examples) == 0:
            self._weights = np.zeros((classes, width + 1))
            return self
        self._weights = self._linear(table[examples], labels, np.ones(len(labels)), classes)
        if self.method == "labels-only":
            return self
        others = np.setdiff1d(np.arange(len(table)), examples)
        for _ in range(self.rounds if self.method == "self-training" else 1):
            if self.method == "spreading":
                graph = neighbour_graph(table, neighbours=self.neighbours)
                chances = spread_labels(graph, examples, labels, classes=classes)[others]
            else:
                chances = softmax(self._outputs(table[others]), axis=1)
            guessed = chances.argmax(axis=1)
            kept = chances.max(axis=1) >= self.sure
            # Together the guesses weigh as much as a share of the labels, however many they are.
            share = self.weight * len(labels) / max(1, int(kept.sum()))
            self._weights = self._linear(
                np.concatenate([table[examples], table[others][kept]]),
                np.concatenate([labels, guessed[kept]]),
                np.concatenate([np.ones(len(labels)), np.full(int(kept.sum()), share)]),
                classes,
            )
        return self

    def scores(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return a score for each class, rows x classes, whose softmax are the probabilities."""
        if self._weights is None:
            raise InvalidValue("student", "one that has learned nothing", "a fitted student")
        return self._outputs((rows - self._centre) / self._scale)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The model, as plain arrays."""
        if self._weights is None:
            raise InvalidValue("student", "one that has learned nothing", "a fitted student")
        return {"weights": self._weights, "centre": self._centre, "scale": self._scale}

    def set_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take the model that :meth:`arrays` gave."""
        self._weights = np.asarray(arrays["weights"])
        self._centre = np.asarray(arrays["centre"])
        self._scale = np.asarray(arrays["scale"])

    def _outputs(self, table: NDArray[np.float64]) -> NDArray[np.float64]:
        assert self._weights is not None
        return np.asarray(table @ self._weights[:, :-1].T + self._weights[:, -1])

    def _linear(
        self,
        table: NDArray[np.float64],
        labels: NDArray[np.int64],
        weights: NDArray[np.float64],
        classes: int,
    ) -> NDArray[np.float64]:
        from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]

        present = np.unique(labels)
        result = np.zeros((classes, table.shape[1] + 1))
        if len(present) == 1:
            result[present[0], -1] = 5.0
            return result
        # A class without a label is never predicted.
        result[:, -1] = -50.0
        model = LogisticRegression(C=self.penalty, max_iter=2000).fit(table, labels, weights)
        found = np.column_stack([model.coef_, model.intercept_])
        if len(present) == 2:
            found = np.stack([-0.5 * found[0], 0.5 * found[0]])
        result[present] = found
        return result
