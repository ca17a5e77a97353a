"""The keystream: known answers, OpenSSL against the processor, nothing given out twice."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

import discreet.randomness.keystream as keystream_module
from discreet.randomness.compiled_keystream import (
    AT_ONCE,
    compiled_encrypt,
    lanes_of_host,
    round_keys,
)
from discreet.randomness.keystream import BLOCK, Keystream
from randomness.keystreams import counters_encrypted

KEY = bytes(range(32))
LANES = [lanes for lanes in (1, 2, 4) if lanes <= lanes_of_host()]


def read(stream: Keystream, blocks: int) -> bytes:
    buffer = bytearray(BLOCK * blocks + 16)
    stream.read_into(buffer, memoryview(bytes(BLOCK * blocks)))
    return bytes(buffer[: BLOCK * blocks])


def encrypted(keys: np.ndarray, first: int, lanes: int) -> bytes:
    found = np.zeros(BLOCK * AT_ONCE, dtype=np.uint8)
    compiled_encrypt(lanes)(keys.ctypes.data, first, found.ctypes.data)
    return found.tobytes()


def test_round_keys_are_those_of_the_standard() -> None:
    """FIPS 197, appendix A.3."""
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    rows = [row.tobytes().hex() for row in round_keys(key)]
    assert rows[0] + rows[1] == key.hex()
    assert rows[2] == "9ba354118e6925afa51a8b5f2067fcde"
    assert rows[3] == "a8b09c1a93d194cdbe49846eb75d5b9a"
    assert rows[14] == "fe4890d1e6188d0b046df344706c631e"


@pytest.mark.parametrize("blocks", [[4], [1, 1, 2, 2944, 1, 12_288, 5]])
def test_openssl_is_counter_mode(blocks: list[int]) -> None:
    """Whatever the pieces, AES-256 of the counters, none twice, none left out."""
    stream = Keystream(KEY)
    found = b"".join(read(stream, count) for count in blocks)
    assert found == counters_encrypted(KEY, BLOCK * sum(blocks))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("first", [2, 3, 255, 256, 65_530, 2**24 - 7, 2**26 + 1, 2**32 - AT_ONCE])
def test_the_processor_is_counter_mode(lanes: int, first: int) -> None:
    for key in (KEY, bytes(32), bytes([255] * 32), np.random.default_rng(first).bytes(32)):
        found = encrypted(round_keys(key), first, lanes)
        assert found == counters_encrypted(key, len(found), first=first)
    assert found != encrypted(round_keys(KEY), first + 1 - 2 * (first > 2**31), lanes)


def test_wherever_it_begins_the_stream_is_the_same() -> None:
    """What compiled loops take in between is not given out by OpenSSL as well."""
    stream = Keystream(KEY)
    whole = counters_encrypted(KEY, BLOCK * 60)
    assert read(stream, 3) == whole[: 3 * BLOCK]
    assert stream.take(40) == 5
    assert read(stream, 2) == whole[43 * BLOCK : 45 * BLOCK]
    assert read(stream, 5) == whole[45 * BLOCK : 50 * BLOCK]
    assert stream.take(1) == 52
    assert read(stream, 9) == whole[51 * BLOCK :]


def test_a_key_ends() -> None:
    stream = Keystream(KEY, blocks=5)
    stream.take(2)
    assert stream.left == 3
    read(stream, 3)
    assert stream.left == 0
    for more in (lambda: stream.take(1), lambda: read(stream, 1)):
        with pytest.raises(RuntimeError, match="all of its blocks"):
            more()
    assert Keystream(KEY).left <= 2**32 - 2 - AT_ONCE, "the counter of one key must not come around"


def test_compiled_keys_are_compared_with_openssl(monkeypatch: pytest.MonkeyPatch) -> None:
    if lanes_of_host():
        keys = Keystream(KEY).compiled_keys
        assert keys is not None
        assert (keys == round_keys(KEY)).all()
    monkeypatch.setattr(keystream_module, "lanes_of_host", lambda: 0)
    assert Keystream(KEY).compiled_keys is None, "a processor without the instructions"


@pytest.mark.parametrize("place", [(0, 0), (7, 3), (14, 15)])
def test_one_wrong_bit_of_a_round_key_is_noticed(
    place: tuple[int, int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def wrong(key: bytes) -> np.ndarray:
        keys = round_keys(key)
        keys[place] ^= 1
        return keys

    keystream_module._warn_once.cache_clear()
    monkeypatch.setattr(keystream_module, "lanes_of_host", lambda: max(LANES, default=0))
    monkeypatch.setattr(keystream_module, "round_keys", wrong)
    with caplog.at_level(logging.WARNING):
        assert Keystream(KEY).compiled_keys is None
        assert Keystream(bytes(32)).compiled_keys is None
    assert len(caplog.records) == (1 if LANES else 0), "said once"


def test_gcm_and_ctr_are_one_stream() -> None:
    counter = Cipher(algorithms.AES(KEY), modes.CTR((2).to_bytes(16, "big"))).encryptor()
    assert read(Keystream(KEY), 100) == counter.update(bytes(1600))
