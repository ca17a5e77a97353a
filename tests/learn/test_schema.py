"""Learners told by a schema: the facts, the refusals, and a model from a table."""

import numpy as np
import pytest

from discreet.data import Boolean, Categorical, Integer, Real, Schema, read_table
from discreet.errors import InvalidValue, NotApplicable
from discreet.learn import PrivateCategoricalNB, PrivateGaussianNB, PrivateLogisticRegression
from discreet.learn.projected_sgd import (
    PrivateProjectedSGDClassifier,
    PrivateProjectedSGDRegressor,
)

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
    model = PrivateGaussianNB(schema=SCHEMA, epsilon=5.0, insecure_seed=1)
    declared = model._declared()
    assert [end.tolist() for end in declared.ends] == [[20.0, 0.0], [80.0, 1.0]]
    assert model.fit(TABLE).score(TABLE) > 0.85
    assert model.certificate_.plan["schema_hash"] == SCHEMA.content_hash
    assert model.encoded_names_.tolist() == ["age", "smokes"]


def test_a_categorical_model_from_a_schema_with_bins():
    model = PrivateCategoricalNB(schema=SCHEMA, bins=6, epsilon=5.0, insecure_seed=1)
    assert model._declared().categories == [6, 2]
    features = model.encoded(TABLE)
    assert sorted(set(features[:, 0])) == [0, 1, 2, 3, 4, 5]
    assert features[:, 0] == pytest.approx(np.minimum((np.clip(ROWS["age"], 20, 80) - 20) // 10, 5))
    assert model.fit(TABLE).score(TABLE) > 0.9
    assert PrivateCategoricalNB(schema=LABELS)._declared().categories == [3, 2]


def test_linear_models_from_a_schema():
    model = PrivateProjectedSGDClassifier(schema=SCHEMA, epsilon=5.0, steps=5000, insecure_seed=1)
    assert model._declared().feature_norm == pytest.approx(np.sqrt(2.0))
    assert model.fit(TABLE).score(TABLE) > 0.85
    numeric = Schema({"age": Integer(20, 80), "smokes": Boolean()}, target="age")
    other = PrivateProjectedSGDRegressor(schema=numeric)._declared()
    assert (other.target_bounds, other.feature_norm) == ((20.0, 80.0), 1.0)


PERSONS = {"target": "ill", "person": "id", "rows_per_person": 3}


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (PrivateCategoricalNB(schema=SCHEMA), "cut it into bins"),
        (PrivateGaussianNB(schema=LABELS), "is no number"),
        (PrivateProjectedSGDRegressor(schema=SCHEMA), "numeric target"),
        (
            PrivateGaussianNB(schema=Schema({"a": Real(0, 1), "b": Real(0, 1)}, target="b")),
            "classes",
        ),
        (PrivateGaussianNB(schema=Schema({"a": Real(), "ill": ILL}, target="ill")), "declared"),
        (
            PrivateGaussianNB(schema=Schema({"a": Real(0, 1), "ill": ILL}, **PERSONS)),
            "protects persons",
        ),
    ],
)
def test_what_a_schema_does_not_declare_is_refused(model, words):
    with pytest.raises(NotApplicable, match=words):
        model.planned_loss()


def test_bad_arguments_are_named():
    with pytest.raises(InvalidValue, match="schema"):
        PrivateCategoricalNB(schema={"age": 3}).planned_loss()
    with pytest.raises(InvalidValue, match="bins"):
        PrivateCategoricalNB(schema=SCHEMA, bins=1).planned_loss()
    with pytest.raises(InvalidValue, match="only a target"):
        PrivateCategoricalNB(schema=Schema({"ill": ILL}, target="ill")).planned_loss()


@pytest.mark.parametrize(
    ("kind", "argument", "value"),
    [
        (PrivateLogisticRegression, "classes", ["no", "yes"]),
        (PrivateLogisticRegression, "bounds", (0.0, 1.0)),
        (PrivateLogisticRegression, "feature_norm", 1.0),
        (PrivateLogisticRegression, "expected_rows", 600),
        (PrivateLogisticRegression, "rows_per_person", 1),
        (PrivateCategoricalNB, "categories", [6, 2]),
        (PrivateProjectedSGDRegressor, "target_bounds", (20.0, 80.0)),
    ],
)
def test_a_schema_or_declarations_and_never_both(kind, argument, value):
    with pytest.raises(InvalidValue, match="one of the two, not both") as raised:
        kind(schema=SCHEMA, **{argument: value}).fit(TABLE)
    assert raised.value.argument == argument
