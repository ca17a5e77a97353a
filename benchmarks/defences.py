"""Defences against membership inference, side by side, and three sentences of a lecture, measured.

Parts: location (Location-30, 64 models for each row) and mnist (5,000 digits, 16 models). Quick:
six rows on Location-30 with 16 models. Models and rows are stored in build/bench/defences, from
which an interrupted run goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from discreet.data import location30, mnist
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


PARTS = {"location": (location, 64), "mnist": (digits, 16)}


def measure_part(name: str, asked: Run) -> Any:
    load, models = PARTS[name]
    data = load()
    rows = standard_defences(data, hidden=HIDDEN, canaries=CANARIES, quick=asked.quick)
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


SUITE = Suite(
    "defences",
    measure,
    targets,
    parts=tuple(PARTS),
    pictures={"defences-location.png": partial(draw, "location")},
)
