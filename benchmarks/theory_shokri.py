"""The other panel of the lecture's second figure: Shokri's attack over the claimed epsilon.

The settings, seeds and noise (by RDP) are those of theory_practice.py, without canaries. Five
shadow models are trained like each target, with its noise and its sampling rate, on random halves
of the records that the target was not trained on. There are none besides, so these are
also the non-members that the attack is judged on.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import nn

from discreet.attacks import ShadowPool, observe_split, shokri, yeom
from discreet.learn.dpsgd import Plan, make_private
from discreet.report import COLOURS, new_figure, save_figure, tidy_axes
from harness import Run, Suite, read_record, target
from theory_practice import PAGE, allowed_advantage
from theory_runs import (
    ADULT,
    DELTA,
    EPSILONS,
    LOCATION,
    MODELS,
    Records,
    Setting,
    halves,
    model_for,
    plain_model,
    records_of,
    tensors,
)

SEEDS = 5
SHADOWS = 5
SAVE_EVERY = 30.0
SETTINGS = {setting.name: setting for setting in (ADULT, LOCATION)}
Cell = tuple[str, str, float, int]


def private_model(
    setting: Setting, kind: str, records: Records, *, classes: int, noise: float, seed: int
) -> nn.Module:
    """A model trained as theory_practice.py trains, at the same rate; noise from the system."""
    size = len(records[1])
    plan = Plan(
        examples=size,
        expected_batch_size=setting.batch * size / setting.examples,
        steps=setting.steps,
        clip_norm=1.0,
        noise_multiplier=noise,
        delta=DELTA,
    )
    torch.manual_seed(seed)
    model = model_for(kind, records[0].shape[1], classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=setting.rates[MODELS.index(kind)])
    loop = make_private(model, optimizer, plan, isolation="vouched")
    for x, y in loop.batches(tensors(records)):
        loop.backward(nn.functional.cross_entropy(model(x), y, reduction="none"))
        optimizer.step()
        optimizer.zero_grad()
    loop.detach()
    return model.eval()


def attacked(setting: Setting, kind: str, *, noise: float, seed: int) -> dict[str, float]:
    """One target and its shadow models; ``noise`` 0 stands for no privacy."""
    start = time.perf_counter()
    members, others = halves(setting, seed)
    classes = int(records_of(setting)[1].max()) + 1

    def train(records: Records, training_seed: int) -> nn.Module:
        if noise:
            return private_model(
                setting, kind, records, classes=classes, noise=noise, seed=training_seed
            )
        return plain_model(kind, records, classes, training_seed)

    def shadow(indices: Any, training_seed: int) -> nn.Module:
        return train((others[0][indices], others[1][indices]), training_seed % 2**31)

    target = train(members, seed)
    pool = ShadowPool(*others, shadow, models=SHADOWS, classes=classes, seed=seed, pairs=False)
    seen = observe_split(target, members=members, nonmembers=others)
    return {
        "shokri": float(shokri(seen, pool.run(), seed=seed).advantage().value),
        "yeom": float(yeom(seen).advantage().value),
        "seconds": round(time.perf_counter() - start, 2),
    }


def cells(seeds: int) -> Iterator[Cell]:
    for seed in range(1, seeds + 1):
        for name in SETTINGS:
            for model in MODELS:
                for epsilon in (*EPSILONS, math.inf):
                    yield name, model, epsilon, seed


def cell_of(row: dict[str, Any]) -> Cell:
    return row["data"], row["model"], row.get("epsilon", math.inf), row["seed"]


def one(task: tuple[Cell, float]) -> dict[str, Any]:
    """One target, in whatever process."""
    (name, model, epsilon, seed), noise = task
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    found: dict[str, Any] = {"data": name, "model": model, "seed": seed}
    if math.isfinite(epsilon):
        found |= {"epsilon": epsilon, "noise_multiplier": noise}
    return {**found, **attacked(SETTINGS[name], model, noise=noise, seed=seed)}


def measure(asked: Run) -> dict[str, Any]:
    """All runs; what an interrupted one had done is not done again."""
    known = (read_record("theory") or {})["noise_multipliers"]
    results = {"delta": DELTA, "shadows": SHADOWS, "runs": [], **asked.resume("theory_shokri")}
    done = {cell_of(row) for row in results["runs"]}
    tasks = [
        (cell, known.get(f"{cell[0]}, rdp, {cell[2]:g}", 0.0))
        for cell in cells(1 if asked.quick else SEEDS)
        if cell not in done
    ]
    saved = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(min(2, os.cpu_count() or 1)) as pool:
        for count, row in enumerate(pool.imap(one, tasks), start=1):
            results["runs"].append(row)
            if time.perf_counter() - saved > SAVE_EVERY:
                saved = time.perf_counter()
                asked.save("theory_shokri", results)
                print(f"{count} of {len(tasks)} runs", flush=True)
    return results


class Means:
    """Means over the seeds with which every cell was run."""

    def __init__(self, results: dict[str, Any]) -> None:
        done = {cell_of(row): row for row in results["runs"]}
        most = max((row["seed"] for row in results["runs"]), default=0)
        missing = {cell[-1] for cell in cells(most) if cell not in done}
        self.seeds = [seed for seed in range(1, most + 1) if seed not in missing]
        self._rows = done
        self.panels = [(name, model) for name in SETTINGS for model in MODELS]

    def of(self, panel: tuple[str, str], epsilon: float, what: str) -> float:
        return mean(self._rows[*panel, epsilon, seed][what] for seed in self.seeds)


def table(results: dict[str, Any]) -> str:
    means = Means(results)
    shown = (1.0, 10.0, 100.0, 1000.0, math.inf)
    heads = ["data, model", "attack", *(f"at {epsilon:g}" for epsilon in shown[:-1]), "plain"]
    lines = [f"| {' | '.join(heads)} |", f"|---|---|{'---:|' * len(shown)}"]
    for panel in means.panels:
        for what in ("shokri", "yeom"):
            values = [f"{means.of(panel, epsilon, what):.2f}" for epsilon in shown]
            lines.append(f"| {', '.join(panel)} | {what.title()} | {' | '.join(values)} |")
    lines += ["", f"Advantage, mean over {len(means.seeds)} seeds; noise by RDP."]
    return "\n".join(lines).replace("-0.00", "0.00")


def draw(results: dict[str, Any], place: Path) -> None:
    means = Means(results)
    figure = new_figure(3.1 * len(means.panels), 3)
    grid = figure.subplots(1, len(means.panels), sharey=True, squeeze=False)[0]
    for axes, panel in zip(grid, means.panels, strict=True):
        for what, ink in (("shokri", "vermilion"), ("yeom", "blue")):
            values = [means.of(panel, epsilon, what) for epsilon in EPSILONS]
            colour = COLOURS[ink]
            axes.plot(EPSILONS, values, color=colour, marker=".", label=what.title())
            axes.axhline(means.of(panel, math.inf, what), color=colour, ls=":", lw=1)
        axes.plot(EPSILONS, list(map(allowed_advantage, EPSILONS)), "k--", lw=1, label="bound")
        axes.set_title("\n".join(panel), fontsize=9)
        axes.set_xscale("log")
        axes.set_ylim(-0.05, 1.0)
        axes.set_xlabel("claimed epsilon (RDP)", fontsize=8)
        tidy_axes(axes)
    grid[0].set_ylabel("advantage (dotted: no privacy)", fontsize=8)
    grid[0].legend(fontsize=6, frameon=False)
    save_figure(figure, place)


def targets(record: dict[str, Any]) -> list[dict[str, Any]]:
    """No advantage is above what the claim allows by six deviations or more."""
    beyond = [
        row[what] - allowed_advantage(row.get("epsilon", math.inf)) - 6.0 / math.sqrt(2 * size)
        for row in record["runs"]
        for size in [SETTINGS[row["data"]].members]
        for what in ("shokri", "yeom")
    ]
    return [target("advantage beyond the claim and six deviations", max(beyond), at_most=0.0)]


SUITE = Suite(
    "theory_shokri",
    measure,
    targets,
    tables={(PAGE, "shokri table"): table},
    pictures={"theory_shokri.png": draw},
)
