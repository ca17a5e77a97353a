"""``discreet synthesize``: from a file to rows, a model and a certificate that is accepted."""

import json
import re
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet
import pytest

from cli.conftest import Run
from discreet.ledger import Ledger
from synth.worlds import SCHEMA, some_rows


@pytest.fixture
def place(tmp_path: Path) -> Path:
    import pyarrow as pa

    pyarrow.csv.write_csv(pa.table(some_rows(400)), tmp_path / "rows.csv")
    (tmp_path / "schema.toml").write_text(SCHEMA.to_toml(), encoding="utf-8")
    return tmp_path


def words(place: Path, *more: str) -> list[str]:
    files = [str(place / "rows.csv"), "--schema", str(place / "schema.toml")]
    return ["synthesize", *files, "--epsilon", "1", "--out", str(place / "made.parquet"), *more]


def test_rows_model_page_and_certificate_are_written(run: Run, place: Path) -> None:
    book = ["--ledger", str(place / "book"), "--dataset", "rows"]
    create = ["ledger", "create", str(place / "book"), "rows", "--epsilon", "2.2"]
    assert run(*create, "--delta", "1e-4", "--unit", "row").exit_code == 0
    out = place / "out"
    done = run(*words(place, *book, "--certificate", str(out), "--json"))
    assert (done.exit_code, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert told["charged"]
    assert told["epsilon"] <= 1
    rows = pyarrow.parquet.read_table(place / "made.parquet")
    assert rows.column_names == list(SCHEMA.columns)
    assert rows.num_rows == told["noisy_rows"]
    names = sorted(one.name for one in out.iterdir())
    assert names == [
        *("certificate.json", "fidelity.html", "model.json", "model.npz", "schema.toml"),
    ]
    page = (out / "fidelity.html").read_text(encoding="utf-8")
    assert "<svg" in page
    assert not re.search(r"<script|https?://(?!www\.w3\.org)", page)
    checked = run(
        "certificate", "verify", str(out / "certificate.json"), "--ledger", str(place / "book")
    )
    assert checked.exit_code == 0, checked.stdout
    dear = words(place, *book)
    dear[dear.index("--epsilon") + 1] = "3"
    assert run(*dear).exit_code == 3


def test_a_plan_reads_charges_and_writes_nothing(run: Run, place: Path) -> None:
    done = run(*words(place, "--plan-only"))
    assert done.exit_code == 0
    assert "nothing was read or charged" in done.stdout
    assert "paid: " in done.stdout
    plan = json.loads(run(*words(place, "--plan-only", "--json")).stdout)
    assert plan["plan"]["method"] == "oneshot"
    assert not (place / "made.parquet").exists()


def test_csv_rows_and_refusals(run: Run, place: Path) -> None:
    line = words(place, "--rows", "7", "--insecure-seed", "1")
    line[line.index("--out") + 1] = str(place / "made.csv")
    done = run(*line)
    assert done.exit_code == 0
    assert "INSECURE" in done.stdout
    assert len((place / "made.csv").read_text().splitlines()) == 8
    line[line.index("--out") + 1] = str(place / "made.docx")
    assert run(*line).exit_code == 2
    assert run(*words(place, "--target", "weight")).exit_code == 2
    assert run(*words(place, "--dataset", "rows")).exit_code == 2
    (place / "out").mkdir()
    assert run(*words(place, "--certificate", str(place / "out"))).exit_code == 4


def test_a_page_that_cannot_be_written_is_refused_before_a_charge(run: Run, place: Path) -> None:
    book = ["--ledger", str(place / "book"), "--dataset", "rows"]
    create = ["ledger", "create", str(place / "book"), "rows", "--epsilon", "2.2"]
    assert run(*create, "--delta", "1e-4", "--unit", "row").exit_code == 0
    test = ["--target", "ill", "--test", str(place / "rows.csv"), "--internal-page"]
    for page, code in ((place / "page.txt", 2), (place / "nowhere" / "page.html", 4)):
        assert run(*words(place, *book, *test, str(page))).exit_code == code
    assert not (place / "made.parquet").exists()
    with Ledger.open(place / "book") as ledger:
        assert ledger.show("rows").budget.charges == 0


@pytest.mark.slow
def test_a_classifier_is_tested_internally_or_paid_for(run: Run, place: Path) -> None:
    common = [
        *("synthesize", str(place / "rows.csv"), "--schema", str(place / "schema.toml")),
        *("--epsilon", "2", "--test", str(place / "rows.csv")),
    ]
    page = place / "internal.html"
    done = run(*common, "--out", str(place / "a.csv"), "--internal-page", str(page))
    assert done.exit_code == 0, done.stderr
    assert "not paid for" in page.read_text(encoding="utf-8")
    out = place / "paid"
    paid = ["--test-epsilon", "1", "--test-rows", "100", "--certificate", str(out)]
    done = run(*common, "--out", str(place / "b.csv"), *paid)
    assert done.exit_code == 0, done.stderr
    public = (out / "fidelity.html").read_text(encoding="utf-8")
    assert "On real rows" in public
    assert "not paid for" not in public
    # Neither, or both, is refused before anything is read.
    for wrong in ([], ["--internal-page", str(page), "--test-epsilon", "1"], paid[:2]):
        assert run(*common, "--out", str(place / "c.csv"), *wrong).exit_code == 2
        assert not (place / "c.csv").exists()
