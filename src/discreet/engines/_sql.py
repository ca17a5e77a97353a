"""Aggregations as SQL: Ibis writes the dialect of a database from the same terms.

Every text of a query is a literal that Ibis writes; no pattern comes from a query. The database
stores, beside a text, the number that it spells, so that none reads numbers by rules of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ibis  # type: ignore[import-untyped]

from discreet.engines._lowering import StoredColumn
from discreet.engines._rows import OWNED, PERSON, RANK
from discreet.engines._table import Aggregation, limbs
from discreet.engines._term import COMPARED, Term

SPELLED = "_number"  # behind the name of a text column: the number that the text spells
HUGE = 2.0**1000  # stands for an infinity, as the number is clipped in the next step


def bounded_table(columns: Sequence[StoredColumn], *, persons: bool) -> Any:
    """Return the bounded table of a database, as Ibis sees it, with the columns in their order.

    A union of rows of the table matches columns by their places.
    """
    kinds: dict[str, str] = {}
    for stored in columns:
        kinds[stored.stored_name] = stored.storage or "string"
        if stored.is_text:
            kinds[stored.stored_name + SPELLED] = "float64"
    if persons:
        kinds |= {PERSON: "int64", RANK: "int32", OWNED: "int32"}
    return ibis.table(kinds, name="bounded")


def write_sql(
    aggregation: Aggregation, table: Any, *, dialect: str, text: Callable[[str], str] = str
) -> str:
    """Return the text of an aggregation: keys, count, limbs of the sums.

    Parameters
    ----------
    aggregation
        What to compute.
    table
        What :func:`bounded_table` made.
    dialect
        The name that Ibis has for the database.
    text
        What the database has for a text of the query.

    """
    writer = _Writer(table, text)
    if aggregation.where is not None:
        table = table.filter(writer.write(aggregation.where))
    if aggregation.count == "persons":
        owned = table.group_by(PERSON).aggregate(owned=table.count())
        table = owned.filter(owned.owned > _integer(aggregation.more_than))
    elif aggregation.cap is not None and aggregation.where is not None and not aggregation.picks:
        return str(ibis.to_sql(count_capped(table, aggregation.cap), dialect=dialect))
    elif aggregation.cap is not None:
        table = first_in_line(table, aggregation.cap, filtered=aggregation.where is not None)
    return str(ibis.to_sql(add_up(table, aggregation, text), dialect=dialect))


def add_up(table: Any, aggregation: Aggregation, text: Callable[[str], str] = str) -> Any:
    """Count the rows of a table and add up limbs, for each combination of keys."""
    writer = _Writer(table, text)
    if aggregation.among is not None:
        table = table.filter(writer.write(aggregation.among))
        writer = _Writer(table, text)
    keys = {f"k{at}": writer.write(key) for at, key in enumerate(aggregation.keys)}
    every = [limb for one in aggregation.sums for limb in limbs(one)]
    sums = {f"s{at}": writer.write(limb) for at, limb in enumerate(every)}
    if not keys and not sums:
        return table.aggregate(rows=table.count())
    # Terms become columns first, as one that is constant could not be added up.
    terms = table.select(**keys, **sums)
    totals = {name: terms[name].sum() for name in sums}
    grouped = terms.group_by(list(keys)) if keys else terms
    return grouped.aggregate(rows=terms.count(), **totals)


def first_in_line(table: Any, cap: int, *, filtered: bool) -> Any:
    """Return the first ``cap`` rows of each person among the rows of a table.

    ``filtered`` says that the table is not whole, so that places have to be counted anew; that is
    done for those persons only who have more than ``cap`` rows in it. Who owns no more than that
    in the whole table is not even counted.
    """
    if not filtered:
        return table.filter(table[RANK].cast("int64") <= _integer(cap))
    few = table.filter(table[OWNED].cast("int64") <= _integer(cap))
    rest = table.filter(table[OWNED].cast("int64") > _integer(cap))
    found = rest.group_by(PERSON).aggregate(found=rest.count())
    many = found.filter(found.found > _integer(cap))
    line = rest.semi_join(many, PERSON)
    number = ibis.row_number().over(group_by=[line[PERSON]], order_by=[line[RANK]])
    line = line.mutate(place=number.cast("int64") + _integer(1))
    first = line.filter(line.place <= _integer(cap)).drop("place")
    return few.union(rest.anti_join(many, PERSON), first)


def count_capped(table: Any, cap: int) -> Any:
    """Count the rows of a table that is not whole, at most ``cap`` of each person.

    Which of them count does not matter to a number of rows, so they are not put in line. Who owns
    no more than ``cap`` rows in the whole table goes into one group, which has no cap.
    """
    few = table[OWNED].cast("int64") <= _integer(cap)
    each = table.group_by(whose=ibis.ifelse(few, _integer(-1), table[PERSON]))
    each = each.aggregate(found=table.count())
    most = ibis.ifelse(each.whose == _integer(-1), each.found, _integer(cap))
    return each.aggregate(rows=ibis.least(each.found, most).sum().fill_null(0))


class _Writer:
    """Terms as Ibis columns of one table."""

    def __init__(self, table: Any, text: Callable[[str], str]) -> None:
        self._table = table
        self._text = text

    def write(self, term: Term) -> Any:
        if term.op == "column":
            name, is_text = term.args
            return self._table[name] if is_text else self._table[name].cast("int64")
        if term.op == "spelled":
            return _steps(self._table[term.of[0].args[0] + SPELLED], *term.args)
        args = [self._text(one) if isinstance(one, str) else one for one in term.args]
        return _OPERATIONS[term.op]([self.write(one) for one in term.of], *args)


def _integer(value: int) -> Any:
    """Return a 64-bit integer; databases take a short literal for 32 bits unless it is cast."""
    if -(2**31) < value < 2**31:
        return ibis.literal(value, type="int32").cast("int64")
    return ibis.literal(value, type="int64")


def _double(value: float) -> Any:
    """Return a double; a whole one by way of an integer, as a point may mean a decimal number."""
    if value.is_integer() and abs(value) < 2**63:
        return ibis.literal(int(value), type="int64").cast("float64")
    return ibis.literal(value, type="float64").cast("float64")


def _scale(term: Any, factor: float) -> Any:
    """Return a double times a power of two; only whole literals are written, which are exact."""
    if factor >= 1:
        return term * _double(factor) if factor > 1 else term
    return term / _double(1 / factor)


def _steps(number: Any, factor: float, low: int, high: int, default: int) -> Any:
    """Return a double or NULL in steps: clipped, exact scaling, half to even.

    r = floor(s + 1/2) is at most one too large: where s + 1/2 was rounded up, or at a tie with odd
    r. Both show in r - s, which is exact.
    """
    back = 1 / factor
    known = ibis.ifelse(number.isnull(), _scale(_double(float(default)), back), number)
    lower, upper = (_scale(_double(float(end)), back) for end in (low, high))
    steps = _scale(ibis.least(ibis.greatest(known, lower), upper), factor)
    up = (steps + _double(0.5)).floor().cast("int64")
    over = up.cast("float64") - steps
    odd = (up % _integer(2)) != _integer(0)
    too_large = (over > _double(0.5)) | ((over == _double(0.5)) & odd)
    return ibis.ifelse(too_large, up - _integer(1), up)


def _quotient(of: list[Any], factor: float, low: int, high: int, default: int) -> Any:
    left, right = of
    nothing = right == _integer(0)
    divisor = ibis.ifelse(nothing, _integer(1), right).cast("float64")
    steps = _scale(left.cast("float64") / divisor, factor)
    cut = ibis.least(ibis.greatest(steps, _double(float(low))), _double(float(high)))
    return ibis.ifelse(nothing, _integer(default), cut.floor().cast("int64"))


def _cases(of: list[Any]) -> Any:
    pairs = [(of[at], of[at + 1]) for at in range(0, len(of) - 1, 2)]
    return ibis.cases(*pairs, else_=of[-1])


def _join_balanced(terms: Sequence[Any], join: Callable[[Any, Any], Any]) -> Any:
    """Join terms in a tree of little depth, as databases limit the depth of an expression."""
    if len(terms) == 1:
        return terms[0]
    middle = len(terms) // 2
    return join(_join_balanced(terms[:middle], join), _join_balanced(terms[middle:], join))


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "constant": lambda _, value: _integer(value),
    "truth": lambda _, value: ibis.literal(value),
    "add": lambda of: of[0] + of[1],
    "subtract": lambda of: of[0] - of[1],
    "multiply": lambda of: of[0] * of[1],
    "least": lambda of: ibis.least(*of),
    "greatest": lambda of: ibis.greatest(*of),
    "shift": lambda of, bits: (
        (of[0].cast("float64") / _double(float(2**bits))).floor().cast("int64")
    ),
    "quotient": _quotient,
    "cases": _cases,
    "compare": lambda of, how: COMPARED[how](*of),
    "one_of": lambda of, *values: of[0].isin(list(values)),
    "starts_with": lambda of, prefix: of[0].startswith(prefix),
    "all_of": lambda of: _join_balanced(of, lambda one, other: one & other),
    "any_of": lambda of: _join_balanced(of, lambda one, other: one | other),
    "negation": lambda of: ~of[0],
}
