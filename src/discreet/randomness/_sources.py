"""Where the bits come from, and the uniform integers and orders that are drawn from them.

The exact samplers read the operating system's generator (``getrandom``)
directly, for single draws and in bulk. A user-space generator would be about
ten times faster per byte, but it would add state that a fork can copy, a
crash dump can show and a bug can rewind; at some 16 bytes a draw the system
call is about half of the cost, so nothing is kept between two calls and
there is nothing to protect. That makes :class:`SystemSource` safe across
forks and threads by construction: no byte is ever stored, so none is reused.

The one exception is :class:`discreet.randomness.NormalStream`, where millions of
values a step are wanted; it keys a stream cipher from here and says what that means.

The one switch for reproducible experiments is called ``insecure_seed``. A source
built with it says so in its ``provenance``, and whatever draws from a source
copies that provenance into what it returns or records.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn, final, overload

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CHUNK = 1 << 16


class Source(ABC):
    """A supply of independent uniform bits.

    Subclasses define :meth:`read` and :attr:`provenance`; every sampler of this
    package takes its bits from :meth:`read` alone, so that a test can script them.
    """

    __slots__ = ()

    @abstractmethod
    def read(self, count: int) -> bytes:
        """Return ``count`` fresh uniform bytes."""

    @property
    @abstractmethod
    def provenance(self) -> dict[str, str]:
        """What a release must record about its randomness."""

    @abstractmethod
    def derive(self, *labels: str | int) -> Source:
        """Return a source that is independent of this one for another worker."""

    @final
    def bits(self, count: int) -> int:
        """Return a uniform integer of ``count`` bits."""
        if count == 0:
            return 0
        size = (count + 7) // 8
        return int.from_bytes(self.read(size), "little") >> (8 * size - count)

    @final
    def words8(self, count: int) -> NDArray[np.uint8]:
        """Return ``count`` uniform bytes as an array."""
        return np.frombuffer(self.read(count), dtype=np.uint8)

    @final
    def words16(self, count: int) -> NDArray[np.uint16]:
        """Return ``count`` uniform 16-bit words."""
        return np.frombuffer(self.read(2 * count), dtype="<u2")

    @final
    def words32(self, count: int) -> NDArray[np.uint32]:
        """Return ``count`` uniform 32-bit words."""
        return np.frombuffer(self.read(4 * count), dtype="<u4")

    @final
    def words64(self, count: int) -> NDArray[np.uint64]:
        """Return ``count`` uniform 64-bit words."""
        return np.frombuffer(self.read(8 * count), dtype="<u8")


@final
class SystemSource(Source):
    """The operating system's cryptographic generator; the source of every private draw."""

    __slots__ = ()

    def read(self, count: int) -> bytes:
        return os.urandom(count)

    @property
    def provenance(self) -> dict[str, str]:
        return {"randomness": "operating system"}

    def derive(self, *labels: str | int) -> Source:
        """Return this source: two readers of the system never see the same byte."""
        _check_labels(labels)
        return self

    def __repr__(self) -> str:
        return "SystemSource()"


@final
class InsecureSeededSource(Source):
    """A reproducible source for experiments; it protects nothing.

    The bytes are the ChaCha20 keystream under the key SHA-256(seed, labels):
    whoever knows or guesses the seed can subtract the noise. Two copies of one
    stream would add the same noise twice, so the source refuses to be used in a
    forked child and to be pickled: give each worker its own with :meth:`derive`.

    >>> InsecureSeededSource(insecure_seed=7).read(4).hex()
    '698b7107'
    >>> InsecureSeededSource(insecure_seed=7).provenance
    {'randomness': 'INSECURE seed 7'}
    """

    __slots__ = ("_inner", "_labels", "_seed")

    def __init__(self, *, insecure_seed: int, labels: tuple[str | int, ...] = ()) -> None:
        self._seed = _validate.integer("insecure_seed", insecure_seed)
        self._labels = _check_labels(labels)
        text = repr(("discreet insecure seed", self._seed, self._labels))
        self._inner = _OnePass(hashlib.sha256(text.encode()).digest())

    def read(self, count: int) -> bytes:
        return self._inner.read(count)

    @property
    def provenance(self) -> dict[str, str]:
        steps = "".join(f" / {label}" for label in self._labels)
        return {"randomness": f"INSECURE seed {self._seed}{steps}"}

    def derive(self, *labels: str | int) -> Source:
        """Return the seeded source that belongs to ``labels``, from its beginning."""
        if not labels:
            raise InvalidValue("labels", labels, "at least one name or number of a worker")
        return InsecureSeededSource(insecure_seed=self._seed, labels=(*self._labels, *labels))

    def __repr__(self) -> str:
        return f"InsecureSeededSource(insecure_seed={self._seed}, labels={self._labels!r})"

    def __reduce__(self) -> NoReturn:
        raise NotApplicable(
            "a seeded source cannot be pickled: the copy would repeat its stream; send the seed "
            "and a worker label and build it there"
        )


@final
class KeyedSource(Source):
    """A source under a secret key, for noise that must be made again, such as correlated noise.

    The bytes are the ChaCha20 keystream under the SHA-256 of the key. Whoever knows the key knows
    the noise: it stays in memory, or in a file that only its owner reads. Like a seeded source it
    refuses to be used in a forked child and to be pickled.

    >>> one, same = (KeyedSource(bytes(32), provenance={}).derive("step", 3) for _ in range(2))
    >>> one.read(8) == same.read(8)
    True
    """

    __slots__ = ("_given", "_inner", "_key")

    def __init__(self, key: bytes, *, provenance: Mapping[str, str]) -> None:
        if type(key) is not bytes or len(key) != 32:
            raise InvalidValue("key", type(key).__name__, "32 bytes, drawn from source().read(32)")
        self._key, self._given = key, dict(provenance)
        self._inner = _OnePass(hashlib.sha256(b"discreet keyed source" + key).digest())

    def read(self, count: int) -> bytes:
        return self._inner.read(count)

    @property
    def provenance(self) -> dict[str, str]:
        return dict(self._given)

    def derive(self, *labels: str | int) -> KeyedSource:
        """Return the keyed source that belongs to ``labels``, from its beginning."""
        text = repr(_check_labels(labels)).encode()
        key = hmac.new(self._key, text, hashlib.sha256).digest()
        return KeyedSource(key, provenance=self._given)

    def __repr__(self) -> str:
        return "KeyedSource(...)"

    def __reduce__(self) -> NoReturn:
        raise NotApplicable("a keyed source cannot be pickled: the copy would repeat its stream")


_SYSTEM = SystemSource()


def source(*, insecure_seed: int | None = None) -> Source:
    """Return the operating system's source, or a reproducible and insecure one.

    Parameters
    ----------
    insecure_seed : int, optional
        The seed of a reproducible source, for experiments only.

    Returns
    -------
    Source
        The system's source, or a new :class:`InsecureSeededSource`.

    Raises
    ------
    InvalidValue
        If the seed is not an integer.

    Examples
    --------
    >>> source().provenance
    {'randomness': 'operating system'}
    >>> source(insecure_seed=7).provenance
    {'randomness': 'INSECURE seed 7'}
    """
    return _SYSTEM if insecure_seed is None else InsecureSeededSource(insecure_seed=insecure_seed)


def choose_source(given: Source | None, insecure_seed: int | None = None) -> Source:
    """Return the source that a caller asked for: one given, a seeded one, or the system's.

    Parameters
    ----------
    given : Source or None
        The ``source=`` of the caller.
    insecure_seed : int, optional
        The ``insecure_seed=`` of the caller.

    Returns
    -------
    Source
        What to draw from.

    Raises
    ------
    InvalidValue
        If both are given, or if ``given`` is not a source.

    Examples
    --------
    >>> choose_source(None).provenance
    {'randomness': 'operating system'}
    >>> choose_source(None, 7).provenance
    {'randomness': 'INSECURE seed 7'}
    """
    if given is None:
        return source(insecure_seed=insecure_seed)
    if insecure_seed is not None:
        raise InvalidValue("insecure_seed", insecure_seed, "None where a source is given")
    if not isinstance(given, Source):
        raise InvalidValue("source", given, "a Source, such as source(), or None")
    return given


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


def _check_labels(labels: tuple[str | int, ...]) -> tuple[str | int, ...]:
    for label in labels:
        if isinstance(label, bool) or not isinstance(label, str | int):
            raise InvalidValue("labels", label, "names (str) and numbers (int) of workers")
    return tuple(labels)


class _OnePass:
    """A keystream that is read once, by one process."""

    __slots__ = ("_keystream", "_lock", "_pid")

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

        cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None)
        self._keystream: Any = cipher.encryptor()
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def read(self, count: int) -> bytes:
        if os.getpid() != self._pid:
            raise NotApplicable(
                "a seeded source was copied by a fork and would repeat its stream; build one for "
                "each worker with source(insecure_seed=...).derive(worker)"
            )
        with self._lock:
            return bytes(self._keystream.update(bytes(count)))


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
