"""S23, S24: data-independent losses against the exact distributions on all neighbours."""

import math

import numpy as np
import pytest

from discreet.pate import ConfidentGNMax, GNMax, LaplaceMax, SampledVotes, StableVotes
from oracles.vote_labels import (
    confident_labels,
    gaussian_labels,
    histograms,
    laplace_labels,
    moved,
)

EPSILONS = (0.0, 0.3, 1.0, 2.0, 4.0)


def hockey_stick(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())


def worst_delta(aggregator, labels, epsilon: float) -> float:
    tables = list(histograms(aggregator.teachers, aggregator.classes))
    chances = {votes: labels(votes) for votes in tables}
    return max(hockey_stick(chances[a], chances[b], epsilon) for a in tables for b in moved(a))


def confident_of(aggregator):
    selection, answer = (float(noise) for noise in aggregator.noises)
    return lambda votes: confident_labels(votes, float(aggregator.level), selection, answer)


NOISY = [
    (LaplaceMax(classes=3, teachers=7, epsilon=1), lambda v: laplace_labels(v, 2.0)),
    (LaplaceMax(classes=2, teachers=16, epsilon=2), lambda v: laplace_labels(v, 1.0)),
    (GNMax(classes=3, teachers=7, noise=1), lambda v: gaussian_labels(v, 1.0)),
    (GNMax(classes=2, teachers=12, noise=2), lambda v: gaussian_labels(v, 2.0)),
]
SELECTIVE = [
    ConfidentGNMax(classes=3, teachers=7, threshold=5, selection_noise=1, answer_noise=1),
    ConfidentGNMax(classes=2, teachers=12, threshold=9, selection_noise=2, answer_noise=0.5),
]
CASES = NOISY + [(one, confident_of(one)) for one in SELECTIVE]


@pytest.mark.parametrize(("aggregator", "labels"), CASES)
def test_no_neighbours_beat_the_stated_loss(aggregator, labels) -> None:
    loss = aggregator.loss(queries=1)
    for epsilon in EPSILONS:
        assert worst_delta(aggregator, labels, epsilon) <= loss.delta(epsilon=epsilon) + 1e-12


def test_the_gaussian_loss_is_attained_and_less_would_be_wrong() -> None:
    """Two classes: some gap puts the test where the curve is touched."""
    aggregator, labels = NOISY[3]
    loss = aggregator.costs.query
    # All gaps are even: at epsilon 1 none is quite where the curve is touched.
    for epsilon, share in ((0.3, 0.9), (1.0, 0.8)):
        assert worst_delta(aggregator, labels, epsilon) > share * loss.delta(epsilon=epsilon)
    too_little = GNMax(classes=2, teachers=12, noise=2.4).costs.query
    assert worst_delta(aggregator, labels, 0.3) > too_little.delta(epsilon=0.3)


def test_the_printed_laplace_noise_is_twice_as_costly() -> None:
    """Lap(1/eps) breaks eps-DP on enumerated votes; Lap(2/eps) keeps it and is nearly attained."""
    aggregator, _ = NOISY[1]
    assert worst_delta(aggregator, lambda v: laplace_labels(v, 0.5), 2.0) > 1e-3
    assert worst_delta(aggregator, lambda v: laplace_labels(v, 1.0), 2.0) < 1e-12
    assert worst_delta(aggregator, lambda v: laplace_labels(v, 1.0), 1.7) > 1e-9


@pytest.mark.parametrize("relation", ["add_remove", "replace"])
@pytest.mark.parametrize("kind", [StableVotes, SampledVotes])
def test_stability_aggregators_keep_their_exact_delta(kind, relation) -> None:
    aggregator = kind(classes=3, teachers=9, epsilon="1/2", delta="0.05", relation=relation)
    test = aggregator.test

    def labels(votes):
        chance = test.passes(aggregator.distance(np.array(votes)))
        result = np.zeros(4)
        result[0], result[1 + votes.index(max(votes))] = 1.0 - chance, chance
        return result

    loss = aggregator.costs.query
    worst = worst_delta(aggregator, labels, 0.5)
    assert worst <= float(loss.claimed_delta) * (1 + 1e-9)
    if kind is StableVotes:
        assert worst > 0.6 * float(loss.claimed_delta)

    def careless(votes):  # a distance that is one too large
        chance = test.passes(aggregator.distance(np.array(votes)) + 2)
        result = np.zeros(4)
        result[0], result[1 + votes.index(max(votes))] = 1.0 - chance, chance
        return result

    assert worst_delta(aggregator, careless, 0.5) > float(loss.claimed_delta)
