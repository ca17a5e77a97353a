"""Plans of queries: loss, error bars and one aggregation, known before any data are touched."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, final

from discreet._confidence import rows_meant
from discreet._html import html_table
from discreet._rounding import at_most
from discreet.curator._queries import Query
from discreet.data import Schema
from discreet.engines import (
    Aggregation,
    Field,
    Lowered,
    Lowering,
    StoredColumn,
    Table,
    Term,
    stored_columns,
)
from discreet.errors import InvalidValue
from discreet.mechanisms import LaplaceNoise, each_of, laplace_quantile, round_outward
from discreet.privacy import Loss, Relation, to_json
from discreet.randomness import Source, bernoulli_exp, discrete_laplace, exp_negative

Found = Mapping[tuple[Any, ...], tuple[int, ...]]

CONFIDENCE = 0.95
_BULK = 2**50
_FEW = 400
_BITS = 512
_GUESSED = (Fraction(1, 100), Fraction(2**40))


@final
@dataclass(frozen=True)
class ExpectedError:
    """How far off an answer will be; ``half_width`` None where public facts do not tell."""

    label: str
    half_width: float | None
    confidence: float = CONFIDENCE

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "label": self.label,
            "half_width": self.half_width,
            "confidence": self.confidence,
        }


@final
@dataclass(frozen=True)
class Bar:
    """Error bars of one cell; those of one answer hold together at the stated confidence."""

    label: str
    low: float | int | None
    high: float | int | None
    confidence: float = CONFIDENCE

    def to_json(self) -> dict[str, Any]:
        """Plain values; an end that is not known is null."""
        return {
            "label": self.label,
            "low": self.low,
            "high": self.high,
            "confidence": self.confidence,
        }


@final
@dataclass(frozen=True)
class Released:
    """What leaves a plan: plain JSON values, after the noise."""

    value: Any
    bars: tuple[Bar, ...]


@final
@dataclass(frozen=True)
class Facts:
    """Everything public that a plan may look at."""

    schema: Schema
    columns: Mapping[str, StoredColumn]
    cap: int

    @classmethod
    def of(cls, schema: Schema, query: Query) -> Facts:
        """Return the facts for one query; its cap must not exceed the schema's."""
        most = schema.rows_per_person or 1
        asked = query.rows_per_person
        if asked is not None and asked > most:
            raise InvalidValue("rows_per_person", asked, f"at most {most}, the cap of the schema")
        return cls(schema, stored_columns(schema), asked or most)

    def lowering(self) -> Lowering:
        """What turns the expressions of the query into terms with a known range."""
        return Lowering(self.columns)


@final
class Noise:
    """Discrete Laplace noise on integers of L1 sensitivity ``sensitivity``; epsilon-DP."""

    def __init__(self, *, sensitivity: int, epsilon: Fraction) -> None:
        self._noise = LaplaceNoise.read(
            sensitivity=max(1, sensitivity),
            epsilon=epsilon,
            scale=None,
            relation=Relation.ADD_REMOVE,
        )

    @property
    def loss(self) -> Loss:
        """What the noisy integers cost, all of them together."""
        return self._noise.loss

    @property
    def scale(self) -> Fraction:
        """The scale that is drawn with, exactly."""
        return self._noise.exact_scale

    def draws(self, count: int, source: Source) -> list[int]:
        """Independent draws."""
        # In bulk a table is built first, which pays from some hundred draws.
        if count > _FEW and self._noise.scale < _BULK:
            return [int(one) for one in discrete_laplace(self.scale, count, source=source)]
        return [one_laplace(self.scale, source) for _ in range(count)]

    def reach(self, *, together: int = 1, risk: float = 1 - CONFIDENCE) -> int:
        """What none of ``together`` draws passes, except with probability ``risk``."""
        return _reach(self.scale, each_of(together, risk))


@lru_cache(maxsize=4096)
def _reach(scale: Fraction, risk: float) -> int:
    """What :func:`~discreet.mechanisms.laplace_quantile` finds, from a good first guess.

    P(|X| > t) = 2 r^(t+1) / (1 + r), r = e^(-1/scale), is compared exactly; doubles only guess.
    """
    if not _GUESSED[0] < scale < _GUESSED[1]:
        return laplace_quantile(scale)(risk)
    one = 1 << _BITS
    limit = Fraction(risk) * (one + exp_negative(1 / scale, _BITS)[0])

    def covers(t: int) -> bool:
        return 2 * exp_negative((t + 1) / scale, _BITS)[1] <= limit

    wide = float(scale)
    guess = max(0, math.ceil(wide * math.log(2.0 / (risk * (1.0 + math.exp(-1.0 / wide))))) - 1)
    while not covers(guess):
        guess += 1
    while guess > 0 and covers(guess - 1):
        guess -= 1
    return guess


class QueryPlan(ABC):
    """How one query is answered; made from public facts, and the same for all data."""

    loss: Loss
    expected: tuple[ExpectedError, ...]
    aggregation: Aggregation

    def __init__(self, query: Query, facts: Facts) -> None:
        self.query = query
        self.facts = facts
        self.where = None if query.where is None else facts.lowering().condition(query.where)
        self.aggregation = self.aggregate()

    def aggregate(
        self,
        keys: Sequence[Term] = (),
        sums: Sequence[Lowered] = (),
        among: Term | None = None,
    ) -> Aggregation:
        """What to compute on the rows that the query uses."""
        return Aggregation(tuple(keys), tuple(sums), self.where, self.cap, among)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the query mentions."""
        return tuple(dict.fromkeys(find_names(self.query)))

    @property
    def about(self) -> str:
        """Of what the answer and its error bars speak: rows may have been dropped."""
        asked = " that satisfy the condition" if self.query.where is not None else ""
        return rows_meant(self.cap, asked)

    @property
    def cap(self) -> int | None:
        """How many rows of each person the query uses; None for all."""
        return None if self.facts.schema.person is None else self.facts.cap

    def check(self, table: Table) -> None:
        """Raise ``NotApplicable`` if the engine cannot run the query; no data are read."""
        table.check(self.aggregation)

    def rows(self, table: Table) -> Found:
        """The exact aggregates, before any noise; private."""
        return table.aggregate(self.aggregation)

    @abstractmethod
    def release(self, found: Found, source: Source) -> Released:
        """Add the noise to the aggregates; nothing else of the data leaves."""


def find_names(node: Any) -> Iterator[str]:
    """The names of the columns in a query or an expression, in their order."""
    if isinstance(node, Field):
        yield node.name
    elif isinstance(node, tuple):
        for one in node:
            yield from find_names(one)
    elif is_dataclass(node) and not isinstance(node, type):
        for one in fields(node):
            value = getattr(node, one.name)
            if one.name == "column":
                yield value
            else:
                yield from find_names(value)


def json_number(exact: Fraction, direction: float = 0.0) -> float | int:
    """An exact number as JSON has it: whole, or the nearest double (outward for an end)."""
    if exact.denominator == 1 and abs(exact.numerator) < 2**53:
        return exact.numerator
    if direction:
        return round_outward(exact, math.inf * direction)
    return float(exact)


@final
@dataclass(frozen=True)
class Quote:
    """What a query costs and how far off its answer will be; from public facts only."""

    loss: Loss
    epsilon: Fraction
    delta: Fraction
    expected_error: tuple[ExpectedError, ...]
    about: str
    columns: tuple[str, ...]
    answered_before: bool = False

    def _repr_html_(self) -> str:
        rows: list[tuple[str, object]] = [
            ("epsilon", self.epsilon),
            ("delta", self.delta),
            ("about", self.about),
            ("answered before", "yes: it costs nothing more" if self.answered_before else "no"),
        ]
        for one in self.expected_error:
            off = "not known" if one.half_width is None else at_most(one.half_width, digits=6)
            rows.append((f"off by at most: {one.label}", f"{off} with {one.confidence:.0%}"))
        return html_table("quote", rows)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "loss": to_json(self.loss),
            "epsilon": str(self.epsilon),
            "delta": str(self.delta),
            "expected_error": [error.to_json() for error in self.expected_error],
            "about": self.about,
            "columns": list(self.columns),
            "answered_before": self.answered_before,
        }


def quote(query: Query, schema: Schema) -> Quote:
    """What a query costs; raises what asking it would raise, the budget aside.

    >>> from discreet.curator import Count
    >>> from discreet.data import Integer
    >>> cost = quote(Count(epsilon="1/10"), Schema({"age": Integer(0, 120)}))
    >>> cost.epsilon, cost.expected_error[0].half_width
    (Fraction(1, 10), 30)
    """
    plan = make_plan(query, schema)
    return Quote(
        loss=plan.loss,
        epsilon=query.epsilon,
        delta=getattr(query, "delta", None) or Fraction(0),
        expected_error=plan.expected,
        about=plan.about,
        columns=plan.columns,
    )


def make_plan(query: Query, schema: Schema) -> QueryPlan:
    """The plan of a query; those of recent queries are remembered."""
    if not isinstance(query, Query):
        raise InvalidValue("query", type(query).__name__, "a query of discreet.curator")
    if not isinstance(schema, Schema):
        raise InvalidValue("schema", type(schema).__name__, "a Schema")
    return _make_plan(query, schema)


@lru_cache(maxsize=256)  # a plan of many groups has a megabyte
def _make_plan(query: Query, schema: Schema) -> QueryPlan:
    plan: QueryPlan = _plans()[type(query)](query, Facts.of(schema, query))
    return plan


def _plans() -> Mapping[type[Query], Any]:
    from discreet.curator._groups import PLANS as GROUPS
    from discreet.curator._numbers import PLANS as NUMBERS
    from discreet.curator._workload import PLANS as WORKLOADS

    return {**NUMBERS, **GROUPS, **WORKLOADS}


def one_laplace(scale: Fraction, source: Source) -> int:
    """Return one integer with P(x) proportional to exp(-|x| / scale), exactly.

    :func:`discreet.randomness.discrete_laplace` tabulates a scale, which pays for many draws; a
    curator draws once and has another scale in nearly every query. This is the sampler of Canonne,
    Kamath and Steinke 2020 (algorithm 2). For a scale t / s in lowest terms: U uniform on 0 .. t-1,
    accepted with probability exp(-U/t); V the number of heads of coins of probability 1/e before
    the first tail; X = U + t V is then geometric with P(X) proportional to exp(-X/t), and
    floor(X/s) is so with s/t in place of 1/t. A fair sign, with "minus zero" refused, makes it
    two-sided.

    >>> from discreet.randomness import source
    >>> abs(one_laplace(Fraction(1, 100), source()))  # another value: probability e^-99
    0
    """
    t, s = scale.numerator, scale.denominator
    while True:
        offset = _draw_below(t, source)
        if not bernoulli_exp(Fraction(offset, t), source=source):
            continue
        turns = 0
        while bernoulli_exp(1, source=source):
            turns += 1
        magnitude = (offset + t * turns) // s
        negative = source.bits(1) == 1
        if not (negative and magnitude == 0):
            return -magnitude if negative else magnitude


def _draw_below(bound: int, source: Source) -> int:
    """A uniform integer of 0 .. bound - 1."""
    bits = (bound - 1).bit_length()
    while True:
        drawn = source.bits(bits) if bits else 0
        if drawn < bound:
            return drawn
