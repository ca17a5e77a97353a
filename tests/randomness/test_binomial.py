"""Binomial draws: exact weights, their law, and one table shared by threads."""

from __future__ import annotations

import math
import sys
import threading
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from discreet.errors import InvalidValue
from discreet.randomness import binomial, source
from discreet.randomness._discrete import BinomialWeights
from randomness.goodness import REJECT
from randomness.scripted_source import ScriptedSource


@pytest.mark.parametrize(
    ("trials", "probability"), [(1, 0.5), (5, 0.9), (40, 0.2), (300, 0.004), (1000, 0.5)]
)
def test_weights_enclose_the_exact_probabilities(trials: int, probability: float) -> None:
    exact = Fraction(probability)
    weights = BinomialWeights(trials=trials, probability=exact)

    def mass(k: int) -> Fraction:
        return math.comb(trials, k) * exact**k * (1 - exact) ** (trials - k)

    mode = mass(weights.value(0))
    assert mode == max(mass(k) for k in range(trials + 1))
    for bits in (40, 90):
        for index in range(2 * min(trials, 40)):
            lower, upper = weights.weight(index, bits)
            k = weights.value(index)
            true = mass(k) / mode if 0 <= k <= trials else Fraction(0)
            assert Fraction(lower, 2**bits) <= true <= Fraction(upper, 2**bits)
            assert upper - lower <= 2 * index + 2
    index = 2 * min(trials, 12) + 1
    tail = weights.tail(index, 60)
    if tail is not None:
        total = sum(
            mass(weights.value(i)) / mode
            for i in range(index, 2 * trials + 2)
            if 0 <= weights.value(i) <= trials
        )
        assert total <= Fraction(tail, 2**60)


@pytest.mark.parametrize(("trials", "probability"), [(60, "1/20"), (10, 0.7), (100_000, 0.004)])
def test_law(trials: int, probability: object) -> None:
    """A false alarm has the probability of ``goodness``; a rate that is off by a tenth is seen."""
    draws = source(insecure_seed=3)
    several = binomial(trials, probability, 20_000, source=draws)
    single = np.array([binomial(trials, probability, source=draws) for _ in range(20_000)])
    rate = float(Fraction(str(probability)))
    edges = np.unique(stats.binom.ppf(np.linspace(0, 1, 12)[1:-1], trials, rate))
    for planted, values in ((1.0, several), (1.0, single), (1.1, several)):
        below = stats.binom.cdf(edges, trials, planted * rate)
        expected = np.diff(np.concatenate(([0.0], below, [1.0]))) * values.size
        cells = np.bincount(np.searchsorted(edges, values), minlength=edges.size + 1)
        assert (stats.chisquare(cells, expected).pvalue > REJECT) == (planted == 1)


def test_certain_outcomes_need_no_bits() -> None:
    script = ScriptedSource(b"")
    assert binomial(7, 1, source=script) == 7
    assert binomial(7, 0, 3, source=script).tolist() == [0, 0, 0]
    assert binomial(0, 0.5, 2, source=script).tolist() == [0, 0]
    assert binomial(9, "1/3", 0).dtype == np.int64


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("trials", (-1, 0.5)),
        ("trials", (2.0, 0.5)),
        ("probability", (3, 1.5)),
        ("probability", (3, -0.1)),
        ("size", (3, 0.5, -1)),
    ],
)
def test_bad_input_draws_nothing(name: str, given: tuple[object, ...]) -> None:
    script = ScriptedSource(b"")
    with pytest.raises(InvalidValue, match=name):
        binomial(*given, source=script)
    assert script.used == 0


def test_threads_may_extend_one_table() -> None:
    """Weights are computed one from the other; threads that meet there must not skip one."""
    expected = BinomialWeights(trials=10_000, probability=Fraction(1, 2))
    right = [expected.weight(index, 64) for index in range(600)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            shared = BinomialWeights(trials=10_000, probability=Fraction(1, 2))
            found: list[list[tuple[int, int]]] = []

            def work(shared: BinomialWeights = shared, found: list[object] = found) -> None:
                found.append([shared.weight(index, 64) for index in range(600)])

            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert found == [right] * 4
    finally:
        sys.setswitchinterval(before)
