"""Why the defaults of the linear models are what they are: each beside its neighbours.

Every default of the linear models (total step size, clipping, share for the moments) is multiplied
by 1/4, 1/2, 2 and 4, the others kept, on Adult with 1,000 and 32,561 rows, breast cancer, digits
and diabetes, at epsilon 0.3, 1 and 3, with five seeds. A run fails if, on average over all of
these, some neighbour is better by more than 1.0 point: then the default should move there.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from discreet.learn import PrivateLinearRegression, PrivateLogisticRegression
from discreet.learn._exact_descent import LinearPlan, default_delta
from harness import Run, Suite, target
from learners_tasks import Task, tasks

EPSILONS = (0.3, 1.0, 3.0)
FACTORS = (0.25, 0.5, 2.0, 4.0)
CHANGED = ("total_step_size", "clip_ratio", "moment_share")
SEEDS = 5
ALLOWED = 0.01


def chosen(task: Task, epsilon: float, rows: int) -> dict[str, Any]:
    """The defaults for a table, as parameters of the estimator."""
    plan = LinearPlan.make(
        rows=rows,
        features=task.features.shape[1],
        outputs=task.classes if task.classes > 2 else 1,
        norm=task.norm,
        epsilon=epsilon,
        delta=default_delta(rows),
        relation="add_remove",
        squared=task.kind == "linear",
    )
    return {
        "total_step_size": plan.total_step_size,
        "clip_ratio": plan.clip_ratio,
        "moment_share": plan.moment_share,
        "max_iter": plan.steps,
    }


def score(task: Task, epsilon: float, parameters: dict[str, Any], seeds: int) -> float:
    found = []
    for seed in range(seeds):
        x, y, x_test, y_test = task.split(seed)
        shared = {"epsilon": epsilon, "bounds": (-1.0, 1.0), "feature_norm": task.norm}
        shared |= {"expected_rows": len(y), "insecure_seed": seed, **parameters}
        model: Any
        if task.kind == "linear":
            model = PrivateLinearRegression(target_bounds=task.target_bounds, **shared)
        else:
            model = PrivateLogisticRegression(classes=list(range(task.classes)), **shared)
        found.append(max(-1.0, float(model.fit(x, y).score(x_test, y_test))))
    return statistics.fmean(found)


def tables() -> list[Task]:
    kept = [task for task in tasks() if task.kind in ("logistic", "linear")]
    adult = next(task for task in kept if (task.name, task.kind) == ("adult", "logistic"))
    first = adult.fixed_train or 0
    places = np.r_[0:1000, first : len(adult.targets)]
    small = replace(
        adult,
        name="adult, 1,000 rows",
        features=adult.features[places],
        targets=adult.targets[places],
        fixed_train=1000,
    )
    return [small, *(task for task in kept if (task.name, task.kind) != ("adult", "linear"))]


def measure(asked: Run) -> dict[str, Any]:
    rows = []
    seeds = 1 if asked.quick else SEEDS
    with threadpool_limits(1):
        for task in tables()[: 1 if asked.quick else None]:
            count = len(task.split(0)[1])
            for epsilon in EPSILONS:
                usual = chosen(task, epsilon, count)
                base = score(task, epsilon, usual, seeds)
                for name in CHANGED:
                    for factor in FACTORS:
                        value = usual[name] * factor
                        if name == "moment_share" and value > 0.8:
                            continue
                        other = score(task, epsilon, {**usual, name: value}, seeds)
                        entry = {"table": task.name, "kind": task.kind, "epsilon": epsilon}
                        entry |= {"changed": name, "factor": factor}
                        rows.append({**entry, "default": base, "changed_score": other})
                print(f"{task.name:18} {task.kind:9} epsilon {epsilon:g}: {base:.4f}", flush=True)
    return {"seeds": seeds, "rows": rows}


def gains(record: dict[str, Any]) -> dict[tuple[str, float], float]:
    """What each change gains on average over all tables and epsilons, in shares."""
    found: dict[tuple[str, float], list[float]] = {}
    for row in record["rows"]:
        gain = row["changed_score"] - row["default"]
        found.setdefault((row["changed"], row["factor"]), []).append(gain)
    return {key: statistics.fmean(values) for key, values in found.items()}


def targets(record: dict[str, Any]) -> list[dict[str, Any]]:
    found = gains(record)
    best = max(found, key=lambda key: found[key])
    where = f"{best[0]} times {best[1]:g}"
    return [target("gain of the best neighbour", found[best], at_most=ALLOWED, where=where)]


TITLES = {
    "total_step_size": "pace",
    "clip_ratio": "clipping norm",
    "moment_share": "share of the moments",
}


def table(record: dict[str, Any]) -> str:
    """What each change gains, in points."""
    found = gains(record)
    lines = ["| times | 1/4 | 1/2 | 2 | 4 |", "|---|---|---|---|---|"]
    for name, title in TITLES.items():
        cells = [f"{100 * found[name, factor]:+.1f}" for factor in FACTORS]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


SUITE = Suite(
    "learners_defaults",
    measure,
    targets,
    tables={("docs/learners.md", "learners defaults"): table},
)
