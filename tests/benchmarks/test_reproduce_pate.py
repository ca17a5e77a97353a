"""The published figures of PATE are those of the recorded runs, and the script judges rightly."""

import copy
import json
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from discreet.pate import GNMax

ROOT = Path(__file__).resolve().parents[2]
RESULTS = json.loads((ROOT / "benchmarks/results/pate.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return import_module("reproduce_pate")


def test_every_target_was_met_by_all_runs(script: ModuleType) -> None:
    found = [
        (row["target_epsilon"], row["run"]) for row in RESULTS["parts"]["mnist"]["found"]["rows"]
    ]
    planned = [(epsilon, run) for epsilon, _, runs in script.MNIST for run in range(runs)]
    assert found == planned
    assert all(target["met"] for target in script.targets(RESULTS))


@pytest.mark.parametrize(
    "row", RESULTS["parts"]["mnist"]["found"]["rows"], ids=lambda row: str(row["epsilon"])
)
def test_recorded_epsilons_are_the_accountants(row: dict[str, Any]) -> None:
    shown = row["aggregator"]
    aggregator = GNMax(classes=10, teachers=250, noise=shown["noise"])
    epsilon = aggregator.loss(queries=row["queries"]).epsilon(delta=1e-5)
    assert row["epsilon"] == pytest.approx(epsilon, rel=1e-9)
    assert row["epsilon"] <= row["target_epsilon"]
    assert row["randomness"] == {"randomness": "operating system"}


@pytest.mark.parametrize(("key", "value"), [("accuracy", 97.9), ("epsilon", 2.05)])
def test_a_missed_target_is_seen(script: ModuleType, key: str, value: float) -> None:
    spoiled = copy.deepcopy(RESULTS)
    spoiled["parts"]["mnist"]["found"]["rows"][0][key] = value
    assert not all(target["met"] for target in script.targets(spoiled))


def test_adult_is_compared_at_equal_epsilon(script: ModuleType) -> None:
    rows = RESULTS["parts"]["adult"]["found"]["rows"]
    for epsilon in script.ADULT_EPSILONS:
        learners = {row["learner"] for row in rows if row["target_epsilon"] == epsilon}
        assert learners == set(script.NAMES)
    assert all(row["epsilon"] <= row["target_epsilon"] for row in rows)
