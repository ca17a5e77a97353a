"""The recorded comparison of theory and practice (S34), and the script that makes it."""

import json
import math
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = json.loads((ROOT / "benchmarks/results/theory.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return import_module("theory_practice")


@pytest.fixture(scope="module")
def runs(script: ModuleType) -> ModuleType:
    return import_module(script.Setting.__module__)


def test_no_recorded_accountant_is_refuted(script: ModuleType) -> None:
    assert all(entry["met"] for entry in script.targets(RESULTS))


def test_the_recorded_runs_are_complete(script: ModuleType) -> None:
    recorded = [script.cell_of(row) for row in RESULTS["runs"]]
    assert len(set(recorded)) == len(recorded)
    assert {row["data"] for row in RESULTS["runs"]} >= {script.ADULT.name, script.LOCATION.name}
    assert script.whole_seeds(RESULTS) == [1, 2, 3, 4, 5]
    assert script.EPSILONS == (0.1, 0.5, 1, 5, 10, 50, 100, 500, 1000)
    assert script.ACCOUNTANTS == ("naive", "advanced", "zcdp", "rdp", "pld")


def test_a_seed_that_was_interrupted_is_left_out(script: ModuleType) -> None:
    results = made_up(script)
    assert script.whole_seeds(results) == [1, 2]
    last = results["runs"].pop()
    assert script.whole_seeds(results) == [1]
    cell = script.Figures(results).by_cell[script.cell_of(last)[:4]]
    assert [row["seed"] for row in cell] == [1]


@pytest.mark.parametrize("accountant", ["naive", "advanced", "zcdp", "rdp"])
def test_recorded_noise_keeps_the_claim_and_no_less_does(
    script: ModuleType, accountant: str
) -> None:
    for epsilon in (0.1, 10.0, 1000.0):
        noise = RESULTS["noise_multipliers"][f"Adult, {accountant}, {epsilon:g}"]
        assert script.ADULT.noise(epsilon, accountant) == pytest.approx(noise, rel=1e-3)
        loss = script.ADULT.loss(noise, accountant)
        assert loss.epsilon(delta=1e-5, accountant=accountant) <= epsilon
        less = script.ADULT.loss(0.98 * noise, accountant)
        assert less.epsilon(delta=1e-5, accountant=accountant) > epsilon


def test_runs_were_made_with_the_noise_of_their_claim() -> None:
    for row in RESULTS["runs"]:
        if row["accountant"] != "none":
            key = f"{row['data']}, {row['accountant']}, {row['epsilon']:g}"
            assert row["noise_multiplier"] == RESULTS["noise_multipliers"][key]
            assert row["epsilon_lower"] <= row["ceiling"]


def made_up(script: ModuleType, *, violated: int = 0) -> dict[str, Any]:
    """Runs that lose 0.9 / epsilon of their accuracy, twice that by other accountants than PLD."""
    listed = []
    for data, model, accountant, epsilon, seed in script.cells(["Adult"], 2):
        row = {"data": data, "model": model, "accountant": accountant, "seed": seed}
        share = (0.9 if accountant == "pld" else 1.8) / epsilon
        row |= {"accuracy": 0.8 * (1 - min(1.0, share)), "advantage": 0.0}
        if accountant != "none":
            row |= {"epsilon": epsilon, "epsilon_lower": 0.0, "verdict": "consistent"}
            row["verdict"] = "violated" if len(listed) < violated else "consistent"
        listed.append(row)
    keys = [f"Adult, {each}, {at:g}" for each in script.ACCOUNTANTS for at in script.EPSILONS]
    return {"runs": listed, "noise_multipliers": dict.fromkeys(keys, 1.0)}


def test_figures_are_read_off_the_runs(script: ModuleType) -> None:
    figures = script.Figures(made_up(script))
    panel = ("Adult", "network")
    assert figures.plain(panel, "accuracy") == pytest.approx(0.8)
    assert figures.accuracy_loss(panel, "pld", 10.0) == pytest.approx(0.09)
    assert figures.without_loss(panel, "pld") == 50.0
    assert figures.without_loss(panel, "rdp") == 100.0
    assert script.allowed_advantage(1000.0) == pytest.approx(1.0)
    assert script.allowed_advantage(1.0) == pytest.approx(math.tanh(0.5), abs=1e-4)


def test_an_accountant_that_audits_refute_is_seen(script: ModuleType) -> None:
    assert script.targets(made_up(script))[0]["met"]
    assert not script.targets(made_up(script, violated=100))[0]["met"]


def test_a_small_run_goes_through(runs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(1)
    x = random.standard_normal((400, 5)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    monkeypatch.setattr(runs, "CANARIES", 60)
    small = runs.Setting("made up", lambda: (x, y), 200, 60, 8, (2.0, 2.0))
    for model in runs.MODELS:
        found = runs.private(small, model, noise_multiplier=0.5, epsilon=100.0, seed=1)
        assert found["accuracy"] > 0.6
        assert -0.5 < found["advantage"] < 0.5
        assert 0.0 <= found["epsilon_lower"] <= found["ceiling"] < 100.0
        assert found["verdict"] == "too weak to tell"
    assert runs.plain(small, "logistic regression", 1)["accuracy"] > 0.7


def test_purchases_are_read_if_there_is_a_file(runs: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "dataset_purchase"
    file.write_text("1,0,1,1\n100,1,0,0\n", encoding="utf-8")
    x, y = runs.purchases(file).read()
    assert x.tolist() == [[0, 1, 1], [1, 0, 0]]
    assert y.tolist() == [0, 99]
