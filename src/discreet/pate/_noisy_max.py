"""Noisy maxima of votes: by Laplace or Gaussian noise, for all queries or for some.

LaplaceMax and GNMax answer every query; ConfidentGNMax answers where teachers agree, and
InteractiveGNMax where they object to a student.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Self, final

import numpy as np
from scipy import special

from discreet import _validate
from discreet._validate import fraction
from discreet.errors import InvalidValue
from discreet.pate._aggregator import (
    Aggregator,
    Chances,
    Costs,
    Outcome,
    Prospect,
    VoteProfile,
    most_queries,
)
from discreet.pate._surface import (
    RESOLUTION,
    GaussianSurface,
    LaplaceSurface,
    SelectiveSurface,
    Surface,
)
from discreet.pate._votes import (
    argmax_loss,
    gaussian_winners,
    laplace_votes_loss,
    laplace_winners,
    maximum_loss,
    passes,
    read_noise,
    read_prediction,
)
from discreet.privacy.theorems import gaussian_mu
from discreet.randomness import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Counts = NDArray[np.int64]

# Nodes of the integrals over noise that plan.
_NODES = 96


@final
@dataclass(frozen=True, kw_only=True)
class LaplaceMax(Aggregator):
    """The largest of all counts with noise Lap(``scale``); every query is answered.

    **Guarantee.** (2 / scale)-DP for each query (pure): one moved vote changes two counts by
    one. Given ``epsilon`` instead, the scale is 2 / epsilon; the printed 1 / epsilon is
    2 epsilon-DP. At delta > 0 a stream costs less than the pure sum, because two counts move
    by one each (Papernot et al. 2017).

    >>> simple = LaplaceMax(classes=3, teachers=100, epsilon="0.1")
    >>> simple.scale, simple.loss(queries=10).epsilon(delta=0)
    (Fraction(20, 1), 1.0)
    >>> session = simple.open(queries=2, insecure_seed=1)
    >>> session.answer([100, 0, 0])
    0
    """

    epsilon: object = None
    scale: object = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if _validate.exactly_one(epsilon=self.epsilon, scale=self.scale) == "epsilon":
            self._set(scale=2 / fraction("epsilon", self.epsilon, above=0))
            try:
                read_noise("scale", self.scale)
            except InvalidValue:
                expected = "a number with 2e-06 <= epsilon <= 20"
                raise InvalidValue("epsilon", self.epsilon, expected) from None
        level = read_noise("scale", self.scale)
        self._set(scale=level, epsilon=2 / level)

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any]) -> Self:
        """Read the scale; epsilon follows from it."""
        return cls(**{name: value for name, value in parameters.items() if name != "epsilon"})

    @property
    def noise(self) -> Fraction:
        """The scale of the noise, in votes."""
        return read_noise("scale", self.scale)

    @property
    def costs(self) -> Costs:
        return Costs(laplace_votes_loss(self.noise, self.neighbours), None)

    def decide(self, table: Counts, predictions: Any, source: Source) -> Iterator[Outcome]:
        for label in laplace_winners(table, scale=self.noise, source=source):
            yield Outcome(int(label), True)

    def chances(self, votes: Counts, labels: Counts, expected: Counts | None = None) -> Chances:
        right = laplace_accuracy(votes, labels, float(self.noise))
        return Chances(np.ones(len(votes)), right)

    def surface(self, *, resolution: int = RESOLUTION, one_sided: bool = False) -> Surface:
        return LaplaceSurface(
            scale=self.noise,
            loss=self.costs.query,
            classes=self.classes,
            teachers=self.teachers,
            resolution=resolution,
            one_sided=one_sided,
        )

    @classmethod
    def propose(cls, profile: VoteProfile) -> Prospect:
        """Take the most noise that keeps the accuracy, or the least that answers all queries."""
        scale = profile.most_noise(
            lambda level: laplace_accuracy(profile.votes, profile.labels, level)
        )
        if scale is None:
            return Prospect.nothing(cls.__name__)

        def labels_with(level: float) -> int:
            each = cls(**profile.common, scale=level).costs.query
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
            return Prospect.nothing(cls.__name__)
        reached = float(np.mean(laplace_accuracy(profile.votes, profile.labels, high)))
        aggregator = cls(**profile.common, scale=high)
        return Prospect(cls.__name__, count, reached, count, aggregator, {"queries": count})


@final
@dataclass(frozen=True, kw_only=True)
class GNMax(Aggregator):
    """The largest of all counts with Gaussian noise of deviation ``noise``; answers all.

    **Guarantee.** GDP(sqrt(2) / noise) for each query (Papernot et al. 2018, with the exact
    curve in the place of its Renyi bound). For one query it is attained: with two classes
    the label is a test of N(gap, 2 noise^2) against N(gap - 2, 2 noise^2).

    >>> GNMax(classes=10, teachers=250, noise=40).loss(queries=100).epsilon(delta=1e-5)
    1.356...
    """

    noise: object

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(noise=read_noise("noise", self.noise))

    @property
    def answer_noise(self) -> Fraction:
        """The deviation of the noise on every count, in votes."""
        return read_noise("noise", self.noise)

    @property
    def costs(self) -> Costs:
        return Costs(argmax_loss(self.answer_noise, self.neighbours), None)

    def decide(self, table: Counts, predictions: Any, source: Source) -> Iterator[Outcome]:
        for label in gaussian_winners(table, noise=self.answer_noise, source=source):
            yield Outcome(int(label), True)

    def chances(self, votes: Counts, labels: Counts, expected: Counts | None = None) -> Chances:
        right = gnmax_accuracy(votes, labels, float(self.answer_noise))
        return Chances(np.ones(len(votes)), right)

    def surface(self, *, resolution: int = RESOLUTION, one_sided: bool = False) -> Surface:
        return GaussianSurface(
            noise=self.answer_noise,
            loss=self.costs.query,
            classes=self.classes,
            teachers=self.teachers,
            resolution=resolution,
            one_sided=one_sided,
        )

    @classmethod
    def for_queries(cls, queries: int, *, epsilon: float, delta: float, **common: Any) -> Self:
        """Take the noise at which all queries together are GDP of what (epsilon, delta) allows."""
        noise = math.sqrt(2.0 * queries) / gaussian_mu(epsilon, delta) * (1 + 1e-6)
        return cls(**common, noise=float(f"{noise:.9g}"))

    @classmethod
    def propose(cls, profile: VoteProfile) -> Prospect:
        """Take the most noise that keeps the accuracy, or what all queries need."""
        noise = profile.most_noise(
            lambda level: gnmax_accuracy(profile.votes, profile.labels, level)
        )
        if noise is None:
            return Prospect.nothing(cls.__name__)
        mu = gaussian_mu(profile.epsilon, profile.delta) * (1 - 1e-9)
        noise = min(noise, math.sqrt(2.0 * profile.queries) / mu * (1 + 1e-6))
        noise = float(f"{noise:.9g}")
        count = min(profile.queries, math.floor((mu * noise) ** 2 / 2.0))
        if count == 0 or noise < 0.1:
            return Prospect.nothing(cls.__name__)
        reached = float(np.mean(gnmax_accuracy(profile.votes, profile.labels, noise)))
        aggregator = cls(**profile.common, noise=noise)
        return Prospect(cls.__name__, count, reached, count, aggregator, {"queries": count})


@dataclass(frozen=True, kw_only=True)
class SelectiveGNMax(Aggregator):
    """Base of the two: a noisy threshold decides whether a noisy maximum is released.

    **Guarantee.** GDP(1 / selection_noise) for each query, since the count that is compared
    moves by at most one, and GDP(sqrt(2) / answer_noise) more for each answer. A session asks
    no query whose answer it could not pay for, so that it ends by cost and not by votes.
    """

    threshold: object
    selection_noise: object
    answer_noise: object

    def __post_init__(self) -> None:
        super().__post_init__()
        level = fraction("threshold", self.threshold)
        if not -self.teachers <= level <= 10 * self.teachers:
            expected = f"votes, from -{self.teachers} to {10 * self.teachers}"
            raise InvalidValue("threshold", self.threshold, expected)
        self._set(
            threshold=level,
            selection_noise=read_noise("selection_noise", self.selection_noise),
            answer_noise=read_noise("answer_noise", self.answer_noise),
        )

    @property
    def level(self) -> Fraction:
        """The threshold, in votes."""
        return fraction("threshold", self.threshold)

    @property
    def noises(self) -> tuple[Fraction, Fraction]:
        """The deviations of the noise on the threshold test and on the answer, in votes."""
        return (
            read_noise("selection_noise", self.selection_noise),
            read_noise("answer_noise", self.answer_noise),
        )

    @property
    def costs(self) -> Costs:
        selection, answer = self.noises
        return Costs(maximum_loss(selection, self.neighbours), argmax_loss(answer, self.neighbours))

    def surface(self, *, resolution: int = RESOLUTION, one_sided: bool = False) -> Surface:
        test, answer = self.costs
        return SelectiveSurface(
            threshold=self.level,
            noises=self.noises,
            losses=(test, test if answer is None else answer),
            predictions=self.reads_predictions,
            classes=self.classes,
            teachers=self.teachers,
            resolution=resolution,
            one_sided=one_sided,
        )

    def chances(self, votes: Counts, labels: Counts, expected: Counts | None = None) -> Chances:
        selection, answer = self.noises
        tested = self._counts_for_threshold(votes, expected)
        passed = special.ndtr((tested - float(self.level)) / float(selection))
        return Chances(passed, gnmax_accuracy(votes, labels, float(answer)))

    @classmethod
    def propose(cls, profile: VoteProfile) -> Prospect | None:
        """Search thresholds and the two noises on a grid."""
        tested = cls._counts_for_threshold(profile.votes, profile.expected)
        n = profile.teachers
        mu_squared = gaussian_mu(profile.epsilon, profile.delta) ** 2
        tests = np.maximum(n * 2.0 ** np.arange(-5.0, 2.5, 0.5), 0.1)
        answers = np.maximum(n * 2.0 ** np.arange(-6.0, 0.5, 0.5), 0.1)
        right = np.stack(
            [gnmax_accuracy(profile.votes, profile.labels, s) for s in answers], axis=1
        )
        best = Prospect.nothing(cls.__name__)
        for threshold in np.unique(np.round(n * np.arange(0.0, 1.2, 0.05))):
            for test in tests:
                passing = special.ndtr((tested - threshold) / test)
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
                    aggregator = cls(
                        **profile.common,
                        threshold=float(threshold),
                        selection_noise=float(f"{test:.6g}"),
                        answer_noise=float(f"{answers[place]:.6g}"),
                    )
                    best = Prospect(
                        cls.__name__,
                        float(labels[place]),
                        float(reached[place]),
                        float(asked[place]),
                        aggregator,
                        {"epsilon": profile.epsilon, "delta": profile.delta},
                    )
        return best

    @staticmethod
    @abstractmethod
    def _counts_for_threshold(votes: Counts, expected: Counts | None) -> Counts:
        """The count of every histogram that is compared with the threshold."""

    def _labels(self, tested: Counts, table: Counts, source: Source) -> list[int | None]:
        """The labels of a table whose ``tested`` counts are compared with the threshold."""
        selection, answer = self.noises
        passed = passes(tested, threshold=self.level, noise=selection, source=source)
        winners = iter(gaussian_winners(table[passed], noise=answer, source=source))
        return [int(next(winners)) if one else None for one in passed]


@final
@dataclass(frozen=True, kw_only=True)
class ConfidentGNMax(SelectiveGNMax):
    """Answers by GNMax if the largest count with noise reaches ``threshold``, else None.

    Papernot et al. 2018, algorithm 1. A query without consensus costs only the test.

    >>> aggregator = ConfidentGNMax(
    ...     classes=10, teachers=250, threshold=200, selection_noise=150, answer_noise=40
    ... )
    >>> aggregator.loss(queries=1000, answers=100).epsilon(delta=1e-5)
    1.6...
    >>> session = aggregator.open(epsilon=2, delta=1e-5, insecure_seed=3)
    >>> session.answer([250] + [0] * 9) in (0, None)
    True
    """

    @staticmethod
    def _counts_for_threshold(votes: Counts, expected: Counts | None) -> Counts:
        del expected
        return np.asarray(votes.max(axis=1))

    def decide(self, table: Counts, predictions: Any, source: Source) -> Iterator[Outcome]:
        for label in self._labels(self._counts_for_threshold(table, None), table, source):
            yield Outcome(label, label is not None)


@final
@dataclass(frozen=True, kw_only=True)
class InteractiveGNMax(SelectiveGNMax):
    """Answers by GNMax if the teachers object to the student's own prediction.

    Papernot et al. 2018, algorithm 2. ``answer(votes, prediction=p)`` takes the student's
    public probabilities p for this query. The largest count above what p expects,
    max over j of (votes_j - round(teachers p_j)), moves by at most one with one vote; where it
    reaches ``threshold`` with noise the teachers answer. Where it does not, the label is
    the student's own if its probability is above ``confidence`` (None: never), and None
    otherwise; that is post-processing. ``session.answers`` counts the teachers' answers.

    p must come from what was released and from public data. It may depend on earlier labels.

    >>> aggregator = InteractiveGNMax(
    ...     classes=2, teachers=100, threshold=60, selection_noise=5, answer_noise=5, confidence=0.9
    ... )
    >>> session = aggregator.open(queries=10, answers=5, insecure_seed=3)
    >>> session.answer([0, 100], prediction=[1, 0]), session.answers  # they object
    (1, 1)
    >>> session.answer([0, 100], prediction=[0.05, 0.95]), session.answers  # they agree
    (1, 1)
    """

    confidence: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.confidence is not None:
            _validate.real("confidence", self.confidence, at_least=0, at_most=1)

    @property
    def reads_predictions(self) -> bool:
        return True

    @classmethod
    def propose(cls, profile: VoteProfile) -> Prospect | None:
        """Search thresholds and noises, if there is a student to object to."""
        return None if profile.expected is None else super().propose(profile)

    @staticmethod
    def _counts_for_threshold(votes: Counts, expected: Counts | None) -> Counts:
        if expected is None:
            raise InvalidValue("expected", None, "the votes that the student expects")
        return np.asarray((votes - expected).max(axis=1))

    def check_predictions(self, predictions: Any, queries: int) -> None:
        self._read([None] * queries if predictions is None else predictions)

    def _read(self, predictions: Any) -> list[tuple[Array, Counts]]:
        shape = {"classes": self.classes, "teachers": self.teachers}
        return [read_prediction(row, **shape) for row in predictions]

    def decide(self, table: Counts, predictions: Any, source: Source) -> Iterator[Outcome]:
        read = self._read(predictions)
        expected = np.stack([votes for _, votes in read])
        labels = self._labels(self._counts_for_threshold(table, expected), table, source)
        for label, (chances, _) in zip(labels, read, strict=True):
            yield Outcome(label, True) if label is not None else self._answer_by_student(chances)

    def _answer_by_student(self, chances: NDArray[np.float64]) -> Outcome:
        """The student's own label where the teachers do not object."""
        own = int(np.argmax(chances))
        sure = self.confidence is not None and chances[own] > self.confidence
        return Outcome(own if sure else None, False)


def gnmax_accuracy(votes: Counts, labels: Counts, noise: float) -> Array:
    """The chance that GNMax names ``labels``, for every histogram.

    >>> gnmax_accuracy(np.array([[1, 1]]), np.array([0]), 3.0).round(6).tolist()
    [0.5]
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    weights = weights / weights.sum()
    gaps = _gaps(votes, labels) / noise
    total = np.zeros(len(votes))
    for node, weight in zip(nodes, weights, strict=True):
        if weight > 1e-14:
            total += weight * np.exp(special.log_ndtr(node + gaps).sum(axis=1))
    return np.minimum(total, 1.0)


def laplace_accuracy(votes: Counts, labels: Counts, scale: float) -> Array:
    """The chance that LNMax names ``labels``, for every histogram (midpoints of quantiles)."""
    gaps = _gaps(votes, labels) / scale
    middles = (np.arange(2 * _NODES) + 0.5) / (2 * _NODES)
    nodes = np.where(middles < 0.5, np.log(2.0 * middles), -np.log(2.0 * (1.0 - middles)))
    total = np.zeros(len(votes))
    for node in nodes:
        x = node + gaps
        tail = 0.5 * np.exp(-np.abs(x))
        total += np.prod(np.where(x < 0, tail, 1.0 - tail), axis=1)
    return total / len(nodes)


def _gaps(votes: Counts, labels: Counts) -> Array:
    """How far the label is ahead of each of the other classes."""
    rows = np.arange(len(votes))
    gaps = (votes[rows, labels][:, None] - votes).astype(np.float64)
    gaps[rows, labels] = np.inf
    return gaps
