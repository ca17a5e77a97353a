"""The figures of the README and of the guides are those of the recorded runs."""

import copy
import importlib.util
import json
import math
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
README = (ROOT / "README.md").read_text(encoding="utf-8")
WORDS = " ".join(README.split())


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = ROOT / "benchmarks" / "readme_table.py"
    spec = importlib.util.spec_from_file_location("readme_table", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def test_the_table_is_that_of_the_recorded_runs(script: ModuleType) -> None:
    """If not: python benchmarks/readme_table.py writes it."""
    shown = README.split(script.BEGIN)[1].split(script.END)[0].strip()
    assert shown == script.table(script.recorded())


def test_other_runs_give_another_table(script: ModuleType) -> None:
    right = script.recorded()
    for change in (
        lambda found: found["dpsgd"]["experiments"][0].update(mean=90.0),
        lambda found: found["pate"]["mnist"]["rows"][0].update(accuracy=90.0),
        lambda found: found["pate"]["adult"]["rows"][-1].update(target_epsilon=1.0, accuracy=10.0),
    ):
        other = copy.deepcopy(right)
        change(other)
        assert script.table(other) != script.table(right)
    assert script.up(1.9989) == "2"
    assert script.up(1.97) == "1.97"
    assert script.up(1.9701) == "1.98"


def test_the_limits_are_those_of_the_recorded_audit() -> None:
    run = read("audit")["gradient"]
    audit = run["audits"][0]
    shown, most = (math.floor(100 * audit[key]) / 100 for key in ("epsilon_lower", "ceiling"))
    assert f"{run['canaries']:,} canaries showed {shown} and could not" in WORDS
    assert f"more than {most}: [too weak to tell]" in WORDS
    assert audit["verdict"] == "too weak to tell"


def test_the_attacks_found_what_is_said() -> None:
    found = read("attacks")["parts"]["lira"]["found"]["attacks"]
    rates = {
        one["attack"]: next(rate["share"] for rate in one["tpr_at_fpr"] if rate["fpr"] == 0.001)
        for one in found
    }
    said = f"finds {100 * rates['yeom']:.1f} % of members, LiRA {100 * rates['lira online']:.1f} %"
    assert said in WORDS


def test_every_broken_learner_is_caught_as_often_as_is_said() -> None:
    rows = [row for row in read("mutants")["rows"] if row["broken"]]
    caught = {row["name"] for row in rows if row["caught"] == row["repeats"]}
    assert len(caught) == 10
    assert "Of the ten broken learners in the table there, all are caught" in WORDS
    assert [row["name"] for row in rows if row["name"] not in caught] == ["the same, much noise"]


def test_the_cost_of_a_step_is_the_recorded_one() -> None:
    rows = read("training")["rows"]
    assert len({row["task"] for row in rows}) == 6
    spans = []
    for form in ("discreet, one call", "discreet"):
        ratios = [row["ratios"][form] for row in rows]
        spans.append(f"{min(ratios):.2f} to {max(ratios):.2f} times")
    call, loop = spans
    assert f"a private step takes {call} as long as a plain one in [one call]" in WORDS
    assert f"and {loop} in a loop of one's own" in WORDS


def test_the_attacks_on_the_curator_are_the_recorded_ones() -> None:
    text = (ROOT / "docs" / "curator-service.md").read_text(encoding="utf-8")
    rows = read("curator_attacks")["rows"]
    for row in rows:
        found = row["differencing"]
        shares = (
            row["bound"],
            found["one_target"]["right"],
            found["all_targets"]["right"],
            row["reconstruction"]["right"],
        )
        cells = [f"{100 * share:.1f} %" for share in shares]
        cells.append(f"{row['reconstruction']['mean_error']:.2f}")
        said = [
            line for line in text.splitlines() if line.endswith(" | ".join(["", *cells, ""])[:-1])
        ]
        assert len(said) == 1, row["epsilon"]
    table = text.split("mean error of a reconstructed bit |")[1].split("\n\n")[0]
    assert table.count("\n") == 1 + len(rows)


def test_the_readme_is_short_and_its_example_has_ten_lines() -> None:
    assert README.count("\n") < 200
    example = README.split("## Ten lines of Python")[1].split("```")[1]
    assert len(re.findall("^>>> ", example, re.MULTILINE)) == 10
