"""Learners with a fault are caught, right ones pass, and the page shows the recorded run."""

import json
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = json.loads((ROOT / "benchmarks/results/mutants.json").read_text(encoding="utf-8"))
FAULTS = (
    "no clipping",
    "clipping after averaging",
    "noise divided by the batch size twice",
    "noise once per epoch",
    "one seed in every step",
    "shuffling accounted as Poisson",
    "normaliser read off the data",
    "BatchNorm left in",
    "PATE teachers that overlap",
    "categories read off the data",
)
RIGHT = (
    "DP-SGD",
    "DP-SGD, little noise",
    "DP-SGD, idle coordinates",
    "DP-SGD, outlier",
    "the Trainer",
    "PATE",
    "naive Bayes",
)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return import_module("learner_mutants")


@pytest.fixture(scope="module")
def cases(script: ModuleType) -> ModuleType:
    return import_module(script.Case.__module__)


def case(script: ModuleType, name: str) -> Any:
    return next(one for one in script.CASES if one.name == name)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_caught(script: ModuleType, name: str) -> None:
    """Seeded, so this is one fixed run of each; the recorded run has ten others."""
    fault = case(script, name)
    audits = fault.audit(11)
    assert fault.broken
    assert audits[script.most_telling(audits)].violated
    assert all(audit.confidence >= 0.999 for audit in audits.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", [each for each in RIGHT if each != "the Trainer"])
def test_a_right_learner_passes(script: ModuleType, name: str) -> None:
    right = case(script, name)
    audits = right.audit(11)
    assert not right.broken
    assert {audit.verdict for audit in audits.values()} == {"consistent"}


def test_what_is_claimed_is_what_the_right_learner_keeps(cases: ModuleType) -> None:
    """The numpy loop has the deviation and the mean of the plan, or the zoo proves nothing."""
    learners = import_module("mutant_learners")
    plan = cases.one_step(20)
    inputs, labels = cases.ordinary(20, 1)
    marks = np.append(np.full(20, -1), 3)
    inputs = np.concatenate([inputs, np.zeros((1, cases.FEATURES))])
    made = learners.Learner(plan, features=cases.FEATURES, coordinates=40_000, seed=3)
    seen = made.train(inputs, np.append(labels, 0.0), marks)[0][cases.FEATURES :]
    unit = plan.clip_norm / plan.expected_batch_size
    others = np.delete(seen, 3) / unit
    assert abs(others.std() / plan.noise_multiplier - 1) < 0.02  # five deviations
    assert abs(others.mean()) < 5 * plan.noise_multiplier / 200
    quiet = learners.NoiseDividedTwice(plan, features=cases.FEATURES, coordinates=8, seed=3)
    drawn = quiet.train(inputs, np.append(labels, 0.0), marks)[0][cases.FEATURES + 3] / unit
    assert abs(drawn - 1) < 6 * plan.noise_multiplier / 20


def test_the_package_refuses_what_it_can_be_asked_for(script: ModuleType) -> None:
    assert set(script.REFUSALS) == set(FAULTS)
    answers = {name: script.asked(refusal) for name, refusal in script.REFUSALS.items()}
    refused = {name: each["answer"] for name, each in answers.items() if "message" in each}
    assert refused == {
        "no clipping": "InvalidValue",
        "shuffling accounted as Poisson": "PlanViolation",
        "BatchNorm left in": "PlanViolation",
        "PATE teachers that overlap": "InvalidValue",
        "categories read off the data": "InvalidValue",
    }
    assert "BatchNorm1d" in answers["BatchNorm left in"]["message"]


def test_the_recorded_run_is_complete_and_right(script: ModuleType) -> None:
    names = [row["name"] for row in RESULTS["rows"]]
    assert names == [one.name for one in script.CASES]
    assert {*FAULTS, *RIGHT} == {row["name"] for row in RESULTS["rows"] if row["shows"]}
    assert all(entry["met"] for entry in script.targets(RESULTS))
    for row in RESULTS["rows"]:
        assert row["repeats"] >= 10
        if row["shows"]:
            assert row["caught"] == (row["repeats"] if row["broken"] else 0)
            assert row["audit"]["verdict"] == ("violated" if row["broken"] else "consistent")


def test_a_missed_fault_and_an_accused_learner_are_seen(script: ModuleType) -> None:
    rows = json.loads(json.dumps(RESULTS["rows"]))
    rows[0]["caught"] -= 1
    rows[1]["package"] = {"answer": "NOT REFUSED", "why": ""}
    rows[-1]["caught"] += 1
    missed = [each["what"] for each in script.targets({"rows": rows}) if not each["met"]]
    assert missed == [
        f"{rows[0]['name']}: right verdict",
        f"{rows[1]['name']}: refused by the package",
        f"{rows[-1]['name']}: right verdict",
    ]
