"""Features: the norm is bounded by the schema, whatever the records say."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.made_up_tables import COLUMNS, SCHEMA
from discreet.data import Boolean, Categorical, Encoding, Integer, Real, Schema, read_table
from discreet.errors import InvalidValue, NotApplicable

CELLS = st.none() | st.floats() | st.integers() | st.binary(max_size=5) | st.text(max_size=5)
CELLS |= st.sampled_from(["F", "M", "17", "90", "1.5", "true", "2000-01-01"])


@settings(max_examples=100)
@given(
    st.lists(st.tuples(*[CELLS] * 5), min_size=1, max_size=5),
    st.sampled_from(["symmetric", "unit"]),
    st.sampled_from([np.float32, np.float64]),
)
def test_no_record_is_longer_than_the_bound(records, interval, dtype):
    data = {name: [row[at] for row in records] for at, name in enumerate(COLUMNS)}
    encoding = Encoding(SCHEMA, interval=interval)
    matrix = encoding.features(read_table(data, SCHEMA), dtype=dtype)
    assert matrix.shape == (len(records), encoding.width)
    assert matrix.dtype == dtype
    lowest = -1 if interval == "symmetric" else 0
    assert matrix.min() >= lowest
    assert matrix.max() <= 1
    # Sums of squares in exact arithmetic, against the square of the bound.
    bound = encoding.norm_bound
    for row in matrix.astype(float):
        assert math.fsum(x * x for x in row) <= bound * bound * (1 + 1e-15)
    alone = [
        encoding.features(read_table({k: [v[at]] for k, v in data.items()}, SCHEMA), dtype=dtype)
        for at in range(len(records))
    ]
    np.testing.assert_array_equal(matrix, np.concatenate(alone))


def test_the_bound_is_attained():
    schema = Schema({"a": Real(-3, 5), "b": Boolean(), "c": Categorical(["x", "y"])})
    encoding = Encoding(schema)
    row = encoding.features(read_table({"a": [5], "b": [False], "c": ["y"]}, schema))
    assert row.tolist() == [[1.0, -1.0, 0.0, 1.0, 0.0]]
    assert np.linalg.norm(row) == pytest.approx(encoding.norm_bound, rel=1e-15)
    assert encoding.names == ("a", "b", "c=x", "c=y", "c=other")


@pytest.mark.parametrize("columns", range(1, 60))
def test_the_bound_is_rounded_up(columns):
    schema = Schema({str(at): Real(0, 1) for at in range(columns)})
    assert Encoding(schema).norm_bound ** 2 >= columns * (1 - 1e-16)
    assert Encoding(schema).norm_bound <= math.sqrt(columns) * (1 + 1e-15)


def test_targets():
    columns = {"x": Real(0, 1), "y": Integer(10, 20), "z": Categorical(["n", "p"], other="n")}
    data = {"x": [0.5, 0.5], "y": [15, 99], "z": ["p", "?"]}
    numeric = Schema(columns, target="y")
    encoding = Encoding(numeric)
    table = read_table(data, numeric)
    assert "y" not in encoding.names
    assert encoding.target(table).tolist() == [15, 20]
    labelled = Schema(columns, target="z")
    table = read_table(data, labelled)
    assert Encoding(labelled).target(table).tolist() == [1, 0]
    with pytest.raises(NotApplicable, match="no target"):
        Encoding(SCHEMA).target(read_table({name: [] for name in COLUMNS}, SCHEMA))


def test_refusals():
    with pytest.raises(NotApplicable, match="complete_schema"):
        Encoding(Schema({"a": Real()}))
    with pytest.raises(InvalidValue, match="interval"):
        Encoding(SCHEMA, interval="zscore")
    with pytest.raises(InvalidValue, match="schema"):
        Encoding(COLUMNS)
    with pytest.raises(InvalidValue, match="beside the target"):
        Encoding(Schema({"a": Real(0, 1)}, target="a"))
    other = read_table({"a": [1]}, Schema({"a": Real(0, 1)}))
    with pytest.raises(InvalidValue, match="same schema"):
        Encoding(SCHEMA).features(other)
    with pytest.raises(InvalidValue, match="read_table"):
        Encoding(SCHEMA).features(np.zeros((1, 5)))
    with pytest.raises(InvalidValue, match="float32 or float64"):
        Encoding(other.schema).features(other, dtype=int)


def test_extreme_bounds_do_not_overflow():
    schema = Schema({"a": Real(-8e307, 8e307), "b": Real(1.0, math.nextafter(1.0, 2.0))})
    data = {"a": [-math.inf, 0.0, math.inf], "b": [0, 1.0, 2]}
    matrix = Encoding(schema).features(read_table(data, schema))
    assert matrix.tolist() == [[-1, -1], [0, -1], [1, 1]]
