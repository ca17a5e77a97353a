"""Which tables to measure: noisy distances from independence, a tree that fits, and shares.

A table r of n_r cells that is measured with the share B_r of the budget saves about e_r of L1
error, its distance from the model, and costs about n_r sqrt(2 / pi) B_r^(-1/2). For a fixed set of
tables the best shares have a closed form; which tables follow from it, in the order of what each
saves by what it costs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from discreet.synth._budget import STEPS
from discreet.synth._tree import Columns, DecomposableGraph, count_cells

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PENALTIES = (0.0, 1.0, 4.0, 8.0, 16.0, 32.0, 64.0)
TARGET_WEIGHT = 4.0
_SIZES = 4.0


def list_candidates(columns: int, order: int) -> list[Columns]:
    """Return all sets of 2 to ``order`` columns."""
    return [
        one for size in range(2, order + 1) for one in itertools.combinations(range(columns), size)
    ]


def workload_weights(columns: int, order: int, target: int | None) -> NDArray[np.float64]:
    """Return for each column the weight of the tables of the workload that hold it.

    The workload is all tables of ``order`` columns; those with the target count four times.
    """
    least = min(order, columns)
    each = math.comb(columns - 1, least - 1)
    if target is None:
        return np.full(columns, float(each))
    both = math.comb(columns - 2, least - 2) if columns > 1 and least > 1 else 0
    found = np.full(columns, (each - both) + TARGET_WEIGHT * both)
    found[target] = TARGET_WEIGHT * each
    return found


def distance_in_steps(counts: NDArray[np.int64], expected: NDArray[np.float64]) -> int:
    """Return the L1 distance of a table from public numbers, in steps; one row changes it by 1."""
    rounded = np.rint(expected * STEPS).astype(np.int64)
    return int(np.abs(counts * STEPS - rounded).sum())


def independent_table(parts: Sequence[NDArray[np.float64]], total: float) -> NDArray[np.float64]:
    """Return the table of independent columns with these histograms of one total."""
    found = np.asarray(parts[0])
    for part in parts[1:]:
        found = found[..., None] * (part / total)
    return found


@final
@dataclass(frozen=True)
class Choice:
    """The cliques of the tree, the tables to measure and their shares of the budget."""

    cliques: tuple[Columns, ...]
    tables: tuple[Columns, ...]
    shares: tuple[float, ...]


def choose_tables(
    sizes: Sequence[int],
    distances: Mapping[Columns, float],
    weights: NDArray[np.float64],
    *,
    unit_stddev: float,
    most_cells: int,
    needed: Iterable[Columns] = (),
) -> Choice:
    """Choose a tree and tables in it by noisy distances.

    Parameters
    ----------
    sizes
        How many values each column has.
    distances
        The noisy distance of each candidate from the present model, in rows.
    weights
        The weight of each column in the workload.
    unit_stddev
        The noise of a table that gets all of the budget, in rows.
    most_cells
        The most cells of a clique.
    needed
        Pairs that must stand together.

    """
    must = list(needed)
    pairs = [one for one in distances if len(one) == 2 and distances[one] > 0.0]
    best: tuple[float, Choice] | None = None
    seen: set[tuple[Columns, ...]] = set()
    for penalty in _PENALTIES:
        order = sorted(
            pairs,
            key=lambda one: penalty * unit_stddev / 50.0 * count_cells(sizes, one) - distances[one],
        )
        graph = DecomposableGraph(sizes)
        graph.grow(must, most_cells=1 << 62)
        graph.grow(order, most_cells=most_cells)
        cliques = tuple(graph.cliques())
        if cliques in seen:
            continue
        seen.add(cliques)
        value, tables, shares = _allocate(sizes, cliques, distances, weights, unit_stddev)
        if best is None or value > best[0]:
            best = (value, Choice(_reduce_cliques(sizes, tables, must) or cliques, tables, shares))
    assert best is not None
    return best[1]


def _reduce_cliques(
    sizes: Sequence[int], tables: Sequence[Columns], must: Sequence[Columns]
) -> tuple[Columns, ...]:
    """Return smaller cliques that hold the measured tables, or none if these are not chordal."""
    graph = DecomposableGraph(sizes)
    pairs = [pair for one in tables for pair in itertools.combinations(one, 2)]
    graph.grow([*must, *dict.fromkeys(pairs)], most_cells=1 << 62)
    held = graph.cliques()
    if all(any(set(one) <= set(two) for two in held) for one in [*tables, *must]):
        return tuple(held)
    return ()


def _allocate(
    sizes: Sequence[int],
    cliques: Sequence[Columns],
    distances: Mapping[Columns, float],
    weights: NDArray[np.float64],
    unit_stddev: float,
) -> tuple[float, tuple[Columns, ...], tuple[float, ...]]:
    """Return the objective, the tables and their shares (see the module)."""
    inside = {
        one
        for clique in cliques
        for size in range(2, 4)
        for one in itertools.combinations(clique, size)
    }
    eligible = [one for one in distances if one in inside and distances[one] > 0.0]
    if not eligible:
        return 0.0, (), ()
    weight = np.array([weights[list(one)].sum() for one in eligible])
    saved = weight * np.array([distances[one] for one in eligible])
    cells = np.array([count_cells(sizes, one) for one in eligible], dtype=np.float64)
    cost = (weight * cells * math.sqrt(2.0 / math.pi) * unit_stddev) ** (2.0 / 3.0)
    order = np.argsort(-saved / cost, kind="stable")
    values = np.cumsum(saved[order]) - np.cumsum(cost[order]) ** 1.5
    last = int(np.argmax(values))
    if values[last] <= 0.0:
        last = 0
    chosen = order[: last + 1]
    # Few different sizes of noise: the exact sampler prepares each of them once.
    shares = np.exp(np.rint(_SIZES * np.log(cost[chosen])) / _SIZES)
    shares /= shares.sum()
    tables = tuple(eligible[at] for at in chosen)
    return float(values[last]), tables, tuple(shares.tolist())
