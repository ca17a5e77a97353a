"""Filters and derived columns: a closed set of expressions, every one of them total.

No record can make an expression fail. Division has a declared result where the divisor is zero
and declared bounds at which it saturates; a text becomes a number through a table of cases or
:class:`ToNumber`, with a declared result for the rest; texts are compared by equality, prefix
and membership, never by regular expressions. Numbers live on fixed-point grids whose range is
known beforehand (:class:`Lowering`), so nothing can overflow.

In JSON an expression is an object with its name as ``"op"``:

>>> Compare("<", Field("age"), Value(30)).to_json()["how"]
'<'
>>> condition_from_json({"op": "one_of", "column": "city", "values": ["Oslo", "Bergen"]})
OneOf(column='city', values=('Oslo', 'Bergen'))
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, ClassVar, cast, final

from discreet._forms import (
    Form,
    choice,
    exact,
    form_of,
    read_form,
    row_of,
    scalar,
    text,
)
from discreet.errors import InvalidValue


class Number(Form):
    """An expression that is a number in every row."""

    key: ClassVar[str] = "op"


class Condition(Form):
    """An expression that is true or false in every row."""

    key: ClassVar[str] = "op"


NUMBERS: dict[str, type[Form]] = {}
CONDITIONS: dict[str, type[Form]] = {}

number = form_of(Number, lambda: NUMBERS)
condition = form_of(Condition, lambda: CONDITIONS)
_bound = exact()


def _date(argument: str, value: object) -> dt.date:
    if isinstance(value, str) and len(value) == 10 and value[4] == value[7] == "-":
        try:
            return dt.date.fromisoformat(value)
        except ValueError:
            raise InvalidValue(argument, value, "a day as YYYY-MM-DD") from None
    if not isinstance(value, dt.date) or isinstance(value, dt.datetime):
        raise InvalidValue(argument, type(value).__name__, "a day as YYYY-MM-DD")
    return value


_day = scalar(
    _date,
    {"type": "string", "format": "date", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"},
    write=lambda day: day.isoformat(),
)


@final
@dataclass(frozen=True)
class Field(Number):
    """A column of the schema; dates are days since 1970-01-01, truth values 0 and 1."""

    tag: ClassVar[str] = "column"
    name: Annotated[str, text]


@final
@dataclass(frozen=True)
class Value(Number):
    """A number that the query states; beside columns it is rounded to about 31 binary digits."""

    tag: ClassVar[str] = "value"
    value: Annotated[Fraction, exact()]


@final
@dataclass(frozen=True)
class Day(Number):
    """A date that the query states, as the number of days since 1970-01-01."""

    tag: ClassVar[str] = "day"
    day: Annotated[dt.date, _day]


@dataclass(frozen=True)
class _Pair(Number):
    left: Annotated[Number, number]
    right: Annotated[Number, number]


@final
class Add(_Pair):
    """left + right."""

    tag: ClassVar[str] = "add"


@final
class Subtract(_Pair):
    """left - right."""

    tag: ClassVar[str] = "subtract"


@final
class Multiply(_Pair):
    """left * right."""

    tag: ClassVar[str] = "multiply"


@final
@dataclass(frozen=True)
class Divide(_Pair):
    """left / right, cut to ``lower`` .. ``upper``; ``default`` where right is zero."""

    tag: ClassVar[str] = "divide"
    lower: Annotated[Fraction, _bound]
    upper: Annotated[Fraction, _bound]
    default: Annotated[Fraction, _bound]

    def __post_init__(self) -> None:
        super().__post_init__()
        _inside(self.lower, self.upper, self.default)


@final
@dataclass(frozen=True)
class Absolute(Number):
    """The absolute value."""

    tag: ClassVar[str] = "absolute"
    of: Annotated[Number, number]


@final
class Least(_Pair):
    """The smaller of two."""

    tag: ClassVar[str] = "least"


@final
class Greatest(_Pair):
    """The larger of two."""

    tag: ClassVar[str] = "greatest"


@final
@dataclass(frozen=True)
class Clip(Number):
    """A number cut to ``lower`` .. ``upper``."""

    tag: ClassVar[str] = "clip"
    of: Annotated[Number, number]
    lower: Annotated[Fraction, _bound]
    upper: Annotated[Fraction, _bound]

    def __post_init__(self) -> None:
        super().__post_init__()
        _inside(self.lower, self.upper, self.lower)


@final
@dataclass(frozen=True)
class Bucket(Number):
    """A number rounded down to a multiple of ``width``, itself a multiple of the number's step."""

    tag: ClassVar[str] = "bucket"
    of: Annotated[Number, number]
    width: Annotated[Fraction, exact(above=0)]


@final
@dataclass(frozen=True)
class If(Number):
    """``then`` in rows where ``when`` holds, ``otherwise`` in the others."""

    tag: ClassVar[str] = "if"
    when: Annotated[Condition, condition]
    then: Annotated[Number, number]
    otherwise: Annotated[Number, number]


class CaseForm(Form):
    """Base of the cases of a :class:`Lookup`."""

    key: ClassVar[str] = "op"


@final
@dataclass(frozen=True)
class Case(CaseForm):
    """One case of a :class:`Lookup`: a text and the number that stands for it."""

    tag: ClassVar[str] = "case"
    text: Annotated[str, text]
    value: Annotated[Fraction, exact()]


_case = form_of(CaseForm, lambda: {"case": Case})


@final
@dataclass(frozen=True)
class Lookup(Number):
    """A number for each of some texts of a column, and ``default`` for all others."""

    tag: ClassVar[str] = "lookup"
    column: Annotated[str, text]
    cases: Annotated[tuple[Case, ...], row_of(_case, most=500)]
    default: Annotated[Fraction, _bound]

    def __post_init__(self) -> None:
        super().__post_init__()
        if len({case.text for case in self.cases}) != len(self.cases):
            raise InvalidValue("cases", "a text twice", "distinct texts")


@final
@dataclass(frozen=True)
class ToNumber(Number):
    """The number that a text column spells, cut to bounds; ``default`` where it spells none."""

    tag: ClassVar[str] = "to_number"
    column: Annotated[str, text]
    lower: Annotated[Fraction, _bound]
    upper: Annotated[Fraction, _bound]
    default: Annotated[Fraction, _bound]

    def __post_init__(self) -> None:
        super().__post_init__()
        _inside(self.lower, self.upper, self.default)


@final
@dataclass(frozen=True)
class Compare(Condition):
    """left < right, and the other five comparisons."""

    tag: ClassVar[str] = "compare"
    how: Annotated[str, choice("<", "<=", "==", "!=", ">=", ">")]
    left: Annotated[Number, number]
    right: Annotated[Number, number]


@final
@dataclass(frozen=True)
class OneOf(Condition):
    """Whether the text of a column is one of some texts."""

    tag: ClassVar[str] = "one_of"
    column: Annotated[str, text]
    values: Annotated[tuple[str, ...], row_of(text, most=500)]


@final
@dataclass(frozen=True)
class StartsWith(Condition):
    """Whether the text of a column begins with a prefix."""

    tag: ClassVar[str] = "starts_with"
    column: Annotated[str, text]
    prefix: Annotated[str, text]


@final
@dataclass(frozen=True)
class AllOf(Condition):
    """Whether all of some conditions hold."""

    tag: ClassVar[str] = "all"
    of: Annotated[tuple[Condition, ...], row_of(condition, most=100)]


@final
@dataclass(frozen=True)
class AnyOf(Condition):
    """Whether any of some conditions holds."""

    tag: ClassVar[str] = "any"
    of: Annotated[tuple[Condition, ...], row_of(condition, most=100)]


@final
@dataclass(frozen=True)
class Not(Condition):
    """Whether a condition does not hold."""

    tag: ClassVar[str] = "not"
    of: Annotated[Condition, condition]


NUMBERS.update(
    {
        one.tag: one
        for one in (*Number.__subclasses__(), *_Pair.__subclasses__())
        if one is not _Pair
    }
)
CONDITIONS.update({one.tag: one for one in Condition.__subclasses__()})


def number_from_json(document: Mapping[str, Any]) -> Number:
    """Read a numeric expression, strictly."""
    return cast("Number", read_form("", document, NUMBERS, "op", 0))


def condition_from_json(document: Mapping[str, Any]) -> Condition:
    """Read a condition, strictly."""
    return cast("Condition", read_form("", document, CONDITIONS, "op", 0))


def _inside(lower: Fraction, upper: Fraction, default: Fraction) -> None:
    if not lower < upper:
        raise InvalidValue("upper", str(upper), f"a number above lower = {lower}")
    if not lower <= default <= upper:
        raise InvalidValue("default", str(default), f"a number from {lower} to {upper}")
