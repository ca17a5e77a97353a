"""Expressions as Ibis: one text for DuckDB and Spark, with the same integers on both.

Doubles are used only where IEEE 754 fixes the result to the bit: conversions of integers below
2**53, multiplication by powers of two, one correctly rounded quotient, comparison, floor. Texts are
trimmed and recognised by fixed patterns in the part of the pattern language on which both
engines agree; no pattern comes from a query. Every text of a query is a literal that Ibis writes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, final

import ibis  # type: ignore[import-untyped]

from discreet.curator.grids import StoredColumn

__all__ = ["IbisAlgebra", "double_in_text", "steps_of", "trimmed"]

_BLANKS = r"[\x09-\x0d\x20]+"
_DECIMAL = "^[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?"
_INFINITE = "^[+-]?[iI][nN][fF]([iI][nN][iI][tT][yY])?"
_LONGEST_NUMBER = 400


def integer(value: int) -> Any:
    """A 64-bit integer; engines take a short literal for 32 bits unless it is cast."""
    if -(2**31) < value < 2**31:
        return ibis.literal(value, type="int32").cast("int64")
    return ibis.literal(value, type="int64")


def double(value: float) -> Any:
    """A double; a whole one by way of an integer, as engines take a point for a decimal number."""
    if value.is_integer() and abs(value) < 2**63:
        return ibis.literal(int(value), type="int64").cast("float64")
    return ibis.literal(value, type="float64")


def scaled(term: Any, factor: float) -> Any:
    """A double times a power of two; only whole literals are written, which nothing can round."""
    if factor >= 1:
        return term * double(factor) if factor > 1 else term
    return term / double(1 / factor)


def steps_of(number: Any, *, factor: float, low: int, high: int, default: int) -> Any:
    """A double (NULL and NaN included) in steps: clipped, exact scaling, half to even.

    r = floor(s + 1/2) is at most one too large: where s + 1/2 was rounded up, or at a tie with odd
    r. Both show in r - s, which is exact.
    """
    back = 1 / factor
    missing = scaled(double(float(default)), back)
    known = ibis.ifelse(number.isnull() | number.isnan(), missing, number.cast("float64"))
    ends = (scaled(double(float(end)), back) for end in (low, high))
    clipped = ibis.least(ibis.greatest(known, next(ends)), next(ends))
    steps = scaled(clipped, factor)
    up = (steps + double(0.5)).floor().cast("int64")
    over = up.cast("float64") - steps
    odd = (up % integer(2)) != integer(0)
    too_large = (over > double(0.5)) | ((over == double(0.5)) & odd)
    return ibis.ifelse(too_large, up - integer(1), up)


def trimmed(text: Any) -> Any:
    """A text without the ASCII blanks around it."""
    return text.re_replace("^" + _BLANKS, "").re_replace(_BLANKS + r"\z", "")


def double_in_text(text: Any) -> Any:
    """The double that a trimmed text spells by the rules of a schema, or NULL; infinities too.

    What is left after the pattern is compared with nothing, because the two engines mean different
    things by the end of a text.
    """
    short = text.length() <= _LONGEST_NUMBER
    spelled = (text.re_replace(_DECIMAL, "") == "") & (text != "") & short
    infinite = (text.re_replace(_INFINITE, "") == "") & (text != "")
    number = ibis.ifelse(spelled, text, ibis.literal("0")).try_cast("float64")
    end = ibis.ifelse(text.startswith("-"), double(-_HUGE), double(_HUGE))
    return ibis.ifelse(spelled, number, ibis.ifelse(infinite, end, ibis.null().cast("float64")))


# Stands for an infinity where the number is clipped in the next step.
_HUGE = math.ldexp(1.0, 1000)


def _balanced(terms: Sequence[Any], join: Callable[[Any, Any], Any]) -> Any:
    """Join terms in a tree of little depth, as engines limit the depth of an expression."""
    if len(terms) == 1:
        return terms[0]
    middle = len(terms) // 2
    return join(_balanced(terms[:middle], join), _balanced(terms[middle:], join))


@final
class IbisAlgebra:
    """Terms are Ibis columns of one table."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def column(self, stored: StoredColumn) -> Any:
        """A kept column."""
        kept = self._table[stored.kept_as]
        return kept if stored.is_text else kept.cast("int64")

    def constant(self, value: int) -> Any:
        """A stated integer."""
        return integer(value)

    def truth(self, value: bool) -> Any:
        """A stated truth value."""
        return ibis.literal(value)

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
        """Divided by a power of two, rounded down."""
        return (term.cast("float64") / double(float(2**bits))).floor().cast("int64")

    def least(self, left: Any, right: Any) -> Any:
        """The smaller one."""
        return ibis.least(left, right)

    def greatest(self, left: Any, right: Any) -> Any:
        """The larger one."""
        return ibis.greatest(left, right)

    def choose(self, when: Any, then: Any, otherwise: Any) -> Any:
        """One of two."""
        return ibis.ifelse(when, then, otherwise)

    def first_of(self, branches: Sequence[tuple[Any, Any]], otherwise: Any) -> Any:
        """The first whose condition holds; flat, however many there are."""
        return ibis.cases(*branches, else_=otherwise) if branches else otherwise

    def compare(self, how: str, left: Any, right: Any) -> Any:
        """A comparison."""
        match how:
            case "<":
                return left < right
            case "<=":
                return left <= right
            case "==":
                return left == right
            case "!=":
                return left != right
            case ">=":
                return left >= right
        return left > right

    def one_of(self, term: Any, values: Sequence[Any]) -> Any:
        """Membership."""
        return term.isin(list(values))

    def starts_with(self, term: Any, prefix: str) -> Any:
        """A prefix."""
        return term.startswith(prefix)

    def all_of(self, terms: Sequence[Any]) -> Any:
        """Conjunction."""
        return _balanced(terms, lambda one, other: one & other)

    def any_of(self, terms: Sequence[Any]) -> Any:
        """Disjunction."""
        return _balanced(terms, lambda one, other: one | other)

    def negation(self, term: Any) -> Any:
        """Negation."""
        return ~term

    def quotient(
        self, left: Any, right: Any, *, factor: float, low: int, high: int, default: int
    ) -> Any:
        """A quotient in steps, rounded down, cut to bounds; the default where there is none."""
        nothing = right == integer(0)
        divisor = ibis.ifelse(nothing, integer(1), right).cast("float64")
        steps = scaled(left.cast("float64") / divisor, factor)
        cut = ibis.least(ibis.greatest(steps, double(float(low))), double(float(high)))
        return ibis.ifelse(nothing, integer(default), cut.floor().cast("int64"))

    def number_in_text(self, term: Any, *, factor: float, low: int, high: int, default: int) -> Any:
        """The number that a text spells, in steps, rounded half to even, cut to bounds."""
        return steps_of(double_in_text(term), factor=factor, low=low, high=high, default=default)
