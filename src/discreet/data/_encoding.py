"""Features for learners: scaled by declared bounds, so that every row has a known largest norm.

**Formal guarantee.** For every row x of :meth:`Encoding.features`, whatever the record was,
``||x||_2 <= norm_bound``, a number that depends on the schema alone; and a row depends on one
record alone. No mean, deviation, minimum or maximum is taken from the data.

A number in [lower, upper] goes linearly to [-1, 1] (or [0, 1]), true and false to the ends of that
interval, a label to a block with a single 1 in it. Each column has norm at most 1, so k
columns have norm at most sqrt(k).
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.data._columns import Boolean, Bounded, Categorical, Column
from discreet.data._schema import Schema
from discreet.data._table import Table
from discreet.errors import InvalidValue, NotApplicable

if TYPE_CHECKING:
    from numpy.typing import NDArray

_INTERVALS = ("symmetric", "unit")


@final
@dataclass(frozen=True)
class Encoding:
    """How the rows of a schema become vectors; ``interval`` is [-1, 1] or, "unit", [0, 1].

    >>> from discreet.data import Integer
    >>> from discreet.data import read_table
    >>> schema = Schema({"age": Integer(20, 60), "sex": Categorical(["F", "M"])})
    >>> encoding = Encoding(schema)
    >>> encoding.names, encoding.norm_bound
    (('age', 'sex=F', 'sex=M', 'sex=other'), 1.4142135623730951)
    >>> encoding.features(read_table({"age": [30, 99], "sex": ["M", "?"]}, schema))
    array([[-0.5,  0. ,  1. ,  0. ],
           [ 1. ,  0. ,  0. ,  1. ]])
    """

    schema: Schema
    _: KW_ONLY
    interval: str = "symmetric"

    def __post_init__(self) -> None:
        if not isinstance(self.schema, Schema):
            raise InvalidValue("schema", type(self.schema).__name__, "a Schema")
        self.schema.require_complete()
        _validate.one_of("interval", self.interval, _INTERVALS)
        if not self.schema.features:
            raise InvalidValue("schema", "only a target", "at least one column beside the target")

    @property
    def names(self) -> tuple[str, ...]:
        """One name for each coordinate; those of labels are ``column=label``."""
        names: list[str] = []
        for name, column in self.schema.features.items():
            if isinstance(column, Categorical):
                names += [f"{name}={label}" for label in column.labels]
            else:
                names.append(name)
        return tuple(names)

    @property
    def width(self) -> int:
        """How many coordinates a row has."""
        return sum(_width(column) for column in self.schema.features.values())

    @property
    def norm_bound(self) -> float:
        """The largest L2 norm that any row can have, rounded up; public."""
        columns = len(self.schema.features)
        root = math.sqrt(columns)
        return root if root * root >= columns else math.nextafter(root, math.inf)

    def features(self, table: Table, *, dtype: Any = np.float64) -> NDArray[Any]:
        """Return the vectors of a table's rows, without the target."""
        self._require_schema(table)
        kind = np.dtype(dtype)
        if kind not in (np.dtype(np.float32), np.dtype(np.float64)):
            raise InvalidValue("dtype", dtype, "float32 or float64")
        matrix = np.zeros((table.rows, self.width), dtype=kind)
        at = 0
        for name, column in self.schema.features.items():
            values = table.columns[name]
            if isinstance(column, Categorical):
                matrix[np.arange(table.rows), at + values] = 1
            else:
                matrix[:, at] = self._scale(values, column)
            at += _width(column)
        return matrix

    def codes(self, table: Table, *, bins: int | None = None) -> NDArray[np.float64]:
        """Return the columns of a table side by side, labels as codes, without the target.

        With ``bins``, the interval of a column of numbers is cut into that many equal parts, and
        its codes say in which of them a number lies.

        >>> from discreet.data import Integer
        >>> from discreet.data import read_table
        >>> schema = Schema({"age": Integer(0, 80), "sex": Categorical(["F", "M"])})
        >>> table = read_table({"age": [5, 80], "sex": ["M", "F"]}, schema)
        >>> Encoding(schema).codes(table, bins=4).tolist()
        [[0.0, 1.0], [3.0, 0.0]]
        """
        self._require_schema(table)
        columns = []
        for name, column in self.schema.features.items():
            values = np.asarray(table.columns[name], dtype=np.float64)
            if bins is not None and isinstance(column, Bounded):
                lower, upper = column.bounds
                share = (values - lower) / (upper - lower)
                values = np.clip(np.floor(share * bins), 0.0, bins - 1.0)
            columns.append(values)
        return np.column_stack(columns)

    def target(self, table: Table) -> NDArray[Any]:
        """Return the codes of the classes, or the clipped numbers, of the target."""
        self._require_schema(table)
        if self.schema.target is None:
            raise NotApplicable("the schema declares no target")
        return table.columns[self.schema.target]

    def _scale(self, values: NDArray[Any], column: Column) -> NDArray[np.float64]:
        if isinstance(column, Boolean):
            share = values.astype(np.float64)
        elif isinstance(column, Bounded):
            lower, upper = column.bounds
            # Clipped again: a rounding must not carry a value over the end.
            share = np.clip((values - lower) / (upper - lower), 0.0, 1.0)
        else:
            raise NotApplicable(f"{column!r} has no scale")
        return share if self.interval == "unit" else 2.0 * share - 1.0

    def _require_schema(self, table: object) -> None:
        if not isinstance(table, Table):
            raise InvalidValue("table", type(table).__name__, "a Table, as from read_table")
        if table.schema != self.schema:
            raise InvalidValue("table", repr(table), "a table of the same schema")


def _width(column: Column) -> int:
    return len(column.labels) if isinstance(column, Categorical) else 1
