"""Read the arguments of ``fit``: check their form before the charge, read cells inside it.

What may be refused is public: the names and the number of columns, types that a container declares
independently of its cells, features, targets and
persons of unequal length. A cell or a label never is: one that is no number is NaN, a label that
was not declared has the code -1, and no cell changes how another one is read. Errors show no cell
and, where the number of rows is private, no count.

An estimator with a ``schema`` takes data frames (pandas, polars, pyarrow), mappings of columns,
paths of CSV and Parquet files, tables that :func:`discreet.data.read_table` read, and those of
:func:`discreet.engines.open_table`, wherever their rows are. It encodes
them itself and answers in the words of the schema. It takes no bare array: nothing in one says
which column is which, nor whether it is encoded already, and a model of the wrong reading would
have been paid for.
"""

# ruff: noqa: N803 (scikit-learn calls the features X)

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, final

import numpy as np
from scipy.sparse import issparse
from sklearn.base import BaseEstimator  # type: ignore[import-untyped]
from sklearn.utils.validation import (  # type: ignore[import-untyped]
    column_or_1d,
    validate_data,
)

from discreet.data import (
    Boolean,
    Encoding,
    Labelled,
    RawBatch,
    Schema,
    Table,
    check_columns,
    check_integrity,
    column_array,
    named_columns,
    open_input,
    table_batches,
)
from discreet.engines import Aggregation
from discreet.engines import Table as BoundedTable
from discreet.errors import InvalidValue, NotApplicable
from discreet.learn._declared import Declared
from discreet.privacy import Relation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.randomness import Source

_NUMBERS = "biuf"
_READ_ONE_BY_ONE = "OSU"


@final
@dataclass(frozen=True, eq=False)
class OwnedRows:
    """The rows that count: their numbers, their owners 0, 1, ..., and their rank with the owner."""

    rows: NDArray[np.int64]
    owners: NDArray[np.int64]
    ranks: NDArray[np.int64]

    def side_by_side(self, values: NDArray[Any], cap: int, *, empty: Any) -> NDArray[Any]:
        """Return persons x cap (x the shape of a row), with ``empty`` where a person has no row.

        ``values`` are those of the rows that count, in their order.
        """
        persons = int(self.owners.max(initial=-1)) + 1
        result = np.full((persons, cap, *values.shape[1:]), empty, dtype=values.dtype)
        result[self.owners, self.ranks] = values
        return result


@final
@dataclass(frozen=True, eq=False)
class Batch:
    """Encoded rows that were read, with their targets and perhaps their owners.

    Parameters
    ----------
    features
        Rows x columns: numbers, NaN where a cell is none, or the cells themselves where
        categories are declared by value.
    targets
        For classes their codes, -1 where a label was not declared; for numbers the values in
        [-1, 1], NaN where there is none. Empty for learners without a target.
    owned
        Whose row each one is, where there are persons; rows beyond the cap are left out.

    """

    features: NDArray[Any]
    targets: NDArray[Any]
    owned: OwnedRows | None = None


@final
class Rows:
    """The rows of a fit inside its charge: all at once, or batch by batch to keep none."""

    def __init__(self, opened: OpenedRows, declared: Declared, source: Source) -> None:
        self._opened, self._declared, self._source = opened, declared, source

    def batches(self) -> Iterator[Batch]:
        """Yield rows in parts; how rows fall into parts means nothing. There are no persons."""
        for features, answers, _ in self._opened.read(self._source):
            yield Batch(features, _targets(answers, self._declared))

    @property
    def are_elsewhere(self) -> bool:
        """Whether the rows are in a bounded table of an engine, which can add them up."""
        return self._opened.table is not None

    def fold(self, step: Callable[[Batch], NDArray[Any]], zero: NDArray[Any]) -> NDArray[Any]:
        """Return the sum of the integers that ``step`` makes of batches, computed at the rows.

        The rows of a person are in one batch.
        """
        table, encode = self._opened.table, self._opened.encode
        assert table is not None
        assert encode is not None
        return table.fold(partial(_step_on, step, encode, self._declared), zero)

    def all(self) -> Batch:
        """Return all rows; with persons the first ``rows_per_person`` of each."""
        return hold_batch(self._declared, *self.cells())

    def cells(self) -> RowCells:
        """Return features, answers and persons of all rows, before the answers are read."""
        return _gather(list(self._opened.read(self._source)))

    def of_everybody(self) -> tuple[Batch, NDArray[Any] | None]:
        """Return all rows, and whose each one is, for learners that need no cap."""
        features, answers, persons = self.cells()
        return Batch(features, _targets(answers, self._declared)), persons


RowCells = tuple["NDArray[Any]", "NDArray[Any]", "NDArray[Any] | None"]
"""Features, answers and persons, before the answers are read."""


@final
@dataclass(frozen=True)
class OpenedRows:
    """Features, targets and perhaps persons whose cells have not been read.

    ``rows`` is their number, None for a file in which it was not counted. ``looks`` has the
    ``n_features_in_`` and ``feature_names_in_`` that scikit-learn's conventions ask for. A
    ``table`` of an engine has its rows elsewhere, and ``encode`` reads a batch of them there.
    """

    rows: int | None
    width: int
    owned: bool
    looks: dict[str, Any]
    read: Callable[[Source], Iterator[RowCells]]
    table: BoundedTable | None = None
    encode: Callable[[Table], RowCells] | None = None


def open_rows(
    estimator: Any,
    declared: Declared,
    X: Any,
    y: Any,
    persons: Any = None,
    *,
    first: OpenedRows | None = None,
) -> OpenedRows:
    """Check the form of what ``fit`` was handed; ``first`` is an earlier batch of the same fit.

    Raises
    ------
    InvalidValue
        If the form does not fit to what was declared.
    NotApplicable
        If there are persons where nothing bounds what one of them may change.

    """
    if persons is not None and not estimator._takes_persons:
        raise InvalidValue(
            "persons",
            type(persons).__name__,
            f"None: {type(estimator).__name__} states its guarantee for one row; keep one row for "
            "each person",
        )
    if declared.schema is not None:
        opened = _open_table(estimator, declared.schema, declared, X, y, persons)
    else:
        opened = _open_arrays(estimator, declared, X, y, persons, first)
    if opened.owned and declared.relation is Relation.REPLACE:
        raise NotApplicable("replacing a person may change the number of rows: use add_remove")
    return opened


def rows_to_judge(estimator: Any, declared: Declared, X: Any) -> NDArray[Any]:
    """Return the encoded rows of the data to predict for."""
    schema = declared.schema
    if schema is None:
        sparse = estimator._takes_sparse
        table = _table(estimator, X, reset=False, declared=declared, sparse=sparse)
        return _read_cells(estimator, _check_type(estimator, table))
    if isinstance(X, Table):
        rows = replace(schema, person=None, rows_per_person=None)
        if X.schema not in (schema, rows, schema.for_prediction()):
            raise InvalidValue("X", repr(X), "a table of the schema of this model")
        return _encode(estimator, declared, X)
    asked = schema.for_prediction()
    if isinstance(X, str | os.PathLike):
        data: Any = X
    else:
        columns = _columns(X)
        data = {name: columns[name] for name in asked.columns if name in columns}
    parts = [_encode(estimator, declared, part) for part in table_batches(data, asked)]
    return np.concatenate([np.empty((0, declared.features), _precision(estimator)), *parts])


def targets_to_judge(declared: Declared, X: Any, y: Any) -> NDArray[Any]:
    """Return the targets of a table, in the words of its schema, to hold predictions against."""
    schema = declared.schema
    assert schema is not None
    rows = replace(schema, person=None, rows_per_person=None)
    if isinstance(X, Table):
        # Every row is judged, whoever owns it.
        X = replace(X, schema=replace(X.schema, person=None, rows_per_person=None), persons=None)
    data = training_table(rows, X, y, None)
    parts = [data] if isinstance(data, Table) else list(table_batches(data, rows))
    return np.concatenate([_answers(part) for part in parts]) if parts else np.empty(0)


def hold_batch(
    declared: Declared,
    features: NDArray[Any],
    answers: NDArray[Any],
    persons: NDArray[Any] | None,
) -> Batch:
    """Return rows that were read as a batch; with persons the first ``rows_per_person`` of each."""
    owned = None
    if persons is not None:
        owned = owned_rows(persons, rows=persons.size, cap=declared.rows_per_person)
        features, answers = features[owned.rows], answers[owned.rows]
    return Batch(features, _targets(answers, declared), owned)


# --- tables of a schema -------------------------------------------------------------------


def _open_table(
    estimator: Any, schema: Schema, declared: Declared, X: Any, y: Any, persons: Any
) -> OpenedRows:
    data = training_table(schema, X, y, persons)
    if isinstance(data, Table):
        rows: int | None = data.rows
    elif isinstance(data, dict):
        rows = len(next(iter(data.values())))
    else:
        rows = _count(data, schema) if declared.relation is Relation.REPLACE else None
    looks = schema_looks(schema)
    encode = partial(_cells_of, estimator, declared)

    def read(source: Source) -> Iterator[RowCells]:
        none = np.empty((0, declared.features), _precision(estimator))
        owners = None if schema.person is None else np.empty(0, dtype=np.int64)
        # No records at all are data like any other.
        yield none, np.empty(0), owners
        if isinstance(data, BoundedTable):
            yield from map(encode, data.batches())
        elif isinstance(data, Table):
            yield encode(data)
        else:
            chosen = source.derive("rows of the table")
            yield from map(encode, table_batches(data, schema, source=chosen))

    table = data if isinstance(data, BoundedTable) else None
    owned = schema.person is not None
    return OpenedRows(rows, declared.features, owned, looks, read, table, encode)


def _cells_of(estimator: Any, declared: Declared, part: Table) -> RowCells:
    answers = np.empty(part.rows) if part.schema.target is None else _answers(part)
    return _encode(estimator, declared, part), answers, part.persons


def _step_on(
    step: Callable[[Batch], NDArray[Any]],
    encode: Callable[[Table], RowCells],
    declared: Declared,
    part: Table,
) -> NDArray[Any]:
    features, answers, persons = encode(part)
    owned = None if persons is None else _read_owners_in_line(persons)
    return step(Batch(features, _targets(answers, declared), owned))


def schema_looks(schema: Schema) -> dict[str, Any]:
    """Return what scikit-learn's conventions say of the columns of a schema."""
    names = list(schema.features)
    return {"n_features_in_": len(names), "feature_names_in_": np.array(names, dtype=object)}


def _count(data: Any, schema: Schema) -> int:
    """Count the rows of a file or of a bounded table, where their number is public."""
    if isinstance(data, BoundedTable):
        return data.aggregate(Aggregation())[()][0]
    column = next(iter(schema.columns))
    return sum(batch.rows for batch in open_input(data, schema).batches([column], 1 << 16))


def _encode(estimator: Any, declared: Declared, table: Table) -> NDArray[Any]:
    encoding = Encoding(table.schema)
    if estimator._encoding == "codes":
        return encoding.codes(table, bins=declared.bins)
    return encoding.features(table, dtype=_precision(estimator))


def _precision(estimator: Any) -> Any:
    return np.float32 if estimator._single_precision else np.float64


def _answers(table: Table) -> NDArray[Any]:
    """Return the targets of a table as words or numbers."""
    target = table.schema.columns[str(table.schema.target)]
    values = table.columns[str(table.schema.target)]
    if isinstance(target, Boolean):
        return values.astype(np.bool_)
    return np.array(target.labels)[values] if isinstance(target, Labelled) else values


def training_table(schema: Schema, X: Any, y: Any, persons: Any) -> Any:
    """Return what is to be read: a table, a path or columns by name, after a look at its form."""
    if isinstance(X, Table | BoundedTable):
        if X.schema != schema:
            raise InvalidValue(
                "X", type(X).__name__, "a table of the schema that the estimator was told"
            )
        _refuse_beside(y, persons, "the table")
        return X
    if isinstance(X, str | os.PathLike):
        _refuse_beside(y, persons, "the file")
        try:
            check_columns(X, schema)
            check_integrity(X, schema)
        except InvalidValue as error:
            argument = "X" if error.argument == "data" else error.argument
            raise type(error)(argument, error.value, error.expected) from error
        return X
    given = dict(_columns(X))
    if y is not None:
        given[str(schema.target)] = _one_column(y)
    if persons is not None:
        if schema.person is None:
            expected = "None: the schema says that rows are the unit, and not persons"
            raise InvalidValue("persons", type(persons).__name__, expected)
        given[schema.person] = persons
    chosen = {name: given[name] for name in schema.file_columns if name in given}
    check_columns(chosen, schema)
    return chosen


def _refuse_beside(y: Any, persons: Any, what: str) -> None:
    for argument, value in (("y", y), ("persons", persons)):
        if value is not None:
            raise InvalidValue(argument, type(value).__name__, f"None: {what} has its own")


def _columns(X: Any) -> Mapping[str, Any]:
    columns = named_columns(X)
    if columns is None:
        raise InvalidValue(
            "X",
            type(X).__name__,
            "a data frame, a mapping of columns, the path of a file or a table of read_table, "
            "because this estimator was told a schema: an array does not say which column is "
            "which. For rows that are encoded already use for_encoded_rows()",
        )
    return columns


def _one_column(y: Any) -> Any:
    columns = named_columns(y)
    if columns is not None and len(columns) == 1:
        return next(iter(columns.values()))
    if isinstance(y, np.ndarray) and y.ndim == 2 and y.shape[1] == 1:
        return y[:, 0]
    return as_object_array(y)


# --- arrays -------------------------------------------------------------------------------


class _Looks(BaseEstimator):  # type: ignore[misc]
    """Takes the attributes that scikit-learn sets, until a fit is sure to happen."""


def _open_arrays(
    estimator: Any, declared: Declared, X: Any, y: Any, persons: Any, first: OpenedRows | None
) -> OpenedRows:
    looks = _Looks()
    if first is not None:
        looks.__dict__ |= first.looks
    table = _check_type(
        estimator,
        _table(looks, X, reset=first is None, declared=declared, sparse=estimator._takes_sparse),
    )
    rows, width = table.shape
    answers = np.empty(rows) if estimator._target is None else targets_of(y, table)
    owners = None if persons is None else column_array("persons", persons, argument="persons")
    if owners is not None and owners.size != rows:
        raise InvalidValue("persons", "another length than X", "one person for each row of X")

    def read(_: Source) -> Iterator[RowCells]:
        yield _read_cells(estimator, table), answers, owners

    return OpenedRows(rows, width, owners is not None, dict(vars(looks)), read)


def _check_type(estimator: Any, table: NDArray[Any]) -> NDArray[Any]:
    """Return a table whose declared type may hold what is needed; its cells are not read."""
    kind = table.dtype.kind
    if kind == "c":
        wanted = "categories" if estimator._cells_are_values() else "real numbers"
        raise InvalidValue("X", "complex numbers", f"{wanted}. Complex data not supported")
    if not estimator._cells_are_values() and kind not in _NUMBERS + _READ_ONE_BY_ONE:
        raise InvalidValue("X", f"an array of {table.dtype}", "numbers")
    return table


def _read_cells(estimator: Any, table: NDArray[Any]) -> NDArray[Any]:
    """Return the cells of such a table as numbers, NaN where one is none, or as they are."""
    if estimator._cells_are_values():
        return table
    if estimator._single_precision and table.dtype == np.float32:
        return table
    return as_numbers(table.ravel()).reshape(table.shape)


def table_without_cells(
    estimator: Any, declared: Declared, X: Any, *, looks: Mapping[str, Any] | None = None
) -> Callable[[], NDArray[Any]]:
    """Check the form of more rows, and return a function that reads them.

    ``looks`` is what the first rows had; None if there are none.
    """
    seen = _Looks()
    seen.__dict__ |= looks or {}
    table = _check_type(estimator, _table(seen, X, reset=looks is None, declared=declared))
    return lambda: _read_cells(estimator, table)


def _table(
    estimator: Any, X: Any, *, reset: bool, declared: Declared, sparse: bool = False
) -> NDArray[Any]:
    if issparse(X):
        if not sparse:
            # scikit-learn's own words, which its users look for.
            validate_data(estimator, X, reset=reset, ensure_min_samples=0)
        matrix: Any = X
        X = matrix.toarray()
    table = plain_table(X)
    if table.ndim != 2:
        raise InvalidValue(
            "X",
            f"{type(X).__name__} of {table.ndim} dimensions",
            "two dimensions, rows of one length. Reshape your data: (-1, 1) for a single feature, "
            "(1, -1) for a single row",
        )
    rows, width = table.shape
    public = declared.relation is Relation.REPLACE
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


def plain_table(X: Any) -> NDArray[Any]:
    """Return rows as an array in which no cell changes another; without rows of one length, empty.

    >>> plain_table([[1, 2], [3, "x"]]).tolist(), plain_table([[1, 2], [3]]).ndim
    ([[1, 2], [3, 'x']], 1)
    """
    try:
        return np.asarray(as_object_table(_plain_cells(X)))
    except (TypeError, ValueError):
        return np.empty(0)


def targets_of(y: Any, features: NDArray[Any]) -> NDArray[Any]:
    """Return the targets, one for each row of the features, with their cells as they are."""
    if y is None:
        raise InvalidValue(
            "y", y, "targets; learning requires y to be passed, but the target y is None"
        )
    try:
        answers = np.asarray(as_object_array(_plain_cells(y)))
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


# --- cells and targets --------------------------------------------------------------------


def _targets(answers: NDArray[Any], declared: Declared) -> NDArray[Any]:
    """Return codes of classes (-1: not declared), numbers in [-1, 1] (NaN: none), or nothing."""
    if declared.classes is not None:
        return label_codes(answers, declared.classes)
    if declared.target_bounds is None:
        return np.empty(0)
    lower, upper = declared.target_bounds
    numbers = np.clip(as_numbers(answers), lower, upper)
    return np.clip(2.0 * (numbers - lower) / (upper - lower) - 1.0, -1.0, 1.0)


def _gather(parts: list[RowCells]) -> RowCells:
    """Return all parts as one, and let go of each as soon as it was copied."""
    parts = [part for part in parts if len(part[0])] or parts[:1]
    if len(parts) == 1:
        return parts[0]
    answers = np.concatenate([part[1] for part in parts])
    owners = [part[2] for part in parts if part[2] is not None]
    persons = np.concatenate(owners) if len(owners) == len(parts) else None
    rows = [part[0] for part in parts]
    count, width = sum(map(len, rows)), rows[0].shape[1]
    features = np.empty((count, width), dtype=rows[0].dtype)
    del parts
    while rows:
        part = rows.pop()
        features[count - len(part) : count] = part
        count -= len(part)
    return features, answers, persons


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
    with _ignore_warnings():
        return np.fromiter(
            (_place(known, label) for label in labels.tolist()), dtype=np.int64, count=labels.size
        )


def _ignore_warnings() -> warnings.catch_warnings[None]:
    """Ignore what cells warn of: a warning would tell of a record as an error does."""
    return warnings.catch_warnings(action="ignore")


def _place(known: dict[Any, int], label: Any) -> int:
    try:
        return known.get(label, -1)
    except Exception:  # noqa: BLE001 - it cannot be compared, so it is surely not declared
        return -1


def as_object_array(labels: Any) -> Any:
    """Return a plain list of labels as an array of objects; anything else as it is.

    A label that is wrapped in a list of its own, as in a column, is unwrapped, whatever the others
    are.

    numpy would choose one type for a whole list, so that one text among numbers made texts of
    them all: one record would have changed every other.

    >>> as_object_array([0, "x", 1]).tolist(), np.asarray([0, "x", 1]).tolist()
    ([0, 'x', 1], ['0', 'x', '1'])
    >>> as_object_array([[0], 1, [2, 3]]).tolist()
    [0, 1, [2, 3]]
    """
    if not isinstance(labels, list | tuple):
        return labels
    apart = np.empty(len(labels), dtype=object)
    for place, label in enumerate(labels):
        apart[place] = _unwrap(label)
    return apart


def _unwrap(label: Any) -> Any:
    try:
        return label[0] if _has_parts(label) and len(label) == 1 else label
    except Exception:  # noqa: BLE001 - a kind of list may raise anything
        return None


def as_object_table(rows: Any) -> Any:
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
    with _ignore_warnings(), np.errstate(over="ignore"):
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
        return _overflow(value)
    except Exception:  # noqa: BLE001 - an object may raise anything, and no cell may be an error
        return math.nan


def _overflow(value: Any) -> float:
    try:
        return -math.inf if value < 0 else math.inf
    except Exception:  # noqa: BLE001 - likewise
        return math.nan


# --- persons ------------------------------------------------------------------------------


def owned_rows(persons: object, *, rows: int, cap: int) -> OwnedRows:
    """Keep the first ``cap`` rows of each person; names are compared as in a table.

    Which rows of a person count depends on that person's rows alone. A row without a name can be
    charged to no person and is left out.

    >>> kept = owned_rows(["a", "b", "a", "", "a"], rows=5, cap=2)
    >>> kept.rows.tolist(), kept.owners.tolist(), kept.ranks.tolist()
    ([0, 1, 2], [0, 1, 0], [0, 0, 1])
    """
    column = column_array("persons", persons, argument="persons")
    if column.size != rows:
        raise InvalidValue("persons", "another length than X", "one person for each row of X")
    codes, names = RawBatch({"persons": column}, column.size).texts("persons")
    named = np.array([bool(name) for name in names], dtype=np.bool_)
    places = np.flatnonzero(named[codes]) if names else np.empty(0, dtype=np.int64)
    order = places[np.argsort(codes[places], kind="stable")]
    owner = codes[order]
    first = np.concatenate([np.ones(min(owner.size, 1), np.bool_), owner[1:] != owner[:-1]])
    starts = np.flatnonzero(first)
    ranks = np.arange(owner.size) - np.repeat(starts, np.diff(np.append(starts, owner.size)))
    kept = ranks < cap
    # Persons are numbered anew, because those without a name have no number.
    number = np.cumsum(first) - 1
    sequence = np.argsort(order[kept])
    return OwnedRows(
        order[kept][sequence], number[kept][sequence], ranks[kept][sequence].astype(np.int64)
    )


def grouped_owners(persons: NDArray[Any]) -> NDArray[np.int64]:
    """Return a number for the person of each row; rows without a name share one of their own."""
    column = column_array("persons", persons, argument="persons")
    return RawBatch({"persons": column}, column.size).texts("persons")[0]


def _read_owners_in_line(persons: NDArray[np.int64]) -> OwnedRows:
    """Return whose rows they are, where those of each person stand side by side and all count."""
    first = np.diff(persons, prepend=-1) != 0
    owners = np.cumsum(first) - 1
    rows = np.arange(persons.size)
    return OwnedRows(rows, owners, rows - np.flatnonzero(first)[owners])
