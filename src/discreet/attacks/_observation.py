"""Observations: what the attacker sees of a target, and what the examiner knows.

The target is asked once; every attack on probabilities then reads the same answers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.attacks import _signals as signals
from discreet.attacks._membership import MembershipResult
from discreet.attacks._records import (
    OVERLAPS,
    check_overlap,
    comparable_digests,
    join_rows,
    record_digests,
    refuse_sparse,
    take_rows,
)
from discreet.attacks._target import as_target, check_labels, class_indices
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray


@final
@dataclass(frozen=True, eq=False, repr=False)
class Observation:
    """A target's answers on labelled records, and which of them are members.

    ``log_probabilities`` is (n, classes); ``labels`` are the true classes; ``members`` is the
    truth that the attack is judged by and never sees. ``digests`` identify the records, so
    that attacks can tell reference records from evaluated ones. ``records`` is what was
    asked, for the attacks that look at the records themselves. ``numbers`` says which of the
    records that were given each one is: dropped copies and parts do not renumber the rest.
    """

    log_probabilities: NDArray[np.floating]
    labels: NDArray[np.int64]
    members: NDArray[np.bool_]
    digests: NDArray[np.uint64]
    records: Any = None
    numbers: NDArray[np.int64] | None = None

    def __repr__(self) -> str:
        # Answers and records are about single people: they do not belong into logs.
        return (
            f"Observation(records={len(self)}, members={int(self.members.sum())}, "
            f"classes={self.classes})"
        )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def classes(self) -> int:
        """The number of classes."""
        return int(self.log_probabilities.shape[1])

    @cached_property
    def record_numbers(self) -> NDArray[np.int64]:
        """The number of each record among those that were given."""
        return np.arange(len(self)) if self.numbers is None else self.numbers

    @cached_property
    def losses(self) -> NDArray[np.float64]:
        """Cross-entropy of each record."""
        return signals.loss(self.log_probabilities, self.labels)

    @cached_property
    def confidences(self) -> NDArray[np.float64]:
        """Probability of the true class of each record."""
        return signals.confidence(self.log_probabilities, self.labels)

    def scaled_logits(self, *, limit: float = signals.RESOLUTION) -> NDArray[np.float64]:
        """Return log(p / (1 - p)) of the true class of each record."""
        return signals.scaled_logit(self.log_probabilities, self.labels, limit=limit)

    def part(self, chosen: NDArray[np.bool_] | NDArray[np.intp]) -> Observation:
        """Return the observation of some of the records, by a mask or by their numbers."""
        index = np.arange(len(self))[chosen]
        return Observation(
            self.log_probabilities[index],
            self.labels[index],
            self.members[index],
            self.digests[index],
            None if self.records is None else take_rows(self.records, index),
            self.record_numbers[index],
        )

    def as_different_records(self, *, first: int = 0) -> Observation:
        """Return a copy in which equal records count as different ones.

        For answers without records: equal answers do not make equal records. ``first`` is the
        number of the first one; observations that are used together need different numbers.
        """
        own = np.arange(first, first + len(self), dtype=np.uint64)
        return replace(self, digests=own)

    def judge(
        self,
        attack: str,
        scores: NDArray[np.float64],
        decisions: NDArray[np.bool_] | None = None,
        threshold: float | None = None,
        **metadata: Any,
    ) -> MembershipResult:
        """Return the result of an attack that gave these scores: a higher one says "member"."""
        known = self.members, self.labels, self.record_numbers
        return MembershipResult(attack, scores, *known, decisions, threshold, metadata)

    def check_reference(self, other: Observation, argument: str) -> None:
        """Raise if ``other``, given as ``argument``, holds a member or a record evaluated here."""
        ours, theirs = comparable_digests(self, other)
        shared = int(np.isin(theirs, ours).sum())
        if shared:
            raise InvalidValue(
                argument,
                f"{shared} records that are also evaluated",
                "records apart from those that the attack is judged on",
            )
        used = int(other.members.sum())
        if used:
            raise InvalidValue(argument, f"{used} members", "records that were not used")


def observe(
    target: Any,
    records: Any,
    labels: Any,
    *,
    members: Any,
    overlap: str = "refuse",
) -> Observation:
    """Ask the target about records of which some were used.

    Parameters
    ----------
    target : model
        Anything that :func:`~discreet.attacks.as_target` takes without options.
    records, labels
        An array, a tensor or a data frame, and the true class of each record.
    members : array of bool
        Which records the target was trained on.
    overlap : {"refuse", "drop", "allow"}
        What to do about non-members that equal a member in every value and the label.

    Returns
    -------
    Observation
        The answers, for attacks on probabilities.

    Raises
    ------
    InvalidValue
        If shapes or labels do not fit, or a record is on both sides.

    >>> coin = as_target(lambda x: np.full((len(x), 2), 0.5), output="probabilities")
    >>> observe(coin, np.eye(2), [0, 1], members=[True, False]).confidences
    array([0.5, 0.5])
    """
    _validate.one_of("overlap", overlap, OVERLAPS)
    asked = as_target(target)
    refuse_sparse("records", records)
    truth = np.asarray(members)
    if truth.dtype != bool or truth.shape != (len(records),):
        shown = f"{truth.dtype} of shape {truth.shape}"
        raise InvalidValue("members", shown, f"True or False for each of {len(records)} records")
    codes = class_indices(asked, labels)
    if len(codes) != len(records):
        raise InvalidValue("labels", f"{len(codes)} labels", f"one for each of {len(records)}")
    digests = record_digests(records, codes)
    kept = check_overlap(digests, truth, overlap)
    if len(kept) < len(codes):
        records, codes, truth, digests = (
            take_rows(records, kept),
            codes[kept],
            truth[kept],
            digests[kept],
        )
    scores = asked.log_probabilities(records)
    codes = check_labels(codes, scores.shape[1])
    return Observation(scores, codes, truth, digests, records, kept)


def observe_split(
    target: Any,
    *,
    members: tuple[Any, Any],
    nonmembers: tuple[Any, Any],
    overlap: str = "refuse",
) -> Observation:
    """Ask the target about two sets of records: members come first.

    Parameters
    ----------
    target, overlap
        As for :func:`observe`.
    members, nonmembers : pair (records, labels)
        Two arrays, two tensors, or two data frames with the same columns, and with floats of the
        same precision.

    Returns
    -------
    Observation
        The answers, for attacks on probabilities.

    Raises
    ------
    InvalidValue
        If a set is empty, the two do not fit, or a record is in both.

    >>> coin = as_target(lambda x: np.full((len(x), 2), 0.5), output="probabilities")
    >>> x, y = np.arange(8.0).reshape(4, 2), np.array([0, 1, 0, 1])
    >>> seen = observe_split(coin, members=(x[:3], y[:3]), nonmembers=(x[3:], y[3:]))
    >>> seen.members.tolist()
    [True, True, True, False]
    """
    for name, pair in (("members", members), ("nonmembers", nonmembers)):
        refuse_sparse(name, pair[0])
        shape = np.shape(pair[1])
        if len(shape) != 1:
            raise InvalidValue(name, f"labels of shape {shape}", "one label for each record")
        if len(pair[0]) != len(pair[1]):
            raise InvalidValue(name, type(pair).__name__, "a pair (records, labels), equally long")
        if len(pair[0]) == 0:
            raise InvalidValue(name, "no records", "at least one record")
    return observe(
        target,
        join_rows(members[0], nonmembers[0]),
        np.concatenate([np.asarray(members[1]), np.asarray(nonmembers[1])]),
        members=np.arange(len(members[0]) + len(nonmembers[0])) < len(members[0]),
        overlap=overlap,
    )
