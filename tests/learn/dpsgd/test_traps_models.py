"""Traps around the model itself: layers that failed elsewhere, names, copies, modes (S21)."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional

from discreet.errors import DiscreetError, InvalidValue
from discreet.randomness import source
from learn.dpsgd.trap_runs import (
    Words,
    compared,
    data,
    network,
    parameters,
    plan,
    seeded,
    train,
    under,
)

# --- modules that were hard for others --------------------------------------------------


@pytest.mark.parametrize("steady", [True, False])
def test_non_contiguous_embedding_ids(steady):
    """PEERS: ghost clipping crashed on ids that were not contiguous."""
    kinds = set()

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.last = nn.Embedding(30, 4), nn.Linear(4, 2)

        def forward(self, ids):
            ids = ids.contiguous() if steady else ids.T.contiguous().T
            kinds.add(ids.is_contiguous())
            return self.last(self.words(ids).mean(1))

    compared(lambda: seeded(Model()), Words(), seed=6)
    assert steady in kinds


def test_frozen_layers_and_half_frozen_layers():
    """Issues 436 and 409: a layer with one frozen and one trainable parameter failed."""

    def make():
        model = network(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2))
        model[0].requires_grad_(False)
        model[2].weight.requires_grad_(False)
        return model

    trained = compared(make, data(), seed=7)
    fresh = make()
    assert torch.equal(trained[0].weight, fresh[0].weight)
    assert torch.equal(trained[2].weight, fresh[2].weight)
    assert not torch.equal(trained[2].bias, fresh[2].bias)


def test_one_layer_called_twice_with_inputs_of_different_sizes():
    """Issue 58: the second call overwrote the first."""

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(30, 2)

        def forward(self, ids):
            return self.words(ids[:, :1]).sum(1) + self.words(ids[:, 1:]).square().sum(1)

    compared(lambda: seeded(Twice()), Words(), seed=8)


def test_layers_that_need_no_replacement():
    """Elsewhere an LSTM must become another class, and bare parameters need a rule by hand."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(30, 4)
            self.layer = nn.LSTM(4, 3, batch_first=True)
            self.last, self.scale = nn.Linear(3, 2), nn.Parameter(torch.ones(2))

        def forward(self, ids):
            return self.last(self.layer(self.words(ids))[0][:, -1]) * self.scale

    compared(lambda: seeded(Model()), Words(), seed=9)


def test_embedding_bags_with_offsets():
    """Issue 518: only the first argument of a module was recorded."""

    class Bags(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag = nn.EmbeddingBag(30, 2, mode="sum")

        def forward(self, ids):
            return self.bag(ids.reshape(-1), torch.arange(0, ids.numel(), ids.shape[1]))

    compared(lambda: seeded(Bags()), Words(), seed=14)


def test_replicas_of_a_model_are_refused():
    """Replicas hid the per-example gradients of the module inside."""
    with pytest.raises(InvalidValue, match="expected the bare module"):
        compared(lambda: nn.DataParallel(network()), data(), seed=15)


# --- the model stays the user's own -----------------------------------------------------


def test_state_dict_keys_have_no_prefix_and_load_both_ways():
    """Issue 435: `_module.` in front of every name."""
    model = network(nn.Linear(4, 3), nn.Linear(3, 2))
    names = list(model.state_dict())
    private, _ = under(model, plan())
    model.load_state_dict(network(nn.Linear(4, 3), nn.Linear(3, 2)).state_dict())
    batches = private.batches(data())
    next(batches)
    assert list(model.state_dict()) == names
    assert [name for name, _ in model.named_parameters()] == names
    batches.close()
    private.detach()
    assert list(model.state_dict()) == names
    assert type(model) is nn.Sequential


def test_a_copy_of_the_model_is_an_ordinary_model():
    """A copy of a wrapped model shared or lost the hooks."""
    model = network(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    private, optimizer = under(model, plan(), source=source(insecure_seed=10))
    copied = None
    for step, (inputs, targets) in enumerate(private.batches(data())):
        if step == 2:
            copied = copy.deepcopy(model)
            x = torch.ones(3, 4, dtype=torch.float64)
            functional.cross_entropy(copied(x), torch.zeros(3, dtype=torch.long)).backward()
            assert copied[0].weight.grad is not None, "plain autograd in the copy"
        private.backward(functional.cross_entropy(model(inputs), targets, reduction="none"))
        optimizer.step()
    private.detach()
    assert not torch.equal(copied[0].weight, model[0].weight)
    undisturbed = network(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    other, _ = under(undisturbed, plan(), source=source(insecure_seed=10))
    train(other, data())
    assert torch.allclose(parameters(model), parameters(undisturbed), atol=1e-12)


def test_what_holds_the_plan_cannot_be_copied():
    """Two copies would spend one charge."""
    private, _ = under(network(), plan())
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(DiscreetError, match="copied"):
            duplicate(private)
    private.detach()


def test_detaching_leaves_nothing_behind_but_the_mark_of_the_plan():
    model = network(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    private, optimizer = under(model, plan())
    train(private, data())
    after = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    assert after == hooks
    left = {name: set(vars(module)) for name, module in model.named_modules()}
    assert {name: names - {"_discreet_plans"} for name, names in left.items()} == attributes
    model(torch.ones(2, 4, dtype=torch.float64)).sum().backward()
    assert model[0].weight.grad is not None
    optimizer.step()


def test_the_optimizer_is_the_users_own_so_schedulers_work():
    """A scheduler of the original optimizer had no effect on the wrapped one."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.0)
    private, _ = under(model, plan(), optimizer=optimizer)
    assert private.optimizer is optimizer
    after_first = None
    for inputs, targets in private.batches(data()):
        private.backward(functional.cross_entropy(model(inputs), targets, reduction="none"))
        optimizer.step()
        scheduler.step()
        if after_first is None:
            after_first = parameters(model)
    private.detach()
    assert torch.equal(parameters(model), after_first), "the rate is 0 after the first step"


def test_a_look_at_validation_data_in_the_middle_of_a_step_is_harmless():
    model = network(nn.Linear(4, 3), nn.Dropout(0.0), nn.Linear(3, 2))
    results = []
    for look in (False, True):
        model = network(nn.Linear(4, 3), nn.Dropout(0.0), nn.Linear(3, 2))
        private, optimizer = under(model, plan(), source=source(insecure_seed=12))
        for inputs, targets in private.batches(data()):
            output = model(inputs)
            if look:
                model.eval()
                with torch.no_grad():
                    model(torch.ones(9, 4, dtype=torch.float64))
                model.train()
            private.backward(functional.cross_entropy(output, targets, reduction="none"))
            optimizer.step()
        private.detach()
        results.append(parameters(model))
    assert torch.allclose(results[0], results[1], atol=1e-12)


def test_a_model_left_in_eval_mode_is_refused():
    """Elsewhere the wrapper demands train(); a forgotten one must not train without privacy."""
    model = network(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).eval()
    before = parameters(model)
    private, _ = under(model, plan())
    with pytest.raises(DiscreetError, match="training mode"):
        train(private, data())
    assert torch.equal(parameters(model), before)
    private.detach()
