"""The shadow pool: models like the target, trained on random halves of the records.

Every shadow attack needs the same thing, the scores of many models with each record inside
and outside of their training data, so one pool serves them all. Halves are drawn
independently of one another, or, where there are few models, in complementary pairs, so that every
record is inside of one model of a pair and outside of the other. (Other designs in which every
record is inside *exactly* half of the models are not used: where a model plays the target, the
others would reveal on which side the record lies. Pairs do not: the twin is left out.)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet._cache import ArrayCache, check_cache_key, describe, fingerprint, versions
from discreet._files import create_file
from discreet.attacks._observation import Observation, observe
from discreet.attacks._records import describe_form, record_digests, refuse_sparse
from discreet.attacks._shadow_scores import TWIN_RECORDS, ShadowScores
from discreet.attacks._target import as_target, check_labels
from discreet.attacks._training import (
    TrainingJob,
    derive_seed,
    fresh_seed,
    run_batches,
    seeded_generator,
    show_progress,
    train_models,
)
from discreet.errors import InvalidValue, NotApplicable

if TYPE_CHECKING:
    from numpy.typing import NDArray


BACKENDS = ("loky", "threading", "multiprocessing", "ray")
_FORMAT = "discreet.shadow.4"
# Two trainings from one seed differ by rounding at most.
_SAME_ANSWERS = 1e-3
# Streams of one seed: what is drawn for model j does not depend on how many models there are.
_HALF, _TRAINING = 0, 1
# Independent halves if they leave fewer records than this, on average, on one side of all models.
_UNCOVERED = 1e-3


@final
@dataclass(frozen=True)
class _ScoreModels:
    """Trains models, one by one or many at once, and asks them about all records."""

    train: Callable[..., Any]
    records: Any
    classes: int
    cache: ArrayCache | None
    names: Mapping[int, str]

    def __call__(self, jobs: Sequence[TrainingJob]) -> list[tuple[int, NDArray[np.float32] | None]]:
        """Train, ask and keep; scores that went into a file are not sent back."""
        found: list[tuple[int, NDArray[np.float32] | None]] = []
        for job, model in zip(jobs, train_models(self.train, jobs), strict=True):
            scores = self.ask(model)
            if self.cache is not None:
                self.cache.put(self.names[job.place], scores)
            found.append((job.place, scores if self.cache is None else None))
        return found

    def ask(self, model: Any) -> NDArray[np.float32]:
        """Return what a model says about all records."""
        target = as_target(model, classes=None if _has_classes(model) else self.classes)
        scores = _order_by_label(target.names, target.log_probabilities(self.records), self.classes)
        if scores.shape[1] != self.classes:
            raise InvalidValue(
                "train",
                f"a model of {scores.shape[1]} classes",
                f"models of {self.classes} classes (or give classes=)",
            )
        return scores.astype(np.float32)


@final
class ShadowPool:
    """``models`` shadow models over ``records``, trained when :meth:`run` is called.

    ``train(indices)`` or ``train(indices, seed)`` returns a model, anything that
    :func:`~discreet.attacks.as_target` takes, trained on these records only. A parameter
    called ``seed``, or a second one without a default, gets the seed. The model's classes are
    the labels given here; one that names them otherwise is refused. If ``train`` has an
    attribute ``many``, that is called as ``many(list of indices, seeds)`` and returns as many
    models, trained together in groups of at most ``group``: see
    :class:`~discreet.attacks.NetworkTrainer`.

    With a ``cache``, a directory, every model's scores are kept under a fingerprint of the data,
    the half, the seed, the versions of the libraries and a description of ``train``; a pool that
    was killed takes up where it was. A ``train`` that is not an estimator of scikit-learn or a
    trainer of this package needs a ``cache_key``, a text that you change whenever the training
    changes, as an argument or as an attribute of it. A change that was forgotten is noticed: a
    pool that finds kept scores trains one of these models again and compares, unless
    ``check=False``, which is for training that does not repeat itself. Without a ``seed`` a fresh
    one is drawn, and kept in the directory.

    ``n_jobs`` processes train at the same time (-1: one for each processor) by joblib;
    ``backend`` is one of ``"loky"``, ``"threading"``, ``"multiprocessing"``, or ``"ray"``,
    which sends the work to the machines of the Ray cluster that is connected, or to a local
    one. ``inclusion`` replaces the random halves by given ones, (models, n). With ``pairs``
    every second half is the complement of the one before, so that two models have every record
    inside and outside; by default where so few models would otherwise miss a record, unless
    there are so few records that a twin could not be distinguished from chance.

    >>> x, y = np.arange(40.0)[:, None], np.arange(40) % 2
    >>> def train(indices):
    ...     mean = y[indices].mean()
    ...     return as_target(lambda x: np.full(len(x), mean), output="probabilities")
    >>> pool = ShadowPool(x, y, train, models=4, seed=1)
    >>> pool.run().confidences.shape
    (4, 40)
    """

    def __init__(
        self,
        records: Any,
        labels: Any,
        train: Callable[..., Any],
        *,
        models: int = 64,
        classes: int | None = None,
        cache: str | Path | None = None,
        cache_key: str | None = None,
        check: bool = True,
        seed: int | None = None,
        n_jobs: int = 1,
        backend: str | None = None,
        group: int = 16,
        inclusion: NDArray[np.bool_] | None = None,
        pairs: bool | None = None,
        progress: bool = False,
    ) -> None:
        if not callable(train):
            raise InvalidValue("train", train, "a function from indices to a model")
        refuse_sparse("records", records)
        if len(records) < 4:
            raise InvalidValue("records", f"{len(records)} records", "at least 4, to have halves")
        if backend is not None:
            _validate.one_of("backend", backend, BACKENDS)
        if n_jobs != -1:
            _validate.integer("n_jobs", n_jobs, at_least=1)
        if seed is not None:
            _validate.integer("seed", seed, at_least=0)
        check_cache_key(cache_key)
        if inclusion is not None:
            models = len(inclusion)
        self.models = _validate.integer("models", models, at_least=1)
        self.records = records
        self.labels = check_labels(labels, classes)
        if len(self.labels) != len(records):
            raise InvalidValue(
                "labels", f"{len(self.labels)} labels", f"one for each of {len(records)} records"
            )
        self.classes = classes if classes is not None else int(self.labels.max()) + 1
        if self.classes < 2:
            raise InvalidValue("labels", f"{self.classes} class", "at least two classes")
        self.n_jobs, self.backend, self.progress = n_jobs, backend, progress
        self.group = _validate.integer("group", group, at_least=1)
        self.digests = record_digests(records, self.labels)
        self.check = check
        self._train = train
        self._cache, self._data, self._description = None, "", ""
        if cache is not None:
            self._description = describe(train, cache_key=cache_key)
            self._cache = ArrayCache(cache)
            self._data = fingerprint(describe_form(records), self.digests)
            if seed is None:
                seed = keep_seed(self._cache.path, self._data, fresh_seed(), cache_key=cache_key)
        self.seed = fresh_seed() if seed is None else seed
        if pairs is None:
            few = len(self.labels) * 2.0 ** (1 - self.models) > _UNCOVERED
            pairs = few and len(self.labels) >= TWIN_RECORDS
        self.inclusion = (
            _draw_halves(len(self.labels), self.models, self.seed, pairs=pairs)
            if inclusion is None
            else self._read_inclusion(inclusion)
        )
        self._scores: list[NDArray[np.float32] | None] = [None] * self.models
        self._checked = False

    def _read_inclusion(self, inclusion: NDArray[np.bool_]) -> NDArray[np.bool_]:
        given = np.asarray(inclusion)
        if given.dtype != bool or given.shape != (self.models, len(self.labels)):
            raise InvalidValue(
                "inclusion",
                f"{given.dtype} of shape {given.shape}",
                f"True or False, (models, {len(self.labels)})",
            )
        empty = np.flatnonzero(given.all(axis=1) | ~given.any(axis=1))
        if empty.size:
            raise InvalidValue("inclusion", f"row {empty[0]}", "records inside and outside")
        return given.copy()

    def run(self) -> ShadowScores:
        """Train what is missing and return the scores of all models.

        Raises
        ------
        InvalidValue
            If a kept model that was trained again answers otherwise (see ``check``).
        """
        jobs = self._missing()
        if self.check and self._cache is not None:
            self._train_one_again(jobs)
        if jobs:
            # The scores of workers on other machines come back to be written here.
            cache = None if self.backend == "ray" else self._cache
            work = _ScoreModels(self._train, self.records, self.classes, cache, self._names(jobs))
            batches = run_batches(
                work,
                jobs,
                grouped=hasattr(self._train, "many"),
                n_jobs=self.n_jobs,
                backend=self.backend,
                group=self.group,
            )
            with show_progress(len(jobs), wanted=self.progress) as advance:
                for done in batches:
                    for row, scores in done:
                        if scores is not None and self._cache is not None:
                            self._cache.put(self._name(row), scores)
                        self._scores[row] = scores if self._cache is None else None
                        advance()
        left = self._missing()
        if left:
            raise NotApplicable(f"shadow model {left[0].place} is missing after training")
        return self.scores

    def _train_one_again(self, missing: Sequence[TrainingJob]) -> None:
        """Train the first kept model again, once, and refuse scores of another training."""
        absent = {job.place for job in missing}
        kept = next((row for row in range(self.models) if row not in absent), None)
        if kept is None or self._checked:
            return
        work = _ScoreModels(self._train, self.records, self.classes, None, {})
        (model,) = train_models(self._train, [self._job(kept)])
        found, known = work.ask(model), self._scores[kept]
        assert known is not None
        assert self._cache is not None
        if np.abs(np.exp(found) - np.exp(known)).max() > _SAME_ANSWERS:
            raise InvalidValue(
                "cache",
                str(self._cache.path),
                f"the scores of this training: model {kept}, trained again, answers otherwise. "
                "Change cache_key, or give check=False if training does not repeat itself",
            )
        self._checked = True

    @property
    def scores(self) -> ShadowScores:
        """The scores of all models; :meth:`run` comes first."""
        found = [scores for scores in self._scores if scores is not None]
        if len(found) < self.models:
            raise NotApplicable("the shadow models are not trained yet: call run() first")
        return ShadowScores(found, self.inclusion, self.labels, self.digests, self.records)

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """Probabilities of all models, (models, n, classes)."""
        return self.scores.probabilities

    def without(self, row: int) -> ShadowScores:
        """Return the scores of the other models, without model ``row`` and its twins."""
        return self.scores.without(row)

    def leave_out(self, row: int) -> tuple[Observation, ShadowScores]:
        """Return model ``row`` as the target, and the others as its references."""
        return self.scores.leave_out(row)

    def observe(self, target: Any, *, members: Any) -> Observation:
        """Ask a target about the pool's records; ``members`` says which it was trained on.

        The pool's labels are the target's columns, also where its classes have names: label 0
        is the class that the target names first.
        """
        asked = as_target(target, classes=None if _has_classes(target) else self.classes)
        labels: Any = self.labels
        if asked.names is not None:  # here labels are columns already
            labels = np.empty(len(self.labels), dtype=object)
            labels[:] = [asked.names[code] for code in check_labels(self.labels, asked.classes)]
        return observe(asked, self.records, labels, members=members, overlap="allow")

    def _job(self, row: int) -> TrainingJob:
        seed = derive_seed(self.seed, _TRAINING, row)
        return TrainingJob(row, np.flatnonzero(self.inclusion[row]), seed)

    def _name(self, row: int) -> str:
        seed = derive_seed(self.seed, _TRAINING, row)
        half = np.packbits(self.inclusion[row])
        return fingerprint(_FORMAT, self._data, str(seed), self._description, half)[:40]

    def _names(self, jobs: Sequence[TrainingJob]) -> dict[int, str]:
        return {} if self._cache is None else {job.place: self._name(job.place) for job in jobs}

    def _missing(self) -> list[TrainingJob]:
        shape = (len(self.labels), self.classes)
        for row in range(self.models):
            if self._scores[row] is None and self._cache is not None:
                self._scores[row] = self._cache.get(self._name(row), shape, np.float32, mapped=True)
        return [self._job(row) for row in range(self.models) if self._scores[row] is None]


def keep_seed(directory: Path, data: str, fresh: int, *, cache_key: str | None = None) -> int:
    """Return the seed that this directory's pool was begun with, or keep ``fresh`` as it.

    Only a pool over the same data has the seed in common. Of several processes that begin at
    the same time one keeps its seed, and all use it. The file says, for people to read, under
    which ``cache_key`` and versions the pool was begun.
    """
    path = directory / f"pool-{data[:40]}.json"
    if not path.exists():
        document = {
            "schema": "discreet.shadows",
            "version": 3,
            "cache_key": cache_key,
            "versions": versions(),
            "data": data,
            "seed": fresh,
        }
        create_file(path, json.dumps(document), private=True)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        known, about = document["seed"], document["data"]
        if type(known) is not int or known < 0 or about != data:
            raise ValueError(f"the seed {known!r} of {about!r}")
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidValue(
            "cache", str(directory), f"a directory of shadow models: {path.name} is damaged"
        ) from error
    return known


def paired_halves(records: int, models: int, *, seed: int | None = None) -> NDArray[np.bool_]:
    """Draw complementary halves, (models, records): each record is inside of half of the models.

    ``models`` is even. For ``ShadowPool(inclusion=...)`` and for training targets oneself.

    >>> halves = paired_halves(50, 4, seed=1)
    >>> halves.sum(axis=0).tolist() == [2] * 50
    True

    Parameters
    ----------
    records, models
        How many of each.
    seed
        Makes the halves repeatable.

    Returns
    -------
    array of bool
        Which records each model has, two and two complementary.

    Raises
    ------
    InvalidValue
        If the number of models is odd.
    """
    count = _validate.integer("models", models, at_least=2)
    if count % 2:
        raise InvalidValue("models", models, "an even number, for pairs")
    size = _validate.integer("records", records, at_least=4)
    chosen = fresh_seed() if seed is None else _validate.integer("seed", seed, at_least=0)
    return _draw_halves(size, count, chosen, pairs=True)


def _draw_halves(records: int, models: int, seed: int, *, pairs: bool) -> NDArray[np.bool_]:
    inclusion = np.zeros((models, records), dtype=bool)
    for row in range(models):
        half = seeded_generator(seed, _HALF, row).permutation(records)[: records // 2]
        inclusion[row, half] = True
    if pairs:
        inclusion[1::2] = ~inclusion[: models - 1 : 2]
    return inclusion


def _order_by_label(
    names: tuple[object, ...] | None, scores: NDArray[np.float64], classes: int
) -> NDArray[np.float64]:
    """Put the columns of a model with names for its classes in the order of the labels."""
    if names is None:
        return scores
    try:
        labels = check_labels([_whole(name) for name in names], classes)
    except (InvalidValue, TypeError, ValueError, OverflowError):
        labels = np.zeros(0, dtype=np.int64)
    if len(set(labels.tolist())) < len(names):
        raise InvalidValue(
            "train",
            f"a model of the classes {names}",
            f"models of the pool's labels, 0 to {classes - 1}: which class is which is not known",
        )
    placed = np.full((len(scores), classes), -np.inf)
    placed[:, labels] = scores
    return placed


def _whole(name: Any) -> int:
    if float(name) != int(float(name)):
        raise ValueError(name)
    return int(float(name))


def _has_classes(model: Any) -> bool:
    """Whether a model names its classes otherwise than by integers, so that they are counted."""
    known = getattr(model, "classes_", None)
    return known is not None and not np.issubdtype(np.asarray(known).dtype, np.integer)
