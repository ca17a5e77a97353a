"""How fast the service answers: counts on a million rows, every one of them charged.

Eight clients send counts on a fixed schedule of 202 a second. A latency is measured from the
moment at which the schedule wanted the request sent, so a service that falls behind cannot hide
it. No two requests are the same question: each client goes through 8 conditions of its own,
then through the same at another epsilon, so every one is charged and computed, while its
compiled query is known from rounds before. Each request has a connection of its own, as those
that a proxy hands on have by default, so that the worker takes it which has least to do. Each
charge and each answer are on the disk before the answer leaves. Afterwards the ledger is
replayed, and holds one charge for each answer.
"""

import json
import os
import socket
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from curator_study import make_study, serving
from discreet.ledger import Ledger
from harness import Run, Suite, claim, target

CLIENTS = 8
SCHEDULE = 202.0
TARGET_RATE, TARGET_P99 = 200.0, 0.250
ROWS = 1_000_000
CONDITIONS = 8
WARM_UP = 6 * CONDITIONS
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")


def question(place: int, turn: int) -> bytes:
    """A count that nobody has asked before: a condition of this client, at another epsilon."""
    left = {"op": "column", "name": "age"}
    right = {"op": "value", "value": 2 + 3 * (turn % CONDITIONS)}
    how = COMPARISONS[place % len(COMPARISONS)]
    where = {"op": "compare", "how": how, "left": left, "right": right}
    if place >= len(COMPARISONS):
        where = {"op": "not", "of": where}
    query = {"kind": "count", "epsilon": f"1/{1000 + turn // CONDITIONS}", "where": where}
    return json.dumps({"query": query}).encode()


class Client(threading.Thread):
    """Sends its share of the schedule, every request over a connection of its own.

    It shares the machine with the service, so it speaks plain sockets: whatever a comfortable
    client costs would be taken from the service that is measured.
    """

    def __init__(self, place: int, port: int, token: str, count: int) -> None:
        super().__init__()
        self.place, self.count = place, count
        self.port = port
        self.begin: float | None = None
        self.token = token
        self.latencies: list[float] = []
        self.failures: list[str] = []
        self.ended = 0.0

    def ask(self, turn: int) -> tuple[int, bytes]:
        body = question(self.place, turn)
        head = (
            "POST /v1/datasets/people/ask HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
            f"Authorization: Bearer {self.token}\r\nContent-Type: application/json\r\n"
            f"Idempotency-Key: bench-{turn}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        parts = []
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as line:
            line.sendall(head.encode() + body)
            while part := line.recv(65_536):
                parts.append(part)
        status, _, rest = b"".join(parts).partition(b"\r\n")
        return int(status.split()[1]), rest.partition(b"\r\n\r\n")[2]

    def warm_up(self) -> None:
        """The first rounds, so that every worker has compiled everything."""
        for turn in range(WARM_UP):
            self.ask(turn)

    def run(self) -> None:
        assert self.begin is not None
        for turn in range(self.count):
            due = self.begin + (turn * CLIENTS + self.place) / SCHEDULE
            time.sleep(max(0.0, due - time.perf_counter()))
            status, body = self.ask(WARM_UP + turn)
            self.latencies.append(time.perf_counter() - due)
            if status != 200:
                self.failures.append(body.decode()[:200])
        self.ended = time.perf_counter()


def flush_time(folder: Path) -> float:
    """What one flush to this disk costs, in milliseconds."""
    descriptor = os.open(folder / "flush", os.O_WRONLY | os.O_CREAT)
    began = time.perf_counter()
    for _ in range(50):
        os.write(descriptor, b"x" * 4096)
        os.fsync(descriptor)
    os.close(descriptor)
    return 20 * (time.perf_counter() - began)


def measure(seconds: float, workers: int, quantum: float) -> dict[str, object]:
    analysts = [f"analyst{place}" for place in range(CLIENTS)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokens = make_study(folder, rows=ROWS, analysts=analysts, epsilon=10_000, each=1_000)
        options = ("--rate", "1e5", "--burst", "1e5", "--quantum", str(quantum))
        options += ("--workers", str(workers), "--threads", "1", "--engine-threads", "1")
        with serving(folder, *options) as (port, process):
            count = int(seconds * SCHEDULE / CLIENTS)
            clients = [
                Client(place, port, tokens[analysts[place]], count) for place in range(CLIENTS)
            ]
            with ThreadPoolExecutor(CLIENTS) as pool:
                list(pool.map(Client.warm_up, clients))
            charged_before = charges(folder)
            used_before, busy_before = processor_seconds(process.pid), busy_seconds()
            own_before = time.process_time()
            begin = time.perf_counter() + 0.2
            for client in clients:
                client.begin = begin
                client.start()
            for client in clients:
                client.join()
            used = processor_seconds(process.pid) - used_before
            own = time.process_time() - own_before
            others = busy_seconds() - busy_before - used - own
        latencies = np.array([latency for client in clients for latency in client.latencies])
        failures = [failure for client in clients for failure in client.failures]
        elapsed = max(client.ended for client in clients) - begin
        with Ledger.open(folder / "study.ledger", read_only=True) as ledger:
            verified = ledger.verify().ok
        return {
            "rows": ROWS,
            "clients": CLIENTS,
            "workers": workers,
            "quantum_s": quantum,
            "cores": os.cpu_count(),
            "elsewhere": max(0.0, others / (elapsed * (os.cpu_count() or 1))),
            "flush_ms": flush_time(folder),
            "requests": len(latencies),
            "failures": failures[:5],
            "cpu_ms": 1e3 * used / len(latencies),
            "client_cpu_ms": 1e3 * own / len(latencies),
            "per_second": len(latencies) / elapsed,
            "p50_ms": 1e3 * float(np.quantile(latencies, 0.5)),
            "p95_ms": 1e3 * float(np.quantile(latencies, 0.95)),
            "p99_ms": 1e3 * float(np.quantile(latencies, 0.99)),
            "largest_ms": 1e3 * float(latencies.max()),
            "charged": charges(folder) - charged_before,
            "verified": verified,
            "latencies_ms": [round(1e3 * float(value), 2) for value in np.sort(latencies)[::20]],
        }


def processor_seconds(process: int) -> float:
    """What a process and its children have computed so far (Linux)."""
    ticks = 0
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(entry.parent.name) == process or int(fields[1]) == process:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def busy_seconds() -> float:
    """What all processors have computed since the machine was started (Linux)."""
    fields = [int(text) for text in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def charges(folder: Path) -> int:
    with Ledger.open(folder / "study.ledger", read_only=True) as ledger:
        return ledger.show("people").budget.charges


def draw(result: dict[str, object], path: Path) -> None:
    values = np.array(result["latencies_ms"])
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    axes.plot(values, np.linspace(0, 100, len(values)), color="#0072B2")
    axes.axvline(1e3 * TARGET_P99, color="#D55E00", linestyle="--")
    axes.text(1e3 * TARGET_P99, 5, " target of p99", color="#D55E00")
    axes.axhline(99, color="#6E6E6E", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("latency from the scheduled moment (ms)")
    axes.set_ylabel("answers (%)")
    axes.set_title(
        f"{result['per_second']:.0f} charged counts a second on a million rows: "
        f"p99 {result['p99_ms']:.0f} ms"
    )
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def table(result: dict[str, Any]) -> str:
    rows = [
        ("answers a second", "at least 200", f"{result['per_second']:.0f}"),
        ("p99 of the latency", "below 250 ms", f"{result['p99_ms']:.0f} ms"),
        ("median of the latency", "", f"{result['p50_ms']:.0f} ms"),
        ("charges for each answer", "1", f"{result['charged'] / result['requests']:g}"),
        ("processor time of the service for each answer", "", f"{result['cpu_ms']:.1f} ms"),
    ]
    lines = [
        "| figure | target | measured |",
        "|---|---:|---:|",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
        (
            f"With {result['workers']} workers and a quantum of {1e3 * result['quantum_s']:.0f} ms "
            f"on {result['cores']} cores, of which other programs took {result['elsewhere']:.0%} "
            f"meanwhile; one flush of the disk took {result['flush_ms']:.1f} ms."
        ),
    ]
    return "\n" + "\n".join(lines) + "\n"


def run(asked: Run) -> dict[str, Any]:
    return measure(seconds=3.0 if asked.quick else 20.0, workers=3, quantum=0.03)


def targets(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        target("answers a second", result["per_second"], at_least=TARGET_RATE),
        target("p99 of the latency, milliseconds", result["p99_ms"], at_most=1e3 * TARGET_P99),
        claim("one charge for each answer", result["charged"] == result["requests"]),
        claim("no failures", not result["failures"]),
        claim("the ledger verifies", result["verified"]),
    ]


SUITE = Suite(
    "curator_service",
    run,
    targets,
    tables={("docs/curator-service.md", "speed"): table},
    pictures={"curator_service.png": draw},
)
