"""``discreet certify`` and ``discreet certificate``: from a model on the disk to a checked page."""

import copy
import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from cli import certified_network
from cli.conftest import Run
from discreet.certificate import content_hash, warnings_on
from discreet.errors import InvalidValue
from discreet.learn import PrivateGaussianNB
from discreet.ledger import Ledger
from discreet.privacy import GDP, from_json, to_json
from discreet.report import verify_certificate
from report.certificates import audit

SCHEMA = """
target = "outcome"
expected_rows = 400

[columns.age]
type = "integer"
bounds = [0, 100]

[columns.ward]
type = "categorical"
categories = ["north", "south"]

[columns.outcome]
type = "categorical"
categories = ["well", "ill"]
other = "well"
"""


def write_rows(path: Path, count: int, *, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["age", "ward", "outcome"])
        for age, south in zip(rng.integers(0, 101, count), rng.integers(0, 2, count), strict=True):
            ill = age + 20 * south + rng.normal(0, 15) > 60
            writer.writerow([age, "south" if south else "north", "ill" if ill else "well"])
    return path


@pytest.fixture
def trained(tmp_path: Path, run: Run) -> Path:
    """A directory with a model of ``discreet train``, charged to a ledger."""
    (tmp_path / "schema.toml").write_text(SCHEMA, encoding="utf-8")
    write_rows(tmp_path / "in.csv", 300, seed=1)
    write_rows(tmp_path / "out.csv", 300, seed=2)
    with Ledger.create(tmp_path / "study.ledger") as ledger:
        ledger.create_dataset("wards", epsilon=2, delta="1e-4", unit="row")
    done = run(
        *("train", str(tmp_path / "in.csv"), "--schema", str(tmp_path / "schema.toml")),
        *("--epsilon", "1", "--learner", "naive-bayes", "--out", str(tmp_path / "model")),
        *("--ledger", str(tmp_path / "study.ledger"), "--dataset", "wards"),
    )
    assert done.exit_code == 0, done.stderr
    return tmp_path


def test_a_trained_model_is_certified_attacked_and_checked(trained: Path, run: Run) -> None:
    sheet = trained / "audit.json"
    out = trained / "model-certificate"
    done = run(
        *("certify", str(trained / "model"), "--source", "two wards", "--title", "wards"),
        *("--members", str(trained / "in.csv"), "--nonmembers", str(trained / "out.csv")),
        *("--ledger", str(trained / "study.ledger"), "--json"),
    )
    assert done.exit_code == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["epsilon"] <= 1.0
    assert said["internal"] is True
    assert said["verdict"] == "not audited"
    assert "public/certificate.html" in said["files"]
    document = json.loads((out / "public" / "certificate.json").read_text(encoding="utf-8"))
    assert document["title"] == "wards"
    assert document["collection"]["source"] == "two wards"
    assert document["receipt"]["entry"]["dataset"] == "wards"
    # Nothing that was measured on records is in any public file.
    annex = json.loads((out / "internal" / "annex.json").read_text(encoding="utf-8"))
    auc = repr(annex["attacks"][0]["result"]["auc"]["value"])
    accuracy = annex["utility"][0]["accuracy"]
    results = [one["result"] for one in annex["attacks"]]
    assert [one["attack"] for one in results] == ["yeom", "lira online", "rmia offline"]
    chosen = [one["attack"] for one in results if "strongest_on" in one["metadata"]]
    assert len(chosen) == 1
    page = (out / "internal" / "annex.html").read_text(encoding="utf-8")
    assert f"{chosen[0]} was chosen as the strongest on shadow models" in page
    for path in (out / "public").rglob("*.*"):
        text = path.read_bytes()
        assert auc.encode() not in text
        assert b"most_exposed" not in text
        assert str(accuracy["low"]).encode() not in text
    checked = run(
        *("certificate", "verify", str(out / "public" / "certificate.html")),
        *("--ledger", str(trained / "study.ledger"), "--json"),
    )
    assert checked.exit_code == 0, checked.stdout
    checks = json.loads(checked.stdout)["checks"]
    assert all(one["ok"] for one in checks)
    own = "the learner's own certificate says the same"
    assert own in {one["what"] for one in checks}
    # What the learner wrote cannot be told otherwise, not even with a fresh hash.
    lies = [("randomness", {"noise": "sun spots"}), ("plan", {}), ("learner", "magic")]
    lies += [("unit", "person")]
    for field, lie in lies:
        told = copy.deepcopy(document)
        told[field] = lie
        told["warnings"] = warnings_on(told)
        told["hash"] = content_hash(told)
        (out / "public" / "lie.json").write_text(json.dumps(told), encoding="utf-8")
        found = verify_certificate(out / "public" / "lie.json")
        assert own in {one.what for one in found if one.ok is False}, field
    again = run("certify", str(trained / "model"), "--out", str(out))
    assert again.exit_code == 4
    assert "--out" in again.stderr
    assert not sheet.exists()


def test_what_train_writes_is_verified(trained: Path, run: Run) -> None:
    """Before, the answer was: WRONG it follows the schema: part is None."""
    path = str(trained / "model" / "certificate.json")
    book = str(trained / "study.ledger")
    done = run("certificate", "verify", path, "--ledger", book)
    assert done.exit_code == 0, done.stdout
    assert "ok           the ledger recorded this run" in done.stdout
    alone = run("certificate", "verify", path)
    assert alone.exit_code == 6
    assert "not checked  the ledger recorded this run: no ledger was given" in alone.stdout
    said = json.loads(Path(path).read_text(encoding="utf-8"))
    said["plan"]["chosen_because"] = "it is the best"
    said["hash"] = content_hash(said)
    Path(path).write_text(json.dumps(said), encoding="utf-8")
    done = run("certificate", "verify", path, "--ledger", book, "--json")
    assert done.exit_code == 1
    wrong = [one["what"] for one in json.loads(done.stdout)["checks"] if one["ok"] is False]
    assert wrong == ["the ledger recorded this run"]


def test_without_records_there_is_no_annex(trained: Path, run: Run) -> None:
    out = trained / "paper"
    sheet = trained / "audit.json"
    # Whatever else lies in the directory of the model is not released with it.
    (trained / "model" / "records.csv").write_bytes((trained / "in.csv").read_bytes())
    done = run("certify", str(trained / "model"), "--out", str(out))
    assert done.exit_code == 0, done.stderr
    assert "may be published" in done.stdout
    assert "must not be" not in done.stdout
    assert "caution: Nobody has audited" in done.stdout
    assert not (out / "internal").exists()
    assert {path.name for path in (out / "public" / "model").iterdir()} == {
        *("certificate.json", "model.json", "model.npz"),
        *("schema.toml", "summary.png", "summary.txt"),
    }
    assert "records.csv" not in (out / "public" / "certificate.json").read_text(encoding="utf-8")
    text = run("certificate", "verify", str(out / "public" / "certificate.json"))
    assert text.exit_code == 6
    assert "ok           it follows the schema" in text.stdout
    assert "not checked  the entries are on the chain" in text.stdout
    page = trained / "again.html"
    drawn = run("certificate", "page", str(out / "public" / "certificate.json"), "-o", str(page))
    assert drawn.exit_code == 0
    assert page.read_bytes() == (out / "public" / "certificate.html").read_bytes()
    # A damaged model is refused; a changed file beside a certificate is found.
    (out / "public" / "model" / "summary.txt").write_text("better", encoding="utf-8")
    bad = run("certificate", "verify", str(out / "public" / "certificate.json"))
    assert bad.exit_code == 1
    assert "WRONG" in bad.stdout
    sheet.write_text(json.dumps(audit(80).to_json()), encoding="utf-8")
    (trained / "model" / "certificate.json").write_text("{}", encoding="utf-8")
    refused = run("certify", str(trained / "model"), "--out", str(trained / "x"))
    assert refused.exit_code == 4
    assert refused.stderr.startswith("MODEL = ")


def logistic() -> nn.Module:
    return nn.Linear(2, 2)


def test_a_network_of_ones_own_is_certified(tmp_path: Path, run: Run) -> None:
    from discreet.learn.dpsgd import Plan, save
    from discreet.learn.dpsgd._trainer import Trainer

    rng = np.random.default_rng(3)
    x = rng.normal(size=(200, 2)).astype(np.float32)
    y = (x.sum(axis=1) > 0).astype(np.int64)
    plan = Plan(examples=100, sampler="full", steps=5, clip_norm=1.0, epsilon=4.0, delta=1e-5)
    trainer = Trainer(
        logistic(),
        plan,
        optimizer=lambda p: torch.optim.SGD(p, lr=1.0),
        loss=nn.CrossEntropyLoss(reduction="none"),
    )
    data = TensorDataset(torch.from_numpy(x[:100]), torch.from_numpy(y[:100]))
    trained = trainer.fit(data, progress=False)
    trained.save(tmp_path / "network")
    certified_network.Kept.model = trained.model
    for name, rows in (("in", slice(0, 100)), ("out", slice(100, 200))):
        lines = [f"{a},{b},{label}" for (a, b), label in zip(x[rows], y[rows], strict=True)]
        text = "\n".join(["a,b,label", *lines])
        (tmp_path / f"{name}.csv").write_text(text, encoding="utf-8")
    done = run(
        *("certify", str(tmp_path / "network"), "--target", "cli.certified_network:answering"),
        *("--members", str(tmp_path / "in.csv"), "--nonmembers", str(tmp_path / "out.csv")),
    )
    assert done.exit_code == 0, done.stderr
    assert "serious: No ledger was charged" in done.stdout
    public = tmp_path / "network-certificate" / "public" / "certificate.json"
    assert [one for one in verify_certificate(public) if one.ok is False] == []
    document = json.loads(public.read_text(encoding="utf-8"))
    assert document["learner"] == "DP-SGD"
    assert document["run"]["isolation"] == "checked"
    annex = tmp_path / "network-certificate" / "internal" / "annex.json"
    found = json.loads(annex.read_text(encoding="utf-8"))["attacks"]
    assert [one["result"]["attack"] for one in found] == ["yeom"]
    # Another model under the same certificate is refused.
    other = tmp_path / "other"
    with torch.no_grad():
        trained.model.weight.add_(1.0)
    with pytest.raises(InvalidValue, match="when its certificate was written"):
        trained.save(other)
    save(other, trained.model, replace(trained.certificate, model_digest=None))
    (other / "certificate.json").write_bytes((tmp_path / "network/certificate.json").read_bytes())
    refused = run("certify", str(other))
    assert refused.exit_code == 4
    assert "not the one that its certificate was written for" in refused.stderr
    shadows = run(
        *("certify", str(tmp_path / "network"), "--target", "cli.certified_network:answering"),
        *("--members", str(tmp_path / "in.csv"), "--nonmembers", str(tmp_path / "out.csv")),
        *("--shadows", "4", "--out", str(tmp_path / "never")),
    )
    assert shadows.exit_code == 2
    assert "--shadows" in shadows.stderr
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("certify", "nowhere"), "a directory"),
        (("certify", ".", "--members", "x.csv"), "--nonmembers"),
        (("certify", ".", "--nonmembers", "x.csv"), "--members"),
        (("certify", ".", "--shadows", "-1"), "--shadows"),
        (("certify", "."), "certificate.json"),
        (("certificate", "page", "nowhere.json", "-o", "x.html"), "a readable file"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(
    arguments: tuple[str, ...],
    words: str,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)
    assert done.exit_code == (2 if words.startswith("--") else 4)
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_what_is_missing_or_damaged_is_said(run: Run, tmp_path: Path) -> None:
    for text in (None, "", "[1]"):
        path = tmp_path / "certificate.json"
        if text is not None:
            path.write_text(text, encoding="utf-8")
        done = run("certificate", "verify", str(path))
        assert done.exit_code == 4
        assert len(done.stderr.splitlines()) == 1
    path.write_text("{}", encoding="utf-8")
    assert run("certificate", "verify", str(path)).exit_code == 1
    absent = run("certificate", "verify", str(path), "--ledger", str(tmp_path / "no.ledger"))
    assert absent.exit_code == 4


def test_a_paper_that_claims_less_than_the_model_inside_is_refused(
    tmp_path: Path, run: Run
) -> None:
    """A model of one's own code: no model.json, and its certificate was made smaller by hand."""
    place = tmp_path / "model"
    place.mkdir()
    rng = np.random.default_rng(1)
    model = PrivateGaussianNB(epsilon=2.0, delta=1e-5, classes=[0, 1], bounds=(0.0, 1.0))
    model.fit(rng.random((60, 2)), rng.integers(0, 2, 60))
    model.save(place / "model.npz")
    paper = model.certificate_.to_json()
    (place / "certificate.json").write_text(json.dumps(paper), encoding="utf-8")
    assert run("certify", str(place), "--out", str(tmp_path / "right")).exit_code == 0
    cheap = GDP(mu=0.05)
    paper.update(loss=to_json(cheap), epsilon=cheap.epsilon(delta=paper["delta"]))
    (place / "certificate.json").write_text(json.dumps(paper), encoding="utf-8")
    done = run("certify", str(place), "--out", str(tmp_path / "never"))
    assert done.exit_code != 0
    assert "disagree about loss" in done.stderr
    (place / "model.npz").write_bytes(b"PK")
    done = run("certify", str(place), "--out", str(tmp_path / "never"))
    assert done.exit_code != 0
    assert "is not a saved model" in done.stderr
    assert not (tmp_path / "never").exists()


def test_the_certificate_lies_beside_the_model_however_it_is_named(
    trained: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trained / "model")
    for name in (".", "../model/.", f"{trained}/model/"):
        assert run("certify", name).exit_code == 0
        made = trained / "model-certificate"
        assert (made / "public" / "certificate.json").is_file()
        shutil.rmtree(made)


def test_audits_are_read_strictly(trained: Path, run: Run) -> None:
    sheet = trained / "audit.json"
    for text in ("", "{}", json.dumps({**audit(80).to_json(), "accuracy": 1})):
        sheet.write_text(text, encoding="utf-8")
        done = run(
            *("certify", str(trained / "model"), "--audit", str(sheet)),
            *("--out", str(trained / "never")),
        )
        assert done.exit_code == (2 if text.startswith("{") else 4)
        assert "--audit" in done.stderr
    # The audit of another claim says nothing about this model, however good it looks.
    deep = "[" * 100_000
    for text, words in ((json.dumps(audit(80).to_json()), "tested another claim"), (deep, "JSON")):
        sheet.write_text(text, encoding="utf-8")
        done = run(
            *("certify", str(trained / "model"), "--audit", str(sheet), "--json"),
            *("--out", str(trained / "never")),
        )
        assert done.exit_code == (4 if text == deep else 2)
        assert "--audit" in done.stderr
        assert words in done.stderr
        assert not (trained / "never").exists()
    paper = json.loads((trained / "model" / "certificate.json").read_text(encoding="utf-8"))
    right = audit(80, loss=from_json(paper["loss"]), delta=paper["delta"])
    sheet.write_text(json.dumps(right.to_json()), encoding="utf-8")
    done = run(
        *("certify", str(trained / "model"), "--audit", str(sheet), "--json"),
        *("--out", str(trained / "audited")),
    )
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["verdict"] == "consistent"
    checked = run("certificate", "verify", str(trained / "audited/public/certificate.json"))
    assert checked.exit_code == 6, checked.stdout
