"""Public facts that a learner is given, and the charge that comes before the first cell.

A schema or parameters state the facts; none of them is read off the data.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.data import MOST_ROWS, Boolean, Bounded, Encoding, Labelled, Schema
from discreet.errors import InvalidValue, NotApplicable, RelationMismatch
from discreet.ledger import Charge, Ledger
from discreet.privacy import Loss, Relation

if TYPE_CHECKING:
    from numpy.typing import NDArray

DECLARATIONS = (
    *("classes", "target_bounds", "bounds", "feature_norm", "categories"),
    *("expected_rows", "rows_per_person"),
)
"""The parameters that declare facts; an estimator has those of them that it needs."""

LARGEST_BOUND = 1e100
"""Bounds are at most this large, and at least its inverse apart: squares are doubles too."""


@final
@dataclass(frozen=True, eq=False)
class Declared:
    """What is public about the rows that an estimator learns from.

    Parameters
    ----------
    relation
        What the guarantee compares.
    classes
        The labels of the target, sorted, where there are classes.
    target_bounds
        Lower and upper end of the target, where it is a number.
    bounds, feature_norm, categories
        What bounds the features; each kind of estimator checks those that it needs.
    expected_rows
        The order of magnitude of the number of rows.
    rows_per_person
        How many rows one person may own.
    schema
        The schema that said all this, if there is one.
    bins
        Into how many parts numbers are cut where rows are codes.
    width
        How many columns rows have when they are encoded; a schema says it beforehand.
    rows
        The number of rows where it is public (under ``replace``), else None.
    unit
        Whom the guarantee speaks of.
    together
        Whether the rows of a person are read together, so that a person can be clipped as one.

    """

    relation: Relation
    classes: NDArray[Any] | None = None
    target_bounds: tuple[float, float] | None = None
    bounds: Any = None
    feature_norm: Any = None
    categories: Any = None
    expected_rows: int | None = None
    rows_per_person: int = 1
    schema: Schema | None = None
    bins: int | None = None
    width: int | None = None
    rows: int | None = None
    unit: str = "row"
    together: bool = False

    @property
    def features(self) -> int:
        """The number of columns of encoded rows."""
        if self.width is None:
            raise InvalidValue(
                "features", None, "the number of columns, where no schema declares them"
            )
        return self.width

    @property
    def ends(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The lower and the upper bound of each feature."""
        return declared_bounds(self.bounds, self.features)

    @property
    def planned_rows(self) -> int:
        """The declared number of rows or, where the number itself is public, that.

        Raises
        ------
        InvalidValue
            If there is neither.

        """
        rows = self.rows if self.expected_rows is None else self.expected_rows
        if rows is None:
            raise InvalidValue(
                "expected_rows",
                None,
                "the public order of magnitude of the number of rows (under add_remove the number "
                "itself is private)",
            )
        return rows

    def scaled(self, features: NDArray[Any]) -> NDArray[np.float64]:
        """Return features in [-1, 1] by their bounds: clipped to them, 0 where there is no number.

        What becomes of a row depends on that row alone.
        """
        lower, upper = self.ends
        shares = (np.clip(features, lower, upper) - lower) / (upper - lower)
        return np.asarray(np.nan_to_num(np.clip(2.0 * shares - 1.0, -1.0, 1.0), nan=0.0))

    def unscaled_target(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return numbers in [-1, 1] as values of the target; what lies outside is not cut."""
        assert self.target_bounds is not None
        lower, upper = self.target_bounds
        return np.asarray(lower + (values + 1.0) / 2.0 * (upper - lower))


def declare(estimator: Any) -> Declared:
    """Return what was declared to an estimator, by its schema or by its parameters, never by both.

    Raises
    ------
    InvalidValue
        If a parameter declares what a schema declares, or something that cannot be.
    NotApplicable
        If a schema does not declare what this kind of estimator needs.

    """
    parameters = estimator.get_params(deep=False)
    given = {name: parameters[name] for name in DECLARATIONS if name in parameters}
    relation = Relation.parse(estimator.relation)
    schema, bins = estimator.schema, parameters.get("bins")
    width = None
    if schema is not None:
        for name, value in given.items():
            if value is not None:
                expected = "None: a schema was given, which declares it (one of the two, not both)"
                raise InvalidValue(name, value, expected)
        if bins is not None:
            bins = _validate.integer("bins", bins, at_least=2, at_most=1 << 20)
        given, width = _schema_facts(estimator, schema, list(given), bins)
    facts: dict[str, Any] = {**given, "width": width}
    if "classes" in given:
        facts["classes"] = declared_classes(given["classes"], binary=estimator._only_two_classes)
    if "target_bounds" in given:
        facts["target_bounds"] = _target_ends(given["target_bounds"])
    for name, least in (("expected_rows", None), ("rows_per_person", 1)):
        value = given.get(name)
        facts[name] = (
            least
            if value is None
            else _validate.integer(name, value, at_least=1, at_most=MOST_ROWS)
        )
    return Declared(relation=relation, schema=schema, bins=bins, **facts)


def _schema_facts(
    estimator: Any, schema: object, wanted: list[str], bins: int | None
) -> tuple[dict[str, Any], int]:
    """Return the declarations that an estimator wants, as a schema makes them, and the width."""
    if not isinstance(schema, Schema):
        raise InvalidValue("schema", type(schema).__name__, "a discreet.data Schema")
    supervised = estimator._target is not None
    if supervised and schema.target is None:
        raise NotApplicable("the schema declares no target to learn")
    schema.require_complete()
    if not schema.features:
        raise InvalidValue("schema", "only a target", "at least one column beside the target")
    if schema.person is not None and not estimator._takes_persons:
        raise NotApplicable(
            "this learner states its guarantee for one row, and the schema protects persons: "
            "keep one row for each person and declare rows as the unit"
        )
    facts: dict[str, Any] = {
        "expected_rows": schema.expected_rows,
        "rows_per_person": schema.rows_per_person,
    }
    target = schema.columns[schema.target] if schema.target is not None else None
    if "classes" in wanted:
        facts["classes"] = [False, True] if isinstance(target, Boolean) else list(schema.classes)
    if "target_bounds" in wanted:
        if not isinstance(target, Bounded):
            raise NotApplicable("the schema has no numeric target to regress on")
        facts["target_bounds"] = target.bounds
    encoding = Encoding(schema)
    if estimator._encoding == "vectors":
        width = encoding.width
        facts |= {"bounds": (-1.0, 1.0), "feature_norm": encoding.norm_bound}
    else:
        width = len(schema.features)
        if "categories" in wanted:
            numbers = 0 if estimator._takes_labels else bins
            facts["categories"] = _category_counts(schema, numbers)
        if "bounds" in wanted:
            facts["bounds"] = _column_bounds(schema, labels=estimator._takes_labels)
    return {name: facts[name] for name in wanted if name in facts}, width


def _category_counts(schema: Schema, bins: int | None) -> list[int]:
    sizes = []
    for name, column in schema.features.items():
        if isinstance(column, Labelled):
            sizes.append(len(column.labels))
        elif bins is not None:
            sizes.append(bins)
        else:
            raise NotApplicable(
                f"column {name!r} has no categories: cut it into bins, or use PrivateGaussianNB"
            )
    return sizes


def _column_bounds(schema: Schema, *, labels: bool) -> tuple[list[float], list[float]]:
    ends = []
    for name, column in schema.features.items():
        if isinstance(column, Boolean) or (labels and isinstance(column, Labelled)):
            ends.append((0.0, float(max(len(column.labels) - 1, 1))))
        elif isinstance(column, Bounded):
            ends.append(column.bounds)
        else:
            raise NotApplicable(f"column {name!r} is no number; PrivateCategoricalNB takes labels")
    lower, upper = zip(*ends, strict=True)
    return list(lower), list(upper)


def _target_ends(bounds: object) -> tuple[float, float]:
    try:
        lower, upper = declared_bounds(bounds, 1)
    except InvalidValue as error:
        raise InvalidValue("target_bounds", bounds, error.expected) from None
    return float(lower[0]), float(upper[0])


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


# --- charge first, then read -----------------------------------------------------------------


def with_schema_cost(loss: Loss, schema: Schema | None, delta: float) -> Loss:
    """Return a loss and, if the schema was learned and that is unpaid, what the schema cost."""
    unpaid = None if schema is None else schema.unpaid_loss()
    if unpaid is None:
        return loss
    if unpaid.relation is not loss.relation:
        raise RelationMismatch(
            f"the schema was learned at a loss that speaks of {unpaid.relation.value}, and this "
            f"release of {loss.relation.value}: they do not add up. Learn the schema under "
            f"{loss.relation.value}, or charge it to a ledger and keep the receipt"
        )
    whole = loss + unpaid
    if math.isinf(whole.epsilon(delta=delta)):
        raise InvalidValue(
            "delta",
            delta,
            "a larger one: with what it cost to learn the schema no epsilon is finite at this",
        )
    return whole


ROW_UNITS = ("row", "record", "example")
"""Words of ledgers that mean one row."""


def charged(
    ledger: Ledger | None,
    dataset: str | None,
    *,
    loss: Loss,
    delta: float,
    purpose: str,
    unit: str | None = None,
) -> AbstractContextManager[Charge | None]:
    """Return the context in which a release of ``loss`` may run; it is spent when this returns.

    Without a ledger nothing is charged. The loss is one plan declared beforehand: a budget adds
    it up as it is where a valid sum can read it (mu^2 of Gaussian noise), and otherwise reads it
    at ``delta``, if that is above 0. ``unit`` is whom the loss speaks of; a dataset of the
    ledger that speaks of others is refused (:func:`check_unit`). None compares nothing.
    """
    if ledger is None:
        if dataset is not None:
            raise InvalidValue("ledger", ledger, f"the ledger that holds the dataset {dataset!r}")
        return nullcontext()
    if not isinstance(ledger, Ledger):
        raise InvalidValue("ledger", ledger, "a discreet.ledger.Ledger or None")
    if dataset is None:
        raise InvalidValue("dataset", dataset, "the name of the dataset to charge in the ledger")
    if unit is not None:
        check_unit(ledger, dataset, unit)
    return ledger.charge(dataset, loss, purpose=purpose, delta=delta if delta > 0.0 else None)


def stated_unit(unit: object, *, persons: bool) -> str:
    """Return whom a fit protects: the word that was given, else a person or a row."""
    if unit is None:
        return "person" if persons else "row"
    if not isinstance(unit, str) or not unit.strip():
        raise InvalidValue("unit", unit, "a word for whose privacy is bounded")
    return unit.strip()


def check_unit(ledger: Ledger, dataset: str, unit: str) -> None:
    """Raise unless the budget of a dataset and a loss speak of the same unit.

    Row, record and example are one and the same; whatever else a ledger names (person, patient,
    user) may own several rows. What a release tells about one row says little about such an
    owner, and what it tells about an owner is another statement than that about one row.
    """
    budgeted = ledger.show(dataset).unit
    ours, theirs = unit.lower(), budgeted.strip().lower()
    if ours == theirs or (ours in ROW_UNITS and theirs in ROW_UNITS):
        return
    if ours == "person" and theirs not in ROW_UNITS:
        return
    raise InvalidValue(
        "dataset",
        dataset,
        f"a dataset whose unit is a {unit}: its budget is for one {budgeted}, and this release "
        f"speaks of one {unit} (say whose rows they are, or that one row is one {budgeted})",
    )
