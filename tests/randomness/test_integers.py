"""Uniform integers and permutations: enumerated where possible, tested where not."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from discreet.randomness import permutation, source, uniform_integers
from randomness.goodness import REJECT
from randomness.scripted_source import ScriptedSource, ScriptExhausted


@pytest.mark.parametrize("below", [1, 2, 3, 5, 7, 10, 64, 100, 255, 256])
def test_every_byte_enumerated(below: int) -> None:
    """Over all first bytes each result is equally often, and the others are drawn again."""
    singles, bulk, again = Counter(), Counter(), 0
    for byte in range(256):
        try:
            singles[uniform_integers(below, source=ScriptedSource(bytes([byte])))] += 1
            bulk[int(uniform_integers(below, 1, source=ScriptedSource(bytes([byte])))[0])] += 1
        except ScriptExhausted:
            again += 1
    assert singles == bulk
    assert set(singles) == set(range(below))
    assert len(set(singles.values())) == 1
    assert sum(singles.values()) + again == 256
    assert again < 128


@pytest.mark.parametrize("below", [300, 40_000])
def test_two_bytes_enumerated(below: int) -> None:
    everything = b"".join(word.to_bytes(2, "little") for word in range(1 << 16))
    script = ScriptedSource(everything + bytes(1 << 17))
    expected = (1 << 16) // (1 << (below - 1).bit_length()) * below
    counts = np.bincount(uniform_integers(below, expected, source=script), minlength=below)
    assert counts.tolist() == [expected // below] * below


@pytest.mark.parametrize("below", [6, 1000, 100_003, 3 * 2**40, 2**63])
def test_chi_square_over_sixteenths(below: int) -> None:
    draws = uniform_integers(below, 100_000, source=source(insecure_seed=1))
    assert draws.dtype == np.int64
    assert draws.min() >= 0
    assert draws.max() < below
    parts = min(below, 16)
    edges = [-(-below * part // parts) for part in range(parts + 1)]
    counts = [int(((draws >= a) & (draws <= b - 1)).sum()) for a, b in itertools.pairwise(edges)]
    expected = [100_000 * (b - a) / below for a, b in itertools.pairwise(edges)]
    assert stats.chisquare(counts, expected).pvalue > REJECT


def test_any_precision() -> None:
    below = 3 * 10**100
    draws = [uniform_integers(below, source=source(insecure_seed=2).derive(k)) for k in range(600)]
    assert all(0 <= draw < below for draw in draws)
    thirds = Counter(draw // 10**100 for draw in draws)
    assert stats.chisquare([thirds[k] for k in range(3)]).pvalue > REJECT


def test_modulo_bias_would_be_seen() -> None:
    """The classic mutant: words modulo n."""
    draws = source(insecure_seed=3).words8(100_000) % np.uint8(100)
    assert stats.chisquare(np.bincount(draws, minlength=100)).pvalue < REJECT


def test_permutations_are_uniform_and_ties_are_drawn_again() -> None:
    seeded = source(insecure_seed=4)
    counts = Counter(tuple(permutation(4, source=seeded).tolist()) for _ in range(24_000))
    assert len(counts) == 24
    assert stats.chisquare(list(counts.values())).pvalue > REJECT
    tie = bytes(16)
    distinct = (9).to_bytes(8, "little") + (3).to_bytes(8, "little")
    assert permutation(2, source=ScriptedSource(tie + distinct)).tolist() == [1, 0]
    assert permutation(0).tolist() == []
    assert permutation(1).tolist() == [0]
