"""The published figures of PATE are those of the recorded runs, and the script judges rightly."""

import copy
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from discreet.pate import GNMax

ROOT = Path(__file__).resolve().parents[2]
RESULTS = json.loads((ROOT / "benchmarks/results/pate.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs/pate-results.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = ROOT / "benchmarks" / "reproduce_pate.py"
    spec = importlib.util.spec_from_file_location("reproduce_pate", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_the_recorded_runs(script: ModuleType) -> None:
    assert script.mnist_table(RESULTS) in PAGE
    assert script.adult_table(RESULTS) in PAGE


def test_every_target_was_met_by_all_runs(script: ModuleType) -> None:
    found = [(row["target_epsilon"], row["run"]) for row in RESULTS["mnist"]["rows"]]
    planned = [(epsilon, run) for epsilon, _, runs in script.MNIST for run in range(runs)]
    assert found == planned
    assert RESULTS["targets"] == script.judged(RESULTS)
    assert all(target["met"] for target in RESULTS["targets"])


@pytest.mark.parametrize("row", RESULTS["mnist"]["rows"], ids=lambda row: str(row["epsilon"]))
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
    spoiled["mnist"]["rows"][0][key] = value
    assert not all(target["met"] for target in script.judged(spoiled))


def test_adult_is_compared_at_equal_epsilon(script: ModuleType) -> None:
    rows = RESULTS["adult"]["rows"]
    for epsilon in script.ADULT_EPSILONS:
        learners = {row["learner"] for row in rows if row["target_epsilon"] == epsilon}
        assert learners == set(script.NAMES)
    assert all(row["epsilon"] <= row["target_epsilon"] for row in rows)
