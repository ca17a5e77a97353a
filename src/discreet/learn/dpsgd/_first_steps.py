"""What is looked at only while the first steps of a run are taken, because it costs time.

Only the optimizer may change parameters, with gradients that were clipped and made noisy. A module
that writes statistics of its batch into a parameter (codebooks, embeddings with ``max_norm``) or a
buffer publishes them without noise. The probe of :func:`~discreet.learn.dpsgd.check_isolation`
looks for that on made-up inputs; here the real passes are looked at.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any, NamedTuple, final

import torch
import torch.utils.checkpoint
from torch import nn
from torch._C._functorch import peek_interpreter_stack

from discreet.errors import PlanViolation
from discreet.learn.dpsgd._requirements import refuse_compiled
from discreet.learn.dpsgd._written import bits

CHECKPOINTED = (
    "torch.utils.checkpoint, with use_reentrant=True or False, runs layers again inside the "
    "backward pass, where the gradients of single examples cannot be recorded. Call the layers "
    "plainly; batches(..., max_physical=...) bounds the memory of a step instead"
)
_CHECKPOINT_FILE = torch.utils.checkpoint.__file__


def refuse_several_passes(writes: Collection[str]) -> None:
    """Raise if buffers change with every pass, and a step takes several of them.

    How many it takes depends on who was drawn, so the buffers would tell.
    """
    if writes:
        raise PlanViolation(
            f"max_physical: every training pass changes {', '.join(sorted(writes))}, so the model "
            "would tell in how many pieces the batches came, which is private. Give no "
            "max_physical, or keep that state still (eval() of its module)"
        )


class _Print(NamedTuple):
    """A mark of a tensor's contents that costs no memory: how often written, sum of its bits.

    Writes through ``.data`` are not counted by torch; the sum shows them.
    """

    version: int
    bits: int


@final
class StateWatch:
    """Compares parameters and buffers before and after the passes of a batch.

    ``allowed`` names buffers that were seen to change alike whatever the examples are; ``None``
    allows all buffers, where the caller has vouched for them. Parameters are never allowed.
    While a batch is open, calls of modules in places where they cannot be recorded are refused
    by name: inside ``torch.utils.checkpoint``, the backward pass, ``torch.vmap`` and compiled code.
    ``by_engine`` says whether the engine itself is running a module example by example.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        allowed: Collection[str] | None,
        by_engine: Callable[[], bool] | None = None,
    ) -> None:
        self._model = model
        self._allowed = allowed
        self._by_engine = by_engine
        self._before: dict[str, _Print] | None = None
        self._handles = [
            module.register_forward_pre_hook(_CallGuard(self, name))
            for name, module in model.named_modules()
        ]

    @property
    def is_open(self) -> bool:
        """Whether a batch is being looked at."""
        return self._before is not None

    @property
    def by_engine(self) -> bool:
        """Whether it is the engine that calls modules now."""
        return self._by_engine is not None and self._by_engine()

    def start(self) -> None:
        """A batch begins."""
        self._before = self._prints()

    def judge(self) -> None:
        """Raise if the passes since :meth:`start` wrote into the model."""
        before, self._before = self._before, None
        if before is None:
            return
        parameters = {name for name, _ in self._model.named_parameters()}
        for name, after in self._prints().items():
            if before.get(name) == after:
                continue
            is_parameter = name in parameters
            if not is_parameter and (self._allowed is None or name in self._allowed):
                continue
            owner = name.rpartition(".")[0]
            kind = type(self._model.get_submodule(owner)).__name__
            raise PlanViolation(
                f"the {'parameter' if is_parameter else 'buffer'} {name} was written to during a "
                f"training pass, by or around {owner or 'the model itself'} ({kind}): what it "
                "holds of the examples would be released without noise. Only the optimizer may "
                "change the model"
            )

    def forget(self) -> None:
        """The batch was given up."""
        self._before = None

    def remove(self) -> None:
        """Look no more."""
        self.forget()
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _prints(self) -> dict[str, _Print]:
        named = [*self._model.named_parameters(), *self._model.named_buffers()]
        return {name: _Print(one._version, bits(one)) for name, one in named}


@final
class _CallGuard:
    """A forward hook of every module; that of a copy does nothing."""

    needs_no_inner_calls = True  # where the outermost module is called, its parts are

    def __init__(self, watch: StateWatch | None, name: str) -> None:
        self._watch = watch
        self._name = name

    def __call__(self, module: nn.Module, _: object) -> None:
        if self._watch is None or not self._watch.is_open:
            return
        if not module.training or self._watch.by_engine:
            return
        refuse_compiled()
        # Before the look at gradients: the reentrant variant disables them in its forward pass.
        if _is_checkpointed():
            raise PlanViolation(
                f"{self._name or 'the model'} ({type(module).__name__}): {CHECKPOINTED}"
            )
        if not torch.is_grad_enabled():
            return
        where = ""
        if torch._C._current_graph_task_id() != -1:
            where = "inside the backward pass"
        elif peek_interpreter_stack() is not None:
            where = "inside torch.vmap or another transform of torch.func"
        if where:
            raise PlanViolation(
                f"{self._name or 'the model'} ({type(module).__name__}) was called {where}, where "
                "the gradients of single examples cannot be recorded: call it plainly"
            )

    def __deepcopy__(self, memo: object) -> _CallGuard:
        return _CallGuard(None, self._name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _CallGuard, (None, self._name)


def _is_checkpointed() -> bool:
    """Whether a function of torch.utils.checkpoint is under way in this thread."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == _CHECKPOINT_FILE:
            return True
        frame = frame.f_back
    return False
