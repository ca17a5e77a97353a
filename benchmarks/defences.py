"""Defences against membership inference, side by side, and three sentences of a lecture, measured.

Parts: location (Location-30, 64 models for each row), adult (6,000 people, with a row for synthetic
records) and mnist (5,000 digits), 16 models for each row. Quick: six rows on Location-30 with 16
models. Models and rows are stored in build/bench/defences, from
which an interrupted run goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from discreet.data import adult, location30, mnist
from discreet.defences import (
    RATES,
    BenchData,
    BenchReport,
    BenchRow,
    DefenceBench,
    Mislabelled,
    standard_defences,
)
from discreet.report import draw_defences
from harness import Run, Suite, claim, found

SEED = 1
CANARIES = 500
HIDDEN = 64


def location() -> BenchData:
    public = location30()
    return BenchData.split(public.x, public.y, seed=SEED)


def digits() -> BenchData:
    public = mnist()
    chosen = np.random.default_rng(SEED).permutation(len(public.y_train))[:5000]
    images = public.x_train[chosen].reshape(len(chosen), -1) / np.float32(255)
    return BenchData.split(images, public.y_train[chosen], seed=SEED)


# Where numbers of Adult are cut: public, and about as fine as their questions.
CUTS = {
    "age": range(20, 80, 5),
    "fnlwgt": (100_000, 200_000, 300_000),
    "education-num": range(2, 17),
    "capital-gain": (1, 5_000, 10_000, 20_000),
    "capital-loss": (1, 1_500, 2_000),
    "hours-per-week": range(10, 80, 10),
}


def questions() -> tuple[BenchData, tuple[int, ...]]:
    """6,000 people as bits, one of each question, and how many answers each question has."""
    table = adult().train
    chosen = np.random.default_rng(SEED).permutation(len(table["income"]))[:6000]
    bits, sizes = [], []
    for name, column in table.items():
        if name == "income":
            continue
        if column.dtype.kind == "i":
            codes, size = np.digitize(column, CUTS[name]), len(CUTS[name]) + 1
        else:
            known, codes = np.unique(column, return_inverse=True)
            size = len(known)
        bits.append(np.eye(size, dtype=np.float32)[codes[chosen]])
        sizes.append(size)
    labels = (table["income"][chosen] == ">50K").astype(np.int64)
    return BenchData.split(np.concatenate(bits, axis=1), labels, seed=SEED), tuple(sizes)


PARTS: dict[str, tuple[Callable[[], tuple[BenchData, tuple[int, ...]]], int]] = {
    "location": (lambda: (location(), ()), 64),
    "adult": (questions, 16),
    "mnist": (lambda: (digits(), ()), 16),
}


def measure_part(name: str, asked: Run) -> Any:
    load, models = PARTS[name]
    data, categories = load()
    rows = standard_defences(
        data, hidden=HIDDEN, canaries=CANARIES, categories=categories, quick=asked.quick
    )
    return (
        DefenceBench(
            rows,
            data,
            Mislabelled(CANARIES),
            16 if asked.quick else models,
            cache=asked.folder / "defences",
            seed=SEED,
            progress=partial(print, flush=True),
        )
        .run()
        .to_json()
    )


def measure(asked: Run) -> dict[str, Any]:
    torch.set_flush_denormal(True)
    names = ["location"] if asked.quick and not asked.only else list(PARTS)
    return {name: measure_part(name, asked) for name in names if asked.wants(name)}


def report_of(part: dict[str, Any]) -> BenchReport:
    """Read what a part measured."""
    return BenchReport(tuple(BenchRow.from_json(row) for row in part["rows"]), part["seed"])


def sentences(report: BenchReport) -> Iterator[dict[str, Any]]:
    """The lecture's three sentences, each as a statement that figures can contradict."""
    plain, guard = (report.row(name).leak("canaries", RATES[0]) for name in ("none", "MemGuard"))
    label = report.row("label-only output").leak("canaries", RATES[0])
    early = report.compare("early stopping", "none")
    if plain is None or guard is None or label is None or early is None:
        return
    yield claim(
        "MemGuard is not very effective: an attack that knows it finds more than half as many "
        "canaries as without it",
        guard.found.low > plain.found.high / 2,
    )
    yield claim(
        "Label-only outputs still leak: ten times as many canaries are found as others accused",
        label.found.low > 10 * label.rate,
    )
    right = [report.row(name).accuracy.share for name in ("early stopping", "none")]
    yield claim(
        "Generalization is a defence by itself: training that stops early is not less right and "
        "fewer canaries are found",
        early.high < 0 and right[0] >= right[1],
    )


def targets(record: Any) -> Iterator[dict[str, Any]]:
    part = found(record, "location")
    if part:
        report = report_of(part)
        yield from sentences(report)
        refuted = [row.defence for row in report.rows if row.verdict == "violated"]
        yield claim("no audit contradicts a proof", not refuted)


def draw(name: str, record: dict[str, Any], place: Path) -> None:
    if found(record, name):
        draw_defences(report_of(found(record, name)), place)


PAGE = "docs/defences.md"


def table(name: str, record: dict[str, Any]) -> str:
    """The rows of a part, as the page shows them."""
    part = found(record, name)
    if not part:
        return "Not measured yet."
    heading, *lines = report_of(part).table()
    shown = "\n".join(
        "| " + " | ".join(cells) + " |" for cells in (heading, ["---"] * len(heading), *lines)
    )
    if name == "location":
        return (
            f"![Accuracy and canaries found, by defence](images/defences-location.png)\n\n{shown}"
        )
    return shown


def verdicts(record: dict[str, Any]) -> str:
    part = found(record, "location")
    if not part:
        return "Not measured yet."
    listed = sentences(report_of(part))
    return "\n".join(f"- {one['what']}: **{'yes' if one['met'] else 'no'}**" for one in listed)


SUITE = Suite(
    "defences",
    measure,
    targets,
    parts=tuple(PARTS),
    tables={
        **{(PAGE, f"defences {name}"): partial(table, name) for name in PARTS},
        (PAGE, "defences sentences"): verdicts,
    },
    pictures={"defences-location.png": partial(draw, "location")},
)
