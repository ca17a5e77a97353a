"""Learners told by a schema: the facts, the refusals, and a model from a table."""

import numpy as np
import pytest

from discreet.data.columns import Boolean, Categorical, Integer, Real
from discreet.data.encoding import Encoding
from discreet.data.schema import Schema
from discreet.data.tables import read_table
from discreet.errors import InvalidValue, NotApplicable
from discreet.learn.naive_bayes import PrivateCategoricalNB, PrivateGaussianNB
from discreet.learn.projected_sgd import (
    PrivateProjectedSGDClassifier,
    PrivateProjectedSGDRegressor,
)
from discreet.learn.schema_facts import bounded_facts, feature_columns, labelled_facts, linear_facts

ILL = Categorical(["no", "yes"], other="no")
SCHEMA = Schema({"age": Integer(20, 80), "smokes": Boolean(), "ill": ILL}, target="ill")
LABELS = Schema({"town": Categorical(["a", "b"]), "smokes": Boolean(), "ill": ILL}, target="ill")

RNG = np.random.default_rng(3)
ROWS = {
    "age": RNG.integers(0, 120, 600),
    "smokes": RNG.integers(0, 2, 600).astype(bool),
}
ROWS["ill"] = np.where(ROWS["age"] > 50, "yes", "no")
TABLE = read_table(ROWS, SCHEMA)


def test_a_gaussian_model_from_a_schema():
    model = PrivateGaussianNB.from_codes(SCHEMA, epsilon=5.0, insecure_seed=1)
    assert model.bounds == [[20.0, 0.0], [80.0, 1.0]]
    features = feature_columns(TABLE, SCHEMA)
    codes = Encoding(SCHEMA).target(TABLE)
    assert model.fit(features, codes).score(features, codes) > 0.85
    assert model.certificate_.plan["schema_hash"] == SCHEMA.content_hash


def test_a_categorical_model_from_a_schema_with_bins():
    model = PrivateCategoricalNB.from_codes(SCHEMA, bins=6, epsilon=5.0, insecure_seed=1)
    assert model.categories == [6, 2]
    features = feature_columns(TABLE, SCHEMA, bins=6)
    assert sorted(set(features[:, 0])) == [0, 1, 2, 3, 4, 5]
    assert features[:, 0] == pytest.approx(np.minimum((np.clip(ROWS["age"], 20, 80) - 20) // 10, 5))
    codes = Encoding(SCHEMA).target(TABLE)
    assert model.fit(features, codes).score(features, codes) > 0.9
    assert labelled_facts(LABELS)["categories"] == [3, 2]


def test_linear_models_from_a_schema():
    rows = Encoding(SCHEMA).features(TABLE)
    model = PrivateProjectedSGDClassifier.from_codes(
        SCHEMA, epsilon=5.0, steps=5000, insecure_seed=1
    )
    assert model.feature_norm == pytest.approx(np.sqrt(2.0))
    codes = Encoding(SCHEMA).target(TABLE)
    assert model.fit(rows, codes).score(rows, codes) > 0.85
    numeric = Schema({"age": Integer(20, 80), "smokes": Boolean()}, target="age")
    other = PrivateProjectedSGDRegressor.from_schema(numeric)
    assert (other.target_bounds, other.feature_norm) == ([20.0, 80.0], 1.0)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: labelled_facts(SCHEMA), "cut it into bins"),
        (lambda: bounded_facts(LABELS), "is no number"),
        (lambda: linear_facts(SCHEMA, classification=False), "numeric target"),
        (lambda: bounded_facts(Schema({"a": Real(0, 1), "b": Real(0, 1)}, target="b")), "classes"),
        (lambda: bounded_facts(Schema({"a": Real(), "ill": ILL}, target="ill")), "declared"),
        (
            lambda: bounded_facts(
                Schema({"a": Real(0, 1), "ill": ILL}, target="ill", person="id", rows_per_person=3)
            ),
            "protects persons",
        ),
    ],
)
def test_what_a_schema_does_not_declare_is_refused(ask, words):
    with pytest.raises(NotApplicable, match=words):
        ask()


def test_bad_arguments_are_named():
    with pytest.raises(InvalidValue, match="schema"):
        labelled_facts({"age": 3})
    with pytest.raises(InvalidValue, match="bins"):
        labelled_facts(SCHEMA, bins=1)
    with pytest.raises(InvalidValue, match="only a target"):
        labelled_facts(Schema({"ill": ILL}, target="ill"))
