"""The ledger under stress, against its targets.

1. 16 processes race 10,000 charges for one SQLite budget that has room for 8,000 of them: exactly
   8,000 are granted, every grant is on the chain, at least 500 durable charges a second.
2. The cost of one charge after 100, 1,000, 10,000 and 100,000 entries: at most logarithmic.
3. Signal 9 at random moments, 500 rounds (charges, migrations, training runs): the file opens, what
   was released was charged before, the chains verify.

The flush is the limit for one process alone; the time of a bare flush is measured, too.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from discreet.ledger import Ledger
from discreet.privacy import PureDP
from harness import Run, Suite, claim, target

HERE = Path(__file__).parent
LEAST_RATE = 500.0
# A logarithmic cost may grow with log(entries); noise of a shared machine is allowed on top.
SLACK = 1.5


def program(name: str, *arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, str(HERE / name), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=3600,
    )
    return json.loads(done.stdout)


def flush_milliseconds(directory: Path) -> float:
    times = []
    with (directory / "flush").open("wb") as file:
        for _ in range(100):
            file.write(b"x" * 4096)
            file.flush()
            began = time.perf_counter()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times)


def cost_by_length(path: Path, lengths: list[int]) -> dict[str, dict[str, float]]:
    """Milliseconds of one charge when the chain has grown to each length.

    The growth itself uses one long transaction per thousand entries, which leaves the same
    file; the charges that are timed are ordinary ones. ``work`` leaves out the flush.
    """
    loss = PureDP("1/1000000000")
    costs: dict[str, dict[str, float]] = {}
    with Ledger.create(path) as ledger:
        ledger.create_dataset("census", epsilon=1, delta="1e-6", unit="person")
        ledger.charge("census", loss)
        for length in lengths:
            grow(ledger, loss, length)
            whole, work = [], []
            for _ in range(200):
                began, busy = time.perf_counter(), time.process_time()
                ledger.charge("census", loss)
                whole.append(time.perf_counter() - began)
                work.append(time.process_time() - busy)
            costs[str(length)] = {
                "whole_ms": round(1e3 * statistics.median(whole), 4),
                "work_ms": round(1e3 * statistics.median(work), 4),
            }
        assert ledger.show("census").entries > lengths[-1]
    return costs


def grow(ledger: Ledger, loss: PureDP, length: int) -> None:
    """Charge until the chain has ``length`` entries, without waiting for the disk each time."""
    store = ledger._store
    writing = store.writing
    store.writing = lambda **_: writing(durable=False)  # type: ignore[method-assign]
    try:
        for _ in range(length - ledger.show("census").entries):
            ledger.charge("census", loss)
    finally:
        del store.writing  # type: ignore[method-assign]


def draw(result: dict[str, Any], place: Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.8), layout="constrained")
    costs = result["cost_by_length"]
    lengths = [int(length) for length in costs]
    left.semilogx(lengths, [c["whole_ms"] for c in costs.values()], "o-", color="#0072B2")
    left.semilogx(lengths, [c["work_ms"] for c in costs.values()], "o-", color="#D55E00")
    left.set_ylim(0)
    left.set_xlabel("entries on the chain")
    left.set_ylabel("milliseconds for one charge")
    left.set_title("blue: with the flush, orange: work alone", loc="left", fontsize=10)
    race = result["race"]
    alone = 1e3 / statistics.median(cost["whole_ms"] for cost in costs.values())
    names = ["one process\nalone", "target", f"{race['processes']} processes"]
    bars = right.bar(
        names,
        [alone, LEAST_RATE, race["charges_per_second"]],
        color=["#9A9A9A", "#E69F00", "#009E73"],
    )
    right.bar_label(bars, fmt="%.0f")
    right.set_title("durable charges a second", loc="left", fontsize=10)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(place, dpi=120)
    plt.close(figure)


def targets(result: dict[str, Any]) -> list[dict[str, Any]]:
    race, killing, costs = result["race"], result["killing"], result["cost_by_length"]
    lengths = [int(length) for length in costs]
    first, last = (costs[str(length)]["work_ms"] for length in (lengths[0], lengths[-1]))
    growth = math.log(lengths[-1]) / math.log(lengths[0])
    fits = race["granted"] == race["fit"] and race["spent"] == "1"
    return [
        claim("granted exactly what fits", fits),
        claim("every grant is on the chain", race["every_grant_on_chain"] and race["verified"]),
        target("charges a second", race["charges_per_second"], at_least=LEAST_RATE),
        target("cost of a long chain over a short one", last / first, at_most=SLACK * growth),
        claim("spent is at least released", killing["charged"] >= killing["released"] > 0),
        claim("all rounds were survived", sum(killing["rounds"].values()) == killing["asked"]),
    ]


def measure(asked: Run) -> dict[str, Any]:
    attempts, fit, rounds = (1000, 800, 50) if asked.quick else (10_000, 8_000, 500)
    lengths = [100, 1000, 10_000] if asked.quick else [100, 1000, 10_000, 100_000]
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        result: dict[str, Any] = {"flush_ms": round(flush_milliseconds(directory), 3)}
        print(f"one flush takes {result['flush_ms']} ms", flush=True)
        sizes = ("--attempts", str(attempts), "--fit", str(fit))
        result["race"] = program("ledger_race.py", str(directory / "race"), *sizes) | {"fit": fit}
        print("race:", result["race"], flush=True)
        result["cost_by_length"] = cost_by_length(directory / "long", lengths)
        print("cost:", result["cost_by_length"], flush=True)
        (directory / "killing").mkdir()
        killed = program("ledger_killing.py", str(directory / "killing"), "--rounds", str(rounds))
        result["killing"] = killed | {"asked": rounds}
    return result


def costs(result: dict[str, Any]) -> str:
    lengths = result["cost_by_length"].values()
    work = " / ".join(f"{cost['work_ms']:.2f}" for cost in lengths)
    whole = " / ".join(f"{cost['whole_ms']:.2f}" for cost in lengths)
    return f"{work} ms; with the flush {whole} ms"


def killings(result: dict[str, Any]) -> str:
    return f"{result['killing']['charged']:,} charged, {result['killing']['released']:,} released"


SUITE = Suite(
    "ledger",
    measure,
    targets,
    pictures={"ledger.png": draw},
    numbers={
        "flush": lambda result: f"{result['flush_ms']:.2f} ms",
        "rate": lambda result: f"{result['race']['charges_per_second']:.0f}",
        "cost": costs,
        "killing": killings,
    },
)
