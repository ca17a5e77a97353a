"""S13: the exponential mechanism against exact probabilities; its range, utility and stream."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.errors import InvalidValue, NotApplicable
from discreet.mechanisms import Selection, exponential_choice, exponential_stream, utility_bound
from discreet.privacy import Exponential, from_pair
from discreet.randomness import source
from mechanisms.exact_pairs import REJECT, chi_square
from randomness.scripted_source import ScriptedSource

SCORES = [3, 1.5, Fraction(10, 3), -2, 3]


def softmax(scores: list[object], rate: float) -> np.ndarray:
    weights = np.exp(rate * (np.array([float(s) for s in scores]) - 3.0))
    return weights / weights.sum()


def frequencies(draw: object, count: int, size: int) -> list[int]:
    seen = Counter(draw() for _ in range(count))
    return [seen[i] for i in range(size)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given_", "rate"),
    [
        ({"sensitivity": 1, "epsilon": 1}, 0.5),
        ({"sensitivity": 2, "epsilon": 1}, 0.25),
        ({"sensitivity": 1, "epsilon": 1, "monotone": True}, 1.0),
        ({"score_range": 1, "epsilon": 1}, 1.0),
        ({"sensitivity": 1, "rate": 2}, 2.0),
    ],
)
def test_choices_have_the_exact_distribution(given_: dict[str, object], rate: float) -> None:
    bits = source(insecure_seed=51)
    seen = frequencies(
        lambda: exponential_choice(SCORES, source=bits, **given_).value, 4000, len(SCORES)
    )
    assert chi_square(seen, softmax(SCORES, rate)) > REJECT
    # Scores taken at half and at twice the rate are refuted.
    assert chi_square(seen, softmax(SCORES, rate / 2)) < REJECT
    assert chi_square(seen, softmax(SCORES, rate * 2)) < REJECT


@pytest.mark.slow
def test_a_stream_has_the_same_distribution() -> None:
    bits = source(insecure_seed=52)

    def draw() -> int:
        parts = ([score] for score in SCORES)
        return exponential_stream(parts, sensitivity=1, rate=1, source=bits).value

    assert chi_square(frequencies(draw, 3000, 5), softmax(SCORES, 1.0)) > REJECT


def test_a_huge_stream_is_one_pass() -> None:
    total, part = 2_000_000, 100_000

    def parts() -> object:
        for start in range(0, total, part):
            scores = np.zeros(part)
            scores[0] = 40.0 if start == 7 * part else 0.0
            yield scores

    chosen = exponential_stream(parts(), sensitivity=1, rate=1)
    # P(another) = 2e6 e^-40 = 8e-12.
    assert chosen.value == 7 * part
    assert chosen.provenance["candidates"] == total


@pytest.mark.slow
@given(
    scores=st.lists(st.floats(-3, 3), min_size=2, max_size=5),
    moves=st.lists(st.floats(-1, 1), min_size=5, max_size=5),
    monotone=st.booleans(),
)
def test_the_loss_covers_every_neighbour(
    scores: list[float], moves: list[float], monotone: bool
) -> None:
    epsilon = 0.8
    changes = [abs(m) if monotone else m for m in moves[: len(scores)]]
    loss = exponential_choice(scores, sensitivity=1, monotone=monotone, epsilon=epsilon).loss
    assert loss == Exponential(epsilon)
    rate = epsilon / (1 if monotone else 2)
    p = np.exp(rate * np.array(scores))
    q = np.exp(rate * (np.array(scores) + changes))
    p, q = p / p.sum(), q / q.sum()
    losses = np.log(p / q)
    assert losses.max() - losses.min() <= epsilon * (1 + 1e-12)
    pair = from_pair(p.tolist(), q.tolist())
    for at in (0.0, 0.2, 0.5):
        assert pair.delta_bounds(epsilon=at).lower <= loss.delta(epsilon=at) * (1 + 1e-9) + 1e-12


def test_a_monotone_claim_that_is_false_is_refuted() -> None:
    # Half of the scores up, half down, at the monotone rate: range 2 epsilon.
    p = np.exp([0.0] * 2)
    q = np.exp(0.8 * np.array([1.0, -1.0]))
    pair = from_pair((p / p.sum()).tolist(), (q / q.sum()).tolist())
    claimed = exponential_choice([0, 0], sensitivity=1, monotone=True, epsilon=0.8).loss
    assert pair.delta_bounds(epsilon=0.3).lower > claimed.delta(epsilon=0.3) + 1e-3


@pytest.mark.parametrize("beta", [0.5, 0.05])
def test_utility_bound_holds_and_is_the_lectures(beta: float) -> None:
    sensitivity, epsilon, count = 3.0, 0.7, 40
    rate = epsilon / (2 * sensitivity)
    bound = utility_bound(count, rate=rate, beta=beta)
    assert bound == pytest.approx(
        2 * sensitivity / epsilon * (math.log(count) + math.log(1 / beta)), rel=1e-12
    )
    release = exponential_choice(list(range(count)), sensitivity=3, epsilon=0.7)
    assert release.shortfall(confidence=1 - beta) == pytest.approx(bound, rel=1e-9)
    # The worst case of the proof: one best candidate, all others just beyond the bound.
    scores = np.array([0.0] + [-bound] * (count - 1))
    weights = np.exp(rate * scores)
    assert weights[1:].sum() / weights.sum() <= beta
    bits = source(insecure_seed=53)
    fell_short = sum(
        39 - exponential_choice(range(40), sensitivity=3, epsilon=0.7, source=bits).value
        > release.shortfall(confidence=1 - beta)
        for _ in range(1500)
    )
    assert fell_short <= 1500 * beta


def test_candidates_are_returned_and_seeds_recorded() -> None:
    chosen = exponential_choice(
        [0, 800], candidates=["no", "yes"], sensitivity=1, epsilon=1, insecure_seed=9
    )
    assert isinstance(chosen, Selection)
    assert chosen.value == "yes"
    assert chosen.provenance["randomness"] == "INSECURE seed 9"
    draws = [
        [
            exponential_choice(np.zeros(1000), sensitivity=1, epsilon=1, insecure_seed=seed).value
            for seed in range(4)
        ]
        for _ in range(2)
    ]
    assert draws[0] == draws[1]
    assert len(set(draws[0])) > 1
    with pytest.raises(NotApplicable):
        chosen.interval()


def test_extreme_scores_do_not_overflow() -> None:
    assert exponential_choice([1e150, -1e150, 0], sensitivity=1, epsilon=1).value == 0
    tiny = exponential_choice([1e-140, 5e-324], sensitivity=1e-140, epsilon=3000)
    assert tiny.value == 0
    for subnormal in ({"sensitivity": 5e-324, "epsilon": 1}, {"sensitivity": 1, "rate": 1e200}):
        with pytest.raises(InvalidValue, match=r"2\*\*500"):
            exponential_choice([5e-324, 0.0], source=ScriptedSource(), **subnormal)


@pytest.mark.parametrize(
    ("wrong", "argument"),
    [
        ({"sensitivity": 0, "epsilon": 1}, "sensitivity"),
        ({"sensitivity": -1, "epsilon": 1}, "sensitivity"),
        ({"sensitivity": math.nan, "epsilon": 1}, "sensitivity"),
        ({"sensitivity": math.inf, "epsilon": 1}, "sensitivity"),
        ({"sensitivity": True, "epsilon": 1}, "sensitivity"),
        ({"epsilon": 1}, "sensitivity"),
        ({"sensitivity": 1, "score_range": 1, "epsilon": 1}, "sensitivity"),
        ({"score_range": 1, "monotone": True, "epsilon": 1}, "monotone"),
        ({"sensitivity": 1, "monotone": 1, "epsilon": 1}, "monotone"),
        ({"sensitivity": 1, "monotone": True, "epsilon": 1, "relation": "replace"}, "monotone"),
        ({"sensitivity": 1}, "epsilon"),
        ({"sensitivity": 1, "epsilon": 1, "rate": 1}, "epsilon"),
        ({"sensitivity": 1, "epsilon": 0}, "epsilon"),
        ({"sensitivity": 1, "rate": -1}, "rate"),
        ({"sensitivity": 1, "epsilon": 1, "candidates": "abc"}, "candidates"),
        ({"sensitivity": 1, "epsilon": 1, "candidates": 3}, "candidates"),
        ({"sensitivity": 1, "epsilon": 1, "insecure_seed": 1}, "insecure_seed"),
    ],
)
def test_wrong_parameters_are_refused_before_a_draw(
    wrong: dict[str, object], argument: str
) -> None:
    with pytest.raises(InvalidValue, match=f"^{argument} = "):
        exponential_choice([1, 2], source=ScriptedSource(), **wrong)


@pytest.mark.parametrize(
    "scores", [[], [math.nan, 1], [1, math.inf], [True, 1], ["1", 2], None, 3, "ab", [[1]], [None]]
)
def test_wrong_scores_are_refused_unseen_before_a_draw(scores: object) -> None:
    with pytest.raises(InvalidValue, match=r"^scores = ") as caught:
        exponential_choice(scores, sensitivity=1, epsilon=1, source=ScriptedSource())
    assert "nan" not in str(caught.value)
    with pytest.raises(InvalidValue, match=r"^scores = "):
        exponential_stream([scores], sensitivity=1, epsilon=1, source=ScriptedSource())


def test_an_empty_stream_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"^parts = "):
        exponential_stream([], sensitivity=1, epsilon=1, source=ScriptedSource())
