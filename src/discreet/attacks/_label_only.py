"""Label-only attacks, for models that return only a class (Choquette-Choo et al. 2021).

Training pushes the decision boundary away from the records that were used. The distance of a
record to the boundary is measured with labels alone, by the decision-based search of Chen,
Jordan and Wainwright (HopSkipJump, 2020): walk to the boundary by bisection, estimate its
direction from the labels of random points around, step along it, walk back. Or, cheaper: how
many slightly changed copies of the record keep their label?

A record that the model gets wrong has distance and agreement 0. Distances are Euclidean, and those
to a point that the model really labels otherwise, so they are never below the true distance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet import _validate
from discreet.attacks._contract import attack
from discreet.attacks._membership import MembershipResult, conformal_threshold
from discreet.attacks._records import OVERLAPS, check_overlap, digests_beside, record_digests
from discreet.attacks._target import Target, as_target, class_indices
from discreet.attacks._training import fresh_seed, seeded_generator
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.attacks._training import Generator

    Labels = Callable[[NDArray[np.float64]], NDArray[np.int64]]


METHODS = ("boundary", "noise", "shifts")


@attack(family="membership", access="labels")
def label_only(
    target: Any,
    records: Any,
    labels: Any,
    *,
    members: Any,
    method: str = "boundary",
    public: tuple[Any, Any] | None = None,
    false_positive_rate: float = 0.1,
    copies: int = 32,
    scale: float = 0.5,
    distance: int = 1,
    iterations: int = 4,
    queries: int = 40,
    bounds: tuple[float, float] | None = None,
    overlap: str = "refuse",
    seed: int | None = None,
) -> MembershipResult:
    """Score each record by how firmly the target holds on to its label.

    Parameters
    ----------
    target : model
        A model, or a function that returns labels.
    records, labels, members, overlap
        As for :func:`observe`; records are numbers.
    method : {"boundary", "noise", "shifts"}
        The distance to the decision boundary; or the share of changed copies that keep the right
        label, under noise or, for images (the last two axes), moved by some pixels.
    public : pair (records, labels), optional
        Surely unused records that set the threshold; without them there are no decisions. They are
        measured together with the evaluated ones, with the same starting points, directions and
        noise, so that unused ones are exchangeable.
    false_positive_rate : float
        The chance to accuse a non-member of the population of ``public``, at most.
    copies, scale
        How many copies, and up to how many standard deviations of noise in each column.
    distance : int
        How many pixels at most.
    iterations, queries : int
        For the boundary: about ``iterations * (queries + 20)`` questions for each record.
    bounds : pair of float, optional
        Keeps queries inside the range of valid values.
    seed : int, optional
        Makes the attack repeatable.

    Returns
    -------
    MembershipResult
        Scores, and decisions if there are public records.

    Raises
    ------
    InvalidValue
        If records are not numbers, shapes do not fit, or there are too few public records.
    """
    _validate.one_of("method", method, METHODS)
    _validate.one_of("overlap", overlap, OVERLAPS)
    rate = _validate.real("false_positive_rate", false_positive_rate, above=0, below=1)
    values = _numbers("records", records)
    if not isinstance(target, Target) and not hasattr(target, "predict") and callable(target):
        target = target if hasattr(target, "parameters") else as_target(target, output="labels")
    asked = as_target(target)
    codes = class_indices(asked, labels)
    truth = np.asarray(members)
    if truth.dtype != bool or truth.shape != (len(values),) or len(codes) != len(values):
        raise InvalidValue(
            "members", f"shape {truth.shape}", "True or False, and a label, for each record"
        )
    digests = record_digests(values, codes)
    kept = check_overlap(digests, truth, overlap)
    values, codes, truth = values[kept], codes[kept], truth[kept]

    def measure(x: NDArray[np.float64], y: NDArray[np.int64]) -> NDArray[np.float64]:
        draw = seeded_generator(own_seed, 0)
        if method == "boundary":
            return boundary_distances(
                asked.labels, x, y, draw, iterations=iterations, queries=queries, bounds=bounds
            )
        if method == "noise":
            change = _noise(x.std(axis=0), scale, copies, bounds)
        else:
            change = _shifts(x, distance)
        return _agreement(asked, x, y, change, draw)

    own_seed = fresh_seed() if seed is None else _validate.integer("seed", seed, at_least=0)
    decisions, threshold = None, None
    if public is None:
        scores = measure(values, codes)
    else:
        others = _numbers("public", public[0])
        known = class_indices(asked, public[1])
        if others.shape[1:] != values.shape[1:] or len(known) != len(others):
            raise InvalidValue(
                "public",
                f"{len(known)} labels and records of shape {others.shape}",
                f"a label for each record, and records of shape {values.shape[1:]}",
            )
        theirs = digests_beside(others, known, records)
        if np.isin(theirs, digests_beside(values, codes, public[0])).any():
            raise InvalidValue("public", "evaluated records", "records apart from the evaluated")
        conformal_threshold(
            np.zeros(len(others)), rate
        )  # too few are refused before anything is asked
        together = measure(np.concatenate([values, others]), np.concatenate([codes, known]))
        scores, reference = together[: len(values)], together[len(values) :]
        threshold = conformal_threshold(reference, rate)
        decisions = scores > threshold
    return MembershipResult(
        f"label only: {method}",
        scores,
        truth,
        codes,
        kept,
        decisions,
        threshold,
        {
            "method": method,
            "seed": own_seed,
            "threshold_from": None if public is None else "public records",
            "threshold_saw_evaluated": False,
        },
    )


def _numbers(argument: str, records: Any) -> NDArray[np.float64]:
    values = records.detach().cpu().numpy() if hasattr(records, "detach") else np.asarray(records)
    if values.dtype.kind not in "biuf" or values.ndim < 2 or not len(values):
        raise InvalidValue(
            argument, f"{values.dtype} of shape {values.shape}", "an array of numbers, (n, ...)"
        )
    return values.astype(np.float64)


Change = Callable[["NDArray[np.float64]", "Generator"], "NDArray[np.float64]"]


def _noise(
    spread: NDArray[np.float64], scale: float, copies: int, bounds: tuple[float, float] | None
) -> list[Change]:
    largest = _validate.real("scale", scale, above=0)
    count = _validate.integer("copies", copies, at_least=1)

    def make_noise(size: float) -> Change:
        def change(x: NDArray[np.float64], draw: Generator) -> NDArray[np.float64]:
            # One draw for all records: the score of one does not depend on the others.
            moved = x + size * spread * draw.standard_normal(x.shape[1:])
            return moved if bounds is None else np.clip(moved, *bounds)

        return change

    return [make_noise(largest * (copy + 1) / count) for copy in range(count)]


def _shifts(records: NDArray[np.float64], distance: int) -> list[Change]:
    far = _validate.integer("distance", distance, at_least=1)
    if records.ndim < 3 or min(records.shape[-2:]) <= far:
        raise InvalidValue("records", f"shape {records.shape}", "images, to be shifted")

    def make_shift(down: int, right: int) -> Change:
        def change(x: NDArray[np.float64], _: Generator) -> NDArray[np.float64]:
            padded = np.pad(x, [(0, 0)] * (x.ndim - 2) + [(far, far), (far, far)], mode="edge")
            rows, columns = x.shape[-2:]
            top, left = far - down, far - right
            return padded[..., top : top + rows, left : left + columns]

        return change

    steps = range(-far, far + 1)
    return [make_shift(down, right) for down in steps for right in steps]


def _agreement(
    target: Target,
    records: NDArray[np.float64],
    labels: NDArray[np.int64],
    changes: list[Change],
    draw: Generator,
) -> NDArray[np.float64]:
    right = target.labels(records) == labels
    kept = np.zeros(len(records))
    for change in changes:
        kept += target.labels(change(records, draw)) == labels
    return np.where(right, kept / len(changes), 0.0)


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

    def _are_out(self, points: NDArray[np.float64]) -> NDArray[np.bool_]:
        return np.asarray(self._ask(points) != self._labels)

    def to_boundary(self, outside: NDArray[np.float64]) -> NDArray[np.float64]:
        """The last point that is out on the way from ``outside`` to the records."""
        near, far = np.zeros(len(outside)), np.ones(len(outside))
        for _ in range(_BISECTIONS):
            middle = (near + far) / 2
            out = self._are_out(self._origin + middle[:, None] * (outside - self._origin))
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
            good = waiting & self._are_out(tried)
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
        queried = flat[todo[places]]
        squares = (some**2).sum(axis=1) - 2 * queried @ some.T
        starts[places] = some[squares.argmin(axis=1)]
    return starts
