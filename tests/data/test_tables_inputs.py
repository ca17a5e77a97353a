"""CSV, Parquet, data frames, Arrow tables, mappings and matrices say the same."""

import datetime as dt
import enum
import math
import random
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.made_up_tables import COLUMNS, SCHEMA, rows_of, with_quoted_newlines
from discreet.data import (
    Categorical,
    Integer,
    Real,
    Schema,
    Table,
    check_columns,
    column_array,
    date_in_text,
    named_columns,
    read_table,
    table_batches,
)
from discreet.errors import InvalidValue, NotApplicable

ROWS = 500


@pytest.fixture(scope="module")
def frame():
    rng = random.Random(1)

    def some(values):
        return [rng.choice(values) for _ in range(ROWS)]

    return pd.DataFrame(
        {
            "sex": some(["F", "M", " M ", "x", None, "3", "3.0", 'q"', "a,b"]),
            "smokes": some([True, False]),
            "age": some([np.nan, 16.0, 30.0, 30.5, 1e30, -np.inf, np.inf]),
            "ignored": some(["text", "more\ntext"]),
            "height": some([1.5, 0.1, 1 / 3, 1e-310, np.nan, 17.0]),
            "born": pd.to_datetime(some(["1950-02-03", "1890-01-01", None, "2020-12-31"])),
        }
    )


def test_all_kinds_of_input_agree(frame, tmp_path):
    frame.drop(columns="ignored").to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet", index=False, row_group_size=77)
    columns = {name: frame[name].tolist() for name in frame}
    matrix = np.column_stack([frame[name].astype(object) for name in SCHEMA.columns])
    inputs = {
        "frame": frame,
        "csv": tmp_path / "t.csv",
        "csv by text": str(tmp_path / "t.csv"),
        "parquet": tmp_path / "t.parquet",
        "arrow": pa.Table.from_pandas(frame),
        "lists": columns,
        "arrays": {name: frame[name].to_numpy() for name in frame},
        "series": {name: frame[name] for name in frame},
        "matrix": matrix,
        "nullable": frame.astype({"age": "Float64", "smokes": "boolean", "sex": "string"}),
        "categories": frame.astype({"sex": "category"}),
        "dictionary": pa.Table.from_pandas(frame.astype({"sex": "category"})),
    }
    expected = rows_of(read_table(frame, SCHEMA))
    assert expected.shape == (ROWS, 5)
    assert all(np.unique(expected[:, at]).size > 1 for at in range(5))
    for kind, data in inputs.items():
        np.testing.assert_array_equal(rows_of(read_table(data, SCHEMA)), expected, err_msg=kind)
        parts = [rows_of(part) for part in table_batches(data, SCHEMA, batch_rows=37)]
        assert max(map(len, parts)) <= 37
        np.testing.assert_array_equal(np.concatenate(parts), expected, err_msg=kind)


def test_line_breaks_in_ignored_columns_are_declared(frame, tmp_path):
    frame.to_csv(tmp_path / "t.csv", index=False)
    table = read_table(tmp_path / "t.csv", with_quoted_newlines())
    np.testing.assert_array_equal(rows_of(table), rows_of(read_table(frame, SCHEMA)))


ZONE = dt.timezone(dt.timedelta(hours=9))


@pytest.mark.parametrize(
    ("column", "kind", "values", "expected"),
    [
        ("age", pa.int64(), [30, None, 2**62], [30, 40, 90]),
        ("age", pa.int64(), [30, 31], [30, 31]),
        ("age", pa.uint8(), [30, 200], [30, 90]),
        ("age", pa.float16(), [np.float16(30), None], [30, 40]),
        ("age", pa.decimal128(5, 2), [Decimal("30.51"), None], [31, 40]),
        ("age", pa.bool_(), [True, None], [17, 40]),
        ("age", pa.string(), ["30", None, "x"], [30, 40, 40]),
        ("age", pa.large_string(), ["30", None], [30, 40]),
        ("age", pa.string_view(), ["30", None], [30, 40]),
        ("age", pa.binary(), [b"30", b"\xff"], [30, 40]),
        ("age", pa.null(), [None, None], [40, 40]),
        ("sex", pa.int32(), [3, None, 4], [2, 4, 3]),
        ("sex", pa.float64(), [3.0, None, 0.5], [2, 4, 3]),
        ("smokes", pa.int8(), [1, 0, 2, None], [1, 0, 1, 1]),
        ("born", pa.date32(), [dt.date(2000, 1, 1), None], [10957, 0]),
        ("born", pa.date64(), [dt.date(2000, 1, 1), None], [10957, 0]),
        ("born", pa.timestamp("us"), [np.datetime64("2000-01-01T23:00", "us"), None], [10957, 0]),
        (
            "born",
            pa.timestamp("us", "Asia/Tokyo"),
            [dt.datetime(2000, 1, 1, 1, tzinfo=ZONE), None],
            [10957, 0],
        ),
        ("born", pa.date32(), [10**8, -(10**8)], [18627, -25567]),
        ("born", pa.string(), ["2000-01-01", "?"], [10957, 0]),
    ],
    ids=lambda value: str(value) if isinstance(value, pa.DataType | str) else "",
)
def test_types_of_parquet(tmp_path, column, kind, values, expected):
    table = pa.table({column: pa.array(values, kind)})
    schema = Schema({column: COLUMNS[column]})
    assert read_table(table, schema).columns[column].tolist() == expected
    if not pa.types.is_float16(kind):
        pq.write_table(table, tmp_path / "t.parquet")
        assert read_table(tmp_path / "t.parquet", schema).columns[column].tolist() == expected


@pytest.mark.parametrize(
    ("column", "values", "holds"),
    [
        ("age", pa.array([0], pa.date32()), "times"),
        ("age", pa.array([0], pa.duration("ns")), "durations"),
        ("born", pa.array([10957]), "numbers"),
        ("born", np.array([10957]), "numbers"),
        ("born", pl.Series([10957]), "numbers"),
        ("age", np.array([1 + 2j]), "complex numbers"),
        ("age", np.array(["2000-01-01"], "datetime64[D]"), "times"),
        ("age", pl.Series([dt.date(2000, 1, 1)]), "times"),
        ("age", pl.Series([dt.timedelta(1)]), "durations"),
        ("age", pl.Series([[1, 2]]), "lists or records"),
        ("ward", np.array([1.0, np.nan]), "numbers"),
        ("ward", pa.array([True]), "truth values"),
        ("ward", pl.Series([3], dtype=pl.UInt8), "numbers"),
    ],
)
def test_a_declared_type_that_can_only_be_repaired_is_refused(tmp_path, column, values, holds):
    """What a container declares is public; what pandas or a CSV file holds may be one cell's."""
    schema = Schema({column: {**COLUMNS, "ward": Categorical(["north", "south"])}[column]})
    with pytest.raises(InvalidValue, match=f"it holds {holds}"):
        check_columns({column: values}, schema)
    if isinstance(values, pa.Array):
        pq.write_table(pa.table({column: values}), tmp_path / "t.parquet")
        with pytest.raises(InvalidValue, match=f"it holds {holds}"):
            check_columns(tmp_path / "t.parquet", schema)
    cells = pd.Series(values.to_pylist() if isinstance(values, pa.Array) else list(values))
    read_table(pd.DataFrame({column: cells}), schema)


def test_one_cell_of_pandas_changes_no_other_one():
    """A complex number among numbers, or a text among times, changes the type of the column."""
    schema = Schema({"age": COLUMNS["age"], "born": COLUMNS["born"], "sex": COLUMNS["sex"]})
    plain = {"age": [30, 31], "born": [pd.Timestamp("2000-01-01")] * 2, "sex": [3, 3]}
    whole = read_table(pd.DataFrame(plain), schema)
    for odd in (2j, "x", None, pd.Timedelta(1, "ns"), [1], pd.NA, 2.5, True):
        more = {name: [*column, odd] for name, column in plain.items()}
        table = read_table(pd.DataFrame(more), schema)
        for name in plain:
            assert table.columns[name][:2].tolist() == whole.columns[name].tolist()
    delays = pd.DataFrame({"age": [pd.Timedelta(30, "ns")]})
    assert read_table(delays, Schema({"age": COLUMNS["age"]})).columns["age"].tolist() == [40]


def test_times_of_polars_are_read_in_their_own_zone():
    born = pl.Series([dt.datetime(2000, 1, 1, 1, tzinfo=ZONE)]).dt.convert_time_zone("Asia/Tokyo")
    frame = pl.DataFrame({"born": born})
    table = read_table(frame, Schema({"born": COLUMNS["born"]}))
    assert table.columns["born"].tolist() == [10957]


def test_wrong_inputs_are_refused_before_the_first_batch(tmp_path):
    schema = Schema({"age": COLUMNS["age"], "sex": COLUMNS["sex"]})
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 this is no parquet file")
    nested = pa.table({"age": [[1], [2]], "sex": ["F", "M"]})
    twice = pd.DataFrame([[1, 2, "F"]], columns=["age", "age", "sex"])
    pq.write_table(pa.table({"age": [1]}), tmp_path / "narrow.parquet")
    (tmp_path / "folder.csv").mkdir()
    for data, message in [
        (tmp_path / "none.csv", "No such file"),
        (tmp_path / "none.parquet", "No such file"),
        (tmp_path / "t.xlsx", "ending in .csv"),
        (tmp_path / "folder.csv", "a file"),
        (tmp_path / "broken.parquet", "a readable Parquet file"),
        (tmp_path / "narrow.parquet", "one column 'sex'; it is not there"),
        ({"age": [1]}, "one column 'sex'; it is not there"),
        (pd.DataFrame({"age": [1]}), "one column 'sex'; it is not there"),
        (twice, "it is there 2 times"),
        (np.zeros((3, 3)), "2 columns, in the order of the schema"),
        (np.zeros(3), "two dimensions"),
        (pl.DataFrame({"age": [1], "sex": ["F"]}).lazy(), r"call collect\(\)"),
        (3, "the path of a file"),
        ([1, 2], "the path of a file"),
        (nested, "holds single values"),
        ({"age": [1, 2], "sex": ["F"]}, "columns of one length"),
        ({"age": "12", "sex": ["F", "M"]}, "an array or a list"),
        ({"age": np.zeros((2, 2)), "sex": ["F", "M"]}, "one dimension"),
    ]:
        with pytest.raises(InvalidValue, match=message):
            check_columns(data, schema)
        with pytest.raises(InvalidValue, match=message):
            table_batches(data, schema)


def test_wrong_arguments():
    data = {"age": [30]}
    schema = Schema({"age": COLUMNS["age"]})
    with pytest.raises(InvalidValue, match="a Schema"):
        read_table(data, {"age": COLUMNS["age"]})
    with pytest.raises(InvalidValue, match="batch_rows"):
        table_batches(data, schema, batch_rows=0)
    with pytest.raises(InvalidValue, match="choose"):
        table_batches(data, schema, choose="best")
    with pytest.raises(NotApplicable, match="complete_schema"):
        read_table(data, Schema({"age": Integer()}))


def test_empty_inputs_are_empty_tables(tmp_path):
    schema = Schema({"age": COLUMNS["age"], "sex": COLUMNS["sex"]})
    pq.write_table(pa.table({"age": pa.array([], pa.int64()), "sex": pa.array([], pa.string())}),
                   tmp_path / "t.parquet")  # fmt: skip
    for data in (
        {"age": [], "sex": []},
        pd.DataFrame({"age": [], "sex": []}),
        np.empty((0, 2)),
        tmp_path / "t.parquet",
    ):
        table = read_table(data, schema)
        assert table.rows == 0
        assert table.columns["age"].dtype == np.float64
        assert table.columns["sex"].dtype == np.int64


def test_a_table_does_not_show_its_records():
    table = read_table({"age": [31, 32]}, Schema({"age": COLUMNS["age"]}))
    assert isinstance(table, Table)
    assert repr(table) == "Table(age)"


def test_adjacent_frames_differ_in_one_row(frame):
    rows = rows_of(read_table(frame, SCHEMA))
    for gone in (0, 250, ROWS - 1):
        fewer = rows_of(read_table(frame.drop(index=gone), SCHEMA))
        np.testing.assert_array_equal(fewer, np.delete(rows, gone, axis=0))


def test_a_categorical_column_of_whole_floats():
    # A gap turns whole numbers into floats in many tools.
    schema = Schema({"code": Categorical([1, 2, 10]), "x": Real(0, 1)})
    data = {"code": np.array([1.0, np.nan, 10.0, 2.5]), "x": np.zeros(4)}
    assert read_table(data, schema).columns["code"].tolist() == [0, 3, 2, 3]


def test_naming_a_schema_imports_neither_pyarrow_nor_pandas():
    program = (
        "import sys; from discreet.data import Real, Schema, read_table;"
        "assert read_table({'a': [1.0]}, Schema({'a': Real(0, 2)})).rows == 1;"
        "print(*[m for m in ('pyarrow', 'pandas', 'torch', 'sklearn') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""


def test_a_row_group_larger_than_memory_is_read_in_parts(tmp_path):
    rows = 1_000_000
    numbers = np.random.default_rng(5).random(rows)
    table = pa.table(dict.fromkeys("abc", numbers))
    # Random doubles in one row group, neither packed nor coded: 24 MB.
    options = {"row_group_size": rows, "compression": "none", "use_dictionary": False}
    pq.write_table(table, tmp_path / "t.parquet", **options)
    del table
    schema = Schema({name: Real(0, 1) for name in "abc"})
    held, found = [], 0
    before = pa.total_allocated_bytes()
    for batch in table_batches(tmp_path / "t.parquet", schema):
        held.append(pa.total_allocated_bytes() - before)
        np.testing.assert_array_equal(
            batch.columns["b"], numbers[found : found + batch.rows], strict=True
        )
        found += batch.rows
    assert found == rows
    assert max(held) < 12e6


def test_integers_of_128_bits_are_numbers() -> None:
    """numpy has no such type; polars refuses to convert them."""
    wide = pl.DataFrame(
        {
            "age": pl.Series([30, 2**100, None], dtype=pl.Int128),
            "sex": ["F", "M", "F"],
        }
    )
    schema = Schema({"age": Integer(0, 90, missing=50), "sex": Categorical(["F", "M"])})
    assert read_table(wide, schema).columns["age"].tolist() == [30.0, 90.0, 50.0]
    named = Schema({"sex": Categorical(["F", "M"])}, person="age", rows_per_person=1)
    assert len(read_table(wide, named)) == 2


def test_a_name_that_an_arrow_table_has_twice_is_refused_by_name() -> None:
    table = pa.table([[1], [2], ["F"]], names=["age", "age", "sex"])
    columns = named_columns(table)
    assert columns is not None
    assert columns["sex"].to_pylist() == ["F"]
    with pytest.raises(InvalidValue, match=r"data\['age'\] = '2 columns': expected one"):
        column_array("age", columns["age"])


class Stubborn(str):
    """A text whose own methods say nothing sensible."""

    __slots__ = ()

    def encode(self, *words: object) -> bytes:  # type: ignore[override]
        raise RuntimeError("SECRET")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("SECRET")

    __hash__ = None  # type: ignore[assignment]


class Impostor:
    """An object that fails when it is asked what it is."""

    @property
    def __class__(self) -> type:  # type: ignore[override]
        raise RuntimeError("SECRET")


class Sex(enum.StrEnum):
    WOMAN = "F"


@pytest.mark.parametrize("form", [dict, pd.DataFrame])
def test_a_class_of_its_own_makes_no_cell_an_error(form) -> None:
    cells = np.array([Stubborn("F"), Sex.WOMAN, Impostor(), np.str_("F"), "M"], dtype=object)
    schema = Schema({"sex": Categorical(["F", "M"])}, person="who", rows_per_person=5)
    found = read_table(form({"sex": cells, "who": cells}), schema)
    assert found.columns["sex"].tolist() == [0, 0, 0, 1]
    numbers = Schema({"sex": Integer(0, 9, missing=4)})
    ages = np.array([Stubborn("7"), Impostor(), 1], dtype=object)
    assert read_table(form({"sex": ages}), numbers).columns["sex"].tolist() == [7, 4, 1]


@pytest.mark.parametrize("dtype", ["string[pyarrow]", "arrow"])
def test_texts_that_pandas_keeps_in_arrow_need_not_be_utf8(dtype: str) -> None:
    raw = pa.chunked_array([pa.array([b"F", b"\xffSECRET"], pa.binary()).view(pa.string())])
    array = pd.arrays.ArrowExtensionArray(raw) if dtype == "arrow" else pd.array(raw, dtype=dtype)
    frame = pd.DataFrame({"sex": pd.Series(array)})
    schema = Schema({"sex": Categorical(["F", "M"])})
    assert read_table(frame, schema).columns["sex"].tolist() == [0, 2]


def test_what_is_not_utf8_is_no_date() -> None:
    assert math.isnan(date_in_text(b"2020-07-01T\xff"))
    assert date_in_text("2020-07-01T\u00e9".encode()) == 18444.0
