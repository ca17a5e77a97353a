"""Exact coins for randomizers: every branch of a client is decided here, never by a float.

A randomizer asks for two things only: a coin that favours ``inside`` of its outcomes over
``outside`` others by the odds e^epsilon each, and uniform integers. :class:`SystemCoins` draws them
from the operating system's bits; :mod:`discreet.local._channel` plays every outcome of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from fractions import Fraction
from typing import TYPE_CHECKING, final

import numpy as np

from discreet.randomness import (
    Source,
    bernoulli,
    enclosed_bernoulli,
    exp_negative,
    uniform_integers,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Coins(ABC):
    """What a randomizer may ask chance."""

    @abstractmethod
    def tilted(self, inside: int, outside: int, size: int, *, halves: int = 2) -> NDArray[np.bool_]:
        """Return True with odds (inside o) : outside, where o = e^(epsilon halves / 2)."""

    @abstractmethod
    def uniform(self, below: int, size: int) -> NDArray[np.int64]:
        """Return uniform integers of {0, ..., below - 1}."""

    @abstractmethod
    def rational(self, chance: Fraction, size: int) -> NDArray[np.bool_]:
        """Return True with this rational probability."""


@final
class SystemCoins(Coins):
    """Coins with exactly the stated probabilities, from a source of bits."""

    def __init__(self, epsilon: Fraction, source: Source) -> None:
        self._epsilon = epsilon
        self._source = source

    def tilted(self, inside: int, outside: int, size: int, *, halves: int = 2) -> NDArray[np.bool_]:
        """Decide most coins by one byte and continue the few that it leaves open."""
        exponent = self._epsilon * halves / 2
        extra = (inside + outside).bit_length() + 8

        def bounds(bits: int) -> tuple[int, int]:
            # inside / (inside + outside e^-x), which falls as e^-x grows.
            lower, upper = exp_negative(exponent, bits + extra)
            whole = inside << (bits + extra)
            return (
                (whole << bits) // (whole + outside * upper),
                -(-(whole << bits) // (whole + outside * lower)),
            )

        lower, upper = bounds(8)
        words = self._source.words8(size)
        result = words < lower
        for word in range(lower, min(upper, 256)):
            still_open = np.flatnonzero(words == word)

            def rest(bits: int, word: int = word) -> tuple[int, int]:
                low, high = bounds(bits + 8)
                shift, one = word << bits, 1 << bits
                return min(max(low - shift, 0), one), min(max(high - shift, 0), one)

            result[still_open] = enclosed_bernoulli(rest, still_open.size, source=self._source)
        return result

    def uniform(self, below: int, size: int) -> NDArray[np.int64]:
        return uniform_integers(below, size, source=self._source)

    def rational(self, chance: Fraction, size: int) -> NDArray[np.bool_]:
        return bernoulli(chance, size, source=self._source)
