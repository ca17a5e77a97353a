"""The whole channel of a randomizer, by playing every outcome of its coins.

The client's own code is run again and again, once for every sequence of answers that its coins can
give, with the exact rational weight of that sequence. Nothing about the randomizer is assumed, so
the epsilon of the matrix (:func:`discreet.mechanisms.channel_epsilon`) is that of the code.

e^epsilon is irrational for a rational epsilon. The odds are therefore an argument: the root
e^(epsilon/2) is replaced by a rational number, and the matrix has exactly the epsilon
2 ln(root) if the randomizer is right.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, final

import numpy as np

from discreet.errors import NotApplicable
from discreet.local._coins import Coins

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_RUNS = 1 << 15


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
    """Return the exact distribution of what ``run`` returns.

    Parameters
    ----------
    run : callable
        A randomizer of one value that takes its coins.
    root : Fraction
        What stands for e^(epsilon/2).

    Returns
    -------
    dict
        The probability of every output.

    Raises
    ------
    NotApplicable
        If there are too many sequences of coins to play.
    """
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
