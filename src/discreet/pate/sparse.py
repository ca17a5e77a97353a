"""PATE by stability, paying only for what is not answered: M_svec on votes (S24, S18)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet.mechanisms.distances import most_votes
from discreet.mechanisms.halting import Charge
from discreet.mechanisms.stability import Fail
from discreet.mechanisms.stable_vector import StableVector, StableVectorPlan, stable_vector_plan
from discreet.pate.aggregator import Aggregator
from discreet.pate.session import Outcome, Plan, Runner, Session
from discreet.privacy import Loss
from discreet.randomness import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["SparseVotes"]


@final
@dataclass(frozen=True, kw_only=True)
class SparseVotes(Aggregator):
    """The exact winner of every stable vote, until ``fails`` votes were not stable (M_svec).

    **Guarantee.** The whole session is (epsilon, delta)-DP, with the loss
    Q PureDP(2 / L) + ApproxDP(0, delta_r) of
    :class:`~discreet.mechanisms.StableVector`: answers cost nothing, unanswered queries do.
    The distance is that of :mod:`discreet.pate.stable`. It must exceed about
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

    def plan(self) -> Plan:
        """The plan of a session: its loss follows from ``fails``, ``epsilon`` and ``delta``."""
        return Plan(self.vector_plan.loss, queries=self.questions, fails=self.fails)

    def open(
        self,
        *,
        source: Source | None = None,
        insecure_seed: int | None = None,
        charge: Charge | None = None,
    ) -> Session:
        """Open a session; ``charge`` is called with its whole loss before anything is drawn."""
        return self._open(self.plan(), source, insecure_seed, charge)

    def _runner(self, plan: Plan, source: Source) -> Runner:
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

        def run(table: NDArray[np.int64], _: Any) -> Iterator[Outcome]:
            for counts in table:
                label = vector.ask(counts, votes).value
                yield Outcome(None, False) if isinstance(label, Fail) else Outcome(label, True)

        return run

    def _spent(self, queries: int, answers: int) -> Loss | None:
        return self.vector_plan.loss
