"""Students: models that learn from released labels and public data, and are released.

Everything here is post-processing of public data and released labels, and costs nothing: the choice
of queries, the spreading of labels, and the student for tables.

**Queries** are chosen from public data and from released labels only. Labels are paid for one by
one, so they should be of examples that stand for many others and on which teachers are likely to
agree: the examples nearest to the centres of clusters.

**Spreading**: labels of a few examples flow to all others along a graph of neighbours. Zhou,
Bousquet, Lal, Weston and Schoelkopf, *Learning with local and global consistency*, 2004.

**The student for tables** is logistic regression on released labels, which then teaches itself: a
model of the released labels labels the public rows that it is sure of, and is
fitted again on both; by ``method="spreading"`` the labels come from the graph of nearest
neighbours instead. Rows are scaled by statistics of the public data.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, final, runtime_checkable

import numpy as np
from scipy import sparse
from scipy.special import softmax

from discreet import _validate
from discreet._threads import one_thread
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray


_REHEARSED = 64

STUDENTS = {
    "table": ("discreet.pate._student", "TableStudent"),
    "images": ("discreet.pate._image_student", "ImageStudent"),
}


@runtime_checkable
class Student(Protocol):
    """A semi-supervised learner that can be written down as JSON and plain arrays."""

    kind: str

    @property
    def parameters(self) -> dict[str, Any]:
        """What to make it from, as JSON."""

    def features(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Features by which public rows are compared when queries are chosen."""

    def fit(
        self,
        rows: NDArray[np.float64],
        examples: NDArray[np.int64],
        labels: NDArray[np.int64],
        *,
        classes: int,
        features: NDArray[np.float64] | None = None,
    ) -> Any:
        """Learn from public ``rows`` of which ``examples`` have released ``labels``."""

    def scores(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """A score for each class, whose softmax are the probabilities."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The fitted model, as plain arrays."""

    def set_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take such arrays."""


def make_student(student: object, parameters: Mapping[str, Any] | None = None) -> Student:
    """Return a new student of a named kind, or a copy of the one that was given.

    >>> make_student("table", {"method": "spreading"}).parameters["method"]
    'spreading'
    """
    if isinstance(student, Student) and not isinstance(student, type):
        if parameters:
            raise InvalidValue("student_parameters", parameters, "None where a student is given")
        try:
            own = _copy(student)
        except Exception as error:  # noqa: BLE001 - shown, for it is public
            expected = f"one that can be copied ({type(error).__name__}: {error})"
            raise InvalidValue("student", type(student).__qualname__, expected) from None
        return own
    kind = _validate.one_of("student", student, tuple(STUDENTS))
    module, name = STUDENTS[kind]
    settings = dict(parameters or {})
    if "size" in settings:
        settings["size"] = tuple(settings["size"])
    try:
        made: Student = getattr(import_module(module), name)(**settings)
    except TypeError as error:
        raise InvalidValue(
            "student_parameters", parameters, f"parameters of {name} ({error})"
        ) from None
    return made


def _copy(student: Student) -> Student:
    """Return an unfitted copy."""
    from sklearn.base import clone  # type: ignore[import-untyped]

    copied: Student = clone(student, safe=False)
    return copied


def rehearse_student(
    student: Student,
    rows: NDArray[np.float64],
    features: NDArray[np.float64],
    *,
    classes: int,
) -> None:
    """Try a copy of a student on a few public rows with made-up labels; raise if it fails.

    Labels are paid for before the student sees them.
    """
    few, seen = rows[:_REHEARSED], features[:_REHEARSED]
    examples = np.arange(max(1, len(few) // 2))
    name = type(student).__qualname__
    try:
        with warnings.catch_warnings(action="ignore"), one_thread():
            copied = _copy(student)
            copied.fit(few, examples, examples % classes, classes=classes, features=seen)
            scores = np.asarray(copied.scores(few), dtype=np.float64)
        json.dumps(copied.parameters, allow_nan=False)
        written = {key: np.asarray(value) for key, value in copied.arrays().items()}
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        expected = f"one that learns from public rows with made-up labels ({reason})"
        raise InvalidValue("student", name, expected) from error
    if scores.shape != (len(few), classes) or not bool(np.all(np.isfinite(scores))):
        expected = f"one that gives {classes} finite scores for every row"
        raise InvalidValue("student", name, expected)
    if any(array.dtype.kind not in "biuf" for array in written.values()):
        raise InvalidValue("student", name, "one whose arrays hold numbers")


def central_examples(features: NDArray[np.floating], count: int) -> NDArray[np.int64]:
    """Return up to ``count`` examples, each the nearest to the centre of a cluster (k-means).

    Clusters are in the order of their size, largest first: a stream that ends early has asked
    about most of the data. The same features give the same examples.

    >>> rows = np.array([[0.0], [0.1], [0.2], [5.0], [5.1]])
    >>> central_examples(rows, 2).tolist()
    [1, 3]

    Parameters
    ----------
    features
        Public rows.
    count
        How many of them to choose.

    Returns
    -------
    array of int
        Their numbers, the most central ones first.
    """
    from sklearn.cluster import KMeans  # type: ignore[import-untyped]

    table = _table(features)
    wanted = _validate.integer("count", count, at_least=1)
    if wanted >= len(table):
        return np.arange(len(table))
    # Repeated rows make fewer clusters than asked for, which is a warning there and none here.
    wanted = min(wanted, len(np.unique(table, axis=0)))
    found = KMeans(wanted, n_init=1, max_iter=50, random_state=0).fit(table)
    centres = np.asarray(found.cluster_centers_, dtype=np.float64)
    nearest = np.empty(wanted, dtype=np.int64)
    for place in range(wanted):
        own = np.flatnonzero(found.labels_ == place)
        away = np.sum((table[own] - centres[place]) ** 2, axis=1)
        nearest[place] = own[int(np.argmin(away))]
    sizes = np.bincount(found.labels_, minlength=wanted)
    return nearest[np.lexsort((nearest, -sizes))]


def uncertain_examples(
    probabilities: NDArray[np.floating],
    features: NDArray[np.floating],
    count: int,
    *,
    asked: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """Return ``count`` examples that the student is least sure of, apart from one another.

    The least sure fifth (at least ``count``) is clustered, and central ones are taken. The
    ``probabilities`` must be those of a student of released labels; ``asked`` are left out.

    >>> chances = np.array([[0.9, 0.1], [0.5, 0.5], [0.6, 0.4], [0.99, 0.01]])
    >>> uncertain_examples(chances, np.arange(4.0)[:, None], 1, asked=np.array([1])).tolist()
    [2]

    Parameters
    ----------
    probabilities
        What the student says of public rows.
    features
        The rows.
    count
        How many of them to choose.
    asked
        Rows that were chosen before.

    Returns
    -------
    array of int
        Their numbers.
    """
    table = _table(features)
    chances = np.asarray(probabilities)
    if chances.ndim != 2 or len(chances) != len(table):
        raise InvalidValue("probabilities", f"shape {chances.shape}", f"{len(table)} rows")
    wanted = _validate.integer("count", count, at_least=1)
    ranked = np.sort(chances, axis=1)
    margin = ranked[:, -1] - ranked[:, -2]
    left = np.ones(len(table), dtype=np.bool_)
    if asked is not None:
        left[asked] = False
    open_ones = np.flatnonzero(left)
    order = open_ones[np.argsort(margin[open_ones], kind="stable")]
    pool = order[: max(wanted, len(order) // 5)]
    return pool[central_examples(table[pool], wanted)] if len(pool) else pool


def _table(features: NDArray[np.floating]) -> NDArray[np.float64]:
    table = np.asarray(features, dtype=np.float64)
    if table.ndim != 2 or len(table) == 0 or not bool(np.all(np.isfinite(table))):
        raise InvalidValue("features", f"shape {table.shape}", "a table of finite numbers")
    return table


_ROWS_AT_ONCE = 1024


def neighbour_graph(features: NDArray[np.floating], *, neighbours: int = 8) -> Any:
    """Return the normalised graph of nearest neighbours of public rows, a sparse matrix.

    Rows are compared by their distances, on a scale that adapts to how dense the data are
    around the two; weights are symmetric, and normalised by the degrees on both sides.
    """
    table = np.asarray(features, dtype=np.float32)
    if table.ndim != 2 or len(table) < 2:
        raise InvalidValue("features", f"shape {table.shape}", "a table of at least two rows")
    count = min(_validate.integer("neighbours", neighbours, at_least=1), len(table) - 1)
    squares = np.einsum("ij,ij->i", table, table)
    near = np.empty((len(table), count), dtype=np.int64)
    away = np.empty((len(table), count))
    for start in range(0, len(table), _ROWS_AT_ONCE):
        some = np.arange(start, min(start + _ROWS_AT_ONCE, len(table)))
        between = squares[some, None] + squares[None, :] - 2.0 * (table[some] @ table.T)
        between[np.arange(len(some)), some] = np.inf
        near[some] = np.argpartition(between, count - 1, axis=1)[:, :count]
        away[some] = np.take_along_axis(between, near[some], axis=1)
    away = np.maximum(away, 0.0)
    scale = np.maximum(np.sort(away, axis=1)[:, min(6, count - 1)], 1e-12)
    rows = np.repeat(np.arange(len(table)), count)
    columns = near.ravel()
    weights = np.exp(-away.ravel() / np.sqrt(scale[rows] * scale[columns]))
    graph = sparse.csr_array((weights, (rows, columns)), shape=(len(table), len(table)))
    graph = graph.maximum(graph.T)
    degrees = np.asarray(graph.sum(axis=1)).ravel()
    sides = sparse.diags_array(1.0 / np.sqrt(np.maximum(degrees, 1e-300)))
    return sparse.csr_array(sides @ graph @ sides)


def spread_labels(
    graph: Any,
    examples: NDArray[np.int64],
    labels: NDArray[np.int64],
    *,
    classes: int,
    keep: float = 0.01,
    rounds: int = 100,
) -> NDArray[np.float64]:
    """Return a distribution over the classes for every row of the graph.

    ``labels`` are those of ``examples``; a class weighs the same however many it has.
    ``keep`` is the share of its own label that an example goes back to in each round.

    >>> graph = neighbour_graph(np.array([[0.0], [0.1], [0.2], [4.0], [4.1]]), neighbours=1)
    >>> found = spread_labels(graph, np.array([0, 3]), np.array([1, 0]), classes=2)
    >>> found.argmax(axis=1).tolist()
    [1, 1, 1, 0, 0]
    """
    held = _validate.real("keep", keep, above=0, below=1)
    start = np.zeros((graph.shape[0], classes))
    start[examples, labels] = 1.0
    start /= np.maximum(start.sum(axis=0), 1.0)
    flow = start.copy()
    for _ in range(_validate.integer("rounds", rounds, at_least=1)):
        flow = (1.0 - held) * (graph @ flow) + held * start
    total = flow.sum(axis=1, keepdims=True)
    return np.where(total > 0, flow / np.where(total > 0, total, 1.0), 1.0 / classes)


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
