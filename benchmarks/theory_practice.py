"""Theory against practice: what a claimed epsilon costs, and what an attacker gets under it.

For every accountant and every epsilon of Jayaraman and Evans (2019), the least noise that the
accountant lets pass as (epsilon, 1e-5); with that noise, logistic regression and a network on
Adult and Location-30 (on Purchase-100 if its file is given) by DP-SGD, five times. Measured are
the loss of accuracy beside a plain twin, the advantage of Yeom's attack, and, which the paper
has not, what an audit with gradient canaries certifies from below in the same run.

PURCHASE=file in the environment adds Purchase-100. A run that is interrupted goes on when it is
started again.
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

from discreet.report import COLOURS, new_figure, save_figure, tidy_axes
from harness import Run, Suite, target
from theory_runs import (
    ACCOUNTANTS,
    ADULT,
    CANARIES,
    DELTA,
    EPSILONS,
    LOCATION,
    MODELS,
    Setting,
    plain,
    private,
    purchases,
)

SEEDS = 5
NO_LOSS = 0.02
SAVE_EVERY = 30.0
TITLES = {"naive": "naive", "advanced": "advanced", "zcdp": "zCDP", "rdp": "RDP", "pld": "PLD"}
INKS = {
    "naive": "grey",
    "advanced": "orange",
    "zcdp": "green",
    "rdp": "blue",
    "pld": "vermilion",
}
LOOSER = ("naive", "advanced", "zcdp")
HEADS = (
    "data, model",
    "accountant",
    "no loss from",
    "loss at 1",
    "at 10",
    "at 100",
    "advantage at 10",
    "at 1000",
    "certified at 10",
    "at 1000",
)
Cell = tuple[str, str, str, float, int]


# --- running -----------------------------------------------------------------------------


def settings_with(purchase: Path | None) -> dict[str, Setting]:
    listed = [ADULT, LOCATION, *([purchases(purchase)] if purchase else [])]
    return {setting.name: setting for setting in listed}


def cells(names: list[str], seeds: int) -> Iterator[Cell]:
    """All runs, seed by seed: one that is cut short has fewer seeds, not fewer cells."""
    for seed in range(1, seeds + 1):
        for name in names:
            for model in MODELS:
                yield name, model, "none", math.inf, seed
                for accountant in ACCOUNTANTS:
                    for epsilon in EPSILONS:
                        yield name, model, accountant, epsilon, seed


def one(task: tuple[Cell, float, Path | None]) -> dict[str, Any]:
    """One run, in whatever process."""
    (name, model, accountant, epsilon, seed), noise, purchase = task
    torch.set_num_threads(1)
    # Softmax gives tiny numbers; arithmetic on denormal ones is many times slower.
    torch.set_flush_denormal(True)
    setting = settings_with(purchase)[name]
    found: dict[str, Any] = {"data": name, "model": model, "accountant": accountant, "seed": seed}
    if accountant == "none":
        return {**found, **plain(setting, model, seed)}
    outcome = private(setting, model, noise_multiplier=noise, epsilon=epsilon, seed=seed)
    return {**found, "epsilon": epsilon, "noise_multiplier": noise, **outcome}


def cell_of(row: dict[str, Any]) -> Cell:
    return row["data"], row["model"], row["accountant"], row.get("epsilon", math.inf), row["seed"]


def noises(listed: dict[str, Setting], known: dict[str, float]) -> dict[str, float]:
    """The noise multiplier of every claim, by "data, accountant, epsilon"."""
    for name, setting in listed.items():
        for accountant in ACCOUNTANTS:
            for epsilon in EPSILONS:
                key = f"{name}, {accountant}, {epsilon:g}"
                if key not in known:
                    known[key] = setting.noise(epsilon, accountant)
    return known


def measure(asked: Run) -> dict[str, Any]:
    """All runs; what an interrupted one had done is not done again."""
    purchase = Path(os.environ["PURCHASE"]) if os.environ.get("PURCHASE") else None
    start: dict[str, Any] = {"delta": DELTA, "canaries": CANARIES, "noise_multipliers": {}}
    results = {**start, "runs": [], **asked.resume("theory")}
    listed = settings_with(purchase)
    results["noise_multipliers"] = noises(listed, results["noise_multipliers"])
    done = {cell_of(row) for row in results["runs"]}
    seeds = 1 if asked.quick else SEEDS
    tasks = []
    for cell in cells(list(listed), seeds):
        if cell not in done:
            key = f"{cell[0]}, {cell[2]}, {cell[3]:g}"
            tasks.append((cell, results["noise_multipliers"].get(key, 0.0), purchase))
    saved = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(min(2, os.cpu_count() or 1)) as pool:
        for count, row in enumerate(pool.imap(one, tasks), start=1):
            results["runs"].append(row)
            if time.perf_counter() - saved > SAVE_EVERY:
                saved = time.perf_counter()
                asked.save("theory", results)
                print(f"{count} of {len(tasks)} runs", flush=True)
    return results


# --- reading -----------------------------------------------------------------------------


def whole_seeds(results: dict[str, Any]) -> list[int]:
    """The seeds with which every cell was run: the last one of an interrupted run is not."""
    names = list(dict.fromkeys(row["data"] for row in results["runs"]))
    done = {cell_of(row) for row in results["runs"]}
    most = max((row["seed"] for row in results["runs"]), default=0)
    missing = {cell[-1] for cell in cells(names, most) if cell not in done}
    return [seed for seed in range(1, most + 1) if seed not in missing]


class Figures:
    """Means over the whole seeds, by data set, model, accountant and epsilon."""

    def __init__(self, results: dict[str, Any]) -> None:
        self.by_cell: dict[tuple[str, str, str, float], list[dict[str, Any]]] = {}
        seeds = whole_seeds(results)
        for row in results["runs"]:
            if row["seed"] not in seeds:
                continue
            self.by_cell.setdefault(cell_of(row)[:4], []).append(row)
        self.panels = list(dict.fromkeys((row["data"], row["model"]) for row in results["runs"]))

    def of(self, panel: tuple[str, str], accountant: str, epsilon: float, what: str) -> float:
        return mean(row[what] for row in self.by_cell[*panel, accountant, epsilon])

    def plain(self, panel: tuple[str, str], what: str) -> float:
        return self.of(panel, "none", math.inf, what)

    def accuracy_loss(self, panel: tuple[str, str], accountant: str, epsilon: float) -> float:
        """1 - accuracy / accuracy of the plain twin, as in the paper."""
        return 1.0 - self.of(panel, accountant, epsilon, "accuracy") / self.plain(panel, "accuracy")

    def without_loss(self, panel: tuple[str, str], accountant: str) -> float:
        """The least epsilon from which on the accuracy loss stays within 2 %; inf if none."""
        found = math.inf
        for epsilon in reversed(EPSILONS):
            if self.accuracy_loss(panel, accountant, epsilon) > NO_LOSS:
                break
            found = epsilon
        return found


def allowed_advantage(epsilon: float) -> float:
    """The most that (epsilon, delta)-DP leaves to any attack."""
    return min(
        1.0, (math.expm1(min(epsilon, 500.0)) + 2 * DELTA) / (math.exp(min(epsilon, 500.0)) + 1)
    )


def trends(results: dict[str, Any]) -> list[dict[str, Any]]:
    """What is read off the two figures of the paper, and whether it is so here."""
    figures = Figures(results)
    noise = results["noise_multipliers"]
    names = list(dict.fromkeys(panel[0] for panel in figures.panels))
    least_noise = all(
        noise[f"{name}, rdp, {epsilon:g}"] <= noise[f"{name}, {other}, {epsilon:g}"]
        for name in names
        for epsilon in EPSILONS
        for other in LOOSER
    )

    def mean_loss(panel: tuple[str, str], accountant: str) -> float:
        return mean(figures.accuracy_loss(panel, accountant, epsilon) for epsilon in EPSILONS)

    least_loss = sum(
        all(mean_loss(panel, "rdp") <= mean_loss(panel, other) for other in LOOSER)
        for panel in figures.panels
    )
    private_losses = [figures.accuracy_loss(panel, "rdp", 1.0) for panel in figures.panels]
    needed = max(figures.without_loss(panel, "rdp") for panel in figures.panels)
    at_100 = max(figures.of(panel, "rdp", 100.0, "advantage") for panel in figures.panels)
    at_1000 = max(figures.of(panel, "rdp", 1000.0, "advantage") for panel in figures.panels)
    audited = max(figures.of(panel, "rdp", 100.0, "epsilon_lower") for panel in figures.panels)
    return [
        {
            "theirs": (
                "at the same epsilon RDP needs less noise than naive and advanced composition and "
                "zCDP, and loses less accuracy"
            ),
            "ours": (
                f"the least noise of the four {'at' if least_noise else 'not at'} every epsilon, "
                f"the least mean loss in {least_loss} of {len(figures.panels)} panels"
            ),
            "same": least_noise and least_loss == len(figures.panels),
        },
        {
            "theirs": "for strong privacy (epsilon at most 1) models lose nearly all utility",
            "ours": (
                f"at epsilon 1 by RDP the loss is between {100 * min(private_losses):.0f} % and "
                f"{100 * max(private_losses):.0f} %, by data set"
            ),
            "same": min(private_losses) > 0.5,
        },
        {
            "theirs": "even with RDP no loss of accuracy needs an epsilon above 100",
            "ours": f"with RDP a loss of at most 2 % needs epsilon {needed:g}"
            if math.isfinite(needed)
            else "with RDP a loss of at most 2 % is not reached in every panel",
            "same": needed > 100.0,
        },
        {
            "theirs": "the attacks get little even at epsilon 100 or 1000: far less than the bound",
            "ours": f"Yeom's advantage is at most {at_100:.2f} at epsilon 100 and {at_1000:.2f} at "
            "1000 (by RDP); the bound allows 1.00",
            "same": at_1000 < 0.5,
        },
        {
            "theirs": "so epsilon 100 seems to give enough protection against existing attacks",
            "ours": (
                "against this attack, for ordinary records; with canaries the same runs are "
                f"certified to have an epsilon of at least {audited:.1f} (by RDP at 100)"
            ),
            "same": audited < 1.0,
        },
    ]


def targets(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Claims that audits refute more often than they may by chance are wrong."""
    audits = [row for row in record["runs"] if row["accountant"] != "none"]
    violated = sum(row["verdict"] == "violated" for row in audits)
    # Each is wrong with probability 0.05 at most; six deviations above that is no accident.
    most = 0.05 * len(audits) + 6 * math.sqrt(0.05 * 0.95 * len(audits))
    return [target(f"audits that refute the accountant, of {len(audits)}", violated, at_most=most)]


# --- publishing --------------------------------------------------------------------------


def table(results: dict[str, Any]) -> str:
    figures = Figures(results)
    lines = [
        f"| {' | '.join(HEADS)} |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for panel in figures.panels:
        base = f"{100 * figures.plain(panel, 'accuracy'):.1f} %"
        lines.append(
            f"| {panel[0]}, {panel[1]} | *plain: {base}* | | | | | "
            f"*{figures.plain(panel, 'advantage'):.2f}* | | | |"
        )
        for accountant in ACCOUNTANTS:
            least = figures.without_loss(panel, accountant)
            entries = [f"{least:g}" if math.isfinite(least) else "never"]
            entries += [
                f"{100 * figures.accuracy_loss(panel, accountant, epsilon):.1f} %"
                for epsilon in (1.0, 10.0, 100.0)
            ]
            for what, digits in (("advantage", 2), ("epsilon_lower", 1)):
                entries += [
                    f"{figures.of(panel, accountant, epsilon, what):.{digits}f}"
                    for epsilon in (10.0, 1000.0)
                ]
            lines.append(f"| | {TITLES[accountant]} | {' | '.join(entries)} |")
    lines += ["", f"Seeds: {len(whole_seeds(results))}."]
    return "\n".join(lines).replace("-0.00", "0.00").replace("-0.0 %", "0.0 %")


def trend_table(results: dict[str, Any]) -> str:
    lines = ["| read off the figures of the paper | here | the same? |", "|---|---|---|"]
    lines += [
        f"| {trend['theirs']} | {trend['ours']} | {'yes' if trend['same'] else '**no**'} |"
        for trend in trends(results)
    ]
    return "\n".join(lines)


def draw(results: dict[str, Any], place: Path) -> None:
    figures = Figures(results)
    figure = new_figure(3.1 * len(figures.panels), 8)
    grid = figure.subplots(3, len(figures.panels), sharex=True, squeeze=False)
    for column, panel in enumerate(figures.panels):
        top, middle, bottom = (grid[line][column] for line in range(3))
        for accountant in ACCOUNTANTS:
            ink = {"color": COLOURS[INKS[accountant]], "lw": 1.5, "marker": ".", "ms": 4}
            label = TITLES[accountant]
            losses = [figures.accuracy_loss(panel, accountant, each) for each in EPSILONS]
            top.plot(EPSILONS, losses, label=label, **ink)
            for axes, what in ((middle, "advantage"), (bottom, "epsilon_lower")):
                values = [figures.of(panel, accountant, each, what) for each in EPSILONS]
                axes.plot(EPSILONS, values, label=label, **ink)
        middle.plot(EPSILONS, list(map(allowed_advantage, EPSILONS)), "k--", lw=1, label="bound")
        middle.axhline(figures.plain(panel, "advantage"), color="k", ls=":", lw=1, label="plain")
        bottom.plot(EPSILONS, EPSILONS, "k--", lw=1, label="claimed")
        top.set_title(f"{panel[0]}\n{panel[1]}", fontsize=9)
        top.set_ylim(-0.05, 1.0)
        middle.set_ylim(-0.05, 1.0)
        bottom.set_ylim(0, 6.5)
        bottom.set_xscale("log")
        bottom.set_xlabel("claimed epsilon", fontsize=8)
        for axes in (top, middle, bottom):
            tidy_axes(axes)
            axes.tick_params(labelsize=7)
    names = ("accuracy loss", "advantage (Yeom)", "certified epsilon")
    for line, name in enumerate(names):
        grid[line][0].set_ylabel(name, fontsize=8)
        grid[line][0].legend(fontsize=6, frameon=False)
    save_figure(figure, place)


PAGE = "docs/theory-and-practice.md"
SUITE = Suite(
    "theory",
    measure,
    targets,
    tables={(PAGE, "trend table"): trend_table, (PAGE, "theory table"): table},
    pictures={"theory.png": draw},
)
