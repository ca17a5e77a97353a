"""Uniform integers and permutations, exact by rejection."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

import numpy as np

from discreet import _validate
from discreet.randomness._sources import Source, choose_source

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CHUNK = 1 << 16


@overload
def uniform_integers(below: int, size: None = None, *, source: Source | None = None) -> int: ...
@overload
def uniform_integers(
    below: int, size: int, *, source: Source | None = None
) -> NDArray[np.int64]: ...


def uniform_integers(
    below: int, size: int | None = None, *, source: Source | None = None
) -> int | NDArray[np.int64]:
    """Return integers of {0, ..., below - 1}, each with probability exactly 1 / below.

    Parameters
    ----------
    below : int
        How many integers there are: any number for a single draw, at most ``2**63`` for
        an array.
    size : int, optional
        How many independent draws to return.
    source : Source, optional
        Where the bits come from; the operating system by default.

    Returns
    -------
    int or array of int64
        One integer, or ``size`` of them.

    Raises
    ------
    InvalidValue
        If an argument is outside its range.

    Notes
    -----
    As many bits as ``below - 1`` has are drawn, and drawn again while they show a
    number that is too large: fewer than two rounds on average.

    Examples
    --------
    >>> int(uniform_integers(10)) in range(10)
    True
    """
    below = _validate.integer("below", below, at_least=1, at_most=None if size is None else 1 << 63)
    bits = (below - 1).bit_length()
    if size is None:
        bits_from = choose_source(source)
        while (draw := bits_from.bits(bits)) >= below:
            pass
        return draw
    size = _validate.integer("size", size, at_least=0)
    bits_from = choose_source(source)
    result = np.empty(size, dtype=np.int64)
    filled = 0
    while filled < size:
        draws = _words(bits_from, min(_CHUNK, size - filled), bits)
        kept = draws[draws < below]
        result[filled : filled + kept.size] = kept
        filled += kept.size
    return result


def permutation(size: int, *, source: Source | None = None) -> NDArray[np.int64]:
    """Return a uniform permutation of {0, ..., size - 1}.

    Parameters
    ----------
    size : int
        How many integers to order.
    source : Source, optional
        Where the bits come from; the operating system by default.

    Returns
    -------
    array of int64
        The integers in a random order.

    Raises
    ------
    InvalidValue
        If ``size`` is not an integer of at least 0.

    Notes
    -----
    Independent 64-bit keys are sorted; given that all keys differ, every order is
    equally likely, and keys that collide are all drawn again.

    Examples
    --------
    >>> sorted(permutation(4).tolist())
    [0, 1, 2, 3]
    """
    size = _validate.integer("size", size, at_least=0)
    bits_from = choose_source(source)
    while True:
        keys = bits_from.words64(size)
        order = np.argsort(keys)
        ranked = keys[order]
        if not np.any(ranked[1:] == ranked[:-1]):
            return order.astype(np.int64, copy=False)


def _words(source: Source, count: int, bits: int) -> NDArray[np.int64]:
    """Return ``count`` uniform integers of ``bits`` bits from the narrowest words that do."""
    if bits == 0:
        return np.zeros(count, dtype=np.int64)
    if bits <= 8:
        return (source.words8(count) >> np.uint8(8 - bits)).astype(np.int64)
    if bits <= 16:
        return (source.words16(count) >> np.uint16(16 - bits)).astype(np.int64)
    if bits <= 32:
        return (source.words32(count) >> np.uint32(32 - bits)).astype(np.int64)
    return (source.words64(count) >> np.uint64(64 - bits)).view(np.int64)
