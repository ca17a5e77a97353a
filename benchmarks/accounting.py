"""Tightness and speed of the accountants beside their peers, in one process.

All libraries are single-threaded and take turns, round after round, so that a slow spell of
the machine hits all of them; the median counts. A peer that gives no finite epsilon within
its allowance is recorded as no answer.
"""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

import accountants
from accountants import OPTIMISTIC, OURS, PEER
from accounting_judges import allocation_peers, measure_risk
from accounting_picture import draw
from accounting_rows import (
    ALLOCATIONS,
    CALIBRATIONS,
    CORNERS,
    RISKS,
    STEP_CURVES,
    USUAL,
    Row,
    mixed_atoms,
)
from accounting_table import table
from accounting_targets import targets, usable
from harness import Run, Suite, found
from side_by_side import Timing, compare

PARTS = (
    "rows", "mixtures", "allocation", "calibration", "risk", "steps_curves", "import_seconds",
)  # fmt: skip
BASE_IMPORT = "numpy, scipy.special"
QUICK_PEERS = (OURS, PEER, OPTIMISTIC)


def limits(seconds: float) -> dict[str, float]:
    """Seconds that each may take; the peer that the targets name gets the most."""
    return {
        name: seconds if name in (OURS, PEER) else seconds / 3 for name in accountants.LIBRARIES
    }


def finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def described(timing: Timing) -> dict[str, Any]:
    """Bounds and seconds of one contestant, or why there are none."""
    lower, upper = timing.answer if timing.answer is not None else (None, None)
    failure = timing.failure
    if failure is None and finite(upper) is None and finite(lower) is None:
        failure = f"answers {upper}"
    return {
        "lower": None if failure else finite(lower),
        "upper": None if failure else finite(upper),
        "seconds": None if failure else timing.median,
        "calls": len(timing.seconds),
        "failure": failure,
    }


def measure_row(label: str, queries: dict[str, Any], rounds: int, limit: float) -> dict[str, Any]:
    timings = compare(queries, rounds=rounds, limits=limits(limit))
    return judged(label, {name: described(timing) for name, timing in timings.items()})


def judged(label: str, answers: dict[str, Any]) -> dict[str, Any]:
    """Return a row with the names of those whose upper bound is refuted by our lower one."""
    row = {"row": label, "answers": answers}
    certified = answers[OURS]["lower"]
    row["below_the_certified_lower_bound"] = [
        name
        for name, answer in answers.items()
        if answer["upper"] is not None
        and certified is not None
        and answer["upper"] < certified * (1.0 - 1e-9) - 1e-9
    ]
    print(line(row), flush=True)
    return row


def line(row: dict[str, Any]) -> str:
    ours = row["answers"][OURS]
    text = f"{row['row']:32s}"
    if not usable(ours):
        return f"{text} discreet: {ours['failure']}"
    text += f" [{ours['lower']:.6g}, {ours['upper']:.6g}] {ours['seconds']:.4f} s"
    for name, answer in row["answers"].items():
        if name == OURS:
            continue
        if answer["seconds"] is None:
            text += f"\n    {name}: {answer['failure']}"
            continue
        bound = answer["upper"] if answer["upper"] is not None else answer["lower"]
        ratio = answer["seconds"] / ours["seconds"]
        text += f"\n    {name}: {bound:.6g} in {answer['seconds']:.3f} s, {ratio:.1f} times ours"
    return text


def measure_calibration(
    settings: tuple[Any, ...], taking_part: tuple[str, ...] | None, rounds: int, limit: float
) -> dict[str, Any]:
    """A search for the noise, counted in queries at the noise that it finds."""
    epsilon, delta, rate, steps = settings
    searches = {
        name: search
        for name, search in accountants.calibrations(epsilon, delta, rate, steps).items()
        if name in (taking_part or (OURS,))
    }
    noise = searches[OURS]()
    query = partial(accountants.ours, Row(noise, rate, steps, delta))
    searches["one query"] = query
    allowed = limits(limit) | {"one query": limit}
    timings = compare(searches, rounds=rounds, limits=allowed)
    one, ours = timings["one query"].median, timings[OURS].median
    entry = {
        "epsilon": epsilon,
        "delta": delta,
        "rate": rate,
        "steps": steps,
        "queries": None if one is None or ours is None else ours / one,
        "answers": {
            name: {"noise": timing.answer, "seconds": timing.median, "failure": timing.failure}
            for name, timing in timings.items()
            if name != "one query"
        },
    }
    shown = ", ".join(
        f"{name} {answer['noise']:.4f} in {answer['seconds']:.3f} s"
        if answer["seconds"] is not None
        else f"{name}: {answer['failure']}"
        for name, answer in entry["answers"].items()
    )
    print(f"epsilon {epsilon:g}, rate {rate:.4g}, steps {steps}: {shown}", flush=True)
    return entry


def measure_steps(noise: float, rate: float, decades: int, rounds: int) -> dict[str, Any]:
    """Seconds for 1, 10, ... 10^decades steps, all points in turn."""
    counts = [10**k for k in range(decades + 1)]
    names = [name for name in (OURS, PEER) if accountants.installed(name)]
    calls = {
        f"{name} {steps}": accountants.queries(Row(noise, rate, steps, 1e-6))[name]
        for name in names
        for steps in counts
    }
    allowed = {key: 60.0 if key.startswith(OURS) else 5.0 for key in calls}
    timings = compare(calls, rounds=rounds, limits=allowed)
    points = [
        {"steps": steps, "seconds": {name: timings[f"{name} {steps}"].median for name in names}}
        for steps in counts
    ]
    ours = [point["seconds"][OURS] or allowed[f"{OURS} 1"] for point in points]
    # A single step needs no inversion and is left out.
    slope = np.polyfit(np.log(counts[1:]), np.log(ours[1:]), 1)[0] if decades > 1 else 0.0
    return {
        "curve": f"noise {noise:g}, rate {rate:g}",
        "points": points,
        "slope": float(slope),
        "most_growth": most_growth(ours[1:]),
    }


def most_growth(seconds: Sequence[float]) -> float:
    """The most by which more steps cost more than fewer: 1 if cost never grows."""
    return max(later / min(seconds[: i + 1]) for i, later in enumerate(seconds))


def import_seconds(rounds: int, *, slow_ones: bool) -> dict[str, Any]:
    """Seconds of an import in a fresh process, in turn; the ratio is that of neighbours.

    All are read from bytecode, as installed packages are, also where this shell writes none.
    """
    modules = [BASE_IMPORT, "discreet.privacy"]
    modules += [
        accountants.LIBRARIES[name]
        for name in (PEER, accountants.PRV, accountants.OPACUS_PRV)
        if slow_ones and accountants.installed(name)
    ]
    seconds: dict[str, list[float]] = {module: [] for module in modules}
    with tempfile.TemporaryDirectory() as bytecode:
        around = os.environ | {"PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""}
        for number in range(rounds):
            # The slow ones only now and then; the first round writes the bytecode.
            for module in modules[: 2 if number % 5 else None]:
                program = (
                    "import time; start = time.process_time()\n"
                    f"import {module}\nprint(time.process_time() - start)"
                )
                done = subprocess.run(
                    [sys.executable, "-W", "ignore", "-c", program],
                    check=True,
                    capture_output=True,
                    text=True,
                    env=around,
                )
                seconds[module].append(float(done.stdout.split()[-1]))
    pairs = list(zip(seconds["discreet.privacy"], seconds[BASE_IMPORT], strict=True))
    return {
        "medians": {module: statistics.median(values) for module, values in seconds.items()},
        "fastest": {module: min(values) for module, values in seconds.items()},
        "ratio": statistics.median(ours / base for ours, base in pairs[rounds > 1 :]),
    }


def measure(asked: Run) -> dict[str, Any]:
    """All measurements; a quick run has few rows, peers and repeats: it tries the machinery."""
    quick = asked.quick
    rounds, limit = (1, 20.0) if quick else (5, 30.0)
    taking_part = QUICK_PEERS if quick else tuple(accountants.LIBRARIES)

    def only(queries: dict[str, Any]) -> dict[str, Any]:
        return {name: query for name, query in queries.items() if name in taking_part}

    def rows() -> list[dict[str, Any]]:
        chosen = (USUAL[8], CORNERS[12]) if quick else USUAL + CORNERS
        return [
            measure_row(row.label, only(accountants.queries(row)), rounds, limit) for row in chosen
        ]

    def mixtures() -> list[dict[str, Any]]:
        chosen = (
            (mixed_atoms(10, 2.0),) if quick else (mixed_atoms(1000, 1.0), mixed_atoms(1000, 0.6))
        )
        return [
            measure_row(
                f"{len(atoms)} distinct steps, noise {atoms[0][0]:g} ..",
                only(accountants.mixture_queries(atoms, 1e-5)),
                rounds,
                limit,
            )
            for atoms in chosen
        ]

    def allocation() -> list[dict[str, Any]]:
        found = []
        for settings in ALLOCATIONS[:1] if quick else ALLOCATIONS:
            query = {OURS: partial(accountants.ours_allocated, *settings)}
            timing = compare(query, rounds=rounds, limits={OURS: limit})[OURS]
            answers = {OURS: described(timing)}
            if not quick:
                answers |= allocation_peers(settings, timing.answer[1], limit)
            label = "{:g}, {} batches, {} epochs, {:g}".format(*settings)
            found.append(judged(label, answers))
        return found

    def risk() -> list[dict[str, Any]]:
        return [] if quick else [measure_risk(one, rounds, limit) for one in RISKS]

    def calibration() -> list[dict[str, Any]]:
        return [
            measure_calibration(settings, None if quick else taking_part, rounds, limit)
            for settings in (CALIBRATIONS[-1:] if quick else CALIBRATIONS)
        ]

    def steps_curves() -> list[dict[str, Any]]:
        return [
            measure_steps(*curve, 2 if quick else 7, rounds)
            for curve in (STEP_CURVES[:1] if quick else STEP_CURVES)
        ]

    def imports() -> dict[str, Any]:
        return import_seconds(2 if quick else 21, slow_ones=not quick)

    parts = dict(
        zip(
            PARTS,
            (rows, mixtures, allocation, calibration, risk, steps_curves, imports),
            strict=True,
        )
    )
    if any(map(asked.wants, ("rows", "mixtures", "calibration", "steps_curves"))):
        accountants.warm_up(taking_part)
    return {name: part() for name, part in parts.items() if asked.wants(name)}


def flat(record: dict[str, Any]) -> dict[str, Any]:
    """Return what each part found, empty if it was not run, with the targets that are judged."""
    parts = {name: found(record, name) or [] for name in PARTS}
    return parts | {"targets": record.get("targets", [])}


SUITE = Suite(
    "accounting",
    measure,
    lambda record: targets(flat(record)),
    parts=PARTS,
    tables={("docs/accounting.md", "accounting.json"): lambda record: table(flat(record))},
    pictures={"accounting.png": lambda record, path: draw(flat(record), path)},
)
