"""Teachers of any kind: each is trained on its own part and votes on public queries (S23).

A teacher is a scikit-learn classifier, a function ``(X, y, queries, *, classes, seed)`` that
returns one class code for each query, or :class:`~discreet.pate.networks.NetworkTeachers`. A list
of them makes heterogeneous teachers, a list of column sets heterogeneous features; teacher t has
entry t modulo the length. ``prepare`` turns rows into features, in public ways; each teacher
does it for its own records, so that not even a rounding error passes from one to another.

**Each record reaches one vote.** What goes wrong inside a teacher stays inside
(:mod:`discreet.pate.lessons`). A mistake in the teacher itself is found beforehand, when the
:class:`Exam` is set: every kind is tried on made-up labels for public rows, by the workers that
will train it. A function must not keep anything from one call to the next outside of itself, such
as in a global variable: nothing here could take that away.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue
from discreet.pate.lessons import (
    FIXED_VOTE,
    Lesson,
    Prepare,
    TaughtTogether,
    ask,
    class_codes,
    one_thread,
    taught,
)
from discreet.pate.own_generators import alone
from discreet.pate.partition import Partition, check_disjoint
from discreet.pate.vote_files import (
    given_cache_key,
    open_cache,
    read_votes,
    setup_name,
    votes_name,
    write_votes,
)
from discreet.pate.votes import histogram_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "FIXED_VOTE",
    "Exam",
    "TaughtTogether",
    "number_of_workers",
    "rehearse",
    "teacher_names",
    "teacher_votes",
]

_GROUP = 50
_REHEARSED = 64


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
    cache_key: str | None = None,
    public: NDArray[np.float64] | None = None,
) -> NDArray[np.int64]:
    """Train all teachers and return the histogram of their votes on each query. PRIVATE.

    ``y`` holds class codes from 0; records with other codes are left out. ``jobs`` is joblib's
    number of workers; inside ``joblib.parallel_config(backend=...)`` any of its backends is
    used, Ray's for several machines. With ``cache``, a directory for private files, the votes of
    each teacher are kept, and a run that was interrupted goes on. Teachers and preparations other
    than estimators of scikit-learn then need a ``cache_key``, a text to keep the votes under, as
    an argument or as an attribute of theirs: change it whenever they change. Teachers are tried on
    ``public`` rows first, by default the queries.
    """
    exam = Exam.set(
        teacher,
        queries,
        classes=classes,
        columns=columns,
        prepare=prepare,
        jobs=jobs,
        cache=cache,
        cache_key=cache_key,
        public=public,
    )
    return exam.votes(partition, X, y)


@final
@dataclass(frozen=True, eq=False)
class Exam:
    """Who is asked what: all that is public about teachers and queries, checked beforehand."""

    kinds: tuple[Any, ...]
    asked: NDArray[np.float64]
    sets: tuple[NDArray[np.int64], ...]
    classes: int
    prepare: Prepare | None
    workers: int | None
    files: Path | None
    name: str

    @classmethod
    def set(
        cls,
        teacher: Any,
        queries: NDArray[np.float64],
        *,
        classes: int,
        columns: Sequence[Any] | None = None,
        prepare: Prepare | None = None,
        jobs: int = 1,
        cache: str | Path | None = None,
        cache_key: str | None = None,
        public: NDArray[np.float64] | None = None,
    ) -> Exam:
        """Check everything and try the teachers on ``public`` rows (by default the queries)."""
        kinds = _kinds(teacher)
        workers = number_of_workers(jobs)
        rows = queries if public is None else public
        tried = rehearse(
            teacher, rows, classes=classes, columns=columns, prepare=prepare, jobs=jobs
        )
        files, name = None, ""
        if cache is not None:
            files = open_cache(cache)
            parts = [*map(_unfitted, kinds), prepare]
            name = setup_name(parts, tried, cache_key=cache_key)
        asked = queries if prepare is None else prepare(queries)
        sets = _column_sets(columns, asked.shape[1])
        return cls(tuple(kinds), asked, tuple(sets), classes, prepare, workers, files, name)

    def votes(
        self,
        partition: Partition,
        X: NDArray[np.float64],  # noqa: N803
        y: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Train all teachers and return the histogram of their votes on each query. PRIVATE."""
        from joblib import Parallel  # type: ignore[import-untyped]

        lessons = self._lessons(partition, X, y)
        votes: list[NDArray[np.int64] | None] = [None] * len(lessons)
        paths = [self._path(place, lesson) for place, lesson in enumerate(lessons)]
        for place, path in enumerate(paths):
            if path is not None:
                votes[place] = read_votes(path, len(self.asked), classes=self.classes)
        with Parallel(n_jobs=self.workers) as run:
            kept = [
                self._train(run, places, lessons, votes, paths)
                for places in self._groups(len(lessons))
            ]
        if not all(kept):
            warnings.warn("votes could not be kept: an interrupted run starts anew", stacklevel=3)
        return histogram_of(
            np.stack([vote for vote in votes if vote is not None]), classes=self.classes
        )

    def _lessons(
        self,
        partition: Partition,
        X: NDArray[np.float64],  # noqa: N803
        y: NDArray[np.int64],
    ) -> list[Lesson]:
        members = [partition.members(place) for place in range(partition.teachers)]
        check_disjoint(members, rows=len(X))
        lessons = []
        for place, rows in enumerate(members):
            kept = rows[(y[rows] >= 0) & (y[rows] < self.classes)]
            chosen = self.sets[place % len(self.sets)]
            lessons.append(
                Lesson(
                    X[kept],
                    y[kept],
                    self.asked[:, chosen],
                    self.classes,
                    partition.seed(place),
                    chosen,
                    self.prepare,
                )
            )
        return lessons

    def _path(self, place: int, lesson: Lesson) -> Path | None:
        if self.files is None:
            return None
        kind = place % len(self.kinds)
        texts = [self.name, str(kind), str(lesson.classes), str(lesson.seed)]
        texts.append(repr(lesson.columns.tolist()))
        return self.files / votes_name(texts, [lesson.features, lesson.labels, lesson.queries])

    def _groups(self, teachers: int) -> list[list[int]]:
        """The teachers by kind and column set; who is in which follows from public numbers."""
        found: dict[tuple[int, int], list[int]] = {}
        for place in range(teachers):
            key = (place % len(self.kinds), place % len(self.sets))
            found.setdefault(key, []).append(place)
        return list(found.values())

    def _train(
        self,
        run: Any,
        places: list[int],
        lessons: Sequence[Lesson],
        votes: list[NDArray[np.int64] | None],
        paths: Sequence[Path | None],
    ) -> bool:
        """Train teachers of one kind and fill in their votes; False if files fail."""
        from joblib import delayed, effective_n_jobs

        kind = self.kinds[places[0] % len(self.kinds)]
        size = _GROUP if isinstance(kind, TaughtTogether) else 1
        groups = [places[start : start + size] for start in range(0, len(places), size)]
        groups = [group for group in groups if any(votes[at] is None for at in group)]
        # In rounds, because not every backend hands over results one by one.
        at_once = 1 if (busy := effective_n_jobs(self.workers)) == 1 else 8 * busy
        kept = True
        for start in range(0, len(groups), at_once):
            some = groups[start : start + at_once]
            tasks = [
                [lessons[at] if votes[at] is None else lessons[at].stand_in for at in group]
                for group in some
            ]
            answers = run(delayed(taught)(kind, task) for task in tasks)
            for group, found in zip(some, answers, strict=True):
                for at, vote in zip(group, found, strict=True):
                    if votes[at] is None:
                        votes[at] = vote
                        kept &= _written(paths[at], vote)
        return kept


def rehearse(
    teacher: Any,
    queries: NDArray[np.float64],
    *,
    classes: int,
    columns: Sequence[Any] | None = None,
    prepare: Prepare | None = None,
    jobs: int = 1,
) -> list[NDArray[Any]]:
    """Try every kind of teacher on public rows with made-up labels; raise if one does not work.

    Returns what came of it: the rows, the prepared rows, and the votes of each kind.
    """
    from joblib import Parallel, delayed

    rows = np.arange(max(_REHEARSED, 2 * classes))
    labels = (rows % classes).astype(np.int64)
    kinds = _kinds(teacher)
    made_up = queries[rows % len(queries)]
    asked = made_up if prepare is None else prepare(made_up)
    sets = _column_sets(columns, asked.shape[1])
    tries = []
    for place in range(math.lcm(len(kinds), len(sets))):
        kind, chosen = kinds[place % len(kinds)], sets[place % len(sets)]
        lesson = Lesson(made_up, labels, asked[:, chosen], classes, place, chosen, prepare)
        tries.append((kind, lesson))
    try:
        found = Parallel(n_jobs=number_of_workers(jobs))(
            delayed(_tried)(kind, lesson) for kind, lesson in tries
        )
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        expected = f"teachers and preparation that can be sent to workers ({reason})"
        raise InvalidValue("teacher", ", ".join(map(_name, kinds)), expected) from error
    for (kind, _), vote in zip(tries, found, strict=True):
        if isinstance(vote, str):
            raise InvalidValue("teacher", _name(kind), vote)
    return [made_up, asked, *found]


def _tried(kind: Any, lesson: Lesson) -> str | NDArray[np.int64]:
    """Return a teacher's votes after a public lesson, or say what is wrong with it."""
    lessons = [lesson, lesson.stand_in] if isinstance(kind, TaughtTogether) else [lesson]
    try:
        with alone(), warnings.catch_warnings(action="ignore"), one_thread():
            found = ask(kind, lessons)
        if len(found) != len(lessons):
            return f"one that gives {len(lessons)} answers for {len(lessons)} parts"
    except (Exception, SystemExit) as error:  # noqa: BLE001 - told, with all that is public
        reason = f"{type(error).__name__}: {error}"
        return f"one that learns from public rows with made-up labels ({reason})"
    codes = class_codes(found[0], lesson)
    if codes is None:
        return f"one that answers with class codes from 0 to {lesson.classes - 1}"
    return codes


def number_of_workers(jobs: object) -> int | None:
    """Return what joblib is told: None for one, which a parallel_config may overrule."""
    count = _validate.integer("jobs", jobs, at_least=-1)
    if count == 0:
        raise InvalidValue("jobs", jobs, "a number of workers, or -1 for one on each core")
    return None if count == 1 else count


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


def _written(path: Path | None, vote: NDArray[np.int64]) -> bool:
    """Keep votes if they are to be kept; a full disk must not cost a run that was paid for."""
    try:
        if path is not None:
            write_votes(path, vote)
    except OSError:
        return False
    return True


def _name(kind: Any) -> str:
    key = given_cache_key(kind)
    if key is not None:
        return key
    if hasattr(kind, "get_params"):
        return " ".join(repr(kind).split())
    return str(getattr(kind, "__qualname__", type(kind).__qualname__))


def _unfitted(kind: Any) -> Any:
    """Return an estimator as it will be trained: nothing that it has learnt counts."""
    if not hasattr(kind, "get_params"):
        return kind
    from sklearn.base import clone  # type: ignore[import-untyped]

    return clone(kind)
