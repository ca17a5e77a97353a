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
accountant charges is therefore that of the ideal real-valued noise. The exact path
(:func:`discreet.randomness.discrete_gaussian`,
:func:`discreet.randomness.gaussian_on_grid`) has no such gap: its outputs lie on a
grid that does not depend on the data and have exactly the stated probabilities. Use
it for what is published number by number; use this stream inside training, where only
millions of summed steps are seen.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet._threads import numba_works
from discreet.errors import InvalidValue
from discreet.randomness._compiled_normals import PAIRS, RARE, compiled_box_muller, words_for
from discreet.randomness._sources import Source, choose_source

if TYPE_CHECKING:
    import torch
    from numpy.typing import DTypeLike, NDArray

BLOCK = 16  # bytes of a block of AES

_TOGETHER = 512  # blocks of normals that are made under one key
_COMPILE_AFTER = 1 << 22  # normals: compiling earlier would take longer than it saves
_PLAIN_SCALES = (1e-9, 1e9)  # whose squares are far from the ends of float32
_LARGEST_SCALE = {4: 1e30, 8: 1e290}  # by bytes; beyond these, values would lose bits
_BYTES = 16 * PAIRS  # of the words of one block; singles need fewer than doubles
_ZEROS = memoryview(bytes(_BYTES))
_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))

_STREAMS: weakref.WeakSet[NormalStream] = weakref.WeakSet()


@final
class Keystream:
    """AES-256 of the counters 2, 3, ...: what GCM adds to a text, with a nonce of zeros.

    Every block of it is given out once. A key is good for ``blocks``, by default one GiB: far below
    the 2^32 - 2 at which the counter would begin anew.
    """

    def __init__(self, key: bytes, *, blocks: int = 1 << 26) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        self._cipher = Cipher(algorithms.AES(key), modes.GCM(bytes(12))).encryptor()
        self.left = blocks

    def read_into(self, buffer: bytearray, zeros: memoryview) -> None:
        """Fill the buffer with as many bytes of the stream as there are zeros, whole blocks."""
        blocks, rest = divmod(len(zeros), BLOCK)
        assert rest == 0
        if blocks > self.left:
            raise RuntimeError("this key has given out all of its blocks")
        self.left -= blocks
        self._cipher.update_into(zeros, buffer)


class _Scratch(threading.local):
    """Working memory of a thread, reused: fresh pages would cost more than the normals."""

    def __init__(self) -> None:
        self.random = bytearray(_BYTES + BLOCK)
        self.words = np.frombuffer(self.random, dtype="<u4")
        self.doubles = np.empty((2, PAIRS), dtype=np.float64)
        self.floats = self.doubles[1].view(np.float32).reshape(2, PAIRS)


_SCRATCH = _Scratch()


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
        self._source = choose_source(source)
        self._given = 0
        self._forget_key()
        _STREAMS.add(self)

    def _forget_key(self) -> None:
        self._lock = threading.Lock()
        self._stream: Keystream | None = None

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
        """Return a numpy array of independent N(0, stddev^2).

        Parameters
        ----------
        shape : int or tuple of int
            The shape of the array.
        stddev : float
            The standard deviation, at least 0.
        dtype : numpy dtype
            float32 or float64.

        Returns
        -------
        array
            Fresh noise.

        Raises
        ------
        InvalidValue
            If an argument is outside its range.
        """
        dims = (shape,) if isinstance(shape, int) else tuple(shape)
        dims = tuple(_validate.integer("shape", size, at_least=0) for size in dims)
        stddev = _validate.real("stddev", stddev, at_least=0)
        kind = np.dtype(dtype)
        if kind not in _FLOATS:
            raise InvalidValue("dtype", dtype, "float32 or float64")
        result = np.empty(math.prod(dims), dtype=kind)
        self._fill_normals(result, stddev)
        return result.reshape(dims)

    def fill(self, target: NDArray[Any], *, stddev: float = 1.0) -> None:
        """Overwrite a float32 or float64 array with independent N(0, stddev^2), in place.

        Nothing is allocated.

        Parameters
        ----------
        target : array of float32 or float64
            Contiguous and writable. For a torch tensor on the CPU pass ``tensor.numpy()``.
        stddev : float
            The standard deviation, at least 0.

        Raises
        ------
        InvalidValue
            If the array cannot be written or ``stddev`` is outside its range.

        Examples
        --------
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
        self._fill_normals(target.reshape(-1), stddev)

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

        Parameters
        ----------
        shape : int or tuple of int
            The shape of the tensor.
        stddev : float
            The standard deviation, at least 0.
        dtype : torch.dtype, optional
            A floating-point type; torch's default type by default.
        device : torch.device or str, optional
            Where the tensor lives.

        Returns
        -------
        torch.Tensor
            Fresh noise.

        Raises
        ------
        InvalidValue
            If an argument is outside its range.
        """
        import torch

        dtype = torch.get_default_dtype() if dtype is None else dtype
        if not dtype.is_floating_point:
            raise InvalidValue("dtype", dtype, "a floating-point torch dtype or None")
        kind = np.float64 if dtype == torch.float64 else np.float32
        values = torch.from_numpy(self.array(shape, stddev=stddev, dtype=kind))
        return values.to(device=device, dtype=dtype)

    def _fill_normals(self, result: NDArray[Any], stddev: float) -> None:
        """Box-Muller, block by block: first all cosines of a block, then all sines."""
        kind = result.dtype
        if stddev and not _PLAIN_SCALES[0] <= stddev <= _PLAIN_SCALES[1]:
            most = _LARGEST_SCALE[kind.itemsize]
            if not 1 / most <= stddev <= most:
                raise InvalidValue("stddev", stddev, f"0, or 1/{most:g} to {most:g} in {kind}")
            self._fill_normals(result, 1.0)
            result *= kind.type(stddev)
        elif kind.itemsize == 4:
            self._fill_floats(result, stddev)
        else:
            self._fill_doubles(result, stddev)

    def _fill_floats(self, result: NDArray[np.float32], stddev: float) -> None:
        # By what this stream has given, so that a seeded one repeats itself.
        compiled = self._given >= _COMPILE_AFTER and numba_works()
        self._given += result.size
        by_numpy = partial(_float_box_muller, scratch=_SCRATCH)
        transform: Callable[..., bool] = compiled_box_muller() if compiled else by_numpy
        together = 2 * PAIRS * _TOGETHER
        for start in range(0, result.size, together):
            blocks = result[start : start + together]
            self._renew_key(_blocks_for(blocks.size))
            for at in range(0, blocks.size, 2 * PAIRS):
                block = blocks[at : at + 2 * PAIRS]
                words = self._read_words(words_for((block.size + 1) // 2))
                if not transform(words, stddev, block):
                    raise RuntimeError(
                        "the keystream is not random: the spare words of a block were used up"
                    )

    def _fill_doubles(self, result: NDArray[np.float64], stddev: float) -> None:
        for start in range(0, result.size, 2 * PAIRS):
            block = result[start : start + 2 * PAIRS]
            words = self._read_words(4 * ((block.size + 1) // 2))
            _double_box_muller(words, stddev, block, _SCRATCH)

    def _read_words(self, count: int) -> NDArray[np.uint32]:
        """Return fresh words in the scratch memory of this thread."""
        blocks = _blocks_of(count)
        with self._lock:
            self._keystream(blocks).read_into(_SCRATCH.random, _ZEROS[: BLOCK * blocks])
        return _SCRATCH.words[:count]

    def _renew_key(self, blocks: int) -> None:
        """Draw a new key now if the old one has fewer blocks left."""
        with self._lock:
            self._keystream(blocks)

    def _keystream(self, blocks: int) -> Keystream:
        """Return a keystream with at least this many blocks left; the caller holds the lock."""
        if self._stream is None or self._stream.left < blocks:
            self._stream = Keystream(self._source.read(32))
        return self._stream


def _blocks_for(normals: int) -> int:
    """Return how many blocks of AES the float32 normals of a whole fill take."""
    full, rest = divmod(normals, 2 * PAIRS)
    return full * _blocks_of(words_for(PAIRS)) + _blocks_of(words_for((rest + 1) // 2))


def _blocks_of(words: int) -> int:
    return -(-4 * words // BLOCK)


def _float_box_muller(
    words: NDArray[np.uint32], stddev: float, normals: NDArray[np.float32], scratch: _Scratch
) -> bool:
    """As :func:`._compiled_normals.box_muller`, by numpy."""
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


def _forget_keys() -> None:
    for stream in list(_STREAMS):
        stream._forget_key()


if hasattr(os, "register_at_fork"):  # not on every system
    os.register_at_fork(after_in_child=_forget_keys)
