"""A claimed trade-off curve, tested directly (f-DP; Dong, Roth and Su 2022).

A loss bounds the power of every test at every level, not only at one (epsilon, delta). If
FPR <= a and TPR >= b with confidence, and b exceeds the best power that the claimed loss
allows at level a, then the claim is false: the power grows with the level, so at the true FPR,
which is at most a, it is no larger. This reads the claim where the data are, at error
rates that can be measured, instead of at a delta of 1e-5 where they say little. Valid for every
mechanism.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from discreet._rounding import at_least, at_most
from discreet.audit.mechanism import Claim
from discreet.audit.runs import RUN_ASSUMPTIONS, epsilon_at
from discreet.audit.thresholds import HELD_OUT, checked_scores, corners, perfect
from discreet.audit.verdicts import TrainingAudit, checked_rate, concluded
from discreet.errors import InvalidValue
from discreet.privacy import Loss
from discreet.privacy.meaning import best_tpr

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["audit_tradeoff"]

_SLACK = 1e-12


def audit_tradeoff(
    included_scores: ArrayLike,
    excluded_scores: ArrayLike,
    *,
    loss: Loss,
    delta: float | None = None,
    thresholds: float | Sequence[float] | str = HELD_OUT,
    false_alarm_rate: float = 0.05,
) -> TrainingAudit:
    """Test whether scores of runs with and without a record contradict a claimed loss.

    As :func:`~discreet.audit.runs.audit_runs`, but "violated" means that the measured error
    rates lie, with confidence, below the claimed trade-off curve. ``epsilon_lower`` is the
    assumption-free bound at ``delta`` from the same rates; the claim may be violated although
    that bound is below it.

    Formal guarantee: for runs that keep the claimed loss the verdict is "violated" with
    probability at most ``false_alarm_rate``.

    >>> from discreet.privacy import GDP
    >>> with_it = [1.0] * 300 + [0.0] * 100
    >>> without = [1.0] * 100 + [0.0] * 300
    >>> audit_tradeoff(with_it, without, loss=GDP(mu=0.5), delta=1e-5, thresholds=0.5).verdict
    'violated'
    """
    if not isinstance(loss, Loss):
        raise InvalidValue("loss", loss, "a loss of discreet.privacy")
    claim = Claim.read(loss, None, delta)
    rate = checked_rate(false_alarm_rate)
    included = checked_scores("included_scores", included_scores)
    excluded = checked_scores("excluded_scores", excluded_scores)

    def allowed(fpr: NDArray[np.float64]) -> NDArray[np.float64]:
        """The best power by the whole curve, and by what the loss says at delta itself."""
        whole = loss.tradeoff(np.minimum(fpr, 1.0))
        at_delta = [
            best_tpr(min(level, 1.0), epsilon=claim.epsilon, delta=claim.delta)
            for level in fpr.tolist()
        ]
        return np.asarray(np.minimum(whole, at_delta))

    def margin(fpr: NDArray[np.float64], tpr: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(tpr - allowed(fpr) - _SLACK)

    tested = corners(included, excluded, thresholds=thresholds, rate=rate, strength=margin)
    margins = margin(
        np.array([corner.fpr for corner in tested]), np.array([corner.tpr for corner in tested])
    )
    at = int(np.argmax(margins))
    best, beyond = tested[at], float(margins[at])
    bound = float(allowed(np.array([best.fpr]))[0])
    most = perfect(included.size, excluded.size, thresholds=thresholds, rate=rate)
    could = float(margin(np.array(most[:1]), np.array(most[1:]))[0]) > 0.0
    return concluded(
        "trade-off curve, Clopper-Pearson",
        claim=claim,
        epsilon_lower=max(
            epsilon_at(corner.fpr, corner.tpr, delta=claim.delta) for corner in tested
        ),
        ceiling=epsilon_at(*most, delta=claim.delta),
        rate=rate,
        assumptions=RUN_ASSUMPTIONS,
        evidence={
            **best.evidence(),
            "allowed_tpr": bound,
            "thresholds_tested": len(tested),
        },
        refutation=(
            f"at a false-positive rate of at most {at_most(best.fpr)} the true-positive rate is at "
            f"least {at_least(best.tpr)}; the claimed loss allows {at_most(bound)}"
            if beyond > 0.0
            else None
        ),
        weakness=(
            ""
            if could
            else "even if every guess had been right, the error rates would be allowed by the "
            "claimed trade-off curve"
        ),
    )
