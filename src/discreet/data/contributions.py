"""At most so many rows of one person, chosen by what that person has and by nothing else.

**Guarantee.** Which rows of a person are used is a function of that person's own rows and of
randomness drawn for them. So adding or removing a person adds or removes at most
``rows_per_person`` rows and leaves every other row as it was, which is what
:meth:`discreet.data.Schema.unit_loss` charges for. A rule that looked across persons would void
this: "the first 100,000 rows of the file", "drop persons until the classes are balanced" or one
common pool for rows without a name would let one person's rows push out those of others.

``"random"``
    Each row draws 64 random bits; a person's rows with the smallest numbers are kept. That is a
    uniformly random subset (exactly so unless two of the numbers are equal, when the earlier row
    goes first; privacy does not rest on it).
``"first"``
    The first rows of each person in the order of the file. It draws nothing, but is
    only representative where that order is.

A row whose cell for the person is empty belongs to nobody known and is left out: it cannot
be charged to anyone. Names are compared as texts without the blanks around them: two spellings
are two persons. In a column of numbers NaN is empty, and every other number names a person, an
infinity and a fraction too; a name that is not UTF-8 is compared by its bytes. The curator's
engines follow the same rule.

The choice needs a pass of its own over the column of persons, and memory for their names and
up to 200 bytes a kept row while it sorts, however wide the rows are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from discreet import _validate
from discreet.data.arrays import RawBatch
from discreet.randomness import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["CHOICES", "chosen_rows", "rows_and_owners"]

CHOICES = ("random", "first")


def chosen_rows(
    batches: Iterable[RawBatch],
    *,
    person: str,
    cap: int,
    choose: str,
    source: Source,
) -> NDArray[np.int64]:
    """Return the numbers of the rows to be used, in increasing order.

    >>> from discreet.data.arrays import ArrayBatch
    >>> from discreet.randomness import source
    >>> batch = ArrayBatch({"who": np.array(["a", "b", "", "a", "a"], dtype=object)}, 5)
    >>> chosen_rows([batch], person="who", cap=2, choose="first", source=source())
    array([0, 1, 3])
    """
    return rows_and_owners(batches, person=person, cap=cap, choose=choose, source=source)[0]


def rows_and_owners(
    batches: Iterable[RawBatch],
    *,
    person: str,
    cap: int,
    choose: str,
    source: Source,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the same rows, and for each of them the number of its owner."""
    _validate.one_of("choose", choose, CHOICES)
    numbers: dict[bytes, int] = {}
    kept = _Kept(cap)
    start = 0
    for batch in batches:
        codes, names = batch.texts(person)
        owners = np.array(
            [numbers.setdefault(name, len(numbers)) if name else -1 for name in names],
            dtype=np.int64,
        )
        of_row = owners[codes] if names else np.empty(0, dtype=np.int64)
        rows = start + np.flatnonzero(of_row >= 0)
        of_row = of_row[of_row >= 0]
        order = source.words64(rows.size) if choose == "random" else rows.astype(np.uint64)
        kept.enter(of_row, order, rows)
        start += batch.rows
    rows, owners = kept.rows_and_owners()
    sequence = np.argsort(rows)
    return rows[sequence], owners[sequence]


class _Kept:
    """The ``cap`` rows with the smallest order of each owner, among all that entered."""

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._parts: list[tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.int64]]] = []
        self._pending = 0
        self._settled = 0

    def enter(
        self, owners: NDArray[np.int64], order: NDArray[np.uint64], rows: NDArray[np.int64]
    ) -> None:
        self._parts.append((owners, order, rows))
        self._pending += rows.size
        # Sorting only when the new rows are as many as the old ones keeps the whole n log n.
        if self._pending > max(self._settled, 1 << 16):
            self._settle()

    def rows_and_owners(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        self._settle()
        nothing = np.empty(0, dtype=np.int64)
        return (self._parts[0][2], self._parts[0][0]) if self._parts else (nothing, nothing)

    def _settle(self) -> None:
        if not self._parts:
            return
        owners, order, rows = (np.concatenate(part) for part in zip(*self._parts, strict=True))
        sequence = np.lexsort((rows, order, owners))
        owners, order, rows = owners[sequence], order[sequence], rows[sequence]
        firsts = np.flatnonzero(np.concatenate([[True], owners[1:] != owners[:-1]]))
        sizes = np.diff(np.concatenate([firsts, [owners.size]]))
        rank = np.arange(owners.size) - np.repeat(firsts, sizes)
        keep = rank < self._cap
        self._parts = [(owners[keep], order[keep], rows[keep])]
        self._settled, self._pending = int(keep.sum()), 0
