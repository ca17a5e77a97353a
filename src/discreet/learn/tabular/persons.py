"""Rows of persons: how many of them count, and all rows of one person as one example."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet.data.arrays import ArrayBatch, column_array
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["OwnedRows", "owned_rows"]


@final
@dataclass(frozen=True, eq=False)
class OwnedRows:
    """The rows that count: their numbers, their owners 0, 1, ..., and their rank with the owner."""

    rows: NDArray[np.int64]
    owners: NDArray[np.int64]
    ranks: NDArray[np.int64]

    def side_by_side(self, values: NDArray[Any], cap: int, *, empty: Any) -> NDArray[Any]:
        """Return persons x cap (x whatever a row is), with ``empty`` where a person has no row.

        ``values`` are those of the rows that count, in their order.
        """
        persons = int(self.owners.max(initial=-1)) + 1
        result = np.full((persons, cap, *values.shape[1:]), empty, dtype=values.dtype)
        result[self.owners, self.ranks] = values
        return result


def owned_rows(persons: object, *, rows: int, cap: int) -> OwnedRows:
    """Keep the first ``cap`` rows of each person; names are compared as in a table.

    Which rows of a person count depends on that person's rows alone. A row without a name can be
    charged to nobody and is left out.

    >>> kept = owned_rows(["a", "b", "a", "", "a"], rows=5, cap=2)
    >>> kept.rows.tolist(), kept.owners.tolist(), kept.ranks.tolist()
    ([0, 1, 2], [0, 1, 0], [0, 0, 1])
    """
    column = column_array("persons", persons)
    if column.size != rows:
        raise InvalidValue("persons", "another length than X", "one person for each row of X")
    codes, names = ArrayBatch({"persons": column}, column.size).texts("persons")
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
