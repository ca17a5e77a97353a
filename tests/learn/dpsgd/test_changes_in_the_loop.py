"""What may happen between the calls of a loop: failures, retries, changed inputs and models."""

import os

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from discreet.errors import InvalidValue, NotApplicable
from discreet.learn import dpsgd
from discreet.learn.dpsgd import PlanViolation
from discreet.learn.dpsgd._noise import NoiseBank
from discreet.learn.dpsgd.engine._forms import Outer, PerExample
from learn.dpsgd.made_up_runs import CLASSES, FEATURES, data, each, network, plan, silenced, wrap

FULL = {"sampler": "full", "expected_batch_size": None}


@pytest.mark.parametrize("clipping", ["flat", dpsgd.Quantile()])
@pytest.mark.parametrize("failure", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("way", [Outer, PerExample])
def test_a_sum_that_broke_off_is_not_added_again(clipping, failure, way, monkeypatch):
    model = network()
    private, optimizer = wrap(model, plan(clipping=clipping, **FULL))
    before = [p.detach().clone() for p in private.model.parameters()]
    real, armed = way.add_to, [True]

    def once(self, *args, **options):
        real(self, *args, **options)
        if armed[0]:
            armed[0] = False
            raise failure

    monkeypatch.setattr(way, "add_to", once)
    batches = private.batches(data(64))
    inputs, targets = next(batches)
    private.backward(each(private.model(inputs), targets))
    with pytest.raises(failure):
        optimizer.step()
    with pytest.raises(PlanViolation, match="without a batch"):
        optimizer.step()
    assert all(map(torch.equal, before, private.model.parameters()))
    with pytest.raises(PlanViolation, match="broke off"):
        next(batches)
    assert private.steps_taken == 1
    assert len(private.clip_norms) == 1
    for inputs, targets in private.batches(data(64)):
        private.backward(each(private.model(inputs), targets))
        optimizer.step()
    assert private.steps_taken == 4
    private.detach()


class OnSequences(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner, self.outer = nn.Linear(width, width), nn.Linear(width, CLASSES)

    def forward(self, inputs):
        return self.outer(self.inner(inputs).tanh().mean(1))


def images(channels, width, size):
    flat = width * size * size
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(flat, CLASSES)
    )


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Linear(5, CLASSES), (16, 5)),
        (OnSequences(32), (300, 20, 32)),
        (OnSequences(64), (128, 8, 64)),
        (images(64, 64, 4), (32, 64, 4, 4)),
    ],
    ids=["matrix", "in passes", "gram", "convolution"],
)
def test_inputs_changed_between_backward_and_step(model, shape):
    private, optimizer = wrap(model, plan(examples=shape[0], **FULL))
    dataset = TensorDataset(torch.randn(shape), torch.zeros(shape[0], dtype=torch.int64))
    for inputs, targets in private.batches(dataset):
        private.backward(each(model(inputs), targets))
        inputs.mul_(1000)
        with pytest.raises(InvalidValue, match="changed in place"):
            optimizer.step()
        break
    private.detach()


class Tied(nn.Module):
    """One table for looking up and for the outputs."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(WORDS, 4)

    def forward(self, ids):
        return nn.functional.linear(self.table(ids).mean(1), self.table.weight)


class Twice(nn.Module):
    """One table looked up twice, and one matrix for two parts of a sum."""

    def __init__(self):
        super().__init__()
        self.table, self.outer = nn.Embedding(WORDS, 4), nn.Linear(4, WORDS)

    def forward(self, ids):
        first, second = self.table(ids).mean(1), self.table(ids).tanh().sum(1)
        return self.outer(first) + self.outer(second)


class Bags(nn.Module):
    def __init__(self, *, weighted):
        super().__init__()
        self.table = nn.EmbeddingBag(WORDS, WORDS, mode="sum")
        self.weighted = weighted
        self.factors = None

    def forward(self, ids):
        self.factors = torch.ones(ids.shape) if self.weighted else None
        return self.table(ids, per_sample_weights=self.factors)


WORDS = 7


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Embedding(WORDS, 3), nn.Flatten(), nn.Linear(15, WORDS)),
        Tied(),
        Twice(),
        Bags(weighted=False),
    ],
    ids=["table", "tied", "twice", "bags"],
)
def test_ids_changed_between_backward_and_step(model):
    private, optimizer = wrap(model, plan(examples=16, **FULL))
    ids = torch.randint(0, WORDS, (16, 5), generator=torch.Generator().manual_seed(0))
    for inputs, targets in private.batches(TensorDataset(ids, ids[:, 0])):
        before = [p.detach().clone() for p in model.parameters()]
        private.backward(each(model(inputs), targets))
        inputs.copy_(inputs.flip(0))
        with pytest.raises(InvalidValue, match="changed in place"):
            optimizer.step()
        assert all(map(torch.equal, before, model.parameters()))
        break
    private.detach()


@pytest.mark.parametrize("what", ["ids", "factors"])
def test_bags_changed_between_forward_and_backward(what):
    model = Bags(weighted=True)
    private, _ = wrap(model, plan(examples=16, **FULL))
    ids = torch.randint(0, WORDS, (16, 5), generator=torch.Generator().manual_seed(0))
    for inputs, targets in private.batches(TensorDataset(ids, ids[:, 0])):
        losses = each(model(inputs), targets)
        (inputs if what == "ids" else model.factors).zero_()
        with pytest.raises(NotApplicable, match="changed in place"):
            private.backward(losses)
        break
    private.detach()


def test_a_matrix_used_twice_on_inputs_that_change_afterwards():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, CLASSES)

        def forward(self, inputs):
            return self.inner(inputs[:, :4]) + self.inner(inputs[:, 4:])

    private, optimizer = wrap(Both(), plan(examples=16, **FULL))
    dataset = TensorDataset(torch.randn(16, 8), torch.zeros(16, dtype=torch.int64))
    for inputs, targets in private.batches(dataset):
        private.backward(each(private.model(inputs), targets))
        inputs.mul_(1000)
        with pytest.raises(InvalidValue, match="changed in place"):
            optimizer.step()
        break
    private.detach()


def test_inputs_changed_where_gradients_are_kept_whole():
    """Small kernels: nothing of the inputs is needed any more, so the step is as it was."""
    made = plan(examples=32, clip_norm=0.1, **FULL)
    dataset = TensorDataset(torch.randn(32, 1, 8, 8), torch.zeros(32, dtype=torch.int64))
    moved = []
    for factor in (1.0, 1000.0):
        torch.manual_seed(1)
        model = images(1, 8, 8)
        model[3].requires_grad_(False)
        private, optimizer = wrap(model, made)
        before = model[0].weight.detach().clone()
        for inputs, targets in silenced(private, dataset):
            private.backward(each(private.model(inputs), targets))
            inputs.mul_(factor)
            optimizer.step()
            break
        moved.append(model[0].weight.detach() - before)
        private.detach()
    assert torch.equal(*moved)


def test_only_one_iterator_at_a_time_and_from_where_the_plan_is():
    phases = [dpsgd.Phase(2, 32), dpsgd.Phase(2, 2)]
    made = plan(steps=None, expected_batch_size=None, phases=phases)
    private, optimizer = wrap(network(), made, source=None)
    first, second = private.batches(data(64)), private.batches(data(64))
    sizes = []
    for _ in range(2):
        inputs, targets = next(first)
        sizes.append(len(inputs))
        private.backward(each(private.model(inputs), targets))
        optimizer.step()
    with pytest.raises(PlanViolation, match="read elsewhere"):
        next(second)
    first.close()
    second = private.batches(data(64))
    inputs, _ = next(second)
    assert private.steps_taken == 2
    # Of 64 examples at rate 1/32, more than 20 come with probability below 1e-13.
    assert len(inputs) <= 20
    private.detach()
    with pytest.raises(PlanViolation, match="detach"):
        next(second)


def test_iterators_made_before_the_last_step_or_a_fork():
    private, optimizer = wrap(network(), plan(steps=1))
    early, late = private.batches(data(64)), private.batches(data(64))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            next(late)
            os.write(writer, b"drawn")
        except PlanViolation as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answers:
        assert b"forked" in answers.read()
    for inputs, targets in early:
        private.backward(each(private.model(inputs), targets))
        optimizer.step()
    with pytest.raises(PlanViolation, match="all 1 steps"):
        next(late)
    private.detach()


def exchange_module(model):
    model[2] = nn.Linear(5, CLASSES)


def exchange_parameter(model):
    model[2].weight = nn.Parameter(model[2].weight.detach().clone())


def add_module(model):
    model.append(nn.Linear(CLASSES, CLASSES))


def freeze(model):
    model[0].bias.requires_grad_(False)


def tie(model):
    model[0].bias = model[2].bias


@pytest.mark.parametrize("change", [exchange_module, exchange_parameter, add_module, freeze, tie])
def test_a_model_that_changes_inside_of_the_loop(change):
    private, optimizer = wrap(network(), plan())
    for inputs, targets in private.batches(data(64)):
        if private.steps_taken == 1:
            change(private.model)
            with pytest.raises(PlanViolation, match="put under the plan"):
                private.model(inputs)
            break
        private.model.requires_grad_(False).requires_grad_(True)  # as it was
        private.backward(each(private.model(inputs), targets))
        optimizer.step()
    assert private.steps_taken == 2
    private.detach()


class Nested(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)


@pytest.mark.parametrize("kind", [torch.optim.SGD, Nested])
def test_no_raw_step_after_one_that_raised(kind):
    model = network()
    optimizer = kind(model.parameters(), lr=1.0)
    private = dpsgd.make_private(model, optimizer, plan(), isolation="vouched")
    armed = [False]

    def fails_once(*_):
        if armed[0]:
            armed[0] = False
            raise RuntimeError("a hook of the user")

    optimizer.register_step_pre_hook(fails_once)
    for inputs, targets in private.batches(data(64)):
        private.backward(each(model(inputs), targets))
        if private.steps_taken == 1:
            armed[0] = True
            with pytest.raises(RuntimeError, match="of the user"):
                optimizer.step()
            model.eval()
            optimizer.zero_grad()
            each(model(inputs), targets).mean().backward()
            before = model[0].weight.detach().clone()
            for _ in range(3):
                with pytest.raises(PlanViolation, match="without a batch"):
                    optimizer.step()
            assert torch.equal(before, model[0].weight)
            model.train()
        else:
            optimizer.step()
            assert private.stepped
    assert private.steps_taken == 4
    private.detach()


class Counting(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.inner = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("seen", torch.zeros(()))
        self.how = how

    def forward(self, inputs):
        if self.training:
            if self.how == "rows":
                self.seen += inputs.shape[0]
            elif self.how == "most":
                self.seen.fill_(max(float(self.seen), inputs.shape[0]))
            else:
                self.seen += 1
        return self.inner(inputs)


@pytest.mark.parametrize("how", ["rows", "most"])
def test_buffers_that_count_rows(how):
    private, _ = wrap(Counting(how), plan(), isolation="check")
    with pytest.raises(PlanViolation, match="seen after batches of 5 or 3 examples"):
        next(private.batches(data(64)))
    private.detach()


def test_buffers_that_count_passes_tell_nothing_if_every_step_has_one():
    private, optimizer = wrap(Counting("passes"), plan(**FULL), isolation="check")
    for inputs, targets in private.batches(data(64)):
        private.backward(each(private.model(inputs), targets))
        optimizer.step()
    assert float(private.model.seen) == 4
    private.detach()
    private, _ = wrap(Counting("passes"), plan(**FULL), isolation="check")
    with pytest.raises(PlanViolation, match="changes seen"):
        next(private.batches(data(64), max_physical=16))
    private.detach()


@pytest.mark.parametrize("keep", [lambda g: g, lambda g: g.detach(), lambda g: g.numpy()])
def test_whoever_keeps_a_gradient_holds_no_noise_of_later_steps(keep):
    parameters = [torch.zeros(6, 5), torch.zeros(5)]
    bank = NoiseBank(parameters, stddev_of=lambda _: 1.0)
    kept, seen = [], []
    for step in range(9):
        for tensor in bank.take(step):
            seen.append(torch.as_tensor(tensor).clone())
            kept.append(keep(tensor))
        del tensor
        bank.prepare(step + 1)
    later = bank.take()
    for one, before in zip(kept, seen, strict=True):
        assert torch.equal(torch.as_tensor(one), before)  # nobody has written into it since
    places = {torch.as_tensor(one).untyped_storage().data_ptr() for one in kept}
    assert all(one.untyped_storage().data_ptr() not in places for one in later)


def test_positions_as_long_as_the_batch_in_the_loop():
    """One example of 24 changed: the clipped sum moves by at most twice the clip norm."""
    size = 24

    class Timed(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.randn(4))
            self.outer = nn.Linear(4, CLASSES)

        def forward(self, inputs):
            times = torch.arange(inputs.shape[1]).type_as(inputs) / size
            return self.outer((inputs * torch.sin(times[:, None] * self.scale)).mean(1))

    def released(inputs):
        torch.manual_seed(0)
        private, optimizer = wrap(Timed(), plan(examples=size, **FULL), isolation="check")
        before = [p.detach().clone() for p in private.model.parameters()]
        targets = torch.zeros(size, dtype=torch.int64)
        for rows, labels in silenced(private, TensorDataset(inputs, targets)):
            private.backward(each(private.model(rows), labels))
            optimizer.step()
            break
        private.detach()
        after = private.model.parameters()
        pairs = zip(before, after, strict=True)
        return torch.cat([((a - b.detach()) * size).flatten() for a, b in pairs])

    inputs = 0.01 * torch.randn(size, size, 4, generator=torch.Generator().manual_seed(3))
    other = inputs.clone()
    other[5] *= 1e5
    assert float((released(inputs) - released(other)).norm()) <= 2.0
