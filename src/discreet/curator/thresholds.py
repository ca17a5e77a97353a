"""Which groups there are, selected privately: a histogram that shows stable counts only.

**Mechanism.** Every group that occurs gets discrete Laplace noise of scale b = k / epsilon on its
number of rows and is released, with that number, if it reaches a threshold T (Korolova, Kenthapadi,
Mishra and Ntoulas 2009). k is the cap on the rows of one unit.

**Guarantee.** (epsilon, delta)-DP under add_remove. Let D be D' and one unit more, S the groups
that occur only in D, and q the probability that any of S is released on D. Groups outside S occur
in both, and their counts differ by at most k in total: their released part is epsilon'-DP with
epsilon' <= epsilon (k - |S|) / k. Hence for every event E, P(D in E) <= q + e^epsilon P(D' in E),
and P(D' in E) <= e^epsilon' P(D in E) / (1 - q), which is at most e^epsilon P(D in E) where
q <= 1 - e^(-epsilon / k). T is the least for which both hold with q <= delta. If |S| = j, the
counts of S are m_1 + ... + m_j <= k, all positive; P(m + noise >= T) is convex in m below T, so
the sum over S is largest at (k - j + 1, 1, ..., 1), and q is the largest of these over j.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

from discreet.errors import InvalidValue
from discreet.mechanisms import least_integer
from discreet.randomness import exp_negative

__all__ = ["least_count", "release_threshold"]

_BITS = 512


@lru_cache(maxsize=1024)
def release_threshold(*, cap: int, scale: Fraction, epsilon: Fraction, delta: Fraction) -> int:
    """The least T at which a unit alone shows with probability at most ``delta``.

    P(X >= t) = r^t / (1 + r) for t >= 1, r = e^(-1/scale), is compared in integers, rounded up.

    >>> release_threshold(cap=1, scale=Fraction(1), epsilon=Fraction(1), delta=Fraction(1, 10**6))
    15
    """
    if delta >= 1 - Fraction(exp_negative(epsilon / cap, _BITS)[1], 1 << _BITS):
        raise InvalidValue("delta", str(delta), "a value below 1 - exp(-epsilon / rows_per_person)")

    def rare(threshold: int) -> bool:
        alone = _reaches(threshold - 1, scale)
        return all(
            _reaches(threshold - (cap - j + 1), scale) + (j - 1) * alone <= delta
            for j in {1, cap}  # convex in j: one of the ends is the largest
        )

    start = cap + math.ceil(scale * Fraction(math.log(float(cap / delta)) + 1.0))
    return max(least_integer(rare, start), cap + 1)


def _reaches(steps: int, scale: Fraction) -> Fraction:
    """An upper bound on P(X >= steps)."""
    if steps < 1:
        return Fraction(1)
    one = 1 << _BITS
    above = exp_negative(steps / scale, _BITS)[1]
    ratio = exp_negative(1 / scale, _BITS)[0]
    return Fraction(above, one + ratio)


def least_count(shown: int, *, threshold: int, scale: Fraction, risk: float) -> int:
    """The lower end of an error bar for a group that was shown with the count ``shown``.

    That a group was shown is more likely if its noise was large, so the bar is made for the
    noise *given* that it was shown: the least true count m >= 1 for which
    P(m + noise >= shown | m + noise >= threshold) is at least ``risk``. The upper end needs no such
    care: given that it was shown, a group is even less likely to be far below its true count.

    >>> least_count(18, threshold=15, scale=Fraction(1), risk=0.025)
    1
    >>> least_count(100, threshold=15, scale=Fraction(1), risk=0.025)
    97
    """
    decay = 1.0 / float(scale)

    def log_tail(steps: int) -> float:
        """ln P(noise >= steps)."""
        if steps >= 1:
            return -steps * decay - math.log1p(math.exp(-decay))
        return math.log1p(-math.exp((steps - 1) * decay) / (1.0 + math.exp(-decay)))

    wanted = math.log(risk) - 1e-9

    def plausible(below: int) -> bool:
        count = 1 + below
        return log_tail(shown - count) - log_tail(threshold - count) >= wanted

    return 1 + least_integer(plausible, 1)
