"""Exact discrete Laplace, Gaussian and binomial draws, by inversion of enclosed weights.

**Inversion.** A draw is the cell of an endless partition of [0, 1) that holds a uniform
number. The partition is given by weights that can be enclosed as narrowly as asked. For
the first ``width`` bits of the number the answer is tabulated: for each word either the
cell that surely holds it, or "open" when a boundary runs through the word. Open words,
about one for each boundary in ``2**width``, are continued with more bits against
narrower enclosures. The answer is therefore exact for every weight, and a table of 32
bits costs a look-up and four random bytes.

**Cells.** Integers with probability proportional to exp(-f(|x|)), at any scale. The
integers are cut into cells of M = 2**m neighbours, smallest magnitudes first: cell 0 is
{0, ..., M-1}, cell 1 is {-1, ..., -M}, cell 2 is {M, ..., 2M-1} and so on. A draw takes

1. a cell, with probability proportional to exp(-f(near)), where near is the
   smallest magnitude in it (exact inversion);
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

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, final, overload

import numpy as np

from discreet import _validate
from discreet.randomness._enclosure import LazyUniform, exp_negative
from discreet.randomness._sources import Source, choose_source

if TYPE_CHECKING:
    from numpy.typing import NDArray

WIDEST_CELL_BITS = 48
"""Cells up to this width are drawn in bulk: offsets are exact in double precision."""

_GUARD = 24
_GUIDE_BITS = 16
_CHUNK = 1 << 15
_MARGIN = 2.0**-40
_UNIT = 2.0**32


class Weights(ABC):
    """Positive weights w(0) = 1, w(1), ... with a finite sum, not necessarily normalised."""

    @abstractmethod
    def weight(self, index: int, bits: int) -> tuple[int, int]:
        """Return integers with ``lower <= w(index) * 2**bits <= upper``."""

    @abstractmethod
    def tail(self, index: int, bits: int) -> int | None:
        """Return an integer of at least ``2**bits`` times the sum of w from ``index`` on.

        ``None`` when the enclosures at ``bits`` are too wide to bound it.
        """


@final
class Inversion:
    """A sampler of indices with probability exactly w(i) / (w(0) + w(1) + ...)."""

    def __init__(self, weights: Weights, *, width: int = 32) -> None:
        self._weights = weights
        self.width = width
        self.lower, self.upper = self.boundaries(width)
        # Words at or past the last tabulated boundary are open: the tail begins there.
        full = 1 << width
        kept = sum(1 for value in self.upper if value < full)
        starts = np.array(self.upper[:kept], dtype=np.uint64)
        stops = np.array([*self.lower[1:], 0][:kept], dtype=np.uint64)
        self._starts, self._stops = starts.astype(np.uint32), stops
        shift = max(0, width - _GUIDE_BITS)
        first = np.arange(1 << (width - shift), dtype=np.uint64) << np.uint64(shift)
        last = first + np.uint64((1 << shift) - 1)
        cell = np.searchsorted(starts, first, side="right") - 1
        settled = last < stops[cell]
        self._guide = np.where(settled, cell, -1).astype(np.int32)
        self._shift = np.uint32(shift)
        self._refined: dict[int, tuple[list[int], list[int]]] = {}

    def boundaries(self, bits: int) -> tuple[list[int], list[int]]:
        """Return enclosures of ``2**bits`` times the sum of w below i over the whole sum.

        Entry i encloses the lower end of cell i; entry 0 is zero. The list goes on
        until what lies beyond is far less than one unit. Numerator and total are
        rounded apart in the safe direction, so that neither the cut nor the
        precision can spoil the enclosure.
        """
        p = bits + _GUARD
        lows: list[int] = []
        highs: list[int] = []
        while (tail := self._negligible_tail(len(lows), p)) is None:
            low, high = self._weights.weight(len(lows), p)
            lows.append(low)
            highs.append(high)
        cumulative_low = [0, *accumulate(lows)]
        cumulative_high = [0, *accumulate(highs)]
        total_low, total_high = cumulative_low[-1], cumulative_high[-1] + tail
        return (
            [(value << bits) // total_high for value in cumulative_low],
            [min(-(-(value << bits) // total_low), 1 << bits) for value in cumulative_high],
        )

    def _negligible_tail(self, index: int, p: int) -> int | None:
        """Return a bound on the weights from ``index`` on if it is far below one unit."""
        limit = 1 << (_GUARD - 8)
        if self._weights.weight(index, p)[0] > limit:
            return None
        tail = self._weights.tail(index, p)
        return tail if tail is not None and tail <= limit else None

    def locate(self, number: LazyUniform) -> int:
        """Return the cell of a partly revealed number, revealing more of it if need be."""
        while True:
            lower, upper = self._refine(number.bits)
            cell = bisect_right(upper, number.prefix) - 1
            if cell + 1 < len(lower) and number.prefix + 1 <= lower[cell + 1]:
                return cell
            number.extend()

    def draw(self, source: Source) -> int:
        """Return one index."""
        return self.locate(LazyUniform(source, prefix=source.bits(self.width), bits=self.width))

    def draw_many(self, count: int, source: Source) -> NDArray[np.int64]:
        """Return ``count`` independent indices."""
        words = self._read(count, source)
        cells: NDArray[np.int64] = self._guide[words >> self._shift].astype(np.int64)
        unsettled = np.flatnonzero(cells < 0)
        if unsettled.size:
            asked = words[unsettled]
            found = np.searchsorted(self._starts, asked, side="right") - 1
            for at in np.flatnonzero(asked >= self._stops[found]):
                number = LazyUniform(source, prefix=int(asked[at]), bits=self.width)
                found[at] = self.locate(number)
            cells[unsettled] = found
        return cells

    def _read(self, count: int, source: Source) -> NDArray[np.uint32]:
        if self.width == 32:
            return source.words32(count)
        return np.array([source.bits(self.width) for _ in range(count)], dtype=np.uint32)

    def _refine(self, bits: int) -> tuple[list[int], list[int]]:
        if bits == self.width:
            return self.lower, self.upper
        if bits not in self._refined:
            self._refined[bits] = self.boundaries(bits)
        return self._refined[bits]


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
def _laplace_sampler(scale: Fraction) -> CellSampler:
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

    Parameters
    ----------
    scale : number or str
        Any positive rational number; a float is read as the shortest decimal that prints
        as it. An array wants ``scale < 2**51``; a single draw has no largest scale.
    size : int, optional
        How many independent draws to return.
    source : Source, optional
        Where the bits come from; the operating system by default.

    Returns
    -------
    int or array of int64
        A Python integer, or an array of ``size`` of them.

    Raises
    ------
    InvalidValue
        If an argument is outside its range.

    Notes
    -----
    Added to an integer of sensitivity D this is D / scale - DP (pure), for every
    input: Ghosh, Roughgarden and Sundararajan 2009.

    Examples
    --------
    >>> discrete_laplace(0.01, 3).dtype  # P(x != 0) = 2 e^-100 or so
    dtype('int64')
    >>> abs(discrete_laplace(2**40)) < 2**50  # fails with probability e^-1024
    True
    """
    exact = _validate.fraction("scale", scale, above=0)
    if size is None:
        return _laplace_sampler(exact).draw(choose_source(source))
    size = _validate.integer("size", size, at_least=0)
    exact = _validate.fraction("scale", scale, above=0, below=1 << (WIDEST_CELL_BITS + 3))
    return _laplace_sampler(exact).draw_many(size, choose_source(source))


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
def _gaussian_sampler(variance: Fraction) -> CellSampler:
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

    Parameters
    ----------
    variance : number or str
        The parameter sigma^2, any positive rational number; a float is read as the
        shortest decimal that prints as it. An array wants ``variance < 2**104``; a
        single draw has no largest variance.
    size : int, optional
        How many independent draws to return.
    source : Source, optional
        Where the bits come from; the operating system by default.

    Returns
    -------
    int or array of int64
        A Python integer, or an array of ``size`` of them.

    Raises
    ------
    InvalidValue
        If an argument is outside its range.

    Notes
    -----
    Added to an integer of sensitivity D this is (D^2 / (2 variance))-zCDP: Canonne,
    Kamath and Steinke 2020, theorem 4. The variance of the distribution is never larger
    than the parameter (their corollary 9).

    Examples
    --------
    >>> discrete_gaussian("1/100", 3).dtype  # P(x != 0) = 2 e^-50 or so
    dtype('int64')
    >>> abs(discrete_gaussian(2**80)) < 2**46  # fails with probability e^-2048
    True
    """
    exact = _validate.fraction("variance", variance, above=0)
    if size is None:
        return _gaussian_sampler(exact).draw(choose_source(source))
    size = _validate.integer("size", size, at_least=0)
    exact = _validate.fraction("variance", variance, above=0, below=1 << (2 * WIDEST_CELL_BITS + 8))
    return _gaussian_sampler(exact).draw_many(size, choose_source(source))


@final
class BinomialWeights(Weights):
    """Binomial probabilities over that of the mode, enclosed in integers.

    Index 0 is the mode, 1 and 2 its neighbours above and below, and so on outwards. Each
    weight follows from the one before it by a rational factor; the rounding of every product is
    kept on the safe side, so the enclosures are rigorous at any precision.
    """

    def __init__(self, *, trials: int, probability: Fraction) -> None:
        self._trials = trials
        self._odds = probability / (1 - probability)
        self._mode = math.floor((trials + 1) * probability)
        self._mode = min(self._mode, trials)
        self._tables: dict[int, tuple[list[tuple[int, int]], list[tuple[int, int]]]] = {}

    def value(self, index: int) -> int:
        """Return the number of successes that an index stands for; it may be out of range."""
        distance = (index + 1) // 2
        return self._mode + distance if index % 2 else self._mode - distance

    def weight(self, index: int, bits: int) -> tuple[int, int]:
        if not 0 <= self.value(index) <= self._trials:
            return 0, 0
        side = self._sides(bits)[index % 2]
        distance = (index + 1) // 2
        while (known := len(side)) <= distance:
            following = self._following(side[known - 1], known - 1, upwards=index % 2 == 1)
            side[known : known + 1] = [following]  # the same where another thread was faster
        return side[distance]

    def tail(self, index: int, bits: int) -> int | None:
        # Successive factors shrink on either side: each side is below a geometric series.
        total = 0
        for first in (index, index + 1):
            upper = self.weight(first, bits)[1]
            if upper == 0:
                continue
            factor = self._factor((first + 1) // 2, upwards=first % 2 == 1)
            if factor >= 1:
                return None
            total += math.ceil(upper / (1 - factor))
        return total

    def _sides(self, bits: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        one = (1 << bits, 1 << bits)
        return self._tables.setdefault(bits, ([one], [one]))

    def _factor(self, distance: int, *, upwards: bool) -> Fraction:
        """Return the weight at ``distance + 1`` from the mode over the weight at ``distance``."""
        if upwards:
            value = self._mode + distance
            return self._odds * Fraction(self._trials - value, value + 1)
        value = self._mode - distance
        return Fraction(value, self._trials - value + 1) / self._odds

    def _following(self, last: tuple[int, int], distance: int, *, upwards: bool) -> tuple[int, int]:
        factor = self._factor(distance, upwards=upwards)
        lower = last[0] * factor.numerator // factor.denominator
        return lower, -(-last[1] * factor.numerator // factor.denominator)


@lru_cache(maxsize=16)
def _binomial_sampler(trials: int, probability: Fraction) -> tuple[BinomialWeights, Inversion]:
    weights = BinomialWeights(trials=trials, probability=probability)
    return weights, Inversion(weights)


@overload
def binomial(
    trials: int, probability: object, size: None = None, *, source: Source | None = None
) -> int: ...
@overload
def binomial(
    trials: int, probability: object, size: int, *, source: Source | None = None
) -> NDArray[np.int64]: ...


def binomial(
    trials: int, probability: object, size: int | None = None, *, source: Source | None = None
) -> int | NDArray[np.int64]:
    """Return how many of ``trials`` independent coins show heads, exactly.

    Parameters
    ----------
    trials : int
        How many coins are tossed.
    probability : number or str
        The probability of heads, a rational number of [0, 1]. A float is read as the
        shortest decimal that prints as it.
    size : int, optional
        How many independent draws to return.
    source : Source, optional
        Where the bits come from; the operating system by default.

    Returns
    -------
    int or array of int64
        One number of heads, or ``size`` of them.

    Raises
    ------
    InvalidValue
        If an argument is outside its range.

    Examples
    --------
    >>> binomial(10, "1/3") <= 10, binomial(7, 1), binomial(7, 0, 2).tolist()
    (True, 7, [0, 0])
    """
    trials = _validate.integer("trials", trials, at_least=0)
    exact = _validate.fraction("probability", probability, at_least=0, at_most=1)
    size = size if size is None else _validate.integer("size", size, at_least=0)
    bits_from = choose_source(source)
    if trials == 0 or exact in (0, 1):
        certain = trials if exact == 1 else 0
        return certain if size is None else np.full(size, certain, dtype=np.int64)
    weights, inversion = _binomial_sampler(trials, exact)
    if size is None:
        return weights.value(inversion.draw(bits_from))
    indices = inversion.draw_many(size, bits_from)
    distances = (indices + 1) // 2
    return weights.value(0) + np.where(indices % 2, distances, -distances)
