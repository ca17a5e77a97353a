"""Selection: exact probabilities, exact comparison of runners, independence of the cuts."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from discreet.errors import InvalidValue, NotApplicable
from discreet.randomness import Race, Source, select, source
from discreet.randomness._race import _Runner
from randomness.goodness import REJECT
from randomness.scripted_source import ScriptedSource, words

SCORES = [
    [0.0, 1.0, 2.5],
    [0, 0, 0, 0],
    [Fraction(1, 3), 1, -2.0, 1000 * 0.001],
    [1e15, 1e15 + 1, 1e15 - 1],
    [-700.0, -701.0],
]


def probabilities(scores: list[object], rate: Fraction = Fraction(1)) -> list[float]:
    with mpmath.workprec(2000):
        exact = [Fraction(score) * rate for score in scores]
        top = max(exact)
        weights = [
            mpmath.exp(mpmath.mpf((x - top).numerator) / (x - top).denominator) for x in exact
        ]
        return [float(weight / mpmath.fsum(weights)) for weight in weights]


def tally(scores: object, seeded: Source, times: int, **options: object) -> list[int]:
    counts = Counter(select(scores, source=seeded, **options) for _ in range(times))
    return [counts[i] for i in range(len(scores))]


@pytest.mark.slow
@pytest.mark.parametrize("scores", SCORES, ids=str)
def test_frequencies(scores: list[object]) -> None:
    counts = tally(scores, source(insecure_seed=1), 10_000)
    expected = [10_000 * p for p in probabilities(scores)]
    assert stats.chisquare(counts, expected).pvalue > REJECT


@pytest.mark.slow
def test_rate_multiplies_exactly() -> None:
    rate = Fraction(1, 7)
    counts = tally([0, 10, 5], source(insecure_seed=2), 10_000, rate=rate)
    expected = [10_000 * p for p in probabilities([0, 10, 5], rate)]
    assert stats.chisquare(counts, expected).pvalue > REJECT
    assert stats.chisquare(tally([0, 9], source(insecure_seed=3), 5_000, rate=0)).pvalue > REJECT


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["0.8", "1.25", "2", "0"])
def test_wrong_rates_are_seen(wrong: str) -> None:
    """Mutants: an exponential mechanism with its rate off is rejected by the same test."""
    scores = [0.0, 2.0, 3.0, 1.0]
    counts = tally(scores, source(insecure_seed=4), 6_000, rate=wrong)
    right = stats.chisquare(counts, [6_000 * p for p in probabilities(scores, Fraction(wrong))])
    assert right.pvalue > REJECT
    assert stats.chisquare(counts, [6_000 * p for p in probabilities(scores)]).pvalue < REJECT


def test_many_candidates() -> None:
    """60 000 candidates in two groups of unequal weight."""
    scores = np.zeros(60_000)
    scores[:15_000] = math.log(3)  # the first quarter has half of the weight
    seeded = source(insecure_seed=5)
    winners = [select(scores, source=seeded) for _ in range(150)]
    assert stats.binomtest(sum(w < 15_000 for w in winners), 150).pvalue > REJECT
    assert len(set(winners)) > 140


@pytest.mark.slow
def test_parts_do_not_matter() -> None:
    scores = np.linspace(-3, 3, 30)
    counts = Counter()
    seeded = source(insecure_seed=6)
    for _ in range(3_000):
        race = Race(source=seeded)
        race.enter(scores[:1])
        race.enter(scores[1:17])
        race.enter(scores[17:].tolist())
        assert race.entered == 30
        counts[race.winner()] += 1
    expected = [3_000 * p for p in probabilities(scores.tolist())]
    assert stats.chisquare([counts[i] for i in range(30)], expected).pvalue > REJECT


def test_a_race_ends() -> None:
    race = Race()
    with pytest.raises(NotApplicable):
        race.winner()
    race.enter([1.0])
    assert race.winner() == 0
    with pytest.raises(NotApplicable):
        race.winner()


def test_enormous_gaps_and_single_candidates() -> None:
    assert select([1e150, -1e150]) == 0
    assert select([-1e100, 0.0, 1e100], rate="1e40") == 2
    assert select([3]) == 0
    assert select([10**60, 10**60 + 5000]) == 1, "doubles cannot tell these two apart"
    assert select(np.array([2**63 - 1, 2**63 - 6001], dtype=np.int64)) == 0


# --- the exact comparison -----------------------------------------------------------------


def runner(index: int, exponent: Fraction | int, steps: int) -> _Runner:
    return _Runner(index=index, exponent=Fraction(exponent), begin=0.0, steps=steps)


@pytest.mark.parametrize("gap", [0, Fraction(1, 3), 1, 20])
def test_clear_comparisons_take_no_bits(gap: Fraction | int) -> None:
    """E_a < E_b e^gap decides, on both sides of the threshold, and whoever is asked."""
    steps = 10**9
    threshold = int(steps * math.exp(float(gap)))
    nothing = ScriptedSource()
    for own, expected in ((int(threshold * 0.999) - 2, True), (int(threshold * 1.001) + 2, False)):
        first, second = runner(0, gap, own), runner(1, 0, steps)
        assert first.beats(second, nothing) is expected
        assert second.beats(first, nothing) is not expected
    assert nothing.used == 0


def test_ties_are_settled_by_further_bits() -> None:
    """Equal steps and scores: the runner whose next bits are smaller is earlier."""
    low, high = words(0xFFFFFFFF), words(0)  # U above 1/2: bit 0; below: bit 1
    for mine, other, expected in ((low, high, True), (high, low, False)):
        first, second = runner(0, 0, 12345), runner(1, 0, 12345)
        script = ScriptedSource(mine * 8 + other * 8)
        assert first.beats(second, script) is expected
        assert script.used == 64
        assert (first.bits, second.bits) == (48, 48)
    first, second = runner(0, 0, 7), runner(1, 0, 7)
    script = ScriptedSource(low * 16 + low * 8 + high * 8)
    assert first.beats(second, script) is True


def test_forced_ties_are_fair() -> None:
    """Whoever shares all 40 leading bits wins half of the time."""
    seeded = source(insecure_seed=7)
    wins = sum(runner(0, 0, 2**39).beats(runner(1, 0, 2**39), seeded) for _ in range(2_000))
    assert stats.binomtest(wins, 2_000).pvalue > REJECT


def test_revealed_bits_make_an_exponential() -> None:
    """Starting from the coarse steps the refined number still has an exponential law."""
    seeded = source(insecure_seed=8)
    values = []
    for _ in range(1_500):
        one = runner(0, 0, 0)
        one.bits = 0  # E in [0, 1): the truncated exponential
        one._reveal(24, seeded)
        values.append(one.steps / 2**24)
    normal = 1 - math.exp(-1)
    assert stats.kstest(values, lambda x: (1 - np.exp(-x)) / normal).pvalue > REJECT
    assert stats.kstest(values, "uniform").pvalue < REJECT


@pytest.mark.parametrize(
    "scores",
    [
        [],
        [float("nan")],
        [0.0, float("inf")],
        [0.0, float("-inf")],
        [True, False],
        "12",
        3.0,
        None,
        [1e200],
        [10**400],
        np.zeros((2, 2)),
        np.array([1 + 2j]),
        np.array([True]),
        np.array([np.nan]),
    ],
    ids=str,
)
def test_bad_scores_draw_nothing_and_are_not_shown(scores: object) -> None:
    script = ScriptedSource()
    with pytest.raises(InvalidValue, match="scores = 'withheld'"):
        select(scores, source=script)
    assert script.used == 0


@pytest.mark.parametrize("rate", [-1, float("nan"), float("inf"), True, None, "x", 1e200])
def test_bad_rates(rate: object) -> None:
    script = ScriptedSource()
    with pytest.raises(InvalidValue, match="rate"):
        select([1.0, 2.0], rate=rate, source=script)
    assert script.used == 0
