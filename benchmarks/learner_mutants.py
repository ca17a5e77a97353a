"""Which faults of learners the audits of training find, from runs with seeded noise.

Every learner of mutant_learners.py is trained and audited, each time anew, at a false-alarm
rate of 1e-3, and so are the right ones, the Trainer of the package among them. Then the package
is asked to do each fault itself, which it must refuse where it can be asked. A run fails if a fault
was not found in every repetition or a right learner was accused.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from discreet._rounding import at_least, at_most
from discreet.audit import TrainingAudit
from discreet.report import COLOURS, new_figure, save_figure, tidy_axes
from harness import Run, Suite, claim
from mutant_cases import CANARIES, CASES, RATE, Case
from mutant_refusals import REFUSALS, Refusal

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


def table(record: dict[str, Any]) -> str:
    lines = [
        "| learner | what it does | the package | found by | claimed | shown | ceiling | caught |",
        "|---|---|---|---|---:|---:|---:|---:|",
    ]
    for each in record["rows"]:
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


def targets(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Every fault is found each time and refused by the package; no right learner is accused."""
    listed = []
    for each in record["rows"]:
        # A right learner is accused with a probability below 1e-3 in each repetition.
        expected = each["repeats"] if each["broken"] else 0
        if each["shows"]:
            listed.append(claim(f"{each['name']}: right verdict", each["caught"] == expected))
        if each["package"] is not None:
            refused = each["package"]["answer"] != "NOT REFUSED"
            listed.append(claim(f"{each['name']}: refused by the package", refused))
    return listed


def draw(record: dict[str, Any], place: Path) -> None:
    rows = record["rows"]
    figure = new_figure(9, 0.3 * len(rows) + 1.2)
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
    tidy_axes(axes)
    axes.tick_params(axis="y", labelsize=8)
    save_figure(figure, place)


def measure(asked: Run) -> dict[str, Any]:
    torch.set_num_threads(1)
    rows = []
    for case in CASES:
        rows.append(last := row(case, 1 if asked.quick else REPEATS))
        shown = f"{last['audit']['epsilon_lower']:.3f} of {last['audit']['claimed_epsilon']:.3f}"
        caught = f"{last['caught']}/{last['repeats']}"
        print(f"{case.name:40} {caught:7} {shown:20} {last['seconds']:7.1f} s", flush=True)
    return {"false_alarm_rate": RATE, "canaries": CANARIES, "rows": rows}


SUITE = Suite(
    "mutants",
    measure,
    targets,
    tables={("docs/auditing-training.md", "mutants table"): table},
    pictures={"mutants.png": draw},
)
