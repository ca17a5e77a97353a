"""Per-example norms and clipped sums from one forward and one backward pass.

Modules without rules: one copy of the parameters for every example, through ``torch.func``.

The module runs once under ``vmap``, each example with its own copy (a view, no memory) of the
module's parameters; the usual backward pass then leaves each example's gradient at its copy.
That needs memory for one gradient per example, and is right for any module that treats
examples separately, randomness included. Where ``vmap`` cannot follow the module (control flow
that depends on data), its examples run one by one.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType, MethodType
from typing import Any, NoReturn, final

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from discreet import _validate
from discreet.errors import DiscreetError, InvalidValue, NotApplicable
from discreet.learn.dpsgd._checkpointing import watch_checkpoints
from discreet.learn.dpsgd.engine import (
    _broadcast,
    _convolution,
    _embedding,
    _linear,
    _normalization,
    _sequences,
)
from discreet.learn.dpsgd.engine._axes import Axes
from discreet.learn.dpsgd.engine._forms import (
    Contribution,
    make_leaf,
    require_unchanged,
    total_squared_norms,
    wide_kind,
)
from discreet.learn.dpsgd.engine._layout import (
    UnknownOrder,
    contains_sequence_first,
    declared_axis,
)
from discreet.learn.dpsgd.engine._recorder import (
    NoRule,
    Recorder,
    Rule,
    is_under_autocast,
    leaves_behind,
    refuse_autocast,
)

_log = logging.getLogger("discreet.learn.dpsgd")

RULES: dict[Any, Rule] = {
    **_broadcast.RULES,
    **_convolution.RULES,
    **_embedding.RULES,
    **_linear.RULES,
    **_normalization.RULES,
    **_sequences.RULES,
}

ALWAYS = _embedding.ALWAYS


@final
class GradientEngine:
    """Per-example gradient norms and weighted sums, by book-keeping.

    Between :meth:`expect` and :meth:`forget`, a forward call of the model in training mode
    with gradients enabled is recorded: its layers run on detached parameters, so the usual
    ``loss.backward()`` computes output gradients only and leaves every ``.grad`` alone. Then
    :meth:`squared_norms` and :meth:`clipped_sum` read what was recorded. Forward calls in
    evaluation mode or under ``no_grad`` are not touched, and outside of a recording the model
    is as it was.

    Guarantee: the clipped sum is ``sum_i w_i g_i`` for the given weights, where ``g_i`` is the
    gradient of what example ``i`` adds to the loss, and the squared norms are those of the
    same ``g_i``, up to rounding. An example of weight 0 adds exactly nothing, even if its
    gradient is not finite. A gradient that would reach a parameter around the record raises
    during the backward pass. That examples do not influence one another inside the model is
    not this class's to know: see :func:`~discreet.learn.dpsgd.check_isolation`.

    ``groups`` lists names of parameters that are clipped together, each trainable parameter
    once; ``None`` is one group. ``batch_axis`` declares where the examples are (0 or 1) in
    models whose layers take (time, examples, features); ``None`` takes the first axis, except
    in a model with sequence-first layers, where an axis that cannot be told raises.
    ``before_gradient`` is called whenever a gradient arrives, before anything of it is kept.

    >>> model = nn.Linear(4, 1)
    >>> engine = GradientEngine(model)
    >>> with engine.recording(3):
    ...     model(torch.ones(3, 4)).sum().backward()
    ...     norms = engine.squared_norms()
    ...     total = engine.clipped_sum(torch.ones(1, 3))
    >>> norms.tolist(), total["bias"].tolist(), model.bias.grad
    ([[5.0, 5.0, 5.0]], [3.0], None)
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        groups: Sequence[Sequence[str]] | None = None,
        batch_axis: int | None = None,
        before_gradient: Callable[[], None] = lambda: None,
    ) -> None:
        if batch_axis is not None:
            batch_axis = _validate.integer("batch_axis", batch_axis, at_least=0, at_most=1)
        named = dict(model.named_parameters())
        self._parameters = {name: p for name, p in named.items() if p.requires_grad}
        self._frozen = [p for p in named.values() if not p.requires_grad]
        if not self._parameters:
            raise InvalidValue("model", type(model).__name__, "at least one trainable parameter")
        self._groups = self._checked_groups(groups)
        self._model = model
        if batch_axis is None:
            batch_axis = declared_axis(model)
        axes = Axes(declared=batch_axis, sequence_first=contains_sequence_first(model))
        self._recorder = Recorder(self._parameters, axes, before_gradient)
        self._recorder.rules = RULES
        self._recorder.always = ALWAYS
        self._boxes = BlackBoxes(model, self._recorder)
        self._open = False
        self._scale = 1.0
        self._settled: list[Contribution | None] | None = None
        self._norms: Tensor | None = None
        self._guards = [
            p.register_hook(self._guard(name))  # type: ignore[no-untyped-call]
            for name, p in self._parameters.items()
        ]

    def _checked_groups(self, groups: Sequence[Sequence[str]] | None) -> list[list[int]]:
        """Return the positions of the trainable parameters of each group."""
        names = list(self._parameters)
        if groups is None:
            return [list(range(len(names)))]
        listed = [name for group in groups for name in group]
        if sorted(listed) != sorted(names) or not all(groups):
            odd = sorted(set(listed) ^ set(names)) or listed
            raise InvalidValue(
                "groups", odd, "every trainable parameter in exactly one group, and no empty group"
            )
        return [[names.index(name) for name in group] for group in groups]

    def _guard(self, name: str) -> Any:
        return lambda _: self._recorder.leak([name])

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        """The trainable parameters by name, as they were when the engine was made."""
        return MappingProxyType(self._parameters)

    @property
    def report(self) -> dict[str, str]:
        """For each parameter the rules that handled it so far, or ``"not used yet"``."""
        return {
            source.name: ", ".join(sorted(source.rules)) or "not used yet"
            for source in self._recorder.parameters
        }

    @property
    def heard(self) -> bool:
        """Whether a backward pass reached the open recording."""
        if not self._open:
            return False
        return any(part is not None for part in self._contributions())

    @property
    def in_checkpoint(self) -> bool:
        """Whether a part of the model is running that may run again in the backward pass."""
        return self._recorder.in_checkpoint

    @property
    def is_half(self) -> bool:
        """Whether the open recording has met half precision."""
        return self._recorder.is_half

    @property
    def calls(self) -> int:
        """A mark of the calls that the open recording has seen: function, rank, parameter."""
        return self._recorder.calls

    @property
    def runs_by_example(self) -> bool:
        """Whether the engine itself is now running a module under ``torch.func``."""
        return self._boxes.inside

    def expect(self, batch_size: int, *, rows_per_unit: int = 1) -> None:
        """Open a recording of ``batch_size`` units, each of ``rows_per_unit`` rows.

        The gradient of a unit is the mean of the gradients of its rows, which follow one
        another: rows ``b * k ... b * k + k - 1`` belong to unit ``b``. A recording that is
        still open is dropped.
        """
        if type(batch_size) is not int or batch_size < 0:
            batch_size = _validate.integer("batch_size", batch_size, at_least=0)
        if type(rows_per_unit) is not int or rows_per_unit < 1:
            _validate.integer("rows_per_unit", rows_per_unit, at_least=1)
        for parameter in self._frozen:
            if parameter.requires_grad:
                raise InvalidValue(
                    "model",
                    type(self._model).__name__,
                    "no parameter unfrozen since the engine was made",
                )
        if self._open:
            self.forget()
        # Here too, because forget() may have been interrupted.
        self._settled, self._norms, self._scale = None, None, 1.0
        self._recorder.open(batch_size, rows_per_unit)
        self._boxes.install()
        self._open = True

    @contextmanager
    def recording(self, batch_size: int, *, rows_per_unit: int = 1) -> Iterator[None]:
        """Open a recording, and forget it at the end."""
        self.expect(batch_size, rows_per_unit=rows_per_unit)
        try:
            yield
        finally:
            self.forget()

    def forget(self) -> None:
        """Drop the recording; the model is as it was before."""
        if self._open:
            self._open = False
            self._settled, self._norms = None, None
            self._boxes.uninstall()
            self._recorder.close()

    def detach(self) -> None:
        """Forget, and remove all that was attached to the model."""
        self.forget()
        for guard in self._guards:
            guard.remove()
        self._guards = []

    def _contributions(self) -> list[Contribution | None]:
        if not self._open:
            raise InvalidValue("recording", "closed", "expect(batch_size) before the forward pass")
        if self._settled is None:
            self._recorder.settle()
            self._settled = [
                source.contributions[0] if source.contributions else None
                for source in self._recorder.parameters
            ]
        return self._settled

    def squared_norms(self, *, scale: float = 1.0) -> Tensor:
        """Return the squared gradient norms, shape (groups, batch).

        ``scale`` undoes what the loss did to its examples: with a mean over the batch, its
        size. It then holds for :meth:`clipped_sum` too. Gradients that are not finite have norms
        that are not finite. After this the recording takes no further backward pass.
        """
        if type(scale) is not float or not 0 < scale < math.inf:
            scale = _validate.real("scale", scale, above=0)
        refuse_autocast()
        self._scale = scale / self._recorder.repeats
        parts = self._contributions()
        some = next(iter(self._parameters.values()))
        rows = []
        with torch.no_grad():
            for group in self._groups:
                used = [part for at in group if (part := parts[at]) is not None]
                if used and self._recorder.units:
                    rows.append(total_squared_norms(used, self._scale * self._scale))
                else:
                    kind = wide_kind(some.dtype)
                    rows.append(some.new_zeros(self._recorder.units, dtype=kind))
            table = rows[0].unsqueeze(0) if len(rows) == 1 else torch.stack(rows)
        self._norms = table
        return table

    def clipped_sum(self, weights: Tensor) -> dict[str, Tensor]:
        """Return ``sum_i weights[group, i] g_i`` for each parameter; weights (groups, batch).

        An example of weight 0 is left out exactly, whatever its gradient was.
        """
        sums = {
            name: torch.zeros_like(p, dtype=wide_kind(p.dtype))
            for name, p in self._parameters.items()
        }
        self.add_clipped_sum(weights, list(sums.values()))
        return sums

    def add_clipped_sum(self, weights: Tensor, totals: Sequence[Tensor]) -> None:
        """Add the clipped sum to ``totals``, one tensor for each trainable parameter in order.

        Saves a pass over the parameters where the sum is to be added to something, as to noise.
        """
        refuse_autocast()
        units = self._recorder.units
        if weights.shape != (len(self._groups), units):
            raise InvalidValue(
                "weights", tuple(weights.shape), f"the shape {(len(self._groups), units)}"
            )
        parts = self._contributions()
        if not units:
            return
        removed = self._mask_removed(weights)
        for part in parts:
            require_unchanged(part)
        with torch.no_grad():
            for at, group in enumerate(self._groups):
                row = weights[at]
                for place in group:
                    part = parts[place]
                    if part is None:
                        continue
                    if removed is not None:
                        part = part.without(removed[at])
                    total = totals[place]
                    if row.dtype != total.dtype:
                        row = row.to(total.dtype)
                    part.add_to(total, row, self._scale)

    def _mask_removed(self, weights: Tensor) -> Tensor | None:
        """Mask the examples that weight 0 alone would not remove: 0 times infinity is not 0.

        As long as no norm is infinite or NaN, all gradients are finite.
        """
        if self._norms is None:
            self.squared_norms()
        assert self._norms is not None
        if math.isfinite(self._norms.sum().item()):
            return None
        return (weights == 0) & ~torch.isfinite(self._norms).all(0)


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
        # Containers whose forward calls are routed once something in them had no rule.
        watched = set(map(id, self._watched))
        self._containers = {
            id(module)
            for module in model.modules()
            if id(module) not in watched
            and type(module) not in _WITH_RULES
            and any(parameter.requires_grad for parameter in module.parameters())
        }
        self._opaque: set[int] = set()
        self._inner: set[int] = set()
        self._looked_at: set[int] = set()
        self._installed: list[tuple[nn.Module, Any]] = []
        self._inside = False

    @property
    def inside(self) -> bool:
        """Whether a module is being run example by example at this moment."""
        return self._inside

    def install(self) -> None:
        """Route the forward calls of watched modules through here until :meth:`uninstall`."""
        self._route(self._watched)

    def _route(self, modules: Sequence[nn.Module]) -> None:
        for module in modules:
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
        self._recorder.is_half |= is_under_autocast()
        with self._recorder, watch_checkpoints("record", self._recorder.checkpointed):
            return self._forward(module, own, *args, **kwargs)

    def _forward(
        self, module: nn.Module, own: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        if self._inside or not self._model.training or not torch.is_grad_enabled():
            return own(*args, **kwargs)
        return self._record(module, own, args, kwargs)

    def _record(self, module: nn.Module, own: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if id(module) not in self._opaque:
            try:
                result = own(*args, **kwargs)
                reason = self._first_look(module, result)
                if reason is None:
                    return result
            except (NoRule, UnknownOrder) as missing:
                reason = str(missing)
            inner = [one for one in module.modules() if id(one) in self._containers]
            if inner:  # the smallest module that can be run by example is to catch it
                self._containers -= set(map(id, inner))
                self._inner |= set(map(id, inner))
                self._watched += inner
                self._route(inner)
                return self._record(module, own, args, kwargs)
            self._refuse_inner(module, args, kwargs, reason)
            self._opaque.add(id(module))
            _log.warning(
                "%s (%s): %s; its per-example gradients come through torch.func",
                self._names[id(module)] or "the model",
                type(module).__name__,
                reason,
            )
        if id(module) in self._inner:
            self._refuse_inner(module, args, kwargs, "its inputs changed")
        self._inside = True
        try:
            with torch._C.DisableTorchFunction(), watch_checkpoints("record", _refuse_checkpoint):
                result, axis = self._run_per_example(module, own, args, kwargs)
                if id(module) in self._inner:
                    unseen = self._first_look(module, result)
                    if unseen is not None:  # a parameter of the modules around it
                        raise UnknownOrder(unseen, torch.Size())
                self._recorder.admit(result, axis=axis)
                return result
        finally:
            self._inside = False

    def _refuse_inner(self, module: nn.Module, args: Any, kwargs: Any, reason: str) -> None:
        """Raise for the module around a container whose inputs cannot be cut into examples.

        What it is given must be numbers and tensors that all examples share or that have one row
        for each: others could not be handed to it example by example.
        """
        if id(module) not in self._inner:
            return
        for value in pytree.tree_leaves((args, kwargs)):
            if isinstance(value, Tensor):
                shared = value.ndim == 0 or self._recorder.is_constant(value)
                if self._rows_each(value) or shared:
                    continue
                if self._axis(module, value) is None:
                    raise UnknownOrder(reason, value.shape)
            elif not isinstance(value, bool | int | float | str | None):
                raise UnknownOrder(reason, torch.Size())

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
                make_leaf(value)
            return torch.func.functional_call(bare, empty, args, kwargs), 0
        flat, spec = pytree.tree_flatten((args, kwargs))
        each = {at: found for at, value in enumerate(flat) if (found := self._rows_each(value))}
        if each:
            return self._run_folded(module, bare, copies, flat, spec, each), 0
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

        return self._run_one_by_one(module, single, copies, varying, in_dims, out_axis), out_axis

    def _run_folded(
        self,
        module: nn.Module,
        bare: nn.Module,
        copies: dict[str, Tensor],
        flat: list[Any],
        spec: Any,
        each: dict[int, int],
    ) -> Any:
        """Run a module on several rows of each example at once, as windows of images are."""
        rows = self._recorder.axes.rows
        count = next(iter(each.values()))
        for at, value in enumerate(flat):
            varies = isinstance(value, Tensor) and self._recorder.is_data(value)
            if varies and each.get(at) != count:
                raise UnknownOrder("an input", value.shape)
        varying = [flat[at].unflatten(0, (rows, count)) for at in each]

        def single(parameters: dict[str, Tensor], *examples: Tensor) -> Any:
            given = iter(examples)
            values = [next(given) if at in each else value for at, value in enumerate(flat)]
            inputs, named = pytree.tree_unflatten(values, spec)
            return torch.func.functional_call(bare, parameters, inputs, named)

        def join(value: Tensor) -> Tensor:
            if value.ndim < 2 or value.shape[1] != count:
                raise UnknownOrder("an output", value.shape)
            whole = value.flatten(0, 1)
            self._recorder.axes.folds.place_together(whole)
            return whole

        found = self._run_one_by_one(module, single, copies, varying, (0,) * len(varying), 0)
        return pytree.tree_map_only(Tensor, join, found)

    def _rows_each(self, value: object) -> int:
        """How many rows of an input belong to each example, if several that lie together; or 0."""
        axes = self._recorder.axes
        if not isinstance(value, Tensor) or not axes.folds.known(value) or axes.folds.axis(value):
            return 0
        return value.shape[0] // axes.rows

    def _run_one_by_one(
        self,
        module: nn.Module,
        single: Callable[..., Any],
        copies: dict[str, Tensor],
        varying: Sequence[Tensor],
        in_dims: tuple[int, ...],
        out_axis: int,
    ) -> Any:
        try:
            with warnings.catch_warnings():
                # That torch loops inside vmap for some operation is no news: see the log note.
                warnings.filterwarnings("ignore", message="There is a performance drop")
                run = torch.func.vmap(
                    single, in_dims=(0, *in_dims), out_dims=out_axis, randomness="different"
                )
                return run(copies, *varying)
        except DiscreetError:
            raise
        except (RuntimeError, IndexError, ValueError) as reason:
            # Not its words: they may hold a value of an example.
            _log.warning(
                "%s: vmap cannot follow it, so its examples run one by one (%s)",
                type(module).__name__,
                type(reason).__name__,
            )
        try:
            return one_by_one(single, copies, varying, in_dims, out_axis)
        except DiscreetError:
            raise
        except (RuntimeError, IndexError, ValueError) as reason:
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
                copy = make_leaf(parameter.detach().expand(rows, *parameter.shape))
                self._recorder.on_gradient(copy, _keep)
                source.leaves.append((copy, 0))
                source.add_use("torch.func")
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
            if value.shape[axis] == axes.rows:
                return axis
        except (InvalidValue, UnknownOrder):
            axis = 0
        if module is not self._model and recorder.is_data(value) and value.shape[axis] != 1:
            # Rows of several examples, as in (rows * time, width): no example may see them all.
            raise UnknownOrder("an input", value.shape)
        return None

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


def _refuse_checkpoint() -> NoReturn:
    raise NotApplicable(
        "torch.utils.checkpoint inside of a module that has no rule and runs example by example "
        "(see the log): checkpoint that module as a whole, or call its parts plainly"
    )


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
