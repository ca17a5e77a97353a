"""Integers with probability proportional to exp(-f(|x|)), exact and fast at any scale.

The integers are cut into cells of M = 2**m neighbours, smallest magnitudes
first: cell 0 is {0, ..., M-1}, cell 1 is {-1, ..., -M}, cell 2 is {M, ..., 2M-1}
and so on. A draw takes

1. a cell, with probability proportional to exp(-f(near)), where near is the
   smallest magnitude in it (exact inversion, :mod:`.inversion`);
2. an offset u, uniform on {0, ..., M-1};
3. the number near + u with probability exp(-y), y = f(near + u) - f(near);
   otherwise all three steps are repeated.

The result is x with probability proportional to exp(-f(near)) exp(-y) =
exp(-f(|x|)): exact for every non-decreasing f. M is a small part of the scale,
so that nearly every draw is accepted, and for a small scale M = 1, where steps 2
and 3 disappear. The number of rounds is independent of the number returned, as
always in rejection sampling.

Step 3 in bulk. y is computed in double precision from sums, products and one
constant of positive numbers, so that its relative error is below 2**-49 (at
most eight roundings of 2**-53 each), and for y <= 1 the Taylor polynomials of
degree 5 and 6 enclose exp(-y), the series being alternating with falling
terms. Their evaluation by Horner's rule is off by less than 2**-48. So a
32-bit word w with

    w + 1 <= 2**32 (T5(y) - 2**-40)     accepts,
    w     >= 2**32 (T6(y) + 2**-40)     rejects,

and the few others, y > 1 included, are decided in exact rational arithmetic,
with as many more bits as it takes. Only the IEEE sum and product are relied upon,
never the accuracy of a library function, and no rounding reaches the result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, final

import numpy as np

from discreet.randomness.enclosure import LazyUniform, exp_negative
from discreet.randomness.inversion import Inversion, Weights
from discreet.randomness.sources import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["WIDEST_CELL_BITS", "CellSampler", "Shape"]

WIDEST_CELL_BITS = 48
"""Cells up to this width are drawn in bulk: offsets are exact in double precision."""

_CHUNK = 1 << 15
_MARGIN = 2.0**-40
_UNIT = 2.0**32


class Shape(ABC):
    """The function f of the magnitude, non-decreasing and convex, with f(0) = 0."""

    @property
    @abstractmethod
    def cell_bits(self) -> int:
        """m: the cells have 2**m members."""

    @abstractmethod
    def exponent(self, magnitude: int) -> Fraction:
        """Return f(magnitude), exactly."""

    @abstractmethod
    def rise(self, near: NDArray[np.float64], offset: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return f(near + offset) - f(near) with a relative error below 2**-49."""


@final
@dataclass(frozen=True)
class _CellWeights(Weights):
    shape: Shape
    two_sided: bool

    def near(self, index: int) -> int:
        """Return the smallest magnitude in the cell."""
        if self.two_sided:
            return ((index >> 1) << self.shape.cell_bits) + (index & 1)
        return index << self.shape.cell_bits

    def weight(self, index: int, bits: int) -> tuple[int, int]:
        return exp_negative(self.shape.exponent(self.near(index)), bits)

    def tail(self, index: int, bits: int) -> int | None:
        """Bound both sides by a geometric series.

        f is convex, so the ratio of neighbouring cells of one side never grows: from
        cell k on the weights of one side add up to at most w(k) / (1 - w(k+1)/w(k)),
        and those of the negative side are no larger than those of the positive one.
        """
        sides = 2 if self.two_sided else 1
        start = index - index % sides
        here = self.shape.exponent(self.near(start))
        there = self.shape.exponent(self.near(start + sides))
        _, weight = exp_negative(here, bits)
        _, ratio = exp_negative(there - here, bits)
        one = 1 << bits
        return None if ratio >= one else -(-(sides * weight << bits) // (one - ratio))


@final
class CellSampler:
    """Draws integers x (or magnitudes, one-sided) proportional to exp(-f(|x|))."""

    def __init__(self, shape: Shape, *, two_sided: bool = True) -> None:
        self._shape = shape
        self._two_sided = two_sided
        self._weights = _CellWeights(shape, two_sided)
        self._inversion = Inversion(self._weights)
        self._bits = shape.cell_bits

    def draw(self, source: Source) -> int:
        """Return one integer, in exact arithmetic throughout and of any size."""
        while True:
            cell = self._inversion.draw(source)
            near = self._weights.near(cell)
            offset = source.bits(self._bits)
            if offset == 0 or self._accepts(near, offset, LazyUniform(source)):
                magnitude = near + offset
                return -magnitude if self._two_sided and cell & 1 else magnitude

    def draw_many(self, count: int, source: Source) -> NDArray[np.int64]:
        """Return ``count`` independent integers; needs ``cell_bits <= WIDEST_CELL_BITS``."""
        result = np.empty(count, dtype=np.int64)
        filled = 0
        while filled < count:
            missing = count - filled
            trials = missing if self._bits == 0 else missing + missing // 16 + 1
            kept = self._trials(min(trials, _CHUNK), source)[:missing]
            result[filled : filled + kept.size] = kept
            filled += kept.size
        return result

    def _trials(self, count: int, source: Source) -> NDArray[np.int64]:
        cells = self._inversion.draw_many(count, source)
        if int(cells.max()) >> (62 - self._bits):
            raise OverflowError("a draw does not fit 64 bits; its probability is below exp(-500)")
        if self._two_sided:
            negative = cells & 1
            magnitude = ((cells >> 1) << self._bits) + negative
        else:
            negative = None
            magnitude = cells << self._bits
        accepted: NDArray[np.bool_] | None = None
        if self._bits:
            offset = self._offsets(count, source)
            accepted = self._decide(magnitude, offset, source)
            magnitude += offset
        if negative is not None:
            magnitude = np.where(negative, -magnitude, magnitude)
        return magnitude if accepted is None else magnitude[accepted]

    def _offsets(self, count: int, source: Source) -> NDArray[np.int64]:
        if self._bits <= 32:
            return (source.words32(count) >> np.uint32(32 - self._bits)).astype(np.int64)
        return (source.words64(count) >> np.uint64(64 - self._bits)).view(np.int64)

    def _decide(
        self, near: NDArray[np.int64], offset: NDArray[np.int64], source: Source
    ) -> NDArray[np.bool_]:
        words = source.words32(near.size)
        y = self._shape.rise(near.astype(np.float64), offset.astype(np.float64))
        accepted: NDArray[np.bool_] = words + 1.0 <= _UNIT * (taylor_lower(y) - _MARGIN)
        accepted &= y <= 1.0
        refused = np.flatnonzero(~accepted)
        rest = y[refused]
        surely = (words[refused] >= _UNIT * (taylor_upper(rest) + _MARGIN)) & (rest <= 1.0)
        for at in refused[~surely]:
            number = LazyUniform(source, prefix=int(words[at]), bits=32)
            accepted[at] = self._accepts(int(near[at]), int(offset[at]), number)
        return accepted

    def _accepts(self, near: int, offset: int, number: LazyUniform) -> bool:
        y = self._shape.exponent(near + offset) - self._shape.exponent(near)
        return number.below(lambda bits: exp_negative(y, bits))


def taylor_lower(y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return T5(y), at most exp(-y) for 0 <= y <= 1 up to rounding."""
    value = y * (-1.0 / 120.0)
    value += 1.0 / 24.0
    value *= y
    value -= 1.0 / 6.0
    value *= y
    value += 0.5
    value *= y
    value -= 1.0
    value *= y
    value += 1.0
    return value


def taylor_upper(y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return T6(y), at least exp(-y) for 0 <= y <= 1 up to rounding."""
    square = y * y
    return taylor_lower(y) + square * square * square * (1.0 / 720.0)
