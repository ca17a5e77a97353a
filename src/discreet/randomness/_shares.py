"""Exact noise that adds up: Poisson, Skellam and Polya numbers.

Sums of independent Poisson, Skellam and Polya numbers are such numbers again, so that each of many
participants can draw a share of the noise of a sum. All three are drawn by inversion of enclosed
weights, as in :mod:`discreet.randomness._discrete`.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, final

import numpy as np

from discreet import _validate
from discreet.randomness._discrete import Inversion, Weights
from discreet.randomness._enclosure import exp_negative
from discreet.randomness._sources import Source, choose_source

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LARGEST_MEAN = 10**7
_LARGEST_SCALE = 10**4


@final
class PoissonWeights(Weights):
    """Poisson probabilities over that of the mode, outwards from it on both sides in turn."""

    def __init__(self, mean: Fraction) -> None:
        self._mean = mean
        self._mode = math.floor(mean)
        self._tables: dict[int, tuple[list[tuple[int, int]], list[tuple[int, int]]]] = {}

    def value(self, index: int) -> int:
        """Return the number that an index stands for; below 0 it has no weight."""
        distance = (index + 1) // 2
        return self._mode + distance if index % 2 else self._mode - distance

    def weight(self, index: int, bits: int) -> tuple[int, int]:
        if self.value(index) < 0:
            return 0, 0
        one = (1 << bits, 1 << bits)
        side = self._tables.setdefault(bits, ([one], [one]))[index % 2]
        distance = (index + 1) // 2
        while (known := len(side)) <= distance:
            low, high = side[known - 1]
            over, under = self._factor(known - 1, upwards=index % 2 == 1)
            following = low * over // under, -(-high * over // under)
            side[known : known + 1] = [following]  # the same where another thread was faster
        return side[distance]

    def tail(self, index: int, bits: int) -> int | None:
        # Successive factors shrink on either side: each side is below a geometric series.
        total = 0
        for first in (index, index + 1):
            upper = self.weight(first, bits)[1]
            if upper == 0:
                continue
            over, under = self._factor((first + 1) // 2, upwards=first % 2 == 1)
            if over >= under:
                return None
            total += -(-upper * under // (under - over))
        return total

    def _factor(self, distance: int, *, upwards: bool) -> tuple[int, int]:
        """Return the weight at ``distance + 1`` from the mode over that at ``distance``, as a/b."""
        if upwards:
            return self._mean.numerator, self._mean.denominator * (self._mode + distance + 1)
        return (self._mode - distance) * self._mean.denominator, self._mean.numerator


@final
class PolyaWeights(Weights):
    """w(k) = product over j < k of (j + shape) / (j + 1), times exp(-k / scale); shape at most 1.

    The product of rationals is carried along as an enclosure; the exponential is enclosed afresh.
    """

    def __init__(self, shape: Fraction, scale: Fraction) -> None:
        self._shape, self._scale = shape, scale
        self._products: dict[int, list[tuple[int, int]]] = {}

    def weight(self, index: int, bits: int) -> tuple[int, int]:
        products = self._products.setdefault(bits, [(1 << bits, 1 << bits)])
        while (known := len(products)) <= index:
            low, high = products[known - 1]
            factor = (known - 1 + self._shape) / known
            following = (
                low * factor.numerator // factor.denominator,
                -(-high * factor.numerator // factor.denominator),
            )
            products[known : known + 1] = [following]
        low, high = products[index]
        small, large = exp_negative(index / self._scale, bits)
        return low * small >> bits, -(-high * large >> bits)

    def tail(self, index: int, bits: int) -> int | None:
        # No factor of neighbours is above exp(-1 / scale).
        ratio = exp_negative(1 / self._scale, bits)[1]
        one = 1 << bits
        if ratio >= one:
            return None
        return -(-(self.weight(index, bits)[1] << bits) // (one - ratio))


@lru_cache(maxsize=8)
def _poisson_sampler(mean: Fraction) -> tuple[PoissonWeights, Inversion]:
    weights = PoissonWeights(mean)
    return weights, Inversion(weights)


@lru_cache(maxsize=8)
def _polya_sampler(shape: Fraction, scale: Fraction) -> Inversion:
    return Inversion(PolyaWeights(shape, scale))


def poisson(mean: object, size: int, *, source: Source | None = None) -> NDArray[np.int64]:
    """Return Poisson numbers, exactly.

    Parameters
    ----------
    mean : number or str
        A rational number above 0, at most 10^7. A float is read as its shortest decimal.
    size : int
        How many independent draws to return.
    source : Source, optional
        Where the bits come from; the operating system by default.

    Returns
    -------
    array of int64

    Raises
    ------
    InvalidValue
        If an argument is outside its range.

    Examples
    --------
    >>> bool((poisson("1/2", 100) < 40).all())  # fails with probability 1e-58
    True
    """
    exact = _validate.fraction("mean", mean, above=0, at_most=_LARGEST_MEAN)
    count = _validate.integer("size", size, at_least=0)
    weights, inversion = _poisson_sampler(exact)
    indices = inversion.draw_many(count, choose_source(source))
    distances = (indices + 1) // 2
    return weights.value(0) + np.where(indices % 2, distances, -distances)


def skellam(variance: object, size: int, *, source: Source | None = None) -> NDArray[np.int64]:
    """Return differences of two Poisson numbers of mean variance / 2 each, exactly.

    Sums of independent ones are Skellam again, of the sum of the variances.

    Parameters
    ----------
    variance : number or str
        A rational number above 0, at most 2 * 10^7.
    size : int
        How many independent draws to return.
    source : Source, optional
        Where the bits come from; the operating system by default.

    Returns
    -------
    array of int64

    Raises
    ------
    InvalidValue
        If an argument is outside its range.

    Examples
    --------
    >>> bool((abs(skellam(4, 100)) < 100).all())  # fails with probability 1e-90
    True
    """
    exact = _validate.fraction("variance", variance, above=0, at_most=2 * _LARGEST_MEAN)
    bits = choose_source(source)
    return poisson(exact / 2, size, source=bits) - poisson(exact / 2, size, source=bits)


def laplace_share(
    scale: object, parties: int, size: int, *, source: Source | None = None
) -> NDArray[np.int64]:
    """Return differences of two Polya numbers, of which ``parties`` sum to discrete Laplace noise.

    A Polya number of shape r has weights Gamma(k + r) / (k! Gamma(r)) exp(-k / scale). Those of
    shape 1 / n add up, n of them, to a geometric number, and the difference of two geometric
    numbers is :func:`discreet.randomness.discrete_laplace` of this scale. Exact.

    Parameters
    ----------
    scale : number or str
        That of the sum: a rational number above 0, at most 10^4.
    parties : int
        How many shares make the whole noise.
    size : int
        How many independent draws to return.
    source : Source, optional
        Where the bits come from; the operating system by default.

    Returns
    -------
    array of int64

    Raises
    ------
    InvalidValue
        If an argument is outside its range.

    Examples
    --------
    >>> laplace_share(2, 50, 4).dtype
    dtype('int64')
    """
    exact = _validate.fraction("scale", scale, above=0, at_most=_LARGEST_SCALE)
    count = _validate.integer("parties", parties, at_least=1)
    wanted = _validate.integer("size", size, at_least=0)
    sampler, bits = _polya_sampler(Fraction(1, count), exact), choose_source(source)
    return sampler.draw_many(wanted, bits) - sampler.draw_many(wanted, bits)
