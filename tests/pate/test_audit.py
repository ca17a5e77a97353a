"""S23, S24: the mechanism auditor on every aggregator, and on mutants that it must refute.

False-alarm rate 1e-9 an audit; seeds are fixed, so a pass stays a pass.
"""

from fractions import Fraction

import numpy as np
import pytest

from discreet.audit import audit_mechanism
from discreet.pate import (
    ConfidentGNMax,
    GNMax,
    InteractiveGNMax,
    LaplaceMax,
    SampledVotes,
    SparseVotes,
    StableVotes,
)
from discreet.pate._votes import gaussian_winners, laplace_winners, passes
from discreet.randomness import source

RATE = 1e-9
SAMPLES = 12_000
PAIRS = {"close": ((5, 4), (4, 5)), "middle": ((7, 2), (6, 3)), "far": ((9, 0), (8, 1))}


def streams(aggregator, length, seed=3, prediction=None):
    """A mechanism that asks ``length`` times, in bulk."""
    bits = source(insecure_seed=seed)

    def draw(votes, count):
        if isinstance(aggregator, SparseVotes):
            sessions = [aggregator.open(source=bits) for _ in range(count)]
            rows = [session.answer_many([votes] * length) for session in sessions]
        else:
            session = aggregator.open(queries=length * count, source=bits)
            public = None if prediction is None else [prediction] * (length * count)
            labels = session.answer_many([votes] * (length * count), predictions=public)
            rows = [labels[i : i + length] for i in range(0, length * count, length)]
        return [tuple(-1 if label is None else label for label in row) for row in rows]

    return draw


SHAPE = {"classes": 2, "teachers": 9}
RIGHT = [
    (LaplaceMax(**SHAPE, epsilon=1), "close", 0.0, {}),
    (GNMax(**SHAPE, noise=1), "close", 0.05, {}),
    (ConfidentGNMax(**SHAPE, threshold=9, selection_noise=1, answer_noise=1), "far", 0.05, {}),
    (
        InteractiveGNMax(**SHAPE, threshold=0, selection_noise=1, answer_noise=1),
        "far",
        0.05,
        {"prediction": [1.0, 0.0]},
    ),
    (StableVotes(**SHAPE, epsilon=1, delta=0.1), "close", 0.1, {}),
    (SampledVotes(**SHAPE, epsilon=1, delta=0.1), "far", 0.1, {}),
    (SparseVotes(**SHAPE, fails=1, epsilon=1, delta=0.1), "far", 0.1, {}),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("aggregator", "pair", "delta", "public"), RIGHT, ids=[type(r[0]).__name__ for r in RIGHT]
)
def test_right_aggregators_are_not_refuted(aggregator, pair, delta, public) -> None:
    loss = (
        aggregator.plan().loss
        if isinstance(aggregator, SparseVotes)
        else aggregator.plan(queries=2).loss
    )
    audit = audit_mechanism(
        streams(aggregator, 2, **public),
        *PAIRS[pair],
        loss=loss,
        delta=2 * delta,
        samples=1_000 if isinstance(aggregator, SparseVotes) else SAMPLES,
        false_alarm_rate=RATE,
        batch=True,
    )
    assert not audit.violated, str(audit)


def refuted(draw, pair, loss, delta, samples=SAMPLES) -> bool:
    return audit_mechanism(
        draw,
        *PAIRS[pair],
        loss=loss,
        delta=delta,
        samples=samples,
        false_alarm_rate=RATE,
        batch=True,
    ).violated


def test_printed_laplace_noise_is_refuted() -> None:
    """Lap(1/eps), as printed, is 2 eps-DP and not eps-DP."""
    bits = source(insecure_seed=1)
    claimed = LaplaceMax(**SHAPE, epsilon=1)

    def draw(scale):
        return lambda votes, count: laplace_winners(
            np.tile(votes, (count, 1)), scale=scale, source=bits
        )

    loss = claimed.costs.query
    assert refuted(draw(claimed.noise / 2), "middle", loss, 0.0, 40_000)
    assert not refuted(draw(claimed.noise), "middle", loss, 0.0, 40_000)


def test_gaussian_noise_of_the_wrong_scale_is_refuted() -> None:
    """As if the L2 sensitivity were 1 and not sqrt(2)."""
    bits = source(insecure_seed=2)
    claimed = GNMax(**SHAPE, noise=1).costs.query

    def draw(noise):
        return lambda votes, count: gaussian_winners(
            np.tile(votes, (count, 1)), noise=noise, source=bits
        )

    assert refuted(draw(Fraction(7071, 10_000)), "close", claimed, 0.3, 40_000)
    assert not refuted(draw(Fraction(1)), "close", claimed, 0.3, 40_000)


def test_a_threshold_without_noise_is_refuted() -> None:
    bits = source(insecure_seed=3)
    claimed = ConfidentGNMax(**SHAPE, threshold=9, selection_noise=1, answer_noise=1)

    def draw(votes, count):
        table = np.tile(votes, (count, 1))
        labels = gaussian_winners(table, noise=Fraction(1), source=bits)
        return np.where(table.max(axis=1) >= 9, labels, -1)

    def noisy(votes, count):
        table = np.tile(votes, (count, 1))
        labels = gaussian_winners(table, noise=Fraction(1), source=bits)
        counts = table.max(axis=1)
        kept = passes(counts, threshold=Fraction(9), noise=Fraction(1), source=bits)
        return np.where(kept, labels, -1)

    loss = claimed.loss(queries=1)
    assert refuted(draw, "far", loss, 0.05)
    assert not refuted(noisy, "far", loss, 0.05)


@pytest.mark.slow
def test_answering_after_refusal_is_refuted() -> None:
    """A stream that goes on for twelve queries and claims the loss of one."""
    aggregator = GNMax(**SHAPE, noise=2)
    loss = aggregator.loss(queries=1)
    assert refuted(streams(aggregator, 12), "close", loss, 0.05)
    assert not refuted(streams(aggregator, 12), "close", aggregator.loss(queries=12), 0.05)
