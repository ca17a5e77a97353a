"""No cell is a warning or an error, models come back whole, and units are those of the ledger.

Findings of a second adversary, one test each.
"""

import json
import warnings

import numpy as np
import pandas as pd
import pytest

from discreet.certificate import Certificate
from discreet.errors import InvalidValue, SchemaError
from discreet.learn import (
    PrivateCategoricalNB,
    PrivateGaussianNB,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateMLPClassifier,
)
from discreet.learn._intake import as_numbers, label_codes, targets_of
from discreet.learn.projected_sgd import PrivateProjectedSGDClassifier, PrivateProjectedSGDRegressor
from discreet.ledger import Ledger

ROWS = 40
X = np.random.default_rng(0).uniform(0.0, 1.0, (ROWS, 2))
Y = (X[:, 0] > 0.5).astype(np.int64)
CLASSES = {"classes": [0, 1], "insecure_seed": 1}
BOUNDED = {"bounds": (0.0, 1.0), "expected_rows": ROWS, "max_iter": 2}


def logistic(**more):
    return PrivateLogisticRegression(**{**CLASSES, **BOUNDED, **more})


def network(**more):
    return PrivateMLPClassifier(
        **{**CLASSES, **BOUNDED, "hidden_layer_sizes": np.array([3]), **more}
    )


def projected():
    return PrivateProjectedSGDClassifier(feature_norm=2.0, steps=20, **CLASSES)


MODELS = {
    "logistic": logistic,
    "network": network,
    "gaussian": lambda: PrivateGaussianNB(bounds=(0.0, 1.0), **CLASSES),
    "categorical": lambda: PrivateCategoricalNB(categories=[1, 2], **CLASSES),
    "projected": projected,
}
REGRESSORS = {
    "linear": lambda: PrivateLinearRegression(target_bounds=(0, 1), insecure_seed=1, **BOUNDED),
    "projected": lambda: PrivateProjectedSGDRegressor(
        target_bounds=(0, 0.5), feature_norm=2.0, steps=20, insecure_seed=1
    ),
}


class Unwilling:
    def __float__(self):
        raise OverflowError

    def __lt__(self, other):
        raise RuntimeError("a record that wants to be noticed")

    def __hash__(self):
        raise RuntimeError("likewise")


class Unequal:
    def __hash__(self):
        return hash(1)

    def __eq__(self, other):
        raise RuntimeError("likewise")


class Loud:
    def __float__(self):
        warnings.warn("a record that wants to be noticed", stacklevel=1)
        return 1.0


def test_a_label_in_a_list_of_its_own_changes_no_other():
    column = [[int(label)] for label in Y]
    mixed = [*column[:-1], int(Y[-1])]
    odd = [*column[:-1], [0, 1]]
    expected = Y.tolist()
    assert label_codes(targets_of(column, X), np.array([0, 1])).tolist() == expected
    assert label_codes(targets_of(mixed, X), np.array([0, 1])).tolist() == expected
    found = label_codes(targets_of(odd, X), np.array([0, 1])).tolist()
    assert found == [*expected[:-1], -1]


@pytest.mark.parametrize(
    "cell", [Unwilling(), Unequal(), Loud(), np.ma.masked, np.complex128(3 + 4j), 3 + 4j]
)
def test_cells_that_want_to_be_noticed_are_not(cell):
    """Warnings are errors in these tests, so a warning would be noticed too."""
    table, labels = X.astype(object), Y.astype(object)
    table[3, 1] = labels[3] = cell
    logistic().fit(table, labels)
    REGRESSORS["projected"]().fit(table, labels)
    numbers = as_numbers(table[:, 1])
    assert np.array_equal(np.delete(numbers, 3), np.delete(X[:, 1], 3))
    codes = label_codes(labels, np.array([0, 1]))
    assert np.array_equal(np.delete(codes, 3), np.delete(Y, 3))


@pytest.mark.parametrize("make", REGRESSORS.values(), ids=REGRESSORS)
@pytest.mark.parametrize("value", [1e308, -np.inf, np.finfo(float).max])
def test_huge_targets_warn_of_nothing(make, value):
    targets = Y.astype(np.float64)
    targets[3] = value
    make().fit(X, targets)
    long = targets.astype(np.longdouble)
    long[3] = np.longdouble("1e4000")
    assert np.isfinite(make().fit(X, long).predict(X)).all()


def test_complex_targets_are_refused_and_not_shown():
    with pytest.raises(InvalidValue, match="complex") as raised:
        logistic().fit(X, Y + 31337j)
    assert "31337" not in str(raised.value)


@pytest.mark.parametrize("bounds", [(-1e-300, 1e-300), (-8e307, 8e307), (0.0, 5e-324)])
def test_bounds_whose_squares_are_no_numbers_are_refused(bounds):
    for model in (PrivateGaussianNB(bounds=bounds, **CLASSES), logistic(bounds=bounds)):
        with pytest.raises(InvalidValue, match="bounds"):
            model.fit(X, Y)
    with pytest.raises(InvalidValue, match="target_bounds"):
        REGRESSORS["linear"]().set_params(target_bounds=bounds).fit(X, Y)
    with pytest.raises(InvalidValue, match="step_size"):
        network(step_size=1e30).fit(X, Y)


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_models_come_back_whole(make, tmp_path):
    frame = pd.DataFrame(X, columns=["age", "height"])
    model = make().fit(frame, Y)
    model.save(tmp_path / "model.npz")
    loaded = type(model).load(tmp_path / "model.npz")
    public = {name for name in vars(model) if name.endswith("_")}
    assert public == {name for name in vars(loaded) if name.endswith("_")}
    assert loaded.feature_names_in_.tolist() == ["age", "height"]
    assert getattr(loaded, "plan_", None) == getattr(model, "plan_", None)
    assert np.array_equal(loaded.predict(frame), model.predict(frame))
    with pytest.raises(ValueError, match="feature names"):
        loaded.predict(frame[["height", "age"]])


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


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_the_ledger_must_speak_of_what_a_row_is(make, tmp_path):
    relation = "replace" if make is projected else "add_remove"
    with Ledger.create(tmp_path / "study.ledger") as book:
        for unit in ("record", "patient"):
            book.create_dataset(f"{unit}s", epsilon=5, delta="1e-3", unit=unit, relation=relation)
        with pytest.raises(InvalidValue, match="its budget is for one patient"):
            make().fit(X, Y, ledger=book, dataset="patients")
        assert book.history("patients") == []
        promised = make().fit(X, Y, ledger=book, dataset="patients", unit="patient")
        assert promised.certificate_.plan["unit"] == "patient"
        plain = make().fit(X, Y, ledger=book, dataset="records")
        assert plain.certificate_.plan["unit"] == "row"
        with pytest.raises(InvalidValue, match="unit"):
            make().fit(X, Y, ledger=book, dataset="records", unit=" ")


def test_persons_are_not_rows_of_a_ledger(tmp_path):
    owners = np.arange(ROWS) // 2
    with Ledger.create(tmp_path / "study.ledger") as book:
        book.create_dataset("records", epsilon=5, delta="1e-3")
        book.create_dataset("people", epsilon=5, delta="1e-3", unit="person")
        with pytest.raises(InvalidValue, match="speaks of one person"):
            network().fit(X, Y, persons=owners, ledger=book, dataset="records")
        model = network(rows_per_person=2)
        model.fit(X, Y, persons=owners, ledger=book, dataset="people")
    assert model.certificate_.plan["unit"] == model.plan_.training.unit == "person"


def test_under_replace_a_network_takes_the_number_of_rows_only():
    with pytest.raises(
        InvalidValue, match=f"expected_rows = 30: expected the number of rows, {ROWS}"
    ):
        network(relation="replace", expected_rows=30).fit(X, Y)
    assert network(relation="replace", expected_rows=None).fit(X, Y).plan_.training.examples == ROWS
