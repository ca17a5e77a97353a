"""A claim, the words of a verdict, and the outcome of an audit of training.

An audit of training states with confidence c that epsilon at delta is at least
``epsilon_lower``, provided that its assumptions hold; they are part of the outcome. Its
*ceiling* is the most that it could have certified with the same numbers of runs, canaries
and guesses, had every guess been right that could be. An audit whose ceiling does not exceed
the claim cannot contradict it, whatever the training does, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, final

from discreet import _validate
from discreet._confidence import SMALLEST_ERROR
from discreet._json import JsonRecord
from discreet._rounding import at_most
from discreet.errors import InvalidValue
from discreet.privacy import Loss

VIOLATED = "violated"
CONSISTENT = "consistent"
TOO_WEAK = "too weak to tell"

# The price of the Gaussian bounds; stands in their method sentences and assumptions.
GAUSSIAN_ONLY = "valid only for Gaussian mechanisms; not rigorous for subsampled runs"


class Method(StrEnum):
    """The ways to audit training, by the sentences that stand in certificates."""

    MANY_RUNS = "many runs, Clopper-Pearson"
    TRADEOFF = "trade-off curve, Clopper-Pearson"
    GAUSSIAN = f"Gaussian mechanism, Clopper-Pearson ({GAUSSIAN_ONLY})"
    ONE_RUN = "one run, guesses about canaries"
    ONE_RUN_CURVE = "one run, trade-off curve"
    ONE_RUN_GAUSSIAN = f"one run, trade-off curve ({GAUSSIAN_ONLY})"


_SCHEMA = "discreet.audit.training"
_VERSION = 1
LEAST_RATE = 1e-30
assert LEAST_RATE > SMALLEST_ERROR


@final
@dataclass(frozen=True)
class Claim:
    """What is to be refuted: (epsilon, delta)-DP, with ``epsilon`` an upper bound."""

    epsilon: float
    delta: float

    @classmethod
    def read(cls, loss: Loss | None, epsilon: float | None, delta: float | None) -> Claim:
        """Take a claim from a loss, read at ``delta``, or from the two numbers themselves."""
        if (loss is None) == (epsilon is None):
            raise InvalidValue("loss", loss, "a claimed loss or a claimed epsilon, not both")
        point = _validate.real("delta", 0.0 if delta is None else delta, at_least=0, below=1)
        if loss is None:
            return cls(_validate.real("epsilon", epsilon, at_least=0), point)
        if not isinstance(loss, Loss):
            raise InvalidValue("loss", loss, "a loss of discreet.privacy")
        claimed = loss.epsilon(delta=point)
        if math.isinf(claimed):
            expected = "a delta at which the claimed loss has a finite epsilon"
            raise InvalidValue("delta", delta, expected)
        return cls(claimed, point)


@final
@dataclass(frozen=True, kw_only=True)
class TrainingAudit(JsonRecord):
    """What an audit of training says.

    ``epsilon_lower`` exceeds the true epsilon at ``delta`` with probability at most 1 -
    ``confidence``, under ``assumptions``. ``ceiling`` is the most that it could have been.
    ``claimed_epsilon`` is the upper bound that was audited. ``verdict`` is "violated",
    "consistent" or "too weak to tell", and ``reason`` says why in words. ``evidence`` holds
    the counts that the bound was computed from.
    """

    method: str
    verdict: str
    reason: str
    epsilon_lower: float
    ceiling: float
    claimed_epsilon: float
    delta: float
    confidence: float
    assumptions: tuple[str, ...]
    evidence: Mapping[str, Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "evidence", MappingProxyType(dict(self.evidence)))

    @property
    def violated(self) -> bool:
        """Whether the claim is contradicted, up to the stated confidence."""
        return self.verdict == VIOLATED

    def to_json(self) -> dict[str, Any]:
        """Return the outcome as plain JSON values."""
        return {"schema": _SCHEMA, "version": _VERSION, **super().to_json()}

    def __str__(self) -> str:
        return (
            f"{self.verdict}: epsilon >= {round_down(self.epsilon_lower)} at delta {self.delta:g} "
            f"with confidence {self.confidence:g}, claimed epsilon <= "
            f"{at_most(self.claimed_epsilon, digits=6)} ({self.method})\n"
            f"{self.reason}\n"
            f"at best this audit could have shown epsilon >= {round_down(self.ceiling)}\n"
            + "\n".join(f"assumes: {text}" for text in self.assumptions)
        )


def conclude(
    method: Method,
    *,
    claim: Claim,
    epsilon_lower: float,
    ceiling: float,
    rate: float,
    assumptions: tuple[str, ...],
    evidence: Mapping[str, Any],
    refutation: str | None = None,
    weakness: str | None = None,
) -> TrainingAudit:
    """Put a lower bound and its ceiling beside a claim.

    A test of the claim itself may contradict it where the bound at one delta does not;
    ``refutation`` then says how. Such a test has a weakness of its own if no outcome could
    have contradicted the claim; for a mere bound that is a ceiling at or below the claim.
    """
    shown, most = max(0.0, epsilon_lower), max(0.0, ceiling)
    if refutation is None and shown > claim.epsilon:
        refutation = (
            f"epsilon is at least {round_down(shown)}, more than the claimed {claim.epsilon:.6g}"
        )
    if weakness is None and refutation is None and most <= claim.epsilon:
        weakness = (
            f"its ceiling of {round_down(most)} does not exceed the claimed {claim.epsilon:.6g}: "
            "even if all guesses had been right that could be, it could not have "
            "contradicted the claim"
        )
    if refutation is not None:
        verdict, reason = VIOLATED, refutation
    elif weakness:
        verdict, reason = TOO_WEAK, weakness
    else:
        verdict = CONSISTENT
        reason = (
            f"this attack showed {round_down(shown)} of the claimed {claim.epsilon:.6g}; another "
            "one may show more"
        )
    return TrainingAudit(
        method=method.value,
        verdict=verdict,
        reason=reason,
        epsilon_lower=shown,
        ceiling=most,
        claimed_epsilon=claim.epsilon,
        delta=claim.delta,
        confidence=1 - rate,
        assumptions=assumptions,
        evidence=evidence,
    )


def judge_bound(epsilon_lower: float, claimed: float, most: float) -> str:
    """Say what a lower bound means for a claim if an audit could show at most ``most``.

    >>> judge_bound(1.2, 1.0, 5.0), judge_bound(0.9, 1.0, 5.0), judge_bound(0.9, 1.0, 1.0)
    ('violated', 'consistent', 'too weak to tell')
    """
    if epsilon_lower > claimed:
        return VIOLATED
    return CONSISTENT if most > claimed else TOO_WEAK


def round_down(value: float) -> str:
    """Print a lower bound in four decimals, rounded down."""
    return f"{math.floor(value * 1e4) / 1e4:.4f}"


def check_rate(false_alarm_rate: float) -> float:
    """Return a false-alarm rate above 1e-30 and up to 1/2, or raise."""
    return _validate.real("false_alarm_rate", false_alarm_rate, above=LEAST_RATE, at_most=0.5)


def require_positive_delta(claim: Claim) -> Claim:
    """Refuse delta = 0 where a bound says nothing about it."""
    if claim.delta == 0.0:
        raise InvalidValue("delta", 0.0, "a number above 0: a Gaussian has no epsilon at delta 0")
    return claim
