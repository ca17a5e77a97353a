"""Schemas, tables and queries that the tests of the curator share."""

import datetime as dt
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from pyarrow import ipc

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
from discreet.curator._dataset import CuratedDataset
from discreet.curator._plan import make_plan
from discreet.data import Boolean, Categorical, Date, Integer, Real, Schema
from discreet.engines import (
    Absolute,
    Add,
    AllOf,
    AnyOf,
    Bucket,
    Case,
    Clip,
    Compare,
    Day,
    Divide,
    Field,
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
from discreet.engines._table import _part_bytes

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

AGE, INCOME, CITY = Field("age"), Field("income"), Field("city")
RATIO = Divide(INCOME, AGE, lower=-10, upper=5000, default=7)
PRODUCT = Multiply(INCOME, INCOME)
DERIVED = If(
    AllOf([Compare(">", INCOME, Multiply(AGE, Value("100.5"))), Not(OneOf("city", ["Oslo"]))]),
    Add(Absolute(Subtract(AGE, Value(60))), Value("1/3")),
    Least(Greatest(RATIO, Value(-3)), Clip(ToNumber("note", 0, 500, 1), 1, 100)),
)
FILTER = AnyOf(
    [
        Compare("<=", AGE, Value("64.5")),
        StartsWith("note", "é'"),
        Compare(">=", Field("day"), Day(dt.date(2020, 7, 1))),
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
        Quantile(of=Field("day"), share="1/2", epsilon=E),
        GroupBy(by=(CITY, Field("member")), epsilon=E),
        GroupBy(by=(Bucket(AGE, 10),), groups=((0,), (40,), (120,)), epsilon=E),
        GroupBy(by=(Field("note"),), groups=(("é'",), ("other",)), epsilon=E),
        GroupBy(by=(CITY,), statistic="sum", of=INCOME, epsilon=E),
        GroupBy(by=(CITY,), statistic="mean", of=AGE, epsilon=E, where=FILTER),
        GroupBy(by=(Field("note"),), delta="1/1000000", epsilon=E),
        GroupBy(by=(Field("day"),), delta="1/1000000", statistic="sum", of=AGE, epsilon=E),
        TopK(by=CITY, k=2, epsilon=E),
        TopK(by=Field("note"), k=1, candidates=("x", "é'", "12.5"), epsilon=E),
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
            questions=[OneOf("city", ["Oslo", "3"]), Compare("==", Field("member"), Value(1))],
            epsilon=E,
            method="weights",
        ),
    ]


def table(rows: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
    """A table in memory from rows of (who, age, income, city, member, day, note)."""
    names = ("who", *COLUMNS)
    return {name: [row[at] for row in rows] for at, name in enumerate(names)}


def dataset(
    rows: Sequence[Sequence[Any]],
    schema: Schema = PERSONS,
    *,
    engine: str = "arrow",
    **more: Any,
) -> CuratedDataset:
    """A dataset of such rows, bounded under a fixed key."""
    return CuratedDataset(
        "people", schema=schema, source=table(rows), key=KEY, threads=1, engine=engine, **more
    )


def exact(query: Query, found: CuratedDataset) -> tuple[Any, Any]:
    """The plan of a query, and its aggregates before the noise."""
    plan = make_plan(query, found.schema)
    return plan, plan.rows(found.engine())


def bounded_rows(found: CuratedDataset, *, capped: bool = False) -> list[Any]:
    """The rows of the bounded table with their ranks; ``capped``: those used without a filter."""
    table = found.engine()
    names = [stored.stored_name for stored in found.columns.values()]
    persons = found.schema.person is not None
    rows = []
    for part in table.map_parts(_part_bytes, [*names, *(["person", "rank"] if persons else [])]):
        read = ipc.open_stream(part).read_all()
        read = read.drop_columns(["person"]) if persons else read
        rows += zip(*(column.to_pylist() for column in read.columns), strict=True)
    return sorted(row for row in rows if not (capped and persons) or row[-1] <= found.cap)


def change(plan: Any, one: Any, other: Any) -> list[tuple[float, float]]:
    """What separates the aggregates of two tables, each L1 distance with what is claimed for it."""
    query, cap = plan.query, plan.facts.cap
    match query:
        case Count() | CountPersons():
            return [(abs(one[()][0] - other[()][0]), plan.noise.loss.sensitivity)]
        case Sum():
            apart = abs(one[()][1] - other[()][1])
            return [(apart, plan.noise.loss.sensitivity)]
        case Mean() | Variance():
            apart = [abs(a - b) for a, b in zip(plan.parts(one), plan.parts(other), strict=True)]
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
