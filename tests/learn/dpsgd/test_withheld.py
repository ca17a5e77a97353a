"""Errors tell neither a target nor how many examples were drawn."""

import logging
import traceback

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from discreet.errors import DiscreetError, InvalidValue
from discreet.learn.dpsgd._losses import check_reduction
from learn.dpsgd.made_up_runs import CLASSES, FEATURES, data, each, network, plan, wrap

EACH = nn.CrossEntropyLoss(reduction="none")
LABEL = 7351
ROWS = 53


def gathered(outputs, targets):
    return -outputs.log_softmax(1).gather(1, targets.unsqueeze(1)).squeeze(1)


@pytest.mark.parametrize("loss", [EACH, gathered, lambda o, t: each(o, t)])
def test_a_target_that_is_no_class_in_a_batch_that_fails_for_another_reason(loss):
    """Alone it adds nothing, see test_unfit.py; the words of other errors do not tell it either."""

    def failing(outputs, targets):
        loss(outputs, targets)
        raise ValueError(f"{len(targets)} rows, among them {int(targets.max())}")

    private, _ = wrap(network(), plan(steps=5, sampler="full", expected_batch_size=None))
    batches = private.batches(data(64))
    inputs, targets = next(batches)
    before = [p.detach().clone() for p in private.model.parameters()]
    with pytest.raises(InvalidValue, match="targets") as caught:
        private.step(failing, inputs, targets.masked_fill(targets == 1, LABEL))
    assert str(LABEL) not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__context__ is None  # nothing for other printers of errors either
    assert all(map(torch.equal, before, private.model.parameters()))
    private.step(loss, inputs, targets)
    private.detach()


def test_errors_of_the_users_own_pass():
    def failing(outputs, targets):
        raise RuntimeError("of the user")

    private, _ = wrap(network(), plan())
    batches = private.batches(data(64))
    with pytest.raises(RuntimeError, match="of the user"):
        private.step(failing, *next(batches))
    private.detach()


class Turned(nn.Module):
    """Rows in an order that nothing tells."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(FEATURES // 2, CLASSES)

    def forward(self, inputs):
        parts = inputs.reshape(-1, 2, FEATURES // 2).transpose(0, 1).reshape(-1, FEATURES // 2)
        return self.inner(parts)[: inputs.shape[0]]


class Selecting(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(FEATURES, CLASSES)

    def forward(self, inputs):
        return self.inner(inputs[: ROWS - 2])


def too_few(model, inputs, targets):
    return each(model(inputs), targets)[1:]


MISUSES = {
    "too few losses": lambda p, x, y: p.backward(too_few(p.model, x, y)),
    "a matrix": lambda p, x, y: p.backward(each(p.model(x), y)[:, None]),
    "not reduced": lambda p, x, y: check_reduction(each(p.model(x), y), declared="mean", rows=ROWS),
    "selected": lambda p, x, y: too_few(p.model, x, y).mean().backward(),
    "other rows": lambda p, x, y: p.model(x[1:]),
}


@pytest.mark.parametrize("misuse", MISUSES.values(), ids=MISUSES)
@pytest.mark.parametrize("make", [network, Turned])
def test_numbers_of_rows_are_not_told(misuse, make, caplog):
    """53 examples; the sizes that the mistakes have besides are 52, 51, 106, 159 and 156."""
    made = plan(examples=ROWS, sampler="full", expected_batch_size=None)
    private, _ = wrap(make(), made)
    batches = private.batches(data(ROWS))
    inputs, targets = next(batches)
    with caplog.at_level(logging.WARNING), pytest.raises(DiscreetError) as caught:
        misuse(private, inputs, targets)
    told = " ".join([str(caught.value), *caplog.messages])
    assert "outside" not in told
    assert not any(str(size) in told for size in (ROWS, 52, 51, 106, 159, 156))
    private.detach()


def test_the_log_does_not_tell_them(caplog):
    private, _ = wrap(Selecting(), plan(examples=ROWS, sampler="full", expected_batch_size=None))
    batches = private.batches(data(ROWS))
    with caplog.at_level(logging.WARNING):
        private.model(next(batches)[0])
    assert "no telling which rows" in caplog.text
    assert not any(str(size) in " ".join(caplog.messages) for size in (ROWS, 52, 51))
    private.detach()


def test_a_declared_axis_without_the_examples():
    made = plan(examples=ROWS, sampler="full", expected_batch_size=None)
    private, _ = wrap(nn.Linear(FEATURES, CLASSES), made, batch_axis=1)
    inputs, targets = data(ROWS).tensors
    batches = private.batches(TensorDataset(inputs.unsqueeze(1).expand(-1, 5, -1), targets))
    with pytest.raises(InvalidValue, match="along the second axis") as caught:
        private.model(next(batches)[0])
    assert str(ROWS) not in str(caught.value)
    private.detach()


class Looking(nn.Module):
    """Runs example by example, because no rule covers it, and looks up a value of the example."""

    def __init__(self, *, branches):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(FEATURES, CLASSES))
        self.register_buffer("table", torch.zeros(3))
        self.branches = branches

    def forward(self, inputs):
        scores = torch.einsum("bi,ij->bj", inputs, self.weight.exp().cumsum(0))
        places = inputs[:, 0].long().abs()
        if self.branches:
            places = torch.tensor([int(place) for place in places])
        return scores + self.table[places].unsqueeze(1)


@pytest.mark.parametrize("branches", [False, True])
def test_modules_that_run_by_example_do_not_tell_values(branches, caplog):
    model = Looking(branches=branches)
    private, _ = wrap(model, plan(sampler="full", expected_batch_size=None))
    inputs, targets = data(64).tensors
    batches = private.batches(TensorDataset(torch.full_like(inputs, LABEL), targets))
    batch = next(batches)
    with caplog.at_level(logging.WARNING), pytest.raises(RuntimeError, match="Looking") as caught:
        model(batch[0])
    told = "".join(traceback.format_exception(caught.value)) + caplog.text
    assert "IndexError" in told
    assert str(LABEL) not in told
    private.detach()


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = network()

    def forward(self, inputs):
        return self.inner(inputs)


@pytest.mark.parametrize("make", [network, Wide])
@pytest.mark.parametrize("good", [0, 3])
def test_inputs_of_a_wrong_width(make, good):
    made = plan(examples=ROWS, sampler="full", expected_batch_size=None, steps=5)
    private, _ = wrap(make(), made)
    batches = private.batches(data(ROWS))
    for _ in range(good):
        private.step(EACH, *next(batches))
    inputs, targets = next(batches)
    wider = torch.cat([inputs, inputs], 1)
    with pytest.raises(InvalidValue, match=r"inputs = 'withheld'.*RuntimeError") as caught:
        private.step(EACH, wider, targets)
    assert str(ROWS) not in "".join(traceback.format_exception_only(caught.value))
    assert caught.value.__context__ is None
    with pytest.raises(InvalidValue, match=r"targets = 'withheld'.*ValueError") as caught:
        private.step(EACH, inputs, targets[1:])
    assert not any(size in str(caught.value) for size in (str(ROWS), "52"))
    private.step(EACH, inputs, targets)
    private.detach()


def test_a_layer_of_another_shape_does_not_tell_the_rows():
    made = plan(examples=ROWS, sampler="full", expected_batch_size=None, steps=5)
    model = network()
    private, _ = wrap(model, made)
    batches = private.batches(data(ROWS))
    for _ in range(3):
        private.step(EACH, *next(batches))
    batch = next(batches)
    kept = model[0].weight.data
    model[0].weight.data = torch.zeros(kept.shape[0] + 1, kept.shape[1])
    with pytest.raises(InvalidValue, match=r"inputs = 'withheld'.*RuntimeError") as caught:
        private.step(EACH, *batch)
    assert str(ROWS) not in "".join(traceback.format_exception_only(caught.value))
    private.detach()
