"""ROC curves, exact for ties, and what can be read from them.

Scores are those of members and of non-members; a higher score says "member". A record is
called a member if its score is at least the threshold. A point of the curve exists only for
thresholds that occur: equal scores are accepted or rejected together, so a constant score
has no points but (0, 0) and (1, 1).

A guarantee bounds the share of members found at each share of non-members accused
(``loss.tradeoff``), at every threshold. :meth:`Roc.exceeds` compares every point of the curve, and
the curve of the reversed scores as well: an attack that is always wrong tells as much as one that
is right. Rates are known up to chance only. The bounds of Clopper and Pearson are taken for every
number of accused that can occur, one-sided, each with the same part of the error (Bonferroni): for
n non-members and m members, 2 (n + m) bounds. They hold for all thresholds at once, chosen in
hindsight or not, also for scores with ties. For if j of n scores reach a threshold, it lies above
the one of rank j + 1, so the true share that reaches it is at most the share above that rank,
which is at most Beta(j + 1, n - j) in distribution: the law that the upper bound is a quantile of.
The lower bound is the same with the rank j. So for independent records and a guarantee that is
right, the probability of any point outside is at most the error. Records of one training run share
a model and are not independent.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np
from scipy import special

from discreet import _validate
from discreet._confidence import Proportion, lower_bounds, proportion, upper_bounds
from discreet._json import JsonRecord
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.privacy import Loss


# An alarm says that a certificate is wrong, so it is given only where chance has no say.
FALSE_ALARM = 1e-6
# Points of a trade-off curve that are computed in one go.
_CHUNK = 8192


@final
@dataclass(frozen=True)
class OperatingPoint(JsonRecord):
    """One threshold: the shares of members found and of non-members accused.

    The threshold was chosen in hindsight, at the largest empirical false-positive rate that
    does not pass the one asked for. ``tpr`` and ``fpr`` carry exact binomial intervals.
    """

    asked_fpr: float
    threshold: float
    tpr: Proportion
    fpr: Proportion


@final
@dataclass(frozen=True, eq=False)
class Roc:
    """The curve: counts of accused non-members and found members at falling thresholds."""

    thresholds: NDArray[np.float64]
    false_positives: NDArray[np.int64]
    true_positives: NDArray[np.int64]
    nonmembers: int
    members: int

    @property
    def fpr(self) -> NDArray[np.float64]:
        """False-positive rates, rising from 0 to 1."""
        return self.false_positives / self.nonmembers

    @property
    def tpr(self) -> NDArray[np.float64]:
        """True-positive rates, rising from 0 to 1."""
        return self.true_positives / self.members

    @property
    def smallest_fpr(self) -> float:
        """The smallest false-positive rate that this many non-members can support."""
        return 1.0 / self.nonmembers

    def at(self, fpr: float, *, confidence: float = 0.95) -> OperatingPoint:
        """Return the point at a false-positive rate of at most ``fpr``.

        Refuses a rate below one false positive among all non-members: with none allowed, the
        curve says nothing about the rate that was asked for.
        """
        rate = _validate.real("fpr", fpr, above=0, at_most=1)
        # A product such as 0.001 * 1000 may round below the whole number that it is.
        allowed = math.floor(rate * self.nonmembers * (1 + 1e-12))
        if allowed < 1:
            raise InvalidValue(
                "fpr",
                fpr,
                f"at least {self.smallest_fpr:.3g}: {self.nonmembers} non-members cannot "
                "support a smaller false-positive rate",
            )
        place = int(np.searchsorted(self.false_positives, allowed, side="right")) - 1
        return OperatingPoint(
            rate,
            float(self.thresholds[place]),
            proportion(int(self.true_positives[place]), self.members, confidence=confidence),
            proportion(int(self.false_positives[place]), self.nonmembers, confidence=confidence),
        )

    def exceeds(self, loss: Loss, *, error: float = FALSE_ALARM) -> bool:
        """Say whether a point of the curve is outside of what ``loss`` allows, beyond chance.

        Parameters
        ----------
        loss : Loss
            The guarantee.
        error : float
            The probability of a false alarm, at most, for independent records.

        >>> from discreet.privacy import PureDP
        >>> found = roc_curve(np.full(200, 1.0), np.zeros(200))
        >>> found.exceeds(PureDP(epsilon=1.0)), found.exceeds(PureDP(epsilon=9.0))
        (True, False)
        """
        each = _validate.real("error", error, above=0, below=1) / (
            2 * (self.members + self.nonmembers)
        )
        accused, found = self.false_positives, self.true_positives
        reversed_ = (self.nonmembers - accused, self.members - found)
        return any(
            _exceeds_loss(false, true, self.nonmembers, self.members, loss, each)
            for false, true in ((accused, found), reversed_)
        )

    def could_exceed(self, loss: Loss, *, error: float = FALSE_ALARM) -> bool:
        """Say whether an attack without any mistake on as many records would exceed ``loss``."""
        perfect = Roc(
            np.array([np.inf, 1.0, 0.0]),
            np.array([0, 0, self.nonmembers]),
            np.array([0, self.members, self.members]),
            self.nonmembers,
            self.members,
        )
        return perfect.exceeds(loss, error=error)


def roc_curve(members: NDArray[np.float64], nonmembers: NDArray[np.float64]) -> Roc:
    """Return the curve of two samples of scores.

    >>> curve = roc_curve(np.array([2.0, 1.0]), np.array([1.0, 0.0]))
    >>> curve.fpr.tolist(), curve.tpr.tolist()
    ([0.0, 0.0, 0.5, 1.0], [0.0, 0.5, 1.0, 1.0])
    """
    ones, zeros = _check_scores("members", members), _check_scores("nonmembers", nonmembers)
    scores = np.concatenate([ones, zeros])
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    hits = np.cumsum(order < len(ones))
    false = np.arange(1, len(scores) + 1) - hits
    last = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
    return Roc(
        np.concatenate([[np.inf], ordered[last]]),
        np.concatenate([[0], false[last]]).astype(np.int64),
        np.concatenate([[0], hits[last]]).astype(np.int64),
        len(zeros),
        len(ones),
    )


def area(members: NDArray[np.float64], nonmembers: NDArray[np.float64]) -> float:
    """Return P(member's score > non-member's) + P(equal) / 2, the area under the curve.

    >>> area(np.array([2.0, 1.0]), np.array([1.0, 0.0]))
    0.875
    """
    ones, zeros = (
        np.sort(_check_scores("members", members)),
        _check_scores("nonmembers", nonmembers),
    )
    below = np.searchsorted(ones, zeros, side="right")
    not_above = np.searchsorted(ones, zeros, side="left")
    wins = 2 * len(ones) * len(zeros) - int(below.sum()) - int(not_above.sum())
    return wins / (2 * len(ones) * len(zeros))


def area_interval(
    value: float, members: int, nonmembers: int, *, confidence: float = 0.95
) -> tuple[float, float]:
    """Return an interval for the area by Newcombe's fifth method (Statist. Med. 25, 2006).

    The ends are the areas a with abs(value - a) = z sqrt(V(a)), where V is the variance of
    Hanley and McNeil (1982) with both sample sizes at their mean in the correction. As with
    Wilson's interval for a share, it does not collapse to a point at 1. It is asymptotic:
    near-nominal on average, not a guarantee.

    >>> low, high = area_interval(1.0, 50, 50)
    >>> round(low, 3), high
    (0.96, 1.0)
    """
    seen = _validate.real("value", value, at_least=0, at_most=1)
    m = _validate.integer("members", members, at_least=1)
    n = _validate.integer("nonmembers", nonmembers, at_least=1)
    level = _validate.real("confidence", confidence, above=0, below=1)
    z = float(special.ndtri((1 + level) / 2))
    mean = (m + n) / 2 - 1

    def inside(truth: float) -> bool:
        spread = 1 + mean * (1 - truth) / (2 - truth) + mean * truth / (1 + truth)
        return abs(seen - truth) <= z * math.sqrt(truth * (1 - truth) * spread / (m * n))

    return _edge(inside, seen, 0.0), _edge(inside, seen, 1.0)


def _edge(inside: Callable[[float], bool], start: float, end: float) -> float:
    """Bisect for the last point inside, from ``start`` towards ``end``."""
    near, far = start, end
    if near == far:
        return far
    for _ in range(60):
        middle = (near + far) / 2
        near, far = (middle, far) if inside(middle) else (near, middle)
    return far


def _exceeds_loss(
    false: NDArray[np.int64],
    true: NDArray[np.int64],
    nonmembers: int,
    members: int,
    loss: Loss,
    error: float,
) -> bool:
    tpr = lower_bounds(true, members, error=error)
    fpr = upper_bounds(false, nonmembers, error=error)
    # Guessing is always allowed: most points need no look at the loss.
    doubtful = np.flatnonzero(tpr > fpr)
    return any(
        bool(np.any(tpr[part] > loss.tradeoff(fpr[part])))
        for part in (doubtful[at : at + _CHUNK] for at in range(0, len(doubtful), _CHUNK))
    )


def _check_scores(argument: str, scores: NDArray[np.float64]) -> NDArray[np.float64]:
    array = np.asarray(scores, dtype=np.float64)
    if array.ndim != 1 or not array.size:
        raise InvalidValue(argument, f"scores of shape {array.shape}", "one score or more")
    if np.isnan(array).any():
        raise InvalidValue(argument, "a score that is not a number", "comparable scores")
    return array
