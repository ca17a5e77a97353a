"""Which public examples to ask about: chosen from public data and from released labels only.

Labels are paid for one by one, so they should be of examples that stand for many others and
on which teachers are likely to agree: the examples nearest to the centres of clusters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["central_examples", "uncertain_examples"]


def central_examples(features: NDArray[np.floating], count: int) -> NDArray[np.int64]:
    """Return up to ``count`` examples, each the nearest to the centre of a cluster (k-means).

    Clusters are in the order of their size, largest first: a stream that ends early has asked
    about most of the data. The same features give the same examples.

    >>> rows = np.array([[0.0], [0.1], [0.2], [5.0], [5.1]])
    >>> central_examples(rows, 2).tolist()
    [1, 3]
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
