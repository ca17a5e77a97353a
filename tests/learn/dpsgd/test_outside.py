"""What reaches the loss of a private run from outside of its batch and its model."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from discreet.learn.dpsgd import PlanViolation
from learn.dpsgd.made_up_runs import CLASSES, FEATURES, data, each, network, plan, wrap

# --- parameters outside of the model -------------------------------------------------------


class Temperature(nn.Module):
    """A criterion that learns."""

    def __init__(self):
        super().__init__()
        self.log = nn.Parameter(torch.zeros(()))

    def forward(self, scores, targets):
        return each(scores * self.log.exp(), targets)


class Prompted(nn.Module):
    """Adds a tensor to its inputs that is not one of its parameters."""

    def __init__(self, prompt):
        super().__init__()
        self.inner, self.prompt = network(), prompt

    def forward(self, x):
        return self.inner(x + self.prompt())


def learned_temperature():
    criterion = Temperature()
    return network(), criterion.parameters(), lambda model, x, y: criterion(model(x), y)


def head():
    last = nn.Linear(CLASSES, CLASSES)
    return network(), last.parameters(), lambda model, x, y: each(last(model(x)), y)


def prompt_on_the_inputs():
    prompt = torch.zeros(FEATURES, requires_grad=True)
    return network(), [prompt], lambda model, x, y: each(model(x + prompt), y)


def prompt_inside():
    raw = torch.zeros(FEATURES, requires_grad=True)
    held = {"prompt": raw + 0}

    def losses(model, x, y):
        held["prompt"] = raw + 0  # computed outside of the forward call, where it is only read
        return each(model(x), y)

    return Prompted(lambda: held["prompt"]), [raw], losses


OUTSIDE = [learned_temperature, head, prompt_on_the_inputs, prompt_inside]


def trained(private, losses, form="each", others=(), **options):
    theirs = torch.optim.SGD(others, lr=1.0) if others else None
    for x, y in private.batches(data(64), **options):
        found = losses(private.model, x, y)
        private.backward(found) if form == "each" else found.mean().backward()
        private.optimizer.step()
        if theirs is not None:
            theirs.step()


@pytest.mark.parametrize("make", OUTSIDE)
@pytest.mark.parametrize("form", ["each", "mean"])
def test_a_parameter_outside_of_the_model_is_refused(make, form):
    model, others, losses = make()
    isolation = "vouched" if form == "each" else "check"
    private, _ = wrap(model, plan(), isolation=isolation)
    with pytest.raises(PlanViolation, match="not one of the parameters under the plan"):
        trained(private, losses, form, list(others))
    private.detach()


@pytest.mark.parametrize("make", OUTSIDE)
def test_the_same_without_gradients_is_accepted(make):
    model, others, losses = make()
    for one in others:
        one.requires_grad_(False)
    if make is prompt_inside:
        model.prompt = lambda: torch.zeros(FEATURES)
    private, _ = wrap(model, plan(steps=2))
    trained(private, losses)
    private.detach()


def test_gradients_of_the_inputs_are_refused():
    private, _ = wrap(network(), plan())
    batches = private.batches(data(64))
    x, y = next(batches)
    with pytest.raises(PlanViolation, match="not one of the parameters under the plan"):
        private.backward(each(private.model(x.requires_grad_()), y))
    private.detach()


def test_a_parameter_that_comes_in_later_is_refused_in_one_loss_each():
    """The graph is looked at in every step."""
    temperature = Temperature()
    private, _ = wrap(network(), plan(steps=6))

    def losses(model, x, y):
        return (temperature if private.steps_taken == 3 else each)(model(x), y)

    with pytest.raises(PlanViolation, match="not one of the parameters under the plan"):
        trained(private, losses)
    assert private.steps_taken == 4, "the step that was refused counts"
    private.detach()


def test_a_penalty_of_two_models_under_plans_of_their_own_is_accepted():
    """The leaves of another engine are known too."""
    first, second = network(seed=0), network(seed=1)
    one, optimizer = wrap(first, plan(sampler="full", expected_batch_size=None, steps=1))
    two, other = wrap(second, plan(sampler="full", expected_batch_size=None, steps=1))
    for (x, y), _ in zip(one.batches(data(64)), two.batches(data(64)), strict=True):
        apart = functional.mse_loss(first(x), second(x), reduction="none").sum(1)
        one._refuse_outside_parameters(apart)
        one.backward(each(first(x), y))
        optimizer.step()
        two.backward(each(second(x), y))
        other.step()
    one.detach()
    two.detach()
