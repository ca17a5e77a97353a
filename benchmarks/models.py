"""Time of a step over plain training for models that people bring, and memory of a GPT-2.

As `make bench-training` does it, with one thread: all ways run in turn in one process, round after
round, and the median over rounds of the ratio to plain training counts. Of ours the faster of the
loop and the call is judged, of Opacus the fastest mode that runs. Memory is measured in processes
of their own.
"""

from __future__ import annotations

import logging
from typing import Any

from harness import Run, Suite, found, target
from models_tasks import BROUGHT, LARGE_GPT2
from training import MEGABYTES, compare, show
from training_memory import measured
from training_ways import ONE_CALL, OURS, PLAIN, WAYS, compile_noise

MEMORY = "memory"
MOST_MEMORY = 1.25
OPACUS = [way for way in WAYS if way.startswith("Opacus")]


def measure(asked: Run) -> dict[str, Any]:
    logging.getLogger("discreet").setLevel(logging.ERROR)
    rounds, budget = (3, 2.0) if asked.quick else (9, 6.0)
    compile_noise()
    parts: dict[str, Any] = {}
    for task in BROUGHT:
        if asked.wants(task.name):
            row = compare(task, threads=1, rounds=rounds, budget=budget)
            show(row)
            parts[task.name] = row
    if asked.wants(MEMORY):
        ways = [PLAIN, OURS] if asked.quick else [PLAIN, OURS, "Opacus ghost", "Opacus hooks"]
        used = {way: measured(LARGE_GPT2, way) for way in ways}
        print(f"{LARGE_GPT2.name}: megabytes {used}", flush=True)
        parts[MEMORY] = {"megabytes": used, "batch": LARGE_GPT2.batch}
    return parts


def best(row: dict[str, Any], ways: list[str]) -> float | None:
    """The ratio to plain training of the fastest of these ways."""
    return min((row["ratios"][way] for way in ways if way in row["ratios"]), default=None)


def targets(record: dict[str, Any]) -> list[dict[str, Any]]:
    listed = []
    for task in BROUGHT:
        row = found(record, task.name)
        if not row:
            continue
        ours, peer = best(row, [OURS, ONE_CALL]), best(row, OPACUS)
        listed.append(target(f"{task.name}: step over plain", ours, at_most=row["target"]))
        if peer is not None and ours is not None:
            what = f"{task.name}: times faster than the fastest mode of Opacus"
            listed.append(target(what, peer / ours, at_least=task.times_opacus))
    used = found(record, MEMORY)
    if used:
        plain, ours = used["megabytes"][PLAIN], used["megabytes"][OURS]
        assert plain > MEGABYTES
        what = f"{LARGE_GPT2.name}: peak memory over plain"
        listed.append(target(what, ours and ours / plain, at_most=MOST_MEMORY))
    return listed


def table(record: dict[str, Any]) -> str:
    lines = [
        "| model | trained parameters | batch | plain | Discreet | target | fastest Opacus |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for task in BROUGHT:
        row = found(record, task.name)
        if not row:
            continue
        ours, peer = best(row, [OURS, ONE_CALL]), best(row, OPACUS)
        beside = "none runs" if peer is None else f"{peer:.2f}"
        lines.append(
            f"| {task.name} | {row['parameters']:,} | {row['batch']} "
            f"| {row['milliseconds'][PLAIN]:.0f} ms | {ours:.2f} | {row['target']:g} | {beside} |"
        )
    return "\n".join(lines)


def memory(way: str, record: dict[str, Any]) -> str:
    used = found(record, MEMORY)["megabytes"]
    return f"{used[way] / used[PLAIN]:.2f}"


SUITE = Suite(
    "models",
    measure,
    targets,
    parts=(*(task.name for task in BROUGHT), MEMORY),
    tables={("docs/models.md", "models timed"): table},
    numbers={"memory": lambda record: memory(OURS, record)},
)
