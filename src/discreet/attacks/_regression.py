"""Membership where a model predicts a number: its error is small where the record was used.

Without shadow models the score is minus the squared error, the threshold attack of Yeom and others
(2018). With them it is a likelihood ratio as in LiRA: for each record one Gaussian of what models
predict with it, one of what they predict without it, and the target's prediction between the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from discreet import _validate
from discreet.attacks._contract import attack
from discreet.attacks._lira import lira_scores
from discreet.attacks._membership import MembershipResult
from discreet.attacks._shadow_scores import AlignedScores, find_twins
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

VARIANCES = ("moderated", "per_record", "shared")


@attack(family="membership", access="answers")
def regression_membership(
    predictions: ArrayLike,
    values: ArrayLike,
    members: ArrayLike,
    *,
    shadow_predictions: ArrayLike | None = None,
    shadow_members: ArrayLike | None = None,
    variance: str = "moderated",
) -> MembershipResult:
    """Call a record a member if the predicted number is nearer to the truth than without it.

    >>> rng = np.random.default_rng(0)
    >>> truth, used = rng.normal(size=200), np.arange(200) < 100
    >>> said = truth + np.where(used, 0.1, 1.0) * rng.normal(size=200)
    >>> regression_membership(said, truth, used).auc > 0.8
    True

    Parameters
    ----------
    predictions : array of numbers, (n,)
        What the target says about each record.
    values : array of numbers, (n,)
        What is true of it.
    members : array of bool, (n,)
        Which records were used; the attack is judged by it.
    shadow_predictions : array of numbers, (models, n), optional
        What shadow models say about the same records.
    shadow_members : array of bool, (models, n), optional
        Which records each of them was trained on. Twins of the target, trained on the same of
        them or on exactly the others, are left out.
    variance : {"moderated", "per_record", "shared"}
        How the variance of a record is estimated from shadow models.

    Returns
    -------
    MembershipResult
        Scores, and with shadow models decisions. Labels are all 0.

    Raises
    ------
    InvalidValue
        If shapes do not fit, or there are too few shadow models with or without a record.
    """
    _validate.one_of("variance", variance, VARIANCES)
    truth = _numbers("values", values, 1)
    said = _numbers("predictions", predictions, 1, (len(truth),))
    used = _truths("members", members, (len(truth),))
    nothing, places = np.zeros(len(truth), dtype=np.int64), np.arange(len(truth))
    if (shadow_predictions is None) != (shadow_members is None):
        expected = "both of shadow_predictions and shadow_members, or neither"
        raise InvalidValue("shadow_members", None, expected)
    if shadow_predictions is None:
        return MembershipResult(
            "regression_membership", -((said - truth) ** 2), used, nothing, places
        )
    others = _numbers("shadow_predictions", shadow_predictions, 2)
    if others.shape[1] != len(truth):
        expected = f"(models, {len(truth)})"
        raise InvalidValue("shadow_predictions", f"shape {others.shape}", expected)
    inside = _truths("shadow_members", shadow_members, others.shape)
    apart = ~find_twins(inside, used)
    others, inside = others[apart], inside[apart]
    if not len(others):
        shown = f"{len(apart)} twins of the target"
        raise InvalidValue("shadow_members", shown, "models trained on other halves of the records")
    # Errors in their own unit: what is the smallest variance must not depend on that of the values.
    unit = float(np.abs(others - truth).mean()) or 1.0
    both = AlignedScores((said - truth) / unit, (others - truth) / unit, inside)
    scores = lira_scores(both, "online", variance, np.inf)
    about = {"references": len(others), "variance": variance, "threshold_saw_evaluated": False}
    return MembershipResult(
        "regression_membership", scores, used, nothing, places, scores > 0, 0.0, about
    )


def _numbers(
    name: str, given: object, dimensions: int, shape: tuple[int, ...] | None = None
) -> NDArray[np.float64]:
    try:
        found = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidValue(name, type(given).__name__, "an array of numbers") from None
    if found.ndim != dimensions or (shape is not None and found.shape != shape):
        expected = f"{dimensions} dimensions" if shape is None else f"shape {shape}"
        raise InvalidValue(name, f"shape {found.shape}", expected)
    if not np.isfinite(found).all():
        raise InvalidValue(name, "a number that is not finite", "finite numbers")
    return found


def _truths(name: str, given: object, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    found = np.asarray(given)
    if found.dtype != np.bool_ or found.shape != shape:
        raise InvalidValue(name, f"{found.dtype} of shape {found.shape}", f"bool of shape {shape}")
    return found
