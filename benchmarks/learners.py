"""Accuracy of the learners for tables beside scikit-learn without privacy and diffprivlib.

    python benchmarks/learners.py [--quick] [--only KIND] [--results DIRECTORY]

Ten seeds, epsilon 0.1 to 10, on Adult and on data that ships with scikit-learn; a hundred for naive
Bayes and for tables of fewer than a thousand rows, which are fast, and where ten cannot tell a lead
from luck: diffprivlib's scores vary by up to 19 points there. diffprivlib 0.6.6 with
scikit-learn 1.7.2 is installed into .venv-diffprivlib beside the project. Its guarantee is pure;
ours has the default delta of the table. Scores are accuracies, and R^2 for regression (cut off
below at -1). Networks have three seeds and no counterpart.
"At least as accurate" allows for two standard errors; "clearly better", asked for at epsilon <= 1,
asks for as many. Writes learners.json and learners.png, and exits with 1 if a target is missed.
With --only, one kind of learner is measured again, and the scores of the others stay as they were
written before.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from threadpoolctl import threadpool_limits

from discreet.learn import (
    PrivateGaussianNB,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateMLPClassifier,
)
from discreet.learn._linear_plan import default_delta
from learners_tasks import Task, adult_schema, census, tasks

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PEER = ROOT / ".venv-diffprivlib"
PEER_PACKAGES = ("diffprivlib==0.6.6", "scikit-learn==1.7.2")
EPSILONS = (0.1, 0.5, 1.0, 3.0, 10.0)
NETWORK_SEEDS = 3
SMALL, MORE_SEEDS = 1000, 10


@lru_cache(maxsize=1)
def all_tasks() -> tuple[Task, ...]:
    return tuple(tasks())


def wanted(only: str | None) -> list[Task]:
    return [task for task in all_tasks() if only in (None, task.kind)]


def seeds_of(task: Task, seeds: int) -> int:
    """How many seeds a table gets, where most get ``seeds``; for every contestant alike."""
    if task.kind == "mlp":
        return min(seeds, NETWORK_SEEDS)
    cheap = task.kind == "naive-bayes" or len(task.targets) < SMALL
    return seeds * MORE_SEEDS if cheap else seeds


def private(task: Task, epsilon: float, rows: int) -> Any:
    shared: dict[str, Any] = {"epsilon": epsilon, "bounds": (-1.0, 1.0)}
    if task.kind == "naive-bayes":
        delta = default_delta(rows)
        return PrivateGaussianNB(classes=list(range(task.classes)), delta=delta, **shared)
    shared |= {"feature_norm": task.norm, "expected_rows": rows}
    if task.kind == "mlp":
        return PrivateMLPClassifier(classes=list(range(task.classes)), **shared)
    if task.kind == "logistic":
        return PrivateLogisticRegression(classes=list(range(task.classes)), **shared)
    return PrivateLinearRegression(target_bounds=task.target_bounds, **shared)


def plain(task: Task) -> Any:
    if task.kind == "mlp":
        return MLPClassifier((32,), early_stopping=True, random_state=0)
    if task.kind == "logistic":
        return LogisticRegression(max_iter=5000)
    return GaussianNB() if task.kind == "naive-bayes" else LinearRegression()


def one_seed(seed: int, seeds: int, only: str | None) -> list[dict[str, Any]]:
    """Train everything of one seed; the noise is that of the operating system."""
    with threadpool_limits(1):
        return all_of_seed(seed, seeds, only)


def all_of_seed(seed: int, seeds: int, only: str | None) -> list[dict[str, Any]]:
    rows = []
    for task in wanted(only):
        if seed >= seeds_of(task, seeds):
            continue
        x, y, x_test, y_test = task.split(seed)
        label = {"table": task.name, "kind": task.kind, "seed": seed}
        if task.fixed_train is None or seed == 0:
            score = plain(task).fit(x, y).score(x_test, y_test)
            rows.append({**label, "who": "scikit-learn", "epsilon": None, "score": score})
        for epsilon in EPSILONS:
            start = time.perf_counter()
            model = private(task, epsilon, len(y)).fit(x, y)
            took = time.perf_counter() - start
            assert model.certificate_.epsilon <= epsilon
            score = model.score(x_test, y_test)
            rows.append(
                {**label, "who": "discreet", "epsilon": epsilon, "score": score, "seconds": took}
            )
    return rows


def peer_rows(seeds: int, directory: Path, only: str | None) -> dict[str, Any]:
    """Hand the same tables and splits to diffprivlib in its own environment."""
    python = PEER / "bin" / "python"
    if not python.exists():
        venv.create(PEER, with_pip=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, *PEER_PACKAGES], check=True)
    for task in wanted(only):
        if task.kind == "mlp":
            continue  # the peer has none
        count, own = len(task.targets), seeds_of(task, seeds)
        arrays: dict[str, Any] = {"x": task.features, "y": task.targets, "seeds": own}
        arrays["lower"], arrays["upper"] = task.bounds
        if task.fixed_train is None:
            for seed in range(own):
                arrays[f"order_{seed}"] = np.random.default_rng(seed).permutation(count)
            first = count * 3 // 4
        else:
            arrays["order"], first = np.arange(count), task.fixed_train
        np.savez(
            directory / f"{task.name}-{task.kind}.npz",
            name=task.name,
            kind=task.kind,
            norm=task.norm,
            first=first,
            **arrays,
        )
    script = str(ROOT / "benchmarks" / "learners_peer.py")
    done = subprocess.run(
        [str(python), script, str(directory), *map(str, EPSILONS)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
    )
    found: dict[str, Any] = json.loads(done.stdout)
    for row in found["rows"]:
        row["who"] = "diffprivlib"
    return found


def naive_bayes_seconds() -> dict[str, float]:
    """Training time on the numbers of Adult, thirty times over: a million rows."""
    task = next(task for task in all_tasks() if (task.name, task.kind) == ("adult", "naive-bayes"))
    x, y, _, _ = task.split(0)
    x, y = np.tile(x, (30, 1)), np.tile(y, 30)
    times: dict[str, list[float]] = {"scikit-learn": [], "discreet": []}
    for _ in range(5):
        for who, model in (("scikit-learn", plain(task)), ("discreet", private(task, 1.0, len(y)))):
            start = time.perf_counter()
            model.fit(x, y)
            times[who].append(time.perf_counter() - start)
    return {who: statistics.median(seconds) for who, seconds in times.items()}


def from_the_file(directory: Path) -> dict[str, float]:
    """``discreet train`` and ``discreet predict`` on Adult as CSV files, in new processes."""
    data = census()
    for name, part in (("train", data.train), ("test", data.test)):
        with (directory / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(part)
            writer.writerows(zip(*(values.tolist() for values in part.values()), strict=True))
    (directory / "schema.toml").write_text(adult_schema(data.train).to_toml(), encoding="utf-8")
    command = [sys.executable, "-m", "discreet.cli"]
    options = ["--schema", "schema.toml", "--target", "income", "--epsilon", "1", "--out", "model"]
    start = time.perf_counter()
    subprocess.run([*command, "train", "train.csv", *options], cwd=directory, check=True)
    took = time.perf_counter() - start
    judge = [*command, "predict", "model", "test.csv", "--output", "predicted.csv"]
    subprocess.run(judge, cwd=directory, check=True)
    with (directory / "predicted.csv").open(encoding="utf-8") as file:
        predicted = [row["income"] for row in csv.DictReader(file)]
    right = np.mean(np.array(predicted) == data.test["income"])
    return {"seconds": took, "accuracy": float(right)}


def summarised(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean, deviation and standard error over the seeds of each contestant."""
    groups: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        key = (row["kind"], row["table"], row["who"], row["epsilon"])
        groups.setdefault(key, [])
        if row["score"] is not None:
            # A fit far worse than the mean is as bad as one a million times worse.
            groups[key].append(max(row["score"], -1.0))
    table = []
    for (kind, name, who, epsilon), scores in groups.items():
        entry: dict[str, Any] = {"kind": kind, "table": name, "who": who, "epsilon": epsilon}
        spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
        mean = statistics.fmean(scores) if scores else None
        table.append({**entry, "seeds": len(scores), "mean": mean, "deviation": spread})
    return table


def judged(
    table: list[dict[str, Any]], speed: dict[str, float], file: dict[str, float]
) -> list[dict[str, Any]]:
    """Every target of the benchmark with what was measured."""
    cell = {(row["kind"], row["table"], row["who"], row["epsilon"]): row for row in table}
    ours = cell["logistic", "adult", "discreet", 1.0]["mean"]
    free = cell["logistic", "adult", "scikit-learn", None]["mean"]
    targets = [
        _target("Adult, epsilon 1: points below scikit-learn", 100 * (free - ours), at_most=1.0),
        _target("Adult from the CSV file at epsilon 1, seconds", file["seconds"], at_most=30.0),
        _target(
            "naive Bayes: training time over scikit-learn's",
            speed["discreet"] / speed["scikit-learn"],
            at_most=2.0,
        ),
    ]
    for (kind, name, who, epsilon), mine in cell.items():
        peer = cell.get((kind, name, "diffprivlib", epsilon))
        if who != "discreet" or peer is None:
            continue
        title = f"{kind}, {name}, epsilon {epsilon:g}: ahead of diffprivlib by"
        if peer["mean"] is None:
            # A peer that fails on every seed is nobody to be ahead of: no target, met or missed.
            print("no comparison:", title, "(it failed on every seed)")
            continue
        error = np.hypot(mine["deviation"], peer["deviation"]) / max(mine["seeds"], 1) ** 0.5
        lead = mine["mean"] - peer["mean"]
        # Equal means two standard errors apart at most; clear means more than that ahead.
        limit = 2.0 * error if epsilon <= 1.0 else -2.0 * error
        targets.append(_target(title, lead, at_least=limit))
    return targets


def _target(
    title: str, measured: float, *, at_most: float | None = None, at_least: float | None = None
) -> dict[str, Any]:
    met = (at_most is None or measured <= at_most) and (at_least is None or measured >= at_least)
    limit = {"at_most": at_most} if at_least is None else {"at_least": float(at_least)}
    return {"target": title, "measured": float(measured), **limit, "met": bool(met)}


def draw_picture(table: list[dict[str, Any]], path: Path) -> None:
    from discreet.cli.pictures import COLOURS, blank_figure, save, tidy

    panels = list(dict.fromkeys((row["kind"], row["table"]) for row in table))
    figure = blank_figure(11.0, 7.5)
    grid = figure.subplots(3, 3).ravel()
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    looks = {"discreet": COLOURS["blue"], "diffprivlib": COLOURS["vermilion"]}
    for axes, (kind, name) in zip(grid, panels, strict=False):
        tidy(axes)
        part = [row for row in table if (row["kind"], row["table"]) == (kind, name)]
        free = next(row["mean"] for row in part if row["who"] == "scikit-learn")
        axes.axhline(free, color=COLOURS["grey"], linewidth=1.0, linestyle="--")
        for who, colour in looks.items():
            own = [row for row in part if row["who"] == who and row["mean"] is not None]
            axes.errorbar(
                [row["epsilon"] for row in own],
                [row["mean"] for row in own],
                [row["deviation"] for row in own],
                color=colour,
                marker="o",
                markersize=3.5,
                linewidth=1.2,
                capsize=2,
            )
        axes.set_xscale("log")
        bottom = 0.0 if kind != "linear" else -0.5
        axes.set_ylim(bottom, max(1.0 if kind != "linear" else free + 0.1, free))
        axes.set_title(f"{kind}: {name}", loc="left", fontsize=9)
    grid[0].text(
        0.98,
        0.05,
        "diffprivlib",
        color=looks["diffprivlib"],
        ha="right",
        fontsize=9,
        transform=grid[0].transAxes,
    )
    grid[0].text(
        0.98,
        0.17,
        "discreet",
        color=looks["discreet"],
        ha="right",
        fontsize=9,
        transform=grid[0].transAxes,
    )
    grid[0].text(
        0.98,
        0.29,
        "no privacy (dashed)",
        color=COLOURS["grey"],
        ha="right",
        fontsize=9,
        transform=grid[0].transAxes,
    )
    figure.supxlabel("epsilon", fontsize=9)
    figure.supylabel("accuracy, or R^2 for linear (mean and deviation)", fontsize=9)
    save(figure, path)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two seeds, or twenty")
    parser.add_argument("--results", type=Path, default=RESULTS)
    kinds = sorted({task.kind for task in all_tasks()})
    parser.add_argument("--only", choices=kinds, help="measure one kind of learner again")
    options = parser.parse_args()
    kept = []
    if options.only is not None:
        before = json.loads((options.results / "learners.json").read_text(encoding="utf-8"))
        kept = [row for row in before["table"] if row["kind"] != options.only]
    seeds = 2 if options.quick else 10
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        speed = naive_bayes_seconds()
        file = from_the_file(directory)
        tables = directory / "tables"
        tables.mkdir()
        with ProcessPoolExecutor(max_workers=2) as pool:
            peer = pool.submit(peer_rows, seeds, tables, options.only)
            numbers = range(max(seeds_of(task, seeds) for task in wanted(options.only)))
            parts = pool.map(one_seed, numbers, repeat(seeds), repeat(options.only))
            found = [row for part in parts for row in part]
            other = peer.result()
    table = [*kept, *summarised([*found, *other["rows"]])]
    targets = judged(table, speed, file)
    results = {
        "seeds": seeds,
        "python": platform.python_version(),
        "peer": other["versions"],
        "naive_bayes_seconds": speed,
        "adult_from_csv": file,
        "seconds": time.perf_counter() - start,
        "table": table,
        "targets": targets,
    }
    options.results.mkdir(parents=True, exist_ok=True)
    text = json.dumps(results, indent=2) + "\n"
    (options.results / "learners.json").write_text(text, encoding="utf-8")
    draw_picture(table, options.results / "learners.png")
    for row in sorted(table, key=lambda row: (row["kind"], row["table"], row["epsilon"] or 99.0)):
        cost = "no privacy" if row["epsilon"] is None else f"epsilon {row['epsilon']:g}"
        mean = "failed" if row["mean"] is None else f"{row['mean']:.4f} +- {row['deviation']:.4f}"
        print(f"{row['kind']:12} {row['table']:14} {cost:12} {row['who']:13} {mean}")
    for entry in targets:
        print("met   " if entry["met"] else "MISSED", entry["target"], entry["measured"])
    return 0 if all(entry["met"] for entry in targets) else 1


if __name__ == "__main__":
    sys.exit(main())
