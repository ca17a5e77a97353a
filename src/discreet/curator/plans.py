"""From a query and a schema to a plan: what it costs and how far off it will be, beforehand.

Nothing here looks at data. A query that cannot be answered is refused here, by its own text and the
schema alone, before anything is charged.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, final

from discreet.curator._queries import (
    Count,
    CountPersons,
    GroupBy,
    Histogram,
    Mean,
    Quantile,
    Query,
    Sum,
    ThresholdStream,
    TopK,
    Variance,
    Workload,
)
from discreet.curator.grouped import GroupByPlan, TopKPlan
from discreet.curator.histograms import HistogramPlan
from discreet.curator.ordered import QuantilePlan, ThresholdStreamPlan
from discreet.curator.planning import ExpectedError, Facts, Plan
from discreet.curator.sizes import check_size
from discreet.curator.statistics import CountPersonsPlan, CountPlan, MeanPlan, SumPlan, VariancePlan
from discreet.curator.workloads import WorkloadPlan
from discreet.data import Schema
from discreet.errors import InvalidValue
from discreet.privacy import Loss, to_json

__all__ = ["Quote", "make_plan", "quote"]


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


_PLANS: dict[type[Query], Any] = {
    Count: CountPlan,
    CountPersons: CountPersonsPlan,
    Sum: SumPlan,
    Mean: MeanPlan,
    Variance: VariancePlan,
    Histogram: HistogramPlan,
    Quantile: QuantilePlan,
    GroupBy: GroupByPlan,
    TopK: TopKPlan,
    ThresholdStream: ThresholdStreamPlan,
    Workload: WorkloadPlan,
}


def quote(query: Query, schema: Schema) -> Quote:
    """What a query costs; raises what asking it would raise, the budget aside.

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


def make_plan(query: Query, schema: Schema) -> Plan:
    """The plan of a query; those of recent queries are remembered."""
    if not isinstance(query, Query):
        raise InvalidValue("query", type(query).__name__, "a query of discreet.curator")
    if not isinstance(schema, Schema):
        raise InvalidValue("schema", type(schema).__name__, "a Schema")
    return _planned(query, schema)


@lru_cache(maxsize=256)  # a plan of many groups has a megabyte
def _planned(query: Query, schema: Schema) -> Plan:
    check_size(query)
    plan: Plan = _PLANS[type(query)](query, Facts.of(schema, query))
    return plan
