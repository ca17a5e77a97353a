"""What looks for mistakes in a private loop: the forward pass, the model's parts, its contents.

Only the optimizer may change parameters, with gradients that were clipped and made noisy. A module
that writes statistics of its batch into a parameter (codebooks, embeddings with ``max_norm``) or a
buffer publishes them without noise. The probe of :func:`~discreet.learn.dpsgd.check_isolation`
looks for that on made-up inputs; here the real passes and what is between them are looked at.
"""

from __future__ import annotations

import importlib
import secrets
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from operator import attrgetter, is_
from types import FrameType
from typing import Any, NamedTuple, Protocol, final
from weakref import WeakKeyDictionary, WeakSet
from weakref import ref as weak

import numpy as np
import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch._C._functorch import peek_interpreter_stack
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from discreet.errors import PlanViolation
from discreet.learn.dpsgd._lineage import FromBatch, Lineage
from discreet.learn.dpsgd._losses import check_reduction
from discreet.learn.dpsgd._step import OpenBatch, Step, Watch

# What compiles Python frames at this moment, if anything does. Where torch does not tell, nothing
# is refused: the engine is right inside of compiled code too, only slow.
_compiling: Callable[[], object] = getattr(
    importlib.import_module("torch._C._dynamo.eval_frame"),
    "get_eval_frame_callback",
    lambda: None,
)


def refuse_compiled() -> None:
    """Raise if this is called from inside a function or module of ``torch.compile``."""
    # While code is being compiled only the first is true, and what is compiled is to raise, which
    # sends it back to plain Python; there the second is true.
    if torch.compiler.is_dynamo_compiling() or _compiling() is not None:
        raise PlanViolation(
            "the model was called inside of code that torch.compile has compiled: the layers at "
            "work could not be recorded one by one. Call the model itself"
        )


# Called from C for every module and every parameter: a loop in Python would take thrice as long.
_values = dict.values
_is_trained = attrgetter("requires_grad")


@final
class MembershipWatch(Watch):
    """Guards against parameters that join or leave later: gradual unfreezing, adapters, new groups.

    A parameter that the plan does not know gets plain gradients, without clipping and noise, and
    another optimizer could use them. A look costs some fifty nanoseconds for each parameter.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._groups = [list(group["params"]) for group in optimizer.param_groups]
        self._parameters = list(model.parameters())
        self._tables: list[dict[str, Any]] = []
        for module in model.modules():
            self._tables += [module._parameters, module._modules]
        self._held = list(chain.from_iterable(map(_values, self._tables)))
        self._trained = list(map(_is_trained, self._parameters))

    def require_same_groups(self) -> None:
        """Raise unless the optimizer holds the very parameters that it held."""
        groups = [group["params"] for group in self._optimizer.param_groups]
        alike = list(map(len, groups)) == list(map(len, self._groups))
        if not alike or not all(map(is_, chain(*groups), chain(*self._groups))):
            raise PlanViolation("the optimizer's parameters were changed after it was wrapped")

    def close(self, batch: OpenBatch) -> bool:
        """Raise if the optimizer would move other parameters."""
        self.require_same_groups()
        return True

    def require_same_parts(self) -> None:
        """Raise unless the model has the parts that it had, before they are used."""
        found = list(chain.from_iterable(map(_values, self._tables)))
        if len(found) != len(self._held) or not all(map(is_, found, self._held)):
            raise PlanViolation(
                "a module or a parameter of the model was added, exchanged or removed after the "
                "model was put under the plan: its gradients would be neither clipped nor noisy. "
                "detach(), change the model and make a new plan"
            )
        if list(map(_is_trained, self._parameters)) != self._trained:
            raise PlanViolation(
                "a parameter of the model was frozen or unfrozen after the model was put under "
                "the plan, which trains a fixed list of parameters; detach() first"
            )


@final
class ForwardWatch(Watch):
    """Guards against calls of the model that no plan covers.

    A forgotten ``eval()``, so that ``model(x)`` trains outside of a batch; a ``collate`` that gives
    two views of each example; autocast; ``torch.compile``; another thread. As a forward hook
    it sees every call in training mode. The examples are on one of ``axes``. ``lineage`` knows
    which tensors are of the batch; the model is given them without their marks. A copy of the
    model is left alone.
    """

    def __init__(
        self,
        model: nn.Module,
        step: Step,
        lineage: Lineage,
        membership: MembershipWatch,
        *,
        axes: tuple[int, ...],
    ) -> None:
        self._hooks: Any = model._forward_pre_hooks
        self._step = step
        self._axes = axes
        self._lineage = lineage
        self._membership = membership
        self.handle = model.register_forward_pre_hook(_ForwardHook(self), with_kwargs=True)

    def open(self, batch: OpenBatch) -> None:
        """Have hooks of others come before this one: they see what is marked."""
        self._hooks.move_to_end(self.handle.id)

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Return the arguments of a call without marks, if it may be made."""
        refuse_compiled()
        batch = self._step.batch
        if batch is None:
            raise PlanViolation(
                "a forward pass in training mode outside of private.batches(...): gradients of "
                "such a pass are not covered by the plan. Call model.eval() or use "
                "torch.no_grad() to look at the model, or detach() to end private training"
            )
        self._step.require_thread()
        self._membership.require_same_parts()
        with torch._C.DisableTorchFunction():  # sizes only: nothing that a mode needs to see
            self._check_rows(batch.rows, args, kwargs)
        return self._lineage.unwrap(args, kwargs)

    def _check_rows(self, rows: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if (
            len(args) == 1
            and not kwargs
            and type(args[0]) in (Tensor, FromBatch)
            and args[0].shape[:1] == (rows,)
        ):
            return
        found = False
        for one in _tensors_in(args if not kwargs else (args, kwargs)):
            shape = one.shape
            fits = any(axis < len(shape) and shape[axis] == rows for axis in self._axes)
            found |= fits
            if not fits and shape and one.is_floating_point():
                found = False
                break
        if not found:
            raise PlanViolation(
                "the model was given inputs that do not have the rows of this batch, one for each "
                "example (times the plan's augmentations): what a row adds could not be told to "
                "belong to one example. Let collate return one row for each example, in "
                "order; several views of an example need Plan(augmentations=...)"
            )


@final
class _ForwardHook:
    """The hook of a :class:`ForwardWatch`; that of a copy does nothing."""

    def __init__(self, watch: ForwardWatch | None) -> None:
        self._watch = watch

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Any] | None:
        if self._watch is None or not module.training or not torch.is_grad_enabled():
            return None
        return self._watch.check(args, kwargs)

    def __deepcopy__(self, memo: object) -> _ForwardHook:
        return _ForwardHook(None)

    def __reduce__(self) -> tuple[Any, ...]:
        return _ForwardHook, (None,)


def _tensors_in(values: Any) -> Iterator[Tensor]:
    """The tensors in plain containers; what other objects hold is theirs to lay out."""
    for value in values.values() if type(values) is dict else values:
        if isinstance(value, Tensor):
            yield value
        elif type(value) in (tuple, list, dict):
            yield from _tensors_in(value)


CHECKPOINTED = (
    "torch.utils.checkpoint runs layers again inside the backward pass, where the gradients of "
    "single examples cannot be recorded unless the record takes part: give it use_reentrant=False "
    "and context_fn=dpsgd.checkpoint_contexts. batches(..., max_physical=...) bounds the memory of "
    "a step too"
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
class ReductionWatch(Watch):
    """Guards against totals in which one example changes the weight of the others.

    ``loss.backward()`` of a mean that is weighted by classes, masked, scaled for mixed precision
    or accumulation, or of another reduction than the one that was declared.
    """

    def backward(self, loss: Tensor, batch: OpenBatch) -> None:
        """Raise unless a total is, by its graph, what was declared."""
        if not batch.is_ours:
            check_reduction(loss, declared=batch.reduction, rows=batch.rows)


@final
class StateWatch(Watch):
    """Guards against passes that write into the model: codebooks, ``max_norm``, counters.

    It compares parameters and buffers before and after the passes of the first steps. ``allowed``
    names buffers that were seen to change alike whatever the examples are; ``None``
    allows all buffers, where the caller has vouched for them. Parameters are never allowed.
    While a batch is open, calls of modules in places where they cannot be recorded are refused
    by name: inside ``torch.utils.checkpoint``, the backward pass, ``torch.vmap`` and compiled code.
    ``by_engine`` says whether the engine itself is running a module example by example, or takes
    part in a checkpoint.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        allowed: Collection[str] | None,
        by_engine: Callable[[], bool] = lambda: False,
    ) -> None:
        self._model = model
        self._allowed = allowed
        self.by_engine = by_engine
        self._before: dict[str, _Print] | None = None
        self._handles: list[Any] = []

    @property
    def is_open(self) -> bool:
        """Whether a batch is being looked at."""
        return self._before is not None

    def open(self, batch: OpenBatch) -> None:
        """Note what the model holds."""
        if not self._handles:
            self._handles = [
                module.register_forward_pre_hook(_CallGuard(self, name))
                for name, module in self._model.named_modules()
            ]
        self._before = self._prints()

    def close(self, batch: OpenBatch) -> bool:
        """Raise if the passes wrote into the model."""
        before, self._before = self._before or {}, None
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
        return not (batch.last and batch.rows > 1)

    def remove(self) -> None:
        """Look no more."""
        self._before = None
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
        if not module.training or self._watch.by_engine():
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


_PIECE = 1 << 18
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_HOOKS_OF_OURS = 2
_WATCHES: WeakSet[WriteWatch] = WeakSet()


def bits(one: Tensor) -> int:
    """The sum of a tensor's contents, taken as integers: exact, in one pass, without a copy."""
    held = one.detach()
    on_host = held.device.type == "cpu"
    if held.dtype is torch.float32 and on_host and held.layout is torch.strided:
        flat = held.numpy().reshape(-1)  # the short way, for most parameters
        # In pairs: half as many additions.
        return int(np.add.reduce(flat.view(np.int64 if flat.size % 2 == 0 else np.int32)))
    if held.layout is not torch.strided or held.is_quantized:
        return held._version
    if held.is_complex():
        held = torch.view_as_real(held)
    if held.is_floating_point() or held.dtype is torch.bool:
        held = held.view(_INTEGERS[held.element_size()])
    if on_host:
        return int(np.add.reduce(held.numpy().reshape(-1), dtype=np.int64))
    # In pieces, because torch makes a copy in 64 bits of what it adds up.
    pieces = torch.split(held.reshape(-1), _PIECE)
    return sum(int(piece.sum(dtype=torch.int64).item()) for piece in pieces)


@final
class LayoutWatch(Watch):
    """Guards against a model that begins to mix or reorder its examples after the trial.

    Mixup that a schedule turns on, layers that are thawed by ``train()``, sorting from a certain
    step on. A look tries out three made-up examples, in the batch and one by one, in the state that
    the model is in. It is made before a step is clipped whose sequence of calls or train flags was
    not seen before, in one of 64 steps that are drawn in secret, and before a certificate is
    written. Only those that depend on no example are stated: ``looked_at``. ``look()`` raises if
    something is wrong, and says whether the model could be tried out.
    """

    def __init__(
        self,
        model: nn.Module,
        look: Callable[[], bool],
        *,
        calls_of: Callable[[], int],
        looked_at: list[int],
    ) -> None:
        self._look = look
        self._calls_of = calls_of
        self._modules = list(model.modules())
        self._flags = {bytes([True] * len(self._modules))}  # those of the trial
        self._calls: set[int] = set()
        self._is_drawn = False
        self.looked_at = looked_at

    def open(self, batch: OpenBatch) -> None:
        """Draw whether this step is to be looked at."""
        self._is_drawn = draw_look()
        if not self._calls and batch.step not in self.looked_at:
            self.looked_at.append(batch.step)  # the trial was just made

    def close(self, batch: OpenBatch) -> bool:
        """Look at the model if this step was drawn, or differs from those before."""
        flags, calls = bytes(one.training for one in self._modules), self._calls_of()
        is_new = flags not in self._flags or (bool(self._calls) and calls not in self._calls)
        self._flags.add(flags)
        self._calls.add(calls)
        if (self._is_drawn or is_new) and self._look() and self._is_drawn and batch.last:
            self.looked_at.append(batch.step)
        return True

    def look_in_the_end(self) -> dict[str, Any]:
        """What a certificate is to state, after one more look."""
        at_the_end = self._look()
        return {
            "looked_at_in_steps": list(self.looked_at),
            "looked_at_in_the_end": at_the_end,
            "other_steps": "not checked",
        }


def draw_look() -> bool:
    """Whether a step is looked at: one of 64, in secret."""
    return secrets.randbelow(64) == 0


class _Seal(NamedTuple):
    """What a model and its optimizer hold."""

    trained: list[int]
    frozen: list[int]
    buffers: dict[str, int]
    state: list[Tensor]
    versions: list[int]


@final
class WriteWatch(Watch):
    """Guards against changes of model and optimizer between steps: clamps, hooks, checkpoints.

    After each step the bits of all parameters and buffers are added up, which shows writes through
    ``.data`` too, and for the state of the optimizer it is noted which tensors it holds and how
    often torch counted a write to them. Before the next step, and when a certificate is written,
    this is compared. The gradients are looked at once more after all hooks of the user have run.
    What differs was written by something else: the steps in which that happened are counted, and
    the certificate states them. Whether a write was harmless, as that of a clamp, cannot be seen.

    ``allowed()`` names buffers that passes may change, ``None`` allows all of them. ``note()`` is
    called whenever something else has changed.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        trained: Sequence[Tensor],
        *,
        allowed: Callable[[], Collection[str] | None],
        note: Callable[[], None],
    ) -> None:
        self._optimizer = optimizer
        self._allowed = allowed
        self._note = note
        self._trained = list(trained)
        known = set(map(id, trained))
        self._frozen = [one for one in model.parameters() if id(one) not in known]
        self._tables = [
            (f"{name}." if name else "", module._buffers) for name, module in model.named_modules()
        ]
        self._seal: _Seal | None = None
        self._gradients: list[tuple[Tensor, Tensor, int]] = []
        self._bits: list[int] | None = None
        self._last = optimizer.register_step_pre_hook(self._before_optimizer)
        self._first = optimizer.register_step_post_hook(self._after_optimizer)
        self.handles = [self._last, self._first]
        self._changes_own = not type(optimizer).__module__.startswith("torch.optim")
        _WATCHES.add(self)

    def seal(self) -> None:
        """Take what is there now for what the plan has left."""
        self._seal = self._taken()

    def check(self) -> None:
        """Note it if something has changed since the last step."""
        before = self._seal
        if before is None:
            return
        now = self._taken()
        if (
            now.trained != before.trained
            or now.frozen != before.frozen
            or any(before.buffers.get(name) != value for name, value in now.buffers.items())
            or now.versions != before.versions
            or not all(map(_is, now.state, before.state))
        ):
            self._note()
            self._seal = now  # it is noted once

    def open(self, batch: OpenBatch) -> None:
        """See to it that hooks of others do not come after this one."""
        self._gradients = []
        before: Any = self._optimizer._optimizer_step_pre_hooks
        before.move_to_end(self._last.id)
        after: Any = self._optimizer._optimizer_step_post_hooks
        after.move_to_end(self._first.id, last=False)

    def give(self, gradients: Sequence[Tensor]) -> None:
        """The noisy gradients are where the optimizer finds them."""
        self._gradients = [
            (parameter, gradient, gradient._version)
            for parameter, gradient in zip(self._trained, gradients, strict=True)
        ]
        # Torch does not count what is written through .data; most loops have no hooks at all.
        hooks = self._optimizer._optimizer_step_pre_hooks
        looks = self._changes_own or len(hooks) > _HOOKS_OF_OURS
        self._bits = [bits(one) for one in gradients] if looks else None
        if next(reversed(hooks)) != self._last.id:
            self._note()  # a hook that will run after the last look

    def _before_optimizer(self, *_: object) -> None:
        if not all(
            parameter.grad is gradient and gradient._version == version
            for parameter, gradient, version in self._gradients
        ) or (
            self._gradients
            and self._bits is not None
            and [bits(gradient) for _, gradient, _ in self._gradients] != self._bits
        ):
            self._note()

    def _after_optimizer(self, *_: object) -> None:
        if self._gradients and self._seal is not None:
            # Nothing but the trained parameters and the state is the optimizer's to change.
            self._seal = self._seal._replace(
                trained=[bits(one) for one in self._trained], **self._state()
            )

    def abandon(self) -> None:
        """A step was given up: the optimizer may have moved already."""
        self._after_optimizer()
        self._gradients = []

    def remove(self) -> None:
        """Look no more at gradients; what was left by the last step stays known."""
        self._gradients = []

    def shares(self, parameters: Iterable[Tensor]) -> bool:
        """Whether one of the parameters is trained here."""
        known = set(map(id, self._trained))
        return any(id(one) in known for one in parameters)

    def _taken(self) -> _Seal:
        allowed = self._allowed()
        buffers = {
            prefix + name: bits(buffer)
            for prefix, table in self._tables
            for name, buffer in (() if allowed is None else table.items())
            if buffer is not None and allowed is not None and prefix + name not in allowed
        }
        trained = [bits(one) for one in self._trained]
        return _Seal(trained, [bits(one) for one in self._frozen], buffers, **self._state())

    def _state(self) -> dict[str, Any]:
        held = [
            value
            for values in self._optimizer.state.values()
            for value in values.values()
            if isinstance(value, Tensor)
        ]
        return {"state": held, "versions": [one._version for one in held]}


def _is(one: object, other: object) -> bool:
    return one is other


@contextmanager
def announce_writes(parameters: Sequence[Tensor]) -> Iterator[None]:
    """Write into parameters what is a function of released ones only, as an average is."""
    watches = [one for one in _WATCHES if one.shares(parameters)]
    for watch in watches:
        watch.check()
    yield
    for watch in watches:
        watch.seal()


class Wrapped(Protocol):
    """A model under a plan, as far as others need to know of it."""

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer that the plan knows."""

    def owns(self, parameter: torch.Tensor) -> bool:
        """Whether the plan trains this parameter."""


_LIVE: WeakSet[Any] = WeakSet()
_THEIRS: WeakKeyDictionary[Optimizer, weak[Wrapped]] = WeakKeyDictionary()
_UNRELATED: WeakKeyDictionary[Optimizer, list[int]] = WeakKeyDictionary()


def claim(wrapped: Wrapped) -> None:
    """From now on no other optimizer may change the parameters of a plan."""
    _LIVE.add(wrapped)
    _THEIRS[wrapped.optimizer] = weak(wrapped)
    _UNRELATED.clear()
    _watch_all_optimizers()


def release(wrapped: Wrapped) -> None:
    """The parameters of a plan are free again."""
    _LIVE.discard(wrapped)
    _THEIRS.pop(wrapped.optimizer, None)


def plans_in_force() -> list[Wrapped]:
    """All models under a plan in this process."""
    return list(_LIVE)


_watching = False


def _watch_all_optimizers() -> None:
    global _watching  # noqa: PLW0603 - torch's hook is global, so its installation is
    if not _watching:
        register_optimizer_step_pre_hook(_refuse_strangers)
        _watching = True


def _refuse_strangers(optimizer: Optimizer, *_: object) -> None:
    plan = _THEIRS.get(optimizer)
    if not _LIVE or (plan is not None and plan() is not None):
        return
    held = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    if _UNRELATED.get(optimizer) == held:
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if any(wrapped.owns(parameter) for wrapped in _LIVE):
                raise PlanViolation(
                    "a second optimizer tried to change parameters that are trained under a plan"
                )
    _UNRELATED[optimizer] = held
