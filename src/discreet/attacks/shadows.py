"""The shadow pool: models like the target, trained on random halves of the records.

Every shadow attack needs the same thing, the scores of many models with each record inside
and outside of their training data, so one pool serves them all. Halves are drawn
independently of one another, or, where there are few models, in complementary pairs, so that every
record is inside of one model of a pair and outside of the other. (Other designs in which every
record is inside *exactly* half of the models are not used: where a model plays the target, the
others would reveal on which side the record lies. Pairs do not: the twin is left out.)
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.attacks import chance
from discreet.attacks.observations import Observation, observe
from discreet.attacks.record_identity import record_digests
from discreet.attacks.seeded_training import SeededTraining
from discreet.attacks.shadow_identity import data_digest, shadow_name, train_key
from discreet.attacks.shadow_scores import TWIN_RECORDS, ShadowScores
from discreet.attacks.shadow_storage import kept_seed, read_scores, write_scores
from discreet.attacks.targets import as_target, checked_labels
from discreet.errors import InvalidValue, NotApplicable

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ShadowPool"]

BACKENDS = ("loky", "threading", "multiprocessing", "ray")
# Streams of one seed: what is drawn for model j does not depend on how many models there are.
_HALF, _TRAINING = 0, 1
# Independent halves if they leave fewer records than this, on average, on one side of all models.
_UNCOVERED = 1e-3


@final
@dataclass(frozen=True)
class _Order:
    """One shadow model that is still to be trained."""

    row: int
    indices: NDArray[np.intp]
    seed: int
    path: Path | None


@final
@dataclass(frozen=True)
class _Trainer:
    """How models are trained, one by one or many at once, and asked about all records."""

    train: Callable[..., Any]
    many: Callable[..., Any] | None
    records: Any
    classes: int

    def run(self, orders: Sequence[_Order]) -> list[tuple[int, NDArray[np.float32] | None]]:
        """Train, ask and keep; scores that went into a file are not sent back."""
        return list(self.each(orders))

    def each(self, orders: Sequence[_Order]) -> Iterator[tuple[int, NDArray[np.float32] | None]]:
        for order, model in zip(orders, self._models(orders), strict=True):
            target = as_target(model, classes=None if _has_classes(model) else self.classes)
            scores = _by_label(target.names, target.log_probabilities(self.records), self.classes)
            if scores.shape[1] != self.classes:
                raise InvalidValue(
                    "train",
                    f"a model of {scores.shape[1]} classes",
                    f"models of {self.classes} classes (or give classes=)",
                )
            kept = scores.astype(np.float32)
            if order.path is not None:
                write_scores(order.path, kept)
            yield order.row, (kept if order.path is None else None)

    def _models(self, orders: Sequence[_Order]) -> Iterator[Any]:
        if self.many is not None:
            yield from self.many([order.indices for order in orders], [o.seed for o in orders])
            return
        train = SeededTraining(self.train)
        for order in orders:
            yield train(order.indices, seed=order.seed)


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

    With a ``directory`` every model's scores are kept under a hash of the data, the half, the
    seed and the training function; a pool that was killed takes up where it was, and another
    experiment never gets its scores. The function is identified by ``key``, by its own
    attribute ``key``, or by its code and all values, functions and classes that it reaches, with
    the versions of libraries; what cannot be identified is refused, and so is what reads files
    or the environment, as far as it is recognized. Without a ``seed`` a fresh
    one is drawn, and kept in the directory.

    ``n_jobs`` processes train at the same time (-1: one for each processor) by joblib;
    ``backend`` is one of ``"loky"``, ``"threading"``, ``"multiprocessing"``, or ``"ray"``,
    which sends the work to the machines of the Ray cluster that is connected, or to a local
    one. ``inclusion`` replaces the random halves by given ones, (models, n). With ``pairs``
    every second half is the complement of the one before, so that two models have every record
    inside and outside; by default where so few models would otherwise miss a record, unless
    there are so few records that a twin could not be told from chance.

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
        directory: str | Path | None = None,
        key: str | None = None,
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
        if len(records) < 4:
            raise InvalidValue("records", f"{len(records)} records", "at least 4, to have halves")
        if backend is not None:
            _validate.one_of("backend", backend, BACKENDS)
        if n_jobs != -1:
            _validate.integer("n_jobs", n_jobs, at_least=1)
        if seed is not None:
            _validate.integer("seed", seed, at_least=0)
        if key == "":
            raise InvalidValue("key", key, "a text that is not empty, or nothing")
        if inclusion is not None:
            models = len(inclusion)
        self.models = _validate.integer("models", models, at_least=1)
        self.records = records
        self.labels = checked_labels(labels, classes)
        if len(self.labels) != len(records):
            raise InvalidValue(
                "labels", f"{len(self.labels)} labels", f"one for each of {len(records)} records"
            )
        self.classes = classes if classes is not None else int(self.labels.max()) + 1
        if self.classes < 2:
            raise InvalidValue("labels", f"{self.classes} class", "at least two classes")
        self.n_jobs, self.backend, self.progress = n_jobs, backend, progress
        self.group = _validate.integer("group", group, at_least=1)
        self.directory = None if directory is None else Path(directory)
        self.digests = record_digests(records, self.labels)
        self._train = train
        if self.directory is not None and self.directory.exists() and not self.directory.is_dir():
            raise InvalidValue("directory", str(directory), "a directory, or a new name for one")
        self._key, data = "", ""
        if self.directory is not None:
            self._key = train_key(train) if key is None else f"declared:{key}"
            data = data_digest(records, self.labels)
            seed = kept_seed(self.directory, data, chance.fresh_seed()) if seed is None else seed
        self._data = data
        self.seed = chance.fresh_seed() if seed is None else seed
        if pairs is None:
            few = len(self.labels) * 2.0 ** (1 - self.models) > _UNCOVERED
            pairs = few and len(self.labels) >= TWIN_RECORDS
        self.inclusion = self._halves(pairs=pairs) if inclusion is None else self._given(inclusion)
        self._scores: list[NDArray[np.float32] | None] = [None] * self.models

    def _halves(self, *, pairs: bool) -> NDArray[np.bool_]:
        count = len(self.labels)
        inclusion = np.zeros((self.models, count), dtype=bool)
        for row in range(self.models):
            half = chance.generator(self.seed, _HALF, row).permutation(count)[: count // 2]
            inclusion[row, half] = True
        if pairs:
            inclusion[1::2] = ~inclusion[: self.models - 1 : 2]
        return inclusion

    def _given(self, inclusion: NDArray[np.bool_]) -> NDArray[np.bool_]:
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
        """Train what is missing and return the scores of all models."""
        orders = self._missing()
        if orders:
            with self._bar(len(orders)) as advance:
                for done in self._work(orders):
                    for row, scores in done:
                        if scores is not None and self.directory is not None:
                            write_scores(self._path(row), scores)
                        self._scores[row] = scores if self.directory is None else None
                        advance()
        left = self._missing()
        if left:
            raise NotApplicable(f"shadow model {left[0].row} is missing after training")
        return self.scores

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
            labels[:] = [asked.names[code] for code in checked_labels(self.labels, asked.classes)]
        return observe(asked, self.records, labels, members=members, overlap="allow")

    def _path(self, row: int) -> Path:
        assert self.directory is not None
        seed = chance.seed_of(self.seed, _TRAINING, row)
        name = shadow_name(self._data, self.inclusion[row], seed, self._key)
        return self.directory / f"{name}.npy"

    def _missing(self) -> list[_Order]:
        orders = []
        shape = (len(self.labels), self.classes)
        # The scores of workers on other machines come back to be written here.
        remote = self.backend == "ray"
        for row in range(self.models):
            if self._scores[row] is None and self.directory is not None:
                self._scores[row] = read_scores(self._path(row), shape)
            if self._scores[row] is None:
                path = None if self.directory is None or remote else self._path(row)
                seed = chance.seed_of(self.seed, _TRAINING, row)
                orders.append(_Order(row, np.flatnonzero(self.inclusion[row]), seed, path))
        return orders

    def _work(
        self, orders: list[_Order]
    ) -> Iterator[Sequence[tuple[int, NDArray[np.float32] | None]]]:
        many = getattr(self._train, "many", None)
        trainer = _Trainer(self._train, many, self.records, self.classes)
        if self.n_jobs == 1 and self.backend is None:
            size = 1 if many is None else self.group
            for start in range(0, len(orders), size):
                yield trainer.run(orders[start : start + size])
            return
        joblib = import_module("joblib")
        with _backend(joblib, self.backend):
            workers = int(joblib.effective_n_jobs(self.n_jobs))
            # Few parcels: each carries the training function and its data to a process.
            share = math.ceil(len(orders) / workers)
            size = min(self.group, share) if many is not None else math.ceil(share / 4)
            parcels = [orders[start : start + size] for start in range(0, len(orders), size)]
            if self.backend == "ray":  # it gives nothing back before all is done: go in waves
                for start in range(0, len(parcels), workers):
                    wave = parcels[start : start + workers]
                    yield from joblib.Parallel(n_jobs=self.n_jobs)(
                        joblib.delayed(trainer.run)(parcel) for parcel in wave
                    )
                return
            yield from joblib.Parallel(n_jobs=self.n_jobs, return_as="generator_unordered")(
                joblib.delayed(trainer.run)(parcel) for parcel in parcels
            )

    def _bar(self, count: int) -> AbstractContextManager[Callable[[], None]]:
        if not self.progress or not sys.stderr.isatty():
            return nullcontext(lambda: None)
        return _Bar(count)


@final
class _Bar:
    """A progress bar on a terminal behind stderr, which results never go to."""

    def __init__(self, count: int) -> None:
        console = import_module("rich.console").Console(file=sys.stderr)
        self._progress = import_module("rich.progress").Progress(console=console)
        self._task = self._progress.add_task("shadow models", total=count)

    def __enter__(self) -> Callable[[], None]:
        self._progress.start()
        return lambda: self._progress.advance(self._task)

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


def _backend(joblib: Any, backend: str | None) -> AbstractContextManager[Any]:
    if backend is None:
        return nullcontext()
    if backend == "ray":
        try:
            import_module("ray.util.joblib").register_ray()
        except ImportError:
            raise NotApplicable('backend="ray" needs the package ray') from None
    context: AbstractContextManager[Any] = joblib.parallel_config(backend)
    return context


def _by_label(
    names: tuple[object, ...] | None, scores: NDArray[np.float64], classes: int
) -> NDArray[np.float64]:
    """Put the columns of a model with names for its classes in the order of the labels."""
    if names is None:
        return scores
    try:
        labels = checked_labels([_whole(name) for name in names], classes)
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
