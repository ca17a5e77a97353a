"""``private.step(loss, *batch)``: the same as forward, loss, backward and step by hand."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from discreet.errors import InvalidValue, PlanViolation
from discreet.learn import dpsgd
from discreet.learn.dpsgd.engine.stack import Stack
from discreet.randomness import source
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
    for inputs, targets in private.batches(dataset, **options):
        if quiet and not isinstance(private._bank, Silence):
            private._bank = Silence(private._parameters)
        if by_hand:
            private.backward(loss(model(inputs), targets))
            optimizer.step()
        else:
            private.step(loss, inputs, targets)
    assert private.steps_taken == made.steps
    private.detach()
    return [p.detach() for p in model.parameters()]


@pytest.fixture
def short_ways(monkeypatch):
    """Counts the passes that were taken without autograd."""
    taken = []
    own = Stack.cross_entropy

    def counted(self, rows, targets):
        done = own(self, rows, targets)
        taken.append(done)
        return done

    monkeypatch.setattr(Stack, "cross_entropy", counted)
    return taken


@pytest.mark.parametrize("clipping", ["flat", "per_layer", "automatic", "quantile"])
@pytest.mark.parametrize("quiet", [False, True])
def test_it_takes_the_steps_of_the_loop(clipping, quiet, short_ways):
    made = plan(steps=9, clipping=clipping)
    by_hand = trained(network(), made, data(64), by_hand=True, quiet=quiet)
    assert not short_ways
    at_once = trained(network(), made, data(64), by_hand=False, quiet=quiet)
    # Not in the first step, in which the model is watched.
    assert short_ways == [True] * 8
    for first, second in zip(by_hand, at_once, strict=True):
        assert torch.allclose(first, second, atol=1e-6)


def test_the_twin_would_notice_another_gradient(monkeypatch):
    made = plan(steps=9, clip_norm=1e3)  # nothing is clipped, which would hide a common factor
    by_hand = trained(network(), made, data(64), by_hand=True, quiet=True)
    own = Stack.backward
    monkeypatch.setattr(Stack, "backward", lambda self, kept, g: own(self, kept, 1.001 * g))
    at_once = trained(network(), made, data(64), by_hand=False, quiet=True)
    assert not any(torch.allclose(a, b, atol=1e-6) for a, b in zip(by_hand, at_once, strict=True))


@pytest.mark.slow
def test_any_model_loss_and_batch_can_be_given(short_ways):
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
    assert not short_ways


@pytest.mark.parametrize("owner", [nn.Tanh, nn.Linear, nn.CrossEntropyLoss])
def test_classes_whose_forward_was_exchanged_go_the_long_way(owner, monkeypatch, short_ways):
    own = owner.forward
    monkeypatch.setattr(owner, "forward", lambda self, *args: 0.5 * own(self, *args))
    made, dataset = plan(steps=4), data(64)
    by_hand = trained(network(), made, dataset, by_hand=True)
    at_once = trained(network(), made, dataset, by_hand=False)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(by_hand, at_once, strict=True))
    assert not short_ways


def test_physical_batches_and_empty_steps(short_ways):
    rare = plan(steps=24, expected_batch_size=1)
    by_hand = trained(network(), rare, data(64), by_hand=True)
    at_once = trained(network(), rare, data(64), by_hand=False)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(by_hand, at_once, strict=True))
    made = plan(steps=6)
    by_hand = trained(network(), made, data(64), by_hand=True)
    at_once = trained(network(), made, data(64), by_hand=False, max_physical=5)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(by_hand, at_once, strict=True))
    assert all(short_ways)


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


def test_a_patched_function_is_called(monkeypatch, short_ways):
    """The module calls it by its name, so whoever has put another in its place is to be heard."""
    real, calls = nn.functional.cross_entropy, []

    def patched(*args, **kwargs):
        calls.append("called")
        return real(*args, **kwargs)

    private, _ = wrap(network(), plan(steps=5))
    for at, batch in enumerate(private.batches(data(64))):
        if at == 3:
            monkeypatch.setattr(nn.functional, "cross_entropy", patched)
        private.step(EACH, *batch)
    assert len(calls) >= 2  # and once more where a mode of torch watches
    assert short_ways == [True] * 2


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


def test_models_in_evaluation_mode_are_not_trained_unseen(short_ways):
    model = network()
    private, _ = wrap(model, plan(steps=4))
    batches = private.batches(data(64))
    private.step(EACH, *next(batches))
    model.eval()
    with pytest.raises((InvalidValue, PlanViolation, RuntimeError)):
        private.step(EACH, *next(batches))
    assert not short_ways


def test_the_trainer_goes_the_short_way(short_ways):
    def run(loss):
        torch.manual_seed(0)
        trainer = dpsgd.Trainer(
            network(),
            plan(steps=8),
            optimizer=lambda p: torch.optim.SGD(p, lr=0.5),
            loss=loss,
            source=source(insecure_seed=1),
        )
        return trainer.fit(data(64), progress=False)

    short = run(EACH)
    assert short_ways == [True] * 7
    long = run(lambda outputs, targets: EACH(outputs, targets))
    assert len(short_ways) == 7
    for first, second in zip(short.model.parameters(), long.model.parameters(), strict=True):
        assert torch.allclose(first, second, atol=1e-6)
    assert short.certificate.epsilon == long.certificate.epsilon


def test_the_first_step_of_a_loop_goes_the_short_way_and_is_still_looked_at(monkeypatch):
    """With less memory; what watches it needs only the outermost call and the backward pass."""
    ran = []
    run = Stack.run
    monkeypatch.setattr(Stack, "run", lambda stack, rows: ran.append(1) or run(stack, rows))
    private, _ = wrap(network(), plan(), isolation="vouched")
    for inputs, targets in private.batches(data(64)):
        assert private._watch.is_on
        with pytest.raises(InvalidValue, match="reduc"):
            nn.functional.cross_entropy(private.model(inputs), targets, reduction="sum").backward()
        break
    assert ran == [1]
    private.detach()
