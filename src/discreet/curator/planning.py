"""What every plan of a query has: its loss and error bars, known before any data are touched."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, final

from discreet.curator._queries import Query
from discreet.curator.expressions import Column
from discreet.curator.few_draws import one_laplace
from discreet.curator.grids import StoredColumn, stored_columns
from discreet.curator.lowering import Lowering
from discreet.curator.shapes import SHAPES
from discreet.data import Schema
from discreet.errors import InvalidValue
from discreet.mechanisms import LaplaceNoise, each_of, laplace_quantile, round_outward
from discreet.privacy import Loss, Relation
from discreet.randomness import Source, discrete_laplace, exp_negative

if TYPE_CHECKING:
    from discreet.curator.engine import Engine

__all__ = [
    "CONFIDENCE",
    "Bar",
    "ExpectedError",
    "Facts",
    "Noise",
    "Plan",
    "Released",
    "shown",
]

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
        """The facts for one query; its cap must not exceed the schema's."""
        most = schema.rows_per_person or 1
        asked = query.rows_per_person
        if asked is not None and asked > most:
            raise InvalidValue("rows_per_person", asked, f"at most {most}, the cap of the schema")
        return cls(schema, stored_columns(schema), asked or most)

    def lowering(self) -> Lowering:
        """A lowering that computes grids only, to check expressions and learn their range."""
        return Lowering(self.columns, SHAPES)


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


class Plan(ABC):
    """How one query is answered; made from public facts, and the same for all data."""

    loss: Loss
    expected: tuple[ExpectedError, ...]

    def __init__(self, query: Query, facts: Facts) -> None:
        self.query = query
        self.facts = facts
        if query.where is not None:
            facts.lowering().condition(query.where)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the query mentions."""
        return tuple(dict.fromkeys(mentioned(self.query)))

    @property
    def about(self) -> str:
        """Of what the answer and its error bars speak: rows may have been dropped."""
        asked = " that satisfy the condition" if self.query.where is not None else ""
        if self.cap is None:
            return f"of all rows{asked}"
        return (
            f"of the rows kept: at most {self.cap} of each person's rows{asked}, chosen at random"
        )

    @property
    def cap(self) -> int | None:
        """How many rows of each person the query uses; None for all."""
        return None if self.facts.schema.person is None else self.facts.cap

    def check(self, engine: Engine) -> None:
        """Raise ``NotApplicable`` if the engine cannot run the query; no data are read."""
        query = self.query
        engine.compiled(query.question, self.build, where=query.where, cap=self.cap)

    def rows(self, engine: Engine) -> list[tuple[Any, ...]]:
        """The exact aggregates, before any noise; private."""
        query = self.query
        return engine.ask(query.question, self.build, where=query.where, cap=self.cap)

    @abstractmethod
    def build(self, table: Any, lower: Callable[[Any], Lowering]) -> Any:
        """The aggregates to compute on the rows of a table; ``lower`` makes its lowering."""

    @abstractmethod
    def release(self, rows: Sequence[tuple[Any, ...]], source: Source) -> Released:
        """Add the noise to the aggregates; nothing else of the data leaves."""


def mentioned(node: Any) -> Iterator[str]:
    """The names of the columns in a query or an expression, in their order."""
    if isinstance(node, Column):
        yield node.name
    elif isinstance(node, tuple):
        for one in node:
            yield from mentioned(one)
    elif is_dataclass(node) and not isinstance(node, type):
        for one in fields(node):
            value = getattr(node, one.name)
            if one.name == "column":
                yield value
            else:
                yield from mentioned(value)


def shown(exact: Fraction, direction: float = 0.0) -> float | int:
    """An exact number as JSON has it: whole, or the nearest double (outward for an end)."""
    if exact.denominator == 1 and abs(exact.numerator) < 2**53:
        return exact.numerator
    if direction:
        return round_outward(exact, math.inf * direction)
    return float(exact)
