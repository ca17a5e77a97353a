"""From expressions to integer arithmetic whose range is known: the proof that nothing overflows.

Every number of an expression gets a :class:`~discreet.curator.grids.Grid` that is computed from
the schema and the expression alone. Magnitudes stay below 2**53, so 64-bit integers hold all of
them and a conversion to a double is exact. A sum or a product that would need more
digits is computed on a coarser grid: its operands are divided by a power of two and rounded down.

The arithmetic itself is done by an :class:`~discreet.curator.algebra.Algebra`. One builds Ibis
expressions for DuckDB and Spark (:mod:`discreet.curator.ibis_algebra`), one computes with Python
integers (:mod:`discreet.curator.row_algebra`), which is what the engines are tested against.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, final

from discreet.curator import expressions as ex
from discreet.curator.algebra import Algebra
from discreet.curator.grids import Grid, StoredColumn, grid_between, grid_holding
from discreet.errors import InvalidValue, NotApplicable

__all__ = ["Key", "Lowered", "Lowering", "coarsened"]

_ROOM = 2**51
_FACTOR_ROOM = 2**31

_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    ">": operator.gt,
}
_MIRRORED = {"<": ">", "<=": ">=", "==": "==", "!=": "!=", ">=": "<=", ">": "<"}


@final
@dataclass(frozen=True)
class Lowered:
    """A term of the algebra and the grid that it is on."""

    grid: Grid
    term: Any


@final
@dataclass(frozen=True)
class Key:
    """A term to group by, and the column whose values it has (a made-up one if derived)."""

    stored: StoredColumn
    term: Any


@final
class Lowering:
    """Turns expressions into terms of an algebra; refuses what the schema does not know."""

    def __init__(self, columns: Mapping[str, StoredColumn], algebra: Algebra) -> None:
        self._columns = columns
        self.algebra = algebra

    # --- numbers -----------------------------------------------------------------------

    def number(self, expression: ex.Number) -> Lowered:
        """Lower a numeric expression."""
        match expression:
            case ex.Column():
                return self._column(expression)
            case ex.Value() | ex.Day():
                return self._constant(_stated(expression))
            case ex.Add() | ex.Subtract() | ex.Least() | ex.Greatest():
                return self._pairwise(expression)
            case ex.Multiply():
                return self._product(self.number(expression.left), self.number(expression.right))
            case ex.Divide():
                return self._quotient(expression)
            case ex.Absolute():
                return self._absolute(self.number(expression.of))
            case ex.Clip():
                return self.clipped(self.number(expression.of), expression.lower, expression.upper)
            case ex.Bucket():
                return self._bucket(self.number(expression.of), expression.width)
            case ex.If():
                when = self.condition(expression.when)
                then, otherwise = self._aligned(
                    self.number(expression.then), self.number(expression.otherwise)
                )
                term = self.algebra.choose(when, then.term, otherwise.term)
                return Lowered(_union(then.grid, otherwise.grid), term)
            case ex.Lookup():
                return self._lookup(expression)
            case ex.ToNumber():
                return self._to_number(expression)
        raise InvalidValue("expression", type(expression).__name__, "a number")

    def clipped(self, of: Lowered, lower: Fraction | None, upper: Fraction | None) -> Lowered:
        """Cut a number to bounds, moved inwards to its grid."""
        grid = of.grid
        low = grid.low if lower is None else math.ceil(lower / grid.step)
        high = grid.high if upper is None else math.floor(upper / grid.step)
        if low > high:  # no point of the grid in between
            low = high = round((low + high) / 2)
        low, high = (min(max(end, grid.low), grid.high) for end in (low, high))
        term = of.term
        if high < grid.high:
            term = self.algebra.least(term, self.algebra.constant(high))
        if low > grid.low:
            term = self.algebra.greatest(term, self.algebra.constant(low))
        return Lowered(Grid(grid.step, low, high), term)

    def _column(self, expression: ex.Column) -> Lowered:
        stored = self._known(expression.name)
        if stored.grid is None:
            raise InvalidValue(
                "column",
                expression.name,
                "a column of numbers here; texts are used by one_of, starts_with and lookup",
            )
        return Lowered(stored.grid, self.algebra.column(stored))

    def _constant(self, value: Fraction) -> Lowered:
        grid = grid_holding(value)
        return Lowered(grid, self.algebra.constant(grid.low))

    def _pairwise(self, expression: ex.Add | ex.Subtract | ex.Least | ex.Greatest) -> Lowered:
        left, right = self._aligned(self.number(expression.left), self.number(expression.right))
        a, b, step = left.grid, right.grid, left.grid.step
        match expression:
            case ex.Add():
                grid = Grid(step, a.low + b.low, a.high + b.high)
                return Lowered(grid, self.algebra.add(left.term, right.term))
            case ex.Subtract():
                grid = Grid(step, a.low - b.high, a.high - b.low)
                return Lowered(grid, self.algebra.subtract(left.term, right.term))
            case ex.Least():
                grid = Grid(step, min(a.low, b.low), min(a.high, b.high))
                return Lowered(grid, self.algebra.least(left.term, right.term))
            case ex.Greatest():
                grid = Grid(step, max(a.low, b.low), max(a.high, b.high))
                return Lowered(grid, self.algebra.greatest(left.term, right.term))

    def _product(self, left: Lowered, right: Lowered) -> Lowered:
        left, right = (self.coarser(one, _FACTOR_ROOM) for one in (left, right))
        ends = [x * y for x in _ends(left.grid) for y in _ends(right.grid)]
        term = self.algebra.multiply(left.term, right.term)
        step = left.grid.step * right.grid.step
        bits = max(0, max(map(abs, ends)).bit_length() - 52)
        if bits:
            term = self.algebra.coarsened(term, bits)
            ends = [coarsened(end, bits) for end in ends]
        return Lowered(Grid(step * 2**bits, min(ends), max(ends)), term)

    def _absolute(self, of: Lowered) -> Lowered:
        zero = self.algebra.constant(0)
        term = self.algebra.greatest(of.term, self.algebra.subtract(zero, of.term))
        low = 0 if of.grid.low <= 0 <= of.grid.high else min(map(abs, _ends(of.grid)))
        return Lowered(Grid(of.grid.step, low, of.grid.magnitude), term)

    def _quotient(self, expression: ex.Divide) -> Lowered:
        left, right = self.number(expression.left), self.number(expression.right)
        grid = grid_between(expression.lower, expression.upper)
        term = self.algebra.quotient(
            left.term,
            right.term,
            factor=_factor(left.grid.step / right.grid.step / grid.step),
            low=grid.low,
            high=grid.high,
            default=round(expression.default / grid.step),
        )
        return Lowered(grid, term)

    def _bucket(self, of: Lowered, width: Fraction) -> Lowered:
        grid = of.grid
        steps = width / grid.step
        if steps.denominator != 1 or steps > 2**50:
            raise InvalidValue("width", str(width), f"a multiple of {grid.step}, the step of it")
        size = steps.numerator
        low, high = grid.low // size, grid.high // size
        # Exact: a quotient of integers below 2**53 is never rounded up to a whole number.
        number = self.algebra.quotient(
            of.term, self.algebra.constant(size), factor=1.0, low=low, high=high, default=0
        )
        term = self.algebra.multiply(number, self.algebra.constant(size))
        return Lowered(Grid(grid.step, low * size, high * size), term)

    def _lookup(self, expression: ex.Lookup) -> Lowered:
        stored = self._known_text(expression.column)
        values = [case.value for case in expression.cases]
        grid = grid_holding(expression.default, *values)
        column = self.algebra.column(stored)
        branches = []
        for case in expression.cases:
            codes = _codes(stored, {case.text}.__contains__, [case.text])
            if codes:
                number = self.algebra.constant(round(case.value / grid.step))
                branches.append((self.algebra.one_of(column, codes), number))
        default = self.algebra.constant(round(expression.default / grid.step))
        return Lowered(grid, self.algebra.first_of(branches, default))

    def _to_number(self, expression: ex.ToNumber) -> Lowered:
        stored = self._known(expression.column)
        if not stored.is_text:
            expected = "a categorical column without declared categories; else use lookup"
            raise InvalidValue("column", expression.column, expected)
        grid = grid_between(expression.lower, expression.upper)
        term = self.algebra.number_in_text(
            self.algebra.column(stored),
            factor=_factor(1 / grid.step),
            low=grid.low,
            high=grid.high,
            default=round(expression.default / grid.step),
        )
        return Lowered(grid, term)

    def coarser(self, of: Lowered, room: int) -> Lowered:
        """The same number with a magnitude below ``room``."""
        bits = max(0, of.grid.magnitude.bit_length() - (room.bit_length() - 1))
        if bits == 0:
            return of
        low, high = (coarsened(end, bits) for end in _ends(of.grid))
        term = self.algebra.coarsened(of.term, bits)
        return Lowered(Grid(of.grid.step * 2**bits, low, high), term)

    def _aligned(self, left: Lowered, right: Lowered) -> tuple[Lowered, Lowered]:
        """Both on one grid: the finer one, or the finest on which both fit."""
        left, right = self.coarser(left, _ROOM), self.coarser(right, _ROOM)
        step = min(left.grid.step, right.grid.step)
        for one in (left, right):
            while one.grid.magnitude * one.grid.step / step >= _ROOM:
                step *= 2
        return self._moved(left, step), self._moved(right, step)

    def _moved(self, of: Lowered, step: Fraction) -> Lowered:
        ratio = of.grid.step / step
        if ratio == 1:
            return of
        if of.grid.magnitude == 0:
            return Lowered(Grid(step, 0, 0), self.algebra.constant(0))
        if ratio > 1:
            factor = int(ratio)
            grid = Grid(step, of.grid.low * factor, of.grid.high * factor)
            constant = self.algebra.constant(factor)
            return Lowered(grid, self.algebra.multiply(of.term, constant))
        bits = ratio.denominator.bit_length() - 1
        if bits > 60:
            return Lowered(Grid(step, 0, 0), self.algebra.constant(0))
        low, high = (coarsened(end, bits) for end in _ends(of.grid))
        return Lowered(Grid(step, low, high), self.algebra.coarsened(of.term, bits))

    # --- conditions --------------------------------------------------------------------

    def condition(self, expression: ex.Condition) -> Any:
        """Lower a condition."""
        algebra = self.algebra
        match expression:
            case ex.Compare():
                return self._comparison(expression)
            case ex.OneOf():
                stored = self._known_text(expression.column)
                wanted = set(expression.values)
                codes = _codes(stored, wanted.__contains__, expression.values)
                return (
                    algebra.one_of(algebra.column(stored), codes) if codes else algebra.truth(False)
                )
            case ex.StartsWith():
                stored = self._known_text(expression.column)
                if stored.is_text:
                    return algebra.starts_with(algebra.column(stored), expression.prefix)
                codes = _codes(stored, lambda label: label.startswith(expression.prefix), [])
                return (
                    algebra.one_of(algebra.column(stored), codes) if codes else algebra.truth(False)
                )
            case ex.All():
                return algebra.all_of([self.condition(one) for one in expression.of])
            case ex.Any_():
                return algebra.any_of([self.condition(one) for one in expression.of])
            case ex.Not():
                return algebra.negation(self.condition(expression.of))
        raise InvalidValue("expression", type(expression).__name__, "a condition")

    def _comparison(self, expression: ex.Compare) -> Any:
        how, left, right = expression.how, expression.left, expression.right
        if isinstance(left, ex.Value | ex.Day):
            if isinstance(right, ex.Value | ex.Day):
                return self.algebra.truth(_COMPARED[how](_stated(left), _stated(right)))
            how, left, right = _MIRRORED[how], right, left
        if isinstance(right, ex.Value | ex.Day):
            return self._against(how, self.number(left), _stated(right))
        one, other = self._aligned(self.number(left), self.number(right))
        return self.algebra.compare(how, one.term, other.term)

    def _against(self, how: str, left: Lowered, value: Fraction) -> Any:
        """Compare with a stated number exactly, also where it is between two points."""
        grid = left.grid
        at = value / grid.step
        if how in {"==", "!="} and at.denominator != 1:
            return self.algebra.truth(how == "!=")
        # n < at is n <= ceil(at) - 1, and so on; then the bound fits the range of n.
        if how == "<":
            how, bound = "<=", math.ceil(at) - 1
        elif how == ">":
            how, bound = ">=", math.floor(at) + 1
        else:
            bound = math.ceil(at) if how == ">=" else math.floor(at)
        if not grid.low <= bound <= grid.high:
            always = {"<=": bound > grid.high, ">=": bound < grid.low, "==": False, "!=": True}
            return self.algebra.truth(always[how])
        return self.algebra.compare(how, left.term, self.algebra.constant(bound))

    # --- keys --------------------------------------------------------------------------

    def key(self, expression: ex.Number) -> Key:
        """A term to group by: a column of any kind, or a derived number."""
        if isinstance(expression, ex.Column):
            stored = self._known(expression.name)
            return Key(stored, self.algebra.column(stored))
        lowered = self.number(expression)
        return Key(StoredColumn("derived", -1, lowered.grid, None), lowered.term)

    def _known(self, name: str) -> StoredColumn:
        if name not in self._columns:
            raise InvalidValue("column", name, "a column of the schema")
        return self._columns[name]

    def _known_text(self, name: str) -> StoredColumn:
        stored = self._known(name)
        if stored.labels is None and not stored.is_text:
            raise InvalidValue("column", name, "a column of texts or labels; else use compare")
        return stored


def coarsened(value: int, bits: int) -> int:
    """floor(value / 2**bits), by way of a double: what every engine computes."""
    return math.floor(float(value) / float(2**bits))


def _codes(
    stored: StoredColumn, wanted: Callable[[str], bool], texts: Sequence[str]
) -> list[int] | list[str]:
    """The codes of the wanted labels, or the texts themselves where the column is text."""
    if stored.labels is None:
        return list(texts)
    return [code for code, label in enumerate(stored.labels) if wanted(label)]


def _stated(expression: ex.Value | ex.Day) -> Fraction:
    if isinstance(expression, ex.Value):
        return expression.value
    return Fraction(expression.day.toordinal() - 719163)  # the ordinal of 1970-01-01


def _factor(ratio: Fraction) -> float:
    if not Fraction(1, 2**900) < ratio < 2**900:
        raise NotApplicable("the bounds of a quotient are too far from the sizes of its operands")
    return float(ratio)


def _ends(grid: Grid) -> tuple[int, int]:
    return grid.low, grid.high


def _union(left: Grid, right: Grid) -> Grid:
    return Grid(left.step, min(left.low, right.low), max(left.high, right.high))
