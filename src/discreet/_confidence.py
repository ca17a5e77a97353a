"""Confidence bounds for probabilities from counts, and for differences of shares.

For k successes in n independent trials of probability p, the upper bound at error ``b`` is the
p at which P(X <= k) = b, the lower bound the p at which P(X >= k) = b (Clopper and Pearson 1934).
Each holds with probability at least 1 - b for every p and every n: no approximation, at the price
of being a little wide. Both are quantiles of the Beta distribution:

    lower = BetaInv(b; k, n - k + 1),    upper = BetaInv(1 - b; k + 1, n - k).

The quantiles are computed in double precision and then moved outwards by a relative 1e-11, which
covers the error of the inversion in the range that is accepted here.

A difference of two shares is bounded from the intervals of both, each at half of the error
(Bonferroni), so it covers the truth with at least the stated confidence for every sample size; it
is up to 1.6 times as wide as the usual normal one. Two guessers on the *same* records are compared
by the records on which exactly one of them is right: the difference of their accuracies is the
difference of these two shares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np
from scipy import special

from discreet import _validate
from discreet._json import JsonRecord
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

SMALLEST_ERROR = 1e-35
_SLACK = 1e-11


def rows_meant(cap: int | None, asked: str = "") -> str:
    """Return of which rows a figure and its error bars speak, where a person counts ``cap`` rows.

    >>> rows_meant(None)
    'of all rows'
    """
    if cap is None:
        return f"of all rows{asked}"
    return f"of the rows kept: at most {cap} of each person's rows{asked}, chosen at random"


def lower_bound(successes: int, trials: int, *, error: float) -> float:
    """Return a number that exceeds the true probability with probability at most ``error``.

    >>> lower_bound(0, 10, error=0.05)
    0.0
    >>> round(lower_bound(10, 10, error=0.05), 6)  # error ** (1 / 10)
    0.741134

    Parameters
    ----------
    successes, trials
        What was counted.
    error
        How often the bound may be too high.

    Returns
    -------
    float
        A number that the probability of success is above, but for that error.

    Raises
    ------
    InvalidValue
        If the counts cannot be.
    """
    hits, total, allowed = _check_counts(successes, trials, error)
    return float(lower_bounds(np.array([hits]), total, error=allowed)[0])


def upper_bound(successes: int, trials: int, *, error: float) -> float:
    """Return a number below the true probability with probability at most ``error``.

    >>> round(upper_bound(0, 10, error=0.05), 6)  # 1 - error ** (1 / 10)
    0.258866
    >>> upper_bound(10, 10, error=0.05)
    1.0

    Parameters
    ----------
    successes, trials
        What was counted.
    error
        How often the bound may be too low.

    Returns
    -------
    float
        A number that the probability of success is below, but for that error.

    Raises
    ------
    InvalidValue
        If the counts cannot be.
    """
    hits, total, allowed = _check_counts(successes, trials, error)
    return float(upper_bounds(np.array([hits]), total, error=allowed)[0])


def lower_bounds(successes: ArrayLike, trials: int, *, error: float) -> NDArray[np.float64]:
    """The same as :func:`lower_bound` for an array of counts, which is not checked."""
    hits = np.asarray(successes, dtype=np.float64)
    bounds = special.betaincinv(np.maximum(hits, 1.0), trials - hits + 1.0, error)
    return np.where(hits > 0, bounds * (1 - _SLACK), 0.0)


def upper_bounds(successes: ArrayLike, trials: int, *, error: float) -> NDArray[np.float64]:
    """The same as :func:`upper_bound` for an array of counts, which is not checked."""
    hits = np.asarray(successes, dtype=np.float64)
    # The complement keeps a small error exact, where 1 - error would round it away.
    bounds = special.betainccinv(hits + 1.0, np.maximum(trials - hits, 1.0), error)
    return np.where(hits < trials, np.minimum(bounds * (1 + _SLACK), 1.0), 1.0)


def _check_counts(successes: int, trials: int, error: float) -> tuple[int, int, float]:
    total = _validate.integer("trials", trials, at_least=1)
    hits = _validate.integer("successes", successes, at_least=0)
    if hits > total:
        raise InvalidValue("successes", successes, f"at most the number of trials, {total}")
    return hits, total, _validate.real("error", error, at_least=SMALLEST_ERROR, below=1)


@final
@dataclass(frozen=True)
class Proportion(JsonRecord):
    """A share of ``successes`` in ``trials``, and its interval at ``confidence``."""

    json_properties = ("share",)

    successes: int
    trials: int
    low: float
    high: float
    confidence: float

    @property
    def share(self) -> float:
        """The share that was seen."""
        return self.successes / self.trials

    def __str__(self) -> str:
        low, high = math.floor(1000 * self.low) / 1000, math.ceil(1000 * self.high) / 1000
        return f"{self.share:.3f} [{low:.3f}, {high:.3f}] of {self.trials}"


@final
@dataclass(frozen=True)
class Difference(JsonRecord):
    """A difference of shares, and its interval at ``confidence``."""

    value: float
    low: float
    high: float
    confidence: float

    @property
    def positive(self) -> bool:
        """Whether the whole interval lies above zero."""
        return self.low > 0

    def __str__(self) -> str:
        return f"{self.value:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


def proportion(successes: int, trials: int, *, confidence: float = 0.95) -> Proportion:
    """Return the share with its two-sided interval by Clopper and Pearson.

    >>> print(proportion(3, 10))
    0.300 [0.066, 0.653] of 10
    """
    level = _validate.real("confidence", confidence, above=0, below=1)
    hits, total, error = _check_counts(successes, trials, (1 - level) / 2)
    return Proportion(hits, total, *_bounds(hits, total, error), level)


def gap(
    first: NDArray[np.bool_], second: NDArray[np.bool_], *, confidence: float = 0.95
) -> Difference:
    """Return share(first) - share(second) for independent records.

    >>> print(gap(np.array([True] * 90 + [False] * 10), np.array([True] * 50 + [False] * 50)))
    +0.400 [+0.197, +0.571]
    """
    level = _validate.real("confidence", confidence, above=0, below=1)
    error = (1 - level) / 4
    one = _bounds(int(first.sum()), len(first), error)
    two = _bounds(int(second.sum()), len(second), error)
    value = float(first.mean() - second.mean())
    return Difference(value, one[0] - two[1], one[1] - two[0], level)


def gain(
    right: NDArray[np.bool_], baseline: NDArray[np.bool_], *, confidence: float = 0.95
) -> Difference:
    """Return share(right) - share(baseline) for two guessers on the same records.

    >>> right, baseline = np.array([True] * 95 + [False] * 5), np.array([True] * 70 + [False] * 30)
    >>> print(gain(right, baseline))
    +0.250 [+0.116, +0.360]
    """
    level = _validate.real("confidence", confidence, above=0, below=1)
    low, high = _gain_bounds(right, baseline, (1 - level) / 4)
    return Difference(float(right.mean() - baseline.mean()), low, high, level)


def excess(
    first: tuple[NDArray[np.bool_], NDArray[np.bool_]],
    second: tuple[NDArray[np.bool_], NDArray[np.bool_]],
    *,
    confidence: float = 0.95,
) -> Difference:
    """Return gain(*first) - gain(*second), where the two are about independent records."""
    level = _validate.real("confidence", confidence, above=0, below=1)
    error = (1 - level) / 8
    one, two = _gain_bounds(*first, error), _gain_bounds(*second, error)
    value = float(first[0].mean() - first[1].mean() - second[0].mean() + second[1].mean())
    return Difference(value, one[0] - two[1], one[1] - two[0], level)


def _gain_bounds(
    right: NDArray[np.bool_], baseline: NDArray[np.bool_], error: float
) -> tuple[float, float]:
    won = _bounds(int((right & ~baseline).sum()), len(right), error)
    lost = _bounds(int((baseline & ~right).sum()), len(right), error)
    return won[0] - lost[1], won[1] - lost[0]


def _bounds(hits: int, total: int, error: float) -> tuple[float, float]:
    """Both bounds, each wrong with probability at most ``error``."""
    low = lower_bounds([hits], total, error=error)
    return float(low[0]), float(upper_bounds([hits], total, error=error)[0])
