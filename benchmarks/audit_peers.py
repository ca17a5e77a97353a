"""Audits of other libraries: known faults beside right ways to do the same, each with a verdict.

Parts: diffprivlib, opacus, smartnoise and flower. Each library draws the outputs in an environment
of its own in build/audited (audit_peers_peer.py; Opacus is among the judges of this one), and they
are audited here against what it claims, at a false-alarm rate of 1e-6. The noise is the peers' own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from detection_table import STRICT_RATE, audit_of, columns_of_audit
from discreet.audit import MechanismAudit, audit_mechanism
from discreet.privacy import Gaussian, Loss, PureDP, from_opacus
from harness import BUILD, Run, Suite, claim, found

HOME = BUILD.parent / "audited"
PACKAGES = {
    "diffprivlib": ("diffprivlib==0.6.6", "scikit-learn==1.7.2"),
    "opacus": (),
    "smartnoise": ("smartnoise-synth==1.0.8", "smartnoise-sql==1.0.10"),
    "flower": ("flwr==1.41.0",),
}


EPSILON_1 = PureDP(1)


@dataclass(frozen=True)
class Case:
    """What a library claims of a call; for Opacus the claim is what its accountant recorded."""

    peer: str
    broken: bool
    about: str
    loss: Loss | None = EPSILON_1
    delta: float = 0.0


GAUSSIAN: dict[str, Any] = {"loss": Gaussian(1), "delta": 0.05}
CASES = {
    "diffprivlib-laplace": Case(
        "diffprivlib", True, "`Laplace`: outputs near 0 have bits that no sum 1 + noise can have"
    ),
    "diffprivlib-regression-bounds-0-1": Case(
        "diffprivlib",
        True,
        "`LinearRegression`, bounds (0, 1): noise of the sum of squares is for the lower bound",
    ),
    "opacus-shuffled": Case(
        "opacus",
        True,
        "`make_private(poisson_sampling=False)`: shuffled, recorded as Poisson samples",
        None,
        0.7,
    ),
    "opacus-normaliser": Case(
        "opacus",
        True,
        "`make_private`: the expected batch size is read off the number of records",
        None,
        0.05,
    ),
    "smartnoise-rows": Case(
        "smartnoise", True, "`fit_sample`: exactly as many synthetic rows as there were"
    ),
    "smartnoise-categories": Case(
        "smartnoise", True, "`fit`: categories that occur; a rare one betrays its owner"
    ),
    "flower-weighted-mean": Case(
        "flower", True, "fixed clipping, the mean weighted by numbers of examples", **GAUSSIAN
    ),
    "flower-too-few-clients": Case(
        "flower", True, "fixed clipping, noise for 100 clients where ten answer", **GAUSSIAN
    ),
    "diffprivlib-geometric": Case("diffprivlib", False, "`Geometric`: noise of integers"),
    "diffprivlib-regression-bounds-symmetric": Case(
        "diffprivlib", False, "`LinearRegression`, bounds (-1, 1), the same rows"
    ),
    "opacus-poisson": Case(
        "opacus", False, "`make_private`, Poisson samples, the same rows", None, 0.7
    ),
    "smartnoise-public-categories": Case(
        "smartnoise", False, "`fit` with public categories, a public number of rows"
    ),
    "smartnoise-count": Case("smartnoise", False, "SQL: `SELECT COUNT(*)`"),
    "flower-equal-clients": Case(
        "flower", False, "fixed clipping, ten clients of equal size", **GAUSSIAN
    ),
}


def python_of(peer: str) -> str:
    """Return the Python of a library, in an environment that is made if it is not there."""
    if not PACKAGES[peer]:
        return sys.executable
    python = HOME / peer / "bin" / "python"
    if not python.exists():
        venv.create(HOME / peer, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES[peer]], check=True)
    return str(python)


def outputs_of(peer: str, share: float) -> dict[str, Any]:
    """Return the outputs of a library by name, and what its accountant recorded."""
    script = Path(__file__).with_name("audit_peers_peer.py")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "made.npz"
        command = [python_of(peer), str(script), peer, str(share), str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        with np.load(made) as arrays:
            return {name: arrays[name] for name in arrays.files}


def audit(case: Case, outputs: Any, history: Any) -> MechanismAudit:
    """Audit outputs that were drawn elsewhere against the claim."""
    places = [0, 0]

    def replay(world: int, count: int) -> Any:
        places[world] += count
        return outputs[world][places[world] - count : places[world]]

    loss = case.loss if case.loss is not None else from_opacus({"history": history}).loss
    return audit_mechanism(
        *(replay, 0, 1),
        loss=loss,
        delta=case.delta,
        samples=len(outputs[0]),
        false_alarm_rate=STRICT_RATE,
        batch=True,
    )


def measure(asked: Run) -> dict[str, Any]:
    measured: dict[str, Any] = {}
    for peer in PACKAGES:
        if not asked.wants(peer):
            continue
        drawn = outputs_of(peer, 0.2 if asked.quick else 1.0)
        histories = json.loads(str(drawn["histories"]))
        measured[peer] = []
        for name, case in CASES.items():
            if case.peer == peer:
                judged = audit(case, drawn[name], histories.get(name))
                measured[peer].append({"name": name, "audit": judged.to_json()})
                print(f"{name:40} {judged.verdict:16} {judged.epsilon_lower:.3f}", flush=True)
    return measured


def rows(record: dict[str, Any]) -> dict[str, MechanismAudit]:
    """The audits of a record, in the order of the cases."""
    judged = {one["name"]: audit_of(one) for peer in PACKAGES for one in found(record, peer)}
    return {name: judged[name] for name in CASES if name in judged}


def table(record: dict[str, Any]) -> str:
    if not rows(record):
        return "Not measured yet."
    lines = [
        "| library | what it does | claimed | shown | ceiling | samples | verdict |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for name, judged in rows(record).items():
        case = CASES[name]
        about = f"**broken:** {case.about}" if case.broken else case.about
        version = PACKAGES[case.peer][0].replace("==", " ") if PACKAGES[case.peer] else "opacus"
        lines.append(f"| {version} | {about} | {columns_of_audit(judged)} |")
    return "\n".join(lines)


def targets(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A fault is refuted, a right way to do the same is not."""
    for name, judged in rows(record).items():
        yield claim(f"{name}: right verdict", judged.violated == CASES[name].broken)


SUITE = Suite(
    "audit_peers",
    measure,
    targets,
    parts=tuple(PACKAGES),
    tables={("docs/auditing-mechanisms.md", "peers audited"): table},
)
