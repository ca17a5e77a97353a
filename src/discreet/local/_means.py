"""The mean of numbers that stay with their people: Duchi, piecewise and hybrid responses on a grid.

A report is one of N numbered points. A window of w points starts at a place that moves linearly
with the person's number, and a point of the window is sent with odds e^epsilon against one outside.
The place is rounded at random to one of the N - w + 1 starts, so that its mean is exact; a mixture
of private rows is private. The mean of the report is linear in the number, which gives an unbiased
estimate.

- N = 2, w = 1 is the response of Duchi, Jordan and Wainwright (2018).
- Many points and w / N near 1 / (e^(epsilon/2) + 1) is the piecewise mechanism of Wang et al.
  (2019) on a grid.
- The hybrid draws one of the two by a public coin and says which.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet._validate import withheld
from discreet.errors import InvalidValue
from discreet.local._coins import Coins
from discreet.local._methods import Randomizer, bytes_below, write_integers
from discreet.local._plans import LocalPlan, LocalServer
from discreet.mechanisms import Interval

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.privacy import Loss

MEAN_METHODS = ("Duchi", "piecewise", "hybrid")
_POINTS = 1 << 12
_STEPS = 1 << 20
_MIX = 1 << 16


@final
class NumberRange:
    """A public range of numbers."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = _validate.real("low", low), _validate.real("high", high)
        self.size = self.high - self.low
        if not self.low < self.high or not math.isfinite(self.size):
            raise InvalidValue("high", high, f"more than low, {self.low}, by a finite amount")
        self.identity = {"low": self.low.hex(), "high": self.high.hex()}

    def read(
        self, values: Any, *, otherwise: float
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return numbers inside the range, and which are numbers; the rest become ``otherwise``."""
        try:
            row = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            row = np.empty(())
        if row.ndim != 1:
            raise withheld("values", "a row with one number for each person")
        known = ~np.isnan(row)
        return np.clip(np.where(known, row, otherwise), self.low, self.high), known


@final
@dataclass(frozen=True)
class _Window:
    """N points, and windows of w of them."""

    points: int
    width: int

    @property
    def starts(self) -> int:
        """How many steps the window can move."""
        return self.points - self.width

    def draw(self, steps: NDArray[np.int64], most: int, coins: Coins) -> NDArray[np.int64]:
        """Return a point for each number steps / most of [0, 1]."""
        start, rest = np.divmod(steps * self.starts, most)
        start += coins.uniform(most, steps.size) < rest
        inside = coins.tilted(self.width, self.starts, steps.size)
        count = int(inside.sum())
        point = np.empty(steps.size, dtype=np.int64)
        point[inside] = start[inside] + coins.uniform(self.width, count)
        outside = coins.uniform(self.starts, steps.size - count)
        point[~inside] = outside + self.width * (outside >= start[~inside])
        return point

    def estimates(self, root: float) -> NDArray[np.float64]:
        """Return what each point says about a number of [0, 1], without bias."""
        middle, slope = self._line(root)
        numbers = np.arange(self.points, dtype=np.float64)
        return (numbers - middle) / (slope * self.starts)

    def _line(self, root: float) -> tuple[float, float]:
        """Return the mean of the point at the first start, and how it grows with the start."""
        inside = 1.0 / (1.0 + self.starts / self.width / root**2)
        outside = (1.0 - inside) / self.starts
        in_window = (self.width - 1) / 2.0
        others = self.points * (self.points - 1) / 2.0 - self.width * in_window
        return inside * in_window + outside * others, inside - outside * self.width

    def variance(self, root: float, number: float) -> float:
        """Return the variance of the estimate of a number of [0, 1]."""
        scale = self.estimates(root) ** 2
        place = number * self.starts
        start = min(math.floor(place), self.starts - 1)
        squares = np.concatenate(([0.0], np.cumsum(scale)))
        chance = 1.0 / (self.width * root**2 + self.starts)
        total = 0.0
        for at, weight in ((start, 1.0 - (place - start)), (start + 1, place - start)):
            window = squares[at + self.width] - squares[at]
            total += weight * chance * (squares[-1] + (root**2 - 1.0) * window)
        return float(total - number**2)


@final
class _Mixture(Randomizer):
    """One of several windows, drawn by a public coin; a value is a number of steps / most."""

    def __init__(self, parts: list[tuple[Fraction, _Window]], most: int) -> None:
        self.parts, self._most = parts, most
        self.cells = sum(window.points for _, window in parts)
        self.payload_bytes = bytes_below(self.cells)

    def inputs(self) -> NDArray[np.int64]:
        return np.arange(self._most + 1)

    def randomize(self, places: NDArray[np.int64], coins: Coins) -> NDArray[np.uint8]:
        # The coin that picks the window does not look at the number.
        first = coins.rational(self.parts[0][0], places.size)
        code = np.empty(places.size, dtype=np.int64)
        offset = 0
        for (_, window), chosen in zip(self.parts, (first, ~first), strict=False):
            code[chosen] = offset + window.draw(places[chosen], self._most, coins)
            offset += window.points
        return write_integers(code, self.payload_bytes)

    def variance(self, root: float, number: float) -> float:
        """Return the variance of the estimate of a number of [0, 1]."""
        return sum(float(c) * window.variance(root, number) for c, window in self.parts if c)

    def worst_variance(self, root: float) -> float:
        """Return the largest variance over the range."""
        return max(self.variance(root, place) for place in np.linspace(0.0, 1.0, 33))


@final
@dataclass(frozen=True)
class MeanEstimate:
    """An unbiased estimate of a mean; ``loss`` is what each report cost its person."""

    mean: float
    people: int
    loss: Loss
    rejected: dict[str, int]
    _spread: float

    def interval(self, *, confidence: float = 0.95) -> Interval:
        """Return where the mean of the people's numbers lies, by Hoeffding's inequality.

        :param confidence: the least probability, over the clients' coins, that the mean is inside
        :raises InvalidValue: if ``confidence`` is not between 0 and 1
        """
        level = _validate.real("confidence", confidence, above=0, below=1)
        half = self._spread * math.sqrt(math.log(2.0 / (1.0 - level)) / (2.0 * self.people))
        return Interval(self.mean - half, self.mean + half)


@final
class MeanOracle(LocalPlan):
    """A public plan for the mean of one number of each person, when no collector is trusted.

    A number outside the range is moved to its nearer end, and what is no number becomes the middle
    of the range, before anything is drawn. Numbers are rounded to 2**20 steps of the range.

    :param low: where the public range begins
    :param high: where it ends
    :param epsilon: the loss of one report, read exactly, at most 20
    :param method: one of ``MEAN_METHODS``, or ``"auto"`` for the least worst-case variance
    :param steps: how many steps the range has
    :raises InvalidValue: if an argument is outside its range

    Examples
    --------
    >>> oracle = MeanOracle(0, 10, epsilon=10)
    >>> server = oracle.server()
    >>> server.aggregate(oracle.randomize_each([1.0, 3.0] * 2000))
    4000
    >>> abs(server.estimate().mean - 2) < 0.5
    True
    """

    _most_epsilon = 20
    _method: _Mixture

    def __init__(
        self, low: float, high: float, epsilon: object, method: str = "auto", *, steps: int = _STEPS
    ) -> None:
        super().__init__(epsilon)
        self._range = NumberRange(low, high)
        self._steps = _validate.integer("steps", steps, at_least=1, at_most=1 << 40)
        _validate.one_of("method", method, ("auto", *MEAN_METHODS))
        names = MEAN_METHODS if method == "auto" else (method,)
        mixtures = {name: _Mixture(self._windows(name), self._steps) for name in names}
        self.method = min(mixtures, key=lambda name: mixtures[name].worst_variance(self._root))
        chosen = mixtures[self.method]
        parts = [[str(c), window.points, window.width] for c, window in chosen.parts]
        shape = {"mixture": parts, "steps": self._steps}
        self._settle(self.method, chosen, **self._range.identity, **shape)

    def _windows(self, method: str) -> list[tuple[Fraction, _Window]]:
        width = min(max(round(_POINTS / (self._root + 1.0)), 1), _POINTS - 1)
        duchi, piecewise = _Window(2, 1), _Window(_POINTS, width)
        if method == "Duchi":
            return [(Fraction(1), duchi)]
        if method == "piecewise":
            return [(Fraction(1), piecewise)]
        # Any public chance is private; this one has the least worst variance above epsilon 0.61.
        share = Fraction(round(_MIX / self._root), _MIX) if self._epsilon > Fraction(61, 100) else 1
        return [(Fraction(share), duchi), (1 - Fraction(share), piecewise)]

    def variance(self, people: int, *, number: float) -> float:
        """Return the variance of the estimated mean if everybody has this number.

        :param people: how many people report
        :param number: a number of the range
        :raises InvalidValue: if an argument is outside its range
        """
        count, known = _validate.integer("people", people, at_least=1), self._range
        value = _validate.real("number", number, at_least=known.low, at_most=known.high)
        place = (value - known.low) / known.size
        return self._method.variance(self._root, place) * known.size**2 / count

    def _read(self, values: Any) -> NDArray[np.int64]:
        row, _ = self._range.read(values, otherwise=self._range.low + self._range.size / 2)
        steps = np.rint((row - self._range.low) / self._range.size * self._steps)
        return np.clip(steps.astype(np.int64), 0, self._steps)

    def server(self) -> MeanServer:
        return MeanServer(self)

    def estimates(self) -> NDArray[np.float64]:
        """Return what each possible report says about its person's number, without bias."""
        parts = [window.estimates(self._root) for _, window in self._method.parts]
        return self._range.low + self._range.size * np.concatenate(parts)


@final
class MeanServer(LocalServer):
    """Counts reports of one plan and estimates the mean."""

    _plan: MeanOracle

    def estimate(self) -> MeanEstimate:
        """Return the unbiased estimate of the mean.

        :raises NotApplicable: if no report was accepted
        """
        people = self._count_people()
        says = self._plan.estimates()
        mean = math.fsum(self._tally * says) / people
        spread = float(says.max() - says.min())
        return MeanEstimate(mean, people, self._plan.loss, dict(self.rejected), spread)
