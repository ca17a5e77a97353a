"""Counter mode, the slow and obvious way."""

from __future__ import annotations

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes


def counters_encrypted(key: bytes, count: int, *, first: int = 2) -> bytes:
    """So many bytes of AES of twelve zero bytes and the counter, which begins at ``first``."""
    block = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    counters = range(first, first + (count + 15) // 16)
    return b"".join(block.update(bytes(12) + c.to_bytes(4, "big")) for c in counters)[:count]
