"""The loss threshold of Yeom, Giacomelli, Fredrikson and Jha (2018): members lose less.

The attack needs one number, and the literature sets it in three ways that know different
things: the average loss on the training data (which a paper or a leaderboard may tell),
the losses of public records that were surely not used, or shadow models. The latter two never
look at the records that are attacked. The first does if no average is given: the average is then
that of the evaluated members, which the adversary of the paper is assumed to know.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from discreet import _validate
from discreet.attacks import _signals as signals
from discreet.attacks._contract import attack
from discreet.attacks._membership import MembershipResult, conformal_threshold
from discreet.attacks._roc import roc_curve
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from discreet.attacks._observation import Observation
    from discreet.attacks._shadow_scores import ShadowScores


# Relative: a rounding error of single precision.
_SINGLE = float(np.finfo(np.float32).eps)
_EVALUATED = "the average loss of the evaluated members, which the attacker knows"
_ORIGIN = {
    "training_loss": "the average training loss that was given",
    "public": "public records",
    "shadows": "shadow models",
}


@attack(family="membership", access="probabilities")
def yeom(
    observation: Observation,
    *,
    training_loss: float | None = None,
    public: Observation | None = None,
    shadows: ShadowScores | None = None,
    false_positive_rate: float = 0.1,
) -> MembershipResult:
    """Call a record a member if the target's loss on it is low.

    The score is minus the loss; one of three things sets the threshold.

    Parameters
    ----------
    observation : Observation
        The target's answers.
    training_loss : float, optional
        The average loss on the target's training data. If nothing is given it is taken from the
        observed members, as the paper's adversary knows it: decisions are then not made apart from
        the records that they are judged on, and the result says so. No loss counts for more than
        that of a probability of 2**-53 in this average.
    public : Observation, optional
        Answers on records that are surely no members. A record is called a member if fewer than
        ``false_positive_rate`` of the public losses are as low, in the conformal sense.
    shadows : ShadowScores, optional
        The threshold is the loss that best divides the shadow models' members from their
        non-members, half-way to their next larger loss.
    false_positive_rate : float
        The chance to accuse a non-member of the population of ``public``, at most.

    Returns
    -------
    MembershipResult
        Scores and decisions.

    Raises
    ------
    InvalidValue
        If more than one way to set the threshold is given, or there are too few public records.
    """
    ways = {"training_loss": training_loss, "public": public, "shadows": shadows}
    given = [name for name, value in ways.items() if value is not None]
    if len(given) > 1:
        raise InvalidValue("threshold", " and ".join(given), "one way to set it")
    rate = _validate.real("false_positive_rate", false_positive_rate, above=0, below=1)
    losses = observation.losses
    strict = False
    if public is not None:
        observation.check_reference(public, "public")
        limit, strict = -conformal_threshold(-public.losses, rate), True
    elif shadows is not None:
        limit = _shadow_limit(shadows.apart_from(observation))
    elif training_loss is not None:
        limit = _validate.real("training_loss", training_loss, at_least=0)
    else:
        limit = float(np.minimum(losses[observation.members], signals.RESOLUTION).mean())
    return observation.judge(
        "yeom",
        -losses,
        losses < limit if strict else losses <= limit,
        -limit,
        threshold_from=_ORIGIN[given[0]] if given else _EVALUATED,
        threshold_saw_evaluated=not given,
        loss_threshold=limit if math.isfinite(limit) else str(limit),
    )


def _shadow_limit(shadows: ShadowScores) -> float:
    """The loss at which TPR - FPR over all shadow models is largest.

    Shadow losses are kept in single precision and the target's are not: a target's loss that
    equals the best one up to rounding must fall on the same side. So the limit is half-way to
    the next larger shadow loss, which is at least half a unit of single precision away.
    """
    scores = -shadows.losses
    curve = roc_curve(scores[shadows.inclusion], scores[~shadows.inclusion])
    best = int(np.argmax(curve.tpr - curve.fpr))
    limit = -float(curve.thresholds[max(best, 1)])
    larger = shadows.losses[shadows.losses > limit]
    following = float(larger.min()) if larger.size else math.inf
    if math.isinf(following):
        return limit + _SINGLE * max(limit, _SINGLE)
    return (limit + following) / 2
