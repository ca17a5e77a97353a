"""Shokri's attack beside that of the Adversarial Robustness Toolbox: same target, same records.

`measure()` returns the rows; benchmarks/reproduce_attacks.py calls it. ART is installed into
.venv-art beside the project. Both train the same number of shadow networks of the target's kind
on random halves of the same records, with the optimiser, batches and epochs that ART's shadow
models have (batches of 128, ten epochs), and then their attack model; both are judged by their own
decisions on the same members and non-members. Time runs from the records to the decisions, without
imports. The contestants take turns, each in a new process with two threads; the figures are
medians. Processor seconds, of both threads, are less disturbed by what else the machine does.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attack_shokri import location_records
from discreet.attacks import NetworkTrainer, Perceptron, ShadowPool, observe_split, shokri
from harness import use_shared_data

ROOT = Path(__file__).resolve().parents[1]
PEER = ROOT / ".venv-art"
PEER_PACKAGES = (
    "adversarial-robustness-toolbox==1.20.1",
    "packaging==26.3",
    "scikit-learn==1.9.1",
    "torch==2.13.0",
)
# ART's default, and the two others that its notebooks use.
PEER_MODELS = ("nn", "rf", "gb")
MEMBERS, SHADOWS = 1250, 10
TRAINING = {"epochs": 10, "batch_size": 128, "learning_rate": 5e-3}
ROUNDS = 3


def write_task(path: Path, seed: int) -> dict[str, float]:
    """Train the target and write it beside the records; return how accurate it is."""
    use_shared_data()
    x, y = location_records()
    order = np.random.default_rng(seed).permutation(len(x))
    parts = np.split(order, [MEMBERS, 2 * MEMBERS])
    target = NetworkTrainer(x, y, Perceptron(446, 30, hidden=(64,)), **TRAINING)(parts[0], seed)
    records = {
        f"{kind}_{name}": values[part]
        for name, part in zip(("members", "nonmembers", "pool"), parts, strict=True)
        for kind, values in (("x", x), ("y", y))
    }
    weights = {
        f"weight_{place}": value.detach().numpy() for place, value in enumerate(target.parameters())
    }
    np.savez(path, **records, **weights, shadows=SHADOWS, learning_rate=TRAINING["learning_rate"])
    with torch.no_grad():
        right = target(torch.from_numpy(x)).argmax(dim=1).numpy() == y
    return {"train": float(right[parts[0]].mean()), "test": float(right[parts[1]].mean())}


def ours(path: Path, seed: int) -> dict[str, Any]:
    """Our attack on the task, as ART's is run in its own environment."""
    with np.load(path) as data:
        task = {name: data[name] for name in data.files}
    network = Perceptron(446, 30, hidden=(64,))
    target = network()
    with torch.no_grad():
        for place, parameter in enumerate(target.parameters()):
            parameter.copy_(torch.from_numpy(task[f"weight_{place}"]))
    start, used = time.perf_counter(), time.process_time()
    trainer = NetworkTrainer(task["x_pool"], task["y_pool"], network, **TRAINING)
    shadows = ShadowPool(
        task["x_pool"],
        task["y_pool"],
        trainer,
        models=SHADOWS,
        classes=30,
        seed=seed,
        pairs=False,
    ).run()
    trained = time.perf_counter() - start
    seen = observe_split(
        target,
        members=(task["x_members"], task["y_members"]),
        nonmembers=(task["x_nonmembers"], task["y_nonmembers"]),
    )
    result = shokri(seen, shadows, seed=seed)
    seconds, worked = time.perf_counter() - start, time.process_time() - used
    said = np.asarray(result.decisions)
    return {
        "attack_model": result.metadata["attack_model"],
        "training_seconds": trained,
        "seconds": seconds,
        "processor_seconds": worked,
        "true_positives": int(said[seen.members].sum()),
        "false_positives": int(said[~seen.members].sum()),
        "members": int(seen.members.sum()),
        "nonmembers": int((~seen.members).sum()),
        "threads": torch.get_num_threads(),
    }


def in_a_new_process(*command: str) -> dict[str, Any]:
    done = subprocess.run(
        command,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"},
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def peer_python() -> str:
    """ART's environment, made if it is not there."""
    python = PEER / "bin" / "python"
    if not python.exists():
        venv.create(PEER, with_pip=True)
        (PEER / ".gitignore").write_text("*\n", encoding="utf-8")
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, *PEER_PACKAGES], check=True)
    return str(python)


def summarised(who: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the rounds; accuracies are of balanced members and non-members."""

    def accuracy(run: dict[str, Any]) -> float:
        found = run["true_positives"] / run["members"]
        return float(found + 1 - run["false_positives"] / run["nonmembers"]) / 2

    def precision(run: dict[str, Any]) -> float:
        called = run["true_positives"] + run["false_positives"]
        return float(run["true_positives"] / called) if called else 0.0

    return {
        "who": who,
        "attack_model": runs[0]["attack_model"],
        "version": runs[0].get("version"),
        "accuracy": statistics.median(map(accuracy, runs)),
        "precision": statistics.median(map(precision, runs)),
        "seconds": statistics.median(run["seconds"] for run in runs),
        "training_seconds": statistics.median(run["training_seconds"] for run in runs),
        "processor_seconds": statistics.median(run["processor_seconds"] for run in runs),
        "runs": runs,
    }


def measure(*, seed: int = 1, rounds: int = ROUNDS) -> dict[str, Any]:
    """Return the target's accuracies and one row for each contestant."""
    python = peer_python()
    here = Path(__file__).resolve()
    peer = str(here.parent / "attack_art_peer.py")
    runs: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        task = Path(scratch) / "task.npz"
        target = write_task(task, seed)
        for number in range(seed, seed + rounds):
            mine = in_a_new_process(sys.executable, str(here), str(task), str(number))
            runs.setdefault("discreet", []).append(mine)
            for kind in PEER_MODELS:
                found = in_a_new_process(python, peer, str(task), kind, str(number))
                runs.setdefault(f"ART, {kind}", []).append(found)
    rows = [summarised(who, part) for who, part in runs.items()]
    print("\n".join(map(line, rows)), flush=True)
    return {"target": target, "shadows": SHADOWS, "rounds": rounds, "rows": rows}


def line(row: dict[str, Any]) -> str:
    return (
        f"{row['who']:10} accuracy {row['accuracy']:.3f} precision {row['precision']:.3f}"
        f" {row['seconds']:.1f} s, of which shadow models {row['training_seconds']:.1f} s"
    )


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(ours(Path(sys.argv[1]), int(sys.argv[2]))))
    else:
        measure()
