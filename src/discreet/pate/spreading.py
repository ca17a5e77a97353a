"""Label spreading: labels of a few examples flow to all others along a graph of neighbours.

Zhou, Bousquet, Lal, Weston and Schoelkopf, *Learning with local and global consistency*, 2004.
Public data and released labels in, post-processing out: it costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from discreet import _validate
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["neighbour_graph", "spread_labels"]

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
