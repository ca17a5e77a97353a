"""Shares of right guesses, and differences of such shares, with intervals that hold.

An interval for one share is that of Clopper and Pearson (1934). A difference of two shares is
bounded from the intervals of both, each at half of the error (Bonferroni), so it covers the
truth with at least the stated confidence for every sample size and needs no approximation; it
is up to 1.6 times as wide as the usual normal one.

Two guessers on the *same* records are compared by the records on which exactly one of them is
right: the difference of their accuracies is the difference of these two shares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
from scipy import special

from discreet import _validate
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Difference", "Proportion", "excess", "gain", "gap", "proportion"]

# Moves the quantiles outwards by more than the error of their inversion.
_SLACK = 1e-11


@final
@dataclass(frozen=True)
class Proportion:
    """A share of ``successes`` in ``trials``, and its interval at ``confidence``."""

    successes: int
    trials: int
    low: float
    high: float
    confidence: float

    @property
    def share(self) -> float:
        """The share that was seen."""
        return self.successes / self.trials

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "share": self.share,
            "successes": self.successes,
            "trials": self.trials,
            "low": self.low,
            "high": self.high,
            "confidence": self.confidence,
        }

    def __str__(self) -> str:
        low, high = math.floor(1000 * self.low) / 1000, math.ceil(1000 * self.high) / 1000
        return f"{self.share:.3f} [{low:.3f}, {high:.3f}] of {self.trials}"


@final
@dataclass(frozen=True)
class Difference:
    """A difference of shares, and its interval at ``confidence``."""

    value: float
    low: float
    high: float
    confidence: float

    @property
    def positive(self) -> bool:
        """Whether the whole interval lies above zero."""
        return self.low > 0

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "confidence": self.confidence,
        }

    def __str__(self) -> str:
        return f"{self.value:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


def proportion(successes: int, trials: int, *, confidence: float = 0.95) -> Proportion:
    """Return the share with its two-sided interval by Clopper and Pearson.

    >>> print(proportion(3, 10))
    0.300 [0.066, 0.653] of 10
    """
    total = _validate.integer("trials", trials, at_least=1)
    hits = _validate.integer("successes", successes, at_least=0)
    if hits > total:
        raise InvalidValue("successes", successes, f"at most the number of trials, {total}")
    level = _validate.real("confidence", confidence, above=0, below=1)
    low, high = _clopper_pearson(hits, total, (1 - level) / 2)
    return Proportion(hits, total, low, high, level)


def gap(
    first: NDArray[np.bool_], second: NDArray[np.bool_], *, confidence: float = 0.95
) -> Difference:
    """Return share(first) - share(second) for independent records.

    >>> print(gap(np.array([True] * 90 + [False] * 10), np.array([True] * 50 + [False] * 50)))
    +0.400 [+0.197, +0.571]
    """
    level = _validate.real("confidence", confidence, above=0, below=1)
    error = (1 - level) / 4
    one = _clopper_pearson(int(first.sum()), len(first), error)
    two = _clopper_pearson(int(second.sum()), len(second), error)
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
    won = _clopper_pearson(int((right & ~baseline).sum()), len(right), error)
    lost = _clopper_pearson(int((baseline & ~right).sum()), len(right), error)
    return won[0] - lost[1], won[1] - lost[0]


def _clopper_pearson(hits: int, total: int, error: float) -> tuple[float, float]:
    """The two bounds, each wrong with probability at most ``error``."""
    low = high = None
    if hits > 0:
        low = float(special.betaincinv(hits, total - hits + 1, error)) * (1 - _SLACK)
    if hits < total:
        high = float(special.betainccinv(hits + 1, total - hits, error)) * (1 + _SLACK)
    return (0.0 if low is None else low), (1.0 if high is None else min(high, 1.0))
