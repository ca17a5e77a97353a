"""Odd cells: none is an error or a warning, and each changes its own record only."""

import warnings

import numpy as np
import pytest

from discreet.errors import InvalidValue
from discreet.learn import (
    PrivateCategoricalNB,
    PrivateGaussianNB,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateMLPClassifier,
)
from discreet.learn._intake import as_numbers, label_codes, targets_of
from discreet.learn.projected_sgd import PrivateProjectedSGDClassifier, PrivateProjectedSGDRegressor

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


def test_what_is_masked_is_missing():
    table, labels = X.copy(), Y.astype(object)
    labels[2] = None
    hidden = np.ma.array(table, mask=table > 0.9)
    shown = np.where(table > 0.9, np.nan, table)
    answers = np.ma.array(Y, mask=np.arange(ROWS) == 2)
    for make in (
        logistic,
        lambda: PrivateGaussianNB(bounds=(0.0, 1.0), **CLASSES),
        lambda: PrivateProjectedSGDClassifier(steps=10, **CLASSES),
    ):
        one = make().fit(hidden, answers)
        two = make().fit(shown, labels)
        np.testing.assert_array_equal(one.predict_proba(shown), two.predict_proba(shown))


LISTED = [[1.0, 2.0], [2.0, 1.0]] * 300
LISTED_LABELS = [0, 1] * 300


@pytest.mark.parametrize("odd", ["x", b"x", float("nan"), None, 2**60, True])
@pytest.mark.parametrize("make", [list, tuple])
def test_counts_of_naive_bayes(odd, make) -> None:
    model = PrivateGaussianNB(epsilon=1e3, classes=[0, 1], bounds=(0.0, 3.0), insecure_seed=1)
    model.fit(LISTED, make([*LISTED_LABELS[:-1], odd]))
    assert model.class_count_[0] == pytest.approx(300, abs=5)
    assert model.class_count_[1] == pytest.approx(299, abs=5)


def test_large_labels_are_not_rounded_by_one_that_is_not_a_number() -> None:
    classes = [2**53, 2**53 + 1]
    labels = [classes[label] for label in LISTED_LABELS]
    model = PrivateGaussianNB(epsilon=1e3, classes=classes, bounds=(0.0, 3.0), insecure_seed=1)
    model.fit(LISTED, [*labels[:-1], float("nan")])
    assert model.class_count_ == pytest.approx([300, 299], abs=5)


def test_cells_of_categorical_naive_bayes() -> None:
    rows = [[1, 2], [2, 1]] * 300

    def fitted(table):
        return PrivateCategoricalNB(
            epsilon=1e3, classes=[0, 1], categories=[[1, 2], [1, 2]], insecure_seed=1
        ).fit(table, LISTED_LABELS)

    clean, odd = fitted(rows), fitted([*rows[:-1], ["x", 1]])
    for one, other in zip(clean.feature_log_prob_, odd.feature_log_prob_, strict=True):
        assert np.exp(one) == pytest.approx(np.exp(other), abs=0.05)


def test_logistic_regression_still_learns() -> None:
    model = PrivateLogisticRegression(
        epsilon=100, classes=[0, 1], bounds=(0.0, 3.0), expected_rows=600, insecure_seed=1
    )
    model.fit(LISTED, [*LISTED_LABELS[:-1], "x"])
    assert np.mean(np.asarray(model.predict(LISTED)) == np.asarray(LISTED_LABELS)) > 0.95
