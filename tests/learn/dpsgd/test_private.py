"""The loop without its noise: closed forms against the slow and obvious way."""

import copy
import logging
import math

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from discreet.learn import dpsgd
from discreet.learn.dpsgd._batches import draws
from discreet.learn.dpsgd._clipping import ROUNDING_MARGIN, layers_of
from discreet.learn.dpsgd._noise import StepFactors
from discreet.randomness import source
from learn.dpsgd.made_up_runs import (
    Silence,
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

# --- closed forms ---------------------------------------------------------------------------


@pytest.mark.parametrize("clip_norm", [0.05, 0.5, 100.0])
@pytest.mark.parametrize("sampler", ["poisson", "without_replacement", "full", "shuffled"])
def test_a_silent_step_is_the_clipped_sum_over_the_expected_size(sampler, clip_norm):
    size = 64 if sampler == "full" else 16
    made = plan(sampler=sampler, clip_norm=clip_norm, expected_batch_size=size)
    private, optimizer = wrap(network(), made)
    seen = 0
    for start, inputs, targets, moved in steps_of(private, optimizer, data(64)):
        gradients = slow_dpsgd.example_gradients(start, each, inputs, targets)
        expected = slow_dpsgd.noiseless_step(
            gradients,
            clip=lambda g: clipped(g, clip_norm),
            expected_batch_size=size,
        )
        check(moved, expected)
        seen += 1
    assert seen == 4
    private.detach()


def test_per_layer_clipping_in_the_loop():
    private, optimizer = wrap(network(), plan(clipping="per_layer", clip_norm=0.2))
    layers = layers_of([name for name, _ in private.model.named_parameters()])
    bound = 0.2 / math.sqrt(len(layers))  # clipped() takes the margin off

    def clip(gradient):
        parts = [clipped({n: gradient[n] for n in names}, bound) for names in layers]
        return {name: value for part in parts for name, value in part.items()}

    for start, inputs, targets, moved in steps_of(private, optimizer, data(64)):
        gradients = slow_dpsgd.example_gradients(start, each, inputs, targets)
        check(moved, slow_dpsgd.noiseless_step(gradients, clip=clip, expected_batch_size=16))
    private.detach()


def test_automatic_clipping_in_the_loop():
    rule = dpsgd.Automatic(gamma=0.1)
    private, optimizer = wrap(network(), plan(clipping=rule, clip_norm=0.7))

    def clip(gradient):
        factor = 0.7 * (1 - ROUNDING_MARGIN) / (slow_dpsgd.norm(gradient) + 0.1)
        return {name: factor * part for name, part in gradient.items()}

    for start, inputs, targets, moved in steps_of(private, optimizer, data(64)):
        gradients = slow_dpsgd.example_gradients(start, each, inputs, targets)
        check(moved, slow_dpsgd.noiseless_step(gradients, clip=clip, expected_batch_size=16))
    private.detach()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_usual_backward_gives_the_same_as_the_safe_form(reduction):
    moved = []
    for usual in (True, False):
        private, optimizer = wrap(
            network(),
            plan(clip_norm=0.3),
            reduction=reduction,
            source=source(insecure_seed=3),
        )
        for inputs, targets in silenced(private, data(64)):
            losses = each(private.model(inputs), targets)
            if usual:
                getattr(losses, reduction)().backward()
            else:
                private.backward(losses)
            optimizer.step()
            optimizer.zero_grad()
        moved.append([p.detach().clone() for p in private.model.parameters()])
        private.detach()
    for one, other in zip(*moved, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)


def test_without_clipping_and_noise_it_is_plain_sgd_bit_for_bit():
    """The expected size is a power of two, so dividing by it loses nothing in either order."""
    made = plan(clip_norm=1e6, sampler="without_replacement", steps=6)
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 5, bias=False), nn.Tanh(), nn.Linear(5, 3, bias=False))
    plain = copy.deepcopy(model)
    private, optimizer = wrap(model, made, lr=0.5)
    usual = torch.optim.SGD(plain.parameters(), lr=0.5)
    for inputs, targets in silenced(private, data(64)):
        private.backward(each(private.model(inputs), targets))
        optimizer.step()
        (each(plain(inputs), targets).sum() / 16).backward()
        usual.step()
        usual.zero_grad()
        for ours, theirs in zip(private.model.parameters(), plain.parameters(), strict=True):
            assert torch.equal(ours, theirs)
    private.detach()


@pytest.mark.parametrize("most", [1, 3, 7, 16])
def test_physical_batches_do_not_change_a_step(most):
    ends = []
    for limit in (None, most):
        private, optimizer = wrap(
            network(), plan(clip_norm=0.3, steps=3), source=source(insecure_seed=5)
        )
        optimizer_steps = 0
        for inputs, targets in silenced(private, data(64), max_physical=limit):
            assert limit is None or len(inputs) <= limit
            private.backward(each(private.model(inputs), targets))
            optimizer.step()
            optimizer.zero_grad()
            optimizer_steps += private.stepped
        assert optimizer_steps == private.steps_taken == 3
        ends.append([p.detach().clone() for p in private.model.parameters()])
        private.detach()
    for one, other in zip(*ends, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)


def test_physical_batches_may_be_accumulated_without_stepping():
    """Stepping only after the last physical batch of a step is as good."""
    ends = []
    for patient in (False, True):
        private, optimizer = wrap(
            network(), plan(clip_norm=0.3, steps=2), source=source(insecure_seed=6)
        )
        for inputs, targets in silenced(private, data(64), max_physical=5):
            private.backward(each(private.model(inputs), targets))
            if not patient or private._step.batch.chunk.last:
                optimizer.step()
        ends.append([p.detach().clone() for p in private.model.parameters()])
        private.detach()
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))


def test_schedulers_move_once_a_step_however_many_physical_batches():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    average = dpsgd.ParameterAverage(model, decay=0.9)
    private = dpsgd.make_private(
        model,
        optimizer,
        plan(),
        isolation="vouched",
        after_step=[scheduler.step, average.update],
    )
    for inputs, targets in private.batches(data(64), max_physical=3):
        private.backward(each(model(inputs), targets))
        optimizer.step()
    assert optimizer.param_groups[0]["lr"] == 0.5**4
    assert average.updates == 4
    private.detach()


def test_augmented_rows_of_an_example_are_clipped_as_one():
    class Augmented(Dataset):
        """Reading an example again gives another view of it."""

        def __init__(self, base):
            self.base, self.reads = base, 0

        def __len__(self):
            return len(self.base)

        def __getitem__(self, index):
            self.reads += 1
            inputs, target = self.base[index]
            return inputs * (1 + self.reads % 3), target

    private, optimizer = wrap(network(), plan(augmentations=3, clip_norm=0.4))
    for start, inputs, targets, moved in steps_of(private, optimizer, Augmented(data(64))):
        rows = slow_dpsgd.example_gradients(start, each, inputs, targets)
        assert len(rows) % 3 == 0
        units = [
            {n: (rows[i][n] + rows[i + 1][n] + rows[i + 2][n]) / 3 for n in rows[i]}
            for i in range(0, len(rows), 3)
        ]
        expected = slow_dpsgd.noiseless_step(
            units, clip=lambda g: clipped(g, 0.4), expected_batch_size=16
        )
        check(moved, expected)
    private.detach()


def test_phases_change_size_and_noise():
    made = plan(
        expected_batch_size=None,
        steps=None,
        phases=[dpsgd.Phase(1, 8), dpsgd.Phase(2, 32, noise_factor=3.0)],
    )
    factors = StepFactors(made, ranks=1)
    assert [factors.normaliser(s) for s in range(3)] == [1 / 8, 1 / 32, 1 / 32]
    assert [factors.stddev(s) for s in range(3)] == [1 / 8, 3 / 32, 3 / 32]
    assert StepFactors(made, ranks=4).stddev(1) == 1.5 / 32
    private, optimizer = wrap(network(), made)
    count = 0
    for start, inputs, targets, moved in steps_of(private, optimizer, data(64)):
        gradients = slow_dpsgd.example_gradients(start, each, inputs, targets)
        expected = slow_dpsgd.noiseless_step(
            gradients,
            clip=lambda g: clipped(g, 1.0),
            expected_batch_size=8 if count == 0 else 32,
        )
        check(moved, expected)
        count += 1
    assert count == 3
    private.detach()


def test_batches_are_the_draws_of_the_plan():
    dataset = TensorDataset(torch.arange(64.0)[:, None])
    made = plan(steps=5)
    model = nn.Linear(1, 1)
    private, optimizer = wrap(model, made, source=source(insecure_seed=11))
    held = []
    for (inputs,) in private.batches(dataset):
        held.append(inputs[:, 0].int().tolist())
        private.backward(model(inputs)[:, 0])
        optimizer.step()
    again = draws(made, population=64, source=source(insecure_seed=11).derive("sampling", 0))
    assert held == [d.tolist() for d in again]
    private.detach()


def test_the_length_may_differ_where_it_is_private_and_nowhere_else():
    for made, length, right in [
        (plan(), 50, True),
        (plan(), 90, True),
        (plan(public_examples=True), 63, False),
        (plan(sampler="without_replacement"), 65, False),
        (plan(public_examples=True), 64, True),
    ]:
        private, _ = wrap(network(), made)
        if right:
            assert private.batches(data(length)) is not None
        else:
            with pytest.raises(ValueError, match="public number"):
                private.batches(data(length))
        private.detach()


@pytest.mark.parametrize("workers", [0, 1])
def test_any_data_set_and_collate(workers):
    class Words(Dataset):
        def __len__(self):
            return 30

        def __getitem__(self, index):
            return {"x": torch.full((4,), float(index)), "label": index % 3}

    def collate(examples):
        return {
            "x": torch.stack([e["x"] for e in examples]),
            "label": torch.tensor([e["label"] for e in examples]),
        }

    model = nn.Linear(4, 3)
    made = plan(examples=30, expected_batch_size=6, steps=3)
    private, optimizer = wrap(model, made, isolation="check", inputs=dpsgd.TensorSpec((4,)))
    for batch in private.batches(Words(), collate=collate, workers=workers, max_physical=4):
        private.backward(each(model(batch["x"]), batch["label"]))
        optimizer.step()
    assert private.steps_taken == 3
    private.detach()


# --- examples without a gradient, and steps without an example --------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
@pytest.mark.parametrize("clipping", ["flat", "per_layer", "automatic", "quantile"])
def test_an_example_whose_gradient_is_not_finite_contributes_nothing(value, clipping):
    """Training goes on as if the example were absent, for every rule and every such value."""
    clean = data(64)
    spoiled = TensorDataset(clean.tensors[0].clone(), clean.tensors[1])
    spoiled.tensors[0][7] = value
    model = nn.Linear(6, 3)
    start = copy.deepcopy(model.state_dict())
    ends = []
    for dataset, keep in ((spoiled, None), (clean, 7)):
        model.load_state_dict(start)
        made = plan(sampler="full", expected_batch_size=64, steps=1, clipping=clipping)
        private, optimizer = wrap(model, made)
        for inputs, targets in silenced(private, dataset):
            losses = each(model(inputs), targets)
            if keep is not None:  # the same examples with number 7 cut off from the loss
                losses = losses * (torch.arange(64) != keep)
            private.backward(losses)
            optimizer.step()
        ends.append([p.detach().clone() for p in model.parameters()])
        private.detach()
    for one, other in zip(*ends, strict=True):
        assert bool(torch.isfinite(one).all())
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_loss_that_is_not_finite_does_not_spoil_the_others(reduction):
    """The usual ``loss.backward()`` of a NaN loss: the other examples count as always."""
    spoiled = data(64)
    spoiled.tensors[0][7] = math.nan
    model = nn.Linear(6, 3)
    start = [p.detach().clone() for p in model.parameters()]
    made = plan(sampler="full", expected_batch_size=64, steps=1, clip_norm=0.3)
    private, optimizer = wrap(model, made, reduction=reduction)
    for inputs, targets in silenced(private, spoiled):
        loss = getattr(each(model(inputs), targets), reduction)()
        assert not torch.isfinite(loss)
        loss.backward()
        optimizer.step()
    rows = [row for row in range(64) if row != 7]
    twin = nn.Linear(6, 3)
    twin.load_state_dict(dict(zip(["weight", "bias"], start, strict=True)))
    clean, targets = spoiled.tensors[0][rows], spoiled.tensors[1][rows]
    expected = slow_dpsgd.noiseless_step(
        slow_dpsgd.example_gradients(twin, each, clean, targets),
        clip=lambda g: clipped(g, 0.3),
        expected_batch_size=64,
    )
    moved = zip(["weight", "bias"], start, model.parameters(), strict=True)
    check({name: before - after.detach() for name, before, after in moved}, expected)
    private.detach()


def test_nothing_tells_that_a_gradient_was_not_finite(caplog):
    """No log line, no attribute and no figure differs; only the (noisy) model may."""
    spoiled = data(64)
    spoiled.tensors[0][:] = math.nan
    caplog.set_level(logging.DEBUG)
    private, optimizer = wrap(nn.Linear(6, 3), plan())
    for inputs, targets in private.batches(spoiled):
        private.backward(each(private.model(inputs), targets))
        optimizer.step()
    assert caplog.records == []
    assert private.steps_taken == 4
    assert all(bool(torch.isfinite(p).all()) for p in private.model.parameters())
    private.detach()


def test_a_step_without_examples_is_pure_noise():
    made = plan(examples=10_000, expected_batch_size=1, steps=12)
    dataset = data(3)
    private, optimizer = wrap(network(), made, source=source(insecure_seed=2))
    empty = 0
    for inputs, targets in silenced(private, dataset):
        before = [p.detach().clone() for p in private.model.parameters()]
        private.backward(each(private.model(inputs), targets))
        is_empty = private._step.batch.chunk.empty
        empty += is_empty
        assert len(inputs) == 1
        if is_empty:
            assert not inputs.any()
        optimizer.step()
        after = list(private.model.parameters())
        assert is_empty == all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert empty >= 10
    assert private._noise.taken == 12
    private.detach()


# --- what stays as it was --------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3),
        lambda p: torch.optim.Adam(p, lr=0.01),
        lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
        lambda p: torch.optim.RMSprop(p, lr=0.01),
        lambda p: torch.optim.Adagrad(p, lr=0.1),
        lambda p: torch.optim.NAdam(p, lr=0.01),
    ],
)
def test_any_optimizer_sees_the_private_gradient(make):
    """The same gradients through a plain copy of the optimizer give the same parameters."""
    model, twin = network(), network()
    optimizer, plain = make(model.parameters()), make(twin.parameters())
    private = dpsgd.make_private(model, optimizer, plan(steps=5), isolation="vouched")
    gradients = []
    handle = optimizer.register_step_pre_hook(
        lambda *_: gradients.append([p.grad.clone() for p in model.parameters()])
    )
    for inputs, targets in private.batches(data(64)):
        private.backward(each(model(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()
        for parameter, gradient in zip(twin.parameters(), gradients[-1], strict=True):
            parameter.grad = gradient
        plain.step()
    handle.remove()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    private.detach()


def test_frozen_parameters_and_adapters():
    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = nn.Linear(6, 3)
            self.base.requires_grad_(False)
            self.down, self.up = nn.Linear(6, 2, bias=False), nn.Linear(2, 3, bias=False)

        def forward(self, x):
            return self.base(x) + self.up(self.down(x))

    torch.manual_seed(0)
    model = Adapted()
    before = model.base.weight.clone()
    private, optimizer = wrap(model, plan(clip_norm=0.2))
    for start, inputs, targets, moved in steps_of(private, optimizer, data(64)):
        gradients = slow_dpsgd.example_gradients(start, each, inputs, targets)
        expected = slow_dpsgd.noiseless_step(
            gradients, clip=lambda g: clipped(g, 0.2), expected_batch_size=16
        )
        check(moved, expected)
    assert torch.equal(model.base.weight, before)
    private.detach()


def test_the_model_keeps_its_names_and_is_free_after_detach():
    model = network()
    names = list(model.state_dict())
    private, optimizer = wrap(model, plan())
    for inputs, targets in private.batches(data(64)):
        private.backward(each(model(inputs), targets))
        optimizer.step()
    assert list(model.state_dict()) == names
    private.detach()
    inputs, targets = data(64).tensors
    each(model(inputs), targets).mean().backward()
    optimizer.step()
    assert not model._forward_pre_hooks


def test_evaluation_in_the_middle_is_untouched():
    model = network()
    private, optimizer = wrap(model, plan())
    inputs, targets = data(64).tensors
    for x, y in private.batches(data(64)):
        private.backward(each(model(x), y))
        optimizer.step()
        model.eval()
        accuracy = (model(inputs).argmax(1) == targets).float().mean()
        model.train()
        with torch.no_grad():
            model(inputs)
        assert 0 <= accuracy <= 1
    private.detach()


def test_zero_grad_may_be_forgotten():
    private, optimizer = wrap(network(), plan())
    moves = []
    for inputs, targets in silenced(private, data(64)):
        private.backward(each(private.model(inputs), targets))
        before = [p.detach().clone() for p in private.model.parameters()]
        optimizer.step()
        after = [p.detach() for p in private.model.parameters()]
        moves.append(sum(float((a - b).norm()) for a, b in zip(before, after, strict=True)))
        assert all(p.grad is None for p in private.model.parameters())
    assert max(moves) < 3 * min(moves)
    assert isinstance(private._noise, Silence)
    private.detach()
