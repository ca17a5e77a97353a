"""The chooser: its expectations against simulation, and its budgets against the accountant."""

import numpy as np
import pytest

from discreet.errors import InvalidValue
from discreet.pate import SparseVotes, compare_aggregators
from discreet.pate._noisy_max import gnmax_accuracy, laplace_accuracy
from discreet.pate._stable_votes import stable_answer_rate, vector_answer_rate
from oracles.vote_labels import gaussian_labels, laplace_labels


def profile(teachers: int, queries: int = 300) -> np.ndarray:
    rng = np.random.default_rng(1)
    shares = np.where(np.arange(queries) % 10 < 8, 0.9, 0.45)
    rows = [rng.multinomial(teachers, [s, (1 - s) * 0.7, (1 - s) * 0.3]) for s in shares]
    return np.array(rows)


def test_chances_of_labels_are_those_of_the_oracle() -> None:
    votes = np.array([(5, 4, 2), (11, 0, 0), (3, 4, 4)])
    labels = np.array([0, 0, 2])
    for noise in (0.5, 3.0, 20.0):
        for got, oracle, accuracy in (
            (gnmax_accuracy(votes, labels, noise), gaussian_labels, 1e-6),
            (laplace_accuracy(votes, labels, noise), laplace_labels, 5e-3),
        ):
            exact = [
                oracle(tuple(row), noise)[label] for row, label in zip(votes, labels, strict=True)
            ]
            assert np.allclose(got, exact, atol=accuracy)


def test_chances_of_passing_are_sums_over_the_noise() -> None:
    reach = np.arange(-4000, 4001)
    for scale in (1.0, 7.5):
        r = np.exp(-1 / scale)
        narrow = (1 - r) / (1 + r) * r ** np.abs(reach)
        w = np.exp(-1 / (2 * scale))
        wide = (1 - w) / (1 + w) * w ** np.abs(reach)
        tail = np.cumsum(wide[::-1])[::-1]  # P(N >= k)
        for distance in (-3, 0, 5, 20, 60):
            found = stable_answer_rate(np.array([distance]), epsilon=1 / scale, threshold=20)
            assert np.isclose(found[0], narrow[reach + distance >= 20].sum(), atol=1e-9)
            level = np.clip(20 - distance + reach, -4000, 4000) + 4000
            vector = vector_answer_rate(np.array([distance]), scale=scale, threshold=20)
            assert np.isclose(vector[0], float(narrow @ tail[level]), atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("teachers", [250, 2000])
def test_what_is_proposed_fits_the_budget_and_does_what_it_says(teachers) -> None:
    votes = profile(teachers)
    ranked = compare_aggregators(
        votes, epsilon=2.0, delta=1e-5, classes=3, teachers=teachers, queries=200
    )
    assert [one.labels for one in ranked] == sorted((one.labels for one in ranked), reverse=True)
    assert ranked[0].labels > 20
    for one in ranked:
        if one.aggregator is None:
            assert one.note
            with pytest.raises(InvalidValue):
                one.open()
            continue
        runs, answered, right = 3, [], []
        for seed in range(runs):
            session = one.open(insecure_seed=seed)
            assert session.loss.epsilon(delta=1e-5) <= 2.0
            rng = np.random.default_rng(seed)
            pool = votes[rng.integers(0, len(votes), 200)]
            labels = zip(session.answer_many(pool), np.argmax(pool, axis=1), strict=False)
            given = [(a, b) for a, b in labels if a is not None]
            answered.append(len(given))
            right += [a == b for a, b in given]
        # Poisson-like spread of counts, and a loose margin for fails that end a stream early.
        if not isinstance(one.aggregator, SparseVotes):
            assert abs(np.mean(answered) - one.labels) <= 6 * np.sqrt(one.labels / runs) + 3
        assert np.mean(right) >= one.accuracy - 0.12


@pytest.mark.slow
def test_truth_predictions_and_accuracy_count() -> None:
    votes = profile(400, 100)
    settings = {"epsilon": 2.0, "delta": 1e-5, "classes": 3, "teachers": 400, "queries": 100}
    strict = compare_aggregators(votes, **settings, accuracy=0.999)
    student = np.tile([0.05, 0.9, 0.05], (100, 1))
    loose = compare_aggregators(votes, **settings, accuracy=0.5, predictions=student)
    found = {one.name: one.labels for one in loose}
    assert all(found[one.name] >= one.labels for one in strict)
    assert found["InteractiveGNMax"] > 10
    truth = np.where(np.arange(100) % 2, np.argmax(votes, axis=1), 2)
    hopeless = compare_aggregators(votes, **settings, truth=truth, accuracy=0.99)
    assert all(one.aggregator is None for one in hopeless)


def test_bad_profiles() -> None:
    votes = profile(50, 20)
    settings = {"epsilon": 2.0, "delta": 1e-5, "classes": 3, "teachers": 50}
    for change in (
        {"epsilon": 0.0},
        {"delta": 0.0},
        {"classes": 4},
        {"teachers": 51},
        {"queries": 0},
        {"accuracy": 2.0},
        {"truth": [0] * 19},
        {"truth": [3] * 20},
        {"predictions": [[1, 0, 0]] * 3},
        {"relation": "swap"},
    ):
        with pytest.raises(InvalidValue):
            compare_aggregators(votes, **(settings | change))
