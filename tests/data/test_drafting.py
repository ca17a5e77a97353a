"""Schemas from names, types and codebooks: nothing of the cells decides anything."""

import datetime as dt
import json

import numpy as np
import pytest

from discreet.data import Boolean, Categorical, CsvFormat, Date, Integer, Real, Schema, draft_schema
from discreet.errors import FileUnusable, InvalidValue

HEADING = "age,bmi,ward,born_date,is_smoker\n"


def written(tmp_path, body, name="people.csv", heading=HEADING):
    path = tmp_path / name
    path.write_text(heading + body, encoding="utf-8")
    return path


def test_cells_of_a_file_decide_nothing(tmp_path):
    one = written(tmp_path, "38,21.5,north,1980-01-01,yes\n", "a.csv")
    two = written(tmp_path, "old,?,7,never,1e9\n" * 3, "b.csv")
    none = written(tmp_path, "", "c.csv")
    drafts = [draft_schema(path) for path in (one, two, none)]
    assert drafts[0] == drafts[1] == drafts[2]
    kinds = {name: column.kind for name, column in drafts[0].schema.columns.items()}
    assert kinds == {
        "age": "integer",
        "bmi": "categorical",
        "ward": "categorical",
        "born_date": "date",
        "is_smoker": "boolean",
    }
    assert drafts[0].guessed == tuple(kinds)
    assert drafts[0].schema.incomplete == ("age", "bmi", "ward", "born_date")


def test_declared_types_are_taken_and_pandas_is_not_believed():
    import pandas as pd
    import pyarrow as pa

    arrow = pa.table({"bmi": [1.5], "ward": ["n"], "day": pa.array([dt.date(2020, 1, 1)])})
    draft = draft_schema(arrow)
    assert [one.kind for one in draft.schema.columns.values()] == ["real", "categorical", "date"]
    assert draft.guessed == ("ward",)
    # What pandas inferred from cells is no declaration.
    assert draft_schema(pd.DataFrame({"bmi": [1.5]})).guessed == ("bmi",)
    assert draft_schema({"bmi": np.array([True])}).schema.columns["bmi"] == Boolean()


@pytest.mark.parametrize("form", ["csv", "json", "mapping"])
def test_a_codebook_says_what_is_public(tmp_path, form):
    facts = {
        "age": {"type": "integer", "bounds": [18, 95], "missing": 40},
        "bmi": {"type": "real", "bounds": [10.0, 60.0]},
        "ward": {"type": "categorical", "categories": ["north", "south"], "other": "elsewhere"},
        "born_date": {"type": "date", "bounds": ["1900-01-01", "2020-12-31"]},
    }
    book = tmp_path / "book.json"
    book.write_text(json.dumps(facts), encoding="utf-8")
    if form == "csv":
        book = tmp_path / "book.csv"
        book.write_text(
            "name,type,lower,upper,categories,other,missing\n"
            "age,integer,18,95,,,40\nbmi,real,10,60,,,\n"
            "ward,categorical,,,north | south,elsewhere,\n"
            "born_date,date,1900-01-01,2020-12-31,,,\n",
            encoding="utf-8",
        )
    path = written(tmp_path, "")
    draft = draft_schema(path, codebook=facts if form == "mapping" else book, expected_rows=900)
    assert draft.guessed == ("is_smoker",)
    assert draft.schema.columns == {
        "age": Integer(18, 95, missing=40),
        "bmi": Real(10, 60),
        "ward": Categorical(["north", "south"], other="elsewhere"),
        "born_date": Date(dt.date(1900, 1, 1), dt.date(2020, 12, 31)),
        "is_smoker": Boolean(),
    }
    assert Schema.from_toml(draft.to_toml()) == draft.schema
    assert draft.open_lines() == ["the schema is complete: nothing has to be learned"]


def test_answers_are_asked_again_until_they_can_be(tmp_path):
    answers = {
        "age": ["whole", "integer", "18", "95 18", "18 95"],
        "bmi": ["real", ""],
        "ward": ["", "north, south,"],
        "born_date": ["", "1900-01-01 2020-13-31", "1900-01-01 2020-12-31"],
        "is_smoker": ["categorical", "yes, no"],
        "": ["many", "10_000"],
    }
    draft = draft_schema(
        written(tmp_path, ""), target="is_smoker", ask=lambda name, _: answers[name].pop(0)
    )
    assert not any(answers.values())
    assert draft.schema.columns["age"] == Integer(18, 95)
    assert draft.schema.columns["is_smoker"] == Categorical(["yes", "no"], other="yes")
    assert draft.schema.incomplete == ("bmi",)
    assert draft.guessed == ("ward", "born_date")
    assert draft.schema.expected_rows == 10_000


def test_what_is_open_and_guessed_is_marked_with_its_cost(tmp_path):
    draft = draft_schema(written(tmp_path, ""), target="ward")
    text = draft.to_toml()
    assert Schema.from_toml(text) == draft.schema
    before = text.split("[columns.age]")[0]
    assert "guess" in before
    assert "declare bounds" in before
    assert "expected_rows" in before
    lines = draft.open_lines(epsilon=2.0, share=0.5)
    assert "4 of 5 columns are open: age, bmi, ward, born_date" in lines[0]
    assert "epsilon 1 on them, 0.25 each" in lines[1]
    assert any(line.startswith("ward: a category") for line in lines)


def test_a_record_in_the_first_line_is_not_shown(tmp_path):
    path = written(tmp_path, "", heading="38,21.5,Smith\n")
    with pytest.raises(InvalidValue, match="first line of names") as error:
        draft_schema(path)
    assert "Smith" not in str(error.value)
    named = CsvFormat(names=("age", "bmi", "who"))
    assert list(draft_schema(path, csv_format=named).schema.columns) == ["age", "bmi", "who"]


def test_wrong_arguments_are_named(tmp_path):
    path = written(tmp_path, "")
    with pytest.raises(InvalidValue, match="codebook = 'height'"):
        draft_schema(path, codebook={"height": {"type": "real"}})
    with pytest.raises(InvalidValue, match=r"codebook\.age\.type"):
        draft_schema(path, codebook={"age": {"type": "number"}})
    with pytest.raises(InvalidValue, match="target"):
        draft_schema(path, target="nobody")
    with pytest.raises(FileUnusable, match="codebook"):
        draft_schema(path, codebook=tmp_path / "none.csv")
    (tmp_path / "odd.csv").write_text("name,kind\nage,real\n", encoding="utf-8")
    with pytest.raises(InvalidValue, match="columns name, type"):
        draft_schema(path, codebook=tmp_path / "odd.csv")
    with pytest.raises(InvalidValue, match="data"):
        draft_schema(np.zeros((3, 2)))
