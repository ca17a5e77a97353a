"""A Parquet file with a cell of every kind that has ever made two engines disagree."""

import datetime as dt
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from discreet.data import Boolean, Categorical, Date, Integer, Real, Schema

DOUBLES = [
    0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 0.49999999999999994, 1e300, -1e300, 5e-324, np.nan,
    np.inf, -np.inf, None, 120.0, 120.5, 119.5, 2.0**52 + 1, 2.0**53, 1 / 3, 999999.9999999999,
]  # fmt: skip
TEXTS = [
    "1", " 2 ", "\t3\n", "\x0b4\x0c", "5.", ".5", "+6", "-7e0", "1e999", "-1E999", "1e-999", "inf",
    "-Infinity", "NaN", "", "   ", None, "1_000", "0x10", "1d", "2f", "1e", "e1", ".", "+", "--1",
    "12\u2028", "12 ", "\uff11\uff12", "\u0130nf", "\u0131nf", "0.1",
    "123456789012345678901234567890", "9" * 399, "9" * 401, "v1", "f2", "vff", "x\x00y", "3.0",
    "3.00", "3.01", "03", "Oslo", " Oslo\x0b", "oslo", "O'slo", "O\\slo", "%", "_", "é'", "é",
    "e\u0301", "\U0001d538", "\u202e", "true", "TRUE", "Yes", "no", "t", "2020-02-29",
    "2020-02-30", "2020-07-01T25:99", "2020-07-01 x", "2020-07-01x", "2020-7-1", "0000-01-01",
    "9999-12-31", "20200701", "other", "none", "a" * 100, "a" * 101, "\U0001d538" * 100,
]  # fmt: skip

COLUMNS = {
    "double_real": Real(-10.0, 1000.0),
    "double_integer": Integer(-5, 120, missing=7),
    "double_label": Categorical(["0", "1", "0.5", "120"]),
    "float_real": Real(0.0, 1e-3, missing=1e-4),
    "long": Integer(-(2**53), 2**53),
    "long_label": Categorical(["1", "-7"]),
    "decimal": Real(-100.0, 1e9),
    "text_real": Real(-1e6, 1e12),
    "text_integer": Integer(0, 1000),
    "text_label": Categorical(["Oslo", "3", "O'slo", "O\\slo", "é'", "+6"], missing="none"),
    "text_date": Date(dt.date(2019, 1, 1), dt.date(2020, 12, 31)),
    "text_truth": Boolean(missing=True),
    "text": Categorical(),
    "day": Date(dt.date(2019, 1, 1), dt.date(2020, 12, 31)),
    "moment": Date(dt.date(2019, 1, 1), dt.date(2020, 12, 31)),
    "truth": Boolean(),
    "truth_number": Integer(0, 3),
}
NASTY = Schema(COLUMNS, person="who", rows_per_person=2)


def day_and_hour(year: int, month: int, day: int, hour: int) -> dt.datetime:
    """A moment without a time zone, as files have them."""
    return dt.datetime(year, month, day, hour, 59, 59, tzinfo=dt.UTC).replace(tzinfo=None)


def write_nasty(path: Path, *, rows: int = 300, seed: int = 11) -> None:
    """Write the file; its content depends on the seed alone."""
    draw = np.random.default_rng(seed)

    def some(values: list) -> list:  # type: ignore[type-arg]
        return [values[at] for at in draw.integers(0, len(values), rows)]

    days = [
        None,
        dt.date(1, 1, 1),
        dt.date(2020, 2, 29),
        dt.date(2500, 1, 1),
        dt.date(1969, 12, 31),
    ]
    moments = [None, day_and_hour(2020, 2, 29, 23), day_and_hour(1969, 12, 31, 23)]
    longs = [None, 0, 1, -7, 2**53 + 1, -(2**63), 2**63 - 1, 55]
    decimals = [
        None,
        Decimal("0.10"),
        Decimal("-3.33"),
        Decimal("99999999.99"),
        Decimal("1234567.89"),
    ]
    people = ["a", " a ", "b", "", None, "\U0001d538", "c'\\", "\x0bb", "a\u2028", *"defghijk"]
    table = pa.table(
        {
            "double_real": pa.array(some(DOUBLES), pa.float64()),
            "double_integer": pa.array(some(DOUBLES), pa.float64()),
            "double_label": pa.array(some(DOUBLES), pa.float64()),
            "float_real": pa.array(some([0.0, 1e-4, 1e-5, None, np.nan, 1.0]), pa.float32()),
            "long": pa.array(some(longs), pa.int64()),
            "long_label": pa.array(some(longs), pa.int64()),
            "decimal": pa.array(some(decimals), pa.decimal128(12, 2)),
            "text_real": pa.array(some(TEXTS), pa.string()),
            "text_integer": pa.array(some(TEXTS), pa.string()),
            "text_label": pa.array(some(TEXTS), pa.string()),
            "text_date": pa.array(some(TEXTS), pa.string()),
            "text_truth": pa.array(some(TEXTS), pa.string()),
            "text": pa.array(some(TEXTS), pa.string()),
            "day": pa.array(some(days), pa.date32()),
            "moment": pa.array(some(moments), pa.timestamp("us")),
            "truth": pa.array(some([True, False, None]), pa.bool_()),
            "truth_number": pa.array(some([True, False, None]), pa.bool_()),
            "who": pa.array(some(people), pa.string()),
        }
    )
    pq.write_table(table, path)
