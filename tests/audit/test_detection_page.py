"""The published detection table is that of the recorded run, and the run is of this zoo."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from discreet.audit.zoo import SPECIMENS, bundled

ROOT = Path(__file__).resolve().parents[2]
RESULTS = json.loads((ROOT / "benchmarks/results/detection.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs/auditing-mechanisms.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = ROOT / "benchmarks" / "detection_table.py"
    spec = importlib.util.spec_from_file_location("detection_table", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_the_recorded_run(script: ModuleType) -> None:
    assert script.zoo_table(RESULTS["zoo"]) in PAGE
    assert script.bundled_table(RESULTS["bundled"]) in PAGE


def test_the_run_covers_the_zoo_and_the_package() -> None:
    assert [row["name"] for row in RESULTS["zoo"]] == list(SPECIMENS)
    assert [row["name"] for row in RESULTS["bundled"]] == list(bundled())


@pytest.mark.parametrize("row", RESULTS["zoo"] + RESULTS["bundled"], ids=lambda row: row["name"])
def test_recorded_verdicts_are_right_and_claims_are_current(row: dict[str, Any]) -> None:
    specimen = {**SPECIMENS, **bundled()}[row["name"]]
    assert (row["broken"], row["about"]) == (specimen.broken, specimen.about)
    assert (row["audit"]["verdict"] == "violated") == specimen.broken
    claimed = specimen.loss.epsilon(delta=specimen.delta)
    assert row["audit"]["claimed_epsilon"] == pytest.approx(claimed, rel=1e-3)
    if not specimen.broken:
        assert all(refuted <= 1 for refuted in row["refuted_of_repeats"].values())


def test_tables_are_written_between_their_markers_only(script: ModuleType) -> None:
    text = "a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb\n"
    written = script.write_between(text, "x", "new")
    assert written == "a\n<!-- x: begin -->\nnew\n<!-- x: end -->\nb\n"
    with pytest.raises(SystemExit):
        script.write_between(text, "y", "new")
