"""Queries as OpenAPI describes them; a test holds them to :mod:`discreet.curator.queries`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from discreet.curator.service.expression_models import (
    ConditionModel,
    Exact,
    Form,
    NumberModel,
    Text,
)

__all__ = ["QUERY_MODELS", "QueryModel"]

Cap = Annotated[int, Field(ge=1, le=2**31)]
Questions = Annotated[list[ConditionModel], Field(min_length=1, max_length=1000)]
GroupValue = Text | int | float


class _QueryModel(Form):
    epsilon: Exact
    where: ConditionModel | None = None


class _CappedModel(_QueryModel):
    rows_per_person: Cap | None = None


class CountModel(_CappedModel):
    """How many rows there are."""

    kind: Literal["count"]


class CountPersonsModel(_QueryModel):
    """How many persons have a row, or more rows than a number; no row is left out."""

    kind: Literal["count_persons"]
    more_than: Annotated[int, Field(ge=0, le=2**31)] = 0


class MeasuredModel(_CappedModel):
    """The sum, mean or variance of a number over the rows."""

    kind: Literal["sum", "mean", "variance"]
    of: NumberModel
    lower: Exact | None = None
    upper: Exact | None = None


class HistogramModel(_CappedModel):
    """How many rows lie below the first edge, between edges, and beyond."""

    kind: Literal["histogram"]
    of: NumberModel
    edges: Annotated[list[Exact], Field(min_length=1, max_length=2000)]


class QuantileModel(_CappedModel):
    """The value below which a share of the rows lies."""

    kind: Literal["quantile"]
    of: NumberModel
    share: Exact
    points: Annotated[int, Field(ge=2, le=4096)] = 1024
    lower: Exact | None = None
    upper: Exact | None = None


class GroupByModel(_CappedModel):
    """A statistic for each group: listed groups, all labels, or groups selected privately."""

    kind: Literal["group_by"]
    by: Annotated[list[NumberModel], Field(min_length=1, max_length=8)]
    statistic: Literal["count", "sum", "mean"] = "count"
    of: NumberModel | None = None
    lower: Exact | None = None
    upper: Exact | None = None
    groups: (
        Annotated[
            list[Annotated[list[GroupValue], Field(min_length=1, max_length=8)]],
            Field(min_length=1, max_length=10_000),
        ]
        | None
    ) = None
    delta: Exact | None = None


class TopKModel(_CappedModel):
    """The most frequent values of a column."""

    kind: Literal["top_k"]
    by: NumberModel
    k: Annotated[int, Field(ge=1, le=100)]
    candidates: Annotated[list[GroupValue], Field(min_length=1, max_length=10_000)] | None = None


class ThresholdStreamModel(_CappedModel):
    """Which of a stream of counts pass a threshold; a declared number of them is paid for."""

    kind: Literal["threshold_stream"]
    questions: Questions
    threshold: Annotated[int, Field(ge=-(2**40), le=2**40)]
    answers: Annotated[int, Field(ge=1, le=100)] = 1


class WorkloadModel(_CappedModel):
    """Many counts at once."""

    kind: Literal["workload"]
    questions: Annotated[list[ConditionModel], Field(min_length=1, max_length=2000)]
    method: Literal["auto", "one_by_one", "weights", "small_database"] = "auto"
    rounds: Annotated[int, Field(ge=1, le=200)] | None = None


QUERY_MODELS: tuple[type[_QueryModel], ...] = (
    CountModel,
    CountPersonsModel,
    MeasuredModel,
    HistogramModel,
    QuantileModel,
    GroupByModel,
    TopKModel,
    ThresholdStreamModel,
    WorkloadModel,
)
QueryModel = Annotated[
    CountModel
    | CountPersonsModel
    | MeasuredModel
    | HistogramModel
    | QuantileModel
    | GroupByModel
    | TopKModel
    | ThresholdStreamModel
    | WorkloadModel,
    Field(discriminator="kind"),
]
