"""Junction trees: which columns may stand together, and exact sums over all others.

A model of many columns is a product of small tables whose columns overlap like the nodes of a
tree (Lauritzen and Spiegelhalter 1988). Every node keeps P(residual | separator), so that
probabilities are multiplied and never divided, and sums are taken after the largest term was
subtracted: no potential, however large, overflows, and a cell of minus infinity is impossible and
does no harm.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Columns = tuple[int, ...]


def count_cells(sizes: Sequence[int], columns: Iterable[int]) -> int:
    """Return how many cells a table of some columns has."""
    return math.prod(sizes[column] for column in columns)


# --- graphs ---------------------------------------------------------------------------------


@final
class DecomposableGraph:
    """A chordal graph of columns that grows edge by edge (Deshpande and others 2001).

    An edge between u and v keeps it chordal if and only if the common neighbours of u and v
    separate them; these and u and v are then the one new clique.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = tuple(sizes)
        self._near = [0] * len(self._sizes)

    def clique_with(self, u: int, v: int) -> Columns | None:
        """Return the clique that an edge would make, or None if the graph were not chordal."""
        both = self._near[u] & self._near[v]
        if self._near[u] >> v & 1:
            return None
        reached = fresh = 1 << u
        while fresh:
            ahead = 0
            for node in _members(fresh):
                ahead |= self._near[node]
            fresh = ahead & ~reached & ~both
            reached |= fresh
            if reached >> v & 1:
                return None
        return (*_members(both | 1 << u | 1 << v),)

    def add(self, u: int, v: int) -> None:
        """Add an edge for which :meth:`clique_with` returned a clique."""
        self._near[u] |= 1 << v
        self._near[v] |= 1 << u

    def grow(self, pairs: Iterable[Columns], *, most_cells: int) -> None:
        """Add every pair that fits, in order; those that do not fit yet are tried again."""
        left = list(pairs)
        while True:
            later: list[Columns] = []
            for u, v in left:
                clique = self.clique_with(u, v)
                if clique is not None and count_cells(self._sizes, clique) <= most_cells:
                    self.add(u, v)
                elif not self._near[u] >> v & 1:
                    later.append((u, v))
            if len(later) == len(left):
                return
            left = later

    def join(self, columns: Columns, *, most_cells: int) -> DecomposableGraph | None:
        """Return a graph in which some columns stand together, or None if that does not fit."""
        grown = DecomposableGraph(self._sizes)
        grown._near = list(self._near)
        pairs = list(itertools.combinations(columns, 2))
        grown.grow(pairs, most_cells=most_cells)
        return grown if all(grown._near[u] >> v & 1 for u, v in pairs) else None

    def cliques(self) -> list[Columns]:
        """Return the maximal cliques, by maximum cardinality search."""
        weight = dict.fromkeys(range(len(self._sizes)), 0)
        seen = 0
        found: list[int] = []
        while weight:
            node = max(weight, key=lambda one: (weight[one], -one))
            del weight[node]
            found.append((self._near[node] & seen) | 1 << node)
            seen |= 1 << node
            for other in _members(self._near[node] & ~seen):
                weight[other] += 1
        maximal = [one for one in found if not any(one & ~two == 0 for two in found if two != one)]
        return sorted((*_members(one),) for one in maximal)


def _members(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


# --- trees ----------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Node:
    """A clique: its axes are the separator towards its parent, then the rest."""

    columns: Columns
    shape: tuple[int, ...]
    parent: int
    separator: Columns

    @property
    def flat(self) -> tuple[int, int]:
        """The shape with one axis for the separator and one for the rest."""
        inner = math.prod(self.shape[: len(self.separator)])
        return inner, math.prod(self.shape[len(self.separator) :])


@final
class JunctionTree:
    """The tree of the cliques of a chordal graph; columns in no clique stand alone.

    Parameters
    ----------
    sizes
        How many values each column has.
    cliques
        Sets of columns with the running intersection property.

    """

    def __init__(self, sizes: Sequence[int], cliques: Iterable[Columns]) -> None:
        self.sizes = tuple(int(size) for size in sizes)
        found = [tuple(sorted(set(one))) for one in cliques]
        held = {column for one in found for column in one}
        found += [(column,) for column in range(len(self.sizes)) if column not in held]
        self.nodes = self._root(found)
        self.children: list[list[int]] = [[] for _ in self.nodes]
        for at, node in enumerate(self.nodes[1:], 1):
            self.children[node.parent].append(at)
        self.below: list[set[int]] = [set(node.columns) for node in self.nodes]
        for at in range(len(self.nodes) - 1, 0, -1):
            self.below[self.nodes[at].parent] |= self.below[at]

    def _root(self, cliques: list[Columns]) -> list[Node]:
        """Join each clique to the one with the largest separator, beginning at the largest."""
        left = sorted(cliques, key=lambda one: (-count_cells(self.sizes, one), one))
        nodes: list[Node] = []
        best = dict.fromkeys(left, (-1, -1))  # the size of the separator, and with which node
        while left:
            chosen = max(left, key=lambda one: (best[one][0], count_cells(self.sizes, one)))
            left.remove(chosen)
            shared, parent = best[chosen]
            axes = () if shared < 1 else nodes[parent].columns
            separator = tuple(column for column in axes if column in chosen)
            rest = tuple(column for column in chosen if column not in separator)
            columns = (*separator, *rest)
            shape = tuple(self.sizes[column] for column in columns)
            nodes.append(Node(columns, shape, max(parent, 0), separator))
            for one in left:
                found = len(set(one) & set(chosen))
                if found > best[one][0]:
                    best[one] = (found, len(nodes) - 1)
        return nodes

    @property
    def cells(self) -> int:
        """How many cells all nodes have together."""
        return sum(math.prod(node.shape) for node in self.nodes)

    def home(self, columns: Iterable[int]) -> int | None:
        """Return the smallest node that holds some columns, or None."""
        wanted = set(columns)
        fitting = [at for at, node in enumerate(self.nodes) if wanted <= set(node.columns)]
        return min(fitting, key=lambda at: math.prod(self.nodes[at].shape), default=None)

    def axes_in(self, at: int, columns: Iterable[int]) -> tuple[Columns, tuple[int, ...]]:
        """Return columns in the order of a node, and the shape with which they broadcast to it."""
        wanted = set(columns)
        node = self.nodes[at]
        order = tuple(column for column in node.columns if column in wanted)
        shape = tuple(
            size if column in wanted else 1
            for column, size in zip(node.columns, node.shape, strict=True)
        )
        return order, shape

    def zeros(self) -> list[NDArray[np.float64]]:
        """Return potentials under which all cells are equally likely."""
        return [np.zeros(node.shape) for node in self.nodes]

    def infer(
        self, potentials: Sequence[NDArray[np.float64]], *, overwrite: bool = False
    ) -> tuple[float, list[NDArray[np.float64]]]:
        """Return log Z and every node's P(rest | separator), separator x rest.

        Parameters
        ----------
        potentials
            The sum of the logarithms of all factors at each node, of the shape of the node.
        overwrite
            Whether the potentials may be used as scratch.

        """
        held = list(potentials) if overwrite else [one.copy() for one in potentials]
        conditionals: list[NDArray[np.float64]] = [np.empty(0)] * len(self.nodes)
        message = np.zeros(1)
        for at in range(len(self.nodes) - 1, -1, -1):
            node = self.nodes[at]
            table = held[at].reshape(node.flat)
            top = table.max(axis=1)
            base = np.where(np.isneginf(top), 0.0, top)
            table -= base[:, None]
            np.exp(table, out=table)
            total = table.sum(axis=1)
            table /= np.where(total > 0.0, total, 1.0)[:, None]
            conditionals[at] = table
            with np.errstate(divide="ignore"):
                message = base + np.log(total)
            if at:
                _, shape = self.axes_in(node.parent, node.separator)
                held[node.parent] += message.reshape(shape)
        return float(message[0]), conditionals

    def joint(self, conditionals: Sequence[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
        """Return the probabilities of every node from its conditionals, in the node's shape."""
        tables: list[NDArray[np.float64]] = []
        for node, conditional in zip(self.nodes, conditionals, strict=True):
            if not tables:
                tables.append(conditional.reshape(node.shape))
                continue
            parent = self.nodes[node.parent]
            outside = tuple(
                axis for axis, column in enumerate(parent.columns) if column not in node.separator
            )
            weight = tables[node.parent].sum(axis=outside).reshape(-1, 1)
            tables.append((conditional * weight).reshape(node.shape))
        return tables

    def marginal(
        self, conditionals: Sequence[NDArray[np.float64]], columns: Columns
    ) -> NDArray[np.float64]:
        """Return the probabilities of any columns, also of some that no node holds together."""
        wanted = set(columns)

        def upward(at: int) -> tuple[NDArray[np.float64], list[int]]:
            node = self.nodes[at]
            operands: list[Any] = [conditionals[at].reshape(node.shape), list(node.columns)]
            kept = [*node.separator]
            kept += [one for one in node.columns if one in wanted and one not in kept]
            for child in self.children[at]:
                if not wanted & (self.below[child] - set(self.nodes[child].separator)):
                    continue
                table, axes = upward(child)
                operands += [table, axes]
                kept += [one for one in axes if one in wanted and one not in kept]
            return _contract(operands, kept), kept

        table, axes = upward(0)
        return _contract([table, axes], list(columns))


def _contract(operands: list[Any], kept: list[int]) -> NDArray[np.float64]:
    """Multiply tables with named axes and sum over all but some axes."""
    return np.asarray(np.einsum(*operands, kept, optimize="greedy"))
