"""Many runs: the trainer is run with and without one record, and a score tells which it was.

(epsilon, delta)-DP bounds every such test: TPR <= e^epsilon FPR + delta and
TNR <= e^epsilon FNR + delta (Wasserman and Zhou 2010; Kairouz, Oh and Viswanath 2015). With
FPR <= a and TPR >= b by Clopper and Pearson (Jagielski, Ullman and Oprea 2020),

    epsilon >= max( ln((b - delta) / a),  ln((1 - a - delta) / (1 - b)) ).

Nothing is assumed about the trainer, but thousands of runs certify little: with no wrong guess in
1,000 runs the bound is below 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from discreet.audit.mechanism import Claim
from discreet.audit.thresholds import HELD_OUT, checked_scores, corners, perfect
from discreet.audit.verdicts import TrainingAudit, checked_rate, concluded
from discreet.privacy import Loss

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["RUN_ASSUMPTIONS", "audit_runs", "epsilons_at"]

RUN_ASSUMPTIONS = (
    "the scores are of independent runs, or of canaries that do not influence one another",
    "the data sets behind the two lists of scores differ in one unit",
    "the order of the scores in each list does not depend on them",
    "thresholds that were given as numbers were chosen without looking at these scores",
)


def audit_runs(
    included_scores: ArrayLike,
    excluded_scores: ArrayLike,
    *,
    loss: Loss | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    thresholds: float | Sequence[float] | str = HELD_OUT,
    false_alarm_rate: float = 0.05,
) -> TrainingAudit:
    """Bound epsilon from below by scores of runs with and of runs without a record.

    Scores should be larger with the record. The claim is a ``loss``, read at ``delta``, or an
    ``epsilon`` and ``delta``. For ``thresholds`` see :mod:`discreet.audit.thresholds`.

    Formal guarantee: if every run is independent of the others, the bound exceeds the true
    epsilon at ``delta`` with probability at most ``false_alarm_rate``, for any trainer.

    >>> with_it, without = [1.0] * 500, [0.0] * 500
    >>> audit = audit_runs(with_it, without, epsilon=1.0, thresholds=0.5)
    >>> audit.verdict, round(audit.epsilon_lower, 3), round(audit.ceiling, 3)
    ('violated', 4.906, 4.906)
    """
    claim = Claim.read(loss, epsilon, delta)
    rate = checked_rate(false_alarm_rate)
    included = checked_scores("included_scores", included_scores)
    excluded = checked_scores("excluded_scores", excluded_scores)

    def strength(fpr: NDArray[np.float64], tpr: NDArray[np.float64]) -> NDArray[np.float64]:
        return epsilons_at(fpr, tpr, delta=claim.delta)

    tested = corners(included, excluded, thresholds=thresholds, rate=rate, strength=strength)
    best = max(tested, key=lambda corner: epsilon_at(corner.fpr, corner.tpr, delta=claim.delta))
    most = perfect(included.size, excluded.size, thresholds=thresholds, rate=rate)
    return concluded(
        "many runs, Clopper-Pearson",
        claim=claim,
        epsilon_lower=epsilon_at(best.fpr, best.tpr, delta=claim.delta),
        ceiling=epsilon_at(*most, delta=claim.delta),
        rate=rate,
        assumptions=RUN_ASSUMPTIONS,
        evidence={**best.evidence(), "thresholds_tested": len(tested)},
    )


def epsilons_at(
    fpr: NDArray[np.float64], tpr: NDArray[np.float64], *, delta: float
) -> NDArray[np.float64]:
    """The least epsilon at which a test may have these rates; -inf where delta explains them."""
    with np.errstate(divide="ignore"):
        present = np.log(np.maximum(tpr - delta, 0.0)) - np.log(fpr)
        absent = np.log(np.maximum(1.0 - fpr - delta, 0.0)) - np.log1p(-tpr)
    # A few units in the last place, downwards: this is a lower bound.
    best = np.maximum(present, absent)
    return np.asarray(best - 1e-14 * (1.0 + np.abs(np.where(np.isfinite(best), best, 0.0))))


def epsilon_at(fpr: float, tpr: float, *, delta: float) -> float:
    """The same for one pair of rates, and at least 0."""
    return max(0.0, float(epsilons_at(np.array([fpr]), np.array([tpr]), delta=delta)[0]))
