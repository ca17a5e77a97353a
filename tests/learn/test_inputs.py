"""Features and targets by their form: no cell is an error, and no error shows a cell or a count."""

import warnings

import numpy as np
import pytest

from discreet.data import Real, Schema, read_table
from discreet.errors import InvalidValue
from discreet.learn import PrivateCategoricalNB, PrivateGaussianNB, PrivateLogisticRegression
from discreet.learn._declared import Declared
from discreet.learn._intake import table_without_cells, targets_of
from discreet.learn.projected_sgd import PrivateProjectedSGDClassifier
from discreet.privacy import Relation

ROWS = 57
SECRET = 31337.25


class Unwilling:
    def __float__(self):
        raise RuntimeError("a record that wants to be noticed")


ODD = [
    "x",
    b"y",
    [1.0, 2.0],
    (1.0, 2.0),
    {"a": 1},
    None,
    np.array([1.0, 2.0]),
    Unwilling(),
    object(),
]


def table() -> np.ndarray:
    return np.random.default_rng(0).uniform(0, 3, size=(ROWS, 2))


LABELS = [0, 1, 1] * (ROWS // 3)
MODELS = {
    "logistic": lambda: PrivateLogisticRegression(
        classes=[0, 1], bounds=(0.0, 3.0), expected_rows=ROWS, max_iter=3, insecure_seed=1
    ),
    "gaussian": lambda: PrivateGaussianNB(classes=[0, 1], bounds=(0.0, 3.0), insecure_seed=1),
    "categorical": lambda: PrivateCategoricalNB(classes=[0, 1], categories=4, insecure_seed=1),
    "projected": lambda: PrivateProjectedSGDClassifier(
        classes=[0, 1], feature_norm=3.0, steps=20, insecure_seed=1
    ),
}


def learned(model):
    if hasattr(model, "feature_log_prob_"):
        return np.concatenate([part.ravel() for part in model.feature_log_prob_])
    return model.theta_ if hasattr(model, "theta_") else model.coef_


@pytest.mark.parametrize("name", MODELS)
def test_a_cell_that_is_no_number_is_nan_and_leaves_all_others_alone(name):
    numbers = table()
    numbers[5, 1] = np.nan
    expected = learned(MODELS[name]().fit(numbers, LABELS))
    for odd in ODD:
        cells = numbers.astype(object)
        cells[5, 1] = odd
        assert np.array_equal(learned(MODELS[name]().fit(cells, LABELS)), expected)
        listed = [list(row) for row in cells]
        assert np.array_equal(learned(MODELS[name]().fit(listed, LABELS)), expected)


def test_integers_beyond_doubles_are_infinite_and_texts_are_read():
    cells = np.array([[10**400, "2.5"], [-(10**400), b"1e3"]], dtype=object)
    model = MODELS["logistic"]()
    read = table_without_cells(model, Declared(Relation.ADD_REMOVE), cells)()
    assert read.tolist() == [[np.inf, 2.5], [-np.inf, 1000.0]]


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: type(odd).__name__)
def test_a_target_that_is_no_label_changes_its_own_row_only(odd):
    expected = learned(MODELS["gaussian"]().fit(table(), [*LABELS[:-1], "undeclared"]))
    assert np.array_equal(learned(MODELS["gaussian"]().fit(table(), [*LABELS[:-1], odd])), expected)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("features", "labels"),
    [
        (np.full(ROWS, SECRET), LABELS),
        (np.full((ROWS, 2, 2), SECRET), LABELS),
        ([[SECRET, 1.0]] * (ROWS - 1) + [[SECRET]], LABELS),
        (SECRET, LABELS),
        (np.full((ROWS, 2), SECRET), [SECRET] * (ROWS - 1)),
        (np.full((ROWS, 2), SECRET), np.full((ROWS, 2), SECRET)),
        (np.full((ROWS, 2), SECRET * 1j), LABELS),
        (np.full((ROWS, 2), np.datetime64("2020-01-01")), LABELS),
    ],
    ids=["1-D", "3-D", "ragged", "a number", "lengths", "2-D targets", "complex", "dates"],
)
def test_errors_show_neither_cells_nor_the_number_of_rows(name, features, labels):
    if name == "categorical" and np.asarray(labels).dtype.kind == "f":
        labels = np.asarray(labels)
    with pytest.raises((InvalidValue, TypeError)) as raised:
        MODELS[name]().fit(features, labels)
    said = str(raised.value)
    for told in ("31337", str(ROWS), str(ROWS - 1)):
        assert told not in said


def test_no_columns_are_an_error_that_hides_the_rows_where_they_are_private():
    empty = np.empty((ROWS, 0))
    with pytest.raises(InvalidValue, match=r"0 feature") as raised:
        MODELS["logistic"]().fit(empty, LABELS)
    assert str(ROWS) not in str(raised.value)
    with pytest.raises(InvalidValue, match=f"shape=\\({ROWS}, 0"):
        MODELS["projected"]().fit(empty, LABELS)


def test_matrices_for_tables_hide_their_rows_too():
    schema = Schema({"a": Real(0, 1), "b": Real(0, 1)})
    for data in (np.zeros((ROWS, 3)), np.zeros(ROWS)):
        with pytest.raises(InvalidValue) as raised:
            read_table(data, schema)
        assert str(ROWS) not in str(raised.value)


def test_a_column_of_targets_is_taken_with_scikit_learns_warning():
    features = table()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = targets_of(np.array([[label] for label in LABELS]), features)
    assert found.tolist() == LABELS
    assert [type(one.message).__name__ for one in caught] == ["DataConversionWarning"]
