"""Features and targets as they are handed to ``fit``: checked by their form, never by a record.

What may be an error here is public: that the features are no table, how many columns there are,
of which type an array is. Errors show no cell and, where the number of rows is private, no
count. A cell that is no number is NaN, whatever it is instead; no cell changes how another one
is read.
"""

# ruff: noqa: N803 (scikit-learn calls the features X)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import issparse
from sklearn.utils.validation import (  # type: ignore[import-untyped]
    column_or_1d,
    validate_data,
)

from discreet.errors import InvalidValue
from discreet.learn.declared import as_numbers, labels_apart, rows_apart
from discreet.privacy import Relation

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["number_features", "number_table", "raw_features", "read_numbers", "targets_of"]

_NUMBERS = "biuf"
_READ_ONE_BY_ONE = "OSU"


def number_features(
    estimator: Any, X: Any, *, reset: bool, relation: Relation, keep_single: bool = False
) -> NDArray[Any]:
    """Return a table as doubles, NaN where a cell is no number.

    ``reset`` says that the estimator learns its number of features from this table. With
    ``keep_single``, single precision stays as it is.
    """
    table = number_table(estimator, X, reset=reset, relation=relation)
    return read_numbers(table, keep_single=keep_single)


def number_table(estimator: Any, X: Any, *, reset: bool, relation: Relation) -> NDArray[Any]:
    """Return a table whose declared type may hold numbers; its cells are not read."""
    table = _table(estimator, X, reset=reset, relation=relation)
    if table.dtype.kind == "c":
        raise InvalidValue("X", "complex numbers", "real numbers. Complex data not supported")
    if table.dtype.kind not in _NUMBERS + _READ_ONE_BY_ONE:
        raise InvalidValue("X", f"an array of {table.dtype}", "numbers")
    return table


def read_numbers(table: NDArray[Any], *, keep_single: bool = False) -> NDArray[Any]:
    """Return the cells of such a table as doubles, NaN where one is no number."""
    if keep_single and table.dtype == np.float32:
        return table
    return as_numbers(table.ravel()).reshape(table.shape)


def raw_features(estimator: Any, X: Any, *, reset: bool, relation: Relation) -> NDArray[Any]:
    """Return a table with its cells as they are."""
    table = _table(estimator, X, reset=reset, relation=relation)
    if table.dtype.kind == "c":
        raise InvalidValue("X", "complex numbers", "categories. Complex data not supported")
    return table


def _table(estimator: Any, X: Any, *, reset: bool, relation: Relation) -> NDArray[Any]:
    if issparse(X):
        # scikit-learn's own words, which its users look for.
        validate_data(estimator, X, reset=reset, ensure_min_samples=0)
    listed = rows_apart(_plain_cells(X))
    try:
        table = np.asarray(listed)
    except (TypeError, ValueError):
        table = np.empty(0)
    if table.ndim != 2:
        raise InvalidValue(
            "X",
            f"{type(X).__name__} of {table.ndim} dimensions",
            "two dimensions, rows of one length. Reshape your data: (-1, 1) for a single feature, "
            "(1, -1) for a single row",
        )
    rows, width = table.shape
    public = relation is Relation.REPLACE
    if width == 0:
        count = rows if public else ""
        raise InvalidValue(
            "X",
            "no columns",
            f"features; 0 feature(s) (shape=({count}, 0)) while a minimum of 1 is required.",
        )
    if public and reset and rows == 0:
        raise InvalidValue(
            "X", "0 sample(s)", "rows: under replace their number is public, and a minimum of 1"
        )
    named = X if hasattr(X, "columns") else table
    validate_data(estimator, named, reset=reset, skip_check_array=True)
    return table


def _plain_cells(values: Any) -> Any:
    """Return a masked array with nothing where it is masked; anything else as it is.

    A type that pandas read off the cells (complex numbers, times) makes objects of them: it is no
    declaration, and one cell must not have the table refused.
    """
    if isinstance(values, np.ma.MaskedArray):
        return np.ma.filled(values.astype(object), None)
    if type(values).__module__.partition(".")[0] == "pandas" and hasattr(values, "to_numpy"):
        array = values.to_numpy()
        return values.astype(object).to_numpy() if array.dtype.kind in "cmM" else array
    return values


def targets_of(y: Any, features: NDArray[Any]) -> NDArray[Any]:
    """Return the targets, one for each row of the features, with their cells as they are."""
    if y is None:
        raise InvalidValue(
            "y", y, "targets; learning requires y to be passed, but the target y is None"
        )
    try:
        answers = np.asarray(labels_apart(_plain_cells(y)))
    except (TypeError, ValueError):
        answers = np.empty(())
    if answers.dtype.kind == "c":
        raise InvalidValue("y", "complex numbers", "labels or numbers. Complex data not supported")
    if answers.ndim not in (1, 2) or (answers.ndim == 2 and answers.shape[1] != 1):
        expected = "one dimension: y should be a 1d array, one target for each row"
        raise InvalidValue("y", f"{type(y).__name__} of {answers.ndim} dimensions", expected)
    if answers.shape[0] != features.shape[0]:
        raise InvalidValue("y", "another length than X", "one target for each row of X")
    if answers.ndim == 2:
        # scikit-learn's own words, about an array that holds nobody's targets: some of its errors
        # would show them.
        column_or_1d(np.zeros((1, 1)), warn=True)
    return answers.reshape(answers.shape[0])
