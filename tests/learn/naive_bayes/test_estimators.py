"""The naive Bayes estimators: agreement with scikit-learn, batches, ledger, bad input, files."""

import copy
import json
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.exceptions import NotFittedError
from sklearn.naive_bayes import CategoricalNB, GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from discreet.errors import BudgetExceeded, InvalidValue, NotApplicable, SchemaError
from discreet.learn import PrivateCategoricalNB, PrivateGaussianNB
from discreet.ledger import Ledger

RNG = np.random.default_rng(5)
CODES = RNG.integers(0, [3, 4, 2], size=(400, 3))
LABELS = np.where((CODES[:, 0] + CODES[:, 1] + RNG.integers(0, 2, 400)) > 3, "yes", "no")
REALS = CODES + RNG.normal(0, 0.3, size=CODES.shape)


def categorical(**changes):
    settings = {"classes": ["no", "yes"], "categories": [3, 4, 2], "insecure_seed": 3}
    return PrivateCategoricalNB(**{**settings, **changes})


def gaussian(**changes):
    settings = {"classes": ["no", "yes"], "bounds": (-2.0, 6.0), "insecure_seed": 3}
    return PrivateGaussianNB(**{**settings, **changes})


BOTH = pytest.mark.parametrize(
    ("make", "table"), [(categorical, CODES), (gaussian, REALS)], ids=["categorical", "gaussian"]
)


# --- without noise it is the usual model ------------------------------------------------


def test_almost_without_noise_categorical_is_scikit_learns():
    ours = categorical(epsilon=1e6).fit(CODES, LABELS)
    theirs = CategoricalNB(min_categories=[3, 4, 2]).fit(CODES, LABELS)
    assert ours.class_log_prior_ == pytest.approx(theirs.class_log_prior_, abs=1e-9)
    for our, their in zip(ours.feature_log_prob_, theirs.feature_log_prob_, strict=True):
        assert our == pytest.approx(their, abs=1e-4)
    assert ours.predict_proba(CODES) == pytest.approx(theirs.predict_proba(CODES), abs=1e-3)


def test_almost_without_noise_gaussian_is_scikit_learns():
    ours = gaussian(epsilon=1e6, var_pooling=0.0).fit(REALS, LABELS)
    theirs = GaussianNB().fit(REALS, LABELS)
    assert ours.theta_ == pytest.approx(theirs.theta_, abs=1e-3)
    assert ours.var_ == pytest.approx(theirs.var_, rel=1e-2)
    assert np.mean(ours.predict(REALS) == theirs.predict(REALS)) > 0.99


def test_shared_variances_help_where_columns_are_skewed():
    """Why ``var_pooling`` is not 0: made-up amounts that are mostly zero, as in a census."""
    rng = np.random.default_rng(0)
    y = (rng.random(12_000) < 0.25).astype(int)
    gains = np.exp(rng.normal(-3.2 + 0.8 * y, 0.5 + 0.4 * y))
    losses = 0.4 + 0.05 * rng.normal(size=y.size)
    columns = [
        np.where(rng.random(y.size) < 0.04 + 0.17 * y, gains, 0.0),
        np.where(rng.random(y.size) < 0.03 + 0.07 * y, losses, 0.0),
        *(0.4 + 0.15 * rng.normal(0.6 * y) for _ in range(3)),
    ]
    X = np.clip(np.column_stack(columns), 0.0, 1.0)
    right = {
        share: PrivateGaussianNB(
            epsilon=30.0, classes=[0, 1], bounds=(0.0, 1.0), var_pooling=share, insecure_seed=1
        )
        .fit(X[:6000], y[:6000])
        .score(X[6000:], y[6000:])
        for share in (0.0, 0.1, 0.3)
    }
    assert right[0.0] + 0.001 < right[0.1] < right[0.3]
    with pytest.raises(InvalidValue, match="var_pooling"):
        gaussian(var_pooling=1.5).fit(REALS, LABELS)


@pytest.mark.parametrize("relation", ["add_remove", "replace"])
@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_it_learns_at_epsilon_one(relation, delta):
    X, y = load_breast_cancer(return_X_y=True)
    columns = [0, 1, 7]
    bounds = ([0.0, 0.0, 0.0], [30.0, 40.0, 0.25])
    model = PrivateGaussianNB(
        epsilon=1.0, delta=delta, classes=[0, 1], bounds=bounds, relation=relation, insecure_seed=1
    ).fit(X[:, columns], y)
    assert model.score(X[:, columns], y) > 0.85
    assert model.certificate_.epsilon <= 1.0
    assert model.certificate_.delta == delta
    assert model.certificate_.relation == relation
    assert model.certificate_.randomness == {"randomness": "INSECURE seed 1"}


def test_values_may_be_named():
    words = np.array([["red", "s"], ["blue", "m"], ["red", "m"], ["?", "s"]] * 50, dtype=object)
    labels = ["a", "b", "a", "a"] * 50
    model = PrivateCategoricalNB(
        epsilon=50.0, classes=["a", "b"], categories=[["blue", "red"], ["s", "m"]]
    ).fit(words, labels)
    assert model.predict([["red", "s"], ["blue", "m"]]).tolist() == ["a", "b"]
    assert [table.shape for table in model.feature_log_prob_] == [(2, 2), (2, 2)]


def test_an_unknown_value_says_nothing():
    model = categorical(epsilon=100.0).fit(CODES, LABELS)
    prior = np.exp(model.class_log_prior_)
    assert model.predict_proba([[9, -1, math.nan]])[0] == pytest.approx(prior)


# --- batches ----------------------------------------------------------------------------


@BOTH
def test_batches_and_one_fit_release_the_same(make, table):
    whole = make().fit(table, LABELS)
    parts = make()
    for rows in (slice(0, 7), slice(7, 300), slice(300, 400)):
        parts.partial_fit(table[rows], LABELS[rows])
    assert not hasattr(parts, "certificate_")
    with pytest.raises(NotFittedError):
        parts.predict(table)
    parts.finish()
    assert parts.certificate_ == whole.certificate_
    assert np.array_equal(parts.predict_proba(table), whole.predict_proba(table))


@BOTH
def test_a_finished_model_takes_no_more_records_but_can_be_fitted_anew(make, table):
    model = make(insecure_seed=None).fit(table, LABELS)
    with pytest.raises(NotApplicable, match="second release"):
        model.partial_fit(table, LABELS)
    with pytest.raises(NotApplicable, match="nothing to finish"):
        model.finish()
    before = model.class_count_.copy()
    assert not np.array_equal(model.fit(table, LABELS).class_count_, before)  # fresh noise


@BOTH
def test_exact_sums_are_dropped_and_never_copied(make, table):
    model = make().partial_fit(table, LABELS)
    for copied in (pickle.dumps, copy.deepcopy):
        with pytest.raises(NotApplicable, match="exact private sums"):
            copied(model)
    assert not hasattr(clone(model), "_collecting")
    model.finish()
    assert "_collecting" not in vars(model)


@BOTH
def test_classes_may_come_with_the_first_batch_and_must_agree(make, table):
    model = make(classes=None).partial_fit(table, LABELS, classes=["yes", "no"]).finish()
    assert model.classes_.tolist() == ["no", "yes"]
    with pytest.raises(InvalidValue, match="declared classes"):
        make().partial_fit(table, LABELS, classes=["no", "maybe"])


# --- whatever is in the data, nothing depends on it but the noisy cells --------------------

labels = st.sampled_from(["no", "yes", "maybe", "", None, 3])
cell = st.one_of(
    st.integers(-3, 6), st.floats(allow_nan=True, allow_infinity=True), st.just(math.nan)
)


@settings(max_examples=40)
@given(st.lists(st.tuples(labels, cell, cell, cell), max_size=6), st.booleans())
def test_no_data_is_an_error_under_add_remove(rows, reals):
    model = (gaussian if reals else categorical)()
    X = np.array([row[1:] for row in rows], dtype=float).reshape(len(rows), 3)
    y = np.empty(len(rows), dtype=object)
    y[:] = [row[0] for row in rows]
    model.fit(X, y)
    shares = model.predict_proba(np.vstack([X, [[0.0, 1.0, math.nan]]]))
    assert np.all(np.isfinite(shares))
    assert shares.sum(axis=1) == pytest.approx(1.0)
    assert model.certificate_.epsilon == 1.0


@BOTH
def test_one_class_only_is_learned_like_any_other_data(make, table):
    model = make(epsilon=100.0).fit(table, ["yes"] * 400)
    assert model.classes_.tolist() == ["no", "yes"]
    assert set(model.predict(table)) == {"yes"}


def test_the_number_of_rows_is_public_under_replace_only():
    empty = np.empty((0, 3))
    assert categorical().fit(empty, []).certificate_.epsilon == 1.0
    with pytest.raises(ValueError, match="0 sample"):
        categorical(relation="replace").fit(empty, [])


# --- bad parameters and shapes, before anything is spent -----------------------------------


@pytest.fixture
def ledger(tmp_path: Path):
    with Ledger.create(tmp_path / "study.ledger") as book:
        book.create_dataset("patients", epsilon=2)
        yield book


def spent(book):
    return len(list(book.history("patients")))


@BOTH
def test_the_ledger_is_charged_once_and_before(make, table, ledger):
    model = make().fit(table, LABELS, ledger=ledger, dataset="patients")
    assert model.certificate_.receipt["entry"]["dataset"] == "patients"
    assert ledger.show("patients").budget.remaining["basic"] == 1
    parts = make().partial_fit(table[:9], LABELS[:9], ledger=ledger, dataset="patients")
    with pytest.raises(InvalidValue, match="after the first batch"):
        parts.partial_fit(table, LABELS, ledger=ledger, dataset="patients")
    parts.partial_fit(table[9:], LABELS[9:]).finish()
    assert ledger.show("patients").budget.remaining["basic"] == 0
    refused = make()
    with pytest.raises(BudgetExceeded):
        refused.fit(table, LABELS, ledger=ledger, dataset="patients")
    assert "_collecting" not in vars(refused)
    assert not hasattr(refused, "certificate_")


# --- scikit-learn and files ---------------------------------------------------------------


def test_it_works_in_a_pipeline_and_clones():
    X, y = load_iris(return_X_y=True)
    model = PrivateGaussianNB(epsilon=50.0, classes=[0, 1, 2], bounds=(0.0, 8.0), insecure_seed=1)
    line = clone(make_pipeline(FunctionTransformer(), model)).fit(X, y)
    assert line.score(X, y) > 0.9
    assert line[-1].get_params()["epsilon"] == 50.0


def test_a_wrong_file_is_refused(tmp_path):
    path = tmp_path / "model.npz"
    categorical().fit(CODES, LABELS).save(path)
    with pytest.raises(SchemaError, match="PrivateCategoricalNB"):
        PrivateGaussianNB.load(path)
    with np.load(path) as file:
        parts = {name: file[name] for name in file.files}
    head = json.loads(str(parts["discreet_json"]))
    head["certificate"]["epsilon"] = 0.5
    np.savez(path, **{**parts, "discreet_json": np.array(json.dumps(head))})
    with pytest.raises(SchemaError, match=r"claims epsilon 0\.5"):
        PrivateCategoricalNB.load(path)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(SchemaError, match="not a saved model"):
        PrivateCategoricalNB.load(path)


def test_a_failed_save_leaves_the_old_file(tmp_path):
    path = tmp_path / "model.npz"
    model = categorical().fit(CODES, LABELS)
    model.save(path)
    before = path.read_bytes()
    model._arrays["class_count"] = np.array([object()])
    with pytest.raises(InvalidValue, match="class_count"):
        model.save(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["model.npz"]


def test_a_plan_is_that_of_the_first_batch(ledger):
    ledger.create_dataset("gaussian", epsilon=5, delta="1e-3", unit="row")
    model = PrivateCategoricalNB(epsilon=2.0, delta=1e-6, noise="gaussian", categories=2)
    model.partial_fit(CODES % 2, LABELS, ["no", "yes"], ledger=ledger, dataset="gaussian")
    with pytest.raises(InvalidValue, match="classes"):
        model.partial_fit(CODES % 2, LABELS, ["no", "maybe"])
    paper = (
        model.set_params(epsilon=0.1, delta=0.5)
        .partial_fit(CODES % 2, LABELS, ["no", "yes"])
        .finish()
        .certificate_
    )
    assert paper.delta == 1e-6
    assert paper.plan["target_epsilon"] == 2.0
    assert 1.9 < paper.epsilon <= 2.0
