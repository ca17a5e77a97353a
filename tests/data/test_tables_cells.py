"""One cell at a time: the rules, and whole columns that must follow them cell by cell."""

import datetime as dt
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data.made_up_tables import COLUMNS
from discreet.data import (
    Categorical,
    Date,
    Integer,
    RawBatch,
    Real,
    Schema,
    _cells,
    column_array,
    read_table,
)
from discreet.data._cells import numbers_from_array, numbers_from_text

SPELLINGS = [
    b"1", b"-1", b"+1", b" 1\t", b"1.", b".5", b"-.5e-3", b"1e5", b"1E+5", b"007", b"1e999",
    b"-1e999", b"1e-999", b"inf", b"-Infinity", b"NaN", b"", b" ", b".", b"-", b"e5", b"1e",
    b"0x10", b"1_000", b"1,5", b"12 kg", b"\xff", b"\xd9\xa1", b"1\x00", b"1\n", b"1\n2",
    b"9" * 400, b"9" * 401, b"0.1234567890123456789", b"123456789012345678", b"9007199254740993",
    b"F", b"M", b"3", b"3.0", b"+3", b"03", b"3.00", b"unknown", b"other", b"f", b"True", b"no",
    b"1999-12-31", b"1999-12-31T23:59", b"1999-12-31 x", b"1999-02-30", b"0000-01-01", b"1999-1-1",
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (b" 12 ", 12.0),
        (b"-.5e-3", -0.0005),
        (b"1.", 1.0),
        (b"1e999", math.inf),
        (b"-1e999", -math.inf),
        (b"-Infinity", -math.inf),
        (b"9" * 400, math.inf),
    ],
)
def test_numbers(text, number):
    assert _cells.number_in_text(text) == number


@pytest.mark.parametrize(
    "text",
    [b"", b"nan", b"1_0", b"0x1", b"1,5", b"1 2", b"\xd9\xa1", b"\xff1", b"1\x00", b"9" * 401],
)
def test_what_is_no_number_is_missing(text):
    assert math.isnan(_cells.number_in_text(text))


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        (3, 3.0),
        (True, 1.0),
        (10**400, math.inf),
        (Fraction(1, 4), 0.25),
        (Decimal("0.5"), 0.5),
        (Decimal("-1e999"), -math.inf),
        (np.float32(0.5), 0.5),
        (np.int8(-3), -3.0),
        ("7", 7.0),
        (b"7", 7.0),
    ],
)
def test_objects_that_are_numbers(cell, number):
    assert _cells.read_number(cell) == number


def test_numbers_too_long_to_be_written():
    assert _cells.read_number(-(10**5000)) == -math.inf


@pytest.mark.parametrize(
    "cell",
    [None, math.nan, pd.NA, pd.NaT, 1j, [1], {}, object(), Decimal("sNaN"),
     np.datetime64("NaT"), np.array([1, 2])],
)  # fmt: skip
def test_objects_that_are_none_are_missing_in_every_column(cell):
    assert math.isnan(_cells.read_number(cell))
    assert math.isnan(_cells.read_date(cell))
    assert math.isnan(_cells.read_boolean(cell))
    assert _cells.text_of(cell) == b""


def test_dates_and_texts():
    day = 10957.0  # 2000-01-01
    stamp = pd.Timestamp("2000-01-01 23:00", tz="Asia/Tokyo")
    for cell in (dt.date(2000, 1, 1), stamp, np.datetime64("2000-01-01T05:00"), "2000-01-01"):
        assert _cells.read_date(cell) == day
    assert math.isnan(_cells.read_date(10957))
    assert math.isnan(_cells.read_number(dt.date(2000, 1, 1)))
    assert _cells.text_of(dt.date(2000, 1, 1)) == b"2000-01-01"
    assert _cells.text_of(2.0**60) == repr(2.0**60).encode()
    assert _cells.text_of(Decimal(3)) == b"3"
    assert _cells.text_of("\ud800") == b"\xed\xa0\x80"
    assert _cells.text_of(10**5000) == b""  # too long for Python to write


def test_settling_moves_everything_into_the_domain():
    raw = np.array([-math.inf, -1.0, 17.5, 18.5, 1e300, math.inf, math.nan, -0.0])
    assert Integer(17, 90, missing=40).to_domain(raw).tolist() == [17, 17, 18, 18, 90, 90, 40, 17]
    assert Real(0, 1).to_domain(np.array([-0.0, math.nan])).tolist() == [0.0, 0.5]
    assert math.copysign(1, Real(0, 1).to_domain(np.array([-0.0]))[0]) == 1
    assert Integer(0, 1).fill == 0.0  # the middle, rounded to even


def test_categories_other_and_missing():
    plain = Categorical(["a", "b"])
    assert plain.labels == ("a", "b", "other")
    assert plain.to_domain(np.array([plain.read_text(b"zzz"), math.nan])).tolist() == [2, 2]
    inside = Categorical(["a", "b"], other="b", missing="a")
    assert inside.labels == ("a", "b")
    assert inside.to_domain(np.array([inside.read_text(b"zzz"), math.nan])).tolist() == [1, 0]
    named = Categorical(["a"], other="else", missing="none")
    assert [named.read_text(text) for text in (b"a", b"else", b"none", b"?")] == [0, 1, 2, 1]
    assert Categorical([], other="x").labels == ("x",)


def same(first, second):
    np.testing.assert_array_equal(np.asarray(first, float), np.asarray(second, float))


TEXTS = st.lists(
    st.binary(max_size=8)
    | st.sampled_from(SPELLINGS)
    | st.text("0123456789.-+e ", max_size=8).map(str.encode)
    | st.floats().map(lambda x: repr(x).encode()),
    max_size=12,
)


@settings(max_examples=150)
@example(SPELLINGS)
@given(TEXTS)
def test_columns_of_text_follow_the_rule_for_one_cell(texts):
    array = pa.array([b"before", *texts], pa.binary())[1:]  # an array with an offset
    for column in COLUMNS.values():
        one_by_one = [column.read_text(text) for text in texts]
        same(numbers_from_text(array, column), one_by_one)
        same(numbers_from_array(column_array("x", texts), column), one_by_one)
        strings = column_array("x", [text.decode("latin-1") for text in texts])
        same(numbers_from_array(strings, column), [column.read_object(s) for s in strings])
    codes, distinct = RawBatch({"x": array}, len(texts)).texts("x")
    assert [distinct[code] for code in codes] == [text.strip(_cells.BLANKS) for text in texts]


@settings(max_examples=60)
@given(
    st.lists(st.floats(width=32) | st.integers(-5, 5).map(float), max_size=8),
    st.sampled_from(["float64", "float32", "object"]),
)
def test_columns_of_numbers_follow_the_rule_for_one_cell(numbers, kind):
    array = np.array(numbers, dtype=kind)
    for column in COLUMNS.values():
        same(numbers_from_array(array, column), [column.read_object(cell) for cell in array])


@pytest.mark.parametrize(
    "array",
    [
        np.array([1, 0, 3], dtype=np.uint64),
        np.array([2**64 - 1, 3], dtype=np.uint64),
        np.array([True, False]),
        np.array(["1999-12-31", "NaT"], dtype="datetime64[ns]"),
        np.array(["F", " M ", "3.0", "17"]),
        np.array([b"F", b"17"]),
        np.array([1.0, np.inf, -1e300], dtype=np.longdouble),
        np.array([], dtype=float),
    ],
    ids=lambda array: str(array.dtype),
)
def test_arrays_of_other_types_follow_it_too(array):
    for column in COLUMNS.values():
        same(numbers_from_array(array, column), [column.read_object(cell) for cell in array])


def test_times_of_a_zone_that_nobody_knows_count_as_utc():
    """The type of the column decides, so no record can be the reason."""
    seconds = [0, 82_800, None]
    days = Schema({"day": Date(dt.date(1969, 1, 1), dt.date(1971, 1, 1))})

    def read(zone):
        column = pa.array(seconds, pa.int64()).view(pa.timestamp("s", tz=zone))
        return read_table(pa.table({"day": column}), days).columns["day"].tolist()

    assert read("Nowhere/Atall") == read("UTC")
    assert read("Europe/Berlin")[:2] == [0.0, 1.0]
    assert read("UTC")[:2] == [0.0, 0.0]


class Hostile(int):
    def __int__(self):
        raise RuntimeError("a record that wants to be noticed")

    def __float__(self):
        raise RuntimeError("a record that wants to be noticed")

    def __ne__(self, other):
        raise RuntimeError("a record that wants to be noticed")

    __hash__ = int.__hash__


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (Decimal("3.0"), b"3"),
        (Decimal("2.50"), b"2.5"),
        (Decimal("1E+2"), b"100"),
        (Decimal(12345678901234567891), b"12345678901234567891"),
        (Decimal("123456789012345678.91"), b"12345678901234567891/100"),
        (Decimal("1e-999999"), b""),
        (Decimal("NaN"), b""),
        (Fraction(6, 2), b"3"),
        (Fraction(1, 3), b"1/3"),
    ],
)
def test_decimals_and_fractions_keep_their_digits(cell, text):
    assert _cells.text_of(cell) == text


@pytest.mark.parametrize("odd", ["x", 1.5, True, None, 1 + 2j, np.datetime64("9999-01-01")])
def test_an_odd_cell_in_a_column_of_times_changes_no_other(odd):
    """Pandas makes a column of objects of it; before, their times were no days any more."""
    times = [pd.Timestamp("2020-01-01 23:59"), pd.Timestamp("2020-01-02")]
    schema = Schema(
        {"label": Categorical(["2020-01-01", "2020-01-02"]), "day": COLUMNS["born"]},
    )
    read = [
        read_table(pd.DataFrame({"label": cells, "day": cells}), schema).columns
        for cells in (times, [*times, odd])
    ]
    for name in schema.columns:
        np.testing.assert_array_equal(read[1][name][:2], read[0][name])
    assert read[1]["label"][:2].tolist() == [0, 1]


def test_an_object_that_raises_is_missing():
    assert _cells.text_of(Hostile(3)) == b""
    assert np.isnan(_cells.read_number(Hostile(3)))


def test_what_is_masked_is_missing_whatever_lies_below():
    schema = Schema({"age": Integer(0, 9, missing=4), "sex": Categorical(["1", "999"])})
    values = np.ma.array([1, 999, 3], mask=[False, True, False])
    table = read_table({"age": values, "sex": values}, schema)
    assert table.columns["age"].tolist() == [1.0, 4.0, 3.0]
    assert table.columns["sex"].tolist() == [0, 2, 2]
