"""Observations: what the attacker sees of a target, and what the examiner knows.

The target is asked once; every attack on probabilities then reads the same answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.attacks import signals
from discreet.attacks.record_identity import comparable_digests, record_digests
from discreet.attacks.targets import as_target, checked_labels, class_indices, rows
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Observation", "observe", "observe_split", "record_digests"]

OVERLAPS = ("refuse", "drop", "allow")


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
            None if self.records is None else rows(self.records, index),
            self.record_numbers[index],
        )

    def check_reference(self, other: Observation, argument: str) -> None:
        """Raise if ``other``, given as ``argument``, holds a member or a record evaluated here."""
        mine, theirs = comparable_digests(self, other)
        shared = int(np.isin(theirs, mine).sum())
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
    """Ask the target about the records; ``members`` says with True or False which it saw.

    ``target`` is anything that :func:`~discreet.attacks.as_target` takes without options.
    ``overlap`` is about records that are both member and non-member (equal in every value and
    label): ``"refuse"`` them, ``"drop"`` the copies among the non-members, or ``"allow"`` them.

    >>> coin = as_target(lambda x: np.full((len(x), 2), 0.5), output="probabilities")
    >>> observe(coin, np.eye(2), [0, 1], members=[True, False]).confidences
    array([0.5, 0.5])
    """
    _validate.one_of("overlap", overlap, OVERLAPS)
    asked = as_target(target)
    truth = np.asarray(members)
    if truth.dtype != bool or truth.shape != (len(records),):
        shown = f"{truth.dtype} of shape {truth.shape}"
        raise InvalidValue("members", shown, f"True or False for each of {len(records)} records")
    codes = class_indices(asked, labels)
    if len(codes) != len(records):
        raise InvalidValue("labels", f"{len(codes)} labels", f"one for each of {len(records)}")
    digests = record_digests(records, codes)
    twice = ~truth & np.isin(digests, digests[truth])
    if overlap == "refuse" and twice.any():
        raise InvalidValue(
            "members",
            f"{int(twice.sum())} non-members that are equal to a member",
            'records that are one or the other (or overlap="drop")',
        )
    kept = np.flatnonzero(~twice | (overlap != "drop"))
    if len(kept) < len(codes):
        records, codes, truth, digests = (
            rows(records, kept),
            codes[kept],
            truth[kept],
            digests[kept],
        )
    scores = asked.log_probabilities(records)
    codes = checked_labels(codes, scores.shape[1])
    return Observation(scores, codes, truth, digests, records, kept)


def observe_split(
    target: Any,
    *,
    members: tuple[Any, Any],
    nonmembers: tuple[Any, Any],
    overlap: str = "refuse",
) -> Observation:
    """Ask the target about two sets of (records, labels): members come first.

    Records are two arrays, two tensors, or two data frames with the same columns, and with
    floats of the same precision.

    >>> coin = as_target(lambda x: np.full((len(x), 2), 0.5), output="probabilities")
    >>> x, y = np.arange(8.0).reshape(4, 2), np.array([0, 1, 0, 1])
    >>> seen = observe_split(coin, members=(x[:3], y[:3]), nonmembers=(x[3:], y[3:]))
    >>> seen.members.tolist()
    [True, True, True, False]
    """
    for name, pair in (("members", members), ("nonmembers", nonmembers)):
        shape = np.shape(pair[1])
        if len(shape) != 1:
            raise InvalidValue(name, f"labels of shape {shape}", "one label for each record")
        if len(pair[0]) != len(pair[1]):
            raise InvalidValue(name, type(pair).__name__, "a pair (records, labels), equally long")
        if len(pair[0]) == 0:
            raise InvalidValue(name, "no records", "at least one record")
    return observe(
        target,
        _joined(members[0], nonmembers[0]),
        np.concatenate([np.asarray(members[1]), np.asarray(nonmembers[1])]),
        members=np.arange(len(members[0]) + len(nonmembers[0])) < len(members[0]),
        overlap=overlap,
    )


def _joined(inside: Any, outside: Any) -> Any:
    """Return both, one after the other, in the form they have."""
    forms = [_form(inside), _form(outside)]
    if forms[0] != forms[1]:
        raise InvalidValue("nonmembers", f"a {forms[1]}", f"a {forms[0]}, as members")
    if forms[0] == "data frame":
        columns = [list(frame.columns) for frame in (inside, outside)]
        if columns[0] != columns[1]:
            raise InvalidValue("nonmembers", f"columns {columns[1]}", f"{columns[0]} as members")
        for one, other in zip(inside.dtypes, outside.dtypes, strict=True):
            _same_precision(one, other)
        return import_module("pandas").concat([inside, outside], ignore_index=True)
    if forms[0] == "array":
        inside, outside = np.asarray(inside), np.asarray(outside)
    shapes = [tuple(records.shape[1:]) for records in (inside, outside)]
    if shapes[0] != shapes[1]:
        raise InvalidValue("nonmembers", f"records of shape {shapes[1]}", f"{shapes[0]} as members")
    _same_precision(inside.dtype, outside.dtype)
    if forms[0] == "tensor":
        return import_module("torch").cat([inside.detach(), outside.detach()])
    return np.concatenate([inside, outside])


def _same_precision(inside: Any, outside: Any) -> None:
    """Refuse floats of two precisions: a rounded record equals none, and gives its side away."""
    if inside != outside and all(_is_float(kind) for kind in (inside, outside)):
        raise InvalidValue("nonmembers", f"numbers of type {outside}", f"{inside}, as members")


def _is_float(kind: Any) -> bool:
    return bool(getattr(kind, "is_floating_point", getattr(kind, "kind", "") == "f"))


def _form(records: Any) -> str:
    if hasattr(records, "iloc") and hasattr(records, "columns"):
        return "data frame"
    return "tensor" if hasattr(records, "detach") else "array"
