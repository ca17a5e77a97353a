"""At most ``cap`` rows of each person in every query: a random choice, the same on every engine.

**Guarantee.** The rows of each person stand in a line, by that person's own rows and a secret key
alone. A query keeps the rows that satisfy ``where``, and of those the first ``cap`` in line of each
person; then it makes groups, bins or counts of what is left. So for every key, adding or removing
a person adds or removes at most ``cap`` of the rows that a query uses, over all its groups
and questions together, and leaves all others as they were. Privacy rests on nothing else: a poor
hash or a key that leaked would make the choice less random, never less capped.

**The line.** A row is identified by its content and its occurrence: the n-th of a person's
rows that are equal after reading has the number n, and as they are equal it does not matter which
one is called the n-th. Its place in line is SHA-256 of key, person, content and number, so the
first m in line of any rows that a filter leaves are a random subset of them, uniform as far as
SHA-256 under a secret 256-bit key looks random. It depends neither on the order of rows nor on the
engine. The place (``rank``) and a number for the person are stored beside the row.

A row that names no person belongs to nobody who could be protected and is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

import ibis  # type: ignore[import-untyped]

from discreet.curator.grids import PERSON, StoredColumn
from discreet.curator.ibis_algebra import integer

__all__ = ["RANK", "first_in_line", "ranked", "without_persons"]

RANK = "rank"


def without_persons(kept: Any, columns: Mapping[str, StoredColumn]) -> Any:
    """The table of a schema that names no persons: the kept columns."""
    return kept.select(**_narrowed(kept, columns))


def ranked(kept: Any, columns: Mapping[str, StoredColumn], *, key: bytes, cap: int | None) -> Any:
    """The kept columns, a number for the person, and the place of the row in that person's line.

    ``kept`` has the kept columns and a column ``person`` of names. With a ``cap`` only the first
    rows in line are stored, without the person: all that an engine needs which filters no rows.
    """
    names = [stored.kept_as for stored in columns.values()]
    known = kept.filter(kept[PERSON].notnull())
    content = _joined([known[PERSON], *(known[name] for name in names)])
    hashed = known.mutate(place=_hash(content, key))
    # Rows of one person with the same content have the same place so far: number them.
    numbered = hashed.mutate(
        occurrence=ibis.row_number().over(
            group_by=[hashed[PERSON], hashed.place], order_by=[hashed.place]
        )
    )
    placed = numbered.mutate(
        line=_hash(_joined([numbered.place, numbered.occurrence.cast("int64")]), key)
    )
    line = placed.mutate(**{RANK: _place(placed, placed.line)})
    if cap is not None:
        line = line.filter(line[RANK] <= integer(cap))
        return line.select(**_narrowed(line, columns), **{RANK: line[RANK].cast("int32")})
    number = ibis.dense_rank().over(order_by=[line[PERSON]])
    return line.select(
        **_narrowed(line, columns), **{RANK: line[RANK].cast("int32"), PERSON: number.cast("int64")}
    )


def first_in_line(table: Any, cap: int, *, filtered: bool) -> Any:
    """The first ``cap`` rows of each person among the rows of a table, over all of them at once.

    ``filtered`` says that the table is not whole, so that places have to be counted anew; that is
    done for those persons only who have more than ``cap`` rows in it.
    """
    if not filtered:
        return table.filter(table[RANK].cast("int64") <= integer(cap))
    owned = table.group_by(PERSON).aggregate(owned=table.count())
    many = owned.filter(owned.owned > integer(cap))
    line = table.semi_join(many, PERSON)
    line = line.mutate(place=_place(line, line[RANK]))
    first = line.filter(line.place <= integer(cap)).drop("place")
    return table.anti_join(many, PERSON).union(first)


def _place(table: Any, order: Any) -> Any:
    """The places of a person's rows, from 1."""
    number = ibis.row_number().over(group_by=[table[PERSON]], order_by=[order])
    return number.cast("int64") + integer(1)


def _narrowed(table: Any, columns: Mapping[str, StoredColumn]) -> dict[str, Any]:
    return {
        stored.kept_as: table[stored.kept_as]
        if stored.storage is None
        else table[stored.kept_as].cast(stored.storage)
        for stored in columns.values()
    }


def _joined(terms: list[Any]) -> Any:
    """One text for several values, from which each of them can be told: texts have their length."""
    parts = []
    for term in terms:
        if term.type().is_string():
            parts += [term.length().cast("string"), ibis.literal(":"), term]
        else:
            parts += [term.cast("string"), ibis.literal(",")]
    return reduce(lambda one, other: one + other, parts)


def _hash(text: Any, key: bytes) -> Any:
    return (ibis.literal(key.hex() + "|") + text).hexdigest("sha256")
