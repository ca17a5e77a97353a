"""``discreet demo``: every method from data to a certificate that passes every check."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from cli.conftest import Run
from cli.test_certify import SCHEMA, write_rows
from discreet.demo import _data, _methods
from discreet.ledger import Ledger
from discreet.report import verify_certificate
from oracles.browser import visible_text


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few shadow models and few runs: what is tested is not how strong they are."""
    monkeypatch.setattr(_methods.Method, "plain_shadows", 4)
    monkeypatch.setattr(_methods.Method, "private_shadows", 4)
    monkeypatch.setattr(_methods._Estimated, "_runs", 40)
    monkeypatch.setattr(_data, "_MOST", 150)


def checked(out: Path, said: dict[str, Any]) -> dict[str, Any]:
    """The certificate, after every check with the ledger."""
    with Ledger.open(said["files"]["ledger"], read_only=True) as ledger:
        assert ledger.verify().ok
        checks = verify_certificate(said["files"]["json"], ledger=ledger)
        checks += verify_certificate(said["files"]["annex_json"])
    assert [one for one in checks if one.ok is not True] == []
    document: dict[str, Any] = json.loads(Path(said["files"]["json"]).read_text(encoding="utf-8"))
    assert (out / "internal").stat().st_mode & 0o077 == 0
    return document


@pytest.mark.slow
def test_digits_by_dpsgd(tmp_path: Path, run: Run) -> None:
    out = tmp_path / "demo"
    with threadpool_limits(1):
        done = run("demo", "--out", str(out), "--epsilon", "4", "--json")
    assert done.exit_code == 0, done.stderr
    said = json.loads(done.stdout)
    document = checked(out, said)
    assert 3.9 < document["guarantee"]["epsilon"] <= 4.0
    assert document["learner"] == "DP-SGD"
    [audit] = document["audits"]
    assert audit["evidence"]["canaries"] == 1000
    assert audit["verdict"] != "violated"
    # The charge of the training and that of the noisy accuracy are in the ledger.
    with Ledger.open(said["files"]["ledger"], read_only=True) as ledger:
        assert [len(ledger.history(name)) for name in ledger.datasets()] == [1, 1]
    models = {path.name for path in (out / "public" / "model").iterdir()}
    assert models == {"model.safetensors", "certificate.json"}
    assert (out / "internal" / "plain-model" / "model.safetensors").is_file()
    private, plain = said["internal"]
    assert (private["model"], plain["model"]) == ("private model", "plain twin")
    assert plain["accuracy"]["training records"] > private["accuracy"]["training records"]
    # Figures on real members are in the annex and in no public file.
    for path in (out / "public").rglob("*.*"):
        assert repr(private["auc"]).encode() not in path.read_bytes()
    assert repr(private["auc"]) in Path(said["files"]["annex_json"]).read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "verdict", "outside"),
    [
        ("naive_bayes", "too weak to tell", 150),
        ("projected_sgd", "consistent", 150),
        ("synthesize", "consistent", 150),
        ("federated", "consistent", 150),
    ],
)
def test_a_table_of_ones_own(
    method: str, verdict: str, outside: int, tmp_path: Path, run: Run
) -> None:
    (tmp_path / "schema.toml").write_text(SCHEMA, encoding="utf-8")
    write_rows(tmp_path / "rows.csv", 400, seed=5)
    out = tmp_path / "demo"
    with threadpool_limits(1):
        done = run(
            *("demo", "--data", str(tmp_path / "rows.csv"), "--out", str(out)),
            *("--schema", str(tmp_path / "schema.toml"), "--method", method, "--epsilon", "2"),
        )
    assert done.exit_code == 0, done.stderr
    assert "[7/7] certificate" in done.stderr
    table = done.stdout
    assert "private model" in table
    assert "plain twin" in table
    assert "internal figures" in table
    files = {
        "ledger": str(out / "demo.ledger"),
        "json": str(out / "public" / "certificate.json"),
        "annex_json": str(out / "internal" / "annex.json"),
    }
    for name in files.values():
        assert Path(name).exists()
    assert str(out / "public" / "certificate.html") in table
    document = checked(out, {"files": files})
    # As many as are taken of the declared rows, not of those that are there.
    assert document["guarantee"]["epsilon"] <= 2.0 * (1 + 1e-9)
    unit = "client" if method == "federated" else "row"
    assert f"about {outside} {unit}s outside" in document["answers"][0]["question"]
    assert document["verdict"]["state"] == verdict
    assert document["collection"]["source"] is None
    # An audit says what it looked at, in the document and on the page.
    page = (out / "public" / "certificate.html").read_text(encoding="utf-8")
    for audit in document["audits"]:
        assert "made-up" in audit["evidence"]["audited"]
        assert audit["evidence"]["audited"] in visible_text(page)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["naive_bayes", "projected_sgd"])
def test_audits_by_many_runs_see_something_and_no_more_than_there_is(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At epsilon 20 they show a good share of it; either bound is ten deviations away."""
    monkeypatch.setattr(_methods._Estimated, "_runs", 300)
    data = _data.load("digits", schema=None)
    planned: Any = _methods.METHODS[method](data, epsilon=20.0, delta=1e-5)
    with threadpool_limits(1):
        [audit] = planned._audits()
    assert 0.5 < audit.epsilon_lower < 20.0 < audit.ceiling
    assert audit.verdict == "consistent"
    assert "Gaussian mechanism" in audit.method


@pytest.mark.slow
@pytest.mark.parametrize("method", ["naive_bayes", "projected_sgd"])
def test_audits_by_many_runs_find_a_learner_with_too_little_noise(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_methods._Estimated, "_runs", 150)
    data = _data.load("digits", schema=None)
    planned: Any = _methods.METHODS[method](data, epsilon=0.5, delta=1e-5)
    made, right = [], type(planned)._estimator

    def too_little(self: Any, seed: int | None = None, *, audited: bool = False) -> Any:
        """Hardly any noise in the runs; the certificate that is asked for at last is right."""
        made.append(1)
        estimator = right(self, seed, audited=audited)
        if len(made) <= 300:
            estimator.epsilon = 40.0
        return estimator

    monkeypatch.setattr(type(planned), "_estimator", too_little)
    with threadpool_limits(1):
        [audit] = planned._audits()
    assert audit.violated
    assert audit.epsilon_lower > 1.0


def test_ten_classes_become_two_for_projected_sgd() -> None:
    data = _data.load("digits", schema=None).in_two_classes()
    assert data.classes == ("0 to 4", "5 to 9")
    assert set(np.unique(data.labels).tolist()) == {0, 1}
    assert data.in_two_classes() is data


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--epsilon", "0"), "--epsilon"),
        (("--delta", "1"), "--delta"),
        (("--method", "magic"), "naive_bayes, pate, synthesize"),
        (("--data", "nowhere.csv"), "one of digits, mnist"),
        (("--schema", "schema.toml"), "none with --data digits"),
        (("--out", "taken"), "--out"),
    ],
)
def test_refusals_write_nothing(
    arguments: tuple[str, ...],
    words: str,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    done = run("demo", "--json", *arguments)
    assert done.exit_code == (4 if words == "--out" else 2)
    assert words in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


@pytest.mark.slow
def test_digits_by_pate(tmp_path: Path, run: Run) -> None:
    out = tmp_path / "demo"
    with threadpool_limits(1):
        # At epsilon 8 the plan costs less than 8: an audit must claim what it costs.
        done = run("demo", "--method", "pate", "--epsilon", "8", "--out", str(out), "--json")
    assert done.exit_code == 0, done.stderr
    document = checked(out, json.loads(done.stdout))
    assert document["verdict"]["state"] != "violated"
    # A third of the records outside is the public data of the student.
    assert "about 100 images outside" in document["answers"][0]["question"]
