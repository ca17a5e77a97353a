"""Exact coins for randomizers: every branch of a client is decided here, never by a float.

A randomizer asks for two things only: a coin that favours ``inside`` of its outcomes over
``outside`` others by the odds e^epsilon each, and uniform integers. :class:`SystemCoins` draws them
from the operating system's bits.

:func:`play_all` runs the client's own code once for every sequence of answers that its coins can
give, with the exact rational weight of that sequence. Nothing about the randomizer is assumed, so
the epsilon of the matrix (:func:`discreet.mechanisms.channel_epsilon`) is that of the code.
e^epsilon is irrational for a rational epsilon, so a rational number, ``root``, stands for
e^(epsilon/2), and the matrix has exactly the epsilon 2 ln(root) if the randomizer is right.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, final

import numpy as np

from discreet.errors import NotApplicable
from discreet.randomness import (
    Source,
    bernoulli,
    enclosed_bernoulli,
    exp_negative,
    uniform_integers,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_RUNS = 1 << 15


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


@final
class _PlayedCoins(Coins):
    """Coins that follow a script of choices and note the weight of what they gave."""

    def __init__(self, root: Fraction, script: list[int]) -> None:
        self._root = root
        self._script = script
        self._at = 0
        self.options: list[int] = []
        self.weight = Fraction(1)

    def _choose(self, weights: list[Fraction]) -> int:
        possible = [number for number, weight in enumerate(weights) if weight]
        if self._at == len(self._script):
            self._script.append(0)
        choice = possible[self._script[self._at]]
        self.options.append(len(possible))
        self._at += 1
        self.weight *= weights[choice]
        return choice

    def tilted(self, inside: int, outside: int, size: int, *, halves: int = 2) -> NDArray[np.bool_]:
        favoured = inside * self._root**halves
        return self.rational(favoured / (favoured + outside), size)

    def uniform(self, below: int, size: int) -> NDArray[np.int64]:
        even = [Fraction(1, below)] * below
        return np.array([self._choose(even) for _ in range(size)], dtype=np.int64)

    def rational(self, chance: Fraction, size: int) -> NDArray[np.bool_]:
        weights = [1 - chance, chance]
        return np.array([self._choose(weights) for _ in range(size)], dtype=np.bool_)


def play_all(run: Callable[[Coins], bytes], root: Fraction) -> dict[bytes, Fraction]:
    """Return the exact probability of every output of ``run``, which takes its coins."""
    found: dict[bytes, Fraction] = {}
    script: list[int] = []
    for _ in range(_MOST_RUNS):
        coins = _PlayedCoins(root, script)
        output = run(coins)
        found[output] = found.get(output, Fraction()) + coins.weight
        while script and script[-1] + 1 == coins.options[len(script) - 1]:
            script.pop()
        if not script:
            return found
        script[-1] += 1
    raise NotApplicable("the channel has too many paths to play them all; take a smaller domain")


def tabulate(rows: list[dict[bytes, Fraction]]) -> tuple[list[bytes], list[list[Fraction]]]:
    """Return all outputs in order, and the matrix with one row for every distribution."""
    outputs = sorted(set().union(*rows))
    return outputs, [[row.get(output, Fraction()) for output in outputs] for row in rows]
