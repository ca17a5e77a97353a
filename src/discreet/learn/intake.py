"""What ``fit`` was handed: its form is checked before a charge, its cells are read inside it.

What may be refused is public: the names and the number of columns, types that a container declares
independently of its cells (:func:`discreet.data.inputs.declared_kind`), features, targets and
persons of unequal length. A cell or a label never is.

An estimator with a ``schema`` takes data frames (pandas, polars, pyarrow), mappings of columns and
tables that :func:`discreet.data.read_table` read, encodes them itself and answers in the words of
the schema. It takes no bare array: nothing in one says which column is which, nor whether it is
encoded already, and a model of the wrong reading would have been paid for.
"""

# ruff: noqa: N803 (scikit-learn calls the features X)

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, final

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin, clone  # type: ignore[import-untyped]

from discreet.data.arrays import column_array
from discreet.data.columns import Boolean, Labelled
from discreet.data.encoding import Encoding
from discreet.data.inputs import named_columns
from discreet.data.repairs import possible_mistakes
from discreet.data.schema import Schema
from discreet.data.tables import Table, check_columns, read_table
from discreet.errors import InvalidValue
from discreet.learn.declared import labels_apart
from discreet.learn.inputs import number_table, raw_features, read_numbers, targets_of
from discreet.privacy import Loss, Relation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.randomness import Source

__all__ = [
    "OpenedRows",
    "Rehearsal",
    "RehearsedEstimator",
    "SchemaClassifier",
    "SchemaEstimator",
    "SchemaRegressor",
    "schema_words",
]


@final
@dataclass(frozen=True)
class OpenedRows:
    """Features, targets and perhaps persons whose cells have not been read."""

    rows: int
    width: int
    owned: bool
    read: Callable[[Source], tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]]


@final
@dataclass(frozen=True)
class Rehearsal:
    """What a fit would cost, and what could be wrong that no error will tell."""

    loss: Loss
    possible_mistakes: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"a fit costs {self.loss!r}", "nothing was charged; no cell was read; possible:"]
        return "\n".join([*lines, *(f"- {mistake}" for mistake in self.possible_mistakes)])


def schema_words(schema: Schema, **facts: Any) -> dict[str, Any]:
    """Return the parameters of an estimator that reads tables of a schema by itself."""
    words: dict[str, Any] = {**facts, "schema": schema}
    if "classes" in facts:
        target = schema.columns[str(schema.target)]
        truth = isinstance(target, Boolean)
        words["classes"] = [False, True] if truth else list(schema.classes)
    return words


class SchemaEstimator:
    """What estimators share that may be told a schema: reading, and judging by it."""

    schema: Schema | None = None
    n_features_in_: int
    _for_classes: ClassVar[bool]

    @classmethod
    def from_codes(cls, schema: Schema, **parameters: Any) -> Self:
        """Return an estimator for rows and targets that are encoded already, as arrays.

        Classes are the codes 0, 1, ... of the target.
        """
        told = cls.from_schema(schema, **parameters)  # type: ignore[attr-defined]
        codes = {"classes": list(range(len(schema.classes)))} if told._for_classes else {}
        made: Self = told.set_params(schema=None, **codes)
        return made

    # --- what the kinds may define otherwise ---------------------------------------------

    def _encoded(self, table: Table) -> NDArray[Any]:
        """Return the rows of a table as this learner takes them."""
        return Encoding(table.schema).features(table)

    def _encoded_width(self, schema: Schema) -> int:
        return Encoding(schema).width

    # --- reading ------------------------------------------------------------------------

    def _open_rows(
        self,
        X: Any,
        y: Any,
        persons: Any = None,
        *,
        relation: Relation,
        reset: bool = True,
        keep_single: bool = False,
        raw: bool = False,
    ) -> OpenedRows:
        """Check the form of what ``fit`` was handed."""
        if self.schema is not None:
            return self._open_table(self.schema, X, y, persons)
        take = raw_features if raw else number_table
        table = take(self, X, reset=reset, relation=relation)
        answers = targets_of(y, table)
        owners = None if persons is None else column_array("persons", persons)
        if owners is not None and owners.size != table.shape[0]:
            raise InvalidValue("persons", "another length than X", "one person for each row of X")

        def read(_: Source) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
            cells = table if raw else read_numbers(table, keep_single=keep_single)
            return cells, answers, owners

        return OpenedRows(table.shape[0], table.shape[1], owners is not None, read)

    def _open_table(self, schema: Schema, X: Any, y: Any, persons: Any) -> OpenedRows:
        data = _training_table(schema, X, y, persons)
        rows = data.rows if isinstance(data, Table) else len(next(iter(data.values())))
        self.n_features_in_ = self._encoded_width(schema)
        self.__dict__.pop("feature_names_in_", None)

        def read(source: Source) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
            chosen = source.derive("rows of the table")
            table = data if isinstance(data, Table) else read_table(data, schema, source=chosen)
            return self._encoded(table), _answers(table), table.persons

        return OpenedRows(rows, self.n_features_in_, schema.person is not None, read)

    def _table_to_judge(self, X: Any) -> NDArray[Any]:
        """Return the encoded rows of a table to predict for."""
        schema: Any = self.schema
        if isinstance(X, Table):
            if X.schema not in (schema, schema.for_prediction()):
                raise InvalidValue("X", repr(X), "a table of the schema of this model")
            return self._encoded(X)
        asked, columns = schema.for_prediction(), _columns(X)
        known = {name: columns[name] for name in asked.columns if name in columns}
        return self._encoded(read_table(known, asked))

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the mean accuracy, or R^2 of a regression; read as in training by a schema."""
        if self.schema is not None:
            data = _training_table(self.schema, X, y, None, owned=False)
            rows = _without_persons(self.schema)
            table = data if isinstance(data, Table) else read_table(data, rows)
            y = _answers(table)
        return float(super().score(X, y, sample_weight))  # type: ignore[misc]


class RehearsedEstimator(SchemaEstimator):
    """Such an estimator that can be tried out on public facts, for free."""

    def _planned_loss(self, X: Any, y: Any, persons: Any) -> Loss:
        """Check what ``fit`` checks before its charge, and return what it would charge."""
        raise NotImplementedError

    def rehearse(self, X: Any, y: Any = None, *, persons: Any = None) -> Rehearsal:
        """Try out a fit on public facts: nothing is charged, and no cell is read.

        What ``fit`` would refuse is refused here. The result says what a fit costs, and which of
        the usual mistakes could be there without any error: undeclared labels, cells that are
        all repaired. How many cells are repaired is a private fact, for
        :func:`discreet.data.plan_repairs`.
        """
        tried: Any = clone(self)
        loss = tried._planned_loss(X, y, persons)
        found: list[str] = []
        if self.schema is not None:
            data = _training_table(self.schema, X, y, persons)
            if not isinstance(data, Table):
                found += map(str, possible_mistakes(data, self.schema))
        else:
            found.append(
                "features: cells that are no number (texts, another separator) would be repaired, "
                "all of them if need be; numbers out of the declared bounds would be clipped"
            )
            if self._for_classes:
                known = ", ".join(map(str, tried.classes_.tolist()[:8]))
                found.append(
                    f"targets: labels that were not declared count for nothing; declared: {known}"
                )
        return Rehearsal(loss, tuple(found))


class SchemaClassifier(SchemaEstimator, ClassifierMixin):  # type: ignore[misc]
    """Such an estimator for classes."""

    _for_classes = True


class SchemaRegressor(SchemaEstimator, RegressorMixin):  # type: ignore[misc]
    """Such an estimator for numbers."""

    _for_classes = False


def _answers(table: Table) -> NDArray[Any]:
    """Return the targets of a table as words or numbers."""
    target = table.schema.columns[str(table.schema.target)]
    values = table.columns[str(table.schema.target)]
    if isinstance(target, Boolean):
        return values.astype(np.bool_)
    return np.array(target.labels)[values] if isinstance(target, Labelled) else values


def _training_table(
    schema: Schema, X: Any, y: Any, persons: Any, *, owned: bool = True
) -> Table | dict[str, Any]:
    """Return what there is to read, by name, after a look at names, types and lengths."""
    if isinstance(X, Table):
        if X.schema != schema:
            raise InvalidValue("X", repr(X), "a table of the schema that the estimator was told")
        for argument, value in (("y", y), ("persons", persons)):
            if value is not None:
                raise InvalidValue(argument, type(value).__name__, "None: the table has its own")
        return X
    given = dict(_columns(X))
    if y is not None:
        given[str(schema.target)] = _one_column(y)
    if persons is not None:
        if schema.person is None:
            expected = "None: the schema says that rows are the unit, and not persons"
            raise InvalidValue("persons", type(persons).__name__, expected)
        given[schema.person] = persons
    wanted = schema if owned else _without_persons(schema)
    chosen = {name: given[name] for name in wanted.file_columns if name in given}
    check_columns(chosen, wanted)
    return chosen


def _columns(X: Any) -> Mapping[str, Any]:
    columns = named_columns(X)
    if columns is None:
        raise InvalidValue(
            "X",
            type(X).__name__,
            "a data frame, a mapping of columns or a table of read_table, because this estimator "
            "was told a schema: an array does not say which column is which. For rows that are "
            "encoded already make the estimator by from_codes",
        )
    return columns


def _one_column(y: Any) -> Any:
    columns = named_columns(y)
    if columns is not None and len(columns) == 1:
        return next(iter(columns.values()))
    if isinstance(y, np.ndarray) and y.ndim == 2 and y.shape[1] == 1:
        return y[:, 0]
    return labels_apart(y)


def _without_persons(schema: Schema) -> Schema:
    return replace(schema, person=None, rows_per_person=None)
