"""Enclosures hold what they promise, judged by mpmath; lazy numbers are decided exactly."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.randomness._discrete import taylor_lower, taylor_upper
from discreet.randomness._enclosure import LazyUniform, exp_negative, rational_bounds
from discreet.randomness._race import certified_log, next_bit_bounds
from randomness.scripted_source import ScriptedSource, words

POSITIVE = st.builds(
    lambda a, b, shift: Fraction(a, b) * Fraction(2) ** shift,
    st.integers(1, 10**20),
    st.integers(1, 10**20),
    st.integers(-80, 12),
)


def true_exp(x: Fraction, bits: int) -> mpmath.mpf:
    with mpmath.workprec(4 * bits + 400):
        return mpmath.ldexp(mpmath.exp(-mpmath.mpf(x.numerator) / x.denominator), bits)


@given(x=POSITIVE, bits=st.integers(1, 400))
def test_exp_is_enclosed_by_two_units(x: Fraction, bits: int) -> None:
    lower, upper = exp_negative(x, bits)
    value = true_exp(x, bits)
    assert lower <= value <= upper
    assert lower >= 0
    assert upper <= 1 << bits
    assert upper - lower <= 2


@pytest.mark.parametrize("x", [Fraction(0), Fraction(1, 10**400), Fraction(10**400)])
def test_exp_at_the_ends(x: Fraction) -> None:
    lower, upper = exp_negative(x, 64)
    if x == 0:
        assert lower == upper == 1 << 64
    elif x < 1:
        assert (1 << 64) - 2 <= lower < upper == 1 << 64
    else:
        assert (lower, upper) == (0, 1)


@given(p=st.fractions(0, 1), bits=st.integers(1, 100))
def test_rational_bounds(p: Fraction, bits: int) -> None:
    lower, upper = rational_bounds(p)(bits)
    assert lower <= p * 2**bits <= upper
    assert upper - lower == (0 if (p * 2**bits).denominator == 1 else 1)


@pytest.mark.parametrize("position", [1, 2, 41, 60, 300])
def test_next_bit_of_an_exponential(position: int) -> None:
    with mpmath.workprec(900):
        ratio = mpmath.exp(-mpmath.ldexp(1, -position))
        for bits in (8, 32, 64, 128):
            lower, upper = next_bit_bounds(position)(bits)
            assert lower <= mpmath.ldexp(ratio / (1 + ratio), bits) <= upper
            assert upper - lower <= 2


def test_bulk_polynomials_enclose_exp_within_the_margin() -> None:
    ys = np.concatenate([np.linspace(0, 1, 4001), 2.0 ** -np.arange(1, 60.0)])
    for y, low, high in zip(ys, taylor_lower(ys), taylor_upper(ys), strict=True):
        with mpmath.workprec(200):
            value = mpmath.exp(-mpmath.mpf(float(y)))
            assert mpmath.mpf(float(low)) - mpmath.mpf(2) ** -48 <= value
            assert value <= mpmath.mpf(float(high)) + mpmath.mpf(2) ** -48


def test_bulk_logarithm_is_within_its_error() -> None:
    generator = np.random.default_rng(1)
    xs = np.concatenate(
        [np.arange(1, 3000.0), 2.0 ** (63.99 * generator.random(20000)), 2.0 ** np.arange(64.0)]
    )
    with mpmath.workprec(120):
        worst = max(
            abs(mpmath.mpf(float(found)) - mpmath.log(mpmath.mpf(float(x))))
            for x, found in zip(xs, certified_log(xs), strict=True)
        )
    assert worst < 2.0**-44


@pytest.mark.parametrize("p", [Fraction(1, 3), Fraction(1, 2), Fraction(2**40 - 1, 2**40)])
def test_lazy_number_is_decided_by_the_first_bits_that_differ(p: Fraction) -> None:
    """Play the binary digits of p itself for k words, then one word below or above."""
    for shared in range(4):
        digits = int(p * 2 ** (32 * (shared + 1)))
        head = [digits >> (32 * (shared - at)) & 0xFFFFFFFF for at in range(shared)]
        last = digits & 0xFFFFFFFF
        for word, expected in ((last - 1, True), (last + 1, False)):
            if not 0 <= word < 2**32:
                continue
            script = ScriptedSource(words(*head, word))
            assert LazyUniform(script).below(rational_bounds(p)) is expected


def test_lazy_number_asks_for_no_more_than_it_needs() -> None:
    script = ScriptedSource(words(0, 0))
    assert LazyUniform(script).below(rational_bounds(Fraction(1, 3)))
    assert script.used == 4
