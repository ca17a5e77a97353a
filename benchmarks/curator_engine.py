"""Bounded group-by beside the same query without privacy, and DuckDB beside Spark.

Ten million made-up visits of a million people are written to Parquet. The plain side loads the
file into a table of DuckDB as it is; the private side opens it as a curated dataset: every cell
read by the rules of the schema, numbers put on their grid, the rows of each person put in line.
That happens once and its cost is shown beside. As codes are faster than texts, a third side has all
rows on the same grid, unbounded. Then the same group-bys run in turn, round after round, each with
two threads; the private ones use at most eight rows of a person (two people in three have more)
and include noise, error bars and all. The median ratio to either of the other sides counts. A
query with a filter has a target of its own, as the rows left of each person are counted after it.
Last, a smaller table is bounded and asked on DuckDB and on Spark under the same key, without
filters, and everything must be equal to the bit.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt

from discreet.curator import Count, GroupBy, Query, Sum
from discreet.curator._dataset import CuratedDataset
from discreet.curator._plan import make_plan
from discreet.data import Categorical, Integer, Real, Schema
from discreet.engines import Compare, Field, Value
from discreet.randomness import SystemSource
from harness import Run, Suite, claim, target

TARGET = 1.15
FILTERED_TARGET = 20.0
CAP = 8
REGIONS = [f"region {at}" for at in range(50)]
SCHEMA = Schema(
    {
        "age": Integer(0, 99),
        "spend": Real(0, 1000),
        "region": Categorical(REGIONS),
        "hour": Integer(0, 23),
    },
    person="who",
    rows_per_person=CAP,
)
UNBOUNDED = Schema(SCHEMA.columns)
REGION, SPEND, AGE = Field("region"), Field("spend"), Field("age")
PAIRS: dict[str, tuple[Query, str]] = {
    "count by region": (
        GroupBy(by=(REGION,), epsilon=1),
        "SELECT region, count(*) FROM raw GROUP BY region",
    ),
    "sum by region": (
        GroupBy(by=(REGION,), statistic="sum", of=SPEND, epsilon=1),
        "SELECT region, count(*), sum(spend) FROM raw GROUP BY region",
    ),
    "mean by hour, age < 30": (
        GroupBy(
            by=(Field("hour"),),
            groups=tuple((hour,) for hour in range(24)),
            statistic="mean",
            of=SPEND,
            epsilon=1,
            where=Compare("<", AGE, Value(30)),
        ),
        "SELECT hour, count(*), avg(spend) FROM raw WHERE age < 30 GROUP BY hour",
    ),
}
KEY = bytes(range(32))
SIDES = {
    "plain": "plain DuckDB",
    "on_grid": "all rows, on the grid",
    "private": "bounded, with noise",
}
COLOURS = {"plain": "#999999", "on_grid": "#E69F00", "private": "#0072B2"}


def write_visits(path: Path, *, rows: int, people: int) -> None:
    """Public, made-up rows: the same for the same sizes."""
    with duckdb.connect(config={"threads": 2}) as connection:
        connection.execute(
            f"""
            COPY (
                SELECT
                    CAST(hash(range) % {people} AS BIGINT) AS who,
                    CAST(hash(range + 1e9) % 100 AS BIGINT) AS age,
                    CAST(hash(range + 2e9) % 1000000 AS DOUBLE) / 1000 AS spend,
                    'region ' || CAST(hash(range + 3e9) % 50 AS VARCHAR) AS region,
                    CAST(hash(range + 4e9) % 24 AS BIGINT) AS hour
                FROM range({rows})
            ) TO '{path}' (FORMAT parquet)
            """
        )


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def compare(path: Path, *, rounds: int) -> dict[str, Any]:
    """Open both sides, then run every pair in turn."""
    plain = duckdb.connect(config={"threads": 2})
    plain_opening = timed(
        lambda: plain.execute(f"CREATE TABLE raw AS SELECT * FROM read_parquet('{path}')")
    )
    curated = CuratedDataset("visits", schema=SCHEMA, source=path, threads=2)
    private_opening = timed(curated.prepare)
    everybody = CuratedDataset("all", schema=UNBOUNDED, source=path, threads=2)
    unbounded_opening = timed(everybody.prepare)
    engine, unbounded = curated.engine(), everybody.engine()
    (rows,) = plain.execute("SELECT count(*) FROM raw").fetchall()[0]
    over = plain.execute(
        f"SELECT avg(CAST(n > {CAP} AS INTEGER)) FROM (SELECT count(*) AS n FROM raw GROUP BY who)"
    ).fetchall()[0][0]
    kept = make_plan(Count(epsilon=1), SCHEMA).rows(engine)[()][0]
    pairs = {}
    for name, (query, sql) in PAIRS.items():
        plan = make_plan(query, SCHEMA)

        def private(plan: Any = plan) -> object:
            return plan.release(plan.rows(engine), SystemSource())

        def without(sql: str = sql) -> object:
            return plain.execute(sql).fetchall()

        def on_grid(query: Query = query) -> object:
            return make_plan(query, UNBOUNDED).rows(unbounded)

        sides = (private, without, on_grid)
        for side in sides:
            side()
        times = [[timed(side) for side in sides] for _ in range(rounds)]
        pairs[name] = {
            "private_seconds": statistics.median(row[0] for row in times),
            "plain_seconds": statistics.median(row[1] for row in times),
            "on_grid_seconds": statistics.median(row[2] for row in times),
            "ratio": statistics.median(row[0] / row[1] for row in times),
            "ratio_to_grid": statistics.median(row[0] / row[2] for row in times),
        }
    plain.close()
    curated.close()
    everybody.close()
    return {
        "rows": rows,
        "rows_kept": kept,
        "people_over_the_cap": over,
        "opening_seconds": {
            "plain": plain_opening,
            "on_grid": unbounded_opening,
            "private": private_opening,
        },
        "pairs": pairs,
    }


def identical(path: Path) -> dict[str, bool]:
    """Whether DuckDB and Spark agree to the bit, table and aggregates."""
    duck = CuratedDataset("visits", schema=SCHEMA, source=path, key=KEY, threads=2)
    spark = CuratedDataset("visits", schema=SCHEMA, source=str(path), key=KEY, engine="spark")
    found = {"bounded table": kept_rows(duck) == kept_rows(spark)}
    for query in (*(query for query, _ in PAIRS.values()), Sum(of=SPEND, epsilon=1)):
        plan = make_plan(query, SCHEMA)
        found[query.canonical] = plan.rows(duck.engine()) == plan.rows(spark.engine())
    duck.close()
    spark.close()
    return found


def kept_rows(side: CuratedDataset) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for batch in side.engine().batches():
        rows += zip(*(column.tolist() for column in batch.columns.values()), strict=True)
    return sorted(rows)


def draw(results: dict[str, Any], path: Path) -> None:
    pairs = results["group_by"]["pairs"]
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(10, 3.6), width_ratios=(3, 2), layout="constrained"
    )
    places = range(len(pairs))
    for offset, (side, label) in zip((-0.27, 0.0, 0.27), SIDES.items(), strict=True):
        left.bar(
            [place + offset for place in places],
            [1000 * pair[f"{side}_seconds"] for pair in pairs.values()],
            width=0.25,
            color=COLOURS[side],
            label=label,
        )
    for place, pair in zip(places, pairs.values(), strict=True):
        top = 1000 * max(pair["on_grid_seconds"], pair["private_seconds"])
        ratios = f"{pair['ratio']:.2f} / {pair['ratio_to_grid']:.2f}"
        left.text(place + 0.14, top, ratios, ha="center", va="bottom", fontsize=9)
    left.set_xticks(list(places), list(pairs))
    left.set_ylabel("milliseconds")
    left.margins(y=0.18)
    left.legend(frameon=False, loc="upper right", title="ratios: to the first / to the second")
    left.set_title(f"{results['group_by']['rows']:,} rows, two threads of DuckDB")
    opening = results["group_by"]["opening_seconds"]
    names = ("load", "read on grid", "and bound")
    for place, (side, name) in enumerate(zip(SIDES, names, strict=True)):
        right.bar([name], [opening[side]], color=COLOURS[side])
        right.text(place, opening[side], f"{opening[side]:.1f} s", ha="center", va="bottom")
    right.set_ylabel("seconds, once")
    right.margins(y=0.15)
    right.set_title("opening the dataset")
    figure.savefig(path, dpi=150)


def measure(asked: Run) -> dict[str, Any]:
    rows, small_rows, rounds = (200_000, 2_000, 3) if asked.quick else (10_000_000, 100_000, 9)
    with tempfile.TemporaryDirectory() as directory:
        large, small = Path(directory) / "large.parquet", Path(directory) / "small.parquet"
        write_visits(large, rows=rows, people=rows // 10)
        group_by = compare(large, rounds=rounds)
        write_visits(small, rows=small_rows, people=small_rows // 10)
        same = identical(small)
    opening = group_by["opening_seconds"]
    print(
        f"opening once: {opening['private']:.1f} s, on grid {opening['on_grid']:.1f} s, plain "
        f"load {opening['plain']:.1f} s; "
        f"{group_by['rows_kept']:,} of {group_by['rows']:,} rows kept, "
        f"{group_by['people_over_the_cap']:.0%} of people over the cap of {CAP}"
    )
    return {"group_by": group_by, "spark": {"rows": small_rows, "identical": same}}


def targets(record: dict[str, Any]) -> list[dict[str, Any]]:
    listed = [
        target(
            f"{name}: over the same query without privacy",
            max(pair["ratio"], pair["ratio_to_grid"]),
            at_most=TARGET if PAIRS[name][0].where is None else FILTERED_TARGET,
        )
        for name, pair in record["group_by"]["pairs"].items()
    ]
    same = record["spark"]["identical"].values()
    return [*listed, claim("DuckDB and Spark identical to the bit", all(same))]


SUITE = Suite("curator_engine", measure, targets, pictures={"curator-engine.png": draw})
