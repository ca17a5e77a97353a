"""What a linkage of two tables found: matches, and with known truth how many are right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet._confidence import Proportion, proportion
from discreet.errors import NotApplicable

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["KnownTruth", "LinkageResult"]


@final
@dataclass(frozen=True)
class KnownTruth:
    """How right the matches are, where it is known who every row is."""

    people_in_both: int
    """Released rows whose person is in the register at all."""
    correct_matches: int
    """Unique matches with the right person."""
    expected_correct: float
    """Right guesses to be expected by picking one of the candidates of each row at random."""
    reidentified: Proportion
    """Correct matches among all released rows."""
    precision: Proportion | None
    """Correct matches among unique matches; None without a unique match."""

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "people_in_both": self.people_in_both,
            "correct_matches": self.correct_matches,
            "expected_correct_with_guessing": self.expected_correct,
            "reidentified": self.reidentified.to_json(),
            "precision": None if self.precision is None else self.precision.to_json(),
        }


@final
@dataclass(frozen=True, eq=False)
class LinkageResult:
    """Candidates in a register for every released row."""

    keys: tuple[str, ...]
    tolerance: Mapping[str, float]
    generalisations: tuple[str, ...]
    released_rows: int
    register_rows: int
    linkable_rows: int
    """Released rows with no empty key."""
    candidate_counts: Mapping[str, int]
    """Released rows by the number of their candidates, from ``"0"`` to ``"over 20"``."""
    unique_matches: int
    """Released rows with exactly one candidate."""
    mutual_matches: int
    """Unique matches whose candidate is the unique match of no other released row."""
    truth: KnownTruth | None
    match: NDArray[np.int64]
    """For each released row its unique match in the register, or -1. Internal: names people."""

    @property
    def unique_share(self) -> float:
        """The share of released rows with exactly one candidate."""
        return self.unique_matches / self.released_rows

    @property
    def correct_matches(self) -> int:
        """Unique matches with the right person, where the truth is known."""
        if self.truth is None:
            raise NotApplicable("without known truth nobody can tell which matches are right")
        return self.truth.correct_matches

    def to_json(self) -> dict[str, Any]:
        """Return counts and shares as JSON values; no row is named."""
        return {
            "attack": "linkage",
            "keys": list(self.keys),
            "tolerance": dict(self.tolerance),
            "generalisations": list(self.generalisations),
            "released_rows": self.released_rows,
            "register_rows": self.register_rows,
            "linkable_rows": self.linkable_rows,
            "candidate_counts": dict(self.candidate_counts),
            "unique_matches": self.unique_matches,
            "unique_share": self.unique_share,
            "mutual_matches": self.mutual_matches,
            "truth": None if self.truth is None else self.truth.to_json(),
        }

    @classmethod
    def count(
        cls,
        *,
        keys: tuple[str, ...],
        tolerance: Mapping[str, float],
        generalisations: tuple[str, ...],
        candidates: NDArray[np.int64],
        match: NDArray[np.int64],
        mutual: NDArray[np.bool_],
        register_rows: int,
        linkable: int,
        truth: tuple[NDArray[np.int64], NDArray[np.bool_]] | None,
        confidence: float,
    ) -> LinkageResult:
        """Count what a comparison found; ``truth`` is the right row or -1, and if it was found."""
        rows = candidates.size
        unique = int(np.count_nonzero(candidates == 1))
        return cls(
            keys=keys,
            tolerance=MappingProxyType(dict(tolerance)),
            generalisations=generalisations,
            released_rows=rows,
            register_rows=register_rows,
            linkable_rows=linkable,
            candidate_counts=MappingProxyType(_histogram(candidates)),
            unique_matches=unique,
            mutual_matches=int(np.count_nonzero(mutual)),
            truth=None if truth is None else _judged(candidates, match, *truth, confidence),
            match=match,
        )


def _judged(
    candidates: NDArray[np.int64],
    match: NDArray[np.int64],
    true: NDArray[np.int64],
    among: NDArray[np.bool_],
    confidence: float,
) -> KnownTruth:
    unique = candidates == 1
    correct = int(np.count_nonzero(unique & (match == true)))
    matched = int(np.count_nonzero(unique))
    return KnownTruth(
        people_in_both=int(np.count_nonzero(true >= 0)),
        correct_matches=correct,
        expected_correct=float(np.sum(1.0 / candidates[among])),
        reidentified=proportion(correct, candidates.size, confidence=confidence),
        precision=proportion(correct, matched, confidence=confidence) if matched else None,
    )


def _histogram(candidates: NDArray[np.int64]) -> dict[str, int]:
    bounds = [(0, 0), (1, 1), (2, 2), (3, 5), (6, 10), (11, 20)]
    counted = {
        str(low) if low == high else f"{low} to {high}": int(
            np.count_nonzero((candidates >= low) & (candidates <= high))
        )
        for low, high in bounds
    }
    return {**counted, "over 20": int(np.count_nonzero(candidates > bounds[-1][1]))}
