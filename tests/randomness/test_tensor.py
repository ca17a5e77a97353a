"""The tensor stream: its law, its keystream, threads, keys, and what it refuses."""

from __future__ import annotations

import importlib.util
import math
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch
from scipy import stats

import discreet.randomness._normals as normals_module
from discreet.errors import InvalidValue
from discreet.randomness import NormalStream, source
from discreet.randomness._compiled_normals import PAIRS
from discreet.randomness._normals import Keystream
from randomness.goodness import REJECT
from randomness.keystreams import counters_encrypted
from randomness.scripted_source import ScriptedSource


def slow_normals(key: bytes, count: int, stddev: float) -> list[float]:
    """Box-Muller from the same keystream, number by number, in double precision (one block)."""
    pairs = (count + 1) // 2
    stream = counters_encrypted(key, 16 * pairs)
    cosines, sines = [], []
    for at in range(pairs):
        high = int.from_bytes(stream[4 * at : 4 * at + 4], "little")
        low = int.from_bytes(stream[4 * (pairs + at) : 4 * (pairs + at) + 4], "little")
        u = (2**32 * high + low + 0.5) / 2.0**64
        offset = 8 * pairs + 8 * at
        turn = int.from_bytes(stream[offset : offset + 8], "little", signed=True)
        angle = turn * math.pi / 2.0**63
        radius = stddev * math.sqrt(-2 * math.log(u))
        cosines.append(radius * math.cos(angle))
        sines.append(radius * math.sin(angle))
    return (cosines + sines)[:count]


@pytest.mark.parametrize("count", [1, 2, 7, 1000])
def test_against_slow_box_muller(count: int) -> None:
    key = bytes(range(32))
    fast = NormalStream(source=ScriptedSource(key)).array(count, stddev=1.5)
    assert fast == pytest.approx(slow_normals(key, count, 1.5), rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_normal_law(dtype: type) -> None:
    values = NormalStream(source=source(insecure_seed=1)).array(400_001, dtype=dtype, stddev=2)
    assert values.dtype == dtype
    assert np.isfinite(values).all()
    scaled = values.astype(float) / 2
    assert stats.kstest(scaled, "norm").pvalue > REJECT
    n = scaled.size
    assert abs(scaled.mean()) < 6 / math.sqrt(n)
    assert abs((scaled**2).mean() - 1) < 6 * math.sqrt(2 / n)
    assert abs((scaled**3).mean()) < 6 * math.sqrt(15 / n)
    assert abs((scaled**4).mean() - 3) < 6 * math.sqrt(96 / n)
    for bound in (3, 4):
        hits = int((np.abs(scaled) > bound).sum())
        assert stats.binomtest(hits, n, 2 * stats.norm.sf(bound)).pvalue > REJECT


def test_neighbours_and_halves_are_uncorrelated() -> None:
    """The cosine and the sine of one pair sit half a block apart."""
    block = 2 * PAIRS
    values = NormalStream(source=source(insecure_seed=2)).array(block)
    for first, second in (
        (values[:-1], values[1:]),
        (values[: block // 2], values[block // 2 :]),
        (values[: block // 2] ** 2, values[block // 2 :] ** 2),
    ):
        correlation = float(np.corrcoef(first, second)[0, 1])
        assert abs(correlation) < 6 / math.sqrt(first.size)


@pytest.mark.parametrize("factor", [0.95, 1.05])
def test_a_wrong_scale_is_rejected(factor: float) -> None:
    values = NormalStream(source=source(insecure_seed=3)).array(400_000, stddev=factor)
    assert stats.kstest(values, "norm").pvalue < REJECT


def test_the_tail_goes_beyond_a_32_bit_radius(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest radius word gives 9.4 standard deviations, the largest gives almost zero."""
    tail = math.sqrt(2 * math.log(2.0**65))
    # Of singles, the second word counts from the nearer end.
    for byte, reaches in ((0, (tail, tail)), (255, (0.0, math.sqrt(2 * 2.0**-32)))):

        def same(buffer: bytearray, zeros: memoryview, byte: int = byte) -> None:
            buffer[: len(zeros)] = bytes([byte]) * len(zeros)

        for dtype, reach in zip((np.float64, np.float32), reaches, strict=True):
            stream = NormalStream()
            stream.array(1)
            monkeypatch.setattr(stream._stream, "read_into", same)
            values = stream.array(2, dtype=dtype)
            assert float(np.hypot(*values)) == pytest.approx(reach, rel=1e-6, abs=1e-8)
            if dtype == np.float32:  # where every radius is a rare one
                with pytest.raises(RuntimeError, match="not random"):
                    stream.array(10_000, dtype=dtype)
    assert tail > 9.4


def test_tensors_of_every_floating_type() -> None:
    stream = NormalStream()
    assert stream.tensor((3, 4)).dtype == torch.get_default_dtype()
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        made = stream.tensor((3, 4), dtype=dtype, device="cpu")
        assert made.dtype == dtype
        assert tuple(made.shape) == (3, 4)
    one = stream.tensor(5)
    one += 1  # the memory is the caller's own and can be written
    assert tuple(one.shape) == (5,)
    assert stream.tensor(()).shape == ()
    assert stream.tensor((0, 3)).numel() == 0
    assert not stream.tensor(100, stddev=0).any()


def test_reproducible_only_by_the_insecure_seed() -> None:
    seeded = [NormalStream(source=source(insecure_seed=4)) for _ in range(2)]
    assert seeded[0].array(10).tolist() == seeded[1].array(10).tolist()
    assert "INSECURE seed 4" in seeded[0].provenance["randomness"]
    free = [NormalStream() for _ in range(2)]
    assert free[0].array(10).tolist() != free[1].array(10).tolist()
    numbers = free[0].array(100_000)
    assert np.unique(numbers).size == numbers.size


def test_the_key_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normals_module, "Keystream", partial(Keystream, blocks=4))
    keys = ScriptedSource(bytes(range(96)))
    stream = NormalStream(source=keys)
    assert keys.used == 0, "no key before it is needed"
    stream.array(4)
    assert keys.used == 32
    stream.array(4)
    assert keys.used == 32
    stream.array(4)
    assert keys.used == 64


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [
        ("shape", -1, {}),
        ("shape", (2, 1.5), {}),
        ("shape", (True,), {}),
        ("stddev", 3, {"stddev": -1.0}),
        ("stddev", 3, {"stddev": math.nan}),
        ("stddev", 3, {"stddev": math.inf}),
        ("stddev", 3, {"stddev": True}),
        ("dtype", 3, {"dtype": np.int64}),
        ("dtype", 3, {"dtype": np.float16}),
    ],
)
def test_bad_input_draws_nothing(name: str, shape: object, options: dict[str, object]) -> None:
    script = ScriptedSource()
    with pytest.raises(InvalidValue, match=name):
        NormalStream(source=script).array(shape, **options)
    assert script.used == 0


def test_bad_torch_dtype() -> None:
    with pytest.raises(InvalidValue, match="dtype"):
        NormalStream().tensor(3, dtype=torch.int64)


def test_fill_writes_the_same_stream_in_place() -> None:
    for dtype in (np.float32, np.float64):
        made = NormalStream(source=source(insecure_seed=5)).array(70_001, stddev=3, dtype=dtype)
        buffer = np.zeros((1, 70_001), dtype=dtype)
        NormalStream(source=source(insecure_seed=5)).fill(buffer, stddev=3)
        assert buffer[0].tolist() == made.tolist()
    shared = torch.zeros(1000)
    NormalStream().fill(shared.numpy())
    assert bool((shared != 0).any())


def test_fill_refuses_what_it_cannot_write() -> None:
    stream = NormalStream(source=ScriptedSource())
    fixed = np.zeros(3)
    fixed.flags.writeable = False
    for target in (np.zeros(3, dtype=np.int64), np.zeros((3, 3)).T[:2], np.zeros(4)[::2], fixed):
        with pytest.raises(InvalidValue, match="target"):
            stream.fill(target)
    with pytest.raises(InvalidValue, match="stddev"):
        stream.fill(np.zeros(3), stddev=-1.0)


def test_uniforms_keep_all_64_bits() -> None:
    """Against exact fractions, where rounding is finest and at the ends."""
    words = [0, 1, 2, 3, 2**52 - 1, 2**52, 2**53 - 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1]
    words += [int(w) for w in np.random.default_rng(6).integers(2**64, size=2000, dtype=np.uint64)]
    words += [w >> shift for shift in (8, 11, 12, 13, 30) for w in words[11:200]]
    high = np.array([word >> 32 for word in words], dtype=np.uint32)
    low = np.array([word % 2**32 for word in words], dtype=np.uint32)
    found = normals_module._uniforms(high, low, normals_module._Scratch())
    expected = [float(Fraction(2 * word + 1, 2**65)) for word in words]
    assert found.tolist() == expected, "rounded once, correctly"
    assert found[0] == 2.0**-65
    assert found[1] == 3 * 2.0**-65


def test_without_forks_the_module_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.register_at_fork")
    for name in ("discreet.randomness._normals", "discreet._threads"):
        found = importlib.util.find_spec(name)
        assert found is not None
        assert found.loader is not None
        found.loader.exec_module(importlib.util.module_from_spec(found))
