"""Time and memory of a private training step beside plain SGD, Opacus and torch.func.

All ways run in turn in one process, round after round, a burst of steps each (the first step of
a burst is not counted), so that a slow spell of the machine hits all of them. A round gives the
ratio of each way to plain SGD in that round; the median over rounds counts. Peak memory is
measured in processes of their own. Ours goes through the public interface with cryptographic
noise, the peers use torch's generator. Two forms of ours are timed, the user's own loop and one
call a batch (private.step); of ours as of Opacus the faster one is judged, and all are shown.
Drawing and loading the batch is not part of a step (what drawing a Poisson batch costs is
listed). The parts are the tasks, "trial" (what ``make_private`` and the first batch of a
22-million-parameter BERT with LoRA cost) and "growth".
"""

from __future__ import annotations

import logging
import statistics
import time
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from discreet.learn import dpsgd
from discreet.learn.dpsgd._batches import draws
from harness import Run, Suite, found, target
from training_memory import measured
from training_models import MLP, TASKS, TRANSFORMER, Classifier, Task, perceptron, tokens
from training_picture import draw
from training_trial import TRIAL, measure_trial, trial_targets
from training_ways import (
    ONE_CALL,
    OURS,
    PLAIN,
    WAYS,
    Step,
    TooLarge,
    UnderPlan,
    compile_noise,
    trained,
)

THREADS = (1, 2)
MEMORY = 1.3
# Less than this cannot be told from slack of the process; such differences are shown, not judged.
MEGABYTES = 4.0
OPACUS = [way for way in WAYS if way.startswith("Opacus")]


def seconds(step: Step, burst: int) -> float:
    """Median time of a step within a burst, without the first."""
    times = []
    for _ in range(burst + 1):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    rest(step)
    return statistics.median(times[1:])


def rest(step: Step) -> None:
    """Leave the loop of a step that has one: while it is open it looks at all of torch's calls."""
    if isinstance(step, UnderPlan):
        step.rest()


def steps_of(task: Task, ways: list[str]) -> tuple[dict[str, Step], dict[str, str]]:
    """Return what can be run, warmed up, and why the rest cannot."""
    steps, failures = {}, {}
    for way in ways:
        try:
            step = WAYS[way](task)
            step()
            step()
            rest(step)
            steps[way] = step
        except (RuntimeError, NotImplementedError, ValueError, TooLarge) as reason:
            failures[way] = f"{type(reason).__name__}: {reason}"[:200]
    return steps, failures


def compare(task: Task, *, threads: int, rounds: int, budget: float) -> dict[str, Any]:
    """Time all ways of one task, interleaved; slow ways sit out once the budget is spent."""
    torch.set_num_threads(threads)
    steps, failures = steps_of(task, list(WAYS))
    ratios: dict[str, list[float]] = {way: [] for way in steps}
    times: dict[str, list[float]] = {way: [] for way in steps}
    spent = dict.fromkeys(steps, 0.0)
    for _ in range(rounds):
        reference = seconds(steps[PLAIN], task.burst)
        for way, step in steps.items():
            if way not in (PLAIN, OURS, ONE_CALL) and spent[way] > budget and len(times[way]) >= 3:
                continue
            slow = times[way] and times[way][-1] > 5 * reference
            start = time.perf_counter()
            value = reference if way == PLAIN else seconds(step, 1 if slow else task.burst)
            spent[way] += time.perf_counter() - start
            times[way].append(value)
            ratios[way].append(value / reference)
    return {
        "task": task.name,
        "batch": task.batch,
        "threads": threads,
        "target": task.most,
        "parameters": sum(one.numel() for one in trained(task.make())),
        "milliseconds": {way: 1e3 * statistics.median(values) for way, values in times.items()},
        "ratios": {way: statistics.median(values) for way, values in ratios.items()},
        "quarters": {
            way: statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
            for way, values in ratios.items()
        },
        "failures": failures,
    }


def growth(rounds: int) -> dict[str, Any]:
    """Cost against batch size, width and sequence length, with one thread."""
    torch.set_num_threads(1)
    curves = {
        "batch size (MLP)": {n: replace(MLP, batch=n) for n in (32, 128, 512, 2048)},
        "width (MLP, batch 256)": {
            n: replace(MLP, make=lambda n=n: perceptron(784, n, n, 10)) for n in (64, 256, 1024)
        },
        "sequence length (transformer, batch 16)": {
            n: replace(
                TRANSFORMER,
                batch=16,
                make=lambda n=n: Classifier(steps=n),
                inputs=tokens(5000, n),
            )
            for n in (16, 64, 256)
        },
    }
    result = {}
    for name, tasks in curves.items():
        series: dict[str, list[float | None]] = {way: [] for way in (PLAIN, OURS, "Opacus ghost")}
        for task in tasks.values():
            steps, _ = steps_of(task, list(series))
            times: dict[str, list[float]] = {way: [] for way in steps}
            for _ in range(rounds):
                for way, step in steps.items():
                    times[way].append(seconds(step, 3))
            for way, values in series.items():
                values.append(1e3 * statistics.median(times[way]) if way in times else None)
        result[name] = {"sizes": list(tasks), "milliseconds": series}
    return result


def drawing() -> float:
    """Milliseconds to draw one Poisson batch of 256 out of 60 000 examples."""
    plan = dpsgd.Plan(
        examples=60_000,
        expected_batch_size=256,
        steps=1_000,
        clip_norm=1.0,
        noise_multiplier=1.0,
        delta=1e-6,
    )
    batches = iter(draws(plan, population=60_000))
    times = []
    for _ in range(50):
        start = time.perf_counter()
        next(batches)
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def targets(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Each target beside what was measured."""
    listed = []
    for task in TASKS:
        part = found(record, task.name)
        for row in part["rows"] if part else ():
            where = f"{task.name}, {row['threads']} thread{'s' if row['threads'] > 1 else ''}"
            ratio, way = min((row["ratios"][way], way) for way in (OURS, ONE_CALL))
            form = "own loop" if way == OURS else "one call"
            if task.milliseconds is None or row["target"] != task.most:  # as it was recorded
                what = f"{where}: step over plain, {form}"
                listed.append(target(what, ratio, at_most=row["target"]))
            else:
                over = row["milliseconds"][way] - row["milliseconds"][PLAIN]
                what = f"{where}: milliseconds over plain, {form}"
                listed.append(target(what, over, at_most=task.milliseconds))
            if peers := [row["ratios"][way] for way in OPACUS if way in row["ratios"]]:
                what = f"{where}: times faster than the fastest mode of Opacus"
                listed.append(target(what, min(peers) / ratio, at_least=task.times_opacus))
        if part and part["megabytes"].get(OURS) and part["megabytes"].get(PLAIN):
            used, reference = part["megabytes"][OURS], part["megabytes"][PLAIN]
            if used - reference >= MEGABYTES:
                what = f"{task.name}: peak memory over plain"
                listed.append(target(what, used / reference, at_most=MEMORY))
    return listed + trial_targets(found(record, TRIAL))


def show(row: dict[str, Any]) -> None:
    milliseconds = row["milliseconds"][PLAIN]
    print(f"{row['task']}, {row['threads']} thread(s): plain {milliseconds:.2f} ms", flush=True)
    for way, ratio in row["ratios"].items():
        if way != PLAIN:
            low, _, high = row["quarters"][way]
            print(f"    {way:18s} {ratio:8.2f}   (quarters {low:.2f} to {high:.2f})", flush=True)
    for way, reason in row["failures"].items():
        print(f"    {way:18s} {reason.splitlines()[0]}", flush=True)


def measure(asked: Run) -> dict[str, Any]:
    logging.getLogger("discreet").setLevel(logging.ERROR)
    rounds, budget = (5, 3.0) if asked.quick else (11, 6.0)
    compile_noise()
    parts: dict[str, Any] = {}
    for task in TASKS:
        if not asked.wants(task.name):
            continue
        rows = []
        for threads in THREADS:
            more = 1 if asked.quick else task.more_rounds
            rows.append(compare(task, threads=threads, rounds=more * rounds, budget=budget))
            show(rows[-1])
        ways = [PLAIN, OURS] if asked.quick else [PLAIN, OURS, "Opacus ghost", "Opacus hooks"]
        parts[task.name] = {"rows": rows, "megabytes": {way: measured(task, way) for way in ways}}
    if asked.wants(TRIAL):
        parts[TRIAL] = measure_trial()
    if asked.wants("growth"):
        parts["growth"] = {
            "curves": growth(3 if asked.quick else 5),
            "drawing_a_poisson_batch_milliseconds": drawing(),
        }
    return parts


def table(record: dict[str, Any]) -> str:
    """Ratios to plain SGD with 1 and 2 threads; memory too, or megabytes where that is little."""
    lines = [
        "| model | loop | call | target | fastest Opacus | peak memory |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for task in TASKS:
        part = found(record, task.name)
        if not part:
            continue
        rows = part["rows"]
        loop, call = (
            ", ".join(f"{row['ratios'][way]:.2f}" for row in rows) for way in (OURS, ONE_CALL)
        )
        peers = ", ".join(
            f"{min(row['ratios'][way] for way in OPACUS if way in row['ratios']):.1f}"
            for row in rows
        )
        used, reference = part["megabytes"][OURS], part["megabytes"][PLAIN]
        memory = f"{used:.1f} MB" if used < MEGABYTES else f"{used / reference:.2f}"
        lines.append(
            f"| {task.name} | {loop} | {call} | {rows[0]['target']:g} | {peers} | {memory} |"
        )
    return "\n".join(lines)


def span(way: str, record: dict[str, Any]) -> str:
    ratios = [
        row["ratios"][way] for task in TASKS for row in found(record, task.name).get("rows", ())
    ]
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


SUITE = Suite(
    "training",
    measure,
    targets,
    parts=(*(task.name for task in TASKS), TRIAL, "growth"),
    tables={("docs/training.md", "training table"): table},
    pictures={"training.png": draw},
    numbers={"call": partial(span, ONE_CALL), "loop": partial(span, OURS)},
)
