"""The sensitive attribute: which coordinates of a record hold it, and what it can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.data.columns import Boolean, Bounded, Categorical
from discreet.data.encoding import Encoding
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["Attribute"]

_MOST_VALUES = 1000


@final
@dataclass(frozen=True, eq=False)
class Attribute:
    """An attribute that an attacker wants to know, with the finite list of its candidate values.

    ``columns`` are the coordinates of a record that hold it (several for a one-hot block), and
    row k of ``candidates`` is what stands there if the attribute has its k-th value. ``values``
    are the names of the candidates.

    >>> sex = Attribute("sex", columns=[1, 2], candidates=[[1, 0], [0, 1]], values=["F", "M"])
    >>> sex.codes(np.array([[0.3, 0.0, 1.0], [0.9, 1.0, 0.0]]))
    array([1, 0])
    """

    name: str
    columns: tuple[int, ...]
    candidates: NDArray[np.float64]
    values: tuple[str, ...]

    def __init__(
        self,
        name: str,
        *,
        columns: int | Sequence[int],
        candidates: ArrayLike,
        values: Sequence[object] | None = None,
    ) -> None:
        places = (columns,) if isinstance(columns, int) else tuple(columns)
        indices = tuple(_validate.integer("columns", place, at_least=0) for place in places)
        if not indices or len(set(indices)) != len(indices):
            raise InvalidValue("columns", columns, "at least one column, each named once")
        rows = np.array(candidates, dtype=np.float64)
        if rows.ndim == 1:
            rows = rows[:, None]
        if rows.ndim != 2 or rows.shape[1] != len(indices):
            expected = f"values for {len(indices)} columns, as an array (values, columns)"
            raise InvalidValue("candidates", np.shape(candidates), expected)
        if not np.isfinite(rows).all():
            raise InvalidValue("candidates", candidates, "finite numbers")
        if len(np.unique(rows, axis=0)) != len(rows) or len(rows) < 2:
            raise InvalidValue("candidates", candidates, "at least two values, all different")
        names = [_shown(row) for row in rows] if values is None else [str(v) for v in values]
        if len(names) != len(rows) or len(set(names)) != len(names):
            raise InvalidValue("values", values, f"{len(rows)} names, all different")
        rows.setflags(write=False)
        object.__setattr__(self, "name", str(name))
        object.__setattr__(self, "columns", indices)
        object.__setattr__(self, "candidates", rows)
        object.__setattr__(self, "values", tuple(names))

    @classmethod
    def from_encoding(
        cls, encoding: Encoding, name: str, *, values: Sequence[Any] | None = None
    ) -> Attribute:
        """Return the attribute of an encoded column, with all or some of its declared values.

        A column of real numbers needs ``values``; a candidate that the schema does not declare
        is refused, because no record can have it.

        >>> from discreet.data import Categorical, Integer, Schema
        >>> schema = Schema({"age": Integer(20, 60), "sex": Categorical(["F", "M"], other="F")})
        >>> Attribute.from_encoding(Encoding(schema), "sex").columns
        (1, 2)
        >>> Attribute.from_encoding(Encoding(schema), "age", values=[20, 40]).candidates.tolist()
        [[-1.0], [0.0]]
        >>> Attribute.from_encoding(Encoding(schema), "age", values=[20, 80])
        Traceback (most recent call last):
        discreet.errors.InvalidValue: values = 80: expected a value that the schema declares
        for 'age', 20 to 60
        """
        if not isinstance(encoding, Encoding):
            raise InvalidValue("encoding", type(encoding).__name__, "an Encoding")
        _validate.one_of("name", name, tuple(encoding.schema.features))
        column = encoding.schema.features[name]
        at = 0
        for other, declared in encoding.schema.features.items():
            if other == name:
                break
            at += len(declared.labels) if isinstance(declared, Categorical) else 1
        lowest = -1.0 if encoding.interval == "symmetric" else 0.0
        if isinstance(column, Categorical):
            labels = tuple(column.labels)
            chosen = labels if values is None else tuple(values)
            _all_declared(name, chosen, labels)
            block = np.eye(len(labels))[[labels.index(label) for label in chosen]]
            places = range(at, at + len(labels))
            return cls(name, columns=list(places), candidates=block, values=chosen)
        if isinstance(column, Boolean):
            truths = (False, True) if values is None else tuple(values)
            _all_declared(name, truths, (False, True))
            ends = [1.0 if truth else lowest for truth in truths]
            return cls(name, columns=at, candidates=ends, values=truths)
        if not isinstance(column, Bounded):  # the types of columns are a closed list
            raise InvalidValue("name", name, "a column with values")
        lower, upper = column.bounds
        if values is None:
            if column.kind != "integer" or upper - lower >= _MOST_VALUES:
                raise InvalidValue("values", None, f"the candidate values of {name!r}")
            values = range(int(lower), int(upper) + 1)
        for value in values:
            number = _validate.real("values", value)
            if not lower <= number <= upper:
                expected = f"a value that the schema declares for {name!r}, "
                raise InvalidValue("values", value, expected + f"{lower:g} to {upper:g}")
        shares = (np.array([float(value) for value in values]) - lower) / (upper - lower)
        scaled = shares if lowest == 0.0 else 2.0 * shares - 1.0
        return cls(name, columns=at, candidates=scaled, values=tuple(values))

    def codes(self, records: NDArray[Any], *, argument: str = "records") -> NDArray[np.intp]:
        """Return for every record which candidate it has, or raise where it has none of them."""
        self.check_width(records, argument)
        held = records[:, list(self.columns)]
        codes = np.full(len(records), -1, dtype=np.intp)
        for code, candidate in enumerate(self.candidates.astype(held.dtype)):
            codes[(held == candidate).all(axis=1)] = code
        if (codes < 0).any():
            row = int(np.flatnonzero(codes < 0)[0])
            raise InvalidValue(
                argument,
                f"{held[row].tolist()} in row {row}",
                f"one of the {len(self.values)} candidate values of {self.name!r}",
            )
        return codes

    def with_value(self, records: NDArray[Any], code: int) -> NDArray[Any]:
        """Return a copy of the records in which all have this value."""
        changed = records.copy()
        changed[:, list(self.columns)] = self.candidates[code].astype(records.dtype)
        return changed

    def without(self, records: NDArray[Any]) -> NDArray[Any]:
        """Return the records without the columns of the attribute."""
        return np.delete(records, list(self.columns), axis=1)

    def check_width(self, records: NDArray[Any], argument: str) -> None:
        """Raise unless the records have the columns of the attribute."""
        if records.ndim != 2 or records.shape[1] <= max(self.columns):
            expected = f"an array (records, features) with a column {max(self.columns)}"
            raise InvalidValue(argument, f"an array of shape {records.shape}", expected)


def _shown(row: NDArray[np.float64]) -> str:
    return ", ".join(f"{number:.12g}" for number in row)


def _all_declared(name: str, chosen: Sequence[Any], declared: Sequence[Any]) -> None:
    for value in chosen:
        if value not in declared:
            expected = f"a value that the schema declares for {name!r}, one of "
            raise InvalidValue("values", value, expected + ", ".join(map(str, declared)))
