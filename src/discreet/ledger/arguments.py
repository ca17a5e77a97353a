"""What callers pass to a ledger, checked before anything happens.

Every refusal is an ``InvalidValue`` that names the argument, the value and what was expected.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from discreet import _validate
from discreet.errors import InvalidValue
from discreet.ledger.budgets import SCOPES
from discreet.ledger.entries import printable

__all__ = [
    "LARGEST_SEQ",
    "amount",
    "clock_of",
    "date_of",
    "flag",
    "orders_of",
    "path_of",
    "receipts_of",
    "required_of",
    "timeout_of",
    "url_of",
]

LARGEST_SEQ = 2**63 - 1
_MOST_DIGITS = 2000  # of numerator and denominator
_LONGEST_WAIT = 1e6  # seconds; the databases count milliseconds in 32 bits
_URLS = ("postgresql://", "postgres://")


def url_of(place: object) -> str | None:
    """The place if it is the URL of a server."""
    return place if isinstance(place, str) and place.startswith(_URLS) else None


def path_of(argument: str, place: object) -> Path:
    """The place as a path."""
    text = os.fspath(place) if isinstance(place, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text or "://" in text:
        expected = "the path of a file"
        if argument == "place":
            expected += " or a postgresql:// URL"
        raise InvalidValue(argument, printable(place), expected)
    return Path(text)


def timeout_of(timeout: object) -> float:
    """Seconds to wait for others."""
    if isinstance(timeout, int) and abs(timeout) > _LONGEST_WAIT:
        timeout = float("inf")
    return _validate.real("timeout", timeout, above=0, at_most=_LONGEST_WAIT)


def flag(argument: str, value: object) -> bool:
    """A truth value; nothing else is taken for one."""
    if not isinstance(value, bool):
        raise InvalidValue(argument, printable(value), "True or False")
    return value


def clock_of(clock: object) -> Callable[[], object]:
    """What dates the entries."""
    if clock is None:
        return lambda: datetime.now(UTC)
    if not callable(clock):
        raise InvalidValue("clock", printable(clock), "a function that returns a datetime")
    return clock


def date_of(moment: object) -> str:
    """A moment of the clock as entries note it."""
    if not isinstance(moment, datetime):
        raise InvalidValue("clock", printable(moment), "a function that returns a datetime")
    try:
        return moment.astimezone(UTC).isoformat(timespec="microseconds")
    except (OverflowError, ValueError, OSError):
        raise InvalidValue("clock", moment, "a datetime that exists in UTC") from None


def amount(argument: str, value: object) -> object:
    """An epsilon or a delta; its range is checked by the budget."""
    if isinstance(value, bool | bytes | list | tuple | Mapping) or printable(value) is not value:
        raise InvalidValue(argument, printable(value), "an exact number such as 0.1 or '1/3'")
    try:
        number = _validate.fraction(argument, value)
    except InvalidValue:
        return value  # the budget says what it expects
    if max(abs(number.numerator), number.denominator) >= 10**_MOST_DIGITS:
        raise InvalidValue(
            argument,
            f"a number of more than {_MOST_DIGITS} digits",
            f"an exact number of at most {_MOST_DIGITS} digits",
        )
    return value


def orders_of(orders: object) -> Sequence[float] | None:
    """Renyi orders; their range is checked by the budget."""
    if orders is None:
        return None
    if isinstance(orders, str | bytes | Mapping) or not isinstance(orders, Iterable):
        raise InvalidValue("orders", printable(orders), "a sequence of numbers above 1")
    return [_validate.real("orders", printable(order), above=1) for order in orders]


def required_of(required: object) -> list[str]:
    """Scopes that every charge has to name."""
    expected = "scopes among " + ", ".join(SCOPES)
    if isinstance(required, str | bytes | Mapping) or not isinstance(required, Iterable):
        raise InvalidValue("required", printable(required), expected)
    scopes = list(required)
    if not all(isinstance(scope, str) and scope in SCOPES for scope in scopes):
        raise InvalidValue("required", [printable(scope) for scope in scopes], expected)
    return sorted(set(scopes))


def receipts_of(receipts: object) -> list[Mapping[str, Any]]:
    """Receipts as :meth:`discreet.ledger.Ledger.receipt` gives them."""
    expected = "a sequence of receipts"
    if isinstance(receipts, str | bytes | Mapping) or not isinstance(receipts, Iterable):
        raise InvalidValue("receipts", printable(receipts), expected)
    documents = list(receipts)
    for document in documents:
        if not isinstance(document, Mapping):
            raise InvalidValue("receipts", printable(document), expected)
    return documents
