"""Training for attacks: seeds, how a user's function takes one, and many models at once.

An attack is an experiment on a model: it must be repeatable and fast, and no one's privacy
rests on its coins. Noise that protects comes from :mod:`discreet.randomness`.

A seed must not end up in another parameter: ``def train(indices, C=1.0, seed=0)`` has its seed
behind a setting of the model, and one without a seed may have nothing but settings.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np

from discreet.attacks._records import take_rows
from discreet.errors import NotApplicable

if TYPE_CHECKING:
    from numpy.typing import NDArray
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from discreet import _validate
from discreet.errors import InvalidValue

# The one place that attacks draw from.
Generator = np.random.Generator  # noqa: TID251
LARGEST_SEED = 2**32 - 1


def seeded_generator(seed: int | Generator | None = None, *path: int) -> Generator:
    """Return a generator for ``seed``; a generator is passed through, ``None`` is a fresh one.

    ``path`` names independent streams of one seed: the stream of (seed, 3) depends on nothing
    but these numbers.

    >>> bool(seeded_generator(7, 0).integers(100) == seeded_generator(7, 0).integers(100))
    True

    Parameters
    ----------
    seed
        A number, a generator, or None for chance.
    *path
        Numbers that tell generators of one seed apart.

    Returns
    -------
    Generator
        One of numpy.
    """
    make = np.random.default_rng  # noqa: TID251 - attacks repeat experiments, they hide nothing
    if seed is None:
        return make()
    if isinstance(seed, Generator):
        return seed
    return make([_validate.integer("seed", seed, at_least=0), *path])


def fresh_seed() -> int:
    """Return a fresh random seed, to be kept beside the results."""
    return int(seeded_generator().integers(LARGEST_SEED + 1))


def derive_seed(seed: int, *path: int) -> int:
    """Return a number of 32 bits that depends on ``seed`` and ``path`` alone.

    >>> derive_seed(7, 1) == derive_seed(7, 1) != derive_seed(7, 2)
    True
    """
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise InvalidValue("seed", seed, "an integer")
    return int(seeded_generator(seed, *path).integers(LARGEST_SEED + 1))


@final
@dataclass(frozen=True)
class SeededTraining:
    """``train``, called with its data and a seed, which it is given only if it takes one.

    The first parameter behind the ``data`` ones gets it if it is called ``seed`` or has no default;
    otherwise a parameter called ``seed`` gets it by name. Settings with a default are left alone,
    and so is a seed that ``functools.partial`` has set already.

    >>> SeededTraining(lambda indices, C=1.0, seed=0: (C, seed))([3], seed=7)
    (1.0, 7)
    >>> SeededTraining(lambda indices, start: start)([3], seed=7)
    7
    >>> SeededTraining(lambda indices, C=1.0: C)([3], seed=7)
    1.0
    """

    train: Callable[..., Any]
    data: int = 1

    def __call__(self, *data: Any, seed: int) -> Any:
        way = self._way()
        if way == "by name":
            return self.train(*data, seed=seed)
        return self.train(*data, seed) if way == "in place" else self.train(*data)

    def _way(self) -> str | None:
        if isinstance(self.train, functools.partial) and "seed" in self.train.keywords:
            return None
        try:
            parameters = list(inspect.signature(self.train).parameters.values())
        except (TypeError, ValueError):  # of a function that is not written in Python
            return None
        placed = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        behind = [one for one in parameters if one.kind in placed][self.data :]
        if behind and behind[0].name == "seed":  # in place, which wrappers of all kinds hand on
            return "in place"
        if any(
            one.name == "seed" and one.kind in named and (one.kind not in placed or one in behind)
            for one in parameters
        ):
            return "by name"
        if behind and behind[0].default is inspect.Parameter.empty:
            return "in place"
        return None


@final
@dataclass(frozen=True, eq=False)
class _OnRecords:
    train: Callable[..., Any]
    records: Any
    labels: Any

    def __call__(self, indices: Any, seed: int) -> Any:
        seeded = SeededTraining(self.train, data=2)
        return seeded(take_rows(self.records, indices), self.labels[indices], seed=seed)


def on_records(train: Callable[..., Any], records: Any, labels: Any) -> Callable[..., Any]:
    """Return ``train(records, labels)`` as a function of indices, which a pool wants.

    ``train`` may take a ``seed`` as well. The function can be sent to other processes if
    ``train`` can.

    Parameters
    ----------
    train
        ``train(records, labels)``, with a seed or without.
    records, labels
        What indices speak of.

    Returns
    -------
    Callable
        ``train(indices, seed)``, for :class:`ShadowPool`.
    """
    return _OnRecords(train, records, labels)


@final
@dataclass(frozen=True)
class TrainingJob:
    """A model to be trained: on these records, from this seed; ``place`` is its number."""

    place: int
    indices: NDArray[np.intp]
    seed: int


def train_models(train: Callable[..., Any], jobs: Sequence[TrainingJob]) -> Iterator[Any]:
    """Train one model for each job, at once if ``train`` has a method ``many``."""
    if hasattr(train, "many"):
        yield from train.many([job.indices for job in jobs], [job.seed for job in jobs])
        return
    seeded = SeededTraining(train)
    for job in jobs:
        yield seeded(job.indices, seed=job.seed)


def run_batches(
    work: Callable[[Sequence[TrainingJob]], Any],
    jobs: Sequence[TrainingJob],
    *,
    grouped: bool,
    n_jobs: int,
    backend: str | None = None,
    group: int = 16,
) -> Iterator[Any]:
    """Do the work of all jobs in batches, by joblib; results come as they are ready.

    Batches of ``group`` if models are trained at once (``grouped``); few, since each carries the
    training function and its data to a process.
    """
    if n_jobs == 1 and backend is None:
        size = group if grouped else 1
        for start in range(0, len(jobs), size):
            yield work(jobs[start : start + size])
        return
    joblib = import_module("joblib")
    with _use_backend(joblib, backend):
        workers = int(joblib.effective_n_jobs(n_jobs))
        share = math.ceil(len(jobs) / workers)
        size = min(group, share) if grouped else math.ceil(share / 4)
        batches = [jobs[start : start + size] for start in range(0, len(jobs), size)]
        if backend == "ray":  # returns results only at the end: one batch per worker at a time
            for start in range(0, len(batches), workers):
                yield from joblib.Parallel(n_jobs=n_jobs)(
                    joblib.delayed(work)(batch) for batch in batches[start : start + workers]
                )
            return
        yield from joblib.Parallel(n_jobs=n_jobs, return_as="generator_unordered")(
            joblib.delayed(work)(batch) for batch in batches
        )


def _use_backend(joblib: Any, backend: str | None) -> AbstractContextManager[Any]:
    if backend is None:
        return nullcontext()
    if backend == "ray":
        try:
            import_module("ray.util.joblib").register_ray()
        except ImportError:
            raise NotApplicable('backend="ray" needs the package ray') from None
    context: AbstractContextManager[Any] = joblib.parallel_config(backend)
    return context


def show_progress(count: int, *, wanted: bool) -> AbstractContextManager[Callable[[], None]]:
    """Return a context that gives a function to call after each model."""
    if not wanted or not sys.stderr.isatty():
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
