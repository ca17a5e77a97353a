"""What every private estimator promises, whatever it learns; one test for all kinds.

Public mistakes are found before the charge, no record raises an error, no certificate outlives its
model, models come back whole, and units are those of the ledger.
"""

import math

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from discreet.certificate import Certificate
from discreet.errors import DiscreetError, InvalidValue, SchemaError
from discreet.learn import (
    PrivateAdditiveClassifier,
    PrivateAdditiveRegressor,
    PrivateCategoricalNB,
    PrivateDecisionTree,
    PrivateEstimator,
    PrivateGaussianNB,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateMLPClassifier,
    PrivateMLPRegressor,
    PrivateRandomForest,
    load_model,
)
from discreet.learn._model_file import read_model, write_model
from discreet.learn.projected_sgd import (
    L2Ball,
    PrivateProjectedSGDClassifier,
    PrivateProjectedSGDRegressor,
)
from discreet.ledger import Ledger
from discreet.privacy import PureDP

ROWS = 40
X = np.random.default_rng(0).uniform(0.0, 1.0, (ROWS, 2))
LABELS = np.where(X[:, 0] > 0.5, "yes", "no")
NUMBERS = X[:, 0] + X[:, 1]

WORDS = {"classes": ["no", "yes"]}
ENDS = {"target_bounds": (0.0, 2.0)}
BOUNDED = {"bounds": (0.0, 1.0), "expected_rows": ROWS, "max_iter": 2}
NETWORK = {**BOUNDED, "hidden_layer_sizes": np.array([3])}
SHORT = {"feature_norm": 2.0, "steps": 20}
SHAPES = {"bounds": (0.0, 1.0), "expected_rows": ROWS}
KINDS = {
    "additive": (PrivateAdditiveClassifier, {**WORDS, **SHAPES}),
    "additive numbers": (PrivateAdditiveRegressor, {**ENDS, **SHAPES}),
    "logistic": (PrivateLogisticRegression, {**WORDS, **BOUNDED}),
    "linear": (PrivateLinearRegression, {**ENDS, **BOUNDED}),
    "network": (PrivateMLPClassifier, {**WORDS, **NETWORK}),
    "network of numbers": (PrivateMLPRegressor, {**ENDS, **NETWORK}),
    "categorical": (PrivateCategoricalNB, {**WORDS, "categories": [1, 2]}),
    "gaussian": (PrivateGaussianNB, {**WORDS, "bounds": (0.0, 1.0)}),
    "tree": (PrivateDecisionTree, {**WORDS, **SHAPES}),
    "forest": (PrivateRandomForest, {**WORDS, **SHAPES}),
    "projected": (PrivateProjectedSGDClassifier, {**WORDS, **SHORT}),
    "projected numbers": (PrivateProjectedSGDRegressor, {**ENDS, **SHORT}),
}
EVERY = pytest.mark.parametrize("name", KINDS)


def make(name, **changes):
    kind, usual = KINDS[name]
    return kind(**{"insecure_seed": 1, **usual, **changes})


def targets(name):
    return NUMBERS if "target_bounds" in KINDS[name][1] else LABELS


def dataset(name):
    return "changes" if "projected" in name else "rows"


@pytest.fixture
def book(tmp_path):
    with Ledger.create(tmp_path / "study.ledger") as ledger:
        for name, relation in (("rows", "add_remove"), ("changes", "replace")):
            ledger.create_dataset(name, epsilon=30, delta="1e-3", unit="row", relation=relation)
        yield ledger


# --- before the charge --------------------------------------------------------------------

COMMON = {"epsilon": [-1.0, 0.0, math.nan], "insecure_seed": ["x", 1.5]}
CLASSES = {"classes": [None, ["yes"], ["yes", "yes"], ["yes", 1], "no"]}
TARGET = {"target_bounds": [None, (1.0, 1.0), (0.0, math.inf), "ab", (2.0,), np.array(3)]}
BOUNDS = {"bounds": [None, (1.0, 1.0), (0.0, math.inf), (-1.7e308, 1.7e308), np.array(3)]}
SCALED = {
    **BOUNDS,
    "delta": [0.0],
    "expected_rows": [None, 0, 10**400],
    "feature_norm": [-2.0],
    "max_iter": [0, 10**400],
    "relation": ["edit"],
    "rows_per_person": [0, 10**400],
}
SHAPED = {name: SCALED[name] for name in SCALED if name not in ("feature_norm", "max_iter")}
SHAPED = {**SHAPED, "max_bins": [0, "many"], "cuts": ["best", 3], "monotone": [{"age": 1}, 1]}
GROWN = {name: SCALED[name] for name in ("bounds", "expected_rows", "relation", "rows_per_person")}
GROWN |= {"depth": [-1, 11, "deep"], "categories": [3, [0], [0, -1], [0, 10**6]]}
DESCENT = {"clip_ratio": [1e-320], "total_step_size": [0.0]}
LAYERS = {"hidden_layer_sizes": [(), (0,), "big", (1, 2, 3, 4, 5), 10**400]}
COUNTED = {"delta": [1.0], "relation": ["swap"]}
STEPPED = {
    "delta": [0.0],
    "feature_norm": [0.0, math.nan],
    "fit_intercept": ["yes", np.array([1, 2])],
    "projection": ["ball"],
    "clip_norm": [0.0, 1e-318],
    "lipschitz": [-1.0, 1e-295],
    "steps": [0],
    "calibration": ["none"],
    "output": ["first"],
}
BAD = {
    "additive": {**COMMON, **CLASSES, **SHAPED},
    "additive numbers": {**COMMON, **TARGET, **SHAPED},
    "logistic": {**COMMON, **CLASSES, **SCALED, **DESCENT},
    "linear": {**COMMON, **TARGET, **SCALED, **DESCENT},
    "network": {**COMMON, **CLASSES, **SCALED, **LAYERS},
    "network of numbers": {**COMMON, **TARGET, **SCALED, **LAYERS},
    "categorical": {
        **COMMON,
        **CLASSES,
        **COUNTED,
        "categories": [None, 0, 0.5, [3, 4, 5], "abc", [3, ["x", "x"]], 10**400, np.array(3)],
        "alpha": [-1.0],
    },
    "gaussian": {**COMMON, **CLASSES, **COUNTED, **BOUNDS, "var_smoothing": [0.0]},
    "tree": {**COMMON, **CLASSES, **GROWN},
    "forest": {**COMMON, **CLASSES, **GROWN, "trees": [0, 1001, "many"]},
    "projected": {**COMMON, **CLASSES, **STEPPED, "loss": ["squared"]},
    "projected numbers": {**COMMON, **TARGET, **STEPPED, "loss": ["hinge"], "threshold": [0.0]},
}


@EVERY
def test_bad_parameters_are_named_and_not_charged(name, book):
    for argument, values in BAD[name].items():
        for value in values:
            with pytest.raises(InvalidValue) as caught:
                make(name, **{argument: value}).fit(
                    X, targets(name), ledger=book, dataset=dataset(name)
                )
            assert caught.value.argument == argument, (argument, value)
    assert book.history(dataset(name)) == []


def test_absurd_parameters_that_hide_behind_others_are_refused(book):
    for model in (
        make("gaussian", epsilon=1e-320),
        make("projected", classes=["a", "b", "c"]),
        make("projected", clip_norm=1.0, lipschitz=1.0),
        make("projected numbers", projection=L2Ball(1e-200)),
    ):
        name = "changes" if "Projected" in type(model).__name__ else "rows"
        y = NUMBERS if hasattr(model, "target_bounds") else LABELS
        with pytest.raises(InvalidValue):
            model.fit(X, y, ledger=book, dataset=name)
        assert book.history(name) == []


@EVERY
def test_bad_shapes_are_not_charged(name, book):
    for table, answers in ((X[:5], targets(name)), (X[0], targets(name)), (X, None), (X, X)):
        with pytest.raises(ValueError, match=r"."):
            make(name).fit(table, answers, ledger=book, dataset=dataset(name))
    with pytest.raises(InvalidValue, match="dataset"):
        make(name).fit(X, targets(name), ledger=book)
    with pytest.raises(InvalidValue, match="ledger"):
        make(name).fit(X, targets(name), dataset=dataset(name))
    with pytest.raises(InvalidValue, match="ledger"):
        make(name).fit(X, targets(name), ledger="book", dataset=dataset(name))
    assert book.history(dataset(name)) == []


@EVERY
def test_the_loss_is_known_before_the_data(name, book):
    model = make(name)
    planned = model.planned_loss(features=2, rows=ROWS)
    assert planned == model.rehearse(X, targets(name)).loss
    model.fit(X, targets(name), ledger=book, dataset=dataset(name))
    assert model.certificate_.loss == model.plan_.loss == planned
    assert 0.99 < model.certificate_.epsilon <= 1.0
    assert "INSECURE" in model.certificate_.randomness["randomness"]
    assert model.certificate_.receipt["entry"]["dataset"] == dataset(name)
    (row,) = book.history(dataset(name))
    assert row.outcome == "completed"


# --- whatever is in the records -----------------------------------------------------------


@EVERY
def test_targets_that_are_none_of_the_declared_ones_count_for_nothing(name):
    """Their features may be anything: they leave no trace (but in noisy moments, switched off).

    Additive models count them in bins and moments whatever their labels are.
    """
    quiet = {"moment_share": 0.0} if name in ("logistic", "linear") else {}
    odd = targets(name).astype(object)
    odd[::5] = None if targets(name) is NUMBERS else "perhaps"
    other, moved = odd.copy(), X.copy()
    other[::5] = "maybe"
    if "additive" not in name:
        moved[::5] = 1.0 - moved[::5]
    tables = ((X, odd), (moved, other))
    one, two = (make(name, **quiet).fit(table, labels) for table, labels in tables)
    assert np.array_equal(one.predict(X), two.predict(X))
    all_of_them = make(name).fit(X, np.full(ROWS, odd[0], dtype=object))
    assert all_of_them.predict(X).shape == (ROWS,)


# --- certificates -------------------------------------------------------------------------


class Unwritten(Exception):
    """Stands for whatever keeps a run from ending well after its model was set."""


def broken_certificate(*_, **__):
    raise Unwritten


@EVERY
def test_a_certificate_does_not_outlive_its_model(monkeypatch, tmp_path, name):
    fitted = make(name, epsilon=0.1).fit(X, targets(name))
    assert fitted.certificate_.epsilon <= 0.1
    monkeypatch.setattr(Certificate, "of", broken_certificate)
    with pytest.raises(Unwritten):
        fitted.set_params(epsilon=5.0).fit(X, targets(name))
    # The weights cost 5 by now: a certificate of 0.1 beside them would be a lie.
    assert not hasattr(fitted, "certificate_")
    for ask in (lambda: fitted.save(tmp_path / "model.npz"), lambda: fitted.predict(X)):
        with pytest.raises(ValueError, match="not fitted"):
            ask()


@EVERY
def test_a_refused_charge_keeps_the_model_whole(book, name):
    """Before, a table of another width had changed the number of features all the same."""
    fitted = make(name).fit(X, targets(name))
    before = {key: value for key, value in vars(fitted).items() if key.endswith("_")}
    other = {"categories": [1, 2, 3]} if name == "categorical" else {}
    wider = np.column_stack([X, X[:, 0]])
    with pytest.raises(DiscreetError, match="budget"):
        fitted.set_params(epsilon=100.0, **other).fit(
            wider, targets(name), ledger=book, dataset=dataset(name)
        )
    assert all(vars(fitted)[key] is value for key, value in before.items())
    assert fitted.predict(X).shape == (ROWS,)


@EVERY
def test_a_certificate_covers_the_plan_of_its_model(tmp_path, name):
    place = tmp_path / "model.npz"
    fitted = make(name, epsilon=2.0).fit(X, targets(name))
    fitted.save(place)
    kind = KINDS[name][0].__name__
    head, arrays = read_model(place, kind=kind)
    certificate = fitted.certificate_
    cheap = Certificate.of(
        PureDP(0.1, certificate.relation), delta=certificate.delta, learner="cheap"
    ).to_json()
    # Loss and epsilon agree with one another, and with nothing else.
    claimed = {key: cheap[key] for key in ("loss", "epsilon")}
    head["certificate"] = {**head["certificate"], **claimed}
    write_model(place, kind=kind, head=head, arrays=arrays)
    with pytest.raises(SchemaError, match="its plan costs"):
        load_model(place)


@EVERY
def test_the_ledger_must_speak_of_what_a_row_is(name, tmp_path):
    relation = "replace" if "projected" in name else "add_remove"
    y = targets(name)
    with Ledger.create(tmp_path / "units.ledger") as book:
        for unit in ("record", "patient"):
            book.create_dataset(f"{unit}s", epsilon=5, delta="1e-3", unit=unit, relation=relation)
        with pytest.raises(InvalidValue, match="its budget is for one patient"):
            make(name).fit(X, y, ledger=book, dataset="patients")
        assert book.history("patients") == []
        promised = make(name).fit(X, y, ledger=book, dataset="patients", unit="patient")
        assert promised.certificate_.plan["unit"] == promised.certificate_.unit == "patient"
        plain = make(name).fit(X, y, ledger=book, dataset="records")
        assert plain.certificate_.plan["unit"] == "row"
        with pytest.raises(InvalidValue, match="unit"):
            make(name).fit(X, y, ledger=book, dataset="records", unit=" ")


# --- scikit-learn and files ---------------------------------------------------------------


@EVERY
def test_models_come_back_whole(name, tmp_path):
    frame = pd.DataFrame(X, columns=["age", "height"])
    model = make(name).fit(frame, targets(name))
    model.save(tmp_path / "model.npz")
    with np.load(tmp_path / "model.npz", allow_pickle=False) as file:
        assert all(file[part].dtype != object for part in file.files)
    for loaded in (load_model(tmp_path / "model.npz"), type(model).load(tmp_path / "model.npz")):
        assert type(loaded) is type(model)
        assert loaded.certificate_ == model.certificate_
        public = {key for key in vars(model) if key.endswith("_")}
        assert public == {key for key in vars(loaded) if key.endswith("_")}
        assert loaded.feature_names_in_.tolist() == ["age", "height"]
        assert loaded.plan_ == model.plan_
        assert np.array_equal(loaded.predict(frame), model.predict(frame))
        with pytest.raises(ValueError, match="feature names"):
            loaded.predict(frame[["height", "age"]])
    loaded.save(tmp_path / "copy.npz")
    assert load_model(tmp_path / "copy.npz").certificate_ == model.certificate_
    other = PrivateGaussianNB if name != "gaussian" else PrivateLinearRegression
    with pytest.raises(SchemaError, match=f"not a {other.__name__}"):
        other.load(tmp_path / "model.npz")


@EVERY
def test_clones_and_pipelines(name):
    model = make(name)
    same = clone(model).get_params()
    assert all(np.array_equal(same[key], value) for key, value in model.get_params().items())
    line = make_pipeline(FunctionTransformer(), model).fit(X, targets(name))
    assert line.predict(X).shape == (ROWS,)
    assert isinstance(model, PrivateEstimator)
