"""The parts of a run are made together: if one fails, none is there and the model is bare."""

import pytest
import torch
from torch import nn

from discreet.learn.dpsgd._losses import LossWatch
from discreet.learn.dpsgd._padding import PaddingWatch
from discreet.learn.dpsgd._watches import StateWatch
from discreet.learn.dpsgd.engine import GradientEngine
from learn.dpsgd.made_up_runs import data, each, network, plan, wrap


def hooks(model):
    """How many hooks all modules and parameters have."""
    tables = [
        table
        for module in model.modules()
        for table in (module._forward_pre_hooks, module._forward_hooks, module._backward_hooks)
    ]
    tables += [parameter._backward_hooks or {} for parameter in model.parameters()]
    return sum(map(len, tables))


@pytest.mark.parametrize("part", [GradientEngine, StateWatch, LossWatch, PaddingWatch])
def test_what_failed_to_begin_is_begun_anew(monkeypatch, part):
    isolation = "vouched" if part is GradientEngine else "check"  # which probes by an engine too
    private, optimizer = wrap(network(), plan(steps=4), isolation=isolation)
    bare, real, armed = hooks(private.model), part.__init__, [True]

    def fails_once(self, *args, **kwargs):
        if armed[0]:
            armed[0] = False
            raise MemoryError
        real(self, *args, **kwargs)

    monkeypatch.setattr(part, "__init__", fails_once)
    with pytest.raises(MemoryError):
        next(private.batches(data(64)))
    assert private.steps_taken == 1  # its batch was drawn
    assert private._gradients is None
    assert hooks(private.model) == bare
    assert torch.overrides._get_current_function_mode() is None
    before = [p.detach().clone() for p in private.model.parameters()]
    for inputs, targets in private.batches(data(64)):
        assert hooks(private.model) > bare
        private.backward(each(private.model(inputs), targets))
        optimizer.step()
    assert private.steps_taken == 4
    assert not any(map(torch.equal, before, private.model.parameters()))
    private.detach()
    assert hooks(private.model) == 0
    assert isinstance(private.model, nn.Sequential)
