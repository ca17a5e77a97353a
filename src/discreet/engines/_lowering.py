"""From expressions to integer terms whose range is known: the proof that nothing overflows.

**Grids.** A number is ``n * step`` with a public power of two ``step`` and public bounds
``low <= n <= high``, magnitudes up to 2**53. Whole numbers, dates and truth values have step 1; a
real column has about 2**30 steps between its bounds. The double that was read is clipped to the
bounds, divided by the step, which is exact, and rounded half to even: the same integer on every
engine. Labels are stored as their codes. A categorical column without declared categories is text.

**Terms.** Every number of an expression gets a :class:`Grid` that is computed from the schema and
the expression alone. Magnitudes stay below 2**53, so 64-bit integers hold all of them and a
conversion to a double is exact. A sum or a product that would need more digits is computed on a
coarser grid: its operands are divided by a power of two and rounded down.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, final

from discreet.data import Boolean, Bounded, Categorical, Date, Integer, Labelled, Schema
from discreet.engines import _expressions as ex
from discreet.engines._term import COMPARED, Term, constant, truth
from discreet.errors import InvalidValue, NotApplicable

LARGEST = 2**53
_STEPS = 30
_EXTREME = 900
_LARGEST_STEP = Fraction(2) ** 800


@final
@dataclass(frozen=True)
class Grid:
    """All n * step with low <= n <= high."""

    step: Fraction
    low: int
    high: int

    def __post_init__(self) -> None:
        if self.low > self.high or max(-self.low, self.high) > LARGEST:
            raise NotApplicable("a number does not fit its grid of 53 bits")
        # Then sums over 2**32 rows, and noise for any epsilon and cap, are doubles all the same.
        if self.step > _LARGEST_STEP:
            raise NotApplicable("a number is too large: sums of it would not fit a double")

    @property
    def magnitude(self) -> int:
        """The largest absolute value, in steps."""
        return max(abs(self.low), abs(self.high))

    def value(self, n: int) -> Fraction:
        """What ``n`` steps are."""
        return n * self.step

    @property
    def bounds(self) -> tuple[Fraction, Fraction]:
        """The smallest and the largest value."""
        return self.value(self.low), self.value(self.high)


def power_of_two(exponent: int) -> Fraction:
    """2**exponent, exactly."""
    if abs(exponent) > _EXTREME:
        raise NotApplicable(f"numbers of the size 2**{exponent} are beyond the grids of a table")
    return Fraction(2) ** exponent


def grid_between(lower: Fraction, upper: Fraction) -> Grid:
    """The grid of about 2**30 steps between two bounds, coarser far away from zero.

    >>> grid_between(Fraction(0), Fraction(1)).high == 2**30
    True
    """
    largest = max(abs(lower), abs(upper))
    step = power_of_two(max(_exponent(upper - lower) - _STEPS, _exponent(largest) - 51))
    return Grid(step, round(lower / step), round(upper / step))


def grid_holding(*values: Fraction) -> Grid:
    """A grid that holds the given numbers: exactly if they have few binary digits.

    >>> grid_holding(Fraction(3, 4), Fraction(-2)).step
    Fraction(1, 4)
    """
    largest = max(abs(value) for value in values)
    finest = max(value.denominator for value in values)
    exact = finest & (finest - 1) == 0 and largest * finest < 2**52
    step = Fraction(1, finest) if exact else power_of_two(_exponent(largest) - _STEPS)
    steps = [round(value / step) for value in values]
    return Grid(step, min(steps), max(steps))


def _exponent(value: Fraction) -> int:
    """The least e with value <= 2**e, for a positive value."""
    if value <= 0:
        return 0
    guess = value.numerator.bit_length() - value.denominator.bit_length()
    return guess if value <= Fraction(2) ** guess else guess + 1


@final
@dataclass(frozen=True)
class StoredColumn:
    """How a column of the schema is kept: its position, and a grid, labels, or text."""

    name: str
    position: int
    grid: Grid | None
    labels: tuple[str, ...] | None
    dates: bool = False

    @property
    def is_text(self) -> bool:
        """Whether the column is kept as text."""
        return self.grid is None and self.labels is None

    @property
    def stored_name(self) -> str:
        """The name that the column has in the bounded table; no user's text."""
        return f"c{self.position}"

    @property
    def term(self) -> Term:
        """The column as a term."""
        return Term("column", (), (self.stored_name, self.is_text))

    @property
    def storage(self) -> str | None:
        """The narrowest integer type that holds the column, or None for text: less to scan."""
        if self.labels is not None:
            low, high = 0, len(self.labels) - 1
        elif self.grid is not None:
            low, high = self.grid.low, self.grid.high
        else:
            return None
        return next(f"int{bits}" for bits in (8, 16, 32, 64) if fits(low, high, bits))

    def show(self, kept: Any) -> Any:
        """A kept value as it is released: a label, a text, a day, or a number."""
        if self.labels is not None:
            return self.labels[int(kept)]
        if self.grid is None:
            return str(kept)
        if self.dates:
            return (dt.date(1970, 1, 1) + dt.timedelta(days=int(kept))).isoformat()
        exact = self.grid.value(int(kept))
        return exact.numerator if exact.denominator == 1 else float(exact)


def fits(low: int, high: int, bits: int) -> bool:
    """Whether a range fits signed integers of this many bits."""
    return -(1 << (bits - 1)) <= low and high < 1 << (bits - 1)


@lru_cache(maxsize=256)
def stored_columns(schema: Schema) -> Mapping[str, StoredColumn]:
    """Return how each column of a schema is stored, by public facts alone.

    Parameters
    ----------
    schema
        What the records are.

    Returns
    -------
    Mapping
        The names of columns to how they are stored.

    Raises
    ------
    InvalidValue
        A column is of a kind that no engine knows, hashed, or has a rule.

    """
    stored: dict[str, StoredColumn] = {}
    for position, (name, column) in enumerate(schema.columns.items()):
        grid: Grid | None = None
        labels: tuple[str, ...] | None = None
        for key in ("hashed", "rule"):
            if (value := getattr(column, key, None)) is not None:
                expected = "none: engines have no hashed columns and rules; read files"
                raise InvalidValue(f"columns.{name}.{key}", value, expected)
        if isinstance(column, Bounded):
            lower, upper = (Fraction(bound) for bound in column.bounds)
            if isinstance(column, Integer | Date):
                grid = Grid(Fraction(1), int(lower), int(upper))
            else:
                grid = grid_between(lower, upper)
        elif isinstance(column, Boolean) or (isinstance(column, Categorical) and column.complete):
            assert isinstance(column, Labelled)
            labels = column.labels
            grid = Grid(Fraction(1), 0, 1) if isinstance(column, Boolean) else None
        elif not isinstance(column, Categorical):
            raise InvalidValue(f"columns.{name}", column.kind, "a column that an engine knows")
        stored[name] = StoredColumn(name, position, grid, labels, isinstance(column, Date))
    return stored


_ROOM = 2**51
_FACTOR_ROOM = 2**31

_MIRRORED = {"<": ">", "<=": ">=", "==": "==", "!=": "!=", ">=": "<=", ">": "<"}


@final
@dataclass(frozen=True)
class Lowered:
    """A term and the grid that it is on."""

    grid: Grid
    term: Term


@final
@dataclass(frozen=True)
class Key:
    """A term to group by, and the column whose values it has (a made-up one if derived)."""

    stored: StoredColumn
    term: Term


@final
class Lowering:
    """Turns expressions into terms; refuses what the schema does not know."""

    def __init__(self, columns: Mapping[str, StoredColumn]) -> None:
        self._columns = columns

    # --- numbers -----------------------------------------------------------------------

    def number(self, expression: ex.Number) -> Lowered:
        """Lower a numeric expression."""
        match expression:
            case ex.Field():
                return self._column(expression)
            case ex.Value() | ex.Day():
                return self._constant(_read_number(expression))
            case ex.Add() | ex.Subtract() | ex.Least() | ex.Greatest():
                return self._pairwise(expression)
            case ex.Multiply():
                return self._product(self.number(expression.left), self.number(expression.right))
            case ex.Divide():
                return self._quotient(expression)
            case ex.Absolute():
                return self._absolute(self.number(expression.of))
            case ex.Clip():
                return self.clip(self.number(expression.of), expression.lower, expression.upper)
            case ex.Bucket():
                return self._bucket(self.number(expression.of), expression.width)
            case ex.If():
                when = self.condition(expression.when)
                then, otherwise = self._align(
                    self.number(expression.then), self.number(expression.otherwise)
                )
                term = Term("cases", (when, then.term, otherwise.term))
                return Lowered(_union(then.grid, otherwise.grid), term)
            case ex.Lookup():
                return self._lookup(expression)
            case ex.ToNumber():
                return self._to_number(expression)
        raise InvalidValue("expression", type(expression).__name__, "a number")

    def clip(self, of: Lowered, lower: Fraction | None, upper: Fraction | None) -> Lowered:
        """Cut a number to bounds, moved inwards to its grid."""
        grid = of.grid
        low = grid.low if lower is None else math.ceil(lower / grid.step)
        high = grid.high if upper is None else math.floor(upper / grid.step)
        if low > high:  # no point of the grid in between
            low = high = round((low + high) / 2)
        low, high = (min(max(end, grid.low), grid.high) for end in (low, high))
        term = of.term
        if high < grid.high:
            term = Term("least", (term, constant(high)))
        if low > grid.low:
            term = Term("greatest", (term, constant(low)))
        return Lowered(Grid(grid.step, low, high), term)

    def _column(self, expression: ex.Field) -> Lowered:
        stored = self._find_column(expression.name)
        if stored.grid is None:
            raise InvalidValue(
                "column",
                expression.name,
                "a column of numbers here; texts are used by one_of, starts_with and lookup",
            )
        return Lowered(stored.grid, stored.term)

    def _constant(self, value: Fraction) -> Lowered:
        grid = grid_holding(value)
        return Lowered(grid, constant(grid.low))

    def _pairwise(self, expression: ex.Add | ex.Subtract | ex.Least | ex.Greatest) -> Lowered:
        left, right = self._align(self.number(expression.left), self.number(expression.right))
        a, b, step = left.grid, right.grid, left.grid.step
        match expression:
            case ex.Add():
                grid = Grid(step, a.low + b.low, a.high + b.high)
                return Lowered(grid, Term("add", (left.term, right.term)))
            case ex.Subtract():
                grid = Grid(step, a.low - b.high, a.high - b.low)
                return Lowered(grid, Term("subtract", (left.term, right.term)))
            case ex.Least():
                grid = Grid(step, min(a.low, b.low), min(a.high, b.high))
                return Lowered(grid, Term("least", (left.term, right.term)))
            case ex.Greatest():
                grid = Grid(step, max(a.low, b.low), max(a.high, b.high))
                return Lowered(grid, Term("greatest", (left.term, right.term)))

    def _product(self, left: Lowered, right: Lowered) -> Lowered:
        left, right = (self.coarser(one, _FACTOR_ROOM) for one in (left, right))
        ends = [x * y for x in _ends(left.grid) for y in _ends(right.grid)]
        term = Term("multiply", (left.term, right.term))
        step = left.grid.step * right.grid.step
        bits = max(0, max(map(abs, ends)).bit_length() - 52)
        if bits:
            term = Term("shift", (term,), (bits,))
            ends = [coarsen(end, bits) for end in ends]
        return Lowered(Grid(step * 2**bits, min(ends), max(ends)), term)

    def _absolute(self, of: Lowered) -> Lowered:
        term = Term("greatest", (of.term, Term("subtract", (constant(0), of.term))))
        low = 0 if of.grid.low <= 0 <= of.grid.high else min(map(abs, _ends(of.grid)))
        return Lowered(Grid(of.grid.step, low, of.grid.magnitude), term)

    def _quotient(self, expression: ex.Divide) -> Lowered:
        left, right = self.number(expression.left), self.number(expression.right)
        grid = grid_between(expression.lower, expression.upper)
        factor = _factor(left.grid.step / right.grid.step / grid.step)
        return Lowered(
            grid,
            _quotient(left.term, right.term, grid, factor, round(expression.default / grid.step)),
        )

    def _bucket(self, of: Lowered, width: Fraction) -> Lowered:
        grid = of.grid
        steps = width / grid.step
        if steps.denominator != 1 or steps > 2**50:
            raise InvalidValue("width", str(width), f"a multiple of {grid.step}, the step of it")
        size = steps.numerator
        low, high = grid.low // size, grid.high // size
        # Exact: a quotient of integers below 2**53 is never rounded up to a whole number.
        number = _quotient(of.term, constant(size), Grid(grid.step, low, high))
        term = Term("multiply", (number, constant(size)))
        return Lowered(Grid(grid.step, low * size, high * size), term)

    def _lookup(self, expression: ex.Lookup) -> Lowered:
        stored = self._find_text_column(expression.column)
        values = [case.value for case in expression.cases]
        grid = grid_holding(expression.default, *values)
        branches: list[Term] = []
        for case in expression.cases:
            wanted = _match_labels(stored, {case.text}.__contains__, [case.text])
            if wanted.op == "one_of":
                branches += [wanted, constant(round(case.value / grid.step))]
        default = constant(round(expression.default / grid.step))
        return Lowered(grid, Term("cases", (*branches, default)) if branches else default)

    def _to_number(self, expression: ex.ToNumber) -> Lowered:
        stored = self._find_column(expression.column)
        if not stored.is_text:
            expected = "a categorical column without declared categories; else use lookup"
            raise InvalidValue("column", expression.column, expected)
        grid = grid_between(expression.lower, expression.upper)
        default = round(expression.default / grid.step)
        args = (_factor(1 / grid.step), grid.low, grid.high, default)
        return Lowered(grid, Term("spelled", (stored.term,), args))

    def coarser(self, of: Lowered, room: int) -> Lowered:
        """The same number with a magnitude below ``room``."""
        bits = max(0, of.grid.magnitude.bit_length() - (room.bit_length() - 1))
        if bits == 0:
            return of
        low, high = (coarsen(end, bits) for end in _ends(of.grid))
        term = Term("shift", (of.term,), (bits,))
        return Lowered(Grid(of.grid.step * 2**bits, low, high), term)

    def _align(self, left: Lowered, right: Lowered) -> tuple[Lowered, Lowered]:
        """Both on one grid: the finer one, or the finest on which both fit."""
        left, right = self.coarser(left, _ROOM), self.coarser(right, _ROOM)
        step = min(left.grid.step, right.grid.step)
        for one in (left, right):
            while one.grid.magnitude * one.grid.step / step >= _ROOM:
                step *= 2
        return self._move_to_grid(left, step), self._move_to_grid(right, step)

    def _move_to_grid(self, of: Lowered, step: Fraction) -> Lowered:
        ratio = of.grid.step / step
        if ratio == 1:
            return of
        if of.grid.magnitude == 0:
            return Lowered(Grid(step, 0, 0), constant(0))
        if ratio > 1:
            factor = int(ratio)
            grid = Grid(step, of.grid.low * factor, of.grid.high * factor)
            return Lowered(grid, Term("multiply", (of.term, constant(factor))))
        bits = ratio.denominator.bit_length() - 1
        if bits > 60:
            return Lowered(Grid(step, 0, 0), constant(0))
        low, high = (coarsen(end, bits) for end in _ends(of.grid))
        return Lowered(Grid(step, low, high), Term("shift", (of.term,), (bits,)))

    # --- conditions --------------------------------------------------------------------

    def condition(self, expression: ex.Condition) -> Term:
        """Lower a condition."""
        match expression:
            case ex.Compare():
                return self._comparison(expression)
            case ex.OneOf():
                stored = self._find_text_column(expression.column)
                return _match_labels(stored, set(expression.values).__contains__, expression.values)
            case ex.StartsWith():
                stored = self._find_text_column(expression.column)
                if stored.is_text:
                    return Term("starts_with", (stored.term,), (expression.prefix,))
                return _match_labels(stored, lambda label: label.startswith(expression.prefix), [])
            case ex.AllOf():
                return Term("all_of", [self.condition(one) for one in expression.of])
            case ex.AnyOf():
                return Term("any_of", [self.condition(one) for one in expression.of])
            case ex.Not():
                return Term("negation", (self.condition(expression.of),))
        raise InvalidValue("expression", type(expression).__name__, "a condition")

    def _comparison(self, expression: ex.Compare) -> Term:
        how, left, right = expression.how, expression.left, expression.right
        if isinstance(left, ex.Value | ex.Day):
            if isinstance(right, ex.Value | ex.Day):
                return truth(COMPARED[how](_read_number(left), _read_number(right)))
            how, left, right = _MIRRORED[how], right, left
        if isinstance(right, ex.Value | ex.Day):
            return self._compare_exactly(how, self.number(left), _read_number(right))
        one, other = self._align(self.number(left), self.number(right))
        return Term("compare", (one.term, other.term), (how,))

    def _compare_exactly(self, how: str, left: Lowered, value: Fraction) -> Term:
        """Compare with a stated number exactly, also where it is between two points."""
        grid = left.grid
        at = value / grid.step
        if how in {"==", "!="} and at.denominator != 1:
            return truth(how == "!=")
        # n < at is n <= ceil(at) - 1, and so on; then the bound fits the range of n.
        if how == "<":
            how, bound = "<=", math.ceil(at) - 1
        elif how == ">":
            how, bound = ">=", math.floor(at) + 1
        else:
            bound = math.ceil(at) if how == ">=" else math.floor(at)
        if not grid.low <= bound <= grid.high:
            always = {"<=": bound > grid.high, ">=": bound < grid.low, "==": False, "!=": True}
            return truth(always[how])
        return Term("compare", (left.term, constant(bound)), (how,))

    # --- keys --------------------------------------------------------------------------

    def key(self, expression: ex.Number) -> Key:
        """A term to group by: a column of any kind, or a derived number."""
        if isinstance(expression, ex.Field):
            stored = self._find_column(expression.name)
            return Key(stored, stored.term)
        lowered = self.number(expression)
        return Key(StoredColumn("derived", -1, lowered.grid, None), lowered.term)

    def _find_column(self, name: str) -> StoredColumn:
        if name not in self._columns:
            raise InvalidValue("column", name, "a column of the schema")
        return self._columns[name]

    def _find_text_column(self, name: str) -> StoredColumn:
        stored = self._find_column(name)
        if stored.labels is None and not stored.is_text:
            raise InvalidValue("column", name, "a column of texts or labels; else use compare")
        return stored


def coarsen(value: int, bits: int) -> int:
    """floor(value / 2**bits), by way of a double: what every engine computes."""
    return math.floor(float(value) / float(2**bits))


def _match_labels(
    stored: StoredColumn, wanted: Callable[[str], bool], texts: Sequence[str]
) -> Term:
    """Return whether a row has a wanted label, or one of the texts where the column is text."""
    values: list[Any] = list(texts)
    if stored.labels is not None:
        values = [code for code, label in enumerate(stored.labels) if wanted(label)]
    return Term("one_of", (stored.term,), tuple(values)) if values else truth(False)


def _quotient(left: Term, right: Term, grid: Grid, factor: float = 1.0, default: int = 0) -> Term:
    """Return a quotient in steps, rounded down and cut to a grid; the default where right is 0."""
    return Term("quotient", (left, right), (factor, grid.low, grid.high, default))


def _read_number(expression: ex.Value | ex.Day) -> Fraction:
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


def subtract_floor(of: Lowered, floor: int) -> Lowered:
    """Return a number less ``floor`` steps."""
    if floor == 0:
        return of
    grid = Grid(of.grid.step, of.grid.low - floor, of.grid.high - floor)
    return Lowered(grid, Term("subtract", (of.term, constant(floor))))


def square_exactly(of: Lowered) -> Lowered:
    """Return the square of a number of at most 2**26 steps, so that it is exact."""
    if of.grid.magnitude > 2**26:
        raise NotApplicable("only numbers of at most 2**26 steps are squared exactly")
    low = 0 if of.grid.low <= 0 <= of.grid.high else min(of.grid.low**2, of.grid.high**2)
    grid = Grid(of.grid.step**2, low, of.grid.magnitude**2)
    return Lowered(grid, Term("multiply", (of.term, of.term)))


def truth_number(condition: Term) -> Lowered:
    """Return 1 where a condition holds, 0 elsewhere."""
    term = Term("cases", (condition, constant(1), constant(0)))
    return Lowered(Grid(Fraction(1), 0, 1), term)


def bin_index(of: Lowered, edges: Sequence[int]) -> Term:
    """Return how many of the increasing ``edges`` (in steps) a number has reached."""

    def search(first: int, last: int) -> Term:
        if first == last:
            return constant(first)
        middle = (first + last) // 2
        reached = Term("compare", (of.term, constant(edges[middle])), (">=",))
        return Term("cases", (reached, search(middle + 1, last), search(first, middle)))

    return search(0, len(edges))


def bucket_index(of: Lowered, width: int) -> Term:
    """Return floor((n - low) / width), which is exact because n - low is below 2**53."""
    rest = subtract_floor(of, of.grid.low)
    return _quotient(rest.term, constant(width), Grid(of.grid.step, 0, rest.grid.high // width))
