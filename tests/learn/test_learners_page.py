"""The figures of docs/learners.md are those that benchmarks/learners.py wrote."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = json.loads((ROOT / "benchmarks" / "results" / "learners.json").read_text())
PAGE = (ROOT / "docs" / "learners.md").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())
EPSILONS = (0.1, 0.5, 1.0, 3.0, 10.0)


def means(kind: str, table: str, who: str) -> dict[float | None, float]:
    wanted = (kind, table, who)
    return {
        row["epsilon"]: row["mean"]
        for row in RESULTS["table"]
        if (row["kind"], row["table"], row["who"]) == wanted
    }


def shown(kind: str, value: float) -> str:
    if kind == "linear":
        return "-1" if value == -1.0 else f"{value:.2f}"
    return f"{100 * value:.1f} %"


def cells(kind: str, table: str, who: str) -> list[str]:
    found = means(kind, table, who)
    return [shown(kind, found[epsilon]) for epsilon in EPSILONS]


@pytest.mark.parametrize(
    ("kind", "table", "title"),
    [
        ("logistic", "adult", "logistic regression"),
        ("mlp", "adult", "network of 32 units"),
        ("naive-bayes", "adult", "Gaussian naive Bayes, six numbers"),
        ("linear", "adult", "linear regression of age, R²"),
        ("logistic", "breast cancer", "logistic regression, breast cancer"),
        ("naive-bayes", "breast cancer", "Gaussian naive Bayes, breast cancer"),
    ],
)
def test_the_table_of_the_page(kind, table, title):
    free = shown(kind, means(kind, table, "scikit-learn")[None])
    line = " | ".join([title, *cells(kind, table, "discreet"), free])
    assert f"| {line} |" in PAGE
    if means(kind, table, "diffprivlib"):
        other = " | ".join(["diffprivlib", *cells(kind, table, "diffprivlib")])
        assert f"| {line} |\n| {other} | |" in PAGE


def test_the_targets_are_told_as_they_are():
    targets = RESULTS["targets"]
    met = sum(entry["met"] for entry in targets)
    count = "All" if met == len(targets) else f"{met} of"
    assert f"{count} {len(targets)} targets are met" in TEXT
    behind = next(entry["measured"] for entry in targets if "points below" in entry["target"])
    assert f"is {behind:.2f} points below the one without privacy" in TEXT
    assert f"written model took {RESULTS['adult_from_csv']['seconds']:.1f} seconds" in TEXT
