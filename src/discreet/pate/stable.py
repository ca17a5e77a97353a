"""PATE by stability: the exact winner of the vote, where no few votes could change it (S24).

**The distance.** Let a be the winner, ties to the lowest class, and g_j = votes_a - votes_j.
Class j overtakes a when its votes exceed a's if j > a, or reach them if j < a: when the gap is
below 0, or at 0. A moved vote lowers a gap by at most 2, so j needs at least

    floor(g_j / 2) + 1 moves if j > a,      ceil(g_j / 2) moves if j < a.

Moving that many from a to j is possible, because a has at least one vote and so at
least floor(votes_a / 2) + 1 of them, and it takes the lead from a. The distance, (fewest moves
that change the winner) - 1, is therefore the least over j of floor(g_j / 2), or
ceil(g_j / 2) - 1: :func:`discreet.mechanisms.distances.votes_distance`.
The tests compare it with all histograms that can be reached. It changes by at most one
with one moved vote and is 0 wherever one moved vote changes the winner. For records it
is a lower bound with the same two properties, which is all that M_stab and M_svec need.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.mechanisms.distances import votes_distance
from discreet.mechanisms.stability import StabilityTest, stability_test
from discreet.pate.aggregator import Costs, QueryByQuery
from discreet.pate.session import Outcome, Plan, Runner
from discreet.privacy import ApproxDP
from discreet.randomness import Source, discrete_laplace

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["SampledVotes", "StabilityVotes", "StableVotes", "lead_distance"]


@dataclass(frozen=True, kw_only=True)
class StabilityVotes(QueryByQuery):
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

    def _runner(self, plan: Plan, source: Source) -> Runner:
        test = self.test

        def run(table: NDArray[np.int64], _: Any) -> Iterator[Outcome]:
            draws = discrete_laplace(1 / test.epsilon, len(table), source=source)
            for counts, noise in zip(table, draws, strict=True):
                stable = self.distance(counts) + int(noise) >= test.threshold
                yield Outcome(int(np.argmax(counts)) if stable else None, stable)

        return run


@final
@dataclass(frozen=True, kw_only=True)
class StableVotes(StabilityVotes):
    """M_stab on votes: the winner if its distance with noise passes the test (S24).

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
    """M_samp on votes: teachers may share records, each record in at most ``cap`` of them (S17).

    The lead of the first over the second moves by at most 2 cap, so that
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

    def distance(self, counts: NDArray[np.int64]) -> int:
        return lead_distance(counts, cap=self.cap)


def lead_distance(counts: NDArray[np.int64], *, cap: int) -> int:
    """Return floor((first - second) / (2 cap)) - 1, the distance of S17.

    >>> lead_distance(np.array([9, 3, 2]), cap=1)
    2
    """
    first, second = np.sort(counts)[-1], np.sort(counts)[-2]
    return int(first - second) // (2 * cap) - 1
