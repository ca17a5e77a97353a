"""Which faults the mechanism auditor finds, from a run with seeded draws.

Every specimen of the zoo is audited once with its own number of samples at a false-alarm
rate of 1e-6, and again and again with few samples at 1e-3, to see from when on a fault
shows. The mechanisms of the package are audited once. A run fails if a broken mechanism was
not refuted or a right one was. The parts are the names of mechanisms.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from discreet._rounding import at_least, at_most
from discreet.audit import MechanismAudit
from discreet.audit.zoo import SPECIMENS, Specimen, bundled
from discreet.report import COLOURS, new_figure, save_figure, tidy_axes
from harness import Run, Suite, claim, found

STRICT_RATE = 1e-6
REPEATED_RATE = 1e-3
SIZES = (1_000, 10_000)
SEED = 1


def row(specimen: Specimen, repeats: int) -> dict[str, Any]:
    start = time.perf_counter()
    audit = specimen.audit(false_alarm_rate=STRICT_RATE, insecure_seed=SEED)
    spent = time.perf_counter() - start
    refuted = {
        str(size): sum(
            specimen.audit(
                samples=size, false_alarm_rate=REPEATED_RATE, insecure_seed=SEED + 1 + i
            ).violated
            for i in range(repeats)
        )
        for size in (SIZES if repeats else ())
    }
    return {
        "name": specimen.name,
        "about": specimen.about,
        "broken": specimen.broken,
        "loss": repr(specimen.loss),
        "audit": audit.to_json(),
        "seconds": round(spent, 3),
        "repeats": repeats,
        "refuted_of_repeats": refuted,
    }


def audit_of(result: dict[str, Any]) -> MechanismAudit:
    return MechanismAudit(**{**result["audit"], "hits": tuple(result["audit"]["hits"])})


def zoo_table(record: dict[str, Any]) -> str:
    lines = [
        "| mechanism | what it does | claimed | shown | ceiling | samples | verdict | 1e3 | 1e4 |",
        "|---|---|---:|---:|---:|---:|---|---:|---:|",
    ]
    for result in sorted(rows(record, SPECIMENS), key=lambda each: not each["broken"]):
        audit = audit_of(result)
        shares = [f"{result['refuted_of_repeats'][str(s)]}/{result['repeats']}" for s in SIZES]
        about = result["about"] if not result["broken"] else f"**broken:** {result['about']}"
        lines.append(
            f"| `{result['name']}` | {about} | {columns_of_audit(audit)} | {' | '.join(shares)} |"
        )
    return "\n".join(lines)


def bundled_table(record: dict[str, Any]) -> str:
    lines = [
        "| mechanism | loss that it states | claimed | shown | ceiling | samples | verdict |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    lines += [
        f"| `{result['name']}` | `{result['loss']}` | {columns_of_audit(audit_of(result))} |"
        for result in rows(record, bundled())
    ]
    return "\n".join(lines)


def columns_of_audit(audit: MechanismAudit) -> str:
    claimed = at_most(audit.claimed_epsilon, digits=4)
    if audit.delta:
        claimed += f" at {audit.delta:.3g}"
    shown = at_least(audit.epsilon_lower, digits=4)
    most = at_least(audit.ceiling, digits=4)
    samples = f"{audit.samples:,}".replace(",", " ")
    return f"{claimed} | {shown} | {most} | {samples} | {audit.verdict}"


def draw(record: dict[str, Any], place: Path) -> None:
    ordered = sorted(
        rows(record, SPECIMENS), key=lambda each: (each["broken"], each["audit"]["epsilon_lower"])
    )
    figure = new_figure(9, 0.27 * len(ordered) + 1.2)
    axes = figure.subplots()
    for height, result in enumerate(ordered):
        audit = audit_of(result)
        colour = COLOURS["vermilion" if result["broken"] else "blue"]
        axes.plot([0, audit.ceiling], [height, height], color="#E4E4E4", lw=5, zorder=1)
        axes.plot([0, audit.epsilon_lower], [height, height], color=colour, lw=2.5, zorder=2)
        axes.plot(audit.epsilon_lower, height, "o", color=colour, ms=6, zorder=3)
        axes.plot(
            audit.claimed_epsilon, height, "|", color=COLOURS["black"], ms=13, mew=2, zorder=4
        )
    axes.set_yticks(range(len(ordered)), [result["name"] for result in ordered])
    axes.set_xlabel("epsilon: shown (dot), claimed (bar), ceiling of the audit (grey)")
    axes.set_title(
        "Shown beyond what is claimed: broken mechanisms (orange), not right ones (blue)"
    )
    axes.set_xlim(left=0)
    tidy_axes(axes)
    axes.tick_params(axis="y", labelsize=8)
    save_figure(figure, place)


def specimens() -> dict[str, Specimen]:
    return {**SPECIMENS, **bundled()}


def rows(record: dict[str, Any], names: Iterable[str]) -> list[dict[str, Any]]:
    return [found(record, name) for name in names if found(record, name)]


def measure(asked: Run) -> dict[str, Any]:
    measured = {}
    for name, specimen in specimens().items():
        if not asked.wants(name):
            continue
        own = name not in SPECIMENS
        measured[name] = result = row(specimen, 0 if own or asked.quick else 20)
        audit = audit_of(result)
        shown = f"shown {audit.epsilon_lower:.3f} of {audit.claimed_epsilon:.3f}"
        print(f"{name:32} {audit.verdict:16} {shown:24} {result['seconds']:6.2f} s", flush=True)
    return measured


def targets(record: dict[str, Any]) -> list[dict[str, Any]]:
    """A broken mechanism is violated, a right one is not."""
    return [
        claim(f"{each['name']}: right verdict", audit_of(each).violated == each["broken"])
        for each in rows(record, specimens())
    ]


PAGE = "docs/auditing-mechanisms.md"
SUITE = Suite(
    "detection",
    measure,
    targets,
    parts=tuple(specimens()),
    tables={(PAGE, "detection table"): zoo_table, (PAGE, "bundled table"): bundled_table},
    pictures={"detection.png": draw},
)
