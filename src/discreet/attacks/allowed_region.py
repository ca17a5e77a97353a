"""Whether a measured curve lies in the region that a guarantee leaves to every attack.

A guarantee bounds the share of members found at each share of non-members accused
(``loss.tradeoff``), at every threshold. So every point of the curve is compared, and the curve of
the reversed scores as well: an attack that is always wrong tells as much as one that is right.

Rates are known up to chance only. The bounds of Clopper and Pearson are taken for every number of
accused that can occur, one-sided, each with the same part of the error (Bonferroni): for n
non-members and m members, 2 (n + m) bounds. They hold for all thresholds at once, chosen in
hindsight or not, also for scores with ties. For if j of n scores reach a threshold, it lies above
the one of rank j + 1, so the true share that reaches it is at most the share above that rank,
which is at most Beta(j + 1, n - j) in distribution: the law that the upper bound is a quantile of.
The lower bound is the same with the rank j.

So for independent records and a guarantee that is right, the probability of any point outside is
at most the error. Records of one training run share a model and are not independent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import special

from discreet import _validate
from discreet.attacks.roc import Roc

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.privacy import Loss

__all__ = ["FALSE_ALARM", "leaves_region", "region_can_be_left"]

# An alarm says that a certificate is wrong, so it is given only where chance has no say.
FALSE_ALARM = 1e-6
# Points of a trade-off curve that are computed in one go.
_CHUNK = 8192
# Moves the quantiles outwards by more than the error of their inversion.
_SLACK = 1e-11


def leaves_region(curve: Roc, loss: Loss, *, error: float = FALSE_ALARM) -> bool:
    """Whether some point of the curve is outside of what ``loss`` allows, by more than chance.

    >>> from discreet.attacks.roc import roc_curve
    >>> from discreet.privacy import PureDP
    >>> found = roc_curve(np.full(200, 1.0), np.zeros(200))
    >>> leaves_region(found, PureDP(epsilon=1.0)), leaves_region(found, PureDP(epsilon=9.0))
    (True, False)
    """
    each = _validate.real("error", error, above=0, below=1) / (
        2 * (curve.members + curve.nonmembers)
    )
    accused, found = curve.false_positives, curve.true_positives
    reversed_ = (curve.nonmembers - accused, curve.members - found)
    return any(
        _above(false, true, curve.nonmembers, curve.members, loss, each)
        for false, true in ((accused, found), reversed_)
    )


def region_can_be_left(curve: Roc, loss: Loss, *, error: float = FALSE_ALARM) -> bool:
    """Whether an attack without any mistake on so many records would leave the region."""
    faultless = Roc(
        np.array([np.inf, 1.0, 0.0]),
        np.array([0, 0, curve.nonmembers]),
        np.array([0, curve.members, curve.members]),
        curve.nonmembers,
        curve.members,
    )
    return leaves_region(faultless, loss, error=error)


def _above(
    false: NDArray[np.int64],
    true: NDArray[np.int64],
    nonmembers: int,
    members: int,
    loss: Loss,
    error: float,
) -> bool:
    tpr = _lower(true, members, error)
    fpr = _upper(false, nonmembers, error)
    # Guessing is always allowed: most points need no look at the loss.
    doubtful = np.flatnonzero(tpr > fpr)
    return any(
        bool(np.any(tpr[part] > loss.tradeoff(fpr[part])))
        for part in (doubtful[at : at + _CHUNK] for at in range(0, len(doubtful), _CHUNK))
    )


def _lower(hits: NDArray[np.int64], total: int, error: float) -> NDArray[np.float64]:
    bound = special.betaincinv(np.maximum(hits, 1), total - hits + 1, error) * (1 - _SLACK)
    return np.where(hits > 0, bound, 0.0)


def _upper(hits: NDArray[np.int64], total: int, error: float) -> NDArray[np.float64]:
    bound = special.betainccinv(hits + 1, np.maximum(total - hits, 1), error) * (1 + _SLACK)
    return np.where(hits < total, np.minimum(bound, 1.0), 1.0)
