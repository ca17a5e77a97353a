"""Pairs of values that no row may have: impossible cells of the model, by public knowledge.

A value of such a pair keeps a group of its own, so a forbidden pair is one cell of the model; its
probability is 0, and no synthetic row has it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet.data import Schema
from discreet.errors import InvalidValue
from discreet.synth._cells import FineCells, Groups, cell_of
from discreet.synth._tree import Columns, DecomposableGraph, JunctionTree

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_CELLS = 1 << 22


@final
@dataclass(frozen=True)
class Forbidden:
    """The forbidden pairs of fine cells, by pairs of columns."""

    pairs: Mapping[Columns, frozenset[tuple[int, int]]]

    @classmethod
    def read(cls, forbid: Sequence[Any], schema: Schema, cells: Sequence[FineCells]) -> Forbidden:
        """Read what was declared, and raise unless some rows remain possible.

        Parameters
        ----------
        forbid
            Mappings of two columns to one value each.
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
                cell = cell_of(f"forbid[{names[at]!r}]", cells[at], schema, one[names[at]])
                low, high = (0.0, 0.0) if cells[at].labels else cells[at].bounds(cell)
                if low != high:
                    raise InvalidValue("forbid", one, "values that have a cell of their own")
                places.append(cell)
            pair = (columns[0], columns[1])
            found.setdefault(pair, set()).add((places[0], places[1]))
        read = cls({pair: frozenset(held) for pair, held in found.items()})
        read._check(cells)
        return read

    def _check(self, cells: Sequence[FineCells]) -> None:
        sizes = [one.size for one in cells]
        graph = DecomposableGraph(sizes)
        graph.grow(self.pairs, most_cells=_MOST_CELLS)
        held = [one for one in graph.cliques() if len(one) > 1]
        if not all(any(set(pair) <= set(one) for one in held) for pair in self.pairs):
            largest = f"pairs of columns without a cycle, of at most {_MOST_CELLS} cells"
            raise InvalidValue("forbid", sorted(self.pairs), largest)
        involved = sorted({at for pair in self.pairs for at in pair})
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
            raise InvalidValue("forbid", "all pairs", "constraints that leave some rows possible")

    def alone(self, at: int) -> set[int]:
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
        return found
