"""Vote histograms: how many of the teachers voted for each class.

**What a neighbour changes.** The number of teachers is fixed and public, and every teacher
votes on every query. If one record reaches at most one teacher, neighbouring data give
histograms in which one vote has moved from one class to another, in every query. That holds

- under ``add_remove`` if a record's teacher follows from the record alone, such as a hash
  of it or a draw of its own (chunks of a list shift when a record is added);
- under ``replace`` if a record's teacher follows from its position.

If the teacher follows from the record's content, a *replaced* record can leave one teacher and
enter another: take the loss under ``add_remove`` and
``loss.group(2, relation="replace")``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from discreet._validate import withheld

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["histogram_of", "read_histogram", "read_histograms"]


def read_histogram(votes: Any, *, classes: int, teachers: int) -> NDArray[np.int64]:
    """Return one histogram, or raise without showing a vote.

    >>> read_histogram([3, 0, 1], classes=3, teachers=4).tolist()
    [3, 0, 1]
    >>> read_histogram([3, 0, 2], classes=3, teachers=4)
    Traceback (most recent call last):
    discreet.errors.InvalidValue: votes = 'withheld': expected 3 counts, ...
    """
    return _checked(votes, (classes,), classes, teachers)


def read_histograms(votes: Any, *, classes: int, teachers: int) -> NDArray[np.int64]:
    """Return a table of histograms, one query a row, or raise without showing a vote."""
    rows = _array(votes, classes, teachers)
    if rows.ndim != 2 or rows.shape[0] == 0:
        raise withheld("votes", f"a table with one row of {classes} counts for each query")
    return _checked(rows, (rows.shape[0], classes), classes, teachers)


def histogram_of(predictions: Any, *, classes: int) -> NDArray[np.int64]:
    """Count predictions, one row for each teacher and one column for each query.

    Returns one histogram for each query. A prediction outside 0 .. classes - 1 raises.

    >>> histogram_of([[0, 1], [0, 2], [1, 2]], classes=3).tolist()
    [[2, 1, 0], [0, 1, 2]]
    """
    table = np.asarray(predictions)
    if table.ndim != 2 or table.size == 0 or table.dtype.kind not in "iu":
        raise withheld("predictions", "a table of integers, teachers by queries")
    if bool(np.any(table < 0)) or bool(np.any(table >= classes)):
        raise withheld("predictions", f"classes from 0 to {classes - 1}")
    queries = table.shape[1]
    places = table.astype(np.int64) + classes * np.arange(queries, dtype=np.int64)
    counts = np.bincount(places.ravel(), minlength=classes * queries)
    return counts.reshape(queries, classes).astype(np.int64)


def _checked(votes: Any, shape: tuple[int, ...], classes: int, teachers: int) -> NDArray[np.int64]:
    counts = _array(votes, classes, teachers)
    if counts.shape != shape:
        raise withheld("votes", _expected(classes, teachers))
    # Compared before the sum, which could overflow.
    if bool(np.any(counts < 0)) or bool(np.any(counts > teachers)):
        raise withheld("votes", _expected(classes, teachers))
    table = counts.astype(np.int64)
    if bool(np.any(table.sum(axis=-1) != teachers)):
        raise withheld("votes", _expected(classes, teachers))
    return table


def _array(votes: Any, classes: int, teachers: int) -> NDArray[Any]:
    try:
        counts = np.asarray(votes)
    except (TypeError, ValueError):
        raise withheld("votes", _expected(classes, teachers)) from None
    if counts.dtype.kind not in "iu":
        raise withheld("votes", _expected(classes, teachers))
    return counts


def _expected(classes: int, teachers: int) -> str:
    return f"{classes} counts, integers that are not negative and sum to {teachers} teachers"
