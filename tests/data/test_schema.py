"""Schemas: what they accept, what they refuse, what they promise, how they are named."""

import copy
import datetime as dt
import pickle
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from discreet.data import Boolean, Categorical, CsvFormat, Date, Integer, Real, Schema
from discreet.errors import InvalidValue, NotApplicable
from discreet.privacy import Gaussian, PureDP

AGE = Integer(17, 90)
ILL = Categorical(["yes", "no"], other="no")


def schema(**changes: object) -> Schema:
    facts: dict = {"columns": {"age": AGE, "ill": ILL}, "target": "ill"} | changes
    return Schema(facts.pop("columns"), **facts)


@pytest.mark.parametrize(
    ("build", "argument"),
    [
        (lambda: Integer(5, 5), "upper"),
        (lambda: Integer(5, 4), "upper"),
        (lambda: Integer(5), "upper"),
        (lambda: Integer(None, 5), "lower"),
        (lambda: Integer(0.5, 5), "lower"),
        (lambda: Integer(0, 2**60), "upper"),
        (lambda: Integer(True, 5), "lower"),
        (lambda: Integer(0, 5, missing=6), "missing"),
        (lambda: Real(0, float("inf")), "upper"),
        (lambda: Real(-1.7e308, 1.7e308), "upper"),
        (lambda: Real("0", 1), "lower"),
        (lambda: Date(dt.date(2020, 1, 1), dt.datetime(2021, 1, 1, tzinfo=dt.UTC)), "upper"),
        (lambda: Date("2020-01-01", "2021-01-01"), "lower"),
        (lambda: Boolean(missing=1), "missing"),
        (lambda: Categorical("abc"), "categories"),
        (lambda: Categorical(["a", "a"]), "categories"),
        (lambda: Categorical(["1", 1]), "categories"),
        (lambda: Categorical(["a", ""]), "categories"),
        (lambda: Categorical(["a", " b"]), "categories"),
        (lambda: Categorical(["a", "\ud800"]), "categories"),
        (lambda: Categorical(["a", 1.5]), "categories"),
        (lambda: Categorical(["a"], other=""), "other"),
        (lambda: Categorical(["a"], missing=""), "missing"),
        (lambda: CsvFormat(delimiter='"'), "delimiter"),
        (lambda: CsvFormat(quoted_newlines=1), "quoted_newlines"),
        (lambda: CsvFormat(names=["a", "a"]), "names"),
        (lambda: CsvFormat(names=[]), "names"),
        (lambda: schema(columns={}), "columns"),
        (lambda: schema(columns={"": AGE}), "columns"),
        (lambda: schema(columns={"a\nb": AGE}), "columns"),
        (lambda: schema(columns={"age": "integer"}), "columns.age"),
        (lambda: schema(target="no such"), "target"),
        (lambda: schema(columns={"ill": Categorical(["yes", "no"])}), "columns.ill.other"),
        (
            lambda: schema(columns={"ill": Categorical(["a", "b"], other="a", missing="c")}),
            "columns.ill.missing",
        ),
        (lambda: schema(person="who"), "rows_per_person"),
        (lambda: schema(rows_per_person=2), "person"),
        (lambda: schema(person="who", rows_per_person=0), "rows_per_person"),
        (lambda: schema(person="age", rows_per_person=1), "person"),
        (lambda: schema(expected_rows=0), "expected_rows"),
        (lambda: schema(csv=","), "csv"),
        (lambda: schema(csv=CsvFormat(names=["age"])), "csv.names"),
    ],
)
def test_wrong_declarations_are_named(build, argument):
    with pytest.raises(InvalidValue) as caught:
        build()
    assert caught.value.argument == argument
    assert caught.value.expected


def test_a_schema_cannot_be_changed():
    made = schema()
    with pytest.raises(FrozenInstanceError):
        made.target = None
    with pytest.raises(TypeError):
        made.columns["more"] = AGE
    with pytest.raises(FrozenInstanceError):
        AGE.lower = 0


def test_the_dictionary_given_is_not_kept():
    columns = {"age": AGE}
    made = Schema(columns)
    columns["more"] = AGE
    assert list(made.columns) == ["age"]


def test_tasks_features_and_classes():
    made = schema(columns={"age": AGE, "ill": ILL, "flag": Boolean()})
    assert made.task == "classification"
    assert made.classes == ("yes", "no")
    assert list(made.features) == ["age", "flag"]
    assert schema(target="age").task == "regression"
    assert schema(target=None).task is None
    assert schema(columns={"ill": Boolean()}).classes == ("false", "true")
    with pytest.raises(NotApplicable, match="no classes"):
        _ = schema(target="age").classes


def test_incomplete_schemas_say_what_is_missing():
    made = schema(columns={"a": Integer(), "b": Real(0, 1), "ill": Categorical()})
    assert made.incomplete == ("a", "ill")
    with pytest.raises(NotApplicable, match=r"'a', 'ill'.*complete_schema"):
        made.require_complete()
    with pytest.raises(NotApplicable, match="not read off the data"):
        Integer().to_domain(np.array([1.0]))
    with pytest.raises(NotApplicable, match="not read off the data"):
        _ = Categorical().labels
    completed = made.with_columns({"a": AGE, "ill": ILL})
    assert completed.incomplete == ()
    with pytest.raises(InvalidValue, match="names of columns"):
        made.with_columns({"c": AGE})


def test_for_prediction_needs_neither_target_nor_persons():
    made = schema(person="who", rows_per_person=3)
    assert made.file_columns == ("age", "ill", "who")
    assert made.for_prediction().file_columns == ("age",)
    assert made.for_prediction().unit == "row"


def test_loss_of_a_person_is_the_loss_of_all_their_rows():
    row = Gaussian(2.0)
    assert schema().unit_loss(row) == row
    one = schema(person="who", rows_per_person=1)
    assert one.unit_loss(row) == row
    three = schema(person="who", rows_per_person=3)
    assert three.unit_loss(PureDP("1/10")).epsilon(delta=0) == pytest.approx(0.3, abs=1e-12)
    # Three rows move a Gaussian by three clips: exactly the noise multiplier divided by three.
    expected = Gaussian(2.0 / 3).epsilon(delta=1e-5)
    assert three.unit_loss(row).epsilon(delta=1e-5) == pytest.approx(expected, rel=1e-6)
    with pytest.raises(NotApplicable, match="replaced persons"):
        three.unit_loss(Gaussian(2.0, relation="replace"))
    with pytest.raises(InvalidValue, match="loss"):
        three.unit_loss(1.0)


def test_the_hash_is_stable():
    # A certificate of an older version must still name the same schema.
    assert schema(expected_rows=1000).content_hash == (
        "083f1c62ab529b34cbd5e63d80422e61e7a017670fac8fa492a7900072510c4c"
    )


def test_the_hash_tells_every_declaration_apart():
    columns = {"age": AGE, "ill": ILL}
    variants = [
        schema(),
        schema(target=None),
        schema(target="age"),
        schema(columns=dict(reversed(columns.items()))),
        schema(columns=columns | {"age": Integer(17, 91)}),
        schema(columns=columns | {"age": Integer(16, 90)}),
        schema(columns=columns | {"age": Integer(17, 90, missing=53)}),
        schema(columns=columns | {"age": Real(17, 90)}),
        schema(columns=columns | {"age": Integer()}),
        schema(columns=columns | {"ill": Categorical(["no", "yes"], other="no")}),
        schema(columns=columns | {"ill": Categorical(["yes", "no"], other="yes")}),
        schema(columns=columns | {"ill": Categorical(["yes", "no"], other="no", missing="yes")}),
        schema(columns=columns | {"ill": Boolean()}),
        schema(columns=columns | {"ill": Boolean(missing=True)}),
        schema(person="who", rows_per_person=1),
        schema(person="who", rows_per_person=2),
        schema(person="whom", rows_per_person=2),
        schema(expected_rows=10),
        schema(csv=CsvFormat(delimiter=";")),
        schema(csv=CsvFormat(quoted_newlines=True)),
        schema(csv=CsvFormat(names=["age", "ill"])),
    ]
    assert len({variant.content_hash for variant in variants}) == len(variants)
    assert len(set(variants)) == len(variants)
    assert schema() == schema()
    assert schema() != "schema"
    assert hash(schema()) == hash(schema())


def test_schemas_survive_copies_and_processes():
    made = schema(person="who", rows_per_person=2)
    assert copy.deepcopy(made) == made
    assert pickle.loads(pickle.dumps(made)) == made
