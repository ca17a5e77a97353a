"""Whether ``collate`` mixes the examples of a batch.

A ``collate`` that subtracts the mean of the batch, or blends pictures, lets one record change what
the model sees of all others, and no clipping bounds that. So a few examples of the first batch are
collated several times, each time with one of them replaced by another: all other rows must stay
as they were. Nothing of it is shown; only a refusal says that there was a difference.
"""

from __future__ import annotations

import random  # noqa: TID251 - its state is set aside and put back
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from discreet.errors import NotApplicable, PlanViolation
from discreet.learn.dpsgd._step import OpenBatch, Watch
from discreet.learn.dpsgd._tensors import close, leaves_of, size_of

# Of a batch so many examples are looked at.
_MOST = 8
# A collate that draws may blend some batches only: so many are looked at.
_SEEDS = 8
_TOLERANCE = 1e-5

_MIXED = (
    "collate mixes examples: what it makes of one changes with the others of its batch (their "
    "mean, their number, another picture that is blended in), so one record changes the gradients "
    "of all others and clipping bounds nothing. Do it to each example by itself, in __getitem__, "
    "with numbers that are public"
)
_DRAWN = ". If it only draws more numbers for some examples than for others, draw there, too"
_NOT_OF_THEM = (
    "collate makes as much of any number of examples: what it returns are not the examples that "
    "were drawn, and only of those does the plan say how often they are seen"
)
_UNKNOWN = (
    "whether collate mixes the examples of a batch could not be tried out: {}. Draw for each "
    "example in __getitem__, or vouch for collate and the model by isolation='vouched'"
)


def require_rows_apart(items: Sequence[Any], collate: Callable[[list[Any]], Any]) -> None:
    """Raise if ``collate`` lets one example change what it makes of another.

    Torch, numpy and Python draw the same numbers each time, so a ``collate`` may draw from them.
    """
    some = list(items[:_MOST])
    count = len(some)
    if count < 2:
        return
    whole, longer = _collated(collate, some), _collated(collate, [*some, some[0]])
    axes = [_axis(*shapes, count) for shapes in zip(_shapes(whole), _shapes(longer), strict=False)]
    if whole and _shapes(whole) == _shapes(longer):
        raise PlanViolation(_NOT_OF_THEM)
    if len(whole) != len(longer) or not any(axis is not None for axis in axes):
        return  # no row for each example: that is refused elsewhere
    if not _rows_stay(whole, _collated(collate, some), axes, range(count)):
        raise NotApplicable(_UNKNOWN.format("it draws at random, or remembers earlier batches"))
    again = [_collated(collate, some, seed) for seed in range(_SEEDS)]
    draws = not all(_rows_stay(whole, one, axes, range(count)) for one in again)
    for seed, known in enumerate(again if draws else again[:1]):
        for at in range(count):
            others = [one for one in range(count) if one != at]
            replaced = _collated(collate, [*some[:at], some[at - 1], *some[at + 1 :]], seed)
            _compare(known, replaced, axes, others, draws=draws)
    if not draws:  # what is drawn for a longer batch is something else
        _compare(whole, longer, axes, range(count), draws=False)


def _compare(
    whole: list[Tensor],
    changed: list[Tensor],
    axes: list[int | None],
    rows: Sequence[int],
    *,
    draws: bool,
) -> None:
    if [one.ndim for one in whole] != [one.ndim for one in changed]:
        return
    for one, other, axis in zip(whole, changed, axes, strict=True):
        if axis is not None and _beyond(one, axis) != _beyond(other, axis):
            return  # the longest example was replaced: padding has a trial of its own
    if _rows_stay(whole, changed, axes, rows) or _is_sorted_anew(whole, changed, axes):
        return
    raise PlanViolation(_MIXED + _DRAWN if draws else _MIXED)


@contextmanager
def _same_draws(seed: int) -> Iterator[None]:
    """Inside, torch, numpy and Python draw what the seed says, and go on as before afterwards."""
    numbers, state = np.random.get_state(), random.getstate()  # noqa: NPY002, TID251
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            np.random.seed(seed)  # noqa: NPY002, TID251 - what collate draws
            random.seed(seed)
            yield
    finally:
        np.random.set_state(numbers)  # noqa: NPY002, TID251 - put back
        random.setstate(state)


def _collated(collate: Callable[[list[Any]], Any], items: list[Any], seed: int = 0) -> list[Tensor]:
    try:
        with _same_draws(seed):
            return leaves_of(collate(items))
    except Exception as error:  # noqa: BLE001 - collate is the caller's own code
        reason = f"it raised {type(error).__name__} on a few examples"
    raise NotApplicable(_UNKNOWN.format(reason))  # out here: its words may hold values


def _shapes(batch: list[Tensor]) -> list[torch.Size]:
    return [one.shape for one in batch]


def _axis(one: torch.Size, other: torch.Size, count: int) -> int | None:
    """Which axis has a row for each example, if one example more makes it longer by one."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, sizes in pairs if sizes == (count, count + 1)), None)


def _beyond(one: Tensor, axis: int) -> list[int]:
    return [size for at, size in enumerate(one.shape) if at != axis]


def _alike(
    whole: list[Tensor], there: list[Tensor], axes: list[int | None], at: int, to: int
) -> bool:
    """Whether a row of one batch is a row of another, in all of their tensors."""
    return all(
        close(
            one.select(axis, at), other.select(axis, to), scale=size_of(one), tolerance=_TOLERANCE
        )
        for one, other, axis in zip(whole, there, axes, strict=True)
        if axis is not None
    )


def _rows_stay(
    whole: list[Tensor], there: list[Tensor], axes: list[int | None], rows: Sequence[int]
) -> bool:
    return all(_alike(whole, there, axes, at, at) for at in rows)


def _is_sorted_anew(whole: list[Tensor], there: list[Tensor], axes: list[int | None]) -> bool:
    """Whether every row was there before: a collate may sort its rows by their lengths."""
    here, now = (
        next(one.shape[axis] for one, axis in zip(batch, axes, strict=True) if axis is not None)
        for batch in (whole, there)
    )
    return all(any(_alike(whole, there, axes, at, to) for at in range(here)) for to in range(now))


@final
class CollateWatch(Watch):
    """Guards against a ``collate`` that mixes examples; tried out at the first batch of several."""

    def __init__(self) -> None:
        self._is_settled = False

    def open(self, batch: OpenBatch) -> None:
        """Try it out."""
        loading, places = batch.loading, batch.chunk.places
        if self._is_settled or batch.chunk.empty or loading is None or len(places) < 2:
            return
        if loading.collate is not None:
            require_rows_apart(loading.examples_at(places[:_MOST]), loading.collate)
        self._is_settled = True
