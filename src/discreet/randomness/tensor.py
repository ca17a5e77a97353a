"""Gaussian noise for tensors: millions of values a step from a cryptographic keystream.

The stream is AES-256 in counter mode under a key drawn from the operating
system, turned into normals by the Box-Muller transform: the radius from 64 bits
in double precision, so that the tail reaches 9.4 standard deviations as it
should (a 32-bit radius would stop at 6.7), and the angle from 32 bits for
float32 and 64 bits for float64.

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
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue
from discreet.randomness.sources import Source, resolve

if TYPE_CHECKING:
    import torch
    from numpy.typing import DTypeLike, NDArray

__all__ = ["NormalStream"]

_PAIRS = 1 << 14
_REKEY_AFTER = 1 << 30
_ZEROS = memoryview(bytes(16 * _PAIRS))

_STREAMS: weakref.WeakSet[NormalStream] = weakref.WeakSet()


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
        return self._normals(math.prod(dims), stddev, kind).reshape(dims)

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

    def _normals(self, count: int, stddev: float, kind: np.dtype[Any]) -> NDArray[Any]:
        result = np.empty(count, dtype=kind)
        scratch = bytearray(16 * _PAIRS + 16)
        for start in range(0, count, 2 * _PAIRS):
            stop = min(start + 2 * _PAIRS, count)
            pairs = (stop - start + 1) // 2
            angle_bytes = 4 if kind.itemsize == 4 else 8
            self._fill(scratch, (8 + angle_bytes) * pairs)
            uniform = np.frombuffer(scratch, dtype="<u8", count=pairs).astype(np.float64)
            uniform += 0.5
            uniform *= 2.0**-64
            radius = np.log(uniform, out=uniform)
            radius *= -2.0
            np.sqrt(radius, out=radius)
            radius *= stddev
            turns = np.frombuffer(scratch, dtype=f"<i{angle_bytes}", count=pairs, offset=8 * pairs)
            angle = turns.astype(kind)
            angle *= kind.type(math.pi * 2.0 ** (1 - 8 * angle_bytes))
            lengths = radius.astype(kind, copy=False)
            np.multiply(lengths, np.cos(angle), out=result[start : start + pairs])
            rest = stop - start - pairs
            np.multiply(
                lengths[:rest], np.sin(angle, out=angle)[:rest], out=result[start + pairs : stop]
            )
        return result

    def _fill(self, buffer: bytearray, count: int) -> None:
        if self._pid != os.getpid():
            self._forget()
        with self._lock:
            if self._left < count:
                self._keystream = _keystream(self._source.read(32))
                self._left = _REKEY_AFTER
            self._left -= count
            self._keystream.update_into(_ZEROS[:count], buffer)


def _forget_after_fork() -> None:
    for stream in list(_STREAMS):
        stream._forget()


os.register_at_fork(after_in_child=_forget_after_fork)


def _keystream(key: bytes) -> Any:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
