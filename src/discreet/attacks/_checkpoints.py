"""Membership from several checkpoints of one training: how a record was learned, not only how well.

A model that is saved while it trains says more than its last state: a record that was used falls
in loss along the way. The logits of a record at all checkpoints are one vector; over shadow models,
of which checkpoints were saved at the same steps, it has a mean with the record and one without it,
and a covariance that all records share. The score is the logarithm of the ratio of the two
Gaussians, which weighs checkpoints by what they add to the others. With one checkpoint it is LiRA
with a shared variance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from discreet import _validate
from discreet.attacks._contract import attack
from discreet.attacks._shadow_scores import count_models
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from discreet.attacks._membership import MembershipResult
    from discreet.attacks._observation import Observation
    from discreet.attacks._shadow_scores import ShadowScores

# Of the mean variance, added to the covariance: checkpoints that say the same are not inverted.
_RIDGE = 1e-3


@attack(family="membership", access="probabilities")
def checkpoint_membership(
    checkpoints: Sequence[Observation],
    shadow_checkpoints: Sequence[ShadowScores],
    *,
    limit: float = 6.0,
) -> MembershipResult:
    """Score each record by how a training came to its answer, over several checkpoints.

    Parameters
    ----------
    checkpoints : sequence of Observation
        The target's answers about the same records, one observation for each checkpoint.
    shadow_checkpoints : sequence of ShadowScores
        The pool's answers at the same checkpoints.
    limit : float
        Bounds scaled logits.

    Returns
    -------
    MembershipResult
        Scores and decisions.

    Raises
    ------
    InvalidValue
        If checkpoints do not fit each other, or there are too few shadow models.
    """
    bound = _validate.real("limit", limit, above=0)
    if not checkpoints or len(checkpoints) != len(shadow_checkpoints):
        shown = f"{len(shadow_checkpoints)} beside {len(checkpoints)} of the target"
        raise InvalidValue("shadow_checkpoints", shown, "as many, and at least one")
    first, pool = checkpoints[0], shadow_checkpoints[0]
    for one, pooled in zip(checkpoints, shadow_checkpoints, strict=True):
        same = np.array_equal(one.digests, first.digests)
        if not same or not np.array_equal(one.members, first.members):
            raise InvalidValue("checkpoints", "other records", "the same records in the same order")
        if not np.array_equal(pooled.inclusion, pool.inclusion):
            raise InvalidValue("shadow_checkpoints", "other models", "the same models in order")
    found = [
        pooled.align(one, signal="scaled_logit", limit=bound)
        for one, pooled in zip(checkpoints, shadow_checkpoints, strict=True)
    ]
    inside = found[0].inclusion
    values = np.stack([one.shadow for one in found], axis=-1)
    target = np.stack([one.target for one in found], axis=-1)
    means, residuals, freedom = [], np.zeros_like(values), 0
    for kind, used in (("with", inside), ("without", ~inside)):
        count = count_models(kind, used, largest=2)
        mean = np.where(used[..., None], values, 0.0).sum(axis=0) / count[:, None]
        residuals += np.where(used[..., None], values - mean, 0.0)
        means.append(mean)
        freedom += int((count - 1).sum())
    flat = residuals.reshape(-1, len(found))
    covariance = flat.T @ flat / freedom
    ridge = max(_RIDGE * float(np.trace(covariance)) / len(found), 1e-12)
    covariance += ridge * np.eye(len(found))
    gap, middle = means[0] - means[1], (means[0] + means[1]) / 2
    scores = ((target - middle) * np.linalg.solve(covariance, gap.T).T).sum(axis=1)
    return checkpoints[-1].judge(
        "checkpoint_membership",
        scores,
        scores > 0,
        0.0,
        references=len(values),
        checkpoints=len(found),
        limit=bound,
        threshold_from="the likelihood ratio 1 under shadow models",
        threshold_saw_evaluated=False,
    )
