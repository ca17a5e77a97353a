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
from discreet.learn.dpsgd._batches import draws
from discreet.learn.dpsgd.engine._axes import Folds
from discreet.randomness import source
from learn.dpsgd.made_up_runs import clipped, data, each, network, plan, wrap


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


def test_gradients_that_would_go_to_the_wrong_examples_are_found_before_the_first_step(
    monkeypatch,
):
    """The engine follows such an order; one that does not is found."""
    model = Sorted()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    dpsgd.make_private(model, optimizer, plan(), inputs=dpsgd.TensorSpec((6,))).detach()
    monkeypatch.setattr(Folds, "axis", lambda *_: 0)
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


@pytest.mark.slow
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
    def __init__(self, *, reentrant=False):
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(6, 6), network(), nn.Linear(3, 3)
        self.reentrant = reentrant

    def forward(self, inputs):
        return self.last(checkpoint(self.inner, self.first(inputs), use_reentrant=self.reentrant))


class RecomputedTwice(Recomputed):
    def __init__(self):
        super().__init__(reentrant=True)


class Mapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = network()

    def forward(self, inputs):
        return torch.vmap(self.inner)(inputs)


@pytest.mark.parametrize(
    ("model", "word"),
    [(Recomputed, "use_reentrant"), (RecomputedTwice, "use_reentrant"), (Mapped, "vmap")],
)
def test_layers_called_where_they_cannot_be_recorded(model, word):
    private, _ = wrap(model(), plan())
    for inputs, targets in private.batches(data(64)):
        with pytest.raises(PlanViolation, match=f"inner.*{word}"):
            private.backward(each(private.model(inputs), targets))
        break
    private.detach()


@pytest.mark.parametrize("model", [Recomputed, RecomputedTwice])
def test_checkpointed_layers_are_refused_by_the_probe(model):
    made = model()
    with pytest.raises(PlanViolation, match=r"context_fn=dpsgd.checkpoint_contexts.*max_physical"):
        dpsgd.make_private(
            made,
            torch.optim.SGD(made.parameters(), lr=1.0),
            plan(),
            inputs=dpsgd.TensorSpec((6,)),
        )


def in_place(model):
    model.compile(backend="eager")
    return model


def a_part(model):
    model[0].compile(backend="eager")
    return model


def run_before(model):
    """Compiled code that is there already does not look for new hooks."""
    compiled = torch.compile(model, backend="eager")
    model.eval()
    compiled(torch.zeros(16, 6))
    model.train()
    return compiled


@pytest.mark.slow
@pytest.mark.parametrize(
    "late",
    [
        lambda model: torch.compile(model, backend="eager"),
        lambda model: torch.compile(lambda inputs: model(inputs), backend="eager"),
        in_place,
        a_part,
        run_before,
    ],
    ids=["around", "function", "in place", "part", "run before"],
)
def test_a_model_compiled_after_it_was_wrapped(late):
    model = network()
    private, optimizer = wrap(model, plan())
    before = [p.detach().clone() for p in model.parameters()]
    compiled = late(model)
    for inputs, _ in private.batches(data(64)):
        with pytest.raises(PlanViolation, match=r"torch\.compile"):
            compiled(inputs)
        with pytest.raises(PlanViolation, match="without loss"):
            optimizer.step()
        break
    private.detach()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


class Quadratic(nn.Module):
    """Uses its parameters in a way that no rule covers, around a layer that has one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.weight = nn.Parameter(0.3 * torch.randn(6, 6))
        self.inner = nn.Linear(6, 3)

    def forward(self, inputs):
        square = torch.einsum("bi,ij,bj->b", inputs, self.weight, inputs)
        return self.inner(inputs) + square.unsqueeze(1)


@pytest.mark.parametrize("isolation", ["check", "vouched"])
def test_modules_without_rules_run_by_example_from_the_first_step_on(isolation, caplog):
    made = plan(noise_multiplier=1e-9, clip_norm=0.5)
    trained, looped = Quadratic(), Quadratic()
    dpsgd.Trainer(
        trained,
        made,
        loss=nn.CrossEntropyLoss(reduction="none"),
        optimizer=lambda p: torch.optim.SGD(p, lr=1.0),
        isolation=isolation,
        source=source(insecure_seed=1),
    ).fit(data(64))
    private, optimizer = wrap(looped, made, isolation=isolation)
    for inputs, targets in private.batches(data(64)):
        private.backward(each(looped(inputs), targets))
        optimizer.step()
    private.detach()
    assert "torch.func" in caplog.text
    assert "one by one" not in caplog.text  # the engine's own vmap is not refused
    reference = Quadratic()
    sampling = source(insecure_seed=1).derive("sampling", 0)
    for drawn in draws(made, population=64, source=sampling):
        total = {name: torch.zeros_like(p) for name, p in reference.named_parameters()}
        for row in drawn.tolist():
            one, target = (value.unsqueeze(0) for value in data(64)[row])
            loss = each(reference(one), target).sum()
            gradient = torch.autograd.grad(loss, list(reference.parameters()))
            parts = clipped(dict(zip(total, gradient, strict=True)), 0.5)
            for name, part in parts.items():
                total[name] += part / 16
        with torch.no_grad():
            for name, parameter in reference.named_parameters():
                parameter -= total[name]
    for model in (trained, looped):
        for one, other in zip(model.parameters(), reference.parameters(), strict=True):
            assert torch.allclose(one, other, atol=2e-5)


def test_a_run_goes_on_with_its_own_kind_of_optimizer(tmp_path):
    def fit(make, losses):
        trainer = dpsgd.Trainer(
            network(), plan(), losses=losses, optimizer=make, isolation="vouched"
        )
        return trainer.fit(data(64), checkpoint=tmp_path / "run", progress=False)

    def fails(model, batch):
        if model.training:
            raise KeyError("on purpose")
        return works(model, batch)

    def works(model, batch):
        return each(model(batch[0]), batch[1])

    with pytest.raises(KeyError):
        fit(lambda p: torch.optim.SGD(p, lr=0.1), fails)
    with pytest.raises(ResumeRefused, match="Adam"):
        fit(lambda p: torch.optim.Adam(p, lr=0.1), works)
    assert fit(lambda p: torch.optim.SGD(p, lr=0.1), works).certificate.run["steps_taken"] == 4


@pytest.mark.parametrize("phases", [[], None, 5, "ab", [[1, 2]]])
def test_a_plan_of_no_phases(phases):
    body = plan().to_json()
    with pytest.raises(SchemaError, match="phases"):
        dpsgd.Plan.from_json({**body, "phases": phases})
