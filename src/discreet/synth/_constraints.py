"""Public constraints on rows: forbidden pairs of values, and orders ``a <= b``.

A value of a forbidden pair keeps a group of its own, so the pair is one cell of the model; its
probability is 0, and no synthetic row has it.

Where a <= b, two groups are impossible together if every a of the one is above every b of the
other. With all conclusions (a <= b <= c makes a <= c) that is enough for values to exist in every
possible combination of groups: each column takes the least value of its group that is not below
those that come before it. So rows whose values break the order are drawn again, and a few at the
end get these least values. A missing value breaks nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet.data import Schema
from discreet.errors import InvalidValue
from discreet.synth._cells import FineCells, Groups, stored_value
from discreet.synth._tree import Columns, DecomposableGraph, JunctionTree

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_CELLS = 1 << 22
_ATTEMPTS = 8

Interval = tuple["NDArray[np.float64]", "NDArray[np.float64]"]


@final
@dataclass(frozen=True)
class Constraints:
    """The forbidden pairs of fine cells, by pairs of columns, and the columns in order."""

    cells: Sequence[FineCells]
    pairs: Mapping[Columns, frozenset[tuple[int, int]]]
    orders: tuple[tuple[int, int], ...]

    @classmethod
    def read(
        cls,
        forbid: Sequence[Any],
        ordered: Sequence[Any],
        schema: Schema,
        cells: Sequence[FineCells],
    ) -> Constraints:
        """Read what was declared, and raise unless some rows remain possible.

        Parameters
        ----------
        forbid
            Mappings of two columns to one value each.
        ordered
            Pairs of columns of numbers or dates, the first of which is never above the second.
        schema, cells
            What the values are.

        Raises
        ------
        InvalidValue
            If a value has no cell of its own, the constraints form a cycle, or nothing is left.

        """
        names = [one.name for one in cells]
        found: dict[Columns, set[tuple[int, int]]] = {}
        for one in forbid:
            if not isinstance(one, Mapping) or len(one) != 2 or not set(one) <= set(names):
                raise InvalidValue("forbid", one, "two columns of the schema, with a value each")
            columns = sorted(names.index(name) for name in one)
            places = []
            for at in columns:
                if not isinstance(one[names[at]], str | int | float):
                    raise InvalidValue("forbid", one, "texts, numbers or truth values")
                value = stored_value(f"forbid[{names[at]!r}]", cells[at], schema, one[names[at]])
                cell = int(cells[at].encode(np.array([value]))[0])
                low, high = (0.0, 0.0) if cells[at].labels else cells[at].bounds(cell)
                if low != high:
                    raise InvalidValue("forbid", one, "values that have a cell of their own")
                places.append(cell)
            pair = (columns[0], columns[1])
            found.setdefault(pair, set()).add((places[0], places[1]))
        read = cls(
            cells,
            {pair: frozenset(held) for pair, held in found.items()},
            _conclusions(ordered, cells),
        )
        read._check(cells)
        return read

    @property
    def needed(self) -> list[Columns]:
        """The pairs of columns that must stand together in the model."""
        ordered: list[Columns] = [(min(pair), max(pair)) for pair in self.orders]
        return list(dict.fromkeys([*self.pairs, *ordered]))

    def _check(self, cells: Sequence[FineCells]) -> None:
        sizes = [one.size for one in cells]
        graph = DecomposableGraph(sizes)
        graph.grow(self.needed, most_cells=_MOST_CELLS)
        held = [one for one in graph.cliques() if len(one) > 1]
        if not all(any(set(pair) <= set(one) for one in held) for pair in self.needed):
            largest = f"pairs of columns without a cycle, of at most {_MOST_CELLS} cells"
            names = [[cells[at].name for at in pair] for pair in self.needed]
            raise InvalidValue("forbid and ordered", names, largest)
        involved = sorted({at for pair in self.needed for at in pair})
        place = {at: position for position, at in enumerate(involved)}
        tree = JunctionTree(
            [sizes[at] for at in involved], [tuple(place[at] for at in one) for one in held]
        )
        potentials = tree.zeros()
        for pair, mask in self.masks([None] * len(cells), sizes):
            inner = tuple(place[at] for at in pair)
            home = tree.home(inner)
            assert home is not None
            order, shape = tree.axes_in(home, inner)
            turned = mask.transpose([inner.index(at) for at in order]).reshape(shape)
            potentials[home] = np.where(turned, -np.inf, potentials[home])
        if involved and math.isinf(tree.infer(potentials)[0]):
            expected = "constraints that leave some rows possible"
            raise InvalidValue("forbid and ordered", "all of them", expected)

    def find_lone_cells(self, at: int) -> set[int]:
        """Return the fine cells of a column that keep a group of their own."""
        return {
            cell[pair.index(at)] for pair, held in self.pairs.items() if at in pair for cell in held
        }

    def masks(
        self, groups: Sequence[Groups | None], sizes: Sequence[int]
    ) -> list[tuple[Columns, NDArray[np.bool_]]]:
        """Return the impossible cells of each pair of columns, by groups."""
        found = []
        for pair, held in self.pairs.items():
            mask = np.zeros([sizes[at] for at in pair], dtype=bool)
            for cell in held:
                place = [
                    inner if groups[at] is None else int(groups[at].group_of[inner])  # type: ignore[union-attr]
                    for at, inner in zip(pair, cell, strict=True)
                ]
                mask[tuple(place)] = True
            found.append((pair, mask))
        return found + self.order_masks([self.interval(at, one) for at, one in enumerate(groups)])

    def order_masks(
        self, intervals: Sequence[Interval | None]
    ) -> list[tuple[Columns, NDArray[np.bool_]]]:
        """Return the groups of two ordered columns that have no values in order."""
        found: list[tuple[Columns, NDArray[np.bool_]]] = []
        for small, large in self.orders:
            first, second = intervals[small], intervals[large]
            assert first is not None
            assert second is not None
            mask = first[0][:, None] > second[1][None, :]
            found.append(((small, large), mask) if small < large else ((large, small), mask.T))
        return found

    def interval(
        self, at: int, groups: Groups | None, wanted: NDArray[np.int64] | None = None
    ) -> Interval | None:
        """Return the least and largest value of each group of an ordered column.

        Parameters
        ----------
        at
            The column.
        groups
            Its groups, or None for the fine cells.
        wanted
            The stored integers that may occur; without it, all.

        """
        if not any(at in pair for pair in self.orders):
            return None
        cells = self.cells[at]
        ends = np.array([cells.bounds(cell) for cell in range(len(cells.starts))])
        if cells.missing_cell is not None:
            ends = np.vstack([ends, [-math.inf, math.inf]])
        if wanted is not None:
            ends[:] = [math.inf, -math.inf]
            cell, value = cells.encode(wanted), wanted * float(cells.step)
            gone = cell == cells.missing_cell
            np.minimum.at(ends[:, 0], cell, np.where(gone, -math.inf, value))
            np.maximum.at(ends[:, 1], cell, np.where(gone, math.inf, value))
        owner = np.arange(cells.size) if groups is None else groups.group_of
        low, high = np.full(owner.max() + 1, math.inf), np.full(owner.max() + 1, -math.inf)
        np.minimum.at(low, owner, ends[:, 0])
        np.maximum.at(high, owner, ends[:, 1])
        return low, high

    def put_in_order(
        self,
        stored: dict[int, NDArray[np.int64]],
        codes: Sequence[NDArray[np.int64]],
        intervals: Sequence[Interval | None],
        draw: Callable[[int, NDArray[np.int64]], NDArray[np.int64]],
    ) -> None:
        """Change the stored integers of rows that break an order until none does.

        Parameters
        ----------
        stored
            The stored integers of the columns.
        codes
            The groups of the columns; they allow values in order.
        intervals
            The least and largest value of each group.
        draw
            Draws stored integers of a column for some rows, by their groups.

        """
        if not self.orders:
            return
        for _ in range(_ATTEMPTS):
            wrong = np.flatnonzero(self._find_broken(stored))
            if not wrong.size:
                return
            for at in self._columns:
                stored[at][wrong] = draw(at, wrong)
        wrong = np.flatnonzero(self._find_broken(stored))
        for at in self._columns:
            held, step = intervals[at], float(self.cells[at].step)
            assert held is not None
            least = held[0][codes[at][wrong]]
            there = stored[at][wrong] != self.cells[at].missing
            for small, large in self.orders:
                if large == at:
                    least = np.maximum(least, self._values(small, stored, wrong, -math.inf))
            value = np.ceil(np.where(there, least, 0.0) / step).astype(np.int64)
            stored[at][wrong] = np.where(there, value, stored[at][wrong])

    @property
    def _columns(self) -> list[int]:
        """The ordered columns, each after those that are never above it."""
        found = {at for pair in self.orders for at in pair}
        return sorted(found, key=lambda at: (sum(large == at for _, large in self.orders), at))

    def _values(
        self, at: int, stored: Mapping[int, NDArray[np.int64]], rows: Any, missing: float
    ) -> NDArray[np.float64]:
        held = stored[at][rows]
        there = held != self.cells[at].missing
        return np.where(there, held * float(self.cells[at].step), missing)

    def _find_broken(self, stored: Mapping[int, NDArray[np.int64]]) -> NDArray[np.bool_]:
        every = slice(None)
        wrong = np.zeros(stored[self.orders[0][0]].size, dtype=bool)
        for small, large in self.orders:
            first = self._values(small, stored, every, -math.inf)
            wrong |= first > self._values(large, stored, every, math.inf)
        return wrong


def _conclusions(ordered: Sequence[Any], cells: Sequence[FineCells]) -> tuple[Any, ...]:
    """Return all pairs of columns in order, also those that follow from others."""
    names = {one.name: at for at, one in enumerate(cells)}
    found: set[tuple[int, int]] = set()
    for one in ordered:
        if isinstance(one, str) or not isinstance(one, Sequence) or len(one) != 2:
            raise InvalidValue("ordered", one, "pairs of columns, the smaller one first")
        if not all(name in names and cells[names[name]].labels is None for name in one):
            raise InvalidValue("ordered", one, "columns of numbers or dates of the schema")
        if len({cells[names[name]].kind == "date" for name in one}) != 1:
            raise InvalidValue("ordered", one, "two dates, or two numbers")
        found.add((names[one[0]], names[one[1]]))
    while True:
        more = {(a, d) for a, b in found for c, d in found if b == c} - found
        if not more:
            break
        found |= more
    if any(a == b for a, b in found):
        raise InvalidValue("ordered", list(ordered), "an order without a circle")
    for a, b in found:
        both = [at for pair in found if {a, b} & set(pair) for at in pair]
        if len(set(both)) > 2 and len({cells[at].step for at in both}) > 1:
            expected = "whole numbers or dates where more than two columns are in order"
            raise InvalidValue("ordered", list(ordered), expected)
    return tuple(sorted(found))
