"""Watches every torch call of a forward pass and takes over those that touch parameters.

A rule runs its operation on *detached* parameters, so that plain autograd computes output
gradients only (the product for the parameter's own gradient is never spent), and listens for
the gradient of the output. What is computed from parameters and constants alone becomes a
derived :class:`Source`. Data is what comes from the inputs of the model; every other tensor, be it
as long as the batch, is a constant that all examples share. An operation without a rule raises
:class:`NoRule`, and the module around it is run as a black box.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final
from weakref import ref

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from discreet.errors import InvalidValue, PlanViolation
from discreet.learn.dpsgd._checkpointing import watch_checkpoints
from discreet.learn.dpsgd._tensors import tensors
from discreet.learn.dpsgd.engine._axes import Axes
from discreet.learn.dpsgd.engine._forms import (
    Contribution,
    PerExample,
    Site,
    Source,
    make_leaf,
    merge,
    wide,
)
from discreet.learn.dpsgd.engine._layout import (
    KEEPING,
    LOST,
    MOVES,
    REORDERED,
    SEQUENCES,
    flat,
    is_broadcast,
    is_transpose,
    leaves_axis,
)
from discreet.learn.dpsgd.engine._pooling import FASTER

_DEVICES = ("cpu", "cuda", "mps", "xpu")


def is_under_autocast() -> bool:
    """Whether torch rounds to half precision at the moment."""
    return any(map(torch.is_autocast_enabled, _DEVICES))


def refuse_autocast() -> None:
    """Raise where norms and sums would be of half precision."""
    if is_under_autocast():
        raise PlanViolation(
            "backward() or optimizer.step() under autocast: norms of gradients in half precision "
            "are off by up to a percent, and so would be the bound that the noise is made for. End "
            "autocast after the forward pass and the loss"
        )


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
        self.calls = 0
        self.generation = 0
        self.watching = False
        self.follows = True
        self.is_half = False
        self.in_checkpoint = self.in_second_pass = False
        self._anchor = make_leaf(torch.zeros(()))

    def open(self, units: int, repeats: int) -> None:
        """Expect ``units * repeats`` rows; nothing of an earlier pass is left."""
        self._clear()  # close() may have been interrupted
        self.units, self.repeats, self.calls = units, repeats, 0
        self.axes.open(units * repeats)
        self.sources = self._own.copy()
        self.watching = self.follows = True
        self.is_half = self.in_checkpoint = self.in_second_pass = False

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
            self._count(func, args, 0)
            result = FASTER.get(func, func)(*args, **kwargs)
            return self._note_data(func, args, kwargs, result)
        self._count(func, args, next((id(one) for one in args if id(one) in self._own), 0))
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

    def _count(self, func: Any, args: tuple[Any, ...], parameter: int) -> None:
        """Take a call into the sequence by which a pass is known again."""
        first = args[0] if args else None
        rank = first.ndim if isinstance(first, Tensor) else -1
        self.calls = hash((self.calls, func, rank, parameter))

    def _note_data(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> Any:
        """Note what a call made of data without parameters."""
        if func in BLANK or (func in CONTENT_OF_FIRST and not self.is_data(args[0])):
            return result
        if func is Tensor.__iter__:
            result = list(result)
        folds = self.axes.folds
        first = args[0] if args else None
        before = folds.axis(first) if isinstance(first, Tensor) and self._is_known(first) else None
        if isinstance(result, Tensor | list | tuple):
            self.admit(result)
            if self.follows:
                folds.follow(func, args, kwargs, self.data_in(args, kwargs), result)
        elif func is Tensor.__setitem__:
            self._note_write(*args)
        elif func == _SET_DATA:
            self.admit(args[0])
            self._reorder(args[0])
        if isinstance(result, Tensor) and (result is first or "out" in kwargs):
            self._wrote_in_place(result, self.data_in(args, kwargs), before)
        return iter(result) if func is Tensor.__iter__ else result

    def _note_write(self, target: Tensor, index: Any, value: Any) -> None:
        """Note where the examples of a tensor are after ``target[index] = value``.

        A constant becomes data by this.
        """
        known = self._is_known(target)
        moves = isinstance(value, Tensor) and self.is_data(value)
        if not known:
            self.admit(target)
            self._admit_base(target)
        elif not moves or not self.follows:
            return
        at = [self.axes.folds.axis(target)] if known else range(target.ndim)
        fitting = [axis for axis in at if moves and self._fits(target, index, value, axis)]
        if len(fitting) != 1 or (known and not self._covers(target)):
            self._reorder(target)
        elif not known:
            self.axes.folds.place(target, fitting[0])

    def _fits(self, target: Tensor, index: Any, value: Tensor, axis: int) -> bool:
        """Whether the examples of a value went, in order, to the places along an axis."""
        rows, place = self.axes.rows, self.axes.folds.axis(value)
        if min(axis, place) < 0 or not target.ndim or target.shape[axis] != rows:
            return False
        if place >= value.ndim or not leaves_axis(index, axis, target.ndim):
            return False
        after = MOVES[Tensor.__getitem__]((target, index), {}, axis)
        return value.shape[place] == rows and after - target[index].ndim == place - value.ndim

    def _admit_base(self, view: Tensor) -> None:
        base = view._base
        if base is not None and id(base) not in self.sources and not self._is_known(base):
            self.admit(base)
            if not self._covers(view):
                self.axes.folds.place(base, REORDERED)

    def _wrote_in_place(self, target: Tensor, others: list[Tensor], before: int | None) -> None:
        """Note what a call wrote into a tensor, for all that share its memory.

        A part of another tensor may be any of its rows.
        """
        self._admit_base(target)
        if not self.follows or not any(one is not target for one in others):
            return
        after = self.axes.folds.axis(target)
        if after < 0 or before not in (None, after) or not self._covers(target):
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
        simple = not kwargs and all(isinstance(one, Tensor) for one in args)
        for at, value in enumerate(args if simple else tensors((args, kwargs))):
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

        What has a graph behind it was computed from data, unseen (by a scripted function, or inside
        ``torch.vmap``), so where its examples are is not known.
        """
        if self._is_known(value):
            return True
        if not value.requires_grad:
            return False
        if value.grad_fn is None:
            self.leak(["a tensor that requires gradients"])
        # A second pass leaves no trace, and may begin with what another one has made.
        self.admit(value, axis=0 if self.axes.rows < 2 or self.in_second_pass else LOST)
        return True

    def data_in(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """Arguments that are neither parameters nor constants."""
        values: list[Any] = []
        for one in (*args, *kwargs.values()) if kwargs else args:
            values.extend(one) if isinstance(one, list | tuple) else values.append(one)
        return [
            value
            for value in values
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
            parts = [self._note_derived(func, part, args, kwargs) for part in result]
            return parts if isinstance(result, list) else tuple(parts)
        return self._note_derived(func, result, args, kwargs)

    def _note_derived(self, func: Any, result: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
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
        tensor = make_leaf(result.detach())
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
        return source.add_use(rule)

    def record(
        self, call: Callable[[], Tensor], data: Tensor | None, receive: Callable[[Tensor], None]
    ) -> Tensor:
        """Run a call on detached parameters; ``receive`` will hear the gradient of its result."""
        if data is None or not data.requires_grad:
            return self.record_first_layer(call, receive)
        return self.on_gradient(call(), receive)

    def on_gradient(self, result: Tensor, receive: Callable[[Tensor], None]) -> Tensor:
        """Have ``receive`` called with the gradient of a result, within this recording only."""
        result.register_hook(self._guard_receiver(receive))  # type: ignore[no-untyped-call]
        self.is_half |= result.dtype.itemsize < 4
        return result

    def _guard_receiver(self, receive: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
        generation = self.generation

        def receive_checked(gradient: Tensor) -> None:
            self.require_current(generation)
            # What is made of a gradient stays in the record: no mode needs to see it.
            with torch._C.DisableTorchFunction():
                receive(wide(gradient))

        return receive_checked

    def require_current(self, generation: int, *, in_second_pass: bool = False) -> None:
        """Raise if a gradient comes from a forward pass of another recording, or in two forms.

        Its examples are not those that the batch consists of, and would be clipped as these.
        """
        if generation != self.generation:
            raise InvalidValue(
                "loss",
                "a backward pass through the forward pass of an earlier batch",
                "forward and backward pass within one batch, before optimizer.step()",
            )
        if not in_second_pass:  # where torch restores the autocast of the first one
            refuse_autocast()
        self._before_gradient()

    def record_first_layer(
        self, call: Callable[[], Tensor], receive: Callable[[Tensor], None]
    ) -> Tensor:
        """Do the same for a call on inputs without gradient; it runs without autograd."""
        result: Tensor = _FirstLayer.apply(self._anchor, call, self._guard_receiver(receive))  # type: ignore[no-untyped-call]
        self.is_half |= result.dtype.itemsize < 4
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
        source.contributions.append(PerExample(values.to(source.kind)))

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

    def checkpointed(self) -> tuple[Any, Any]:
        """What is around the first and the second pass of a part under a checkpoint."""
        return self._in_checkpoint(), self._second_pass(self.generation)

    @contextmanager
    def _in_checkpoint(self) -> Iterator[None]:
        before, self.in_checkpoint = self.in_checkpoint, True
        try:
            yield
        finally:
            self.in_checkpoint = before

    @contextmanager
    def _second_pass(self, generation: int) -> Iterator[None]:
        self.require_current(generation, in_second_pass=True)
        with (
            self._in_checkpoint(),
            self._restore_after(),
            watch_checkpoints("record", self.checkpointed),
            self,
        ):
            yield

    @contextmanager
    def _restore_after(self) -> Iterator[None]:
        """Afterwards the record is as it was: what ran inside had run before."""
        sources = [*self.parameters, *self.derived]
        held = [(one, one.uses, len(one.leaves), len(one.row_copies)) for one in sources]
        known, data, calls = self.sources, self._data, self.calls
        derived, axes, second = len(self.derived), self.axes, self.in_second_pass
        self.in_second_pass = True
        self.sources, self._data, self.axes = known.copy(), data.copy(), axes.copy()
        try:
            yield
        finally:
            self.sources, self._data, self.calls = known, data, calls
            del self.derived[derived:]
            self.axes, self.in_second_pass = axes, second
            for source, uses, leaves, copies in held:
                source.uses = uses
                del source.leaves[leaves:]
                del source.row_copies[copies:]

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
                    source.contributions = [merge(source.contributions)]


def leaves_behind(value: object, *, until: Collection[Any] = ()) -> Iterator[Tensor]:
    """All leaves to which plain autograd would carry gradients, not through the nodes ``until``."""
    found = (value,) if isinstance(value, Tensor) else tensors(value)
    waiting = [one.grad_fn for one in found if one.grad_fn is not None]
    seen = {*waiting, *until}
    while waiting:
        node = waiting.pop()
        following = node.next_functions
        if not following:
            leaf = getattr(node, "variable", None)
            if isinstance(leaf, Tensor):
                yield leaf
        for one, _ in following:
            if one is not None and one not in seen:
                seen.add(one)
                waiting.append(one)


REPEATS = {torch.Tensor.expand, torch.Tensor.repeat, torch.Tensor.expand_as, torch.broadcast_to}
_SET_DATA: Any = getattr(Tensor.data, "__set__")  # noqa: B009
# What these make has nothing of the tensors that they are called on but a type and a device...
BLANK = {Tensor.new_empty, Tensor.new_full, Tensor.new_ones, Tensor.new_zeros}
# ...and these have that of the others only.
CONTENT_OF_FIRST = {Tensor.to, Tensor.type_as}
