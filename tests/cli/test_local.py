"""``discreet local``."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from discreet.certificate import content_hash
from discreet.curator.service import Collector

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
    assert checked.exit_code == 0  # the plan and the reports are beside it
    assert "the counts are those of the reports" in checked.stdout
    assert "not checked" not in checked.stdout
    # One report changed, one more, the plan of another epsilon: wrong. Without the reports: 6.
    content = Path(reports).read_bytes()
    for forged in (content[:12] + bytes([content[12] ^ 1]) + content[13:], content + content[:13]):
        Path(reports).write_bytes(forged)
        assert run("certificate", "verify", certificate).exit_code == 1
    Path(reports).unlink()
    absent = run("certificate", "verify", certificate)
    assert absent.exit_code == 6
    assert "reports.bin is not beside it" in absent.stdout
    Path(reports).write_bytes(content)
    claimed = json.loads(Path(certificate).read_text())
    for key, value in (("epsilon", "1"), ("values", 3), ("method", "PGR")):
        lie = {**claimed, "plan": {**claimed["plan"], key: value}}
        lie["hash"] = content_hash(lie)
        Path(certificate).write_text(json.dumps(lie))
        assert run("certificate", "verify", certificate).exit_code == 1


def test_a_parquet_file_gives_the_same_reports(run: Any, tmp_path: Path, people: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = {"drink": [value or None for value in ROWS], "id": list(range(len(ROWS)))}
    pq.write_table(pa.table(table), tmp_path / "people.parquet")
    plan = str(tmp_path / "plan.json")
    made = ["--values", "tea,coffee,milk", "--epsilon", "4", "--people", "999", "--out", plan]
    assert run("local", "plan", *made).exit_code == 0
    for name in ("people.csv", "people.parquet"):
        out = str(tmp_path / f"{name}.bin")
        line = ["local", "collect", str(tmp_path / name), "--column", "drink", "--plan", plan]
        sent = run(*line, "--out", out, "--insecure-seed", "4", "--json")
        assert json.loads(sent.stdout)["reports"] == len(ROWS)
    first, second = ((tmp_path / f"people.{kind}.bin").read_bytes() for kind in ("csv", "parquet"))
    assert first == second


def test_tokens_and_the_directory_of_a_collector(run: Any, tmp_path: Path) -> None:
    plan, place, tokens = (str(tmp_path / name) for name in ("plan.json", "drinks", "tokens.txt"))
    made = ["--values", "tea,coffee", "--epsilon", "3", "--people", "99", "--out", plan]
    assert run("local", "plan", *made).exit_code == 0
    line = ["local", "admit", place, "--plan", plan, "--people", "60", "--reports", "2"]
    assert run(*line, "--out", tokens, "--json").exit_code == 0
    assert Path(tokens).stat().st_mode & 0o777 == 0o600  # whoever reads them can report
    collector = Collector(place)
    for number, token in enumerate(Path(tokens).read_text().split()[:50]):
        for report in (1, 2) if number < 10 else (1,):
            body = collector.oracle.client().randomize("tea")
            assert collector.take(token, report, body) == "counted"
    collector.take("nonsense", 1, body)
    collector.close()
    page, certificate = str(tmp_path / "page.html"), str(tmp_path / "local.json")
    found = run(
        *("local", "estimate", place, "--output", page, "--certificate", certificate, "--json")
    )
    document = json.loads(found.stdout)
    assert (document["people"], document["rejected"]) == (60, {"no such token": 1})
    text = Path(page).read_text()
    for row in ("0</td", "40</td", "epsilon she spent", "no such token", "hypothetical"):
        assert row in text
    assert "mathdefault" not in text  # the numbers of the picture are written out
    # Reports in a data base cannot be counted again from a file: that is said, not passed over.
    assert run("certificate", "verify", certificate).exit_code == 6
    assert run("local", "estimate", str(tmp_path / "plan.json")).exit_code == 2  # no plan


@pytest.mark.slow
def test_simulated_phones_report_over_tls(run: Any, tmp_path: Path) -> None:
    out = tmp_path / "phones"
    line = ["local", "simulate", "--people", "2200", "--size", "20", "--epsilon", "3"]
    done = run(*line, "--out", str(out), "--json")
    assert done.exit_code == 0
    facts = json.loads(done.stdout)
    assert facts["counted"] == 2200
    assert facts["again"] == 2000  # the first batch of each of four relays was sent twice
    # All 20 intervals hold with 95 %; an error above 0.3 is beyond ten deviations.
    assert facts["largest_error"] < 0.3
    assert {one.name for one in out.iterdir()} >= {"collection", "page.html", "certificate.json"}
    assert run(*line, "--out", str(out)).exit_code == 4  # an existing directory is refused


@pytest.mark.slow
def test_the_service_is_run_by_a_command(tmp_path: Path, run: Any) -> None:
    plan = str(tmp_path / "plan.json")
    made = ["--values", "tea,coffee", "--epsilon", "3", "--people", "99", "--out", plan]
    assert run("local", "plan", *made).exit_code == 0
    refused = run("local", "serve", str(tmp_path / "a"), "--plan", plan, "--host", "0.0.0.0")
    assert refused.exit_code == 2
    assert "TLS" in refused.stderr
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "discreet.cli", "local", "serve", str(tmp_path / "b")]
    command += ["--plan", plan, "--port", str(port), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["serving"]["url"].endswith(str(port))
            seen = None
            for _ in range(600):
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/plan") as answer:
                        seen = json.load(answer)
                    break
                except OSError:
                    time.sleep(0.1)
            assert seen == json.loads(Path(plan).read_text())
        finally:
            process.terminate()


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
