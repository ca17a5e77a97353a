"""Watches every torch call of a forward pass and takes over those that touch parameters.

A rule runs its operation on *detached* parameters, so that plain autograd computes output
gradients only (the product for the parameter's own gradient is never spent), and listens for
the gradient of the output. What is computed from parameters and constants alone becomes a
derived :class:`Source`. Data is what comes from the inputs of the model; every other tensor, be it
as long as the batch, is a constant that all examples share. An operation without a rule raises
:class:`NoRule`, and the module around it is run as a black box.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final
from weakref import ref

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from discreet.errors import InvalidValue, PlanViolation
from discreet.learn.dpsgd._tensors import tensors
from discreet.learn.dpsgd.engine._forms import (
    Contribution,
    Lookup,
    Outer,
    PerExample,
    merged,
)
from discreet.learn.dpsgd.engine._layout import KEEPING, REORDERED, SEQUENCES, Axes, flat
from discreet.learn.dpsgd.engine._pooling import FASTER

_DEVICES = ("cpu", "cuda", "mps", "xpu")


def refuse_autocast() -> None:
    """Raise where products would be of half precision, in passes, norms and sums alike."""
    if any(map(torch.is_autocast_enabled, _DEVICES)):
        raise PlanViolation(
            "a training step under autocast: norms of gradients in half precision are off by "
            "up to a percent, and so would be the bound that the noise is made for. Leave autocast "
            "out of the forward pass, backward() and optimizer.step()"
        )


@final
class Site:
    """One use of a source in a forward pass; its name is made only when it is needed."""

    __slots__ = ("count", "source")

    def __init__(self, source: Source, count: int) -> None:
        self.source = source
        self.count = count

    def __str__(self) -> str:
        return f"{', '.join(self.source.root_names())} (use {self.count})"


@final
class Source:
    """A parameter, or a tensor derived from parameters and constants (a slice, a product).

    The forward pass uses ``tensor``; no gradient of plain autograd ever reaches it. Its uses
    leave contributions, and those of a derived tensor are carried on to the parameters by the
    derivative of the derivation (``origin`` with ``parents``), example by example.
    """

    def __init__(
        self,
        tensor: Tensor,
        *,
        name: str = "",
        origin: Tensor | None = None,
        parents: tuple[Source, ...] = (),
        transposes: Source | None = None,
        repeats: Source | None = None,
    ) -> None:
        self.tensor = tensor
        self.name = name
        self.origin = origin
        self.parents = parents
        self.transposes = transposes
        self.repeats = repeats
        self.lookup_ids: Tensor | None = None
        self.row_copies: list[Tensor] = []
        self.contributions: list[Contribution] = []
        self.leaves: list[tuple[Tensor, int]] = []
        self.uses = 0
        self.rules: set[str] = set()

    def used(self, rule: str) -> Site:
        """Count and name one more use."""
        self.uses += 1
        if rule not in self.rules:
            self.note(rule)
        return Site(self, self.uses)

    def note(self, rule: str) -> None:
        """Remember which rules handled the parameters behind this tensor."""
        self.rules.add(rule)
        for parent in self.parents:
            parent.note(rule)

    def clear(self) -> None:
        """Forget the uses of one pass."""
        self.contributions = []
        self.leaves = []
        self.uses = 0

    def root_names(self) -> list[str]:
        """Names of the parameters behind this tensor."""
        if not self.parents:
            return [self.name]
        return sorted({name for parent in self.parents for name in parent.root_names()})

    def gather_leaves(self, units: int) -> None:
        """Turn gradients of per-example copies into contributions."""
        for leaf, axis in self.leaves:
            if leaf.grad is None:
                continue
            rows = leaf.grad.movedim(axis, 0)
            per_unit = rows.reshape(units, rows.shape[0] // units, *self.tensor.shape)
            values = per_unit.squeeze(1) if per_unit.shape[1] == 1 else per_unit.sum(1)
            self.contributions.append(PerExample(values))
        self.leaves.clear()

    def hand_to_parents(self, units: int) -> None:
        """Move the contributions of a derived tensor to what it was derived from."""
        for leaf in self.row_copies:
            if leaf.grad is not None and self.lookup_ids is not None:
                table = self.parents[0]
                rows = leaf.grad.reshape(units, -1, leaf.shape[-1])
                ids = self.lookup_ids.reshape(units, -1)
                table.contributions.append(
                    rows_looked_up(ids, PerExample(rows), table.tensor.shape)
                )
        self.row_copies.clear()
        if not self.contributions or not self.parents:
            return
        whole = merged(self.contributions)
        self.contributions = []
        if self.transposes is not None and isinstance(whole, Outer):
            target = self.transposes
            target.contributions.append(whole.transposed(target.tensor.shape))
            return
        if self.lookup_ids is not None:
            target = self.parents[0]
            target.contributions.append(rows_looked_up(self.lookup_ids, whole, target.tensor.shape))
            return
        assert self.origin is not None
        gradients = torch.autograd.grad(
            self.origin,
            [parent.tensor for parent in self.parents],
            grad_outputs=whole.per_example(),
            is_grads_batched=True,
            retain_graph=True,
            allow_unused=True,
        )
        for parent, values in zip(self.parents, gradients, strict=True):
            if values is not None:
                parent.contributions.append(PerExample(values))


def own_leaf(tensor: Tensor) -> Tensor:
    """Have a tensor collect gradients, as one of the engine's own leaves of the graph."""
    tensor.of_engine = True  # type: ignore[attr-defined]
    return tensor.requires_grad_()


def rows_looked_up(ids: Tensor, whole: Contribution, shape: torch.Size) -> Lookup:
    """Carry gradients of looked-up rows to their table.

    ``ids`` are (examples, places), or of any shape that all examples looked up alike.
    """
    values = whole.per_example()
    examples = values.shape[0]
    places = values[:1].numel() // shape[1]
    flat = ids.reshape(-1, places).expand(examples, places).reshape(-1)
    owner = torch.arange(examples, device=ids.device).repeat_interleave(places)
    return Lookup(owner, flat.long(), values.reshape(-1, shape[1]), examples=examples, shape=shape)


Rule = Callable[..., Any]


class NoRule(Exception):
    """An operation uses a parameter in a way that no rule covers."""

    def __init__(self, operation: object, names: Sequence[str]) -> None:
        self.operation = getattr(operation, "__name__", str(operation))
        self.names = list(names)
        super().__init__(f"no rule for {self.operation} on {', '.join(self.names)}")


class _FirstLayer(torch.autograd.Function):
    """Runs a call whose inputs need no gradient, and still hears the gradient of its output."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, call: Callable[[], Tensor], receive: Any) -> Tensor:  # noqa: ARG004
        ctx.receive = receive
        result = call()
        if result._is_view():  # of a temporary; as a view it could not be changed in place later
            result = torch.ops.aten._unsafe_view(result, result.shape)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:
        ctx.receive(gradient)
        return None, None, None


@final
class Recorder(TorchFunctionMode):
    """The record of one forward and backward pass."""

    def __init__(
        self,
        parameters: dict[str, torch.nn.Parameter],
        axes: Axes,
        before_gradient: Callable[[], None],
    ) -> None:
        super().__init__()
        self.axes = axes
        self.parameters = [Source(tensor, name=name) for name, tensor in parameters.items()]
        self._own = {id(source.tensor): source for source in self.parameters}
        self.sources: dict[int, Source] = self._own
        self.derived: list[Source] = []
        self._data: dict[int, ref[Tensor]] = {}
        self.rules: dict[Any, Rule] = {}
        self.always: frozenset[Rule] = frozenset()
        self._before_gradient = before_gradient
        self.units = 0
        self.repeats = 1
        self.generation = 0
        self.watching = False
        self.follows = True
        self._anchor = own_leaf(torch.zeros(()))

    def open(self, units: int, repeats: int) -> None:
        """Expect ``units * repeats`` rows; nothing of an earlier pass is left."""
        self._clear()  # close() may have been interrupted
        self.units, self.repeats = units, repeats
        self.axes.open(units * repeats)
        self.sources = self._own.copy()
        self.watching = self.follows = True

    def close(self) -> None:
        """Let go of everything recorded."""
        self._clear()

    def _clear(self) -> None:
        self.generation += 1
        for source in self.parameters:
            if source.uses or source.contributions or source.leaves:
                source.clear()
        self.sources = self._own
        self._data = {}
        self.derived = []
        self.watching = False

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        found = False
        data = False
        for value in (*args, *kwargs.values()) if kwargs else args:
            if isinstance(value, Tensor):
                if id(value) in self.sources:
                    found = True
                elif self.is_data(value):
                    data = True
            elif isinstance(value, list | tuple):
                for inner in value:
                    if isinstance(inner, Tensor):
                        if id(inner) in self.sources:
                            found = True
                        elif self.is_data(inner):
                            data = True
        if not found:
            if not data:
                return func(*args, **kwargs)
            result = FASTER.get(func, func)(*args, **kwargs)
            return self._made(func, args, kwargs, result)
        rule = self.rules.get(func)
        if rule is not None and (data or rule in self.always):
            folds = self.axes.folds
            if folds.any:
                for value in self.data_in(args, kwargs):
                    self.axes.in_order(value, getattr(func, "__name__", func))
            result = rule(self, func, *args, **kwargs)
            if data:
                self.admit(result)
                if self.follows and (folds.any or func in SEQUENCES or func in KEEPING):
                    folds.follow(
                        func, args, kwargs, self.data_in(args, kwargs), result, by_rule=True
                    )
            return result
        if not data:
            return self.derive(func, args, kwargs)
        raise NoRule(func, self.names_in(args, kwargs))

    def _made(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        """Note what a call made of data without parameters."""
        if func in BLANK or (func in CONTENT_OF_FIRST and not self.is_data(args[0])):
            return result
        if func is Tensor.__iter__:
            result = list(result)
        folds = self.axes.folds
        if isinstance(result, Tensor | list | tuple):
            self.admit(result)
            if self.follows:
                folds.follow(func, args, kwargs, self.data_in(args, kwargs), result)
        elif func is Tensor.__setitem__:
            if not self._is_known(args[0]):
                self._written(args)
            elif self.follows and isinstance(args[2], Tensor) and self.is_data(args[2]):
                target, axis = args[0], folds.axis(args[0])
                if not _leaves_axis(args[1], axis, target.ndim) or not self._covers(target):
                    self._reorder(target)
        if isinstance(result, Tensor) and args and (result is args[0] or "out" in kwargs):
            self._wrote_in_place(result, self.data_in(args, kwargs))
        return iter(result) if func is Tensor.__iter__ else result

    def _written(self, args: tuple[Any, ...]) -> None:
        """Take a constant into which data was written for data, with the axis that it got."""
        target, index, value = args
        self.admit(target)
        self._admit_base(target)
        axes = self.axes
        place = index[0] if isinstance(index, tuple) and index else index
        whole = _leaves_axis(index, 0, target.ndim)
        row_copies = isinstance(value, Tensor) and value.ndim and value.shape[0] == axes.rows
        if not row_copies or not self.is_data(value) or axes.folds.axis(value):
            self._reorder(target)
        elif whole and target.shape[0] == axes.rows:
            axes.folds.place(target, 0)
        elif isinstance(place, int) and target.ndim > 1 and target.shape[1] == axes.rows:
            axes.folds.place(target, 1)
        else:
            self._reorder(target)

    def _admit_base(self, view: Tensor) -> None:
        base = view._base
        if base is not None and id(base) not in self.sources and not self._is_known(base):
            self.admit(base)
            if not self._covers(view):
                self.axes.folds.place(base, REORDERED)

    def _wrote_in_place(self, target: Tensor, others: list[Tensor]) -> None:
        """Note what a call wrote into a tensor: a part of another one may be any of its rows."""
        if target._base is None:
            return
        self._admit_base(target)
        if self.follows and any(one is not target for one in others) and not self._covers(target):
            self._reorder(target)

    def _covers(self, view: Tensor) -> bool:
        """Whether a view has all examples of its base, in the same order."""
        base, folds = view._base, self.axes.folds
        if base is None:
            return True
        here, there = folds.axis(view), folds.axis(base)
        if min(here, there) < 0 or here >= view.ndim or there >= base.ndim:
            return False
        if not base.is_contiguous():
            return False
        first = (view.storage_offset() - base.storage_offset()) // max(base.stride(there), 1)
        return (
            view.shape[here] == base.shape[there]
            and view.stride(here) == base.stride(there)
            and first % max(base.shape[there], 1) == 0
        )

    def _reorder(self, target: Tensor) -> None:
        """Note that rows were written one by one, in whatever order, also for other views."""
        place = target.untyped_storage().data_ptr()
        for one in [target, *(known() for known in self._data.values())]:
            if one is not None and one.untyped_storage().data_ptr() == place:
                self.axes.folds.place(one, REORDERED)

    def admit_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take the inputs of the model for data, each with the axis of its examples."""
        for at, value in enumerate(tensors((args, kwargs))):
            self.admit(value, axis=self.axes.of_input(value, at))

    def admit(self, value: Any, *, axis: int = 0) -> None:
        """Take tensors for data: inputs of the model, and what comes of them."""
        if isinstance(value, Tensor):
            if id(value) not in self.sources:
                self._data[id(value)] = ref(value)
                if axis:
                    self.axes.folds.place(value, axis)
        elif value is not None:
            for one in tensors(value):
                if id(one) not in self.sources:
                    self._data[id(one)] = ref(one)
                    if axis:
                        self.axes.folds.place(one, axis)

    def _is_known(self, value: Tensor) -> bool:
        known = self._data.get(id(value))
        return known is not None and known() is value

    def is_data(self, value: Tensor) -> bool:
        """Whether a tensor that is no source comes from the inputs of the model.

        What has a graph behind it was computed from data, unseen (by an autograd.Function).
        """
        if self._is_known(value):
            return True
        if not value.requires_grad:
            return False
        if value.grad_fn is None:
            self.leak(["a tensor that requires gradients"])
        return True

    def data_in(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """Arguments that are neither parameters nor constants."""
        return [
            value
            for value in flat((*args, *kwargs.values()))
            if isinstance(value, Tensor) and id(value) not in self.sources and self.is_data(value)
        ]

    def source_of(self, value: object) -> Source | None:
        """Return the source that this very tensor is, if any."""
        return self.sources.get(id(value))

    def is_constant(self, value: Tensor) -> bool:
        """Whether a tensor is known not to depend on the examples."""
        return id(value) not in self.sources and not self.is_data(value)

    def names_in(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
        found = [self.source_of(value) for value in flat((*args, *kwargs.values()))]
        return sorted({name for source in found if source for name in source.root_names()})

    def derive(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute something from parameters and constants, and track it like a parameter."""
        result = func(*args, **kwargs)
        if isinstance(result, tuple | list) and any(isinstance(part, Tensor) for part in result):
            parts = [self._derived(func, part, args, kwargs) for part in result]
            return parts if isinstance(result, list) else tuple(parts)
        return self._derived(func, result, args, kwargs)

    def _derived(self, func: Any, result: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        if not isinstance(result, Tensor):
            return result
        if self.source_of(result) is not None:
            return result
        if not result.requires_grad:
            return result
        found = {
            id(source): source
            for value in flat((*args, *kwargs.values()))
            if (source := self.source_of(value)) is not None
        }
        parents = tuple(found.values())
        only = parents[0] if len(parents) == 1 else None
        transposes = only if only is not None and is_transpose(result, only.tensor) else None
        repeats = None
        if only is not None and func in REPEATS:
            base = only.repeats or only
            repeats = base if is_broadcast(result, base.tensor) else None
        tensor = own_leaf(result.detach())
        source = Source(
            tensor, origin=result, parents=parents, transposes=transposes, repeats=repeats
        )
        if func is torch.nn.functional.embedding and only is not None and only.tensor is args[1]:
            source.lookup_ids = args[0]
        tensor.register_hook(  # type: ignore[no-untyped-call]
            lambda _: self.leak(source.root_names())
        )
        self.sources[id(tensor)] = source
        self.derived.append(source)
        return tensor

    def leak(self, names: Sequence[str]) -> None:
        """Stop: a gradient went around the record."""
        if not self.watching:
            return
        raise InvalidValue(
            "model",
            ", ".join(names),
            "every use of a parameter to happen inside the forward call of the wrapped model "
            "in training mode; plain autograd reached these, so their gradients would not be "
            "clipped",
        )

    def site(self, rule: str, source: Source) -> Site:
        """Name one use of a source, the same in every forward pass."""
        return source.used(rule)

    def record(
        self, call: Callable[[], Tensor], data: Tensor | None, receive: Callable[[Tensor], None]
    ) -> Tensor:
        """Run a call on detached parameters; ``receive`` will hear the gradient of its result."""
        if data is None or not data.requires_grad:
            return self.record_first_layer(call, receive)
        return self.on_gradient(call(), receive)

    def on_gradient(self, result: Tensor, receive: Callable[[Tensor], None]) -> Tensor:
        """Have ``receive`` called with the gradient of a result, within this recording only."""
        result.register_hook(self._within(receive))  # type: ignore[no-untyped-call]
        return result

    def _within(self, receive: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
        generation = self.generation

        def checked(gradient: Tensor) -> None:
            self.require_current(generation)
            receive(gradient)

        return checked

    def require_current(self, generation: int) -> None:
        """Raise if a gradient comes from a forward pass of another recording, or in two forms.

        Its examples are not those that the batch consists of, and would be clipped as these.
        """
        if generation != self.generation:
            raise InvalidValue(
                "loss",
                "a backward pass through the forward pass of an earlier batch",
                "forward and backward pass within one batch, before optimizer.step()",
            )
        refuse_autocast()
        self._before_gradient()

    def record_first_layer(
        self, call: Callable[[], Tensor], receive: Callable[[Tensor], None]
    ) -> Tensor:
        """Do the same for a call on inputs without gradient; it runs without autograd."""
        result: Tensor = _FirstLayer.apply(self._anchor, call, self._within(receive))  # type: ignore[no-untyped-call]
        return result

    def by_units(self, rows: Tensor, features: int) -> Tensor:
        """Return (units, terms, *features), or (units, *features) where there is one term."""
        kept = rows.shape[rows.ndim - features :]
        if rows.ndim == features + 1 and rows.shape[0] == self.units:
            return rows
        if rows.ndim == features + 2 and rows.shape[0] == self.units:
            return rows
        return rows.reshape(self.units, -1, *kept) if self.units else rows.new_zeros(0, 1, *kept)

    def add_rows(self, source: Source, rows: Tensor) -> None:
        """Add gradients (rows, *parameter), where several rows may belong to one unit."""
        if rows.shape[0] != self.units:
            rows = rows.reshape(self.units, -1, *rows.shape[1:]).sum(1)
        self.add_values(source, rows)

    def add_values(self, source: Source, values: Tensor) -> None:
        """Add gradients (units, *parameter)."""
        values = values.reshape(self.units, *source.tensor.shape)
        source.contributions.append(PerExample(values.to(source.tensor.dtype)))

    def add(self, source: Source, contribution: Contribution) -> None:
        source.contributions.append(contribution)

    @contextmanager
    def knowing(self, axis: int) -> Iterator[None]:
        """Inside, the axis of the examples is known."""
        before, self.axes.known = self.axes.known, axis
        try:
            yield
        finally:
            self.axes.known = before

    def settle(self) -> None:
        """After the backward pass: bring all contributions to the parameters themselves."""
        self.watching = False
        if not self.units:
            return
        if not self.derived and not any(
            source.leaves or len(source.contributions) > 1 for source in self.parameters
        ):
            return
        with torch.no_grad():
            for source in (*self.parameters, *self.derived):
                if source.leaves:
                    source.gather_leaves(self.units)
            for source in reversed(self.derived):
                source.hand_to_parents(self.units)
            for source in self.parameters:
                if len(source.contributions) > 1:
                    source.contributions = [merged(source.contributions)]


def is_transpose(result: Tensor, of: Tensor) -> bool:
    """Whether a view is the transposed matrix."""
    return (
        result.ndim == 2
        and of.ndim == 2
        and result.data_ptr() == of.data_ptr()
        and result.shape == of.shape[::-1]
        and result.stride() == of.stride()[::-1]
        and result.storage_offset() == of.storage_offset()
    )


def is_broadcast(result: Tensor, of: Tensor) -> bool:
    """Whether repeating went only along axes of size one or new ones."""
    pairs = zip(reversed(result.shape), reversed(of.shape), strict=False)
    return all(size in (1, wide) for wide, size in pairs)


REPEATS = {torch.Tensor.expand, torch.Tensor.repeat, torch.Tensor.expand_as, torch.broadcast_to}
# What these make has nothing of the tensors that they are called on but a type and a device...
BLANK = {Tensor.new_empty, Tensor.new_full, Tensor.new_ones, Tensor.new_zeros}
# ...and these have that of the others only.
CONTENT_OF_FIRST = {Tensor.to, Tensor.type_as}


def _leaves_axis(index: Any, axis: int, ndim: int) -> bool:
    """Say whether an index takes all of an axis in order."""
    items = list(index) if isinstance(index, tuple) else [index]
    for at, item in enumerate(items):
        if item is Ellipsis:
            items[at : at + 1] = [slice(None)] * (ndim - len(items) + 1)
            break
    plain = all(isinstance(item, int | slice) for item in items)
    return plain and axis >= 0 and (axis >= len(items) or items[axis] == slice(None))
