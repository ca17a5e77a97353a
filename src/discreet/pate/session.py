"""Plans and sessions: what a stream of queries may cost, and the stream itself.

A :class:`Plan` is known before anything is spent. Its loss covers every stream that its session
answers, however the queries are chosen, because each release of a kind is computed from
one draw of that kind's dominating pair: draw as many pairs of each kind as the plan allows
beforehand, and the whole transcript, with its order and its end, is computed from them. A plan
with a budget of mu^2 rests on the filter for Gaussian privacy
(:mod:`discreet.privacy.adaptive`): the squares of what was run never add up to more.

A session refuses by cost alone: whether it is over follows from the answers that were given and
from public numbers, never from the votes of the query that is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np

from discreet.errors import InvalidValue
from discreet.mechanisms.halting import SingleRun
from discreet.pate.votes import read_histogram, read_histograms
from discreet.privacy import Loss

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Outcome", "Plan", "Runner", "Session", "no_prediction"]

_BULK = 8192
"""Queries whose noise is drawn at once."""


@final
class Outcome(NamedTuple):
    """What became of one query: the label, and whether the teachers' votes gave it."""

    label: int | None
    answered: bool


Runner = Callable[["NDArray[np.int64]", Any], Iterator[Outcome]]
"""Decides queries, from a table of histograms and a table of predictions or None.

Outcomes are computed in bulk; a session never hands over more queries than are surely paid for.
"""


def no_prediction(predictions: Any, queries: int = 1) -> None:
    """Refuse predictions that would not be looked at."""
    del queries
    if predictions is not None:
        raise InvalidValue("prediction", predictions, "None: this aggregator does not look at it")


@final
@dataclass(frozen=True)
class Plan:
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
        """Whether one more query, answered or not, is paid for after so many."""
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

    def surely_paid(self, *, queries: int, answers: int, at_most: int) -> int:
        """How many more queries are paid for after so many, whatever becomes of them."""
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
class Session(SingleRun):
    """A stream of queries under one plan; made by the ``open`` of an aggregator.

    ``charge``, if given to ``open``, was called with ``session.loss`` before anything was drawn.

    Only the labels may leave; the votes and whatever is computed from them are private.
    """

    def __init__(
        self,
        *,
        plan: Plan,
        classes: int,
        teachers: int,
        run: Runner,
        spent: Callable[[int, int], Loss | None],
        parameters: Mapping[str, Any],
        check: Callable[[Any, int], None] = no_prediction,
    ) -> None:
        self._plan = plan
        self._classes = classes
        self._teachers = teachers
        self._run = run
        self._spent = spent
        self._check = check
        self._answers = 0
        self._provenance = dict(parameters)
        super().__init__(loss=plan.loss, charge=None)  # charged before the first draw, by open
        self._halted = not plan.has_room(queries=0, answers=0)

    @property
    def plan(self) -> Plan:
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

        It guides whoever asks. The loss to report is ``loss``: a stream that is left when the
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
                paid = self._plan.surely_paid(
                    queries=self._asked, answers=self._answers, at_most=_BULK
                )
                part = slice(len(labels), len(labels) + paid)
                public = None if predictions is None else predictions[part]
                for outcome in self._run(table[part], public):
                    self._asked += 1
                    self._answers += outcome.answered
                    labels.append(outcome.label)
                self._halted = not self._plan.has_room(queries=self._asked, answers=self._answers)
        except BaseException:
            self._halted = True
            raise
        return labels
