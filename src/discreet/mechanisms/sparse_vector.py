"""AboveThreshold and Sparse Vector: which of many queries pass a threshold (S15).

A run compares noisy queries with a noisy threshold and answers yes or no. With
threshold noise of scale L and query noise of scale 2 L, all the answers up to and
including the first yes cost together 2 D / L (pure), D being the sensitivity of every
query; the noes are free. Proof (Dwork and Roth 2014, theorem 3.23): hold the noise
of the queries before the first yes; moving the threshold noise by at most D and the
noise of the last query by at most 2 D turns a run on one data set into the same run
on its neighbour. On the grid all these shifts are whole steps, so the proof holds
word for word for discrete Laplace noise.

If all queries move in the same direction between neighbours (``monotone=True``;
counts under add_remove do, counts under replace do not), the second shift is at most
D as well and query noise of scale L suffices (Lyu, Su and Li 2017).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple, final

from discreet import _validate
from discreet.errors import InvalidValue, RelationMismatch
from discreet.mechanisms.certified import decimal_down, workable_delta, workable_epsilon
from discreet.mechanisms.halting import Charge, SingleRun
from discreet.mechanisms.parameters import either, flag
from discreet.mechanisms.release import Interval, Release
from discreet.privacy import PureDP, Relation
from discreet.randomness import (
    Source,
    check_granularity,
    choose_source,
    default_granularity,
    discrete_laplace,
    read_real,
    round_to_grid,
    sensitivity_on_grid,
)

__all__ = ["AboveThreshold", "SparseVector", "StepBudget", "step_budget"]

COMPOSITIONS = ("smaller_noise", "advanced", "basic", "accounted")


class StepBudget(NamedTuple):
    """What each of several runs may cost, and the theorem that adds them up."""

    epsilon: Fraction
    composition: str


def step_budget(
    *, runs: int, epsilon: object, delta: object = None, composition: str = "smaller_noise"
) -> StepBudget:
    """Return the pure epsilon of one run such that ``runs`` of them are (epsilon, delta)-DP.

    ``advanced``: epsilon / sqrt(8 Q ln(1/delta)), that is the scale
    sqrt(32 Q ln(1/delta)) / epsilon of S15; refused where the second term of advanced
    composition would pass epsilon. ``basic``: epsilon / Q, pure. ``smaller_noise`` takes
    the larger of the two budgets; basic wins for Q up to about 8 ln(1/delta).
    ``accounted`` searches the largest budget that the accountants confirm, which takes some
    tenths of a second and is up to three times as much. Budgets are rounded down to twelve
    digits.

    >>> step_budget(runs=10, epsilon=1, delta=1e-5)
    StepBudget(epsilon=Fraction(1, 10), composition='basic')
    >>> round(float(step_budget(runs=1000, epsilon=1, delta=1e-5).epsilon), 6)  # basic: 0.001
    0.003295
    >>> best = step_budget(runs=1000, epsilon=1, delta=1e-5, composition="accounted")
    >>> 0.008 < best.epsilon < 0.009
    True
    """
    count = _validate.integer("runs", runs, at_least=1)
    total = workable_epsilon(epsilon)
    name = _validate.one_of("composition", composition, COMPOSITIONS)
    basic = StepBudget(total / count, "basic")
    if delta is None:
        if name in ("advanced", "accounted"):
            raise InvalidValue("delta", delta, f"a number with 0 < delta < 1, for {name}")
        return basic
    target = workable_delta(delta)
    log = -math.log(target)
    if name == "basic":
        return basic
    # The factor covers the roundings of the square root and the logarithm.
    step = decimal_down(Fraction(float(total) / math.sqrt(8.0 * count * log) * (1 - 1e-13)))
    first = math.sqrt(2.0 * count * log) * float(step)
    covered = step < 700 and first + count * float(step) * math.expm1(float(step)) <= float(total)
    if name == "advanced" and not covered:
        raise InvalidValue(
            "epsilon", epsilon, "a smaller epsilon, or basic composition: sqrt(8 Q ln(1/delta)) "
            "is proved only while Q e (exp(e) - 1) <= epsilon / 2 for each step's e"
        )  # fmt: skip
    advanced = StepBudget(step, "advanced")
    closed = advanced if name == "advanced" or (covered and step > basic.epsilon) else basic
    return closed if name != "accounted" else _accounted(count, total, target, closed.epsilon)


@lru_cache(maxsize=64)
def _accounted(runs: int, epsilon: Fraction, delta: Fraction, proved: Fraction) -> StepBudget:
    """Search upwards from a budget that is proved; what is returned has been confirmed."""
    below = math.nextafter(float(delta), 0.0)

    def confirmed(step: Fraction) -> bool:
        return (runs * PureDP(step)).epsilon(delta=below) <= epsilon

    low, high = proved, 2 * proved
    while confirmed(high):
        low, high = high, 2 * high
    while high > low * Fraction(1001, 1000):
        middle = decimal_down((low + high) / 2)
        low, high = (middle, high) if confirmed(middle) else (low, middle)
    return StepBudget(low, "accounted")


class _Comparison(SingleRun):
    """Noisy comparisons on a grid, up to a number of yeses."""

    _name: str

    def __init__(
        self,
        *,
        threshold: object,
        runs: int,
        step: Fraction | None,
        scale: object,
        sensitivity: object,
        relation: Relation | str,
        monotone: bool,
        granularity: object,
        source: Source | None,
        insecure_seed: int | None,
        charge: Charge | None,
        noted: dict[str, Any],
    ) -> None:
        chosen = Relation.parse(relation)
        if flag("monotone", monotone) and chosen is not Relation.ADD_REMOVE:
            raise RelationMismatch(
                "monotone=True speaks of queries that all move in one direction between "
                "neighbours; under 'replace' not even counts do (S15)"
            )
        width = _validate.fraction("sensitivity", sensitivity, above=0)
        noise = _validate.fraction("scale", scale, above=0) if step is None else 2 * width / step
        grid = default_granularity(noise) if granularity is None else granularity
        self._granularity = check_granularity(grid)
        steps = int(sensitivity_on_grid(width, granularity=self._granularity))
        self._threshold = _validate.fraction("threshold", threshold)
        self._level = math.floor(self._threshold / self._granularity + Fraction(1, 2))
        if step is None:
            self._threshold_scale = noise / self._granularity
            step = 2 * steps / self._threshold_scale
        else:
            self._threshold_scale = 2 * steps / step
        self._query_scale = self._threshold_scale * (1 if monotone else 2)
        self._source = choose_source(source, insecure_seed)
        self._remaining = runs
        self._provenance: dict[str, Any] = {
            "mechanism": self._name,
            "threshold": str(self._threshold),
            "sensitivity": str(width),
            "relation": chosen.value,
            "monotone": monotone,
            "threshold_scale": float(self._threshold_scale * self._granularity),
            "query_scale": float(self._query_scale * self._granularity),
            "granularity": str(self._granularity),
            **noted,
            "loss": "shared by all answers of the run",
            **self._source.provenance,
        }
        super().__init__(loss=runs * PureDP(step, chosen), charge=charge)
        self._bar = self._noisy_threshold()

    @property
    def threshold_scale(self) -> Fraction:
        """The scale of the threshold noise, in steps of the grid."""
        return self._threshold_scale

    @property
    def query_scale(self) -> Fraction:
        """The scale of the query noise, in steps of the grid."""
        return self._query_scale

    @property
    def granularity(self) -> Fraction:
        """The step of the grid."""
        return self._granularity

    def ask(self, value: object) -> Release[bool]:
        """Say whether the private ``value`` of a query passes the threshold, with noise.

        ``value`` is a finite number whose change between neighbours is at most the
        declared sensitivity. The loss of the release is that of the whole run. Its
        interval is for the value: from below after a yes, from above after a no.
        Raises :class:`MechanismHalted` once the run is over.
        """
        with self._turn():
            answer = read_real("value", value)
            level = int(round_to_grid(answer, granularity=self._granularity))
            noise = discrete_laplace(self._query_scale, source=self._source)
            above = level + noise >= self._bar
            self._asked += 1
            if above:
                self._remaining -= 1
                self._halted = self._remaining == 0
                if not self._halted:
                    self._bar = self._noisy_threshold()
            return Release(
                above,
                self._loss,
                {**self._provenance, "question": self._asked},
                self._error_bars(above),
            )

    def _noisy_threshold(self) -> int:
        return self._level + discrete_laplace(self._threshold_scale, source=self._source)

    def _error_bars(self, above: bool) -> Callable[[float], Interval]:
        """A yes below T - a, or a no above T + a, needs one of two noises beyond its share.

        The noise of the query is independent of all that came before it, and the
        threshold noise is bounded for the whole round, so adaptive questions are covered.
        """
        center, step = float(self._threshold), float(self._granularity)
        scales = float(self._threshold_scale), float(self._query_scale)

        def bars(confidence: float) -> Interval:
            share = 0.5 * (1.0 - confidence)
            # P(noise >= k) <= exp(-k / scale) for k >= 0; one step covers both roundings.
            reach = step * (1 + math.fsum(math.ceil(s * math.log(1 / share)) for s in scales))
            return (
                Interval(center - reach, math.inf) if above else Interval(-math.inf, center + reach)
            )

        return bars


@final
class AboveThreshold(_Comparison):
    """The first query above a threshold, at the price of one (S15).

    **Guarantee.** The answers to an adaptively chosen stream of queries of the given
    ``sensitivity``, up to and including the first yes, are together epsilon-DP (pure):
    Dwork and Roth 2014, theorem 3.23. Threshold noise has scale 2 D / epsilon,
    query noise 4 D / epsilon (2 D / epsilon with ``monotone=True``, Lyu, Su and Li 2017).
    Give ``epsilon``, or the ``scale`` L of the threshold noise; the loss is then
    PureDP(2 D' / L), D' being the sensitivity on the grid.

    The object halts after the first yes. ``charge``, if given, is called with the loss
    before anything is drawn.

    >>> run = AboveThreshold(threshold=100, epsilon=1, sensitivity=1, insecure_seed=3)
    >>> run.loss, run.ask(-10_000).value, run.ask(10_000).value, run.halted
    (PureDP(epsilon=1), False, True, True)
    >>> run.ask(0)
    Traceback (most recent call last):
    discreet.errors.MechanismHalted: this AboveThreshold has halted: ...
    """

    _name = "above_threshold"

    def __init__(
        self,
        *,
        threshold: object,
        sensitivity: object,
        epsilon: object = None,
        scale: object = None,
        relation: Relation | str = Relation.ADD_REMOVE,
        monotone: bool = False,
        granularity: object = None,
        source: Source | None = None,
        insecure_seed: int | None = None,
        charge: Charge | None = None,
    ) -> None:
        either(epsilon=epsilon, scale=scale)
        step = None if epsilon is None else _validate.fraction("epsilon", epsilon, above=0)
        super().__init__(
            threshold=threshold,
            runs=1,
            step=step,
            scale=scale,
            sensitivity=sensitivity,
            relation=relation,
            monotone=monotone,
            granularity=granularity,
            source=source,
            insecure_seed=insecure_seed,
            charge=charge,
            noted={},
        )


@final
class SparseVector(_Comparison):
    """The first ``answers`` queries above a threshold; the noes between them are free (S15).

    **Guarantee.** The run is ``answers`` consecutive runs of :class:`AboveThreshold`,
    each with a fresh threshold noise of scale L and query noise of scale 2 L (L with
    ``monotone=True``), so its loss is Q PureDP(2 D / L) whatever is asked. Given ``epsilon``
    and ``delta``, L is sqrt(32 Q ln(1/delta)) D / epsilon or 2 Q D / epsilon, whichever is
    smaller (:func:`step_budget`; ``composition="accounted"`` needs less), and the loss is
    (epsilon, delta)-DP; without ``delta`` it is the second, which is epsilon-DP. Or give
    ``scale`` = L.

    The object halts with the yes that uses up ``answers``.

    >>> run = SparseVector(threshold=0, answers=2, epsilon=1, sensitivity=1, insecure_seed=3)
    >>> [run.ask(value).value for value in (9000, -9000, 9000)], run.halted, run.loss
    ([True, False, True], True, 2 * PureDP(epsilon=0.5))
    """

    _name = "sparse_vector"

    def __init__(
        self,
        *,
        threshold: object,
        answers: int,
        sensitivity: object,
        epsilon: object = None,
        delta: object = None,
        scale: object = None,
        composition: str = "smaller_noise",
        relation: Relation | str = Relation.ADD_REMOVE,
        monotone: bool = False,
        granularity: object = None,
        source: Source | None = None,
        insecure_seed: int | None = None,
        charge: Charge | None = None,
    ) -> None:
        either(epsilon=epsilon, scale=scale)
        count = _validate.integer("answers", answers, at_least=1)
        budget = None
        if scale is None:
            budget = step_budget(runs=count, epsilon=epsilon, delta=delta, composition=composition)
        elif delta is not None:
            raise InvalidValue("delta", delta, "None where scale is given: read the loss instead")
        super().__init__(
            threshold=threshold,
            runs=count,
            step=None if budget is None else budget.epsilon,
            scale=scale,
            sensitivity=sensitivity,
            relation=relation,
            monotone=monotone,
            granularity=granularity,
            source=source,
            insecure_seed=insecure_seed,
            charge=charge,
            noted={"answers": count, "composition": budget.composition if budget else None},
        )

    @property
    def remaining(self) -> int:
        """How many more yeses the run will give."""
        return self._remaining
