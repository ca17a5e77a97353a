"""Selection with P(i) proportional to exp(rate * score_i), by an exact exponential race.

Runner i has a time T_i = E_i exp(-rate * score_i) with E_i exponential; the
smallest time wins, with exactly the stated probability. (Minus its logarithm is
the Gumbel form of the same race.) Each E_i is an endless row of bits of which
only the leading ones are drawn: floor(2**40 E_i) is geometric and comes from the
exact sampler of discrete noise, and given those bits the next one is 1 with
probability exactly e^-h / (1 + e^-h), h = 2**-41, and so on.

In bulk the logarithm of each time is enclosed in double precision. Everyone whose
earliest time is after someone's latest time has lost for certain; the others,
nearly always the winner alone, are compared in integer arithmetic with more
bits of their E_i. So no rounding of a score, which may be secret, can shift a
probability, and the time of a race hardly depends on the scores: each runner
gets the same number of draws and operations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet._validate import withheld
from discreet.errors import InvalidValue, NotApplicable
from discreet.randomness._answers import read_row, to_fraction
from discreet.randomness._discrete import geometric_sampler
from discreet.randomness._enclosure import Enclosure, enclosed_bernoulli, exp_negative
from discreet.randomness._sources import Source, choose_source

if TYPE_CHECKING:
    from numpy.typing import NDArray

_GRID_BITS = 40
_LARGEST = 2.0**500
_CHUNK = 1 << 16
_LOG_ERROR = 2.0**-44


def select(scores: object, *, rate: object = 1, source: Source | None = None) -> int:
    """Return i with probability exactly exp(rate * scores[i]) / sum_j exp(rate * scores[j]).

    Parameters
    ----------
    scores : sequence or array
        A row of finite numbers, read exactly: a float is the binary number that it is,
        and integers and fractions of any size may be mixed in a list.
    rate : number or str
        A rational number >= 0; a float is read as its shortest decimal.
    source : Source, optional
        Where the bits come from; the operating system by default.

    Returns
    -------
    int
        The position of the winner.

    Raises
    ------
    InvalidValue
        If ``rate`` or ``scores`` cannot be used; scores are not shown.

    Examples
    --------
    >>> select([0, 5000, 0])  # another answer has probability 2 e^-5000
    1
    """
    race = Race(rate=rate, source=source)
    race.enter(scores)
    return race.winner()


@final
class Race:
    """The same selection over candidates that arrive in parts and are not kept.

    >>> race = Race(rate=2)
    >>> race.enter([0.0, 1.0])
    >>> race.enter(np.array([9000.0]))
    >>> race.winner(), race.entered
    (2, 3)
    """

    def __init__(self, *, rate: object = 1, source: Source | None = None) -> None:
        self._rate = _validate.fraction("rate", rate, at_least=0)
        if self._rate > _LARGEST:
            raise InvalidValue("rate", rate, "at most 2**500")
        self._source = choose_source(source)
        self._reference: float | None = None
        self._earliest_end = math.inf
        self._runners: list[_Runner] = []
        self.entered = 0

    def enter(self, scores: object) -> None:
        """Enter candidates numbered on from those entered before."""
        exact, approximate = _read_scores(scores)
        for start in range(0, approximate.size, _CHUNK):
            stop = min(start + _CHUNK, approximate.size)
            self._enter_part(exact, approximate[start:stop], start)
        self.entered += approximate.size

    def winner(self) -> int:
        """Return the number of the winner, and end the race: its bits are not used again."""
        if not self._runners:
            raise NotApplicable("a race without candidates, or one already decided, has no winner")
        best = self._runners[0]
        for other in self._runners[1:]:
            if other.beats(best, self._source):
                best = other
        self._runners = []
        return best.index

    def _enter_part(
        self, exact: Sequence[Any] | NDArray[Any], approximate: NDArray[np.float64], start: int
    ) -> None:
        if self._reference is None:
            self._reference = float(approximate.max())
        steps = geometric_sampler(Fraction(1 << _GRID_BITS)).draw_many(
            approximate.size, self._source
        )
        # The score is within 2**-53 of its double and rate likewise; difference and product
        # round once each. All four stay below 2**-50 of the sum of magnitudes.
        rate = float(self._rate)
        head_start = rate * (self._reference - approximate)
        magnitude = rate * (abs(self._reference) + np.abs(approximate))
        error = _LOG_ERROR + 2.0**-50 * magnitude
        ends = certified_log((steps + 1).astype(np.float64)) + head_start + error
        positive = np.maximum(steps, 1).astype(np.float64)
        begins = np.where(steps > 0, certified_log(positive) + head_start - error, -np.inf)
        # The roundings of these last sums, of numbers below magnitude + 64, are covered by
        # taking the error twice.
        ends += error
        begins -= error
        self._earliest_end = min(self._earliest_end, float(ends.min()))
        self._runners = [r for r in self._runners if r.begin <= self._earliest_end]
        for at in np.flatnonzero(begins <= self._earliest_end):
            index = start + int(at)
            self._runners.append(
                _Runner(
                    index=self.entered + index,
                    exponent=self._rate * to_fraction(exact[index]),
                    begin=float(begins[at]),
                    steps=int(steps[at]),
                )
            )


class _Runner:
    """E in [steps, steps + 1) / 2**bits; the time is E exp(-exponent)."""

    __slots__ = ("begin", "bits", "exponent", "index", "steps")

    def __init__(self, *, index: int, exponent: Fraction, begin: float, steps: int) -> None:
        self.index = index
        self.exponent = exponent
        self.begin = begin
        self.steps = steps
        self.bits = _GRID_BITS

    def beats(self, other: _Runner, source: Source) -> bool:
        """Decide exactly whether this time is the smaller one."""
        while True:
            self._reveal(other.bits, source)
            other._reveal(self.bits, source)
            if self.exponent >= other.exponent:
                decided = _earlier(self, other)
            else:
                opposite = _earlier(other, self)
                decided = None if opposite is None else not opposite
            if decided is not None:
                return decided
            self._reveal(self.bits + 8, source)

    def _reveal(self, bits: int, source: Source) -> None:
        while self.bits < bits:
            self.bits += 1
            bit = enclosed_bernoulli(next_bit_bounds(self.bits), source=source)
            self.steps = 2 * self.steps + bit


def _earlier(strong: _Runner, weak: _Runner) -> bool | None:
    """Decide E_strong exp(-x) < E_weak, x = difference of exponents >= 0, if the bits suffice."""
    precision = strong.bits + 32
    lower, upper = exp_negative(strong.exponent - weak.exponent, precision)
    if (strong.steps + 1) * upper <= weak.steps << precision:
        return True
    if strong.steps * lower >= (weak.steps + 1) << precision:
        return False
    return None


def next_bit_bounds(position: int) -> Enclosure:
    """Return enclosures of P(bit = 1) = e^-h / (1 + e^-h), h = 2**-position.

    Given floor(2**(position-1) E) = s, the bit says whether E is in the upper half
    of its interval, and the halves have weights 1 : e^-h whatever s is.
    """
    h = Fraction(1, 1 << position)

    def bounds(bits: int) -> tuple[int, int]:
        p = bits + 8
        lower, upper = exp_negative(h, p)
        one = 1 << p
        return (lower << bits) // (one + lower), -(-(upper << bits) // (one + upper))

    return bounds


def certified_log(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return log(x) for 1 <= x < 2**64 with an error below 2**-44, from IEEE sums and products.

    x = m 2**e with 1/sqrt(2) <= m < sqrt(2) nearly, and log m = 2 atanh(s) with
    s = (m-1)/(m+1), |s| < 0.172. The series is cut after s**19, so what is left
    out is below 2 |s|**21 / 21 / (1 - s^2) < 2**-56; its ten terms, of sum below
    0.35, carry at most 40 roundings, below 2**-48 in all. e log 2 with |e| <= 64
    has an error below 2**-46 and the last sum one below 2**-47.
    """
    mantissa, exponent = np.frexp(x)
    small = mantissa < 0.7071067811865476
    mantissa = np.where(small, 2.0 * mantissa, mantissa)
    exponent = exponent - small
    s = (mantissa - 1.0) / (mantissa + 1.0)
    square = s * s
    series = np.full_like(s, 2.0 / 19.0)
    for odd in range(17, 0, -2):
        series *= square
        series += 2.0 / odd
    return np.asarray(exponent * 0.6931471805599453 + s * series, dtype=np.float64)


def _read_scores(scores: object) -> tuple[Sequence[Any] | NDArray[Any], NDArray[np.float64]]:
    """Return the scores as given, and their nearest doubles."""
    expected = "finite numbers of magnitude at most 2**500"
    row = read_row("scores", scores)
    try:
        approximate = np.array([float(score) for score in row] if isinstance(row, list) else row)
    except OverflowError:
        raise withheld("scores", expected) from None
    approximate = approximate.astype(np.float64, copy=False)
    if not np.all(np.abs(approximate) <= _LARGEST):
        raise withheld("scores", expected)
    return row, approximate
