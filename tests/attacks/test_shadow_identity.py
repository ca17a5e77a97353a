"""When a shadow model may be taken from the cache (S28)."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from discreet.attacks.shadow_identity import data_digest, shadow_name, train_key
from discreet.errors import InvalidValue

RATE = 0.5


def helper(x: float) -> float:
    return x * RATE


def uses_helper(indices: object) -> float:
    return helper(1.0)


def closing_over(value: Any) -> Callable[[object], Any]:
    def train(indices: object) -> Any:
        return value, math.pi

    return train


def test_values_that_a_function_uses_are_part_of_it() -> None:
    assert train_key(closing_over(1)) == train_key(closing_over(1))
    values = [1, 2, 1.0, True, "1", (1, 2), [1, 2], {"a": 1}, np.arange(3), np.arange(4), None]
    assert len({train_key(closing_over(value)) for value in values}) == len(values)


def test_globals_and_functions_of_the_same_module_are_part_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = train_key(uses_helper)
    assert train_key(uses_helper) == before
    monkeypatch.setitem(uses_helper.__globals__, "RATE", 0.25)
    assert train_key(uses_helper) != before


def test_defaults_are_part_of_it() -> None:
    def one(indices: object, rate: float = 0.1) -> float:
        return rate

    before = train_key(one)
    one.__defaults__ = (0.2,)
    assert train_key(one) != before


def test_recursion_ends() -> None:
    def again(count: int) -> int:
        return 0 if count == 0 else again(count - 1)

    assert train_key(again) == train_key(again)


def test_what_cannot_be_told_is_refused() -> None:
    with pytest.raises(InvalidValue, match="value, which train uses, is a object"):
        train_key(closing_over(object()))
    with pytest.raises(InvalidValue, match="is a partial"):
        train_key(partial(uses_helper, 1))
    namespace: dict[str, Any] = {}
    exec("def made(indices): return 1", namespace)
    with pytest.raises(InvalidValue, match="no source"):
        train_key(namespace["made"])
    namespace["made"].key = "declared by hand"
    assert train_key(namespace["made"]) == "declared:declared by hand"


def test_names_depend_on_everything() -> None:
    row = np.array([True, False, True, False])
    names = {
        shadow_name("d", row, 1, "k"),
        shadow_name("e", row, 1, "k"),
        shadow_name("d", ~row, 1, "k"),
        shadow_name("d", np.append(row, False), 1, "k"),
        shadow_name("d", row, 2, "k"),
        shadow_name("d", row, 1, "l"),
    }
    assert len(names) == 6


def test_data_of_all_kinds() -> None:
    import pandas as pd
    import torch

    y = np.array([0, 1])
    x = np.array([[1.0, 2.0], [3.0, 4.0]])
    frame = pd.DataFrame({"a": [1.0, 3.0], "b": ["x", "y"]})
    digests = {
        data_digest(x, y),
        data_digest(x[::-1], y),
        data_digest(x, y[::-1]),
        data_digest(x.astype(np.float32), y),
        data_digest(frame, y),
        data_digest(frame.rename(columns={"a": "c"}), y),
        data_digest(np.array([["a"], ["b"]], dtype=object), y),
    }
    assert len(digests) == 7
    assert data_digest(torch.tensor(x), y) == data_digest(x, y)
