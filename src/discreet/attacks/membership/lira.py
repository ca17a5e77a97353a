"""The likelihood-ratio attack, LiRA (Carlini et al. 2022).

For each record, the scaled logit log(p / (1 - p)) of the true class is close to a Gaussian
over training runs; one Gaussian with the record inside, one with it outside. Online, the
score is the logarithm of the ratio of the two *densities* at the target's value. Offline only
models without the record are used, and the score is minus the logarithm of the probability
that such a model is as sure as the target is: a p-value.

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


@final
@dataclass(frozen=True, eq=False)
class _Gaussians:
    """A Gaussian for each record."""

    mean: NDArray[np.float64]
    variance: NDArray[np.float64]

    def log_density(self, value: NDArray[np.float64]) -> NDArray[np.float64]:
        """The density up to the constant that both hypotheses share."""
        return -0.5 * ((value - self.mean) ** 2 / self.variance + np.log(self.variance))

    def surprise(self, value: NDArray[np.float64]) -> NDArray[np.float64]:
        """Minus the logarithm of the chance to exceed ``value``."""
        standard = (value - self.mean) / np.sqrt(self.variance)
        return np.asarray(-special.log_ndtr(-standard))


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
    likelier with it; ``"offline"`` if the p-value is at most ``false_positive_rate``.
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
    else:
        scores = outside.surprise(both.target)
        threshold = -float(np.log(rate))
    return MembershipResult(
        f"lira {mode}",
        scores,
        observation.members,
        observation.labels,
        np.arange(len(observation)),
        scores > threshold if mode == "online" else scores >= threshold,
        threshold,
        {"references": len(both.shadow), "variance": variance, "mode": mode},
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
        own = np.full(len(mean), common)
    elif variance == "per_record":
        own = squares / freedom
    else:
        own = (squares + PRIOR_FREEDOM * common) / (freedom + PRIOR_FREEDOM)
    return _Gaussians(mean, np.maximum(own, _SMALLEST_VARIANCE))
