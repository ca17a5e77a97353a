"""Which models and optimizers can be trained privately, checked before anything else happens."""

from __future__ import annotations

import importlib
import operator
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, Protocol, final

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from discreet.errors import InvalidValue, PlanViolation
from discreet.learn.dpsgd._lineage import FromBatch, Lineage
from discreet.learn.dpsgd._padding import PaddingWatch
from discreet.learn.dpsgd.engine._recorder import refuse_autocast


class Wrapped(Protocol):
    """A model under a plan, as far as others need to know of it."""

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer that the plan knows."""

    def owns(self, parameter: torch.Tensor) -> bool:
        """Whether the plan trains this parameter."""


_LIVE: weakref.WeakSet[Any] = weakref.WeakSet()
_THEIRS: weakref.WeakKeyDictionary[Optimizer, weakref.ref[Wrapped]] = weakref.WeakKeyDictionary()
_UNRELATED: weakref.WeakKeyDictionary[Optimizer, list[int]] = weakref.WeakKeyDictionary()


def check_pair(model: object, optimizer: object) -> dict[str, nn.Parameter]:
    """The trainable parameters by name, if model and optimizer belong together."""
    if not isinstance(model, nn.Module):
        raise InvalidValue("model", model, "a torch.nn.Module")
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise InvalidValue(
            "model",
            "DistributedDataParallel",
            "the bare module, and team=discreet.learn.dpsgd.join(model, plan)",
        )
    _check_transparent(model)
    if not isinstance(optimizer, Optimizer):
        raise InvalidValue("optimizer", optimizer, "a torch.optim.Optimizer")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InvalidValue(
            "optimizer", "LBFGS", "an optimizer of one gradient a step: closures read data again"
        )
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trainable:
        raise InvalidValue("model", type(model).__name__, "at least one trainable parameter")
    for name, parameter in trainable.items():
        if parameter.dtype not in (torch.float32, torch.float64):
            raise InvalidValue(
                f"model.{name}", parameter.dtype, "float32 or float64, for the sake of the norms"
            )
        if parameter.is_inference():
            raise InvalidValue(
                f"model.{name}",
                "made under torch.inference_mode()",
                "a parameter that torch keeps track of: make the model outside of it",
            )
    in_model = {id(p) for p in model.parameters()}
    in_optimizer = {id(p) for group in optimizer.param_groups for p in group["params"]}
    missing = [name for name, p in trainable.items() if id(p) not in in_optimizer]
    if missing:
        raise InvalidValue(
            "optimizer",
            missing,
            "every trainable parameter of the model; freeze the others with requires_grad_(False)",
        )
    if in_optimizer - in_model:
        raise InvalidValue(
            "optimizer",
            f"{len(in_optimizer - in_model)} foreign parameters",
            "parameters of this model only: others would be trained without privacy",
        )
    for wrapped in list(_LIVE):
        taken = [name for name, p in trainable.items() if wrapped.owns(p)]
        if taken or wrapped.optimizer is optimizer:
            raise PlanViolation(
                "this model or optimizer is under a plan already "
                f"({', '.join(taken[:3]) or 'optimizer'}); call detach() on the former first: "
                "a second plan is a second release and needs a charge of its own"
            )
    return trainable


def claim(wrapped: Wrapped) -> None:
    """From now on no other optimizer may change the parameters of a plan."""
    _LIVE.add(wrapped)
    _THEIRS[wrapped.optimizer] = weakref.ref(wrapped)
    _UNRELATED.clear()
    _watch_all_optimizers()


def release(wrapped: Wrapped) -> None:
    """The parameters of a plan are free again."""
    _LIVE.discard(wrapped)
    _THEIRS.pop(wrapped.optimizer, None)


def same_parameters(optimizer: Optimizer, known: Sequence[Sequence[Tensor]]) -> bool:
    """Whether an optimizer's groups hold the very parameters that they held."""
    groups = optimizer.param_groups
    if len(groups) != len(known):
        return False
    for group, expected in zip(groups, known, strict=True):
        held = group["params"]
        if len(held) != len(expected) or not all(map(operator.is_, held, expected)):
            return False
    return True


def refuse_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise if ``optimizer.step(...)``, whose first argument is the optimizer, got a closure."""
    if (len(args) > 1 or kwargs) and any(one is not None for one in (*args[1:], *kwargs.values())):
        raise PlanViolation("optimizer.step(closure): a closure would read the data again")


_STEP_FILE = Optimizer.profile_hook_step.__code__.co_filename


def is_inside_step_of(optimizer: Optimizer) -> bool:
    """Whether a pre-hook of ``optimizer.step()`` runs inside of another call of it.

    The stack tells what no counter can: a call that raised left no trace there.
    """
    calls = 0
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "wrapper" and code.co_filename == _STEP_FILE:
            calls += frame.f_locals.get("self") is optimizer
        frame = frame.f_back
    return calls > 1


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


def _check_transparent(model: nn.Module) -> None:
    """Refuse models whose layers cannot be watched at work."""
    for name, module in model.named_modules():
        compiled = getattr(module, "_compiled_call_impl", None) is not None
        if compiled or type(module).__name__ == "OptimizedModule":
            raise InvalidValue(
                f"model.{name}" if name else "model",
                "compiled by torch.compile",
                "the module itself: compiled code does not show the layers that are at work",
            )
        if isinstance(module, torch.jit.ScriptModule):
            raise InvalidValue(
                f"model.{name}" if name else "model",
                "a TorchScript module",
                "a module of Python code: scripted code does not show the layers that are at work",
            )
    for name, parameter in model.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise InvalidValue(
                f"model.{name}",
                "a parameter of a lazy module that has no shape yet",
                "a model that has seen one made-up batch, before the optimizer is made",
            )


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


@final
class ForwardGuard:
    """Refuses a training-mode forward outside of a batch, or of other rows than the batch has.

    ``rows_of`` gives the number of rows of the open batch, if there is one; the examples are on
    one of ``axes``. ``lineage`` knows which tensors are of the batch; the model is given them
    without their marks. A copy of the model is left alone.
    """

    def __init__(
        self,
        rows_of: Callable[[], int | None] | None,
        axes: tuple[int, ...] = (0,),
        lineage: Lineage | None = None,
    ) -> None:
        self._rows_of = rows_of
        self._axes = axes
        self._lineage = lineage
        self.padding: PaddingWatch | None = None

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Any] | None:
        if self._rows_of is None or not module.training or not torch.is_grad_enabled():
            return None
        refuse_compiled()
        rows = self._rows_of()
        if rows is None:
            raise PlanViolation(
                "a forward pass in training mode outside of private.batches(...): gradients of "
                "such a pass are not covered by the plan. Call model.eval() or use "
                "torch.no_grad() to look at the model, or detach() to end private training"
            )
        refuse_autocast()
        self._check_rows(rows, args, kwargs)
        if self.padding is not None:
            self.padding.judge(module, args, kwargs)
            self.padding = None
        return None if self._lineage is None else self._lineage.unwrap(args, kwargs)

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

    def __deepcopy__(self, memo: object) -> ForwardGuard:
        return ForwardGuard(None)

    def __reduce__(self) -> tuple[Any, ...]:
        return ForwardGuard, (None,)


def _tensors_in(values: Any) -> Iterator[Tensor]:
    """The tensors in plain containers; what other objects hold is theirs to lay out."""
    for value in values.values() if type(values) is dict else values:
        if isinstance(value, Tensor):
            yield value
        elif type(value) in (tuple, list, dict):
            yield from _tensors_in(value)
