"""How often learned bounds are absurd, and how much they cut off (docs/schema.md).

Made-up columns (integers, mostly zeros, heavy tails, both signs, small reals) of tables with 30
columns of unknown bounds, at several numbers of rows and total epsilons, with a declared number
of rows that is right, ten times too small and ten times too large. A bound is absurd if the
interval is more than 20 times as wide as the true range from .05 % to 99.95 % of the values.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from discreet.data import Integer, Real, Schema, plan_schema
from harness import Run, Suite, target

COLUMNS = 30
DELTA = 1e-6
ROWS = (1_000, 5_000, 50_000)
EPSILONS = (0.2, 1.0)
FACTORS = (0.1, 1.0, 10.0)
SEEDS = 20


def made_up(rows: int, rng: np.random.Generator) -> dict[str, tuple[Any, np.ndarray]]:
    """Return columns of six families with their open types."""
    data: dict[str, tuple[Any, np.ndarray]] = {}
    for k in range(COLUMNS // 6):
        scale = 10.0**k
        data[f"integer {k}"] = Integer(), rng.integers(3, 9 + 80 * (k + 1), rows)
        zeros = rng.random(rows) < 0.6 + 0.07 * k
        data[f"mostly zero {k}"] = Integer(), np.where(zeros, 0, rng.geometric(0.5 / (k + 1), rows))
        data[f"heavy tail {k}"] = Real(), scale * np.exp(rng.normal(0, 1.5, rows))
        data[f"pareto {k}"] = Integer(), np.floor(scale * rng.pareto(1.5 + 0.3 * k, rows))
        data[f"both signs {k}"] = Real(), scale * rng.normal(0, 1, rows)
        data[f"narrow {k}"] = Real(), rng.normal(37.0 * (k + 1), 0.5, rows)
    return data


def one(rows: int, epsilon: float, factor: float, seed: int) -> dict[str, list[float]]:
    """Return for each family whether bounds were absurd, and which share they cut off."""
    data = made_up(rows, np.random.default_rng([seed, rows]))
    declared = max(1, round(rows * factor))
    schema = Schema({name: kind for name, (kind, _) in data.items()}, expected_rows=declared)
    plan = plan_schema(schema, epsilon=epsilon, delta=DELTA)
    columns = {name: values for name, (_, values) in data.items()}
    done = plan.run(columns, insecure_seed=1000 + seed).value
    found: dict[str, list[float]] = {}
    for name, (_, values) in data.items():
        lower, upper = done.columns[name].bounds
        low, high = np.quantile(values, [0.0005, 0.9995])
        absurd = upper - lower > 20.0 * max(high - low, 1.0)
        cut = float(np.mean((values < lower) | (values > upper)))
        found.setdefault(name.rpartition(" ")[0], []).extend([float(absurd), cut])
    return found


def table(seeds: int) -> list[dict[str, Any]]:
    """Return one row of the record for each number of rows, epsilon and factor."""
    lines = []
    for rows in ROWS:
        for epsilon in EPSILONS:
            for factor in FACTORS:
                seen = [one(rows, epsilon, factor, seed) for seed in range(seeds)]
                families = {
                    family: {
                        "absurd": float(np.mean([one[family][0::2] for one in seen])),
                        "cut_off": float(np.mean([one[family][1::2] for one in seen])),
                    }
                    for family in seen[0]
                }
                line = {
                    "rows": rows,
                    "epsilon": epsilon,
                    "declared_times": factor,
                    "absurd": float(np.mean([f["absurd"] for f in families.values()])),
                    "cut_off": float(np.mean([f["cut_off"] for f in families.values()])),
                    "families": families,
                }
                lines.append(line)
                print(rows, epsilon, factor, round(line["absurd"], 4), round(line["cut_off"], 4))
    return lines


def measure(asked: Run) -> dict[str, Any]:
    seeds = 2 if asked.quick else SEEDS
    return {"columns": COLUMNS, "delta": DELTA, "seeds": seeds, "lines": table(seeds)}


def targets(record: dict[str, Any]) -> list[dict[str, Any]]:
    # With 1,000 rows and epsilon .2 for 30 columns hardly any cell is above the noise.
    heard = [line for line in record["lines"] if line["rows"] * line["epsilon"] >= 1000]
    worst = max(line["absurd"] for line in heard)
    return [target("share of columns with absurd bounds", worst, at_most=0.015)]


SUITE = Suite("schema_bounds", measure, targets)
