"""Exact answers to many stable questions, paying only for the unstable ones: M_svec (S18).

The sparse vector technique on distances to instability. Every question i has an answer
f_i(D) and a distance of sensitivity 1 (:class:`StableFunction`). With a noisy
threshold T + Lap(L) and query noise Lap(2 L), the answer is released exactly if
distance + noise is above the threshold; otherwise the run counts a fail and draws
a fresh threshold noise. After Q fails it stops. (The printed loop goes on to Q + 1, and
its loss would be that of Q + 1.)

**Guarantee.** Q PureDP(2 / L) + ApproxDP(0, delta_r). Up to and including its fail, a
round is AboveThreshold on distances: 2 / L for its yes-or-no pattern. Its answers
equal those on the neighbour unless a question of different answers, whose distances
are 0, is released. In one round only the first such question matters, because if it
is not released the round is over; its noise is fresh, so the probability is at most
P(N - R > T) with N ~ Lap(2 L) and R ~ Lap(L), whatever was asked before. A round is
therefore (2/L, P(N - R > T))-DP, and delta_r is Q times that probability: it does not
depend on the number of questions. For the discrete noises it is computed from its
closed form (:func:`laplace_difference_tail`), rounded up.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, NamedTuple, TypeVar, final

from discreet import _validate
from discreet.errors import InvalidValue
from discreet.mechanisms.certified import decimal_up, laplace_difference_tail, workable_delta
from discreet.mechanisms.halting import Charge, SingleRun
from discreet.mechanisms.release import Release
from discreet.mechanisms.sparse_vector import step_budget
from discreet.mechanisms.stability import FAIL, Fail, StableFunction, agreed_relation
from discreet.privacy import ApproxDP, Loss, PureDP, Relation
from discreet.randomness import Source, choose_source, discrete_laplace

__all__ = ["StableVector", "StableVectorPlan", "stable_vector_plan"]

Data = TypeVar("Data")
Value = TypeVar("Value")

THRESHOLDS = ("tight", "printed")


@final
class StableVectorPlan(NamedTuple):
    """The public parameters of a run, known before it is paid for."""

    fails: int
    questions: int | None
    scale: Fraction
    threshold: int
    delta_released: Fraction
    composition: str
    relation: Relation

    @property
    def loss(self) -> Loss:
        """Q PureDP(2 / scale) + ApproxDP(0, delta_r)."""
        return self.fails * PureDP(2 / self.scale, self.relation) + ApproxDP(
            0, self.delta_released, self.relation
        )


def stable_vector_plan(
    *,
    fails: int,
    epsilon: object,
    delta: object,
    relation: Relation | str,
    threshold: str = "tight",
    questions: int | None = None,
    composition: str = "smaller_noise",
) -> StableVectorPlan:
    """Return noise, threshold and loss of a run that is (epsilon, delta)-DP in all (S18).

    The scale L is sqrt(32 Q ln(2/delta)) / epsilon (``composition="advanced"``: half of
    delta pays for it), or 2 Q / epsilon (``"basic"``), by default the smaller;
    ``"accounted"`` is the least that the accountants confirm for half of delta.
    ``threshold="tight"`` is the least integer whose delta_r is within what is left of
    delta, about 2 L ln(4 Q / (3 delta)), and allows any number of questions.
    ``threshold="printed"`` is 2 L ln(2 m / delta) for at most m = ``questions``.

    >>> plan = stable_vector_plan(fails=5, epsilon=1, delta=1e-5, relation="replace")
    >>> plan.scale, plan.threshold, plan.composition
    (Fraction(10, 1), 255, 'basic')
    >>> plan.loss
    5 * PureDP(epsilon=0.2, relation='replace') + ApproxDP(epsilon=0, delta=..., relation='replace')
    """
    count = _validate.integer("fails", fails, at_least=1)
    target = 2 * workable_delta(_validate.fraction("delta", delta, above=0, below=1) / 2)
    kind = _validate.one_of("threshold", threshold, THRESHOLDS)
    if questions is not None:
        questions = _validate.integer("questions", questions, at_least=1)
    if kind == "printed" and questions is None:
        raise InvalidValue("questions", questions, "a number of questions for this threshold")
    chosen = Relation.parse(relation)
    step = step_budget(runs=count, epsilon=epsilon, delta=target / 2, composition=composition)
    scale = 2 / step.epsilon
    share = target if step.composition == "basic" else target / 2
    rounds = count if questions is None else min(count, questions)
    if kind == "tight":
        start = 2 * float(scale) * math.log(2 * rounds / (3 * float(share)))
        level = max(1, math.floor(start * (1 - 1e-12)) - 2)
    else:
        start = 2 * float(scale) * math.log(2 * int(questions or 1) / float(target))
        level = max(1, math.floor(start) + 1)
    # One more step or two where the discrete tail is a little heavier than the continuous one.
    while (released := rounds * laplace_difference_tail(scale, level)) > share:
        level += 1
    return StableVectorPlan(
        count, questions, scale, level, decimal_up(released), step.composition, chosen
    )


@final
class StableVector(SingleRun):
    """A run of M_svec: ask until ``fails`` questions have turned out unstable (S18).

    **Guarantee.** (epsilon, delta)-DP in all, with the loss Q PureDP(2/L) +
    ApproxDP(0, delta_r), for adaptively chosen questions; proof on top of this module.
    Answers that come out are f(D) itself. The object halts with the last fail, and after
    ``questions`` questions if a number was given. ``charge`` is called with the loss
    before anything is drawn.

    >>> from discreet.mechanisms import most_votes
    >>> votes = most_votes(categories=2, relation="replace")
    >>> run = StableVector(fails=1, epsilon=1, delta=1e-5, relation="replace", insecure_seed=1)
    >>> run.ask([900, 1], votes).value, run.ask([1, 900], votes).value, run.halted
    (0, 1, False)
    >>> run.ask([450, 451], votes).value, run.halted
    (FAIL, True)
    """

    def __init__(
        self,
        *,
        fails: int,
        epsilon: object,
        delta: object,
        relation: Relation | str = Relation.ADD_REMOVE,
        threshold: str = "tight",
        questions: int | None = None,
        composition: str = "smaller_noise",
        source: Source | None = None,
        insecure_seed: int | None = None,
        charge: Charge | None = None,
    ) -> None:
        self._plan = stable_vector_plan(
            fails=fails,
            epsilon=epsilon,
            delta=delta,
            relation=relation,
            threshold=threshold,
            questions=questions,
            composition=composition,
        )
        self._source = choose_source(source, insecure_seed)
        self._fails_left = self._plan.fails
        super().__init__(loss=self._plan.loss, charge=charge)
        self._bar = self._noisy_threshold()

    @property
    def plan(self) -> StableVectorPlan:
        """The public parameters of the run."""
        return self._plan

    @property
    def fails_left(self) -> int:
        """How many more unstable questions end the run."""
        return self._fails_left

    def ask(self, data: Data, function: StableFunction[Data, Value]) -> Release[Value | Fail]:
        """Release f(data) exactly if it is stable, else :data:`FAIL`; the loss is the run's.

        Raises :class:`MechanismHalted` once the run is over.
        """
        with self._turn():
            agreed_relation(function, self._plan.relation)
            value, distance = function.evaluate(data)
            noise = discrete_laplace(2 * self._plan.scale, source=self._source)
            stable = distance + noise >= self._bar
            self._asked += 1
            if not stable:
                self._fails_left -= 1
            self._halted = self._fails_left == 0 or self._asked == self._plan.questions
            if not stable and not self._halted:
                self._bar = self._noisy_threshold()
            provenance: dict[str, Any] = {
                "mechanism": "stable_vector",
                "function": function.name,
                "question": self._asked,
                "fails": self._plan.fails,
                "threshold": self._plan.threshold,
                "threshold_scale": str(self._plan.scale),
                "query_scale": str(2 * self._plan.scale),
                "relation": self._plan.relation.value,
                "loss": "shared by all answers of the run",
                **self._source.provenance,
            }
            return Release(value if stable else FAIL, self._loss, provenance)

    def _noisy_threshold(self) -> int:
        noise = discrete_laplace(self._plan.scale, source=self._source)
        return self._plan.threshold + noise
