"""Replace the layers that mix examples by layers that do not.

Batch normalisation computes its statistics over the batch: every example changes the output of
every other (S21's sensitivity is lost), and the running averages that it publishes with the
model are functions of private data that no noise protects. Group normalisation (Wu and He 2018)
computes the same kind of statistics inside one example, and the same way in training and in
inference. Instance normalisation is harmless except for running averages.

A model that was pretrained on public data can keep its public running averages instead:
:class:`FrozenBatchNorm` applies them as constants, in training and in inference.

What :func:`fix` does not know it leaves alone; :func:`check_isolation` has the last word.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import UninitializedParameter

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable

_MOST_GROUPS = 32
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


@final
@dataclass(frozen=True)
class Replacement:
    """One module that was replaced: its name, what it was, and what it is now."""

    module: str
    before: str
    after: str
    dropped: tuple[str, ...]

    def __str__(self) -> str:
        gone = f", dropping {', '.join(self.dropped)}" if self.dropped else ""
        return f"{self.module or 'the model itself'}: {self.before} -> {self.after}{gone}"


@final
class GroupNormThen(nn.GroupNorm):
    """Group normalisation, then the children in order, in place of a batch norm that had some."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # torch's name
        """Normalise and hand on."""
        return _through_children(self, super().forward(input))


def _through_children(module: nn.Module, value: Tensor) -> Tensor:
    for child in module.children():
        value = child(value)
    return value


@final
@dataclass(frozen=True, eq=False)
class Fixed:
    """A repaired copy of a model, and what was changed in it."""

    model: nn.Module
    changes: tuple[Replacement, ...]
    left: tuple[str, ...] = ()

    def explain(self) -> str:
        """One line for each change, and for each module that could not be replaced."""
        lines = [str(change) for change in self.changes] or ["nothing had to be replaced"]
        lines += [f"left as it is: {text}" for text in self.left]
        return "\n".join(lines)


@final
class FrozenBatchNorm(nn.Module):
    """Batch normalisation with constant statistics: in any mode what the original did in inference.

    ``running_mean`` and ``running_var`` keep their names in the state dict. They must come from
    public data, because they stay in the model as they are. Scale and shift can be trained.
    """

    running_mean: Tensor
    running_var: Tensor
    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(self, old: _BatchNorm) -> None:
        super().__init__()
        if old.running_mean is None or old.running_var is None:
            raise NotApplicable(
                f"{type(old).__name__}({old.num_features}) has no running statistics to freeze"
            )
        self.num_features, self.eps, self.affine = old.num_features, old.eps, old.affine
        self.register_parameter("weight", None)
        self.register_parameter("bias", None)
        self.register_buffer("running_mean", old.running_mean)
        self.register_buffer("running_var", old.running_var)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the channels (axis 1) by the constants."""
        shape = (-1,) + (1,) * (x.dim() - 2)
        normal = (x - self.running_mean.view(shape)) * torch.rsqrt(
            self.running_var + self.eps
        ).view(shape)
        if self.weight is not None and self.bias is not None:
            normal = normal * self.weight.view(shape) + self.bias.view(shape)
        return _through_children(self, normal)

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}, affine={self.affine}"


def fix(model: nn.Module, *, batch_norm: str = "group") -> Fixed:
    """Return a copy of ``model`` without batch statistics; the model itself is not touched.

    BatchNorm1d, 2d, 3d and SyncBatchNorm become GroupNorm with the same channels, ``eps`` and
    affine parameters (the very values, their ``requires_grad``, device and type); the number of
    groups is the largest divisor of the channels up to 32 that leaves every group at least 4
    channels, or 16 for BatchNorm1d, which may see plain vectors: a group of one or two numbers
    would lose them when normalised. InstanceNorm with running statistics becomes InstanceNorm
    without. Weights keep their names in the state dict; running statistics are dropped.

    With ``batch_norm="frozen"``, for a model that was pretrained on public data, batch
    normalisation becomes :class:`FrozenBatchNorm` and the model computes in training what it
    computes in inference. (Putting the layers into ``eval()`` mode does not last: the next
    ``model.train()`` undoes it.)

    Subclasses with a ``forward`` of their own are left alone and listed in ``left``.

    >>> fixed = fix(nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU()))
    >>> fixed.model[1]
    GroupNorm(16, 64, eps=1e-05, affine=True...)
    >>> print(fixed.explain())
    1: BatchNorm2d(64) -> GroupNorm(16, 64), dropping running_mean, running_var, ...
    """
    if not isinstance(model, nn.Module):
        raise InvalidValue("model", model, "a torch.nn.Module")
    _validate.one_of("batch_norm", batch_norm, ("group", "frozen"))
    parameters: list[tuple[str, object]] = list(model.named_parameters())
    lazy = [name for name, one in parameters if isinstance(one, UninitializedParameter)]
    if lazy:
        raise NotApplicable(
            f"{lazy[0]} is not initialised: run the model once on a made-up batch, then fix it"
        )
    copied = copy.deepcopy(model)
    changes: list[Replacement] = []
    left: list[str] = []
    # A module that is used in two places stays one module.
    made: dict[int, nn.Module] = {}
    for name, module in list(copied.named_modules(remove_duplicate=False)):
        if not isinstance(module, _BatchNorm | _InstanceNorm):
            continue
        if id(module) not in made:
            reason = _why_not(module)
            if reason:
                left.append(f"{name or 'the model itself'} ({type(module).__name__}), {reason}")
                continue
            replacement = _substitute(name, module, batch_norm == "frozen")
            if replacement is None:
                continue
            made[id(module)] = replacement
        new = made[id(module)]
        changes.append(_change(name, module, new))
        if not name:
            return Fixed(new, tuple(changes), tuple(left))
        copied.set_submodule(name, new)
    return Fixed(copied, tuple(changes), tuple(left))


def _why_not(module: nn.Module) -> str:
    known = next((one for one in _BATCH_NORMS + _INSTANCE_NORMS if isinstance(module, one)), None)
    if known is None:
        return "because its forward is not the one of torch"
    if type(module).forward is not known.forward and not _is_chain(module):
        return "because its forward is not the one of torch, nor that and its children in order"
    if nn.utils.parametrize.is_parametrized(module):
        return "because its parameters are parametrised"
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
        return "because hooks are attached to it"
    return ""


def _is_chain(module: nn.Module) -> bool:
    """Whether a batch normalisation computes torch's own and then its children, one by one.

    Tried out on numbers, in inference; timm's ``BatchNormAct2d`` is one.
    """
    if not isinstance(module, nn.BatchNorm2d) or not list(module.children()):
        return False
    tried = copy.deepcopy(module).cpu().double().eval()
    shape = (2, tried.num_features, 3, 3)
    given = torch.linspace(-3.0, 3.0, math.prod(shape), dtype=torch.float64).reshape(shape)
    try:
        with torch.no_grad():
            expected = _through_children(tried, nn.BatchNorm2d.forward(tried, given))
            return torch.equal(tried(given), expected)
    except (RuntimeError, TypeError, NotImplementedError):
        return False


def _substitute(name: str, module: _BatchNorm | _InstanceNorm, frozen: bool) -> nn.Module | None:
    if isinstance(module, _InstanceNorm):
        if not module.track_running_stats:
            return None
        kind = next(one for one in _INSTANCE_NORMS if isinstance(module, one))
        return _with_parameters(
            kind(module.num_features, eps=module.eps, affine=module.affine), module
        )
    if frozen:
        return _with_parameters(FrozenBatchNorm(module), module)
    channels = module.num_features
    vectors = isinstance(module, nn.BatchNorm1d)
    if vectors and channels < 2:
        raise NotApplicable(
            f"{name} ({type(module).__name__}) normalises a single number; inside one example "
            "nothing would remain of it, so it has no substitute: remove it"
        )
    groups = _groups(channels, at_least=16 if vectors else 4)
    norm: type[nn.GroupNorm] = GroupNormThen if list(module.children()) else nn.GroupNorm
    return _with_parameters(norm(groups, channels, eps=module.eps, affine=module.affine), module)


def _groups(channels: int, *, at_least: int) -> int:
    return max(
        groups
        for groups in range(1, min(_MOST_GROUPS, channels) + 1)
        if channels % groups == 0 and (groups == 1 or channels // groups >= at_least)
    )


def _with_parameters(new: nn.Module, old: nn.Module) -> nn.Module:
    """Move the very parameters and children over, so that ties, devices and flags are kept."""
    for key, parameter in old.named_parameters(recurse=False):
        new.register_parameter(key, parameter)
    for key, child in old.named_children():
        new.add_module(key, child)
    return new.train(old.training)


def _change(name: str, old: _BatchNorm | _InstanceNorm, new: nn.Module) -> Replacement:
    before = f"{type(old).__name__}({old.num_features})"
    after = f"{type(new).__name__}({old.num_features})"
    if isinstance(new, nn.GroupNorm):
        after = f"GroupNorm({new.num_groups}, {new.num_channels})"
    elif isinstance(old, _InstanceNorm):
        before += " with running statistics"
    kept = dict(new.named_buffers(recurse=False))
    dropped = [key for key, _ in old.named_buffers(recurse=False) if key not in kept]
    return Replacement(name, before, after, tuple(dropped))
