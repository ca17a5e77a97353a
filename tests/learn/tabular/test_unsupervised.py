"""Principal components and k-means: sensitivities, costs, quality, files, hostile rows."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.datasets import load_breast_cancer, load_iris, make_blobs
from sklearn.decomposition import PCA

from discreet.data import Categorical, Integer, Schema
from discreet.errors import InvalidValue, NotApplicable, SchemaError
from discreet.learn import PrivateKMeans, PrivatePCA, load_model
from discreet.learn import _unsupervised as unsupervised
from discreet.learn._exact_descent import RAW_STEPS
from discreet.ledger import Ledger
from discreet.privacy import GDP, Relation

FACTS = {"bounds": (-1.0, 1.0), "expected_rows": 50, "delta": 1e-5, "insecure_seed": 1}
KINDS = {
    "components": (PrivatePCA, {}),
    "k-means": (PrivateKMeans, {"n_clusters": 2}),
}
EVERY = pytest.mark.parametrize("name", KINDS)
# A corner first, and odd records last.
ROWS = np.array(
    [[1.0, 1.0, 1.0], [-1, 1, 0], [0.2, 0.1, -1], [0.5, -1, 1], [np.nan, np.inf, -9], [1, 1, 1]]
)


def make(name, **changes):
    kind, usual = KINDS[name]
    return kind(**{**FACTS, **usual, **changes})


class Recorder:
    """Stands where noise is drawn: the first fit's answers are given again."""

    def __init__(self):
        self.exact, self.mu, self.answers = [], [], []

    def __call__(self, exact, *, sensitivity, stddev, relation, source):
        del relation, source
        self.exact.append((np.array(exact, dtype=object), float(sensitivity)))
        self.mu.append(float(sensitivity) / stddev)
        if len(self.answers) < len(self.exact):
            rng = np.random.default_rng(len(self.exact))
            self.answers.append(exact + np.rint(rng.normal(0.0, 0.3 * stddev, exact.shape)))
        return SimpleNamespace(value=self.answers[len(self.exact) - 1])


@EVERY
@pytest.mark.parametrize("relation", [Relation.ADD_REMOVE, Relation.REPLACE])
def test_no_row_moves_a_release_further_than_its_noise_covers(monkeypatch, name, relation):
    recorder = Recorder()
    monkeypatch.setattr(unsupervised, "gaussian_integers", recorder)
    model = make(name, epsilon=2.0, relation=relation)
    first = model.fit(ROWS)
    stated = first.certificate_.epsilon
    drawn = GDP(math.sqrt(sum(mu**2 for mu in recorder.mu)), relation).epsilon(delta=1e-5)
    assert 0.999 * stated < drawn <= stated <= 2.0
    seen, recorder.exact = recorder.exact, []
    if relation is Relation.ADD_REMOVE:
        neighbours = [np.delete(ROWS, at, axis=0) for at in range(len(ROWS))]
    else:
        corners = [np.array(one) for one in itertools.product((-1.0, 1.0), repeat=3)]
        neighbours = [np.vstack([corner, ROWS[1:]]) for corner in corners]
    furthest = np.zeros(len(seen))
    for other in neighbours:
        model.fit(other)
        again, recorder.exact = recorder.exact, []
        for at, ((a, most), (b, same)) in enumerate(zip(seen, again, strict=True)):
            assert most == same
            moved = math.sqrt(sum(int(step) ** 2 for step in (a - b).ravel())) / most
            furthest[at] = max(furthest[at], moved)
    assert furthest.max() <= 1.0
    # The corner attains the bound of one row more; no two rows attain twice of it.
    assert furthest[0] > (0.999 if relation is Relation.ADD_REMOVE else 0.5)
    assert len(seen) == (1 if name == "components" else 8)


def test_the_nearest_centre_does_not_depend_on_other_rows():
    rng = np.random.default_rng(3)
    rows = np.rint(rng.uniform(-1, 1, (5000, 7)) * RAW_STEPS)
    centres = np.rint(rng.uniform(-1, 1, (20, 7)) * RAW_STEPS)
    centres[4] = centres[9]  # a tie goes to the first
    found = unsupervised.nearest(rows, centres)
    assert not np.any(found == 9)
    for at in (0, 17, 4999):
        alone = unsupervised.nearest(rows[at : at + 1], centres)
        exact = [sum(int(v) ** 2 for v in rows[at] - one) for one in centres]
        assert alone[0] == found[at] == exact.index(min(exact))
    sums = unsupervised.sums_by_centre(rows, found, 20)
    assert np.array_equal(sums.sum(axis=0), rows.sum(axis=0).astype(np.int64))


@EVERY
def test_losses_are_known_before_the_data_and_models_come_back(name, tmp_path):
    frame = pd.DataFrame(ROWS, columns=list("abc"))
    with Ledger.create(tmp_path / "book") as book:
        book.create_dataset("d", epsilon=3, delta="1e-4", unit="row")
        model = clone(make(name)).fit(frame, ledger=book, dataset="d")
        assert book.history("d")[0].outcome == "completed"
    assert model.certificate_.loss == make(name).planned_loss(features=3)
    assert 0.99 < model.certificate_.epsilon <= 1.0
    model.save(tmp_path / "model.npz")
    same = load_model(tmp_path / "model.npz")
    assert same.plan_ == model.plan_
    assert same.certificate_ == model.certificate_
    assert np.array_equal(same.transform(frame), model.transform(frame))
    for part in model._arrays:
        with pytest.raises((SchemaError, TypeError)):
            model._restore({**model._arrays, part: np.zeros((9, 9))})
    with pytest.raises(ValueError, match="feature names"):
        same.transform(frame[["b", "a", "c"]])


@EVERY
def test_bad_parameters_are_named_and_persons_pay_for_their_rows(name):
    for argument, value in (
        ("epsilon", 0.0),
        ("bounds", None),
        ("delta", 2.0),
        ("relation", "edit"),
        ("feature_norm", -1.0),
    ):
        with pytest.raises(InvalidValue) as caught:
            make(name, **{argument: value}).fit(ROWS)
        assert caught.value.argument == argument
    own = {"n_components": 4} if name == "components" else {"n_clusters": 257}
    with pytest.raises(InvalidValue, match=next(iter(own))):
        make(name, **own).fit(ROWS)
    with pytest.raises(NotApplicable, match="features"):
        make(name).planned(features=1024)
    one, three = (make(name, rows_per_person=k).planned(features=3) for k in (1, 3))
    assert three.moment_stddev == pytest.approx(3 * one.moment_stddev, rel=1e-6)
    assert three.sum_shift == 3 * one.sum_shift
    with pytest.raises(NotApplicable, match="replacing a person"):
        make(name, rows_per_person=2, relation="replace").fit(ROWS)


@EVERY
def test_empty_and_hostile_tables_are_data_like_any_other(name):
    odd = np.array([[None, "x", 1e400], [object(), [1], 2j]], dtype=object)
    for table in (np.empty((0, 3)), odd, np.zeros((40, 3))):
        found = make(name).fit(table).transform(ROWS)
        assert np.isfinite(found).all()


def test_groups_of_tables_of_others_are_found():
    """Nobody made these tables for this: iris, the breast cancer table, blobs of scikit-learn."""
    blobs, _ = make_blobs(20_000, 8, centers=6, cluster_std=0.5, random_state=2)
    for x, count, epsilon, room in (
        (load_iris().data, 3, 30.0, 1.4),
        (load_breast_cancer().data[:, :10], 2, 30.0, 1.4),
        (blobs, 6, 1.0, 1.05),
    ):
        lower, upper = x.min(axis=0) - 0.1, x.max(axis=0) + 0.1
        scaled = 2.0 * (x - lower) / (upper - lower) - 1.0
        model = PrivateKMeans(
            n_clusters=count,
            epsilon=epsilon,
            bounds=(lower, upper),
            expected_rows=len(x),
            insecure_seed=4,
        ).fit(x)
        loss = ((scaled - model.cluster_centers_[model.predict(x)]) ** 2).sum()
        best = KMeans(count, n_init=5, random_state=0).fit(scaled).inertia_
        assert loss <= room * best
        assert model.counts_.sum() == pytest.approx(len(x), rel=0.2)


def test_directions_of_a_table_of_others_are_found():
    x = load_breast_cancer().data
    x = np.tile(x, (20, 1))
    lower, upper = x.min(axis=0), x.max(axis=0)
    scaled = 2.0 * (x - lower) / (upper - lower) - 1.0
    model = PrivatePCA(n_components=5, epsilon=3.0, bounds=(lower, upper), expected_rows=len(x))
    found = model.set_params(insecure_seed=5).fit(x).components_
    kept = np.trace(found @ np.cov(scaled.T) @ found.T)
    assert kept > 0.95 * PCA(5).fit(scaled).explained_variance_.sum()
    assert np.allclose(found @ found.T, np.eye(5))
    assert np.all(np.diff(model.explained_variance_) <= 0.0)


def test_a_schema_declares_what_they_need():
    facts = {"age": Integer(0, 100), "ward": Categorical(["north", "south"])}
    schema = Schema(facts, expected_rows=500)
    rng = np.random.default_rng(6)
    table = {"age": rng.integers(0, 101, 500), "ward": rng.choice(["north", "south"], 500)}
    groups = PrivateKMeans(n_clusters=2, schema=schema, epsilon=20.0, insecure_seed=1).fit(table)
    wards = pd.crosstab(groups.predict(table), table["ward"]).to_numpy()
    assert wards.max(axis=1).sum() > 450
    turned = PrivatePCA(n_components=1, schema=schema, epsilon=20.0).fit(table)
    assert turned.transform(table).shape == (500, 1)
