"""The discrete Laplace distribution, P(x) proportional to exp(-|x| / scale), exact."""

from __future__ import annotations

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

__all__ = ["LaplaceShape", "discrete_laplace", "geometric_sampler"]


@final
@dataclass(frozen=True)
class LaplaceShape(Shape):
    """f(m) = m / scale."""

    scale: Fraction

    @property
    def cell_bits(self) -> int:
        """Cells of at most an eighth of the scale: at least 94 % of draws are accepted."""
        return max(0, int(self.scale / 8).bit_length() - 1)

    def exponent(self, magnitude: int) -> Fraction:
        return magnitude / self.scale

    def rise(self, near: NDArray[np.float64], offset: NDArray[np.float64]) -> NDArray[np.float64]:
        return offset * float(1 / self.scale)


@lru_cache(maxsize=64)
def _sampler(scale: Fraction) -> CellSampler:
    return CellSampler(LaplaceShape(scale))


@lru_cache(maxsize=8)
def geometric_sampler(scale: Fraction) -> CellSampler:
    """Return the sampler of g >= 0 with P(g) proportional to exp(-g / scale)."""
    return CellSampler(LaplaceShape(scale), two_sided=False)


@overload
def discrete_laplace(scale: object, size: None = None, *, source: Source | None = None) -> int: ...
@overload
def discrete_laplace(
    scale: object, size: int, *, source: Source | None = None
) -> NDArray[np.int64]: ...


def discrete_laplace(
    scale: object, size: int | None = None, *, source: Source | None = None
) -> int | NDArray[np.int64]:
    """Return integers with P(x) = (e^(1/scale) - 1) / (e^(1/scale) + 1) e^(-|x|/scale), exactly.

    Added to an integer of sensitivity D this is D / scale - DP (pure), for every
    input: Ghosh, Roughgarden and Sundararajan 2009. ``scale`` is any positive
    rational number; a float is read as the shortest decimal that prints as it.
    A single draw is a Python integer and has no largest scale. An array has dtype
    int64 and wants ``scale < 2**51``.

    >>> discrete_laplace(0.01, 3).dtype  # P(x != 0) = 2 e^-100 or so
    dtype('int64')
    >>> abs(discrete_laplace(2**40)) < 2**50  # fails with probability e^-1024
    True
    """
    exact = rational("scale", scale, above=0)
    if size is None:
        return _sampler(exact).draw(resolve(source))
    size = _validate.integer("size", size, at_least=0)
    exact = rational("scale", scale, above=0, below=1 << (WIDEST_CELL_BITS + 3))
    return _sampler(exact).draw_many(size, resolve(source))
