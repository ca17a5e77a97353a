"""Distances to a decision boundary, from labels alone.

HopSkipJump (Chen, Jordan and Wainwright 2020) in the Euclidean norm, for many records at
once. What is returned is the distance to a point that the model really labels otherwise, so
it is never below the true distance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from discreet import _validate
from discreet.attacks.record_identity import record_digests
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.attacks.chance import Generator

    Labels = Callable[[NDArray[np.float64]], NDArray[np.int64]]

__all__ = ["boundary_distances"]

_BISECTIONS = 12
# Numbers that are held at the same time for the queries around all records of a block.
_BLOCK_NUMBERS = 4_000_000
_CANDIDATES = 500


def boundary_distances(
    predict: Labels,
    records: NDArray[np.float64],
    labels: NDArray[np.int64],
    draw: Generator,
    *,
    iterations: int = 4,
    queries: int = 40,
    bounds: tuple[float, float] | None = None,
) -> NDArray[np.float64]:
    """Return the distance of each record to a point of another class; 0 where it is wrong.

    ``predict`` gives labels for an array like ``records``. Chance comes from ``draw``, in the
    same amount for each record.
    """
    rounds = _validate.integer("iterations", iterations, at_least=0)
    around = _validate.integer("queries", queries, at_least=2)
    shape = records.shape[1:]
    flat = records.reshape(len(records), -1)

    def ask(points: NDArray[np.float64]) -> NDArray[np.int64]:
        return predict(points.reshape(len(points), *shape))

    seen = ask(flat)
    distances = np.zeros(len(flat))
    todo = np.flatnonzero(seen == labels)
    if not todo.size:
        return distances
    starts = _other_points(flat, seen, labels, todo)
    size = max(1, _BLOCK_NUMBERS // (around * flat.shape[1]))
    # One set of directions for all records: the result of one does not depend on the others.
    directions = draw.standard_normal((max(rounds, 1), around, flat.shape[1]))
    directions /= np.linalg.norm(directions, axis=2, keepdims=True)
    for begin in range(0, len(todo), size):
        block = todo[begin : begin + size]
        search = _Search(ask, flat[block], labels[block], bounds)
        points = search.to_boundary(starts[begin : begin + size])
        for step in range(rounds):
            points = search.improve(points, directions[step], step)
        distances[block] = np.linalg.norm(points - flat[block], axis=1)
    return distances


class _Search:
    """The search around a block of records; a point is *out* if its label is another."""

    def __init__(
        self,
        ask: Labels,
        origin: NDArray[np.float64],
        labels: NDArray[np.int64],
        bounds: tuple[float, float] | None,
    ) -> None:
        self._ask, self._origin, self._labels, self._bounds = ask, origin, labels, bounds

    def _out(self, points: NDArray[np.float64]) -> NDArray[np.bool_]:
        return np.asarray(self._ask(points) != self._labels)

    def to_boundary(self, outside: NDArray[np.float64]) -> NDArray[np.float64]:
        """The last point that is out on the way from ``outside`` to the records."""
        near, far = np.zeros(len(outside)), np.ones(len(outside))
        for _ in range(_BISECTIONS):
            middle = (near + far) / 2
            out = self._out(self._origin + middle[:, None] * (outside - self._origin))
            near, far = np.where(out, near, middle), np.where(out, middle, far)
        return np.asarray(self._origin + far[:, None] * (outside - self._origin))

    def improve(
        self, points: NDArray[np.float64], directions: NDArray[np.float64], step: int
    ) -> NDArray[np.float64]:
        """One hop: estimate the normal, step along it, walk back; never further away."""
        count, columns = points.shape
        distance = np.linalg.norm(points - self._origin, axis=1)
        radius = np.maximum(distance / np.sqrt(columns), 1e-12)
        cloud = points[:, None, :] + radius[:, None, None] * directions[None]
        around = self._ask(self._inside(cloud).reshape(-1, columns)).reshape(count, -1)
        votes = np.where(around != self._labels[:, None], 1.0, -1.0)
        normal = (votes - votes.mean(axis=1, keepdims=True)) @ directions
        length = np.linalg.norm(normal, axis=1, keepdims=True)
        normal = np.divide(normal, length, out=np.zeros_like(normal), where=length > 0)
        best, reach = points, distance / np.sqrt(step + 1)
        waiting = length[:, 0] > 0
        for _ in range(8):
            tried = self._inside(points + reach[:, None] * normal)
            good = waiting & self._out(tried)
            best = np.where(good[:, None], tried, best)
            waiting &= ~good
            if not waiting.any():
                break
            reach = np.where(waiting, reach / 2, reach)
        found = self.to_boundary(best)
        closer = np.linalg.norm(found - self._origin, axis=1) < distance
        return np.where(closer[:, None], found, points)

    def _inside(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        return points if self._bounds is None else np.clip(points, *self._bounds)


def _other_points(
    flat: NDArray[np.float64],
    seen: NDArray[np.int64],
    labels: NDArray[np.int64],
    todo: NDArray[np.intp],
) -> NDArray[np.float64]:
    """For each record the nearest of some records that the model labels otherwise."""
    starts = np.empty((len(todo), flat.shape[1]))
    for label in np.unique(labels[todo]):
        places = np.flatnonzero(labels[todo] == label)
        others = np.flatnonzero(seen != label)
        if not others.size:
            raise InvalidValue(
                "records",
                f"records that the target all labels {label}",
                "records of which the target labels some otherwise, to walk towards",
            )
        # Spread by all values of a record, so that the choice does not depend on the order given.
        ordered = others[np.argsort(record_digests(flat[others], seen[others]))]
        some = flat[ordered[:: max(1, len(ordered) // _CANDIDATES)]]
        mine = flat[todo[places]]
        squares = (some**2).sum(axis=1) - 2 * mine @ some.T
        starts[places] = some[squares.argmin(axis=1)]
    return starts
