"""Rows, sums and sensitivities of the linear models: exact, whatever the records are.

The twins here sum Python integers one record at a time. The mutants are the usual mistakes: an
unclipped gradient, a floating-point sum, a sensitivity that forgets the diagonal.
"""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import beta

from discreet.learn import _exact_descent as descent
from discreet.learn._exact_descent import GRADIENT_STEPS, LinearPlan
from discreet.randomness import source

EXTREME = st.one_of(
    st.floats(-1.0, 1.0, allow_subnormal=False), st.sampled_from([-1.0, 1.0, 0.0, 2.0**-13])
)


def plan(**changes):
    facts = {
        "rows": 500,
        "features": 3,
        "outputs": 1,
        "norm": 1.5,
        "epsilon": 1.0,
        "delta": 1e-6,
        "relation": "add_remove",
    }
    return LinearPlan.make(**{**facts, **changes})


def logistic(targets):
    def residuals(scores, start, stop):
        return 1.0 / (1.0 + np.exp(-scores)) - targets[start:stop, None]

    return residuals


def norms_of(rows):
    return np.sqrt((rows.astype(float) ** 2).sum(axis=1)) / descent.WHITENED_STEPS


@settings(max_examples=60, deadline=None)
@given(arrays(np.float64, (7, 3), elements=EXTREME), st.floats(0.1, 2.0))
def test_raw_rows_are_integers_no_longer_than_declared(features, norm):
    rows = descent.raw_rows(features, norm=norm)
    assert np.array_equal(rows, np.rint(rows))
    assert np.all(rows[:, -1] == descent.RAW_STEPS)
    for row in rows[:, :-1].tolist():
        assert math.sqrt(sum(int(v) ** 2 for v in row)) <= norm * descent.RAW_STEPS * (1 + 1e-15)
    kept = np.linalg.norm(features, axis=1) < norm - 1e-3
    assert np.abs(rows[kept, :-1] / descent.RAW_STEPS - features[kept]).max(initial=0) <= 2.0**-13


@settings(max_examples=25, deadline=None)
@given(arrays(np.float64, (9, 3), elements=EXTREME), st.integers(0, 2**32 - 1))
def test_sums_are_those_of_integers_in_any_order(features, seed):
    rng = np.random.default_rng(seed)
    rows = descent.raw_rows(features, norm=1.5)
    slow = sum(np.array([[int(a) * int(b) for b in row] for a in row]) for row in rows.tolist())
    assert np.array_equal(descent.exact_gram(rows), slow)
    whitened = descent.whitened_rows(rows, rng.normal(size=(4, 4)))
    targets = rng.integers(0, 2, 9).astype(float)
    weights = np.rint(rng.normal(size=(4, 1)) * 2**20)
    whole = descent.clipped_gradient(whitened, weights, logistic(targets), norms=norms_of(whitened))
    parts = np.zeros((4, 1), dtype=object)
    for i in range(9):
        one = whitened[i : i + 1]
        parts += descent.clipped_gradient(
            one, weights, logistic(targets[i : i + 1]), norms=norms_of(one)
        ).astype(object)
    assert np.array_equal(whole.astype(object), parts)
    order = rng.permutation(9)
    again = descent.clipped_gradient(
        whitened[order], weights, logistic(targets[order]), norms=norms_of(whitened[order])
    )
    assert np.array_equal(whole, again)


def test_a_sum_over_many_blocks_does_not_depend_on_the_order():
    rng = np.random.default_rng(0)
    features = rng.uniform(-1, 1, (20_000, 6))
    order = rng.permutation(20_000)
    basis = rng.normal(size=(7, 7))
    sums, plain = [], []
    for part in (features, features[order]):
        rows = descent.raw_rows(part, norm=2.0)
        whitened = descent.whitened_rows(rows, basis)
        targets = (part[:, 0] > 0).astype(float)
        weights = np.rint(np.ones((7, 1)) * 2**19)
        sums.append(
            descent.clipped_gradient(whitened, weights, logistic(targets), norms=norms_of(whitened))
        )
        plain.append((part.astype(np.float32).T @ targets.astype(np.float32)).astype(float))
    assert np.array_equal(sums[0], sums[1])
    assert not np.array_equal(plain[0], plain[1]), "a floating-point sum does depend on it"


@settings(max_examples=60, deadline=None)
@given(
    arrays(np.float64, (1, 3), elements=EXTREME),
    arrays(np.float64, (4, 2), elements=st.floats(-900, 900)),
    arrays(np.float64, (1, 2), elements=st.floats(-1e4, 1e4)),
    st.floats(1e-3, 30.0),
)
def test_one_record_moves_a_gradient_by_at_most_one(features, weights, rest, scale):
    whitened = descent.whitened_rows(descent.raw_rows(features, norm=1.5), np.eye(4) * scale)
    moved = descent.clipped_gradient(
        whitened, np.rint(weights * 2**20), lambda *_: rest.copy(), norms=norms_of(whitened)
    )
    assert sum(int(v) ** 2 for v in moved.ravel()) <= GRADIENT_STEPS**2


def test_an_unclipped_gradient_would_move_further():
    whitened = descent.whitened_rows(descent.raw_rows(np.ones((1, 3)), norm=1.5), np.eye(4) * 4.0)
    long = np.array([[3.0]])
    mutant = whitened[0].astype(float) * long[0, 0] * (1 << 18)
    assert math.sqrt(float(np.sum(mutant**2))) > GRADIENT_STEPS


@settings(max_examples=60, deadline=None)
@given(arrays(np.float64, (1, 3), elements=EXTREME))
def test_one_record_moves_the_moments_by_at_most_the_stated_shift(features):
    rows = descent.raw_rows(features, norm=1.5)
    moved = descent.exact_gram(rows)[np.triu_indices(4)]
    assert math.sqrt(sum(int(v) ** 2 for v in moved)) <= plan().moment_shift


def test_the_stated_shift_of_the_moments_is_attained():
    """A corner of the box reaches it, so that nothing smaller would do."""
    corner = plan(norm=math.sqrt(3.0))
    moved = descent.exact_gram(descent.raw_rows(np.ones((1, 3)), norm=2.0))[np.triu_indices(4)]
    reached = math.sqrt(sum(int(v) ** 2 for v in moved))
    assert 0.999999 * corner.moment_shift <= reached <= corner.moment_shift
    half = math.sqrt((4.0**2) / 2.0) * descent.RAW_STEPS**2  # forgets what the diagonal adds
    assert reached > half


def test_whitened_rows_do_not_depend_on_their_neighbours():
    rng = np.random.default_rng(3)
    rows = descent.raw_rows(rng.uniform(-1, 1, (37, 11)), norm=3.0)
    basis = rng.normal(size=(12, 12)) * 3.0
    together = descent.whitened_rows(rows, basis)
    alone = np.concatenate([descent.whitened_rows(rows[i : i + 1], basis) for i in range(37)])
    assert np.array_equal(together, alone)
    assert norms_of(together).max() <= descent.LONGEST_WHITENED
    free = rows.astype(float) / descent.RAW_STEPS @ basis
    assert np.abs(together / descent.WHITENED_STEPS - free)[norms_of(together) < 15].max() < 1e-4


def test_noise_has_the_planned_deviation():
    """No rows: everything released is noise. Chi-square bounds with false alarm below 1e-9."""
    facts = plan(features=60, norm=7.0)
    empty = descent.raw_rows(np.zeros((0, 60)), norm=7.0)
    matrix = descent.noisy_moments(descent.exact_gram(empty), facts, source(insecure_seed=5))
    draws = matrix[np.triu_indices(61)] * facts.rows * descent.RAW_STEPS**2 / facts.moment_stddev
    ratio = float(np.mean(draws**2))
    spread = 6.5 * math.sqrt(2.0 / draws.size)
    assert abs(ratio - 1.0) < spread
    assert abs(ratio * 1.5 - 1.0) > spread, "noise of another size would be noticed"
    assert np.array_equal(matrix, matrix.T)


@pytest.mark.parametrize("outputs", [1, 4])
def test_weights_stay_where_scores_are_exact(outputs):
    """Even when the noise is far larger than the signal."""
    facts = plan(epsilon=1e-3, rows=10, outputs=outputs, steps=30, total_step_size=1000.0)
    rows = descent.raw_rows(np.random.default_rng(0).uniform(-1, 1, (10, 3)), norm=1.5)
    sums = descent.HeldRows(rows, lambda s, a, b: np.tanh(s))
    done = descent.descend(sums, facts, source(insecure_seed=2))
    assert np.all(np.isfinite(done.weights))
    assert done.weights.shape == (4, outputs)
    assert done.clip_norm > 0


def claimed_at_least(noise_share, *, threshold):
    """A lower bound on epsilon from 1500 runs with and without one extreme row.

    Clopper-Pearson bounds at 1e-9 each, so a true claim is refuted with probability below 2e-9.
    """
    facts = plan(features=1, norm=1.0, rows=1, epsilon=2.0, delta=1e-5, steps=1, moment_share=0.0)
    facts = dataclasses.replace(facts, gradient_stddev=facts.gradient_stddev * noise_share)
    hits = []
    for present in (0, 1):
        rows = descent.raw_rows(np.ones((present, 1)), norm=1.0)
        found = 0
        for run in range(1500):
            bits = source(insecure_seed=run + 1500 * present)
            sums = descent.HeldRows(rows, lambda s, a, b: np.full_like(s, -9.0))
            done = descent.descend(sums, facts, bits)
            scale = facts.gradient_stddev / GRADIENT_STEPS
            step = (
                facts.total_step_size
                * facts.clip_ratio**2
                * 2.0
                / math.sqrt(2.0)
                / facts.clip_ratio
            )
            found += float(done.weights.sum() / math.sqrt(2.0)) / step / scale > threshold
        hits.append(found)
    most = beta.ppf(1.0 - 1e-9, hits[0] + 1, 1500 - hits[0])
    least = beta.ppf(1e-9, hits[1], 1501 - hits[1]) if hits[1] else 0.0
    return math.log(max(least - 1e-5, 1e-300) / most), hits


@pytest.mark.slow
def test_an_adversary_does_not_refute_the_claim_but_refutes_too_little_noise():
    honest, hits = claimed_at_least(1.0, threshold=1.0)
    assert honest <= 2.0
    # The scale of the statistic is right: one in 6.3 normals exceeds 1 without the row.
    assert 140 < hits[0] < 340
    assert hits[1] > hits[0]
    mutant, _ = claimed_at_least(1.0 / 6.0, threshold=3.0)
    assert mutant > 2.0


def test_a_diagonal_whitens_rows_as_its_matrix_does():
    rng = np.random.default_rng(3)
    rows = descent.raw_rows(rng.uniform(-1.0, 1.0, (50, 6)), norm=2.0)
    scales = rng.uniform(0.1, 9.0, 7)
    found = descent.whitened_rows(rows, scales)
    np.testing.assert_array_equal(found, descent.whitened_rows(rows, np.diag(scales)))


@pytest.mark.parametrize("width", [1, 5, 2000, 1 << 23])
def test_blocks_cover_all_rows_once(width):
    parts = list(descent.blocks(9000, width)) if width < 10_000 else list(descent.blocks(9, width))
    places = [place for start, stop in parts for place in range(start, stop)]
    assert places == list(range(len(places)))
    assert len(places) in (9, 9000)
    assert all(stop - start <= 4096 for start, stop in parts)
    assert all((stop - start) * width <= 1 << 22 or stop - start == 1 for start, stop in parts)
