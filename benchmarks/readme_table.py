"""The table "which method" of the documentation, from the records of DP-SGD and PATE."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from harness import Suite, found

NEITHER = {"logistic": "logistic regression", "naive-bayes": "naive Bayes"}


def table(results: Mapping[str, Any]) -> str:
    """The whole table."""
    dpsgd = {one["name"]: one for one in results["dpsgd"]["experiments"]}
    cnn, linear = dpsgd["mnist-cnn-2"], dpsgd["mnist-scattering-1"]
    votes = found(results["pate"], "mnist")["rows"]
    most = max(row["target_epsilon"] for row in votes)
    largest = [row for row in votes if row["target_epsilon"] == most]
    labels = largest[0]["labels"]
    by_votes = share((row["accuracy"] for row in largest), digits=2)
    at_one = share((row["accuracy"] for row in votes if row["target_epsilon"] == 1.0), digits=2)
    lines = [
        ("", "PATE", "DP-SGD"),
        (
            "how",
            "teachers on disjoint parts vote, a student learns from noisy votes",
            "one model learns from noisy sums of clipped gradients",
        ),
        ("models", "any", "those with a gradient for each record"),
        ("privacy is spent by", "each label that teachers give", "each step"),
        ("rests on", "stability, aggregation, sparse vector", "sampling, composition"),
        ("data", "may differ, and stay with their teachers", "of one kind, in one place"),
        ("needs besides", "public records without labels", "nothing"),
        (
            "MNIST, \u03b5 \u2248 2",
            f"{by_votes} at \u03b5 \u2264 {up(largest[0]['epsilon'])} ({labels} labels)",
            f"{cnn['mean']:.2f} % at \u03b5 \u2264 {up(cnn['epsilon'])} (a CNN on pixels)",
        ),
        ("MNIST, \u03b5 = 1, scattering features", at_one, f"{linear['mean']:.2f} % (linear)"),
        ("Adult, \u03b5 = 1", *adult(found(results["pate"], "adult")["rows"])),
        (
            "one run on MNIST",
            f"{max(row['cpu_seconds'] for row in votes):.0f} CPU seconds",
            f"{cnn['slowest']:.0f} seconds (the CNN)",
        ),
    ]
    rows = [f"| {' | '.join(cells)} |" for cells in lines]
    return "\n".join([rows[0], "|---|---|---|", *rows[1:]])


def adult(rows: Iterable[Mapping[str, Any]]) -> tuple[str, str]:
    """Accuracies at epsilon 1: of PATE, of DP-SGD, and beside it of learners that are neither."""
    scores: dict[str, list[float]] = {}
    for row in rows:
        if row["target_epsilon"] == 1.0:
            scores.setdefault(row["learner"], []).append(row["accuracy"])
    others = ", ".join(f"{words} {share(scores[name])}" for name, words in NEITHER.items())
    return share(scores["pate"]), f"{share(scores['mlp'])} (a network; neither: {others})"


def share(accuracies: Iterable[float], *, digits: int = 1) -> str:
    """The mean of accuracies in percent."""
    values = list(accuracies)
    return f"{math.fsum(values) / len(values):.{digits}f} %"


def up(epsilon: float) -> str:
    """An upper bound with two decimals, rounded up."""
    return f"{math.ceil(100 * epsilon - 1e-9) / 100:g}"


SUITE = Suite(
    "methods", reads=("dpsgd", "pate"), tables={("docs/which-method.md", "methods table"): table}
)
