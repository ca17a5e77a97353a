"""Single draws of discrete Laplace noise, exact and without a table to build first.

:func:`discreet.randomness.discrete_laplace` tabulates a scale, which pays for many draws; a
curator draws once and has another scale in nearly every query. This is the sampler of Canonne,
Kamath and Steinke 2020 (algorithm 2) on the exact coins of :mod:`discreet.randomness`.

For a scale t / s in lowest terms: U uniform on 0 .. t-1, kept with probability exp(-U/t); V the
number of heads of coins of probability 1/e before the first tail; X = U + t V is then geometric
with P(X) proportional to exp(-X/t), and floor(X/s) is so with s/t in place of 1/t. A fair sign,
with "minus zero" refused, makes it two-sided.
"""

from __future__ import annotations

from fractions import Fraction

from discreet.randomness import Source, bernoulli_exp


def one_laplace(scale: Fraction, source: Source) -> int:
    """Return one integer with P(x) proportional to exp(-|x| / scale), exactly.

    >>> from discreet.randomness import source
    >>> abs(one_laplace(Fraction(1, 100), source()))  # another value: probability e^-99
    0
    """
    t, s = scale.numerator, scale.denominator
    while True:
        offset = _below(t, source)
        if not bernoulli_exp(Fraction(offset, t), source=source):
            continue
        turns = 0
        while bernoulli_exp(1, source=source):
            turns += 1
        magnitude = (offset + t * turns) // s
        negative = source.bits(1) == 1
        if not (negative and magnitude == 0):
            return -magnitude if negative else magnitude


def _below(bound: int, source: Source) -> int:
    """A uniform integer of 0 .. bound - 1."""
    bits = (bound - 1).bit_length()
    while True:
        drawn = source.bits(bits) if bits else 0
        if drawn < bound:
            return drawn
