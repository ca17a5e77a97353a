"""Whether the lines of a loop keep the examples of a batch apart, outside of the model.

Every tensor that comes of a batch has a :class:`Place`: its examples are along one axis, each in
its own row; or it depends on one example only; or it may depend on several, and then the
name of the call that mixed them is kept. Which calls leave rows in their places the engine's own
table says, :mod:`~discreet.learn.dpsgd.engine._layout`; what is not in it mixes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from discreet.learn.dpsgd.engine._axes import Folds
from discreet.learn.dpsgd.engine._layout import (
    BY_ROW,
    ELEMENTWISE_LOSSES,
    KEEPING,
    LOST,
    MOVES,
    PRODUCTS,
    RESHAPING,
    ROW_LOSSES,
    SEQUENCES,
    is_of_two,
    kept_axis,
    leaves_axis,
    looks_across,
)
from discreet.learn.dpsgd.engine._recorder import CONTENT_OF_FIRST


class Place(NamedTuple):
    """Where the examples of a tensor are.

    ``axis`` is theirs if they are in place; with ``together``, each has several rows side by side.
    Otherwise ``only`` is the number of the one example that the tensor depends on, or
    ``mixed_by`` names the call that mixed them. ``kind`` tells apart what mixed them in a way that
    others judge: ``"total"`` for a sum or mean of all, ``"whole"`` for what was handed out
    so, ``"time"`` for
    (time, examples) merged into one axis.
    """

    axis: int = 0
    together: bool = False
    only: int | None = None
    mixed_by: str = ""
    kind: str = ""


_IN_PLACE = Place()
UNSEEN = Place(LOST, mixed_by="a call that was not seen")
_WHOLE = Place(LOST, mixed_by="collate, which gave it no row for each example", kind="whole")

_JOINS = {torch.stack, torch.cat, torch.concat, torch.concatenate}
_SCATTERS = {
    getattr(home, name)
    for name in ("gather", "scatter", "scatter_", "scatter_add", "scatter_add_", "take_along_dim")
    for home in (Tensor, torch)
    if hasattr(home, name)
}
_TOTALS = {Tensor.sum, Tensor.mean, torch.sum, torch.mean, *ELEMENTWISE_LOSSES, *ROW_LOSSES}
_SUMS = {
    getattr(home, name)
    for name in ("add", "add_", "sub", "sub_", "rsub", "__add__", "__radd__", "__iadd__")
    + ("__sub__", "__rsub__", "__isub__")
    for home in (Tensor, torch)
    if hasattr(home, name)
}
_SET_GRADIENT: Any = getattr(Tensor.grad, "__set__")  # noqa: B009


@final
class Rows(Folds):
    """Follows the rows of a batch through what a loop does outside of the model.

    It is given tensors with an attribute ``place``. ``axes`` are those along which the model may
    take its examples.
    """

    def __init__(self, axes: Sequence[int]) -> None:
        super().__init__()
        self._axes = axes
        self._remembered: dict[tuple[str, int], int] = {}
        self._spoiled: dict[int, tuple[Any, str]] = {}

    def open(self, rows: int) -> None:
        """Expect a batch of so many rows."""
        super().open(rows)
        self._spoiled = {}

    def axis(self, tensor: Any) -> int:
        """The axis of the examples, or ``LOST``."""
        return self.of(tensor).axis

    def known(self, tensor: Any) -> bool:
        """Whether each example has several rows of the tensor side by side."""
        return self.of(tensor).together

    def of(self, tensor: Any) -> Place:
        """Where the examples of a tensor are."""
        place: Place = tensor.place
        if self._spoiled and not place.mixed_by:
            cause = self._spoiled.get(tensor.untyped_storage().data_ptr())
            if cause is not None:
                return Place(LOST, mixed_by=cause[1])
        return place

    def first_place(self, tensor: Tensor, source: str, number: int) -> Place:
        """Where the examples are in the ``number``-th tensor of a batch or an output."""
        rows, shape = self.rows, tensor.shape
        if rows < 2:
            return _IN_PLACE
        found = [axis for axis in (0, 1) if len(shape) > axis and shape[axis] == rows]
        if 1 not in self._axes and found[:1] != [0] and source == "batch":
            found = []
        if len(found) == 1:
            self._remembered[source, number] = found[0]
        if found:
            default = 0 if 1 not in self._axes else found[0]
            axis = self._remembered.get((source, number), default)
            return Place(axis if axis in found else found[0])
        if source == "output" and shape and shape[0] and shape[0] % rows == 0:
            return Place(together=True)
        if source == "output":
            kind = "" if shape else "total"
            return Place(LOST, mixed_by="the model, whose output has no row for each", kind=kind)
        return _WHOLE

    def follow_call(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        data: list[Any],
        made: Iterable[Any],
    ) -> None:
        """Note where a call that was given ``data`` left the examples in what it made."""
        for number, one in enumerate(made):
            written = any(one is each for each in _flat((args, kwargs)))
            one.place = place = self._place_after(func, args, kwargs, data, one, number)
            if written and place.mixed_by and not place.kind:
                self._spoil(one, place.mixed_by)

    def _place_after(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        data: list[Any],
        one: Any,
        number: int,
    ) -> Place:
        if self.rows < 2:  # a single example has nothing to be mixed with
            return _IN_PLACE
        if func in CONTENT_OF_FIRST:
            data = [args[0]]
        places = [self.of(each) for each in data]
        if places[0].only is not None and len({place.only for place in places}) == 1:
            return places[0]
        if all(place.only is not None for place in places):
            return self._place_joined(func, args, kwargs, places, one)
        if all(place.kind == "whole" for place in places):
            return _WHOLE if func in KEEPING else Place(LOST, mixed_by=name_of(func))
        if all(place.kind == "total" for place in places):
            alone = func in KEEPING or func in _TOTALS
            if not one.ndim and (func in _SUMS or (alone and len(places) == 1)):
                return places[0]
            return Place(LOST, mixed_by=places[0].mixed_by)
        if all(place.kind == "time" for place in places):
            return self._place_merged(func, args, kwargs, data, one)
        for place in places:
            if place.mixed_by and place.kind != "whole":
                return Place(LOST, mixed_by=place.mixed_by)
        taken = self._one_row(func, args, kwargs, data, number)
        if taken is not None:
            return Place(LOST, only=taken)
        try:
            return self._in_place(func, args, kwargs, data, one, number)
        except (AttributeError, IndexError, KeyError, StopIteration, TypeError, ValueError):
            # An unusual spelling, such as everything by name.
            return Place(LOST, mixed_by=name_of(func))

    def _in_place(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        data: list[Any],
        one: Any,
        number: int,
    ) -> Place:
        axes = [self.axis(each) for each in data]
        if not one.ndim:
            good = func in _TOTALS and self._loses_rows(func, args, kwargs, data, one)
            return Place(LOST, mixed_by=name_of(func), kind="total" if good else "")
        if func in ELEMENTWISE_LOSSES:
            axis = kept_axis(one, list(zip(data, axes, strict=True)))
        elif func in ROW_LOSSES:
            axis = 0 if self._loses_rows(func, args, kwargs, data, one) else LOST
        elif func in SEQUENCES:
            axis = self._after_sequence(func, args, data, number)
        else:
            axis = self._axis_outside(func, args, kwargs, data, one)
        if axis >= 0:
            if one.shape[axis] == self.rows:
                return Place(axis)
            losing = func in ELEMENTWISE_LOSSES or func in ROW_LOSSES
            alike = losing and all(self.known(each) for each in data)
            alike = alike and one.shape[0] == data[0].shape[0]
            if axis == 0 and (alike or (not axes[0] and self.lie_together(func, data, one, 0))):
                return Place(together=True)
        time_first = func in RESHAPING and len(data) == 1 and axes[0] == 1
        if time_first and one.shape[0] == data[0].shape[0] * self.rows:
            return Place(LOST, mixed_by=name_of(func), kind="time")
        return Place(LOST, mixed_by=name_of(func))

    def _place_merged(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], data: list[Any], one: Any
    ) -> Place:
        """Where the examples are in what was made of tensors of (time times examples, ...)."""
        alike = len({each.shape[0] for each in data}) == 1
        losing = func in ELEMENTWISE_LOSSES or func in ROW_LOSSES
        if func in ROW_LOSSES:
            alike &= not _find_marked([*args[ROW_LOSSES[func] :], kwargs.get("weight")])
        elif len(data) > 1:
            alike &= len({each.ndim for each in data}) == 1
        if not one.ndim:
            good = alike and func in _TOTALS and (losing or len(data) == 1)
            return Place(LOST, mixed_by=name_of(func), kind="total" if good else "")
        size = data[0].shape[0]
        if func in RESHAPING and one.shape[:2] == (size // self.rows, self.rows):
            return Place(1)
        inner = func in KEEPING and one.ndim == data[0].ndim
        inner = inner and not looks_across(func, args, kwargs, 0)
        if alike and one.shape[0] == size and (losing or inner):
            return self.of(data[0])
        return Place(LOST, mixed_by=name_of(func))

    def _loses_rows(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], data: list[Any], one: Any
    ) -> bool:
        """Whether a loss, or a total, is made of rows of its own for each example."""
        axes = [self.axis(each) for each in data]
        if min(axes) < 0:
            return False
        if func in ROW_LOSSES:
            rest = [*args[ROW_LOSSES[func] :], kwargs.get("weight")]
            sizes = {each.shape[0] for each in data}
            deep = data[0].ndim > 1 or data[0] is not (args[0] if args else kwargs.get("input"))
            across = bool(one.ndim) and one.shape[0] not in sizes
            if func is torch.nn.functional.cosine_similarity:
                dim = args[2] if len(args) > 2 else kwargs.get("dim", 1)
                across |= dim % data[0].ndim == 0 or len({each.ndim for each in data}) > 1
            return (
                not any(axes) and len(sizes) == 1 and deep and not across and not _find_marked(rest)
            )
        if func in ELEMENTWISE_LOSSES:
            return len({axis - each.ndim for axis, each in zip(axes, data, strict=True)}) == 1
        return len(data) == 1

    def _axis_outside(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], data: list[Any], one: Any
    ) -> int:
        axes = [self.axis(each) for each in data]
        if min(axes) < 0:
            return LOST
        if is_of_two(func, args, kwargs):
            return kept_axis(one, list(zip(data, axes, strict=True)))
        if func in PRODUCTS and kwargs:
            return LOST
        if func is Tensor.__getitem__:
            return self._place_indexed(args, data, axes)
        if func in MOVES and not self._moves_alone(func, args, kwargs, data):
            return LOST
        if func in KEEPING or func in BY_ROW:
            if any(looks_across(func, args, kwargs, axis) for axis in axes):
                return LOST
            if func in KEEPING:
                return kept_axis(one, list(zip(data, axes, strict=True)))
        if func in _SCATTERS or func in RESHAPING:
            axis = self.axis(data[0])
            if func in RESHAPING:
                return super().axis_after(func, args, kwargs, data, one) if len(data) == 1 else LOST
            return MOVES[func](args, kwargs, axis)
        if func in MOVES and args[0] is not data[0] and not isinstance(args[0], list | tuple):
            return axes[0]
        return super().axis_after(func, args, kwargs, data, one)

    def _moves_alone(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], data: list[Any]
    ) -> bool:
        """Whether a call that moves rows takes what it goes by from nothing but the same rows."""
        first = args[0]
        if isinstance(first, list | tuple):
            inside = all(any(one is each for each in first) for one in data)
            return inside and len({self.axis(one) for one in data}) == 1
        if func in _SCATTERS:
            alike = len({(self.axis(one), one.ndim) for one in data}) == 1
            return alike and first.ndim == data[0].ndim
        if len(data) > 1:
            return False
        if first is data[0]:
            return True
        # Looked up in a table that all share.
        return func in (torch.index_select, Tensor.index_select) and args[1:2] == (0,)

    def _place_indexed(self, args: Sequence[Any], data: list[Any], axes: list[int]) -> int:
        first, index = args[0], args[1]
        going_by = list(_find_marked([index]))
        if not going_by:
            return MOVES[Tensor.__getitem__](args, {}, axes[0])
        if len(data) == 1 and index is data[0]:  # looked up in a table that all share
            return LOST if index.dtype in (torch.bool, torch.uint8) else axes[0]
        if not isinstance(index, tuple) or not all(isinstance(one, Tensor) for one in index):
            return LOST
        if _find_marked([index[0]]) or len(first) != self.rows:
            return LOST
        if any(first is one for one in data) and self.axis(first):
            return LOST
        return self._beside(index, going_by, first)

    def _beside(self, index: tuple[Tensor, ...], going_by: list[Any], first: Tensor) -> int:
        """The axis after ``rows[0, 1, ..., places]``, where each example has places of its own."""
        if any(one.dtype == torch.bool for one in index):
            return LOST
        axis: int = MOVES[Tensor.__getitem__]((first, index), {}, 0)
        most = max(one.ndim for one in index)
        aligned = all(self.axis(one) + most - one.ndim == axis for one in going_by)
        return axis if axis >= 0 and aligned else LOST

    def _after_sequence(self, func: Any, args: Sequence[Any], data: list[Any], number: int) -> int:
        found = SEQUENCES[func](args)
        inner = [each for each in data if each.ndim == 3]
        # Time, examples, features; the second axis of masks is time.
        right = all(self.axis(each) == found[0] for each in inner)
        right &= all(self.axis(each) == 0 and len(found) == 2 for each in data if each.ndim != 3)
        # Packed sequences have other arguments.
        right &= args[0] is inner[0] and (
            len(found) == 2
            or not isinstance(args[1], Tensor)
            or (len(data) == 1 and args[1].ndim == 3)
        )
        return found[number] if right else LOST

    def _one_row(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], data: list[Any], number: int
    ) -> int | None:
        """The number of the example, if a call takes a single one out."""
        if len(data) != 1 or not args or args[0] is not data[0]:
            return None
        place = self.of(data[0])
        if place.axis or place.together:
            return None
        if func is Tensor.__iter__:
            return number
        if func in (Tensor.unbind, torch.unbind):
            dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
            return number if dim % data[0].ndim == 0 else None
        if func is Tensor.__getitem__:
            index = args[1][0] if isinstance(args[1], tuple) and args[1] else args[1]
            if type(index) is int:
                return index % self.rows
            if isinstance(index, slice):
                # A slice of numbers only: one that goes by tensors was counted as mixed.
                ends = index.start, index.stop, index.step
                if all(end is None or type(end) is int for end in ends):
                    taken = range(self.rows)[index]
                    return taken[0] if len(taken) == 1 else None
        return None

    def _place_joined(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        places: list[Place],
        one: Any,
    ) -> Place:
        """All examples one after the other, each of which was computed by itself."""
        dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
        in_order = [place.only for place in places] == list(range(self.rows))
        whole = args and len(args[0]) == self.rows and one.ndim and one.shape[0] == self.rows
        if func in _JOINS and dim == 0 and in_order and whole:
            return _IN_PLACE
        return Place(LOST, mixed_by=name_of(func))

    def follow_writing(self, func: Any, args: Sequence[Any], *, is_new: bool) -> None:
        """Note what a call wrote into its first argument, of which it returned nothing.

        ``is_new`` says that nothing of the batch was in it before.
        """
        if isinstance(args[0], Tensor) and is_new and hasattr(args[0], "place"):
            long = args[0].ndim > 0 and args[0].shape[0] == self.rows
            args[0].place = _IN_PLACE if long or self.rows < 2 else UNSEEN
            self.place_written(args[0], args[0]._base)
        if self.rows < 2:
            return
        name = name_of(func)
        if func is Tensor.__setitem__:
            target, index, value = args
            if hasattr(target, "place") and self._writes_apart(target, index, value):
                return
        elif name.endswith("__set__"):
            if func == _SET_GRADIENT or not _find_marked(args[1:]):
                return
        elif not name.endswith("_") or name.endswith("__"):
            return
        for target in _flat((args[0],)):
            if hasattr(target, "place"):
                target.place = Place(LOST, mixed_by=name)
                self._spoil(target, name)

    def _writes_apart(self, target: Any, index: Any, value: Any) -> bool:
        """Whether each example wrote into its own row, or all got the same."""
        axis = self.axis(target)
        if axis < 0:
            return self.of(target).only is not None and not _find_marked([index, value])
        going_by = list(_find_marked([index]))
        if not _find_marked([value]):
            if not going_by:
                return True
            if index is going_by[0]:
                mask = index.dtype == torch.bool and index.ndim <= target.ndim
                return mask and axis == 0 == self.axis(index) and len(index) == len(target)
            tensors = isinstance(index, tuple) and all(isinstance(one, Tensor) for one in index)
            if not tensors or axis or _find_marked([index[0]]) or len(target) != self.rows:
                return False
            return self._beside(index, going_by, target) >= 0
        if going_by or not isinstance(value, Tensor) or self.axis(value) < 0:
            return False
        if not leaves_axis(index, axis, target.ndim):
            return False
        after = MOVES[Tensor.__getitem__]((target, index), {}, axis)
        return after >= 0 and after - target[index].ndim == self.axis(value) - value.ndim

    def place_written(self, target: Any, base: Any) -> None:
        """Place a tensor into which rows of the batch were written, and what it is a view of."""
        if base is None or getattr(base, "place", None) is not UNSEEN:
            return
        place: Place = target.place
        inner = base.is_contiguous() and base.ndim and target.ndim and not place.axis
        inner = inner and target.shape[0] == base.shape[0] == self.rows and not place.mixed_by
        inner = inner and target.stride(0) == base.stride(0)
        inner = inner and target.storage_offset() - base.storage_offset() < max(base.stride(0), 1)
        base.place = (
            place if inner or self.rows < 2 else Place(LOST, mixed_by="a write into a part")
        )

    def _spoil(self, target: Tensor, cause: str) -> None:
        storage = target.untyped_storage()
        self._spoiled[storage.data_ptr()] = storage, cause


def name_of(func: Any) -> str:
    """How a loop spells a call of torch, about."""
    name = getattr(func, "__name__", type(func).__name__)
    if name in ("__get__", "__set__"):
        name = f"{getattr(getattr(func, '__self__', None), '__name__', '')}.{name}"
        return name if name.endswith("__set__") else name.removesuffix(".__get__")
    if name.startswith("__"):
        return {"__getitem__": "indexing", "__setitem__": "writing into parts"}.get(
            name, name.strip("_")
        )
    return str(name)


def _flat(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _flat(value)
        elif isinstance(value, dict):
            yield from _flat(value.values())
        elif isinstance(value, slice):
            yield from _flat((value.start, value.stop, value.step))


def _find_marked(values: Iterable[Any]) -> list[Any]:
    return [one for one in _flat(values) if hasattr(one, "place")]
