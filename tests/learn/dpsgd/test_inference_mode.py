"""Tensors made under ``torch.inference_mode()`` are refused, and nothing is spent on them."""

import pytest
import torch
from torch import nn

from discreet.errors import InvalidValue
from discreet.learn import dpsgd
from learn.dpsgd.made_up_runs import CLASSES, FEATURES, data, network, plan, wrap

EACH = nn.CrossEntropyLoss(reduction="none")


@torch.inference_mode()
def untracked(one):
    return one.clone()


@pytest.mark.parametrize(
    "make",
    [
        network,
        lambda: nn.Sequential(nn.LayerNorm(FEATURES), nn.Linear(FEATURES, CLASSES)),
        lambda: nn.Sequential(
            nn.Unflatten(1, (1, FEATURES)), nn.Conv1d(1, CLASSES, FEATURES), nn.Flatten()
        ),
    ],
)
def test_inputs_are_refused_and_the_batch_can_be_taken_afterwards(make):
    private, _ = wrap(make(), plan(steps=4))
    for inputs, targets in private.batches(data(64)):
        before = [p.detach().clone() for p in private.model.parameters()]
        with pytest.raises(RuntimeError, match=r"[Ii]nference"):
            private.step(EACH, untracked(inputs), targets)
        assert all(map(torch.equal, before, private.model.parameters()))
        private.step(EACH, inputs, targets)
    assert private.steps_taken == 4
    private.detach()


def test_a_model_made_under_inference_mode():
    with torch.inference_mode():
        model = network()
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    optimizer.param_groups[0]["params"] = list(model.parameters())
    with pytest.raises(InvalidValue, match=r"model\.0\.weight.*inference_mode"):
        dpsgd.make_private(model, optimizer, plan())
