"""Which models and optimizers can be trained privately, checked before anything else happens."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Protocol, final

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from discreet.errors import InvalidValue
from discreet.learn.dpsgd.refusals import PlanViolation

__all__ = ["ForwardGuard", "Wrapped", "check_pair", "claim", "release", "same_parameters"]


class Wrapped(Protocol):
    """A model under a plan, as far as others need to know of it."""

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer that the plan knows."""

    def owns(self, parameter: torch.Tensor) -> bool:
        """Whether the plan trains this parameter."""


_LIVE: weakref.WeakSet[Any] = weakref.WeakSet()
_UNRELATED: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()


def check_pair(model: object, optimizer: object) -> dict[str, nn.Parameter]:
    """The trainable parameters by name, if model and optimizer belong together."""
    if not isinstance(model, nn.Module):
        raise InvalidValue("model", model, "a torch.nn.Module")
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise InvalidValue(
            "model",
            "DistributedDataParallel",
            "the bare module, and team=discreet.learn.dpsgd.distributed.join(model, plan)",
        )
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
    _UNRELATED.clear()
    _watch_all_optimizers()


def release(wrapped: Wrapped) -> None:
    """The parameters of a plan are free again."""
    _LIVE.discard(wrapped)


def same_parameters(optimizer: Optimizer, known: list[int]) -> bool:
    """Whether no parameter was added to or taken from an optimizer's groups."""
    return [len(group["params"]) for group in optimizer.param_groups] == known


_watching = False


def _watch_all_optimizers() -> None:
    global _watching  # noqa: PLW0603 - torch's hook is global, so its installation is
    if not _watching:
        register_optimizer_step_pre_hook(_refuse_strangers)
        _watching = True


def _refuse_strangers(optimizer: Optimizer, *_: object) -> None:
    if not _LIVE or any(wrapped.optimizer is optimizer for wrapped in _LIVE):
        return
    count = sum(len(group["params"]) for group in optimizer.param_groups)
    if _UNRELATED.get(optimizer) == count:
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if any(wrapped.owns(parameter) for wrapped in _LIVE):
                raise PlanViolation(
                    "a second optimizer tried to change parameters that are trained under a plan"
                )
    _UNRELATED[optimizer] = count


@final
class ForwardGuard:
    """Refuses a training-mode forward outside of a batch; a copy of the model is left alone."""

    def __init__(self, allowed: Callable[[], bool] | None) -> None:
        self._allowed = allowed

    def __call__(self, module: nn.Module, _: object) -> None:
        if self._allowed is None or not module.training or not torch.is_grad_enabled():
            return
        if not self._allowed():
            raise PlanViolation(
                "a forward pass in training mode outside of private.batches(...): gradients of "
                "such a pass are not covered by the plan. Call model.eval() or use "
                "torch.no_grad() to look at the model, or detach() to end private training"
            )
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            raise PlanViolation(
                "a training pass under autocast: norms of gradients in half precision are off by "
                "up to a percent, and so would be the bound that the noise is made for"
            )

    def __deepcopy__(self, memo: object) -> ForwardGuard:
        return ForwardGuard(None)

    def __reduce__(self) -> tuple[Any, ...]:
        return ForwardGuard, (None,)
