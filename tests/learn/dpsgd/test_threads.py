"""Loops whose lines run in several threads: refused by name, with nothing spent beside the step."""

import threading

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.overrides import _get_current_function_mode_stack

from discreet.learn.dpsgd import PlanViolation
from learn.dpsgd.made_up_runs import data, each, network, plan, wrap

EACH = nn.CrossEntropyLoss(reduction="none")


def elsewhere(call, *args):
    """What a call returns or raises in a thread of its own."""
    found = []

    def run():
        try:
            found.append((call(*args), None))
        except Exception as error:  # noqa: BLE001 - raised again in the other thread
            found.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    result, error = found[0]
    if error is not None:
        raise error
    return result


def here(call, *args):
    return call(*args)


LINES = {
    "forward": {"forward": elsewhere},
    "backward": {"backward": elsewhere},
    "step": {"step": elsewhere},
    "all but the reading": dict.fromkeys(("forward", "backward", "step"), elsewhere),
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_in_another_thread_is_refused(line):
    where = dict.fromkeys(("forward", "backward", "step"), here) | LINES[line]
    private, optimizer = wrap(network(), plan(steps=6))
    before = [p.detach().clone() for p in private.model.parameters()]
    batches = private.batches(data(64))
    inputs, targets = next(batches)

    def body():
        losses = each(where["forward"](private.model, inputs), targets)
        where["backward"](private.backward, losses)
        where["step"](optimizer.step)

    with pytest.raises(PlanViolation, match="another thread"):
        body()
    private.detach()
    assert all(map(torch.equal, before, private.model.parameters()))
    assert _get_current_function_mode_stack() == []


def test_one_call_and_reading_on_in_another_thread_are_refused():
    private, _ = wrap(network(), plan(steps=6))
    batches = private.batches(data(64))
    batch = next(batches)
    with pytest.raises(PlanViolation, match="another thread"):
        elsewhere(private.step, EACH, *batch)
    private.step(EACH, *batch)
    with pytest.raises(PlanViolation, match="another thread"):
        elsewhere(next, batches)
    private.detach()
    assert _get_current_function_mode_stack() == []


def test_a_whole_loop_may_run_in_any_thread():
    def train():
        for batch in private.batches(data(64)):
            private.step(EACH, *batch)
        return _get_current_function_mode_stack()

    private, _ = wrap(network(), plan(steps=6))
    assert elsewhere(train) == []
    assert private.steps_taken == 6
    private.detach()


@pytest.mark.parametrize(
    "loss", [lambda o, t: functional.cross_entropy(o, t), lambda o, t: each(o, t).topk(2)[0].mean()]
)
def test_a_backward_pass_in_another_thread_is_not_accepted_unseen(loss):
    """In every step until one was looked at, whatever the loop does about the errors."""
    private, optimizer = wrap(network(), plan(steps=6))
    before = [p.detach().clone() for p in private.model.parameters()]
    while private.steps_taken < 6:
        for inputs, targets in private.batches(data(64)):
            elsewhere(loss(private.model(inputs), targets).backward)
            with pytest.raises(PlanViolation, match="in the thread that reads the batches"):
                optimizer.step()
            break
    assert all(map(torch.equal, before, private.model.parameters()))
    private.detach()
    assert _get_current_function_mode_stack() == []


def test_a_loop_that_another_thread_ends_leaves_other_modes_alone():
    private, optimizer = wrap(network(), plan(steps=3))
    with torch.device("cpu"):
        around = _get_current_function_mode_stack()
        batches = private.batches(data(64))
        inputs, targets = next(batches)
        each(private.model(inputs), targets).mean().backward()
        elsewhere(batches.close)
        for inputs, targets in private.batches(data(64)):
            each(private.model(inputs), targets).mean().backward()
            optimizer.step()
        assert _get_current_function_mode_stack() == around
    private.detach()
    assert _get_current_function_mode_stack() == []
