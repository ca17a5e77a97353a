"""The mean of numbers that nobody may see: Duchi, piecewise and hybrid responses on a grid.

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
from discreet.local._methods import read_integers, write_integers
from discreet.local._plans import LocalPlan, LocalServer
from discreet.local._reports import ReportFormat
from discreet.mechanisms import Interval

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.privacy import Loss

MEAN_METHODS = ("Duchi", "piecewise", "hybrid")
_POINTS = 1 << 12
_STEPS = 1 << 20
_MIX = 1 << 16
_MOST_EPSILON = 20


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

        Parameters
        ----------
        confidence : float
            The least probability, over the clients' coins, that the mean is inside.

        Returns
        -------
        Interval
            Two numbers.
        """
        level = _validate.real("confidence", confidence, above=0, below=1)
        half = self._spread * math.sqrt(math.log(2.0 / (1.0 - level)) / (2.0 * self.people))
        return Interval(self.mean - half, self.mean + half)


@final
class MeanOracle(LocalPlan):
    """A public plan for the mean of one number of each person, when no collector is trusted.

    A number outside the range is moved to its nearer end, and what is no number becomes the middle
    of the range, before anything is drawn. Numbers are rounded to 2**20 steps of the range.

    Parameters
    ----------
    low, high : float
        The public range.
    epsilon : number or str
        The loss of one report, read exactly, at most 20.
    method : str
        One of ``MEAN_METHODS``, or ``"auto"`` for the least worst-case variance.
    steps : int
        How many steps the range has.

    Raises
    ------
    InvalidValue
        If an argument is outside its range.

    Examples
    --------
    >>> oracle = MeanOracle(0, 10, epsilon=10)
    >>> server = oracle.server()
    >>> server.aggregate(oracle.randomize_each([1.0, 3.0] * 2000))
    4000
    >>> abs(server.estimate().mean - 2) < 0.5
    True
    """

    def __init__(
        self, low: float, high: float, epsilon: object, method: str = "auto", *, steps: int = _STEPS
    ) -> None:
        self._low = _validate.real("low", low)
        self._high = _validate.real("high", high)
        if not self._low < self._high or not math.isfinite(self._high - self._low):
            raise InvalidValue("high", high, f"more than low, {self._low}, by a finite amount")
        self._epsilon = _validate.fraction("epsilon", epsilon, above=0, at_most=_MOST_EPSILON)
        self._steps = _validate.integer("steps", steps, at_least=1, at_most=1 << 40)
        self._root = math.exp(float(self._epsilon) / 2)
        _validate.one_of("method", method, ("auto", *MEAN_METHODS))
        if method == "auto":
            method = min(MEAN_METHODS, key=lambda name: self._worst(self._windows(name)))
        self.method = method
        self._mixture = self._windows(method)
        plan = {
            "epsilon": str(self._epsilon),
            "high": self._high.hex(),
            "low": self._low.hex(),
            "method": method,
            "mixture": [[str(c), w.points, w.width] for c, w in self._mixture],
            "steps": self._steps,
        }
        self._points = sum(window.points for _, window in self._mixture)
        self._payload = ((self._points - 1).bit_length() + 7) // 8
        self._format = ReportFormat(method, plan, self._payload)

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

    def _worst(self, mixture: list[tuple[Fraction, _Window]]) -> float:
        places = np.linspace(0.0, 1.0, 33)
        return max(self._variance(mixture, place) for place in places)

    def _variance(self, mixture: list[tuple[Fraction, _Window]], place: float) -> float:
        return sum(float(c) * w.variance(self._root, place) for c, w in mixture if c)

    def variance(self, people: int, *, number: float) -> float:
        """Return the variance of the estimated mean if everybody has this number.

        Parameters
        ----------
        people : int
            How many people report.
        number : float
            A number of the range.

        Returns
        -------
        float
            The variance over the clients' coins.

        Raises
        ------
        InvalidValue
            If an argument is outside its range.
        """
        count = _validate.integer("people", people, at_least=1)
        size = self._high - self._low
        value = _validate.real("number", number, at_least=self._low, at_most=self._high)
        return self._variance(self._mixture, (value - self._low) / size) * size**2 / count

    def _read(self, values: Any) -> NDArray[np.int64]:
        try:
            row = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            raise withheld("values", "a row with one number for each person") from None
        if row.ndim != 1:
            raise withheld("values", "a row with one number for each person")
        middle = self._low + (self._high - self._low) / 2
        row = np.clip(np.where(np.isnan(row), middle, row), self._low, self._high)
        steps = np.rint((row - self._low) / (self._high - self._low) * self._steps)
        return np.clip(steps.astype(np.int64), 0, self._steps)

    def _randomize(self, values: Any, coins: Coins) -> NDArray[np.uint8]:
        # The coin that picks the window does not look at the number.
        steps: NDArray[np.int64] = values
        first = coins.rational(self._mixture[0][0], steps.size)
        code = np.empty(steps.size, dtype=np.int64)
        offset = 0
        for (_, window), chosen in zip(self._mixture, (first, ~first), strict=False):
            code[chosen] = offset + window.draw(steps[chosen], self._steps, coins)
            offset += window.points
        return write_integers(code, self._payload)

    def server(self) -> MeanServer:
        """Return an empty collector of this plan."""
        return MeanServer(self)

    def channel(self, root: object) -> tuple[list[bytes], list[list[Fraction]]]:
        """Return the exact matrix of the randomizer; a row for each step of the range.

        Parameters
        ----------
        root : number or str
            A rational number that stands for e^(epsilon/2), at least 1.

        Returns
        -------
        tuple
            All payloads, and a row of their probabilities for every step of the range.

        Raises
        ------
        NotApplicable
            If there are too many outcomes to play; take few ``steps``.
        """
        return self._play(root, np.arange(self._steps + 1))

    def estimates(self) -> NDArray[np.float64]:
        """Return what each possible report says about its person's number, without bias."""
        parts = [window.estimates(self._root) for _, window in self._mixture]
        return self._low + (self._high - self._low) * np.concatenate(parts)


@final
class MeanServer(LocalServer):
    """Counts reports of one plan and estimates the mean."""

    def __init__(self, oracle: MeanOracle) -> None:
        super().__init__(oracle, np.zeros(oracle._points, dtype=np.int64))
        self._oracle = oracle

    def _valid(self, payloads: NDArray[np.uint8]) -> NDArray[np.bool_]:
        return read_integers(payloads) < self._tally.size

    def _add(self, payloads: NDArray[np.uint8]) -> None:
        np.add.at(self._tally, read_integers(payloads), 1)

    def estimate(self) -> MeanEstimate:
        """Return the unbiased estimate of the mean.

        Returns
        -------
        MeanEstimate
            The mean and its interval.

        Raises
        ------
        NotApplicable
            If no report was accepted.
        """
        people = self._count_people()
        says = self._oracle.estimates()
        mean = math.fsum(self._tally * says) / people
        spread = float(says.max() - says.min())
        return MeanEstimate(mean, people, self._oracle.loss, dict(self.rejected), spread)
