"""scikit-learn's own estimator checks, with the few that differential privacy forbids.

The checks make up labels and hand them to ``fit``; the subclass here declares the labels of
that public data, as a user would declare those of theirs. Calibration is tested elsewhere and
is replaced by a fixed multiplier, because every check has another number of rows.
"""

# ruff: noqa: N803 (scikit-learn calls the features X)

import warnings

import numpy as np
import pytest
from sklearn.utils.estimator_checks import check_estimator

from discreet.certificate import _certificate as certificate
from discreet.learn.declared import declared_classes
from discreet.learn.projected_sgd import (
    PrivateProjectedSGDClassifier,
    PrivateProjectedSGDRegressor,
    plan,
)

NAN_TARGETS = "a target that is no number counts for nothing; an error would tell of a record"
NO_NUMBERS = "a cell that is no number is NaN; an error would tell of a record"
FORBIDDEN = {
    "classifier": {
        "check_dtype_object": NO_NUMBERS,
        "check_classifiers_regression_target": "a label that was not declared counts for nothing",
        "check_supervised_y_no_nan": NAN_TARGETS,
    },
    "regressor": {"check_dtype_object": NO_NUMBERS, "check_supervised_y_no_nan": NAN_TARGETS},
}
NOT_RUN = {"check_array_api_input"}  # SCIPY_ARRAY_API is not set


class DeclaringClassifier(PrivateProjectedSGDClassifier):
    def fit(self, X, y, **keywords):
        values = np.asarray([0, 1] if y is None else y)
        usual = values.dtype.kind in "biuU" or values.dtype == object
        if values.dtype.kind == "f":
            usual = bool(np.all(np.isfinite(values)))
        labels = np.unique(values) if usual and values.size else np.array([0, 1])
        if labels.size > 2 and values.dtype.kind == "f" and np.any(values % 1):
            labels = np.array([0, 1])  # a continuous target has no labels to declare
        if labels.size == 1:
            other = f"not {labels[0]}" if labels.dtype.kind == "U" else labels[0] + 1
            labels = np.array([labels[0], other])
        self._declared_by_the_test = labels
        return super().fit(X, y, **keywords)

    def _declare(self):
        self.classes_ = declared_classes(self._declared_by_the_test, binary=True)


@pytest.mark.parametrize(
    ("kind", "estimator"),
    [
        (
            "classifier",
            DeclaringClassifier(feature_norm=4.0, insecure_seed=0, engine="compiled"),
        ),
        (
            "regressor",
            PrivateProjectedSGDRegressor(
                target_bounds=(-4.0, 4.0), feature_norm=6.0, insecure_seed=0, engine="compiled"
            ),
        ),
    ],
    ids=["classifier", "regressor"],
)
def test_all_checks_pass_but_those_that_privacy_forbids(kind, estimator, monkeypatch):
    monkeypatch.setattr(plan, "_least_noise", lambda *numbers: 0.1)
    monkeypatch.setattr(certificate, "_reading", lambda loss, delta: 100.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the checks provoke warnings of scikit-learn's own
        results = check_estimator(estimator, on_skip=None, on_fail=None)
    failed = {row["check_name"]: row["exception"] for row in results if row["status"] == "failed"}
    passed = {row["check_name"] for row in results if row["status"] == "passed"}
    skipped = {row["check_name"] for row in results if row["status"] == "skipped"}
    assert set(failed) == set(FORBIDDEN[kind]), failed
    assert skipped <= NOT_RUN
    assert len(passed) >= 40
