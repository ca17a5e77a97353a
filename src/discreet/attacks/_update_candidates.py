"""Guesses among candidates: what an attacker with knowledge learns from an update.

The attacker computes what each candidate would have sent, and takes the one that fits best: whole
records (the prior-informed attack of Hayes et al. 2023), values of a hidden attribute, or a record
that was there or not. A differentially private update bounds how often that succeeds: with K
candidates, all as likely before, a guess is right with probability at most the true-positive rate
that the loss allows at a false-positive rate of 1 / K. So the attack stands beside the claim, and
the rate that it reaches refutes claims that are too low.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet._confidence import Proportion, lower_bound, proportion
from discreet.attacks._attribute import Attribute
from discreet.attacks._contract import Finding, Result, attack
from discreet.attacks._membership import MembershipResult
from discreet.attacks._updates import alignments, check_answers, check_updates
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from discreet.privacy import Loss


@final
@dataclass(frozen=True)
class CandidatesResult(Result):
    """How often the right candidate was chosen.

    ``bound`` is the most that the stated loss allows, and ``audited_epsilon`` an epsilon that the
    update exceeds but for a chance of ``1 - confidence``, at the delta that was given. Only the
    prior-informed attack audits.
    """

    attack: str
    right: Proportion
    chance: float
    bound: float | None = None
    audited_epsilon: float | None = None

    json_properties = ("leaks", "refutes")
    without_interval = MappingProxyType(
        {"audited_epsilon": "a bound at the confidence", "bound": "what the loss allows"}
    )

    @property
    def finding(self) -> Finding:
        """The share of right choices."""
        return Finding.of_share(self.attack, "right choices", self.right, self.chance)

    @property
    def refutes(self) -> bool:
        """Whether the stated loss cannot be true."""
        return self.bound is not None and self.right.low > self.bound


@attack(family="reconstruction", access="gradients")
def prior_informed(
    target: Any,
    updates: ArrayLike,
    records: ArrayLike,
    labels: ArrayLike,
    secrets: ArrayLike,
    *,
    clip_norm: float | None = None,
    loss: Loss | None = None,
    delta: float = 1e-5,
    confidence: float = 0.95,
) -> CandidatesResult:
    """Choose which of some known records made each update, beside what the loss allows.

    Parameters
    ----------
    target : nn.Module
        The weights that the server sent.
    updates : array
        One row for each client. The candidate was drawn evenly, and afresh for each update.
    records, labels : array
        The candidates: updates x candidates x shape, and updates x candidates.
    secrets : array of int
        The number of the true candidate of each update, to judge by.
    clip_norm : float, optional
        That of the clients.
    loss : Loss, optional
        What the release of one update is said to cost.
    delta : float
        Where epsilon is audited.
    confidence : float
        That of interval and audit.

    Returns
    -------
    CandidatesResult
        The share of right choices, with the bound and what was audited.

    Raises
    ------
    InvalidValue
        If an argument does not fit the model.
    """
    rows = check_updates(target, updates)
    asked = check_answers(rows, "labels", labels, least=2)
    truth = check_answers(rows, "secrets", secrets)
    count = asked.shape[1]
    if truth.dtype.kind not in "iu" or truth.shape != (len(rows),) or truth.max() >= count:
        raise InvalidValue("secrets", truth.shape, f"numbers of candidates, below {count}")
    level = _validate.real("confidence", confidence, above=0, below=1)
    known = check_answers(rows, "records", records, least=2)
    guesses = alignments(target, rows, known, asked, clip_norm=clip_norm).argmax(axis=1)
    hits = int((guesses == truth).sum())
    least = lower_bound(hits, len(rows), error=1 - level)
    # Success is at most e^epsilon / K + delta, for every mechanism of that guarantee.
    room = count * (least - _validate.real("delta", delta, at_least=0, below=1))
    return CandidatesResult(
        "prior_informed",
        proportion(hits, len(rows), confidence=level),
        1.0 / count,
        None if loss is None else float(loss.tradeoff(1.0 / count)),
        max(0.0, math.log(room)) if room > 0 else 0.0,
    )


@attack(family="attribute", access="gradients")
def update_attribute(
    target: Any,
    updates: ArrayLike,
    records: ArrayLike,
    labels: ArrayLike,
    attribute: Attribute,
    *,
    confidence: float = 0.95,
) -> CandidatesResult:
    """Guess a hidden attribute of one known record in the batch behind each update.

    Parameters
    ----------
    target : nn.Module
        The weights that the server sent, of its own choice if it is malicious.
    updates : array
        One row for each client.
    records, labels : array
        One flat record of each client, and its class. The attribute in it is judged by, not seen.
    attribute : Attribute
        Which columns are hidden, and their candidate values.
    confidence : float
        That of the interval; it treats updates as independent.

    Returns
    -------
    CandidatesResult
        The share of right values; chance is the most frequent value.

    Raises
    ------
    InvalidValue
        If an argument does not fit the model.
    """
    rows = check_updates(target, updates)
    known = np.asarray(check_answers(rows, "records", records, least=2), dtype=np.float64)
    if known.ndim != 2:
        raise InvalidValue("records", known.shape, "flat records, one for each update")
    truth = attribute.codes(known)
    versions = np.repeat(known[:, None, :], len(attribute.candidates), axis=1)
    versions[:, :, list(attribute.columns)] = attribute.candidates[None]
    classes = check_answers(rows, "labels", labels)
    asked = np.repeat(np.asarray(classes)[:, None], len(attribute.candidates), axis=1)
    guesses = alignments(target, rows, versions, asked).argmax(axis=1)
    right = proportion(int((guesses == truth).sum()), len(rows), confidence=confidence)
    chance = float(np.bincount(truth).max()) / len(truth)
    return CandidatesResult("update_attribute", right, chance)


@attack(family="membership", access="gradients")
def update_membership(
    target: Any,
    updates: ArrayLike,
    records: ArrayLike,
    labels: ArrayLike,
    members: ArrayLike,
    *,
    clip_norm: float | None = None,
) -> MembershipResult:
    """Say whether a record was among the examples behind an update, by how well it fits.

    Parameters
    ----------
    target : nn.Module
        The weights that the server sent, of its own choice if it is malicious.
    updates : array
        One row for each client.
    records, labels : array
        One record for each update, and its class.
    members : array of bool
        Whether it was there. The attack is judged by that and does not see it.
    clip_norm : float, optional
        Clip candidates before they are compared.

    Returns
    -------
    MembershipResult
        The scores, with curve and intervals.

    Raises
    ------
    InvalidValue
        If an argument does not fit the model.
    """
    rows = check_updates(target, updates)
    inside = check_answers(rows, "members", members)
    if inside.dtype != np.bool_ or inside.shape != (len(rows),):
        raise InvalidValue(
            "members", inside.shape, f"True or False for each of {len(rows)} updates"
        )
    known = check_answers(rows, "records", records, least=2)
    classes = np.asarray(check_answers(rows, "labels", labels))
    scores = alignments(target, rows, known[:, None], classes[:, None], clip_norm=clip_norm)[:, 0]
    return MembershipResult(
        "update_membership", scores, inside, classes.astype(np.int64), np.arange(len(rows))
    )


@attack(family="property", access="gradients")
def update_property(
    target: Any, updates: ArrayLike, holds: ArrayLike, *, confidence: float = 0.95
) -> CandidatesResult:
    """Say whether the data behind an update have a property, by updates of which that is known.

    Half of the updates are the attacker's own, made with the same weights: the means of their
    numbers and of their absolute values, with and without the property, point to what tells updates
    apart. The others are judged by the middle.

    Parameters
    ----------
    target : nn.Module
        The weights that the server sent, of its own choice if it is malicious.
    updates : array
        One row for each client; every second one is the attacker's own.
    holds : array of bool
        Whether the data behind each update have the property.
    confidence : float
        That of the interval; it treats updates as independent.

    Returns
    -------
    CandidatesResult
        The share of right answers; chance is the more frequent one.

    Raises
    ------
    InvalidValue
        If an argument does not fit the model, or one half has only one kind of update.
    """
    rows = check_updates(target, updates)
    truth = check_answers(rows, "holds", holds)
    if truth.dtype != np.bool_ or truth.shape != (len(rows),):
        raise InvalidValue("holds", truth.shape, f"True or False for each of {len(rows)} updates")
    both = np.hstack([rows, np.abs(rows)])
    own, known, seen, asked = both[::2], truth[::2], both[1::2], truth[1::2]
    if len(set(known.tolist())) < 2 or not len(asked):
        raise InvalidValue("holds", known, "updates of both kinds among the attacker's own")
    spread = own.std(axis=0) + 1e-12 * max(float(np.abs(own).max()), 1e-300)
    with_it, without = own[known].mean(axis=0), own[~known].mean(axis=0)
    towards = (with_it - without) / spread**2
    guesses = seen @ towards > 0.5 * float((with_it + without) @ towards)
    right = proportion(int((guesses == asked).sum()), len(asked), confidence=confidence)
    share = float(asked.mean())
    return CandidatesResult("update_property", right, max(share, 1.0 - share))
