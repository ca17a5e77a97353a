"""Accuracy of DP-SGD on MNIST and Fashion-MNIST beside published figures.

Every run goes through the public Trainer with a Plan for its (epsilon, delta): Poisson sampling,
noise from the operating system's source, epsilon by the certified accountant. A run is judged
once, at its end, on the official test images; runs of one experiment differ in their
initialisation, batches and noise.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from discreet import data
from discreet._rounding import at_most
from discreet.data import SplitImages
from discreet.learn.dpsgd import Plan, Trainer
from discreet.learn.features import Scattering, contrasts
from discreet.report import COLOURS, new_figure, save_figure, tidy_axes
from harness import Run, Suite, target

DELTA = 1e-5
GROUPS = 27
TITLES = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST"}


@dataclass(frozen=True)
class Published:
    """A figure from a paper, in percent."""

    source: str
    epsilon: float
    accuracy: float


ABADI = Published("Abadi et al. 2016", 2.0, 95.0)
TEMPERED_MNIST = Published("tempered sigmoids, Papernot et al. 2021", 2.93, 98.1)
TEMPERED_FASHION = Published("tempered sigmoids, Papernot et al. 2021", 2.7, 86.1)
SCATTER_MNIST = Published("ScatterNet, Tramer and Boneh 2021", 3.0, 98.7)
SCATTER_FASHION = Published("ScatterNet, Tramer and Boneh 2021", 3.0, 89.7)


@dataclass(frozen=True)
class Experiment:
    """One plan, one model, several runs; accuracies in percent."""

    name: str
    data: str
    model: str
    epsilon: float
    batch: int
    steps: int
    clip_norm: float
    rate: float
    momentum: float
    runs: int
    target: float | None = None
    most_seconds: float | None = None
    published: tuple[Published, ...] = field(default=())


def linear(name: str, source: str, epsilon: float, **changes: Any) -> Experiment:
    """A linear model on scattering features."""
    settings: dict[str, Any] = {
        "batch": 8192,
        "steps": 250,
        "clip_norm": 0.1,
        "rate": 9.0,
        "momentum": 0.9,
        "runs": 3,
        **changes,
    }
    return Experiment(name, source, "linear on scattering", epsilon, **settings)


EXPERIMENTS = (
    Experiment(
        "mnist-cnn-2",
        "mnist",
        "CNN on pixels",
        epsilon=2.0,
        batch=1024,
        steps=200,
        clip_norm=0.1,
        rate=4.0,
        momentum=0.9,
        runs=2,
        target=95.0,
        most_seconds=300.0,
        published=(ABADI,),
    ),
    linear("mnist-scattering-1", "mnist", 1.0, runs=2, steps=150, rate=7.0),
    linear(
        "mnist-scattering-3",
        "mnist",
        3.0,
        target=98.1,
        published=(TEMPERED_MNIST, SCATTER_MNIST),
    ),
    linear("fashion-scattering-1", "fashion_mnist", 1.0, runs=2, steps=150, rate=9.0),
    linear(
        "fashion-scattering-3",
        "fashion_mnist",
        3.0,
        rate=14.0,
        target=86.0,
        published=(TEMPERED_FASHION, SCATTER_FASHION),
    ),
)


# --- models and their inputs -------------------------------------------------------------


def small_cnn() -> nn.Module:
    """The network of the tempered-sigmoid paper: 26,000 parameters, bounded activations."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )


def pixels(images: Any) -> Tensor:
    """Bytes as numbers between -1 and 1: a fixed scale, not one read off the data."""
    return torch.from_numpy(images).unsqueeze(1).to(torch.float32) / 127.5 - 1


def scattered(images: Any) -> Tensor:
    """Scattering coefficients, normalised image by image."""
    module = Scattering((28, 28))
    out = torch.empty(len(images), module.channels * 49)
    for start in range(0, len(images), 1000):
        some = module.transform(images[start : start + 1000])
        out[start : start + 1000] = contrasts(some, groups=GROUPS, blocks=module.blocks).flatten(1)
    return out


def scattering_model() -> nn.Module:
    return nn.Linear(81 * 49, 10)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[Any], Tensor]]] = {
    "CNN on pixels": (small_cnn, pixels),
    "linear on scattering": (scattering_model, scattered),
}


# --- runs ----------------------------------------------------------------------------------


def plan_of(experiment: Experiment, examples: int) -> Plan:
    return Plan(
        examples=examples,
        expected_batch_size=experiment.batch,
        steps=experiment.steps,
        clip_norm=experiment.clip_norm,
        epsilon=experiment.epsilon,
        delta=DELTA,
        unit="image",
    )


def one_run(
    experiment: Experiment, plan: Plan, train: TensorDataset, test: TensorDataset, seed: int
) -> dict[str, Any]:
    """Train once; the seed decides the initial weights, never the batches or the noise."""
    torch.manual_seed(seed)
    model = MODELS[experiment.model][0]()
    start = time.perf_counter()
    trainer = Trainer(
        model,
        plan,
        optimizer=lambda parameters: torch.optim.SGD(
            parameters, lr=experiment.rate, momentum=experiment.momentum
        ),
        loss=nn.CrossEntropyLoss(reduction="none"),
    )
    certificate = trainer.fit(train, max_physical=2048, progress=False).certificate
    seconds = time.perf_counter() - start
    inputs, targets = test.tensors
    with torch.no_grad():
        found = torch.cat([model(some).argmax(1) for some in inputs.split(1000)])
    return {
        "seed": seed,
        "accuracy": round(100 * float((found == targets).double().mean()), 2),
        "seconds": round(seconds, 1),
        "epsilon": certificate.epsilon,
        "epsilon_lower": plan.loss.epsilon_bounds(delta=plan.delta).lower,
        "steps_taken": certificate.run["steps_taken"],
        "sampler": plan.sampler,
        "isolation": certificate.run["isolation"],
        "randomness": dict(certificate.randomness),
    }


def result_of(
    experiment: Experiment, images: SplitImages, train: TensorDataset, test: TensorDataset
) -> dict[str, Any]:
    plan = plan_of(experiment, len(train))
    runs = []
    for seed in range(1, experiment.runs + 1):
        runs.append(one_run(experiment, plan, train, test, seed))
        print(
            f"{experiment.name:24} run {seed}: {runs[-1]['accuracy']:.2f} %, epsilon "
            f"{at_most(runs[-1]['epsilon'], digits=4)}, {runs[-1]['seconds']:.0f} s",
            flush=True,
        )
    accuracies = [run["accuracy"] for run in runs]
    return {
        "name": experiment.name,
        "data": experiment.data,
        "revision": images.revision,
        "model": experiment.model,
        "target_epsilon": experiment.epsilon,
        "epsilon": max(run["epsilon"] for run in runs),
        "delta": DELTA,
        "noise_multiplier": plan.noise_multiplier,
        "examples": plan.examples,
        "batch": experiment.batch,
        "steps": experiment.steps,
        "clip_norm": experiment.clip_norm,
        "learning_rate": experiment.rate,
        "momentum": experiment.momentum,
        "mean": round(statistics.fmean(accuracies), 2),
        "worst": min(accuracies),
        "target": experiment.target,
        "most_seconds": experiment.most_seconds,
        "slowest": max(run["seconds"] for run in runs),
        "published": [vars(each) for each in experiment.published],
        "runs": runs,
    }


def run(experiments: Iterable[Experiment], load: Callable[[str], SplitImages]) -> dict[str, Any]:
    """All experiments, grouped so that the inputs of one group at a time are in memory."""
    results: list[dict[str, Any]] = []
    preparation: dict[str, float] = {}
    groups: dict[tuple[str, str], list[Experiment]] = {}
    for experiment in experiments:
        groups.setdefault((experiment.data, experiment.model), []).append(experiment)
    for (name, model), members in groups.items():
        images = load(name)
        start = time.perf_counter()
        prepare = MODELS[model][1]
        train = TensorDataset(prepare(images.x_train), torch.from_numpy(images.y_train).long())
        test = TensorDataset(prepare(images.x_test), torch.from_numpy(images.y_test).long())
        preparation[f"{name}, {model}"] = round(time.perf_counter() - start, 1)
        results += [result_of(member, images, train, test) for member in members]
    return {"experiments": results, "preparation_seconds": preparation}


def targets(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Every target with what was measured: the worst run must meet it, not the best."""
    found = []
    for result in record["experiments"]:
        name = result["name"]
        epsilon, least, seconds = (
            result[key] for key in ("target_epsilon", "target", "most_seconds")
        )
        found.append(target(f"{name}: epsilon", result["epsilon"], at_most=epsilon))
        if least is not None:
            found.append(target(f"{name}: worst accuracy", result["worst"], at_least=least))
        if seconds is not None:
            found.append(target(f"{name}: slowest run", result["slowest"], at_most=seconds))
    return found


# --- what is written ---------------------------------------------------------------------


def table(results: dict[str, Any]) -> str:
    lines = [
        "| data | model | epsilon | accuracy, mean | worst run | runs | seconds | published |",
        "|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for each in results["experiments"]:
        papers = "; ".join(
            f"{p['accuracy']:.1f} % at {p['epsilon']:g} ({p['source']})" for p in each["published"]
        )
        lines.append(
            f"| {TITLES[each['data']]} | {each['model']} | {at_most(each['epsilon'], digits=4)} "
            f"| {each['mean']:.2f} % | {each['worst']:.2f} % | {len(each['runs'])} "
            f"| {each['slowest']:.0f} | {papers} |"
        )
    return "\n".join(lines)


def draw(results: dict[str, Any], place: Path) -> None:
    figure = new_figure(9, 3.6)
    for axes, (name, title) in zip(figure.subplots(1, 2), TITLES.items(), strict=True):
        for model, colour in (
            ("linear on scattering", COLOURS["blue"]),
            ("CNN on pixels", COLOURS["green"]),
        ):
            rows = [
                each
                for each in results["experiments"]
                if (each["data"], each["model"]) == (name, model)
            ]
            rows.sort(key=lambda each: each["epsilon"])
            for row in rows:
                accuracies = [run["accuracy"] for run in row["runs"]]
                axes.plot([row["epsilon"]] * len(accuracies), accuracies, ".", color=colour, ms=5)
            if rows:
                axes.plot(
                    [row["epsilon"] for row in rows],
                    [row["mean"] for row in rows],
                    "-o",
                    color=colour,
                    ms=4,
                    label=f"Discreet, {model}",
                )
        for row in results["experiments"]:
            for paper in row["published"] if row["data"] == name else ():
                axes.plot(paper["epsilon"], paper["accuracy"], "x", color=COLOURS["vermilion"])
                axes.annotate(
                    paper["source"].split(",")[0],
                    (paper["epsilon"], paper["accuracy"]),
                    xytext=(-6, -3),
                    textcoords="offset points",
                    ha="right",
                    va="top",
                    fontsize=8,
                    color=COLOURS["vermilion"],
                )
        axes.set_title(title)
        axes.set_xlabel(f"epsilon, certified, delta {DELTA:g}")
        axes.set_ylabel("test accuracy, %")
        axes.set_xlim(0, 3.3)
        axes.margins(y=0.15)
        axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(0.0, 0.5), frameon=False)
        tidy_axes(axes)
    save_figure(figure, place)


def measure(asked: Run) -> dict[str, Any]:
    """All experiments, or those that were asked for."""
    # Softmax gives tiny numbers; arithmetic on denormal ones is many times slower.
    torch.set_flush_denormal(True)
    chosen = EXPERIMENTS
    if asked.quick:
        chosen = tuple(replace(each, steps=20, runs=1, target=None) for each in chosen)
    return run(chosen, lambda name: getattr(data, name)())


SUITE = Suite(
    "dpsgd",
    measure,
    targets,
    tables={("docs/training-results.md", "dpsgd results"): table},
    pictures={"dpsgd.png": draw},
)
