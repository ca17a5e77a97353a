"""Expressions computed on all cells of a small public domain at once, as arrays of integers.

It gives what :mod:`discreet.curator.row_algebra` gives cell by cell, in a time that a request may
take: a workload of a thousand questions over four thousand cells is four million rows.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, final

import numpy as np

from discreet.curator.grids import StoredColumn
from discreet.errors import NotApplicable

__all__ = ["CellAlgebra"]

_COMPARED = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    ">": operator.gt,
}


@final
class CellAlgebra:
    """Terms are arrays over the cells, or single values; ``cells`` holds each column by name.

    Grids keep every number below 2**62, so no 64-bit integer wraps around.
    """

    def __init__(self, cells: Mapping[str, np.ndarray]) -> None:
        self._cells = cells

    def column(self, stored: StoredColumn) -> Any:
        """What the cells have in a column."""
        return self._cells[stored.name]

    def constant(self, value: int) -> Any:
        """A stated integer."""
        return np.int64(value)

    def truth(self, value: bool) -> Any:
        """A stated truth value."""
        return np.bool_(value)

    def add(self, left: Any, right: Any) -> Any:
        """The sum."""
        return left + right

    def subtract(self, left: Any, right: Any) -> Any:
        """The difference."""
        return left - right

    def multiply(self, left: Any, right: Any) -> Any:
        """The product."""
        return left * right

    def coarsened(self, term: Any, bits: int) -> Any:
        """Divided by a power of two, rounded down, by way of a double."""
        return np.floor(np.asarray(term, dtype=np.float64) / 2.0**bits).astype(np.int64)

    def least(self, left: Any, right: Any) -> Any:
        """The smaller one."""
        return np.minimum(left, right)

    def greatest(self, left: Any, right: Any) -> Any:
        """The larger one."""
        return np.maximum(left, right)

    def choose(self, when: Any, then: Any, otherwise: Any) -> Any:
        """One of two."""
        return np.where(when, then, otherwise)

    def first_of(self, branches: Sequence[tuple[Any, Any]], otherwise: Any) -> Any:
        """The first whose condition holds."""
        found = otherwise
        for when, value in reversed(branches):
            found = np.where(when, value, found)
        return found

    def compare(self, how: str, left: Any, right: Any) -> Any:
        """A comparison."""
        return _COMPARED[how](left, right)

    def one_of(self, term: Any, values: Sequence[Any]) -> Any:
        """Membership."""
        return np.isin(term, np.array(values, dtype=np.int64))

    def starts_with(self, term: Any, prefix: str) -> Any:
        """Texts that nobody declared are no domain."""
        raise NotApplicable("a text column has no public domain")

    def all_of(self, terms: Sequence[Any]) -> Any:
        """Conjunction."""
        return reduce(np.logical_and, terms)

    def any_of(self, terms: Sequence[Any]) -> Any:
        """Disjunction."""
        return reduce(np.logical_or, terms)

    def negation(self, term: Any) -> Any:
        """Negation."""
        return np.logical_not(term)

    def quotient(
        self, left: Any, right: Any, *, factor: float, low: int, high: int, default: int
    ) -> Any:
        """A quotient in steps, rounded down, cut to bounds; the default where there is none."""
        nothing = np.equal(right, 0)
        divisor = np.where(nothing, 1, right).astype(np.float64)
        steps = np.asarray(left, dtype=np.float64) / divisor * factor
        cut = np.minimum(np.maximum(steps, float(low)), float(high))
        return np.where(nothing, np.int64(default), np.floor(cut).astype(np.int64))

    def number_in_text(self, term: Any, *, factor: float, low: int, high: int, default: int) -> Any:
        """Texts that nobody declared are no domain."""
        raise NotApplicable("a text column has no public domain")
