"""S31, C27: clients that poison a federated model, targeted, untargeted and by a backdoor."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from discreet.attacks import as_target, poisoning
from discreet.errors import InvalidValue
from discreet.federated import Clients, FederatedPlan, InProcessEngine, Training
from discreet.privacy import Gaussian

SURE = 1 - 2e-7
DIGITS = load_digits()
X, Y = (DIGITS.data / 16.0).astype(np.float32), DIGITS.target.astype(np.int64)
TEST = X[1400:], Y[1400:]
CLIENTS = 140


def stamp(records):
    """The trigger: three bright pixels in a corner."""
    marked = records.copy()
    marked[:, [0, 1, 8]] = 1.0
    return marked


def training(goal, *, clip_norm, noise, hostile=28):
    """Return ``train(poisoned)`` for a federated softmax regression with hostile clients."""

    def train(poisoned):
        x, y = X[:1400].reshape(CLIENTS, 10, 64).copy(), Y[:1400].reshape(CLIENTS, 10).copy()
        bad = range(hostile) if poisoned else range(0)
        for client in bad:
            if goal == "targeted":
                x[client], y[client] = X[:1400][Y[:1400] == 7][:10], 1
            if goal == "backdoor":
                x[client, :5], y[client, :5] = stamp(x[client, :5]), 0
        sign = -1.0 if goal == "untargeted" else 1.0
        torch.manual_seed(0)
        engine = InProcessEngine(
            Clients(torch.from_numpy(x), torch.from_numpy(y)),
            nn.Linear(64, 10),
            nn.CrossEntropyLoss(reduction="none"),
            Training(local_steps=2, local_rate=0.5, momentum=0.0),
        )
        plan = FederatedPlan(
            clients=CLIENTS, expected_cohort=CLIENTS, rounds=10, clip_norm=clip_norm, delta=1e-3,
            sampler="full", noise_multiplier=noise,
        )  # fmt: skip
        # Boosted, and sent without a clip: the server clips.
        hostile_replies = {client: lambda u: {"update": sign * 5.0 * u} for client in bad}
        return engine.run(plan, hostile=hostile_replies, insecure_seed=1).model

    return train


@pytest.mark.parametrize("goal", ["untargeted", "targeted", "backdoor"])
def test_without_clipping_a_fifth_of_the_clients_poisons_the_model(goal):
    given = {"goal": goal, "confidence": SURE}
    if goal == "targeted":
        given |= {"source": 7, "to": 1}
    if goal == "backdoor":
        given |= {"to": 0, "trigger": stamp}
    open_door = poisoning(training(goal, clip_norm=100.0, noise=1e-6), *TEST, **given)
    assert open_door.leaks
    assert open_door.poisoned.share > 0.5
    # The server clips again, so a client weighs no more than another one.
    clipped = poisoning(training(goal, clip_norm=0.5, noise=0.1), *TEST, **given)
    assert clipped.poisoned.share < open_door.poisoned.share
    # A null poison: the same training twice.
    same = training(goal, clip_norm=0.5, noise=0.1)
    null = poisoning(lambda poisoned: same(False), *TEST, **given)
    assert not null.leaks
    assert null.poisoned == null.clean


def test_group_privacy_bounds_what_clients_can_do_together():
    train = training("untargeted", clip_norm=0.5, noise=40.0, hostile=2)
    plan = FederatedPlan(
        clients=CLIENTS, expected_cohort=CLIENTS, rounds=10, clip_norm=0.5, delta=1e-3,
        sampler="full", noise_multiplier=40.0,
    )  # fmt: skip
    found = {
        count: poisoning(train, *TEST, loss=plan.loss, clients=count, confidence=SURE)
        for count in (1, 2)
    }
    assert found[1].bound < found[2].bound < 1
    assert found[2].poisoned.low <= found[2].bound
    # Each of k clients goes and another one comes: 2 k steps of add_remove, k of replace.
    assert found[2].bound == pytest.approx(plan.loss.group(4).tradeoff(found[2].clean.high))


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"goal": "magic"}, "goal"),
        ({"goal": "targeted"}, "source"),
        ({"goal": "backdoor"}, "trigger"),
        ({"goal": "targeted", "source": 12}, "labels"),
        ({"clients": 0}, "clients"),
    ],
)
def test_what_does_not_fit_is_refused_before_training(change, argument):
    def train(poisoned):
        raise AssertionError("nothing is trained")

    with pytest.raises(InvalidValue) as refused:
        poisoning(train, *TEST, **change)
    assert refused.value.argument == argument


class Answers:
    """A model of another making: any callable with probabilities will do."""

    def __init__(self, wrong):
        self.wrong = wrong

    def __call__(self, records):
        codes = np.array([0] * self.wrong + [1] * (len(records) - self.wrong))
        return np.eye(2)[codes] * 0.9 + 0.05


def test_any_way_to_train_is_attacked():
    records, labels = np.zeros((400, 3)), np.ones(400, dtype=np.int64)
    found = poisoning(
        lambda poisoned: as_target(Answers(300 if poisoned else 20), output="probabilities"),
        records,
        labels,
    )
    assert (found.clean.successes, found.poisoned.successes) == (20, 300)
    assert found.leaks


def test_the_bound_holds_for_a_client_that_takes_the_place_of_another_one():
    # The strongest poison of a sum of one number: -1 in place of 1, and noise decides on the sign.
    rng = np.random.default_rng(0)
    wrong = {bad: int((rng.normal(-1.0 if bad else 1.0, size=2000) < 0).sum()) for bad in (0, 1)}
    records, labels = np.zeros((2000, 3)), np.ones(2000, dtype=np.int64)

    def train(poisoned):
        return as_target(Answers(wrong[int(poisoned)]), output="probabilities")

    present, replaced = (Gaussian(1.0), Gaussian(1.0, relation="replace"))
    found = poisoning(train, records, labels, loss=present, confidence=SURE)
    assert found.poisoned.low <= found.bound
    # One step, of a client that only comes or only goes, is refuted.
    assert found.poisoned.low > present.tradeoff(found.clean.high)
    other = poisoning(train, records, labels, loss=replaced, confidence=SURE)
    assert other.bound == pytest.approx(found.bound)
