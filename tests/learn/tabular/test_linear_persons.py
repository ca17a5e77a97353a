"""Persons with several rows in linear models: each counts as one row, in exact integers."""

import numpy as np
import pytest

from discreet.learn import PrivateLinearRegression, PrivateLogisticRegression, load_model
from discreet.learn import _exact_descent as descent
from discreet.learn._exact_descent import GRADIENT_STEPS, RAW_STEPS, LinearPlan
from discreet.learn._intake import owned_rows

RNG = np.random.default_rng(11)
NAMES = np.array(["a", "a", "a", "b", "b", "c", "d", "d", "d", "e"])
CAP = 3


def features():
    table = RNG.uniform(-1.0, 1.0, (len(NAMES), 3))
    table[:3] = 1.0  # three times the corner
    table[3], table[4] = 1.0, -1.0
    return table


def sums(table, residual, names=NAMES):
    """The sums over persons, with residuals that the test chooses."""
    owned = owned_rows(names, rows=len(names), cap=CAP)
    rows = descent.raw_rows(table[owned.rows], norm=3.0**0.5)
    chosen = residual[owned.rows]
    ranks = owned.side_by_side(np.arange(len(rows)), CAP, empty=-1)
    return descent.PersonRows(
        rows, lambda scores, start, stop: chosen[start:stop], [ranks[:, k] for k in range(CAP)]
    )


def bases():
    square = RNG.normal(0.0, 0.8, (4, 4))
    return [square, np.abs(RNG.normal(0.5, 0.5, 4)), 40.0 * np.eye(4)]


def moves(table, residual, basis, weights):
    """How far the gradient and the moments move when a person goes, for each person."""
    whole = sums(table, residual)
    full = whole.gradient(basis, weights), whole.gram()
    found = []
    for name in np.unique(NAMES):
        rest = name != NAMES
        part = sums(table[rest], residual[rest], NAMES[rest])
        gradient = (full[0] - part.gradient(basis, weights)).astype(object)
        gram = (full[1] - part.gram())[np.triu_indices(4)].astype(object)
        found.append([float((step**2).sum()) ** 0.5 for step in (gradient, gram)])
    return np.array(found)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("size", [0.2, 1.0, 1e9])
def test_no_person_moves_a_sum_further_than_one_row(outputs, size):
    shift = LinearPlan.make(
        rows=100,
        features=3,
        outputs=outputs,
        norm=3.0**0.5,
        epsilon=1.0,
        delta=1e-6,
        relation="add_remove",
    ).moment_shift
    for basis in bases():
        weights = np.zeros((basis.shape[-1], outputs))
        for _ in range(3):
            residual = RNG.normal(0.0, size, (len(NAMES), outputs))
            moved = moves(features(), residual, basis, weights)
            assert moved[:, 0].max() <= GRADIENT_STEPS
            assert moved[:, 1].max() <= shift
            if size > 0.5:
                assert moved[:, 0].max() > 0.98 * GRADIENT_STEPS, "long gradients are clipped to 1"
            # Three times the corner is one corner, but for the rounding of its root.
            assert moved[0, 1] > 0.999 * shift


def test_moments_of_a_person_are_the_mean_of_the_rows():
    table = features()
    rows = np.append(table, np.ones((10, 1)), axis=1)
    exact = np.zeros((4, 4))
    for name in np.unique(NAMES):
        own = rows[name == NAMES]
        exact += own.T @ own / len(own)
    found = sums(table, np.zeros((10, 1))).gram() / RAW_STEPS**2
    assert np.abs(found - exact).max() < 0.01


def test_opposite_rows_of_a_person_cancel_before_they_are_clipped():
    """Clipped row by row they would cancel as well; equal ones would count three times."""
    table = np.ones((10, 3))
    opposite = np.where(np.arange(10) % 2, 1.0, -1.0)[:, None]
    basis = 5.0 * np.eye(4)
    moved = moves(table, opposite, basis, np.zeros((4, 1)))[:, 0] / GRADIENT_STEPS
    known = dict(zip("abcde", moved, strict=True))
    assert known["b"] == 0.0
    assert 0.98 < min(known["a"], known["c"], known["d"]) <= 1.0
    # A small gradient is not clipped: three equal rows add three times one of them.
    small = np.full((10, 1), 0.01)
    moved = moves(table, small, 0.5 * np.eye(4), np.zeros((4, 1)))[:, 0]
    assert moved[0] == pytest.approx(3 * moved[2], rel=1e-3)


def test_the_sum_is_that_of_a_slow_twin():
    table, residual = features(), RNG.normal(0.0, 0.7, (10, 2))
    basis = bases()[0]
    found = sums(table, residual).gradient(basis, np.zeros((4, 2))) / GRADIENT_STEPS
    rows = descent.whitened_rows(descent.raw_rows(table, norm=3.0**0.5), basis)
    rows = rows.astype(float) / descent.WHITENED_STEPS
    expected = np.zeros((4, 2))
    for name in np.unique(NAMES):
        own = rows[name == NAMES].T @ residual[name == NAMES]
        expected += own / max(1.0, np.linalg.norm(own))
    assert np.abs(found - expected).max() < 1e-3


def test_order_of_rows_and_of_persons_does_not_matter():
    table, residual = features(), RNG.normal(0.0, 1.0, (10, 1))
    basis, order = bases()[0], RNG.permutation(10)
    one = sums(table, residual).gradient(basis, np.zeros((4, 1)))
    two = sums(table[order], residual[order], NAMES[order]).gradient(basis, np.zeros((4, 1)))
    assert np.array_equal(one, two)


def test_models_of_persons_learn_and_come_back(tmp_path):
    persons = np.repeat(np.arange(600), 3)
    x = np.clip(np.repeat(RNG.uniform(-1, 1, (600, 2)), 3, axis=0), -1, 1)
    facts = {"bounds": (-1.0, 1.0), "expected_rows": 1800, "rows_per_person": 3, "epsilon": 8.0}
    classes = PrivateLogisticRegression(classes=[0, 1], insecure_seed=1, **facts)
    classes.fit(x, (x[:, 0] > 0).astype(int), persons=persons)
    assert classes.score(x, x[:, 0] > 0) > 0.9
    assert (classes.plan_.rows, classes.plan_.contributions) == (600, 1)
    numbers = PrivateLinearRegression(target_bounds=(-2.0, 2.0), insecure_seed=1, **facts)
    numbers.fit(x, x.sum(axis=1), persons=persons)
    assert numbers.score(x, x.sum(axis=1)) > 0.8
    for model in (classes, numbers):
        assert model.certificate_.unit == "person"
        assert model.certificate_.loss == model.planned_loss(features=2)
        model.save(tmp_path / "model.npz")
        assert load_model(tmp_path / "model.npz").certificate_ == model.certificate_


def test_a_cap_that_binds_nobody_does_not_switch_the_sums(monkeypatch):
    """With a row a person, a cap of 2 is summed as for persons: a neighbour may own two."""
    used = []
    gradient = descent.PersonRows.gradient
    monkeypatch.setattr(
        descent.PersonRows, "gradient", lambda self, *a: used.append(1) or gradient(self, *a)
    )
    model = PrivateLogisticRegression(
        classes=[0, 1], bounds=(0.0, 1.0), expected_rows=50, rows_per_person=2, max_iter=3
    )
    model.fit(RNG.uniform(0, 1, (50, 2)), np.arange(50) % 2, persons=np.arange(50))
    assert len(used) == 3
