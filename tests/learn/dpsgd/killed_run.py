"""A run that is killed again and again: the process of test_checkpoint.py.

Usage: python killed_run.py DIRECTORY ROUNDS SAMPLER... It forks one child for each attempt, kills
it with signal 9 when it has taken some steps, and lets the last one finish. Every step that takes
noise writes its number to ``steps.log`` before the noise is used.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

from discreet.learn import dpsgd
from discreet.learn.dpsgd import Private
from discreet.learn.dpsgd._certificate import certify_run
from discreet.ledger import Ledger

STEPS = 400


def plan(sampler):
    return dpsgd.Plan(
        examples=60,
        expected_batch_size=12,
        steps=STEPS,
        clip_norm=1.0,
        noise_multiplier=20.0,
        delta=1e-6,
        sampler=sampler,
        relation="replace" if sampler == "without_replacement" else "add_remove",
    )


class Records(Dataset):
    def __init__(self):
        draw = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(60, 6, generator=draw)

    def __len__(self):
        return 60

    def __getitem__(self, index):
        return self.inputs[index], index % 3


def train(place, sampler):
    log = os.open(place / "steps.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    real = Private._begin_step

    def noted(self):
        real(self)
        os.write(log, f"{self._step.number}\n".encode())
        time.sleep(0.002)

    Private._begin_step = noted
    model = nn.Linear(6, 3)
    trainer = dpsgd.Trainer(
        model,
        plan(sampler),
        loss=nn.CrossEntropyLoss(reduction="none"),
        optimizer=lambda p: torch.optim.Adam(p, lr=0.01),
        scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 50),
        average=0.9,
        inputs=dpsgd.TensorSpec((6,)),
        isolation="vouched",
    )
    with Ledger.open(place / "study.ledger") as ledger:
        trainer.fit(
            Records(),
            ledger=ledger,
            dataset_name="patients",
            checkpoint=place / "run",
            checkpoint_every=11,
        )


def taken(place):
    try:
        return (place / "steps.log").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def main(place, sampler, rounds):
    torch.set_num_threads(1)
    made = plan(sampler)
    # What every child would have to do again: torch loads parts of itself with the first
    # optimizer, and readings of the accountant are remembered.
    torch.optim.Adam(nn.Linear(6, 3).parameters())
    certify_run(made, steps_taken=0, randomness={}, isolation="vouched")
    with Ledger.create(place / "study.ledger") as ledger:
        ledger.create_dataset("patients", epsilon=20, delta="1e-4", relation=made.relation.value)
    for attempt in range(rounds + 1):
        child = os.fork()
        if child == 0:
            try:
                train(place, sampler)
                os._exit(0)
            finally:
                os._exit(1)
        if attempt == rounds:
            _, status = os.waitpid(child, 0)
            if status != 0:
                sys.exit("the last attempt failed")
            return
        goal = taken(place) + 9 * attempt  # the first attempt is killed at once, before a step
        end = time.monotonic() + 20
        while taken(place) < goal and time.monotonic() < end:
            time.sleep(0.001)
        time.sleep(0.013 * attempt)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


if __name__ == "__main__":
    for kind in sys.argv[3:]:
        place = Path(sys.argv[1]) / kind
        place.mkdir()
        main(place, kind, int(sys.argv[2]))
