"""Signal 9 under load: nothing got out that was not charged, and the service starts again."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def killing() -> Any:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        spec = importlib.util.spec_from_file_location(
            "curator_killing", BENCHMARKS / "curator_killing.py"
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["curator_killing"] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(BENCHMARKS))
    return module


@pytest.mark.slow
def test_a_few_rounds_of_kill() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(BENCHMARKS / "curator_killing.py")]
        + ["--rounds", "3", "--seed", "7", "--json"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["rounds"] == 3
    assert result["faults"] == []
    assert 0 < result["questions_answered"] <= result["charged"] <= result["asked"]


def answer(value: int, entry: int, hash_: str) -> dict[str, Any]:
    return {"value": value, "receipt": {"hash": hash_, "entry": {"seq": entry}}}


def test_the_judge_sees_planted_faults(killing: Any) -> None:
    chain = {1: "a", 2: "b"}
    good = {1: [answer(5, 1, "a"), answer(5, 1, "a")], 2: [answer(6, 2, "b")]}
    assert killing.faults(good, chain, 2) == []
    uncharged = {1: [answer(5, 3, "c")]}
    assert "not charged" in killing.faults(uncharged, chain, 2)[0]
    altered = {1: [answer(5, 1, "other")]}
    assert "not charged" in killing.faults(altered, chain, 2)[0]
    twice = {1: [answer(5, 1, "a"), answer(7, 1, "a")]}
    assert "two answers" in killing.faults(twice, chain, 2)[0]
    shared = {1: [answer(5, 1, "a")], 2: [answer(6, 1, "a")]}
    assert "paid for two" in killing.faults(shared, chain, 2)[0]
    assert "2 charges for 1" in killing.faults(good, chain, 1)[0]
