"""The sparse vector technique: the six variants of Lyu, Su and Li (2017), and three more.

All answer a row of threshold queries of sensitivity 1 with total epsilon 1 and c
positive answers; the threshold is 0. Data is the row of true answers. Numbers 1 and
2 are private; 3, 4, 5 and 6 were published as private and are not:

======  ==================  ====================  =======================================
number  threshold noise     query noise           what else
======  ==================  ====================  =======================================
1       Lap(1/e1)           Lap(2c/e2)            stops after c
2       Lap(c/e1), renewed  Lap(2c/e1)            stops after c
3       Lap(1/e1)           Lap(c/e2)             gives the noisy answer itself
4       Lap(1/e1)           Lap(1/e2), no c       stops after c; e1 = 1/4
5       Lap(1/e1)           none                  never stops
6       Lap(1/e1)           Lap(1/e2)             never stops
======  ==================  ====================  =======================================

with e1 = e2 = 1/2 where nothing else is said. Number 4 is ((1 + 6c)/4)-DP, so it
takes c > 1 to show it; 3, 5 and 6 are not private for any epsilon (S15).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet.audit.zoo.specimen import Specimen, laplace_noise
from discreet.privacy import PureDP
from discreet.randomness import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["THRESHOLDS", "SparseVector"]

BELOW = -np.inf
"""A query below the threshold, beside answers that are numbers."""


@final
@dataclass(frozen=True)
class SparseVector:
    """A sparse vector technique as its parameters; unanswered queries are NaN."""

    threshold_scale: Fraction | int
    query_scale: Fraction | int | None
    positives: int | None
    renew: bool = False
    give_answer: bool = False

    def __call__(
        self, answers: tuple[int, ...], count: int, source: Source, *, threshold: int = 0
    ) -> NDArray[np.float64]:
        """``count`` independent runs over the row of answers."""
        bar = threshold + laplace_noise(self.threshold_scale, count, source)
        released = np.full((count, len(answers)), np.nan)
        found = np.zeros(count, dtype=np.int64)
        for place, answer in enumerate(answers):
            noisy = np.full(count, float(answer))
            if self.query_scale is not None:
                noisy += laplace_noise(self.query_scale, count, source)
            above = noisy >= bar
            shown = np.where(above, noisy, BELOW) if self.give_answer else above.astype(float)
            running = np.full(count, True) if self.positives is None else found < self.positives
            released[running, place] = shown[running]
            found += above
            if self.renew:
                fresh = threshold + laplace_noise(self.threshold_scale, count, source)
                bar = np.where(above, fresh, bar)
        return released


ABOVE_THRESHOLD = SparseVector(2, 4, 1)
POSITIVES = 5
QUERIES = 5


def public_threshold(records: tuple[int, ...], count: int, source: Source) -> Any:
    """AboveThreshold on the number of records, asked again and again, against a public 5."""
    return ABOVE_THRESHOLD((len(records),) * QUERIES, count, source, threshold=5)


def threshold_from_data(records: tuple[int, ...], count: int, source: Source) -> Any:
    """The same against the largest record, as if that were public."""
    return ABOVE_THRESHOLD((len(records),) * QUERIES, count, source, threshold=max(records))


def _up_down(up: int, down: int) -> dict[str, tuple[int, ...]]:
    """Answers that all move by one: first ``up`` of them up, then ``down`` of them down."""
    return {"first": (0,) * (up + down), "second": (1,) * up + (-1,) * down}


def _specimen(name: str, draw: Any, about: str, **other: Any) -> Specimen:
    settings = {"loss": PureDP(epsilon=1), "broken": True, "samples": 30_000, **other}
    return Specimen(name=name, draw=draw, about=about, **settings)


THRESHOLDS = (
    _specimen(
        "sparse-vector-1",
        SparseVector(2, 4 * POSITIVES, POSITIVES),
        "Lyu, Su and Li, algorithm 1",
        **_up_down(5, POSITIVES),
        broken=False,
    ),
    _specimen(
        "sparse-vector-2",
        SparseVector(2 * POSITIVES, 4 * POSITIVES, POSITIVES, renew=True),
        "Dwork and Roth 2014",
        **_up_down(5, POSITIVES),
        broken=False,
    ),
    _specimen(
        "sparse-vector-3",
        SparseVector(2, 2, 1, give_answer=True),
        "gives noisy answers above the threshold, which betray the threshold",
        first=(-1,) * 6 + (1,),
        second=(0,) * 6 + (2,),
        samples=300_000,
    ),
    _specimen(
        "sparse-vector-4",
        SparseVector(4, Fraction(4, 3), POSITIVES),
        "query noise does not grow with the number c of positive answers",
        **_up_down(5, POSITIVES),
    ),
    _specimen(
        "sparse-vector-5",
        SparseVector(2, None, None),
        "no noise on the queries, and no limit to the positive answers",
        first=(0, 1),
        second=(1, 0),
    ),
    _specimen(
        "sparse-vector-6",
        SparseVector(2, 2, None),
        "no limit to the positive answers",
        **_up_down(8, 8),
    ),
    _specimen(
        "above-threshold",
        ABOVE_THRESHOLD,
        "stops at the first positive answer",
        **_up_down(5, 1),
        broken=False,
    ),
    _specimen(
        "above-threshold-goes-on",
        SparseVector(2, 4, None),
        "goes on after the first positive answer",
        **_up_down(30, 30),
    ),
    _specimen(
        "threshold-public",
        public_threshold,
        "AboveThreshold against a public threshold",
        first=(1, 1, 1),
        second=(1, 1, 1, 12),
        broken=False,
    ),
    _specimen(
        "threshold-from-data",
        threshold_from_data,
        "the threshold is the largest record, read off the data for nothing",
        first=(1, 1, 1),
        second=(1, 1, 1, 12),
    ),
)
