"""Fit a junction tree to noisy tables: the convex dual of maximum entropy with a Gaussian misfit.

Over the potentials theta of the measured tables the fit minimises

    F(theta) = log Z(theta) - <theta, y> / N + strength / (2 N) sum_c v_c theta_c^2,

where y are the noisy tables, v their variances and N the total. Its gradient is the model's table
less y, over N, plus strength v theta / N. A strength near 0 is least squares (Private-PGM of
McKenna, Sheldon and Miklau 2019), 1 the most likely table under uniform records; between the two
cells that are noise alone do not become structure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet.synth._tree import Columns, JunctionTree

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PAIRS = 20
_LEAST, _WINDOW = 300, 100
_SLOW = 1e-4


@final
@dataclass(frozen=True)
class Measurement:
    """A noisy table: its columns, the counts, and the variance of each of them."""

    columns: Columns
    values: NDArray[np.float64]
    variance: NDArray[np.float64]


def merge_measurements(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Return one table for each set of columns: the mean weighted by inverse variances."""
    weight: dict[Columns, NDArray[np.float64]] = {}
    total: dict[Columns, NDArray[np.float64]] = {}
    for one in measurements:
        order = tuple(sorted(one.columns))
        axes = [one.columns.index(column) for column in order]
        values, variance = one.values.transpose(axes), one.variance.transpose(axes)
        weight[order] = weight.get(order, 0.0) + 1.0 / variance
        total[order] = total.get(order, 0.0) + values / variance
    return [Measurement(one, total[one] / weight[one], 1.0 / weight[one]) for one in weight]


@final
@dataclass(frozen=True, eq=False)
class Point:
    """F at some potentials: its value, its gradient and about the diagonal of its Hessian."""

    theta: NDArray[np.float64]
    value: float
    gradient: NDArray[np.float64]
    curvature: NDArray[np.float64]
    conditionals: list[NDArray[np.float64]]


def _dot(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    """Return an inner product without the threads of BLAS, which cost more than they save here."""
    return float(np.einsum("i,i->", left, right))


def minimise(
    evaluate: Callable[[NDArray[np.float64]], Point],
    start: NDArray[np.float64],
    is_done: Callable[[], bool],
) -> Point:
    """Minimise a smooth convex function by L-BFGS (Nocedal 1980), scaled by the curvature.

    Steps are halved until the value falls by the rule of Armijo. It ends when ``is_done`` says so,
    or no step makes the value fall any more.
    """
    here = evaluate(start)
    steps: list[tuple[NDArray[np.float64], NDArray[np.float64], float]] = []
    while not is_done():
        direction = here.gradient.copy()
        weights = []
        for step, turn, inner in reversed(steps):
            weights.append(_dot(step, direction) / inner)
            direction -= weights[-1] * turn
        direction /= here.curvature
        if steps:
            step, turn, inner = steps[-1]
            direction *= inner / _dot(turn, turn / here.curvature)
        for (step, turn, inner), weight in zip(steps, reversed(weights), strict=True):
            direction += (weight - _dot(turn, direction) / inner) * step
        slope = -_dot(direction, here.gradient)
        if not slope < 0.0:
            if not steps:
                return here
            steps = []
            continue
        length = 1.0 if steps else min(1.0, 1.0 / float(np.abs(direction).max()))
        there = evaluate(here.theta - length * direction)
        while not there.value <= here.value + 1e-4 * length * slope:
            length *= 0.5
            if is_done() or length < 1e-9:
                return here
            there = evaluate(here.theta - length * direction)
        step, turn = there.theta - here.theta, there.gradient - here.gradient
        inner = _dot(step, turn)
        if inner > 0.0:
            steps = [*steps[1 - _PAIRS :], (step, turn, inner)]
        here = there
    return here


def fit_tree(
    tree: JunctionTree,
    measurements: Sequence[Measurement],
    total: float,
    *,
    strength: float = 0.01,
    evaluations: int = 300,
    impossible: Sequence[tuple[Columns, NDArray[np.bool_]]] = (),
    start: dict[Columns, NDArray[np.float64]] | None = None,
    watch: Callable[[int], None] | None = None,
) -> tuple[list[NDArray[np.float64]], dict[Columns, NDArray[np.float64]]]:
    """Return the conditionals of the fitted tree, and the potentials for a warm start.

    Parameters
    ----------
    tree
        The tree; each measured set of columns lies in one of its nodes.
    measurements
        The noisy tables.
    total
        The noisy number of rows, above 0.
    strength
        How strongly the potentials are pulled to 0.
    evaluations
        The most evaluations of F.
    impossible
        Sets of columns with the cells that have probability 0.
    start
        Potentials of an earlier fit.
    watch
        Called with the number of each evaluation.

    """
    # Small tables first: each is added to a larger one that holds it, and read off it.
    merged = sorted(merge_measurements(measurements), key=lambda one: len(one.columns))
    base = tree.zeros()
    for columns, cells in impossible:
        at, _, shape, axes = _place(tree, columns)
        base[at] = np.where(cells.transpose(axes).reshape(shape), -np.inf, base[at])
    places = [_place(tree, one.columns) for one in merged]
    values = [one.values.transpose(place[3]) for one, place in zip(merged, places, strict=True)]
    shapes = [one.shape for one in values]
    targets = np.concatenate([one.ravel() for one in values]) / total
    variance = np.concatenate(
        [
            one.variance.transpose(place[3]).ravel()
            for one, place in zip(merged, places, strict=True)
        ]
    )
    pull = strength * variance / total
    ends = np.cumsum([one.size for one in values])[:-1]
    carriers = [_find_carrier(places, at, tree.sizes) for at in range(len(places))]
    first = np.zeros(targets.size)
    if start:
        parts = [
            start[one.columns].transpose(place[3]).ravel()
            if one.columns in start
            else np.zeros(one.values.size)
            for one, place in zip(merged, places, strict=True)
        ]
        first = np.concatenate(parts)
    values_of_f: list[float] = []

    def evaluate(theta: NDArray[np.float64]) -> Point:
        potentials = [one.copy() for one in base]
        parts = [
            part.reshape(shape).copy()
            for part, shape in zip(np.split(theta, ends), shapes, strict=True)
        ]
        for part, place, carrier in zip(parts, places, carriers, strict=True):
            if carrier is None:
                potentials[place[0]] += part.reshape(place[2])
            else:
                parts[carrier[0]] += part.reshape(carrier[1])
        log_z, conditionals = tree.infer(potentials, overwrite=True)
        tables = tree.joint(conditionals)
        for at in range(len(places) - 1, -1, -1):
            carrier = carriers[at]
            home, order = places[at][:2]
            if carrier is None:
                parts[at] = _sum_to(tables[home], tree.nodes[home].columns, order)
            else:
                parts[at] = _sum_to(parts[carrier[0]], places[carrier[0]][1], order)
        found = np.concatenate([part.ravel() for part in parts])
        gap = found - targets
        bent = pull * theta
        value = log_z - _dot(theta, targets) + 0.5 * _dot(theta, bent)
        values_of_f.append(value)
        if watch is not None:
            watch(len(values_of_f))
        return Point(theta, value, gap + bent, found + pull, conditionals)

    def is_done() -> bool:
        if len(values_of_f) >= evaluations:
            return True
        if len(values_of_f) < _LEAST:
            return False
        # Trial steps may be worse: only the best counts.
        before, best = min(values_of_f[:-_WINDOW]), min(values_of_f)
        return before - best <= _SLOW * (values_of_f[0] - best)

    best = minimise(evaluate, first, is_done)
    theta, conditionals = best.theta, best.conditionals
    found: dict[Columns, NDArray[np.float64]] = {}
    for part, one, place, shape in zip(np.split(theta, ends), merged, places, shapes, strict=True):
        found[one.columns] = part.reshape(shape).transpose(np.argsort(place[3]))
    return conditionals, found


def _place(tree: JunctionTree, columns: Columns) -> tuple[int, Columns, tuple[int, ...], list[int]]:
    """Return the node of some columns, their order there, the shape and how to turn the axes."""
    at = tree.home(columns)
    if at is None:
        raise ValueError(f"no node of the tree holds {columns}")
    order, shape = tree.axes_in(at, columns)
    return at, order, shape, [columns.index(column) for column in order]


def _find_carrier(
    places: Sequence[Any], at: int, sizes: Sequence[int]
) -> tuple[int, tuple[int, ...]] | None:
    """Return the next larger table at the same node that holds a table, and the shape for it."""
    home, order = places[at][:2]
    for other in range(at + 1, len(places)):
        there, columns = places[other][:2]
        if there == home and set(order) < set(columns):
            return other, tuple(sizes[column] if column in order else 1 for column in columns)
    return None


def _sum_to(table: NDArray[np.float64], columns: Columns, order: Columns) -> NDArray[np.float64]:
    """Return the sums over all columns that are not in ``order``."""
    outside = tuple(axis for axis, column in enumerate(columns) if column not in order)
    return np.asarray(table.sum(axis=outside) if outside else table)
