import pytest
import torch
from torch import nn

from discreet.errors import InvalidValue, SchemaError
from discreet.learn.dpsgd import ParameterAverage


def test_it_is_the_moving_average_with_a_warm_start():
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    average = ParameterAverage(model, decay=0.5)
    expected = 0.0
    for step in range(30):
        nn.init.constant_(model.weight, float(step))
        average.update()
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * step
    assert float(average.tensors()["weight"]) == pytest.approx(expected, rel=1e-6)


def test_exchange_twice_changes_nothing():
    model = nn.Linear(3, 2)
    average = ParameterAverage(model, decay=0.9)
    nn.init.ones_(model.weight)
    average.exchange()
    assert not torch.equal(model.weight, torch.ones(2, 3))
    average.exchange()
    assert torch.equal(model.weight, torch.ones(2, 3))


def test_frozen_parameters_are_left_out():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False))
    assert sorted(ParameterAverage(model).tensors()) == ["0.bias", "0.weight"]


def test_it_can_be_continued():
    model = nn.Linear(3, 2)
    first, second = ParameterAverage(model, decay=0.9), ParameterAverage(model, decay=0.9)
    first.update()
    nn.init.zeros_(model.weight)
    first.update()
    second.restore(first.tensors(), updates=first.updates)
    nn.init.ones_(model.weight)
    first.update()
    second.update()
    assert torch.equal(first.tensors()["weight"], second.tensors()["weight"])
    with pytest.raises(SchemaError):
        second.restore({"weight": torch.zeros(2, 3)}, updates=1)


@pytest.mark.parametrize("decay", [0, 1, -0.5, "0.9"])
def test_bad_decay(decay):
    with pytest.raises(InvalidValue, match="decay"):
        ParameterAverage(nn.Linear(1, 1), decay=decay)
