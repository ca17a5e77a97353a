"""``discreet local``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROWS = ["tea"] * 600 + ["coffee"] * 300 + ["beer", "", "NA"] * 33


@pytest.fixture
def people(tmp_path: Path) -> Path:
    file = tmp_path / "people.csv"
    file.write_text("id,drink\n" + "".join(f"{n},{value}\n" for n, value in enumerate(ROWS)))
    return file


def test_plan_collect_and_estimate(run: Any, tmp_path: Path, people: Path) -> None:
    plan, reports = str(tmp_path / "plan.json"), str(tmp_path / "reports.bin")
    made = run(
        *("local", "plan", "--values", "tea,coffee,milk", "--epsilon", "4", "--people", "999"),
        *("--out", plan, "--output", str(tmp_path / "picture.svg"), "--json"),
    )
    assert made.exit_code == 0
    document = json.loads(made.stdout)
    assert document["plan"]["method"] == "GRR"
    assert [row["hypothetical"] for row in document["deployments"]] == [False, True, True, True]
    sent = run(
        "local", "collect", str(people), "--column", "drink", "--plan", plan, "--out", reports
    )
    assert sent.exit_code == 0
    assert f"{len(ROWS)} reports" in sent.stdout
    with Path(reports).open("ab") as file:
        file.write(b"truncated")
    page, certificate = str(tmp_path / "page.html"), str(tmp_path / "certificate.json")
    found = run(
        *("local", "estimate", reports, "--plan", plan, "--output", page),
        *("--certificate", certificate, "--json"),
    )
    assert found.exit_code == 0
    document = json.loads(found.stdout)
    assert document["people"] == len(ROWS)
    assert document["rejected"] == {"wrong length": 1}
    shares = {row["value"]: row["share"] for row in document["shares"]}
    # Standard deviations are below 0.01; what is no value of the plan is counted as such.
    assert abs(shares["tea"] - 0.6) < 0.1
    assert abs(shares["ELSE"] - 0.1) < 0.1
    assert "hypothetical" in Path(page).read_text()
    checked = run("certificate", "verify", certificate)
    assert checked.exit_code == 6  # everything fits; no model and no ledger are there to check
    assert "epsilon is that of the loss" in checked.stdout


def test_bad_input_is_refused_and_writes_nothing(run: Any, tmp_path: Path, people: Path) -> None:
    plan, out = tmp_path / "plan.json", tmp_path / "reports.bin"
    both = run("local", "plan", "--epsilon", "1", "--people", "9", "--values", "a", "--size", "3")
    assert both.exit_code == 2
    good = ["--epsilon", "1", "--people", "9", "--size", "3"]
    assert run("local", "plan", *good, "--out", str(plan)).exit_code == 0
    for column, expected in (("nothing", "is not there"),):
        wrong = run(
            *("local", "collect", str(people), "--column", column),
            *("--plan", str(plan), "--out", str(out)),
        )
        assert wrong.exit_code != 0
        assert expected in wrong.stderr
    out.write_bytes(b"")
    assert run("local", "estimate", str(out), "--plan", str(plan)).exit_code == 4
    plan.write_text("{}")
    assert run("local", "estimate", str(out), "--plan", str(plan)).exit_code == 4
