"""scikit-learn's own estimator checks for every kind, with the few that privacy forbids.

The checks make up targets and hand them to ``fit``; the subclasses here declare the labels or the
range of that public data, as a user would declare those of theirs. ``_declared`` is the one place
where an estimator learns what was declared.
"""

# ruff: noqa: N803 (scikit-learn calls the features X)

import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator, clone
from sklearn.utils import check_array
from sklearn.utils.estimator_checks import check_estimator

from discreet import learn, pate, synth
from discreet.certificate import _certificate as certificate
from discreet.data import Real, Schema
from discreet.learn import (
    PrivateAdditiveClassifier,
    PrivateAdditiveRegressor,
    PrivateCategoricalNB,
    PrivateDecisionTree,
    PrivateGaussianNB,
    PrivateKMeans,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateMLPClassifier,
    PrivateMLPRegressor,
    PrivatePCA,
    PrivateRandomForest,
    projected_sgd,
)
from discreet.learn.projected_sgd import (
    PrivateProjectedSGDClassifier,
    PrivateProjectedSGDRegressor,
    _plan,
    _steps,
)
from discreet.pate import PATEClassifier
from discreet.synth import Synthesizer

UNDECLARED = {
    "check_classifiers_regression_target": "a label that was not declared counts for nothing; an "
    "error would tell that some record has one",
}
NO_NUMBERS = {
    "check_supervised_y_no_nan": "the same for targets that are NaN or infinite",
    "check_dtype_object": "a cell that is no number is NaN; an error would tell of a record",
}
ODD_CELLS = {
    "check_dtype_object": "a cell that is no number is in the middle of its bounds",
    "check_estimators_nan_inf": "the same for cells that are NaN or infinite",
}
MIDDLE = {"check_dtype_object": ODD_CELLS["check_dtype_object"]}
LABELS = {
    "check_clustering": "which centre is nearest to a training row is private, so no model has it; "
    "fit_predict returns it to whoever has the rows",
}
PRIVATE_COUNT = {
    "check_estimators_empty_data_messages": "under add_remove the number of rows is private, "
    "and no rows are data like any other",
}
ONE_RELEASE = {
    "check_fit_score_takes_y": "partial_fit after fit would be a second release, and is refused",
}
NOT_RUN = {"check_array_api_input"}  # SCIPY_ARRAY_API is not set


class DeclaringClasses:
    def fit(self, X, y=None, **keywords):
        values = np.asarray([0, 1] if y is None else y)
        usual = values.dtype.kind in "biuU" or values.dtype == object
        if values.dtype.kind == "f":
            usual = bool(np.all(np.isfinite(values)))
        labels = np.unique(values) if usual and values.size else np.array([0, 1])
        if self._only_two_classes and values.dtype.kind == "f" and np.any(values % 1):
            labels = np.array([0, 1])  # a continuous target has no labels to declare
        if labels.size == 1:
            only = labels[0]
            labels = np.array([only, f"not {only}" if labels.dtype.kind == "U" else only + 1])
        self._declared_by_the_test = labels
        return super().fit(X, y, **keywords)

    def _declared(self):
        if self.classes is not None or not hasattr(self, "_declared_by_the_test"):
            return super()._declared()
        return clone(self).set_params(classes=self._declared_by_the_test)._declared()


class DeclaringBounds:
    def fit(self, X, y=None, **keywords):
        values = np.asarray([0.0, 1.0] if y is None else y, dtype=object).ravel()
        found = [float(v) for v in values if not isinstance(v, complex) and np.isfinite(float(v))]
        numbers = np.array(found or [0.0, 1.0])
        self._declared_by_the_test = (float(numbers.min()) - 0.1, float(numbers.max()) + 0.1)
        return super().fit(X, y, **keywords)

    def _declared(self):
        if self.target_bounds is not None:
            return super()._declared()
        return clone(self).set_params(target_bounds=self._declared_by_the_test)._declared()


class DeclaringLogistic(DeclaringClasses, PrivateLogisticRegression):
    pass


class DeclaringLinear(DeclaringBounds, PrivateLinearRegression):
    pass


class DeclaringAdditiveClassifier(DeclaringClasses, PrivateAdditiveClassifier):
    pass


class DeclaringAdditiveRegressor(DeclaringBounds, PrivateAdditiveRegressor):
    pass


class DeclaringTree(DeclaringClasses, PrivateDecisionTree):
    pass


class DeclaringForest(DeclaringClasses, PrivateRandomForest):
    pass


class DeclaringMLPClassifier(DeclaringClasses, PrivateMLPClassifier):
    pass


class DeclaringMLPRegressor(DeclaringBounds, PrivateMLPRegressor):
    pass


class DeclaringGaussianNB(DeclaringClasses, PrivateGaussianNB):
    pass


class DeclaringCategoricalNB(DeclaringClasses, PrivateCategoricalNB):
    pass


class DeclaringProjected(DeclaringClasses, PrivateProjectedSGDClassifier):
    pass


class DeclaringPATE(DeclaringClasses, PATEClassifier):
    def fit(self, X, y=None, **keywords):
        # The rows that the checks make up are public.
        few = hasattr(X, "__len__") and len(X) < 2
        rows = np.vstack([X, X]) if few and np.ndim(X) == 2 else X
        return super().fit(X, y, public=rows, **keywords)


class DeclaringSynthesizer(Synthesizer):
    """The arrays that the checks make up, as a table with names and bounds."""

    def fit(self, X, y=None, **keywords):
        if sparse.issparse(X):
            raise TypeError("sparse data is not a table with names: use a dense one")
        rows = check_array(X, dtype=None, ensure_all_finite=False, ensure_min_samples=0)
        schema = Schema({f"c{k}": Real(-9.0, 9.0) for k in range(rows.shape[1])}, expected_rows=99)
        inner = Synthesizer(**{**self.get_params(), "schema": schema})
        inner.fit({f"c{k}": rows[:, k] for k in range(rows.shape[1])}, **keywords)
        self.plan_, self.model_, self.n_features_in_ = inner.plan_, inner.model_, rows.shape[1]
        return self


LINEAR = {"epsilon": 1e4, "bounds": (-10.0, 10.0), "expected_rows": 100, "insecure_seed": 0}
SHAPES = {**LINEAR, "epsilon": 200.0, "max_bins": 8}
LEAVES = {**LINEAR, "epsilon": 900.0, "depth": 4}
NETWORK = {**LINEAR, "bounds": (-3.0, 3.0), "hidden_layer_sizes": (8,)}
NETWORK |= {"step_size": 20.0, "expected_rows": 200}
COUNTS = {"epsilon": 1e6, "insecure_seed": 0}


SUMS = {
    "epsilon": 100.0,
    "delta": 1e-3,
    "bounds": (-10.0, 10.0),
    "expected_rows": 100,
    "insecure_seed": 0,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "forbidden"),
    [
        (DeclaringLogistic(**LINEAR), UNDECLARED | NO_NUMBERS | PRIVATE_COUNT),
        (DeclaringLinear(**LINEAR), NO_NUMBERS | PRIVATE_COUNT),
        (DeclaringAdditiveClassifier(**SHAPES), UNDECLARED | NO_NUMBERS | PRIVATE_COUNT),
        (DeclaringAdditiveRegressor(**SHAPES), NO_NUMBERS | PRIVATE_COUNT),
        (DeclaringTree(**LEAVES), UNDECLARED | NO_NUMBERS | PRIVATE_COUNT),
        (DeclaringForest(**LEAVES, trees=2), UNDECLARED | NO_NUMBERS | PRIVATE_COUNT),
        # A third less would still do for the checks that ask for a good fit.
        (DeclaringMLPClassifier(**NETWORK, max_iter=15), UNDECLARED | NO_NUMBERS | PRIVATE_COUNT),
        (DeclaringMLPRegressor(**NETWORK, max_iter=30), NO_NUMBERS | PRIVATE_COUNT),
        (
            DeclaringGaussianNB(bounds=(-10.0, 10.0), **COUNTS),
            UNDECLARED | NO_NUMBERS | PRIVATE_COUNT | ONE_RELEASE,
        ),
        (
            DeclaringCategoricalNB(categories=20, **COUNTS),
            UNDECLARED | NO_NUMBERS | PRIVATE_COUNT | ONE_RELEASE,
        ),
        (DeclaringProjected(feature_norm=4.0, insecure_seed=0), UNDECLARED | NO_NUMBERS),
        (
            PrivateProjectedSGDRegressor(
                target_bounds=(-4.0, 4.0), feature_norm=6.0, insecure_seed=0
            ),
            NO_NUMBERS,
        ),
        (
            DeclaringPATE(epsilon=100.0, delta=1e-3, teachers=1, insecure_seed=0),
            UNDECLARED | NO_NUMBERS,  # public rows must be some
        ),
        (
            DeclaringSynthesizer(epsilon=9.0, delta=1e-5, groups=4, insecure_seed=0),
            ODD_CELLS | PRIVATE_COUNT,
        ),
        (PrivateKMeans(n_clusters=3, **SUMS), MIDDLE | PRIVATE_COUNT | LABELS),
        (PrivatePCA(n_components=1, **SUMS), MIDDLE | PRIVATE_COUNT),
    ],
    ids=lambda value: type(value).__name__,
)
def test_all_checks_pass_but_those_that_privacy_forbids(estimator, forbidden, monkeypatch):
    if "Projected" in type(estimator).__name__:
        # Calibration is tested elsewhere, and every check has another number of rows.
        monkeypatch.setattr(_plan, "_least_noise", lambda *numbers: 0.1)
        monkeypatch.setattr(certificate, "_reading", lambda loss, delta: 100.0)
        monkeypatch.setattr(_steps, "_WORTH_COMPILING", 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the checks provoke warnings of scikit-learn's own
        results = check_estimator(estimator, on_skip=None, on_fail=None)
    failed = {row["check_name"]: row["exception"] for row in results if row["status"] == "failed"}
    passed = {row["check_name"] for row in results if row["status"] == "passed"}
    skipped = {row["check_name"] for row in results if row["status"] == "skipped"}
    assert set(failed) == set(forbidden), failed
    assert skipped <= NOT_RUN
    assert len(passed) >= (34 if isinstance(estimator, Synthesizer) else 40)
    assert all(forbidden.values())


def test_every_kind_of_estimator_is_checked():
    """Whatever a package exports and is fitted at an epsilon is in the list of the test above."""
    marks = test_all_checks_pass_but_those_that_privacy_forbids.pytestmark
    (listed,) = [mark.args[1] for mark in marks if mark.name == "parametrize"]
    known = {kind for estimator, _ in listed for kind in type(estimator).__mro__}
    packages = (learn, projected_sgd, pate, synth)
    offered = [getattr(package, name) for package in packages for name in package.__all__]
    kinds = [one for one in offered if isinstance(one, type) and issubclass(one, BaseEstimator)]
    private = [one for one in kinds if "epsilon" in one._get_param_names()]
    assert [one for one in private if one not in known] == []
    assert len(private) >= 12
