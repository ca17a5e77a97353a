"""The recorded runs of Shokri's attack over the claimed epsilon (S34), and their script."""

import json
import math
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = json.loads((ROOT / "benchmarks/results/theory_shokri.json").read_text(encoding="utf-8"))
THEORY = json.loads((ROOT / "benchmarks/results/theory.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return import_module("theory_shokri")


def test_the_recorded_runs_are_complete_and_within_their_claims(script: ModuleType) -> None:
    assert all(entry["met"] for entry in script.targets(RESULTS))
    assert script.Means(RESULTS).seeds == [1, 2, 3, 4, 5]
    recorded = [script.cell_of(row) for row in RESULTS["runs"]]
    assert len(set(recorded)) == len(recorded)


def test_runs_were_made_with_the_noise_of_their_claim() -> None:
    for row in RESULTS["runs"]:
        if "epsilon" in row:
            key = f"{row['data']}, rdp, {row['epsilon']:g}"
            assert row["noise_multiplier"] == THEORY["noise_multipliers"][key]


def test_an_attack_above_the_claim_is_seen(script: ModuleType) -> None:
    row = {"data": "Adult", "model": "network", "seed": 1, "epsilon": 0.5, "yeom": 0.0}
    allowed = script.allowed_advantage(0.5)
    assert script.targets({"runs": [{**row, "shokri": allowed}]})[0]["met"]
    assert not script.targets({"runs": [{**row, "shokri": allowed + 0.07}]})[0]["met"]


@pytest.mark.slow
def test_a_model_that_memorises_is_told_and_a_noisy_one_is_not(script: ModuleType) -> None:
    random = np.random.default_rng(1)
    x = random.standard_normal((400, 40)).astype(np.float32)
    y = random.integers(0, 2, 400).astype(np.int64)  # nothing to learn but by heart
    small = script.Setting("made up", lambda: (x, y), 200, 60, 8, (2.0, 2.0))
    plain = script.attacked(small, "network", noise=0.0, seed=1)
    noisy = script.attacked(small, "network", noise=100.0, seed=1)
    assert plain["shokri"] > 0.2
    assert plain["yeom"] > 0.2
    # Six standard deviations of a difference of two shares of 200 at chance.
    assert abs(noisy["shokri"]) < 6 * math.sqrt(2 * 0.25 / 200)
