"""Which faults the mechanism auditor finds, from a run with seeded draws.

    python benchmarks/detection_table.py [--quick | --from-results]

Every specimen of the zoo is audited once with its own number of samples at a false-alarm
rate of 1e-6, and again and again with few samples at 1e-3, to see from when on a fault
shows. The mechanisms of the package are audited once. Writes
benchmarks/results/detection.json and detection.png, docs/images/detection.png and the
tables between the markers of docs/auditing-mechanisms.md, and exits with 1 if a broken
one was not refuted or a right one was. With --quick nothing is written; with
--from-results the recorded run is drawn and tabulated again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from discreet.audit import MechanismAudit
from discreet.audit.zoo import SPECIMENS, Specimen, bundled
from discreet.cli.pictures import COLOURS, blank_figure, save, tidy
from discreet.cli.tables import at_least, at_most

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "auditing-mechanisms.md"
IMAGE = ROOT / "docs" / "images" / "detection.png"

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


def zoo_table(results: list[dict[str, Any]]) -> str:
    lines = [
        "| mechanism | what it does | claimed | shown | ceiling | samples | verdict | 1e3 | 1e4 |",
        "|---|---|---:|---:|---:|---:|---|---:|---:|",
    ]
    for result in sorted(results, key=lambda each: not each["broken"]):
        audit = audit_of(result)
        shares = [f"{result['refuted_of_repeats'][str(s)]}/{result['repeats']}" for s in SIZES]
        about = result["about"] if not result["broken"] else f"**broken:** {result['about']}"
        lines.append(f"| `{result['name']}` | {about} | {_numbers(audit)} | {' | '.join(shares)} |")
    return "\n".join(lines)


def bundled_table(results: list[dict[str, Any]]) -> str:
    lines = [
        "| mechanism | loss that it states | claimed | shown | ceiling | samples | verdict |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    lines += [
        f"| `{result['name']}` | `{result['loss']}` | {_numbers(audit_of(result))} |"
        for result in results
    ]
    return "\n".join(lines)


def _numbers(audit: MechanismAudit) -> str:
    claimed = at_most(audit.claimed_epsilon, digits=4)
    if audit.delta:
        claimed += f" at {audit.delta:.3g}"
    shown = at_least(audit.epsilon_lower, digits=4)
    most = at_least(audit.ceiling, digits=4)
    samples = f"{audit.samples:,}".replace(",", " ")
    return f"{claimed} | {shown} | {most} | {samples} | {audit.verdict}"


def write_between(text: str, marker: str, content: str) -> str:
    begin, end = f"<!-- {marker}: begin -->", f"<!-- {marker}: end -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise SystemExit(f"{PAGE.name} needs one {begin} and one {end}")
    head, rest = text.split(begin)
    tail = rest.split(end)[1]
    return f"{head}{begin}\n{content}\n{end}{tail}"


def draw(results: list[dict[str, Any]], *places: Path) -> None:
    ordered = sorted(results, key=lambda each: (each["broken"], each["audit"]["epsilon_lower"]))
    figure = blank_figure(9, 0.27 * len(ordered) + 1.2)
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
    tidy(axes)
    axes.tick_params(axis="y", labelsize=8)
    for place in places:
        save(figure, place)


def run(repeats: int) -> dict[str, Any]:
    zoo: list[dict[str, Any]] = []
    own: list[dict[str, Any]] = []
    for results, specimens, times in (
        (zoo, SPECIMENS.values(), repeats),
        (own, bundled().values(), 0),
    ):
        for specimen in specimens:
            result = row(specimen, times)
            results.append(result)
            audit = audit_of(result)
            shown = f"shown {audit.epsilon_lower:.3f} of {audit.claimed_epsilon:.3f}"
            print(f"{specimen.name:32} {audit.verdict:16} {shown:24} {result['seconds']:6.2f} s")
    return {
        "seed": SEED,
        "false_alarm_rate": STRICT_RATE,
        "false_alarm_rate_of_repeats": REPEATED_RATE,
        "zoo": zoo,
        "bundled": own,
    }


def publish(document: dict[str, Any]) -> None:
    """Draw the picture and write the tables into the page."""
    IMAGE.parent.mkdir(exist_ok=True)
    draw(document["zoo"], RESULTS / "detection.png", IMAGE)
    text = PAGE.read_text(encoding="utf-8")
    text = write_between(text, "detection table", zoo_table(document["zoo"]))
    text = write_between(text, "bundled table", bundled_table(document["bundled"]))
    PAGE.write_text(text, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description="What the mechanism auditor finds.")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--quick", action="store_true", help="no repetitions, nothing written")
    how.add_argument("--from-results", action="store_true", help="publish the recorded run again")
    arguments = parser.parse_args()
    path = RESULTS / "detection.json"
    if arguments.from_results:
        document = json.loads(path.read_text(encoding="utf-8"))
    else:
        document = run(0 if arguments.quick else 20)
    if not arguments.quick:
        RESULTS.mkdir(exist_ok=True)
        path.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        publish(document)
    everything = [*document["zoo"], *document["bundled"]]
    wrong = [each["name"] for each in everything if audit_of(each).violated != each["broken"]]
    print("wrong verdicts:", ", ".join(wrong) or "none")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
