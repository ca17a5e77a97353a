"""The estimators of projected SGD: declarations, sensitivity on any data, files, learning."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer, load_diabetes

from discreet.errors import InvalidValue, RelationMismatch, SchemaError
from discreet.learn._intake import _targets
from discreet.learn.projected_sgd import (
    Box,
    GivenProjection,
    L2Ball,
    PrivateProjectedSGDClassifier,
    PrivateProjectedSGDRegressor,
    Simplex,
)
from discreet.ledger import Ledger

RNG = np.random.default_rng(8)
TABLE = RNG.normal(size=(40, 3))
LABELS = np.where(TABLE[:, 0] - TABLE[:, 1] > 0, "yes", "no")
NUMBERS = 10.0 * TABLE[:, 0] + 5.0


def classifier(**changes):
    settings = {"classes": ["no", "yes"], "epsilon": 5.0, "steps": 300, "insecure_seed": 1}
    return PrivateProjectedSGDClassifier(**{**settings, **changes})


def regressor(**changes):
    settings = {"target_bounds": (-20.0, 30.0), "epsilon": 5.0, "steps": 300, "insecure_seed": 1}
    return PrivateProjectedSGDRegressor(**{**settings, **changes})


BOTH = pytest.mark.parametrize(
    ("make", "targets"), [(classifier, LABELS), (regressor, NUMBERS)], ids=["classes", "numbers"]
)


# --- it learns ----------------------------------------------------------------------------


@pytest.mark.slow
# Slopes of the squared hinge are up to radius + 1, so it needs more noise than the others.
@pytest.mark.parametrize(
    ("loss", "floor"), [("logistic", 0.88), ("hinge", 0.88), ("squared_hinge", 0.84)]
)
def test_it_classifies_at_epsilon_one(loss, floor):
    X, y = load_breast_cancer(return_X_y=True)
    scaled = (X[:, [0, 1, 7, 27]] / [15.0, 20.0, 0.05, 0.12]) - 1.0
    model = PrivateProjectedSGDClassifier(
        loss=loss, epsilon=1.0, classes=[0, 1], feature_norm=1.5, insecure_seed=2
    ).fit(scaled, y)
    assert model.plan_.steps == len(y) ** 2
    assert model.score(scaled, y) > floor
    assert 0.99 < model.certificate_.epsilon <= 1.0
    assert model.certificate_.relation == "replace"
    assert "INSECURE" in model.certificate_.randomness["randomness"]
    measured = model.excess_risk_without_privacy(scaled, y)
    assert measured.private
    assert 0.0 <= measured.lower <= measured.upper <= model.excess_risk_bound_ == measured.bound
    assert hasattr(model, "predict_proba") == (loss == "logistic")


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["huber", "squared"])
def test_it_regresses(loss):
    X, y = load_diabetes(return_X_y=True)
    model = PrivateProjectedSGDRegressor(
        loss=loss,
        epsilon=3.0,
        target_bounds=(25.0, 350.0),
        feature_norm=0.2,
        projection=L2Ball(6.0),
        insecure_seed=2,
    ).fit(X, y)
    assert model.score(X, y) > 0.25
    assert model.predict(X) == pytest.approx(
        model._short_rows(X)[:, :-1] @ model.coef_ + model.intercept_
    )


def test_the_lecture_is_noisier_and_says_what_it_costs():
    lecture = classifier(calibration="formula", epsilon=1.0, steps=None).fit(TABLE, LABELS)
    modern = classifier(epsilon=1.0, steps=None).fit(TABLE, LABELS)
    assert lecture.plan_.stddev > 10 * modern.plan_.stddev
    assert lecture.certificate_.epsilon < 0.2
    assert lecture.excess_risk_bound_ > modern.excess_risk_bound_


@pytest.mark.parametrize(
    "region", [Box(-0.5, 0.5), Simplex(2.0), GivenProjection(L2Ball(1.0).project, radius=1.0)]
)
def test_any_set_can_be_given(region):
    model = classifier(projection=region, fit_intercept=False).fit(TABLE, LABELS)
    assert region.project(model.theta_.copy()) == pytest.approx(model.theta_)
    assert model.coef_.shape == (1, 3)
    assert model.intercept_.tolist() == [0.0]


def test_clipping_gives_no_bound_and_a_stated_constant_does():
    clipped = regressor(loss="squared", clip_norm=0.5).fit(TABLE, NUMBERS)
    assert clipped.excess_risk_bound_ is None
    assert clipped.plan_.lipschitz == 0.5
    assert clipped.excess_risk_without_privacy(TABLE, NUMBERS).bound is None
    stated = regressor(loss="squared", lipschitz=0.5).fit(TABLE, NUMBERS)
    assert stated.excess_risk_bound_ > 0.0
    # Both are cut at the same length, so that the privacy of neither rests on a claim.
    assert np.array_equal(stated.theta_, clipped.theta_)


# --- no record has a gradient beyond the constant that is paid for ----------------------------

cell = st.floats(allow_nan=True, allow_infinity=True)


@pytest.mark.slow
@settings(max_examples=60)
@given(
    st.lists(st.lists(cell, min_size=3, max_size=3), min_size=1, max_size=4),
    st.lists(cell, min_size=4, max_size=4),
    st.sampled_from(["huber", "squared", "logistic", "hinge", "squared_hinge"]),
    st.booleans(),
)
def test_gradients_are_bounded_whatever_the_data_is(rows, answers, name, intercept):
    regression = name in ("huber", "squared")
    model = (regressor if regression else classifier)(
        loss=name, feature_norm=2.0, fit_intercept=intercept
    )
    model._facts = replace(model._declared(), width=3, rows=len(rows))
    table = model._short_rows(np.array(rows))
    assert np.all(np.isfinite(table))
    plan = model._plan(model._facts)
    names = np.array(["no", "yes", "?", "no"])
    read = _targets(np.array(answers) if regression else names, model._facts)
    goals = model._goals(read)[: len(rows)]
    loss, corner = (
        model._linear_loss(),
        model._region(model._facts).project(np.full(plan.dimension, -100.0)),
    )
    for row, goal in zip(table, goals, strict=True):
        if not math.isnan(goal):
            gradient = loss.slope(float(row @ corner), float(goal)) * row
            assert np.linalg.norm(gradient) <= plan.lipschitz * (1 + 1e-12)


@pytest.mark.slow
@settings(max_examples=25)
@given(st.lists(st.tuples(cell, cell, st.sampled_from(["no", "yes", "?"])), min_size=1, max_size=5))
def test_no_data_is_an_error(rows):
    table = np.array([row[:2] for row in rows])
    answers = np.array([row[2] for row in rows])
    model = classifier(steps=20, calibration="calibrated").fit(table, answers)
    assert np.all(np.isfinite(model.predict_proba(table)))
    other = regressor(steps=20).fit(table, table[:, 0])
    assert np.all(np.isfinite(other.predict(table)))


def test_one_class_only_and_a_constant_target_are_data_like_any_other():
    assert set(classifier().fit(TABLE, ["yes"] * 40).classes_) == {"no", "yes"}
    assert np.isfinite(regressor().fit(TABLE, np.ones(40)).predict(TABLE)).all()


def test_a_target_that_is_no_number_gives_no_gradient():
    answers = NUMBERS.astype(object)
    answers[7] = "many"
    model = regressor().fit(TABLE, answers)
    plain = NUMBERS.copy()
    plain[7] = math.nan
    assert np.array_equal(model.theta_, regressor().fit(TABLE, plain).theta_)


# --- bad parameters, before anything is spent ---------------------------------------------------


@pytest.fixture
def ledger(tmp_path: Path):
    with Ledger.create(tmp_path / "study.ledger") as book:
        book.create_dataset("patients", epsilon=10, delta=1e-5, relation="replace")
        book.create_dataset("visits", epsilon=10, delta=1e-5)
        yield book


@BOTH
def test_the_ledger_is_charged_under_replace(make, targets, ledger):
    model = make().fit(TABLE, targets, ledger=ledger, dataset="patients")
    assert model.certificate_.receipt["entry"]["dataset"] == "patients"
    (row,) = ledger.history("patients")
    assert row.outcome == "completed"
    with pytest.raises(RelationMismatch):
        make().fit(TABLE, targets, ledger=ledger, dataset="visits")


# --- files ------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    "region", [None, Box([-1.0] * 4, [1.0] * 4), GivenProjection(L2Ball(1.0).project, radius=1.0)]
)
def test_a_saved_model_predicts_the_same(make, targets, region, tmp_path):
    model = make(projection=region).fit(TABLE, targets)
    path = tmp_path / "model.npz"
    model.save(path)
    loaded = type(model).load(path)
    assert np.array_equal(loaded.predict(TABLE), model.predict(TABLE))
    assert loaded.certificate_ == model.certificate_
    assert loaded.plan_ == model.plan_
    assert loaded.excess_risk_bound_ == model.excess_risk_bound_
    other = classifier if make is regressor else regressor
    with pytest.raises(SchemaError):
        type(other()).load(path)


def test_a_given_projection_comes_back_as_one_and_trains_nothing_until_its_function_is_there(
    tmp_path,
):
    region = GivenProjection(L2Ball(0.7).project, radius=0.7, name="small ball")
    model = classifier(projection=region).fit(TABLE, LABELS)
    model.save(tmp_path / "model.npz")
    loaded = type(model).load(tmp_path / "model.npz")
    assert isinstance(loaded.projection, GivenProjection)
    assert loaded.projection.describe() == region.describe()
    loaded.save(tmp_path / "again.npz")
    assert type(model).load(tmp_path / "again.npz").projection.describe() == region.describe()
    with Ledger.create(tmp_path / "study.ledger") as ledger:
        ledger.create_dataset("patients", epsilon=9, delta=1e-2, relation="replace")
        with pytest.raises(InvalidValue, match="a function that was not saved with the model"):
            loaded.fit(TABLE, LABELS, ledger=ledger, dataset="patients")
        assert not list(ledger.history("patients"))
    again = loaded.set_params(projection=region).fit(TABLE, LABELS)
    assert np.linalg.norm(again.theta_) <= 0.7 * (1 + 1e-9)


def test_a_projection_that_does_not_work_costs_nothing(tmp_path):
    broken = GivenProjection(lambda point: point[:1], radius=1.0)
    with Ledger.create(tmp_path / "study.ledger") as ledger:
        ledger.create_dataset("patients", epsilon=9, delta=1e-2, relation="replace")
        with pytest.raises(InvalidValue, match="function"):
            classifier(projection=broken).fit(TABLE, LABELS, ledger=ledger, dataset="patients")
        assert not list(ledger.history("patients"))
