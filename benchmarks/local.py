"""The local model at one million people, beside pure-ldp and multi-freq-ldpy.

CPU seconds of client and server together, ours with the operating system's bits and exact coins.
The peers run in an environment of their own, .venv-local, on at most 500 people (50 at 100,000
values), between our rounds, and are scaled linearly to a million, which the table says. Then:
the measured variance beside its formula, with an interval, and brackets of shuffled batches.
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
from scipy import stats

from discreet.local import FrequencyOracle
from discreet.privacy import PureDP
from harness import ROOT, Run, Suite, target

PEER = ROOT / ".venv-local"
PACKAGES = ("pure-ldp==1.2.0", "multi-freq-ldpy==0.2.5", "scikit-learn", "statsmodels", "xxhash<4")
MILLION = 1_000_000
DOMAINS = {64: 0.5, 1_024: 0.7, 100_000: 3.0}
POPULATIONS = (10**3, 10**4, 10**5, 10**6, 10**7, 10**8)
EPSILONS = (0.5, 1, 2, 4)
DELTA = 1e-6
# The variance is measured over many small collections: its formula holds for any number of people.
COLLECTIONS = {64: 4_000, 1_024: 400, 100_000: 16}
PEOPLE_EACH = 500
CONFIDENCE = 1 - 1e-6


def ours(domain: int, people: int) -> dict[str, Any]:
    """Time one collection."""
    plan = FrequencyOracle(domain, 1)
    values = np.random.default_rng(domain).integers(0, domain, people)
    start = time.process_time()
    reports = plan.randomize_each(values)
    sent = time.process_time()
    server = plan.server()
    server.aggregate(reports)
    server.estimate()
    end = time.process_time()
    return {"method": plan.method, "client": sent - start, "server": end - sent}


def variance(domain: int, collections: int) -> dict[str, float]:
    """Measure n times the variance of values that nobody has, beside its formula.

    One collection gives the mean of the squared errors over its unused values; the interval is
    that of Student for the mean over independent collections.
    """
    plan = FrequencyOracle(domain, 1)
    used = max(1, domain // 10)
    people = np.arange(PEOPLE_EACH) % used
    found = []
    for _ in range(collections):
        server = plan.server()
        server.aggregate(plan.randomize_each(people))
        unused = server.estimate().shares[used:domain]
        found.append(float(np.mean(unused**2)) * PEOPLE_EACH / plan.variance(1))
    mean, error = statistics.fmean(found), stats.sem(found)
    reach = float(stats.t.isf((1 - CONFIDENCE) / 2, collections - 1) * error)
    return {"ratio": mean, "low": mean - reach, "high": mean + reach, "theory": plan.variance(1)}


class Peers:
    """The other packages, in a process of their own."""

    def __init__(self, people: int) -> None:
        python = PEER / "bin" / "python"
        if not python.exists():
            venv.create(PEER, with_pip=True)
            install = [str(python), "-m", "pip", "install", "--quiet"]
            subprocess.run([*install, "--disable-pip-version-check", *PACKAGES], check=True)
        script = str(ROOT / "benchmarks" / "local_peer.py")
        command = [str(python), script, str(people)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.names: list[str] = json.loads(self._process.stdout.readline())

    def run(self, name: str, domain: int) -> float:
        """Return the CPU seconds of an oracle, scaled to a million people."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(name, domain, file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def measure(asked: Run) -> dict[str, Any]:
    rounds, people = (1, 100_000) if asked.quick else (5, MILLION)
    timed: dict[str, list[dict[str, Any]]] = {str(domain): [] for domain in DOMAINS}
    peers = Peers(200 if asked.quick else 500)
    theirs: dict[str, dict[str, float]] = {name: {} for name in peers.names}
    # One run of a peer after each of ours, until every peer has run once on every domain.
    jobs = [(name, domain) for name in peers.names for domain in DOMAINS]
    for number in range(rounds):
        for place, domain in enumerate(DOMAINS):
            timed[str(domain)].append(ours(domain, people))
            print(f"round {number + 1}, {domain} values: {timed[str(domain)][-1]}")
            for name, size in jobs[number * len(DOMAINS) + place :: rounds * len(DOMAINS)]:
                theirs[name][str(size)] = peers.run(name, size)
                print(f"{name}, {size} values: {theirs[name][str(size)]:.3g} s a million")
    peers.close()
    rows = {}
    for domain, found in timed.items():
        few = max(2, COLLECTIONS[int(domain)] // (10 if asked.quick else 1))
        rows[domain] = {
            "method": found[0]["method"],
            "client_seconds": statistics.median(one["client"] for one in found),
            "server_seconds": statistics.median(one["server"] for one in found),
            "variance": variance(int(domain), few),
        }
        print(f"{domain} values, variance over theory: {rows[domain]['variance']}")
    batches = []
    for population in POPULATIONS:
        for epsilon in EPSILONS:
            start = time.process_time()
            loss = PureDP(epsilon, relation="replace").shuffled(population=population)
            bounds = loss.epsilon_bounds(delta=DELTA)
            took = time.process_time() - start
            batches.append([population, epsilon, bounds.lower, bounds.upper, took])
    return {
        "people": people,
        "rounds": rounds,
        "ours": rows,
        "peers": theirs,
        "batches": batches,
        "note": "peers: CPU seconds on at most 500 people (50 at 100,000 values), scaled",
    }


def targets(record: dict[str, Any]) -> list[dict[str, Any]]:
    listed = []
    scale = MILLION / record["people"]
    for domain, most in DOMAINS.items():
        row = record["ours"][str(domain)]
        took = (row["client_seconds"] + row["server_seconds"]) * scale
        listed.append(target(f"a million people, {domain} values: CPU s", took, at_most=most))
        off = max(1.0 - row["variance"]["low"], row["variance"]["high"] - 1.0)
        room = 1.0 if record["people"] < MILLION else 0.05  # a quick run says little
        text = f"variance against theory, {domain} values, ends of the interval"
        listed.append(target(text, off, at_most=room))
        best = 4 * math.e / (math.e - 1) ** 2
        above = row["variance"]["theory"] / best - 1.0
        listed.append(target(f"variance above the optimum, {domain} values", above, at_most=0.03))
    row = record["ours"]["100000"]
    took = (row["client_seconds"] + row["server_seconds"]) * scale
    times = record["peers"]["pure-ldp OLH"]["100000"] / took
    listed.append(target("times faster than OLH of pure-ldp, 100,000 values", times, at_least=1e4))
    widths = [(high - low) / high for _, _, low, high, _ in record["batches"]]
    slowest = max(seconds for *_, seconds in record["batches"])
    what = f"{len(widths)} brackets of 1e3 to 1e8 shuffled reports"
    listed.append(target(f"{what}: widest", max(widths), at_most=0.003))
    listed.append(target(f"{what}: slowest, CPU s", slowest, at_most=0.3))
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
    variances = [row["variance"] for row in record["ours"].values()]
    ends = [f"{one['ratio']:.3f} ({one['low']:.3f} to {one['high']:.3f})" for one in variances]
    lines.append("| measured variance / theory (its interval) | " + " | ".join(ends) + " |")
    best = 4 * math.e / (math.e - 1) ** 2
    above = [f"{one['theory'] / best - 1:.1%}" for one in variances]
    lines.append("| theory above the optimum | " + " | ".join(above) + " |")
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
