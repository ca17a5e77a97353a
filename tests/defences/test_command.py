"""``discreet bench defences`` (S32)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from discreet.cli._app import app

SMALL = [
    *("--shadows", "12", "--canaries", "40", "--watched", "40"),
    *("--hidden", "8", "--epochs", "2", "--seed", "3"),
]


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["bench", "defences", *words])


@pytest.fixture
def table(tmp_path: Path) -> str:
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(420, 3))
    lines = [f"{a:.3f},{b:.3f},{c:.3f},{'yes' if a > 0 else 'no'}" for a, b, c in rows]
    place = tmp_path / "rows.csv"
    place.write_text("a,b,c,label\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return str(place)


def test_a_table_of_ones_own_is_compared_and_drawn(table: str, tmp_path: Path) -> None:
    picture = tmp_path / "defences.png"
    only = ["--only", "none", "--only", "label-only output"]
    done = run(table, *SMALL, *only, "--output", str(picture), "--cache", str(tmp_path / "kept"))
    assert done.exit_code == 0, done.output
    assert done.stdout.count("no guarantee") == 2
    assert picture.read_bytes().startswith(b"\x89PNG")
    again = run(table, *SMALL, *only, "--json", "--cache", str(tmp_path / "kept"))
    document = json.loads(again.stdout)
    assert [row["defence"] for row in document["rows"]] == ["none", "label-only output"]
    assert document["rows"][0]["models"] == 12
    assert document["seed"] == 3
    assert {row["guarantee"] for row in document["rows"]} == {"no guarantee"}


def test_a_row_that_is_not_there_and_a_file_that_is_none_are_refused(table: str) -> None:
    wrong = run(table, "--only", "magic", "--json")
    assert wrong.exit_code == 2
    assert "RelaxLoss" in json.loads(wrong.stderr)["expected"]
    assert run("nothing.csv", "--json").exit_code == 4
