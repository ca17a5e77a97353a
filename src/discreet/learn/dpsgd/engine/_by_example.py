"""Modules without rules: one copy of the parameters for every example, through ``torch.func``.

The module runs once under ``vmap``, each example with its own copy (a view, no memory) of the
module's parameters; the usual backward pass then leaves each example's gradient at its copy.
That needs memory for one gradient per example, and is right for any module that treats
examples separately, randomness included. Where ``vmap`` cannot follow the module (control flow
that depends on data), its examples run one by one.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from discreet.errors import DiscreetError, InvalidValue, NotApplicable
from discreet.learn.dpsgd._tensors import leaves_behind
from discreet.learn.dpsgd.engine._layout import UnknownOrder, declared_axis
from discreet.learn.dpsgd.engine._recorder import NoRule, Recorder, own_leaf

_log = logging.getLogger("discreet.learn.dpsgd")


@final
class _Routed:
    """The forward call of a module while it is recorded.

    A copy of the module, in memory or in a file, gets the module's own forward call: it is not
    recorded, and trains as if the engine did not exist.
    """

    def __init__(
        self, call: Callable[..., Any], module: nn.Module, own: Callable[..., Any]
    ) -> None:
        self._call = call
        self._module = module
        self.own = own

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(self._module, self.own, *args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        if isinstance(self.own, MethodType) and self.own.__self__ is self._module:
            return _bound, (self.own.__func__, self._module)
        return _same, (self.own,)


def _bound(function: Callable[..., Any], module: nn.Module) -> MethodType:
    return MethodType(function, module)


def _same(value: Any) -> Any:
    return value


@final
class _Bare(nn.Module):
    """A module without its own hooks: they ran once, on the whole batch."""

    def __init__(self, module: nn.Module, own: Callable[..., Any]) -> None:
        super().__init__()
        self.module = module
        self._own = own

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._own(*args, **kwargs)


@final
class BlackBoxes:
    """Runs the forward calls of a recording, module by module where rules do not suffice."""

    def __init__(self, model: nn.Module, recorder: Recorder) -> None:
        self._model = model
        self._recorder = recorder
        self._names = {id(module): name for name, module in model.named_modules()}
        self._watched = [
            module for module in model.modules() if module is model or is_watched(module)
        ]
        self._opaque: set[int] = set()
        self._looked_at: set[int] = set()
        self._installed: list[tuple[nn.Module, Any]] = []
        self._inside = False

    @property
    def inside(self) -> bool:
        """Whether a module is being run example by example at this moment."""
        return self._inside

    def install(self) -> None:
        """Route the forward calls of watched modules through here until :meth:`uninstall`."""
        for module in self._watched:
            call = self._root_forward if module is self._model else self._forward
            own = module.forward
            self._installed.append((module, module.__dict__.get("forward")))
            module.__dict__["forward"] = _Routed(call, module, own)

    def uninstall(self) -> None:
        """Give the modules their own forward calls back."""
        for module, before in self._installed:
            if before is None:
                module.__dict__.pop("forward", None)
            else:
                module.__dict__["forward"] = before
        self._installed = []

    def _root_forward(
        self, module: nn.Module, own: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        if self._inside or not module.training or not torch.is_grad_enabled():
            return own(*args, **kwargs)
        self._recorder.admit_inputs(args, kwargs)
        with self._recorder:
            return self._forward(module, own, *args, **kwargs)

    def _forward(
        self, module: nn.Module, own: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        if self._inside or not self._model.training or not torch.is_grad_enabled():
            return own(*args, **kwargs)
        return self._recorded(module, own, args, kwargs)

    def _recorded(self, module: nn.Module, own: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if id(module) not in self._opaque:
            try:
                result = own(*args, **kwargs)
                reason = self._first_look(module, result)
                if reason is None:
                    return result
            except (NoRule, UnknownOrder) as missing:
                reason = str(missing)
            self._opaque.add(id(module))
            _log.warning(
                "%s (%s): %s; its per-example gradients come through torch.func",
                self._names[id(module)] or "the model",
                type(module).__name__,
                reason,
            )
        self._inside = True
        try:
            with torch._C.DisableTorchFunction():
                result, axis = self._run_per_example(module, own, args, kwargs)
                self._recorder.admit(result, axis=axis)
                return result
        finally:
            self._inside = False

    def _first_look(self, module: nn.Module, result: Any) -> str | None:
        """Find parameters that acted unseen (in an autograd.Function), the first time only."""
        if id(module) in self._looked_at:
            return None
        self._looked_at.add(id(module))
        names = sorted(
            {
                name
                for leaf in leaves_behind(result)
                if (source := self._recorder.source_of(leaf)) is not None
                for name in source.root_names()
            }
        )
        return f"something other than a torch function uses {', '.join(names)}" if names else None

    def _run_per_example(
        self, module: nn.Module, own: Callable[..., Any], args: Any, kwargs: Any
    ) -> tuple[Any, int]:
        """Return what the module gives, and the axis of the examples in it."""
        rows = self._recorder.axes.rows
        bare = _Bare(module, own)
        copies = self._copies(module, rows)
        if rows == 0:
            empty = {name: copy.new_empty(copy.shape[1:]) for name, copy in copies.items()}
            for value in empty.values():
                own_leaf(value)
            return torch.func.functional_call(bare, empty, args, kwargs), 0
        flat, spec = pytree.tree_flatten((args, kwargs))
        flat = [self._shared_row(value) for value in flat]
        axes = [self._axis(module, value) for value in flat]
        varying = [value for value, axis in zip(flat, axes, strict=True) if axis is not None]
        in_dims = tuple(axis for axis in axes if axis is not None)
        if not in_dims:
            raise NotApplicable(
                f"{type(module).__name__} has no rule, and none of its inputs has an axis of the "
                "examples"
            )
        out_axis = in_dims[0]

        def single(parameters: dict[str, Tensor], *examples: Tensor) -> Any:
            given = iter(examples)
            values = [
                value if axis is None else next(given).unsqueeze(axis)
                for value, axis in zip(flat, axes, strict=True)
            ]
            inputs, named = pytree.tree_unflatten(values, spec)
            result = torch.func.functional_call(bare, parameters, inputs, named)
            return pytree.tree_map_only(Tensor, lambda value: value.squeeze(out_axis), result)

        try:
            with warnings.catch_warnings():
                # That torch loops inside vmap for some operation is no news: see the log note.
                warnings.filterwarnings("ignore", message="There is a performance drop")
                run = torch.func.vmap(
                    single, in_dims=(0, *in_dims), out_dims=out_axis, randomness="different"
                )
                return run(copies, *varying), out_axis
        except DiscreetError:
            raise
        except (RuntimeError, IndexError) as reason:
            # Not its words: they may hold a value of an example.
            _log.warning(
                "%s: vmap cannot follow it, so its examples run one by one (%s)",
                type(module).__name__,
                type(reason).__name__,
            )
        try:
            return one_by_one(single, copies, varying, in_dims, out_axis), out_axis
        except DiscreetError:
            raise
        except (RuntimeError, IndexError) as reason:
            failure = type(reason).__name__
        # Out here, where it has no other error behind it.
        raise RuntimeError(
            f"{type(module).__name__}: its forward pass raised {failure} when it was run example "
            "by example; the words are withheld, because they may hold values of an example"
        )

    def _copies(self, module: nn.Module, rows: int) -> dict[str, Tensor]:
        """One copy of each recorded parameter for every row, as leaves that keep gradients."""
        copies = {}
        for name, parameter in module.named_parameters():
            source = self._recorder.source_of(parameter)
            if source is not None:
                copy = own_leaf(parameter.detach().expand(rows, *parameter.shape))
                self._recorder.on_gradient(copy, _keep)
                source.leaves.append((copy, 0))
                source.used("torch.func")
                copies[f"module.{name}"] = copy
        return copies

    def _axis(self, module: nn.Module, value: object) -> int | None:
        """Return the axis of examples of an input, or None for one that all of them share."""
        recorder = self._recorder
        if not isinstance(value, Tensor) or value.ndim == 0 or recorder.is_constant(value):
            return None
        axes = recorder.axes
        if axes.rows > 1:
            axis = axes.folds.axis(value)
            if axis < 0 and module is self._model:
                raise axes.wrong(value.shape, "an input", 0)
            if axis < 0:  # the module around this one can still be run example by example
                raise UnknownOrder("an input", value.shape)
            if axis:
                return axis
        try:
            axis = axes.find(value, leading=value.ndim, site="an input")
        except (InvalidValue, UnknownOrder):
            return None
        return axis if value.shape[axis] == axes.rows else None

    def _shared_row(self, value: Any) -> Any:
        """One row of a constant that repeats it for every example, as a first state does."""
        rows = self._recorder.axes.rows
        if (
            rows > 1
            and isinstance(value, Tensor)
            and value.ndim > 1
            and value.shape[0] == rows
            and self._recorder.is_constant(value)
            and torch.equal(value, value[:1].expand_as(value))
        ):
            return value[:1]
        return value


def _keep(_: Tensor) -> None:
    """What arrives at a leaf is kept by autograd itself."""


def one_by_one(
    single: Callable[..., Any],
    copies: dict[str, Tensor],
    varying: Sequence[Tensor],
    in_dims: Sequence[int],
    out_axis: int,
) -> Any:
    """Do what ``vmap`` would do, in a loop."""
    names = list(copies)
    columns = [copy.unbind(0) for copy in copies.values()]
    columns += [value.unbind(axis) for value, axis in zip(varying, in_dims, strict=True)]
    results = [
        single(dict(zip(names, row, strict=False)), *row[len(names) :])
        for row in zip(*columns, strict=True)
    ]
    flat = [pytree.tree_flatten(result) for result in results]
    parts = [
        torch.stack(values, dim=out_axis) if isinstance(values[0], Tensor) else values[0]
        for values in zip(*(leaves for leaves, _ in flat), strict=True)
    ]
    return pytree.tree_unflatten(parts, flat[0][1])


def is_watched(module: nn.Module) -> bool:
    """Whether the forward calls of a module go through :class:`BlackBoxes`."""
    if declared_axis(module) is not None:
        return True
    own = any(p.requires_grad for p in module.parameters(recurse=False))
    return own and type(module) not in _WITH_RULES


_WITH_RULES = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
    nn.Embedding,
    nn.EmbeddingBag,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
)
