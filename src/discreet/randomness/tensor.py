"""Gaussian noise for tensors: millions of values a step from a cryptographic keystream.

The stream is AES-256 in counter mode (the keystream of GCM, for which OpenSSL has
the fastest code) under a key drawn from the operating system, turned into normals
by the Box-Muller transform: the radius from 64 bits
in double precision, so that the tail reaches 9.4 standard deviations as it
should (a 32-bit radius would stop at 6.7), and the angle from 32 bits for
float32 and 64 bits for float64. With numba (the extra ``jit``), a stream that
has given some millions of float32 values goes on with a compiled transform,
which is several times as fast and equal up to rounding.

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
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue
from discreet.randomness.compiled_normals import compiled_box_muller, numba_is_installed
from discreet.randomness.sources import Source, resolve

if TYPE_CHECKING:
    import torch
    from numpy.typing import DTypeLike, NDArray

__all__ = ["NormalStream"]

_PAIRS = 1 << 13  # in a block: more cost memory, fewer cost time
_REKEY_AFTER = 1 << 30
_COMPILE_AFTER = 1 << 22  # normals: compiling earlier would take longer than it saves
_PLAIN_SCALES = (1e-9, 1e9)  # whose squares are far from the ends of float32
_LARGEST_SCALE = {4: 1e30, 8: 1e290}  # by bytes; so small or large, values would lose bits
_ZEROS = memoryview(bytes(16 * _PAIRS))

_STREAMS: weakref.WeakSet[NormalStream] = weakref.WeakSet()


class _Scratch(threading.local):
    """Working memory of one thread, reused: fresh pages would cost more than the normals."""

    def __init__(self) -> None:
        self.random = bytearray(16 * _PAIRS + 16)
        self.words = np.frombuffer(self.random, dtype="<u4")
        self.doubles = np.empty((2, _PAIRS), dtype=np.float64)
        self.floats = self.doubles[1].view(np.float32).reshape(2, _PAIRS)


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
        self._source = resolve(source)
        self._given = 0
        self._forget()
        _STREAMS.add(self)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._keystream: Any = None
        self._left = 0
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
        if kind not in (np.dtype(np.float32), np.dtype(np.float64)):
            raise InvalidValue("dtype", dtype, "float32 or float64")
        result = np.empty(math.prod(dims), dtype=kind)
        self._fill_normals(result, stddev)
        return result.reshape(dims)

    def fill(self, target: NDArray[Any], *, stddev: float = 1.0) -> None:
        """Overwrite a float32 or float64 array with independent N(0, stddev^2), in place.

        Nothing is allocated. For a torch tensor on the CPU pass ``tensor.numpy()``.

        >>> buffer = np.zeros((2, 3), dtype=np.float32)
        >>> NormalStream().fill(buffer, stddev=2.0)
        >>> bool((buffer != 0).all())
        True
        """
        stddev = _validate.real("stddev", stddev, at_least=0)
        if target.dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
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
        angle_bytes = kind.itemsize
        if stddev and not _PLAIN_SCALES[0] <= stddev <= _PLAIN_SCALES[1]:
            most = _LARGEST_SCALE[angle_bytes]
            if not 1 / most <= stddev <= most:
                raise InvalidValue("stddev", stddev, f"0, or 1/{most:g} to {most:g} in {kind}")
            self._fill_normals(result, 1.0)
            result *= kind.type(stddev)
            return
        transform: Callable[..., None] = _box_muller
        if angle_bytes == 4:
            # By what this stream has given, so that a seeded one repeats itself.
            if self._given >= _COMPILE_AFTER and numba_is_installed():
                transform = compiled_box_muller()
            self._given += result.size
        random, words = _SCRATCH.random, _SCRATCH.words
        for start in range(0, result.size, 2 * _PAIRS):
            block = result[start : start + 2 * _PAIRS]
            count = (2 + angle_bytes // 4) * ((block.size + 1) // 2)
            self._fill(random, 4 * count)
            transform(words[:count], stddev, block)

    def _fill(self, buffer: bytearray, count: int) -> None:
        if self._pid != os.getpid():
            self._forget()
        with self._lock:
            if self._left < count:
                self._keystream = _keystream(self._source.read(32))
                self._left = _REKEY_AFTER
            self._left -= count
            self._keystream.update_into(_ZEROS[:count], buffer)


def _box_muller(words: NDArray[np.uint32], stddev: float, normals: NDArray[Any]) -> None:
    """As :func:`.compiled_normals.box_muller`, by numpy; an angle has two words for float64."""
    kind = normals.dtype
    pairs = (normals.size + 1) // 2
    cosines, sines = normals[:pairs], normals[pairs:]
    squares = _uniforms(words[:pairs], words[pairs : 2 * pairs])
    np.log(squares, out=squares)
    squares *= -2.0 * stddev * stddev
    scratch = _SCRATCH.floats if kind.itemsize == 4 else _SCRATCH.doubles
    radius, angle = scratch[0, :pairs], scratch[1, :pairs]
    # In double precision the radius takes the place of its own square.
    np.copyto(radius, squares, casting="same_kind")
    np.sqrt(radius, out=radius)
    np.copyto(angle, words[2 * pairs :].view(f"<i{kind.itemsize}"), casting="unsafe")
    angle *= kind.type(math.pi * 2.0 ** (1 - 8 * kind.itemsize))
    np.cos(angle, out=cosines)
    cosines *= radius
    np.sin(angle[: sines.size], out=sines)
    sines *= radius[: sines.size]


def _uniforms(high: NDArray[np.uint32], low: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Return ``(2^32 high + low + 1/2) / 2^64`` in scratch memory, rounded once."""
    uniform, rest = _SCRATCH.doubles[0, : high.size], _SCRATCH.doubles[1, : high.size]
    np.multiply(low, 2.0**-64, out=rest)
    rest += 2.0**-65
    np.multiply(high, 2.0**-32, out=uniform)
    uniform += rest
    return uniform


def _forget_after_fork() -> None:
    for stream in list(_STREAMS):
        stream._forget()


os.register_at_fork(after_in_child=_forget_after_fork)


def _keystream(key: bytes) -> Any:
    """AES-256 of the counters 2, 3, ...: what GCM adds to the text, with a nonce of zeros.

    Each key is used for one nonce and at most :data:`_REKEY_AFTER` bytes, far below the 2^36 - 32
    at which the counter would begin anew. No tag is ever made.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    return Cipher(algorithms.AES(key), modes.GCM(bytes(12))).encryptor()
