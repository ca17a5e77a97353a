"""Gaussian noise for tensors: millions of values a step from a cryptographic keystream.

The stream is AES-256 in counter mode (the keystream of GCM, for which OpenSSL has
the fastest code) under a key drawn from the operating system, turned into normals
by the Box-Muller transform. For float64, radius and angle have 64 bits each. For
float32 the angle has 32, and so has the radius, but where that would be coarse (near
zero, and in the tail, which would stop at 6.7 standard deviations) it has 64: the tail
reaches 9.4 as it should. With numba (the extra ``jit``), a stream that has given
some millions of float32 values goes on with a compiled transform, which is several
times as fast and equal up to rounding.

What it protects against: noise that can be predicted. Whoever sees any number
of outputs learns nothing about the others short of breaking AES; the period
cannot be exhausted (the key changes every GiB), a seed cannot be reused or
guessed, and a fork never repeats the parent's noise. With a statistical
generator (Mersenne Twister, Philox, PCG) all of that is open: 624 outputs of
the first determine all others.

What it does not protect against: the values are rounded floating-point numbers.
The set of sums ``gradient + noise`` that can occur depends in its last bits on
the gradient (Mironov 2012; Jin, McMurtry, Rubinstein and Ohrimenko 2022), and the
time of an operation may depend on its operands. The Gaussian loss that an
accountant charges is therefore that of the ideal real-valued noise. The exact
path (:func:`discreet.randomness.discrete_gaussian`, :mod:`.grid`) has no such
gap: its outputs lie on a grid that does not depend on the data and have exactly
the stated probabilities. Use it for what is published number by number; use this
stream inside training, where only millions of summed steps are seen.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet._threads import numba_works
from discreet.errors import InvalidValue
from discreet.randomness.compiled_normals import (
    PAIRS,
    RARE,
    compiled_box_muller,
    words_for,
)
from discreet.randomness.keystream import BLOCK, Keystream
from discreet.randomness.shared_normals import compiled_normal_blocks
from discreet.randomness.sources import Source, resolve

if TYPE_CHECKING:
    import torch
    from numpy.typing import DTypeLike, NDArray

__all__ = ["NormalStream"]

_TOGETHER = 512  # blocks whose part of the keystream is taken at once
_COMPILE_AFTER = 1 << 22  # normals: compiling earlier would take longer than it saves
_PLAIN_SCALES = (1e-9, 1e9)  # whose squares are far from the ends of float32
_LARGEST_SCALE = {4: 1e30, 8: 1e290}  # by bytes; so small or large, values would lose bits
_BYTES = 16 * PAIRS  # of the words of one block; singles need fewer than doubles
_ZEROS = memoryview(bytes(_BYTES))
_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))

_STREAMS: weakref.WeakSet[NormalStream] = weakref.WeakSet()


class _Scratch:
    """Working memory, reused: fresh pages would cost more than the normals."""

    def __init__(self) -> None:
        self.random = bytearray(_BYTES + 16)
        self.words = np.frombuffer(self.random, dtype="<u4")
        self.doubles = np.empty((2, PAIRS), dtype=np.float64)
        self.floats = self.doubles[1].view(np.float32).reshape(2, PAIRS)


class _Idle(threading.local):
    """The scratch memory of a thread while nobody uses it."""

    scratch: _Scratch | None = None


_IDLE = _Idle()


@contextmanager
def _scratch_memory() -> Iterator[_Scratch]:
    """Of this thread; who draws in a signal handler meanwhile gets other memory."""
    scratch, _IDLE.scratch = _IDLE.scratch, None
    if scratch is None:
        scratch = _Scratch()
    try:
        yield scratch
    finally:
        _IDLE.scratch = scratch


@final
class NormalStream:
    """A stream of independent normals, safe across threads and forks.

    Threads may share one stream: each call holds its lock while it reads the
    keystream, not while it computes. A forked child draws a new key. A stream over
    a seeded source is reproducible and records that in ``provenance``; it depends on
    the order of calls and their shapes.

    >>> stream = NormalStream()
    >>> stream.array((2, 3), stddev=1.5, dtype=np.float32).shape, stream.provenance
    ((2, 3), {'randomness': 'operating system', 'stream': 'AES-256-CTR, Box-Muller'})
    """

    def __init__(self, *, source: Source | None = None) -> None:
        self._source = resolve(source)
        self._given = 0
        self._forget()
        _STREAMS.add(self)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._stream: Keystream | None = None
        self._pid = os.getpid()

    @property
    def provenance(self) -> dict[str, str]:
        """What a training run must record about its noise."""
        return {**self._source.provenance, "stream": "AES-256-CTR, Box-Muller"}

    def derive(self, *labels: str | int) -> NormalStream:
        """Return a stream of its own, independent of this one and of the order of its calls."""
        return NormalStream(source=self._source.derive(*labels))

    def array(
        self,
        shape: int | tuple[int, ...],
        *,
        stddev: float = 1.0,
        dtype: DTypeLike = np.float64,
    ) -> NDArray[Any]:
        """Return a numpy array of independent N(0, stddev^2), float32 or float64."""
        dims = (shape,) if isinstance(shape, int) else tuple(shape)
        dims = tuple(_validate.integer("shape", size, at_least=0) for size in dims)
        stddev = _validate.real("stddev", stddev, at_least=0)
        kind = np.dtype(dtype)
        if kind not in _FLOATS:
            raise InvalidValue("dtype", dtype, "float32 or float64")
        result = np.empty(math.prod(dims), dtype=kind)
        self._fill_alone(result, stddev)
        return result.reshape(dims)

    def fill(self, target: NDArray[Any], *, stddev: float = 1.0, shared: bool = False) -> None:
        """Overwrite a float32 or float64 array with independent N(0, stddev^2), in place.

        Nothing is allocated. For a torch tensor on the CPU pass ``tensor.numpy()``. With
        ``shared``, torch's threads help: for a thread that runs torch's operations otherwise.

        >>> buffer = np.zeros((2, 3), dtype=np.float32)
        >>> NormalStream().fill(buffer, stddev=2.0)
        >>> bool((buffer != 0).all())
        True
        """
        if type(stddev) is not float or not 0 <= stddev < math.inf:
            stddev = _validate.real("stddev", stddev, at_least=0)
        if target.dtype not in _FLOATS:
            raise InvalidValue("target", target.dtype, "an array of float32 or float64")
        if not target.flags.c_contiguous or not target.flags.writeable:
            raise InvalidValue("target", target.flags, "a contiguous array that can be written")
        self._fill_alone(target.reshape(-1), stddev, shared=shared)

    def tensor(
        self,
        shape: int | tuple[int, ...],
        *,
        stddev: float = 1.0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> torch.Tensor:
        """Return a torch tensor of independent N(0, stddev^2).

        Values are computed on the CPU in float32 (float64 if asked for) and then moved
        and cast. The memory is the tensor's own.
        """
        import torch

        dtype = torch.get_default_dtype() if dtype is None else dtype
        if not dtype.is_floating_point:
            raise InvalidValue("dtype", dtype, "a floating-point torch dtype or None")
        kind = np.float64 if dtype == torch.float64 else np.float32
        values = torch.from_numpy(self.array(shape, stddev=stddev, dtype=kind))
        return values.to(device=device, dtype=dtype)

    def _fill_alone(self, result: NDArray[Any], stddev: float, *, shared: bool = False) -> None:
        """Fill once more in a child that was forked, by a signal handler, while this was filled.

        A child has another lock.
        """
        lock = None
        while lock is not self._lock:
            lock = self._lock
            self._fill_normals(result, stddev, shared=shared)

    def _fill_normals(self, result: NDArray[Any], stddev: float, *, shared: bool = False) -> None:
        """Box-Muller, block by block: first all cosines of a block, then all sines."""
        kind = result.dtype
        if stddev and not _PLAIN_SCALES[0] <= stddev <= _PLAIN_SCALES[1]:
            most = _LARGEST_SCALE[kind.itemsize]
            if not 1 / most <= stddev <= most:
                raise InvalidValue("stddev", stddev, f"0, or 1/{most:g} to {most:g} in {kind}")
            self._fill_normals(result, 1.0, shared=shared)
            result *= kind.type(stddev)
        elif kind.itemsize == 4:
            self._fill_floats(result, stddev, shared=shared)
        else:
            self._fill_doubles(result, stddev)

    def _fill_floats(self, result: NDArray[np.float32], stddev: float, *, shared: bool) -> None:
        # By what this stream has given, so that a seeded one repeats itself.
        compiled = self._given >= _COMPILE_AFTER and numba_works()
        self._given += result.size
        together = 2 * PAIRS * _TOGETHER
        for start in range(0, result.size, together):
            blocks = result[start : start + together]
            if not self._fill_at_once(blocks, stddev, compiled=compiled, shared=shared):
                self._fill_one_by_one(blocks, stddev, compiled=compiled)

    def _fill_at_once(
        self, result: NDArray[np.float32], stddev: float, *, compiled: bool, shared: bool
    ) -> bool:
        """Fill blocks in compiled loops, or return that these cannot make the keystream.

        Either way there is one key for all of them, so that seeded streams change it alike.
        """
        full, rest = divmod(result.size, 2 * PAIRS)
        count = full * _blocks_of(words_for(PAIRS)) + _blocks_of(words_for((rest + 1) // 2))
        self._look_for_fork()
        with self._lock:
            stream = self._keystream(count)
            keys = stream.compiled_keys if compiled else None
            if keys is None:
                return False
            counter = stream.take(count)
        _require(compiled_normal_blocks().fill(keys, counter, stddev, result, shared=shared))
        return True

    def _fill_one_by_one(
        self, result: NDArray[np.float32], stddev: float, *, compiled: bool
    ) -> None:
        with _scratch_memory() as scratch:
            by_numpy = partial(_float_box_muller, scratch=scratch)
            transform: Callable[..., bool] = compiled_box_muller() if compiled else by_numpy
            for start in range(0, result.size, 2 * PAIRS):
                block = result[start : start + 2 * PAIRS]
                words = self._words(words_for((block.size + 1) // 2), scratch)
                _require(transform(words, stddev, block))

    def _fill_doubles(self, result: NDArray[np.float64], stddev: float) -> None:
        with _scratch_memory() as scratch:
            for start in range(0, result.size, 2 * PAIRS):
                block = result[start : start + 2 * PAIRS]
                words = self._words(4 * ((block.size + 1) // 2), scratch)
                _double_box_muller(words, stddev, block, scratch)

    def _words(self, count: int, scratch: _Scratch) -> NDArray[np.uint32]:
        """So many words from OpenSSL, in scratch memory."""
        blocks = _blocks_of(count)
        self._look_for_fork()
        with self._lock:
            self._keystream(blocks).read_into(scratch.random, _ZEROS[: BLOCK * blocks])
        return scratch.words[:count]

    def _look_for_fork(self) -> None:
        """A child has a keystream of its own, and does not wait for its parent's threads."""
        if self._pid != os.getpid():
            self._forget()

    def _keystream(self, blocks: int) -> Keystream:
        """The keystream, with at least so many blocks left; under the lock."""
        stream = self._stream
        if stream is None or stream.left < blocks:
            self._stream = stream = Keystream(self._source.read(32))
        return stream


def _blocks_of(words: int) -> int:
    return -(-4 * words // BLOCK)


def _require(enough: bool) -> None:
    if not enough:
        raise RuntimeError(
            "normals were not made: memory ran out, or the keystream is not random and its spare "
            "words were used up"
        )


def _float_box_muller(
    words: NDArray[np.uint32], stddev: float, normals: NDArray[np.float32], scratch: _Scratch
) -> bool:
    """As :func:`.compiled_normals.box_muller`, by numpy."""
    pairs = (normals.size + 1) // 2
    high, turns, spare = np.split(words, [pairs, 2 * pairs])
    rare = np.flatnonzero(high + np.uint32(RARE) < np.uint32(2 * RARE))  # of either end, by wrap
    if rare.size > spare.size:
        return False
    squares = np.add(high, 0.5, out=scratch.doubles[0, :pairs])
    squares *= 2.0**-32
    near_one = high[rare] >> np.uint32(31) == 1
    smaller = np.where(near_one, ~high[rare], high[rare])
    smaller = smaller * 2.0**-32 + (spare[: rare.size] + 0.5) * 2.0**-64
    np.log(squares, out=squares)
    squares[rare] = np.where(near_one, np.log1p(-smaller), np.log(smaller))
    squares *= -2.0 * stddev * stddev
    radius, angle = scratch.floats[:, :pairs]
    np.copyto(radius, squares, casting="same_kind")
    np.sqrt(radius, out=radius)
    np.copyto(angle, turns.view("<i4"), casting="unsafe")
    angle *= np.float32(math.pi * 2.0**-31)
    cosines, sines = normals[:pairs], normals[pairs:]
    np.cos(angle, out=cosines)
    cosines *= radius
    np.sin(angle[: sines.size], out=sines)
    sines *= radius[: sines.size]
    return True


def _double_box_muller(
    words: NDArray[np.uint32], stddev: float, normals: NDArray[np.float64], scratch: _Scratch
) -> None:
    """Two words for the radius and two for the angle: all upper ones, all lower ones, angles."""
    pairs = (normals.size + 1) // 2
    cosines, sines = normals[:pairs], normals[pairs:]
    radius = _uniforms(words[:pairs], words[pairs : 2 * pairs], scratch)
    angle = scratch.doubles[1, :pairs]
    np.log(radius, out=radius)
    radius *= -2.0 * stddev * stddev
    np.sqrt(radius, out=radius)
    np.copyto(angle, words[2 * pairs :].view("<i8"), casting="unsafe")
    angle *= math.pi * 2.0**-63
    np.cos(angle, out=cosines)
    cosines *= radius
    np.sin(angle[: sines.size], out=sines)
    sines *= radius[: sines.size]


def _uniforms(
    high: NDArray[np.uint32], low: NDArray[np.uint32], scratch: _Scratch
) -> NDArray[np.float64]:
    """Return ``(2^32 high + low + 1/2) / 2^64`` in scratch memory, rounded once."""
    uniform, rest = scratch.doubles[0, : high.size], scratch.doubles[1, : high.size]
    np.multiply(low, 2.0**-64, out=rest)
    rest += 2.0**-65
    np.multiply(high, 2.0**-32, out=uniform)
    uniform += rest
    return uniform


def _forget_after_fork() -> None:
    for stream in list(_STREAMS):
        stream._forget()


if hasattr(os, "register_at_fork"):  # not on every system
    os.register_at_fork(after_in_child=_forget_after_fork)
