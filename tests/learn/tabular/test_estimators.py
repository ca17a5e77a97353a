"""The estimators for tables: what they learn, what they pay, what they refuse and what they keep.

Runs on made-up data with an insecure seed where a number is judged, so that nothing here can
fail by chance.
"""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from discreet.data import Categorical, Integer, Real, Schema
from discreet.errors import BudgetExceeded, InvalidValue, NotApplicable
from discreet.learn import (
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateMLPClassifier,
    PrivateMLPRegressor,
)
from discreet.learn._intake import owned_rows
from discreet.ledger import Ledger

BOUNDS = ([0.0, -1.0, 0.0], [10.0, 1.0, 2.0])


def made_up(rows, *, classes=2, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(BOUNDS[0], BOUNDS[1], size=(rows, 3))
    scores = 0.6 * (x[:, 0] - 5.0) + 2.0 * x[:, 1] + rng.logistic(size=rows)
    if classes == 2:
        return x, np.where(scores > 0, "yes", "no")
    return x, np.digitize(scores, np.linspace(-2, 2, classes - 1))


def numbers(rows, *, seed=0):
    x, _ = made_up(rows, seed=seed)
    noise = np.random.default_rng(seed + 1).normal(0, 1.0, rows)
    return x, 2.0 * x[:, 0] - 3.0 * x[:, 1] + noise


def logistic(**changes):
    facts = {"classes": ["no", "yes"], "bounds": BOUNDS, "expected_rows": 3000, "insecure_seed": 7}
    return PrivateLogisticRegression(**{**facts, **changes})


def linear(**changes):
    facts = {"bounds": BOUNDS, "target_bounds": (-10.0, 30.0), "expected_rows": 3000}
    return PrivateLinearRegression(**{**facts, "insecure_seed": 7, **changes})


NETWORK = {"bounds": BOUNDS, "expected_rows": 1500, "insecure_seed": 3, "hidden_layer_sizes": (8,)}


# --- what is learned --------------------------------------------------------------------


def test_logistic_regression_comes_close_to_no_privacy():
    x, y = made_up(3000)
    x_test, y_test = made_up(3000, seed=1)
    free = LogisticRegression().fit(x, y).score(x_test, y_test)
    accuracy = {eps: logistic(epsilon=eps).fit(x, y).score(x_test, y_test) for eps in (1.0, 100.0)}
    assert free - accuracy[1.0] < 0.02
    assert abs(free - accuracy[100.0]) < 0.005


def test_almost_without_noise_the_coefficients_are_those_of_scikit_learn():
    x, y = made_up(3000)
    scaled = 2.0 * (x - np.array(BOUNDS[0])) / np.subtract(BOUNDS[1], BOUNDS[0]) - 1.0
    free = LogisticRegression(C=1e6).fit(scaled, y)
    model = logistic(epsilon=200.0, clip_ratio=10.0, max_iter=60).fit(x, y)
    assert np.allclose(model.coef_, free.coef_, atol=0.05)
    assert np.allclose(model.predict_proba(x), free.predict_proba(scaled), atol=0.02)
    x, y = numbers(3000)
    goal = 2.0 * (y + 10.0) / 40.0 - 1.0
    free = LinearRegression().fit(scaled, goal)
    fitted = linear(epsilon=200.0, clip_ratio=10.0).fit(x, y)
    assert np.allclose(fitted.coef_[0], free.coef_, atol=0.005)


def test_several_classes():
    x, y = made_up(3000, classes=4)
    free = LogisticRegression(max_iter=1000).fit(x, y)
    model = logistic(classes=range(4), epsilon=3.0).fit(x, y)
    assert free.score(x, y) - model.score(x, y) < 0.03
    shares = model.predict_proba(x[:50])
    assert shares.shape == (50, 4)
    assert np.allclose(shares.sum(axis=1), 1.0)
    assert np.array_equal(model.classes_[np.argmax(shares, axis=1)], model.predict(x[:50]))
    assert model.decision_function(x[:5]).shape == (5, 4)


def test_linear_regression_comes_close_to_no_privacy():
    x, y = numbers(3000)
    x_test, y_test = numbers(3000, seed=5)
    free = LinearRegression().fit(x, y).score(x_test, y_test)
    assert free - linear(epsilon=1.0).fit(x, y).score(x_test, y_test) < 0.03
    predicted = linear(epsilon=0.01).fit(x, y).predict(x_test)
    assert predicted.min() >= -10.0
    assert predicted.max() <= 30.0


def test_networks_learn():
    x, y = made_up(1500)
    model = PrivateMLPClassifier(epsilon=3.0, classes=["no", "yes"], max_iter=60, **NETWORK)
    assert model.fit(x, y).score(x, y) > 0.78
    assert model.certificate_.epsilon <= 3.0
    x, y = numbers(1500)
    model = PrivateMLPRegressor(epsilon=3.0, target_bounds=(-10, 30), max_iter=60, **NETWORK)
    assert model.fit(x, y).score(x, y) > 0.6


# --- what is paid -----------------------------------------------------------------------


def test_the_loss_does_not_depend_on_the_number_of_rows():
    few, many = made_up(3), made_up(4000)
    assert logistic().fit(*few).certificate_.loss == logistic().fit(*many).certificate_.loss


def test_a_ledger_is_charged_before_and_a_refusal_learns_nothing(tmp_path):
    x, y = made_up(200)
    with Ledger.create(tmp_path / "study.ledger") as book:
        book.create_dataset("people", epsilon=1, delta="1e-4")
        model = logistic(epsilon=0.8, max_iter=5).fit(x, y, ledger=book, dataset="people")
        assert model.certificate_.receipt["entry"]["dataset"] == "people"
        refused = logistic(epsilon=0.8, max_iter=5)
        with pytest.raises(BudgetExceeded):
            refused.fit(x, y, ledger=book, dataset="people")
        assert not hasattr(refused, "coef_")


@pytest.mark.parametrize("kind", ["gdp", None])
def test_a_budget_pays_for_gaussian_fits_by_their_own_loss(tmp_path, kind):
    """Four fits of (1, 1e-5) cost 1.84 together at delta 1e-4, five cost 2.09."""
    X, y = made_up(50)
    with Ledger.create(tmp_path / "book") as book:
        book.create_dataset("d", epsilon=2, delta="1e-4", unit="row", kind=kind)
        for _ in range(4):
            logistic(epsilon=1.0, delta=1e-5, max_iter=10).fit(X, y, ledger=book, dataset="d")
        with pytest.raises(BudgetExceeded):
            logistic(epsilon=1.0, delta=1e-5, max_iter=10).fit(X, y, ledger=book, dataset="d")
        assert book.show("d").budget.charges == 4
        assert book.verify().ok


def test_persons_with_several_rows_pay_for_all_of_them():
    one, three = logistic(), logistic(rows_per_person=3)
    x, y = made_up(100)
    plans = [model.fit(x, y).plan_ for model in (one, three)]
    noise = [plan.gradient_stddev / plan.steps**0.5 for plan in plans]
    assert noise[1] == pytest.approx(3 * noise[0])
    # Who is told whose rows they are clips each person as one row, with the noise for one.
    owned = logistic(rows_per_person=3).fit(x, y, persons=np.arange(100) // 3).plan_
    assert owned.gradient_stddev / owned.steps**0.5 == pytest.approx(noise[0])
    assert owned == logistic(rows_per_person=3).planned(features=3)
    assert three.certificate_.plan["unit"] == "person"
    network = PrivateMLPClassifier(classes=["no", "yes"], rows_per_person=3, **NETWORK)
    with pytest.raises(InvalidValue, match="persons"):
        network.fit(x, y)
    for model in (three, network):
        with pytest.raises(NotApplicable, match="replacing a person"):
            clone(model).set_params(relation="replace").fit(x, y, persons=np.arange(100))


def test_linear_models_keep_the_cap_themselves():
    """Rows beyond the cap, and rows of nobody, leave no trace."""
    x, y = made_up(90)
    owners = np.array([f"p{i}" for i in range(30)] * 3, dtype=object)
    owners[5] = ""
    kept = [i for i in range(60) if i != 5] + [65]
    capped = logistic(rows_per_person=2, max_iter=5).fit(x, y, persons=owners)
    kept = sorted(kept)
    chosen = logistic(rows_per_person=2, max_iter=5).fit(x[kept], y[kept], persons=owners[kept])
    assert np.array_equal(capped.coef_, chosen.coef_)
    with pytest.raises(InvalidValue, match="persons") as raised:
        logistic().fit(x, y, persons=owners[:-1])
    assert "89" not in str(raised.value)


def test_a_person_is_one_example_of_a_network():
    """Alone or beside empty places, the rows of a person are the same example."""
    x, y = made_up(300)
    facts = {"classes": ["no", "yes"], "max_iter": 15, **NETWORK}
    alone = PrivateMLPClassifier(**{**facts, "expected_rows": 300}).fit(x, y)
    names = np.arange(300)
    padded = PrivateMLPClassifier(**{**facts, "expected_rows": 900}, rows_per_person=3)
    padded.fit(x, y, persons=names)
    theirs = {**alone.plan_.training.to_json(), "unit": "person"}
    assert padded.plan_.training.to_json() == theirs
    with pytest.raises(NotApplicable, match="replacing a person"):
        PrivateMLPClassifier(**facts, relation="replace").fit(x, y, persons=names)
    assert padded.certificate_.plan["unit"] == "person"
    for (a, b), (c, d) in zip(alone.layers_, padded.layers_, strict=True):
        assert np.allclose(a, c, atol=1e-4)
        assert np.allclose(b, d, atol=1e-4)


@settings(max_examples=60)
@given(st.lists(st.sampled_from(["a", "b", "c", "", None]), max_size=12), st.integers(1, 3))
def test_rows_of_persons_against_an_obvious_twin(persons, cap):
    kept = owned_rows(persons, rows=len(persons), cap=cap)
    expected, seen = [], {}
    for row, person in enumerate(persons):
        if person and seen.setdefault(person, 0) < cap:
            expected.append((row, person, seen[person]))
            seen[person] += 1
    assert kept.rows.tolist() == [row for row, _, _ in expected]
    assert kept.ranks.tolist() == [rank for _, _, rank in expected]
    pairs = set(zip(kept.owners.tolist(), [person for _, person, _ in expected], strict=True))
    assert len(pairs) == len(seen) == len({owner for owner, _ in pairs})
    values = np.array([row + 1.0 for row, _, _ in expected])
    side = kept.side_by_side(values, cap, empty=0.0)
    assert side.shape == (len(seen), cap)
    assert side.sum() == values.sum()


def test_one_row_added_changes_no_public_number():
    """Only weights may differ: plan, loss, certificate and shapes are the same."""
    x, y = made_up(50)
    more = np.vstack([x, [[10.0, 1.0, 2.0]]]), np.append(y, "yes")
    a, b = logistic(max_iter=5).fit(x, y), logistic(max_iter=5).fit(*more)
    assert a.plan_ == b.plan_
    assert a.certificate_.loss == b.certificate_.loss
    assert a.coef_.shape == b.coef_.shape


# --- records that break a declaration ---------------------------------------------------


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("make", [logistic, linear])
def test_no_rows_and_one_row_are_data_like_any_other(make, rows):
    x, y = made_up(1) if make is logistic else numbers(1)
    model = make(max_iter=3).fit(x[:rows], y[:rows])
    assert model.predict(x).shape == (1,)


def test_networks_take_no_rows_too():
    x, y = made_up(1)
    model = PrivateMLPClassifier(classes=["no", "yes"], max_iter=3, **NETWORK)
    assert model.fit(x[:0], y[:0]).predict(x).shape == (1,)


def test_one_class_only_and_undeclared_labels_are_no_errors():
    x, y = made_up(300)
    only = logistic().fit(x, np.full(300, "yes"))
    assert np.mean(only.predict(x) == "yes") > 0.9
    mixed = np.where(np.arange(300) % 2 == 0, y, "perhaps")
    model = logistic().fit(x, mixed)
    assert set(model.predict(x)) <= {"no", "yes"}


def test_undeclared_labels_count_for_nothing():
    """With the moments switched off, rows of other labels leave no trace at all."""
    x, y = made_up(200)
    stray = np.vstack([x, x[:50]]), np.append(y, ["perhaps"] * 50)
    a = logistic(moment_share=0.0, max_iter=5).fit(x, y)
    b = logistic(moment_share=0.0, max_iter=5).fit(*stray)
    assert np.array_equal(a.coef_, b.coef_)


def test_values_out_of_bounds_are_clipped_and_nan_is_the_middle():
    x, y = made_up(200)
    wild, tame = x.copy(), x.copy()
    wild[0], tame[0] = [1e300, -np.inf, np.nan], [10.0, -1.0, 1.0]
    a, b = (logistic(max_iter=5).fit(part, y) for part in (wild, tame))
    assert np.array_equal(a.coef_, b.coef_)
    assert np.array_equal(a.predict_proba(wild[:1]), a.predict_proba(tame[:1]))


def test_targets_out_of_bounds_are_clipped_and_nan_counts_for_nothing():
    x, y = numbers(200)
    y[0], y[1] = 1e9, np.nan
    tame = y.copy()
    tame[0] = 30.0
    a, b = (linear(moment_share=0.0, max_iter=5).fit(x, part) for part in (y, tame))
    without = np.arange(200) != 1
    c = linear(moment_share=0.0, max_iter=5).fit(x[without], tame[without])
    assert np.array_equal(a.coef_, b.coef_)
    assert np.array_equal(a.coef_, c.coef_)


# --- what is refused --------------------------------------------------------------------


def test_under_replace_the_number_of_rows_is_public():
    x, y = made_up(400)
    model = logistic(relation="replace", expected_rows=None).fit(x, y)
    assert model.plan_.rows == 400
    assert model.certificate_.relation == "replace"
    with pytest.raises(ValueError, match="0 sample"):
        logistic(relation="replace").fit(x[:0], y[:0])


# --- scikit-learn and files -------------------------------------------------------------


def test_cloning_pipelines_and_cross_validation():
    x, y = made_up(300)
    model = logistic(max_iter=10)
    assert clone(model).get_params() == model.get_params()
    pipe = make_pipeline(FunctionTransformer(), model)
    assert pipe.fit(x, y).predict(x).shape == (300,)
    assert cross_val_score(model, x, y, cv=3).mean() > 0.6


def test_a_seed_repeats_and_no_seed_does_not():
    x, y = made_up(100)
    fits = [logistic(max_iter=3).fit(x, y).coef_ for _ in range(2)]
    assert np.array_equal(*fits)
    free = [logistic(max_iter=3, insecure_seed=None).fit(x, y) for _ in range(2)]
    assert not np.array_equal(free[0].coef_, free[1].coef_)
    assert free[0].certificate_.randomness["randomness"] == "operating system"


# --- schemas ----------------------------------------------------------------------------


def test_from_a_schema():
    x, _ = made_up(400)
    table = {"age": x[:, 0] * 9, "sex": np.where(x[:, 1] > 0, "F", "M"), "ill": x[:, 0] > 5}
    table["ill"] = np.where(table["ill"], "yes", "no")
    schema = Schema(
        {
            "age": Integer(0, 90),
            "sex": Categorical(["F", "M"]),
            "ill": Categorical(["no", "yes"], other="no"),
        },
        target="ill",
        expected_rows=400,
        person="name",
        rows_per_person=2,
    )
    table["name"] = np.array([f"p{i // 2}" for i in range(400)])
    model = PrivateLogisticRegression(schema=schema, epsilon=5.0, insecure_seed=1)
    assert model.fit(table).score(table) > 0.8
    assert model.certificate_.plan["schema_hash"] == schema.content_hash
    assert model.certificate_.plan["rows_per_person"] == 2
    assert model.certificate_.unit == "person"
    network = PrivateMLPClassifier(
        schema=schema, epsilon=5.0, insecure_seed=1, max_iter=20, hidden_layer_sizes=(8,)
    )
    assert network.fit(table).score(table) > 0.7
    assert network.plan_.training.examples == 200
    with pytest.raises(NotApplicable, match="numeric target"):
        PrivateLinearRegression(schema=schema).fit(table)
    with pytest.raises(NotApplicable, match="no target"):
        PrivateLogisticRegression(schema=Schema({"height": Real(0, 3)})).planned_loss()


def test_wide_rows_need_no_square_of_their_width():
    rows = np.random.default_rng(4).integers(0, 2, (20, 20_000)).astype(np.float32)
    model = PrivateLogisticRegression(
        classes=[0, 1], bounds=(0.0, 1.0), expected_rows=10, feature_norm=3.0, max_iter=1
    )
    tracemalloc.start()
    try:
        model.fit(rows, np.arange(20) % 2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert model.coef_.shape == (1, 20_000)
    assert peak < 2e8  # the square would be 3.2e9


X_SMALL, Y_SMALL = made_up(40)


def small(**changes):
    facts = {**NETWORK, "expected_rows": 40, "max_iter": 2, "classes": ["no", "yes"]}
    return PrivateMLPClassifier(**{**facts, **changes})


def test_persons_are_not_rows_of_a_ledger(tmp_path):
    owners = np.arange(40) // 2
    with Ledger.create(tmp_path / "study.ledger") as book:
        book.create_dataset("records", epsilon=5, delta="1e-3")
        book.create_dataset("people", epsilon=5, delta="1e-3", unit="person")
        with pytest.raises(InvalidValue, match="speaks of one person"):
            small().fit(X_SMALL, Y_SMALL, persons=owners, ledger=book, dataset="records")
        model = small(rows_per_person=2)
        model.fit(X_SMALL, Y_SMALL, persons=owners, ledger=book, dataset="people")
    assert model.certificate_.plan["unit"] == model.plan_.training.unit == "person"


def test_under_replace_a_network_takes_the_number_of_rows_only():
    with pytest.raises(InvalidValue, match="expected_rows = 30: expected the number of rows, 40"):
        small(relation="replace", expected_rows=30).fit(X_SMALL, Y_SMALL)
    assert (
        small(relation="replace", expected_rows=None).fit(X_SMALL, Y_SMALL).plan_.training.examples
        == 40
    )
