"""An in-process round, epsilon beside Flower's accountant, and two rounds of ten beside Flower.

The round is that of section 6 of the design: 100 clients of 20 pictures, one local step, with
clipping, noise and the server's step. Flower runs in the environment of `make test-flower`, in its
simulation engine with Ray, and is timed from the first message on: without the start of Ray.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from discreet.federated import Clients, FederatedPlan, InProcessEngine, Training
from discreet.privacy import Gaussian
from harness import ROOT, Run, Suite, found, number, target

PARTS = ("round", "epsilon", "flower")
FLOWER = ROOT / "build" / "flower"
# The one that Flower 1.41 has: Renyi divergence at dp-accounting's orders, without amplification.
ORDERS = [1 + x / 10.0 for x in range(1, 100)] + [*range(11, 64), 128, 256, 512, 1024]


def engine(clients: int, hidden: int) -> InProcessEngine:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.random((clients, 20, 784), dtype=np.float32))
    y = torch.from_numpy(rng.integers(0, 10, (clients, 20)))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, hidden), nn.Tanh(), nn.Linear(hidden, 10))
    return InProcessEngine(
        Clients(x, y), model, nn.CrossEntropyLoss(reduction="none"), Training(local_rate=0.5)
    )


def seconds(clients: int, rounds: int, hidden: int = 32) -> dict[str, float]:
    """Return the CPU and wall seconds of a run; the first round, which warms up, is another run."""
    first, made = engine(clients, hidden), engine(clients, hidden)
    facts = {"clients": clients, "expected_cohort": clients, "clip_norm": 1.0, "delta": 1e-5}
    plan = {**facts, "noise_multiplier": 1.0, "sampler": "full"}
    first.run(FederatedPlan(**plan, rounds=1), progress=False)
    cpu, wall = time.process_time(), time.perf_counter()
    made.run(FederatedPlan(**plan, rounds=rounds), progress=False)
    return {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}


def rounds_in_process(quick: bool) -> dict[str, Any]:
    times = [seconds(100, 5)["cpu"] / 5 for _ in range(1 if quick else 5)]
    return {"cpu_seconds": sorted(times)[len(times) // 2], "parameters": engine(2, 32).size}


def epsilons() -> dict[str, float]:
    from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
    from dp_accounting.rdp import RdpAccountant

    plan = FederatedPlan(
        clients=3000, expected_cohort=100, rounds=100, clip_norm=1.0, delta=1e-5,
        noise_multiplier=1.0,
    )  # fmt: skip
    theirs = RdpAccountant(ORDERS).compose(SelfComposedDpEvent(GaussianDpEvent(1.0), 100))
    return {
        "discreet": plan.epsilon(),
        "flower": theirs.get_epsilon(1e-5),
        "exact_without_sampling": (100 * Gaussian(1.0)).epsilon(delta=1e-5),
    }


def beside_flower() -> dict[str, float]:
    """Time two rounds of ten clients here and in Flower's simulation."""
    if not (FLOWER / "bin" / "python").exists():
        subprocess.run(["make", "build/flower"], cwd=ROOT, check=True)
    with tempfile.TemporaryDirectory() as place:
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "FLWR_HOME": str(Path(place) / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "RAY_ADDRESS": "local",
            "RAY_worker_niceness": "0",
        }
        script = ROOT / "tests" / "flower" / "simulated.py"
        done = subprocess.run(
            [FLOWER / "bin" / "python", script, Path(place) / "model", "10"],
            env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
    said = re.search(r"^seconds ([\d.]+)$", done.stderr, re.MULTILINE)
    assert said is not None
    return {"flower_wall": float(said[1]), "discreet_wall": seconds(10, 2)["wall"]}


def measure(asked: Run) -> dict[str, Any]:
    ways = {
        "round": lambda: rounds_in_process(asked.quick),
        "epsilon": epsilons,
        "flower": beside_flower,
    }
    results = {}
    for part, way in ways.items():
        if asked.wants(part):
            results[part] = way()
            print(part, results[part], flush=True)
    return results


def targets(record: dict[str, Any]) -> list[dict[str, Any]]:
    one, cost, both = (found(record, part) for part in PARTS)
    ratio = both["flower_wall"] / both["discreet_wall"] if both else None
    below = cost["flower"] / cost["discreet"] if cost else None
    return [
        target("a round of 100 clients of 20 pictures: CPU s", one.get("cpu_seconds"), at_most=0.3),
        target("epsilon of 100 of 3,000 clients, 100 rounds", cost.get("discreet"), at_most=2.35),
        target("times below the epsilon of Flower's accountant", below, at_least=40),
        target("two rounds of ten: times faster than Flower's simulation", ratio, at_least=50),
    ]


NUMBERS = {
    "round": number("round", lambda one: f"{one['cpu_seconds']:.2f}"),
    "epsilon": number("epsilon", lambda one: f"{one['discreet']:.3f}"),
    "flower_epsilon": number("epsilon", lambda one: f"{one['flower']:.1f}"),
    "flower_seconds": number("flower", lambda one: f"{one['flower_wall']:.1f}"),
    "times": number("flower", lambda one: f"{one['flower_wall'] / one['discreet_wall']:.0f}"),
}

SUITE = Suite("federated", measure, targets, parts=PARTS, numbers=NUMBERS)
