"""Compiled loops read memory, not tensors: what is behind these must be what they say."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from discreet.learn.dpsgd.engine import GradientEngine
from discreet.learn.dpsgd.engine.compiled_stack import LinearLayer, compiled_loops, suits


def test_parameters_whose_memory_was_exchanged_are_left_to_torch() -> None:
    targets, data = torch.zeros(8, dtype=torch.int64), torch.ones(8, 4)
    for weight, bias in (
        (torch.ones(300, 4), torch.ones(3)),
        (torch.ones(3, 5), torch.ones(3)),
        (torch.ones(3, 4), torch.ones(3).double()),
    ):
        assert not suits(LinearLayer(weight, bias), data, targets)
    layer = LinearLayer(torch.ones(3, 4), torch.ones(3))
    assert not suits(layer, torch._neg_view(data), targets)
    assert not suits(layer, data, torch._neg_view(targets))


def test_memory_that_is_gone_is_left_to_torch() -> None:
    """Who shards parameters lets go of their memory and keeps the tensors."""
    targets, data = torch.zeros(8, dtype=torch.int64), torch.ones(8, 4)
    layer = LinearLayer(torch.ones(3, 4), torch.ones(3))
    assert suits(layer, data, targets)
    assert suits(layer, torch.ones(9, 4)[1:], targets)
    for kept in (0, 8):
        for place in range(4):
            all_of_it = [torch.ones(3, 4), torch.ones(3), data.clone(), targets.clone()]
            all_of_it[place].untyped_storage().resize_(kept)
            assert not suits(LinearLayer(*all_of_it[:2]), *all_of_it[2:])


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kept", [0, 8])
def test_a_layer_whose_memory_is_gone_raises(kept: int, layers: int) -> None:
    compiled_loops()
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers)))
    engine = GradientEngine(model)
    last = model[-1].weight
    assert isinstance(last, Tensor)
    last.untyped_storage().resize_(kept)
    with engine.recording(8), pytest.raises(RuntimeError, match="storage"):
        engine.cross_entropy((torch.ones(8, 4),), torch.zeros(8, dtype=torch.int64))
    engine.detach()
