"""Small tables for the tests of synthesis."""

import datetime as dt
from typing import Any

import numpy as np

from discreet.data import Boolean, Categorical, Date, Integer, Real, Schema

SCHEMA = Schema(
    {
        "age": Integer(0, 99),
        "town": Categorical(["ham", "eton", "ware"], other="elsewhere"),
        "paid": Real(0.0, 1000.0),
        "day": Date(dt.date(2020, 1, 1), dt.date(2022, 12, 31)),
        "ill": Boolean(),
    },
    target="ill",
    expected_rows=3000,
)


def some_rows(count: int, seed: int = 0) -> dict[str, Any]:
    """Rows whose columns depend on one another; a third pay nothing."""
    rng = np.random.default_rng(seed)
    age = rng.integers(0, 100, count)
    ill = rng.random(count) < age / 120
    town = np.array(["ham", "eton", "ware"], dtype=object)[(age // 34).clip(0, 2)]
    paid = np.where(rng.random(count) < 1 / 3, 0.0, rng.gamma(2.0, 60.0, count).round(2))
    day = np.datetime64("2020-01-01") + rng.integers(0, 1000, count)
    return {"age": age, "town": town, "paid": paid, "day": day, "ill": ill}


ODD_TABLES: dict[str, dict[str, Any]] = {
    "empty": some_rows(0),
    "one row": some_rows(1),
    "one class": {**some_rows(50), "ill": np.zeros(50, dtype=bool)},
    "outside": {
        "age": np.array([-5.0, 1e300, np.nan, np.inf] * 5),
        "town": np.array(["atlantis", None, "", "ham"] * 5, dtype=object),
        "paid": np.array([-1.0, np.inf, np.nan, 1e300] * 5),
        "day": np.array(["1066-01-01", "NaT", "2999-01-01", "2021-01-01"] * 5, "datetime64[D]"),
        "ill": np.array(["yes", None, "?", "true"] * 5, dtype=object),
    },
}
