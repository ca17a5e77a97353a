"""The loop used in a wrong way raises, and moves nothing."""

import copy
import gc
import os
import pickle

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from discreet.errors import InvalidValue, NotApplicable
from discreet.learn import dpsgd
from discreet.learn.dpsgd import PlanViolation
from discreet.learn.dpsgd.engine import GradientEngine
from learn.dpsgd.made_up_runs import CLASSES, FEATURES, data, each, network, plan, wrap


@pytest.fixture
def run():
    """A model under a plan, its optimizer, and a check that nothing has moved."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    private = dpsgd.make_private(model, optimizer, plan(), isolation="vouched")
    yield private, model, optimizer
    private.detach()


def state(model):
    return [p.detach().clone() for p in model.parameters()]


def same(before, model):
    return all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


# --- before anything happens ------------------------------------------------------------------


def test_a_model_without_trainable_parameters():
    model = nn.Linear(2, 2).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with pytest.raises(InvalidValue, match="at least one trainable parameter"):
        dpsgd.make_private(model, optimizer, plan())


@pytest.mark.parametrize(
    ("model", "optimizer", "made", "argument"),
    [
        ("net", torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0), plan(), "model"),
        (nn.Linear(2, 2), "sgd", plan(), "optimizer"),
        (nn.Linear(2, 2), torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0), "plan", "plan"),
    ],
)
def test_wrong_kinds_of_things(model, optimizer, made, argument):
    with pytest.raises(InvalidValue) as caught:
        dpsgd.make_private(model, optimizer, made)
    assert caught.value.argument == argument


def test_parameters_of_another_model():
    model, other = network(), nn.Linear(2, 2)
    optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=1.0)
    with pytest.raises(InvalidValue, match="foreign"):
        dpsgd.make_private(model, optimizer, plan())


def test_parameters_that_the_optimizer_lacks():
    model = network()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=1.0)
    with pytest.raises(InvalidValue, match=r"2\.weight.*freeze"):
        dpsgd.make_private(model, optimizer, plan())


def test_optimizers_that_read_the_data_again():
    model = network()
    with pytest.raises(InvalidValue, match="LBFGS"):
        dpsgd.make_private(model, torch.optim.LBFGS(model.parameters()), plan())


@pytest.mark.parametrize("form", ["total", "each"])
def test_autocast_around_the_backward_pass_or_the_step(form):
    """Norms would be of half precision, though the forward pass was not."""
    model = network()
    private, optimizer = wrap(model, plan(noise_multiplier=1e-3))
    for inputs, targets in private.batches(data(64)):
        before = [p.detach().clone() for p in model.parameters()]
        losses = nn.CrossEntropyLoss(reduction="none")(model(inputs), targets)
        half = torch.autocast("cpu", dtype=torch.bfloat16)
        if form == "total":
            with half, pytest.raises(PlanViolation, match="autocast"):
                losses.mean().backward()
        else:
            private.backward(losses)
            with half, pytest.raises(PlanViolation, match="autocast"):
                optimizer.step()
            assert all(map(torch.equal, before, model.parameters()))
            optimizer.step()  # nothing was lost
            assert not any(map(torch.equal, before, model.parameters()))
        break
    private.detach()


@pytest.mark.parametrize("device", ["cpu", "cuda", "mps", "xpu"])
def test_autocast_of_any_device(device, monkeypatch):
    model = network()
    engine = GradientEngine(model)
    with engine.recording(4):
        model(torch.ones(4, FEATURES)).sum().backward()
        with monkeypatch.context() as patch:
            patch.setattr(torch, "is_autocast_enabled", lambda kind: kind == device)
            with pytest.raises(PlanViolation, match="autocast"):
                engine.squared_norms()
        assert engine.squared_norms().shape == (1, 4)
    engine.detach()


def test_autocast_around_norms_and_sums():
    model = network()
    engine = GradientEngine(model)
    half = torch.autocast("cpu", dtype=torch.bfloat16)
    with engine.recording(4):
        model(torch.ones(4, FEATURES)).sum().backward()
        with half, pytest.raises(PlanViolation, match="autocast"):
            engine.squared_norms()
        engine.squared_norms()
        with half, pytest.raises(PlanViolation, match="autocast"):
            engine.clipped_sum(torch.ones(1, 4))
    engine.detach()


@pytest.mark.parametrize("option", [{"reduction": "none"}, {"isolation": "off"}])
def test_unknown_options(option):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with pytest.raises(InvalidValue, match=next(iter(option))):
        dpsgd.make_private(model, optimizer, plan(), **option)


def test_a_second_plan_on_one_model(run):
    private, model, optimizer = run
    other = torch.optim.SGD(model.parameters(), lr=1.0)
    for candidate in (optimizer, other):
        with pytest.raises(PlanViolation, match="under a plan already"):
            dpsgd.make_private(model, candidate, plan())
    private.detach()
    dpsgd.make_private(model, other, plan(), isolation="vouched").detach()


def test_a_plan_that_nobody_holds_any_more_does_not_block():
    model = network()

    def wrap():
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        return dpsgd.make_private(model, optimizer, plan(), isolation="vouched")

    wrap().detach()
    gc.collect()
    wrap().detach()
    assert not model._forward_pre_hooks


def test_a_module_that_mixes_examples_is_named_before_the_first_step():
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with pytest.raises(PlanViolation, match="BatchNorm1d"):
        dpsgd.make_private(model, optimizer, plan(), inputs=dpsgd.TensorSpec((6,)))
    private = dpsgd.make_private(model, optimizer, plan())
    with pytest.raises(PlanViolation, match="BatchNorm1d"):
        next(private.batches(data(64)))
    assert private.steps_taken == 1  # its batch was drawn, so it counts
    private.detach()


def test_batches_whose_inputs_cannot_be_told_ask_for_a_description():
    dataset = [{"x": torch.zeros(6), "y": 0}] * 64
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    private = dpsgd.make_private(model, optimizer, plan())
    with pytest.raises(InvalidValue, match="inputs"):
        next(private.batches(dataset))
    private.detach()


class Endless(IterableDataset):
    def __iter__(self):
        return iter([torch.zeros(6)])


@pytest.mark.parametrize(
    "dataset",
    [
        DataLoader(data(8)),
        Endless(),
        TensorDataset(torch.zeros(0, 6)),
        None,
        7,
        iter([1, 2]),
    ],
)
def test_data_that_cannot_be_sampled(run, dataset):
    private, _, _ = run
    with pytest.raises(InvalidValue, match="dataset"):
        private.batches(dataset)


@pytest.mark.parametrize(
    "option", [{"max_physical": 0}, {"workers": -1}, {"collate": "stack"}, {"max_physical": 2.5}]
)
def test_bad_options_of_batches(run, option):
    private, _, _ = run
    with pytest.raises(InvalidValue, match=next(iter(option))):
        private.batches(data(64), **option)


# --- in the loop --------------------------------------------------------------------------------


def test_step_without_a_batch(run):
    private, model, optimizer = run
    before = state(model)
    with pytest.raises(PlanViolation, match="without a batch"):
        optimizer.step()
    assert same(before, model)
    assert private.steps_taken == 0


def test_step_without_backward(run):
    private, model, optimizer = run
    before = state(model)
    for _ in private.batches(data(64)):
        with pytest.raises(PlanViolation, match=r"without loss\.backward"):
            optimizer.step()
        break
    assert same(before, model)
    assert private.steps_taken == 1


def test_step_twice(run):
    private, model, optimizer = run
    for inputs, targets in private.batches(data(64)):
        private.backward(each(model(inputs), targets))
        optimizer.step()
        before = state(model)
        with pytest.raises(PlanViolation, match="without a batch"):
            optimizer.step()
        assert same(before, model)
        break
    assert private.steps_taken == 1


def test_a_skipped_batch(run):
    private, model, _ = run
    batches = private.batches(data(64))
    inputs, targets = next(batches)
    each(model(inputs), targets).mean().backward()
    with pytest.raises(PlanViolation, match="may not be skipped"):
        next(batches)
    assert private.steps_taken == 1


def test_a_closure(run):
    private, model, optimizer = run
    before = state(model)
    for inputs, targets in private.batches(data(64)):
        private.backward(each(model(inputs), targets))
        with pytest.raises(PlanViolation, match="closure"):
            optimizer.step(lambda: 0.0)
        with pytest.raises(PlanViolation, match="closure"):
            optimizer.step(closure=lambda: 0.0)
        break
    assert same(before, model)


def test_more_steps_than_planned(run):
    private, model, optimizer = run

    class Spy(TensorDataset):
        reads = 0

        def __getitem__(self, index):
            Spy.reads += 1
            return super().__getitem__(index)

    dataset = Spy(*data(64).tensors)
    for inputs, targets in private.batches(dataset):
        private.backward(each(model(inputs), targets))
        optimizer.step()
    assert private.steps_taken == 4
    reads, before = Spy.reads, state(model)
    with pytest.raises(PlanViolation, match="all 4 steps"):
        private.batches(dataset)
    with pytest.raises(PlanViolation, match="without a batch"):
        optimizer.step()
    assert reads == Spy.reads
    assert same(before, model)


def test_a_loop_may_be_left_and_entered_again(run):
    private, model, optimizer = run
    total = 0
    while private.steps_taken < 4:
        for inputs, targets in private.batches(data(64)):
            private.backward(each(model(inputs), targets))
            optimizer.step()
            total += 1
            break
    assert total == 4


def test_two_loops_at_once(run):
    private, _, _ = run
    first = private.batches(data(64))
    next(first)
    with pytest.raises(PlanViolation, match="elsewhere"):
        private.batches(data(64))


def test_parameters_added_to_the_optimizer_later(run):
    private, model, optimizer = run
    extra = nn.Parameter(torch.zeros(2))
    before = state(model)
    for inputs, targets in private.batches(data(64)):
        private.backward(each(model(inputs), targets))
        optimizer.add_param_group({"params": [extra]})
        with pytest.raises(PlanViolation, match="parameters were changed"):
            optimizer.step()
        break
    assert same(before, model)
    with pytest.raises(PlanViolation, match="parameters were changed"):
        private.batches(data(64))


def test_a_second_optimizer_on_the_same_parameters(run):
    private, model, optimizer = run
    other = torch.optim.SGD(model.parameters(), lr=1.0)
    unrelated = nn.Linear(2, 2)
    third = torch.optim.SGD(unrelated.parameters(), lr=1.0)
    for inputs, targets in private.batches(data(64)):
        private.backward(each(model(inputs), targets))
        before = state(model)
        with pytest.raises(PlanViolation, match="second optimizer"):
            other.step()
        assert same(before, model)
        unrelated(torch.ones(1, 2)).sum().backward()
        third.step()
        optimizer.step()
        break
    assert private.steps_taken == 1


def test_a_parameter_unfrozen_later():
    model = network()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    private = dpsgd.make_private(model, optimizer, plan(), isolation="vouched")
    batches = private.batches(data(64))
    inputs, targets = next(batches)
    private.backward(each(model(inputs), targets))
    optimizer.step()
    model[0].requires_grad_(True)
    before = state(model)
    with pytest.raises((PlanViolation, InvalidValue)):
        next(batches)
    assert same(before, model)
    private.detach()


def test_training_mode_outside_of_a_batch(run):
    private, model, optimizer = run
    inputs, _ = data(64).tensors
    with pytest.raises(PlanViolation, match="training mode outside"):
        model(inputs)
    for x, y in private.batches(data(64)):
        private.backward(each(model(x), y))
        optimizer.step()
        with pytest.raises(PlanViolation, match="training mode outside"):
            model(inputs)
        break
    model.eval()
    assert model(inputs).shape == (64, 3)
    model.train()
    with torch.no_grad():
        assert model(inputs).shape == (64, 3)


def test_backward_outside_of_a_batch(run):
    private, _, _ = run
    with pytest.raises(PlanViolation, match="outside of a batch"):
        private.backward(torch.zeros(3, requires_grad=True))


@pytest.mark.parametrize("shape", ["scalar", "short", "matrix"])
def test_losses_that_are_reduced_or_too_few(run, shape):
    private, model, _ = run
    for inputs, targets in private.batches(data(64)):
        losses = each(model(inputs), targets)
        wrong = {"scalar": losses.mean(), "short": losses[1:], "matrix": losses[:, None]}[shape]
        with pytest.raises(InvalidValue, match="one loss for each example"):
            private.backward(wrong)
        break


def test_a_batch_of_another_size_in_the_model(run):
    private, model, _ = run
    for _inputs, _targets in private.batches(data(64)):
        with pytest.raises((InvalidValue, PlanViolation, RuntimeError)):
            private.backward(each(model(torch.ones(63, 6)), torch.zeros(63, dtype=torch.int64)))
        break


def test_a_penalty_on_the_parameters_does_not_slip_around_the_clipping(run):
    private, model, _ = run
    for inputs, targets in private.batches(data(64)):
        penalty = sum(p.square().sum() for p in model.parameters())
        with pytest.raises(InvalidValue):
            (each(model(inputs), targets).mean() + penalty).backward()
        break
    assert all(p.grad is None for p in model.parameters())


def test_gradients_that_someone_put_there_are_overwritten(run):
    private, model, optimizer = run
    for inputs, targets in private.batches(data(64)):
        private.backward(each(model(inputs), targets))
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 1e9)
        optimizer.step()
        break
    assert all(float(p.detach().abs().max()) < 1e3 for p in model.parameters())


def test_scaled_losses_of_a_grad_scaler(run):
    private, model, _ = run
    scaler = torch.amp.GradScaler("cpu")
    before = state(model)
    for inputs, targets in private.batches(data(64)):
        with pytest.raises(InvalidValue, match="GradScaler"):
            scaler.scale(each(model(inputs), targets).mean()).backward()
        break
    assert same(before, model)


# --- what cannot be replaced ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["plan", "loss", "clip_norm", "optimizer", "model", "steps_taken", "sampler", "noise"]
)
def test_nothing_of_a_wrapped_plan_can_be_replaced(run, name):
    private, _, _ = run
    with pytest.raises(AttributeError):
        setattr(private, name, 1)


def test_the_learning_rate_may_change(run):
    private, model, optimizer = run
    for inputs, targets in private.batches(data(64)):
        private.backward(each(model(inputs), targets))
        optimizer.param_groups[0]["lr"] = 0.0
        before = state(model)
        optimizer.step()
        assert same(before, model)
    assert private.steps_taken == 4


def test_copies(run):
    private, model, optimizer = run
    for make in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(NotApplicable, match="cannot be copied"):
            make(private)
    for inputs, targets in private.batches(data(64)):
        private.backward(each(model(inputs), targets))
        optimizer.step()
    twin = copy.deepcopy(model)
    inputs, targets = data(64).tensors
    each(twin(inputs), targets).mean().backward()
    assert all(p.grad is not None for p in twin.parameters())
    assert all(p.grad is None for p in model.parameters())


def test_a_forked_process_does_not_take_the_steps_again(run):
    private, _, _ = run
    child = os.fork()
    if child == 0:
        code = 1
        try:
            private.batches(data(64))
        except PlanViolation:
            code = 42
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 42


def test_after_detach_the_plan_is_over(run):
    private, _, _ = run
    private.detach()
    with pytest.raises(PlanViolation, match="detach"):
        private.batches(data(64))


class Plainly(nn.Module):
    """A network that goes the general way."""

    def __init__(self):
        super().__init__()
        self.layers = network()

    def forward(self, inputs):
        return self.layers(inputs).clone()


@pytest.mark.parametrize("make", [network, Plainly, lambda: nn.Linear(FEATURES, CLASSES)])
@pytest.mark.parametrize("chunks", [None, 4])
def test_a_backward_pass_through_the_forward_pass_of_another_batch(make, chunks):
    """Its examples were clipped before, or were not drawn at all."""
    model = make()
    private, optimizer = wrap(model, plan(steps=5))
    batches = private.batches(data(64), max_physical=chunks)
    inputs, targets = next(batches)
    kept = model(inputs)
    private.backward(each(model(inputs), targets))
    optimizer.step()
    with pytest.raises(InvalidValue, match="earlier batch"):
        kept.sum().backward()
    inputs, targets = next(batches)
    outputs = model(inputs)
    private.backward(each(model(inputs), targets))
    optimizer.step()
    inputs, targets = next(batches)
    with pytest.raises(PlanViolation, match="earlier batch"):
        outputs.sum().backward()
    with pytest.raises(PlanViolation, match="without loss"):
        optimizer.step()
    private.detach()


def test_a_gamma_that_underflows_is_refused():
    with pytest.raises(InvalidValue, match="gamma"):
        dpsgd.Automatic(gamma=1e-12)
