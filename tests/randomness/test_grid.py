"""Noise on a grid: exact rounding, its sensitivity, exact addition, outputs on the grid only."""

from __future__ import annotations

import itertools
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from discreet.errors import InvalidValue
from discreet.randomness import (
    default_granularity,
    gaussian_on_grid,
    laplace_on_grid,
    round_to_grid,
    sensitivity_on_grid,
    source,
)
from randomness.goodness import REJECT
from randomness.scripted_source import ScriptedSource

FINITE = st.floats(allow_nan=False, allow_infinity=False)
EXPONENT = st.integers(-60, 60)


def slow_round(value: float, granularity: Fraction) -> int:
    return math.floor(Fraction(value) / granularity + Fraction(1, 2))


@given(values=st.lists(FINITE, min_size=1, max_size=5), exponent=EXPONENT)
def test_rounding_is_exact(values: list[float], exponent: int) -> None:
    g = Fraction(2) ** exponent
    expected = [slow_round(value, g) for value in values]
    assert round_to_grid(values, granularity=g).tolist() == expected
    assert [round_to_grid(value, granularity=g) for value in values] == expected


@given(values=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1), exponent=EXPONENT)
def test_integers_are_rounded_exactly(values: list[int], exponent: int) -> None:
    g = Fraction(2) ** exponent
    array = np.array(values, dtype=np.int64)
    expected = [math.floor(value / g + Fraction(1, 2)) for value in values]
    assert round_to_grid(array, granularity=g).tolist() == expected


def test_rounding_at_the_awkward_places() -> None:
    below_half = math.nextafter(0.5, 0)
    values = [below_half, -below_half, 0.5, -0.5, 2.0**52 + 0.5, 5e-324, -5e-324, -0.0]
    assert round_to_grid(values, granularity=1).tolist() == [0, 0, 1, 0, 2**52, 0, 0, 0]
    assert round_to_grid(np.array([2**64 - 1], dtype=np.uint64), granularity=1).tolist() == [
        2**64 - 1
    ]
    assert round_to_grid(np.array([]), granularity=1).tolist() == []


@given(a=st.floats(-1e6, 1e6), shift=st.floats(-50, 50), exponent=st.integers(-12, 6))
def test_one_number_stays_within_the_sensitivity_on_the_grid(
    a: float, shift: float, exponent: int
) -> None:
    g = Fraction(2) ** exponent
    b = a + shift
    distance = abs(Fraction(a) - Fraction(b))
    moved = abs(round_to_grid(a, granularity=g) - round_to_grid(b, granularity=g))
    if distance:
        assert moved <= sensitivity_on_grid(distance, granularity=g)
    else:
        assert moved == 0


@given(
    a=st.lists(st.floats(-100, 100), min_size=4, max_size=4),
    b=st.lists(st.floats(-100, 100), min_size=4, max_size=4),
    exponent=st.integers(-6, 6),
)
def test_vectors_stay_within_the_sensitivity_on_the_grid(
    a: list[float], b: list[float], exponent: int
) -> None:
    g = Fraction(2) ** exponent
    moves = [
        abs(int(x) - int(y))
        for x, y in zip(
            round_to_grid(a, granularity=g), round_to_grid(b, granularity=g), strict=True
        )
    ]
    gaps = [abs(Fraction(x) - Fraction(y)) for x, y in zip(a, b, strict=True)]
    if any(gaps):
        l1 = sensitivity_on_grid(sum(gaps), granularity=g, coordinates=4)
        assert sum(moves) <= l1
        l2 = Fraction(math.isqrt(int(sum(x * x for x in gaps) * 2**80)) + 1, 2**40)
        bound = sensitivity_on_grid(l2, granularity=g, norm="l2", coordinates=4)
        assert sum(x * x for x in moves) <= bound**2


def test_the_bounds_are_reached() -> None:
    """They are not merely safe: each is attained, or approached, by some pair of inputs."""
    assert sensitivity_on_grid(1, granularity=1) == 1
    assert sensitivity_on_grid("1.25", granularity=1) == 2
    assert round_to_grid(1.5, granularity=1) - round_to_grid(0.25, granularity=1) == 2
    tiny = Fraction(1, 1000)
    many = sensitivity_on_grid(5 * tiny, granularity=1, coordinates=5)
    assert many == 5
    high, low = [0.5] * 5, [0.5 - 0.001] * 5
    moved = round_to_grid(high, granularity=1) - round_to_grid(low, granularity=1)
    assert moved.sum() == many
    l2 = sensitivity_on_grid(2, granularity=1, norm="l2", coordinates=5)
    assert 2 + math.sqrt(5) <= float(l2) <= 2 + math.sqrt(5) + 1e-11
    assert sensitivity_on_grid(3, granularity=1, coordinates=5, values_on_grid=True) == 3
    assert sensitivity_on_grid("2.5", granularity=1, norm="l2", values_on_grid=True) == Fraction(
        5, 2
    )


def test_ties_to_even_would_break_the_bound() -> None:
    """The mutant: rounding half to even moves two inputs at distance one two steps apart."""
    assert abs(np.rint(1.5) - np.rint(0.5)) == 2 > sensitivity_on_grid(1, granularity=1)
    assert round_to_grid(1.5, granularity=1) - round_to_grid(0.5, granularity=1) == 1


@pytest.mark.parametrize("noise", [1, 10, "1/3", 2**30, 1e-9])
def test_default_granularity_is_the_power_of_two_below(noise: object) -> None:
    g = default_granularity(noise)
    exact = Fraction(str(noise))
    assert exact / 2**41 < g <= exact / 2**40
    assert g.numerator == 1 or g.denominator == 1


def test_outputs_lie_on_the_grid_and_add_exactly() -> None:
    g = Fraction(1, 2**20)
    values = np.array([0.1, -7.3, 1e6])
    for mechanism, name in ((laplace_on_grid, "scale"), (gaussian_on_grid, "stddev")):
        noisy = mechanism(values, granularity=g, source=source(insecure_seed=1), **{name: 2})
        again = mechanism(values + 5, granularity=g, source=source(insecure_seed=1), **{name: 2})
        assert noisy.steps.dtype == np.int64
        assert noisy.granularity == g
        scaled = noisy.values * 2.0**20
        assert (scaled == noisy.steps).all()
        # Same bits, input five higher: exactly five higher, whatever the value.
        assert (again.steps - noisy.steps).tolist() == [5 * 2**20] * 3


def test_the_set_of_outputs_does_not_depend_on_the_input() -> None:
    """The precision attack: with float noise 0 and 1/3 reach different last bits. Not here."""
    for value in (0.0, 1 / 3, 0.1, -7.7):
        noisy = laplace_on_grid(np.full(2000, value), scale=1, source=source(insecure_seed=2))
        scaled = noisy.values / float(noisy.granularity)
        assert (scaled == np.floor(scaled)).all()
        naive = value + np.random.default_rng(1).laplace(size=2000)
        finer = naive / float(noisy.granularity)
        assert (finer != np.floor(finer)).mean() > 0.5


@pytest.mark.parametrize("value", [3.7, -1e-3, 12345.678])
def test_distribution_around_the_value(value: float) -> None:
    laplace = laplace_on_grid(np.full(100_000, value), scale=2, source=source(insecure_seed=3))
    gaussian = gaussian_on_grid(np.full(100_000, value), stddev=2, source=source(insecure_seed=3))
    assert stats.kstest((laplace.values - value) / 2, "laplace").pvalue > REJECT
    assert stats.kstest((gaussian.values - value) / 2, "norm").pvalue > REJECT
    assert stats.kstest((gaussian.values - value) / 2.1, "norm").pvalue < REJECT


def test_single_numbers_of_every_kind() -> None:
    seeds = itertools.repeat(4)
    for value in (5, Fraction(5), Decimal(5), 5.0, np.float32(5), np.int64(5), np.array(5.0)):
        noisy = laplace_on_grid(value, scale=1, source=source(insecure_seed=next(seeds)))
        assert isinstance(noisy.steps, int)
        assert noisy.values == laplace_on_grid(5, scale=1, source=source(insecure_seed=4)).values


def test_huge_values_need_no_error() -> None:
    """Values beyond 64 bits of steps take a slower path to the same answer."""
    noisy = laplace_on_grid([1e300, -1e300, 0.0], scale=1, source=source(insecure_seed=5))
    assert noisy.steps.dtype == object
    assert noisy.values.tolist()[:2] == [1e300, -1e300]
    one = laplace_on_grid(1.7e308, scale="1e300", granularity=Fraction(2) ** 900)
    assert one.values > 1.6e308
    small = gaussian_on_grid(1e10, stddev=Fraction(1, 2**900), granularity=Fraction(1, 2**940))
    assert small.values == 1e10


@pytest.mark.parametrize(
    "values",
    [
        math.nan,
        math.inf,
        [1.0, math.nan],
        [1.0, -math.inf],
        True,
        [True],
        "3",
        None,
        [[1.0], [1.0, 2.0]],
        1j,
        Decimal("NaN"),
        np.array(["a"]),
    ],
    ids=repr,
)
def test_bad_values_draw_nothing_and_are_not_shown(values: object) -> None:
    script = ScriptedSource()
    for mechanism, name in ((laplace_on_grid, "scale"), (gaussian_on_grid, "stddev")):
        with pytest.raises(InvalidValue, match="values = 'withheld'"):
            mechanism(values, source=script, **{name: 1})
    assert script.used == 0


@pytest.mark.parametrize(
    "granularity", [0, -1, 3, 0.1, "1/3", math.nan, math.inf, True, 2.0**-1010]
)
def test_bad_granularity(granularity: object) -> None:
    script = ScriptedSource()
    with pytest.raises(InvalidValue, match="granularity"):
        laplace_on_grid(1.0, scale=1, granularity=granularity, source=script)
    with pytest.raises(InvalidValue, match="granularity"):
        sensitivity_on_grid(1, granularity=granularity)
    assert script.used == 0


def test_noise_too_wide_for_arrays() -> None:
    script = ScriptedSource()
    with pytest.raises(InvalidValue, match="scale"):
        laplace_on_grid([1.0], scale=1, granularity=2.0**-60, source=script)
    with pytest.raises(InvalidValue, match="stddev"):
        gaussian_on_grid([1.0], stddev=1, granularity=2.0**-60, source=script)
    assert script.used == 0
    assert isinstance(laplace_on_grid(1.0, scale=1, granularity=2.0**-60).steps, int)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("norm", {"norm": "l3"}),
        ("coordinates", {"coordinates": 0}),
        ("coordinates", {"coordinates": 1.0}),
        ("values_on_grid", {"values_on_grid": 1}),
    ],
)
def test_bad_sensitivity_options(name: str, options: dict[str, object]) -> None:
    with pytest.raises(InvalidValue, match=name):
        sensitivity_on_grid(1, granularity=1, **options)
