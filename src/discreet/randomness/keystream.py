"""Random bytes in bulk: AES-256 of counters, under a key that is drawn by the caller."""

from __future__ import annotations

import logging
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet.randomness.compiled_keystream import (
    AT_ONCE,
    compiled_encrypt,
    lanes_of_host,
    round_keys,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["BLOCK", "Keystream"]

BLOCK = 16  # bytes of a block of AES
_FIRST = 2  # the counter that GCM begins with
_LOG = logging.getLogger(__name__)


@final
class Keystream:
    """AES-256 of the counters 2, 3, ...: what GCM adds to a text, with a nonce of zeros.

    Every block of it is given out once. A key is good for ``blocks``, by default one GiB: far below
    the 2^32 - 2 at which the counter would begin anew.
    """

    def __init__(self, key: bytes, *, blocks: int = 1 << 26) -> None:
        self._key = key
        self._next = _FIRST
        self._end = _FIRST + blocks
        self._cipher: Any = None
        self._cipher_at = 0

    @property
    def left(self) -> int:
        """How many blocks are left."""
        return self._end - self._next

    def take(self, blocks: int) -> int:
        """Give out so many blocks as the first of their counters, to be encrypted elsewhere."""
        if not 0 <= blocks <= self.left:  # a check of its own: nothing may come twice
            raise RuntimeError("this key has given out all of its blocks")
        first = self._next
        self._next += blocks
        return first

    def read_into(self, buffer: bytearray, zeros: memoryview) -> None:
        """Fill the buffer with blocks from OpenSSL, as many bytes as there are zeros."""
        assert len(zeros) % BLOCK == 0
        first = self.take(len(zeros) // BLOCK)
        if self._cipher is None or self._cipher_at != first:
            self._cipher = _openssl(self._key, first)
        self._cipher.update_into(zeros, buffer)
        self._cipher_at = self._next

    @cached_property
    def compiled_keys(self) -> NDArray[np.uint8] | None:
        """The round keys for compiled loops; None where they and OpenSSL do not agree."""
        return _compared_keys(self._key)


def _openssl(key: bytes, first: int) -> Any:
    """A cipher that begins with a counter. OpenSSL has the fastest code for GCM."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    mode = modes.GCM(bytes(12)) if first == _FIRST else modes.CTR(first.to_bytes(BLOCK, "big"))
    return Cipher(algorithms.AES(key), mode).encryptor()


def _compared_keys(key: bytes) -> NDArray[np.uint8] | None:
    lanes = lanes_of_host()
    if not lanes:
        return None
    keys = round_keys(key)
    found = np.zeros(BLOCK * AT_ONCE, dtype=np.uint8)
    # Counters that no stream comes to.
    first = (1 << 32) - AT_ONCE
    compiled_encrypt(lanes)(keys.ctypes.data, first, found.ctypes.data)
    if found.tobytes() == _openssl(key, first).update(bytes(found.size)):
        return keys
    _warn_once()
    return None


@lru_cache(maxsize=1)
def _warn_once() -> None:
    _LOG.warning("this processor's AES and OpenSSL do not agree; noise goes on with OpenSSL")
