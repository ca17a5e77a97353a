"""Public facts that a learner is told: labels and bounds. None is ever read off the data.

A record that breaks a declaration is repaired by a rule that looks at that record alone: a
label that was not declared is code -1 and its row counts for nothing.
"""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "LARGEST_BOUND",
    "as_numbers",
    "declared_bounds",
    "declared_classes",
    "label_codes",
    "labels_apart",
    "rows_apart",
]


LARGEST_BOUND = 1e100
"""Bounds are at most this large, and at least its inverse apart: squares are doubles too."""


def declared_classes(
    classes: object, *, binary: bool = False, argument: str = "classes", least: int = 2
) -> NDArray[Any]:
    """Return the declared labels, sorted, or raise; with ``binary`` there are just two.

    ``least`` is how many there must be.

    >>> declared_classes(["no", "yes"]).tolist()
    ['no', 'yes']
    >>> declared_classes(None)
    Traceback (most recent call last):
    discreet.errors.InvalidValue: classes = None: expected the public labels, at least two ...
    """
    wanted = "exactly two" if binary else f"at least {'two' if least == 2 else least}"
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
    if labels.size < least:
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
    with _cells_keep_quiet():
        return np.fromiter(
            (_place(known, label) for label in labels.tolist()), dtype=np.int64, count=labels.size
        )


def _cells_keep_quiet() -> warnings.catch_warnings[None]:
    """No cell may be a warning either: what one says is lost with it."""
    return warnings.catch_warnings(action="ignore")


def _place(known: dict[Any, int], label: Any) -> int:
    try:
        return known.get(label, -1)
    except Exception:  # noqa: BLE001 - it cannot be compared, so it is surely not declared
        return -1


def labels_apart(labels: Any) -> Any:
    """Return a plain list of labels as an array of objects; anything else as it is.

    A label that is wrapped in a list of its own, as in a column, is unwrapped, whatever the others
    are.

    numpy would choose one type for a whole list, so that one text among numbers made texts of
    them all: one record would have changed every other.

    >>> labels_apart([0, "x", 1]).tolist(), np.asarray([0, "x", 1]).tolist()
    ([0, 'x', 1], ['0', 'x', '1'])
    >>> labels_apart([[0], 1, [2, 3]]).tolist()
    [0, 1, [2, 3]]
    """
    if not isinstance(labels, list | tuple):
        return labels
    apart = np.empty(len(labels), dtype=object)
    for place, label in enumerate(labels):
        apart[place] = _unwrapped(label)
    return apart


def _unwrapped(label: Any) -> Any:
    try:
        return label[0] if _has_parts(label) and len(label) == 1 else label
    except Exception:  # noqa: BLE001 - a kind of list may raise anything
        return None


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


def as_numbers(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return values as doubles, one by one; what is no number is NaN.

    >>> as_numbers(np.array(["1.5", "many", 10**400], dtype=object)).tolist()
    [1.5, nan, inf]
    """
    if values.dtype.kind in "biuf":
        # A long double may lie beyond every double: it becomes infinite, and is clipped later.
        with np.errstate(over="ignore"):
            return np.asarray(values, dtype=np.float64)
    numbers = (_number(value) for value in values)
    with _cells_keep_quiet(), np.errstate(over="ignore"):
        return np.fromiter(numbers, dtype=np.float64, count=values.size)


def _number(value: Any) -> float:
    if isinstance(value, complex | np.complexfloating):
        # One complex cell makes pandas write the whole column so: the others stay what they are.
        return float(value.real) if value.imag == 0.0 else math.nan
    if _has_parts(value):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return _far(value)
    except Exception:  # noqa: BLE001 - an object may raise anything, and no cell may be an error
        return math.nan


def _far(value: Any) -> float:
    try:
        return -math.inf if value < 0 else math.inf
    except Exception:  # noqa: BLE001 - likewise
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
        "lower < upper, at most 1e100 large and at least 1e-100 apart (they are not read off the "
        "data)"
    )
    if isinstance(bounds, np.ndarray):
        bounds = list(bounds) if bounds.ndim else None
    if not isinstance(bounds, tuple | list) or len(bounds) != 2:
        raise InvalidValue("bounds", bounds, expected)
    try:
        lower, upper = (
            np.broadcast_to(np.asarray(end, dtype=np.float64), (features,)).copy() for end in bounds
        )
    except (TypeError, ValueError, OverflowError):
        raise InvalidValue("bounds", bounds, expected) from None
    with np.errstate(over="ignore", invalid="ignore"):
        proper = (lower >= -LARGEST_BOUND) & (upper <= LARGEST_BOUND)
        proper &= upper - lower >= 1.0 / LARGEST_BOUND
    if not np.all(proper):
        raise InvalidValue("bounds", bounds, expected)
    return lower, upper
