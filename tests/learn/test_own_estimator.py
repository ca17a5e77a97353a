"""An estimator that is written outside of the package has all that those inside have.

The class is that of docs/learners.md, "Write your own estimator".
"""

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from discreet.data import Categorical, Real, Schema
from discreet.errors import BudgetExceeded, InvalidValue, NotApplicable, SchemaError
from discreet.learn import OnePassEstimator, PrivateClassifier, load_model
from discreet.ledger import Ledger
from discreet.mechanisms import gaussian_integers
from discreet.privacy import GDP
from discreet.privacy.theorems import discrete_gaussian_mu, gaussian_mu

STEPS = 1 << 10  # cells are whole numbers: sums of them are exact


@dataclass(frozen=True)
class CentresPlan:
    features: int
    epsilon: float
    delta: float
    stddev: float

    @property
    def shift(self):  # how far one row moves the sums: all cells at their ends
        return STEPS * (self.features + 1.0) ** 0.5 * (1 + 1e-9)

    @property
    def loss(self):
        return GDP(discrete_gaussian_mu(self.stddev, self.shift, coordinates=self.features + 1))

    def to_json(self):
        return asdict(self)


class NearestCentres(PrivateClassifier):
    def __init__(
        self,
        *,
        epsilon=1.0,
        delta=1e-6,
        classes=None,
        bounds=None,
        schema=None,
        insecure_seed=None,
    ):
        self.epsilon, self.delta, self.classes = epsilon, delta, classes
        self.bounds, self.schema, self.insecure_seed = bounds, schema, insecure_seed

    def _plan(self, declared):
        declared.ends  # noqa: B018 - bounds that cannot be are found here, before the charge
        shift = CentresPlan(declared.features, 0.0, 0.0, 1.0).shift
        stddev = 1.01 * shift / gaussian_mu(self.epsilon, self.delta)
        return CentresPlan(declared.features, self.epsilon, self.delta, stddev)

    def _learn(self, plan, rows, source, track):
        batch = rows.all()
        cells = np.rint(self._facts.scaled(batch.features) * STEPS).astype(np.int64)
        cells = np.insert(cells, plan.features, STEPS, axis=1)  # the last column counts
        sums = [cells[batch.targets == code].sum(axis=0) for code in range(len(self.classes_))]
        noisy = gaussian_integers(
            np.stack(sums), sensitivity=plan.shift, stddev=plan.stddev, source=source
        ).value
        centres = noisy[:, :-1] / np.maximum(noisy[:, -1:], STEPS)
        return {"centres": centres, "classes": self.classes_}

    def _restore(self, arrays):
        self.centres_ = arrays["centres"]

    def _class_scores(self, rows):
        apart = self._facts.scaled(rows)[:, None, :] - self.centres_[None]
        return -np.square(apart).sum(axis=2)


SCHEMA = Schema(
    {
        "age": Real(0, 100),
        "ward": Categorical(["north", "south"]),
        "state": Categorical(["well", "ill"], other="well"),
    },
    target="state",
)


def patients(rows=800):
    rng = np.random.default_rng(0)
    age = rng.uniform(0, 100, rows)
    ward = rng.choice(["north", "south"], rows)
    return {"age": age, "ward": ward, "state": np.where(age > 50, "ill", "well")}


@pytest.fixture
def book(tmp_path):
    with Ledger.create(tmp_path / "book") as ledger:
        ledger.create_dataset("d", epsilon=2, delta="1e-5", unit="row")
        yield ledger


def test_it_pays_learns_and_says_what_it_cost(book):
    model = NearestCentres(schema=SCHEMA).fit(patients(), ledger=book, dataset="d")
    assert model.score(patients()) > 0.8
    assert 0.9 < model.certificate_.epsilon <= 1.0
    assert model.certificate_.loss == model.planned_loss() == model.rehearse(patients()).loss
    assert model.certificate_.receipt["entry"]["dataset"] == "d"
    assert model.certificate_.plan["schema_hash"] == SCHEMA.content_hash
    assert model.encoded_names_.tolist() == ["age", "ward=north", "ward=south", "ward=other"]
    with pytest.raises(BudgetExceeded):
        NearestCentres(schema=SCHEMA, epsilon=3.0).fit(patients(), ledger=book, dataset="d")


def test_frames_paths_and_arrays(tmp_path):
    frame = pd.DataFrame(patients())
    frame.to_csv(tmp_path / "p.csv", index=False)
    fits = [
        NearestCentres(schema=SCHEMA, insecure_seed=1).fit(data).centres_
        for data in (frame, pl.DataFrame(patients()), patients(), tmp_path / "p.csv")
    ]
    assert all(np.array_equal(one, fits[0]) for one in fits)
    ages = frame[["age"]].to_numpy()
    plain = NearestCentres(classes=["ill", "well"], bounds=(0.0, 100.0)).fit(ages, frame["state"])
    assert plain.score(ages, frame["state"]) > 0.8
    with pytest.raises(InvalidValue, match="bounds"):
        NearestCentres(classes=["ill", "well"], bounds=(1.0, 0.0)).fit(ages, frame["state"])
    with pytest.raises(InvalidValue, match="guarantee for one row"):
        plain.fit(ages, frame["state"], persons=frame["ward"])


def test_files_of_both_kinds_come_back(tmp_path):
    model = NearestCentres(schema=SCHEMA, insecure_seed=1).fit(patients())
    model.save(tmp_path / "model.npz")
    model.save_directory(tmp_path / "model")
    names = sorted(path.name for path in (tmp_path / "model").iterdir())
    assert names == ["certificate.json", "model.json", "model.npz", "schema.toml"]
    for place in ("model.npz", "model"):
        again = load_model(tmp_path / place)
        assert type(again) is NearestCentres
        assert again.certificate_ == model.certificate_
        assert np.array_equal(again.predict(patients()), model.predict(patients()))
        # A copy of a copy is the same model, digest and all.
        again.save(tmp_path / "copy.npz")
        assert load_model(tmp_path / "copy.npz").certificate_ == model.certificate_
    with pytest.raises(InvalidValue, match="does not exist yet"):
        model.save_directory(tmp_path / "model")
    other = (tmp_path / "model" / "schema.toml").read_text().replace("100", "99")
    (tmp_path / "model" / "schema.toml").write_text(other)
    with pytest.raises(SchemaError, match="do not belong together"):
        load_model(tmp_path / "model")


def test_a_class_that_nobody_imported_is_named(tmp_path, monkeypatch):
    from discreet.learn import _model_file

    NearestCentres(schema=SCHEMA).fit(patients()).save(tmp_path / "model.npz")
    monkeypatch.delitem(_model_file.KINDS, "NearestCentres")
    with pytest.raises(NotApplicable, match="import the module that defines it"):
        load_model(tmp_path / "model.npz")


def test_cloning_pipelines_and_a_routed_ledger(book):
    model = NearestCentres(schema=SCHEMA, epsilon=0.5)
    assert clone(model).get_params() == model.get_params()
    with config_context(enable_metadata_routing=True):
        routed = model.set_fit_request(ledger=True, dataset=True)
        line = make_pipeline(FunctionTransformer(), routed)
        line.fit(pd.DataFrame(patients()), None, ledger=book, dataset="d")
    assert line[-1].certificate_.receipt is not None
    assert line.predict(pd.DataFrame(patients(5))).shape == (5,)


def test_the_page_shows_this_class():
    page = (Path(__file__).parents[2] / "docs" / "learners.md").read_text(encoding="utf-8")
    assert ">>> class NearestCentres(PrivateClassifier):" in page


class CountsOfPersons(OnePassEstimator, NearestCentres):
    """A one-pass kind from outside that takes persons, with a cap on their rows."""

    _takes_persons = True

    def __init__(self, *, rows_per_person=2, **others):
        NearestCentres.__init__(self, **others)
        self.rows_per_person = rows_per_person

    @classmethod
    def _get_param_names(cls):
        return sorted([*NearestCentres._get_param_names(), "rows_per_person"])

    def _open(self, plan):
        return []

    def _add(self, sums, batch):
        sums.append(len(batch.features))

    def _release(self, plan, sums, source):
        return {"centres": np.zeros((2, plan.features)), "classes": self.classes_}


def test_a_cap_of_persons_is_not_forgotten_between_batches(tmp_path):
    """Two batches of one person with a cap of 2 would count 4 rows: they are refused unpaid."""
    schema = Schema(
        {"age": Real(0, 100), "ill": Categorical(["no", "yes"], other="no")},
        target="ill",
        expected_rows=100,
        person="who",
        rows_per_person=2,
    )
    rows = {"who": ["a"] * 4, "age": [1.0, 2.0, 3.0, 4.0], "ill": ["no", "yes"] * 2}
    with Ledger.create(tmp_path / "study.ledger") as book:
        book.create_dataset("people", epsilon=9, delta="1e-3", unit="person")
        model = CountsOfPersons(schema=schema, rows_per_person=None)
        with pytest.raises(NotApplicable, match="several batches"):
            model.partial_fit(rows, ledger=book, dataset="people")
        assert book.show("people").budget.charges == 0
        with pytest.raises(TypeError, match="persons"):
            model.partial_fit(rows, persons=["a"] * 4)
