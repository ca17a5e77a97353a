"""The curves over clip norm, sampling rate and teachers: what is asked of a record (S21, S23)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

import dpsgd_settings
import harness
import pate_teachers


def made_up_task() -> dpsgd_settings.Task:
    rows = torch.randn(600, 2, generator=torch.Generator().manual_seed(1))
    labels = (rows[:, 0] > 0).long()
    return dpsgd_settings.Task(
        (rows[:500], labels[:500]),
        (rows[500:], labels[500:]),
        lambda: nn.Linear(2, 2),
        delta=1e-4,
        rate=1 / 10,
        steps=5,
        epochs=2,
        clip_norm=1.0,
        moves=(0.01, 3.0),
        unit="row",
    )


def test_a_setting_is_run_with_the_noise_of_its_plan_and_the_better_step_size() -> None:
    task = made_up_task()
    row = dpsgd_settings.measure_setting(task, 2, clip_norm=0.5, rate=0.1, steps=5)
    assert row["step_size"] == pytest.approx(3.0 / 0.5)
    assert len(row["accuracies"]) == 2
    assert row["mean"] > 80
    small = dpsgd_settings.accuracy(
        task, None, task.test, 1, clip_norm=0.5, rate=0.02, steps=5, step_size=6.0
    )[1]
    # The same epsilon takes less noise where fewer records enter a step.
    assert small.noise_multiplier < row["noise_multiplier"]


@pytest.mark.parametrize("part", ["adult", "mnist"])
def test_curves_that_contradict_the_sentences_are_missed(part: str) -> None:
    def record(accuracies: list[float], noise: list[float]) -> dict[str, Any]:
        fixed = [{"mean": one} for one in accuracies]
        steps = [{"noise_multiplier": one} for one in noise]
        return {"parts": {part: {"found": {"rows": {"fixed": fixed, "steps": steps}}}}}

    right = dpsgd_settings.targets(record([70, 80, 75], [0.5, 1, 2]))
    assert [one["met"] for one in right] == [True, True]
    wrong = dpsgd_settings.targets(record([80, 80, 75], [0.5, 2, 1]))
    assert [one["met"] for one in wrong] == [False, False]
    assert dpsgd_settings.recorded(record([], [])) == {part: dpsgd_settings.TITLES[part]}


@pytest.mark.parametrize("part", ["adult", "mnist"])
def test_teachers_that_contradict_the_sentences_are_missed(part: str) -> None:
    def record(single: list[float], vote: list[float], labels: list[int]) -> dict[str, Any]:
        rows = [
            {"single": one, "vote": all_of_them, "labels": {"GNMax": count}}
            for one, all_of_them, count in zip(single, vote, labels, strict=True)
        ]
        return {"parts": {part: {"found": {"rows": rows}}}}

    right = pate_teachers.targets(record([84, 80], [85, 83], [2, 800]))
    assert [one["met"] for one in right] == [True] * 3
    wrong = pate_teachers.targets(record([80, 84], [79, 85], [800, 2]))
    assert [one["met"] for one in wrong] == [False] * 3


def test_what_the_pages_show_is_what_was_recorded() -> None:
    """Sentences of the lectures, on the records that the pages are made of."""
    settings, teachers = (harness.read_record(n) for n in ("dpsgd_settings", "pate_teachers"))
    assert settings
    assert teachers
    for part in settings["parts"].values():
        rows = part["found"]["rows"]
        noise = [one["noise_multiplier"] for one in rows["steps"]]
        assert all(a < b for a, b in pairwise(noise))
        # Small batches: as good as the middle at equal epochs, with many times the steps.
        few = next(one for one in rows["epochs"] if one["rate"] == 1 / 256)
        middle = next(one for one in rows["epochs"] if one["rate"] == 1 / 64)
        assert few["steps"] > 3 * middle["steps"]
        assert rows["steps"][0]["mean"] < max(one["mean"] for one in rows["steps"])
    for part in teachers["parts"].values():
        rows = part["found"]["rows"]
        assert rows[0]["single"] > rows[-1]["single"]
        assert rows[0]["vote"] > rows[-1]["vote"]
        assert all(one["vote"] > one["single"] for one in rows)
        assert all(a["labels"]["GNMax"] < b["labels"]["GNMax"] for a, b in pairwise(rows))
