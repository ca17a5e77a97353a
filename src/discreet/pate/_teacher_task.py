"""The work of one teacher: train on its own part and vote on the queries.

What a teacher does depends on its part, its seed and public facts. Whatever goes wrong inside it
stays inside: a teacher without records, one that raises or exits, and one whose answer is no
declared class vote for class 0, a teacher with one class votes for that class, and warnings are
not shown. Every teacher is a copy of its own, so that nothing it keeps reaches another.

Teachers that are trained in groups have fixed slots in fixed groups. A teacher keeps its slot even
if another has no data, for which a public placeholder is trained: float sums depend on memory
layout.

``random``, numpy and torch keep one generator for the whole process. How often a teacher draws from
it depends on its records, so with a fixed seed one record would move the votes of all teachers
that come later, and the sensitivity of a vote count would not be one teacher's. So each teacher has
generators of its own.
"""

from __future__ import annotations

import copy
import random  # noqa: TID251 - its state is set aside and put back
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, final, runtime_checkable

import numpy as np

from discreet._threads import one_thread

if TYPE_CHECKING:
    from numpy.typing import NDArray


# The class that a teacher votes for if it has nothing to say.
FIXED_VOTE = 0

# Rows to features, row by row.
Prepare = Callable[["NDArray[np.float64]"], "NDArray[np.float64]"]


# Two teachers in threads of one process would draw from one another's generators.
_EXCLUSIVE = threading.RLock()


def exclusive() -> AbstractContextManager[Any]:
    """Inside, no other teacher of this process runs: generators and filters are shared by all."""
    return _EXCLUSIVE


@contextmanager
def own_generators(seed: int) -> Iterator[None]:
    """Inside, the generators of the process start from ``seed``; afterwards they are as before."""
    with _EXCLUSIVE:
        torch = sys.modules.get("torch")
        python = random.getstate()
        numbers = np.random.get_state()  # noqa: NPY002, TID251 - set aside, not drawn from
        tensors = None if torch is None else torch.random.get_rng_state()
        try:
            random.seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002, TID251 - the teacher's own
            if torch is not None:
                torch.random.default_generator.manual_seed(seed)
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numbers)  # noqa: NPY002, TID251 - put back
            if torch is not None:
                torch.random.set_rng_state(tensors)


@runtime_checkable
class GroupTrainer(Protocol):
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
class TeacherTask:
    """What one teacher learns from, and what it is asked."""

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
    def placeholder(self) -> TeacherTask:
        """A public task of the same form, for the same slot."""
        return replace(
            self,
            features=self.queries[:1],
            labels=np.zeros(1, dtype=np.int64),
            columns=np.arange(self.queries.shape[1]),
            prepare=None,
        )

    @property
    def votes_without_training(self) -> NDArray[np.int64] | None:
        """The votes that follow from the labels exclusive, if there are less than two classes."""
        present = np.unique(self.labels)
        if present.size == 0:
            return self.constant(FIXED_VOTE)
        return self.constant(int(present[0])) if present.size == 1 else None

    def constant(self, code: int) -> NDArray[np.int64]:
        """The same vote for every query."""
        return np.full(len(self.queries), code, dtype=np.int64)


def train_and_vote(kind: Any, tasks: Sequence[TeacherTask]) -> list[NDArray[np.int64]]:
    """Train some teachers and return their votes; one that fails casts a fixed vote."""
    results = [task.votes_without_training for task in tasks]
    left = [at for at, vote in enumerate(results) if vote is None]
    # Filters of warnings belong to the process: a thread that ends would show those of another.
    with exclusive(), warnings.catch_warnings(action="ignore"), one_thread():
        answers = _answers(kind, tasks, left)
    for at, answer in answers.items():
        results[at] = read_class_codes(answer, tasks[at])
    return [
        task.constant(FIXED_VOTE) if vote is None else vote
        for task, vote in zip(tasks, results, strict=True)
    ]


def _answers(kind: Any, tasks: Sequence[TeacherTask], learning: list[int]) -> dict[int, Any]:
    """The answers of the teachers in some slots; placeholders are in all others."""
    if not learning:
        return {}
    together = isinstance(kind, GroupTrainer)
    inside = set(learning)
    places = range(len(tasks)) if together else learning
    present = [tasks[at] if at in inside else tasks[at].placeholder for at in places]
    try:
        found = dict(zip(places, collect_answers(kind, present), strict=True))
        return {at: found[at] for at in learning}
    except (Exception, SystemExit):  # noqa: BLE001 - an error would say something about records
        if len(learning) == 1:
            return {}
    # One of them broke its group: it is looked for, so that no other teacher is changed by it.
    half = len(learning) // 2
    return _answers(kind, tasks, learning[:half]) | _answers(kind, tasks, learning[half:])


def collect_answers(kind: Any, tasks: Sequence[TeacherTask]) -> list[Any]:
    """Train teachers and return their answers; raise on any fault."""
    if isinstance(kind, GroupTrainer):
        asked = {id(task.queries): task.queries for task in tasks}
        copies = {key: queries.copy() for key, queries in asked.items()}
        with own_generators(tasks[0].seed):
            return copy.deepcopy(kind).vote_together(
                [(task.prepared, task.labels.copy()) for task in tasks],
                [copies[id(task.queries)] for task in tasks],
                classes=tasks[0].classes,
                seeds=[task.seed for task in tasks],
            )
    answers = []
    for task in tasks:
        with own_generators(task.seed):
            answers.append(_answer_of_one(kind, task))
    return answers


def _answer_of_one(kind: Any, task: TeacherTask) -> Any:
    if not hasattr(kind, "fit"):
        return copy.deepcopy(kind)(
            task.prepared,
            task.labels.copy(),
            task.queries.copy(),
            classes=task.classes,
            seed=task.seed,
        )
    from sklearn.base import clone  # type: ignore[import-untyped]

    model = clone(kind)
    seeds = {
        name: task.seed
        for name, value in model.get_params().items()
        if value is None and name.rpartition("__")[2] == "random_state"
    }
    model.set_params(**seeds).fit(task.prepared, task.labels.copy())
    return model.predict(task.queries.copy())


def read_class_codes(answer: Any, task: TeacherTask) -> NDArray[np.int64] | None:
    """The answer as class codes, or None if it is something else."""
    try:
        codes = np.asarray(answer)
    except Exception:  # noqa: BLE001 - an answer may be anything
        return None
    if codes.shape != (len(task.queries),) or codes.dtype.kind not in "iu":
        return None
    if bool(np.any(codes < 0)) or bool(np.any(codes >= task.classes)):
        return None
    return codes.astype(np.int64)
