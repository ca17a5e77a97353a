"""The accounting benchmark: its clock, its verdicts, and one quick run of all of it."""

import copy
import math
import time
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import harness

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
MODULES = (
    "accounting_rows",
    "accountants",
    "accounting_judges",
    "accounting_table",
    "accounting_targets",
    "side_by_side",
)


@pytest.fixture(scope="module")
def bench() -> SimpleNamespace:
    return SimpleNamespace(**{name: import_module(name) for name in MODULES})


def answer(lower: float | None, upper: float | None, seconds: float | None) -> dict[str, Any]:
    return {"lower": lower, "upper": upper, "seconds": seconds, "failure": None, "calls": 1}


def good_results(bench: SimpleNamespace) -> dict[str, Any]:
    """Measurements that meet every target with little room."""
    names = bench.accountants
    row = {
        "row": "a row",
        "answers": {
            names.OURS: answer(1.0, 1.01, 0.01),
            names.PEER: answer(None, 1.015, 0.06),
            names.OPTIMISTIC: answer(1.0, None, 0.06),
        },
    }
    judges = bench.accounting_judges
    epochs = {
        "row": "epochs",
        "answers": {
            names.OURS: answer(1.0, 1.001, 1.9),
            judges.ALLOCATION_PEER: answer(0.9, 1.1, 2.0),
            judges.FINE_ALLOCATION_PEER: answer(0.999, 1.009, 10.6),
        },
    }
    risk = {
        "risk": "advantage 0.1",
        "most": 0.1,
        "answers": {
            names.OURS: {"noise": 1.01, "reached": 0.1, "seconds": 0.1},
            judges.RISK_PEER: {"noise": 1.0, "reached": 0.101, "seconds": 7.0},
        },
    }
    silent = {"row": "the peer is silent", "answers": {names.OURS: answer(1.0, 1.1, 0.08)}}
    return {
        "rows": [row, silent],
        "mixtures": [{"row": "mixture", "answers": {names.OURS: answer(1.0, 1.1, 0.9)}}],
        "allocation": [epochs],
        "risk": [risk],
        "calibration": [{"queries": 11.0}, {"queries": 5.0}, {"queries": 30.0}],
        "import_seconds": {"ratio": 1.19},
        "steps_curves": [{"curve": "c", "slope": 0.09, "most_growth": 7.0}],
    }


def test_results_that_meet_every_target_pass(bench: SimpleNamespace) -> None:
    targets = bench.accounting_targets.targets(good_results(bench))
    assert len(targets) == 15
    assert all(entry["met"] for entry in targets)


def plant_slow_row(results: dict[str, Any]) -> None:
    results["rows"][0]["answers"]["discreet"]["seconds"] = 0.0121


def plant_wide_bracket(results: dict[str, Any]) -> None:
    results["rows"][0]["answers"]["discreet"]["upper"] = 1.016


def plant_slow_mixture(results: dict[str, Any]) -> None:
    results["mixtures"][0]["answers"]["discreet"]["seconds"] = 1.01


def plant_slow_plain_rows(results: dict[str, Any]) -> None:
    results["rows"][1]["answers"]["discreet"]["seconds"] = 0.1


def plant_slowest_plain_row(results: dict[str, Any]) -> None:
    results["rows"] += [copy.deepcopy(results["rows"][0]) for _ in range(3)]
    results["rows"][1]["answers"]["discreet"]["seconds"] = 0.31


def plant_slow_epochs(results: dict[str, Any]) -> None:
    results["allocation"][0]["answers"]["discreet"]["seconds"] = 2.1


def plant_wide_epochs(results: dict[str, Any]) -> None:
    results["allocation"][0]["answers"]["discreet"]["upper"] = 1.003


def plant_contradicted_epochs(results: dict[str, Any]) -> None:
    results["allocation"][0]["answers"]["PLD_accounting"]["lower"] = 1.002


def plant_slow_epochs_beside_the_peer(results: dict[str, Any]) -> None:
    results["allocation"][0]["answers"]["PLD_accounting, 1 %"]["seconds"] = 9.4


def plant_risk_above_the_target(results: dict[str, Any]) -> None:
    results["risk"][0]["answers"]["discreet"]["reached"] = 0.1001


def plant_too_much_noise(results: dict[str, Any]) -> None:
    results["risk"][0]["answers"]["discreet"]["noise"] = 1.03


def plant_missing_answer(results: dict[str, Any]) -> None:
    results["mixtures"][0]["answers"]["discreet"] = answer(None, None, None)


def plant_slow_calibration(results: dict[str, Any]) -> None:
    results["calibration"][1]["queries"] = 12.5
    results["calibration"][0]["queries"] = 12.5


def plant_failed_calibration(results: dict[str, Any]) -> None:
    for entry in results["calibration"]:
        entry["queries"] = None


def plant_slow_import(results: dict[str, Any]) -> None:
    results["import_seconds"]["ratio"] = 1.21


def plant_growth(results: dict[str, Any]) -> None:
    results["steps_curves"][0]["slope"] = 0.5


def plant_jump(results: dict[str, Any]) -> None:
    results["steps_curves"][0]["most_growth"] = 8.5


@pytest.mark.parametrize(
    ("plant", "what"),
    [
        (plant_slow_row, "least speed-up"),
        (plant_wide_bracket, "widest bracket"),
        (plant_slow_mixture, "slowest row"),
        (plant_slow_plain_rows, "a plain row, median"),
        (plant_slowest_plain_row, "a plain row, slowest"),
        (plant_slow_epochs, "shuffled epochs, seconds"),
        (plant_wide_epochs, "shuffled epochs, width"),
        (plant_contradicted_epochs, "shuffled epochs that PLD_accounting contradicts"),
        (plant_slow_epochs_beside_the_peer, "least speed-up over PLD_accounting"),
        (plant_risk_above_the_target, "risk at our noise"),
        (plant_too_much_noise, "noise for a risk"),
        (plant_missing_answer, "slowest row"),
        (plant_slow_calibration, "calibration"),
        (plant_failed_calibration, "calibration"),
        (plant_slow_import, "import"),
        (plant_growth, "log-log slope"),
        (plant_jump, "most growth"),
    ],
)
def test_one_planted_miss_is_found_and_fails_the_run(
    bench: SimpleNamespace, plant: Any, what: str
) -> None:
    results = copy.deepcopy(good_results(bench))
    plant(results)
    targets = bench.accounting_targets.targets(results)
    missed = [entry["what"] for entry in targets if not entry["met"]]
    assert len(missed) == 1
    assert missed[0].startswith(what)


def work(seconds: float) -> None:
    """Keep the processor busy."""
    start = time.thread_time()
    while time.thread_time() - start < seconds:
        pass


def test_a_call_is_stopped_when_its_time_is_up(bench: SimpleNamespace) -> None:
    timing = bench.side_by_side.Timing()
    bench.side_by_side.call(lambda: work(30), timing, limit=0.05)
    assert timing.failure == "no answer in 0.05 s"
    assert timing.median is None


def test_a_call_that_takes_too_much_memory_or_raises_is_no_answer(bench: SimpleNamespace) -> None:
    greedy, wrong = bench.side_by_side.Timing(), bench.side_by_side.Timing()
    bench.side_by_side.call(lambda: bytearray(2**35), greedy, limit=5.0)
    bench.side_by_side.call(lambda: math.sqrt(-1), wrong, limit=5.0)
    assert greedy.failure == "needs more than 6 GB"
    assert wrong.failure is not None
    assert wrong.failure.startswith("ValueError: ")


def test_contestants_take_turns_and_the_slow_ones_fewer(bench: SimpleNamespace) -> None:
    order: list[str] = []

    def contestant(name: str, seconds: float) -> Any:
        def run() -> str:
            order.append(name)
            work(seconds)
            return name

        return run

    timings = bench.side_by_side.compare(
        {"a": contestant("a", 0.06), "b": contestant("b", 0.06)},
        rounds=2,
        limits={"a": 5.0, "b": 5.0},
    )
    assert order == ["a", "b", "a", "b"]
    assert timings["a"].answer == "a"
    assert len(timings["a"].seconds) == 2
    assert 0.05 < timings["b"].median < 5.0
    waiting = bench.side_by_side.compare(
        {"a": lambda: time.sleep(0.2)}, rounds=1, limits={"a": 0.15}
    )
    assert waiting["a"].median < 0.15  # waiting for a core costs nothing either
    assert [bench.side_by_side.repeats(first, 5) for first in (0.1, 1.0, 20.0)] == [5, 3, 1]


def test_rows_cover_the_range(bench: SimpleNamespace) -> None:
    rows = bench.accounting_rows.USUAL + bench.accounting_rows.CORNERS
    assert len(rows) == len(set(rows)) >= 27
    for name, least, most in (
        ("steps", 1, 10**7),
        ("rate", 1e-6, 1.0),
        ("noise", 0.2, 1e3),
        ("delta", 1e-15, 0.5),
    ):
        values = [getattr(row, name) for row in rows]
        assert (min(values), max(values)) == (least, most)
    assert len(set(bench.accounting_rows.mixed_atoms(1000, 0.6))) == 1000


@pytest.mark.slow
def test_a_quick_run_goes_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "BUILD", tmp_path)
    results = harness.run_suite("accounting", quick=True)
    text = (tmp_path / "accounting.json").read_text(encoding="utf-8")
    found = import_module("accounting").flat(results)
    for row in found["rows"] + found["mixtures"]:
        ours = row["answers"]["discreet"]
        assert ours["failure"] is None
        assert 0.0 <= ours["lower"] <= ours["upper"]
        assert ours["seconds"] > 0.0
    # The sampled Gaussian of the lectures: a known answer at the end of the whole chain.
    first = found["rows"][0]["answers"]["discreet"]
    assert first["lower"] < 0.94687 < first["upper"]
    for entry in results["targets"]:
        assert set(entry) == {"what", "measured", "target", "where", "met"}
    assert (tmp_path / "accounting.png").read_bytes().startswith(b"\x89PNG")
    assert str(Path.home()) not in text
    assert str(ROOT) not in text
