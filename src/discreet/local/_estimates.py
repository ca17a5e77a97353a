"""What a collector learns: unbiased shares, their variances, and intervals that hold together.

The number of reports that support a value is a sum of independent coins: p for people who have it,
q for the others. By Hoeffding (1956, theorem 4) its tails lie inside those of the binomial with the
same mean, so an interval of Clopper and Pearson for the mean, widened by one report so that the
theorem applies up to its edge, gives one for the share. Intervals for all values hold
together (Bonferroni).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

import numpy as np
from scipy import special

from discreet import _validate
from discreet._confidence import lower_bounds, upper_bounds
from discreet.errors import NotApplicable
from discreet.mechanisms import Interval

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.privacy import Loss


@final
@dataclass(frozen=True)
class FrequencyEstimate:
    """Estimated shares of the values of a domain among the people who reported.

    ``shares`` are unbiased and may lie outside [0, 1]; the last one belongs to everything outside
    the domain. ``variances`` are those of the shares over the coins of the clients, the people and
    their values being fixed. ``loss`` is what each report cost its person, and ``rejected`` counts
    what was not a report of the plan, by reason.
    """

    values: Sequence[Any]
    shares: NDArray[np.float64]
    variances: NDArray[np.float64]
    people: int
    loss: Loss
    rejected: Mapping[str, int]
    _support: tuple[NDArray[np.int64], float, float] = field(repr=False, compare=False)
    # How many such tables hold together; the people of one are a random part of all.
    _parts: int = field(default=1, repr=False)

    def interval(self, *, confidence: float = 0.95) -> Interval:
        """Return where the true shares of the people lie, all of them together.

        Parameters
        ----------
        confidence : float
            With at least this probability over the clients' coins every share is inside.

        Returns
        -------
        Interval
            Two arrays in the order of ``values``, inside [0, 1].

        Raises
        ------
        InvalidValue
            If ``confidence`` is not in [0.5, 1).
        """
        level = _validate.real("confidence", confidence, at_least=0.5, below=1)
        counts, p, q = self._support
        error = (1.0 - level) / 2.0 / counts.size / self._parts
        if self._parts == 1:
            low = lower_bounds(np.maximum(counts - 1, 0), self.people, error=error)
            high = upper_bounds(np.minimum(counts + 1, self.people), self.people, error=error)
        else:
            low, high = chernoff_bounds(counts / self.people, self.people, error)
        ends = ((end - q) / (p - q) for end in (low, high))
        return Interval(*(np.clip(end, 0.0, 1.0) for end in ends))

    def norm_sub_biased(self) -> NDArray[np.float64]:
        """Return shares that are not negative and sum to 1 (Norm-Sub); they are biased.

        One constant is subtracted from all shares and what is then negative is set to 0 (Wang et
        al. 2020). It lowers the error of the whole table and pulls small shares away from the
        truth: do not add or average such shares over tables, and take :meth:`interval` from here.
        """
        ranked = np.sort(self.shares)[::-1]
        excess = (np.cumsum(ranked) - 1.0) / np.arange(1, ranked.size + 1)
        last = int(np.flatnonzero(ranked > excess)[-1])
        return np.asarray(np.maximum(self.shares - excess[last], 0.0))


def chernoff_bounds(
    seen: NDArray[np.float64], people: int, error: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return bounds on means whose exponential moments are at most those of a binomial.

    That holds for a random part of the people as well (Hoeffding 1963, theorem 4), for which the
    tails of the binomial are not enough. Each bound fails with probability at most ``error``.
    """
    limit = np.log(1.0 / error) / people
    ends = []
    for start in (0.0, 1.0):
        inside, outside = seen.astype(np.float64), np.full(seen.shape, start)
        for _ in range(60):
            middle = 0.5 * (inside + outside)
            far = special.rel_entr(seen, middle) + special.rel_entr(1 - seen, 1 - middle) > limit
            outside, inside = np.where(far, middle, outside), np.where(far, inside, middle)
        ends.append(outside)
    return ends[0], ends[1]


def estimate_shares(
    values: Sequence[Any],
    counts: NDArray[np.int64],
    people: int,
    chances: tuple[float, float],
    loss: Loss,
    rejected: Mapping[str, int],
    parts: int = 1,
) -> FrequencyEstimate:
    """Turn counts of supporting reports into an estimate, or raise if there are no reports."""
    if people == 0:
        raise NotApplicable("no report was accepted, so there is nothing to estimate")
    p, q = chances
    shares = (counts / people - q) / (p - q)
    at_zero = q * (1.0 - q) / (p - q) ** 2
    slope = (1.0 - p - q) / (p - q)
    variances = (at_zero + np.clip(shares, 0.0, 1.0) * slope) / people
    return FrequencyEstimate(
        values, shares, variances, people, loss, rejected, (counts, p, q), parts
    )
