"""The recorded figures of the audits of training, and the script that makes them."""

import copy
import json
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from discreet.data import SplitImages
from discreet.learn.dpsgd import Plan

ROOT = Path(__file__).resolve().parents[2]
RESULTS = json.loads((ROOT / "benchmarks/results/audit.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return import_module("audit_training")


def test_every_target_was_met(script: ModuleType) -> None:
    targets = script.targets(RESULTS)
    assert all(target["met"] for target in targets)
    wanted = {t["what"]: t["target"] for t in targets}
    assert wanted["planted epsilon 4: one run, median"] == "at least 1.3"
    assert wanted["planted epsilon 4: Gaussian, median"] == "at least 2.6"
    assert wanted["MNIST: gradient canaries certify"] == "at least 2"
    assert wanted["MNIST: seconds"] == "at most 1200"


def test_the_recorded_run_was_a_real_one() -> None:
    run = RESULTS["parts"]["gradient"]["found"]
    plan = Plan.from_json(run["plan"])
    assert (plan.delta, plan.target_epsilon, plan.sampler) == (1e-5, 8.0, "poisson")
    assert run["epsilon"] == pytest.approx(plan.epsilon(), rel=2e-3)
    assert (run["steps_taken"], run["isolation"]) == (plan.steps, "checked")
    assert run["randomness"]["randomness"] == "operating system"
    for audit in run["audits"]:
        assert audit["evidence"]["randomness"] == "operating system"
        assert audit["epsilon_lower"] <= audit["ceiling"]
        assert audit["verdict"] != "violated"
        assert audit["confidence"] == 0.95


def test_a_missed_target_is_seen(script: ModuleType) -> None:
    spoiled = copy.deepcopy(RESULTS)
    spoiled["parts"]["gradient"]["found"]["audits"][0]["epsilon_lower"] = 1.9
    assert [t["what"] for t in script.targets(spoiled) if not t["met"]] == [
        "MNIST: gradient canaries certify"
    ]


def test_small_runs_from_images_to_picture(script: ModuleType, tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    y = np.arange(60, dtype=np.uint8) % 10
    x = generator.integers(0, 255, (60, 28, 28), dtype=np.uint8)
    images = SplitImages(x, y, x[:30], y[:30], tuple("0123456789"), "made up")
    measured = {
        "planted": script.planted(repetitions=2, canaries=100),
        "gradient": script.of_mnist("gradient", images, canaries=20, batch=70, steps=2),
    }
    results = {"parts": {name: {"found": each} for name, each in measured.items()}}
    assert json.loads(json.dumps(results)) == results
    script.draw(results, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 5000
