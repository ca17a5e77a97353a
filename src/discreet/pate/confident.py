"""Confident and interactive GNMax: answers only where the teachers agree, or object (S23)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue
from discreet.pate.aggregator import Costs, QueryByQuery
from discreet.pate.noise import argmax_loss, gaussian_winners, maximum_loss, noise_level, passes
from discreet.pate.session import Outcome, Plan, Runner
from discreet.randomness import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ConfidentGNMax", "InteractiveGNMax", "SelectiveGNMax", "baseline_of"]


@dataclass(frozen=True, kw_only=True)
class SelectiveGNMax(QueryByQuery):
    """Base of the two: a noisy threshold decides whether a noisy maximum is released.

    **Guarantee.** GDP(1 / selection_noise) for each query, since the count that is compared
    moves by at most one, and GDP(sqrt(2) / answer_noise) more for each answer. A session asks
    no query whose answer it could not pay for, so that it ends by cost and not by votes.
    """

    threshold: object
    selection_noise: object
    answer_noise: object

    def __post_init__(self) -> None:
        super().__post_init__()
        level = _validate.fraction("threshold", self.threshold)
        if not -self.teachers <= level <= 10 * self.teachers:
            expected = f"votes, from -{self.teachers} to {10 * self.teachers}"
            raise InvalidValue("threshold", self.threshold, expected)
        self._set(
            threshold=level,
            selection_noise=noise_level("selection_noise", self.selection_noise),
            answer_noise=noise_level("answer_noise", self.answer_noise),
        )

    @property
    def level(self) -> Fraction:
        """The threshold, in votes."""
        return _validate.fraction("threshold", self.threshold)

    @property
    def noises(self) -> tuple[Fraction, Fraction]:
        """The deviations of the noise on the threshold test and on the answer, in votes."""
        return (
            noise_level("selection_noise", self.selection_noise),
            noise_level("answer_noise", self.answer_noise),
        )

    @property
    def costs(self) -> Costs:
        selection, answer = self.noises
        return Costs(maximum_loss(selection, self.neighbours), argmax_loss(answer, self.neighbours))

    def _decided(
        self, counts: NDArray[np.int64], table: NDArray[np.int64], source: Source
    ) -> list[int | None]:
        """The labels of a table whose ``counts`` are compared with the threshold."""
        selection, answer = self.noises
        passed = passes(counts, threshold=self.level, noise=selection, source=source)
        winners = iter(gaussian_winners(table[passed], noise=answer, source=source))
        return [int(next(winners)) if one else None for one in passed]

    @abstractmethod
    def _runner(self, plan: Plan, source: Source) -> Runner: ...


@final
@dataclass(frozen=True, kw_only=True)
class ConfidentGNMax(SelectiveGNMax):
    """Answers by GNMax if the largest count with noise reaches ``threshold``, else None.

    Papernot et al. 2018, algorithm 1. A query without consensus costs only the test.

    >>> aggregator = ConfidentGNMax(
    ...     classes=10, teachers=250, threshold=200, selection_noise=150, answer_noise=40
    ... )
    >>> aggregator.loss(queries=1000, answers=100).epsilon(delta=1e-5)
    1.6...
    >>> session = aggregator.open(epsilon=2, delta=1e-5, insecure_seed=3)
    >>> session.answer([250] + [0] * 9) in (0, None)
    True
    """

    def _runner(self, plan: Plan, source: Source) -> Runner:
        def run(table: NDArray[np.int64], _: Any) -> Iterator[Outcome]:
            for label in self._decided(table.max(axis=1), table, source):
                yield Outcome(label, label is not None)

        return run


@final
@dataclass(frozen=True, kw_only=True)
class InteractiveGNMax(SelectiveGNMax):
    """Answers by GNMax if the teachers object to the student's own prediction.

    Papernot et al. 2018, algorithm 2. ``answer(votes, prediction=p)`` takes the student's
    public probabilities p for this query. The largest count above what p expects,
    max over j of (votes_j - round(teachers p_j)), moves by at most one with one vote; where it
    reaches ``threshold`` with noise the teachers answer. Where it does not, the label is
    the student's own if its probability is above ``confidence`` (None: never), and None
    otherwise; that is post-processing. ``session.answers`` counts the teachers' answers.

    p must come from what was released and from public data. It may depend on earlier labels.

    >>> aggregator = InteractiveGNMax(
    ...     classes=2, teachers=100, threshold=60, selection_noise=5, answer_noise=5, confidence=0.9
    ... )
    >>> session = aggregator.open(queries=10, answers=5, insecure_seed=3)
    >>> session.answer([0, 100], prediction=[1, 0]), session.answers  # they object
    (1, 1)
    >>> session.answer([0, 100], prediction=[0.05, 0.95]), session.answers  # they agree
    (1, 1)
    """

    confidence: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.confidence is not None:
            _validate.real("confidence", self.confidence, at_least=0, at_most=1)

    def _check_predictions(self, predictions: Any, queries: int) -> None:
        self._read([None] * queries if predictions is None else predictions)

    def _read(self, predictions: Any) -> list[tuple[NDArray[np.float64], NDArray[np.int64]]]:
        return [
            baseline_of(row, classes=self.classes, teachers=self.teachers) for row in predictions
        ]

    def _runner(self, plan: Plan, source: Source) -> Runner:
        def run(table: NDArray[np.int64], predictions: Any) -> Iterator[Outcome]:
            read = self._read(predictions)
            expected = np.stack([votes for _, votes in read])
            labels = self._decided((table - expected).max(axis=1), table, source)
            for label, (chances, _) in zip(labels, read, strict=True):
                yield Outcome(label, True) if label is not None else self._own(chances)

        return run

    def _own(self, chances: NDArray[np.float64]) -> Outcome:
        """The student's own label where the teachers do not object."""
        own = int(np.argmax(chances))
        sure = self.confidence is not None and chances[own] > self.confidence
        return Outcome(own if sure else None, False)


def baseline_of(
    prediction: Any, *, classes: int, teachers: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Read a student's probabilities; return them and the votes that they expect, rounded.

    >>> baseline_of([0.25, 0.75], classes=2, teachers=10)[1].tolist()
    [2, 8]
    """
    expected = f"{classes} probabilities that sum to 1 within 1e-6"
    try:
        chances = np.asarray(prediction, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidValue("prediction", prediction, expected) from None
    fine = chances.shape == (classes,) and bool(np.all((chances >= 0) & (chances <= 1)))
    if not fine or abs(float(chances.sum()) - 1.0) > 1e-6:
        raise InvalidValue("prediction", prediction, expected)
    return chances, np.rint(teachers * chances).astype(np.int64)
