"""What a membership attack found, with intervals that the data can support.

Two kinds of figures are kept apart. A *decision* is what the attacker says with the threshold
that the attack set for itself: precision, recall and advantage are those of decisions. How it
was set differs by attack and is said (``threshold_from``), also whether the records that it is
judged on took part (``threshold_saw_evaluated``). The *curve* is what a threshold chosen in
hindsight would reach: the area, TPR at a false-positive rate and the best advantage.

All of it is about the members. If they are real people, it is computed from private records
outside of any mechanism: internal material, unless members are canaries or public data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet._confidence import Difference, Proportion, gap, proportion
from discreet._json import HIDDEN, JsonRecord, plain, written_as
from discreet.attacks._contract import Finding, Result
from discreet.attacks._roc import OperatingPoint, Roc, area, area_interval, roc_curve
from discreet.errors import InvalidValue, NotApplicable

if TYPE_CHECKING:
    from numpy.typing import NDArray


REPORTED_FPR = (0.1, 0.01, 0.001)
# A figure about fewer people than this is about single ones.
SMALLEST_SLICE = 10


@final
@dataclass(frozen=True)
class ExposedRecord(JsonRecord):
    """A member of the training data that the attack is surest of.

    ``fpr`` is the share of non-members that score at least as high: an upper bound on it at
    the stated confidence is ``fpr.high``.
    """

    record: int
    label: int
    score: float
    fpr: Proportion


@final
@dataclass(frozen=True)
class Slice(JsonRecord):
    """The attack on a part of the records: a class, or a group of people."""

    name: str
    members: int
    nonmembers: int
    auc: float
    auc_interval: tuple[float, float] = field(metadata=HIDDEN)
    points: tuple[OperatingPoint, ...] = field(metadata=written_as("tpr_at_fpr"))

    def to_json(self) -> dict[str, Any]:
        """Return the part as plain JSON values."""
        return {**super().to_json(), "auc": _area(self.auc, self.auc_interval)}


@final
@dataclass(frozen=True, eq=False, repr=False)
class MembershipResult(Result):
    """Scores of one attack on records whose membership the examiner knows.

    ``scores``, ``members``, ``labels`` and ``records`` run in parallel: a higher score says
    "member", ``members`` is the truth, ``labels`` the true class and ``records`` the number
    of each record in what was given to the attack. ``decisions`` is what the attacker says
    with its own ``threshold``, ``None`` for an attack that sets none.

    Scores and the list of exposed records are about single people: internal material, even
    where the model is public. Rates and curves are internal too where members are real.
    """

    attack: str
    scores: NDArray[np.float64]
    members: NDArray[np.bool_]
    labels: NDArray[np.int64]
    records: NDArray[np.int64]
    decisions: NDArray[np.bool_] | None = None
    threshold: float | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shape = np.shape(self.scores)
        for name in ("members", "labels", "records", "decisions"):
            value = getattr(self, name)
            if value is not None and np.shape(value) != shape:
                raise InvalidValue(name, f"shape {np.shape(value)}", f"the shape of scores {shape}")
        if np.isnan(self.scores).any():
            raise InvalidValue("scores", "a score that is not a number", "comparable scores")
        inside = int(np.sum(self.members))
        if not 0 < inside < len(self.scores):
            shown = f"{inside} of {len(self.scores)} records"
            raise InvalidValue("members", shown, "members and non-members, at least one of each")

    def __repr__(self) -> str:
        # Scores are about single people: they do not belong into logs.
        return (
            f"MembershipResult({self.attack!r}, members={self.roc.members}, "
            f"nonmembers={self.roc.nonmembers}, auc={self.auc:.4f})"
        )

    @property
    def threshold_from(self) -> str | None:
        """What the attack set its threshold by, in words; ``None`` if it does not say."""
        said = self.metadata.get("threshold_from")
        return None if said is None else str(said)

    @property
    def threshold_saw_evaluated(self) -> bool | None:
        """Whether the evaluated records took part in the threshold; ``None`` if not known."""
        said = self.metadata.get("threshold_saw_evaluated")
        return None if said is None else bool(said)

    @property
    def member_scores(self) -> NDArray[np.float64]:
        """Scores of the members."""
        return self.scores[self.members]

    @property
    def nonmember_scores(self) -> NDArray[np.float64]:
        """Scores of the non-members."""
        return self.scores[~self.members]

    @cached_property
    def roc(self) -> Roc:
        """The curve, exact for ties."""
        return roc_curve(self.member_scores, self.nonmember_scores)

    @cached_property
    def auc(self) -> float:
        """The area under the curve; 1/2 is chance."""
        return area(self.member_scores, self.nonmember_scores)

    def auc_interval(self, *, confidence: float = 0.95) -> tuple[float, float]:
        """Return an asymptotic interval for the area (Newcombe 2006)."""
        return area_interval(self.auc, self.roc.members, self.roc.nonmembers, confidence=confidence)

    @property
    def best_advantage(self) -> float:
        """The largest TPR - FPR of any threshold, in hindsight: too good by construction."""
        return float(np.max(self.roc.tpr - self.roc.fpr))

    def best_advantage_interval(self, *, confidence: float = 0.95) -> tuple[float, float]:
        """Return an interval for the largest TPR - FPR of any threshold, for independent records.

        Each rate is within sqrt(log(4 / error) / (2 n)) of the truth at all thresholds at once,
        with half of the error (Dvoretzky, Kiefer and Wolfowitz 1956, constant of Massart 1990).
        """
        level = _validate.real("confidence", confidence, above=0, below=1)
        counts = np.array([self.roc.members, self.roc.nonmembers])
        off = float(np.sqrt(math.log(4 / (1 - level)) / (2 * counts)).sum())
        return max(0.0, self.best_advantage - off), min(1.0, self.best_advantage + off)

    def tpr_at(self, fpr: float, *, confidence: float = 0.95) -> Proportion:
        """Return the share of members found at a false-positive rate of at most ``fpr``.

        Refuses a rate below one false positive among all non-members.
        """
        return self.roc.at(fpr, confidence=confidence).tpr

    def operating_points(
        self, fprs: Sequence[float] = REPORTED_FPR, *, confidence: float = 0.95
    ) -> tuple[OperatingPoint, ...]:
        """Return the points at those of the rates that the non-members can support."""
        usable = [rate for rate in fprs if rate * self.roc.nonmembers * (1 + 1e-12) >= 1]
        return tuple(self.roc.at(rate, confidence=confidence) for rate in usable)

    @property
    def finding(self) -> Finding:
        """The share of members found at the least reported false-positive rate there is room for.

        Guessing finds as many members as it accuses others. The threshold was set on these
        non-members, so that is compared with the upper end of the interval of their rate.
        """
        points = self.operating_points() or (self.roc.at(self.roc.smallest_fpr),)
        point = min(points, key=lambda one: one.asked_fpr)
        measure = f"members found at {100 * point.asked_fpr:g} % of false positives"
        return Finding.of_share(self.attack, measure, point.tpr, point.fpr.high)

    def recall(self, *, confidence: float = 0.95) -> Proportion:
        """Return the share of members that the attacker's decisions find."""
        said = self._require_decisions()[self.members]
        return proportion(int(said.sum()), len(said), confidence=confidence)

    def false_positive_rate(self, *, confidence: float = 0.95) -> Proportion:
        """Return the share of non-members that the attacker's decisions accuse."""
        said = self._require_decisions()[~self.members]
        return proportion(int(said.sum()), len(said), confidence=confidence)

    def precision(self, *, confidence: float = 0.95) -> Proportion | None:
        """Return the share of members among the records that the attacker calls members.

        It depends on the share of members among the records of the experiment, which is one
        half by convention. ``None`` if the attacker calls no record a member.
        """
        said = self._require_decisions()
        called = int(said.sum())
        if called == 0:
            return None
        return proportion(int((said & self.members).sum()), called, confidence=confidence)

    def accuracy(self, *, confidence: float = 0.95) -> Proportion:
        """Return the share of records about which the attacker is right."""
        right = self._require_decisions() == self.members
        return proportion(int(right.sum()), len(right), confidence=confidence)

    def advantage(self, *, confidence: float = 0.95) -> Difference:
        """Return TPR - FPR of the attacker's decisions (Yeom et al. 2018); 0 is chance."""
        said = self._require_decisions()
        return gap(said[self.members], said[~self.members], confidence=confidence)

    def _require_decisions(self) -> NDArray[np.bool_]:
        if self.decisions is None:
            raise NotApplicable(
                f"the attack {self.attack!r} was given nothing to set a threshold by, so it has "
                "scores and no decisions: read the curve"
            )
        return self.decisions

    def most_exposed(self, count: int = 10, *, confidence: float = 0.95) -> list[ExposedRecord]:
        """Return the members with the highest scores. Internal: do not publish."""
        _validate.integer("count", count, at_least=1)
        inside = np.flatnonzero(self.members)
        # Ties fall by record number, so that the list does not depend on the order given.
        order = np.lexsort((self.records[inside], -self.scores[inside]))[:count]
        zeros = np.sort(self.nonmember_scores)
        found = []
        for place in inside[order]:
            above = len(zeros) - int(np.searchsorted(zeros, self.scores[place], side="left"))
            share = proportion(above, len(zeros), confidence=confidence)
            found.append(
                ExposedRecord(
                    int(self.records[place]),
                    int(self.labels[place]),
                    float(self.scores[place]),
                    share,
                )
            )
        return found

    def slices(
        self,
        groups: Sequence[object] | NDArray[Any] | None = None,
        *,
        fprs: Sequence[float] = REPORTED_FPR,
        smallest: int = 1,
        confidence: float = 0.95,
    ) -> list[Slice]:
        """Return the result by true class, or by ``groups`` with one entry per record.

        Entries that are not a number or not a time make the group "missing".

        Slices with fewer than ``smallest`` members or non-members are left out: output that
        leaves the house takes ``SMALLEST_SLICE``. The intervals are those of each
        slice alone: among twenty slices one is expected to miss the truth at 95 %.
        """
        fewest = _validate.integer("smallest", smallest, at_least=1)
        keys = self.labels if groups is None else np.asarray(groups)
        if keys.shape != self.scores.shape:
            raise InvalidValue(
                "groups", f"shape {keys.shape}", f"one entry for each of {len(self.scores)} records"
            )
        found = []
        for name, mask in _groups(keys):
            part = self._part(mask)
            if part is not None and min(part.roc.members, part.roc.nonmembers) >= fewest:
                found.append(
                    Slice(
                        name,
                        part.roc.members,
                        part.roc.nonmembers,
                        part.auc,
                        part.auc_interval(confidence=confidence),
                        part.operating_points(fprs, confidence=confidence),
                    )
                )
        return found

    def _part(self, mask: NDArray[np.bool_]) -> MembershipResult | None:
        inside = int(self.members[mask].sum())
        if not 0 < inside < int(mask.sum()):
            return None
        return MembershipResult(
            self.attack,
            self.scores[mask],
            self.members[mask],
            self.labels[mask],
            self.records[mask],
            None if self.decisions is None else self.decisions[mask],
            self.threshold,
            self.metadata,
        )

    def to_json(self, *, confidence: float = 0.95, exposed: int = 10) -> dict[str, Any]:
        """Plain JSON values: figures, intervals and the curve; ``exposed`` records at most.

        ``exposed=0`` leaves every single record out, and slices with fewer than
        ``SMALLEST_SLICE`` members or non-members.
        """
        decided = None
        if self.decisions is not None:
            decided = {
                "threshold": self.threshold,
                "threshold_from": self.threshold_from,
                "threshold_saw_evaluated": self.threshold_saw_evaluated,
                "precision": self.precision(confidence=confidence),
                "recall": self.recall(confidence=confidence),
                "false_positive_rate": self.false_positive_rate(confidence=confidence),
                "accuracy": self.accuracy(confidence=confidence),
                "advantage": self.advantage(confidence=confidence),
            }
        smallest = 1 if exposed else SMALLEST_SLICE
        body: dict[str, Any] = plain(
            {
                "schema": "discreet.attacks.membership",
                "version": 1,
                "attack": self.attack,
                "members": self.roc.members,
                "nonmembers": self.roc.nonmembers,
                "confidence": confidence,
                "auc": _area(self.auc, self.auc_interval(confidence=confidence)),
                "best_advantage_in_hindsight": self.best_advantage,
                "best_advantage_interval": self.best_advantage_interval(confidence=confidence),
                "smallest_supported_fpr": self.roc.smallest_fpr,
                "tpr_at_fpr": self.operating_points(confidence=confidence),
                "decisions": decided,
                "roc": {"fpr": self.roc.fpr, "tpr": self.roc.tpr},
                "slices": self.slices(smallest=smallest, confidence=confidence),
                "most_exposed": self.most_exposed(exposed, confidence=confidence)
                if exposed
                else [],
                "metadata": self.metadata,
            }
        )
        return body


def conformal_threshold(reference: NDArray[np.float64], rate: float) -> float:
    """Return the score that one more non-member passes with probability at most ``rate``.

    For scores that are exchangeable with the ``reference`` (Vovk et al. 2005).
    """
    count = len(reference)
    rank = math.ceil((1 - rate) * (count + 1) * (1 - 1e-12))
    if rank > count:
        expected = f"at least {math.ceil(1 / rate) - 1} for a false-positive rate of {rate:g}"
        raise InvalidValue("public", f"{count} records", expected)
    return float(np.sort(reference)[rank - 1])


def pool_results(results: Sequence[MembershipResult]) -> MembershipResult:
    """Return one result from several targets, for false-positive rates that one cannot support.

    Parameters
    ----------
    results : sequence of MembershipResult
        Of one attack. The same record may occur once for each target: its trials are not
        independent, so that intervals come out a little too narrow.

    Returns
    -------
    MembershipResult
        With one threshold for all targets.

    Raises
    ------
    InvalidValue
        If there is no result, or they are of different attacks.
    """
    if not results:
        raise InvalidValue("results", 0, "at least one result")
    attacks = {result.attack for result in results}
    if len(attacks) > 1:
        raise InvalidValue("results", sorted(attacks), "results of one attack")
    decided = [result.decisions for result in results if result.decisions is not None]
    whole = len(decided) == len(results)
    return MembershipResult(
        results[0].attack,
        np.concatenate([result.scores for result in results]),
        np.concatenate([result.members for result in results]),
        np.concatenate([result.labels for result in results]),
        np.concatenate([result.records for result in results]),
        np.concatenate(decided) if whole else None,
        results[0].threshold if whole and len({r.threshold for r in results}) == 1 else None,
        {**results[0].metadata, "pooled_targets": len(results)},
    )


def _groups(keys: NDArray[Any]) -> list[tuple[str, NDArray[np.bool_]]]:
    """The groups by name, each with a mask of its records; every record is in one."""
    places: dict[object, list[int]] = {}
    missing: list[int] = []
    for place, key in enumerate(keys):
        # These are not equal to themselves: each would be a group of its own, without records.
        timeless = isinstance(key, np.datetime64) and bool(np.isnat(key))
        lost = timeless or (isinstance(key, (float, np.floating)) and math.isnan(key))
        (missing if lost else places.setdefault(key, [])).append(place)
    named = [(str(key), places[key]) for key in sorted(places, key=lambda k: (str(type(k)), k))]
    if missing:
        named.append(("missing", missing))
    return [(name, np.isin(np.arange(len(keys)), held)) for name, held in named]


def _area(value: float, interval: tuple[float, float]) -> dict[str, float]:
    return {"value": value, "low": interval[0], "high": interval[1]}
