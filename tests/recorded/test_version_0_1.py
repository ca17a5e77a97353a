"""Ledgers, certificates and models that version 0.1 wrote are still read."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from discreet.learn import (
    PrivateCategoricalNB,
    PrivateGaussianNB,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateMLPClassifier,
    PrivateMLPRegressor,
    learner_name,
    load_model,
)
from discreet.learn.dpsgd._trained import load
from discreet.learn.projected_sgd import (
    PrivateProjectedSGDClassifier,
    PrivateProjectedSGDRegressor,
)
from discreet.pate import PATEClassifier
from discreet.privacy import from_json, to_json
from discreet.report import recheck
from recorded.version_0_1 import HERE, LOSSES, open_ledger

SOUND = [one for one in LOSSES if one["item"] is None]
SAVED = {
    "logistic": PrivateLogisticRegression,
    "linear": PrivateLinearRegression,
    "mlp-classifier": PrivateMLPClassifier,
    "mlp-regressor": PrivateMLPRegressor,
    "gaussian-nb": PrivateGaussianNB,
    "categorical-nb": PrivateCategoricalNB,
    "projected-classifier": PrivateProjectedSGDClassifier,
    "projected-regressor": PrivateProjectedSGDRegressor,
}


@pytest.mark.parametrize("one", SOUND, ids=lambda one: str(one["name"]))
def test_a_sound_loss_is_read_as_before(one: dict[str, Any]) -> None:
    loss = from_json(one["loss"])
    assert from_json(to_json(loss)) == loss
    assert loss.epsilon(delta=one["delta"]) == pytest.approx(one["epsilon"], rel=1e-6)


@pytest.mark.parametrize("name", ["sound.ledger", "models.ledger", "refused_today.ledger"])
def test_a_sound_ledger_is_verified_as_before(name: str, tmp_path: Path) -> None:
    with open_ledger(name, tmp_path) as ledger:
        assert ledger.verify().ok


@pytest.mark.parametrize("name", SAVED)
def test_a_saved_estimator_is_loaded(name: str) -> None:
    model = SAVED[name].load(HERE / "saved" / f"{name}.npz")
    said = json.loads((HERE / "saved" / f"{name}.certificate.json").read_text(encoding="utf-8"))
    assert model.certificate_.epsilon == pytest.approx(said["epsilon"], rel=1e-3)


@pytest.mark.parametrize("name", ["logistic", "naive-bayes", "mlp", "linear"])
def test_a_model_of_discreet_train_is_loaded(name: str) -> None:
    model = load_model(HERE / f"train-{name}")
    assert learner_name(type(model).__name__) == name
    assert model.schema.content_hash == model.certificate_.plan["schema_hash"]


def test_a_student_is_loaded() -> None:
    student = load_model(HERE / "student")
    assert type(student) is PATEClassifier
    assert sorted(student.classes_) == sorted(student.schema.classes)
    rows = {name: [None, None] for name in student.schema.features}
    assert set(student.predict(rows)) <= set(student.classes_)


@pytest.mark.parametrize("name", ["trainer", "own-loop", "vouched"])
def test_a_network_is_loaded(name: str) -> None:
    layers = torch.nn.Linear
    two = torch.nn.Sequential(layers(8, 4), torch.nn.ReLU(), layers(4, 2))
    certificate = load(HERE / f"dpsgd-{name}", layers(8, 2) if name == "vouched" else two)
    assert certificate.epsilon <= 2.0


def test_recheck_lists_what_it_does_not_read(tmp_path: Path) -> None:
    (tmp_path / "large").mkdir()
    with (tmp_path / "large" / "certificate.json").open("wb") as file:
        file.truncate(65 * 2**20)
    (tmp_path / "certificate.json").symlink_to(HERE / "affected.certificate.json")
    (tmp_path / "loop").symlink_to(tmp_path)
    found = {one.path: (one.state, one.why) for one in recheck(tmp_path)}
    assert found == {
        "certificate.json": ("not checked", "a symbolic link"),
        "large/certificate.json": ("not checked", "too large for a certificate"),
    }
