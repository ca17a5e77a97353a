"""S14: what randomized responses tell: unbiased shares, their variances, exact intervals."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np
from scipy import special

from discreet import _validate
from discreet.mechanisms.error_bars import least
from discreet.mechanisms.release import Interval
from discreet.privacy import RandomizedResponse

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Channel", "Estimate", "response_bars"]


@final
@dataclass(frozen=True)
class Estimate:
    """An unbiased estimate of a share, which may lie outside [0, 1].

    ``noise_variance`` is an unbiased estimate of the variance that the coins alone cause, the
    people and their answers being fixed. ``variance`` estimates that of the whole survey when
    the people are a random sample of a large population.
    """

    share: float
    people: int
    noise_variance: float
    variance: float


@final
@dataclass(frozen=True)
class Channel:
    """k-ary randomized response: ``truth`` = p, ``lie`` = q for each other category."""

    truth: float
    lie: float
    categories: int
    loss: RandomizedResponse

    @classmethod
    def of(cls, epsilon: float, categories: int) -> Channel:
        """The channel with odds e^epsilon."""
        loss = RandomizedResponse(epsilon, categories)
        small = math.exp(-epsilon)
        whole = 1.0 + (categories - 1) * small
        return cls(1.0 / whole, small / whole, categories, loss)

    @classmethod
    def two_coin(cls) -> Channel:
        """The lecture's two coins, p = 3/4 and q = 1/4."""
        return cls(0.75, 0.25, 2, RandomizedResponse.two_coin())

    @property
    def contrast(self) -> float:
        """p - q: by how much the truth moves the share of responses."""
        return self.truth - self.lie

    def estimate(self, seen: int, people: int) -> Estimate:
        """Estimate the true share of a category that ``seen`` of ``people`` responses name."""
        mean = seen / people
        share = (mean - self.lie) / self.contrast
        return Estimate(
            share,
            people,
            self.noise_variance(share, people),
            mean * (1.0 - mean) / max(people - 1, 1) / self.contrast**2,
        )

    def noise_variance(self, share: float, people: int) -> float:
        """Variance of the estimate over the coins, when a ``share`` of the people belongs.

        (share p (1-p) + (1-share) q (1-q)) / (n (p-q)^2); linear in the share, so
        an unbiased share gives an unbiased variance. For two coins 3 / (4 n).
        """
        count = _validate.integer("people", people, at_least=1)
        belonging = self.truth * (1.0 - self.truth)
        other = self.lie * (1.0 - self.lie)
        return (share * belonging + (1.0 - share) * other) / count / self.contrast**2

    def survey_variance(self, share: float, people: int) -> float:
        """Variance of the estimate when each person belongs with probability ``share``.

        m (1-m) / (n (p-q)^2), m = q + (p-q) share: for two coins at least 4 times the
        share (1 - share) / n of truthful answers.
        """
        count = _validate.integer("people", people, at_least=1)
        mean = self.lie + self.contrast * _validate.real("share", share, at_least=0, at_most=1)
        return mean * (1.0 - mean) / count / self.contrast**2


def response_bars(
    seen: int | NDArray[np.int64], people: int, channel: Channel
) -> Callable[[float], Interval]:
    """Error bars for the true share; those of several categories hold together (Bonferroni)."""

    def bars(confidence: float) -> Interval:
        risk = 1.0 - confidence
        if not isinstance(seen, np.ndarray):
            return Interval(*_shares(seen, people, channel, risk))
        ends = [_shares(int(count), people, channel, risk / seen.size) for count in seen]
        return Interval(*(np.array(end) for end in zip(*ends, strict=True)))

    return bars


def _shares(seen: int, people: int, channel: Channel, risk: float) -> tuple[float, float]:
    """Invert both one-sided tests of the number of people who truly belong.

    The number of responses grows stochastically with it, as p > q, so each test
    is decided by a threshold. The true number is missed with probability at most ``risk``.
    """
    p, q = channel.truth, channel.lie
    # Log-gamma functions of ``people`` lose their last digits; the tests give way by more.
    half = risk / 2.0 * (1.0 - 1e-6 - 1e-13 * people)

    def too_many(belonging: int) -> bool:
        return belonging > people or _at_most(seen, belonging, p, people - belonging, q) < half

    def enough(belonging: int) -> bool:
        if belonging >= people:
            return True
        unseen = people - seen
        return _at_most(unseen, people - belonging, 1.0 - q, belonging, 1.0 - p) >= half

    return least(enough, 1) / people, max(least(too_many, 1) - 1, 0) / people


def _at_most(limit: int, first: int, p: float, second: int, q: float) -> float:
    """P(B + B' <= limit) for independent B ~ Bin(first, p) and B' ~ Bin(second, q)."""
    # Beyond forty deviations (and forty more) a binomial has less than e^-300 of its mass.
    spread = 40.0 * math.sqrt(first * p * (1.0 - p)) + 40.0
    low = max(0, math.floor(first * p - spread))
    high = min(first, math.ceil(first * p + spread))
    j = np.arange(low, high + 1, dtype=np.float64)
    log_choose = -special.betaln(first - j + 1.0, j + 1.0) - math.log(first + 1.0)
    mass = np.exp(log_choose + special.xlogy(j, p) + special.xlog1py(first - j, -p))
    rest = limit - j
    below = np.where(rest >= second, 1.0, 0.0)
    inner = (rest >= 0) & (rest < second)
    below[inner] = special.bdtr(rest[inner], second, q)
    return float(mass @ below)
