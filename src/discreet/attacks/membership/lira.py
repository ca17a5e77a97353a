"""The likelihood-ratio attack, LiRA (Carlini et al. 2022).

For each record, the scaled logit log(p / (1 - p)) of the true class is close to a Gaussian
over training runs; one Gaussian with the record inside, one with it outside. Online, the
score is the logarithm of the ratio of the two *densities* at the target's value. Offline only
models without the record are used, and the score is minus the logarithm of the probability
that such a model is as sure as the target is: a p-value. Mean and variance are estimates
themselves, so the p-value is that of the *predictive* distribution: Student's t with the
degrees of freedom of the variance, wider by 1 + 1/n for the mean of n models.

Variances come from few models. Here they are *moderated*: a record's own variance counts with
its degrees of freedom, the variance pooled over records with ``PRIOR_FREEDOM`` more, as in
Smyth's moderated t (2004). With many models this is the paper's variance per record, with few
it is the paper's common variance, and no switch is needed in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np
from scipy import special

from discreet import _validate
from discreet.attacks import signals
from discreet.attacks.results import MembershipResult
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.attacks.observations import Observation
    from discreet.attacks.shadow_scores import ShadowScores

__all__ = ["lira"]

MODES = ("online", "offline")
VARIANCES = ("moderated", "per_record", "shared")
PRIOR_FREEDOM = 4.0
# Below the resolution of the scores; keeps the density of a constant score finite.
_SMALLEST_VARIANCE = 1e-12
_SMALLEST_TAIL = 1e-280


@final
@dataclass(frozen=True, eq=False)
class _Gaussians:
    """A Gaussian for each record."""

    mean: NDArray[np.float64]
    variance: NDArray[np.float64]
    freedom: NDArray[np.float64]
    models: NDArray[np.int64]

    def log_density(self, value: NDArray[np.float64]) -> NDArray[np.float64]:
        """The density up to the constant that both hypotheses share."""
        return -0.5 * ((value - self.mean) ** 2 / self.variance + np.log(self.variance))

    def surprise(self, value: NDArray[np.float64]) -> NDArray[np.float64]:
        """Minus the logarithm of the chance that one more draw exceeds ``value``."""
        standard = (value - self.mean) / np.sqrt(self.variance * (1 + 1 / self.models))
        return -_log_student_tail(standard, self.freedom)


def lira(
    observation: Observation,
    shadows: ShadowScores,
    *,
    mode: str = "online",
    variance: str = "moderated",
    false_positive_rate: float = 0.05,
    limit: float = signals.RESOLUTION,
) -> MembershipResult:
    """Score each record by how much likelier the target's answer is with it than without.

    ``shadows`` is the pool over the observed records. A model that is the target itself, or
    its twin, is never a reference. ``mode="online"`` calls a record a member if its answer is
    likelier with it; ``"offline"`` if the p-value is at most ``false_positive_rate``. That rate
    is *nominal*: with ``variance="per_record"`` it is exact for Gaussian logits and any number
    of models; the moderated variance is cautious where records vary alike, and too bold for
    records that vary far more than others; real logits are only nearly Gaussian.
    ``variance`` is ``"moderated"``, ``"per_record"`` or ``"shared"``; ``limit`` bounds the
    scaled logit of models that answer exactly 0 or 1.
    """
    _validate.one_of("mode", mode, MODES)
    _validate.one_of("variance", variance, VARIANCES)
    rate = _validate.real("false_positive_rate", false_positive_rate, above=0, below=1)
    both = shadows.aligned(observation, signal="scaled_logit", limit=limit)
    outside = _fit("without", both.shadow, ~both.inclusion, variance)
    if mode == "online":
        inside = _fit("with", both.shadow, both.inclusion, variance)
        scores = inside.log_density(both.target) - outside.log_density(both.target)
        threshold = 0.0
        origin = "the likelihood ratio 1 under shadow models"
    else:
        scores = outside.surprise(both.target)
        threshold = -float(np.log(rate))
        origin = f"a p-value of {rate:g} under shadow models, nominal"
    return MembershipResult(
        f"lira {mode}",
        scores,
        observation.members,
        observation.labels,
        observation.record_numbers,
        scores > threshold if mode == "online" else scores >= threshold,
        threshold,
        {
            "references": len(both.shadow),
            "variance": variance,
            "mode": mode,
            "threshold_from": origin,
            "threshold_saw_evaluated": False,
        },
    )


def _fit(
    kind: str, values: NDArray[np.float64], used: NDArray[np.bool_], variance: str
) -> _Gaussians:
    """Gaussians over the models marked in ``used``, record by record."""
    count = used.sum(axis=0)
    needed = 2 if variance == "per_record" else 1
    fewest = int(count.min())
    if fewest < needed or int(count.max()) < 2:
        raise InvalidValue(
            "shadows",
            f"{len(values)} models, of which a record has only {fewest} {kind} it",
            f"at least {needed} models {kind} each record: train more shadow models",
        )
    mean = np.where(used, values, 0.0).sum(axis=0) / count
    squares = np.where(used, (values - mean) ** 2, 0.0).sum(axis=0)
    freedom = count - 1
    common = squares.sum() / freedom.sum()
    if variance == "shared":
        own, known = np.full(len(mean), common), np.full(len(mean), float(freedom.sum()))
    elif variance == "per_record":
        own, known = squares / freedom, freedom.astype(np.float64)
    else:
        known = freedom + PRIOR_FREEDOM
        own = (squares + PRIOR_FREEDOM * common) / known
    return _Gaussians(mean, np.maximum(own, _SMALLEST_VARIANCE), known, count)


def _log_student_tail(
    value: NDArray[np.float64], freedom: NDArray[np.float64]
) -> NDArray[np.float64]:
    """log P(T > value) of Student's t, also where the probability is below all numbers.

    There it is I_x(a, 1/2) / 2 with a = freedom / 2 and x = freedom / (freedom + value^2),
    by the series of DLMF 8.17.8 summed as a geometric one: a lower bound, and the logarithm
    is right to 0.002.
    """
    tail = special.stdtr(freedom, -value)
    far = tail < _SMALLEST_TAIL
    square, half = np.where(far, value, 1.0) ** 2, freedom / 2
    ratio = freedom / (freedom + square) * (half + 0.5) / (half + 1)
    log_far = (
        -half * np.log1p(square / freedom)
        - 0.5 * np.log1p(freedom / square)
        - np.log(half)
        - special.betaln(half, 0.5)
        - np.log1p(-ratio)
        - np.log(2.0)
    )
    return np.asarray(np.where(far, log_far, np.log(np.where(far, 1.0, tail))))
