"""S13: report-noisy-max and permute-and-flip against exact enumeration."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.errors import InvalidValue
from discreet.mechanisms import exponential_choice, permute_and_flip, report_noisy_max
from discreet.mechanisms._selection import difference_tail
from discreet.privacy import PureDP
from discreet.randomness import source
from mechanisms.exact_pairs import REJECT, chi_square, shifted_laplace
from randomness.scripted_source import ScriptedSource


def noisy_max_probabilities(scores: list[int], scale: float) -> np.ndarray:
    """P(i wins), ties to the lowest number, for integer scores and noise on [-200, 200]."""
    reach = 200
    masses = [shifted_laplace(scale, score, reach) for score in scores]
    below = [np.cumsum(mass) for mass in masses]
    result = []
    for i, mass in enumerate(masses):
        others = np.ones(2 * reach + 1)
        for j, sums in enumerate(below):
            if j > i:
                others *= sums
            elif j < i:  # an earlier one must be strictly smaller
                others *= np.concatenate([[0.0], sums[:-1]])
        result.append(float(mass @ others))
    return np.array(result)


def flip_probabilities(scores: list[float], rate: float) -> np.ndarray:
    """P(i is chosen): over all orders, the first whose coin falls heads."""
    coins = np.exp(rate * (np.array(scores, dtype=float) - max(scores)))
    result = np.zeros(len(scores))
    orders = list(itertools.permutations(range(len(scores))))
    for order in orders:
        left = 1.0
        for i in order:
            result[i] += left * coins[i]
            left *= 1 - coins[i]
    return result / len(orders)


SCORES = [3, 5, 5, 1]


def test_noisy_max_has_the_exact_distribution() -> None:
    bits = source(insecure_seed=71)
    seen = Counter(
        report_noisy_max(SCORES, sensitivity=1, scale=2, granularity=1, source=bits).value
        for _ in range(5000)
    )
    counts = [seen[i] for i in range(4)]
    exact = noisy_max_probabilities(SCORES, 2.0)
    assert exact.sum() == pytest.approx(1.0, abs=1e-12)
    # Equal scores do not win equally often: integer noise has ties, and they go to the first.
    assert exact[1] > exact[2] + 0.05
    assert chi_square(counts, exact) > REJECT
    assert chi_square(counts, noisy_max_probabilities(SCORES, 1.0)) < REJECT
    fair = (exact + exact[[0, 2, 1, 3]]) / 2
    assert chi_square(counts, fair) < REJECT


def test_flip_has_the_exact_distribution() -> None:
    bits = source(insecure_seed=72)
    seen = Counter(
        permute_and_flip(SCORES, sensitivity=1, epsilon=1, source=bits).value for _ in range(4000)
    )
    counts = [seen[i] for i in range(4)]
    assert chi_square(counts, flip_probabilities(SCORES, 0.5)) > REJECT
    assert chi_square(counts, flip_probabilities(SCORES, 1.0)) < REJECT


@given(
    scores=st.lists(st.integers(-3, 3), min_size=2, max_size=4),
    moves=st.lists(st.integers(-1, 1), min_size=4, max_size=4),
    monotone=st.booleans(),
)
def test_every_neighbour_stays_within_the_loss(
    scores: list[int], moves: list[int], monotone: bool
) -> None:
    changes = [abs(m) if monotone else m for m in moves[: len(scores)]]
    changed = [a + b for a, b in zip(scores, changes, strict=True)]
    release = report_noisy_max(scores, sensitivity=1, monotone=monotone, epsilon=0.5, granularity=1)
    assert release.loss == PureDP(0.5)
    scale = release.provenance["scale_in_steps"]
    assert scale == (2.0 if monotone else 4.0)
    ratio = np.log(noisy_max_probabilities(scores, scale) / noisy_max_probabilities(changed, scale))
    assert np.abs(ratio).max() <= 0.5 + 1e-9
    flips = permute_and_flip(scores, sensitivity=1, monotone=monotone, epsilon=0.5)
    assert flips.loss == PureDP(0.5)
    rate = 0.5 if monotone else 0.25
    ratio = np.log(flip_probabilities(scores, rate) / flip_probabilities(changed, rate))
    assert np.abs(ratio).max() <= 0.5 + 1e-9


def test_half_of_the_noise_is_refuted() -> None:
    # Two scores that move apart, at the monotone scale although they are not monotone.
    ratio = np.log(noisy_max_probabilities([0, 4], 2.0) / noisy_max_probabilities([1, 3], 2.0))
    assert np.abs(ratio).max() > 0.5 + 0.1
    ratio = np.log(flip_probabilities([0, 4], 0.5) / flip_probabilities([1, 3], 0.5))
    assert np.abs(ratio).max() > 0.5 + 0.1


def test_the_lectures_pate_noise_is_refuted() -> None:
    # S23: Lap(1/eps) on votes costs 2 eps when one vote moves from one label to another.
    epsilon = 0.5
    ratio = np.log(
        noisy_max_probabilities([0, 9], 1 / epsilon) / noisy_max_probabilities([1, 8], 1 / epsilon)
    )
    assert np.abs(ratio).max() > 1.5 * epsilon


def test_rounding_to_a_grid_is_paid_for() -> None:
    release = report_noisy_max([0.1, 0.7], sensitivity=0.3, scale=1, granularity="1/4")
    # 0.3 is two steps of a quarter once rounded; twice that, over four steps of scale.
    assert release.loss == PureDP(1)
    fine = report_noisy_max([0.1, 0.7], sensitivity=0.3, epsilon=0.1)
    assert fine.loss == PureDP(0.1)


@pytest.mark.parametrize("scale", ["1/2", "3", "40"])
def test_difference_tail_against_the_convolution(scale: str) -> None:
    noise = shifted_laplace(float(Fraction(scale)), 0, 2000)
    difference = np.convolve(noise, noise)
    centre = difference.size // 2
    for m in (0, 1, 2, 7, 60):
        exact = difference[centre + m :].sum()
        assert difference_tail(Fraction(scale), m) == pytest.approx(exact, rel=1e-9, abs=1e-15)


def test_shortfalls_hold() -> None:
    bits = source(insecure_seed=73)
    scores = list(range(0, 60, 2))
    for mechanism in (report_noisy_max, permute_and_flip, exponential_choice):
        release = mechanism(scores, sensitivity=1, epsilon=0.5)
        bound = release.shortfall(confidence=0.9)
        missed = sum(
            58 - scores[mechanism(scores, sensitivity=1, epsilon=0.5, source=bits).value] > bound
            for _ in range(400)
        )
        assert missed <= 40
        assert bound < 60
    # The bound of the noisy maximum is nearly reached when all others sit at it.
    k, scale = 20, 3.0
    bound = report_noisy_max([0] * k, sensitivity=1, scale=scale, granularity=1).shortfall(
        confidence=0.9
    )
    gap = int(bound)
    assert 1 - noisy_max_probabilities([gap] + [0] * (k - 1), scale)[0] <= 0.1
    assert 1 - noisy_max_probabilities([gap // 2] + [0] * (k - 1), scale)[0] > 0.1


def test_flip_beats_the_exponential_mechanism() -> None:
    scores = [0.0, -1.0, -2.0, -4.0]
    weights = np.exp(scores)
    expected = float(-(weights / weights.sum()) @ scores)
    assert float(-flip_probabilities(scores, 1.0) @ np.array(scores)) < expected


def test_candidates_seeds_and_scores_of_all_kinds() -> None:
    for mechanism in (report_noisy_max, permute_and_flip):
        mixed = [np.float64(0.5), np.int64(900), 3]
        chosen = mechanism(mixed, candidates="abc", sensitivity=1, epsilon=2, insecure_seed=1)
        assert chosen.value == "b"
        assert chosen.provenance["randomness"] == "INSECURE seed 1"
        flat = [
            mechanism([0] * 50, sensitivity=1, epsilon=1, insecure_seed=s).value for s in (1, 1)
        ]
        assert flat[0] == flat[1]
        assert mechanism(np.array([0, 2000]), sensitivity=1, epsilon=1).value == 1
    exact = permute_and_flip([Fraction(1, 3), 900], sensitivity="1/3", score_range=None, epsilon=9)
    assert exact.value == 1


@pytest.mark.parametrize("mechanism", [report_noisy_max, permute_and_flip])
@pytest.mark.parametrize(
    ("wrong", "argument"),
    [
        ({"scores": []}, "scores"),
        ({"scores": [1, math.nan]}, "scores"),
        ({"scores": [1, math.inf]}, "scores"),
        ({"scores": [True, False]}, "scores"),
        ({"scores": ["1", "2"]}, "scores"),
        ({"scores": [[1, 2], [3, 4]]}, "scores"),
        ({"scores": 3}, "scores"),
        ({"sensitivity": 0}, "sensitivity"),
        ({"sensitivity": -1}, "sensitivity"),
        ({"sensitivity": math.nan}, "sensitivity"),
        ({"sensitivity": True}, "sensitivity"),
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": None}, "epsilon"),
        ({"epsilon": math.inf}, "epsilon"),
        ({"monotone": "yes"}, "monotone"),
        ({"monotone": True, "relation": "replace"}, "monotone"),
        ({"relation": "both"}, "relation"),
        ({"candidates": "a"}, "candidates"),
        ({"insecure_seed": 3}, "insecure_seed"),
    ],
)
def test_wrong_input_is_refused_before_a_draw(
    mechanism: object, wrong: dict[str, object], argument: str
) -> None:
    arguments = {"scores": [1, 2], "sensitivity": 1, "epsilon": 1, **wrong}
    scores = arguments.pop("scores")
    with pytest.raises(InvalidValue, match=f"^{argument} = ") as caught:
        mechanism(scores, source=ScriptedSource(), **arguments)
    assert argument != "scores" or "nan" not in str(caught.value)
