"""Schemas, tables and queries that the tests of the curator share."""

import datetime as dt
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from discreet.curator import (
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
from discreet.curator.dataset import CuratedDataset
from discreet.curator.expressions import (
    Absolute,
    Add,
    All,
    Any_,
    Bucket,
    Case,
    Clip,
    Column,
    Compare,
    Day,
    Divide,
    Greatest,
    If,
    Least,
    Lookup,
    Multiply,
    Not,
    OneOf,
    StartsWith,
    Subtract,
    ToNumber,
    Value,
)
from discreet.curator.plans import make_plan
from discreet.data import Boolean, Categorical, Date, Integer, Real, Schema

KEY = bytes(range(32))
COLUMNS = {
    "age": Integer(0, 120, missing=40),
    "income": Real(-1000.0, 1e6),
    "city": Categorical(["Oslo", "Bergen", "3"], missing="none"),
    "member": Boolean(),
    "day": Date(dt.date(2020, 1, 1), dt.date(2020, 12, 31)),
    "note": Categorical(),
}
PERSONS = Schema(COLUMNS, person="who", rows_per_person=2, expected_rows=100)
ROWS = Schema(COLUMNS, expected_rows=100)

AGE, INCOME, CITY = Column("age"), Column("income"), Column("city")
RATIO = Divide(INCOME, AGE, lower=-10, upper=5000, default=7)
PRODUCT = Multiply(INCOME, INCOME)
DERIVED = If(
    All([Compare(">", INCOME, Multiply(AGE, Value("100.5"))), Not(OneOf("city", ["Oslo"]))]),
    Add(Absolute(Subtract(AGE, Value(60))), Value("1/3")),
    Least(Greatest(RATIO, Value(-3)), Clip(ToNumber("note", 0, 500, 1), 1, 100)),
)
FILTER = Any_(
    [
        Compare("<=", AGE, Value("64.5")),
        StartsWith("note", "é'"),
        Compare(">=", Column("day"), Day(dt.date(2020, 7, 1))),
    ]
)
E = Fraction(1)


def queries() -> list[Query]:
    """One or more of each kind, with filters, derived columns, lowered caps and both group-bys."""
    return [
        Count(epsilon=E),
        Count(epsilon=E, where=FILTER),
        Count(epsilon=E, rows_per_person=1),
        CountPersons(epsilon=E, where=FILTER),
        CountPersons(epsilon=E, more_than=1),
        Sum(of=INCOME, epsilon=E),
        Sum(of=DERIVED, epsilon=E, where=FILTER),
        Sum(of=PRODUCT, epsilon=E, upper=10**9),
        Sum(of=Lookup("city", [Case("Oslo", "1/3"), Case("none", -2)], default=1), epsilon=E),
        Mean(of=INCOME, epsilon=E),
        Mean(of=RATIO, epsilon=E, lower=0, upper=100),
        Variance(of=INCOME, epsilon=E),
        Variance(of=AGE, epsilon=E),
        Histogram(of=AGE, edges=(-5, 18, "64.5", 200), epsilon=E),
        Histogram(of=DERIVED, edges=(0, 1, 2, 50), epsilon=E),
        Quantile(of=INCOME, share="1/4", epsilon=E),
        Quantile(of=Column("day"), share="1/2", epsilon=E),
        GroupBy(by=(CITY, Column("member")), epsilon=E),
        GroupBy(by=(Bucket(AGE, 10),), groups=((0,), (40,), (120,)), epsilon=E),
        GroupBy(by=(Column("note"),), groups=(("é'",), ("other",)), epsilon=E),
        GroupBy(by=(CITY,), statistic="sum", of=INCOME, epsilon=E),
        GroupBy(by=(CITY,), statistic="mean", of=AGE, epsilon=E, where=FILTER),
        GroupBy(by=(Column("note"),), delta="1/1000000", epsilon=E),
        GroupBy(by=(Column("day"),), delta="1/1000000", statistic="sum", of=AGE, epsilon=E),
        TopK(by=CITY, k=2, epsilon=E),
        TopK(by=Column("note"), k=1, candidates=("x", "é'", "12.5"), epsilon=E),
        ThresholdStream(
            questions=[FILTER, Compare(">", AGE, Value(50)), OneOf("city", ["3"])],
            threshold=3,
            epsilon=E,
            answers=2,
        ),
        Sum(of=Value("5/2"), epsilon=E, where=Compare("<", Value(1), Value(2))),
        Mean(of=Value(3), epsilon=E, where=StartsWith("city", "nowhere")),
        GroupBy(by=(Value(1),), groups=((1,),), epsilon=E),
        Histogram(of=Value(1), edges=(0, 1), epsilon=E),
        Quantile(of=Value(1), share="1/2", epsilon=E),
        ThresholdStream(questions=[OneOf("city", ["nowhere"])], threshold=3, epsilon=E),
        Workload(questions=[OneOf("city", ["nowhere"])], epsilon=E),
        Workload(questions=[Compare("<", Value(2), Value(1))], epsilon=E),
        Workload(questions=[FILTER, Compare("<", AGE, Value(50))], epsilon=E),
        Workload(
            questions=[OneOf("city", ["Oslo", "3"]), Compare("==", Column("member"), Value(1))],
            epsilon=E,
            method="weights",
        ),
    ]


def table(rows: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
    """A table in memory from rows of (who, age, income, city, member, day, note)."""
    names = ("who", *COLUMNS)
    return {name: [row[at] for row in rows] for at, name in enumerate(names)}


def dataset(rows: Sequence[Sequence[Any]], schema: Schema = PERSONS, **more: Any) -> CuratedDataset:
    """A dataset of such rows, bounded under a fixed key."""
    return CuratedDataset("people", schema=schema, source=table(rows), key=KEY, threads=1, **more)


# Texts of compiled questions: they depend on the schema and the engine, not on the data.
COMPILED: dict[tuple[str, str], Any] = {}


def exact(query: Query, found: CuratedDataset) -> tuple[Any, Any]:
    """The plan of a query, and its aggregates before the noise."""
    plan = make_plan(query, found.schema)
    engine = found.engine()
    if found.engine_name == "duckdb":
        known = COMPILED.setdefault(("duckdb", found.schema.content_hash), engine._compiled)
        engine._compiled = known
    return plan, plan.rows(found.engine())


def change(plan: Any, one: Any, other: Any) -> list[tuple[float, float]]:
    """What separates the aggregates of two tables, each L1 distance with what is claimed for it."""
    query, cap = plan.query, plan.facts.cap
    match query:
        case Count() | CountPersons():
            return [(abs(one[0][0] - other[0][0]), plan.noise.loss.sensitivity)]
        case Sum():
            apart = abs(plan.total(one[0]) - plan.total(other[0]))
            return [(apart, plan.noise.loss.sensitivity)]
        case Mean() | Variance():
            apart = [
                abs(a - b) for a, b in zip(plan.parts(one[0]), plan.parts(other[0]), strict=True)
            ]
            return list(zip(apart, [loss.sensitivity for loss in losses(plan)], strict=True))
        case GroupBy():
            left, right = plan.parts(one), plan.parts(other)
            groups = {*left, *right}
            pairs = [(left.get(g, (0, 0)), right.get(g, (0, 0))) for g in groups]
            counts = sum(abs(a[0] - b[0]) for a, b in pairs)
            totals = sum(abs(a[1] - b[1]) for a, b in pairs)
            return [(counts, cap), (totals, cap * plan.half)]
        case Quantile():
            apart = abs(plan.scores(one) - plan.scores(other)).max()
            return [(apart, plan.sensitivity)]
        case TopK() | ThresholdStream():
            moved = [a - b for a, b in zip(plan.parts(one), plan.parts(other), strict=True)]
            assert all(step >= 0 for step in moved) or all(step <= 0 for step in moved)
            return [(max(map(abs, moved)), cap)]
        case Workload():
            apart = sum(abs(a - b) for a, b in zip(plan.parts(one), plan.parts(other), strict=True))
            return [(apart, plan.noise.loss.sensitivity)]
        case Histogram():
            apart = sum(abs(a - b) for a, b in zip(plan.parts(one), plan.parts(other), strict=True))
            return [(apart, plan.noise.loss.sensitivity)]
    raise AssertionError(query)


def losses(plan: Any) -> list[Any]:
    """The losses of the noises of a mean or a variance, in the order of its parts."""
    noises = [plan.count_noise, plan.sum_noise]
    if isinstance(plan.query, Variance):
        noises.append(plan.square_noise)
    return [noise.loss for noise in noises]
