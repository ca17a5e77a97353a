"""Many counts at once: workloads over a small public domain, and streams against a threshold.

The questions of a workload mention a few columns of declared labels or few whole numbers. The
domain is the product of their values; the data become a histogram over it, and every question
a row of zeros and ones, decided cell by cell by public facts. Then

- ``one_by_one`` adds Laplace noise to each count, for the largest number of questions that one
  row can satisfy (a public number, read off the matrix);
- ``weights`` (MWEM: Hardt, Ligett and McSherry 2012) spends its budget on the questions that a
  synthetic distribution answers worst, so that its error grows with the logarithm of their number;
- ``small_database`` (Blum, Ligett and Roth 2008) chooses a database of few records by the
  exponential mechanism; the database itself can be released, which costs nothing more.

For the last two a tenth of epsilon pays for a noisy number of rows, which turns fractions into
counts, and a tenth for a noisy bound on the largest error over all questions, which makes the error
bars. A unit owns up to k rows: the mechanisms run at epsilon / k for single rows, which is epsilon
for the unit (group privacy).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from typing import Any, final

import numpy as np

from discreet.curator._plan import (
    CONFIDENCE,
    Bar,
    ExpectedError,
    Facts,
    Found,
    Noise,
    QueryPlan,
    Released,
    find_names,
    json_number,
)
from discreet.curator._queries import ThresholdStream, Workload
from discreet.engines import StoredColumn, evaluate, truth_number
from discreet.errors import InvalidValue
from discreet.mechanisms import (
    SparseVector,
    candidate_count,
    multiplicative_weights,
    small_database,
    step_budget,
)
from discreet.privacy import Loss, PureDP, Relation
from discreet.randomness import Source

LARGEST_DOMAIN = 4096
_MOST_CANDIDATES = 200_000
_SMALL_SIZE = 8
_LARGEST_TOTAL = 2**50  # what the mechanisms take
_RISK = 1 - CONFIDENCE
_SHARE = Fraction(1, 10)


@final
class WorkloadPlan(QueryPlan):
    """Counts of rows that satisfy each of many questions."""

    loss: Loss

    def __init__(self, query: Workload, facts: Facts) -> None:
        super().__init__(query, facts)
        self._asked = query
        self.questions = [facts.lowering().condition(one) for one in query.questions]
        names = list(dict.fromkeys(find_names(query.questions)))
        self.stored = [facts.columns[name] for name in names]
        self.domain = _domain(self.stored, query.method)
        self.aggregation = (
            self.aggregate(sums=[truth_number(one) for one in self.questions])
            if self.domain is None
            else self.aggregate(keys=[one.term for one in self.stored])
        )
        self._overlap = self._most_at_once()
        self.method = self._choose_method()
        if query.give == "database" and self.method != "small_database":
            raise InvalidValue("give", query.give, 'answers, or method="small_database" with it')
        self.rounds = query.rounds or min(30, 2 + math.isqrt(len(query.questions)))
        cap, epsilon = facts.cap, query.epsilon
        self.noise = Noise(sensitivity=cap * self._overlap, epsilon=epsilon)
        self.total_noise = Noise(sensitivity=cap, epsilon=epsilon * _SHARE)
        self.error_noise = Noise(sensitivity=cap, epsilon=epsilon * _SHARE)
        self.share = epsilon * (1 - 2 * _SHARE)
        if self.method == "one_by_one":
            self.loss = self.noise.loss
            reach: float | None = float(self.noise.reach(together=len(query.questions)))
        else:
            self.loss = PureDP(self.share) + self.total_noise.loss + self.error_noise.loss
            reach = None  # the error depends on the data; the answer carries a bar for it
        self.expected = (ExpectedError("each count", reach),)

    @property
    def matrix(self) -> Any:
        """Which cells of the domain satisfy which question; made anew, as plans are remembered."""
        assert self.domain is not None
        cells = np.array(self.domain, dtype=np.int64).reshape(len(self.domain), len(self.stored))
        named = {stored.stored_name: cells[:, at] for at, stored in enumerate(self.stored)}
        matrix = np.zeros((len(self._asked.questions), len(self.domain)), dtype=np.int8)
        known: dict[bytes, Any] = {}
        for at, question in enumerate(self.questions):
            matrix[at] = evaluate(question, named, known)
        return matrix

    def _choose_method(self) -> str:
        method = self._asked.method
        if method == "auto":
            # Weights pay once a row satisfies many questions.
            worth = self.domain is not None and self._overlap > 40
            return "weights" if worth else "one_by_one"
        if method == "small_database":
            assert self.domain is not None
            found = candidate_count(domain=len(self.domain), size=_SMALL_SIZE)
            if found > _MOST_CANDIDATES:
                raise InvalidValue(
                    "method", method, f"weights: {len(self.domain)} cells are too many for it"
                )
        return method

    def _most_at_once(self) -> int:
        """The largest number of questions that one row can satisfy."""
        if self.domain is None:
            return len(self._asked.questions)
        return max(1, int(self.matrix.sum(axis=0).max()))

    def histogram(self, found: Found) -> list[int]:
        """The exact number of rows in each cell of the domain."""
        assert self.domain is not None
        return [found.get(cell, (0,))[0] for cell in self.domain]

    def parts(self, found: Found) -> list[int]:
        """The exact counts of the questions."""
        if self.domain is None:
            return list(found[()][1:])
        return [int(one) for one in self.matrix @ np.array(self.histogram(found), dtype=np.int64)]

    def release(self, found: Found, source: Source) -> Released:
        counts = self.parts(found)
        database: Sequence[int] = ()
        if self.method == "one_by_one":
            draws = self.noise.draws(len(counts), source)
            noisy: list[Any] = [count + draw for count, draw in zip(counts, draws, strict=True)]
            reach = self.noise.reach(together=len(counts))
        else:
            noisy, reach, database = self._synthetic(found, counts, source)
        bars = tuple(
            Bar(f"question {at + 1}", json_number(value - reach, -1), json_number(value + reach, 1))
            for at, value in enumerate(map(Fraction, noisy))
        )
        if self._asked.give == "database":
            return Released({"answers": noisy, "database": self._records(database)}, bars)
        return Released(noisy, bars)

    def _records(self, histogram: Sequence[int]) -> list[dict[str, Any]]:
        """The records of a small database, each with the columns that the questions mention."""
        assert self.domain is not None
        return [
            {one.name: one.show(value) for one, value in zip(self.stored, cell, strict=True)}
            for cell, count in zip(self.domain, histogram, strict=True)
            for _ in range(count)
        ]

    def _synthetic(
        self, found: Found, counts: list[int], source: Source
    ) -> tuple[list[int], int, Sequence[int]]:
        """Answers from a synthetic distribution, what none of their errors passes, a database."""
        database: Sequence[int] = ()
        histogram, matrix = self.histogram(found), self.matrix
        noisy = sum(histogram) + self.total_noise.draws(1, source)[0]
        total = min(max(1, noisy), _LARGEST_TOTAL)
        single = self.share / self.facts.cap
        if self.method == "weights":
            fractions = multiplicative_weights(
                histogram,
                matrix,
                rounds=self.rounds,
                epsilon=single,
                relation=Relation.ADD_REMOVE,
                public_size=total,
                source=source,
            ).value.answers(matrix)
        else:
            made = small_database(
                histogram,
                matrix,
                size=_SMALL_SIZE,
                epsilon=single,
                relation=Relation.ADD_REMOVE,
                public_size=total,
                source=source,
            ).value
            fractions, database = made.answers(matrix), made.histogram
        answers = [round(float(one) * total) for one in fractions]
        largest = max(abs(answer - count) for answer, count in zip(answers, counts, strict=True))
        # One-sided: the true largest error passes this with probability at most the risk.
        bound = largest + self.error_noise.draws(1, source)[0]
        return answers, max(0, bound + self.error_noise.reach(risk=2 * _RISK)), database


def _domain(stored: Sequence[StoredColumn], method: str) -> list[tuple[int, ...]] | None:
    """All cells of the columns mentioned, or None where there are too many for it."""
    values = []
    for one in stored:
        if one.labels is not None:
            values.append(range(len(one.labels)))
        elif one.grid is not None and one.grid.high - one.grid.low < LARGEST_DOMAIN:
            values.append(range(one.grid.low, one.grid.high + 1))
        else:
            values.append(range(LARGEST_DOMAIN + 1))
    size = math.prod(len(one) for one in values)
    if size <= LARGEST_DOMAIN:
        return list(product(*values))
    if method in {"weights", "small_database"}:
        names = ", ".join(one.name for one in stored)
        raise InvalidValue(
            "method", method, f"one_by_one: {names} have more than {LARGEST_DOMAIN} values together"
        )
    return None


@final
class ThresholdStreamPlan(QueryPlan):
    """Counts against a threshold, one after another: sparse vector (Dwork and Roth 2014).

    All counts grow when a unit comes, each by at most k: monotone queries of sensitivity k.
    """

    loss: Loss

    def __init__(self, query: ThresholdStream, facts: Facts) -> None:
        super().__init__(query, facts)
        self._asked = query
        questions = [facts.lowering().condition(one) for one in query.questions]
        self.aggregation = self.aggregate(sums=[truth_number(one) for one in questions])
        step = step_budget(runs=query.answers, epsilon=query.epsilon).epsilon
        self.loss = query.answers * PureDP(step)
        scale = 2 * query.answers * facts.cap / query.epsilon
        self._each = 1 - (1 - CONFIDENCE) / len(query.questions)
        reach = 2 * math.ceil(float(scale) * math.log(2 / (1 - self._each))) + 1
        self.expected = (ExpectedError("rows from the threshold, all answers", float(reach)),)

    def parts(self, found: Found) -> list[int]:
        """The exact counts."""
        return list(found[()][1:])

    def release(self, found: Found, source: Source) -> Released:
        run = SparseVector(
            threshold=self._asked.threshold,
            answers=self._asked.answers,
            epsilon=self._asked.epsilon,
            sensitivity=self.facts.cap,
            monotone=True,
            granularity=1,
            source=source,
        )
        assert run.loss == self.loss
        values: list[bool | None] = []
        bars: list[Bar] = []
        for at, count in enumerate(self.parts(found)):
            label = f"question {at + 1}"
            if run.halted:
                values.append(None)
                bars.append(Bar(label, None, None))
                continue
            answer = run.ask(count)
            low, high = answer.interval(confidence=self._each)
            values.append(answer.value)
            bars.append(
                Bar(
                    label,
                    math.floor(low) if math.isfinite(low) else None,
                    math.ceil(high) if math.isfinite(high) else None,
                )
            )
        return Released(values, tuple(bars))


PLANS = {Workload: WorkloadPlan, ThresholdStream: ThresholdStreamPlan}
