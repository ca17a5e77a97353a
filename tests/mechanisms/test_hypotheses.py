"""Choosing one of finitely many hypotheses, and how many records it takes (S37)."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from discreet.errors import InvalidValue
from discreet.mechanisms import choose_hypothesis, pac_records
from discreet.privacy import PureDP

THRESHOLDS = np.arange(17)


def says(points: np.ndarray) -> np.ndarray:
    return points[None, :] >= THRESHOLDS[:, None]


def chances(predictions: np.ndarray, labels: np.ndarray, rate: float) -> np.ndarray:
    """What the exponential mechanism chooses, in closed form."""
    weights = np.exp(-rate * (predictions != labels).sum(axis=1))
    return weights / weights.sum()


@pytest.mark.parametrize(("relation", "rate"), [("add_remove", 0.7), ("replace", 0.35)])
def test_neighbours_stay_within_the_loss(relation: str, rate: float) -> None:
    """All data sets of two records over four points, three hypotheses."""
    hypotheses = np.array([[0, 0, 1, 1], [1, 0, 1, 0], [0, 1, 1, 0]])
    records = list(product(range(4), (0, 1)))

    def worst(pace: float) -> float:
        def law(rows: tuple[tuple[int, int], ...]) -> np.ndarray:
            points, labels = (np.array([row[at] for row in rows], dtype=int) for at in (0, 1))
            return chances(hypotheses[:, points], labels, pace)

        return max(
            float(np.abs(np.log(law(rows) / law(other))).max())
            for rows in product(records, repeat=2)
            for new in records
            for other in [(new, *rows[1:]) if relation == "replace" else (*rows, new)]
        )

    assert worst(rate) <= 0.7 + 1e-12
    assert worst(2 * rate) > 0.7 + 1e-3  # such as the rate of add_remove under replace
    release = choose_hypothesis(
        hypotheses, np.array([0, 1, 1, 0]), epsilon=0.7, relation=relation, insecure_seed=1
    )
    assert release.provenance["rate"] == pytest.approx(rate)
    assert release.loss.epsilon(delta=0) == PureDP(0.7).epsilon(delta=0)


def test_the_choice_has_the_probabilities_of_its_errors() -> None:
    labels = np.array([0, 1, 1, 0, 1])
    predictions = np.array([[0, 1, 1, 0, 0], [1, 1, 0, 0, 0], [0, 1, 1, 1, 0]])
    drawn = [
        choose_hypothesis(predictions, labels, epsilon=0.5, insecure_seed=seed).value
        for seed in range(1000)
    ]
    share = np.bincount(drawn, minlength=3) / 1000
    # Five deviations: a false alarm in one of a million runs, if the seeds were not fixed.
    assert np.abs(share - chances(predictions, labels, 0.5)).max() < 5 * math.sqrt(0.25 / 1000)


def failures(records: int, *, epsilon: float, error: float, noise: float, rounds: int) -> float:
    """How often the share of wrong answers of the chosen threshold is above the best by more."""
    rng = np.random.default_rng(5)
    truth, failed = THRESHOLDS[8], 0
    for _ in range(rounds):
        points = rng.integers(16, size=records)
        labels = (points >= truth) ^ (rng.random(records) < noise)
        rate = chances(says(points), labels, epsilon)
        chosen = rng.choice(len(THRESHOLDS), p=rate)
        excess = (1 - 2 * noise) * abs(int(THRESHOLDS[chosen]) - int(truth)) / 16
        failed += excess > error
    return failed / rounds


@pytest.mark.parametrize(("realizable", "noise"), [(True, 0.0), (False, 0.2)])
def test_so_many_records_suffice_and_few_do_not(realizable: bool, noise: float) -> None:
    facts = {"epsilon": 0.01, "error": 0.15}
    enough = pac_records(17, failure=0.1, realizable=realizable, **facts)
    assert failures(enough, noise=noise, rounds=800, **facts) < 0.1
    # What suffices without privacy (the same bound at a huge epsilon) does not suffice here.
    plain = pac_records(17, failure=0.1, realizable=realizable, **{**facts, "epsilon": 1e6})
    assert plain < enough / 2
    assert failures(plain, noise=noise, rounds=800, **facts) > 0.2


def test_the_realizable_bound_is_the_least_by_its_formula() -> None:
    def tail(records: int, most: int, share: float) -> float:
        return math.fsum(
            math.comb(records, k) * share**k * (1 - share) ** (records - k) for k in range(most + 1)
        )

    found = pac_records(8, epsilon=1, error=0.2, failure=0.1)
    most = math.ceil(math.log(8) + math.log(20)) - 1
    assert 8 * tail(found, most, 0.2) <= 0.05 < 8 * tail(found - 1, most, 0.2)


def test_hypotheses_count_by_their_logarithm_and_replace_costs_twice() -> None:
    facts = {"epsilon": 0.1, "error": 0.1}
    one, two, four = (pac_records(2**bits, **facts) for bits in (10, 20, 40))
    assert two - one == pytest.approx((four - two) / 2, rel=0.05)
    assert pac_records(2**10, relation="replace", **facts) > 1.8 * one
    assert pac_records(2**10, realizable=False, **facts) > one


def test_wrong_shapes_are_refused_without_the_records() -> None:
    for predictions, labels in (
        (np.zeros((2, 3)), np.zeros(4)),
        (np.zeros(3), np.zeros(3)),
        (np.zeros((0, 3)), np.zeros(3)),
    ):
        with pytest.raises(InvalidValue, match="predictions = 'shape"):
            choose_hypothesis(predictions, labels, epsilon=1)
    with pytest.raises(InvalidValue, match="epsilon"):
        pac_records(4, epsilon=1e-17, error=0.1)
