"""Synthetic tables of Adult: the error of all 3-way tables, a classifier, time and memory.

The columns and cells are those of AIM's paper (McKenna and others 2022): 48,842 rows, 14 columns
of 85, 9, 100, 16, 7, 15, 6, 5, 2, 100, 100, 99, 42 and 2 cells. The error of a table is the L1
distance of shares; the mean over all tables of 3 columns is the figure. The classifier is scikit-
learn's boosted trees, trained on synthetic rows of 32,561 records and tested on 16,281 real ones.
"""

from __future__ import annotations

import itertools
import resource
import time
from typing import Any

import numpy as np

from discreet.data import Categorical, Integer, Schema, adult, read_table
from discreet.synth import OneShot
from harness import Run, Suite, claim, found, target

DELTA = 1e-9
EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
SEEDS = 3
BOUNDS = {
    "age": (6, 90),
    "fnlwgt": (12_285, 1_490_400),
    "capital-gain": (0, 99_999),
    "capital-loss": (0, 4_356),
    "hours-per-week": (1, 99),
}
BINS = {"fnlwgt": 100, "capital-gain": 100, "capital-loss": 100}


def table_of_aim() -> tuple[Schema, dict[str, np.ndarray]]:
    """Return the schema and the columns of all 48,842 rows, training rows first."""
    census = adult()
    schema: dict[str, Any] = {}
    data = {}
    for name, train in census.train.items():
        if name == "education-num":
            continue
        values = np.concatenate([train, census.test[name]])
        if name in BOUNDS:
            schema[name], data[name] = Integer(*BOUNDS[name]), values
            continue
        values = np.where(values == "?", "unknown", values).astype(object)
        names = sorted(set(values.tolist()))
        other = "unknown" if "unknown" in names else names[0]
        schema[name], data[name] = Categorical(names, other=other), values
    return Schema(schema, target="income", expected_rows=50_000), data


def codes_of(data: Any, schema: Schema) -> list[np.ndarray]:
    """Return the cells of AIM's paper for each column."""
    read = read_table(data, schema)
    found = []
    for name, column in schema.columns.items():
        values = np.asarray(read.columns[name], dtype=np.int64)
        if name in BOUNDS:
            low, high = column.bounds
            cells = BINS.get(name, int(high - low) + 1)
            values = ((values - int(low)) * cells) // (int(high - low) + 1)
        found.append(values)
    return found


def errors(true: list[np.ndarray], made: list[np.ndarray], size: int) -> float:
    """Return the mean L1 distance of all tables of some columns."""
    found = []
    most = [int(max(a.max(), b.max())) + 1 for a, b in zip(true, made, strict=True)]
    for columns in itertools.combinations(range(len(true)), size):
        shape = [most[at] for at in columns]
        shares = [
            np.bincount(np.ravel_multi_index([one[at] for at in columns], shape)) / one[0].size
            for one in (true, made)
        ]
        width = max(one.size for one in shares)
        left, right = (np.pad(one, (0, width - one.size)) for one in shares)
        found.append(float(np.abs(left - right).sum()))
    return float(np.mean(found))


def tables(run: Run) -> Any:
    """Return errors, seconds and memory by epsilon."""
    schema, data = table_of_aim()
    true = codes_of(data, schema)
    rows = []
    for epsilon in (1.0,) if run.quick else EPSILONS:
        for seed in range(1 if run.quick or epsilon != 1.0 else SEEDS):
            start = time.process_time()
            plan = OneShot(bins=BINS).plan(schema, epsilon=epsilon, delta=DELTA)
            made = plan.run(data, insecure_seed=seed).sample(seed=seed)
            seconds = time.process_time() - start
            cells = codes_of(made, schema)
            rows.append(
                {
                    "epsilon": epsilon,
                    "seed": seed,
                    "cpu_seconds": round(seconds, 2),
                    "two_way": round(errors(true, cells, 2), 4),
                    "three_way": round(errors(true, cells, 3), 4),
                }
            )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"rows": rows, "peak_mb": round(peak)}


def classifier(run: Run) -> Any:
    """Return the accuracy of boosted trees trained on synthetic rows, and on real ones."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    schema, data = table_of_aim()
    order = np.random.default_rng(0).permutation(len(data["income"]))
    parts = [{name: one[rows] for name, one in data.items()} for rows in np.split(order, [32_561])]
    test = codes_of(parts[1], schema)
    kinds = [name not in BOUNDS for name in schema.columns if name != "income"]

    def accuracy(rows: list[np.ndarray]) -> float:
        model = HistGradientBoostingClassifier(categorical_features=kinds, random_state=0)
        model.fit(np.stack(rows[:-1], axis=1), rows[-1])
        return float(np.mean(model.predict(np.stack(test[:-1], axis=1)) == test[-1]))

    plan = OneShot(bins=BINS).plan(schema, epsilon=1.0, delta=DELTA)
    seeds = range(1 if run.quick else SEEDS)
    made = [plan.run(parts[0], insecure_seed=seed).sample(seed=seed) for seed in seeds]
    found = [accuracy(codes_of(one, schema)) for one in made]
    return {"synthetic": found, "real": accuracy(codes_of(parts[0], schema))}


PARTS = ("tables", "classifier", "others", "pictures", "generator", "scale", "aim")


def run_parts(run: Run) -> dict[str, Any]:
    from synth_aim import aim
    from synth_others import others, scale
    from synth_pictures import generator, pictures

    parts = (tables, classifier, others, pictures, generator, scale)
    found = {part.__name__: part(run) for part in parts if run.wants(part.__name__)}
    if "aim" in run.only:  # it takes two hours, so it has to be asked for
        found["aim"] = aim(run)
    return found


def targets(record: Any) -> Any:
    measured = found(record, "tables") or {"rows": [], "peak_mb": None}
    rows = measured["rows"]
    at_one = [row for row in rows if row["epsilon"] == 1.0]
    if at_one:
        mean = float(np.mean([row["three_way"] for row in at_one]))
        yield target("mean L1 error of 3-way tables of Adult, epsilon 1", mean, at_most=0.19)
        least = min(row["cpu_seconds"] for row in at_one)
        yield target("CPU seconds of plan, run and sample", least, at_most=4.0)
        yield target("peak memory of the process, MB", measured["peak_mb"], at_most=400)
    first = [row["three_way"] for row in rows if row["seed"] == 0]
    if len(first) > 1:
        falls = all(after < before for before, after in itertools.pairwise(first))
        yield claim("the error falls with every larger epsilon", falls)
    score = found(record, "classifier")
    if score:
        value = float(np.mean(score["synthetic"]))
        yield target("accuracy of a classifier of synthetic rows", value, at_least=0.84)
    for row in found(record, "others") or ():
        by_epsilon = [value for key, value in row.items() if key.startswith("epsilon")]
        falls = all(after < before for before, after in itertools.pairwise(by_epsilon))
        yield claim(f"{row['table']}: the error falls with every larger epsilon", falls)
        better = row["epsilon 1"] < row["independent"]
        yield claim(f"{row['table']}: nearer than independent columns at epsilon 1", better)
    for row in found(record, "pictures") or ():
        if (row["data"], row["epsilon"]) == ("mnist", 1.0):
            yield target("MNIST, epsilon 1: accuracy of a CNN", row["accuracy"], at_least=0.945)
    made = found(record, "generator")
    if made:
        adult, digits = made["adult"]["accuracy"], made["mnist"]["accuracy"]
        yield target("generator, Adult, epsilon 1: accuracy", adult, at_least=0.761)
        yield target("generator, MNIST, epsilon 10: accuracy", digits, at_least=0.8)
        yield target("CPU minutes of that generator", made["mnist"]["cpu"] / 60, at_most=30)
    many = {row["rows"]: row for row in found(record, "scale") or ()}
    if 10_000_000 in many:
        row = many[10_000_000]
        yield target("10 million rows, 100 columns: minutes", row["wall"] / 60, at_most=6)
        yield target("10 million rows, 100 columns: MB", row["peak_mb"], at_most=3000)
        ratio = row["peak_mb"] / many[1_000_000]["peak_mb"]
        yield target("memory of 10 million rows beside that of 1 million", ratio, at_most=1.5)


def _lines(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)


def show(record: Any) -> str:
    """Return what the page says was measured, as far as it was."""
    shown = []
    of_adult = found(record, "tables")
    if of_adult:
        first = [row for row in of_adult["rows"] if row["seed"] == 0]
        keys = ("epsilon", "two_way", "three_way", "cpu_seconds")
        head = ["epsilon", "error of 2-way tables", "of 3-way tables", "CPU s"]
        shown.append("Adult, 48,842 rows and 14 columns:")
        shown.append(_lines(head, [[f"{row[key]:g}" for key in keys] for row in first]))
    score = found(record, "classifier")
    if score:
        mean = float(np.mean(score["synthetic"]))
        shown.append(
            f"Boosted trees trained on synthetic rows of Adult at epsilon 1 are right about "
            f"{mean:.1%} of real rows; trained on real rows, {score['real']:.1%}."
        )
    others = found(record, "others")
    if others:
        keys = [key for key in others[0] if key.startswith("epsilon")]
        ends = [key for key in ("histograms alone", "independent") if key in others[0]]
        names = {
            "histograms alone": "noisy histograms alone, epsilon 1",
            "independent": "independent columns",
        }
        head = ["table, error of 3-way tables", "rows", *keys, *(names[key] for key in ends)]
        rows = [
            [
                one["table"],
                f"{one['rows']:,}",
                *(f"{one[key]:.3f}" for key in [*keys, *ends]),
            ]
            for one in others
        ]
        shown.append("Other tables, with the settings that were chosen on Adult:")
        shown.append(_lines(head, rows))
    seen = [
        [
            f"`Images`, {one['data']}, epsilon {one['epsilon']:g}",
            f"{one['accuracy']:.1%}",
            f"{one['cpu_seconds_of_pictures']:.0f}",
        ]
        for one in found(record, "pictures")
    ]
    made = found(record, "generator")
    if made:
        for name, epsilon in (("mnist", 10), ("adult", 1)):
            one = made[name]
            what = f"`Gan`, {name}, epsilon {epsilon}, {one['steps']} steps"
            seen.append([what, f"{one['accuracy']:.1%}", f"{one['cpu']:.0f}"])
    if seen:
        shown.append(
            "Accuracy on real test data of what was trained on synthetic ones (a small network of "
            "convolutions for pictures, boosted trees for Adult):"
        )
        shown.append(_lines(["synthetic data", "accuracy", "CPU s"], seen))
    many = found(record, "scale")
    if many:
        head = ["rows of 100 columns", "wall clock, s", "CPU s", "memory, MB"]
        rows = [
            [f"{one['rows']:,}", f"{one['wall']:.0f}", f"{one['cpu']:.0f}", f"{one['peak_mb']:.0f}"]
            for one in many
        ]
        shown.append("A file of made-up rows on DuckDB, from opening it to rows:")
        shown.append(_lines(head, rows))
    of_aim = found(record, "aim")
    if of_aim:
        came = "to its end" if of_aim["ended"] else f"{of_aim['budget_used']:.0%} of its budget"
        shown.append(
            f"AIM by its authors (mbi at 361705d, 80 MB, all tables of three columns of the same "
            f"Adult at epsilon 1) came in {of_aim['cpu_seconds'] / 60:.0f} CPU minutes and "
            f"{of_aim['peak_mb']:,.0f} MB {came}, {of_aim['rounds']} rounds: an error of "
            f"{of_aim['three_way']:.3f} in 3-way tables."
        )
    return "\n\n".join(shown)


SUITE = Suite(
    "synth",
    run=run_parts,
    targets=targets,
    parts=PARTS,
    tables={("docs/synthetic.md", "bench-synth"): show},
    made=("synth-generator.png",),
)
