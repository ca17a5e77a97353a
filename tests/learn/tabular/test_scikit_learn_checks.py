"""scikit-learn's own estimator checks, with the few that differential privacy forbids.

The checks make up targets and hand them to ``fit``; the subclasses here declare the labels or the
range of that public data, as a user would declare those of theirs.
"""

# ruff: noqa: N803 (scikit-learn calls the features X)

import warnings

import numpy as np
import pytest
from sklearn.utils.estimator_checks import check_estimator

from discreet.learn.tabular.linear import PrivateLinearRegression, PrivateLogisticRegression
from discreet.learn.tabular.mlp import PrivateMLPClassifier, PrivateMLPRegressor

FORBIDDEN = {
    "check_classifiers_regression_target": "a label that was not declared counts for nothing; an "
    "error would tell that some record has one",
    "check_supervised_y_no_nan": "the same for targets that are NaN or infinite",
    "check_dtype_object": "a cell that is no number is NaN; an error would tell of a record",
    "check_estimators_empty_data_messages": "under add_remove the number of rows is private, "
    "and no rows are data like any other",
}
FOR_CLASSES = set(FORBIDDEN)
FOR_NUMBERS = set(FORBIDDEN) - {"check_classifiers_regression_target"}
NOT_RUN = {"check_array_api_input"}  # SCIPY_ARRAY_API is not set


class DeclaringClasses:
    def _declare(self):
        if self.classes is not None:
            return super()._declare()
        self.classes_ = self._declared_by_the_test
        return None

    def fit(self, X, y, **keywords):
        values = np.asarray([0, 1] if y is None else y)
        usual = values.dtype.kind in "biuU" or values.dtype == object
        if values.dtype.kind == "f":
            usual = bool(np.all(np.isfinite(values)))
        labels = np.unique(values) if usual and values.size else np.array([0, 1])
        if labels.size == 1:
            only = labels[0]
            labels = np.array([only, f"not {only}" if labels.dtype.kind == "U" else only + 1])
        self._declared_by_the_test = labels
        return super().fit(X, y, **keywords)


class DeclaringBounds:
    def _declare(self):
        if self.target_bounds is not None:
            return super()._declare()
        self._ends = self._declared_by_the_test
        return None

    def fit(self, X, y, **keywords):
        values = np.asarray([0.0, 1.0] if y is None else y, dtype=object).ravel()
        found = [float(v) for v in values if not isinstance(v, complex) and np.isfinite(float(v))]
        numbers = np.array(found or [0.0, 1.0])
        self._declared_by_the_test = (float(numbers.min()) - 0.1, float(numbers.max()) + 0.1)
        return super().fit(X, y, **keywords)


class DeclaringLogistic(DeclaringClasses, PrivateLogisticRegression):
    pass


class DeclaringLinear(DeclaringBounds, PrivateLinearRegression):
    pass


class DeclaringMLPClassifier(DeclaringClasses, PrivateMLPClassifier):
    pass


class DeclaringMLPRegressor(DeclaringBounds, PrivateMLPRegressor):
    pass


LINEAR = {"epsilon": 1e4, "bounds": (-10.0, 10.0), "expected_rows": 100, "insecure_seed": 0}
NETWORK = {**LINEAR, "bounds": (-3.0, 3.0), "hidden_layer_sizes": (8,)}
NETWORK |= {"step_size": 20.0, "expected_rows": 200}


@pytest.mark.parametrize(
    ("estimator", "forbidden"),
    [
        (DeclaringLogistic(**LINEAR), FOR_CLASSES),
        (DeclaringLinear(**LINEAR), FOR_NUMBERS),
        # A third less would still do for the checks that ask for a good fit.
        (DeclaringMLPClassifier(**NETWORK, max_iter=15), FOR_CLASSES),
        (DeclaringMLPRegressor(**NETWORK, max_iter=30), FOR_NUMBERS),
    ],
    ids=lambda value: type(value).__name__,
)
def test_all_checks_pass_but_those_that_privacy_forbids(estimator, forbidden):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the checks provoke warnings of scikit-learn's own
        results = check_estimator(estimator, on_skip=None, on_fail=None)
    failed = {row["check_name"]: row["exception"] for row in results if row["status"] == "failed"}
    passed = {row["check_name"] for row in results if row["status"] == "passed"}
    skipped = {row["check_name"] for row in results if row["status"] == "skipped"}
    assert set(failed) == forbidden, failed
    assert skipped <= NOT_RUN
    assert len(passed) >= 40
    assert all(FORBIDDEN.values())
