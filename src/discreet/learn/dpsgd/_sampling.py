"""Which examples enter which step: exact draws from the cryptographic source.

Indices depend on the plan, the length of the data set and fresh random bits; never on what the
examples hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from itertools import islice
from typing import TYPE_CHECKING, final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue
from discreet.learn.dpsgd._plan import Phase, Plan
from discreet.privacy import Relation
from discreet.randomness import Source, binomial, permutation, uniform_integers
from discreet.randomness import source as any_source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Indices = NDArray[np.int64]


_LARGE = 4096  # from here on, marking a table of all records is faster than sorting


def draws(
    plan: Plan, *, population: int, start: int = 0, source: Source | None = None
) -> Iterator[Indices]:
    """The indices of every step from ``start`` on, in ascending order within a step.

    ``population`` is the length of the data set. It may differ from ``plan.examples`` only
    where that number is private; then the rate stays that of the plan. Shuffled epochs start
    at a boundary, see :func:`first_step_after`.
    """
    size = _validate.integer("population", population, at_least=0)
    _validate.integer("start", start, at_least=0, at_most=plan.steps)
    if plan.public_examples and size != plan.examples:
        raise InvalidValue("population", size, f"the public number of examples {plan.examples}")
    if start != first_step_after(plan, start):
        raise InvalidValue("start", start, "the first step of a shuffled epoch")
    return _draws(plan, size, start, any_source() if source is None else source)


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
    chosen = uniform_integers(batches, population, source=source)
    order = np.argsort(chosen, kind="stable")
    ends = np.searchsorted(chosen[order], np.arange(batches + 1))
    for batch in range(batches):
        yield order[ends[batch] : ends[batch + 1]]


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
