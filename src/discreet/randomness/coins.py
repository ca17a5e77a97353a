"""Bernoulli draws whose probability is a rational number or exp(-x) of one, exact."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

import numpy as np

from discreet import _validate
from discreet.randomness.arguments import rational
from discreet.randomness.enclosure import Bounds, LazyUniform, exp_negative, rational_bounds
from discreet.randomness.sources import Source, resolve

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["bernoulli", "bernoulli_exp", "enclosed_bernoulli"]

_CHUNK = 1 << 16
_WIDTH = 32


@overload
def bernoulli(p: object, size: None = None, *, source: Source | None = None) -> bool: ...
@overload
def bernoulli(p: object, size: int, *, source: Source | None = None) -> NDArray[np.bool_]: ...


def bernoulli(
    p: object, size: int | None = None, *, source: Source | None = None
) -> bool | NDArray[np.bool_]:
    """Return True with probability exactly ``p``, a rational number of [0, 1].

    A float is read as the shortest decimal that prints as it (0.1 is one tenth).

    >>> bernoulli("1/3", 5).dtype, bernoulli(1), bernoulli(0)
    (dtype('bool'), True, False)
    """
    exact = rational("p", p, at_least=0, at_most=1)
    return enclosed_bernoulli(rational_bounds(exact), size, source=source)


@overload
def bernoulli_exp(x: object, size: None = None, *, source: Source | None = None) -> bool: ...
@overload
def bernoulli_exp(x: object, size: int, *, source: Source | None = None) -> NDArray[np.bool_]: ...


def bernoulli_exp(
    x: object, size: int | None = None, *, source: Source | None = None
) -> bool | NDArray[np.bool_]:
    """Return True with probability exactly ``exp(-x)``, for a rational ``x >= 0``.

    >>> bernoulli_exp(0), bernoulli_exp("7/2", 3).shape
    (True, (3,))
    """
    exact = rational("x", x, at_least=0)

    def bounds(bits: int) -> tuple[int, int]:
        return exp_negative(exact, bits)

    return enclosed_bernoulli(bounds, size, source=source)


@overload
def enclosed_bernoulli(
    bounds: Bounds, size: None = None, *, source: Source | None = None
) -> bool: ...
@overload
def enclosed_bernoulli(
    bounds: Bounds, size: int, *, source: Source | None = None
) -> NDArray[np.bool_]: ...
@overload
def enclosed_bernoulli(
    bounds: Bounds, size: int | None, *, source: Source | None = None
) -> bool | NDArray[np.bool_]: ...


def enclosed_bernoulli(
    bounds: Bounds, size: int | None = None, *, source: Source | None = None
) -> bool | NDArray[np.bool_]:
    """Return True with the probability that ``bounds`` encloses ever more narrowly.

    In bulk, 32 bits are compared with the enclosure at 32 bits; the one or two
    words in 2**32 that it leaves open are continued bit by bit.
    """
    if size is None:
        return LazyUniform(resolve(source)).below(bounds)
    size = _validate.integer("size", size, at_least=0)
    bits_from = resolve(source)
    lower, upper = bounds(_WIDTH)
    result = np.empty(size, dtype=np.bool_)
    for start in range(0, size, _CHUNK):
        stop = min(start + _CHUNK, size)
        words = bits_from.words32(stop - start)
        result[start:stop] = words < lower
        for open_at in np.flatnonzero((words >= lower) & (words < upper)):
            undecided = LazyUniform(bits_from, prefix=int(words[open_at]), bits=_WIDTH)
            result[start + open_at] = undecided.below(bounds)
    return result
