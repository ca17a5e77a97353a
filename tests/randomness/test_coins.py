"""Bernoulli draws: thresholds, open words and the exact continuation."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from discreet.randomness import bernoulli, bernoulli_exp, source
from randomness.goodness import REJECT
from randomness.scripted_source import ScriptedSource, words

PROBABILITIES = [Fraction(1, 3), Fraction(1, 2**20), Fraction(99, 100), Fraction(1, 2)]
EXPONENTS = [Fraction(1), Fraction(1, 1000), Fraction(7, 2), Fraction(15), Fraction(2, 10**12)]


def both(draw: object, script: bytes) -> bool:
    """Return the answer to a script, the same for a single draw and in bulk."""
    one = draw(None, ScriptedSource(script))
    many = draw(1, ScriptedSource(script))
    assert isinstance(one, bool)
    assert many.dtype == np.bool_
    assert many.tolist() == [one]
    return one


@pytest.mark.parametrize("p", PROBABILITIES)
def test_rational_threshold_and_its_neighbours(p: Fraction) -> None:
    threshold = int(p * 2**32)
    rest = (p * 2**32) % 1

    def draw(size: int | None, script: ScriptedSource) -> object:
        return bernoulli(p, size, source=script)

    assert both(draw, words(threshold - 1)) is True
    assert both(draw, words(threshold + 1)) is False
    if rest:  # the word of the threshold is open: the next one decides
        second = int(rest * 2**32)
        assert both(draw, words(threshold, second - 1)) is True
        assert both(draw, words(threshold, second + 1)) is False
    else:
        assert both(draw, words(threshold)) is False


@pytest.mark.parametrize("x", EXPONENTS)
def test_exponential_threshold_and_its_neighbours(x: Fraction) -> None:
    def draw(size: int | None, script: ScriptedSource) -> object:
        return bernoulli_exp(x, size, source=script)

    with mpmath.workprec(400):
        p = mpmath.exp(-mpmath.mpf(x.numerator) / x.denominator)
        digits = int(mpmath.floor(p * 2**96))
    first, second, third = digits >> 64, digits >> 32 & 0xFFFFFFFF, digits & 0xFFFFFFFF
    if first >= 2:
        assert both(draw, words(first - 2)) is True
    assert both(draw, words(min(first + 2, 2**32 - 1), 0xFFFFFFFF)) is False
    assert both(draw, words(first, second - 2)) is True
    assert both(draw, words(first, second + 2)) is False
    assert both(draw, words(first, second, third - 3)) is True
    assert both(draw, words(first, second, third + 3)) is False


def test_certain_and_impossible() -> None:
    top, bottom = words(0xFFFFFFFF), words(0)
    assert bernoulli(1, source=ScriptedSource(top)) is True
    assert bernoulli(0, source=ScriptedSource(bottom)) is False
    assert bernoulli(1, 1, source=ScriptedSource(top)).all()
    assert not bernoulli(0, 1, source=ScriptedSource(bottom)).any()
    assert bernoulli_exp(0, 1, source=ScriptedSource(top)).all()
    assert bernoulli_exp(1, 0).shape == (0,)


@pytest.mark.parametrize("p", PROBABILITIES)
def test_frequencies(p: Fraction) -> None:
    hits = int(bernoulli(p, 200_000, source=source(insecure_seed=1)).sum())
    assert stats.binomtest(hits, 200_000, float(p)).pvalue > REJECT


@pytest.mark.parametrize("x", EXPONENTS)
def test_exponential_frequencies(x: Fraction) -> None:
    hits = int(bernoulli_exp(x, 200_000, source=source(insecure_seed=2)).sum())
    assert stats.binomtest(hits, 200_000, float(mpmath.exp(-mpmath.mpf(float(x))))).pvalue > REJECT


def test_a_wrong_probability_would_be_seen() -> None:
    hits = int(bernoulli("1/3", 200_000, source=source(insecure_seed=3)).sum())
    assert stats.binomtest(hits, 200_000, 1.05 / 3).pvalue < REJECT


def test_floats_mean_what_they_print() -> None:
    """0.1 is one tenth: the open word continues as the digits of 1/10, not of the double."""
    tenth = Fraction(1, 10)
    digits = int(tenth * 2**96)
    first, second, third = digits >> 64, digits >> 32 & 0xFFFFFFFF, digits & 0xFFFFFFFF
    assert Fraction(0.1) > tenth + Fraction(1, 2**96) * 4
    assert bernoulli(0.1, source=ScriptedSource(words(first, second, third + 2))) is False
