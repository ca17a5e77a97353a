"""Certified enclosures of exp(-x) in integers, and numbers revealed bit by bit.

Everything exact in this package rests on one idea. A uniform number U of
[0, 1) is an endless row of fair bits. To decide "U < p" one needs only as many
bits as separate U from p, and for p only an enclosure that can be narrowed on
demand: ``bounds(bits)`` returns integers with

    lower <= p * 2**bits <= upper.

No rounding error can change a decision; it can only ask for more bits.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import final

from discreet.randomness.sources import Source

__all__ = ["Bounds", "LazyUniform", "exp_negative", "rational_bounds"]

Bounds = Callable[[int], tuple[int, int]]

_GUARD = 16
_SMALL = 8
_STEP = 32


def exp_negative(x: Fraction, bits: int) -> tuple[int, int]:
    """Return integers with ``lower <= exp(-x) * 2**bits <= upper``, for ``x >= 0``.

    In fixed point with p bits: z = x / 2**h < 2**-8, exp(-z) by its Taylor series,
    then h squarings. Each term of the series is cut down, so it is short by less
    than 1 + 2**-8 + 2**-16 + ... < 2 units; the first term cut to zero is itself
    below 2, and bounds the rest of the alternating series; z is short by at most
    one unit. With n terms the sum is therefore off by at most 2 n + 3 units. A
    squaring rounds the lower end down and the upper end up. The guard bits make
    the result at most two units wide; correctness does not depend on them.

    >>> exp_negative(Fraction(1), 20)  # 2**20 / e = 385749.5...
    (385749, 385750)
    """
    if x == 0:
        return 1 << bits, 1 << bits
    if x >= bits:  # exp(-x) * 2**bits <= (2/e)**bits <= 1
        return 0, 1
    halvings = max(0, _SMALL + x.numerator.bit_length() - x.denominator.bit_length() + 1)
    p = bits + halvings + _GUARD
    z = (x.numerator << p) // (x.denominator << halvings)
    total = term = 1 << p
    n = 0
    while term:
        n += 1
        term = (term * z >> p) // n
        total += -term if n & 1 else term
    slack = 2 * n + 3
    lower, upper = max(0, total - slack), total + slack
    for _ in range(halvings):
        lower = lower * lower >> p
        upper = (upper * upper >> p) + 1
    excess = p - bits
    return lower >> excess, min(-(-upper >> excess), 1 << bits)


def rational_bounds(p: Fraction) -> Bounds:
    """Return the enclosures of a rational number: as narrow as integers can be."""

    def bounds(bits: int) -> tuple[int, int]:
        scaled = p.numerator << bits
        return scaled // p.denominator, -(-scaled // p.denominator)

    return bounds


@final
class LazyUniform:
    """A uniform number of [0, 1), of which ``bits`` leading bits are known.

    It lies in ``[prefix, prefix + 1) / 2**bits``.
    """

    __slots__ = ("_source", "bits", "prefix")

    def __init__(self, source: Source, *, prefix: int = 0, bits: int = 0) -> None:
        self._source = source
        self.prefix = prefix
        self.bits = bits

    def extend(self) -> None:
        """Reveal 32 more bits."""
        self.prefix = self.prefix << _STEP | self._source.bits(_STEP)
        self.bits += _STEP

    def below(self, bounds: Bounds) -> bool:
        """Decide exactly whether this number is below the enclosed one."""
        if self.bits == 0:
            self.extend()
        while True:
            lower, upper = bounds(self.bits)
            if self.prefix + 1 <= lower:
                return True
            if self.prefix >= upper:
                return False
            self.extend()
