"""Damaged models and certificates are refused, whatever was changed in them."""

import json
import warnings

import numpy as np
import pytest

from discreet.certificate import Certificate
from discreet.errors import SchemaError
from discreet.learn import PrivateCategoricalNB, PrivateLogisticRegression
from discreet.privacy import PureDP

X = np.random.default_rng(0).uniform(0.0, 1.0, (40, 2))
Y = (X[:, 0] > 0.5).astype(np.int64)


def logistic():
    return PrivateLogisticRegression(
        classes=[0, 1], bounds=(0.0, 1.0), expected_rows=40, max_iter=2, insecure_seed=1
    )


def changed(path, change):
    with np.load(path) as file:
        parts = dict(file)
    head = json.loads(str(parts["discreet_json"]))
    change(head, parts)
    np.savez(path, **{**parts, "discreet_json": np.array(json.dumps(head))})


@pytest.mark.parametrize(
    "change",
    [
        lambda head, parts: head["parameters"].update(epsilon=9.0),
        lambda head, parts: head["parameters"].update(feature_norm=1e-9),
        lambda head, parts: head["parameters"].update(classes=["a", "b"]),
        lambda head, parts: head.update(n_features="2"),
        lambda head, parts: head.update(feature_names=["one"]),
        lambda head, parts: head["plan"].update(steps=1),
        lambda head, parts: parts.update(coef=np.full((1, 2), np.nan)),
        lambda head, parts: parts.update(coef=np.zeros((2, 2))),
        lambda head, parts: head["certificate"].update(plan=[1]),
        lambda head, parts: head["certificate"].update(relation="replace"),
        lambda head, parts: head["certificate"].update(covers="everything"),
        lambda head, parts: head["certificate"].update(unit="person"),
        lambda head, parts: head["certificate"].update(delta=2.0),
    ],
)
def test_a_damaged_model_is_refused(change, tmp_path):
    path = tmp_path / "model.npz"
    logistic().fit(X, Y).save(path)
    changed(path, change)
    with pytest.raises(SchemaError):
        PrivateLogisticRegression.load(path)


def test_a_certificate_that_is_nested_without_end_is_refused():
    paper = logistic().fit(X, Y).certificate_.to_json()
    deep = inner = {}
    for _ in range(100_000):
        inner["loss"] = inner = {}
    with pytest.raises(SchemaError):
        Certificate.from_json({**paper, "loss": deep})
    with pytest.raises(SchemaError):
        Certificate.from_json([])


def test_a_damaged_loss_is_a_damaged_certificate():
    paper = Certificate.of(PureDP(0.5), delta=0.0, learner="example").to_json()
    read = json.loads(json.dumps(paper))
    assert Certificate.from_json(read).epsilon == 0.5
    with warnings.catch_warnings(action="error"), pytest.raises(SchemaError):
        Certificate.from_json({**read, "loss": {**read["loss"], "loss": {"kind": "?"}}})
    wide = Certificate.of(
        3 * PrivateCategoricalNB(classes=[0, 1], categories=2).planned_loss(features=2),
        delta=1e-6,
        learner="x",
    )
    text = json.dumps(wide.to_json()).replace('"sensitivity": 1', f'"sensitivity": {10**30}')
    assert str(10**30) in text
    with pytest.raises(SchemaError):
        Certificate.from_json(json.loads(text))


def test_a_certificate_that_is_read_claims_no_less_than_its_loss():
    paper = Certificate.of(PureDP(0.5), delta=0.0, learner="example").to_json()
    assert Certificate.from_json({**paper, "epsilon": 0.4999}).epsilon == 0.5
    assert Certificate.from_json({**paper, "epsilon": 0.6}).epsilon == 0.6
    with pytest.raises(SchemaError, match="claims"):
        Certificate.from_json({**paper, "epsilon": 0.49})
