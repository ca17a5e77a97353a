"""Runs against a noisy threshold: AboveThreshold, Sparse Vector, and many stable questions.

**AboveThreshold.** A run compares noisy queries with a noisy threshold and answers yes or no. With
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

**Stable questions.** Exact answers to many questions, paying only for the unstable ones: the
same technique on distances to instability. Every question i has an answer
f_i(D) and a distance of sensitivity 1 (:class:`StableFunction`). With a noisy
threshold T + Lap(L) and query noise Lap(2 L), the answer is released exactly if
distance + noise is above the threshold; otherwise the run counts a fail and draws
a fresh threshold noise. After Q fails it stops.

Its loss is Q PureDP(2 / L) + ApproxDP(0, delta_r). Up to and including its fail, a
round is AboveThreshold on distances: 2 / L for its yes-or-no pattern. Its answers
equal those on the neighbour unless a question of different answers, whose distances
are 0, is released. In one round only the first such question matters, because if it
is not released the round is over; its noise is fresh, so the probability is at most
P(N - R > T) with N ~ Lap(2 L) and R ~ Lap(L), whatever was asked before. A round is
therefore (2/L, P(N - R > T))-DP, and delta_r is Q times that probability: it does not
depend on the number of questions. For the discrete noises it is computed from its
closed form (:func:`laplace_difference_tail`), rounded up.

**One run, one loss, and an end that cannot be undone.** These guarantees hold for *one* run that
stops by itself. Whatever would continue or repeat a run is refused: a question after
the end, a copy, a pickle, and the copy that a fork makes of a process.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn, TypeVar, final

from discreet import _validate
from discreet.errors import InvalidValue, MechanismHalted, NotApplicable, RelationMismatch
from discreet.mechanisms._intervals import (
    check_delta,
    check_epsilon,
    decimal_down,
    decimal_up,
    laplace_difference_tail,
)
from discreet.mechanisms._release import Interval, Release
from discreet.mechanisms._stability import FAIL, Fail, StableFunction, check_relation
from discreet.privacy import ApproxDP, Loss, PureDP, Relation
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

Charge = Callable[[Loss], Any]
"""What takes the loss of a run before it begins, such as ``ledger.charge``."""

Data = TypeVar("Data")
Value = TypeVar("Value")

COMPOSITIONS = ("smaller_noise", "advanced", "basic", "accounted")
THRESHOLDS = ("tight", "printed")


class SingleRun:
    """Abstract base of the stateful mechanisms: thread-safe, never copied.

    ``charge`` is called once with the loss, before anything is drawn; if it raises
    (a ledger without budget) there is no mechanism. All answers of the run share
    this one loss: adding up the losses of two answers of one run would be safe, and
    would pay twice.
    """

    def __init__(self, *, loss: Loss, charge: Charge | None) -> None:
        self._loss = loss
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._halted = False
        self._asked = 0
        if charge is not None:
            charge(loss)

    @property
    @final
    def loss(self) -> Loss:
        """What the whole run costs, for all questions and even if it ends early."""
        return self._loss

    @property
    @final
    def halted(self) -> bool:
        """Whether the run is over; a function of the answers released so far."""
        return self._halted

    @property
    @final
    def asked(self) -> int:
        """How many questions have been answered."""
        return self._asked

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold the run for one question, or raise because it is over."""
        if os.getpid() != self._pid:
            raise NotApplicable(
                f"this {type(self).__name__} was copied by a fork; two runs with one noisy "
                "threshold are not covered by its loss"
            )
        with self._lock:
            if self._halted:
                raise MechanismHalted(
                    f"this {type(self).__name__} has halted: its loss covers no further answer; "
                    "build a new one and pay for it"
                )
            yield

    def __copy__(self) -> NoReturn:
        self._refuse_copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        self._refuse_copy()

    def __reduce__(self) -> NoReturn:
        self._refuse_copy()

    def _refuse_copy(self) -> NoReturn:
        raise NotApplicable(
            f"a {type(self).__name__} cannot be copied or pickled: the copy could be asked "
            "again after the original has halted"
        )


class StepBudget(NamedTuple):
    """What each of several runs may cost, and the theorem that adds them up."""

    epsilon: Fraction
    composition: str


def step_budget(
    *, runs: int, epsilon: object, delta: object = None, composition: str = "smaller_noise"
) -> StepBudget:
    """Return the pure epsilon of one run such that ``runs`` of them are (epsilon, delta)-DP.

    Parameters
    ----------
    runs : int
        Q, how many runs there are.
    epsilon : number or str
        From 1e-9 to 1e6.
    delta : number or str, optional
        Without it the runs are composed basically, and pure.
    composition : {"smaller_noise", "advanced", "basic", "accounted"}
        ``advanced``: epsilon / sqrt(8 Q ln(1/delta)), that is the scale
        sqrt(32 Q ln(1/delta)) / epsilon; refused where the second term of advanced composition
        would pass epsilon. ``basic``: epsilon / Q, pure. ``smaller_noise``: the larger of the two
        budgets; basic wins for Q up to about 8 ln(1/delta). ``accounted``: the largest budget that
        the accountants confirm, which takes some tenths of a second and is up to three times as
        much.

    Returns
    -------
    StepBudget
        The budget of a run, rounded down to twelve digits, and the theorem used.

    Raises
    ------
    InvalidValue
        If an argument is outside its range.

    Examples
    --------
    >>> step_budget(runs=10, epsilon=1, delta=1e-5)
    StepBudget(epsilon=Fraction(1, 10), composition='basic')
    >>> round(float(step_budget(runs=1000, epsilon=1, delta=1e-5).epsilon), 6)  # basic: 0.001
    0.003295
    >>> best = step_budget(runs=1000, epsilon=1, delta=1e-5, composition="accounted")
    >>> 0.008 < best.epsilon < 0.009
    True
    """
    count = _validate.integer("runs", runs, at_least=1)
    total = check_epsilon(epsilon)
    name = _validate.one_of("composition", composition, COMPOSITIONS)
    basic = StepBudget(total / count, "basic")
    if delta is None:
        if name in ("advanced", "accounted"):
            raise InvalidValue("delta", delta, f"a number with 0 < delta < 1, for {name}")
        return basic
    target = check_delta(delta)
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
    return closed if name != "accounted" else _search_budget(count, total, target, closed.epsilon)


@lru_cache(maxsize=64)
def _search_budget(runs: int, epsilon: Fraction, delta: Fraction, proved: Fraction) -> StepBudget:
    """Search upwards from a budget that is proved; what is returned has been confirmed."""
    below = math.nextafter(float(delta), 0.0)

    def confirms(step: Fraction) -> bool:
        return (runs * PureDP(step)).epsilon(delta=below) <= epsilon

    low, high = proved, 2 * proved
    while confirms(high):
        low, high = high, 2 * high
    while high > low * Fraction(1001, 1000):
        middle = decimal_down((low + high) / 2)
        low, high = (middle, high) if confirms(middle) else (low, middle)
    return StepBudget(low, "accounted")


class _ThresholdRun(SingleRun):
    """Comparisons of noisy integers with a noisy threshold, in rounds.

    A round ends with the first yes (or, if ``ends_with`` is False, with the first no) and the
    next one begins with a fresh threshold noise. The run halts after ``rounds`` of them, and
    after ``questions`` questions if a number is given.
    """

    def __init__(
        self,
        *,
        loss: Loss,
        charge: Charge | None,
        level: int,
        threshold_scale: Fraction,
        query_scale: Fraction,
        rounds: int,
        ends_with: bool,
        source: Source,
        questions: int | None = None,
    ) -> None:
        self._level = level
        self._threshold_scale = threshold_scale
        self._query_scale = query_scale
        self._remaining = rounds
        self._ends_with = ends_with
        self._source = source
        self._questions = questions
        super().__init__(loss=loss, charge=charge)
        self._bar = self._draw_bar()

    def _draw_bar(self) -> int:
        return self._level + discrete_laplace(self._threshold_scale, source=self._source)

    def _is_above(self, number: int) -> bool:
        """Compare, and count the question; the caller holds the turn."""
        above = number + discrete_laplace(self._query_scale, source=self._source) >= self._bar
        self._asked += 1
        ended = above == self._ends_with
        self._remaining -= ended
        self._halted = self._remaining == 0 or self._asked == self._questions
        if ended and not self._halted:
            self._bar = self._draw_bar()
        return above


class _Comparison(_ThresholdRun):
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
        if _validate.flag("monotone", monotone) and chosen is not Relation.ADD_REMOVE:
            raise RelationMismatch(
                "monotone=True speaks of queries that all move in one direction between "
                "neighbours; under 'replace' not even counts do"
            )
        width = _validate.fraction("sensitivity", sensitivity, above=0)
        noise = _validate.fraction("scale", scale, above=0) if step is None else 2 * width / step
        grid = default_granularity(noise) if granularity is None else granularity
        self._granularity = check_granularity(grid)
        steps = int(sensitivity_on_grid(width, granularity=self._granularity))
        self._threshold = _validate.fraction("threshold", threshold)
        if step is None:
            threshold_scale = noise / self._granularity
            step = 2 * steps / threshold_scale
        else:
            threshold_scale = 2 * steps / step
        query_scale = threshold_scale * (1 if monotone else 2)
        bits = choose_source(source, insecure_seed)
        self._provenance: dict[str, Any] = {
            "mechanism": self._name,
            "threshold": str(self._threshold),
            "sensitivity": str(width),
            "relation": chosen.value,
            "monotone": monotone,
            "threshold_scale": float(threshold_scale * self._granularity),
            "query_scale": float(query_scale * self._granularity),
            "granularity": str(self._granularity),
            **noted,
            "loss": "shared by all answers of the run",
            **bits.provenance,
        }
        super().__init__(
            loss=runs * PureDP(step, chosen),
            charge=charge,
            level=math.floor(self._threshold / self._granularity + Fraction(1, 2)),
            threshold_scale=threshold_scale,
            query_scale=query_scale,
            rounds=runs,
            ends_with=True,
            source=bits,
        )

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

        Parameters
        ----------
        value : number
            Finite; its change between neighbours is at most the declared sensitivity.

        Returns
        -------
        Release of bool
            Its loss is that of the whole run. Its interval is for the value: from below after a
            yes, from above after a no.

        Raises
        ------
        MechanismHalted
            Once the run is over.
        """
        with self._turn():
            answer = read_real("value", value)
            level = int(round_to_grid(answer, granularity=self._granularity))
            above = self._is_above(level)
            return Release(
                above,
                self._loss,
                {**self._provenance, "question": self._asked},
                self._error_bars(above),
            )

    def _error_bars(self, above: bool) -> Callable[[float], Interval]:
        """Return bars: a yes below T - a, or a no above T + a, needs a noise beyond its share.

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
    """Name the first query above a threshold, at the price of one.

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

    Parameters
    ----------
    threshold : number or str
        What queries are compared with; public.
    sensitivity : number or str
        Of every query.
    epsilon, scale : number or str
        What the run costs, or L: exactly one of them.
    relation : Relation or str
        What neighbours are.
    monotone : bool
        Whether all queries move in one direction (not under replace).
    granularity : number or str, optional
        The step of the grid, a power of two.
    source, insecure_seed : optional
        Where the bits come from, or a seed for experiments.
    charge : callable, optional
        Takes the loss before anything is drawn.
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
        _validate.exactly_one(epsilon=epsilon, scale=scale)
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
    """Name the first ``answers`` queries above a threshold; the noes between them are free.

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

    Parameters
    ----------
    threshold : number or str
        What queries are compared with; public.
    answers : int
        Q, how many yeses end the run.
    sensitivity : number or str
        Of every query.
    epsilon, delta : number or str, optional
        What the run costs.
    scale : number or str, optional
        L instead of epsilon.
    composition : str
        How the runs add up, see :func:`step_budget`.
    relation : Relation or str
        What neighbours are.
    monotone : bool
        Whether all queries move in one direction (not under replace).
    granularity : number or str, optional
        The step of the grid, a power of two.
    source, insecure_seed : optional
        Where the bits come from, or a seed for experiments.
    charge : callable, optional
        Takes the loss before anything is drawn.
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
        _validate.exactly_one(epsilon=epsilon, scale=scale)
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
        """The loss of the run: Q PureDP(2 / scale) + ApproxDP(0, delta_r)."""
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
    """Return noise, threshold and loss of a run that is (epsilon, delta)-DP in all.

    Parameters
    ----------
    fails : int
        Q, how many unstable questions end the run.
    epsilon, delta : number or str
        The budget of the whole run.
    relation : Relation or str
        What neighbours are.
    threshold : {"tight", "printed"}
        "tight" is the least integer whose delta_r is within what is left of delta, about
        2 L ln(4 Q / (3 delta)), and allows any number of questions. "printed" is
        2 L ln(2 m / delta) for at most m = ``questions``.
    questions : int, optional
        How many questions may be asked.
    composition : str
        The scale L is sqrt(32 Q ln(2/delta)) / epsilon ("advanced": half of delta pays for it),
        or 2 Q / epsilon ("basic"), by default the smaller; "accounted" is the least that the
        accountants confirm for half of delta.

    Returns
    -------
    StableVectorPlan
        The public parameters of the run.

    Raises
    ------
    InvalidValue
        If an argument is outside its range.

    Examples
    --------
    >>> plan = stable_vector_plan(fails=5, epsilon=1, delta=1e-5, relation="replace")
    >>> plan.scale, plan.threshold, plan.composition
    (Fraction(10, 1), 255, 'basic')
    >>> plan.loss
    5 * PureDP(epsilon=0.2, relation='replace') + ApproxDP(epsilon=0, delta=..., relation='replace')
    """
    count = _validate.integer("fails", fails, at_least=1)
    target = 2 * check_delta(_validate.fraction("delta", delta, above=0, below=1) / 2)
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
class StableVector(_ThresholdRun):
    """Answer exactly until ``fails`` questions have turned out unstable.

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

    Parameters
    ----------
    fails, epsilon, delta, relation, threshold, questions, composition
        As in :func:`stable_vector_plan`.
    source, insecure_seed : optional
        Where the bits come from, or a seed for experiments.
    charge : callable, optional
        Takes the loss before anything is drawn.
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
        super().__init__(
            loss=self._plan.loss,
            charge=charge,
            level=self._plan.threshold,
            threshold_scale=self._plan.scale,
            query_scale=2 * self._plan.scale,
            rounds=self._plan.fails,
            ends_with=False,
            source=choose_source(source, insecure_seed),
            questions=self._plan.questions,
        )

    @property
    def plan(self) -> StableVectorPlan:
        """The public parameters of the run."""
        return self._plan

    @property
    def fails_left(self) -> int:
        """How many more unstable questions end the run."""
        return self._remaining

    def ask(self, data: Data, function: StableFunction[Data, Value]) -> Release[Value | Fail]:
        """Release f(data) exactly if it is stable, else :data:`FAIL`; the loss is the run's.

        Parameters
        ----------
        data : any
            The private records, as the function takes them.
        function : StableFunction
            The question, with its distance to instability.

        Returns
        -------
        Release
            The answer itself, or FAIL.

        Raises
        ------
        MechanismHalted
            Once the run is over.
        """
        with self._turn():
            check_relation(function, self._plan.relation)
            value, distance = function.evaluate(data)
            stable = self._is_above(distance)
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
