"""What the audits of training certify: a planted mechanism, and DP-SGD on MNIST end to end.

    python benchmarks/audit_training.py [--only NAME ...] [--from-results]

planted    A Gaussian mechanism of epsilon 4 exactly (delta 1e-5), 1,000 canaries, 50 repetitions
           of every audit. Noise is seeded here, it protects nobody.
gradient   A CNN on MNIST by a plan of epsilon 8 (delta 1e-5) with white-box canaries, one run
           through the public Trainer: noise and coins from the operating system's source.
input      The same with mislabelled images as black-box canaries.

Writes benchmarks/results/audit.json and audit.png and exits with 1 if a target is missed. With
--only, the other experiments are taken from the recorded results.

MNIST is looked for in $DISCREET_DATA, in shared/data beside the project, in the cache, and on
the web.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from discreet import data
from discreet.audit import (
    Inclusion,
    TrainingAudit,
    audit_gaussian,
    audit_one_run,
    audit_one_run_curve,
    audit_runs,
    audit_tradeoff,
    suggest_guesses,
)
from discreet.cli.pictures import COLOURS, blank_figure, save, tidy
from discreet.data import SplitImages
from discreet.learn.dpsgd import Plan
from discreet.learn.dpsgd.canaries import (
    CanaryRun,
    mislabelled,
    train_with_gradient_canaries,
    train_with_input_canaries,
)
from discreet.privacy import GDP
from discreet.privacy.theorems import gaussian_mu
from discreet.randomness import source
from reproduce_dpsgd import pixels, small_cnn

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "audit.json"
PICTURE = RESULTS.with_suffix(".png")

DELTA = 1e-5
PLANTED_EPSILON = 4.0
MNIST_EPSILON = 8.0
REPETITIONS = 50
TITLES = {
    "one run": "one run, any mechanism",
    "one run, curve": "one run, curve, any mechanism",
    "one run, Gaussian curve": "one run, curve, if Gaussian",
    "Gaussian": "Clopper-Pearson, if Gaussian",
    "Clopper-Pearson": "Clopper-Pearson, any mechanism",
    "trade-off": "trade-off curve, any mechanism",
}


# --- a planted mechanism -------------------------------------------------------------------


def planted(*, repetitions: int = REPETITIONS, canaries: int = 1000) -> dict[str, Any]:
    """Every audit of the same Gaussian mechanism, again and again, each with its own coins."""
    mu = gaussian_mu(PLANTED_EPSILON, DELTA)
    truth = GDP(mu=mu)
    guesses = suggest_guesses(truth, canaries=canaries, delta=DELTA)
    generator = np.random.default_rng(20261116)
    claim: dict[str, Any] = {"loss": truth, "delta": DELTA}

    def scores(coins: Inclusion) -> Any:
        """Log-likelihood ratios: 0 is where both worlds are equally likely."""
        seen = mu * coins.included + generator.standard_normal(canaries)
        return mu * (seen - mu / 2)

    def split_scores(coins: Inclusion) -> Any:
        return coins.split_scores(scores(coins))

    audits: dict[str, Callable[[Inclusion], TrainingAudit]] = {
        "one run": lambda coins: audit_one_run(coins, scores(coins), **claim),
        "one run, curve": lambda coins: audit_one_run_curve(coins, scores(coins), **claim),
        "one run, Gaussian curve": lambda coins: audit_one_run_curve(
            coins, scores(coins), mechanism="gaussian", **claim
        ),
        "Gaussian": lambda coins: audit_gaussian(
            *split_scores(coins), mechanism="gaussian", thresholds=0.0, **claim
        ),
        "Clopper-Pearson": lambda coins: audit_runs(*split_scores(coins), **claim),
        "trade-off": lambda coins: audit_tradeoff(*split_scores(coins), thresholds=0.0, **claim),
    }
    rows = []
    for place, (name, audit) in enumerate(audits.items()):
        found = []
        for repetition in range(repetitions):
            seed = 1000 * place + repetition
            coins = Inclusion(canaries, guesses=guesses, source=source(insecure_seed=seed))
            found.append(audit(coins))
        bounds = sorted(one.epsilon_lower for one in found)
        rows.append(
            {
                "audit": name,
                "method": found[0].method,
                "median": statistics.median(bounds),
                "least": bounds[0],
                "most": bounds[-1],
                "above_the_truth": sum(bound > PLANTED_EPSILON for bound in bounds),
                "violated": sum(one.violated for one in found),
                "ceiling": statistics.median(one.ceiling for one in found),
                "confidence": found[0].confidence,
                "assumptions": list(found[0].assumptions),
            }
        )
        print(f"planted, {name}: median {rows[-1]['median']:.3f}", flush=True)
    return {
        "true_epsilon": PLANTED_EPSILON,
        "mu": mu,
        "delta": DELTA,
        "canaries": canaries,
        "guesses": list(guesses),
        "repetitions": repetitions,
        "audits": rows,
    }


# --- MNIST, end to end -----------------------------------------------------------------------


def mnist_plan(examples: int, *, batch: int = 16_384, steps: int = 20) -> Plan:
    return Plan(
        examples=examples,
        expected_batch_size=batch,
        steps=steps,
        clip_norm=0.1,
        epsilon=MNIST_EPSILON,
        delta=DELTA,
        unit="image",
    )


def of_mnist(
    form: str, images: SplitImages, *, canaries: int, batch: int = 16_384, steps: int = 20
) -> dict[str, Any]:
    """One run of one form of canaries, with the seconds from the first line to the verdict."""
    start, computing = time.perf_counter(), time.process_time()
    train = TensorDataset(pixels(images.x_train), torch.from_numpy(images.y_train).long())
    plan = mnist_plan(len(train) + canaries // 2, batch=batch, steps=steps)
    guesses = suggest_guesses(plan.loss, canaries=canaries, delta=DELTA, false_alarm_rate=0.05 / 2)
    coins = Inclusion(canaries, guesses=guesses, audits=2)
    torch.manual_seed(1)
    common: dict[str, Any] = {
        "included": coins.included,
        "loss": nn.CrossEntropyLoss(reduction="none"),
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=4.0, momentum=0.9),
        "max_physical": 2048,
    }
    model = small_cnn()
    x_test, y_test = pixels(images.x_test), torch.from_numpy(images.y_test).long()
    run: CanaryRun
    if form == "gradient":
        run = train_with_gradient_canaries(model, train, plan, **common)
    else:
        odd = mislabelled(x_test[:canaries], y_test[:canaries], classes=10)
        run = train_with_input_canaries(model, train, plan, canaries=odd, looks=5, **common)
    audits = [
        audit_one_run(coins, run.scores, loss=plan.loss, delta=DELTA),
        audit_one_run_curve(coins, run.scores, loss=plan.loss, delta=DELTA),
    ]
    seconds, cpu = time.perf_counter() - start, time.process_time() - computing
    model.eval()
    # Input canaries are mislabelled test images: they are not judged on.
    held = slice(canaries if form == "input" else 0, None)
    with torch.no_grad():
        answers = torch.cat([model(some).argmax(1) for some in x_test[held].split(1000)])
    certificate = run.trained.certificate
    for audit in audits:
        print(f"{form}: {audit}", flush=True)
    return {
        "form": form,
        "revision": images.revision,
        "canaries": canaries,
        "guesses": list(guesses),
        "plan": plan.to_json(),
        "epsilon": certificate.epsilon,
        "steps_taken": certificate.run["steps_taken"],
        "isolation": certificate.run["isolation"],
        "randomness": dict(certificate.randomness),
        "accuracy": round(100 * float((answers == y_test[held]).double().mean()), 2),
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu, 1),
        "audits": [audit.to_json() for audit in audits],
    }


# --- judging, drawing ------------------------------------------------------------------------


def judged(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Every target with what was measured."""
    targets: list[dict[str, Any]] = []

    def add(what: str, measured: float, target: float, *, most: bool = False) -> None:
        met = measured <= target if most else measured >= target
        targets.append({"what": what, "measured": measured, "target": target, "met": met})

    if "planted" in results:
        by_name = {row["audit"]: row for row in results["planted"]["audits"]}
        add("planted epsilon 4: one run, median", by_name["one run"]["median"], 1.3)
        add("planted epsilon 4: Gaussian, median", by_name["Gaussian"]["median"], 2.6)
        for name, row in by_name.items():
            # One in twenty may be; 10 of 50 have a probability below 1e-3.
            add(f"planted epsilon 4: {name}, violated", row["violated"], 9, most=True)
    if "gradient" in results:
        run = results["gradient"]
        add("MNIST: epsilon claimed at most", run["epsilon"], MNIST_EPSILON, most=True)
        add("MNIST: gradient canaries certify", run["audits"][0]["epsilon_lower"], 2.0)
        add("MNIST: seconds", run["seconds"], 1200.0, most=True)
    return targets


def draw(results: dict[str, Any], place: Path) -> None:
    figure = blank_figure(9, 3.6)
    left, right = figure.subplots(1, 2)
    rows = results["planted"]["audits"]
    for height, row in enumerate(reversed(rows)):
        left.plot(
            [row["least"], row["most"]],
            [height, height],
            color=COLOURS["sky"],
            lw=5,
            solid_capstyle="butt",
        )
        left.plot(row["median"], height, "o", color=COLOURS["blue"])
        left.plot(row["ceiling"], height, "|", color=COLOURS["grey"], ms=12)
    names = [TITLES[row["audit"]] for row in reversed(rows)]
    left.set_yticks(range(len(rows)), names, fontsize=8)
    left.axvline(PLANTED_EPSILON, color=COLOURS["vermilion"])
    left.set_title("Gaussian mechanism of epsilon 4, 1,000 canaries", fontsize=10)
    runs = [results[form] for form in ("input", "gradient") if form in results]
    for height, run in enumerate(runs):
        audit = run["audits"][0]
        right.barh(height, audit["epsilon_lower"], color=COLOURS["blue"], height=0.4)
        right.plot(audit["ceiling"], height, "|", color=COLOURS["grey"], ms=24)
    right.set_yticks(range(len(runs)), [f"{run['form']} canaries" for run in runs], fontsize=8)
    right.set_ylim(-0.6, len(runs) - 0.4)
    right.axvline(MNIST_EPSILON, color=COLOURS["vermilion"])
    right.set_title("MNIST CNN, one run each", fontsize=10)
    for axes in (left, right):
        axes.set_xlim(0, None)
        axes.set_xlabel(f"epsilon at delta {DELTA:g}; | ceiling; red: true or claimed")
        axes.xaxis.label.set_size(8)
        tidy(axes)
    save(figure, place)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = ("planted", "gradient", "input")
    parser.add_argument("--only", nargs="+", choices=names, help="run these again")
    parser.add_argument("--from-results", action="store_true", help="only judge and draw")
    options = parser.parse_args()
    beside = ROOT.parent / "shared" / "data"
    if beside.is_dir():
        os.environ.setdefault("DISCREET_DATA", str(beside))
    # Softmax gives tiny numbers; arithmetic on denormal ones is many times slower.
    torch.set_flush_denormal(True)
    results: dict[str, Any] = {}
    if (options.only or options.from_results) and RESULTS.exists():
        results = json.loads(RESULTS.read_text(encoding="utf-8"))
    chosen = () if options.from_results else options.only or names
    if "planted" in chosen:
        results["planted"] = planted()
    if "gradient" in chosen:
        results["gradient"] = of_mnist("gradient", data.mnist(), canaries=5000)
    if "input" in chosen:
        results["input"] = of_mnist("input", data.mnist(), canaries=1000)
    if chosen:
        results["environment"] = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cores": os.cpu_count(),
            "machine": platform.machine(),
        }
    results["targets"] = judged(results)
    RESULTS.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    if "planted" in results:
        draw(results, PICTURE)
    for target in results["targets"]:
        verdict = "met" if target["met"] else "MISSED"
        print(f"{target['what']}: {target['measured']:.4g} (target {target['target']:g}) {verdict}")
    return 0 if all(target["met"] for target in results["targets"]) else 1


if __name__ == "__main__":
    sys.exit(main())
