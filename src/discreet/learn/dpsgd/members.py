"""A trainer's run in several processes: what one of them does for all, and all must agree on.

The leader alone draws batches, charges the ledger and writes files. Whatever it may refuse, or
any other member may, is found out before the charge, and raises on all of them: a member that
waits for one that has failed would wait for ever.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, final

from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from discreet.errors import DiscreetError, InvalidValue, PlanViolation
from discreet.learn.dpsgd.written import announced

if TYPE_CHECKING:
    from discreet.learn.dpsgd.distributed import ProcessTeam

__all__ = ["Members"]

_log = logging.getLogger("discreet.learn.dpsgd")

T = TypeVar("T")
State = tuple[dict[str, Tensor], dict[str, Any]]


@final
class Members:
    """All processes of a run; of one process, if there is no team.

    Every method is called by all members, in the same order.
    """

    def __init__(self, team: ProcessTeam | None) -> None:
        self._team = team

    @property
    def leads(self) -> bool:
        """Whether this member charges the ledger, writes the files and shows the progress."""
        return self._team is None or self._team.leads

    @contextmanager
    def together(self) -> Iterator[None]:
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

    def told(self, make: Callable[[], T]) -> T:
        """What the leader makes, plain values; if it raises, all members do."""
        if self._team is None:
            return make()
        made: T | None = None
        with self.together():
            if self.leads:
                made = make()
        text = self._team.from_leader(json.dumps(made).encode())
        told: T = json.loads(text)
        return told

    def state(self, state: State | None) -> State | None:
        """The leader's tensors and notes, if it has any."""
        if self._team is None:
            return state
        notes = self.told(lambda: None if state is None else state[1])
        if notes is None:
            return None
        packed = b"" if state is None else to_bytes(_apart(state[0]))
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

    def lead_with(self, argument: str, *, given: bool) -> None:
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

    def settle(self, model: nn.Module) -> None:
        """All members end with the leader's model.

        They hold the same bits, except where the arithmetic of their machines differs.
        """
        if self._team is None:
            return
        if not self._team.agreed(model):
            _log.warning("the members' models differ, by rounding; all get the leader's")
        with announced(list(model.parameters())):
            self._team.synchronise(model)


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies: safetensors refuses tensors that share memory."""
    return {name: one.detach().cpu().contiguous().clone() for name, one in tensors.items()}
