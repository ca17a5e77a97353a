"""Which faults of learners the audits of training find, from runs with seeded noise.

    python benchmarks/learner_mutants.py [--repeats N | --from-results]

Every learner of mutant_learners.py is trained and audited, each time anew, at a false-alarm
rate of 1e-3, and so are the right ones, the Trainer of the package among them. Then the package
is asked to do each fault itself, which it must refuse where it can be asked. Writes
benchmarks/results/mutants.json and mutants.png, docs/images/mutants.png and the table between
the markers of docs/auditing-training.md, and exits with 1 if a fault was not found in every
repetition or a right learner was accused.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from detection_table import write_between
from discreet.audit import TrainingAudit
from discreet.cli.pictures import COLOURS, blank_figure, save, tidy
from discreet.cli.tables import at_least, at_most
from mutant_cases import CANARIES, CASES, RATE, Case
from mutant_refusals import REFUSALS, Refusal

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "mutants.json"
PICTURE = RESULTS.with_suffix(".png")
PAGE = ROOT / "docs" / "auditing-training.md"
IMAGE = ROOT / "docs" / "images" / "mutants.png"
REPEATS = 10


def most_telling(audits: dict[str, TrainingAudit]) -> str:
    """The score that shows most; one that contradicts the claim before all others."""
    return max(audits, key=lambda name: (audits[name].violated, audits[name].epsilon_lower))


def row(case: Case, repeats: int) -> dict[str, Any]:
    start = time.perf_counter()
    caught, shown = 0, []
    for seed in range(1, repeats + 1):
        audits = case.audit(seed)
        name = most_telling(audits)
        caught += audits[name].violated
        shown.append((audits[name].epsilon_lower, name, audits[name]))
    # The median repetition stands for all of them.
    _, name, audit = sorted(shown, key=lambda each: each[0])[(repeats - 1) // 2]
    refusal = REFUSALS.get(case.name)
    return {
        "name": case.name,
        "about": case.about,
        "broken": case.broken,
        "shows": case.shows,
        "by": case.by,
        "score": name,
        "audit": audit.to_json(),
        "repeats": repeats,
        "caught": caught,
        "package": None if refusal is None else asked(refusal),
        "seconds": round(time.perf_counter() - start, 2),
    }


def asked(refusal: Refusal) -> dict[str, str]:
    """What the package says when it is asked to do the fault itself."""
    if refusal.attempt is None:
        return {"answer": "cannot be asked", "why": refusal.why}
    try:
        refusal.attempt()
    except refusal.error as error:
        return {"answer": type(error).__name__, "why": refusal.why, "message": str(error)}
    return {"answer": "NOT REFUSED", "why": refusal.why}


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| learner | what it does | the package | found by | claimed | shown | ceiling | caught |",
        "|---|---|---|---|---:|---:|---:|---:|",
    ]
    for each in rows:
        audit = each["audit"]
        about = f"**broken:** {each['about']}" if each["broken"] else each["about"]
        package = "" if each["package"] is None else said(each["package"])
        shown = at_least(audit["epsilon_lower"], digits=3)
        tiny = audit["claimed_epsilon"] < 1e-9
        claimed = "< 1e-9" if tiny else at_most(audit["claimed_epsilon"], digits=3)
        lines.append(
            f"| {each['name']} | {about} | {package} | {each['by']}: {each['score']} | "
            f"{claimed} at {audit['delta']:g} | {shown} | "
            f"{at_least(audit['ceiling'], digits=3)} | {each['caught']}/{each['repeats']} |"
        )
    return "\n".join(lines)


def said(package: dict[str, str]) -> str:
    if package["answer"] == "cannot be asked":
        return package["why"]
    return f"`{package['answer']}`: {package['why']}"


def wrong(rows: list[dict[str, Any]]) -> list[str]:
    """Faults that were missed once or that the package would do, and right learners accused."""
    found = []
    for each in rows:
        # A right learner is accused with a probability below 1e-3 in each repetition.
        expected = each["repeats"] if each["broken"] else 0
        misjudged = each["shows"] and each["caught"] != expected
        allowed = each["package"] is not None and each["package"]["answer"] == "NOT REFUSED"
        if misjudged or allowed:
            found.append(each["name"])
    return found


def draw(rows: list[dict[str, Any]], *places: Path) -> None:
    figure = blank_figure(9, 0.3 * len(rows) + 1.2)
    axes = figure.subplots()
    for height, each in enumerate(reversed(rows)):
        audit = each["audit"]
        colour = COLOURS["vermilion" if each["broken"] else "blue"]
        axes.plot([0, audit["ceiling"]], [height, height], color="#E4E4E4", lw=6, zorder=1)
        axes.plot([0, audit["epsilon_lower"]], [height, height], color=colour, lw=2.5, zorder=2)
        axes.plot(audit["epsilon_lower"], height, "o", color=colour, ms=6, zorder=3)
        axes.plot(
            audit["claimed_epsilon"], height, "|", color=COLOURS["black"], ms=11, mew=2, zorder=4
        )
    axes.set_yticks(range(len(rows)), [each["name"] for each in reversed(rows)])
    axes.set_xlabel("epsilon: shown (dot), claimed (bar), ceiling (grey)")
    axes.set_title("Learners with a fault (orange) and right ones (blue), as audited", fontsize=10)
    axes.set_xlim(left=-0.02)
    tidy(axes)
    axes.tick_params(axis="y", labelsize=8)
    for place in places:
        save(figure, place)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--from-results", action="store_true", help="only tabulate and draw")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.from_results:
        results = json.loads(RESULTS.read_text(encoding="utf-8"))
    else:
        results = {"false_alarm_rate": RATE, "canaries": CANARIES, "rows": []}
        for case in CASES:
            results["rows"].append(row(case, options.repeats))
            last = results["rows"][-1]
            shown = (
                f"{last['audit']['epsilon_lower']:.3f} of {last['audit']['claimed_epsilon']:.3f}"
            )
            caught = f"{last['caught']}/{last['repeats']}"
            print(f"{case.name:40} {caught:7} {shown:20} {last['seconds']:7.1f} s", flush=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    rows = results["rows"]
    draw(rows, PICTURE, IMAGE)
    page = write_between(PAGE.read_text(encoding="utf-8"), "mutants table", table(rows))
    PAGE.write_text(page, encoding="utf-8")
    missed = wrong(rows)
    print("wrong verdicts:", ", ".join(missed) or "none")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
