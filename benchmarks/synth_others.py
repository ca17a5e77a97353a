"""The defaults, chosen on Adult, on other tables; and on many rows: parts of the suite synth.

Tables of statsmodels, which is installed into .venv-synth beside the project: Fair's survey of
marriages, the RAND health insurance experiment and the American election study of 1996. Bounds are
those of their code books. Nothing of a synthesis is changed for them.
"""

from __future__ import annotations

import itertools
import resource
import subprocess
import sys
import time
import venv
from dataclasses import replace
from typing import Any

import numpy as np

from discreet.data import Integer, Real, Schema
from discreet.engines import open_table
from discreet.synth import OneShot, SynthesisPlan
from discreet.synth._budget import GaussianBudget
from harness import ROOT, Run

PEER = ROOT / ".venv-synth"
STATSMODELS = "statsmodels==0.15.0"
EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
SEEDS = 3
CELLS = 16

TABLES: dict[str, tuple[str, dict[str, Any]]] = {
    "fair": (
        "affairs",
        {
            "rate_marriage": Integer(1, 5),
            "age": Integer(17, 42),
            "yrs_married": Integer(0, 23),
            "children": Integer(0, 6),
            "religious": Integer(1, 4),
            "educ": Integer(9, 20),
            "occupation": Integer(1, 6),
            "occupation_husb": Integer(1, 6),
            "affairs": Real(0, 60),
        },
    ),
    "randhie": (
        "mdvis",
        {
            "mdvis": Integer(0, 80),
            "lncoins": Real(0, 5),
            "idp": Integer(0, 1),
            "lpi": Real(0, 8),
            "fmde": Real(0, 9),
            "physlm": Real(0, 1),
            "disea": Real(0, 60),
            "hlthg": Integer(0, 1),
            "hlthf": Integer(0, 1),
            "hlthp": Integer(0, 1),
        },
    ),
    "anes96": (
        "vote",
        {
            "popul": Integer(0, 8_000),
            "TVnews": Integer(0, 7),
            "selfLR": Integer(1, 7),
            "ClinLR": Integer(1, 7),
            "DoleLR": Integer(1, 7),
            "PID": Integer(0, 6),
            "age": Integer(18, 92),
            "educ": Integer(1, 7),
            "income": Integer(1, 24),
            "vote": Integer(0, 1),
        },
    ),
}
_SHOW = """
import json, sys
from importlib import import_module
for name in sys.argv[1:]:
    data = import_module(f"statsmodels.datasets.{name}").load_pandas().data
    print(json.dumps({key: [float(one) for one in data[key]] for key in data}))
"""


def public_tables() -> dict[str, tuple[Schema, dict[str, np.ndarray]]]:
    """Return the tables of statsmodels with their schemas."""
    import json

    python = PEER / "bin" / "python"
    if not python.exists():
        venv.create(PEER, with_pip=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, STATSMODELS], check=True)
    done = subprocess.run(
        [str(python), "-c", _SHOW, *TABLES], capture_output=True, text=True, check=True
    )
    found = {}
    for (name, (goal, columns)), line in zip(TABLES.items(), done.stdout.splitlines(), strict=True):
        read = json.loads(line)
        data = {key: np.array(read[key]) for key in columns}
        rows = round(len(data[goal]), -2)
        found[name] = Schema(columns, target=goal, expected_rows=rows), data
    return found


def shares_apart(schema: Schema, real: Any, made: Any) -> float:
    """Return the mean L1 distance of all tables of three columns, of at most 16 cells a column."""
    codes = []
    for table in (real, made):
        cells = []
        for name, column in schema.columns.items():
            low, high = column.bounds
            whole = isinstance(column, Integer)
            size = min(CELLS, int(high - low) + 1) if whole else CELLS
            values = np.asarray(table[name], dtype=np.float64)
            values = np.rint(values) if whole else values
            place = np.floor((values - low) / (high - low + whole) * size)
            cells.append((np.clip(place, 0, size - 1).astype(np.int64), size))
        codes.append(cells)
    found = []
    for columns in itertools.combinations(range(len(codes[0])), 3):
        shares = []
        for cells in codes:
            shape = [cells[at][1] for at in columns]
            index = np.ravel_multi_index([cells[at][0] for at in columns], shape)
            shares.append(np.bincount(index, minlength=int(np.prod(shape))) / index.size)
        found.append(np.abs(shares[0] - shares[1]).sum())
    return float(np.mean(found))


def _histograms_alone(plan: SynthesisPlan) -> SynthesisPlan:
    """Return a plan of the same cost that spends all of it on histograms: columns without pairs."""
    budget = GaussianBudget.make(
        columns=len(plan.schema.columns),
        scores=0,
        epsilon=plan.epsilon,
        delta=plan.delta,
        relation=plan.loss.relation,
        column_share=1.0,
        score_share=0.0,
        tables=False,
    )
    return replace(plan, budget=budget, order=1, target=None)


def others(run: Run) -> Any:
    """Return the errors of other tables by epsilon, and those of columns without pairs.

    Independent columns are the real ones, shuffled: they have no noise, and are not private.
    """
    rows = []
    for name, (schema, data) in public_tables().items():
        rng = np.random.default_rng(0)
        shuffled = {key: rng.permutation(values) for key, values in data.items()}
        row: dict[str, Any] = {
            "table": name,
            "rows": len(data[schema.target]),
            "independent": round(shares_apart(schema, data, shuffled), 4),
        }
        for epsilon in (1.0,) if run.quick else EPSILONS:
            plan = OneShot().plan(schema, epsilon=epsilon, delta=1e-9)
            found = [
                shares_apart(schema, data, plan.run(data, insecure_seed=seed).sample(seed=seed))
                for seed in range(1 if run.quick else SEEDS)
            ]
            row[f"epsilon {epsilon:g}"] = round(float(np.mean(found)), 4)
        alone = _histograms_alone(OneShot().plan(schema, epsilon=1.0, delta=1e-9))
        found = [
            shares_apart(schema, data, alone.run(data, insecure_seed=seed).sample(seed=seed))
            for seed in range(1 if run.quick else SEEDS)
        ]
        row["histograms alone"] = round(float(np.mean(found)), 4)
        rows.append(row)
    return rows


def scale(run: Run) -> Any:
    """Return seconds and memory for 100 columns and many rows, each in a fresh process."""
    sizes = (100_000,) if run.quick else (1_000_000, 10_000_000)
    found = []
    for size in sizes:
        command = [sys.executable, __file__, str(size)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        wall, cpu, peak = (float(text) for text in done.stdout.split())
        found.append({"rows": size, "wall": wall, "cpu": cpu, "peak_mb": peak})
    return found


def _one_scale(rows: int) -> None:
    """Print wall and CPU seconds and peak memory of one synthesis of a made-up file."""
    import tempfile
    from pathlib import Path

    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = 100
    schema = Schema({f"c{at}": Integer(0, 7) for at in range(columns)}, expected_rows=rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        fields = pa.schema([(name, pa.int8()) for name in schema.columns])
        rng = np.random.default_rng(0)
        with pq.ParquetWriter(path, fields) as writer:
            for start in range(0, rows, 100_000):
                count = min(100_000, rows - start)
                hidden = rng.integers(0, 8, (count, 10), dtype=np.int8)
                own = rng.integers(0, 8, (count, columns), dtype=np.int8)
                mixed = np.where(
                    rng.random((count, columns)) < 0.5, hidden[:, np.arange(columns) % 10], own
                )
                writer.write_table(pa.table(list(mixed.T), schema=fields))
        begun, cpu = time.perf_counter(), time.process_time()
        table = open_table(str(path), schema, engine="duckdb", memory="256MB")
        OneShot().plan(schema, epsilon=1.0, delta=1e-9).run(table).sample(1_000)
        table.close()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(time.perf_counter() - begun, time.process_time() - cpu, peak)


if __name__ == "__main__":
    _one_scale(int(sys.argv[1]))
