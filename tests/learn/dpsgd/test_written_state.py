"""Statistics that a model writes into itself would be released without noise."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from discreet.learn import dpsgd
from discreet.learn.dpsgd import PlanViolation, TensorSpec, check_isolation
from learn.dpsgd.made_up_runs import data, each, plan


class Codebook(nn.Module):
    """Keeps a moving mean of its inputs in a frozen parameter."""

    def __init__(self):
        super().__init__()
        self.code = nn.Parameter(torch.zeros(6), requires_grad=False)

    def forward(self, inputs):
        if self.training:
            with torch.no_grad():
                self.code.mul_(0.9).add_(0.1 * inputs.mean(0))
        return inputs


class ThroughData(nn.Module):
    """The same in a trainable parameter, in a way that torch does not count."""

    def __init__(self):
        super().__init__()
        self.code = nn.Parameter(torch.zeros(6))

    def forward(self, inputs):
        if self.training:
            self.code.data.add_(0.1 * inputs.mean(0))
        return inputs + 0.0 * self.code


class Late(nn.Module):
    """Writes into a buffer only for inputs that made-up ones never are."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, inputs):
        if bool((inputs > 2.0).any()):
            self.seen = self.seen + inputs.detach().mean(0)
        return inputs


def writer(kind):
    return nn.Sequential(nn.Linear(6, 6), kind, nn.Linear(6, 3))


@pytest.mark.parametrize("kind", [Codebook, ThroughData])
def test_the_probe_names_who_writes_into_parameters(kind):
    report = check_isolation(writer(kind()), inputs=TensorSpec((6,)))
    assert [(one.module, one.kind) for one in report.culprits] == [("1", "writes")]


def test_the_probe_finds_embeddings_that_lookups_rewrite():
    model = nn.Sequential(nn.Embedding(10, 4, max_norm=1.0).requires_grad_(False), nn.Linear(4, 2))
    report = check_isolation(model, inputs=TensorSpec((3,), torch.int64, values=10))
    assert [(one.module, one.kind) for one in report.culprits] == [("0", "writes")]


def train(model, dataset, isolation):
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trainable, lr=0.1)
    private = dpsgd.make_private(model, optimizer, plan(), isolation=isolation)
    try:
        for inputs, targets in private.batches(dataset):
            private.backward(each(model(inputs), targets))
            optimizer.step()
    finally:
        private.detach()


@pytest.mark.parametrize("isolation", ["check", "vouched"])
@pytest.mark.parametrize("kind", [Codebook, ThroughData])
def test_the_loop_refuses_writes_into_parameters(kind, isolation):
    model = writer(kind())
    before = [p.detach().clone() for p in (model[0].weight, model[2].weight)]
    with pytest.raises(PlanViolation, match="1"):
        train(model, data(64), isolation)
    after = (model[0].weight, model[2].weight)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_the_loop_refuses_embeddings_that_lookups_rewrite():
    words = nn.Embedding(20, 6, max_norm=0.5).requires_grad_(False)
    model = nn.Sequential(words, nn.Flatten(), nn.Linear(24, 3))
    ids = torch.randint(0, 20, (64, 4), generator=torch.Generator().manual_seed(0))
    with pytest.raises(PlanViolation, match=r"0\.weight"):
        train(model, TensorDataset(ids, data(64).tensors[1]), "vouched")


def test_a_buffer_that_only_real_examples_change_is_found():
    assert check_isolation(writer(Late()), inputs=TensorSpec((6,))).ok
    model = nn.Sequential(Late(), nn.Linear(6, 3))
    with pytest.raises(PlanViolation, match=r"buffer 0\.seen"):
        train(model, data(64, scale=50.0), "check")


def test_a_state_that_ignores_the_examples_is_no_fault():
    model = nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(6, 5)), nn.Tanh(), nn.Linear(5, 3)
    )
    report = check_isolation(model, inputs=TensorSpec((6,)))
    assert report.ok
    assert any(name.endswith("_u") for name in report.writes)
    train(model, data(64), "check")
