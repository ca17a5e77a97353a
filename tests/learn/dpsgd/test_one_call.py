"""``private.step(loss, *batch)``: the same as forward, loss, backward and step by hand."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from discreet.errors import InvalidValue, PlanViolation
from learn.dpsgd.made_up_runs import CLASSES, FEATURES, Silence, data, network, plan, wrap

torch.set_num_threads(1)
EACH = nn.CrossEntropyLoss(reduction="none")


class Unforeseen(nn.Module):
    """The same network, but no sequence of layers."""

    def __init__(self):
        super().__init__()
        self.inner = network()

    def forward(self, inputs):
        return self.inner(inputs)


def trained(model, made, dataset, *, by_hand, loss=EACH, quiet=False, **options):
    """The model after all steps with repeatable draws."""
    private, optimizer = wrap(model, made, lr=0.5)
    if quiet:
        private._noise = Silence(private._setup.trained)
    for inputs, targets in private.batches(dataset, **options):
        if by_hand:
            private.backward(loss(model(inputs), targets))
            optimizer.step()
        else:
            private.step(loss, inputs, targets)
    assert private.steps_taken == made.steps
    private.detach()
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("clipping", ["flat", "per_layer", "automatic", "quantile"])
@pytest.mark.parametrize("quiet", [False, True])
def test_it_takes_the_steps_of_the_loop(clipping, quiet):
    made = plan(steps=9, clipping=clipping)
    by_hand = trained(network(), made, data(64), by_hand=True, quiet=quiet)
    at_once = trained(network(), made, data(64), by_hand=False, quiet=quiet)
    for first, second in zip(by_hand, at_once, strict=True):
        assert torch.allclose(first, second, atol=1e-6)


@pytest.mark.slow
def test_any_model_loss_and_batch_can_be_given():
    made, dataset = plan(steps=6), data(64)
    by_hand = trained(Unforeseen(), made, dataset, by_hand=True)
    for options in ({}, {"max_physical": 5}):
        at_once = trained(Unforeseen(), made, dataset, by_hand=False, **options)
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(by_hand, at_once, strict=True))

    def halved(outputs, targets):
        return EACH(outputs, targets) / 2

    smoothed = nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1)
    weighted = nn.CrossEntropyLoss(reduction="none", weight=torch.tensor([1.0, 2.0, 3.0]))
    hooked = nn.CrossEntropyLoss(reduction="none")
    hooked.register_forward_hook(lambda _, __, result: 3 * result)
    frozen = nn.CrossEntropyLoss(reduction="none")
    frozen.weight = nn.Parameter(torch.tensor([1.0, 5.0, 0.1]), requires_grad=False)
    plain = nn.CrossEntropyLoss(reduction="none")
    del plain.weight
    plain.weight = torch.tensor([1.0, 5.0, 0.1])
    for loss in (halved, smoothed, weighted, hooked, frozen, plain):
        by_hand = trained(network(), made, dataset, by_hand=True, loss=loss)
        at_once = trained(network(), made, dataset, by_hand=False, loss=loss)
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(by_hand, at_once, strict=True))


def test_the_twin_would_notice_another_gradient():
    made = plan(steps=9, clip_norm=1e3)  # nothing is clipped, which would hide a common factor
    by_hand = trained(network(), made, data(64), by_hand=True, quiet=True)

    def off(outputs, targets):
        return 1.001 * EACH(outputs, targets)

    at_once = trained(network(), made, data(64), by_hand=False, quiet=True, loss=off)
    assert not any(torch.allclose(a, b, atol=1e-6) for a, b in zip(by_hand, at_once, strict=True))


def test_physical_batches_and_empty_steps():
    rare = plan(steps=24, expected_batch_size=1)
    by_hand = trained(network(), rare, data(64), by_hand=True)
    at_once = trained(network(), rare, data(64), by_hand=False)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(by_hand, at_once, strict=True))
    made = plan(steps=6)
    by_hand = trained(network(), made, data(64), by_hand=True)
    at_once = trained(network(), made, data(64), by_hand=False, max_physical=5)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(by_hand, at_once, strict=True))


def test_hooks_of_the_model_run():
    model, heard = network(), []
    private, _ = wrap(model, plan(steps=5))
    for at, batch in enumerate(private.batches(data(64))):
        if at == 3:
            model.register_forward_hook(lambda *_: heard.append("called"))
        private.step(EACH, *batch)
    assert heard == ["called"] * 2


def test_ignored_targets_count_nothing():
    inputs, targets = data(64).tensors
    ignored = targets.clone()
    ignored[::2] = -100
    made = plan(steps=4, sampler="full", expected_batch_size=None)
    by_hand = trained(network(), made, TensorDataset(inputs, ignored), by_hand=True)
    at_once = trained(network(), made, TensorDataset(inputs, ignored), by_hand=False)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(by_hand, at_once, strict=True))


def test_misuse():
    model = network()
    private, optimizer = wrap(model, plan(steps=6))
    inputs, targets = data(64).tensors
    with pytest.raises(PlanViolation, match="outside"):
        private.step(EACH, inputs, targets)
    batches = private.batches(data(64))
    for _ in range(3):
        private.step(EACH, *next(batches))
    batch = next(batches)
    with pytest.raises(InvalidValue, match="batch"):
        private.step(EACH, batch[0])
    with pytest.raises(PlanViolation, match="rows"):
        private.step(EACH, batch[0][:-1], batch[1])
    private.step(EACH, *batch)
    with pytest.raises(PlanViolation, match="outside"):
        private.step(EACH, *batch)
    batch = next(batches)
    with pytest.raises(InvalidValue, match="one loss for each"):
        private.step(nn.CrossEntropyLoss(), *batch)
    private.step(EACH, *batch)
    batch = next(batches)
    model.append(nn.Linear(CLASSES, CLASSES))
    with pytest.raises(PlanViolation, match="added"):
        private.step(EACH, *batch)
    assert optimizer.param_groups[0]["params"][0].shape[1] == FEATURES


def test_models_in_evaluation_mode_are_not_trained_unseen():
    model = network()
    private, _ = wrap(model, plan(steps=4))
    batches = private.batches(data(64))
    private.step(EACH, *next(batches))
    model.eval()
    with pytest.raises((InvalidValue, PlanViolation, RuntimeError)):
        private.step(EACH, *next(batches))
