"""Weights of classes: the guarantee does not move, the model does, and counts are paid for."""

import numpy as np
import pytest

from discreet.errors import InvalidValue
from discreet.learn import (
    PrivateAdditiveClassifier,
    PrivateLogisticRegression,
    _linear,
    load_model,
    read_plan,
)
from discreet.learn._exact_descent import COUNT_STEPS
from discreet.mechanisms import Release
from discreet.privacy import GDP

KINDS = [PrivateLogisticRegression, PrivateAdditiveClassifier]


def rare(rows=3000, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (rows, 2))
    return x, (3 * x[:, 0] + rng.logistic(0, 1, rows) > 3).astype(int)


def fitted(kind, weight, x, y, **more):
    facts = {"classes": [0, 1], "bounds": (-1, 1), "expected_rows": len(y), "epsilon": 2.0}
    return kind(class_weight=weight, insecure_seed=1, **{**facts, **more}).fit(x, y)


@pytest.mark.parametrize("kind", KINDS)
def test_rare_classes_are_found_with_weights_at_the_same_price(kind, tmp_path):
    x, y = rare()
    plain, stated, counted = (fitted(kind, w, x, y) for w in (None, {0: 1, 1: 8}, "balanced"))
    assert plain.certificate_.loss == stated.certificate_.loss
    found = [np.mean(one.predict(x)[y == 1] == 1) for one in (plain, stated, counted)]
    assert found[0] < 0.4
    assert min(found[1:]) > 0.6
    assert counted.certificate_.epsilon <= 2.0
    counted.save(tmp_path / "model.npz")
    again = load_model(tmp_path / "model.npz")
    np.testing.assert_array_equal(again.predict_proba(x[:9]), counted.predict_proba(x[:9]))
    plan = read_plan(counted.certificate_)
    assert plan.loss == counted.certificate_.loss
    assert "count_share" not in str(plain.plan_.to_json())


@pytest.mark.parametrize("kind", KINDS)
def test_equal_weights_change_nothing(kind):
    x, y = rare(500)
    one, two = (fitted(kind, w, x, y) for w in (None, {0: 3.0, 1: 3.0}))
    np.testing.assert_array_equal(one.predict_proba(x), two.predict_proba(x))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("relation", ["add_remove", "replace"])
def test_a_row_moves_the_counts_no_further_than_is_charged(kind, relation, monkeypatch):
    x, y = rare(200)
    seen = []

    def recorded(values, *, sensitivity, stddev, relation, source):
        seen.append((np.asarray(values), float(sensitivity), stddev))
        return Release(np.asarray(values), None, {})

    x2, y2 = (np.delete(x, 3, 0), np.delete(y, 3)) if relation == "add_remove" else (x, 1 - y)
    if relation == "replace":
        y2 = np.where(np.arange(200) == 3, 1 - y, y)
    real = _linear.noisy_class_counts
    monkeypatch.setattr("discreet.learn._exact_descent.gaussian_integers", recorded)
    counts = []
    monkeypatch.setattr(
        _linear, "noisy_class_counts", lambda c, *a: counts.append((c, seen)) or real(c, *a)
    )
    plan = fitted(kind, "balanced", x, y, relation=relation).plan_
    plan = getattr(plan, "descent", plan)
    fitted(kind, "balanced", x2, y2, relation=relation)
    moved = np.linalg.norm(counts[0][0] - counts[1][0]) * COUNT_STEPS
    assert 0 < moved <= plan.count_shift
    assert plan.loss.epsilon(delta=plan.delta) > GDP(plan.count_shift / plan.count_stddev).epsilon(
        delta=plan.delta
    )


def test_a_person_counts_once():
    x, y = rare(300)
    persons = np.repeat(np.arange(100), 3)
    model = fitted(
        PrivateLogisticRegression, "balanced", x, y, rows_per_person=3, expected_rows=300
    )
    del model
    batch = type("Batch", (), {})()
    batch.targets = y
    batch.owned = type("Owned", (), {"ranks": np.tile([0, 1, 2], 100)})()
    assert _linear.class_counts(2, batch).sum() == len(np.unique(persons))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weight", [{0: 1}, {0: 1, 1: 0}, {0: 1, 1: -2}, "even", 3, {0: 1, 2: 1}])
def test_wrong_weights_are_named_before_the_charge(kind, weight):
    x, y = rare(20)
    with pytest.raises(InvalidValue, match="class_weight"):
        fitted(kind, weight, x, y)
