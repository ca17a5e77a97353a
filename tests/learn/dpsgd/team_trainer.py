"""One member of a process group that trains by the trainer; test_team_trainer.py starts two.

    python team_trainer.py RANK RANKS STORE OUTPUT

Every scenario writes what this member saw into OUTPUT, a directory.
"""

import json
import sys
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from discreet.errors import DiscreetError
from discreet.learn.dpsgd import Private, Trainer, join, make_private
from discreet.ledger import Ledger
from discreet.randomness import source
from learn.dpsgd.team_member import examples, flat, plan, small_model


class Stop(Exception):
    """The run breaks off here, on every member."""


def trainer(model, the_plan, *, rank=0, **options):
    seeded = source(insecure_seed=11)
    base = {
        "loss": nn.CrossEntropyLoss(reduction="none"),
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.5, momentum=0.9),
        "scheduler": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 4),
        "average": 0.5,
        "source": seeded.derive(rank) if rank else seeded,
    }
    return Trainer(model, the_plan, **{**base, **options})


def noisy():
    return plan(noise_multiplier=2.0)


def joined(rank, the_plan=None, **options):
    the_plan = the_plan or noisy()
    model = small_model(seed=100 + rank)  # different on purpose: join makes them equal
    return trainer(model, the_plan, rank=rank, team=join(model, the_plan), **options)


def open_ledger(output, rank, epsilon="50"):
    """Only the leader has one."""
    if rank != 0:
        return {}
    book = Ledger.create(output / f"{epsilon}.ledger")
    book.create_dataset("people", epsilon=epsilon, delta="1e-2")
    return {"ledger": book, "dataset_name": "people"}


def whole_run(rank, output):
    """One run from beginning to end, kept in a directory that each member names otherwise."""
    charged = open_ledger(output, rank)
    place = output / f"run of {rank}"
    trained = joined(rank).fit(examples(), validation=examples(), checkpoint=place, **charged)
    return {
        "model": flat(trained.model).tolist(),
        "certificate": trained.certificate.to_json(),
        "history": [dict(row) for row in trained.history],
        "files": sorted(path.name for path in place.iterdir()) if place.exists() else [],
        "charges": _charges(charged),
    }


def quiet_run(rank):
    """Noise too small to be seen: what is left can be compared with one process."""
    return flat(joined(rank, plan()).fit(examples()).model).tolist()


@contextmanager
def stopping(at):
    """Note the steps that take noise; the first run stops at one of them."""
    real, held = Private._begin_step, []

    def begin(self):
        real(self)
        held.append(self._step.number)
        if held == list(range(at + 1)):
            raise Stop

    Private._begin_step = begin
    try:
        yield held
    finally:
        Private._begin_step = real


def stopped(rank, place, **options):
    try:
        joined(rank).fit(examples(), checkpoint=place, checkpoint_every=2, **options)
    except Stop:
        return True
    return False


def broken_off(rank, output):
    """Stopped on all members in one step, and resumed by fresh trainers."""
    charged = open_ledger(output, rank, epsilon="49")
    place = output / f"broken {rank}"
    with stopping(4) as held:
        did_stop = stopped(rank, place, **charged)
        between = _charges(charged)
        trained = joined(rank).fit(examples(), checkpoint=place, checkpoint_every=2, **charged)
    return {
        "stopped": did_stop,
        "steps": held,
        "model": flat(trained.model).tolist(),
        "certificate": trained.certificate.to_json(),
        "between": between,
        "charges": _charges(charged),
    }


def left_behind(rank, output):
    """Stopped on all members, for one process to resume."""
    with stopping(6):
        return stopped(rank, output / f"left {rank}")


def _charges(charged):
    if not charged:
        return None
    book = charged["ledger"]
    assert book.verify().ok
    return [row.outcome for row in book.history("people")]


def refusals(rank, output):
    """What one member may not accept is refused by all, and nothing is charged."""
    charged = open_ledger(output, rank, epsilon="48")
    short = open_ledger(output, rank, epsilon="0.001")
    dist.barrier()  # the leader has made them
    looked_at = Ledger.open(output / "48.ledger", read_only=True) if rank else None
    odd = rank == 1
    few = torch.utils.data.Subset(examples(), range(39))
    mixing = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)).double()

    def mixed():
        return trainer(mixing, noisy(), rank=rank, team=join(mixing, noisy()))

    other_optimizer = {"optimizer": lambda p: torch.optim.SGD(p, lr=0.5 + 0.1 * rank)}
    cases = {
        "length": lambda: joined(rank).fit(few if odd else examples(), **charged),
        "workers": lambda: joined(rank).fit(examples(), workers=int(odd), **charged),
        "no examples": lambda: joined(rank).fit([] if odd else examples(), **charged),
        "optimizer": lambda: joined(rank, **other_optimizer).fit(examples(), **charged),
        "vouched": lambda: joined(rank, isolation="vouched" if odd else "check").fit(
            examples(), **charged
        ),
        "seed": lambda: joined(rank, source=source(insecure_seed=1) if odd else None).fit(
            examples(), **charged
        ),
        "mixing": lambda: mixed().fit(examples(), validation=examples(), **charged),
        "budget": lambda: joined(rank).fit(examples(), **short),
        "ledger of another": lambda: joined(rank).fit(
            examples(),
            ledger=looked_at,
            dataset_name="people" if odd else None,
        ),
        "checkpoint": lambda: joined(rank).fit(
            examples(), checkpoint=output / "none" if odd else None, **charged
        ),
        "not joined": lambda: trainer(small_model(0), noisy()).fit(examples(), **charged),
        "own loop": _own_loop,
    }
    found = {}
    for name, call in cases.items():
        try:
            call()
            found[name] = "accepted"
        except DiscreetError as error:
            found[name] = f"{type(error).__name__}: {error}"
    found["charges"] = [_charges(charged), _charges(short)]
    return found


def _own_loop():
    model = small_model(0)
    make_private(model, torch.optim.SGD(model.parameters(), lr=1.0), plan())


def main(rank, ranks, store, output):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    found = {
        "whole": whole_run(rank, output),
        "quiet": quiet_run(rank),
        "refusals": refusals(rank, output),
        "broken": broken_off(rank, output),
        "left": left_behind(rank, output),
    }
    (output / f"found-{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    # Whoever leaves first would tear the connection down under the other.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
