"""Additive models: cells, bins, sums against a slow twin, shapes, persons, files."""

import itertools
import math

import numpy as np
import pytest

from discreet.data import Boolean, Categorical, Integer, Real, Schema
from discreet.errors import InvalidValue, NotApplicable
from discreet.learn import (
    PrivateAdditiveClassifier,
    PrivateAdditiveRegressor,
    load_model,
)
from discreet.learn import _binning as binning
from discreet.learn._additive import AdditivePlan
from discreet.learn._exact_descent import GRADIENT_STEPS
from discreet.learn._intake import owned_rows
from discreet.learn._linear import class_residuals
from discreet.ledger import Ledger
from discreet.privacy import Relation

RELATIONS = (Relation.ADD_REMOVE, Relation.REPLACE)
RNG = np.random.default_rng(5)
CELLS = (
    binning.number_cells("a", 0.0, 1.0),
    binning.label_cells("b", ["x", "y", "z"]),
    binning.number_cells("c", -1.0, 1.0),
)
COLUMNS = binning.BinnedColumns(
    CELLS,
    (
        binning.equal_bins(CELLS[0], 8),
        binning.own_bins(CELLS[1]),
        binning.bins_between(CELLS[2], [-0.5, 0.5]),
    ),
)
BASIS = binning.on_basis_grid(RNG.normal(0.0, 1.5, (COLUMNS.width, COLUMNS.width)))


def made_up(rows):
    table = np.column_stack(
        [RNG.uniform(-0.2, 1.2, rows), RNG.integers(0, 3, rows), RNG.uniform(-1.0, 1.0, rows)]
    )
    table[RNG.random(table.shape) < 0.05] = np.nan
    table[0] = [1.0, 2.0, 1.0]  # a corner: every feature of the row is as large as it can be
    return table, RNG.integers(-1, 2, rows)


def sums(table, targets, persons=None, cap=1):
    owned = None
    if persons is not None:
        owned = owned_rows(persons, rows=len(persons), cap=cap)
        table, targets = table[owned.rows], targets[owned.rows]
    codes = [cells.codes(table[:, at]) for at, cells in enumerate(CELLS)]
    residuals = lambda scores: class_residuals(scores, targets)  # noqa: E731
    return binning.BinnedRows(COLUMNS, codes, len(table), residuals, owned)


def drawn_weights(size, outputs=1):
    return np.rint(RNG.normal(0.0, size, (COLUMNS.width, outputs)) * 2.0**20)


def test_opposite_rows_of_a_person_are_clipped_as_one():
    # Two equal rows with opposite labels add nothing; with equal labels they count as one row.
    table = np.array([[0.3, 1.0, 0.2]] * 2)
    persons = np.array(["p", "p"])
    nothing = sums(table, np.array([0, 1]), persons, 2).gradient(BASIS, drawn_weights(0.0))
    assert not nothing.any()
    once = sums(table, np.array([1, 1]), persons, 2).gradient(BASIS, drawn_weights(0.0))
    assert 0.98 < np.linalg.norm(once.astype(float)) / GRADIENT_STEPS <= 1.0


def test_sums_are_those_of_a_slow_twin():
    table, targets = made_up(60)
    codes = [cells.codes(table[:, at]) for at, cells in enumerate(CELLS)]
    rows = np.concatenate(
        [block[code] for block, code in zip(COLUMNS.features, codes, strict=True)], axis=1
    )
    found = sums(table, targets)
    np.testing.assert_array_equal(found.gram(), rows.T @ rows * binning.PERSON_STEPS)
    weights = drawn_weights(0.3)
    turned = rows / 64.0 @ BASIS
    rest = class_residuals(turned @ weights / 2.0**20, targets)
    long = np.abs(rest[:, 0]) * np.linalg.norm(turned, axis=1)
    slow = turned.T @ (rest / np.maximum(long, 1.0)[:, None]) * GRADIENT_STEPS
    fast = found.gradient(BASIS, weights).astype(float)
    np.testing.assert_allclose(fast, slow, atol=2e-3 * GRADIENT_STEPS * math.sqrt(60))


def test_every_value_has_one_cell():
    odd = np.array([np.nan, np.inf, -np.inf, -5.0, 0.0, 0.5, 1.0, 1e300])
    for cells in CELLS:
        codes = cells.codes(odd).astype(int)
        assert codes.min() >= 0
        assert codes.max() < cells.count
    inside = np.random.default_rng(1).uniform(0.0, 1.0, 2000)
    codes = CELLS[0].codes(inside)
    sides = np.concatenate([[0.0], CELLS[0].edges, [1.0]])
    assert np.all((sides[codes] <= inside) & (inside <= sides[codes + 1]))
    assert CELLS[0].codes(np.array([0.0]))[0] != CELLS[0].codes(np.array([1e-9]))[0]


def test_bins_from_noisy_counts_are_as_many_as_stated():
    rng = np.random.default_rng(3)
    cells = CELLS[0]
    for scale, units in itertools.product([0.0, 1.0, 1000.0], [1, 1000, 10**6]):
        noisy = rng.normal(0.0, 30.0, cells.ordered) + scale * rng.exponential(1.0, cells.ordered)
        bins = binning.quantile_bins(cells, noisy, bins=32, stddev=30.0, units=units)
        assert bins.size == cells.count
        assert np.array_equal(np.unique(bins), np.arange(bins.max() + 1))
        assert bins.max() + 1 <= binning.most_bins(32)
        assert np.count_nonzero(bins == bins[-1]) == 1, "what is no number has its own bin"


def test_the_loss_is_what_was_asked_for():
    for relation, cuts in itertools.product(RELATIONS, (0, 6)):
        plan = AdditivePlan.make(
            units=30_000,
            labels=(9, 17, 8),
            numbers=6,
            bin_columns=cuts,
            max_bins=32,
            outputs=1,
            epsilon=1.0,
            delta=1e-6,
            relation=relation,
            squared=False,
        )
        spent = plan.loss.epsilon(delta=1e-6)
        assert 0.999 < spent <= 1.0
        assert AdditivePlan.from_json(plan.to_json()) == plan
        assert plan.descent.contributions == 1


# --- models -------------------------------------------------------------------------------

N = 3000
X = np.column_stack([RNG.uniform(0.0, 10.0, N), RNG.uniform(0.0, 1.0, N)])
WAVE = np.abs(X[:, 0] - 5.0) - 2.5
Y = np.where(RNG.random(N) < 1.0 / (1.0 + np.exp(-3.0 * WAVE)), "yes", "no")
FACTS = {"classes": ["no", "yes"], "bounds": ([0.0, 0.0], [10.0, 1.0]), "expected_rows": N}


def fitted(**more):
    data = more.pop("data", (X, Y))
    return PrivateAdditiveClassifier(**{"epsilon": 3.0, "insecure_seed": 1, **FACTS, **more}).fit(
        *data
    )


def test_a_shape_that_no_line_has_is_found_and_explained():
    model = fitted()
    assert model.score(X, Y) > 0.8
    shape = model.shapes_["0"]
    middle, end = (shape.values[np.searchsorted(shape.edges, at), 0] for at in (5.0, 9.5))
    assert end - middle > 2.0
    added = model.explain(X[:50])[:, :, 0].sum(axis=1) + model.intercept_[0]
    np.testing.assert_allclose(added, model.decision_function(X[:50]))


def test_numbers_are_predicted():
    model = PrivateAdditiveRegressor(
        epsilon=3.0,
        bounds=FACTS["bounds"],
        target_bounds=(-3.0, 3.0),
        expected_rows=N,
        insecure_seed=1,
    ).fit(X, WAVE)
    assert model.score(X, WAVE) > 0.8


def test_the_order_of_rows_does_not_matter():
    other = np.random.default_rng(2).permutation(N)
    mixed = fitted(data=(X[other], Y[other]))
    for name, shape in fitted().shapes_.items():
        np.testing.assert_array_equal(shape.values, mixed.shapes_[name].values)


def test_no_record_raises():
    odd = X.copy()
    odd[:6] = [[np.nan, np.inf], [-np.inf, 1e300], [-1e300, np.nan], [0, 0], [10, 1], [5, -0.0]]
    labels = Y.astype(object)
    labels[:5] = [None, "maybe", np.nan, 3, "yes "]
    fitted(data=(odd, labels))
    fitted(data=(X[:0], Y[:0]))
    fitted(data=(X[:1], Y[:1]))


def test_monotone_shapes_rise_and_cuts_are_taken():
    model = fitted(monotone={0: 1}, cuts={0: [2.0, 4.0, 8.0]})
    shape = model.shapes_["0"]
    assert np.all(np.diff(shape.values[:-1, 0]) >= 0.0)
    sides = np.concatenate([[-np.inf], shape.edges])
    changes = np.flatnonzero(np.diff(shape.bins[:-1])) + 1
    np.testing.assert_array_equal(sides[changes], [2.0, 4.0, 8.0])
    assert fitted(cuts="uniform").plan_.bin_columns == 0
    assert fitted(cuts={0: [2.0]}).plan_.bin_columns == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"cuts": "best"},
        {"cuts": {0: [2.0, 1.0]}},
        {"cuts": {7: [2.0]}},
        {"cuts": {0: "ab"}},
        {"monotone": {0: 2}},
        {"monotone": {"age": 1}},
        {"monotone": {1: 1}, "categories": [0, 2]},
        {"max_bins": 4},
        {"categories": [0]},
        {"categories": [0, -1]},
        {"categories": [0, 5000]},
        {"rows_per_person": 17},
        {"epsilon": 1e-9},
    ],
)
def test_public_mistakes_are_found_before_the_charge(wrong, tmp_path):
    with Ledger.create(tmp_path / "book.ledger") as book:
        book.create_dataset("d", epsilon=9, delta="1e-3")
        before = book.show("d").entries
        model = PrivateAdditiveClassifier(**{**FACTS, **wrong})
        with pytest.raises(InvalidValue):
            model.fit(X, Y, ledger=book, dataset="d")
        assert book.show("d").entries == before


SCHEMA = Schema(
    {
        "age": Integer(18, 90, missing=18),
        "pay": Real(0, 1000),
        "left": Boolean(),
        "town": Categorical(["A", "B"]),
        "who": Categorical(["yes", "no"], other="no"),
    },
    target="who",
    person="name",
    rows_per_person=3,
    expected_rows=3000,
)


def persons_table():
    rng = np.random.default_rng(4)
    rows = 1500
    age = rng.integers(18, 91, rows).astype(float)
    age[::50] = np.nan
    return {
        "name": [f"p{at}" for at in rng.integers(0, 600, rows)],
        "age": age,
        "pay": rng.uniform(0, 1000, rows),
        "left": rng.random(rows) < 0.5,
        "town": rng.choice(["A", "B", "C"], rows),
        "who": np.where(np.abs(np.nan_to_num(age, nan=18.0) - 54) < 18, "yes", "no"),
    }


def test_a_table_of_persons_is_charged_saved_and_read_again(tmp_path):
    table = persons_table()
    model = PrivateAdditiveClassifier(epsilon=3.0, schema=SCHEMA, insecure_seed=2)
    with Ledger.create(tmp_path / "book.ledger") as book:
        book.create_dataset("d", epsilon=9, delta="1e-3", unit="person")
        model.fit(table, ledger=book, dataset="d")
    assert model.certificate_.unit == "person"
    assert model.certificate_.epsilon <= 3.0
    assert model.planned_loss() == model.certificate_.loss
    assert model.shapes_["town"].labels == ("A", "B", "other")
    assert model.score(table) > 0.8
    model.save_directory(tmp_path / "model")
    again = load_model(tmp_path / "model")
    features = {name: table[name] for name in SCHEMA.features}
    np.testing.assert_array_equal(again.predict_proba(features), model.predict_proba(features))
    encoded = model.for_encoded_rows()
    np.testing.assert_array_equal(encoded.predict(model.encoded(features)), model.predict(features))


@pytest.mark.parametrize(("categories", "share"), [([0, 1200], 0.0), ([0] * 30, 0.1)])
def test_wide_tables_get_fewer_bins_or_no_moments(categories, share):
    rows = np.random.default_rng(1).integers(0, 20, (400, len(categories))).astype(float)
    model = PrivateAdditiveClassifier(
        classes=[0, 1],
        bounds=(0.0, 20.0),
        categories=categories,
        expected_rows=400,
        insecure_seed=1,
    ).fit(rows, rows[:, 0] > 10)
    assert (model.plan_.descent.moment_share > 0.0) == (share > 0.0)
    assert sum(int(one.bins.max()) + 2 for one in model.shapes_.values()) < 1300
    assert model.predict(rows).shape == (400,)


def test_a_shape_can_be_edited_and_the_fitted_model_stays(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 100, (2000, 2))
    y = (x[:, 0] > 50).astype(int)
    facts = {"classes": [0, 1], "bounds": (0.0, 100.0), "expected_rows": 2000}
    model = PrivateAdditiveClassifier(**facts, insecure_seed=1).fit(x, y)
    shape = model.shapes_["1"]
    flat = model.with_shape("1", np.zeros(len(shape.values)))
    assert flat.explain(x[:3])[:, 1].tolist() == [[0.0]] * 3
    np.testing.assert_array_equal(flat.explain(x[:3])[:, 0], model.explain(x[:3])[:, 0])
    assert model.shapes_["1"] is shape
    twice = flat.with_shape("0", np.ones(len(model.shapes_["0"].values)))
    assert twice.explain(x[:1]).tolist() == [[[1.0], [0.0]]]
    assert flat.certificate_ == model.certificate_
    with pytest.raises(NotApplicable, match="edited"):
        flat.save(tmp_path / "model.npz")
    model.save(tmp_path / "model.npz")
    for name, values in (("2", [0.0]), ("1", [0.0]), ("1", np.full(len(shape.values), np.nan))):
        with pytest.raises(InvalidValue):
            model.with_shape(name, values)
