"""S23, S24: data-independent losses against the exact distributions on all neighbours."""

import math

import numpy as np
import pytest
from scipy import special, stats

from discreet.mechanisms import votes_distance
from discreet.pate import (
    ConfidentGNMax,
    GNMax,
    InteractiveGNMax,
    LaplaceMax,
    SampledVotes,
    SparseVotes,
    StableVotes,
)
from discreet.randomness import source
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
OBJECTING = [
    InteractiveGNMax(classes=3, teachers=7, threshold=2, selection_noise=1, answer_noise=1),
    InteractiveGNMax(classes=2, teachers=12, threshold=0, selection_noise=0.5, answer_noise=2),
]


def interactive_of(aggregator):
    """The student is sure of class 0: what is compared is the largest count above that."""
    selection, answer = (float(noise) for noise in aggregator.noises)
    expected = np.zeros(aggregator.classes)
    expected[0] = aggregator.teachers

    def labels(votes):
        above = float(np.max(np.array(votes) - expected)) - float(aggregator.level)
        passing, failing = special.ndtr(above / selection), special.ndtr(-above / selection)
        return np.concatenate([[failing], passing * gaussian_labels(votes, answer)])

    return labels


CASES = NOISY + [(one, confident_of(one)) for one in SELECTIVE]
CASES += [(one, interactive_of(one)) for one in OBJECTING]


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


@pytest.mark.slow
def test_sessions_of_the_other_aggregators_draw_from_these_distributions() -> None:
    """Chi-square at 1e-9; the same draws refute a threshold or a noise that is a little off."""
    count, votes = 40_000, (6, 3, 2)
    interactive = InteractiveGNMax(
        classes=3, teachers=11, threshold=1, selection_noise=2, answer_noise=2
    )
    wrong = InteractiveGNMax(
        classes=3, teachers=11, threshold=1, selection_noise=1.9, answer_noise=2
    )
    session = interactive.open(queries=count, answers=count, insecure_seed=1)
    given = session.answer_many([votes] * count, predictions=[(1, 0, 0)] * count)
    seen = np.bincount([0 if label is None else label + 1 for label in given], minlength=4)
    assert stats.chisquare(seen, count * interactive_of(interactive)(votes)).pvalue > 1e-9
    assert stats.chisquare(seen, count * interactive_of(wrong)(votes)).pvalue < 1e-9
    stable_votes = (13, 1, 1)
    for kind in (StableVotes, SampledVotes):
        aggregator = kind(classes=3, teachers=15, epsilon="1/2", delta="0.1")
        session = aggregator.open(queries=count, insecure_seed=2)
        answered = sum(label == 0 for label in session.answer_many([stable_votes] * count))
        assert session.answers == answered  # nothing else than the winner comes out
        distance = aggregator.distance(np.array(stable_votes))
        chances = [float(aggregator.test.passes(distance + off)) for off in (0, 1)]
        p_values = [stats.binomtest(answered, count, chance).pvalue for chance in chances]
        assert p_values[0] > 1e-9 > p_values[1]


@pytest.mark.slow
def test_sparse_votes_keep_their_loss_on_enumerated_streams() -> None:
    """Two queries, one fail: all transcripts by summing over the noise, on all neighbours."""
    aggregator = SparseVotes(classes=2, teachers=9, fails=1, epsilon=1, delta=0.1)
    plan = aggregator.vector_plan
    scale, level = float(plan.scale), int(plan.threshold)
    reach = np.arange(-400, 401)

    def weights(spread: float) -> np.ndarray:
        r = math.exp(-1 / spread)
        return (1 - r) / (1 + r) * r ** np.abs(reach)

    on_threshold, on_query = weights(scale), weights(2 * scale)
    tail = np.append(np.cumsum(on_query[::-1])[::-1], 0.0)  # P(noise >= k), k from -400

    def transcript(votes: tuple[int, ...], careless: int = 0) -> np.ndarray:
        distance = votes_distance(np.array(votes), moved=True) + careless
        above = np.clip(level + reach - distance, -400, 401) + 400
        passing = tail[above]
        winner = int(np.argmax(votes))
        result = np.zeros(7)  # fail; answers 0 or 1 and a fail; two answers 00, 01, 10, 11
        result[0] = on_threshold @ (1 - passing)
        result[1 + winner] = on_threshold @ (passing * (1 - passing))
        result[3 + 3 * winner] = on_threshold @ (passing * passing)
        return result

    loss = aggregator.plan().loss
    for epsilon in (0.2, 0.5, 1.0):
        worst = worst_delta(aggregator, transcript, epsilon)
        assert worst <= loss.delta(epsilon=epsilon) + 1e-9
    worst = worst_delta(aggregator, lambda votes: transcript(votes, careless=4), 1.0)
    assert worst > loss.delta(epsilon=1.0)  # a distance that claims too much is seen
    assert abs(sum(transcript((9, 0))) - 1) < 1e-9
    # The sums are those of the real mechanism.
    count = 1_500
    found = np.zeros(7)
    bits = source(insecure_seed=4)
    for _ in range(count):
        labels = aggregator.open(source=bits).answer_many([(9, 0)] * 2)
        found[0 if labels[0] is None else 1 if labels[1] is None else 3] += 1
    expected = transcript((9, 0))
    assert stats.chisquare(found[[0, 1, 3]], count * expected[[0, 1, 3]]).pvalue > 1e-9
