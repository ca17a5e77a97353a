"""Which records are equal (S28): by value, to the last digit."""

import datetime as dt
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from discreet.attacks._records import describe_form, record_digests, value_bytes
from discreet.errors import InvalidValue

ZERO = np.array([0])


def cell(value: Any) -> np.ndarray:
    """One record of one cell beside a word."""
    row = np.empty((1, 2), dtype=object)
    row[0, 0], row[0, 1] = value, "word"
    return row


def changed(values: Any, place: int, value: Any) -> Any:
    other = values.copy()
    other[place] = value
    return other


LONG = np.arange(5000.0)
DIFFERENT = (
    (LONG, changed(LONG, 2500, -1.0)),
    (np.array([0.123456789012]), np.array([0.123456789013])),
    (2**60, 2**60 + 1),
    (10**400, 10**400 + 1),
    (2**53, float(2**53) + 2),
    ("1", 1),
    ("a", b"a"),
    ([1, 2], [12]),
    (["ab", "c"], ["a", "bc"]),
    ([LONG, 1], [changed(LONG, 2500, -1.0), 1]),
    ({"a": LONG}, {"a": changed(LONG, 2500, -1.0)}),
    (torch.arange(5000.0), torch.tensor(changed(LONG, 2500, -1.0))),
    (np.arange(6).reshape(2, 3), np.arange(6).reshape(3, 2)),
    (pd.Timestamp("2020-01-01"), pd.Timestamp("2020-01-01 00:00:00.000000001")),
    (np.datetime64("2020-01-01"), np.datetime64("2020-01-02")),
    (dt.date(2020, 1, 1), dt.date(2020, 1, 2)),
    (1 + 2j, 1 + 3j),
    (None, float("nan")),
)
EQUAL = (
    (1, 1.0),
    (True, np.int8(1)),
    (np.float32(0.5), 0.5),
    (0.0, -0.0),
    (float("nan"), np.float32("-nan")),
    (2**60, float(2**60)),
    (2**60, np.uint64(2**60)),
    (np.array([1, 2]), np.array([1.0, 2.0])),
    ({"a": 1, "b": 2}, {"b": 2.0, "a": 1}),
    (np.array(["a", "b"]), np.array(["a", "b"], dtype=object)),
    (np.str_("a"), "a"),
)


@pytest.mark.parametrize(("one", "two"), DIFFERENT)
def test_different_values_are_told_apart(one: Any, two: Any) -> None:
    assert record_digests(cell(one), ZERO) != record_digests(cell(two), ZERO)
    assert record_digests(cell(one), ZERO) == record_digests(cell(one), ZERO)


@pytest.mark.parametrize(("one", "two"), EQUAL)
def test_equal_values_are_equal_in_any_format(one: Any, two: Any) -> None:
    assert record_digests(cell(one), ZERO) == record_digests(cell(two), ZERO)


def test_data_of_other_types_have_another_form() -> None:
    """A model may treat them differently: what is kept under a fingerprint is more strict."""
    one = np.arange(4.0)[:, None]
    forms = [one, one.astype(np.float32), one.astype(int), one.T, torch.from_numpy(one).float()]
    assert len({describe_form(form) for form in forms}) == 4
    frames = [pd.DataFrame({"a": [1]}), pd.DataFrame({"b": [1]}), pd.DataFrame({"a": [1.0]})]
    assert len({describe_form(frame) for frame in frames}) == 3


def test_tables_of_numbers_are_arrays_of_numbers() -> None:
    rows = [[1, 2.5], [2**53, -0.0], [2**63 + 1, 1], [-(2**62) - 1, 0]]
    table = np.array(rows, dtype=object)
    digests = record_digests(table, np.zeros(4, dtype=np.int64))
    assert len(set(digests.tolist())) == 4
    for place, row in enumerate(rows[:2]):
        assert digests[place] == record_digests(np.array([row]), ZERO)[0]
    large = np.array([rows[2]], dtype=np.uint64)
    assert digests[2] == record_digests(large, ZERO)[0]
    assert digests[3] == record_digests(np.array([rows[3]], dtype=np.int64), ZERO)[0]
    assert digests[2] != record_digests(large.astype(np.float64), ZERO)[0]


def test_large_integers_of_arrays_are_told_apart() -> None:
    close = np.array([[2**53], [2**53 + 1], [2**53 + 2]])
    digests = record_digests(close, np.zeros(3, dtype=np.int64))
    assert len(set(digests.tolist())) == 3
    as_floats = record_digests(close.astype(np.float64), np.zeros(3, dtype=np.int64))
    assert (digests == as_floats).tolist() == [True, False, True]


def test_what_hides_its_content_is_refused() -> None:
    for hidden in (object(), {1, 2}, slice(3), pd.DataFrame({"a": [1]})):
        with pytest.raises(InvalidValue, match="inside of a record"):
            value_bytes(hidden)
