"""Loops whose lines run in several threads, one after the other: right, or refused."""

import threading

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.overrides import _get_current_function_mode_stack

from discreet.learn.dpsgd import PlanViolation
from learn.dpsgd.made_up_runs import data, each, network, plan, silenced, wrap

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


def trained(*, reader=here, forward=here, backward=here, step=here, safe=True):
    """The parameters after six silent steps whose lines ran in the given threads."""
    private, optimizer = wrap(network(), plan(steps=6), isolation="check")
    batches = silenced(private, data(64))
    while (batch := reader(next, batches, None)) is not None:
        inputs, targets = batch
        losses = each(forward(private.model, inputs), targets)
        if safe:
            backward(private.backward, losses)
        else:
            backward(losses.mean().backward)
        step(optimizer.step)
    assert private.steps_taken == 6
    private.detach()
    assert _get_current_function_mode_stack() == []
    return [p.detach() for p in private.model.parameters()]


def assert_equal(found, expected):
    """Up to rounding: without a watch in its thread, a forward pass may go the short way."""
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("line", ["forward", "step"])
def test_a_line_in_another_thread_changes_nothing(line, safe):
    expected = trained(safe=safe)
    found = trained(safe=safe, **{line: elsewhere})
    assert_equal(found, expected)


@pytest.mark.slow
def test_the_safe_backward_in_another_thread_and_batches_read_in_many():
    expected = trained()
    assert_equal(trained(backward=elsewhere), expected)
    assert_equal(trained(backward=elsewhere, step=elsewhere), expected)
    assert_equal(trained(reader=elsewhere), expected)


def test_one_call_in_another_thread():
    found = []
    for where in (here, elsewhere):
        private, _ = wrap(network(), plan(steps=6))
        for batch in silenced(private, data(64)):
            where(private.step, EACH, *batch)
        private.detach()
        assert _get_current_function_mode_stack() == []
        found.append([p.detach() for p in private.model.parameters()])
    # The watch of the first thread keeps that one from the short way, hence the roundings.
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*found, strict=True))


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
            for where in (here, elsewhere):
                with pytest.raises(PlanViolation, match="in the thread that reads the batches"):
                    where(optimizer.step)
            break
    assert all(map(torch.equal, before, private.model.parameters()))
    private.detach()
    assert _get_current_function_mode_stack() == []


def test_steps_of_two_threads_on_one_batch():
    private, optimizer = wrap(network(), plan(steps=2))
    for inputs, targets in private.batches(data(64)):
        private.backward(each(private.model(inputs), targets))
        elsewhere(optimizer.step)
        before = [p.detach().clone() for p in private.model.parameters()]
        with pytest.raises(PlanViolation, match="without a batch"):
            elsewhere(optimizer.step)
        with pytest.raises(PlanViolation, match="without a batch"):
            optimizer.step()
        assert all(map(torch.equal, before, private.model.parameters()))
    assert private.steps_taken == 2
    private.detach()


def test_a_watch_that_another_thread_stopped_leaves_others_alone():
    private, optimizer = wrap(network(), plan(steps=3))
    with torch.device("cpu"):
        around = _get_current_function_mode_stack()
        for inputs, targets in private.batches(data(64)):
            each(private.model(inputs), targets).mean().backward()
            elsewhere(optimizer.step)
        assert _get_current_function_mode_stack() == around
    private.detach()
    assert _get_current_function_mode_stack() == []
