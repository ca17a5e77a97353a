"""The Gaussian bound: stronger, and valid only for Gaussian mechanisms.

If the mechanism is a Gaussian one, adaptive compositions without subsampling included, its
trade-off curve is G_mu for a single number mu (Dong, Roth and Su 2022), and *one* point of it
tells all of it: FPR <= a and TPR >= b give

    mu >= Phi^-1(b) - Phi^-1(a),    epsilon(delta) >= epsilon of G_mu at delta

(Nasr et al. 2023). A test at moderate error rates so speaks about delta = 1e-5, which no
assumption-free audit of that size can. The price: for another mechanism the number means
nothing. Subsampled Gaussians are not Gaussian; for them the extrapolation from one point to the
tail is not a theorem and may exceed the truth. So the mechanism must be named, and a claimed
loss that is not Gaussian is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

from discreet.audit.mechanism import Claim
from discreet.audit.runs import RUN_ASSUMPTIONS
from discreet.audit.thresholds import HELD_OUT, checked_scores, corners, perfect
from discreet.audit.verdicts import TrainingAudit, checked_rate, concluded, positive_delta
from discreet.errors import NotApplicable
from discreet.privacy import GDP, Composition, Gaussian, Loss

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = [
    "GAUSSIAN_ONLY",
    "audit_gaussian",
    "epsilon_from_rates",
    "gaussian_epsilon_lower",
    "require_gaussian",
]

GAUSSIAN_ONLY = "valid only for Gaussian mechanisms; not rigorous for subsampled runs"


def audit_gaussian(
    included_scores: ArrayLike,
    excluded_scores: ArrayLike,
    *,
    mechanism: str,
    loss: Loss | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    thresholds: float | Sequence[float] | str = HELD_OUT,
    false_alarm_rate: float = 0.05,
) -> TrainingAudit:
    """Bound the mu, and so epsilon, of a *Gaussian* mechanism from below.

    ``mechanism="gaussian"`` is the caller's word that the scores come from a Gaussian mechanism
    without subsampling; nothing else is accepted. Otherwise as
    :func:`~discreet.audit.runs.audit_runs`.

    Formal guarantee: for a Gaussian mechanism and independent scores, the bound exceeds the
    true epsilon at ``delta`` with probability at most ``false_alarm_rate``. For any other
    mechanism there is none.
    """
    require_gaussian(mechanism, loss)
    claim = positive_delta(Claim.read(loss, epsilon, delta))
    rate = checked_rate(false_alarm_rate)
    included = checked_scores("included_scores", included_scores)
    excluded = checked_scores("excluded_scores", excluded_scores)
    tested = corners(included, excluded, thresholds=thresholds, rate=rate, strength=_mus_at)
    best = max(tested, key=lambda corner: _mu_at(corner.fpr, corner.tpr))
    mu = _mu_at(best.fpr, best.tpr)
    most = _mu_at(*perfect(included.size, excluded.size, thresholds=thresholds, rate=rate))
    return concluded(
        f"Gaussian mechanism, Clopper-Pearson ({GAUSSIAN_ONLY})",
        claim=claim,
        epsilon_lower=gaussian_epsilon_lower(mu, claim.delta),
        ceiling=gaussian_epsilon_lower(most, claim.delta),
        rate=rate,
        assumptions=(GAUSSIAN_ONLY, *RUN_ASSUMPTIONS),
        evidence={**best.evidence(), "mu_lower": max(0.0, mu), "thresholds_tested": len(tested)},
    )


def require_gaussian(mechanism: str, loss: Loss | None) -> None:
    """Refuse whatever is not declared, or is known not, to be Gaussian."""
    if mechanism != "gaussian":
        raise NotApplicable(
            f"this bound is {GAUSSIAN_ONLY}; say mechanism='gaussian' if that is what ran "
            f"(mechanism = {mechanism!r})"
        )
    parts = [part for part, _ in loss.parts] if isinstance(loss, Composition) else [loss]
    for part in parts:
        if part is not None and not isinstance(part, Gaussian | GDP):
            raise NotApplicable(f"this bound is {GAUSSIAN_ONLY}; the claimed loss has {part!r}")


def gaussian_epsilon_lower(mu: float, delta: float) -> float:
    """At most the epsilon of a Gaussian mechanism of ``mu`` at ``delta``."""
    return max(0.0, GDP(mu=mu).epsilon_bounds(delta=delta).lower) if mu > 0.0 else 0.0


def epsilon_from_rates(fpr: float, tpr: float, *, delta: float) -> float:
    """At most the epsilon of a Gaussian mechanism with FPR <= ``fpr`` and TPR >= ``tpr``."""
    return gaussian_epsilon_lower(_mu_at(fpr, tpr), delta)


def _mus_at(fpr: NDArray[np.float64], tpr: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(special.ndtri(tpr) - special.ndtri(fpr))


def _mu_at(fpr: float, tpr: float) -> float:
    # Downwards by more than the error of the two quantiles.
    return float(special.ndtri(tpr) - special.ndtri(fpr)) - 1e-10
