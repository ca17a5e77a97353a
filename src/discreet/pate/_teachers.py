"""Teachers of any kind: each is trained on its own part and votes on public queries.

A teacher is a scikit-learn classifier, a function ``(X, y, queries, *, classes, seed)`` that
returns one class code for each query, or :class:`~discreet.pate.NetworkTeachers`. A list
of them makes heterogeneous teachers, a list of column sets heterogeneous features; teacher t has
entry t modulo the length. ``prepare`` turns rows into features, in public ways; each teacher
does it for its own records, so that not even a rounding error passes from one to another.

**Each record reaches one vote.** What goes wrong inside a teacher stays inside
(:mod:`discreet.pate.tasks`). A mistake in the teacher itself is found beforehand, when the
:class:`TeacherEnsemble` is prepared: every kind is tried on made-up labels for public rows, by the
workers that will train it. A function must not keep anything from one call to the next outside of
itself, such as in a global variable: nothing here could take that away.
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
from discreet._cache import ArrayCache, describe, fingerprint, own_cache_key
from discreet._threads import one_thread
from discreet.errors import InvalidValue
from discreet.pate._partition import Partition, check_disjoint
from discreet.pate._teacher_task import (
    GroupTrainer,
    Prepare,
    TeacherTask,
    collect_answers,
    exclusive,
    read_class_codes,
    train_and_vote,
)
from discreet.pate._votes import count_votes

if TYPE_CHECKING:
    from numpy.typing import NDArray


_FORMAT = "discreet.pate.votes.4"
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
    cap: int = 1,
    columns: Sequence[Any] | None = None,
    prepare: Prepare | None = None,
    n_jobs: int = 1,
    cache: str | Path | None = None,
    cache_key: str | None = None,
    public: NDArray[np.float64] | None = None,
) -> NDArray[np.int64]:
    """Train all teachers and return the histogram of their votes on each query. PRIVATE.

    ``y`` holds class codes from 0; records with other codes are left out. ``n_jobs`` is joblib's
    number of workers; inside ``joblib.parallel_config(backend=...)`` any of its backends is
    used, Ray's for several machines. With ``cache``, a directory for private files, the votes of
    each teacher are kept, and a run that was interrupted goes on. Teachers and preparations other
    than estimators of scikit-learn then need a ``cache_key``, a text to keep the votes under, as
    an argument or as an attribute of theirs: change it whenever they change. Teachers are tried on
    ``public`` rows first, by default the queries.

    Parameters
    ----------
    partition
        Which rows each teacher has.
    X, y
        Private rows and class codes.
    queries
        Public rows to vote on.
    teacher, classes, columns, prepare, public
        The teachers, and what they see.
    cap
        How many votes of one record are paid for, that of :class:`SampledVotes`; a partition in
        which records have more teachers is refused.
    n_jobs, cache, cache_key
        Processes; where votes are kept, under which text.

    Returns
    -------
    array of int
        A histogram of votes for each query. Private.

    Raises
    ------
    InvalidValue
        If an argument is wrong, before anything is trained.
    """
    ensemble = TeacherEnsemble.prepare_for(
        teacher,
        queries,
        classes=classes,
        columns=columns,
        prepare=prepare,
        n_jobs=n_jobs,
        cache=cache,
        cache_key=cache_key,
        public=public,
    )
    return ensemble.votes(partition, X, y, cap=cap)


@final
@dataclass(frozen=True, eq=False)
class TeacherEnsemble:
    """Teachers and what they are asked: all of it public, checked beforehand."""

    kinds: tuple[Any, ...]
    asked: NDArray[np.float64]
    sets: tuple[NDArray[np.int64], ...]
    classes: int
    prepare: Prepare | None
    workers: int | None
    files: ArrayCache | None
    name: str

    @classmethod
    def prepare_for(
        cls,
        teacher: Any,
        queries: NDArray[np.float64],
        *,
        classes: int,
        columns: Sequence[Any] | None = None,
        prepare: Prepare | None = None,
        n_jobs: int = 1,
        cache: str | Path | None = None,
        cache_key: str | None = None,
        public: NDArray[np.float64] | None = None,
    ) -> TeacherEnsemble:
        """Check everything and try the teachers on ``public`` rows (by default the queries)."""
        kinds = _read_kinds(teacher)
        workers = read_workers(n_jobs)
        rows = queries if public is None else public
        tried = rehearse(
            teacher, rows, classes=classes, columns=columns, prepare=prepare, n_jobs=n_jobs
        )
        files, name = None, ""
        if cache is not None:
            files = ArrayCache(cache)
            described = describe(*map(_copy_unfitted, kinds), prepare, cache_key=cache_key)
            name = fingerprint(described, *tried)
        asked = queries if prepare is None else prepare(queries)
        sets = _read_column_sets(columns, asked.shape[1])
        return cls(tuple(kinds), asked, tuple(sets), classes, prepare, workers, files, name)

    def votes(
        self,
        partition: Partition,
        X: NDArray[np.float64],  # noqa: N803
        y: NDArray[np.int64],
        *,
        cap: int = 1,
    ) -> NDArray[np.int64]:
        """Train all teachers and return the histogram of their votes on each query. PRIVATE."""
        from joblib import Parallel  # type: ignore[import-untyped]

        most = _validate.integer("cap", cap, at_least=1)
        if partition.cap > most:
            expected = (
                f"{partition.cap} or more, and SampledVotes(cap={partition.cap}) to pay for it"
            )
            raise InvalidValue("cap", most, expected)
        tasks = self._tasks(partition, X, y)
        votes: list[NDArray[np.int64] | None] = [None] * len(tasks)
        names = [""] * len(tasks)
        if self.files is not None:
            names = [self._file_name(place, task) for place, task in enumerate(tasks)]
            votes = [self._read_votes(self.files, name) for name in names]
        with Parallel(n_jobs=self.workers) as run:
            kept = [
                self._train(run, places, tasks, votes, names) for places in self._groups(len(tasks))
            ]
        if not all(kept):
            warnings.warn("votes could not be kept: an interrupted run starts anew", stacklevel=3)
        return count_votes(
            np.stack([vote for vote in votes if vote is not None]), classes=self.classes
        )

    def _tasks(
        self,
        partition: Partition,
        X: NDArray[np.float64],  # noqa: N803
        y: NDArray[np.int64],
    ) -> list[TeacherTask]:
        members = [partition.members(place) for place in range(partition.teachers)]
        check_disjoint(members, rows=len(X), cap=partition.cap)
        asked = [self.asked[:, chosen] for chosen in self.sets]  # shared by all who see them
        tasks = []
        for place, rows in enumerate(members):
            kept = rows[(y[rows] >= 0) & (y[rows] < self.classes)]
            chosen = self.sets[place % len(self.sets)]
            tasks.append(
                TeacherTask(
                    X[kept],
                    y[kept],
                    asked[place % len(self.sets)],
                    self.classes,
                    partition.seed(place),
                    chosen,
                    self.prepare,
                )
            )
        return tasks

    def _file_name(self, place: int, task: TeacherTask) -> str:
        kind = place % len(self.kinds)
        texts = [_FORMAT, self.name, str(kind), str(task.classes), str(task.seed)]
        texts.append(repr(task.columns.tolist()))
        return f"votes-{fingerprint(*texts, task.features, task.labels, task.queries)[:40]}"

    def _read_votes(self, files: ArrayCache, name: str) -> NDArray[np.int64] | None:
        """Return the votes that an earlier run stored, or None: the teacher is then trained."""
        votes = files.get(name, (len(self.asked),), np.int64)
        if votes is not None and votes.size and not 0 <= votes.min() <= votes.max() < self.classes:
            return None
        return votes

    def _keep(self, name: str, vote: NDArray[np.int64]) -> bool:
        """Keep votes if they are to be kept; a full disk must not cost a run that was paid for."""
        try:
            if self.files is not None:
                self.files.put(name, vote)
        except OSError:
            return False
        return True

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
        tasks: Sequence[TeacherTask],
        votes: list[NDArray[np.int64] | None],
        names: Sequence[str],
    ) -> bool:
        """Train teachers of one kind and fill in their votes; False if files fail."""
        from joblib import delayed, effective_n_jobs

        kind = self.kinds[places[0] % len(self.kinds)]
        size = _GROUP if isinstance(kind, GroupTrainer) else 1
        groups = [places[start : start + size] for start in range(0, len(places), size)]
        groups = [group for group in groups if any(votes[at] is None for at in group)]
        # In rounds, because not every backend hands over results one by one.
        at_once = 1 if (busy := effective_n_jobs(self.workers)) == 1 else 8 * busy
        kept = True
        for start in range(0, len(groups), at_once):
            some = groups[start : start + at_once]
            work = [
                [tasks[at] if votes[at] is None else tasks[at].placeholder for at in group]
                for group in some
            ]
            answers = run(delayed(train_and_vote)(kind, group) for group in work)
            for group, found in zip(some, answers, strict=True):
                for at, vote in zip(group, found, strict=True):
                    if votes[at] is None:
                        votes[at] = vote
                        kept &= self._keep(names[at], vote)
        return kept


def rehearse(
    teacher: Any,
    queries: NDArray[np.float64],
    *,
    classes: int,
    columns: Sequence[Any] | None = None,
    prepare: Prepare | None = None,
    n_jobs: int = 1,
) -> list[NDArray[Any]]:
    """Try every kind of teacher on public rows with made-up labels; raise if one does not work.

    Returns what came of it: the rows, the prepared rows, and the votes of each kind.
    """
    from joblib import Parallel, delayed

    rows = np.arange(max(_REHEARSED, 2 * classes))
    labels = (rows % classes).astype(np.int64)
    kinds = _read_kinds(teacher)
    made_up = queries[rows % len(queries)]
    asked = made_up if prepare is None else prepare(made_up)
    sets = _read_column_sets(columns, asked.shape[1])
    tries = []
    for place in range(math.lcm(len(kinds), len(sets))):
        kind, chosen = kinds[place % len(kinds)], sets[place % len(sets)]
        task = TeacherTask(made_up, labels, asked[:, chosen], classes, place, chosen, prepare)
        tries.append((kind, task))
    try:
        found = Parallel(n_jobs=read_workers(n_jobs))(
            delayed(_try_on_public_rows)(kind, task) for kind, task in tries
        )
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        expected = f"teachers and preparation that can be sent to workers ({reason})"
        raise InvalidValue("teacher", ", ".join(map(_name_of, kinds)), expected) from error
    for (kind, _), vote in zip(tries, found, strict=True):
        if isinstance(vote, str):
            raise InvalidValue("teacher", _name_of(kind), vote)
    return [made_up, asked, *found]


def _try_on_public_rows(kind: Any, task: TeacherTask) -> str | NDArray[np.int64]:
    """Return a teacher's votes about public rows, or say what is wrong with it."""
    tasks = [task, task.placeholder] if isinstance(kind, GroupTrainer) else [task]
    try:
        with exclusive(), warnings.catch_warnings(action="ignore"), one_thread():
            found = collect_answers(kind, tasks)
        if len(found) != len(tasks):
            return f"one that gives {len(tasks)} answers for {len(tasks)} parts"
    except (Exception, SystemExit) as error:  # noqa: BLE001 - shown, for it is public
        reason = f"{type(error).__name__}: {error}"
        return f"one that learns from public rows with made-up labels ({reason})"
    codes = read_class_codes(found[0], task)
    if codes is None:
        return f"one that answers with class codes from 0 to {task.classes - 1}"
    return codes


def read_workers(n_jobs: object) -> int | None:
    """Return a number of workers for joblib: None for one, which a parallel_config may overrule."""
    count = _validate.integer("n_jobs", n_jobs, at_least=-1)
    if count == 0:
        raise InvalidValue("n_jobs", n_jobs, "a number of workers, or -1 for one on each core")
    return None if count == 1 else count


def name_teachers(teacher: Any) -> list[str]:
    """Name the teachers for a certificate; public."""
    return [_name_of(kind) for kind in _read_kinds(teacher)]


def _read_kinds(teacher: Any) -> list[Any]:
    kinds = list(teacher) if isinstance(teacher, list | tuple) else [teacher]
    expected = "a classifier of scikit-learn, a function, NetworkTeachers, or a list of them"
    if not kinds:
        raise InvalidValue("teacher", teacher, expected)
    for kind in kinds:
        estimator = hasattr(kind, "fit") and hasattr(kind, "predict")
        if isinstance(kind, type) or not (
            estimator or callable(kind) or isinstance(kind, GroupTrainer)
        ):
            raise InvalidValue("teacher", kind, expected)
    return kinds


def _read_column_sets(columns: Sequence[Any] | None, width: int) -> list[NDArray[np.int64]]:
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


def _name_of(kind: Any) -> str:
    key = own_cache_key(kind)
    if key is not None:
        return key
    if hasattr(kind, "get_params"):
        return " ".join(repr(kind).split())
    return str(getattr(kind, "__qualname__", type(kind).__qualname__))


def _copy_unfitted(kind: Any) -> Any:
    """Return an estimator as it will be trained: nothing that it has learnt counts."""
    if not hasattr(kind, "get_params"):
        return kind
    from sklearn.base import clone  # type: ignore[import-untyped]

    return clone(kind)
