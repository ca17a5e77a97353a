"""Tensors made under ``torch.inference_mode()``: refused by name, or treated like others."""

import pytest
import torch
from torch import nn

from discreet.errors import InvalidValue
from discreet.learn import dpsgd
from learn.dpsgd.made_up_runs import CLASSES, FEATURES, data, each, network, plan, silenced, wrap

EACH = nn.CrossEntropyLoss(reduction="none")
WORDS = 9


@torch.inference_mode()
def untracked(one):
    return one.clone()


class Scaled(nn.Module):
    """A module without a rule: it runs through torch.func."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(FEATURES))
        self.outer = nn.Linear(1, CLASSES)

    def forward(self, inputs):
        return self.outer(torch.cdist(inputs, self.scale.unsqueeze(0)))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.LSTM(1, 4, batch_first=True), nn.Linear(4, CLASSES)

    def forward(self, inputs):
        return self.outer(self.inner(inputs.unsqueeze(2))[0].mean(1))


@pytest.mark.parametrize(
    "make",
    [
        network,
        lambda: nn.Linear(FEATURES, CLASSES),
        lambda: nn.Sequential(nn.LayerNorm(FEATURES), nn.Linear(FEATURES, CLASSES)),
        lambda: nn.Sequential(
            nn.Unflatten(1, (1, FEATURES)), nn.Conv1d(1, CLASSES, FEATURES), nn.Flatten()
        ),
        Scaled,
    ],
)
def test_inputs_are_refused_by_name(make):
    private, _ = wrap(make(), plan(steps=4))
    for inputs, _targets in private.batches(data(64)):
        with pytest.raises(InvalidValue, match=r"inputs.*inference_mode.*clone"):
            private.model(untracked(inputs))
        break
    private.detach()


@pytest.mark.parametrize(
    "table", [nn.Embedding(WORDS, CLASSES), nn.EmbeddingBag(WORDS, CLASSES, mode="mean")]
)
def test_ids_are_refused_by_name(table):
    private, _ = wrap(table, plan(steps=4))
    ids = torch.zeros(64, 2, dtype=torch.int64)
    for (inputs,) in private.batches(torch.utils.data.TensorDataset(ids)):
        with pytest.raises(InvalidValue, match=r"inputs.*inference_mode"):
            private.model(untracked(inputs))
        break
    private.detach()


def test_one_call_refuses_them_and_takes_the_batch_afterwards():
    """In the first step, which is watched, and in a later one without autograd."""
    private, _ = wrap(network(), plan(steps=4))
    for inputs, targets in private.batches(data(64)):
        before = [p.detach().clone() for p in private.model.parameters()]
        with pytest.raises(InvalidValue, match=r"inputs.*inference_mode"):
            private.step(EACH, untracked(inputs), targets)
        assert all(map(torch.equal, before, private.model.parameters()))
        private.step(EACH, inputs, targets)
    assert private.steps_taken == 4
    private.detach()


def test_targets_are_refused_by_name_or_do_not_matter():
    private, _ = wrap(network(), plan(steps=4))
    for at, (inputs, targets) in enumerate(private.batches(data(64))):
        if at == 0:  # where autograd would have to keep them
            with pytest.raises(InvalidValue, match=r"targets.*inference_mode"):
                private.step(EACH, inputs, untracked(targets))
            private.step(EACH, inputs, targets)
        else:
            private.step(EACH, inputs, untracked(targets))
    assert private.steps_taken == 4
    private.detach()


def test_where_nothing_of_them_is_kept_the_step_is_the_same():
    """A recurrent layer copies its inputs; a data set of such tensors is copied by its reader."""

    def run(*, inner, outer):
        torch.manual_seed(0)
        private, optimizer = wrap(Recurrent(), plan(steps=3))
        inputs, targets = data(64).tensors
        dataset = torch.utils.data.TensorDataset(outer(inputs), outer(targets))
        for rows, labels in silenced(private, dataset):
            private.backward(each(private.model(inner(rows)), labels))
            optimizer.step()
        private.detach()
        return [p.detach() for p in private.model.parameters()]

    expected = run(inner=lambda one: one, outer=lambda one: one)
    for options in (
        {"inner": untracked, "outer": lambda one: one},
        {"inner": lambda one: one, "outer": untracked},
    ):
        assert all(map(torch.equal, expected, run(**options)))


def test_other_errors_stay_what_they_are():
    private, _ = wrap(network(), plan(steps=4))
    for inputs, _targets in private.batches(data(64)):
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            private.model(inputs[:, 1:])
        break
    private.detach()


def test_a_model_made_under_inference_mode():
    with torch.inference_mode():
        model = network()
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    optimizer.param_groups[0]["params"] = list(model.parameters())
    with pytest.raises(InvalidValue, match=r"model\.0\.weight.*inference_mode"):
        dpsgd.make_private(model, optimizer, plan())
