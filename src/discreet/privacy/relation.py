"""Neighbouring relations: which two data sets must look alike.

``add_remove``
    One unit is present in one data set and absent from the other. The number of
    units is itself private.
``replace``
    One unit is changed; the number of units is public.

The *unit* is whatever the caller counts as one: a record, or a person whose
records are capped. ``loss.group(k)`` speaks of a unit that owns ``k`` records.

The two relations are never mixed silently (SPEC, preamble). A loss under
``add_remove`` becomes one under ``replace`` by ``loss.group(2, relation="replace")``,
because a replacement is one removal and one addition. There is no way back.
"""

from __future__ import annotations

from enum import StrEnum

from discreet._validate import one_of
from discreet.errors import RelationMismatch

__all__ = ["Relation", "require_same"]


class Relation(StrEnum):
    """The neighbouring relation that a guarantee speaks of.

    >>> Relation.parse("replace")
    <Relation.REPLACE: 'replace'>
    """

    ADD_REMOVE = "add_remove"
    REPLACE = "replace"

    @classmethod
    def parse(cls, value: object) -> Relation:
        """Return the relation named by ``value``, or raise ``InvalidValue``."""
        return cls(one_of("relation", value, tuple(member.value for member in cls)))


def require_same(first: Relation, second: Relation) -> Relation:
    """Return the common relation of two losses, or raise ``RelationMismatch``."""
    if first is not second:
        raise RelationMismatch(
            f"cannot combine a loss under {first.value!r} with one under {second.value!r}; "
            "convert add_remove to replace with .group(2, relation='replace') "
            "(there is no way back from replace)"
        )
    return first
