"""Models, optimizers and batches that cannot be trained privately are refused by name."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import default_collate

from discreet.errors import InvalidValue, NotApplicable, SchemaError
from discreet.learn import dpsgd
from discreet.learn.dpsgd import PlanViolation, ResumeRefused
from learn.dpsgd.made_up_runs import data, each, network, plan, wrap


def two_views(examples):
    inputs, targets = default_collate(examples)
    return torch.cat([inputs, inputs.flip(-1)]), torch.cat([targets, targets])


def test_a_collate_that_returns_more_rows_than_examples():
    private, _ = wrap(network(), plan())
    for inputs, _ in private.batches(data(64), collate=two_views):
        with pytest.raises(PlanViolation, match="rows of this batch"):
            private.model(inputs)
        break
    private.detach()


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = network()

    def forward(self, inputs, *, other=None):
        return self.body(inputs) if other is None else self.body(inputs + 0.0 * other.mean())


def test_every_input_must_have_the_rows_of_the_batch():
    private, optimizer = wrap(TwoInputs(), plan())
    for inputs, targets in private.batches(data(64)):
        with pytest.raises(PlanViolation, match="rows of this batch"):
            private.model(inputs, other=torch.zeros(len(inputs) + 1, 2))
        scores = private.model(inputs, other=None)
        private.backward(each(scores, targets))
        optimizer.step()
    assert private.steps_taken == 4
    private.detach()


class Sorted(nn.Module):
    """Puts its examples into an order that depends on them, and back."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, inputs):
        order = inputs[:, 0].argsort()
        return self.layer(inputs[order])[order.argsort()]


def test_gradients_that_would_go_to_the_wrong_examples_are_found_before_the_first_step():
    model = Sorted()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with pytest.raises(NotApplicable, match="layer"):
        dpsgd.make_private(model, optimizer, plan(), inputs=dpsgd.TensorSpec((6,)))


def test_parameters_that_were_exchanged_in_the_optimizer():
    private, optimizer = wrap(network(), plan())
    stranger = nn.Linear(6, 5)
    for inputs, targets in private.batches(data(64)):
        private.backward(each(private.model(inputs), targets))
        optimizer.param_groups[0]["params"][0] = stranger.weight
        before = stranger.weight.detach().clone()
        with pytest.raises(PlanViolation, match="parameters were changed"):
            optimizer.step()
        assert torch.equal(before, stranger.weight)
        break
    private.detach()


@dataclass(frozen=True)
class Unclipped(dpsgd.Clipping):
    kind = "flat"

    def weights(self, squared_norms, *, clip_norm, factor=1.0):
        return torch.full_like(squared_norms, factor)


def test_a_clipping_rule_of_ones_own_is_refused():
    with pytest.raises(InvalidValue, match="clipping"):
        plan(clipping=Unclipped())


class Above(torch.optim.Adam):
    """Calls the step of its parent, whose hooks torch then runs inside its own."""

    def step(self, closure=None):
        super().step(closure)
        self.saw_gradients = all(p.grad is not None for p in self.param_groups[0]["params"])


@pytest.mark.parametrize("chunk", [None, 5])
def test_an_optimizer_that_calls_its_parent(chunk):
    torch.optim.Adam(network().parameters())  # torch hooks the parent when one is made
    model = network()
    optimizer = Above(model.parameters(), lr=0.1)
    private = dpsgd.make_private(model, optimizer, plan(sampler="full", expected_batch_size=None))
    before = [p.detach().clone() for p in model.parameters()]
    for inputs, targets in private.batches(data(64), max_physical=chunk):
        private.backward(each(model(inputs), targets))
        optimizer.step(closure=None)
        assert optimizer.saw_gradients == private.stepped
    assert private.steps_taken == 4
    assert optimizer.state[model[0].weight]["step"] == 4
    assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    private.detach()


class Compiled(nn.Linear):
    """Looks like a module after module.compile(), without the time that takes."""

    def __init__(self):
        super().__init__(6, 3)
        self._compiled_call_impl = self._call_impl


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: nn.Sequential(nn.Linear(6, 6), Compiled()), r"model\.1.*torch\.compile"),
        (lambda: nn.Sequential(nn.LazyLinear(5), nn.Linear(5, 3)), "lazy"),
    ],
)
def test_models_whose_layers_cannot_be_watched(make, word):
    model = make()
    with pytest.raises(InvalidValue, match=word):
        dpsgd.make_private(model, torch.optim.SGD(model.parameters(), lr=1.0), plan())


class Recomputed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(6, 6), network(), nn.Linear(3, 3)

    def forward(self, inputs):
        return self.last(checkpoint(self.inner, self.first(inputs), use_reentrant=False))


class Mapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = network()

    def forward(self, inputs):
        return torch.vmap(self.inner)(inputs)


@pytest.mark.parametrize(("model", "word"), [(Recomputed, "checkpoint"), (Mapped, "vmap")])
def test_layers_called_where_they_cannot_be_recorded(model, word):
    private, _ = wrap(model(), plan())
    for inputs, targets in private.batches(data(64)):
        with pytest.raises(PlanViolation, match=f"inner.*{word}"):
            private.backward(each(private.model(inputs), targets))
        break
    private.detach()


def test_a_run_goes_on_with_its_own_kind_of_optimizer(tmp_path):
    def fit(make, losses):
        trainer = dpsgd.Trainer(
            network(), plan(), losses=losses, optimizer=make, isolation="vouched"
        )
        return trainer.fit(data(64), checkpoint=tmp_path / "run", progress=False)

    def fails(model, batch):
        raise KeyError("on purpose")

    def works(model, batch):
        return each(model(batch[0]), batch[1])

    with pytest.raises(KeyError):
        fit(lambda p: torch.optim.SGD(p, lr=0.1), fails)
    with pytest.raises(ResumeRefused, match="Adam"):
        fit(lambda p: torch.optim.Adam(p, lr=0.1), works)
    assert fit(lambda p: torch.optim.SGD(p, lr=0.1), works).certificate.steps_taken == 4


@pytest.mark.parametrize("phases", [[], None, 5, "ab", [[1, 2]]])
def test_a_plan_of_no_phases(phases):
    body = plan().to_json()
    with pytest.raises(SchemaError, match="phases"):
        dpsgd.Plan.from_json({**body, "phases": phases})
