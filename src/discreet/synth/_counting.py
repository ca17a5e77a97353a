"""Exact tables of counts, by one kernel that runs where the rows are.

The kernel turns stored integers into groups of cells and counts combinations; parts of a table are
added up here as 64-bit integers. Every engine stores the same integers, so every engine and every
partitioning gives the same tables, bit for bit. No noise is drawn and no key is known there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet.data import import_arrow
from discreet.synth._cells import FineCells, Groups
from discreet.synth._tree import Columns, count_cells

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.engines import Table

_ROWS = 1 << 17
_CELLS_AT_ONCE = 1 << 24
_RANK = "rank"  # the place of a row among those of its person, from 1


@final
@dataclass(frozen=True, eq=False)
class Recipe:
    """What to count: stored columns, their cells and groups, and the sets of columns."""

    names: tuple[str, ...]
    cells: tuple[FineCells, ...]
    groups: tuple[Groups | None, ...]
    sets: tuple[Columns, ...]
    most_rank: int | None

    @property
    def sizes(self) -> list[int]:
        """How many values each column has here."""
        return [
            cells.size if groups is None else groups.size
            for cells, groups in zip(self.cells, self.groups, strict=True)
        ]


def count_tables(
    table: Table,
    cells: Sequence[FineCells],
    groups: Sequence[Groups | None],
    sets: Sequence[Columns],
) -> Iterator[tuple[Columns, NDArray[np.int64]]]:
    """Yield the exact counts of each set of columns; they are private.

    Parameters
    ----------
    table
        A bounded table of :mod:`discreet.engines`.
    cells
        The fine cells of all columns, in the order of the schema.
    groups
        The groups of each column, or None for its fine cells.
    sets
        The sets of columns, as positions in ``cells``. As many as fit into memory are counted in
        one pass.

    """
    sizes = [
        one.size if held is None else held.size for one, held in zip(cells, groups, strict=True)
    ]
    batch: list[Columns] = []
    room = _CELLS_AT_ONCE
    for one in sets:
        if batch and count_cells(sizes, one) > room:
            yield from _count_batch(table, cells, groups, batch)
            batch, room = [], _CELLS_AT_ONCE
        batch.append(one)
        room -= count_cells(sizes, one)
    if batch:
        yield from _count_batch(table, cells, groups, batch)


def _count_batch(
    table: Table,
    cells: Sequence[FineCells],
    groups: Sequence[Groups | None],
    sets: Sequence[Columns],
) -> Iterator[tuple[Columns, NDArray[np.int64]]]:
    used = sorted({column for one in sets for column in one})
    at = {column: place for place, column in enumerate(used)}
    names = [table.columns[cells[column].name].stored_name for column in used]
    recipe = Recipe(
        tuple(names),
        tuple(cells[column] for column in used),
        tuple(groups[column] for column in used),
        tuple(tuple(at[column] for column in one) for one in sets),
        table.schema.rows_per_person,
    )
    total = np.zeros(sum(count_cells(recipe.sizes, one) for one in recipe.sets), dtype=np.int64)
    wanted = names if recipe.most_rank is None else [*names, _RANK]
    for part in table.map_parts(partial(count_part, recipe=recipe), wanted):
        total += np.frombuffer(part, dtype="<i8")
    start = 0
    for one, inner in zip(sets, recipe.sets, strict=True):
        shape = [recipe.sizes[column] for column in inner]
        stop = start + int(np.prod(shape))
        yield one, total[start:stop].reshape(shape)
        start = stop


def count_part(part: Any, *, recipe: Recipe) -> bytes:
    """Return the counts of one part of a table, all sets in one row of 64-bit integers."""
    sizes = recipe.sizes
    counts = [np.zeros(count_cells(sizes, one), dtype=np.int64) for one in recipe.sets]
    lookups = [
        None if groups is None else groups.group_of.astype(np.int64) for groups in recipe.groups
    ]
    for start in range(0, part.num_rows, _ROWS):
        some = part.slice(start, _ROWS)
        kept = None
        if recipe.most_rank is not None:
            kept = some.column(_RANK).to_numpy() <= recipe.most_rank
        codes = []
        for name, cells, lookup in zip(recipe.names, recipe.cells, lookups, strict=True):
            code = _encode(some.column(name), cells)
            code = code if kept is None else code[kept]
            codes.append(code if lookup is None else lookup[code])
        _count_rows(codes, sizes, recipe.sets, counts)
    return b"".join(one.astype("<i8").tobytes() for one in counts)


def encode_rows(table: Table, cells: Sequence[FineCells]) -> NDArray[np.int64]:
    """Return the fine cells of all rows, a column for each of ``cells``; they are private."""
    names = [table.columns[one.name].stored_name for one in cells]
    parts = table.map_parts(partial(_encode_part, names=names, cells=cells), names)
    found = np.frombuffer(b"".join(parts), dtype="<i8")
    return found.reshape(-1, len(cells)).astype(np.int64)


def _encode_part(part: Any, *, names: Sequence[str], cells: Sequence[FineCells]) -> bytes:
    codes = [_encode(part.column(name), one) for name, one in zip(names, cells, strict=True)]
    return np.stack(codes, axis=1).astype("<i8").tobytes()


def _encode(column: Any, cells: FineCells) -> NDArray[np.int64]:
    """Return the fine cells of a stored column, of integers or of texts."""
    pa = import_arrow("pyarrow")
    if pa.types.is_integer(column.type):
        return cells.encode(column.to_numpy().astype(np.int64))
    coded = column.cast(pa.string()).combine_chunks().dictionary_encode()
    if isinstance(coded, pa.ChunkedArray):
        coded = coded.combine_chunks()
    codes: NDArray[np.int64] = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    known = cells.encode_texts(coded.dictionary.to_pylist())
    return known[codes] if known.size else codes


def _count_rows(
    codes: Sequence[NDArray[np.int64]],
    sizes: Sequence[int],
    sets: Sequence[Columns],
    counts: Sequence[NDArray[np.int64]],
) -> None:
    known: tuple[Columns, NDArray[np.int64]] = ((), np.zeros(0, dtype=np.int64))
    for one, count in zip(sets, counts, strict=True):
        head = one[:-1]
        if head and head != known[0]:
            mixed = codes[head[0]]
            for column in head[1:]:
                mixed = mixed * sizes[column] + codes[column]
            known = (head, mixed)
        index = known[1] * sizes[one[-1]] + codes[one[-1]] if head else codes[one[-1]]
        count += np.bincount(index, minlength=count.size)
