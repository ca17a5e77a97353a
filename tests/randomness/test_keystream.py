"""The keystream: counter mode, the key's end, nothing given out twice."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from discreet.randomness._normals import BLOCK, Keystream
from randomness.keystreams import counters_encrypted

KEY = bytes(range(32))


def read(stream: Keystream, blocks: int) -> bytes:
    buffer = bytearray(BLOCK * blocks + 16)
    stream.read_into(buffer, memoryview(bytes(BLOCK * blocks)))
    return bytes(buffer[: BLOCK * blocks])


@pytest.mark.parametrize("blocks", [[4], [1, 1, 2, 2944, 1, 12_288, 5]])
def test_openssl_is_counter_mode(blocks: list[int]) -> None:
    """Whatever the pieces, AES-256 of the counters, none twice, none left out."""
    stream = Keystream(KEY)
    found = b"".join(read(stream, count) for count in blocks)
    assert found == counters_encrypted(KEY, BLOCK * sum(blocks))


def test_a_key_ends() -> None:
    stream = Keystream(KEY, blocks=5)
    read(stream, 2)
    assert stream.left == 3
    with pytest.raises(RuntimeError, match="all of its blocks"):
        read(stream, 4)
    read(stream, 3)
    assert stream.left == 0
    with pytest.raises(RuntimeError, match="all of its blocks"):
        read(stream, 1)
    assert Keystream(KEY).left <= 2**32 - 2, "the counter of one key must not come around"


def test_gcm_and_ctr_are_one_stream() -> None:
    counter = Cipher(algorithms.AES(KEY), modes.CTR((2).to_bytes(16, "big"))).encryptor()
    assert read(Keystream(KEY), 100) == counter.update(bytes(1600))
