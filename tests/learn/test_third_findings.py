"""Public mistakes are found before the charge, and no certificate outlives its model.

Findings of a third adversary, one test each.
"""

import json
import tracemalloc
import warnings

import numpy as np
import pytest

from discreet.certificate import Certificate
from discreet.errors import DiscreetError, InvalidValue, SchemaError
from discreet.learn import (
    PrivateCategoricalNB,
    PrivateGaussianNB,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateMLPClassifier,
    _exact_descent,
)
from discreet.learn._model_file import read_model, write_model
from discreet.learn.projected_sgd import (
    L2Ball,
    PrivateProjectedSGDClassifier,
    PrivateProjectedSGDRegressor,
)
from discreet.ledger import Ledger
from discreet.privacy import PureDP

X = np.array([[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]])
Y = [0, 1, 0]
CLASSES = {"classes": [0, 1]}
BOUNDED = {"bounds": (0.0, 1.0), "expected_rows": 10, "max_iter": 2}
LOGISTIC = (PrivateLogisticRegression, {**CLASSES, **BOUNDED})
LINEAR = (PrivateLinearRegression, {"target_bounds": (0.0, 1.0), **BOUNDED})
NETWORK = (PrivateMLPClassifier, {**CLASSES, **BOUNDED})
COUNTS = (PrivateCategoricalNB, {**CLASSES, "categories": 2})
MOMENTS = (PrivateGaussianNB, {**CLASSES, "bounds": (0.0, 1.0)})
STEPS = (PrivateProjectedSGDClassifier, {**CLASSES, "steps": 10})
SQUARES = (PrivateProjectedSGDRegressor, {"target_bounds": (0.0, 1.0), "steps": 10})


@pytest.fixture
def book(tmp_path):
    with Ledger.create(tmp_path / "study.ledger") as ledger:
        ledger.create_dataset("rows", epsilon=30, delta="1e-3", unit="row")
        ledger.create_dataset("changes", epsilon=30, delta="1e-3", unit="row", relation="replace")
        yield ledger


@pytest.mark.parametrize(
    ("kind", "argument", "value"),
    [
        (LOGISTIC, "clip_ratio", 1e-320),
        (LINEAR, "clip_ratio", 1e-300),
        (LINEAR, "max_iter", 10**400),
        (LOGISTIC, "rows_per_person", 10**400),
        (LOGISTIC, "expected_rows", 10**400),
        (LOGISTIC, "bounds", np.array(3)),
        (NETWORK, "expected_rows", 10**400),
        (NETWORK, "hidden_layer_sizes", 10**400),
        (NETWORK, "max_iter", 10**400),
        (COUNTS, "categories", 0.5),
        (COUNTS, "categories", np.array(3)),
        (COUNTS, "categories", 10**400),
        (MOMENTS, "epsilon", 1e-320),
        (STEPS, "lipschitz", 1e-295),
        (STEPS, "clip_norm", 1e-318),
        (STEPS, "fit_intercept", np.array([1, 2])),
        (SQUARES, "projection", L2Ball(1e-200)),
        (SQUARES, "target_bounds", np.array(3)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_absurd_parameters_are_refused_and_nothing_is_charged(book, kind, argument, value):
    model, usual = kind
    dataset = "changes" if kind in (STEPS, SQUARES) else "rows"
    with pytest.raises(InvalidValue):
        model(**{**usual, argument: value}).fit(X, Y, ledger=book, dataset=dataset)
    assert not book.history(dataset)


class Unwritten(Exception):
    """Stands for whatever keeps a run from ending well after its model was set."""


def broken_certificate(*_, **__):
    raise Unwritten


@pytest.mark.parametrize("kind", [LOGISTIC, LINEAR, NETWORK, COUNTS, MOMENTS, STEPS])
def test_a_certificate_does_not_outlive_its_model(monkeypatch, tmp_path, kind):
    model, usual = kind
    fitted = model(**{**usual, "epsilon": 0.1}).fit(X, Y)
    assert fitted.certificate_.epsilon <= 0.1
    monkeypatch.setattr(Certificate, "of", broken_certificate)
    with pytest.raises(Unwritten):
        fitted.set_params(epsilon=5.0).fit(X, Y)
    # The weights cost 5 by now: a certificate of 0.1 beside them would be a lie.
    assert not hasattr(fitted, "certificate_")
    with pytest.raises(ValueError, match="not fitted"):
        fitted.save(tmp_path / "model.npz")


def test_a_refused_charge_keeps_the_model_and_its_certificate(book):
    fitted = LOGISTIC[0](**LOGISTIC[1]).fit(X, Y)
    paper = fitted.certificate_
    with pytest.raises(DiscreetError, match="budget"):
        fitted.set_params(epsilon=100.0).fit(X, Y, ledger=book, dataset="rows")
    assert fitted.certificate_ is paper


def test_a_plan_is_that_of_the_first_batch(book):
    model = PrivateCategoricalNB(epsilon=2.0, delta=1e-6, noise="gaussian", categories=2)
    model.partial_fit(X, Y, [0, 1], ledger=book, dataset="rows")
    with pytest.raises(InvalidValue, match="classes"):
        model.partial_fit(X, Y, [0, 2])
    paper = model.set_params(epsilon=0.1, delta=0.5).partial_fit(X, Y, [0, 1]).finish().certificate_
    assert paper.delta == 1e-6
    assert paper.plan["target_epsilon"] == 2.0
    assert 1.9 < paper.epsilon <= 2.0


def test_a_diagonal_turns_rows_as_its_matrix_does():
    rng = np.random.default_rng(3)
    rows = _exact_descent.raw_rows(rng.uniform(-1.0, 1.0, (50, 6)), norm=2.0)
    scales = rng.uniform(0.1, 9.0, 7)
    found = _exact_descent.whitened_rows(rows, scales)
    np.testing.assert_array_equal(found, _exact_descent.whitened_rows(rows, np.diag(scales)))


def test_wide_rows_need_no_square_of_their_width():
    rows = np.random.default_rng(4).integers(0, 2, (20, 20_000)).astype(np.float32)
    model = PrivateLogisticRegression(**{**CLASSES, **BOUNDED, "feature_norm": 3.0, "max_iter": 1})
    tracemalloc.start()
    try:
        model.fit(rows, np.arange(20) % 2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert model.coef_.shape == (1, 20_000)
    assert peak < 2e8  # the square would be 3.2e9


@pytest.mark.parametrize("width", [1, 5, 2000, 1 << 23])
def test_blocks_cover_all_rows_once(width):
    parts = (
        list(_exact_descent.blocks(9000, width))
        if width < 10_000
        else list(_exact_descent.blocks(9, width))
    )
    places = [place for start, stop in parts for place in range(start, stop)]
    assert places == list(range(len(places)))
    assert len(places) in (9, 9000)
    assert all(stop - start <= 4096 for start, stop in parts)
    assert all((stop - start) * width <= 1 << 22 or stop - start == 1 for start, stop in parts)


def test_what_is_masked_is_missing():
    hidden = np.ma.array(X, mask=X == 1.0)
    shown = np.where(X == 1.0, np.nan, X)
    answers = np.ma.array(Y, mask=[False, False, True])
    for kind, usual in (LOGISTIC, MOMENTS, STEPS):
        one = kind(**usual, insecure_seed=1).fit(hidden, answers)
        two = kind(**usual, insecure_seed=1).fit(shown, [0, 1, None])
        np.testing.assert_array_equal(one.predict_proba(shown), two.predict_proba(shown))


def test_a_damaged_loss_is_a_damaged_certificate():
    paper = Certificate.of(PureDP(0.5), delta=0.0, learner="example").to_json()
    read = json.loads(json.dumps(paper))
    assert Certificate.from_json(read).epsilon == 0.5
    with warnings.catch_warnings(action="error"), pytest.raises(SchemaError):
        Certificate.from_json({**read, "loss": {**read["loss"], "loss": {"kind": "?"}}})
    wide = Certificate.of(
        3 * PrivateCategoricalNB(**COUNTS[1]).planned_loss(features=2), delta=1e-6, learner="x"
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


@pytest.mark.parametrize("kind", [LOGISTIC, COUNTS, MOMENTS, STEPS])
def test_a_certificate_covers_the_plan_of_its_model(tmp_path, kind):
    model, usual = kind
    place = tmp_path / "model.npz"
    fitted = model(**{**usual, "epsilon": 2.0}).fit(X, Y)
    fitted.save(place)
    assert model.load(place).certificate_ == fitted.certificate_
    head, arrays = read_model(place, kind=model.__name__)
    cheap = Certificate.of(
        PureDP(0.1, fitted.certificate_.relation), delta=fitted.certificate_.delta, learner="cheap"
    ).to_json()
    # Loss and epsilon agree with one another, and with nothing else.
    claimed = {name: cheap[name] for name in ("loss", "epsilon")}
    head["certificate"] = {**head["certificate"], **claimed}
    write_model(place, kind=model.__name__, head=head, arrays=arrays)
    with pytest.raises(SchemaError, match="its plan costs"):
        model.load(place)
