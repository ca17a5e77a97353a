"""One odd cell in a plain list changes its own record only (finding of an adversary)."""

from __future__ import annotations

import numpy as np
import pytest

from discreet.learn import PrivateCategoricalNB, PrivateGaussianNB, PrivateLogisticRegression

X = [[1.0, 2.0], [2.0, 1.0]] * 300
LABELS = [0, 1] * 300


@pytest.mark.parametrize("odd", ["x", b"x", float("nan"), None, 2**60, True])
@pytest.mark.parametrize("make", [list, tuple])
def test_counts_of_naive_bayes(odd, make) -> None:
    model = PrivateGaussianNB(epsilon=1e3, classes=[0, 1], bounds=(0.0, 3.0), insecure_seed=1)
    model.fit(X, make([*LABELS[:-1], odd]))
    assert model.class_count_[0] == pytest.approx(300, abs=5)
    assert model.class_count_[1] == pytest.approx(299, abs=5)


def test_large_labels_are_not_rounded_by_one_that_is_not_a_number() -> None:
    classes = [2**53, 2**53 + 1]
    labels = [classes[label] for label in LABELS]
    model = PrivateGaussianNB(epsilon=1e3, classes=classes, bounds=(0.0, 3.0), insecure_seed=1)
    model.fit(X, [*labels[:-1], float("nan")])
    assert model.class_count_ == pytest.approx([300, 299], abs=5)


def test_cells_of_categorical_naive_bayes() -> None:
    rows = [[1, 2], [2, 1]] * 300

    def fitted(table):
        return PrivateCategoricalNB(
            epsilon=1e3, classes=[0, 1], categories=[[1, 2], [1, 2]], insecure_seed=1
        ).fit(table, LABELS)

    clean, odd = fitted(rows), fitted([*rows[:-1], ["x", 1]])
    for one, other in zip(clean.feature_log_prob_, odd.feature_log_prob_, strict=True):
        assert np.exp(one) == pytest.approx(np.exp(other), abs=0.05)


def test_logistic_regression_still_learns() -> None:
    model = PrivateLogisticRegression(
        epsilon=100, classes=[0, 1], bounds=(0.0, 3.0), expected_rows=600, insecure_seed=1
    )
    model.fit(X, [*LABELS[:-1], "x"])
    assert np.mean(np.asarray(model.predict(X)) == np.asarray(LABELS)) > 0.95
