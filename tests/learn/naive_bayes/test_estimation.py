"""S20: post-processing: probabilities stay probabilities, and noise is not believed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.learn.naive_bayes.estimation import (
    bin_moments,
    category_log_probabilities,
    class_log_priors,
    pooled_counts,
)

cells = st.lists(st.floats(-1e6, 1e6), min_size=8, max_size=8)


@given(cells, st.floats(0.0, 1e4), st.floats(0.0, 10.0))
def test_any_noisy_table_gives_probabilities(values, stddev, alpha):
    table = np.array(values).reshape(2, 4)
    shares = np.exp(category_log_probabilities(table, stddev=stddev, alpha=alpha))
    assert np.all(shares >= 0.0)
    assert shares.sum(axis=1) == pytest.approx(1.0)


@given(cells)
def test_without_noise_and_negative_cells_it_is_the_smoothed_share(values):
    table = np.abs(np.array(values)).reshape(2, 4)
    shares = np.exp(category_log_probabilities(table, stddev=0.0, alpha=1.0))
    assert shares == pytest.approx((table + 1.0) / (table.sum(axis=1, keepdims=True) + 4.0))


def test_noise_draws_classes_together():
    table = np.array([[90.0, 10.0], [10.0, 90.0]])
    distance = [
        np.ptp(category_log_probabilities(table, stddev=stddev, alpha=1.0)[:, 0])
        for stddev in (0.0, 10.0, 1e3, 1e6)
    ]
    assert distance == sorted(distance, reverse=True)
    assert distance[-1] < 1e-3


def test_negative_cells_are_moved_to_the_nearest_counts_of_the_same_sum():
    table = np.array([[60.0, 50.0, -10.0]])
    shares = np.exp(category_log_probabilities(table, stddev=0.0, alpha=0.0))[0]
    assert shares == pytest.approx([0.55, 0.45, 0.0], abs=1e-12)


@pytest.mark.parametrize("value", [0.0, 0.02, 0.5, 0.97, 1.0])
def test_moments_of_one_value(value):
    weights = np.array([(1 - value) ** 2, 2 * value * (1 - value), value**2])
    bins = 50.0 * weights.reshape(1, 1, 3)
    means, variances = bin_moments(bins, np.array([50.0]), stddev=0.0, smoothing=1e-6)
    assert means[0, 0] == pytest.approx(value)
    assert variances[0, 0] == pytest.approx(1e-6)


@given(st.lists(st.floats(-1e5, 1e5), min_size=6, max_size=6), st.floats(0.0, 1e4))
def test_moments_of_any_noise_lie_in_the_interval(values, stddev):
    bins = np.array(values).reshape(1, 2, 3)
    means, variances = bin_moments(bins, np.array([3.0]), stddev=stddev, smoothing=1e-9)
    assert np.all((means >= 0.0) & (means <= 1.0))
    assert np.all((variances >= 1e-9) & (variances <= 0.25))


def test_a_variance_is_not_believed_below_its_error():
    bins = np.array([[[0.0, 0.0, 100.0]]])
    _, variances = bin_moments(bins, np.array([100.0]), stddev=4.0, smoothing=1e-9)
    assert variances[0, 0] == pytest.approx(np.sqrt(3.0) / 4.0 * 4.0 / 100.0)


def test_class_sizes_are_pooled_with_inverse_weights_and_cut_at_their_error():
    totals = np.array([[90.0, -50.0], [100.0, -80.0]])
    counts = pooled_counts(totals, np.array([2.0, 4.0]), stddev=6.0)
    assert counts == pytest.approx([(90 / 2 + 100 / 4) / 0.75, 6.0 / np.sqrt(0.75)])
    assert np.exp(class_log_priors(counts)).sum() == pytest.approx(1.0)
    assert pooled_counts(totals, np.array([2.0, 4.0]), stddev=0.0)[1] == 1.0
