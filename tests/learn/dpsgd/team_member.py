"""One member of a process group; test_distributed.py starts two of them.

    python team_member.py RANK RANKS STORE OUTPUT

Every scenario writes what this member saw into OUTPUT, a directory.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

from discreet.errors import InvalidValue, NotApplicable
from discreet.learn.dpsgd import Plan, Quantile, make_private
from discreet.learn.dpsgd._team import Team, join
from discreet.randomness import source

EXAMPLES = 40


def examples():
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(EXAMPLES, 6, generator=generator, dtype=torch.float64)
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


def small_model(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def plan(*, noise_multiplier=1e-9, batch=6.0, steps=12, **others):
    return Plan(
        examples=EXAMPLES,
        expected_batch_size=batch,
        steps=steps,
        clip_norm=0.5,
        noise_multiplier=noise_multiplier,
        delta=1e-3,
        **others,
    )


def noisy_plan():
    return plan(noise_multiplier=2.0, steps=3)


def trained(the_plan, model, *, team=None, rank=0, max_physical=None):
    """Train with the leader's draws; the other members get noise of their own."""
    seeded = source(insecure_seed=11)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    private = make_private(
        model, optimizer, the_plan, source=seeded.derive(rank) if rank else seeded, team=team
    )
    rounds = 0
    for inputs, targets in private.batches(examples(), max_physical=max_physical):
        losses = nn.functional.cross_entropy(model(inputs), targets, reduction="none")
        private.backward(losses)
        optimizer.step()
        rounds += 1
    return private, rounds


def cases():
    """Plans, and how many examples fit into memory."""
    return {
        "poisson": (plan(), None),
        "physical": (plan(batch=15.0), 2),
        "mostly empty": (plan(batch=0.5, steps=30), None),
        "fixed size": (plan(batch=5, sampler="without_replacement"), None),
        "quantile": (plan(clipping=Quantile(quantile=0.5, count_stddev=1e-9)), None),
    }


def flat(model):
    return torch.cat([one.detach().reshape(-1) for one in model.parameters()]).numpy()


# --- scenarios ----------------------------------------------------------------------------


def primitives(team, rank):
    tensors = [torch.full((2, 3), 1.0 + rank), torch.tensor(float(rank)), torch.arange(4)]
    team.sum_(tensors)
    found = {"sums": [one.tolist() for one in tensors]}
    shares = {
        "share": np.arange(100, 111) if rank == 0 else np.arange(3),
        "share of one": np.array([7]),
        "share of nothing": np.array([], dtype=np.int64),
    }
    for name, drawn in shares.items():
        found[name] = team.share(drawn).tolist()
        team.sum_([])
    team.share(np.array([1, 2]))
    try:
        team.share(np.array([3, 4]))
        found["reading ahead"] = "accepted"
    except NotApplicable as error:
        found["reading ahead"] = str(error)
    team.sum_([])
    return found


def training(rank):
    found = {}
    for name, (the_plan, most) in cases().items():
        model = small_model(seed=100 + rank)  # different on purpose: join makes them equal
        member = join(model, the_plan)
        private, rounds = trained(the_plan, model, team=member, rank=rank, max_physical=most)
        found[name] = {
            "model": flat(model).tolist(),
            "steps": private.steps_taken,
            "rounds": rounds,
            "agreed": member.agrees(model),
            "clip norms": list(private.clip_norms),
        }
        private.detach()
        model[0].weight.data[0, 0] += rank
        found[name]["agreed after a change"] = member.agrees(model)
    return found


class Undivided:
    """A mutant: it does not tell that the noise must be divided."""

    ranks = 1

    def __init__(self, team):
        self.rank, self.share, self.sum_ = team.rank, team.share, team.sum_


class Unsummed:
    """A mutant: every member keeps its own part."""

    def __init__(self, team):
        self.rank, self.ranks, self.share, self._team = team.rank, team.ranks, team.share, team

    def sum_(self, tensors):
        self._team.sum_([])


def noise(wrap):
    """Steps of size 1 on zero gradients leave exactly the noise."""
    model = nn.Linear(100, 300)
    the_plan = noisy_plan()
    member = wrap(join(model, the_plan))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    private = make_private(model, optimizer, the_plan, team=member, isolation="vouched")
    steps = []
    before = flat(model)
    data = TensorDataset(torch.zeros(EXAMPLES, 100))
    for (inputs,) in private.batches(data):
        private.backward(0.0 * model(inputs).sum(1))
        optimizer.step()
        steps.append(flat(model) - before)
        before = flat(model)
    certificate = json.dumps(private.certificate().to_json(), sort_keys=True)
    private.detach()
    return np.stack(steps), certificate


def refusals(rank):
    found = {}
    pairs = {
        "plan": (small_model(0), plan(steps=12 + rank)),
        "model": (nn.Linear(2 + rank, 2), plan()),
    }
    for name, (model, the_plan) in pairs.items():
        try:
            join(model, the_plan)
            found[name] = "accepted"
        except InvalidValue as error:
            found[name] = error.argument
    for wrapper in (nn.parallel.DistributedDataParallel, nn.DataParallel):
        try:
            join(wrapper(small_model(0)), plan())
            found[wrapper.__name__] = "accepted"
        except InvalidValue as error:
            found[wrapper.__name__] = error.expected
    sharded = fully_shard(small_model(0), mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    plainly = sharded(torch.randn(3, 6, dtype=torch.float64)).sum()
    plainly.backward()  # it runs here by itself
    optimizer = torch.optim.SGD(sharded.parameters(), lr=0.1)
    for name, call in (
        ("sharded, join", lambda: join(sharded, plan())),
        ("sharded", lambda: make_private(sharded, optimizer, plan())),
    ):
        try:
            call()
            found[name] = "accepted"
        except InvalidValue as error:
            found[name] = str(error)
    return found


def main(rank, ranks, store, output):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    team = Team()
    found = {
        "leads": team.leads,
        "primitives": primitives(team, rank),
        "training": training(rank),
        "refusals": refusals(rank),
    }
    wraps = {"team": lambda member: member, "undivided": Undivided, "unsummed": Unsummed}
    noises = {name: noise(wrap) for name, wrap in wraps.items()}
    np.savez(output / f"noise-{rank}.npz", **{name: steps for name, (steps, _) in noises.items()})
    found["certificate"] = noises["team"][1]
    (output / f"found-{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    # Whoever leaves first would tear the connection down under the other.
    team.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
