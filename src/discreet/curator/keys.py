"""Values to group by: which groups are public, and how they are kept and shown."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from typing import Any

from discreet.curator.grids import StoredColumn
from discreet.errors import InvalidValue

__all__ = ["MOST_GROUPS", "all_groups", "kept_value", "sortable", "too_many"]

MOST_GROUPS = 10_000
_EPOCH = dt.date(1970, 1, 1)


def kept_value(argument: str, stored: StoredColumn, value: str | Fraction) -> Any:
    """What the bounded table has for a value that a query names, or raise."""
    if stored.labels is not None:
        if value not in stored.labels:
            raise InvalidValue(argument, _plain(value), f"a label of {stored.name!r}")
        return stored.labels.index(str(value))
    if stored.grid is None:
        if not isinstance(value, str):
            raise InvalidValue(argument, _plain(value), f"a text of {stored.name!r}")
        return value
    if stored.dates:
        steps = _days(argument, value)
    elif isinstance(value, str):
        raise InvalidValue(argument, value, f"a number, as {stored.name!r} has numbers")
    else:
        exact = value / stored.grid.step
        if exact.denominator != 1:
            expected = f"a multiple of {stored.grid.step}, the step of {stored.name!r}"
            raise InvalidValue(argument, _plain(value), expected)
        steps = exact.numerator
    if not stored.grid.low <= steps <= stored.grid.high:
        raise InvalidValue(argument, _plain(value), f"a value within the bounds of {stored.name!r}")
    return steps


def all_groups(keys: Sequence[StoredColumn]) -> list[tuple[Any, ...]]:
    """All combinations of labels, as kept; only for columns of declared labels."""
    size = 1
    for stored in keys:
        if stored.labels is None:
            raise InvalidValue(
                "groups",
                None,
                f"the groups of {stored.name!r}, which has no declared labels; or delta, to "
                "select them privately",
            )
        size *= len(stored.labels)
    if size > MOST_GROUPS:
        raise InvalidValue("by", f"{size} groups", f"at most {MOST_GROUPS}; list groups instead")
    return list(product(*(range(len(stored.labels or ())) for stored in keys)))


def too_many(keys: Sequence[StoredColumn]) -> bool:
    """Whether the data may have so many groups that those not listed are better left out early."""
    size = 1
    for stored in keys:
        if stored.labels is not None:
            size *= len(stored.labels)
        elif stored.grid is not None:
            size *= stored.grid.high - stored.grid.low + 1
        else:
            return True
    return size > MOST_GROUPS


def sortable(group: Sequence[Any]) -> tuple[tuple[bool, Any], ...]:
    """An order for groups that does not depend on how they were found."""
    return tuple((isinstance(one, str), one) for one in group)


def _days(argument: str, value: str | Fraction) -> int:
    try:
        return (dt.date.fromisoformat(str(value)) - _EPOCH).days
    except ValueError:
        raise InvalidValue(argument, _plain(value), "a day as YYYY-MM-DD") from None


def _plain(value: str | Fraction) -> str:
    return str(value)[:60]
