"""The contract of an aggregator, what a stream of its queries may cost, and the stream itself.

A :class:`SessionPlan` is known before anything is spent. Its loss covers every stream that its
session answers, however the queries are chosen, because each release of a kind is computed from
one draw of that kind's dominating pair: draw as many pairs of each kind as the plan allows
beforehand, and the whole transcript, with its order and its end, is computed from them. A plan
with a budget of mu^2 rests on the filter for Gaussian privacy (:class:`discreet.privacy.Filter`):
the squares of what was run never add up to more.

A session refuses by cost alone: whether it is over follows from the answers that were given and
from public numbers, never from the votes of the query that is refused.
"""

from __future__ import annotations

import inspect
import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple, Self, final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable
from discreet.mechanisms import Charge, SingleRun
from discreet.pate._surface import RESOLUTION, Surface
from discreet.pate._votes import read_histogram, read_histograms
from discreet.privacy import GDP, Loss, Relation
from discreet.privacy.theorems import gaussian_mu
from discreet.randomness import Source, choose_source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Counts = NDArray[np.int64]


_MOST_TEACHERS = 10**6
_MOST_QUERIES = 10**7
# Queries whose noise is drawn at once.
_BULK = 8192


@final
class Outcome(NamedTuple):
    """What became of one query: the label, and whether the teachers' votes gave it."""

    label: int | None
    answered: bool


# Decides queries, from a table of histograms and a table of predictions or None. A session never
# hands over more queries than its plan covers, whatever becomes of them.
Decider = Callable[["NDArray[np.int64]", Any], Iterator[Outcome]]


def refuse_predictions(predictions: Any, queries: int = 1) -> None:
    """Refuse predictions that would not be looked at."""
    del queries
    if predictions is not None:
        raise InvalidValue("prediction", predictions, "None: this aggregator does not look at it")


@final
@dataclass(frozen=True)
class SessionPlan:
    """The data-independent cost of a stream, and where it ends.

    ``queries`` and ``answers`` are the most of each (None: no such limit), ``fails`` the number
    of unanswered queries that ends the stream, and ``mu_squared`` a budget of squared
    Gaussian parameters. ``loss`` is a loss of the algebra: it composes, and a ledger takes it.
    """

    loss: Loss
    queries: int | None = None
    answers: int | None = None
    fails: int | None = None
    mu_squared: Fraction | None = None
    query_mu_squared: Fraction = Fraction(0)
    answer_mu_squared: Fraction = Fraction(0)

    def has_room(self, *, queries: int, answers: int) -> bool:
        """Whether one more query, answered or not, is covered after as many."""
        fails = queries - answers
        if self.queries is not None and queries >= self.queries:
            return False
        if self.answers is not None and answers >= self.answers:
            return False
        if self.fails is not None and fails >= self.fails:
            return False
        if self.mu_squared is None:
            return True
        spent = queries * self.query_mu_squared + answers * self.answer_mu_squared
        return spent + self.query_mu_squared + self.answer_mu_squared <= self.mu_squared

    def queries_covered(self, *, queries: int, answers: int, at_most: int) -> int:
        """How many more queries are covered, answered or not."""
        limits = [at_most]
        if self.queries is not None:
            limits.append(self.queries - queries)
        if self.answers is not None:
            limits.append(self.answers - answers)
        if self.fails is not None:
            limits.append(self.fails - (queries - answers))
        if self.mu_squared is not None:
            spent = queries * self.query_mu_squared + answers * self.answer_mu_squared
            each = self.query_mu_squared + self.answer_mu_squared
            limits.append(int((self.mu_squared - spent) // each))
        return max(0, min(limits))


@final
class VotingSession(SingleRun):
    """A stream of queries under one plan; made by the ``open`` of an aggregator.

    ``charge``, if given to ``open``, was called with ``session.loss`` before anything was drawn.

    Only the labels may leave; the votes and whatever is computed from them are private.
    """

    def __init__(
        self,
        *,
        plan: SessionPlan,
        classes: int,
        teachers: int,
        decide: Decider,
        spent: Callable[[int, int], Loss | None],
        parameters: Mapping[str, Any],
        check: Callable[[Any, int], None] = refuse_predictions,
    ) -> None:
        self._plan = plan
        self._classes = classes
        self._teachers = teachers
        self._decide = decide
        self._spent = spent
        self._check = check
        self._answers = 0
        self._provenance = dict(parameters)
        super().__init__(loss=plan.loss, charge=None)  # charged before the first draw, by open
        self._halted = not plan.has_room(queries=0, answers=0)

    @property
    def plan(self) -> SessionPlan:
        """The plan that was opened."""
        return self._plan

    @property
    def answers(self) -> int:
        """How many queries the teachers' votes have answered."""
        return self._answers

    @property
    def provenance(self) -> dict[str, Any]:
        """The aggregator, its parameters and where its randomness comes from; all public."""
        return dict(self._provenance)

    @property
    def spent(self) -> Loss | None:
        """What the queries so far cost, data-independently; None before the first.

        It guides the caller. The loss to report is ``loss``: a stream that is left when the
        answers say so has the cost of all that might have happened.
        """
        return self._spent(self._asked, self._answers)

    def answer(self, votes: Any, *, prediction: Any = None) -> int | None:
        """Return a label for the histogram ``votes``, or None where the aggregator keeps silent.

        Raises :class:`~discreet.mechanisms.MechanismHalted` once the plan is used up, and
        ``InvalidValue`` for what is no histogram of all teachers; then nothing is spent.
        ``prediction`` is the student's public prediction, for aggregators that look at it.
        A query that is interrupted ends the session.
        """
        with self._turn():
            counts = read_histogram(votes, classes=self._classes, teachers=self._teachers)
            return self._take(counts[None, :], None if prediction is None else [prediction])[0]

    def answer_many(self, votes: Any, *, predictions: Any = None) -> list[int | None]:
        """Return labels for a table of histograms, one query a row, in order.

        The same as asking one after the other, with the noise drawn in bulk. The list ends
        where the plan does: it is shorter than the table if the plan was used up on the way.
        """
        with self._turn():
            table = read_histograms(votes, classes=self._classes, teachers=self._teachers)
            if predictions is not None and len(predictions) != len(table):
                raise InvalidValue(
                    "predictions", f"{len(predictions)} rows", f"{len(table)}, one for each query"
                )
            return self._take(table, predictions)

    def _take(self, table: NDArray[np.int64], predictions: Any) -> list[int | None]:
        # All predictions are read, and refused if need be, before the first draw.
        self._check(predictions, len(table))
        labels: list[int | None] = []
        try:
            while len(labels) < len(table) and not self._halted:
                paid = self._plan.queries_covered(
                    queries=self._asked, answers=self._answers, at_most=_BULK
                )
                part = slice(len(labels), len(labels) + paid)
                public = None if predictions is None else predictions[part]
                for outcome in self._decide(table[part], public):
                    self._asked += 1
                    self._answers += outcome.answered
                    labels.append(outcome.label)
                self._halted = not self._plan.has_room(queries=self._asked, answers=self._answers)
        except BaseException:
            self._halted = True
            raise
        return labels


class Costs(NamedTuple):
    """What each query costs, and what is added if it is answered (None: nothing)."""

    query: Loss
    answer: Loss | None


class Chances(NamedTuple):
    """For every histogram, the chance of an answer, and that an answer is the given label."""

    answered: Array
    right: Array


@final
@dataclass(frozen=True)
class Prospect:
    """What one aggregator promises: expected ``labels`` at an expected ``accuracy``.

    ``aggregator`` and ``budget`` are ready to be opened; both are empty where no parameters
    answer anything at the accuracy asked for, and ``note`` says so.
    """

    name: str
    labels: float
    accuracy: float
    queries: float
    aggregator: Aggregator | None
    budget: Mapping[str, Any]
    note: str = ""

    @classmethod
    def nothing(cls, name: str) -> Prospect:
        """The prospect of an aggregator that cannot answer."""
        note = "no parameters keep the accuracy within the budget"
        return cls(name, 0.0, 0.0, 0.0, None, {}, note)

    def open(self, **randomness: Any) -> VotingSession:
        """Open the session that was promised; see :meth:`Aggregator.open`."""
        if self.aggregator is None:
            raise InvalidValue("prospect", self.name, f"one that answers: {self.note}")
        return self.aggregator.open(**self.budget, **randomness)


@final
@dataclass(frozen=True, eq=False)
class VoteProfile:
    """Votes that are NOT private, and what an aggregator is to reach on votes like them.

    ``labels`` are the right classes, ``expected`` the votes that a student's predictions expect
    (None without a student), ``common`` the fields that all aggregators have.
    """

    votes: Counts
    labels: Counts
    expected: Counts | None
    queries: int
    accuracy: float
    epsilon: float
    delta: float
    common: Mapping[str, Any]

    @property
    def teachers(self) -> int:
        """The number of teachers."""
        return int(self.common["teachers"])

    def most_noise(self, accuracy: Callable[[float], Array]) -> float | None:
        """The largest noise at which the expected accuracy of all labels is kept."""
        low, high = 0.1, 1e6
        if float(np.mean(accuracy(low))) < self.accuracy:
            return None
        while high / low > 1.005:
            middle = math.sqrt(low * high)
            kept = float(np.mean(accuracy(middle))) >= self.accuracy
            low, high = (middle, high) if kept else (low, middle)
        return low

    def expect(
        self, aggregator: Aggregator, chances: Chances, asked: float, budget: Mapping[str, Any]
    ) -> Prospect | None:
        """What ``asked`` queries would bring, or None if too little or not accurate enough."""
        answered, right = chances
        share = float(answered.mean())
        if share * asked < 1:
            return None
        reached = float(answered @ right / answered.sum())
        if reached < self.accuracy:
            return None
        name = type(aggregator).__name__
        return Prospect(name, share * asked, reached, asked, aggregator, budget)


@dataclass(frozen=True, kw_only=True)
class Aggregator(ABC):
    """Turns the votes of a fixed, public number of teachers into labels.

    The loss is data-independent and speaks of one moved vote in every query; what that
    means for records is written in :class:`~discreet.pate.Partition`. Ties go to the lowest class.

    To write one, make a frozen dataclass of its public parameters and give it :attr:`costs` and
    :meth:`decide`. With :meth:`chances` it can be planned on public votes, with
    :meth:`propose` it takes part in :func:`~discreet.pate.compare_aggregators`, and with
    :meth:`surface` its data-dependent figures can be computed; without them these refuse.

    **What you promise.** Whatever :meth:`decide` releases about one query is ``costs.query``, and
    ``costs.answer`` more if it is answered, for histograms that differ by one moved vote.
    """

    classes: int
    teachers: int
    relation: Relation | str = Relation.ADD_REMOVE

    def __post_init__(self) -> None:
        self._set(
            classes=_validate.integer("classes", self.classes, at_least=2, at_most=10**6),
            teachers=_validate.integer(
                "teachers", self.teachers, at_least=1, at_most=_MOST_TEACHERS
            ),
            relation=Relation.parse(self.relation),
        )

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def neighbours(self) -> Relation:
        """The relation that the loss speaks of."""
        return Relation.parse(self.relation)

    @property
    def parameters(self) -> dict[str, Any]:
        """Name and public parameters, as JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        shown = {name: _as_json(value) for name, value in values.items()}
        return {"aggregator": type(self).__name__, **shown}

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any]) -> Self:
        """Make an aggregator from its public :attr:`parameters`, without the name."""
        return cls(**parameters)

    @classmethod
    def kinds(cls) -> dict[str, type[Aggregator]]:
        """All aggregators that are defined, by name; no other can take the name of one from here.

        One more is a class: from then on it can be planned, compared and verified.
        """
        every: list[Any] = [Aggregator]
        for kind in every:
            every += kind.__subclasses__()
        every.sort(key=lambda kind: kind.__module__.startswith(f"{__package__}."))
        return {kind.__name__: kind for kind in every if not inspect.isabstract(kind)}

    # --- what an aggregator says about itself -------------------------------------------

    @property
    @abstractmethod
    def costs(self) -> Costs:
        """The data-independent loss of one query, and of its answer where that is apart."""

    def decide(self, table: Counts, predictions: Any, source: Source) -> Iterator[Outcome]:
        """Decide queries, one histogram a row; ``predictions`` is None unless it reads them."""
        raise NotImplementedError(f"{type(self).__name__} has neither decide nor start")

    def start(self, source: Source) -> Decider:
        """Return what decides the queries of one session.

        Override this instead of :meth:`decide` where the queries of a session share noise.
        """
        return lambda table, predictions: self.decide(table, predictions, source)

    def chances(self, votes: Counts, labels: Counts, expected: Counts | None = None) -> Chances:
        """The chances of answers and right labels on public votes; they plan, and prove nothing.

        ``expected`` are the votes that a student expects, for aggregators that look at it.
        """
        raise NotApplicable(f"{type(self).__name__} does not say what it would answer")

    @classmethod
    def propose(cls, profile: VoteProfile) -> Prospect | None:
        """Find parameters that answer most on votes like these; None if it takes no part."""
        del profile
        return None

    @classmethod
    def for_queries(cls, queries: int, *, epsilon: float, delta: float, **common: Any) -> Self:
        """Make the one whose noise spends (epsilon, delta) on exactly these queries.

        ``common`` are the fields that all aggregators have.
        """
        del queries, epsilon, delta, common
        raise NotApplicable(
            f"{cls.__name__} does not choose its own noise: give one with its noise"
        )

    def surface(self, *, resolution: int = RESOLUTION, one_sided: bool = False) -> Surface:
        """The data-dependent divergence of a query over cells of votes, where one is known."""
        raise NotApplicable(
            f"no data-dependent bound is known for {type(self).__name__}; its "
            "data-independent loss is aggregator.plan(...).loss"
        )

    def check_predictions(self, predictions: Any, queries: int) -> None:
        """Refuse predictions that this aggregator cannot use, before anything is drawn."""
        refuse_predictions(predictions, queries)

    @property
    def reads_predictions(self) -> bool:
        """Whether sessions take a student's predictions."""
        return False

    @property
    def teachers_per_record(self) -> int:
        """How many teachers a record may have: as many votes move with it and are paid for."""
        return 1

    # --- plans and sessions ---------------------------------------------------------------

    def loss(self, *, queries: int, answers: int | None = None) -> Loss:
        """The loss of a stream of at most these queries and answers (None: all answered)."""
        asked = _validate.integer("queries", queries, at_least=1, at_most=_MOST_QUERIES)
        given = asked
        if answers is not None:
            given = _validate.integer("answers", answers, at_least=1, at_most=asked)
        costs = self.costs
        total = asked * costs.query
        return total if costs.answer is None else total + given * costs.answer

    def plan(
        self,
        *,
        queries: int | None = None,
        answers: int | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
    ) -> SessionPlan:
        """State a budget: numbers of ``queries`` and ``answers``, or ``epsilon`` and ``delta``.

        Nothing is spent. ``answers`` is for aggregators whose answers cost extra. Given
        ``epsilon`` and ``delta`` the stream goes on for as long as they allow, and at most for
        ``queries`` and ``answers`` if these are given as well.
        """
        if epsilon is None:
            if delta is not None:
                raise InvalidValue("delta", delta, "None where no epsilon is given")
            if queries is None:
                raise InvalidValue("queries", queries, "a number of queries, or epsilon and delta")
            return SessionPlan(self.loss(queries=queries, answers=answers), queries, answers)
        target = _validate.real("epsilon", epsilon, above=0)
        point = _validate.real("delta", delta, at_least=0, below=1)
        return self._plan_within(target, point, queries, answers)

    def _plan_within(
        self, epsilon: float, delta: float, queries: int | None, answers: int | None
    ) -> SessionPlan:
        costs = self.costs
        parts = [costs.query] if costs.answer is None else [costs.query, costs.answer]
        mus = [part.mu for part in parts if isinstance(part, GDP)]
        if len(mus) == len(parts) and delta > 0:
            return self._gaussian_plan(mus, epsilon, delta, queries, answers)
        each = parts[0] if len(parts) == 1 else parts[0] + parts[1]
        most = most_queries(each, epsilon=epsilon, delta=delta, at_most=queries)
        return SessionPlan(most * each, most, _check_limit("answers", answers))

    def _gaussian_plan(
        self,
        mus: list[float],
        epsilon: float,
        delta: float,
        queries: int | None,
        answers: int | None,
    ) -> SessionPlan:
        """The filter for Gaussian privacy: everything together is GDP(mu), and no less."""
        query = Fraction(mus[0]) ** 2
        answer = Fraction(mus[1]) ** 2 if len(mus) > 1 else Fraction(0)
        mu, steps = gaussian_mu(epsilon, delta) * (1.0 - 1e-12), 0
        while Fraction(mu) ** 2 >= query + answer and (
            GDP(mu, self.neighbours).epsilon(delta=delta) > epsilon
        ):
            # Small steps first; ever larger ones for budgets that the accountant cannot resolve.
            mu *= 1.0 - min(0.5, 1e-9 * 2.0 ** max(0, steps - 16))
            steps += 1
        if Fraction(mu) ** 2 < query + answer:
            one = GDP(math.sqrt(math.fsum(value * value for value in mus)), self.neighbours)
            raise _refuse_too_little(epsilon, one.epsilon(delta=delta), delta)
        return SessionPlan(
            GDP(mu, self.neighbours),
            _check_limit("queries", queries),
            _check_limit("answers", answers),
            None,
            Fraction(mu) ** 2,
            query,
            answer,
        )

    @final
    def open(
        self,
        *,
        queries: int | None = None,
        answers: int | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        source: Source | None = None,
        insecure_seed: int | None = None,
        charge: Charge | None = None,
    ) -> VotingSession:
        """Open a session under the plan of these arguments (see :meth:`plan`).

        ``charge`` is called with the plan's loss before anything is drawn; if it raises there is
        no session. ``insecure_seed`` is for experiments and is recorded in the provenance.
        """
        plan = self.plan(queries=queries, answers=answers, epsilon=epsilon, delta=delta)
        bits = choose_source(source, insecure_seed)
        if charge is not None:
            charge(plan.loss)
        return VotingSession(
            plan=plan,
            classes=self.classes,
            teachers=self.teachers,
            decide=self.start(bits),
            spent=self.spent_after,
            parameters={**self.parameters, **bits.provenance},
            check=self.check_predictions,
        )

    def spent_after(self, queries: int, answers: int) -> Loss | None:
        """What these queries and answers have cost; None before the first."""
        if queries == 0:
            return None
        costs = self.costs
        total = queries * costs.query
        if costs.answer is None or answers == 0:
            return total
        return total + answers * costs.answer


def most_queries(each: Loss, *, epsilon: float, delta: float, at_most: int | None = None) -> int:
    """The largest number of repetitions of a loss that are (epsilon, delta)-DP, or raise.

    >>> from discreet.privacy import PureDP
    >>> most_queries(2 * PureDP("0.05"), epsilon=1, delta=0)
    10
    """
    limit = _MOST_QUERIES
    if at_most is not None:
        limit = _validate.integer("queries", at_most, at_least=1, at_most=_MOST_QUERIES)

    def fits(count: int) -> bool:
        return (count * each).epsilon(delta=delta) <= epsilon

    if not fits(1):
        raise _refuse_too_little(epsilon, each.epsilon(delta=delta), delta)
    low, high = 1, 2
    while high <= limit and fits(high):
        low, high = high, 2 * high
    high = min(high, limit + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _as_json(value: object) -> int | float | str | None:
    """A parameter as JSON: whole numbers and floats as they are, what is exact as text."""
    if value is None:
        return None
    if isinstance(value, str):
        return str(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    exact = isinstance(value, numbers.Rational | Decimal)
    return float(value) if isinstance(value, numbers.Real) and not exact else str(value)


def _check_limit(argument: str, value: int | None) -> int | None:
    if value is None:
        return None
    return _validate.integer(argument, value, at_least=1, at_most=_MOST_QUERIES)


def _refuse_too_little(epsilon: float, needed: float, delta: float) -> InvalidValue:
    return InvalidValue(
        "epsilon", epsilon, f"enough for one query, which needs {needed:.6g} at delta {delta:g}"
    )
