"""The local model at one million people, beside pure-ldp and multi-freq-ldpy.

CPU seconds of client and server together, ours with the operating system's bits and exact coins.
The peers run in an environment of their own, .venv-local, on at most 2,000 people (200 at 100,000
values), once and after ours, and are scaled linearly to a million, which the table says. Then: the
measured variance beside its formula, and brackets of shuffled batches.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import time
import venv
from pathlib import Path
from typing import Any

import numpy as np

from discreet.local import FrequencyOracle
from discreet.privacy import PureDP
from harness import ROOT, Run, Suite, target

PEER = ROOT / ".venv-local"
PACKAGES = ("pure-ldp==1.2.0", "multi-freq-ldpy==0.2.5", "scikit-learn", "statsmodels", "xxhash<4")
MILLION = 1_000_000
DOMAINS = {64: 0.5, 1_024: 0.7, 100_000: 3.0}
BATCHES = [(10**4, 1), (10**6, 4), (10**8, 1), (10**8, 4)]
DELTA = 1e-6


def ours(domain: int, people: int) -> dict[str, Any]:
    """Time one collection, and measure its squared error over values that nobody has."""
    plan = FrequencyOracle(domain, 1)
    values = np.random.default_rng(domain).integers(0, max(1, domain // 10), people)
    start = time.process_time()
    reports = plan.randomize_each(values)
    sent = time.process_time()
    server = plan.server()
    server.aggregate(reports)
    shares = server.estimate().shares
    end = time.process_time()
    unused = shares[max(1, domain // 10) : domain]
    return {
        "method": plan.method,
        "client": sent - start,
        "server": end - sent,
        "variance": float(np.mean(unused**2)) * people,
        "theory": plan.variance(1),
        "unused": int(unused.size),
    }


def peers(people: int) -> dict[str, dict[str, float]]:
    """Return CPU seconds of the peers, scaled to a million people."""
    python = PEER / "bin" / "python"
    if not python.exists():
        venv.create(PEER, with_pip=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, *PACKAGES], check=True)
    script = str(ROOT / "benchmarks" / "local_peer.py")
    done = subprocess.run(
        [str(python), script, str(people), *map(str, DOMAINS)],
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, dict[str, float]] = json.loads(done.stdout)
    return found


def measure(asked: Run) -> dict[str, Any]:
    rounds, people = (1, 100_000) if asked.quick else (5, MILLION)
    timed: dict[str, list[dict[str, Any]]] = {str(domain): [] for domain in DOMAINS}
    for number in range(rounds):
        for domain in DOMAINS:
            timed[str(domain)].append(ours(domain, people))
            print(f"round {number + 1}, {domain} values: {timed[str(domain)][-1]}")
    rows = {}
    for domain, found in timed.items():
        # An average over rounds: with few unused values one round says little.
        rows[domain] = {
            "method": found[0]["method"],
            "client_seconds": statistics.median(one["client"] for one in found),
            "server_seconds": statistics.median(one["server"] for one in found),
            "variance": statistics.fmean(one["variance"] for one in found),
            "theory": found[0]["theory"],
            "samples": rounds * found[0]["unused"],
        }
    batches = []
    for population, epsilon in BATCHES:
        start = time.process_time()
        loss = PureDP(epsilon, relation="replace").shuffled(population=population)
        bounds = loss.epsilon_bounds(delta=DELTA)
        took = time.process_time() - start
        batches.append([population, epsilon, bounds.lower, bounds.upper, took])
    return {
        "people": people,
        "rounds": rounds,
        "ours": rows,
        "peers": peers(200 if asked.quick else 2_000),
        "batches": batches,
        "note": "peers: CPU seconds on at most 2,000 people (200 at 100,000 values), scaled",
    }


def targets(record: dict[str, Any]) -> list[dict[str, Any]]:
    listed = []
    scale = MILLION / record["people"]
    for domain, most in DOMAINS.items():
        row = record["ours"][str(domain)]
        took = (row["client_seconds"] + row["server_seconds"]) * scale
        listed.append(target(f"a million people, {domain} values: CPU s", took, at_most=most))
        # 5 %, and what the average of so many squares of normal errors leaves open.
        room = 0.05 + 5.0 * math.sqrt(2.0 / row["samples"])
        off = abs(row["variance"] / row["theory"] - 1.0)
        listed.append(target(f"variance against theory, {domain} values", off, at_most=room))
        best = 4 * math.e / (math.e - 1) ** 2
        above = row["theory"] / best - 1.0
        listed.append(target(f"variance above the optimum, {domain} values", above, at_most=0.03))
    row = record["ours"]["100000"]
    took = (row["client_seconds"] + row["server_seconds"]) * scale
    times = record["peers"]["pure-ldp OLH"]["100000"] / took
    listed.append(target("times faster than OLH of pure-ldp, 100,000 values", times, at_least=1e4))
    for population, epsilon, low, high, seconds in record["batches"]:
        what = f"bracket of {population:.0e} shuffled reports of epsilon {epsilon}"
        listed.append(target(f"{what}: width", (high - low) / high, at_most=0.003))
        listed.append(target(f"{what}: CPU s", seconds, at_most=0.3))
    return listed


def table(record: dict[str, Any]) -> str:
    lines = [
        "| CPU seconds, a million people, epsilon 1 | 64 values | 1,024 | 100,000 |",
        "|---|---|---|---|",
    ]
    scale = MILLION / record["people"]
    totals = [
        (row["client_seconds"] + row["server_seconds"]) * scale for row in record["ours"].values()
    ]
    lines.append("| **Discreet**, " + "exact, system's bits | " + _cells(totals))
    for name, seconds in record["peers"].items():
        lines.append(f"| {name} (scaled) | " + _cells(list(seconds.values())))
    variances = [f"{row['variance']:.3f} ({row['theory']:.3f})" for row in record["ours"].values()]
    lines.append("| n times the variance, measured (theory) | " + " | ".join(variances) + " |")
    return "\n".join(lines)


def _cells(seconds: list[float]) -> str:
    return " | ".join(f"{value:.3g}" for value in seconds) + " |"


def draw(record: dict[str, Any], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), constrained_layout=True)
    scale = MILLION / record["people"]
    own = {
        int(domain): (row["client_seconds"] + row["server_seconds"]) * scale
        for domain, row in record["ours"].items()
    }
    axes.loglog(list(own), list(own.values()), "o-", color="#1b6ca8", label="Discreet")
    for name, seconds in record["peers"].items():
        axes.loglog([int(d) for d in seconds], list(seconds.values()), "s--", label=name, alpha=0.7)
    axes.set_xlabel("values")
    axes.set_ylabel("CPU seconds for a million people")
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=130)
    plt.close(figure)


SUITE = Suite(
    "local",
    measure,
    targets,
    tables={("docs/local.md", "bench-local"): table},
    pictures={"local.png": draw},
)
