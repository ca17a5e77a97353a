"""Wrong parameters raise InvalidValue naming them, before a single byte is drawn."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from discreet.errors import InvalidValue
from discreet.randomness import (
    bernoulli,
    bernoulli_exp,
    discrete_gaussian,
    discrete_laplace,
    gaussian_on_grid,
    laplace_on_grid,
    permutation,
    uniform_integers,
)
from randomness.scripted_source import ScriptedSource

NOT_NUMBERS = [math.nan, math.inf, -math.inf, True, None, "x", b"1", [1], 1j, np.array([1.0, 2.0])]

CASES: list[tuple[str, Callable[..., object], list[object]]] = [
    ("scale", discrete_laplace, [0, -1, -0.5, *NOT_NUMBERS]),
    ("variance", discrete_gaussian, [0, -1, -0.5, *NOT_NUMBERS]),
    ("p", bernoulli, [-0.1, 1.1, 2, *NOT_NUMBERS]),
    ("x", bernoulli_exp, [-1, -1e-9, *NOT_NUMBERS]),
    ("below", uniform_integers, [0, -3, 2.0, "5", *NOT_NUMBERS]),
]


@pytest.mark.parametrize("size", [None, 3])
@pytest.mark.parametrize(
    ("name", "draw", "value"),
    [(name, draw, value) for name, draw, values in CASES for value in values],
    ids=lambda part: part.__name__ if callable(part) else str(part),
)
def test_bad_parameters(
    name: str, draw: Callable[..., object], value: object, size: int | None
) -> None:
    script = ScriptedSource()
    with pytest.raises(InvalidValue) as raised:
        draw(value, size, source=script)
    assert raised.value.argument == name
    assert raised.value.value is value
    assert script.used == 0


@pytest.mark.parametrize("size", [-1, 2.0, "3", True, math.nan])
@pytest.mark.parametrize(
    "draw", [discrete_laplace, discrete_gaussian, bernoulli, bernoulli_exp, uniform_integers]
)
def test_bad_sizes(draw: Callable[..., object], size: object) -> None:
    script = ScriptedSource()
    with pytest.raises(InvalidValue, match="size"):
        draw(1, size, source=script)
    with pytest.raises(InvalidValue, match="size"):
        permutation(size, source=script)
    assert script.used == 0


@pytest.mark.parametrize(
    ("draw", "value"),
    [(discrete_laplace, 2**51), (discrete_gaussian, 2**104), (uniform_integers, 2**63 + 1)],
)
def test_what_does_not_fit_64_bits_is_refused_in_bulk(
    draw: Callable[..., object], value: int
) -> None:
    script = ScriptedSource()
    with pytest.raises(InvalidValue):
        draw(value, 3, source=script)
    assert script.used == 0
    assert isinstance(draw(value), int)
    assert draw(value - 1, 3).dtype == np.int64


@pytest.mark.parametrize("noise", [0, -1, *NOT_NUMBERS])
def test_bad_noise_on_the_grid(noise: object) -> None:
    script = ScriptedSource()
    with pytest.raises(InvalidValue, match="scale"):
        laplace_on_grid(1.0, scale=noise, source=script)
    with pytest.raises(InvalidValue, match="stddev"):
        gaussian_on_grid(1.0, stddev=noise, source=script)
    assert script.used == 0


@pytest.mark.parametrize("wrong", [7, "system", np.random.default_rng(1), object()])
def test_only_a_source_is_a_source(wrong: object) -> None:
    for draw in (discrete_laplace, discrete_gaussian, bernoulli, bernoulli_exp, uniform_integers):
        with pytest.raises(InvalidValue, match="source"):
            draw(1, source=wrong)
        with pytest.raises(InvalidValue, match="source"):
            draw(1, 2, source=wrong)
