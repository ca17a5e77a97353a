"""Which models and optimizers can be trained privately, and which plans they were under before.

A second plan comes on top of what the first one cost, so a certificate states the sum. Which plans
a model was under, it says by a mark that goes where it goes. The mark is text: the plans as JSON,
by the ids of their runs. It is an attribute of the model and of every module in it that was
trained, so that copies and ``torch.save(model)`` take it along, and an entry in the first group of
the optimizer, so that its state dict does. Whoever calls ``model.state_dict()`` takes tensors only;
their first bytes are remembered in this process. A bare state dict of a model that is read in
another process has no mark.
"""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from discreet.errors import InvalidValue, PlanViolation, SchemaError
from discreet.learn.dpsgd._plan import Plan
from discreet.learn.dpsgd._watches import plans_in_force

GROUP_ENTRY = "discreet_plans"
_ATTRIBUTE = "_discreet_plans"
_ELEMENTS = 4096
_KINDS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_KNOWN: dict[bytes, str] = {}


def check_pair(model: object, optimizer: object) -> dict[str, nn.Parameter]:
    """The trainable parameters by name, if model and optimizer belong together."""
    require_bare(model)
    assert isinstance(model, nn.Module)
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
        if parameter.dtype not in _KINDS:
            raise InvalidValue(
                f"model.{name}", parameter.dtype, "float32, float64, bfloat16 or float16"
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
    for wrapped in plans_in_force():
        taken = [name for name, p in trainable.items() if wrapped.owns(p)]
        if taken or wrapped.optimizer is optimizer:
            raise PlanViolation(
                "this model or optimizer is under a plan already "
                f"({', '.join(taken[:3]) or 'optimizer'}); call detach() on the former first: "
                "a second plan is a second release and needs a charge of its own"
            )
    return trainable


def require_bare(model: object) -> None:
    """Refuse what shares a model among processes in its own way.

    A wrapper would average gradients before they are clipped. Under ``fully_shard`` the parameters
    that layers use are other tensors than those of the optimizer, made for each pass.
    """
    if not isinstance(model, nn.Module):
        raise InvalidValue("model", model, "a torch.nn.Module")
    bare = "the bare module, and team=discreet.learn.dpsgd.join(model, plan)"
    if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
        raise InvalidValue("model", type(model).__name__, bare)
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "placements"):
            raise InvalidValue(
                f"model.{name}",
                "sharded over processes (fully_shard, tensor parallelism)",
                f"whole parameters: {bare}. What single examples do to sharded parameters "
                "cannot be recorded; batches(..., max_physical=...) and checkpoint_contexts save "
                "memory instead",
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


def earlier_plans(model: nn.Module) -> tuple[Plan, ...]:
    """The plans that a model was trained under, as far as it shows."""
    return tuple(plans_of(model).values())


def plans_of(model: nn.Module, optimizer: Optimizer | None = None) -> dict[str, Plan]:
    """The plans that model and optimizer were under, by the ids of their runs."""
    groups = [] if optimizer is None else optimizer.param_groups
    texts = {group.get(GROUP_ENTRY) for group in groups}
    if _KNOWN:
        texts |= {_KNOWN.get(print_) for print_ in _prints(model.parameters())}
    return _marks_on(model, texts)


def _marks_on(model: nn.Module, texts: Iterable[str | None] = ()) -> dict[str, Plan]:
    found: dict[str, Plan] = {}
    on_modules = {module.__dict__.get(_ATTRIBUTE) for module in model.modules()}
    for text in sorted({*texts, *on_modules} - {None}, key=str):
        found |= read_plans(text)
    return found


def read_plans(document: object) -> dict[str, Plan]:
    """Plans by run, from the JSON of a mark or a saved state."""
    try:
        body = json.loads(document) if isinstance(document, str) else document
        if not isinstance(body, Mapping):
            raise TypeError
        return {str(run): Plan.from_json(plan) for run, plan in body.items()}
    except (TypeError, ValueError) as error:
        raise SchemaError(f"the mark of earlier plans on this model is damaged: {error}") from None


def write_plans(plans: Mapping[str, Plan]) -> dict[str, Any]:
    """What :func:`read_plans` reads."""
    return {run: plan.to_json() for run, plan in plans.items()}


def mark(model: nn.Module, optimizer: Optimizer | None, plans: Mapping[str, Plan]) -> str:
    """Have the model and its optimizer say which plans they were under, and no others."""
    text = json.dumps(write_plans(plans), sort_keys=True)
    for module in model.modules():
        module.__dict__.pop(_ATTRIBUTE, None)
        own = module.parameters(recurse=False)
        if plans and (module is model or any(one.requires_grad for one in own)):
            module.__dict__[_ATTRIBUTE] = text
    for group in () if optimizer is None else optimizer.param_groups:
        group.pop(GROUP_ENTRY, None)
    if optimizer is not None and plans:
        optimizer.param_groups[0][GROUP_ENTRY] = text
    return text


def mark_averages(model: nn.Module, plans: Mapping[str, Plan]) -> None:
    """Mark what ``AveragedModel`` of torch has made of a model: it was a copy before any step."""
    outline = _outline(model)
    # Every object refers to its class: far fewer than all objects of the process.
    for one in gc.get_referrers(*_with_subclasses(AveragedModel)):
        if not issubclass(type(one), AveragedModel) or "_modules" not in vars(one):
            continue
        if int(one.n_averaged) and _outline(one.module) == outline:
            mark(one, None, {**_marks_on(one), **plans})


def _with_subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _with_subclasses(below)


def _outline(model: nn.Module) -> list[Any]:
    return [(name, one.shape, one.dtype) for name, one in model.named_parameters()]


def require_alike(plan: Plan, earlier: Mapping[str, Plan]) -> None:
    """Raise if what the earlier plans cost cannot be added to what this one costs."""
    for before in earlier.values():
        if (before.relation, before.unit) != (plan.relation, plan.unit):
            raise PlanViolation(
                f"this model was under an earlier plan for one {before.unit} under "
                f"{before.relation.value!r}; this plan is for one {plan.unit} under "
                f"{plan.relation.value!r}, and the two losses cannot be added. Plan for the same "
                "unit and relation, or begin with a model that was under no plan"
            )


@final
class Remembering:
    """A hook on ``model.state_dict()``: what was read there is known again in this process.

    That of a copy does nothing.
    """

    def __init__(
        self, parameters: Sequence[Tensor], text_of: Callable[[], str | None] | None
    ) -> None:
        self._parameters = parameters
        self._text_of = text_of
        # Parameters that no step moves are as public as they were.
        self._before = set(_prints(parameters))

    def __call__(self, *_: object) -> None:
        text = None if self._text_of is None else self._text_of()
        if text is not None:
            for print_ in _prints(self._parameters):
                if print_ not in self._before:
                    _KNOWN[print_] = text

    def __deepcopy__(self, memo: object) -> Remembering:
        return Remembering([], None)

    def __reduce__(self) -> tuple[Any, ...]:
        return Remembering, ([], None)


def _prints(parameters: Iterable[Tensor]) -> Iterator[bytes]:
    for one in parameters:
        if one.numel():
            held = one.detach().reshape(-1)[:_ELEMENTS].cpu().contiguous()
            yield hashlib.sha256(held.view(torch.uint8).numpy().tobytes()).digest()
