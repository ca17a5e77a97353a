"""Coarser cells: the usual repair of a table that identifies people, to be measured, not trusted.

A generalisation maps one text to a coarser one, whatever the other cells say:

=================  =========================================================================
``zip:prefix=3``   the first three characters
``age:band=10``    numbers in bands of width 10, ``[20, 30)``
``birth:month``    dates to their month; also ``day`` (of times), ``year`` and ``decade``
``city:drop``      the column says nothing any more
=================  =========================================================================

A text that is no number or no date stays as it is, and so does an empty cell.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import final

import numpy as np

from discreet.attacks.anonymity.coded import CodedColumn
from discreet.data.cells import date_in_text, number_in_text
from discreet.errors import InvalidValue

__all__ = ["Generalisation"]

_FORM = re.compile(
    r"(?P<column>.+):(?P<rule>prefix|band|day|month|year|decade|drop)(?:=(?P<size>.+))?"
)
_FORMS = "COLUMN:prefix=N, COLUMN:band=WIDTH, COLUMN:day, :month, :year, :decade or :drop"
_DATE_LENGTHS = {"day": 10, "month": 7, "year": 4, "decade": 3}


@final
@dataclass(frozen=True)
class Generalisation:
    """One column made coarser; see :meth:`parse` for the written form.

    >>> rule = Generalisation.parse("age:band=10")
    >>> rule.text(b"27"), rule.text(b""), str(rule)
    (b'[20, 30)', b'', 'age:band=10')
    >>> Generalisation.parse("birth:decade").text(b"1987-03-01")
    b'198?'
    """

    column: str
    rule: str
    size: float | None = None

    def __post_init__(self) -> None:
        _check(str(self), self.rule, self.size)

    @classmethod
    def parse(cls, text: object) -> Generalisation:
        """Read ``COLUMN:RULE`` or ``COLUMN:RULE=SIZE``."""
        found = _FORM.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise InvalidValue("generalise", text, _FORMS)
        size = found["size"]
        try:
            return cls(found["column"], found["rule"], None if size is None else float(size))
        except ValueError:
            raise InvalidValue("generalise", text, _FORMS) from None

    def __str__(self) -> str:
        size = "" if self.size is None else f"={self.size:g}"
        return f"{self.column}:{self.rule}{size}"

    def text(self, text: bytes) -> bytes:
        """Return the coarser form of one cell."""
        if self.rule == "drop":
            return b"*"
        if not text:
            return text
        if self.rule == "prefix":
            assert self.size is not None
            # Characters, not bytes: half a character would be no text.
            return text.decode("utf-8", "surrogateescape")[: int(self.size)].encode(
                "utf-8", "surrogateescape"
            )
        if self.rule == "band":
            return self._band(text)
        if math.isnan(date_in_text(text)):
            return text
        length = _DATE_LENGTHS[self.rule]
        return text[:length] + (b"?" if self.rule == "decade" else b"")

    def apply(self, column: CodedColumn) -> CodedColumn:
        """Return a whole column in its coarser form; each distinct text is looked at once."""
        book: dict[bytes, int] = {}
        places = [book.setdefault(self.text(text), len(book)) for text in column.texts]
        moved = np.array(places, dtype=np.int64)
        return CodedColumn(moved[column.codes] if places else column.codes, list(book))

    def _band(self, text: bytes) -> bytes:
        number = number_in_text(text)
        if not math.isfinite(number):
            return text
        assert self.size is not None
        # Decimals as they are written: 0.3 is no multiple of 0.1 in binary. What is nearer to 0
        # than every double has an exponent of any size, and is 0 here.
        exact = Fraction(text.decode("ascii").strip()) if number else Fraction(0)
        width = Decimal(repr(self.size))
        start = math.floor(exact / Fraction(width))
        return f"[{_edge(start, width)}, {_edge(start + 1, width)})".encode()


def _edge(steps: int, width: Decimal) -> str:
    """Return a multiple of a width with all its digits: two bands never have one name."""
    _, digits, exponent = width.as_tuple()
    mantissa = int("".join(map(str, digits)))
    text = format(Decimal(f"{steps * mantissa}E{exponent}"), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _check(shown: str, rule: str, size: float | None) -> None:
    sized = rule in {"prefix", "band"}
    known = sized or rule in {*_DATE_LENGTHS, "drop"}
    fits = known and sized == (size is not None)
    if fits and size is not None:
        fits = math.isfinite(size) and size > 0
        if rule == "prefix":
            fits = fits and size == int(size)
    if not fits:
        raise InvalidValue("generalise", shown, _FORMS)
