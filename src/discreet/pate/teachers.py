"""Teachers of any kind: each is trained on its own part and votes on public queries (S23).

A teacher is a scikit-learn classifier, a function ``(X, y, queries, *, classes, seed)`` that
returns one class code for each query, or :class:`~discreet.pate.networks.NetworkTeachers`. A list
of them makes heterogeneous teachers, a list of column sets heterogeneous features; teacher t has
entry t modulo the length. ``prepare`` turns rows into features, in public ways; each teacher
does it for its own records, so that not even a rounding error passes from one to another.

**Each record reaches one vote.** What a teacher does depends on its part, its seed and public
facts. Whatever goes wrong inside it stays inside: a teacher without records, one that raises, and
one whose answer is no declared class vote for class 0, a teacher with one class votes for that
class, and warnings are not shown. None of this is told, because it would tell about records. A
mistake in the teacher itself is found beforehand, on made-up labels for public rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, final, runtime_checkable

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue
from discreet.pate.own_generators import own_generators
from discreet.pate.partition import Partition, check_disjoint
from discreet.pate.vote_files import open_cache, read_votes, votes_name, write_votes
from discreet.pate.votes import histogram_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["FIXED_VOTE", "TaughtTogether", "rehearse", "teacher_names", "teacher_votes"]

FIXED_VOTE = 0
"""The class that a teacher votes for if it has nothing to say."""

Prepare = Callable[["NDArray[np.float64]"], "NDArray[np.float64]"]
"""Rows to features, row by row."""

_GROUP = 50
_REHEARSED = 64


@runtime_checkable
class TaughtTogether(Protocol):
    """Teachers that are trained in groups, because that is faster, yet independently."""

    identity: str

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
class _Lesson:
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


def teacher_votes(
    partition: Partition,
    X: NDArray[np.float64],  # noqa: N803 (scikit-learn calls the features X)
    y: NDArray[np.int64],
    queries: NDArray[np.float64],
    *,
    teacher: Any,
    classes: int,
    columns: Sequence[Any] | None = None,
    prepare: Prepare | None = None,
    jobs: int = 1,
    cache: str | Path | None = None,
) -> NDArray[np.int64]:
    """Train all teachers and return the histogram of their votes on each query. PRIVATE.

    ``y`` holds class codes from 0; records with other codes are left out. ``jobs`` is joblib's
    number of workers; inside ``joblib.parallel_config(backend=...)`` any of its backends is
    used, Ray's for several machines. With ``cache``, a directory for private files, the votes of
    each teacher are kept, and a run that was interrupted goes on.
    """
    kinds = _kinds(teacher)
    rehearse(teacher, queries, classes=classes, columns=columns, prepare=prepare)
    asked = queries if prepare is None else prepare(queries)
    sets = _column_sets(columns, asked.shape[1])
    members = [partition.members(place) for place in range(partition.teachers)]
    check_disjoint(members, rows=len(X))
    lessons = []
    for place, rows in enumerate(members):
        kept = rows[(y[rows] >= 0) & (y[rows] < classes)]
        chosen = sets[place % len(sets)]
        lessons.append(
            _Lesson(
                X[kept],
                y[kept],
                asked[:, chosen],
                classes,
                partition.seed(place),
                chosen,
                prepare,
            )
        )
    votes: list[NDArray[np.int64] | None] = [None] * len(lessons)
    paths: list[Path | None] = [None] * len(lessons)
    if cache is not None:
        place_of_files = open_cache(cache)
        for place, lesson in enumerate(lessons):
            path = place_of_files / _file_name(kinds[place % len(kinds)], lesson)
            paths[place], votes[place] = path, read_votes(path, len(queries), classes=classes)
    for kind_at, kind in enumerate(kinds):
        open_places = [
            place for place in range(kind_at, len(lessons), len(kinds)) if votes[place] is None
        ]
        _train(kind, lessons, open_places, votes, paths, jobs=jobs)
    return histogram_of(np.stack([vote for vote in votes if vote is not None]), classes=classes)


def rehearse(
    teacher: Any,
    queries: NDArray[np.float64],
    *,
    classes: int,
    columns: Sequence[Any] | None = None,
    prepare: Prepare | None = None,
) -> None:
    """Try every kind of teacher on public rows with made-up labels; raise if one does not work."""
    rows = np.arange(max(_REHEARSED, 2 * classes))
    labels = (rows % classes).astype(np.int64)
    kinds = _kinds(teacher)
    made_up = queries[rows % len(queries)]
    asked = made_up if prepare is None else prepare(made_up)
    sets = _column_sets(columns, asked.shape[1])
    for place in range(max(len(kinds), len(sets))):
        kind, chosen = kinds[place % len(kinds)], sets[place % len(sets)]
        lesson = _Lesson(made_up, labels, asked[: 2 * classes, chosen], classes, 0, chosen, prepare)
        try:
            with _quiet():
                found = _ask(kind, [lesson])[0]
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            expected = f"one that learns from public rows with made-up labels ({reason})"
            raise InvalidValue("teacher", _name(kind), expected) from error
        if _codes(found, lesson) is None:
            expected = f"one that answers with class codes from 0 to {classes - 1}"
            raise InvalidValue("teacher", _name(kind), expected)


def teacher_names(teacher: Any) -> list[str]:
    """What the teachers are, for a certificate; public."""
    return [_name(kind) for kind in _kinds(teacher)]


def _kinds(teacher: Any) -> list[Any]:
    kinds = list(teacher) if isinstance(teacher, list | tuple) else [teacher]
    expected = "a classifier of scikit-learn, a function, NetworkTeachers, or a list of them"
    if not kinds:
        raise InvalidValue("teacher", teacher, expected)
    for kind in kinds:
        estimator = hasattr(kind, "fit") and hasattr(kind, "predict")
        if isinstance(kind, type) or not (
            estimator or callable(kind) or isinstance(kind, TaughtTogether)
        ):
            raise InvalidValue("teacher", kind, expected)
    return kinds


def _column_sets(columns: Sequence[Any] | None, width: int) -> list[NDArray[np.int64]]:
    if columns is None:
        return [np.arange(width)]
    sets = [np.asarray(chosen) for chosen in columns]
    for chosen in sets:
        if chosen.ndim != 1 or chosen.size == 0 or chosen.dtype.kind not in "iu":
            raise InvalidValue("columns", columns, "lists of column numbers")
        if bool(np.any(chosen < 0)) or bool(np.any(chosen >= width)):
            raise InvalidValue("columns", columns, f"column numbers from 0 to {width - 1}")
    if not sets:
        raise InvalidValue("columns", columns, "at least one list of column numbers")
    return sets


def _train(
    kind: Any,
    lessons: Sequence[_Lesson],
    places: Sequence[int],
    votes: list[NDArray[np.int64] | None],
    paths: Sequence[Path | None],
    *,
    jobs: int,
) -> None:
    """Train the teachers of one kind and fill in their votes, a group at a time."""
    from joblib import Parallel, delayed, effective_n_jobs  # type: ignore[import-untyped]

    together = isinstance(kind, TaughtTogether)
    workers = None if jobs == 1 else _validate.integer("jobs", jobs, at_least=-1)
    size = _GROUP if together else 1
    groups = [places[start : start + size] for start in range(0, len(places), size)]
    # In rounds, because not every backend hands over results one by one.
    at_once = 1 if (busy := effective_n_jobs(workers)) == 1 else 8 * busy
    with Parallel(n_jobs=workers) as run:
        for start in range(0, len(groups), at_once):
            some = groups[start : start + at_once]
            answers = run(delayed(_taught)(kind, [lessons[at] for at in group]) for group in some)
            for group, found in zip(some, answers, strict=True):
                for at, vote in zip(group, found, strict=True):
                    votes[at] = vote
                    path = paths[at]
                    if path is not None:
                        write_votes(path, vote)


def _taught(kind: Any, lessons: Sequence[_Lesson]) -> list[NDArray[np.int64]]:
    """The votes of some teachers; nothing that happens inside is told."""
    results = [_without_training(lesson) for lesson in lessons]
    left = [at for at, vote in enumerate(results) if vote is None]
    if left:
        asked = [lessons[at] for at in left]
        with _quiet(), _one_thread():
            found = _answers(kind, asked)
        for at, lesson, answer in zip(left, asked, found, strict=True):
            results[at] = None if answer is None else _codes(answer, lesson)
    return [
        _constant(lesson, FIXED_VOTE) if vote is None else vote
        for lesson, vote in zip(lessons, results, strict=True)
    ]


def _without_training(lesson: _Lesson) -> NDArray[np.int64] | None:
    present = np.unique(lesson.labels)
    if present.size == 0:
        return _constant(lesson, FIXED_VOTE)
    return _constant(lesson, int(present[0])) if present.size == 1 else None


def _answers(kind: Any, lessons: Sequence[_Lesson]) -> list[Any]:
    try:
        return _ask(kind, lessons)
    except Exception:  # noqa: BLE001 - an error would tell about records
        if len(lessons) == 1:
            return [None]
    # One of them broke its group: each by itself, so that no other teacher is changed by it.
    return [_answers(kind, [lesson])[0] for lesson in lessons]


def _ask(kind: Any, lessons: Sequence[_Lesson]) -> list[Any]:
    if isinstance(kind, TaughtTogether):
        return kind.vote_together(
            [(lesson.prepared, lesson.labels) for lesson in lessons],
            [lesson.queries for lesson in lessons],
            classes=lessons[0].classes,
            seeds=[lesson.seed for lesson in lessons],
        )
    answers = []
    for lesson in lessons:
        with own_generators(lesson.seed):
            answers.append(_one(kind, lesson))
    return answers


def _one(kind: Any, lesson: _Lesson) -> Any:
    if not hasattr(kind, "fit"):
        return kind(
            lesson.prepared,
            lesson.labels.copy(),
            lesson.queries,
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
    return model.set_params(**seeds).fit(lesson.prepared, lesson.labels).predict(lesson.queries)


def _codes(answer: Any, lesson: _Lesson) -> NDArray[np.int64] | None:
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


def _constant(lesson: _Lesson, code: int) -> NDArray[np.int64]:
    return np.full(len(lesson.queries), code, dtype=np.int64)


def _name(kind: Any) -> str:
    identity = getattr(kind, "identity", None)
    if isinstance(identity, str) and identity:
        return identity
    if hasattr(kind, "get_params"):
        return " ".join(repr(kind).split())
    return str(getattr(kind, "__qualname__", type(kind).__qualname__))


def _file_name(kind: Any, lesson: _Lesson) -> str:
    if not hasattr(kind, "get_params") and not getattr(kind, "identity", None):
        expected = "a teacher with an attribute 'identity', a text that changes when it does"
        raise InvalidValue("teacher", _name(kind), f"{expected}, where votes are kept")
    # What prepares the rows is known by what it makes of the queries.
    texts = [_name(kind), type(kind).__module__, str(lesson.classes), str(lesson.seed)]
    texts.append(repr(lesson.columns.tolist()))
    if hasattr(kind, "get_params"):
        texts.append(repr(sorted(kind.get_params().items(), key=lambda item: item[0])))
        texts.append(str(import_module("sklearn").__version__))
    return votes_name(texts, [lesson.features, lesson.labels, lesson.queries])


def _quiet() -> AbstractContextManager[Any]:
    return warnings.catch_warnings(action="ignore")


def _one_thread() -> AbstractContextManager[Any]:
    """Small fits gain nothing from threads, and a busy machine loses by them."""
    try:
        limits: Callable[..., AbstractContextManager[Any]]
        limits = import_module("threadpoolctl").threadpool_limits
    except ImportError:
        return nullcontext()
    return limits(limits=1)
