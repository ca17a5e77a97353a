"""Membership of persons: all records of a person were used, or none was.

The signs of a person's records add up. Scores that are logarithms of likelihood ratios are summed,
so that a person with many records is surer; others are averaged, so that many records alone do not
make anybody a member.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from discreet import _validate
from discreet.attacks._contract import attack
from discreet.attacks._lira import lira
from discreet.attacks._membership import MembershipResult
from discreet.attacks._observation import Observation
from discreet.attacks._shadow_scores import ShadowScores
from discreet.attacks._yeom import yeom
from discreet.errors import InvalidValue

TOGETHER = ("mean", "sum")


@attack(family="membership", access="probabilities")
def person_membership(
    observation: Observation,
    persons: Sequence[object],
    *,
    shadows: ShadowScores | None = None,
    together: str | None = None,
) -> MembershipResult:
    """Call a person a member by the answers about all of their records.

    Parameters
    ----------
    observation : Observation
        The target's answers.
    persons : sequence
        Whose each observed record is.
    shadows : ShadowScores, optional
        A pool over the observed records, for likelihood ratios. Halves of records, not of
        persons, serve as well: a record's Gaussians are its own.
    together : {"sum", "mean"}, optional
        How scores of a person's records are put together: the sum with shadow models, else the
        mean of minus the losses.

    Returns
    -------
    MembershipResult
        One score for each person, in the order of their first records.

    Raises
    ------
    InvalidValue
        If a person is on both sides, or there is not one person for each record.
    """
    if together is not None:
        _validate.one_of("together", together, TOGETHER)
    if len(persons) != len(observation):
        shown = f"{len(persons)} persons"
        raise InvalidValue("persons", shown, f"one for each of {len(observation)} records")
    numbers: dict[object, int] = {}
    owner = np.array([numbers.setdefault(one, len(numbers)) for one in persons])
    records = np.bincount(owner)
    inside = np.bincount(owner, weights=observation.members).astype(np.int64)
    if ((inside > 0) & (inside < records)).any():
        split = int(((inside > 0) & (inside < records)).sum())
        raise InvalidValue("persons", f"{split} on both sides", "persons used whole or not at all")
    single = yeom(observation) if shadows is None else lira(observation, shadows)
    how = together or ("mean" if shadows is None else "sum")
    clipped = np.maximum(single.scores, -1e6)
    scores = np.asarray(np.bincount(owner, weights=clipped), dtype=np.float64)
    if how == "mean":
        scores /= records
    about = {"records_of": single.attack, "together": how, "unit": "person"}
    nothing = np.zeros(len(records), dtype=np.int64)
    return MembershipResult(
        "person_membership", scores, inside > 0, nothing, np.arange(len(records)), metadata=about
    )
