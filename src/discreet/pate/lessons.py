"""What happens inside a teacher: it learns from its part, answers, and tells nothing else.

What a teacher does depends on its part, its seed and public facts. Whatever goes wrong inside it
stays inside: a teacher without records, one that raises or exits, and one whose answer is no
declared class vote for class 0, a teacher with one class votes for that class, and warnings are
not shown. Every teacher is a copy of its own, so that nothing it keeps reaches another.

Teachers that are taught together have fixed places in fixed groups. Where one has nothing to
learn, a public stand-in takes its place: sums in floating point may depend on where in memory a
network lies, so nobody moves up.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, final, runtime_checkable

import numpy as np

from discreet.pate.own_generators import alone, own_generators

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "FIXED_VOTE",
    "Lesson",
    "Prepare",
    "TaughtTogether",
    "ask",
    "class_codes",
    "one_thread",
    "taught",
]

FIXED_VOTE = 0
"""The class that a teacher votes for if it has nothing to say."""

Prepare = Callable[["NDArray[np.float64]"], "NDArray[np.float64]"]
"""Rows to features, row by row."""


@runtime_checkable
class TaughtTogether(Protocol):
    """Teachers that are trained in groups, because that is faster, yet independently."""

    cache_key: str

    def vote_together(
        self,
        parts: Sequence[tuple[NDArray[np.float64], NDArray[np.int64]]],
        queries: Sequence[NDArray[np.float64]],
        *,
        classes: int,
        seeds: Sequence[int],
    ) -> list[Any]:
        """Return the class codes of each teacher for its queries; no part is empty.

        The answer of a teacher must not depend, to the last bit, on who else is in the group.
        """


@final
@dataclass(frozen=True, eq=False)
class Lesson:
    """What one teacher learns from and is asked."""

    features: NDArray[np.float64]
    labels: NDArray[np.int64]
    queries: NDArray[np.float64]
    classes: int
    seed: int
    columns: NDArray[np.int64]
    prepare: Prepare | None = None

    @property
    def prepared(self) -> NDArray[np.float64]:
        """The features to learn from."""
        table = self.features if self.prepare is None else self.prepare(self.features)
        return table[:, self.columns]

    @property
    def stand_in(self) -> Lesson:
        """A public lesson of the same form, for the same place."""
        return replace(
            self,
            features=self.queries[:1],
            labels=np.zeros(1, dtype=np.int64),
            columns=np.arange(self.queries.shape[1]),
            prepare=None,
        )

    @property
    def without_training(self) -> NDArray[np.int64] | None:
        """The votes that follow from the labels alone, if there are less than two classes."""
        present = np.unique(self.labels)
        if present.size == 0:
            return self.constant(FIXED_VOTE)
        return self.constant(int(present[0])) if present.size == 1 else None

    def constant(self, code: int) -> NDArray[np.int64]:
        """The same vote for every query."""
        return np.full(len(self.queries), code, dtype=np.int64)


def taught(kind: Any, lessons: Sequence[Lesson]) -> list[NDArray[np.int64]]:
    """The votes of some teachers of one kind; nothing that happens inside is told."""
    results = [lesson.without_training for lesson in lessons]
    left = [at for at, vote in enumerate(results) if vote is None]
    # Filters of warnings belong to the process: a thread that ends would show those of another.
    with alone(), _quiet(), one_thread():
        answers = _answers(kind, lessons, left)
    for at, answer in answers.items():
        results[at] = class_codes(answer, lessons[at])
    return [
        lesson.constant(FIXED_VOTE) if vote is None else vote
        for lesson, vote in zip(lessons, results, strict=True)
    ]


def _answers(kind: Any, lessons: Sequence[Lesson], learning: list[int]) -> dict[int, Any]:
    """What the teachers at some places answer; stand-ins are at all others."""
    if not learning:
        return {}
    together = isinstance(kind, TaughtTogether)
    inside = set(learning)
    places = range(len(lessons)) if together else learning
    present = [lessons[at] if at in inside else lessons[at].stand_in for at in places]
    try:
        found = dict(zip(places, ask(kind, present), strict=True))
        return {at: found[at] for at in learning}
    except (Exception, SystemExit):  # noqa: BLE001 - an error would tell about records
        if len(learning) == 1:
            return {}
    # One of them broke its group: it is looked for, so that no other teacher is changed by it.
    half = len(learning) // 2
    return _answers(kind, lessons, learning[:half]) | _answers(kind, lessons, learning[half:])


def ask(kind: Any, lessons: Sequence[Lesson]) -> list[Any]:
    """Teach and ask; whatever goes wrong raises."""
    if isinstance(kind, TaughtTogether):
        with own_generators(lessons[0].seed):
            return copy.deepcopy(kind).vote_together(
                [(lesson.prepared, lesson.labels.copy()) for lesson in lessons],
                [lesson.queries.copy() for lesson in lessons],
                classes=lessons[0].classes,
                seeds=[lesson.seed for lesson in lessons],
            )
    answers = []
    for lesson in lessons:
        with own_generators(lesson.seed):
            answers.append(_one(kind, lesson))
    return answers


def _one(kind: Any, lesson: Lesson) -> Any:
    if not hasattr(kind, "fit"):
        return copy.deepcopy(kind)(
            lesson.prepared,
            lesson.labels.copy(),
            lesson.queries.copy(),
            classes=lesson.classes,
            seed=lesson.seed,
        )
    from sklearn.base import clone  # type: ignore[import-untyped]

    model = clone(kind)
    seeds = {
        name: lesson.seed
        for name, value in model.get_params().items()
        if value is None and name.rpartition("__")[2] == "random_state"
    }
    model.set_params(**seeds).fit(lesson.prepared, lesson.labels.copy())
    return model.predict(lesson.queries.copy())


def class_codes(answer: Any, lesson: Lesson) -> NDArray[np.int64] | None:
    """The answer as class codes, or None if it is something else."""
    try:
        codes = np.asarray(answer)
    except Exception:  # noqa: BLE001 - an answer may be anything
        return None
    if codes.shape != (len(lesson.queries),) or codes.dtype.kind not in "iu":
        return None
    if bool(np.any(codes < 0)) or bool(np.any(codes >= lesson.classes)):
        return None
    return codes.astype(np.int64)


def _quiet() -> AbstractContextManager[Any]:
    return warnings.catch_warnings(action="ignore")


def one_thread() -> AbstractContextManager[Any]:
    """Small fits gain nothing from threads, and a busy machine loses by them."""
    libraries = _libraries()
    return nullcontext() if libraries is None else libraries.limit(limits=1)


@cache
def _libraries() -> Any:
    """The libraries of this process that have threads of their own; looked for once."""
    try:
        return import_module("threadpoolctl").ThreadpoolController()
    except ImportError:
        return None
