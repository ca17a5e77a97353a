"""The questions that a curator answers: small frozen objects, the same in Python and in JSON.

Every query states its privacy parameter exactly. ``where`` keeps some rows. Of those, at most the
schema's cap of each person are used, over the whole query; ``rows_per_person`` lowers that cap for
this query. The *canonical* JSON of a query leaves
out what is at its default, and its digest names the query: the same digest is the same question
and gets the same answer.

>>> from discreet.engines import Compare, Field, Value
>>> query = Count(epsilon="1/10", where=Compare("<", Field("age"), Value(30)))
>>> query_from_json(query.to_json()) == query
True
>>> query_from_json({"kind": "count", "epsilon": 1, "sql": "drop"})
Traceback (most recent call last):
discreet.errors.InvalidValue: sql = 'drop': expected only kind, epsilon, where, rows_per_person
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, ClassVar, cast, final

from discreet._forms import (
    Form,
    choice,
    exact,
    form_of,
    integer,
    optional,
    row_of,
    scalar,
    text,
)
from discreet.engines import (
    Condition,
    Number,
    condition,
    number,
)
from discreet.errors import InvalidValue

_epsilon = exact(above=0, at_most=1_000_000)
_delta = optional(exact(above=0, below=1))
_filter = optional(condition)
_cap = optional(integer(at_least=1, at_most=2**31))
_bound = optional(exact())


class Query(Form):
    """Base of all queries; ``epsilon`` is exact."""

    key: ClassVar[str] = "kind"
    epsilon: Fraction
    where: Condition | None
    rows_per_person: int | None = None

    @cached_property
    def canonical(self) -> str:
        """The canonical JSON text."""
        return json.dumps(self.to_json(), sort_keys=True, ensure_ascii=True, separators=(",", ":"))

    def digest(self) -> str:
        """The SHA-256 of the canonical text, in hexadecimal."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        return hashlib.sha256(self.canonical.encode()).hexdigest()

    @cached_property
    def question(self) -> str:
        """The canonical text without the privacy parameters: what an engine has to compute."""
        document = {**self.to_json(), "epsilon": "", "delta": ""}
        return json.dumps(document, sort_keys=True, separators=(",", ":"))


@final
@dataclass(frozen=True)
class Count(Query):
    """How many rows there are."""

    tag: ClassVar[str] = "count"
    epsilon: Annotated[Fraction, _epsilon]
    where: Annotated[Condition | None, _filter] = None
    rows_per_person: Annotated[int | None, _cap] = None


@final
@dataclass(frozen=True)
class CountPersons(Query):
    """How many persons have more than ``more_than`` rows that satisfy ``where``.

    A person counts once and no row is left out, so the noise is that of one person, whatever the
    cap. With the cap as ``more_than`` it tells of how many persons other queries drop rows.
    """

    tag: ClassVar[str] = "count_persons"
    epsilon: Annotated[Fraction, _epsilon]
    more_than: Annotated[int, integer(at_least=0, at_most=2**31)] = 0
    where: Annotated[Condition | None, _filter] = None


@dataclass(frozen=True)
class _Measured(Query):
    """A statistic of one number per row; ``lower`` and ``upper`` cut it, in its own unit."""

    of: Annotated[Number, number]
    epsilon: Annotated[Fraction, _epsilon]
    lower: Annotated[Fraction | None, _bound] = None
    upper: Annotated[Fraction | None, _bound] = None
    where: Annotated[Condition | None, _filter] = None
    rows_per_person: Annotated[int | None, _cap] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lower is not None and self.upper is not None and not self.lower < self.upper:
            raise InvalidValue("upper", str(self.upper), f"a number above lower = {self.lower}")


@final
@dataclass(frozen=True)
class Sum(_Measured):
    """The sum of a number over the rows."""

    tag: ClassVar[str] = "sum"


@final
@dataclass(frozen=True)
class Mean(_Measured):
    """The mean of a number over the rows."""

    tag: ClassVar[str] = "mean"


@final
@dataclass(frozen=True)
class Variance(_Measured):
    """The variance of a number over the rows (divided by their number)."""

    tag: ClassVar[str] = "variance"


@final
@dataclass(frozen=True)
class Histogram(Query):
    """How many rows lie below the first edge, between edges (the left one included), and beyond."""

    tag: ClassVar[str] = "histogram"
    of: Annotated[Number, number]
    edges: Annotated[tuple[Fraction, ...], row_of(exact(), most=2000)]
    epsilon: Annotated[Fraction, _epsilon]
    where: Annotated[Condition | None, _filter] = None
    rows_per_person: Annotated[int | None, _cap] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _increasing("edges", self.edges)


@final
@dataclass(frozen=True)
class Quantile(Query):
    """The value below which a ``share`` of the rows lies, among evenly spaced ``points``."""

    tag: ClassVar[str] = "quantile"
    of: Annotated[Number, number]
    share: Annotated[Fraction, exact(above=0, below=1)]
    epsilon: Annotated[Fraction, _epsilon]
    points: Annotated[int, integer(at_least=2, at_most=4096)] = 1024
    lower: Annotated[Fraction | None, _bound] = None
    upper: Annotated[Fraction | None, _bound] = None
    where: Annotated[Condition | None, _filter] = None
    rows_per_person: Annotated[int | None, _cap] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.share.denominator > 1000:
            raise InvalidValue("share", str(self.share), "a denominator of at most 1000")
        if self.lower is not None and self.upper is not None and not self.lower < self.upper:
            raise InvalidValue("upper", str(self.upper), f"a number above lower = {self.lower}")


def _group_value(argument: str, value: Any) -> str | Fraction:
    if isinstance(value, str):
        return cast("str", text.check(argument, value))
    number_ = cast("Fraction", exact().check(argument, value))
    if Fraction(repr(float(number_))) != number_:
        raise InvalidValue(argument, str(number_), "a number with few decimal digits")
    return number_


def _write_group_value(value: str | Fraction) -> Any:
    if isinstance(value, str):
        return value
    return value.numerator if value.denominator == 1 else float(value)


_key = scalar(
    _group_value, {"anyOf": [text.schema({}), {"type": "number"}]}, write=_write_group_value
)
_groups = optional(row_of(row_of(_key, most=8), most=10_000))
_candidates = optional(row_of(_key, most=10_000))


@final
@dataclass(frozen=True)
class GroupBy(Query):
    """A statistic for each group of rows.

    Groups are public: those listed in ``groups``, or all labels of the ``by`` columns. With
    ``delta`` they are selected privately instead: groups whose noisy number of rows passes a
    threshold that a single person alone passes with probability at most ``delta``.
    """

    tag: ClassVar[str] = "group_by"
    by: Annotated[tuple[Number, ...], row_of(number, most=8)]
    epsilon: Annotated[Fraction, _epsilon]
    statistic: Annotated[str, choice("count", "sum", "mean")] = "count"
    of: Annotated[Number | None, optional(number)] = None
    lower: Annotated[Fraction | None, _bound] = None
    upper: Annotated[Fraction | None, _bound] = None
    groups: Annotated[tuple[tuple[str | Fraction, ...], ...] | None, _groups] = None
    delta: Annotated[Fraction | None, _delta] = None
    where: Annotated[Condition | None, _filter] = None
    rows_per_person: Annotated[int | None, _cap] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.of is None) != (self.statistic == "count"):
            raise InvalidValue("of", None if self.of is None else "a number", "none for a count")
        if self.of is None and (self.lower is not None or self.upper is not None):
            raise InvalidValue("lower", "a bound", "none for a count")
        if self.groups is not None:
            if self.delta is not None:
                raise InvalidValue("delta", str(self.delta), "none where groups are listed")
            if any(len(group) != len(self.by) for group in self.groups):
                raise InvalidValue("groups", "a group of another length", "a value for each of by")
            if len(set(self.groups)) != len(self.groups):
                raise InvalidValue("groups", "a group twice", "distinct groups")


@final
@dataclass(frozen=True)
class TopK(Query):
    """The ``k`` most frequent values of a column, most frequent first, without their counts."""

    tag: ClassVar[str] = "top_k"
    by: Annotated[Number, number]
    k: Annotated[int, integer(at_least=1, at_most=100)]
    epsilon: Annotated[Fraction, _epsilon]
    candidates: Annotated[tuple[str | Fraction, ...] | None, _candidates] = None
    where: Annotated[Condition | None, _filter] = None
    rows_per_person: Annotated[int | None, _cap] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.candidates is not None and len(set(self.candidates)) != len(self.candidates):
            raise InvalidValue("candidates", "a value twice", "distinct values")


@final
@dataclass(frozen=True)
class ThresholdStream(Query):
    """Which of a stream of counts pass a ``threshold``; the first ``answers`` that do are paid for.

    Counts of rows that satisfy each of ``questions`` are compared one after another, with noise
    (sparse vector); after ``answers`` yeses the stream ends and later questions get no answer.
    """

    tag: ClassVar[str] = "threshold_stream"
    questions: Annotated[tuple[Condition, ...], row_of(condition, most=1000)]
    threshold: Annotated[int, integer(at_least=-(2**40), at_most=2**40)]
    epsilon: Annotated[Fraction, _epsilon]
    answers: Annotated[int, integer(at_least=1, at_most=100)] = 1
    where: Annotated[Condition | None, _filter] = None
    rows_per_person: Annotated[int | None, _cap] = None


@final
@dataclass(frozen=True)
class Workload(Query):
    """Many counts at once: how many rows satisfy each of ``questions``.

    ``method`` is ``"one_by_one"`` (noise on every count), ``"weights"`` (multiplicative weights
    over the domain of the columns that the questions mention), ``"small_database"`` or
    ``"auto"``, which chooses by public facts. ``give="database"`` releases the small database
    beside its answers, at the same price: any other question about these columns is then free.
    """

    tag: ClassVar[str] = "workload"
    questions: Annotated[tuple[Condition, ...], row_of(condition, most=2000)]
    epsilon: Annotated[Fraction, _epsilon]
    method: Annotated[str, choice("auto", "one_by_one", "weights", "small_database")] = "auto"
    rounds: Annotated[int | None, optional(integer(at_least=1, at_most=200))] = None
    give: Annotated[str, choice("answers", "database")] = "answers"
    where: Annotated[Condition | None, _filter] = None
    rows_per_person: Annotated[int | None, _cap] = None


QUERIES: dict[str, type[Form]] = {
    one.tag: one
    for one in (
        Count,
        CountPersons,
        Sum,
        Mean,
        Variance,
        Histogram,
        Quantile,
        GroupBy,
        TopK,
        ThresholdStream,
        Workload,
    )
}


_query = form_of(Query, lambda: QUERIES)


def query_from_json(document: Mapping[str, Any]) -> Query:
    """Read a query, strictly: what is unknown or missing is an ``InvalidValue`` that names it."""
    return cast("Query", _query.read("", document, 0))


def describe_queries() -> dict[str, dict[str, Any]]:
    """Return the JSON Schema of ``Query`` and of every form that it refers to, by name."""
    components: dict[str, dict[str, Any]] = {}
    _query.schema(components)
    return components


def _increasing(argument: str, values: tuple[Fraction, ...]) -> None:
    for before, after in pairwise(values):
        if not before < after:
            raise InvalidValue(argument, str(after), f"numbers that increase, above {before}")
