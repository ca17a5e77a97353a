"""PATE by stability: release the exact winner where a few votes could not change it.

**The distance.** Let a be the winner, ties to the lowest class, and g_j = votes_a - votes_j.
Class j overtakes a when its votes exceed a's if j > a, or reach them if j < a: when the gap is
below 0, or at 0. A moved vote lowers a gap by at most 2, so j needs at least

    floor(g_j / 2) + 1 moves if j > a,      ceil(g_j / 2) moves if j < a.

Moving that many from a to j is possible, because a has at least one vote and so at
least floor(votes_a / 2) + 1 of them, and it takes the lead from a. The distance, (fewest moves
that change the winner) - 1, is therefore the least over j of floor(g_j / 2), or
ceil(g_j / 2) - 1: :func:`discreet.mechanisms.votes_distance`.
The tests compare it with all histograms that can be reached. It changes by at most one
with one moved vote and is 0 wherever one moved vote changes the winner. For records it
is a lower bound with the same two properties, which is all that M_stab and M_svec need.

SparseVotes pays only for what is not answered (M_svec on votes).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable
from discreet.mechanisms import (
    Fail,
    StabilityTest,
    StableVector,
    StableVectorPlan,
    most_votes,
    stability_test,
    stable_vector_plan,
    step_budget,
    votes_distance,
)
from discreet.pate._aggregator import (
    Aggregator,
    Chances,
    Costs,
    Decider,
    Outcome,
    Prospect,
    SessionPlan,
    VoteProfile,
)
from discreet.privacy import ApproxDP, Loss
from discreet.randomness import Source, discrete_laplace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Counts = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class StabilityVotes(Aggregator):
    """Base of M_stab and M_samp on votes: a noisy distance is compared with a threshold.

    **Guarantee.** ApproxDP(epsilon, delta') for each query, answered or not, with the exact
    delta' < delta of :func:`~discreet.mechanisms.stability_test`. A label that comes
    out is the winner itself, without noise.
    """

    epsilon: object
    delta: object

    def __post_init__(self) -> None:
        super().__post_init__()
        test = self.test
        self._set(epsilon=test.epsilon)

    @property
    def test(self) -> StabilityTest:
        """The noise, the threshold and the exact delta of one query."""
        return stability_test(epsilon=self.epsilon, delta=self.delta)

    @property
    def costs(self) -> Costs:
        test = self.test
        return Costs(ApproxDP(test.epsilon, test.delta, self.neighbours), None)

    @abstractmethod
    def distance(self, counts: NDArray[np.int64]) -> int:
        """How many moved votes the winner is known to withstand; private."""

    def decide(self, table: Counts, predictions: Any, source: Source) -> Iterator[Outcome]:
        test = self.test
        draws = discrete_laplace(1 / test.epsilon, len(table), source=source)
        for counts, noise in zip(table, draws, strict=True):
            stable = self.distance(counts) + int(noise) >= test.threshold
            yield Outcome(int(np.argmax(counts)) if stable else None, stable)

    def chances(self, votes: Counts, labels: Counts, expected: Counts | None = None) -> Chances:
        distances = np.array([self.distance(row) for row in votes])
        return Chances(self._answer_rate(distances), _winner_is_right(votes, labels))

    def _answer_rate(self, distances: Counts) -> Array:
        test = self.test
        return stable_answer_rate(distances, epsilon=float(test.epsilon), threshold=test.threshold)

    @classmethod
    def propose(cls, profile: VoteProfile) -> Prospect:
        """Halve the number of queries until most labels are expected."""
        best = Prospect.nothing(cls.__name__)
        right = _winner_is_right(profile.votes, profile.labels)
        distances: Counts | None = None
        count = profile.queries
        half = Fraction(profile.delta) / 2
        while count >= 1:
            each = step_budget(
                runs=count, epsilon=profile.epsilon, delta=half, composition="accounted"
            ).epsilon
            aggregator = cls(**profile.common, epsilon=each, delta=half / count)
            if distances is None:  # they do not depend on the budget
                distances = np.array([aggregator.distance(row) for row in profile.votes])
            chances = Chances(aggregator._answer_rate(distances), right)
            found = profile.expect(aggregator, chances, float(count), {"queries": count})
            if found is not None and found.labels > best.labels:
                best = found
            count //= 2
        return best


@final
@dataclass(frozen=True, kw_only=True)
class StableVotes(StabilityVotes):
    """M_stab on votes: the winner if its distance with noise passes the test.

    >>> stable = StableVotes(classes=3, teachers=250, epsilon=1, delta=1e-5)
    >>> session = stable.open(queries=2, insecure_seed=1)
    >>> session.answer([240, 5, 5]), session.answer([126, 124, 0])
    (0, None)
    """

    def distance(self, counts: NDArray[np.int64]) -> int:
        return votes_distance(counts, moved=True)


@final
@dataclass(frozen=True, kw_only=True)
class SampledVotes(StabilityVotes):
    """M_samp on votes: teachers may share records, each record in at most ``cap`` of them.

    :class:`PATEClassifier` trains such teachers: :func:`partition_records` gives each record to at
    most ``cap`` of them. The lead of the first over the second moves by at most 2 cap, so that
    floor(lead / (2 cap)) - 1 is a distance. With disjoint teachers (``cap=1``)
    :class:`StableVotes` has the same loss and is never less often answered.

    >>> shared = SampledVotes(classes=3, teachers=500, cap=2, epsilon=1, delta=1e-5)
    >>> shared.open(queries=1, insecure_seed=1).answer([490, 5, 5])
    0
    """

    cap: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.integer("cap", self.cap, at_least=1, at_most=self.teachers)

    @property
    def teachers_per_record(self) -> int:
        return self.cap

    def distance(self, counts: NDArray[np.int64]) -> int:
        return lead_distance(counts, cap=self.cap)


def lead_distance(counts: NDArray[np.int64], *, cap: int) -> int:
    """Return floor((first - second) / (2 cap)) - 1, how far the lead is from changing hands.

    >>> lead_distance(np.array([9, 3, 2]), cap=1)
    2
    """
    first, second = np.sort(counts)[-1], np.sort(counts)[-2]
    return int(first - second) // (2 * cap) - 1


@final
@dataclass(frozen=True, kw_only=True)
class SparseVotes(Aggregator):
    """The exact winner of every stable vote, until ``fails`` votes were not stable (M_svec).

    **Guarantee.** The whole session is (epsilon, delta)-DP, with the loss
    Q PureDP(2 / L) + ApproxDP(0, delta_r) of
    :class:`~discreet.mechanisms.StableVector`: answers cost nothing, unanswered queries do.
    The distance is that of :class:`StableVotes`. It must exceed about
    2 L ln(4 Q / (3 delta)), so that a few hundred teachers are too few:

    >>> sparse = SparseVotes(classes=10, teachers=250, fails=10, epsilon=1, delta=1e-5)
    >>> sparse.vector_plan.threshold  # but no distance exceeds 125
    537
    >>> sparse = SparseVotes(classes=2, teachers=5000, fails=10, epsilon=1, delta=1e-5)
    >>> session = sparse.open(insecure_seed=1)
    >>> session.answer([4000, 1000]), session.answer([2501, 2499]), session.asked - session.answers
    (0, None, 1)

    ``threshold`` and ``composition`` are those of
    :func:`~discreet.mechanisms.stable_vector_plan`; ``composition="accounted"`` allows less
    noise where many fails are allowed.
    """

    fails: int
    epsilon: object
    delta: object
    threshold: str = "tight"
    questions: int | None = None
    composition: str = "smaller_noise"

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.vector_plan  # refuses bad parameters now

    @property
    def vector_plan(self) -> StableVectorPlan:
        """Noise, threshold and delta of the run."""
        return stable_vector_plan(
            fails=self.fails,
            epsilon=self.epsilon,
            delta=self.delta,
            relation=self.neighbours,
            threshold=self.threshold,
            questions=self.questions,
            composition=self.composition,
        )

    @property
    def costs(self) -> Costs:
        """Refuse: answers cost nothing, and a session has one loss for all its queries."""
        raise NotApplicable(
            "a session of SparseVotes has one loss for all its queries: plan().loss"
        )

    def loss(self, *, queries: int, answers: int | None = None) -> Loss:
        """The loss of a session, for all questions."""
        return self.plan(queries=queries, answers=answers).loss

    def plan(
        self,
        *,
        queries: int | None = None,
        answers: int | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
    ) -> SessionPlan:
        """State a session of at most ``queries`` queries (None: as many as ``questions``).

        Its loss follows from the aggregator's own ``fails``, ``epsilon`` and ``delta``. Given
        ``epsilon`` and ``delta`` here, it must not exceed them.
        """
        if answers is not None:
            raise InvalidValue("answers", answers, "None: answers cost nothing here")
        loss = self.vector_plan.loss
        if epsilon is not None:
            target = _validate.real("epsilon", epsilon, above=0)
            point = _validate.real("delta", delta, at_least=0, below=1)
            if (needed := loss.epsilon(delta=point)) > target:
                raise InvalidValue("epsilon", epsilon, f"at least {needed:.6g}, what it costs")
        elif delta is not None:
            raise InvalidValue("delta", delta, "None where no epsilon is given")
        most = self.questions
        if queries is not None:
            asked = _validate.integer("queries", queries, at_least=1)
            most = asked if most is None else min(asked, most)
        return SessionPlan(loss, queries=most, fails=self.fails)

    def start(self, source: Source) -> Decider:
        votes = most_votes(categories=self.classes, relation=self.neighbours, voters="ensemble")
        vector = StableVector(
            fails=self.fails,
            epsilon=self.epsilon,
            delta=self.delta,
            relation=self.neighbours,
            threshold=self.threshold,
            questions=self.questions,
            composition=self.composition,
            source=source,
        )

        def decide(table: Counts, _: Any) -> Iterator[Outcome]:
            for counts in table:
                label = vector.ask(counts, votes).value
                yield Outcome(None, False) if isinstance(label, Fail) else Outcome(label, True)

        return decide

    def spent_after(self, queries: int, answers: int) -> Loss | None:
        """The loss of the whole session, from the first query on."""
        return self.vector_plan.loss

    def chances(self, votes: Counts, labels: Counts, expected: Counts | None = None) -> Chances:
        distances = np.array([votes_distance(row, moved=True) for row in votes])
        return Chances(self._answer_rate(distances), _winner_is_right(votes, labels))

    def _answer_rate(self, distances: Counts) -> Array:
        plan = self.vector_plan
        return vector_answer_rate(distances, scale=float(plan.scale), threshold=plan.threshold)

    @classmethod
    def propose(cls, profile: VoteProfile) -> Prospect:
        """Try numbers of fails and both compositions."""
        best = Prospect.nothing(cls.__name__)
        distances = np.array([votes_distance(row, moved=True) for row in profile.votes])
        right = _winner_is_right(profile.votes, profile.labels)
        ways = [(2**k, way) for k in range(11) for way in ("smaller_noise", "accounted")]
        for fails, composition in ways:
            if fails > profile.queries:
                break
            aggregator = cls(
                **profile.common,
                fails=fails,
                epsilon=profile.epsilon,
                delta=profile.delta,
                composition=composition,
            )
            answered = aggregator._answer_rate(distances)
            failing = max(1.0 - float(answered.mean()), 1e-12)
            asked = min(float(profile.queries), fails / failing)
            found = profile.expect(aggregator, Chances(answered, right), asked, {})
            if found is not None and found.labels > best.labels:
                best = found
        return best


def _winner_is_right(votes: Counts, labels: Counts) -> Array:
    return np.asarray(np.argmax(votes, axis=1) == labels, dtype=np.float64)


def stable_answer_rate(distances: Counts, *, epsilon: float, threshold: int) -> Array:
    """The chance that M_stab answers, for every distance."""
    beyond = threshold - distances.astype(np.float64)
    return _two_sided(beyond, lambda k: np.exp(-epsilon * k) / (1.0 + math.exp(-epsilon)))


def vector_answer_rate(distances: Counts, *, scale: float, threshold: int) -> Array:
    """The chance that M_svec answers one query with fresh noise on the threshold."""
    p = math.exp(-1.0 / (2.0 * scale))

    def tail(k: Array) -> Array:
        gain = (1.0 + p) * np.exp(-k / (2.0 * scale))
        relief = p * np.exp(-k / scale) / (1.0 + p * p)
        return np.asarray((gain - relief) / (1.0 + p + p * p))

    return _two_sided(threshold - distances.astype(np.float64), tail)


def _two_sided(k: Array, tail: Callable[[Array], Array]) -> Array:
    """P(noise >= k) for symmetric integer noise from its tail at k >= 1."""
    near = tail(np.maximum(k, 1.0))
    far = 1.0 - tail(np.maximum(1.0 - k, 1.0))
    return np.asarray(np.where(k >= 1, near, far))
