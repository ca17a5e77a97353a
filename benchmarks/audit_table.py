"""The recorded figures of audit_training.py as tables in docs/auditing-training.md.

python benchmarks/audit_table.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from detection_table import write_between
from discreet.cli.tables import at_least, at_most

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "audit.json"
PAGE = ROOT / "docs" / "auditing-training.md"

TITLES = {
    "one run": "`audit_one_run`",
    "one run, curve": "`audit_one_run_curve`",
    "one run, Gaussian curve": '`audit_one_run_curve`, `mechanism="gaussian"`',
    "Gaussian": "`audit_gaussian`",
    "Clopper-Pearson": "`audit_runs`",
    "trade-off": "`audit_tradeoff`",
}
FORMS = {"gradient": "gradient canaries (white box)", "input": "mislabelled images (black box)"}


def planted_table(results: dict[str, Any]) -> str:
    """Every audit of the planted mechanism: what it certifies of the truth, and could have."""
    lines = [
        "| audit | median | least | most | ceiling | above the truth |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    planted = results["planted"]
    for row in planted["audits"]:
        shown = [at_least(row[name], digits=3) for name in ("median", "least", "most", "ceiling")]
        above = f"{row['above_the_truth']}/{planted['repetitions']}"
        lines.append(f"| {TITLES[row['audit']]} | {' | '.join(shown)} | {above} |")
    return "\n".join(lines)


def training_table(results: dict[str, Any]) -> str:
    """The runs on MNIST."""
    lines = [
        "| canaries | number | guesses | right | claimed | certified | ceiling | verdict |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for form, title in FORMS.items():
        if form not in results:
            continue
        run = results[form]
        audit = run["audits"][0]
        evidence = audit["evidence"]
        guesses = evidence["guesses_included"] + evidence["guesses_excluded"]
        lines.append(
            f"| {title} | {run['canaries']} | {guesses} | {evidence['correct']} | "
            f"{at_most(audit['claimed_epsilon'], digits=3)} | "
            f"{at_least(audit['epsilon_lower'], digits=3)} | "
            f"{at_least(audit['ceiling'], digits=3)} | {audit['verdict']} |"
        )
    return "\n".join(lines)


def main() -> None:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    text = PAGE.read_text(encoding="utf-8")
    text = write_between(text, "planted table", planted_table(results))
    text = write_between(text, "training table", training_table(results))
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
