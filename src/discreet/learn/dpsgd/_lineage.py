"""What a loop brings into its batches from elsewhere, and what it reads off them.

Tensors of a batch are handed out as :class:`FromBatch`, and so is all that is computed from
them. That shows which rows a model is given, which numbers leave (``item``, ``float``,
``tolist``, ``numpy``), and, in the steps in which losses are looked at, which tensors come in from
outside. Whether the examples were mixed on the way is followed, too: :mod:`._mixing`.
Plain numbers of Python and arrays of numpy cannot be followed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, final
from weakref import ref

import torch
from torch import Tensor, nn
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode,
    _pop_mode,
    _push_mode,
)

from discreet.errors import InvalidValue, PlanViolation
from discreet.learn.dpsgd import _step as violations
from discreet.learn.dpsgd._mixing import UNSEEN, Place, Rows
from discreet.learn.dpsgd._step import OpenBatch, Watch
from discreet.learn.dpsgd._tensors import exchange_tensors, leaves_of, tensors
from discreet.learn.dpsgd.engine._recorder import BLANK, CONTENT_OF_FIRST, leaves_behind

_READS = {
    Tensor.__array__,
    Tensor.__bool__,
    Tensor.__complex__,
    Tensor.__contains__,
    Tensor.__dlpack__,
    Tensor.__float__,
    Tensor.__format__,
    Tensor.__index__,
    Tensor.__int__,
    Tensor.__repr__,
    Tensor.allclose,
    Tensor.data_ptr,
    Tensor.equal,
    Tensor.is_nonzero,
    Tensor.item,
    Tensor.numpy,
    Tensor.storage,
    Tensor.tolist,
    Tensor.untyped_storage,
    torch.allclose,
    torch.equal,
    torch.is_nonzero,
}
STATED = (
    "steps_with_numbers_read",
    "steps_with_writes",
    "steps_not_followed",
    "outside_tensors",
    "times_resumed",
)
"""What a certificate states of a run: in how many steps, or that it happened at all."""

_LISTS = (list, tuple)
_RESULTS = (Tensor, list, tuple)
# What these make is as large as the values say, and a size is a number of Python.
_SIZED = {"argwhere", "bincount", "masked_select", "nonzero", "unique", "unique_consecutive"}
# What these make is as large as another of their arguments says, or their only one.
_TAKE_SIZES = {"chunk", "empty", "expand", "eye", "narrow", "ones", "rand", "randn", "repeat"}
_TAKE_SIZES |= {"repeat_interleave", "reshape", "resize_", "split", "tensor_split", "tile", "topk"}
_TAKE_SIZES |= {"unfold", "view", "zeros"}
# Copies that torch makes without asking the class of what it copies: only a mode sees them.
_COPIES = {Tensor.new_tensor, torch.as_tensor, torch.asarray, torch.tensor}


class FromBatch(Tensor):
    """A tensor of a batch, or what was computed from one; ``batch`` is the oldest of them.

    ``place`` says where its examples are.
    """

    lineage: Lineage
    batch: int
    place: Place = UNSEEN

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        given = _flat((*args, *kwargs.values()) if kwargs else args)
        marked = [one for one in given if isinstance(one, FromBatch)]
        if marked and func in _READS:
            marked[0].lineage.note_reading()
            args = tuple(plain(one) for one in args)
        if marked and func is Tensor.backward:
            marked[0].lineage.look_at(marked[0])
        if marked and _is_sized_by_values(func, args, kwargs):
            marked[0].lineage.note_reading()
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **kwargs)
        if marked and func is Tensor.__iter__:
            result = list(result)
        if not marked or not isinstance(result, _RESULTS):
            if marked and result is None:
                is_new = not isinstance(args[0], FromBatch)
                if func is Tensor.__setitem__:
                    marked[0].lineage.take_in(given)
                    _mark_written(args[0], marked)
                marked[0].lineage.follow_writing(func, args, is_new=is_new)
            return result
        if func in BLANK or (func in CONTENT_OF_FIRST and not isinstance(args[0], FromBatch)):
            return result
        marked[0].lineage.take_in(given)
        if any(result is one and type(one) is Tensor for one in given):  # in place, or out=
            _mark_written(result, marked)
        _mark(result, marked)
        marked[0].lineage.follow(func, args, kwargs, marked, result)
        return iter(result) if func is Tensor.__iter__ else result

    def __deepcopy__(self, memo: Any) -> Tensor:
        copied: Tensor = copy.deepcopy(plain(self), memo)
        _mark(copied, [self])
        copied.place = self.place  # type: ignore[attr-defined]
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.lineage.note_reading()
        return plain(self).__reduce_ex__(protocol)


def _flat(values: Iterable[Any]) -> list[Tensor]:
    """The tensors among some values and in their lists."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, _LISTS):
            found += _flat(value)
    return found


def _given(value: Any) -> Iterator[Tensor]:
    """The tensors of a call, without the numbers; plain containers take the short way."""
    if isinstance(value, Tensor):
        yield value
    elif type(value) in (tuple, list, dict):
        for one in value.values() if type(value) is dict else value:
            yield from _given(one)
    elif not isinstance(value, str | int | float | None):
        yield from leaves_of(value)


def _mark(result: Any, parents: list[FromBatch]) -> None:
    for one in _flat((result,)):
        if type(one) is Tensor:
            one.__class__ = FromBatch
            one.lineage, one.batch = parents[0].lineage, parents[0].batch  # type: ignore[attr-defined]
        if isinstance(one, FromBatch):
            one.batch = min(one.batch, *(parent.batch for parent in parents))


def _mark_written(target: Any, parents: list[FromBatch]) -> None:
    """Mark a tensor that was written to, with the one that it is a view of.

    If others hold its memory too, as they do after ``.data``, it cannot be followed: it was read.
    """
    if not isinstance(target, Tensor):
        return
    with torch._C.DisableTorchFunctionSubclass():
        base, memory = target._base, target.untyped_storage()
        # The tensor, what it is a view of, and the line above.
        known = 2 + (base is not None)
        shared = torch._C._storage_Use_Count(memory._cdata) > known
    if shared and not isinstance(target, FromBatch):
        parents[0].lineage.note_reading()
    _mark([target] if base is None else [target, base], parents)


def _is_sized_by_values(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    name = getattr(func, "__name__", "")
    if func is Tensor.__getitem__:
        index = args[1] if isinstance(args[1], tuple) else args[1:]
        ends = [end for one in index if isinstance(one, slice) for end in (one.start, one.stop)]
        masks = (one.dtype in (torch.bool, torch.uint8) for one in _flat(args[1:]))
        return any(masks) or any(isinstance(end, FromBatch) for end in ends)
    if name in _TAKE_SIZES:
        return len(_flat((*args, *kwargs.values()))) > 1 or len(args) + len(kwargs) == 1
    if name == "one_hot":
        return bool((*args[1:], *kwargs.values(), -1)[0] == -1)
    return name in _SIZED or (name == "where" and len(args) == 1)


def plain(one: Any) -> Any:
    """The same tensor without its mark; anything else as it is."""
    if not isinstance(one, FromBatch):
        return one
    with torch._C.DisableTorchFunctionSubclass():
        return one.as_subclass(Tensor)


@final
class Lineage(Watch):
    """Guards against rows of another loader, and numbers and tensors that nothing is paid for.

    It is an honest mistake to mix in the batch of a second ``DataLoader``, to weight losses by a
    tensor that was computed from private data, or to train a temperature beside the model. What
    is read off a batch, and what else comes into a loss, the certificate states.

    ``trained`` are the parameters under the plan, ``axes`` where the model may have its examples,
    ``on_backward`` is called with every loss of the
    model of which a ``backward()`` is seen, ``keep`` with what happened, in case that the process
    dies.
    """

    def __init__(
        self,
        model: nn.Module,
        public: Iterable[Any],
        *,
        trained: Iterable[Tensor],
        axes: Sequence[int] = (0,),
        on_backward: Callable[[Tensor], None],
        keep: Callable[[str], None] | None = None,
    ) -> None:
        self._trained = set(map(id, trained))
        self._public = [one for given in (model, *public) for one in _find_tensors(given)]
        self._known = {id(one) for one in self._public}
        self._made: dict[int, ref[Tensor]] = {}
        self._mode = _LoopMode(on_backward, self._note_made)
        self.batch = 0
        self.is_open = False
        self.step = 0
        self._axes = axes
        self._rows = Rows(axes)
        self._keep = keep
        self.go_on_from({})

    @property
    def facts(self) -> dict[str, int]:
        """What a certificate is to state; nothing if nothing was read or brought in.

        That tensors came from outside is 1, however many: one for each row would tell the size of
        a batch.
        """
        found = {name: len(self._steps[name]) + self._before.get(name, 0) for name in STATED}
        found["outside_tensors"] = min(1, found["outside_tensors"])
        return {name: count for name, count in found.items() if count}

    def go_on_from(self, facts: Mapping[str, int]) -> None:
        """Begin to count with what happened before."""
        self._before = dict(facts)
        self._steps: dict[str, set[int]] = {name: set() for name in STATED}

    def hand_out(self, data: Any, step: int, *, rows: int) -> Any:
        """The tensors of the next batch, marked; with ``rows=0`` their rows are not followed."""
        self._rows.open(rows)
        self.batch += 1
        self.is_open = True
        self.step = step
        self._made = {}
        return self.mark(data)

    def open(self, batch: OpenBatch) -> None:
        """Begin to see what torch is asked to do."""
        self._mode.start()

    def backward(self, loss: Tensor, batch: OpenBatch) -> None:
        """Raise if gradients would reach what the plan does not train."""
        self._refuse_outside(loss)

    def _refuse_outside(self, loss: Tensor) -> None:
        for leaf in leaves_behind(loss):
            if not hasattr(leaf, "of_engine") and id(leaf) not in self._trained:
                raise PlanViolation(violations.OUTSIDE)

    def close(self, batch: OpenBatch) -> bool:
        """Let go of the batch."""
        self._end_batch()
        return True

    def remove(self) -> None:
        """Let go of the batch, and see nothing more."""
        self._end_batch()
        self._mode.stop()

    def pause(self) -> None:
        """Look away while gradients are added up."""
        self._mode.stop()

    def look_on(self) -> None:
        """See what the loop reads before the next batch."""
        self._mode.start()

    def mark(self, data: Any) -> Any:
        """The same tensors, marked as of this batch."""
        numbers = count()

        def marked(one: Tensor) -> Tensor:
            given = one.as_subclass(FromBatch) if type(one) is Tensor else one
            if isinstance(given, FromBatch):
                given.lineage, given.batch = self, self.batch
                given.place = self._rows.first_place(given, "batch", next(numbers))
            return given

        if type(data) is list and all(type(one) is Tensor for one in data):
            return [marked(one) for one in data]
        return exchange_tensors(data, marked)

    def _end_batch(self) -> None:
        self.is_open = False
        self._made = {}

    def follow(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        marked: list[FromBatch],
        result: Any,
    ) -> None:
        """Note where a call left the examples."""
        made = [one for one in _flat((result,)) if isinstance(one, FromBatch)]
        with torch._C.DisableTorchFunctionSubclass():
            if any(one.lineage is not self for one in marked):
                for one in made:
                    one.place = UNSEEN
            else:
                self._rows.follow_call(func, args, kwargs, marked, made)
            for one in made:
                if one._base is not None and any(
                    one is each for each in _flat((args, kwargs.values()))
                ):
                    self._rows.place_written(one, one._base)

    def follow_writing(self, func: Any, args: tuple[Any, ...], *, is_new: bool) -> None:
        """Note where a call that returned nothing left the examples of what it wrote to."""
        with torch._C.DisableTorchFunctionSubclass():
            self._rows.follow_writing(func, args, is_new=is_new)

    def require_losses_apart(self, losses: Tensor) -> None:
        """Raise if losses, or their total, were mixed; note it if they could not be followed."""
        if not self._rows.rows:
            return
        if not isinstance(losses, FromBatch):
            self._note("steps_not_followed", self.step)
            return
        place = self._rows.of(losses)
        is_total = losses.ndim == 0 and place.kind == "total"
        if self._rows.rows > 1 and not is_total and place != Place():
            raise PlanViolation(violations.describe_mixing("the losses come from", place.mixed_by))

    def _require_inputs_apart(self, marked: list[FromBatch]) -> None:
        for one in marked:
            place = self._rows.of(one)
            apart = place.axis in self._axes or place.kind == "whole"
            if self._rows.rows > 1 and not apart:
                raise PlanViolation(
                    violations.describe_mixing("the model was given", place.mixed_by)
                )

    def note_reading(self) -> None:
        """A number was read off something that comes of a batch."""
        self._note("steps_with_numbers_read", self.step)

    def note_write(self, step: int) -> None:
        """The model or its optimizer was changed by something else than a step of the plan."""
        self._note("steps_with_writes", step)

    def _note(self, name: str, step: int) -> None:
        if step not in self._steps[name]:
            self._steps[name].add(step)
            if self._keep is not None:
                self._keep(name)

    def look_at_settings(self, groups: Iterable[dict[str, Any]]) -> None:
        """Note it if a setting of the optimizer is a tensor that comes of a batch."""
        values = [value for group in groups for key, value in group.items() if key != "params"]
        if any(isinstance(one, FromBatch) for one in _flat(values)):
            self.note_reading()

    def require_current(self, *marked: FromBatch) -> None:
        """Raise if one of the tensors comes of an earlier batch of this run."""
        if any(one.lineage is self and one.batch < self.batch for one in marked):
            raise PlanViolation(violations.STALE)

    def look_at(self, loss: FromBatch) -> None:
        """Look at a loss before its backward pass; not between batches, where none is recorded."""
        if self.is_open:
            self.require_current(loss)
            self._refuse_outside(plain(loss))

    def _note_made(
        self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Note the result of a call, unless something from outside went into it."""
        given = _flat((*args, *kwargs.values()) if kwargs else args)
        if func in _COPIES:
            copied = [one for one in given if isinstance(one, FromBatch)]
            if copied:
                _mark(result, copied)
                if len(copied) == 1 and result.shape == copied[0].shape:
                    result.place = copied[0].place
        elif FromBatch not in types and func is not torch.autograd.grad:
            # Where torch expects a number it takes that of a tensor, and does not ask its class.
            numbers = [one for one in given if isinstance(one, FromBatch) and one.ndim == 0]
            if numbers and not any(isinstance(one, FromBatch) for one in _flat((result,))):
                self.note_reading()
        if not self.is_open:
            return
        clean = all(map(self._is_known, given))
        for one in _flat((result,)):
            if clean:
                self._made[id(one)] = ref(one)
            else:
                self._made.pop(id(one), None)

    def _is_known(self, one: Tensor) -> bool:
        if isinstance(one, FromBatch) or id(one) in self._known or one.grad_fn is not None:
            return True  # where a graph ends is for another check
        made = self._made.get(id(one))
        return made is not None and made() is one

    def take_in(self, given: list[Tensor]) -> None:
        """Tensors meet one of the batch; those from outside are counted."""
        if self.is_open:
            for one in given:
                if not self._is_known(one):
                    self._note("outside_tensors", self.step)

    def unwrap(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """The arguments of a call of the model without marks, if they are of the batch."""
        found = list(_given((args, kwargs)))
        marked = [one for one in found if isinstance(one, FromBatch) and one.lineage is self]
        self.require_current(*marked)
        if not marked:
            if not all(map(self._is_known, found)):
                raise PlanViolation(violations.NOT_OF_THE_BATCH)
            return args, kwargs
        self.take_in(found)
        self._require_inputs_apart(marked)
        if len(args) == 1 and not kwargs and args[0] is marked[0]:
            return (plain(args[0]),), kwargs
        unmarked: tuple[Any, Any] = exchange_tensors((args, kwargs), plain)
        return unmarked

    def claim(self, output: Any) -> None:
        """What the model returned comes of the batch, and a loss that comes of it is seen."""
        outputs = (output,) if isinstance(output, Tensor) else tensors(output)
        for number, one in enumerate(outputs):
            if one.grad_fn is not None:
                self._mode.nodes.append(one.grad_fn)
            if type(one) is Tensor:
                one.__class__ = FromBatch
                one.lineage, one.batch = self, self.batch  # type: ignore[attr-defined]
                with torch._C.DisableTorchFunctionSubclass():
                    one.place = self._rows.first_place(one, "output", number)  # type: ignore[attr-defined]


@final
class OutputMark:
    """A forward hook: what a model under a plan returns in a batch comes of the batch."""

    def __init__(self, lineage: Lineage | None) -> None:
        self._lineage = lineage

    def __call__(self, module: nn.Module, _: object, output: Any) -> None:
        if torch.compiler.is_compiling():
            return  # in training mode that is refused elsewhere
        lineage = self._lineage
        if lineage is None or not lineage.is_open or not module.training:
            return
        if torch.is_grad_enabled():
            lineage.claim(output)

    def __deepcopy__(self, memo: object) -> OutputMark:
        return OutputMark(None)

    def __reduce__(self) -> tuple[Any, ...]:
        return OutputMark, (None,)


def guard_loading(model: nn.Module, is_running: Callable[[], bool]) -> list[Any]:
    """Refuse ``load_state_dict`` of a model and its parts while it is running; the hooks."""
    guard = _LoadGuard(is_running)
    return [
        one.register_load_state_dict_pre_hook(guard)  # type: ignore[no-untyped-call]
        for one in model.modules()
    ]


@final
class _LoadGuard:
    """Refuses ``load_state_dict`` while ``is_running``; that of a copy does nothing."""

    def __init__(self, is_running: Callable[[], bool]) -> None:
        self._is_running = is_running

    def __call__(self, *_: object) -> None:
        if self._is_running():
            raise PlanViolation(violations.LOADED)

    def __deepcopy__(self, memo: object) -> _LoadGuard:
        return _LoadGuard(bool)

    def __reduce__(self) -> tuple[Any, ...]:
        return _LoadGuard, (bool,)


def _find_tensors(given: Any) -> Iterator[Tensor]:
    if isinstance(given, nn.Module):
        yield from given.parameters()
        yield from given.buffers()
    elif isinstance(given, Tensor):
        yield given
    else:
        raise InvalidValue("public", type(given).__name__, "tensors and modules")


@final
class _LoopMode(TorchFunctionMode):
    """Sees what torch is asked to do in the thread that reads the batches, while it is on.

    ``on_backward`` is called with losses that come from an output of the model, before they go
    back, and with no others: several models may be trained side by side.
    ``torch.autograd.backward`` is not seen. ``note`` is called after every call that makes tensors,
    with its arguments and its result.
    """

    needs_no_inner_calls = True

    def __init__(
        self,
        on_backward: Callable[[Tensor], None],
        note: Callable[[Any, Any, Any, Any, Any], None],
    ) -> None:
        super().__init__()
        self._on_backward = on_backward
        self._note = note
        self.nodes: list[Any] = []
        self._is_on = False

    def start(self) -> None:
        """See everything from now on."""
        self.stop()
        self._is_on = True
        _push_mode(self)  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        """See nothing more. Modes that others pushed meanwhile stay where they are.

        A thread that only ends a loop, as that which collects garbage, leaves this behind in the
        one that began it, where it does nothing.
        """
        self._is_on = False
        self.nodes.clear()
        others = []
        while (mode := _get_current_function_mode()) is not None:  # type: ignore[no-untyped-call]
            _pop_mode()  # type: ignore[no-untyped-call]
            if mode is not self:
                others.append(mode)
        for mode in reversed(others):
            _push_mode(mode)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is Tensor.backward and self._is_on and self._comes_from_the_model(args[0]):
            self._on_backward(args[0])
        result = func(*args, **kwargs) if kwargs else func(*args)
        if self._is_on and isinstance(result, _RESULTS):
            self._note(func, types, args, kwargs or {}, result)
        return result

    def _comes_from_the_model(self, loss: Tensor) -> bool:
        seen: set[Any] = set()
        waiting = [loss.grad_fn]
        while waiting:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            if any(node is output for output in self.nodes):
                return True
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
        return False
