"""Expressions computed on one row with Python integers: the slow and obvious algebra.

The engines, and the arrays of :mod:`discreet.curator.cell_algebra`, are tested against it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, final

from discreet.curator.grids import StoredColumn
from discreet.curator.lowering import coarsened
from discreet.data import number_in_text

__all__ = ["RowAlgebra"]

_COMPARED = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    ">": operator.gt,
}


@final
class RowAlgebra:
    """Terms are the values themselves; ``row`` holds what is kept of each column, by name."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        self._row = row

    def column(self, stored: StoredColumn) -> Any:
        """What the row has in a column."""
        return self._row[stored.name]

    def constant(self, value: int) -> int:
        """A stated integer."""
        return value

    def truth(self, value: bool) -> bool:
        """A stated truth value."""
        return value

    def add(self, left: int, right: int) -> int:
        """The sum."""
        return left + right

    def subtract(self, left: int, right: int) -> int:
        """The difference."""
        return left - right

    def multiply(self, left: int, right: int) -> int:
        """The product."""
        return left * right

    def coarsened(self, term: int, bits: int) -> int:
        """Divided by a power of two, rounded down."""
        return coarsened(term, bits)

    def least(self, left: int, right: int) -> int:
        """The smaller one."""
        return min(left, right)

    def greatest(self, left: int, right: int) -> int:
        """The larger one."""
        return max(left, right)

    def choose(self, when: bool, then: int, otherwise: int) -> int:
        """One of two."""
        return then if when else otherwise

    def first_of(self, branches: Sequence[tuple[bool, int]], otherwise: int) -> int:
        """The first whose condition holds."""
        return next((value for when, value in branches if when), otherwise)

    def compare(self, how: str, left: int, right: int) -> bool:
        """A comparison."""
        return bool(_COMPARED[how](left, right))

    def one_of(self, term: Any, values: Sequence[Any]) -> bool:
        """Membership."""
        return term in values

    def starts_with(self, term: str, prefix: str) -> bool:
        """A prefix."""
        return term.startswith(prefix)

    def all_of(self, terms: Sequence[bool]) -> bool:
        """Conjunction."""
        return all(terms)

    def any_of(self, terms: Sequence[bool]) -> bool:
        """Disjunction."""
        return any(terms)

    def negation(self, term: bool) -> bool:
        """Negation."""
        return not term

    def quotient(
        self, left: int, right: int, *, factor: float, low: int, high: int, default: int
    ) -> int:
        """A quotient in steps, rounded down, cut to bounds; the default where there is none."""
        if right == 0:
            return default
        return math.floor(min(max(left / right * factor, float(low)), float(high)))

    def number_in_text(self, term: str, *, factor: float, low: int, high: int, default: int) -> int:
        """The number that a text spells, in steps, rounded half to even, cut to bounds."""
        number = number_in_text(term.encode())
        if math.isnan(number):
            return default
        return round(min(max(number, low / factor), high / factor) * factor)
