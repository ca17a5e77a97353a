"""How likely a canary was there, from the noisy gradients of a whole run.

A gradient canary adds exactly the clip norm to a coordinate of its own in every step that
draws it, and nothing else ever touches that coordinate. Divided by the clip norm over the
normaliser, what the optimizer received there in step t is

    y_t = b_t + s N(0, 1),    b_t = 1 if the canary is included and was drawn, else 0,

with s the noise multiplier. The score is the logarithm of the likelihood ratio of "included"
over "excluded", which no other function of the y_t can beat (Neyman and Pearson):

- Poisson sampling at rate q, or subsets of a share q: the sum over t of
  ln(1 - q + q exp((2 y_t - 1) / (2 s^2)));
- all records in every step: the same with q = 1;
- shuffled epochs: the batch of an epoch is uniform, so ln of the mean over its steps.

Under the ``replace`` relation an excluded canary is one that pulls the other way, and the
logarithm of the same expression with -y_t is subtracted.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

from discreet.errors import InvalidValue, NotApplicable
from discreet.learn.dpsgd.clipping import Quantile
from discreet.privacy import Relation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.learn.dpsgd.plan import Phase, Plan

__all__ = ["gradient_scores", "require_scorable"]


def require_scorable(plan: Plan) -> None:
    """Refuse plans whose canaries have no score here."""
    if isinstance(plan.clipping, Quantile):
        raise NotApplicable(
            "gradient canaries need a fixed clip norm: one that follows the gradients would follow "
            "those of the canaries"
        )


def gradient_scores(
    observed: NDArray[np.float64], plan: Plan, *, groups: int = 1
) -> NDArray[np.float64]:
    """Log-likelihood ratios, one for each column of ``observed`` (steps, canaries).

    ``observed`` holds the gradients as the optimizer received them. ``groups`` is the number
    of parameter groups that are clipped by themselves, among which the clip norm is divided.
    """
    require_scorable(plan)
    if observed.ndim != 2 or observed.shape[0] != plan.steps:
        raise InvalidValue(
            "observed", tuple(observed.shape), f"one row for each of the {plan.steps} steps"
        )
    both = plan.relation is Relation.REPLACE
    total = np.zeros(observed.shape[1])
    start = 0
    for phase in plan.phases:
        rows = observed[start : start + phase.steps]
        start += phase.steps
        stddev = plan.noise_multiplier * phase.noise_factor * math.sqrt(groups)
        signal = plan.clip_norm / math.sqrt(groups) / phase.expected_batch_size
        total += _evidence(rows / signal, stddev, plan, phase)
        if both:
            total -= _evidence(-rows / signal, stddev, plan, phase)
    return total


def _evidence(
    seen: NDArray[np.float64], stddev: float, plan: Plan, phase: Phase
) -> NDArray[np.float64]:
    """The log-likelihood ratio of taking part over not being there at all."""
    ratios = (2.0 * seen - 1.0) / (2.0 * stddev * stddev)
    if plan.sampler == "full":
        return np.asarray(ratios.sum(axis=0))
    if plan.sampler != "shuffled":
        rate = min(1.0, plan.rate_of(phase))
        with np.errstate(divide="ignore"):
            mixed = np.logaddexp(np.log1p(-rate), math.log(rate) + ratios)
        return np.asarray(mixed.sum(axis=0))
    batches = plan.batches_per_epoch(phase)
    total = np.zeros(seen.shape[1])
    for start in range(0, len(ratios), batches):
        epoch = ratios[start : start + batches]
        # The batches of an epoch that was cut short were drawn, but never used.
        unused = np.zeros((batches - len(epoch), seen.shape[1]))
        total += special.logsumexp(np.concatenate([epoch, unused]), axis=0) - math.log(batches)
    return total
