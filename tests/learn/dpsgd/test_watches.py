"""Each watch of a loop, and the honest mistake that it is there for; and a watch of one's own."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from discreet.errors import InvalidValue, NotApplicable
from discreet.learn import dpsgd
from discreet.learn.dpsgd import OpenBatch, PlanViolation, Watch
from discreet.learn.dpsgd import _watches as watches
from discreet.learn.dpsgd._lineage import Lineage
from discreet.learn.dpsgd._losses import LossWatch
from discreet.learn.dpsgd._padding import PaddingWatch
from discreet.learn.dpsgd._watches import (
    ForwardWatch,
    MembershipWatch,
    ReductionWatch,
    StateWatch,
    WriteWatch,
)
from learn.dpsgd.made_up_runs import CLASSES, FEATURES, data, each, network, plan, wrap


class Counting(nn.Module):
    """Keeps the mean of all batches, as a codebook or a running average does."""

    def __init__(self):
        super().__init__()
        self.inner = network()
        self.register_buffer("mean", torch.zeros(FEATURES))

    def forward(self, inputs):
        with torch.no_grad():
            self.mean.copy_(inputs.mean(0))
        return self.inner(inputs)


def forget_eval(model, optimizer, inputs, targets):
    """Validate in training mode, on rows that are not of the batch."""
    model(torch.zeros(3, FEATURES))


def unfreeze(model, optimizer, inputs, targets):
    """Gradual unfreezing."""
    model[0].bias.requires_grad_(True)
    model(inputs)


def weight_classes(model, optimizer, inputs, targets):
    """A mean that is weighted by classes."""
    functional.cross_entropy(model(inputs), targets, weight=torch.ones(CLASSES)).backward()


def contrast(model, optimizer, inputs, targets):
    """A loss that compares examples."""
    outputs = model(inputs)
    (outputs @ outputs.t()).square().mean().backward()


def step_plainly(model, optimizer, inputs, targets):
    """Nothing but what every loop does; the model makes the mistake."""
    functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()


def train_a_temperature(model, optimizer, inputs, targets):
    """A parameter beside the model."""
    temperature = torch.ones((), requires_grad=True)
    functional.cross_entropy(model(inputs) * temperature, targets).backward()


def half_frozen():
    model = network()
    model[0].bias.requires_grad_(False)
    return model


MISTAKES = {
    ForwardWatch: (network, "vouched", forget_eval, "inputs that do not have the rows"),
    MembershipWatch: (half_frozen, "vouched", unfreeze, "frozen or unfrozen"),
    ReductionWatch: (network, "vouched", weight_classes, "weighted by classes"),
    LossWatch: (network, "check", contrast, "output for other examples"),
    StateWatch: (Counting, "check", step_plainly, "buffer mean was written"),
    Lineage: (network, "vouched", train_a_temperature, "not one of the parameters"),
}


@pytest.mark.parametrize("watch", MISTAKES)
@pytest.mark.parametrize("present", [True, False])
def test_each_watch_finds_the_mistake_that_it_is_for(watch, present):
    """And without it nobody else does: the look is made in one place.

    What compares losses outside of the model is seen by the look at the rows of the batch, too.
    """
    make, isolation, mistake, words = MISTAKES[watch]
    model = make()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    private = dpsgd.make_private(model, optimizer, plan(), isolation="vouched")
    private._record.isolation = "checked" if isolation == "check" else "vouched"
    batches = private.batches(data(64))
    inputs, targets = next(batches)
    if not present:
        for one in [one for one in private._watches if isinstance(one, watch)]:
            private._watches.remove(one)
            one.remove()
    refusals = (PlanViolation, InvalidValue, NotApplicable)
    if present:
        with pytest.raises(refusals, match=words):
            mistake(model, optimizer, inputs, targets)
    elif watch in (ReductionWatch, StateWatch):
        mistake(model, optimizer, inputs, targets)
    private.detach()


@pytest.mark.parametrize(
    "watch",
    [
        ForwardWatch,
        Lineage,
        LossWatch,
        MembershipWatch,
        PaddingWatch,
        ReductionWatch,
        StateWatch,
        watches.LayoutWatch,
        WriteWatch,
    ],
)
def test_every_watch_says_what_it_guards_against(watch):
    assert issubclass(watch, Watch)
    assert watch.__doc__.startswith("Guards against ")


class FewRows(Watch):
    """What a project may want: no step of a batch that is smaller than its public least size.

    Which batches are refused depends on who was drawn, so such a loop is for experiments.
    """

    def __init__(self, least):
        self.least = least
        self.calls = []

    def open(self, batch: OpenBatch):
        self.calls.append(("open", batch.step))

    def backward(self, loss, batch):
        self.calls.append(("backward", loss.ndim))

    def close(self, batch):
        self.calls.append(("close", batch.form))
        if batch.rows < self.least:
            raise PlanViolation("a batch is too small")
        return batch.step < 1

    def remove(self):
        self.calls.append(("remove", None))


def private_with(watch, **options):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = dpsgd.make_private(
        model, optimizer, plan(**options), isolation="vouched", watches=[watch]
    )
    return private, optimizer


def test_a_watch_of_ones_own_hears_of_every_batch_until_it_has_seen_enough():
    watch = FewRows(0)
    private, optimizer = private_with(watch)
    for number, (inputs, targets) in enumerate(private.batches(data(64))):
        losses = each(private.model(inputs), targets)
        private.backward(losses) if number else losses.mean().backward()
        optimizer.step()
    private.detach()
    assert watch.calls == [
        ("open", 0),
        ("backward", 0),
        ("close", "total"),
        ("open", 1),
        ("backward", 1),
        ("close", "each"),
        ("remove", None),
    ]


def test_what_a_watch_of_ones_own_refuses_is_not_used():
    private, optimizer = private_with(FewRows(10**6))
    before = [p.detach().clone() for p in private.model.parameters()]
    batches = private.batches(data(64))
    inputs, targets = next(batches)
    private.backward(each(private.model(inputs), targets))
    with pytest.raises(PlanViolation, match="too small"):
        optimizer.step()
    with pytest.raises(PlanViolation, match="without a batch"):
        optimizer.step()
    private.detach()
    assert all(map(torch.equal, before, private.model.parameters()))
    assert private.steps_taken == 1


def test_trainers_take_watches_and_others_are_refused():
    watch = FewRows(0)
    features, targets = data(64).tensors
    dpsgd.Trainer(
        network(),
        plan(steps=2),
        loss=nn.CrossEntropyLoss(reduction="none"),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        isolation="vouched",
        watches=[watch],
    ).fit(TensorDataset(features, targets))
    assert watch.calls[0] == ("open", 0)
    model = network()
    with pytest.raises(InvalidValue, match="watches"):
        dpsgd.make_private(
            model, torch.optim.SGD(model.parameters(), lr=0.1), plan(), watches=[print]
        )


# --- looks after the trial ---------------------------------------------------------------------


class Scheduled(nn.Module):
    """Does something to its batch from a certain step on, as mixup that a schedule turns on."""

    def __init__(self, change):
        super().__init__()
        self.inner, self.change, self.on = network(), change, False

    def forward(self, inputs):
        return self.inner(self.change(inputs) if self.on else inputs)


def normalised(inputs):
    """By the batch, in a call that is taken to keep examples apart."""
    return functional.batch_norm(inputs, None, None, training=True)


def weighted(inputs):
    return inputs * functional.softmax(inputs, 0)


def run_until(private, optimizer, steps, batches):
    for _ in range(steps):
        inputs, targets = next(batches)
        private.backward(each(private.model(inputs), targets))
        optimizer.step()


@pytest.mark.parametrize("change", [normalised, weighted])
@pytest.mark.parametrize("quiet", [True, False])
def test_a_model_that_begins_to_mix_later_is_refused_before_the_step_is_clipped(
    change, quiet, monkeypatch
):
    """Also where no look is drawn: its calls are others than before."""
    monkeypatch.setattr(watches, "draw_look", lambda: not quiet)
    model = Scheduled(change)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = dpsgd.make_private(model, optimizer, plan())
    batches = private.batches(data(64))
    run_until(private, optimizer, 2, batches)
    before = [p.detach().clone() for p in model.parameters()]
    model.on = True
    inputs, targets = next(batches)
    private.backward(each(model(inputs), targets))
    with pytest.raises(PlanViolation, match="otherwise than when it was tried out"):
        optimizer.step()
    assert all(map(torch.equal, before, model.parameters()))
    private.detach()


def test_a_drawn_look_finds_what_the_calls_do_not_show(monkeypatch):
    """The same calls with other values."""
    model = Scheduled(lambda inputs: inputs + model.share * functional.softmax(inputs, 0))
    model.share, model.on = 0.0, True
    monkeypatch.setattr(watches, "draw_look", lambda: model.share > 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = dpsgd.make_private(model, optimizer, plan(steps=6), isolation="vouched")
    private._record.isolation, private._record.probed = "checked", torch.zeros(1, FEATURES)
    batches = private.batches(data(64))
    run_until(private, optimizer, 2, batches)
    model.share = 0.5
    with pytest.raises(PlanViolation, match="otherwise than"):
        run_until(private, optimizer, 1, batches)
    batches.close()
    with pytest.raises(PlanViolation, match="otherwise than"):
        private.certificate()
    private.detach()


class Thawing(nn.Module):
    """Mixes its batch while one of its parts is not in training mode; the calls are the same."""

    def __init__(self):
        super().__init__()
        self.part, self.inner = nn.Identity(), network()

    def forward(self, inputs):
        share = 0.0 if self.part.training else 0.5
        return self.inner(inputs + share * functional.softmax(inputs, 0))


def change_flags(monkeypatch):
    """Train two steps, switch a part to eval() and take another step; no look is drawn."""
    monkeypatch.setattr(watches, "draw_look", lambda: False)
    model = Thawing()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = dpsgd.make_private(model, optimizer, plan(steps=6), isolation="vouched")
    private._record.isolation, private._record.probed = "checked", torch.zeros(1, FEATURES)
    batches = private.batches(data(64))
    run_until(private, optimizer, 2, batches)
    before = [p.detach().clone() for p in model.parameters()]
    model.part.eval()
    try:
        run_until(private, optimizer, 1, batches)
    finally:
        same = all(map(torch.equal, before, model.parameters()))
        batches.close()
        private.detach()
    return same


def test_a_change_of_train_flags_between_steps_is_looked_at_before_the_step_is_clipped(monkeypatch):
    with pytest.raises(PlanViolation, match="otherwise than when it was tried out"):
        change_flags(monkeypatch)


def test_without_a_look_at_the_flags_such_a_step_is_taken(monkeypatch):
    """The planted fault: flags that were never seen count as known."""

    class Known(set):
        def __contains__(self, flags):
            return True

    opened = watches.LayoutWatch.open

    def forgetful(watch, batch):
        watch._flags = Known()
        opened(watch, batch)

    monkeypatch.setattr(watches.LayoutWatch, "open", forgetful)
    assert not change_flags(monkeypatch)


def test_the_certificate_says_which_steps_were_looked_at(monkeypatch):
    monkeypatch.setattr(watches, "draw_look", lambda: private.steps_taken in (2, 5))
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = dpsgd.make_private(model, optimizer, plan(steps=8))
    batches = private.batches(data(64))
    run_until(private, optimizer, 8, batches)
    said = private.certificate().run["examples_apart"]
    assert said == {
        "looked_at_in_steps": [0, 2, 5],
        "looked_at_in_the_end": True,
        "other_steps": "not checked",
    }
    private.detach()


def test_looks_are_drawn_in_one_of_64_steps():
    """Of 64,000 draws 1,000 are expected, with a deviation of 31.4; nine of them: below 1e-15."""
    found = sum(watches.draw_look() for _ in range(64_000))
    assert abs(found - 1000) < 9 * 31.4


def test_a_look_takes_nothing_from_the_loop_and_leaves_the_model_alone(monkeypatch):
    """What a step does is the same with and without looks."""

    def trained(looks):
        monkeypatch.setattr(watches, "draw_look", lambda: looks)
        private, optimizer = wrap(network(), plan(steps=4), isolation="check")
        torch.manual_seed(3)
        run_until(private, optimizer, 4, private.batches(data(64)))
        private.detach()
        return [*private.model.parameters(), torch.rand(3)]

    assert all(map(torch.equal, trained(True), trained(False)))
