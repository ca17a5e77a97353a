"""Exact coins: certified enclosures of exp(-x), and numbers revealed bit by bit.

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
from typing import TYPE_CHECKING, final, overload

import numpy as np

from discreet import _validate
from discreet.randomness._sources import Source, choose_source

if TYPE_CHECKING:
    from numpy.typing import NDArray

Enclosure = Callable[[int], tuple[int, int]]

_GUARD = 16
_SMALL = 8
_STEP = 32
_CHUNK = 1 << 16
_WIDTH = 32


def exp_negative(x: Fraction, bits: int) -> tuple[int, int]:
    """Return integers with ``lower <= exp(-x) * 2**bits <= upper``, for ``x >= 0``.

    Parameters
    ----------
    x : Fraction
        The exponent, at least 0.
    bits : int
        The precision that is wanted.

    Returns
    -------
    tuple of int
        ``lower`` and ``upper``, at most two apart.

    Notes
    -----
    In fixed point with p bits: z = x / 2**h < 2**-8, exp(-z) by its Taylor series,
    then h squarings. Each term of the series is cut down, so it is short by less
    than 1 + 2**-8 + 2**-16 + ... < 2 units; the first term cut to zero is itself
    below 2, and bounds the rest of the alternating series; z is short by at most
    one unit. With n terms the sum is therefore off by at most 2 n + 3 units. A
    squaring rounds the lower end down and the upper end up. The guard bits make
    the result at most two units wide; correctness does not depend on them.

    Examples
    --------
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


def rational_bounds(p: Fraction) -> Enclosure:
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

    def below(self, bounds: Enclosure) -> bool:
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


@overload
def bernoulli(p: object, size: None = None, *, source: Source | None = None) -> bool: ...
@overload
def bernoulli(p: object, size: int, *, source: Source | None = None) -> NDArray[np.bool_]: ...


def bernoulli(
    p: object, size: int | None = None, *, source: Source | None = None
) -> bool | NDArray[np.bool_]:
    """Return True with probability exactly ``p``.

    Parameters
    ----------
    p : number or str
        A rational number of [0, 1]. A float is read as the shortest decimal that prints
        as it (0.1 is one tenth).
    size : int, optional
        How many independent coins to toss.
    source : Source, optional
        Where the bits come from; the operating system by default.

    Returns
    -------
    bool or array of bool
        One coin, or ``size`` of them.

    Raises
    ------
    InvalidValue
        If an argument is outside its range.

    Examples
    --------
    >>> bernoulli("1/3", 5).dtype, bernoulli(1), bernoulli(0)
    (dtype('bool'), True, False)
    """
    exact = _validate.fraction("p", p, at_least=0, at_most=1)
    return enclosed_bernoulli(rational_bounds(exact), size, source=source)


@overload
def bernoulli_exp(x: object, size: None = None, *, source: Source | None = None) -> bool: ...
@overload
def bernoulli_exp(x: object, size: int, *, source: Source | None = None) -> NDArray[np.bool_]: ...


def bernoulli_exp(
    x: object, size: int | None = None, *, source: Source | None = None
) -> bool | NDArray[np.bool_]:
    """Return True with probability exactly ``exp(-x)``.

    Parameters
    ----------
    x : number or str
        A rational number, at least 0. A float is read as its shortest decimal.
    size : int, optional
        How many independent coins to toss.
    source : Source, optional
        Where the bits come from; the operating system by default.

    Returns
    -------
    bool or array of bool
        One coin, or ``size`` of them.

    Raises
    ------
    InvalidValue
        If an argument is outside its range.

    Examples
    --------
    >>> bernoulli_exp(0), bernoulli_exp("7/2", 3).shape
    (True, (3,))
    """
    exact = _validate.fraction("x", x, at_least=0)

    def bounds(bits: int) -> tuple[int, int]:
        return exp_negative(exact, bits)

    return enclosed_bernoulli(bounds, size, source=source)


@overload
def enclosed_bernoulli(
    bounds: Enclosure, size: None = None, *, source: Source | None = None
) -> bool: ...
@overload
def enclosed_bernoulli(
    bounds: Enclosure, size: int, *, source: Source | None = None
) -> NDArray[np.bool_]: ...
@overload
def enclosed_bernoulli(
    bounds: Enclosure, size: int | None, *, source: Source | None = None
) -> bool | NDArray[np.bool_]: ...


def enclosed_bernoulli(
    bounds: Enclosure, size: int | None = None, *, source: Source | None = None
) -> bool | NDArray[np.bool_]:
    """Return True with the probability that ``bounds`` encloses ever more narrowly.

    Parameters
    ----------
    bounds : callable
        ``bounds(bits)`` returns integers with ``lower <= p * 2**bits <= upper``, as
        :func:`exp_negative` does.
    size : int, optional
        How many independent coins to toss.
    source : Source, optional
        Where the bits come from; the operating system by default.

    Returns
    -------
    bool or array of bool
        One coin, or ``size`` of them.

    Raises
    ------
    InvalidValue
        If ``size`` is not an integer of at least 0.

    Notes
    -----
    In bulk, 32 bits are compared with the enclosure at 32 bits; the one or two
    words in 2**32 that it leaves open are continued bit by bit.
    """
    if size is None:
        return LazyUniform(choose_source(source)).below(bounds)
    size = _validate.integer("size", size, at_least=0)
    bits_from = choose_source(source)
    lower, upper = bounds(_WIDTH)
    result = np.empty(size, dtype=np.bool_)
    for start in range(0, size, _CHUNK):
        stop = min(start + _CHUNK, size)
        words = bits_from.words32(stop - start)
        result[start:stop] = words < lower
        for open_at in np.flatnonzero((words >= lower) & (words < upper)):
            undecided = LazyUniform(bits_from, prefix=int(words[open_at]), bits=_WIDTH)
            result[start + open_at] = undecided.below(bounds)
    return result
