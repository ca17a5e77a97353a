"""One run against a whole trade-off curve (Mahloujifar, Melis and Chaudhuri 2024).

Let C be the number of right guesses among r, about m canaries that were included by fair coins,
and let power(x) be the best true-positive rate of the claimed loss at false-positive rate x:
concave, increasing, the same in both directions. Fix a canary, all other coins, and a set J of
counts. Turning the canary's coin turns "guessed rightly, and C in J" into "guessed wrongly, and
C + 1 in J" without touching the event in the output, so the probability of the former is at most
power(probability of the latter). Averaging over coins and canaries (Jensen) gives, with
p_j = P(C = j),

    sum over j in J of (j / m) p_j  <=  power( sum over j in J of ((r - j + 1) / m) p_(j-1) ).   (1)

Take J = {j + 1, ..., r}. With R_j and H_j the sums over l >= j of (l / m) p_l and of
((r - l) / m) p_l, (1) reads H_j >= power^-1(R_(j+1)); and R_0 + H_0 = r / m. Suppose
P(C >= v) = t. Start at R = v t / m, H = (r - v) t / m and go down from j = v - 1 to 0:

    H' = max(H, power^-1(R)),    R' = R + j / (r - j) (H' - H).

*This never exceeds the truth*: with c_j = j / (r - j), increasing in j, the true (R*, H*)
keeps R* >= R, R* + H* >= R + H and R* - c_j H* >= R - c_j H before every step j. At the start
all mass of {C >= v} lies at v, the least R of that mass. In a step, if H*' >= H', then
R*' - R' = (R* - c_j H*) - (R - c_j H) + c_j (H*' - H') >= 0, and the same with c_(j-1) < c_j for
the third. If H*' < H', then H' = H (else H*' >= power^-1(R*) >= power^-1(R) = H'), so H* < H,
nothing moved in ours, and R* - c_(j-1) H* >= R - c_(j-1) H. Hence if R + H > r / m at the end,
P(C >= v) < t: the claim is refuted at false-alarm rate t.

The end grows if the curve gets lower, so bounds for families of curves follow by bisection.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, final

import numpy as np
from scipy import special

from discreet import _validate
from discreet.audit.gaussian import GAUSSIAN_ONLY, gaussian_epsilon_lower, require_gaussian
from discreet.audit.inclusion import Inclusion
from discreet.audit.mechanism import Claim
from discreet.audit.one_run import ONE_RUN_ASSUMPTIONS, guess_evidence, read_guesses
from discreet.audit.verdicts import TrainingAudit, checked_rate, concluded, positive_delta
from discreet.errors import InvalidValue
from discreet.privacy import Loss

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = [
    "ApproximateCurve",
    "Curve",
    "GaussianCurve",
    "LossCurve",
    "audit_one_run_curve",
    "curve_epsilon",
    "refutes",
]

_ROUNDING = 1e-9
_LEVELS = 2000
_MOST_EPSILON = 500.0
_LEAST_LEVEL = 1e-9


class Curve(ABC):
    """A claimed trade-off curve, read backwards."""

    @abstractmethod
    def least_fpr(self, power: float) -> float:
        """At most the least false-positive rate at which a test may have this power."""


@final
@dataclass(frozen=True)
class ApproximateCurve(Curve):
    """All of (epsilon, delta)-DP."""

    epsilon: float
    delta: float

    def least_fpr(self, power: float) -> float:
        if self.epsilon > _MOST_EPSILON:
            return 0.0
        steep = (power - self.delta) * math.exp(-self.epsilon)
        return max(0.0, steep, 1.0 - self.delta - math.exp(self.epsilon) * (1.0 - power))


@final
@dataclass(frozen=True)
class GaussianCurve(Curve):
    """The Gaussian mechanism of ``mu``."""

    mu: float

    def least_fpr(self, power: float) -> float:
        return float(special.ndtr(special.ndtri(min(power, 1.0)) - self.mu))


@final
class LossCurve(Curve):
    """The curve of a loss, on a fine grid of levels; between two of them the lower one holds.

    What the loss says at ``delta`` itself is added without a grid.
    """

    def __init__(self, loss: Loss, *, delta: float) -> None:
        self._at_delta = ApproximateCurve(loss.epsilon(delta=delta), delta)
        small = np.geomspace(_LEAST_LEVEL, 0.01, _LEVELS)
        middle = np.linspace(0.01, 0.99, _LEVELS)
        self._levels = np.unique(np.concatenate([[0.0], small, middle, 1.0 - small]))
        self._powers = np.maximum.accumulate(loss.tradeoff(self._levels))

    def least_fpr(self, power: float) -> float:
        # The power grows with the level: what is too little at a level needs a higher one.
        enough = int(np.searchsorted(self._powers, power * (1.0 - _ROUNDING), side="left"))
        on_grid = float(self._levels[enough - 1]) if enough > 0 else 0.0
        return max(on_grid, self._at_delta.least_fpr(power))


@lru_cache(maxsize=32)
def curve_of(loss: Loss, delta: float) -> LossCurve:
    """The curve of a loss; remembered, because reading a loss takes its time."""
    return LossCurve(loss, delta=delta)


def refutes(curve: Curve, *, canaries: int, guesses: int, correct: int, rate: float) -> bool:
    """Whether ``correct`` right guesses or more have a probability below ``rate`` (see above)."""
    size = _validate.integer("canaries", canaries, at_least=1)
    r = _validate.integer("guesses", guesses, at_least=1, at_most=size)
    v = _validate.integer("correct", correct, at_least=0, at_most=r)
    limit = r / size * (1.0 + _ROUNDING)
    right, wrong = v * rate / size, (r - v) * rate / size
    for j in range(v - 1, -1, -1):
        raised = max(wrong, curve.least_fpr(right))
        right += j / (r - j) * (raised - wrong)
        wrong = raised
        if right + wrong > limit:
            return True
    return False


def audit_one_run_curve(
    inclusion: Inclusion,
    scores: ArrayLike,
    *,
    loss: Loss,
    delta: float,
    mechanism: str | None = None,
    false_alarm_rate: float = 0.05,
) -> TrainingAudit:
    """Test a claimed loss by its trade-off curve, with the canaries of one run.

    As :func:`~discreet.audit.one_run.audit_one_run`; "violated" means that so many right
    guesses have a probability of at most ``false_alarm_rate`` under the claimed curve.
    ``epsilon_lower`` is a bound at ``delta`` for any mechanism; with ``mechanism="gaussian"``
    it is the bound for Gaussian mechanisms, which is larger, and here needs no independence
    between canaries.

    Formal guarantee: a run that keeps ``loss`` is called "violated" with probability at most
    ``false_alarm_rate``, and the bound exceeds the true epsilon no more often.
    """
    if mechanism is not None:
        require_gaussian(mechanism, loss)
    if not isinstance(loss, Loss):
        raise InvalidValue("loss", loss, "a loss of discreet.privacy")
    claim = Claim.read(loss, None, delta)
    if mechanism is not None:
        positive_delta(claim)
    rate = checked_rate(false_alarm_rate)
    claimed = curve_of(loss, claim.delta)
    correct = read_guesses(inclusion, scores)
    share = rate / inclusion.audits

    def against(curve: Curve, right: int) -> bool:
        return refutes(
            curve,
            canaries=inclusion.canaries,
            guesses=sum(inclusion.guesses),
            correct=right,
            rate=share,
        )

    def bound(right: int) -> float:
        return curve_epsilon(
            canaries=inclusion.canaries,
            guesses=sum(inclusion.guesses),
            correct=right,
            delta=claim.delta,
            rate=share,
            gaussian=mechanism is not None,
        )

    everything = sum(inclusion.guesses)
    return concluded(
        "one run, trade-off curve" + ("" if mechanism is None else f" ({GAUSSIAN_ONLY})"),
        claim=claim,
        epsilon_lower=bound(correct),
        ceiling=bound(inclusion.most_right),
        rate=rate,
        assumptions=ONE_RUN_ASSUMPTIONS + (() if mechanism is None else (GAUSSIAN_ONLY,)),
        evidence=guess_evidence(inclusion, correct),
        refutation=(
            f"{correct} right guesses of {everything} are less likely than the false-alarm rate "
            "under the claimed trade-off curve"
            if against(claimed, correct)
            else None
        ),
        weakness=(
            ""
            if against(claimed, inclusion.most_right)
            else "even if all guesses had been right that could be, the claimed trade-off curve "
            "would allow it"
        ),
    )


def curve_epsilon(
    *, canaries: int, guesses: int, correct: int, delta: float, rate: float, gaussian: bool = False
) -> float:
    """The largest epsilon such that all smaller ones are refuted, at the false-alarm rate.

    Of (epsilon, delta)-DP, or of Gaussian mechanisms at ``delta``.
    """

    def against(curve: Curve) -> bool:
        return refutes(curve, canaries=canaries, guesses=guesses, correct=correct, rate=rate)

    if gaussian:
        return gaussian_epsilon_lower(_largest(lambda mu: against(GaussianCurve(mu))), delta)
    return _largest(lambda epsilon: against(ApproximateCurve(epsilon, delta)))


def _largest(refuted: Callable[[float], bool]) -> float:
    """The end of the refuted parameters, which are an interval from 0; a lower value of it."""
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while high < 64.0 and refuted(high):
        low, high = high, 2.0 * high
    while high - low > 1e-9 * (1.0 + high):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
