"""What a schema declares, as the parameters of a learner.

Learners see the codes of a :class:`~discreet.data.tables.Table`: labels are numbered in the order
of the schema, so the classes of a model are 0, 1, ... and ``schema.classes`` names them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from discreet import _validate
from discreet.data.columns import Boolean, Bounded, Labelled
from discreet.data.encoding import Encoding
from discreet.data.schema import Schema
from discreet.errors import InvalidValue, NotApplicable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.data.tables import Table

__all__ = ["bounded_facts", "feature_columns", "labelled_facts", "linear_facts"]


def labelled_facts(schema: Schema, *, bins: int | None = None) -> dict[str, Any]:
    """Return classes and categories for a schema whose columns all have labels.

    With ``bins``, the interval of a column of numbers is cut into so many equal parts, which are
    its categories.

    >>> from discreet.data.columns import Categorical
    >>> yes_no = Categorical(["yes", "no"], other="no")
    >>> facts = labelled_facts(Schema({"smokes": yes_no, "ill": yes_no}, target="ill"))
    >>> facts["classes"], facts["categories"]
    ([0, 1], [2])
    """
    _check_rows(schema)
    parts = _checked_bins(bins)
    sizes = []
    for name, column in schema.features.items():
        if isinstance(column, Labelled):
            sizes.append(len(column.labels))
        elif parts is not None:
            sizes.append(parts)
        else:
            raise NotApplicable(
                f"column {name!r} has no categories: cut it into bins, or use PrivateGaussianNB"
            )
    return {**_class_facts(schema), "categories": sizes}


def bounded_facts(schema: Schema) -> dict[str, Any]:
    """Return classes and bounds for a schema whose columns are numbers, dates or true and false."""
    _check_rows(schema)
    ends = []
    for name, column in schema.features.items():
        if isinstance(column, Boolean):
            ends.append((0.0, 1.0))
        elif isinstance(column, Bounded):
            ends.append(column.bounds)
        else:
            raise NotApplicable(f"column {name!r} is no number; PrivateCategoricalNB takes labels")
    lower, upper = zip(*ends, strict=True)
    return {**_class_facts(schema), "bounds": [list(lower), list(upper)]}


def linear_facts(schema: Schema, *, classification: bool) -> dict[str, Any]:
    """Return the norm of encoded rows, and classes or bounds of the target."""
    _check_rows(schema)
    facts: dict[str, Any] = {
        "feature_norm": Encoding(schema).norm_bound,
        "schema_hash": schema.content_hash,
    }
    target = None if schema.target is None else schema.columns[schema.target]
    if classification:
        return {**facts, **_class_facts(schema)}
    if not isinstance(target, Bounded):
        raise NotApplicable("the schema has no numeric target to regress on")
    return {**facts, "target_bounds": list(target.bounds)}


def feature_columns(
    table: Table, schema: Schema, *, bins: int | None = None
) -> NDArray[np.float64]:
    """Return the settled columns of a table side by side, labels as codes, without the target.

    With ``bins``, numbers become the codes of :func:`labelled_facts`.
    """
    parts = _checked_bins(bins)
    columns = []
    for name, column in schema.features.items():
        values = np.asarray(table.columns[name], dtype=np.float64)
        if parts is not None and isinstance(column, Bounded):
            lower, upper = column.bounds
            share = (values - lower) / (upper - lower)
            values = np.clip(np.floor(share * parts), 0.0, parts - 1.0)
        columns.append(values)
    return np.column_stack(columns)


def _checked_bins(bins: int | None) -> int | None:
    return None if bins is None else _validate.integer("bins", bins, at_least=2, at_most=1 << 20)


def _check_rows(schema: object) -> None:
    if not isinstance(schema, Schema):
        raise InvalidValue("schema", type(schema).__name__, "a discreet.data Schema")
    schema.require_complete()
    if not schema.features:
        raise InvalidValue("schema", "only a target", "at least one column beside the target")
    if schema.person is not None:
        raise NotApplicable(
            "this learner states its guarantee for one row, and the schema protects persons: "
            "keep one row for each person and declare rows as the unit"
        )


def _class_facts(schema: Schema) -> dict[str, Any]:
    return {"classes": list(range(len(schema.classes))), "schema_hash": schema.content_hash}
