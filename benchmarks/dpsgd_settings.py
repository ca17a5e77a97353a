"""Accuracy of DP-SGD over the clip norm and over the sampling rate, at epsilon 2.

The lectures say that a clip norm of 1 is usually a good value, that it should be large enough and
small enough, and that a small sampling rate is better for privacy and worse for utility. Here each
is drawn, on MNIST at 14 x 14 pixels and on Adult, with networks of 32 units.

Clip norms: the rate and the number of steps stay. The step size is either one for all norms, or
chosen for each norm from a grid. Sampling rates: the noise follows from epsilon, at equal steps and
at equal epochs, with a chosen step size. Step sizes are chosen with one run each on a sixth of the
training data that is set aside; on private data that choice would have to be paid for. Every mean
is over five runs on the test set; runs differ in weights, batches and noise.

Parts: mnist and adult.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from discreet.data import Encoding, read_table
from discreet.learn.dpsgd import Plan, Trainer
from discreet.report import COLOURS, new_figure, save_figure, tidy_axes
from harness import Run, Suite, claim, found
from learners_tasks import adult_schema, census, small_digits

EPSILON, SEEDS = 2.0, 5
NORMS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
RATES = (1 / 512, 1 / 256, 1 / 128, 1 / 64, 1 / 32, 1 / 16, 1 / 8)
TITLES = {"mnist": "MNIST", "adult": "Adult"}


@dataclass(frozen=True)
class Task:
    """Data, a model and the setting from which one thing at a time is changed.

    ``moves`` are the step sizes of the grid times the clip norm: what one clipped example can move.
    """

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    model: Callable[[], nn.Module]
    delta: float
    rate: float
    steps: int
    epochs: float
    clip_norm: float
    moves: tuple[float, ...]
    unit: str
    norms: tuple[float, ...] = NORMS
    rates: tuple[float, ...] = RATES


def mnist_task() -> Task:
    train, test = ((torch.from_numpy(x).float(), torch.from_numpy(y)) for x, y in small_digits())
    return Task(
        train,
        test,
        lambda: nn.Sequential(nn.Linear(196, 32), nn.Tanh(), nn.Linear(32, 10)),
        delta=1e-5,
        rate=1 / 64,
        steps=200,
        epochs=5,
        clip_norm=1.0,
        moves=(0.3, 1.0, 3.0, 10.0),
        unit="image",
    )


def adult_task() -> Task:
    people = census()
    schema = adult_schema(people.train)
    encoding = Encoding(schema)
    parts = [read_table(part, schema) for part in (people.train, people.test)]
    train, test = (
        (
            torch.from_numpy(encoding.features(part)).float(),
            torch.from_numpy(np.asarray(encoding.target(part))).long(),
        )
        for part in parts
    )
    return Task(
        train,
        test,
        lambda: nn.Sequential(nn.Linear(train[0].shape[1], 32), nn.Tanh(), nn.Linear(32, 2)),
        delta=1e-6,
        rate=1 / 64,
        steps=200,
        epochs=5,
        clip_norm=1.0,
        moves=(0.03, 0.1, 0.3, 1.0, 3.0),
        unit="person",
    )


TASKS = {"mnist": mnist_task, "adult": adult_task}


def accuracy(
    task: Task, rows: Tensor | None, judged: tuple[Tensor, Tensor], seed: int, **setting: Any
) -> tuple[float, Plan]:
    """Train once on the given rows; return the share of the judged ones that is right, in %."""
    x, y = task.train if rows is None else (task.train[0][rows], task.train[1][rows])
    plan = Plan(
        examples=len(x),
        expected_batch_size=len(x) * setting["rate"],
        steps=setting["steps"],
        clip_norm=setting["clip_norm"],
        epsilon=EPSILON,
        delta=task.delta,
        unit=task.unit,
    )
    torch.manual_seed(seed)
    model = task.model()
    trainer = Trainer(
        model,
        plan,
        optimizer=lambda p: torch.optim.SGD(p, lr=setting["step_size"], momentum=0.9),
        loss=nn.CrossEntropyLoss(reduction="none"),
    )
    trainer.fit(TensorDataset(x, y), max_physical=2048, progress=False)
    with torch.no_grad():
        said = model(judged[0]).argmax(1)
    return 100 * float((said == judged[1]).double().mean()), plan


def measure_setting(task: Task, seeds: int, **setting: Any) -> dict[str, Any]:
    """Choose the step size if none is given, then run with each seed."""
    if "step_size" not in setting:
        order = torch.randperm(len(task.train[0]), generator=torch.Generator().manual_seed(0))
        held = order[: len(order) // 6]
        aside = (task.train[0][held], task.train[1][held])
        tried = {
            move / setting["clip_norm"]: accuracy(
                task,
                order[len(held) :],
                aside,
                0,
                step_size=move / setting["clip_norm"],
                **setting,
            )[0]
            for move in task.moves
        }
        setting["step_size"] = max(tried, key=lambda size: tried[size])
    runs = [accuracy(task, None, task.test, seed, **setting) for seed in range(1, seeds + 1)]
    return {
        **setting,
        "noise_multiplier": runs[0][1].noise_multiplier,
        "accuracies": [round(one, 2) for one, _ in runs],
        "mean": round(statistics.fmean(one for one, _ in runs), 2),
    }


def part(name: str, *, quick: bool) -> dict[str, Any]:
    """Every setting of one data set."""
    task = TASKS[name]()
    norms, rates, seeds = task.norms, task.rates, SEEDS
    if quick:
        norms, rates, seeds = norms[::3], rates[::3], 1
    shared = {"rate": task.rate, "steps": task.steps}
    rows: dict[str, list[dict[str, Any]]] = {"norms": [], "fixed": [], "steps": [], "epochs": []}
    for norm in norms:
        rows["norms"].append(measure_setting(task, seeds, clip_norm=norm, **shared))
    middle = measure_setting(task, 1, clip_norm=task.clip_norm, **shared)["step_size"]
    for norm in norms:
        rows["fixed"].append(
            measure_setting(task, seeds, clip_norm=norm, step_size=middle, **shared)
        )
    for rate in rates:
        for kind, steps in (("steps", task.steps), ("epochs", round(task.epochs / rate))):
            rows[kind].append(
                measure_setting(task, seeds, clip_norm=task.clip_norm, rate=rate, steps=steps)
            )
    for kind, found_rows in rows.items():
        print(name, kind, [one["mean"] for one in found_rows], flush=True)
    return {"rows": rows, "delta": task.delta, "clip_norm": task.clip_norm}


# --- what is written ---------------------------------------------------------------------


def targets(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The lectures' sentences, as statements about the curves."""
    held = []
    for name, title in TITLES.items():
        rows = found(record, name).get("rows")
        if rows is None:
            continue
        fixed = [one["mean"] for one in rows["fixed"]]
        held.append(
            claim(
                f"{title}: with one step size, the smallest and the largest clip norm are worse "
                "than the best",
                min(max(fixed) - fixed[0], max(fixed) - fixed[-1]) > 0,
            )
        )
        steps = [one["noise_multiplier"] for one in rows["steps"]]
        held.append(
            claim(
                f"{title}: at equal steps a larger rate needs more noise",
                all(a < b for a, b in pairwise(steps)),
            )
        )
    return held


def recorded(record: dict[str, Any]) -> dict[str, str]:
    """The titles of the parts that were recorded."""
    return {name: title for name, title in TITLES.items() if name in record["parts"]}


def _cells(rows: list[dict[str, Any]], key: str, values: tuple[float, ...], show: Any) -> str:
    """One cell for each value, empty where it was not tried."""
    found = {row[key]: show(row) for row in rows}
    return " | ".join(found.get(value, "") for value in values)


def _mean(row: dict[str, Any]) -> str:
    return f"{row['mean']:.1f} %"


def _noise(row: dict[str, Any]) -> str:
    return f"{row['noise_multiplier']:.2f}"


def norms_table(record: dict[str, Any]) -> str:
    lines = [
        "| clip norm | " + " | ".join(f"{norm:g}" for norm in NORMS) + " |",
        "|---|" + "---:|" * len(NORMS),
    ]
    for name, title in recorded(record).items():
        rows = found(record, name)["rows"]
        for kind, what in (("norms", "step size chosen"), ("fixed", "one step size")):
            lines.append(f"| {title}, {what} | {_cells(rows[kind], 'clip_norm', NORMS, _mean)} |")
    return "\n".join(lines)


def rates_table(record: dict[str, Any]) -> str:
    lines = [
        "| sampling rate | " + " | ".join(f"1/{round(1 / rate)}" for rate in RATES) + " |",
        "|---|" + "---:|" * len(RATES),
    ]
    for name, title in recorded(record).items():
        rows = found(record, name)["rows"]
        for kind in ("steps", "epochs"):
            lines.append(f"| {title}, equal {kind} | {_cells(rows[kind], 'rate', RATES, _mean)} |")
            lines.append(f"| noise multiplier | {_cells(rows[kind], 'rate', RATES, _noise)} |")
    return "\n".join(lines)


def draw(record: dict[str, Any], place: Path) -> None:
    figure = new_figure(10, 6.4)
    panels = figure.subplots(2, len(recorded(record)), squeeze=False)
    for column, (name, title) in enumerate(recorded(record).items()):
        rows = found(record, name)["rows"]
        for axes, key, kinds in (
            (
                panels[0, column],
                "clip_norm",
                (("norms", "blue", "step size chosen"), ("fixed", "vermilion", "one step size")),
            ),
            (
                panels[1, column],
                "rate",
                (("steps", "blue", "equal steps"), ("epochs", "vermilion", "equal epochs")),
            ),
        ):
            for kind, colour, label in kinds:
                at = [one[key] for one in rows[kind]]
                axes.plot(
                    at, [one["mean"] for one in rows[kind]], "-", color=COLOURS[colour], label=label
                )
                for one in rows[kind]:
                    axes.plot(
                        [one[key]] * len(one["accuracies"]),
                        one["accuracies"],
                        ".",
                        ms=4,
                        color=COLOURS[colour],
                    )
            axes.set_xscale("log")
            values = NORMS if key == "clip_norm" else RATES
            plain = key == "clip_norm"
            shown = [f"{one:g}" if plain else f"1/{1 / one:.0f}" for one in values]
            axes.set_xticks(values, shown)
            axes.minorticks_off()
            axes.set_title(title, loc="left", fontsize=10)
            axes.set_xlabel("clip norm" if key == "clip_norm" else "sampling rate")
            axes.set_ylabel("test accuracy, %")
            axes.legend(fontsize=8, frameon=False)
            tidy_axes(axes)
    save_figure(figure, place)


def measure(asked: Run) -> dict[str, Any]:
    """The parts that were asked for."""
    torch.set_flush_denormal(True)
    return {name: part(name, quick=asked.quick) for name in TASKS if asked.wants(name)}


SUITE = Suite(
    "dpsgd_settings",
    measure,
    targets,
    parts=tuple(TASKS),
    tables={
        ("docs/training-results.md", "clip norms"): norms_table,
        ("docs/training-results.md", "sampling rates"): rates_table,
    },
    pictures={"dpsgd-settings.png": draw},
)
