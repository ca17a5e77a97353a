"""Reading options: numbers as people write them, refused in the words they typed.

Real numbers are decimals, scientific notation or a fraction of two such numbers.
A value that is refused is reported as it was typed, not as it was read.
"""

from __future__ import annotations

import math
from typing import Annotated

import typer

from discreet import _validate
from discreet.errors import InvalidValue

__all__ = [
    "ChargedDataset",
    "ChargedLedger",
    "InsecureSeed",
    "Json",
    "RelationName",
    "count",
    "real",
    "shown",
]

_FORMS = "a number such as 0.01, 1e-5 or 256/60000"

Json = Annotated[bool, typer.Option("--json", help="Print a JSON object instead of a table.")]
ChargedLedger = Annotated[
    str | None,
    typer.Option(metavar="LEDGER", help="Charge this ledger before any record is read."),
]
ChargedDataset = Annotated[
    str | None, typer.Option(metavar="NAME", help="The dataset to charge in the ledger.")
]
InsecureSeed = Annotated[
    str | None,
    typer.Option(
        "--insecure-seed",
        metavar="INTEGER",
        help="Repeatable noise for experiments. It protects nothing, and the output says so.",
    ),
]
RelationName = Annotated[
    str | None,
    typer.Option(
        metavar="add_remove|replace",
        help="Neighbouring data sets: one record added or removed, or one record changed.  "
        "[default: add_remove]",
    ),
]


def real(
    argument: str,
    text: str,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
) -> float:
    """Read a real number inside a range.

    >>> real("rate", "256/60000", above=0, at_most=1)
    0.004266666666666667
    >>> real("rate", "5/4", above=0, at_most=1)
    Traceback (most recent call last):
    discreet.errors.InvalidValue: rate = '5/4': expected a number with 0 < rate <= 1
    """
    number = _parsed(argument, text)
    try:
        return _validate.real(
            argument, number, above=above, at_least=at_least, below=below, at_most=at_most
        )
    except InvalidValue as error:
        raise InvalidValue(argument, text, error.expected) from None


def count(
    argument: str, text: str, *, at_least: int | None = None, at_most: int | None = None
) -> int:
    """Read an integer inside a range; ``1e6`` is one.

    >>> count("steps", "1e6", at_least=1)
    1000000
    """
    try:
        number: float = int(text)
    except ValueError:
        number = _parsed(argument, text, forms="an integer such as 10000 or 1e6")
        # Beyond 2^53 a float no longer says which integer was meant.
        if math.isfinite(number) and number.is_integer() and abs(number) <= 2**53:
            number = int(number)
    try:
        return _validate.integer(argument, number, at_least=at_least, at_most=at_most)
    except InvalidValue as error:
        raise InvalidValue(argument, text, error.expected) from None


def shown(value: object) -> str:
    """A refused value on one line: as typed where that is readable, else quoted.

    >>> shown("5/4"), shown(""), shown(2.0)
    ('5/4', "''", '2.0')
    """
    text = str(value)
    plain = text.isprintable() and text == text.strip() and text
    return text if plain else repr(text)


def _parsed(argument: str, text: str, *, forms: str = _FORMS) -> float:
    numerator, slash, denominator = text.partition("/")
    try:
        return float(numerator) / float(denominator) if slash else float(numerator)
    except (ValueError, ZeroDivisionError):
        raise InvalidValue(argument, text, forms) from None
