"""Peers that need an environment of their own: PLD_accounting and riskcal, in .venv-accounting.

Each query is one process with one thread, run after the same query of ours. PLD_accounting, with
numba, is asked twice: as it is by default, until its two ends differ by a tenth, and for 1 %.
"""

from __future__ import annotations

import json
import subprocess
import venv
from functools import partial
from typing import Any

from accountants import OURS
from accounting_rows import Risk
from discreet.privacy import Gaussian, Loss, calibrate
from harness import ROOT
from side_by_side import compare

PEER = ROOT / ".venv-accounting"
PACKAGES = ("PLD_accounting[performance]==2.0", "riskcal==1.5.1")
ALLOCATION_PEER = "PLD_accounting"
FINE_ALLOCATION_PEER = "PLD_accounting, 1 %"
RISK_PEER = "riskcal"
MEMORY = 2 * 2**30


def ask(what: str, arguments: dict[str, Any], limit: float) -> dict[str, Any]:
    """Return the answer of a peer and its CPU seconds, or why there is none."""
    python = PEER / "bin" / "python"
    if not python.exists():
        venv.create(PEER, with_pip=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, *PACKAGES], check=True)
    done = subprocess.run(
        [str(python), str(ROOT / "benchmarks" / "accounting_peer.py")],
        input=json.dumps({"what": what, "arguments": arguments, "limit": limit, "memory": MEMORY}),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return {**json.loads(done.stdout), "calls": 1, "failure": None}
    last = (done.stderr.strip().splitlines() or [f"no answer in {limit:g} s"])[-1]
    return {"lower": None, "upper": None, "noise": None, "seconds": None, "calls": 1,
            "failure": last[:90]}  # fmt: skip


def allocation_peers(
    settings: tuple[float, int, int, float], epsilon: float, limit: float
) -> dict[str, dict[str, Any]]:
    """Return what PLD_accounting answers, by default and for a hundredth of epsilon."""
    noise, batches, epochs, delta = settings
    query = {"noise": noise, "batches": batches, "epochs": epochs, "delta": delta}
    return {
        name: ask("allocation", query | {"width": width}, limit)
        for name, width in ((ALLOCATION_PEER, -1.0), (FINE_ALLOCATION_PEER, 0.01 * epsilon))
    }


def training(risk: Risk, noise: float) -> Loss:
    return risk.steps * Gaussian(noise).poisson(rate=risk.rate)


def reached(risk: Risk, noise: float) -> float:
    """Return what an attacker reaches at most, by our certified reading."""
    loss = training(risk, noise)
    return loss.advantage() if risk.fpr is None else float(loss.tradeoff(risk.fpr))


def our_noise(risk: Risk) -> float:
    target = {"advantage": risk.most} if risk.fpr is None else {"tpr": risk.most, "fpr": risk.fpr}
    return calibrate(partial(training, risk), bracket=(0.1, 50.0), increasing=False, **target)


def measure_risk(risk: Risk, rounds: int, limit: float) -> dict[str, Any]:
    """Find the noise for a risk, beside riskcal, and what each noise permits."""
    ours = compare({OURS: partial(our_noise, risk)}, rounds=rounds, limits={OURS: limit})[OURS]
    answers = {OURS: {"noise": ours.answer, "seconds": ours.median, "failure": ours.failure}}
    query: dict[str, Any] = {"rate": risk.rate, "steps": risk.steps}
    if risk.fpr is None:
        answers[RISK_PEER] = ask("advantage", query | {"advantage": risk.most}, limit)
    else:
        answers[RISK_PEER] = ask("rates", query | {"tpr": risk.most, "fpr": risk.fpr}, limit)
    for answer in answers.values():
        if answer["noise"] is not None:
            answer["reached"] = reached(risk, answer["noise"])
    print(f"{risk.label}: {answers}", flush=True)
    return {"risk": risk.label, "most": risk.most, "answers": answers}
