"""Confidence bounds for a probability from counts, by Clopper and Pearson (1934).

For k successes in n independent trials of probability p, the upper bound at error
``b`` is the p at which P(X <= k) = b, the lower bound the p at which P(X >= k) = b.
Each holds with probability at least 1 - b for every p and every n: no approximation,
at the price of being a little wide. Both are quantiles of the Beta distribution:

    lower = BetaInv(b; k, n - k + 1),    upper = BetaInv(1 - b; k + 1, n - k).

The quantiles are computed in double precision and then moved outwards by a relative
1e-11, which covers the error of the inversion in the range that is accepted here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import special

from discreet import _validate
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["interval", "lower_bound", "lower_bounds", "upper_bound", "upper_bounds"]

SMALLEST_ERROR = 1e-35
_SLACK = 1e-11


def lower_bound(successes: int, trials: int, *, error: float) -> float:
    """Return a number that exceeds the true probability with probability at most ``error``.

    >>> lower_bound(0, 10, error=0.05)
    0.0
    >>> round(lower_bound(10, 10, error=0.05), 6)  # error ** (1 / 10)
    0.741134
    """
    hits, total, allowed = _checked(successes, trials, error)
    return float(lower_bounds(np.array([hits]), total, error=allowed)[0])


def upper_bound(successes: int, trials: int, *, error: float) -> float:
    """Return a number below the true probability with probability at most ``error``.

    >>> round(upper_bound(0, 10, error=0.05), 6)  # 1 - error ** (1 / 10)
    0.258866
    >>> upper_bound(10, 10, error=0.05)
    1.0
    """
    hits, total, allowed = _checked(successes, trials, error)
    return float(upper_bounds(np.array([hits]), total, error=allowed)[0])


def interval(successes: int, trials: int, *, confidence: float) -> tuple[float, float]:
    """Return the two-sided interval, each side with half of the error.

    >>> low, high = interval(3, 10, confidence=0.95)
    >>> round(low, 4), round(high, 4)
    (0.0667, 0.6525)
    """
    level = _validate.real("confidence", confidence, above=0, below=1)
    half = (1 - level) / 2
    return (
        lower_bound(successes, trials, error=half),
        upper_bound(successes, trials, error=half),
    )


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


def _checked(successes: int, trials: int, error: float) -> tuple[int, int, float]:
    total = _validate.integer("trials", trials, at_least=1)
    hits = _validate.integer("successes", successes, at_least=0)
    if hits > total:
        raise InvalidValue("successes", successes, f"at most the number of trials, {total}")
    return hits, total, _validate.real("error", error, at_least=SMALLEST_ERROR, below=1)
