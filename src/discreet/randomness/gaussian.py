"""The discrete Gaussian distribution, P(x) proportional to exp(-x^2 / (2 variance)), exact."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, final, overload

import numpy as np

from discreet import _validate
from discreet.randomness.arguments import rational
from discreet.randomness.cells import WIDEST_CELL_BITS, CellSampler, Shape
from discreet.randomness.sources import Source, resolve

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["GaussianShape", "discrete_gaussian"]


@final
@dataclass(frozen=True)
class GaussianShape(Shape):
    """f(m) = m^2 / (2 variance)."""

    variance: Fraction

    @property
    def cell_bits(self) -> int:
        """Cells of at most a sixteenth of sigma: at least 97 % of draws are accepted."""
        return max(0, math.isqrt(int(self.variance / 256)).bit_length() - 1)

    def exponent(self, magnitude: int) -> Fraction:
        return magnitude * magnitude / (2 * self.variance)

    def rise(self, near: NDArray[np.float64], offset: NDArray[np.float64]) -> NDArray[np.float64]:
        return offset * (2.0 * near + offset) * float(1 / (2 * self.variance))


@lru_cache(maxsize=64)
def _sampler(variance: Fraction) -> CellSampler:
    return CellSampler(GaussianShape(variance))


@overload
def discrete_gaussian(
    variance: object, size: None = None, *, source: Source | None = None
) -> int: ...
@overload
def discrete_gaussian(
    variance: object, size: int, *, source: Source | None = None
) -> NDArray[np.int64]: ...


def discrete_gaussian(
    variance: object, size: int | None = None, *, source: Source | None = None
) -> int | NDArray[np.int64]:
    """Return integers with P(x) proportional to exp(-x^2 / (2 variance)), exactly.

    Added to an integer of sensitivity D this is (D^2 / (2 variance))-zCDP: Canonne,
    Kamath and Steinke 2020, theorem 4. ``variance`` is the parameter sigma^2; the
    variance of the distribution is never larger (their corollary 9). It is any
    positive rational number; a float is read as the shortest decimal that prints
    as it. A single draw is a Python integer and has no largest variance. An array
    has dtype int64 and wants ``variance < 2**104``.

    >>> discrete_gaussian("1/100", 3).dtype  # P(x != 0) = 2 e^-50 or so
    dtype('int64')
    >>> abs(discrete_gaussian(2**80)) < 2**46  # fails with probability e^-2048
    True
    """
    exact = rational("variance", variance, above=0)
    if size is None:
        return _sampler(exact).draw(resolve(source))
    size = _validate.integer("size", size, at_least=0)
    exact = rational("variance", variance, above=0, below=1 << (2 * WIDEST_CELL_BITS + 8))
    return _sampler(exact).draw_many(size, resolve(source))
