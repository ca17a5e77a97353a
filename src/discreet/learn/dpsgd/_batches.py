"""Which examples enter which step, by exact draws, and physical batches that fit into memory.

Indices depend on the plan, the length of the data set and fresh random bits; never on what the
examples hold.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

from discreet import _validate
from discreet.errors import InvalidValue
from discreet.learn.dpsgd._padding import MOST, Pair, padded_pair
from discreet.learn.dpsgd._people import People
from discreet.learn.dpsgd._plan import TURNS, Phase, Plan
from discreet.learn.dpsgd._tensors import exchange_tensors
from discreet.privacy import Relation
from discreet.randomness import Source, binomial, permutation, uniform_integers
from discreet.randomness import source as any_source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Indices = NDArray[np.int64]


Collate = Callable[[list[Any]], Any]


class Chunk(NamedTuple):
    """One physical batch. ``units`` examples of it count, ``last`` ends the step.

    ``places`` are those of its first examples in the data set.
    """

    units: int
    last: bool
    empty: bool
    places: tuple[int, ...] = ()


@final
@dataclass(frozen=True)
class Loading:
    """How examples become batches."""

    dataset: Any
    collate: Collate | None = None
    max_physical: int | None = None
    workers: int = 0
    augmentations: int = 1

    def __post_init__(self) -> None:
        length_of(self.dataset)
        if self.collate is not None and not callable(self.collate):
            raise InvalidValue("collate", self.collate, "a function from a list of examples")
        if self.max_physical is not None:
            _validate.integer("max_physical", self.max_physical, at_least=1)
        _validate.integer("workers", self.workers, at_least=0)

    def chunks(self, steps: Iterable[NDArray[np.int64]]) -> Iterator[tuple[Chunk, Any]]:
        """The physical batches of every step, in order.

        A step without examples gives one made-up example of zeros, of which nothing is
        counted: the loop runs as always, and takes a step of pure noise.
        """
        if self.workers == 0:
            for chunk, indices in self._cut(steps):
                yield chunk, self._fetch(chunk, indices)
            return
        waiting: deque[Chunk] = deque()

        def indices_of_chunks() -> Iterator[list[int]]:
            for chunk, indices in self._cut(steps):
                waiting.append(chunk)
                yield indices.repeat(self.augmentations).tolist()

        loader: DataLoader[Any] = DataLoader(
            self.dataset,
            batch_sampler=_Sampled(indices_of_chunks),
            collate_fn=self.collate,
            num_workers=self.workers,
        )
        for data in loader:
            chunk = waiting.popleft()
            yield chunk, _blank(data) if chunk.empty else data

    def _cut(self, steps: Iterable[NDArray[np.int64]]) -> Iterator[tuple[Chunk, NDArray[np.int64]]]:
        nobody = np.zeros(1, dtype=np.int64)
        for indices in steps:
            count = len(indices)
            if count == 0:
                yield Chunk(1, last=True, empty=True), nobody
                continue
            most = self.max_physical or count
            for start in range(0, count, most):
                part = indices[start : start + most]
                places = tuple(part[:MOST].tolist())
                yield Chunk(len(part), start + most >= count, empty=False, places=places), part

    def padded_pair(self, places: Sequence[int]) -> Pair | None:
        """One of these examples with and without more padding, if batches are padded."""
        if isinstance(self.dataset, People):  # the same records of its persons in both batches
            records = replace(self, dataset=self.dataset.dataset)
            return records.padded_pair(self.dataset.choose(places))
        fetch, collate = getattr(self.dataset, "__getitems__", None), self.collate
        if fetch is not None:  # may pad, too
            found = padded_pair(places, lambda some: (collate or default_collate)(fetch(some)))
            if found is not None:
                return found
        return padded_pair(self._examples(list(places)), collate)

    def examples_at(self, places: Sequence[int]) -> Any:
        """The examples, or records of the persons, at these places."""
        if isinstance(self.dataset, People):
            records = replace(self, dataset=self.dataset.dataset)
            return records.examples_at(self.dataset.choose(places))
        return self._examples(list(places))

    def _examples(self, places: list[int]) -> Any:
        fetch = getattr(self.dataset, "__getitems__", None)
        return fetch(places) if fetch is not None else [self.dataset[place] for place in places]

    def _fetch(self, chunk: Chunk, indices: NDArray[np.int64]) -> Any:
        data = self._rows(indices.repeat(self.augmentations) if self.augmentations > 1 else indices)
        return _blank(data) if chunk.empty else data

    def _rows(self, indices: NDArray[np.int64]) -> Any:
        dataset = self.dataset
        if type(dataset) is TensorDataset and self.collate is None:
            rows = torch.from_numpy(indices)
            # A list, as torch's DataLoader gives for the same data set.
            return [tensor.index_select(0, rows.to(tensor.device)) for tensor in dataset.tensors]
        return (self.collate or default_collate)(self._examples(indices.tolist()))


@final
class _Sampled:
    """A batch sampler of torch's loader around a generator."""

    def __init__(self, make: Callable[[], Iterator[list[int]]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[list[int]]:
        return self._make()


def length_of(dataset: object, argument: str = "dataset") -> int:
    """The number of examples of a data set that can be read in any order."""
    if isinstance(dataset, DataLoader):
        raise InvalidValue(
            argument, "a DataLoader", "the data set itself: batches are drawn as the plan says"
        )
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise InvalidValue(
            argument, type(dataset).__name__, "a data set with __len__ and __getitem__"
        )
    try:
        length = len(dataset)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidValue(argument, type(dataset).__name__, "a data set with a length") from None
    if length == 0:
        raise InvalidValue(argument, "no examples", "at least one example")
    return length


def template_of(data: Any) -> list[Tensor] | None:
    """The tensors of a batch if it is one or a flat sequence of them, as shapes without values."""
    parts: Sequence[Any] = [data] if isinstance(data, Tensor) else data
    if isinstance(parts, tuple | list) and all(isinstance(part, Tensor) for part in parts):
        return [torch.empty_like(part, device="meta") for part in parts]
    return None


def template_of_table(dataset: object, collate: Collate | None) -> list[Tensor] | None:
    """The shapes of a row of tensors that are held as a table; nothing of it is read."""
    if type(dataset) is not TensorDataset or collate is not None:
        return None
    return template_of([tensor[:1] for tensor in dataset.tensors])


def _blank(data: Any) -> Any:
    """The same structure with zeros in place of all values."""
    return exchange_tensors(data, torch.zeros_like)


_LARGE = 4096  # from here on, marking a table of all records is faster than sorting


def draws(
    plan: Plan,
    *,
    population: int,
    start: int = 0,
    source: Source | None = None,
    groups: Source | None = None,
) -> Iterator[Indices]:
    """The indices of every step from ``start`` on, in ascending order within a step.

    ``population`` is the length of the data set. It may differ from ``plan.examples`` only
    where that number is private; then the rate stays that of the plan. Shuffled epochs start
    at a boundary, see :func:`first_step_after`. Where records take turns, ``groups`` divides
    them: the same in every part of one run.
    """
    size = _validate.integer("population", population, at_least=0)
    _validate.integer("start", start, at_least=0, at_most=plan.steps)
    if plan.public_examples and size != plan.examples:
        raise InvalidValue("population", size, f"the public number of examples {plan.examples}")
    if start != first_step_after(plan, start):
        raise InvalidValue("start", start, "the first step of a shuffled epoch")
    fresh = any_source() if source is None else source
    if plan.sampler in TURNS:
        if groups is None and start:
            raise InvalidValue("groups", None, "the source that divided the records before")
        return _turns(plan, size, start, fresh, fresh if groups is None else groups)
    return _draws(plan, size, start, fresh)


def _turns(
    plan: Plan, population: int, start: int, source: Source, groups: Source
) -> Iterator[Indices]:
    """The steps of groups that take turns; two steps of one record are a whole round apart."""
    members = _divide(plan.groups, population, groups)
    rate = plan.rate_of(plan.phases[0])
    for step in range(start, plan.steps):
        group = members[step % plan.groups]
        if plan.sampler == "cyclic":
            group = group[PoissonSampler(population=len(group), rate=rate, source=source).draw()]
        yield group


def _divide(parts: int, population: int, source: Source) -> list[Indices]:
    """Give every index a part of its own choice, independently; each part in ascending order."""
    chosen = uniform_integers(parts, population, source=source)
    order = np.argsort(chosen, kind="stable")
    ends = np.searchsorted(chosen[order], np.arange(parts + 1))
    return [order[ends[part] : ends[part + 1]] for part in range(parts)]


def _draws(plan: Plan, population: int, start: int, source: Source) -> Iterator[Indices]:
    for phase in plan.phases:
        if start >= phase.steps:
            start -= phase.steps
            continue
        yield from islice(_endless(plan, phase, population, source), phase.steps - start)
        start = 0


def first_step_after(plan: Plan, steps: int) -> int:
    """The first step that may be taken when ``steps`` steps may have been taken before.

    Shuffled epochs do not remember which records a broken-off epoch has used up, so what is left
    of that epoch is given up: a record still takes part at most once in each epoch.
    """
    before = 0
    for phase in plan.phases if plan.sampler == "shuffled" else ():
        if steps < before + phase.steps:
            whole = plan.batches_per_epoch(phase)
            epochs = math.ceil((steps - before) / whole)
            return before + min(epochs * whole, phase.steps)
        before += phase.steps
    return steps


def _endless(plan: Plan, phase: Phase, population: int, source: Source) -> Iterator[Indices]:
    if plan.sampler == "poisson":
        sampler = PoissonSampler(population=population, rate=plan.rate_of(phase), source=source)
        most = population if plan.at_most is None else plan.at_most
        while True:
            # A uniform subset of a uniform subset is one.
            yield subset(min(sampler.count(), most), population=population, source=source)
    if plan.sampler == "without_replacement":
        while True:
            yield subset(int(phase.expected_batch_size), population=population, source=source)
    if plan.sampler == "full":
        everything = np.arange(population)
        while True:
            yield everything
    while True:
        yield from _epoch(plan, phase, population, source)


def _epoch(plan: Plan, phase: Phase, population: int, source: Source) -> Iterator[Indices]:
    batches = plan.batches_per_epoch(phase)
    if plan.relation is Relation.REPLACE:
        size = int(phase.expected_batch_size)
        order = permutation(population, source=source)
        for start in range(0, batches * size, size):
            yield np.sort(order[start : start + size])
        return
    yield from _divide(batches, population, source)


@final
class PoissonSampler:
    """Every index below ``population`` enters with probability exactly ``rate``, independently.

    The number of entries is drawn from the binomial distribution, exactly, and then a
    uniform subset of that size: the same law as one coin for each record, at the cost of the
    batch instead of the data set.
    """

    def __init__(self, *, population: int, rate: float, source: Source | None = None) -> None:
        self._population = _validate.integer("population", population, at_least=0)
        self._rate = Fraction(_validate.real("rate", rate, above=0, at_most=1))
        self._source = any_source() if source is None else source

    def count(self) -> int:
        """A fresh binomial number."""
        return binomial(self._population, self._rate, source=self._source)

    def draw(self) -> Indices:
        """The indices of one step."""
        return subset(self.count(), population=self._population, source=self._source)


def subset(size: int, *, population: int, source: Source | None = None) -> Indices:
    """A uniform subset of {0, ..., population - 1} of the given size, ascending.

    The first ``size`` distinct values of independent uniform draws are a uniform subset.
    Each round draws as many as are still missing, so that it never has one too many.
    """
    total = _validate.integer("population", population, at_least=0)
    wanted = _validate.integer("size", size, at_least=0, at_most=total)
    if 2 * wanted > total:
        kept = np.ones(total, dtype=np.bool_)
        kept[subset(total - wanted, population=total, source=source)] = False
        return np.flatnonzero(kept)
    if wanted == 0:
        return np.empty(0, dtype=np.int64)
    if wanted < _LARGE:
        chosen = _distinct(uniform_integers(total, wanted, source=source))
        while chosen.size < wanted:
            more = uniform_integers(total, wanted - chosen.size, source=source)
            chosen = _distinct(np.concatenate((chosen, more)))
        return chosen
    inside = np.zeros(total, dtype=np.bool_)
    missing = wanted
    while missing:
        inside[uniform_integers(total, missing, source=source)] = True
        missing = wanted - int(np.count_nonzero(inside))
    return np.flatnonzero(inside)


def _distinct(values: Indices) -> Indices:
    values.sort()
    return values[np.concatenate(([True], values[1:] != values[:-1]))]
