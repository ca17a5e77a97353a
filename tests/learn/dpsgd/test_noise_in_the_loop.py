"""The noise that reaches the model: the planned scale, and no planted fault goes unseen.

False alarms: each statistical test fires wrongly with probability at most 1e-9.
"""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.utils.data import TensorDataset

from discreet.learn import dpsgd
from discreet.learn.dpsgd._noise import NoiseBank, StepFactors
from discreet.randomness import source
from learn.dpsgd.made_up_runs import (
    check,
    clipped,
    data,
    each,
    network,
    plan,
    silenced,
    steps_of,
    wrap,
)
from oracles import slow_dpsgd

ALARM = 1e-9


def noise_seen(monkeypatch=None, mutate=None, **changes):
    """What the model moves by when no example has a gradient, times the expected size."""
    made = plan(
        **{
            "noise_multiplier": 1.7,
            "clip_norm": 0.4,
            "expected_batch_size": 4,
            "steps": 60,
            **changes,
        }
    )
    model = nn.Linear(40, 25, bias=False)
    nn.init.zeros_(model.weight)
    dataset = TensorDataset(torch.zeros(64, 40))
    if mutate is not None:
        mutate(monkeypatch)
    private, optimizer = wrap(model, made, source=None)
    rows = []
    for (inputs,) in private.batches(dataset):
        before = model.weight.detach().clone()
        private.backward(model(inputs).sum(1))
        optimizer.step()
        rows.append((before - model.weight.detach()).double().reshape(-1) * 4)
    private.detach()
    return torch.stack(rows).numpy()


def has_planned_noise(rows, stddev=1.7 * 0.4):
    """The variance is the planned one, the values are normal, steps and pairs are independent."""
    statistic = float((rows**2).sum()) / stddev**2
    tail = min(stats.chi2.cdf(statistic, rows.size), stats.chi2.sf(statistic, rows.size))
    each_step = (rows**2).sum(1) / stddev**2
    worst = max(
        -math.log10(
            max(min(stats.chi2.cdf(s, rows.shape[1]), stats.chi2.sf(s, rows.shape[1])), 1e-99)
        )
        for s in each_step
    )
    shape = stats.kstest(rows.ravel() / stddev, "norm").pvalue
    copies = np.corrcoef(rows) - np.eye(len(rows))
    # 1000 values a step, 1770 pairs: 0.25 is eight deviations.
    return tail > ALARM and worst < 11 and shape > ALARM and np.abs(copies).max() < 0.25


def test_noise_has_exactly_the_planned_scale():
    assert has_planned_noise(noise_seen())
    assert has_planned_noise(noise_seen(clipping="automatic"))


def test_the_judge_of_noise_is_sharp():
    rows = noise_seen()
    assert not has_planned_noise(rows, stddev=1.7 * 0.4 * 1.03)
    assert not has_planned_noise(rows * 0.97)


def half(monkeypatch):
    real = StepFactors.stddev
    monkeypatch.setattr(StepFactors, "stddev", lambda self, step: 0.5 * real(self, step))


def twice(monkeypatch):
    real = NoiseBank.take

    def take(self, step):
        first = [view.clone() for view in real(self)]
        return [one + other for one, other in zip(first, real(self), strict=True)]

    monkeypatch.setattr(NoiseBank, "take", take)


def over_the_realised_batch(monkeypatch):
    real = dpsgd.Private._add_to_sum

    def add_to_sum(self, batch):
        units = batch.chunk.units
        real(self, batch)
        torch._foreach_mul_(self._step.sum, 4 / units)

    monkeypatch.setattr(dpsgd.Private, "_add_to_sum", add_to_sum)


def reused(monkeypatch):
    kept = []
    real = NoiseBank.take

    def take(self, step):
        if not kept:
            kept.extend(view.clone() for view in real(self))
        return [view.clone() for view in kept]

    monkeypatch.setattr(NoiseBank, "take", take)


def clipped_after_the_noise(monkeypatch):
    real = dpsgd.Private._add_to_sum

    def add_to_sum(self, batch):
        real(self, batch)
        length = torch.cat([view.reshape(-1) for view in self._step.sum]).norm() * 4
        torch._foreach_mul_(self._step.sum, min(1.0, 0.4 / float(length)))

    monkeypatch.setattr(dpsgd.Private, "_add_to_sum", add_to_sum)


@pytest.mark.parametrize(
    "mutate", [half, twice, over_the_realised_batch, reused, clipped_after_the_noise]
)
def test_planted_faults_of_the_noise_are_found(mutate, monkeypatch):
    assert not has_planned_noise(noise_seen(monkeypatch, mutate))


@pytest.mark.parametrize("wrong", ["realised", "plan examples"])
def test_a_wrong_normaliser_is_found(wrong, monkeypatch):
    """The judge of the closed form rejects sums that are divided by something else."""
    real = dpsgd.Private._add_to_sum

    def add_to_sum(self, batch):
        units = batch.chunk.units
        real(self, batch)
        torch._foreach_mul_(self._step.sum, 16 / (units if wrong == "realised" else 64))

    monkeypatch.setattr(dpsgd.Private, "_add_to_sum", add_to_sum)
    private, optimizer = wrap(network(), plan(), source=source(insecure_seed=1))
    agreed = []
    for start, inputs, targets, moved in steps_of(private, optimizer, data(64)):
        gradients = slow_dpsgd.example_gradients(start, each, inputs, targets)
        expected = slow_dpsgd.noiseless_step(
            gradients, clip=lambda g: clipped(g, 1.0), expected_batch_size=16
        )
        try:
            check(moved, expected)
            agreed.append(True)
        except AssertionError:
            agreed.append(False)
    assert not all(agreed)
    private.detach()


def test_quantile_noise_follows_the_clip_norm():
    rule = dpsgd.Quantile(quantile=0.5, learning_rate=0.3, count_stddev=2.0)
    made = plan(clipping=rule, noise_multiplier=1.7, clip_norm=0.4, expected_batch_size=4, steps=60)
    model = nn.Linear(40, 25, bias=False)
    nn.init.zeros_(model.weight)
    private, optimizer = wrap(model, made, source=None)
    scaled = []
    for (inputs,) in private.batches(TensorDataset(torch.zeros(64, 40))):
        clip = private.clip_norm
        before = model.weight.detach().clone()
        private.backward(model(inputs).sum(1))
        optimizer.step()
        scaled.append((before - model.weight.detach()).double().reshape(-1) * 4 / clip)
    assert has_planned_noise(torch.stack(scaled).numpy(), stddev=1.7)
    assert len(private.clip_norms) == 61
    assert private.clip_norms[0] == 0.4
    assert private.clip_norm < 0.4  # all gradients are zero, so the norm goes down
    private.detach()


def test_quantile_updates_are_the_published_rule():
    rule = dpsgd.Quantile(quantile=0.5, learning_rate=0.2)
    made = plan(clipping=rule, clip_norm=0.5)
    private, optimizer = wrap(network(), made, source=source(insecure_seed=1))
    clip = 0.5
    for start, inputs, targets, _ in steps_of(private, optimizer, data(64)):
        gradients = slow_dpsgd.example_gradients(start, each, inputs, targets)
        inside = sum(slow_dpsgd.norm(g) <= clip for g in gradients)
        clip *= math.exp(-0.2 * ((inside - len(gradients) / 2) / 16 + 0.5 - 0.5))
        assert private.clip_norm == pytest.approx(clip, rel=1e-6)
    private.detach()
    again, optimizer = wrap(network(), made, source=source(insecure_seed=1))
    for inputs, targets in silenced(again, data(64), max_physical=5):
        again.backward(each(again.model(inputs), targets))
        optimizer.step()
    assert again.clip_norms == pytest.approx(private.clip_norms, rel=1e-9)
    again.detach()
