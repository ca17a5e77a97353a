"""Poisoning: clients that send what harms the model, or what opens a door in it.

Three goals: *untargeted*, the model is to be wrong; *targeted*, one class is to be taken for
another one; a *backdoor*, records with a trigger are to be taken for one class. A model is trained
with the poison and without it, and the share of records that are misled is compared.

Differential privacy for one client bounds what k of them can do together: by group privacy, the
chance to be misled is at most what the loss of k clients allows at the chance without poison. A
hostile client takes the place of an honest one, which under ``add_remove`` and ``zero_out`` are two
steps: one client goes and another one comes. Robust aggregation gives no such bound for updates
that are unlike one another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet._confidence import Proportion, proportion
from discreet.attacks._contract import Finding, Result, attack
from discreet.attacks._target import as_target
from discreet.errors import InvalidValue
from discreet.privacy import Relation

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from discreet.privacy import Loss

GOALS = ("untargeted", "targeted", "backdoor")


@final
@dataclass(frozen=True)
class PoisonedModelResult(Result):
    """How many records the poisoned model gets wrong in the way that was wanted.

    ``clean`` is the share for the model without poison, on the same records. ``accuracy`` is that
    of the poisoned model on records without a trigger. ``bound`` is the most that the loss of so
    many clients allows for the expected share of a training, from the upper end of ``clean``.
    Intervals are over records, for this pair of models.
    """

    json_kind = "poisoning"
    json_properties = ("leaks",)
    without_interval = MappingProxyType({"bound": "what the loss allows"})

    goal: str
    poisoned: Proportion
    clean: Proportion
    accuracy: Proportion
    bound: float | None = None

    @property
    def finding(self) -> Finding:
        """The share of misled records, against the upper end of that without poison."""
        measure = f"records misled ({self.goal})"
        return Finding.of_share("poisoning", measure, self.poisoned, self.clean.high)


@attack(family="poisoning", access="gradients")
def poisoning(
    train: Callable[[bool], Any],
    records: ArrayLike,
    labels: ArrayLike,
    *,
    goal: str = "untargeted",
    source: int | None = None,
    to: int = 0,
    trigger: Callable[[Any], Any] | None = None,
    loss: Loss | None = None,
    clients: int = 1,
    confidence: float = 0.95,
) -> PoisonedModelResult:
    """Train a model with poisoned clients and one without, and count the records that are misled.

    Parameters
    ----------
    train : callable
        ``train(True)`` returns the model with poisoned clients, ``train(False)`` that without.
    records, labels : array
        Records that nobody trained on, and their classes.
    goal : str
        ``untargeted``: wrong at all. ``targeted``: of the class ``source`` and taken for ``to``.
        ``backdoor``: of another class, with the trigger, and taken for ``to``.
    source, to : int
        Classes.
    trigger : callable, optional
        From records to records with the trigger.
    loss : Loss, optional
        What a whole training costs one client; for the bound.
    clients : int
        How many clients are poisoned; without poison they are honest.
    confidence : float
        That of the intervals.

    Returns
    -------
    PoisonedModelResult
        The shares of misled records, and the bound.

    Raises
    ------
    InvalidValue
        If the goal lacks its class or trigger, or no record is left to be misled.
    """
    _validate.one_of("goal", goal, GOALS)
    count = _validate.integer("clients", clients, at_least=1)
    if (source is None) != (goal != "targeted"):
        raise InvalidValue("source", source, "a class if the goal is targeted")
    if (trigger is None) != (goal != "backdoor"):
        raise InvalidValue("trigger", trigger, "a function if the goal is a backdoor")
    x, truth = np.asarray(records), np.asarray(labels)
    if truth.shape != x.shape[:1] or truth.dtype.kind not in "iu":
        raise InvalidValue("labels", truth.shape, f"a class for each of {len(x)} records")
    chosen = np.ones(len(truth), dtype=bool)
    if goal == "targeted":
        chosen = truth == source
    elif goal == "backdoor":
        chosen = truth != to
    if not chosen.any():
        raise InvalidValue("labels", "no record that could be misled", f"classes for {goal}")
    asked = x[chosen] if trigger is None else np.asarray(trigger(x[chosen].copy()))
    shares, accuracy = [], None
    for poisoned in (False, True):
        target = as_target(train(poisoned))
        found = target.log_probabilities(asked).argmax(axis=1)
        misled = found != truth[chosen] if goal == "untargeted" else found == to
        shares.append(proportion(int(misled.sum()), len(misled), confidence=confidence))
        right = target.log_probabilities(x).argmax(axis=1) == truth
        accuracy = proportion(int(right.sum()), len(right), confidence=confidence)
    assert accuracy is not None
    clean, spoiled = shares
    bound = None
    if loss is not None:
        steps = count if loss.relation == Relation.REPLACE else 2 * count
        bound = float((loss if steps == 1 else loss.group(steps)).tradeoff(clean.high))
    return PoisonedModelResult(goal, spoiled, clean, accuracy, bound)
