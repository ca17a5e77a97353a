"""Fixed-point grids: how each column of a schema is kept as 64-bit integers.

A number is ``n * step`` with a public power of two ``step`` and public bounds ``low <= n <= high``,
magnitudes up to 2**53. Whole numbers, dates and truth values have step 1; a real column has
about 2**30 steps between its bounds. The double that was read is clipped to the bounds, divided
by the step, which is exact, and rounded half to even: the same integer on every engine.

Labels are kept as their codes. A categorical column without declared categories is kept as text.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, final

from discreet.data import Boolean, Bounded, Categorical, Date, Integer, Labelled, Schema
from discreet.errors import InvalidValue, NotApplicable

__all__ = [
    "LARGEST",
    "LONGEST_KEPT_TEXT",
    "PERSON",
    "Grid",
    "StoredColumn",
    "grid_between",
    "grid_holding",
    "stored_columns",
]

LARGEST = 2**53
LONGEST_KEPT_TEXT = 100
PERSON = "person"  # the column that tells persons apart
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
        raise NotApplicable(f"numbers of the size 2**{exponent} are beyond the grids of a curator")
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
    def kept_as(self) -> str:
        """The name that the column has in the bounded table; no user's text."""
        return f"c{self.position}"

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
    """Whether a range fits signed integers of so many bits."""
    return -(1 << (bits - 1)) <= low and high < 1 << (bits - 1)


def stored_columns(schema: Schema) -> Mapping[str, StoredColumn]:
    """How each column of a schema is kept, by public facts alone."""
    stored: dict[str, StoredColumn] = {}
    for position, (name, column) in enumerate(schema.columns.items()):
        grid: Grid | None = None
        labels: tuple[str, ...] | None = None
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
            raise InvalidValue(f"columns.{name}", column.kind, "a column that a curator knows")
        stored[name] = StoredColumn(name, position, grid, labels, isinstance(column, Date))
    return stored
