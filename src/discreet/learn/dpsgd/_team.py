"""Several processes train one model: the same plan, the same certificate.

Every step is the step of one process, divided:

- **Sampling is global.** The first member draws the batch from the whole data set by the plan's
  sampler and sends the indices round; no seed is shared. Every member takes its part of them,
  which may be empty, and all members take the same number of steps.
- **Noise is divided.** Each of R members adds its own independent N(0, sigma^2 C^2 / R) to its
  part of the clipped sum, from its own operating system's generator. Independent normals add
  in variance, so after the reduction the noise is exactly N(0, sigma^2 C^2).
- **The normaliser is the plan's** expected batch size, of the whole batch.

The members trust each other: what travels between them (indices, parts of sums) is private, and
a member knows its own share of the noise. The certificate speaks of the released model.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, final

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from discreet.errors import DiscreetError, InvalidValue, NotApplicable, PlanViolation
from discreet.learn.dpsgd._plan import Plan
from discreet.learn.dpsgd._requirements import require_bare
from discreet.learn.dpsgd._watches import announce_writes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@final
class Team:
    """The members of a torch process group as one trainer; made by :func:`join`.

    Every member adds independent noise of 1 / sqrt(ranks) of the planned standard deviation to
    its part of the sum, so that the sum over all members has exactly the planned noise.
    """

    def __init__(self, *, group: Any = None) -> None:
        self._group = group
        self.rank = dist.get_rank(group)
        self.ranks = dist.get_world_size(group)
        # NCCL moves only what lies on its device.
        nccl = "nccl" in str(dist.get_backend(group))
        self._device = torch.device("cuda", torch.cuda.current_device()) if nccl else None
        self._in_step = False

    @property
    def leads(self) -> bool:
        """Whether this member draws the batches, charges the ledger and writes the files."""
        return self.rank == 0

    def share(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return this member's part of the leader's draw; what the others pass in is ignored.

        The parts are disjoint, their union is the draw, and their sizes differ by at most one.
        Members stay in step: the next draw comes after the sum of this one. Reading ahead (with
        ``workers``) would let one member wait for a draw and another for a sum, for ever.
        """
        if self._in_step:
            raise NotApplicable(
                "the batch of the next step was asked for before this step was summed; in a team "
                "use private.batches(..., workers=0), and join again after a step that failed"
            )
        self._in_step = True
        size = self._from_leader(np.array([len(indices)], dtype=np.int64), 1)
        drawn = self._from_leader(np.asarray(indices, dtype=np.int64), int(size[0]))
        return drawn[self.rank :: self.ranks]

    def _from_leader(self, values: NDArray[np.int64], size: int) -> NDArray[np.int64]:
        held = (
            torch.from_numpy(values.copy()) if self.leads else torch.empty(size, dtype=torch.int64)
        )
        held = held.to(self._device)
        if size:
            dist.broadcast(held, group=self._group, group_src=0)
        result: NDArray[np.int64] = held.cpu().numpy()
        return result

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """Replace every tensor by its sum over all members, in one reduction for each type."""
        self._in_step = False
        for alike in _by_kind(tensors):
            flat = torch.cat([one.detach().reshape(-1) for one in alike])
            moved = flat.to(self._device)
            dist.all_reduce(moved, op=dist.ReduceOp.SUM, group=self._group)
            _write_back(alike, moved)

    def from_leader(self, content: bytes) -> bytes:
        """Give every member the leader's bytes; what the others pass in is ignored."""
        size = int(self._from_leader(np.array([len(content)], dtype=np.int64), 1)[0])
        if size == 0:
            return b""
        held = torch.empty(size, dtype=torch.uint8)
        if self.leads:
            held.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        held = held.to(self._device)
        dist.broadcast(held, group=self._group, group_src=0)
        return held.cpu().numpy().tobytes()

    def gather(self, text: str) -> list[str]:
        """The texts of all members, in the order of their numbers."""
        content = text.encode()
        mine = torch.tensor([len(content)], device=self._device)
        sizes = [torch.empty_like(mine) for _ in range(self.ranks)]
        dist.all_gather(sizes, mine, group=self._group)
        most = max(1, *(int(size) for size in sizes))
        padded = torch.frombuffer(bytearray(content.ljust(most, b" ")), dtype=torch.uint8)
        padded = padded.to(self._device)
        held = [torch.empty_like(padded) for _ in range(self.ranks)]
        dist.all_gather(held, padded, group=self._group)
        return [
            one.cpu().numpy().tobytes()[: int(size)].decode()
            for one, size in zip(held, sizes, strict=True)
        ]

    def synchronise(self, model: nn.Module) -> None:
        """Give every member the leader's parameters and buffers."""
        for alike in _by_kind([*model.parameters(), *model.buffers()]):
            flat = torch.cat([one.detach().reshape(-1) for one in alike]).to(self._device)
            dist.broadcast(flat, group=self._group, group_src=0)
            _write_back(alike, flat)

    def require_same(self, argument: str, text: str) -> None:
        """Raise on all members unless all of them hold the same text."""
        digest = hashlib.sha256(text.encode()).digest()
        mine = torch.frombuffer(bytearray(digest), dtype=torch.uint8).to(self._device)
        theirs = [torch.empty_like(mine) for _ in range(self.ranks)]
        dist.all_gather(theirs, mine, group=self._group)
        if any(not torch.equal(mine, other) for other in theirs):
            raise InvalidValue(argument, text, "the same on every member of the process group")

    def agrees(self, model: nn.Module) -> bool:
        """Whether all members hold the same parameters, bit for bit."""
        digest = hashlib.sha256()
        for parameter in model.parameters():
            digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        try:
            self.require_same("model", digest.hexdigest())
        except InvalidValue:
            return False
        return True

    def wait(self) -> None:
        """Return when all members have come this far."""
        dist.barrier(group=self._group)


def join(model: nn.Module, plan: Plan, *, group: Any = None) -> Team:
    """Make this process a member of the run; call it on every member, then ``make_private``.

    The process group must exist (``torchrun`` and ``torch.distributed.init_process_group``; gloo
    on CPUs, nccl on GPUs). All members must hold the same plan and a model of the same shape;
    then they get the leader's parameters. The model is the bare module: a
    ``DistributedDataParallel`` would average gradients before they are clipped.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise NotApplicable(
            "there is no process group: call torch.distributed.init_process_group first, for "
            "example in a script that torchrun starts"
        )
    require_bare(model)
    if not isinstance(plan, Plan):
        raise InvalidValue("plan", plan, "a Plan")
    team = Team(group=group)
    team.require_same("plan", plan.content_hash)
    team.require_same("model", _outline(model))
    team.synchronise(model)
    return team


def _outline(model: nn.Module) -> str:
    named = [*model.named_parameters(), *model.named_buffers()]
    return repr([(name, tuple(one.shape), one.dtype, one.requires_grad) for name, one in named])


def _by_kind(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for one in tensors:
        kinds.setdefault((one.dtype, one.device), []).append(one)
    return list(kinds.values())


@torch.no_grad()
def _write_back(tensors: Sequence[Tensor], flat: Tensor) -> None:
    pieces = torch.split(flat, [one.numel() for one in tensors])
    for one, piece in zip(tensors, pieces, strict=True):
        one.copy_(piece.view(one.shape))


_log = logging.getLogger("discreet.learn.dpsgd")

T = TypeVar("T")
State = tuple[dict[str, Tensor], dict[str, Any]]


@final
class Members:
    """All processes of a run; of one process, if there is no team.

    Every method is called by all members, in the same order.
    """

    def __init__(self, team: Team | None) -> None:
        self._team = team

    @property
    def leads(self) -> bool:
        """Whether this member charges the ledger, writes the files and shows the progress."""
        return self._team is None or self._team.leads

    @contextmanager
    def fail_together(self) -> Iterator[None]:
        """Either all members get through the body, or all of them raise."""
        if self._team is None:
            yield
            return
        try:
            yield
        except Exception as error:
            known = isinstance(error, DiscreetError)
            self._team.gather(f"{type(error).__name__}: {error}" if known else type(error).__name__)
            raise
        for rank, text in enumerate(self._team.gather("")):
            if text:
                raise PlanViolation(f"member {rank} of the run has refused: {text}")

    def broadcast_from_leader(self, make: Callable[[], T]) -> T:
        """What the leader makes, plain values; if it raises, all members do."""
        if self._team is None:
            return make()
        made: T | None = None
        with self.fail_together():
            if self.leads:
                made = make()
        text = self._team.from_leader(json.dumps(made).encode())
        told: T = json.loads(text)
        return told

    def state(self, state: State | None) -> State | None:
        """The leader's tensors and notes, if it has any."""
        if self._team is None:
            return state
        notes = self.broadcast_from_leader(lambda: None if state is None else state[1])
        if notes is None:
            return None
        packed = b"" if state is None else to_bytes(_copy_tensors(state[0]))
        return from_bytes(self._team.from_leader(packed)), notes

    def agree(self, facts: Mapping[str, object]) -> None:
        """Raise on all members unless all hold the same facts; the facts are not shown."""
        if self._team is None:
            return
        told = [json.loads(text) for text in self._team.gather(json.dumps(dict(facts)))]
        for name in facts:
            if any(one.get(name) != told[0].get(name) for one in told):
                raise InvalidValue(
                    name, "not the same on all members", "one for all members of the run"
                )

    def largest(self, counts: Mapping[str, int]) -> dict[str, int]:
        """For each name the largest count that a member has."""
        if self._team is None:
            return dict(counts)
        told = [json.loads(text) for text in self._team.gather(json.dumps(dict(counts)))]
        return {name: max(one.get(name, 0) for one in told) for name in set().union(*told)}

    def require_on_leader(self, argument: str, *, given: bool) -> None:
        """Raise on all members if some have an argument that the leader lacks."""
        if self._team is None:
            return
        flags = [text == "given" for text in self._team.gather("given" if given else "")]
        if any(flags) and not flags[0]:
            raise InvalidValue(
                argument, None, "what another member was given: only that of the leader counts"
            )

    def begin(self, model: nn.Module) -> None:
        """All members start from the leader's parameters."""
        if self._team is not None:
            self._team.synchronise(model)

    def synchronise_models(self, model: nn.Module) -> None:
        """All members end with the leader's model.

        They hold the same bits, except where the arithmetic of their machines differs.
        """
        if self._team is None:
            return
        if not self._team.agrees(model):
            _log.warning("the members' models differ, by rounding; all get the leader's")
        with announce_writes(list(model.parameters())):
            self._team.synchronise(model)


def _copy_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies: safetensors refuses tensors that share memory."""
    return {name: one.detach().cpu().contiguous().clone() for name, one in tensors.items()}
