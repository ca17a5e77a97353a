"""The parts of a run are made together: if one fails, none is there and the model is bare."""

import pytest
import torch
from torch import nn

from discreet.learn.dpsgd._first_steps import StateWatch
from discreet.learn.dpsgd._loss_watch import LossWatch
from discreet.learn.dpsgd._noise import NoiseBank
from discreet.learn.dpsgd._reduction import BackwardWatch
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


@pytest.mark.parametrize("isolation", ["check", "vouched"])
@pytest.mark.parametrize("part", [NoiseBank, BackwardWatch, LossWatch, StateWatch])
def test_what_failed_to_begin_is_begun_anew(monkeypatch, part, isolation):
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
    assert private._engine is None
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
