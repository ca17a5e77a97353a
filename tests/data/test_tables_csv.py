"""CSV files: no bytes are an error, and a row depends on its record alone."""

import csv
import gzip
import io

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from data.made_up_tables import (
    COLUMNS,
    HEADING,
    SCHEMA,
    rows_of,
    slow_rows,
    with_quoted_newlines,
    write,
)
from discreet.data import CsvFormat, Schema, read_table, table_batches
from discreet.data._csv import cut, misshapen, record_blocks, split_cells
from discreet.errors import InvalidValue

LINE = (
    st.binary(max_size=30)
    | st.text('a1," ', max_size=14).map(str.encode)
    | st.lists(
        st.sampled_from(
            [b"17", b"1.5", b"F", b'"M"', b'"', b'""', b" ", b"\xff", b"\x00", b"yes",
             b"2000-01-01", b'"a,b"', b"\xef\xbb\xbf", b"1e999", b"", b"nan", b"\r", b'x"y']
        ),
        max_size=7,
    ).map(b",".join)
).map(lambda line: line.replace(b"\n", b""))  # fmt: skip
LINES = st.lists(LINE, max_size=8)
IN_ONE_FOLDER = settings(
    max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.slow
@IN_ONE_FOLDER
@example([b"\xef\xbb\xbf17,1,F,yes,2000-01-01", b'"', b"18,1,M,no,2000-01-01"])
@example([b"17,1,F,yes,2000-01-01\r", b"\r", b"\r\r", b"1\r2,3,F,y,"])
@given(LINES)
def test_a_row_depends_on_its_line_alone(tmp_path, lines):
    together = rows_of(read_table(write(tmp_path / "all.csv", lines), SCHEMA))
    np.testing.assert_array_equal(together, slow_rows(lines))
    alone = [rows_of(read_table(write(tmp_path / "one.csv", [line]), SCHEMA)) for line in lines]
    np.testing.assert_array_equal(together, np.concatenate([np.empty((0, 5)), *alone]))


def test_a_reader_in_which_a_quote_swallows_lines_would_be_caught():
    # The usual reading of quotes breaks the property above, so the test can see the difference.
    lines = ['"17', "18,1", '19"']
    together = list(csv.reader(lines))
    alone = [row for line in lines for row in csv.reader([line])]
    assert together != alone


@IN_ONE_FOLDER
@example(b"", False)
@example(b"\n\n\n", False)
@example(b'"\n', True)
@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_after_the_heading_are_a_table(tmp_path, body, quoted):
    path = tmp_path / "any.csv"
    path.write_bytes(HEADING + b"\n" + body)
    schema = with_quoted_newlines() if quoted else SCHEMA
    table = read_table(path, schema)
    for name, column in COLUMNS.items():
        values = table.columns[name]
        if hasattr(column, "labels"):
            assert np.isin(values, np.arange(len(column.labels))).all()
        else:
            assert ((values >= column.bounds[0]) & (values <= column.bounds[1])).all()
    assert table.rows <= body.count(b"\n") + 1


CELL = st.text(st.sampled_from('ab,"\n\r 1.é'), max_size=6).map(lambda text: text.replace("\r", ""))


@settings(max_examples=100)
@given(st.lists(st.lists(CELL, min_size=3, max_size=3), max_size=6), st.integers(1, 40))
def test_files_of_a_proper_writer_come_back(rows, block_bytes):
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    stream = io.BytesIO(text.getvalue().encode())
    back = [
        [cell.decode() for cell in split_cells(block.record(at), b",")]
        for block in record_blocks(stream, quoted_newlines=True, block_bytes=block_bytes)
        for at in range(len(block.starts))
    ]
    assert back == rows


def records(data, **options):
    blocks = record_blocks(io.BytesIO(data), **options)
    return [block.record(at) for block in blocks for at in range(len(block.starts))]


@settings(max_examples=150)
@given(
    st.binary(max_size=60) | st.text('a,"\n\r', max_size=60).map(str.encode),
    st.booleans(),
    st.integers(1, 9),
    st.integers(1, 12),
)
def test_blocks_do_not_show(data, quoted, block_bytes, longest):
    options = {"quoted_newlines": quoted, "longest": longest}
    expected = slow_records(data, quoted=quoted, longest=longest)
    assert records(data, **options) == expected
    assert records(data, block_bytes=block_bytes, **options) == expected


def slow_records(data: bytes, *, quoted: bool, longest: int) -> list[bytes]:
    found, record, inside = [], b"", False
    for byte in (*data, None):
        if byte == 34:
            inside = not inside
        if byte is None or (byte == 10 and not (quoted and inside)):
            record = record[:longest]
            record = record[:-1] if record.endswith(b"\r") else record
            found += [record] if record else []
            record, inside = b"", False
        else:
            record += bytes([byte])
    return found


@settings(max_examples=100)
@given(LINES.filter(bool), st.integers(1, 7), st.sampled_from([b",", b";", b" ", b"\t"]))
def test_cutting_in_bulk_is_cutting_line_by_line(lines, width, delimiter):
    data = b"\n".join(line.replace(b",", delimiter) for line in lines)
    for block in record_blocks(io.BytesIO(data), quoted_newlines=False):
        wrong = 0
        columns = cut(block, width=width, delimiter=delimiter, wanted=range(width))
        for at in range(len(block.starts)):
            cells = split_cells(block.record(at), delimiter) + [b""] * width
            wrong += len(cells) != 2 * width
            assert [column[at].as_py() for column in columns] == cells[:width]
        assert misshapen(block, width, delimiter) == wrong


@pytest.mark.parametrize(
    ("record", "cells"),
    [
        (b"a,b", [b"a", b"b"]),
        (b"", [b""]),
        (b",", [b"", b""]),
        (b'"",', [b"", b""]),
        (b'"a""b",c', [b'a"b', b"c"]),
        (b'"a"b,c', [b"ab", b"c"]),
        (b'  "a, b" ,c', [b"a, b ", b"c"]),
        (b'"a,b', [b"a,b"]),
        (b'a"b,"c', [b'a"b', b"c"]),
        (b'"', [b""]),
        (b'"""', [b'"']),
    ],
)
def test_cells_of_awkward_records(record, cells):
    assert split_cells(record, b",") == cells


def test_ragged_lines_quotes_and_odd_bytes(tmp_path):
    lines = [
        b"30,1.5,F,yes,2000-01-01",
        b"30",  # too few cells
        b"30,1.5,F,yes,2000-01-01,more,and more",
        b'"30","1.5","F","yes","2000-01-01"',
        b' 30 , 1.5 , "F" , yes , 2000-01-01 ',
        b"thirty,tall,X,perhaps,someday",
        b"1e999,-1e999,\xff\xfe,\x00,9999-12-31",
        b'30,"1.5',  # a quote that is not closed
    ]
    full = [30.0, 1.5, 0.0, 1.0, 10957.0]
    expected = [
        full,
        [30.0, 1.5, 4.0, 1.0, 0.0],
        full,
        full,
        full,
        [40.0, 1.5, 3.0, 1.0, 0.0],
        [90.0, 0.5, 3.0, 1.0, 18627.0],
        [30.0, 1.5, 4.0, 1.0, 0.0],
    ]
    for end in (b"\n", b"\r\n"):
        table = read_table(write(tmp_path / "t.csv", lines, end=end), SCHEMA)
        assert rows_of(table).tolist() == expected


def test_a_line_of_many_megabytes_is_one_row(tmp_path):
    lines = [b"20,1,F,no,", b"30,1,F,no," + b"x" * (9 << 20), b"40,1,F,no,", b"9" * (6 << 20)]
    ages = read_table(write(tmp_path / "long.csv", lines), SCHEMA).columns["age"]
    assert ages.tolist() == [20, 30, 40, 40]


def test_line_breaks_in_quotes_only_where_declared(tmp_path):
    lines = [b'20,1,"F\nM",no,2000-01-01', b"30,1,F,no,2000-01-01"]
    path = write(tmp_path / "t.csv", lines)
    declared = read_table(path, with_quoted_newlines())
    assert declared.columns["age"].tolist() == [20, 30]
    assert declared.columns["sex"].tolist() == [3, 0]
    # By default a line is a record: the rest of the first one is read as a row of its own.
    assert read_table(path, SCHEMA).columns["age"].tolist() == [20, 40, 30]


def test_headings(tmp_path):
    body = b"\nF,30,2.0\nM,31,1.0\n"
    schema = Schema({"age": COLUMNS["age"], "sex": COLUMNS["sex"]})
    for heading in (b"sex,age,more", b'\xef\xbb\xbf"sex", age ,more', b"\n\r\nsex,age,"):
        (tmp_path / "t.csv").write_bytes(heading + body)
        table = read_table(tmp_path / "t.csv", schema)
        assert table.columns["age"].tolist() == [30, 31]
        assert table.columns["sex"].tolist() == [0, 1]
    named = Schema(schema.columns, csv=CsvFormat(names=("sex", "age", "more")))
    (tmp_path / "t.csv").write_bytes(body[1:])
    assert read_table(tmp_path / "t.csv", named).columns["age"].tolist() == [30, 31]


@pytest.mark.parametrize(
    ("heading", "message"),
    [
        (b"ages,sex", "one column 'age'; it is not there"),
        (b"age,age,sex", "one column 'age'; it is there 2 times"),
        (b"age;sex", "one column 'age'; it is not there"),
        (b"\xff\xfea\x00g\x00e\x00", "it is not there"),
    ],
)
def test_wrong_headings_are_refused_without_showing_them(tmp_path, heading, message):
    (tmp_path / "t.csv").write_bytes(heading + b"\n30,F\n")
    schema = Schema({"age": COLUMNS["age"], "sex": COLUMNS["sex"]})
    with pytest.raises(InvalidValue, match=message) as caught:
        table_batches(tmp_path / "t.csv", schema)  # before the first batch is asked for
    assert "ages" not in str(caught.value)
    assert "30" not in str(caught.value).replace(str(tmp_path), "")


def test_empty_files_are_empty_tables(tmp_path):
    for content in (b"", b"\n\n", b"\xef\xbb\xbf", HEADING, HEADING + b"\n\r\n"):
        (tmp_path / "t.csv").write_bytes(content)
        table = read_table(tmp_path / "t.csv", SCHEMA)
        assert len(table) == 0
        assert rows_of(table).shape == (0, 5)


def test_compressed_files(tmp_path):
    content = HEADING + b"\n30,1.5,F,yes,2000-01-01\n"
    packed = tmp_path / "t.csv.gz"
    packed.write_bytes(gzip.compress(content))
    assert read_table(packed, SCHEMA).columns["age"].tolist() == [30]
    for broken in (b"no gzip at all", gzip.compress(content)[:-9]):
        packed.write_bytes(broken)
        with pytest.raises(InvalidValue, match="gzip"):
            read_table(packed, SCHEMA)


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path):
    path = write(tmp_path / "t.csv", [b"30,1.5,F,yes,2000-01-01"] * 3)
    batches = table_batches(path, SCHEMA, batch_rows=1)
    next(batches)
    write(path, [b"30,1.5,F,yes,2000-01-01"] * 4)
    with pytest.raises(InvalidValue, match="does not change"):
        list(batches)
