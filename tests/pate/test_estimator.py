"""PATE is one of the estimators: a schema, frames and files, one certificate, one way to load."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone

from discreet.data import Categorical, Real, Schema
from discreet.errors import InvalidValue, NotApplicable, SchemaError
from discreet.learn import PrivateEstimator, load_model, read_plan, saved_digest
from discreet.ledger import Ledger
from discreet.pate import PATEClassifier
from discreet.report import file_hashes, model_certificate, model_files, verify_certificate
from discreet.report import write_certificate as publish

RNG = np.random.default_rng(3)
CELLS = RNG.uniform(-3, 3, (600, 2))
WORDS = np.where(CELLS.sum(axis=1) > 0, "well", "ill")
DATA = {"a": CELLS[:, 0], "b": CELLS[:, 1], "state": WORDS}
PUBLIC = {"a": RNG.uniform(-3, 3, 60), "b": RNG.uniform(-3, 3, 60)}
SCHEMA = Schema(
    {"a": Real(-3, 3), "b": Real(-3, 3), "state": Categorical(["well", "ill"], other="ill")},
    target="state",
    expected_rows=600,
)
SETTINGS: dict[str, Any] = {"epsilon": 5.0, "teachers": 20, "insecure_seed": 1}


@pytest.fixture(scope="module")
def student() -> PATEClassifier:
    return PATEClassifier(schema=SCHEMA, **SETTINGS).fit(DATA, public=PUBLIC)


def test_it_answers_in_the_words_of_the_schema(student: PATEClassifier) -> None:
    assert isinstance(student, PrivateEstimator)
    assert student.classes_.tolist() == ["ill", "well"]
    assert student.score(DATA) > 0.8
    assert student.certificate_.plan["schema_hash"] == SCHEMA.content_hash
    assert read_plan(student.certificate_).loss == student.certificate_.loss
    assert student.planned_loss(public_rows=60) == student.certificate_.loss


@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow", "file"])
def test_frames_and_files_give_the_same_student(
    kind: str, student: PATEClassifier, tmp_path: Path
) -> None:
    plain = {name: list(values) for name, values in DATA.items()}
    made: Any = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "pyarrow": pa.table}.get(kind)
    rows = made(plain) if made else tmp_path / "rows.csv"
    if not made:
        pd.DataFrame(plain).to_csv(rows, index=False)
    again = PATEClassifier(schema=SCHEMA, **SETTINGS).fit(rows, public=PUBLIC)
    assert np.array_equal(again.predict(rows), student.predict(DATA))
    assert again.certificate_.loss == student.certificate_.loss


def test_a_schema_or_declarations_and_columns_that_are_missing() -> None:
    both = PATEClassifier(schema=SCHEMA, classes=["ill", "well"], **SETTINGS)
    with pytest.raises(InvalidValue, match="one of the two, not both"):
        both.fit(DATA, public=PUBLIC)
    model = PATEClassifier(schema=SCHEMA, **SETTINGS)
    for wrong, what in (({"a": [1.0, 2.0]}, "b"), (CELLS, "public"), (None, "public")):
        with pytest.raises(InvalidValue, match=what):
            model.fit(DATA, public=wrong)
    with pytest.raises(InvalidValue, match="state"):
        model.fit({"a": [1.0], "b": [2.0]}, public=PUBLIC)
    with pytest.raises(NotApplicable, match="public_rows"):
        PrivateEstimator.planned(model)


def test_students_are_saved_loaded_certified_and_verified(
    student: PATEClassifier, tmp_path: Path
) -> None:
    place = tmp_path / "student"
    student.save_directory(place)
    again = load_model(place)
    assert type(again) is PATEClassifier
    assert np.array_equal(again.predict_proba(DATA), student.predict_proba(DATA))
    again.save(tmp_path / "again.npz")
    assert saved_digest(tmp_path / "again.npz") == student.certificate_.model_digest
    with pytest.raises(NotApplicable, match="was loaded"):
        again.fit(DATA, public=PUBLIC)
    assert clone(again).teachers == 20
    bare = again.for_encoded_rows()
    assert np.array_equal(bare.predict(again.encoded(DATA)), student.predict(DATA))
    files = file_hashes(place, model_files(place))
    published = model_certificate(place).publish(title="a student", files=files)
    publish(place, published)
    found = {one.what: one.ok for one in verify_certificate(place / "certificate.json")}
    assert found["the loss is that of the plan"] is True
    assert found["the model is the one of the certificate"] is True
    text = (place / "schema.toml").read_text(encoding="utf-8")
    (place / "schema.toml").write_text(text.replace("-3", "-4", 1), encoding="utf-8")
    with pytest.raises(SchemaError):
        load_model(place)


class Noting(float):
    """A number that notes how much had been charged when it was read."""

    book: Ledger
    seen: list[int]

    def __float__(self) -> float:
        self.seen.append(len(list(self.book.history("d"))))
        return 0.5


def test_no_cell_is_read_before_the_charge(tmp_path: Path) -> None:
    Noting.seen = []
    cells = CELLS.astype(object)
    cells[:, 0] = [Noting() for _ in cells]
    model = PATEClassifier(classes=["ill", "well"], delta=1e-5, **SETTINGS)
    with Ledger.create(tmp_path / "book") as Noting.book:
        Noting.book.create_dataset("d", epsilon=10, delta="1e-4", unit="row")
        model.fit(cells, WORDS, public=CELLS[:50], ledger=Noting.book, dataset="d")
    assert Noting.seen
    assert set(Noting.seen) == {1}
