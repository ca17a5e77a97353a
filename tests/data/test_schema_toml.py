"""Schemas in TOML: there and back, and errors that name the key."""

import datetime as dt
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.data import Boolean, Categorical, CsvFormat, Date, Integer, Real, Schema
from discreet.errors import InvalidValue, SchemaError

EXAMPLE = """
target = "income"
expected_rows = 30_000

[unit]
person = "patient"
rows_per_person = 4

[csv]
delimiter = ";"
quoted_newlines = true

[columns.age]
type = "integer"
bounds = [17, 90]
missing = 40

[columns."body height"]
type = "real"
bounds = [0.5, 2.5]

[columns.seen]
type = "date"
bounds = [2000-01-01, 2025-12-31]

[columns.smokes]
type = "boolean"
missing = true

[columns.ward]
type = "categorical"

[columns.income]
type = "categorical"
categories = ["<=50K", ">50K"]
other = "<=50K"
"""


def test_a_file_says_what_python_says(tmp_path):
    written = Schema(
        {
            "age": Integer(17, 90, missing=40),
            "body height": Real(0.5, 2.5),
            "seen": Date(dt.date(2000, 1, 1), dt.date(2025, 12, 31)),
            "smokes": Boolean(missing=True),
            "ward": Categorical(),
            "income": Categorical(["<=50K", ">50K"], other="<=50K"),
        },
        target="income",
        person="patient",
        rows_per_person=4,
        expected_rows=30_000,
        csv=CsvFormat(delimiter=";", quoted_newlines=True),
    )
    (tmp_path / "schema.toml").write_bytes(b"\xef\xbb\xbf" + EXAMPLE.encode())
    assert Schema.from_file(tmp_path / "schema.toml") == written
    assert Schema.from_toml(written.to_toml()) == written


LABELS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6).filter(
    lambda text: text.encode() == text.encode().strip(b" \t\n\r\x0b\x0c")
)
NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=6).filter(
    lambda text: text == text.strip()
)


@st.composite
def bounded(draw, kind, values):
    lower, upper = sorted(draw(st.lists(values, min_size=2, max_size=2, unique=True)))
    if draw(st.booleans()):
        return kind()
    missing = draw(st.sampled_from([None, lower, upper]))
    return kind(lower, upper, missing=missing)


COLUMNS = st.one_of(
    bounded(Integer, st.integers(-(2**53), 2**53)),
    bounded(Real, st.floats(-1e300, 1e300).map(lambda x: x + 0.0)),
    bounded(Date, st.dates()),
    st.builds(Boolean, missing=st.booleans()),
    st.builds(
        Categorical,
        st.none() | st.lists(LABELS, unique=True, max_size=4),
        other=LABELS,
        missing=st.none() | LABELS,
    ),
)


@settings(max_examples=60)
@given(
    columns=st.dictionaries(NAMES, COLUMNS, min_size=1, max_size=4),
    rows=st.none() | st.integers(1, 10**9),
    delimiter=st.sampled_from([",", ";", "\t"]),
)
def test_every_schema_comes_back_from_its_toml(columns, rows, delimiter):
    written = Schema(columns, expected_rows=rows, csv=CsvFormat(delimiter=delimiter))
    back = Schema.from_toml(written.to_toml())
    assert back.to_dict() == written.to_dict()
    assert back.content_hash == written.content_hash
    assert list(back.columns) == list(columns)


@pytest.mark.parametrize(
    ("old", "new", "argument"),
    [
        ("[17, 90]", "[90, 17]", "columns.age.upper"),
        ("[17, 90]", "[17]", "columns.age.bounds"),
        ("[17, 90]", "17", "columns.age.bounds"),
        ("[17, 90]", "[17, nan]", "columns.age.upper"),
        ("missing = 40", "missing = 400", "columns.age.missing"),
        ("[0.5, 2.5]", "[0.5, inf]", 'columns."body height".upper'),
        ('"integer"', '"number"', "columns.age.type"),
        ('type = "integer"', "", "columns.age.type"),
        ("2000-01-01", "2000-01-01T00:00:00", "columns.seen.lower"),
        ("missing = true", 'missing = "yes"', "columns.smokes.missing"),
        ('other = "<=50K"', 'other = "neither"', "columns.income.other"),
        ('other = "<=50K"', "", "columns.income.other"),
        ('"<=50K", ">50K"', '">50K", ">50K"', "columns.income.categories"),
        ('target = "income"', 'target = "outcome"', "target"),
        ('target = "income"', "target = 3", "target"),
        ("30_000", "-1", "expected_rows"),
        ("rows_per_person = 4", "rows_per_person = 0", "unit.rows_per_person"),
        ("rows_per_person = 4", "", "unit.rows_per_person"),
        ('person = "patient"', "", "unit.person"),
        ('delimiter = ";"', 'delimiter = ";;"', "csv.delimiter"),
        ("quoted_newlines = true", 'quoted_newlines = "no"', "csv.quoted_newlines"),
    ],
)
def test_wrong_values_are_named_by_their_key(old, new, argument):
    assert old in EXAMPLE
    with pytest.raises(InvalidValue) as caught:
        Schema.from_toml(EXAMPLE.replace(old, new))
    assert caught.value.argument == argument


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("target =", "not valid TOML"),
        ("", "the key columns is missing"),
        ("bounds = 3\n[columns.a]\ntype='boolean'", "bounds is not a key"),
        ("[unit]\nrow = 3\n[columns.a]\ntype='boolean'", "unit.row is not a key"),
        ("[csv]\nquote = 3\n[columns.a]\ntype='boolean'", "csv.quote is not a key"),
        ("[columns.a]\ntype='boolean'\nbounds=[0,1]", "columns.a.bounds is not a key"),
        ("[columns.a]\ntype='integer'\nbound=[0,1]", "columns.a.bound is not a key"),
    ],
)
def test_unknown_and_missing_keys_are_named(text, message):
    with pytest.raises(SchemaError, match=message):
        Schema.from_toml(text)


@pytest.mark.parametrize("text", ["columns = 3", "columns = {a = 3}", "unit = 3"])
def test_a_value_in_the_place_of_a_table_is_refused(text):
    with pytest.raises(InvalidValue, match="a table"):
        Schema.from_toml(text)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InvalidValue, match="No such file"):
        Schema.from_file(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b'target = "\xff"')
    with pytest.raises(InvalidValue, match="UTF-8"):
        Schema.from_file(tmp_path / "latin.toml")
    with pytest.raises(InvalidValue, match="the text of a TOML file"):
        Schema.from_toml(b"")


def test_the_file_in_the_documentation_is_the_schema_in_the_documentation():
    page = (Path(__file__).parents[2] / "docs" / "schema.md").read_text(encoding="utf-8")
    block = re.search(r"```toml\n(.*?)```", page, re.DOTALL)[1]
    shown = re.search(r"content_hash\[:12\].*\n'([0-9a-f]{12})'", page)[1]
    assert Schema.from_toml(block).content_hash.startswith(shown)
