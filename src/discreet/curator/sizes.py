"""How large the text of a query becomes for an engine: known, and limited, before it is written.

Some expressions mention an operand several times, so nesting multiplies: thirty absolute values
within each other would be a text of 2**30 columns. What is counted here are its nodes, a
little generously; the limit keeps an engine from planning for more than some seconds.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from discreet._forms import Form
from discreet.curator import expressions as ex
from discreet.curator._queries import Histogram, Query
from discreet.errors import NotApplicable

__all__ = ["LARGEST_SIZE", "check_size"]

LARGEST_SIZE = 20_000
_MOVED = 3  # nodes that bring a number to another grid
_QUOTIENT = 12
_ADDED_UP = 6  # how often a number is mentioned by its limbs and squares
_SPELLED = 500  # nodes that read a number in a text


def check_size(query: Query) -> None:
    """Raise ``NotApplicable`` for a query whose text would be too large.

    >>> from functools import reduce
    >>> from discreet.curator._queries import Sum
    >>> deep = reduce(lambda of, _: ex.Absolute(of), range(30), ex.Column("age"))
    >>> check_size(Sum(of=deep, epsilon=1))
    Traceback (most recent call last):
    discreet.errors.NotApplicable: the query is too large once it is written out for the engine
    """
    total = 0
    for one in fields(query):  # type: ignore[arg-type]
        value = getattr(query, one.name)
        times = _ADDED_UP if one.name == "of" else 1
        if isinstance(query, Histogram) and one.name == "of":
            times = len(query.edges) + 1
        total += times * _size(value)
    if total > LARGEST_SIZE:
        raise NotApplicable("the query is too large once it is written out for the engine")


def _size(node: Any) -> int:
    match node:
        case ex.Absolute():
            return 3 + 2 * _size(node.of)
        case ex.Divide():
            return _QUOTIENT + _size(node.left) + 3 * _size(node.right)
        case ex.Bucket():
            return _QUOTIENT + _size(node.of)
        case ex.ToNumber():
            return _SPELLED
        case ex.Lookup():
            return 3 + 3 * len(node.cases)
        case ex.OneOf():
            return 3 + len(node.values)
        case ex.Column() | ex.Value() | ex.Day():
            return 1
        case Form():
            inner = [getattr(node, one.name) for one in fields(node)]  # type: ignore[arg-type]
            return 1 + _MOVED + sum(map(_size, inner))
        case tuple():
            return sum(map(_size, node))
    return 0
