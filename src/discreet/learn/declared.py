"""Public facts that a learner is told: labels and bounds. None is ever read off the data.

A record that breaks a declaration is repaired by a rule that looks at that record alone: a
label that was not declared is code -1 and its row counts for nothing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "as_numbers",
    "declared_bounds",
    "declared_classes",
    "label_codes",
    "labels_apart",
    "rows_apart",
]


def declared_classes(
    classes: object, *, binary: bool = False, argument: str = "classes"
) -> NDArray[Any]:
    """Return the declared labels, sorted, or raise; with ``binary`` there are just two.

    >>> declared_classes(["no", "yes"]).tolist()
    ['no', 'yes']
    >>> declared_classes(None)
    Traceback (most recent call last):
    discreet.errors.InvalidValue: classes = None: expected the public labels, at least two ...
    """
    wanted = "exactly two" if binary else "at least two"
    expected = f"the public labels, {wanted} different ones (they are not read off the data)"
    if classes is None or isinstance(classes, str | bytes):
        raise InvalidValue(argument, classes, expected)
    try:
        values = list(classes)  # type: ignore[call-overload]
        given = np.asarray(classes)
        same_kind = all(isinstance(value, str) for value in values) or not any(
            isinstance(value, str) for value in values
        )
        labels = np.unique(np.array(given.tolist()) if given.dtype == object else given)
    except (TypeError, ValueError):
        raise InvalidValue(argument, classes, expected) from None
    plain = labels.dtype.kind in "biuU" or (
        labels.dtype.kind == "f" and bool(np.all(np.isfinite(labels)))
    )
    if given.ndim != 1 or labels.size != given.size or not (plain and same_kind):
        raise InvalidValue(argument, classes, expected)
    if binary and labels.size > 2:
        reason = "Only binary classification is supported. The type of the target is multiclass."
        raise InvalidValue(argument, classes, f"{expected}. {reason}")
    if labels.size < 2:
        raise InvalidValue(argument, classes, expected)
    return labels


def label_codes(labels: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.int64]:
    """Return the position of each label among the sorted classes, -1 where there is none.

    >>> label_codes(np.array(["yes", "maybe", "no"]), np.array(["no", "yes"])).tolist()
    [1, -1, 0]
    """
    numbers = "biuf"
    alike = (labels.dtype.kind in numbers and classes.dtype.kind in numbers) or (
        labels.dtype.kind == "U" and classes.dtype.kind == "U"
    )
    if alike:
        places = np.searchsorted(classes, labels)
        places[places == classes.size] = 0
        return np.where(classes[places] == labels, places, -1).astype(np.int64, copy=False)
    known = {label: place for place, label in enumerate(classes.tolist())}
    return np.fromiter(
        (_place(known, label) for label in labels.tolist()), dtype=np.int64, count=labels.size
    )


def _place(known: dict[Any, int], label: Any) -> int:
    try:
        return known.get(label, -1)
    except TypeError:  # unhashable, so surely not declared
        return -1


def labels_apart(labels: Any) -> Any:
    """Return a plain list of labels as an array of objects; anything else as it is.

    A list of lists throughout is a column, and is left as it is too.

    numpy would choose one type for a whole list, so that one text among numbers made texts of
    them all: one record would have changed every other.

    >>> labels_apart([0, "x", 1]).tolist(), np.asarray([0, "x", 1]).tolist()
    ([0, 'x', 1], ['0', 'x', '1'])
    """
    if not isinstance(labels, list | tuple) or (labels and all(map(_has_parts, labels))):
        return labels
    apart = np.empty(len(labels), dtype=object)
    for place, label in enumerate(labels):
        apart[place] = label
    return apart


def rows_apart(rows: Any) -> Any:
    """Return a list of rows of equal length as an array of objects; anything else as it is."""
    if not isinstance(rows, list | tuple) or not rows:
        return rows
    if not all(_has_parts(row) and len(row) == len(rows[0]) for row in rows):
        return rows
    apart = np.empty((len(rows), len(rows[0])), dtype=object)
    for place, row in enumerate(rows):
        for column, cell in enumerate(row):
            apart[place, column] = cell
    return apart


def _has_parts(value: Any) -> bool:
    return isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim > 0)


def as_numbers(values: NDArray[Any]) -> NDArray[Any]:
    """Return values as numbers, one by one; what is no number is NaN.

    >>> as_numbers(np.array(["1.5", "many", 10**400], dtype=object)).tolist()
    [1.5, nan, inf]
    """
    if values.dtype.kind in "biuf":
        return values
    return np.fromiter((_number(value) for value in values), dtype=np.float64, count=values.size)


def _number(value: Any) -> float:
    if _has_parts(value):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return -math.inf if value < 0 else math.inf
    except Exception:  # noqa: BLE001 - an object may raise anything, and no cell may be an error
        return math.nan


def declared_bounds(
    bounds: object, features: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return lower and upper bounds of each feature, from a pair of numbers or of arrays.

    >>> lower, upper = declared_bounds((0.0, [1.0, 5.0]), 2)
    >>> lower.tolist(), upper.tolist()
    ([0.0, 0.0], [1.0, 5.0])
    """
    expected = (
        f"a pair (lower, upper) of public finite bounds, numbers or {features} of them each, "
        "lower < upper (they are not read off the data)"
    )
    if not isinstance(bounds, tuple | list | np.ndarray) or len(bounds) != 2:
        raise InvalidValue("bounds", bounds, expected)
    try:
        lower, upper = (
            np.broadcast_to(np.asarray(end, dtype=np.float64), (features,)).copy() for end in bounds
        )
    except (TypeError, ValueError):
        raise InvalidValue("bounds", bounds, expected) from None
    with np.errstate(over="ignore", invalid="ignore"):
        proper = np.isfinite(lower) & np.isfinite(upper) & (lower < upper)
        proper &= np.isfinite(upper - lower)
    if not np.all(proper):
        raise InvalidValue("bounds", bounds, expected)
    return lower, upper
