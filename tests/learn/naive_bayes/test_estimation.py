"""S20: post-processing: probabilities stay probabilities, and noise is not believed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.learn._noisy_counts import (
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


# --- what noise tore apart is drawn together ---------------------------------------------


def bins_of(means, variances, sizes):
    """Exact soft bins of classes x features with these moments."""
    means, variances = np.asarray(means, float), np.asarray(variances, float)
    second = variances + means**2
    weights = np.stack([1 - 2 * means + second, 2 * (means - second), second], axis=-1)
    return np.asarray(sizes, float)[:, None, None] * weights


def test_without_noise_moments_are_what_they_are():
    means, variances = [[0.2, 0.5, 0.7], [0.3, 0.4, 0.6]], [[0.01, 0.02, 0.01], [0.02, 0.01, 0.03]]
    found = bin_moments(
        bins_of(means, variances, [30, 70]), np.array([30.0, 70.0]), stddev=0.0, smoothing=1e-9
    )
    assert found[0] == pytest.approx(np.array(means))
    assert found[1] == pytest.approx(np.array(variances))


def test_variances_below_the_common_one_are_raised_by_the_share_that_is_asked_for():
    variances = np.array([[0.01, 0.02, 0.01], [0.02, 0.01, 0.03]])
    bins, sizes = bins_of(np.full((2, 3), 0.5), variances, [30, 70]), np.array([30.0, 70.0])
    common = 0.3 * variances[0] + 0.7 * variances[1]
    for share in (0.1, 1.0):
        found = bin_moments(bins, sizes, stddev=0.0, smoothing=1e-9, pooling=share)[1]
        raised = np.where(variances < common, (1 - share) * variances + share * common, variances)
        assert found == pytest.approx(raised)


def test_deviations_are_shrunk_by_the_closed_form_of_james_and_stein():
    means = np.array([[0.2, 0.5, 0.7, 0.4], [0.4, 0.3, 0.5, 0.6]])
    sizes, stddev = np.array([400.0, 600.0]), 20.0
    bins = bins_of(means, np.full((2, 4), 0.02), sizes)
    found = bin_moments(bins, sizes, stddev=stddev, smoothing=1e-9)[0]
    common = 0.4 * means[0] + 0.6 * means[1]
    for k, other in ((0, 1), (1, 0)):
        # The deviation of a class is other/total times the difference of two independent means.
        error = [stddev**2 / 2 / size**2 for size in sizes]
        noise = (sizes[other] / 1000.0) ** 2 * (error[0] + error[1])
        apart = means[k] - common
        kept = max(1.0 - 2 * noise / np.sum(apart**2), 0.01 / (0.01 + noise))
        assert found[k] == pytest.approx(common + kept * apart)


def test_classes_that_noise_alone_tells_apart_become_one():
    """Seeded: 200 features whose means are the same; the error shrinks by far."""
    rng = np.random.default_rng(0)
    sizes, stddev = np.array([300.0, 500.0]), 100.0
    bins = bins_of(np.full((2, 200), 0.4), np.full((2, 200), 0.02), sizes)
    bins = bins + rng.normal(0, stddev, bins.shape)
    plain = 0.5 + (bins[..., 2] - bins[..., 0]) / (2 * sizes[:, None])
    found = bin_moments(bins, sizes, stddev=stddev, smoothing=1e-9)[0]
    assert np.ptp(found, axis=0).max() < 0.4 * np.ptp(plain, axis=0).max()
    assert np.mean((found - 0.4) ** 2) < 0.5 * np.mean((plain - 0.4) ** 2)
    # One or two features cannot be judged together and stay apart.
    pair = bin_moments(bins[:, :2], sizes, stddev=stddev, smoothing=1e-9)[0]
    assert pair == pytest.approx(np.clip(plain[:, :2], 0.0, 1.0))
