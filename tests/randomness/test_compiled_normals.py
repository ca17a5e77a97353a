"""The compiled Box-Muller transform: the numbers of numpy up to rounding, and the same law."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy import stats

import discreet.randomness._normals as normals_module
from discreet._threads import numba_works
from discreet.randomness import NormalStream, source
from discreet.randomness._compiled_normals import (
    PAIRS,
    RARE,
    TOLERANCE,
    box_muller,
    compiled_box_muller,
    words_for,
)
from discreet.randomness._normals import Keystream
from randomness.goodness import REJECT


def is_rare(word: int) -> bool:
    return word < RARE or word >= 2**32 - RARE


def transformed(
    function: Any, bits: list[int], turns: list[int], *, sines: int, stddev: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Normals of radii with 64 given bits, of which only rare ones use the lower half."""
    words = [word >> 32 for word in bits] + [turn % 2**32 for turn in turns]
    near_one = [word >> 63 for word in bits]
    spare = [
        (2**32 - 1 - word % 2**32 if upper else word % 2**32)
        for word, upper in zip(bits, near_one, strict=True)
        if is_rare(word >> 32)
    ]
    normals = np.full(len(bits) + sines, np.nan, dtype=np.float32)
    with np.errstate(over="ignore", divide="ignore"):  # the twin in plain Python wraps around
        assert function(np.array(words + spare, dtype=np.uint32), stddev, normals)
        if spare:
            assert not function(np.array((words + spare)[:-1], dtype=np.uint32), stddev, normals)
            assert function(np.array(words + spare, dtype=np.uint32), stddev, normals)
    return normals[: len(bits)], normals[len(bits) :]


def uniform_of(word: int) -> Fraction:
    if is_rare(word >> 32):
        return Fraction(2 * word + 1, 2**65)
    return Fraction(2 * (word >> 32) + 1, 2**33)


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
    assert numba_works()
    bits, turns = hard_words()
    if not compiled:
        bits, turns = bits[:400], turns[:400]
    function = compiled_box_muller() if compiled else box_muller
    cosines, sines = transformed(function, bits, turns, sines=len(bits) - 1, stddev=2.5)
    for at, (word, turn) in enumerate(zip(bits, turns, strict=True)):
        below = 1 - uniform_of(word)
        logarithm = math.log1p(-float(below)) if below < 0.25 else math.log(uniform_of(word))
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


def test_a_radius_without_its_second_word_is_off_by_rounding_only() -> None:
    """Half a unit of 2^-32, where the smaller of u and 1 - u is at least RARE of them."""
    smallest = RARE * 2.0**-32
    for end, nearby in ((smallest, smallest + 2.0**-33), (1 - smallest, 1 - smallest - 2.0**-33)):
        first, second = (math.sqrt(-2 * math.log(u)) for u in (end, nearby))
        assert abs(first / second - 1) < 1.01 * 2.0**-24


def expected_normals(words: np.ndarray, pairs: int) -> tuple[np.ndarray, np.ndarray]:
    high, turns, spare = np.split(words, [pairs, 2 * pairs])
    near_one = high >= 2**31
    smaller = np.where(near_one, ~high, high)
    rare = smaller < RARE
    uniform = (smaller + 0.5) * 2.0**-32
    uniform[rare] = smaller[rare] * 2.0**-32 + (spare[: rare.sum()] + 0.5) * 2.0**-64
    logarithm = np.where(near_one, np.log1p(-uniform), np.log(uniform))
    radius, angle = np.sqrt(-2 * logarithm), turns * (2 * math.pi / 2**32)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)]), radius


def test_many_random_words_against_double_precision() -> None:
    """Blocks of every length around that of the inner loops; odd ones lack the last sine."""
    generator = np.random.default_rng(4)
    rare = 0
    for size in (1, 2, 3, 63, 127, 128, 129, 2047, 2048, 2049, 4097, 2 * PAIRS, 1_000_000):
        pairs = (size + 1) // 2
        words = generator.integers(2**32, size=words_for(pairs), dtype=np.uint32)
        normals = np.full(size, np.nan, dtype=np.float32)
        assert compiled_box_muller()(words, 1.0, normals)
        expected, radius = expected_normals(words, pairs)
        error = np.abs(normals - expected[:size]) / np.concatenate([radius, radius])[:size]
        assert error.max() <= TOLERANCE
        rare += int(((words[:pairs] < RARE) | (words[:pairs] >= 2**32 - RARE)).sum())
    assert rare > 900, "the comparison has seen second words"


def test_there_are_enough_spare_words() -> None:
    """Each pair needs one with probability 2 RARE / 2^32; the tail is a binomial one."""
    for pairs in (1, 2, 64, 65, 100, 1000, 4096, PAIRS):
        spare = words_for(pairs) - 2 * pairs
        short = stats.binom.logsf(spare, pairs, 2 * RARE / 2**32) if spare < pairs else -math.inf
        assert short < math.log(1e-90)


@pytest.mark.parametrize("count", [1, 2, 7, 70_001])
def test_a_stream_goes_on_compiled(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    by_numpy = NormalStream(source=source(insecure_seed=1)).array(count, stddev=3, dtype=np.float32)
    monkeypatch.setattr(normals_module, "_COMPILE_AFTER", 0)
    stream = NormalStream(source=source(insecure_seed=1))
    compiled = stream.array(count, stddev=3, dtype=np.float32)
    assert compiled == pytest.approx(by_numpy, rel=1e-5, abs=1e-5)
    assert np.isfinite(compiled).all()


def test_when_a_stream_goes_on_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its own count alone, so that a seeded stream repeats itself."""
    calls = []
    compiled = compiled_box_muller()

    def noting(*args: Any) -> bool:
        calls.append(1)
        return compiled(*args)

    monkeypatch.setattr(normals_module, "_COMPILE_AFTER", 1000)
    monkeypatch.setattr(normals_module, "compiled_box_muller", lambda: noting)
    for _ in range(2):
        calls.clear()
        stream = NormalStream(source=source(insecure_seed=2))
        stream.array(1000, dtype=np.float32)
        assert not calls
        stream.array(10, dtype=np.float64)
        assert not calls, "doubles are left to numpy"
        stream.array(10, dtype=np.float32)
        assert len(calls) == 1
    monkeypatch.setattr(normals_module, "numba_works", lambda: False)
    stream.array(10, dtype=np.float32)
    assert len(calls) == 1


def test_normal_law(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normals_module, "_COMPILE_AFTER", 0)
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


def test_a_block_without_enough_spare_words_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A keystream of zeros makes every radius a rare one; old noise must not pass for new."""
    monkeypatch.setattr(normals_module, "_COMPILE_AFTER", 0)
    stream = NormalStream()
    monkeypatch.setattr(
        Keystream,
        "read_into",
        lambda self, buffer, zeros: buffer.__setitem__(slice(len(zeros)), zeros),
    )
    with pytest.raises(RuntimeError, match="not random"):
        stream.fill(np.empty(4 * PAIRS, dtype=np.float32))


def test_keys_change_at_the_same_places_with_and_without_compiled_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_block = -(-words_for(PAIRS) // 4)
    monkeypatch.setattr(normals_module, "Keystream", partial(Keystream, blocks=7 * of_block // 2))
    monkeypatch.setattr(normals_module, "_TOGETHER", 2)
    found = []
    for after in (0, 10**18):
        monkeypatch.setattr(normals_module, "_COMPILE_AFTER", after)
        stream = NormalStream(source=source(insecure_seed=5))
        parts = [stream.array(10 * PAIRS, dtype=np.float32) for _ in range(2)]
        found.append(np.concatenate(parts))
    assert found[0] == pytest.approx(found[1], rel=1e-5, abs=1e-5)
