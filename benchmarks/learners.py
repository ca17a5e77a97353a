"""Accuracy of the learners for tables beside scikit-learn without privacy and diffprivlib.

Ten seeds, epsilon 0.1 to 10, on Adult and on data that ships with scikit-learn; a hundred for naive
Bayes and for tables of fewer than a thousand rows, which are fast, and where ten cannot tell a lead
from luck: diffprivlib's scores vary by up to 19 points there. diffprivlib 0.6.6 with
scikit-learn 1.7.2 is installed into .venv-diffprivlib beside the project. Its guarantee is pure;
ours has the default delta of the table. Scores are accuracies, and R^2 for regression (cut off
below at -1). Networks have three seeds and no counterpart.
"At least as accurate" allows for two standard errors; "clearly better", asked for at epsilon <= 1,
asks for as many. The parts are the kinds of learner, and "speed".
"""

from __future__ import annotations

import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from threadpoolctl import threadpool_limits

from discreet.learn import (
    PrivateAdditiveClassifier,
    PrivateGaussianNB,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateMLPClassifier,
    PrivateRandomForest,
)
from discreet.learn._exact_descent import default_delta
from harness import ROOT, Run, Suite, found, target
from learners_tasks import Task, adult_schema, census, person_tasks, tasks

PEER = ROOT / ".venv-diffprivlib"
PEER_PACKAGES = ("diffprivlib==0.6.6", "scikit-learn==1.7.2")
EPSILONS = (0.1, 0.5, 1.0, 3.0, 10.0)
KINDS = ("logistic", "mlp", "naive-bayes", "linear", "forest")
NETWORK_SEEDS = 3
SMALL, MORE_SEEDS = 1000, 10


@lru_cache(maxsize=1)
def all_tasks() -> tuple[Task, ...]:
    return tuple(tasks())


def wanted(kinds: list[str]) -> list[Task]:
    return [task for task in all_tasks() if task.kind in kinds]


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
    if task.kind == "forest":
        facts = {"bounds": task.bounds, "categories": task.labels, "expected_rows": rows}
        return PrivateRandomForest(classes=list(range(task.classes)), **{**shared, **facts})
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
    if task.kind == "forest":
        return RandomForestClassifier(random_state=0)
    return GaussianNB() if task.kind == "naive-bayes" else LinearRegression()


def one_seed(seed: int, seeds: int, kinds: list[str]) -> list[dict[str, Any]]:
    """Train everything of one seed; the noise is that of the operating system."""
    with threadpool_limits(1):
        return all_of_seed(seed, seeds, kinds)


def all_of_seed(seed: int, seeds: int, kinds: list[str]) -> list[dict[str, Any]]:
    rows = []
    for task in wanted(kinds):
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


def peer_rows(seeds: int, directory: Path, kinds: list[str]) -> dict[str, Any]:
    """Hand the same tables and splits to diffprivlib in its own environment."""
    python = PEER / "bin" / "python"
    if not python.exists():
        venv.create(PEER, with_pip=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, *PEER_PACKAGES], check=True)
    for task in wanted(kinds):
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
            classes=task.classes,
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
    answer: dict[str, Any] = json.loads(done.stdout)
    for row in answer["rows"]:
        row["who"] = "diffprivlib"
    return answer


def persons_by_cap(seeds: int) -> list[dict[str, Any]]:
    """AUC, or R^2, at caps 1 and 3 on tables whose persons have three rows each.

    Half of the persons are for training. The noise is that of the operating system.
    """
    rows = []
    for name, x, scores, persons in person_tasks():
        first = persons < 2000
        ends = float(np.quantile(np.abs(scores), 0.99))
        for kind in (PrivateLogisticRegression, PrivateAdditiveClassifier, PrivateLinearRegression):
            numbers = kind is PrivateLinearRegression
            y = np.clip(scores, -ends, ends) if numbers else (scores > 0).astype(int)
            said = {"target_bounds": (-ends, ends)} if numbers else {"classes": [0, 1]}
            for epsilon in (0.5, 1.0, 3.0):
                for cap in (1, 3):
                    facts = {"bounds": (-1.0, 1.0), "rows_per_person": cap, "epsilon": epsilon}
                    found = []
                    for _ in range(seeds):
                        model = kind(**said, **facts, expected_rows=2000 * cap)
                        model.fit(x[first], y[first], persons=persons[first])
                        rest = x[~first], y[~first]
                        found.append(
                            model.score(*rest)
                            if numbers
                            else roc_auc_score(rest[1], model.decision_function(rest[0]))
                        )
                    spread = statistics.stdev(found) if seeds > 1 else 0.0
                    entry = {"table": name, "who": kind.__name__, "epsilon": epsilon, "cap": cap}
                    mean = statistics.fmean(found)
                    rows.append({**entry, "seeds": seeds, "mean": mean, "deviation": spread})
    return rows


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


def every_row(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for kind in KINDS for row in found(record, kind) or ()]


def targets(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Every target of the benchmark with what was measured."""
    cell = {
        (row["kind"], row["table"], row["who"], row["epsilon"]): row for row in every_row(record)
    }
    listed = []
    if ("logistic", "adult", "discreet", 1.0) in cell:
        ours = cell["logistic", "adult", "discreet", 1.0]["mean"]
        free = cell["logistic", "adult", "scikit-learn", None]["mean"]
        below = 100 * (free - ours)
        listed.append(target("Adult, epsilon 1: points below scikit-learn", below, at_most=1.0))
    if speed := found(record, "speed"):
        bayes = speed["naive_bayes_seconds"]
        seconds = speed["adult_from_csv"]["seconds"]
        ratio = bayes["discreet"] / bayes["scikit-learn"]
        listed += [
            target("Adult from the CSV file at epsilon 1, seconds", seconds, at_most=30.0),
            target("naive Bayes: training time over scikit-learn's", ratio, at_most=2.0),
        ]
    capped = {(r["table"], r["who"], r["epsilon"], r["cap"]): r for r in found(record, "persons")}
    for (name, who, epsilon, cap), three in capped.items():
        if cap == 3:
            one = capped[name, who, epsilon, 1]
            error = np.hypot(one["deviation"], three["deviation"]) / max(one["seeds"], 1) ** 0.5
            title = f"{who}, {name}, epsilon {epsilon:g}: cap 3 ahead of cap 1 by"
            ahead = three["mean"] - one["mean"]
            listed.append(target(title, ahead, at_least=float(-error)))
    for (kind, name, who, epsilon), mine in cell.items():
        peer = cell.get((kind, name, "diffprivlib", epsilon))
        # A peer that fails on every seed is no comparison: no target, met or missed.
        if who != "discreet" or peer is None or peer["mean"] is None:
            continue
        error = np.hypot(mine["deviation"], peer["deviation"]) / max(mine["seeds"], 1) ** 0.5
        # Equal means two standard errors apart at most; clear means more than that ahead.
        limit = float(2.0 * error if epsilon <= 1.0 else -2.0 * error)
        title = f"{kind}, {name}, epsilon {epsilon:g}: ahead of diffprivlib by"
        listed.append(target(title, mine["mean"] - peer["mean"], at_least=limit))
    return listed


ADULT_ROWS = (
    ("logistic", "adult", "logistic regression"),
    ("mlp", "adult", "network of 32 units"),
    ("naive-bayes", "adult", "Gaussian naive Bayes, six numbers"),
    ("linear", "adult", "linear regression of age, R²"),
    ("forest", "adult", "random forest"),
)
SMALL_ROWS = (
    ("logistic", "breast cancer", "logistic regression, breast cancer"),
    ("naive-bayes", "breast cancer", "Gaussian naive Bayes, breast cancer"),
    ("forest", "breast cancer", "random forest, breast cancer"),
)


def accuracies(record: dict[str, Any], head: str, listed: Iterable[tuple[str, str, str]]) -> str:
    heads = [f"{head}; epsilon", *(f"{epsilon:g}" for epsilon in EPSILONS), "no privacy"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for kind, name, title in listed:
        own = [row for row in every_row(record) if (row["kind"], row["table"]) == (kind, name)]
        means = {(row["who"], row["epsilon"]): row["mean"] for row in own}
        for who, words in (("discreet", title), ("diffprivlib", "diffprivlib")):
            if (who, EPSILONS[0]) in means:
                cells = [shown(kind, means[who, epsilon]) for epsilon in EPSILONS]
                cells.append(shown(kind, means["scikit-learn", None]) if who == "discreet" else "")
                lines.append(f"| {words} | {' | '.join(cells)} |".replace("|  |", "| |"))
    return "\n".join(lines)


def shown(kind: str, value: float) -> str:
    if kind == "linear":
        return "-1" if value == -1.0 else f"{value:.2f}"
    return f"{100 * value:.1f} %"


def met(record: dict[str, Any]) -> str:
    count = sum(entry["met"] for entry in record["targets"])
    every = len(record["targets"])
    return f"All {every}" if count == every else f"{count} of {every}"


def below(record: dict[str, Any]) -> str:
    entry = next(each for each in record["targets"] if "points below" in each["what"])
    return f"{entry['measured']:.2f}"


def draw(record: dict[str, Any], path: Path) -> None:
    from discreet.report import COLOURS, new_figure, save_figure, tidy_axes

    table = every_row(record)
    panels = list(dict.fromkeys((row["kind"], row["table"]) for row in table))
    figure = new_figure(11.0, 10.0)
    grid = figure.subplots(4, 3).ravel()
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    looks = {"discreet": COLOURS["blue"], "diffprivlib": COLOURS["vermilion"]}
    for axes, (kind, name) in zip(grid, panels, strict=False):
        tidy_axes(axes)
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
    save_figure(figure, path)


def measure(asked: Run) -> dict[str, Any]:
    seeds = 2 if asked.quick else 10
    parts: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        if asked.wants("speed"):
            parts["speed"] = {
                "naive_bayes_seconds": naive_bayes_seconds(),
                "adult_from_csv": from_the_file(directory),
            }
        kinds = [kind for kind in KINDS if asked.wants(kind)]
        if asked.wants("persons"):
            with threadpool_limits(1):
                parts["persons"] = persons_by_cap(seeds)
        tables = directory / "tables"
        tables.mkdir()
        with ProcessPoolExecutor(max_workers=2) as pool:
            peer = pool.submit(peer_rows, seeds, tables, kinds)
            numbers = range(max((seeds_of(task, seeds) for task in wanted(kinds)), default=0))
            done = pool.map(one_seed, numbers, repeat(seeds), repeat(kinds))
            rows = [row for part in done for row in part]
            rows += peer.result()["rows"]
    table = summarised(rows)
    for kind in kinds:
        parts[kind] = [row for row in table if row["kind"] == kind]
    return parts


PAGE = "docs/learners.md"
SUITE = Suite(
    "learners",
    measure,
    targets,
    parts=(*KINDS, "persons", "speed"),
    tables={
        (PAGE, "learners adult"): lambda r: accuracies(r, "Adult, 32,561 rows", ADULT_ROWS),
        (PAGE, "learners small"): lambda r: accuracies(r, "426 rows", SMALL_ROWS),
    },
    pictures={"learners.png": draw},
    numbers={
        "met": met,
        "below": below,
        "seconds": lambda record: f"{found(record, 'speed')['adult_from_csv']['seconds']:.1f}",
    },
)
