import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.errors import InvalidValue, SchemaError
from discreet.learn.dpsgd._clipping import (
    ROUNDING_MARGIN,
    Automatic,
    Flat,
    PerLayer,
    Quantile,
    layers_of,
    read_clipping,
)
from discreet.privacy import Gaussian

RULES = [Flat(), PerLayer(), Automatic(), Automatic(gamma=1e-6), Quantile()]
NASTY = [0.0, 1e-45, 1e-30, 1.0, 1e10, 3e38, math.inf, math.nan, -1e-8, -math.inf]


def contribution(rule, squared, clip_norm):
    """The length of what a unit contributes: sqrt of the sum over groups of (w |g|)^2."""
    norms = torch.as_tensor(squared)
    weights = rule.weights(norms.clone(), clip_norm=clip_norm)
    lengths = torch.where(weights == 0, 0.0, weights.double() * norms.double().clamp(min=0).sqrt())
    return weights, lengths.square().sum(0).sqrt()


@settings(max_examples=150)
@given(
    rule=st.sampled_from(RULES),
    groups=st.integers(1, 5),
    clip_norm=st.floats(1e-6, 1e6),
    data=st.data(),
)
def test_no_unit_contributes_more_than_the_clip_norm(rule, groups, clip_norm, data):
    cells = st.one_of(
        st.sampled_from(NASTY), st.floats(0, 2.0**126, width=32), st.floats(0, 2 * clip_norm**2)
    )
    rows = [data.draw(st.lists(cells, min_size=4, max_size=4)) for _ in range(groups)]
    if not isinstance(rule, PerLayer):
        rows = rows[:1]
    squared = torch.tensor(rows, dtype=torch.float32)
    weights, lengths = contribution(rule, squared, clip_norm)
    assert bool(torch.isfinite(weights).all())
    assert bool((weights >= 0).all())
    assert float(lengths.max()) <= clip_norm


@pytest.mark.parametrize("rule", RULES)
def test_what_is_not_finite_contributes_nothing(rule):
    squared = torch.tensor([[math.nan, math.inf, 4.0]])
    weights = rule.weights(squared, clip_norm=1.0)
    assert weights[0, :2].tolist() == [0.0, 0.0]
    assert weights[0, 2] > 0


def test_flat_is_g_over_max_one():
    squared = torch.tensor([[0.0, 0.25, 4.0, 100.0]], dtype=torch.float64)
    weights = Flat().weights(squared, clip_norm=1.0)[0]
    assert weights[:2].tolist() == [1.0, 1.0]
    shrunk = 1 - ROUNDING_MARGIN
    assert weights[2:].tolist() == pytest.approx([0.5 * shrunk, 0.1 * shrunk], rel=1e-12)


def test_per_layer_splits_the_clip_norm_evenly():
    squared = torch.full((4, 2), 1e6, dtype=torch.float64)
    weights, lengths = contribution(PerLayer(), squared, 3.0)
    assert lengths.tolist() == pytest.approx([3.0, 3.0], rel=2 * ROUNDING_MARGIN)
    assert (weights * 1e3).tolist()[0] == pytest.approx([1.5, 1.5], rel=2 * ROUNDING_MARGIN)


def test_automatic_is_normalisation():
    squared = torch.tensor([[4.0]], dtype=torch.float64)
    weight = float(Automatic(gamma=0.5).weights(squared, clip_norm=3.0))
    assert weight == pytest.approx(3.0 / 2.5, rel=2 * ROUNDING_MARGIN)


def test_layers_are_the_modules_that_own_parameters():
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Sequential(torch.nn.Linear(3, 1)))
    names = [name for name, _ in model.named_parameters()]
    assert layers_of(names) == [["0.weight", "0.bias"], ["1.0.weight", "1.0.bias"]]
    assert PerLayer().groups(names) == layers_of(names)
    assert Flat().groups(names) is None


# --- the adaptive rule ---------------------------------------------------------------------


def test_joint_sensitivity_of_sum_and_count_is_that_of_the_one_atom():
    """Over random neighbours, sum and count together move by at most 1/sigma_eff deviations."""
    rule, z, clip = Quantile(count_stddev=0.7), 1.3, 2.0
    bound = 1 / rule.noise_for_atom(z)
    draw = np.random.default_rng(5)
    largest = 0.0
    for trial in range(2_000):
        gradients = torch.from_numpy(draw.normal(size=(6, 3)) * 10 ** draw.uniform(-2, 2))
        if trial % 3 == 0:  # push towards the corner: long gradient that is counted as inside
            gradients[-1] *= clip * (1 - 1e-12) / gradients[-1].norm()
        squared = gradients.square().sum(1)[None]
        sums, counts = [], []
        for kept in (6, 5):
            part = squared[:, :kept]
            weights = rule.weights(part.clone(), clip_norm=clip)[0]
            sums.append((weights[:, None] * gradients[:kept]).sum(0))
            counts.append(float(rule.centred_count(part, clip_norm=clip)))
        moved = float((sums[0] - sums[1]).norm()) / (z * clip)
        counted = abs(counts[0] - counts[1]) / rule.count_stddev
        largest = max(largest, math.hypot(moved, counted))
    assert largest <= bound * (1 + 1e-9)
    assert largest >= bound * (1 - 1e-3)  # and the bound is reached, so it is not padded


@pytest.mark.parametrize("wrong", ["uncentred", "separate", "half"])
def test_planted_mistakes_in_the_joint_noise_show(wrong):
    """Each common mistake claims more noise than the corner case of the test above has."""
    z, count_stddev = 1.3, 0.7
    true_mu = math.hypot(1 / z, 0.5 / count_stddev)
    claimed = {
        "uncentred": math.hypot(1 / z, 0.25 / count_stddev),
        "separate": 1 / z,
        "half": 0.5 / count_stddev,
    }[wrong]
    assert claimed < true_mu * 0.99
    assert 1 / Quantile(count_stddev=count_stddev).noise_for_atom(z) >= true_mu


def test_the_atom_is_the_composition_of_both_on_full_data():
    rule, z = Quantile(count_stddev=0.7), 1.3
    both = Gaussian(z) + Gaussian(2 * 0.7)
    one = Gaussian(rule.noise_for_atom(z))
    assert one.epsilon(delta=1e-5) == pytest.approx(both.epsilon(delta=1e-5), rel=1e-6)


def test_counts_are_centred_and_ignore_what_is_not_finite():
    squared = torch.tensor([[0.5, 4.0, math.nan, math.inf, 1.0]])
    assert float(Quantile().centred_count(squared, clip_norm=1.0)) == 2 - 2.5


def test_clip_norm_finds_the_quantile():
    rule = Quantile(quantile=0.8, learning_rate=0.3, count_stddev=5.0)
    draw = np.random.default_rng(1)
    clip = 100.0
    for _ in range(400):
        norms = draw.exponential(size=500)
        count = float((norms <= clip).sum() - 250) + draw.normal() * 5
        clip = rule.next_clip_norm(count, clip_norm=clip, initial=100.0, expected_batch_size=500)
    assert clip == pytest.approx(-math.log(0.2), rel=0.15)


def test_clip_norm_stays_in_range_whatever_the_noise():
    rule = Quantile(learning_rate=50.0)
    up = down = 1.0
    for _ in range(100):
        up = rule.next_clip_norm(-1e9, clip_norm=up, initial=1.0, expected_batch_size=10)
        down = rule.next_clip_norm(1e9, clip_norm=down, initial=1.0, expected_batch_size=10)
    assert (up, down) == (1e6, 1e-6)


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: Automatic(gamma=0.0), "gamma"),
        (lambda: Quantile(quantile=1.0), "quantile"),
        (lambda: Quantile(quantile=0.0), "quantile"),
        (lambda: Quantile(learning_rate=-1.0), "learning_rate"),
        (lambda: Quantile(count_stddev=0.0), "count_stddev"),
        (lambda: read_clipping("soft"), "clipping"),
    ],
)
def test_bad_settings_are_named(make, argument):
    with pytest.raises(InvalidValue) as caught:
        make()
    assert caught.value.argument == argument


@pytest.mark.parametrize("rule", RULES)
def test_rules_survive_json(rule):
    assert read_clipping(rule.to_json()) == rule


def test_unknown_fields_are_refused():
    with pytest.raises(SchemaError):
        read_clipping({"kind": "automatic", "gamma": 1.0, "more": 2})
