"""Which aggregator for which votes: labels and accuracy before anything is spent.

NEVER pass private votes: what is chosen by looking at them would tell about them, and no loss
here covers that. Use simulated votes, or votes of teachers that were trained on public data.

For each aggregator the parameters are searched that answer most labels, in expectation, at an
expected accuracy of at least ``accuracy`` within (epsilon, delta), data-independently. The
expectations are estimates; the loss of what is proposed is checked by the accountant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue
from discreet.mechanisms.distances import votes_distance
from discreet.mechanisms.sparse_vector import step_budget
from discreet.mechanisms.stability import stability_test
from discreet.pate.aggregator import Aggregator, most_queries
from discreet.pate.confident import ConfidentGNMax, InteractiveGNMax, baseline_of
from discreet.pate.expected import (
    gaussian_right,
    laplace_right,
    passing_stable,
    passing_vector,
)
from discreet.pate.gaussian_max import GNMax
from discreet.pate.laplace_max import LaplaceMax
from discreet.pate.session import Session
from discreet.pate.sparse import SparseVotes
from discreet.pate.stable import SampledVotes, StableVotes, lead_distance
from discreet.pate.votes import read_histograms
from discreet.privacy import Relation
from discreet.privacy.theorems_gaussian import gaussian_mu

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Counts = NDArray[np.int64]

__all__ = ["Prospect", "compare_aggregators"]

_LARGEST_PROFILE = 1_000


@final
@dataclass(frozen=True)
class Prospect:
    """What one aggregator promises: expected ``labels`` at an expected ``accuracy``.

    ``aggregator`` and ``budget`` are ready to be opened; both are None where no parameters
    answer anything at the accuracy asked for, and ``note`` says so.
    """

    name: str
    labels: float
    accuracy: float
    queries: float
    aggregator: Aggregator | None
    budget: Mapping[str, Any]
    note: str = ""

    def open(self, **randomness: Any) -> Session:
        """Open the session that was promised; see the ``open`` of the aggregator."""
        if self.aggregator is None:
            raise InvalidValue("prospect", self.name, f"one that answers: {self.note}")
        opening: Any = self.aggregator
        session: Session = opening.open(**self.budget, **randomness)
        return session


def compare_aggregators(
    public_votes: Any,
    *,
    epsilon: float,
    delta: float,
    classes: int,
    teachers: int,
    queries: int | None = None,
    truth: Any = None,
    predictions: Any = None,
    accuracy: float | None = None,
    relation: Relation | str = Relation.ADD_REMOVE,
) -> list[Prospect]:
    """Return what each aggregator would answer on votes like these, most labels first.

    ``public_votes`` are histograms that are NOT private, one a row; ``truth`` their right
    labels (by default the winners, and accuracy is agreement with them). ``queries`` is how
    many queries there are to ask (by default as many as rows). ``accuracy`` is what the
    answered labels must reach, by default 0.98 of what the winners of all votes reach.
    ``predictions`` of a student add InteractiveGNMax.

    >>> votes = [[220, 20, 10]] * 60 + [[100, 90, 60]] * 40
    >>> ranked = compare_aggregators(
    ...     votes, epsilon=2, delta=1e-5, classes=3, teachers=250, queries=1000
    ... )
    >>> sorted(one.name for one in ranked)
    ['ConfidentGNMax', 'GNMax', 'LaplaceMax', 'SampledVotes', 'SparseVotes', 'StableVotes']
    >>> ranked[0].labels > 100
    True
    """
    profile = _Profile.read(
        public_votes,
        classes=_validate.integer("classes", classes, at_least=2),
        teachers=_validate.integer("teachers", teachers, at_least=1),
        queries=queries,
        truth=truth,
        predictions=predictions,
        accuracy=accuracy,
        epsilon=_validate.real("epsilon", epsilon, above=0),
        delta=_validate.real("delta", delta, above=0, below=1),
        relation=Relation.parse(relation),
    )
    searches: list[Callable[[_Profile], Prospect]] = [
        _laplace,
        _gaussian,
        _confident,
        _stable,
        _sampled,
        _sparse,
    ]
    if profile.expected is not None:
        searches.append(_interactive)
    return sorted((search(profile) for search in searches), key=lambda found: -found.labels)


@final
@dataclass(frozen=True, eq=False)
class _Profile:
    votes: Counts
    labels: Counts
    expected: Counts | None
    queries: int
    accuracy: float
    epsilon: float
    delta: float
    common: Mapping[str, Any]

    @classmethod
    def read(
        cls,
        votes: Any,
        *,
        classes: int,
        teachers: int,
        queries: int | None,
        truth: Any,
        predictions: Any,
        accuracy: float | None,
        epsilon: float,
        delta: float,
        relation: Relation,
    ) -> _Profile:
        table = read_histograms(votes, classes=classes, teachers=teachers)
        winners = np.argmax(table, axis=1)
        labels = winners if truth is None else _read_truth(truth, len(table), classes)
        expected = None
        if predictions is not None:
            if len(predictions) != len(table):
                raise InvalidValue("predictions", f"{len(predictions)} rows", f"{len(table)} rows")
            rows = [baseline_of(row, classes=classes, teachers=teachers)[1] for row in predictions]
            expected = np.stack(rows)
        reached = float(np.mean(winners == labels))
        floor = 0.98 * reached
        if accuracy is not None:
            floor = _validate.real("accuracy", accuracy, at_least=0, at_most=1)
        count = len(table) if queries is None else queries
        some = np.unique(np.linspace(0, len(table) - 1, _LARGEST_PROFILE).astype(np.int64))
        return cls(
            table[some],
            labels[some],
            None if expected is None else expected[some],
            _validate.integer("queries", count, at_least=1, at_most=10**7),
            floor,
            epsilon,
            delta,
            {"classes": classes, "teachers": teachers, "relation": relation},
        )

    @property
    def teachers(self) -> int:
        return int(self.common["teachers"])

    @property
    def winner_is_right(self) -> Array:
        right = np.argmax(self.votes, axis=1) == self.labels
        return np.asarray(right, dtype=np.float64)

    def most_noise(self, right: Callable[[float], Array]) -> float | None:
        """The largest noise at which the expected accuracy of all labels is kept."""
        low, high = 0.1, 1e6
        if float(np.mean(right(low))) < self.accuracy:
            return None
        while high / low > 1.005:
            middle = math.sqrt(low * high)
            kept = float(np.mean(right(middle))) >= self.accuracy
            low, high = (middle, high) if kept else (low, middle)
        return low


def _nothing(
    name: str, note: str = "no parameters keep the accuracy within the budget"
) -> Prospect:
    return Prospect(name, 0.0, 0.0, 0.0, None, {}, note)


def _laplace(profile: _Profile) -> Prospect:
    def right(scale: float) -> Array:
        return laplace_right(profile.votes, profile.labels, scale)

    scale = profile.most_noise(right)
    if scale is None:
        return _nothing("LaplaceMax")

    def labels_with(noise: float) -> int:
        each = LaplaceMax(**profile.common, scale=noise).costs.query
        try:
            return most_queries(
                each, epsilon=profile.epsilon, delta=profile.delta, at_most=profile.queries
            )
        except InvalidValue:
            return 0

    scale = float(f"{scale:.6g}")
    count = labels_with(scale)
    low, high = 0.1, scale
    # If all queries are answered with noise to spare, less noise answers them better.
    while count == profile.queries and high / low > 1.02:
        middle = float(f"{math.sqrt(low * high):.6g}")
        low, high = (low, middle) if labels_with(middle) == count else (middle, high)
    if count == 0:
        return _nothing("LaplaceMax")
    aggregator = LaplaceMax(**profile.common, scale=high)
    reached = float(np.mean(right(high)))
    return Prospect("LaplaceMax", count, reached, count, aggregator, {"queries": count})


def _gaussian(profile: _Profile) -> Prospect:
    def right(noise: float) -> Array:
        return gaussian_right(profile.votes, profile.labels, noise)

    noise = profile.most_noise(right)
    if noise is None:
        return _nothing("GNMax")
    mu = gaussian_mu(profile.epsilon, profile.delta) * (1 - 1e-9)
    noise = min(noise, math.sqrt(2.0 * profile.queries) / mu * (1 + 1e-6))
    noise = float(f"{noise:.9g}")
    count = min(profile.queries, math.floor((mu * noise) ** 2 / 2.0))
    if count == 0 or noise < 0.1:
        return _nothing("GNMax")
    aggregator = GNMax(**profile.common, noise=noise)
    reached = float(np.mean(right(noise)))
    return Prospect("GNMax", count, reached, count, aggregator, {"queries": count})


def _confident(profile: _Profile) -> Prospect:
    return _selective(profile, ConfidentGNMax, profile.votes.max(axis=1))


def _interactive(profile: _Profile) -> Prospect:
    expected = profile.votes if profile.expected is None else profile.expected
    return _selective(profile, InteractiveGNMax, (profile.votes - expected).max(axis=1))


def _selective(
    profile: _Profile, kind: type[ConfidentGNMax] | type[InteractiveGNMax], largest: Counts
) -> Prospect:
    """Search thresholds and the two noises on a grid."""
    from scipy import special

    n = profile.teachers
    mu_squared = gaussian_mu(profile.epsilon, profile.delta) ** 2
    tests = np.maximum(n * 2.0 ** np.arange(-5.0, 2.5, 0.5), 0.1)
    answers = np.maximum(n * 2.0 ** np.arange(-6.0, 0.5, 0.5), 0.1)
    right = np.stack([gaussian_right(profile.votes, profile.labels, s) for s in answers], axis=1)
    best = _nothing(kind.__name__)
    for threshold in np.unique(np.round(n * np.arange(0.0, 1.2, 0.05))):
        for test in tests:
            passing = special.ndtr((largest - threshold) / test)
            share = float(passing.mean())
            if share <= 0:
                continue
            reached = passing @ right / passing.sum()
            asked = np.minimum(
                profile.queries, mu_squared / (1.0 / test**2 + share * 2.0 / answers**2)
            )
            labels = np.where(reached >= profile.accuracy, asked * share, 0.0)
            place = int(np.argmax(labels))
            if labels[place] > best.labels and labels[place] >= 1:
                aggregator = kind(
                    **profile.common,
                    threshold=float(threshold),
                    selection_noise=float(f"{test:.6g}"),
                    answer_noise=float(f"{answers[place]:.6g}"),
                )
                best = Prospect(
                    kind.__name__,
                    float(labels[place]),
                    float(reached[place]),
                    float(asked[place]),
                    aggregator,
                    {"epsilon": profile.epsilon, "delta": profile.delta},
                )
    return best


def _stable(profile: _Profile) -> Prospect:
    distances = np.array([votes_distance(row, moved=True) for row in profile.votes])
    return _by_stability(profile, StableVotes, distances)


def _sampled(profile: _Profile) -> Prospect:
    distances = np.array([lead_distance(row, cap=1) for row in profile.votes])
    return _by_stability(profile, SampledVotes, distances)


def _by_stability(
    profile: _Profile, kind: type[StableVotes] | type[SampledVotes], distances: Counts
) -> Prospect:
    right = profile.winner_is_right
    best = _nothing(kind.__name__)
    count = profile.queries
    while count >= 1:
        half = Fraction(profile.delta) / 2
        each = step_budget(
            runs=count, epsilon=profile.epsilon, delta=half, composition="accounted"
        ).epsilon
        test = stability_test(epsilon=each, delta=half / count)
        passing = passing_stable(distances, epsilon=float(each), threshold=test.threshold)
        found = _answered(profile, kind.__name__, passing, right, float(count))
        if found is not None and found.labels > best.labels:
            aggregator = kind(**profile.common, epsilon=each, delta=half / count)
            best = Prospect(
                found.name,
                found.labels,
                found.accuracy,
                found.queries,
                aggregator,
                {"queries": count},
            )
        count //= 2
    return best


def _sparse(profile: _Profile) -> Prospect:
    distances = np.array([votes_distance(row, moved=True) for row in profile.votes])
    right = profile.winner_is_right
    best = _nothing("SparseVotes")
    ways = [(2**k, way) for k in range(11) for way in ("smaller_noise", "accounted")]
    for fails, composition in ways:
        if fails > profile.queries:
            break
        aggregator = SparseVotes(
            **profile.common,
            fails=fails,
            epsilon=profile.epsilon,
            delta=profile.delta,
            composition=composition,
        )
        plan = aggregator.vector_plan
        passing = passing_vector(distances, scale=float(plan.scale), threshold=plan.threshold)
        failing = max(1.0 - float(passing.mean()), 1e-12)
        asked = min(float(profile.queries), fails / failing)
        found = _answered(profile, "SparseVotes", passing, right, asked)
        if found is not None and found.labels > best.labels:
            best = Prospect(found.name, found.labels, found.accuracy, found.queries, aggregator, {})
    return best


def _answered(
    profile: _Profile, name: str, passing: Array, right: Array, asked: float
) -> Prospect | None:
    """The expected outcome where exact winners are released, if the accuracy is kept."""
    share = float(passing.mean())
    if share * asked < 1:
        return None
    reached = float(passing @ right / passing.sum())
    if reached < profile.accuracy:
        return None
    return Prospect(name, share * asked, reached, asked, None, {})


def _read_truth(truth: Any, rows: int, classes: int) -> Counts:
    labels = np.asarray(truth)
    if labels.shape != (rows,) or labels.dtype.kind not in "iu":
        raise InvalidValue("truth", f"shape {labels.shape}", f"{rows} integer labels")
    if bool(np.any(labels < 0)) or bool(np.any(labels >= classes)):
        raise InvalidValue("truth", "labels", f"classes from 0 to {classes - 1}")
    return labels.astype(np.int64)
