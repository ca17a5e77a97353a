"""Exact inversion: find the cell of an endless partition of [0, 1) that holds a number.

The partition is given by weights that can be enclosed as narrowly as asked. For
the first ``width`` bits of the number the answer is tabulated: for each word
either the cell that surely holds it, or "open" when a boundary runs through the
word. Open words, about one for each boundary in ``2**width``, are continued
with more bits against narrower enclosures. The answer is therefore exact for
every weight, and a table of 32 bits costs a look-up and four random bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, final

import numpy as np

from discreet.randomness.enclosure import LazyUniform
from discreet.randomness.sources import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Inversion", "Weights"]

_GUARD = 24
_GUIDE_BITS = 16


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
            lower, upper = self._at(number.bits)
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

    def _at(self, bits: int) -> tuple[list[int], list[int]]:
        if bits == self.width:
            return self.lower, self.upper
        if bits not in self._refined:
            self._refined[bits] = self.boundaries(bits)
        return self._refined[bits]
