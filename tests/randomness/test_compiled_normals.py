"""The compiled Box-Muller transform: the numbers of numpy up to rounding, and the same law."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import stats

import discreet.randomness.tensor as tensor_module
from discreet.randomness import NormalStream, source
from discreet.randomness.compiled_normals import (
    TOLERANCE,
    box_muller,
    compiled_box_muller,
    numba_is_installed,
)
from randomness.goodness import REJECT


def transformed(
    function: Any, bits: list[int], turns: list[int], *, sines: int, stddev: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    words = [word >> 32 for word in bits] + [word % 2**32 for word in bits]
    words += [turn % 2**32 for turn in turns]
    normals = np.full(len(bits) + sines, np.nan, dtype=np.float32)
    with np.errstate(over="ignore"):  # the twin in plain Python wraps around
        function(np.array(words, dtype=np.uint32), stddev, normals)
    return normals[: len(bits)], normals[len(bits) :]


def hard_words() -> tuple[list[int], list[int]]:
    """The ends, powers of two and their neighbours, quarter turns, and random ones."""
    bits = [0, 1, 2, 3, 2**64 - 1, 2**64 - 2, 2**63, 2**63 - 1, 2**63 + 1]
    bits += [2**k + d for k in range(2, 63) for d in (-1, 0, 1)]
    bits += [2**64 - 2**k for k in range(1, 62)]
    border = math.isqrt(2**63) * 2**32  # between u and 1 - u
    bits += [border + d * 2**e for d in (-1, 0, 1) for e in (0, 11, 12, 32, 33, 40)]
    generator = np.random.default_rng(0)
    bits += [int(word) for word in generator.integers(2**64, size=4000, dtype=np.uint64)]
    turns = [0, 1, -1, 2**31 - 1, -(2**31)]
    turns += [q * 2**29 + d for q in range(-4, 4) for d in (-1, 0, 1) if q * 2**29 + d >= -(2**31)]
    missing = len(bits) - len(turns)
    turns += [int(turn) for turn in generator.integers(-(2**31), 2**31, size=missing)]
    return bits, turns


@pytest.mark.parametrize("compiled", [True, False])
def test_against_double_precision(compiled: bool) -> None:
    assert numba_is_installed()
    bits, turns = hard_words()
    if not compiled:
        bits, turns = bits[:400], turns[:400]
    function = compiled_box_muller() if compiled else box_muller
    cosines, sines = transformed(function, bits, turns, sines=len(bits) - 1, stddev=2.5)
    for at, (word, turn) in enumerate(zip(bits, turns, strict=True)):
        below = Fraction(2 * (2**64 - word) - 1, 2**65)  # 1 - u
        logarithm = (
            math.log1p(-float(below)) if below < 0.25 else math.log(Fraction(2 * word + 1, 2**65))
        )
        radius = 2.5 * math.sqrt(-2 * logarithm)
        angle = turn * math.pi / 2**31
        allowed = TOLERANCE * radius
        assert abs(cosines[at] - radius * math.cos(angle)) <= allowed
        if at < len(bits) - 1:
            assert abs(sines[at] - radius * math.sin(angle)) <= allowed


def test_the_tail_and_the_centre() -> None:
    function = compiled_box_muller()
    cosines, _ = transformed(function, [0, 2**64 - 1], [0, 0], sines=2)
    assert cosines[0] == pytest.approx(math.sqrt(2 * math.log(2.0**65)), rel=1e-6)
    assert cosines[1] == pytest.approx(2.0**-32, rel=1e-6), "1 - u = 2^-65 is not lost"


def test_many_random_words_against_double_precision() -> None:
    """Blocks of every length around that of the inner loops; odd ones lack the last sine."""
    generator = np.random.default_rng(4)
    for size in (1, 2, 3, 2047, 2048, 2049, 4097, 1_000_000):
        pairs = (size + 1) // 2
        words = generator.integers(2**32, size=3 * pairs, dtype=np.uint32)
        normals = np.full(size, np.nan, dtype=np.float32)
        compiled_box_muller()(words, 1.0, normals)
        high, low = words[: 2 * pairs].reshape(2, -1).astype(np.float64)
        below = ((2.0**32 - 1 - high) * 2**32 + (2.0**32 - 1 - low) + 0.5) * 2.0**-64
        above = (high * 2**32 + low + 0.5) * 2.0**-64
        logarithm = np.where(above < 0.5, np.log(above), np.log1p(-below))
        radius, angle = np.sqrt(-2 * logarithm), words[2 * pairs :] * (2 * math.pi / 2**32)
        expected = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size]
        error = np.abs(normals - expected) / np.concatenate([radius, radius])[:size]
        assert error.max() <= TOLERANCE


@pytest.mark.parametrize("count", [1, 2, 7, 70_001])
def test_a_stream_goes_on_compiled(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    by_numpy = NormalStream(source=source(insecure_seed=1)).array(count, stddev=3, dtype=np.float32)
    monkeypatch.setattr(tensor_module, "_COMPILE_AFTER", 0)
    stream = NormalStream(source=source(insecure_seed=1))
    compiled = stream.array(count, stddev=3, dtype=np.float32)
    assert compiled == pytest.approx(by_numpy, rel=1e-5, abs=1e-5)
    assert np.isfinite(compiled).all()


def test_when_a_stream_goes_on_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its own count alone, so that a seeded stream repeats itself."""
    calls = []
    compiled = compiled_box_muller()

    def noting(*args: Any) -> None:
        calls.append(1)
        compiled(*args)

    monkeypatch.setattr(tensor_module, "_COMPILE_AFTER", 1000)
    monkeypatch.setattr(tensor_module, "compiled_box_muller", lambda: noting)
    for _ in range(2):
        calls.clear()
        stream = NormalStream(source=source(insecure_seed=2))
        stream.array(1000, dtype=np.float32)
        assert not calls
        stream.array(10, dtype=np.float64)
        assert not calls, "doubles are left to numpy"
        stream.array(10, dtype=np.float32)
        assert len(calls) == 1
    monkeypatch.setattr(tensor_module, "numba_is_installed", lambda: False)
    stream.array(10, dtype=np.float32)
    assert len(calls) == 1


def test_normal_law(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_module, "_COMPILE_AFTER", 0)
    stream = NormalStream(source=source(insecure_seed=3))
    values = stream.array(400_001, dtype=np.float32, stddev=2).astype(float) / 2
    n = values.size
    assert stats.kstest(values, "norm").pvalue > REJECT
    assert abs((values**4).mean() - 3) < 6 * math.sqrt(96 / n)
    for bound in (3, 4):
        hits = int((np.abs(values) > bound).sum())
        assert stats.binomtest(hits, n, 2 * stats.norm.sf(bound)).pvalue > REJECT
    assert stats.kstest(values * 1.05, "norm").pvalue < REJECT
    assert not stream.array(100, stddev=0, dtype=np.float32).any()
