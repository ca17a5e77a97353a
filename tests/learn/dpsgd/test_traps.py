"""Traps that users of other libraries fell into; none of them opens silently here (S21).

Each test names what happens elsewhere (mostly Opacus, by the number of its issue) and shows that
the same code is right here, or is refused with words before anything is released.
"""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from discreet.errors import DiscreetError, InvalidValue, RelationMismatch
from discreet.learn.dpsgd import (
    Plan,
    PlanViolation,
    Trainer,
    check_isolation,
    fix,
    make_private,
)
from discreet.randomness import source
from learn.dpsgd.trap_runs import EXAMPLES, data, network, parameters, plan, train, under


class Slope(nn.Module):
    """One parameter whose gradient is the sum of its inputs: steps can be counted."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1, 1, bias=False).double()
        nn.init.zeros_(self.linear.weight)

    def forward(self, x):
        return self.linear(x)


def ones(examples):
    return TensorDataset(torch.ones(examples, 1, dtype=torch.float64))


# --- sampling and what it is accounted as -----------------------------------------------


@pytest.mark.parametrize("examples", [10, 40, 400])
def test_the_normaliser_and_the_rate_are_the_plans_not_the_data_sets(examples):
    """Issues 571 and 813: the expected batch size was derived from the realised length."""
    model = Slope()
    private, optimizer = under(model, plan(batch=8.0, steps=40), source=source(insecure_seed=1))
    realised, moved = [], []
    for (inputs,) in private.batches(ones(examples)):
        before = model.linear.weight.item()
        private.backward(model(inputs).squeeze(1))
        optimizer.step()
        realised.append(len(inputs))
        moved.append(before - model.linear.weight.item())
    private.detach()
    # Every example moves the slope by clip_norm / 8, whatever the length or the batch.
    # (An empty batch comes as one row of zeros, which moves it by 0.)
    for size, step in zip(realised, moved, strict=True):
        assert step == pytest.approx(size / 8.0, abs=1e-3) or (size == 1 and abs(step) < 1e-6)
    # Rate 8/40 of whatever is there: a binomial mean within 7 standard errors.
    expected, error = 0.2 * examples, math.sqrt(0.16 * examples / 40)
    assert abs(sum(round(8 * step) for step in moved) / 40 - expected) < 7 * error
    assert len(set(realised)) > 1, "batches differ in size: nobody divides by a constant by luck"


def test_a_loader_with_its_own_sampler_is_refused():
    """Issues 813 and 600: a weighted sampler was replaced, or accounted as if it were uniform."""
    dataset = data()
    sampler = WeightedRandomSampler(torch.ones(EXAMPLES).tolist(), num_samples=16)
    for loader in (DataLoader(dataset, batch_size=8, sampler=sampler), DataLoader(dataset)):
        private, _ = under(network(), plan())
        with pytest.raises(InvalidValue, match="drawn as the plan says"):
            next(iter(private.batches(loader)))
        private.detach()


def test_the_plan_cannot_be_changed_under_way():
    """Swapping the sampler, the noise or the clip norm kept the old accounting."""
    the_plan = plan(noise_multiplier=1.0)
    private, _ = under(network(), the_plan)
    for name, value in (("sampler", "full"), ("noise_multiplier", 0.1), ("clip_norm", 9.0)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(private.plan, name, value)
    for name in ("plan", "loss", "clip_norm", "sampler", "noise_multiplier", "optimizer"):
        with pytest.raises(AttributeError):
            setattr(private, name, None)
    assert private.plan is the_plan
    private.detach()


def test_there_is_no_flag_that_turns_the_sampling_off_and_keeps_the_epsilon():
    """`poisson_sampling=False` kept the amplified epsilon for shuffled batches."""
    with pytest.raises(TypeError):
        plan(poisson_sampling=False)
    poisson = plan(noise_multiplier=1.0, steps=5)
    shuffled = plan(noise_multiplier=1.0, steps=5, batch=8, sampler="shuffled", relation="replace")
    full = plan(noise_multiplier=1.0, steps=1, batch=EXAMPLES, sampler="full", relation="replace")
    assert shuffled.epsilon() == full.epsilon(), "an epoch is one full participation"
    assert shuffled.epsilon() > 1.3 * poisson.epsilon()


def test_fixed_size_batches_are_not_accounted_as_poisson():
    """Issue 80: batches of constant size with the accounting of Poisson sampling."""
    fixed = plan(noise_multiplier=1.0, batch=8, sampler="without_replacement")
    assert fixed.relation.value == "replace"
    assert fixed.epsilon() > plan(noise_multiplier=1.0).epsilon()
    with pytest.raises(RelationMismatch):
        plan(batch=8, sampler="without_replacement", relation="add_remove")
    private, _ = under(network(), fixed)
    assert train(private, data()) == [8] * 6


def test_a_rate_of_one_is_a_plan_like_any_other():
    """Issue 74: log(0) for a batch as large as the data set."""
    whole = plan(noise_multiplier=2.0, batch=float(EXAMPLES))
    assert whole.epsilon() == pytest.approx(
        plan(noise_multiplier=2.0, batch=EXAMPLES, sampler="full").epsilon(), rel=1e-6
    )
    private, _ = under(network(), plan(batch=float(EXAMPLES), steps=2))
    assert train(private, data()) == [EXAMPLES, EXAMPLES]


# --- batches ----------------------------------------------------------------------------


def test_empty_batches_are_steps_of_pure_noise():
    """Issues 161, 522 and 612: empty batches crashed or were skipped."""
    model = network(nn.Linear(50, 20), nn.Tanh(), nn.Linear(20, 2))
    the_plan = plan(noise_multiplier=1.0, batch=1e-6, steps=4)
    private, optimizer = under(model, the_plan)
    steps = []
    for inputs, targets in private.batches(data(features=50)):
        before = parameters(model)
        assert inputs.shape == (1, 50)
        assert not inputs.any(), "a made-up row of zeros stands in"
        private.backward(functional.cross_entropy(model(inputs), targets, reduction="none"))
        optimizer.step()
        steps.append((before - parameters(model)).numpy())
    private.detach()
    assert private.steps_taken == 4
    # Standard deviation 1.0 * 1.0 / 1e-6; 4,248 normals, 7 standard errors are 15 %.
    noise = np.concatenate(steps) * 1e-6
    assert abs(np.mean(noise**2) - 1.0) < 7 * math.sqrt(2 / noise.size)


@pytest.mark.slow
def test_a_physical_batch_limit_changes_nothing_but_memory():
    """Issue 420: with split batches the average was taken over something else."""
    results = []
    for most in (None, 3, 1):
        model = network(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
        seeded = source(insecure_seed=4)
        private, _ = under(model, plan(), source=seeded)
        train(private, data(), max_physical=most)
        results.append(parameters(model))
    assert torch.allclose(results[0], results[1], atol=1e-7)
    assert torch.allclose(results[0], results[2], atol=1e-7)


def test_accumulating_over_batches_of_the_plan_is_refused():
    """Issues 320 and 459: several batches for one step are another mechanism."""
    model = network()
    private, _ = under(model, plan())
    before = parameters(model)
    batches = private.batches(data())
    inputs, targets = next(batches)
    functional.cross_entropy(model(inputs), targets).backward()
    with pytest.raises(PlanViolation, match=r"optimizer\.step"):
        next(batches)
    assert torch.equal(parameters(model), before)
    private.detach()


def test_a_scaled_loss_is_refused():
    """Dividing the loss by the accumulation steps moves every norm below the clip norm."""
    model = network()
    private, _ = under(model, plan())
    for inputs, targets in private.batches(data()):
        loss = functional.cross_entropy(model(inputs), targets) * 0.5
        with pytest.raises(InvalidValue, match="scal"):
            loss.backward()
        break
    private.detach()


def test_zero_grad_between_forward_and_backward_is_harmless():
    """Issue 409: legal code that raised."""
    results = []
    for early in (False, True):
        model = network()
        private, optimizer = under(model, plan(), source=source(insecure_seed=5))
        for inputs, targets in private.batches(data()):
            output = model(inputs)
            if early:
                optimizer.zero_grad()
            functional.cross_entropy(output, targets).backward()
            optimizer.step()
            optimizer.zero_grad()
        private.detach()
        results.append(parameters(model))
    assert torch.allclose(results[0], results[1], atol=1e-12)


# --- examples that touch ----------------------------------------------------------------


class BatchCentred(nn.Module):
    """No list of layer names knows this class."""

    def forward(self, x):
        return x - x.mean(0)


@pytest.mark.parametrize("mixer", [nn.BatchNorm1d(4), BatchCentred()])
def test_mixing_modules_are_refused_before_the_first_step(mixer):
    """Batch normalisation was found by name; custom modules were not found at all."""
    model = network(nn.Linear(4, 4), mixer, nn.Linear(4, 2))
    before = parameters(model)
    private, _ = under(model, plan())
    with pytest.raises(DiscreetError, match=type(mixer).__name__):
        train(private, data())
    assert private.steps_taken == 1  # drawn and given up
    assert torch.equal(parameters(model), before)
    private.detach()


def test_fixing_returns_the_model_that_is_then_trained():
    """A fixed copy was made and the unfixed model was trained on."""
    fixed = fix(network(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)))
    assert check_isolation(fixed.model, inputs=data().tensors[0]).ok
    private, _ = under(fixed.model, plan())
    assert len(train(private, data())) == 6


def test_a_class_weighted_mean_is_refused():
    """Its divisor depends on the labels of the other examples."""
    model = network()
    private, _ = under(model, plan())
    weight = torch.tensor([1.0, 3.0], dtype=torch.float64)
    for inputs, targets in private.batches(data()):
        with pytest.raises(InvalidValue, match="weighted by classes"):
            functional.cross_entropy(model(inputs), targets, weight=weight).backward()
        break
    private.detach()


def contrastive(output):
    near = functional.normalize(output, dim=1) @ functional.normalize(output, dim=1).T
    return functional.cross_entropy(near, torch.arange(len(output)), reduction="none")


@pytest.mark.parametrize("form", ["losses", "mean"])
def test_a_loss_that_compares_examples_is_refused_in_any_loop(form):
    """A vector of losses looks like one for each example, whatever they depend on."""
    model = network()
    before = parameters(model)
    private, _ = under(model, plan(batch=30.0))
    for inputs, _ in private.batches(data()):
        losses = contrastive(model(inputs))
        total = losses.mean()
        with pytest.raises(DiscreetError, match="other examples"):
            private.backward(losses) if form == "losses" else total.backward()
        break
    assert torch.equal(parameters(model), before)
    private.detach()


def test_a_loss_that_compares_examples_is_refused_by_the_trainer():
    trainer = Trainer(
        network(),
        plan(batch=30.0),
        loss=lambda output, targets: contrastive(output),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    with pytest.raises(DiscreetError, match="other examples"):
        trainer.fit(data(), progress=False)


def test_a_wrong_declaration_of_the_reduction_is_refused():
    """A sum taken for a mean scales every gradient by the batch size before clipping."""
    model = network()
    private, _ = under(model, plan(), reduction="sum")
    for inputs, targets in private.batches(data()):
        with pytest.raises(InvalidValue, match="reduction"):
            functional.cross_entropy(model(inputs), targets).backward()
        break
    private.detach()


# --- optimizers -------------------------------------------------------------------------


def test_a_second_optimizer_is_refused():
    """Its steps would move the model by gradients without noise."""
    model = network()
    private, _ = under(model, plan())
    second = torch.optim.Adam(model.parameters())
    before = parameters(model)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    with pytest.raises(PlanViolation, match="second optimizer"):
        second.step()
    with pytest.raises(PlanViolation, match="already"):
        make_private(model, second, plan())
    assert torch.equal(parameters(model), before)
    private.detach()
    second.step()


def test_steps_without_a_batch_and_beyond_the_plan_are_refused():
    model = network()
    private, optimizer = under(model, plan(steps=2))
    with pytest.raises(PlanViolation, match="without a batch"):
        optimizer.step()
    for inputs, targets in private.batches(data()):
        private.backward(functional.cross_entropy(model(inputs), targets, reduction="none"))
        optimizer.step()
        with pytest.raises(PlanViolation):
            optimizer.step()
    with pytest.raises(PlanViolation, match="all 2 steps"):
        next(iter(private.batches(data())))
    private.detach()


def test_plain_gradients_are_never_visible():
    """`.grad` held the sum of unclipped gradients beside the private one."""
    model = network(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    private, optimizer = under(model, plan())
    for inputs, targets in private.batches(data()):
        private.backward(functional.cross_entropy(model(inputs), targets, reduction="none"))
        assert all(parameter.grad is None for parameter in model.parameters())
        optimizer.step()
        assert all(parameter.grad is None for parameter in model.parameters())
    private.detach()


# --- randomness and accounting ----------------------------------------------------------


def test_noise_is_secure_by_default_and_does_not_follow_torchs_seed():
    """Secure mode needed a package that can no longer be installed (issue 504)."""
    results = []
    for _ in range(2):
        torch.manual_seed(0)
        model = network()
        private, _ = under(model, plan(noise_multiplier=1.0))
        state = torch.get_rng_state()
        train(private, data())
        assert torch.equal(state, torch.get_rng_state()), "torch's generator was not asked"
        results.append(parameters(model))
        provenance = private.certificate().randomness
        assert provenance["randomness"] == "operating system"
    assert not torch.allclose(results[0], results[1], atol=1e-3)


def test_a_seed_is_marked_in_the_certificate():
    private, _ = under(network(), plan(noise_multiplier=1.0), source=source(insecure_seed=1))
    assert any("INSECURE" in text for text in private.certificate().warnings)
    private.detach()


def test_epsilon_is_never_negative_and_orders_do_not_end():
    """PEERS 2: negative epsilon at large delta; 0.140 instead of 0.0060 for want of orders."""
    loose = Plan(
        examples=1000,
        expected_batch_size=1,
        steps=1,
        clip_norm=1.0,
        noise_multiplier=10.0,
        delta=0.9,
    )
    assert loose.epsilon() >= 0.0
    assert any("DELTA" in text for text in loose.warnings)
    quiet = Plan(
        examples=1000,
        expected_batch_size=1,
        steps=10_000,
        clip_norm=1.0,
        noise_multiplier=50.0,
        delta=1e-6,
    )
    assert 0.005 < quiet.epsilon() < 0.0061


def test_stopping_early_does_not_lower_the_certified_epsilon():
    """When to stop may have depended on what was seen."""
    the_plan = plan(noise_multiplier=1.0)
    private, optimizer = under(network(), the_plan)
    batches = private.batches(data())
    inputs, targets = next(batches)
    private.backward(functional.cross_entropy(private.model(inputs), targets, reduction="none"))
    optimizer.step()
    batches.close()
    assert private.spent() < private.epsilon()
    assert private.certificate().epsilon == the_plan.epsilon()
    assert private.certificate().run["steps_taken"] == 1
    private.detach()
