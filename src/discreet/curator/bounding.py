"""At most so many rows of each person: a random choice that every engine makes alike.

**Guarantee.** Which rows of a person are kept is a function of that person's own rows and of a
secret key. So for every key, adding or removing a person adds or removes at most ``cap`` rows
of the bounded table and leaves all others as they were. Privacy rests on nothing else: a
poor hash or a key that leaked would make the choice less random, never less capped.

**The choice.** A row is identified by its content and its occurrence: the n-th of a person's
rows that are equal after reading has the number n, and as they are equal it does not matter which
one is called the n-th. Its place in line is SHA-256 of key, person, content and number, so the
``cap`` first in line are a random subset, uniform as far as SHA-256 under a secret 256-bit key
looks random. It depends neither on the order of rows nor on the engine. The rank is kept beside the
row: the rows of rank at most m are a random subset of m, which is how a query lowers the cap.

A row that names no person belongs to nobody who could be protected and is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

import ibis  # type: ignore[import-untyped]

from discreet.curator.grids import StoredColumn
from discreet.curator.ibis_algebra import integer

__all__ = ["RANK", "bounded"]

RANK = "rank"
_PERSON = "person"


def bounded(kept: Any, columns: Mapping[str, StoredColumn], *, cap: int | None, key: bytes) -> Any:
    """The bounded table: kept columns, and the rank of each row among those of its person.

    ``kept`` has the kept columns and, where there is a cap, a column ``person``.
    """
    names = [stored.kept_as for stored in columns.values()]
    if cap is None:
        return kept.select(**_narrowed(kept, columns))
    known = kept.filter(kept[_PERSON].notnull())
    content = _joined([known[_PERSON], *(known[name] for name in names)])
    hashed = known.mutate(place=_hash(content, key))
    # Rows of one person with the same content have the same place so far: number them.
    numbered = hashed.mutate(
        occurrence=ibis.row_number().over(
            group_by=[hashed[_PERSON], hashed.place], order_by=[hashed.place]
        )
    )
    placed = numbered.mutate(
        line=_hash(_joined([numbered.place, numbered.occurrence.cast("int64")]), key)
    )
    ranked = placed.mutate(
        **{
            RANK: ibis.row_number()
            .over(group_by=[placed[_PERSON]], order_by=[placed.line])
            .cast("int64")
            + integer(1)
        }
    )
    chosen = ranked.filter(ranked[RANK] <= integer(cap))
    return chosen.select(**_narrowed(chosen, columns), **{RANK: chosen[RANK].cast("int32")})


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
