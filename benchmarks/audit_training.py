"""What the audits of training certify: a planted mechanism, and DP-SGD on MNIST end to end.

planted    A Gaussian mechanism of epsilon 4 exactly (delta 1e-5), 1,000 canaries, 50 repetitions
           of every audit. Noise is seeded here, it protects nobody.
gradient   A CNN on MNIST by a plan of epsilon 8 (delta 1e-5) with white-box canaries, one run
           through the public Trainer: noise and coins from the operating system's source.
input      The same with mislabelled images as black-box canaries.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from discreet import data
from discreet._rounding import at_least, at_most
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
from discreet.report import COLOURS, new_figure, save_figure, tidy_axes
from harness import Run, Suite, found, target
from reproduce_dpsgd import pixels, small_cnn

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
        audited = []
        for repetition in range(repetitions):
            seed = 1000 * place + repetition
            coins = Inclusion(canaries, guesses=guesses, source=source(insecure_seed=seed))
            audited.append(audit(coins))
        bounds = sorted(one.epsilon_lower for one in audited)
        rows.append(
            {
                "audit": name,
                "method": audited[0].method,
                "median": statistics.median(bounds),
                "least": bounds[0],
                "most": bounds[-1],
                "above_the_truth": sum(bound > PLANTED_EPSILON for bound in bounds),
                "violated": sum(one.violated for one in audited),
                "ceiling": statistics.median(one.ceiling for one in audited),
                "confidence": audited[0].confidence,
                "assumptions": list(audited[0].assumptions),
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
        looks = min(5, plan.steps)  # a quick run has fewer steps
        run = train_with_input_canaries(model, train, plan, canaries=odd, looks=looks, **common)
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


def targets(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Every target with what was measured."""
    listed = []
    if planted := found(record, "planted"):
        by_name = {row["audit"]: row for row in planted["audits"]}
        for name, least in (("one run", 1.3), ("Gaussian", 2.6)):
            median = by_name[name]["median"]
            listed.append(target(f"planted epsilon 4: {name}, median", median, at_least=least))
        for name, row in by_name.items():
            # One in twenty may be; 10 of 50 have a probability below 1e-3.
            listed.append(
                target(f"planted epsilon 4: {name}, violated", row["violated"], at_most=9)
            )
    if run := found(record, "gradient"):
        certified = run["audits"][0]["epsilon_lower"]
        listed += [
            target("MNIST: epsilon claimed", run["epsilon"], at_most=MNIST_EPSILON),
            target("MNIST: gradient canaries certify", certified, at_least=2.0),
            target("MNIST: seconds", run["seconds"], at_most=1200.0),
        ]
    return listed


CALLS = {
    "one run": "`audit_one_run`",
    "one run, curve": "`audit_one_run_curve`",
    "one run, Gaussian curve": '`audit_one_run_curve`, `mechanism="gaussian"`',
    "Gaussian": "`audit_gaussian`",
    "Clopper-Pearson": "`audit_runs`",
    "trade-off": "`audit_tradeoff`",
}
FORMS = {"gradient": "gradient canaries (white box)", "input": "mislabelled images (black box)"}


def planted_table(results: dict[str, Any]) -> str:
    """Every audit of the planted mechanism: what it certifies of the truth, and could have."""
    lines = [
        "| audit | median | least | most | ceiling | above the truth |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    planted = found(results, "planted")
    for row in planted["audits"]:
        shown = [at_least(row[name], digits=3) for name in ("median", "least", "most", "ceiling")]
        above = f"{row['above_the_truth']}/{planted['repetitions']}"
        lines.append(f"| {CALLS[row['audit']]} | {' | '.join(shown)} | {above} |")
    return "\n".join(lines)


def training_table(results: dict[str, Any]) -> str:
    """The runs on MNIST."""
    lines = [
        "| canaries | number | guesses | right | claimed | certified | ceiling | verdict |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for form, title in FORMS.items():
        run = found(results, form)
        if not run:
            continue
        audit = run["audits"][0]
        evidence = audit["evidence"]
        guesses = evidence["guesses_included"] + evidence["guesses_excluded"]
        lines.append(
            f"| {title} | {run['canaries']} | {guesses} | {evidence['correct']} | "
            f"{at_most(audit['claimed_epsilon'], digits=3)} | "
            f"{at_least(audit['epsilon_lower'], digits=3)} | "
            f"{at_least(audit['ceiling'], digits=3)} | {audit['verdict']} |"
        )
    return "\n".join(lines)


def draw(results: dict[str, Any], place: Path) -> None:
    figure = new_figure(9, 3.6)
    left, right = figure.subplots(1, 2)
    rows = found(results, "planted")["audits"]
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
    runs = [run for form in ("input", "gradient") if (run := found(results, form))]
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
        tidy_axes(axes)
    save_figure(figure, place)


def measure(asked: Run) -> dict[str, Any]:
    # Softmax gives tiny numbers; arithmetic on denormal ones is many times slower.
    torch.set_flush_denormal(True)
    small: dict[str, Any] = {"batch": 512, "steps": 2} if asked.quick else {}
    ways: dict[str, Callable[[], Any]] = {
        "planted": lambda: planted(repetitions=2 if asked.quick else REPETITIONS),
        "gradient": lambda: of_mnist("gradient", data.mnist(), canaries=5000, **small),
        "input": lambda: of_mnist("input", data.mnist(), canaries=1000, **small),
    }
    return {name: run() for name, run in ways.items() if asked.wants(name)}


def gradient_audit(record: dict[str, Any]) -> dict[str, Any]:
    audit: dict[str, Any] = found(record, "gradient")["audits"][0]
    return audit


PAGE = "docs/auditing-training.md"
SUITE = Suite(
    "audit",
    measure,
    targets,
    parts=("planted", "gradient", "input"),
    tables={(PAGE, "planted table"): planted_table, (PAGE, "training table"): training_table},
    pictures={"audit.png": draw},
    numbers={
        "canaries": lambda record: f"{found(record, 'gradient')['canaries']:,}",
        "certified": lambda record: at_least(gradient_audit(record)["epsilon_lower"], digits=3),
        "ceiling": lambda record: at_least(gradient_audit(record)["ceiling"], digits=3),
        "verdict": lambda record: gradient_audit(record)["verdict"],
    },
)
