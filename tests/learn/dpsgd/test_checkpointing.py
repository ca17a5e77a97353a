"""Layers under ``torch.utils.checkpoint``: the same norms and sums, recorded once."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from discreet.errors import NotApplicable, PlanViolation
from discreet.learn import dpsgd
from discreet.learn.dpsgd.engine import GradientEngine
from learn.dpsgd.made_up_runs import CLASSES, FEATURES, data, each, plan, silenced, wrap

ROWS, WORDS, WIDE = 5, 30, 16


def through(run, *inputs, kept):
    if not kept:
        return run(*inputs)
    return checkpoint(run, *inputs, use_reentrant=False, context_fn=dpsgd.checkpoint_contexts)


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(FEATURES, WIDE), nn.GELU(), nn.Linear(WIDE, FEATURES))
            for _ in range(2)
        )
        self.head = nn.Linear(FEATURES, CLASSES)
        self.kept = True

    def forward(self, x):
        for block in self.blocks:
            x = x + through(block, x, kept=self.kept)
        return self.head(x)


class Dropped(Layers):
    """What is drawn at random is drawn again alike."""

    def __init__(self):
        super().__init__()
        for block in self.blocks:
            block.append(nn.Dropout(0.5))


class Nested(Layers):
    def forward(self, x):
        def both(x):
            for block in self.blocks:
                x = x + through(block, x, kept=self.kept)
            return x

        return self.head(through(both, x, kept=self.kept))


class Encoder(nn.Module):
    """Attention, a norm, positions that all share, a parameter beside the data, tied words."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDE), nn.Embedding(7, WIDE)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDE, 2, 24, dropout=0.1, batch_first=True) for _ in range(2)
        )
        self.scale = nn.Parameter(torch.ones(WIDE))
        self.kept = True

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(7))
        for layer in self.layers:
            x = through(lambda x, run=layer: run(x) * self.scale, x, kept=self.kept)
        return (x @ self.words.weight.t()).mean(1)


class Unruly(nn.Module):
    """A checkpointed product that no rule covers: its examples run by torch.func."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(FEATURES, 4)
        self.inner = Cube()
        self.kept = True

    def forward(self, x):
        return through(lambda x: self.inner(self.first(x).tanh()), x, kept=self.kept)


class Cube(nn.Module):
    def __init__(self):
        super().__init__()
        self.cube = nn.Parameter(0.3 * torch.randn(4, 2, CLASSES))

    def forward(self, x):
        return torch.einsum("bi,ijk->bjk", x, self.cube).tanh().mean(1)


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.ReLU(), nn.Conv2d(8, 4, 3)
        )
        self.head = nn.Linear(144, CLASSES)
        self.kept = True

    def forward(self, x):
        return self.head(through(self.inner, x, kept=self.kept).flatten(1))


def rows_of(model):
    draws = torch.Generator().manual_seed(2)
    if isinstance(model, Encoder):
        return torch.randint(WORDS, (ROWS, 7), generator=draws)
    shape = (ROWS, 3, 8, 8) if isinstance(model, Images) else (ROWS, FEATURES)
    return torch.randn(shape, generator=draws, dtype=torch.float64)


def measured(model, inputs, *, kept):
    model.kept = kept
    engine = GradientEngine(model)
    found = []
    with engine.recording(len(inputs)):
        torch.manual_seed(7)
        outputs = model(inputs)
        outputs.sin().sum().backward()
        found = [engine.squared_norms(), *engine.clipped_sum(torch.rand(1, ROWS).double()).values()]
    report = engine.report
    engine.detach()
    return found, report


@pytest.mark.parametrize("make", [Layers, Dropped, Nested, Encoder, Unruly, Images])
def test_norms_and_sums_are_those_without_a_checkpoint(make):
    """To the last bits: the graph of the first pass is the same, and so is what is recorded."""
    torch.manual_seed(0)
    model = make().double()
    inputs = rows_of(model)
    for _ in range(2):  # nothing is left behind
        plainly, how = measured(model, inputs, kept=False)
        again, too = measured(model, inputs, kept=True)
        assert how == too
        for one, other in zip(plainly, again, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


def test_the_layers_run_twice():
    """Else the tests above would show nothing."""
    model, calls = Layers(), []
    model.blocks[0].register_forward_pre_hook(lambda *_: calls.append(1))
    measured(model.double(), rows_of(model), kept=True)
    assert len(calls) == 2


@pytest.mark.parametrize("form", ["each", "total"])
@pytest.mark.parametrize("make", [Layers, Dropped])
def test_a_private_loop_takes_part(make, form):
    torch.manual_seed(0)
    model = make()
    private, optimizer = wrap(model, plan(noise_multiplier=0.3), isolation="check", lr=0.1)
    for inputs, targets in private.batches(data(64), max_physical=7):
        losses = each(model(inputs), targets)
        if form == "each":
            private.backward(losses)
        else:
            losses.mean().backward()
        optimizer.step()
    assert private.steps_taken == plan().steps
    assert private.certificate().run["isolation"] == "checked"
    private.detach()


def test_a_step_moves_the_model_as_it_does_without():
    moved = []
    for kept in (True, False):
        torch.manual_seed(0)
        model = Layers()
        model.kept = kept
        private, optimizer = wrap(model, plan())
        for inputs, targets in silenced(private, data(64)):
            private.backward(each(model(inputs), targets))
            optimizer.step()
        private.detach()
        moved.append([one.detach() for one in model.parameters()])
    for one, other in zip(*moved, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reentrant", [True, False])
def test_without_the_contexts_it_is_refused(reentrant):
    class Other(Layers):
        def forward(self, x):
            return self.head(checkpoint(self.blocks[1], self.blocks[0](x), use_reentrant=reentrant))

    private, _ = wrap(Other(), plan())
    for inputs, _targets in private.batches(data(64)):
        with pytest.raises(PlanViolation, match="checkpoint_contexts"):
            private.model(inputs)
        break
    private.detach()


def test_inside_of_a_module_without_a_rule_it_is_refused():
    """Its examples run under torch.func, where torch cannot run a part again."""

    class Outer(Cube):
        def forward(self, x):
            x = through(torch.tanh, x[:, :4], kept=True)
            return torch.einsum("bi,ijk->bjk", x, self.cube).mean(1)

    model = Outer().double()
    engine = GradientEngine(model)
    with engine.recording(ROWS), pytest.raises(NotApplicable, match="as a whole"):
        model(torch.randn(ROWS, FEATURES).double())
    engine.detach()


def test_a_pass_of_an_earlier_batch_does_not_run_again():
    """Its examples are not those of the batch that is open now."""
    model = Layers().double()
    engine = GradientEngine(model)
    inputs = rows_of(model)
    with engine.recording(ROWS):
        earlier = model(inputs)
    with engine.recording(ROWS):
        model(inputs)
        with pytest.raises(Exception, match="earlier batch"):
            earlier.sum().backward()
    engine.detach()


def test_without_a_plan_the_contexts_do_nothing():
    model = Layers()
    model(torch.randn(3, FEATURES)).sum().backward()
    assert all(one.grad is not None for one in model.parameters())


def test_a_trainer_takes_part():
    rows, labels = data(64).tensors
    trained = dpsgd.Trainer(
        Layers(),
        plan(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        loss=each,
    ).fit(TensorDataset(rows, labels))
    assert trained.certificate.run["isolation"] == "checked"


def test_under_autocast_they_give_the_same_too():
    """Torch brings autocast back for the second pass, where nothing is recorded."""
    torch.manual_seed(0)
    model, inputs = Layers(), torch.randn(ROWS, FEATURES)
    found = []
    for model.kept in (True, False):
        engine = GradientEngine(model)
        with engine.recording(ROWS):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                outputs = model(inputs)
            outputs.float().sum().backward()
            found.append((engine.squared_norms(), engine.clipped_sum(torch.ones(1, ROWS))))
        engine.detach()
    torch.testing.assert_close(*found)
