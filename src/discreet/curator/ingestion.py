"""From the columns of a file to kept columns: the rules of a schema, as Ibis expressions.

Each kept value is a function of one cell, and no cell is an error: what cannot be read is
*missing* and gets the declared value, exactly as :meth:`discreet.data.Column.to_domain` says.
What can be refused is the type of a column in the file, which is public.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from typing import Any

import ibis  # type: ignore[import-untyped]

from discreet.curator.grids import LONGEST_KEPT_TEXT, StoredColumn
from discreet.curator.ibis_algebra import double_in_text, integer, steps_of, trimmed
from discreet.data import Boolean, Bounded, Categorical, Column, Date
from discreet.errors import InvalidValue

__all__ = ["kept_column", "person_text"]

_WHOLE = 2.0**53
_YES = ("true", "t", "yes", "y", "1")
_NO = ("false", "f", "no", "n", "0")
_WHOLE_WITH_POINT = "^[+-]?[0-9]+[.]0*"


def kept_column(raw: Any, column: Column, stored: StoredColumn, *, coded: bool = False) -> Any:
    """The kept form of a column of the file; ``coded`` says that it holds numbers as read."""
    if isinstance(column, Bounded):
        assert stored.grid is not None
        number = raw.cast("float64") if coded else _number(raw, column, stored.name)
        fill = round(column.fill / float(stored.grid.step))
        return steps_of(
            number,
            factor=float(1 / stored.grid.step),
            low=stored.grid.low,
            high=stored.grid.high,
            default=fill,
        )
    if isinstance(column, Boolean):
        gap = int(column.missing)
        if coded:
            return raw.cast("int64")
        one, zero = _truths(raw, stored.name)
        return ibis.cases(
            (one.fill_null(False), integer(1)),
            (zero.fill_null(False), integer(0)),
            else_=integer(gap),
        )
    assert isinstance(column, Categorical)
    if coded and stored.labels is not None:
        return raw.cast("int64")
    return _label(raw, column, stored)


def person_text(raw: Any, name: str) -> Any:
    """The text that names a person, or NULL for nobody known."""
    kind = raw.type()
    if kind.is_string():
        return trimmed(raw).nullif("")
    if kind.is_integer():
        return raw.cast("string")
    if kind.is_floating():  # as discreet.data.text_of has it: all but NaN name somebody
        number = raw.cast("float64")
        text = _whole_text(number).fill_null(number.cast("string"))
        return ibis.ifelse(number.isnan().fill_null(True), ibis.null().cast("string"), text)
    raise InvalidValue(f"source.{name}", str(kind), "texts or numbers that name persons")


def _number(raw: Any, column: Column, name: str) -> Any:
    kind = raw.type()
    if isinstance(column, Date):
        return _days(raw, name)
    if kind.is_string():
        return double_in_text(trimmed(raw))
    if kind.is_boolean():
        return raw.cast("int64").cast("float64")
    if kind.is_integer() or kind.is_floating():
        return raw.cast("float64")
    if kind.is_decimal():  # by its digits: the engines round a division differently
        return double_in_text(raw.cast("string"))
    raise InvalidValue(f"source.{name}", str(kind), "numbers or texts")


def _days(raw: Any, name: str) -> Any:
    kind = raw.type()
    if kind.is_date() or kind.is_timestamp():
        day = raw.cast("date")
    elif kind.is_string():
        text = trimmed(raw)
        head = text.substr(0, 10)
        shaped = (head.re_replace("^[0-9]{4}-[0-9]{2}-[0-9]{2}", "") == "") & (text.length() >= 10)
        rest = text.substr(10, 1)
        spelled = shaped & rest.isin(["", "T", " "]) & ~text.startswith("0000")
        day = ibis.ifelse(spelled, head, ibis.null().cast("string")).try_cast("date")
    elif kind.is_numeric() or kind.is_boolean():
        return ibis.null().cast("float64")
    else:
        raise InvalidValue(f"source.{name}", str(kind), "dates or texts")
    return day.delta(ibis.literal(dt.date(1970, 1, 1)), unit="day").cast("float64")


def _truths(raw: Any, name: str) -> tuple[Any, Any]:
    kind = raw.type()
    if kind.is_boolean():
        return raw, ~raw
    if kind.is_string():
        text = trimmed(raw)
        return _any_case(text, _YES), _any_case(text, _NO)
    if kind.is_integer() or kind.is_floating():
        number = raw.cast("float64")
        return number == 1.0, number == 0.0
    if kind.is_decimal():
        number = double_in_text(raw.cast("string"))
        return number == 1.0, number == 0.0
    raise InvalidValue(f"source.{name}", str(kind), "truth values, numbers or texts")


def _any_case(text: Any, words: tuple[str, ...]) -> Any:
    """Equality in any case of ASCII letters, and of those only."""
    either = "|".join(
        "".join(f"[{one}{one.upper()}]" if one.isalpha() else one for one in word)
        for word in sorted(words, key=len, reverse=True)
    )
    return (text.re_replace(f"^({either})", "") == "") & (text != "")


def _label(raw: Any, column: Categorical, stored: StoredColumn) -> Any:
    kind = raw.type()
    missing = column.other if column.missing is None else column.missing
    if kind.is_string():
        text = trimmed(raw)
    elif kind.is_integer() or kind.is_date():
        text = raw.cast("string")
    elif stored.labels is not None and (kind.is_floating() or kind.is_decimal()):
        number = raw.cast("float64") if kind.is_floating() else double_in_text(raw.cast("string"))
        return _label_of_number(number, stored.labels, missing, column.other)
    elif stored.labels is not None and kind.is_boolean():
        text = ibis.ifelse(raw, "True", "False")
    else:
        raise InvalidValue(f"source.{stored.name}", str(kind), "texts or whole numbers")
    if stored.labels is None:
        return _kept_text(text, column.other, missing)
    return _code_of(text, stored.labels, missing, column.other)


def _kept_text(text: Any, other: str, missing: str) -> Any:
    """A text of at most 100 characters; longer ones are ``other``, empty ones ``missing``."""
    return ibis.cases(
        (text.isnull() | (text == "").fill_null(True), ibis.literal(missing)),
        (text.length() > LONGEST_KEPT_TEXT, ibis.literal(other)),
        else_=text,
    )


def _code_of(text: Any, labels: tuple[str, ...], missing: str, other: str) -> Any:
    code = {label: integer(at) for at, label in enumerate(labels)}
    branches = [
        (text.isnull() | (text == "").fill_null(True), code[missing]),
        *((text == label, code[label]) for label in labels),
    ]
    whole = [label for label in labels if re.fullmatch(r"[+-]?[0-9]+", label)]
    if whole:
        pointed = (text.re_replace(_WHOLE_WITH_POINT, "") == "") & text.contains(".")
        before = ibis.ifelse(pointed, text.re_replace("[.]0*", ""), "")
        branches += [(before == label, code[label]) for label in whole]
    return ibis.cases(*branches, else_=code[other])


def _label_of_number(number: Any, labels: tuple[str, ...], missing: str, other: str) -> Any:
    code = {label: integer(at) for at, label in enumerate(labels)}
    branches = [(number.isnull() | number.isnan(), code[missing])]
    text = _whole_text(number)
    for label in labels:
        if re.fullmatch(r"-?[0-9]+", label):
            branches.append((text.fill_null("") == label, code[label]))
        elif _is_double(label):
            branches.append((number == float(label), code[label]))
    return ibis.cases(*branches, else_=code[other])


def _is_double(label: str) -> bool:
    try:
        return math.isfinite(float(label)) and repr(float(label)) == label
    except ValueError:
        return False


def _whole_text(number: Any) -> Any:
    """A double that is whole, as text; NULL for others and for those beyond 2**53."""
    fits = number.notnull() & ~number.isnan() & (number.abs() < _WHOLE)
    safe = ibis.ifelse(fits.fill_null(False), number, 0.5)
    whole = safe.floor().cast("int64")
    is_whole = whole.cast("float64") == safe
    return ibis.ifelse(is_whole, whole.cast("string"), ibis.null().cast("string"))
