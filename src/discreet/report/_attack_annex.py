"""Attack a model for the annex of its certificate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from discreet import attacks
from discreet._confidence import proportion
from discreet.report._annex import Attacked, InternalFacts, Utility

_MODEL = "certified model"


def attack_for_annex(
    target: attacks.Target,
    *,
    members: tuple[Any, Any],
    nonmembers: tuple[Any, Any],
    class_names: Sequence[str] | None = None,
    shadows: int = 0,
    train: Callable[..., Any] | None = None,
) -> InternalFacts:
    """Attack a model with records that it learned from and others; the result is internal.

    Parameters
    ----------
    target
        The model that is certified.
    members, nonmembers
        Records and labels that it learned from, and others like them.
    class_names
        What the classes are called.
    shadows
        Shadow models to train, in pairs, for the strongest of LiRA, RMIA and Yeom; with 0 the
        attack is Yeom's.
    train
        ``train(records, labels, seed)`` returns a model like the target; needed for shadows.

    Returns
    -------
    InternalFacts
        How well the attacks work, and how often the model is right on both sets.

    Raises
    ------
    InvalidValue
        If records do not fit the target, or there are too few shadow models.
    """
    # In a table many people share a row; the same row on both sides is no mistake.
    seen = attacks.observe_split(target, members=members, nonmembers=nonmembers, overlap="allow")
    right = np.argmax(seen.log_probabilities, axis=1) == seen.labels
    utility = tuple(
        Utility(
            model=_MODEL,
            records=name,
            accuracy=proportion(int(right[part].sum()), int(part.sum())),
        )
        for name, part in (("training records", seen.members), ("records outside", ~seen.members))
    )
    found: tuple[attacks.MembershipResult, ...] = ()
    if shadows and train is not None:
        pool = attacks.ShadowPool(
            seen.records,
            seen.labels,
            attacks.on_records(train, seen.records, seen.labels),
            models=shadows + shadows % 2,
            pairs=True,
            classes=seen.classes,
        )
        found = attacks.strongest_of_three(seen, pool)
    else:
        found = (attacks.yeom(seen),)
    names = None if class_names is None else tuple(class_names)
    attacked = (Attacked(_MODEL, True, found),)
    return InternalFacts(attacked=attacked, utility=utility, class_names=names)
