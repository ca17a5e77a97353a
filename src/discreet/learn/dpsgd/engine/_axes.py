"""Where the examples of a tensor are, followed from call to call, and how to bring them first."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, final
from weakref import ref

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from discreet.errors import InvalidValue, NotApplicable
from discreet.learn.dpsgd.engine._layout import (
    BY_ROW,
    CARRYING,
    FOLLOWED,
    KEEPING,
    LOST,
    MOVES,
    PRODUCTS,
    REORDERED,
    RESHAPING,
    SEQUENCES,
    UnknownOrder,
    flat,
    is_of_two,
    kept_axis,
    looked_up,
    looks_across,
)


class Folds:
    """Remembers, for one forward pass, tensors whose first axis is not one row for each example."""

    def __init__(self) -> None:
        self.rows = 0
        self._together: dict[int, ref[Tensor]] = {}
        self._elsewhere: dict[int, tuple[ref[Tensor], int]] = {}

    def open(self, rows: int) -> None:
        """Forget everything, and expect this many rows."""
        self.rows = rows
        if self._together:
            self._together = {}
        if self._elsewhere:
            self._elsewhere = {}

    def copy(self) -> Folds:
        """The same knowledge, to be added to."""
        other = Folds()
        other.rows = self.rows
        other._together, other._elsewhere = self._together.copy(), self._elsewhere.copy()
        return other

    @property
    def any(self) -> bool:
        """Whether any tensor was noted."""
        return bool(self._together or self._elsewhere)

    def known(self, tensor: Tensor) -> bool:
        """Whether the tensor has several rows for each example, known to lie together."""
        found = self._together.get(id(tensor))
        return found is not None and found() is tensor

    def axis(self, tensor: Tensor) -> int:
        """The axis of the examples, or ``LOST`` or ``REORDERED``."""
        if not self._elsewhere:
            return 0
        found = self._elsewhere.get(id(tensor))
        return found[1] if found is not None and found[0]() is tensor else 0

    def place(self, tensor: Tensor, axis: int) -> None:
        """Note the axis of the examples of a tensor."""
        if axis:
            self._elsewhere[id(tensor)] = (ref(tensor), axis)
        elif self._elsewhere:
            self._elsewhere.pop(id(tensor), None)

    def follow(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        data: list[Tensor],
        result: object,
        *,
        by_rule: bool = False,
    ) -> None:
        """Note where a call that was given ``data`` left the rows in its result.

        ``by_rule`` says that it is a layer, which treats row by row.
        """
        if self.rows < 2 or not data:  # a single example cannot change places
            return
        results = result if isinstance(result, list | tuple) else (result,)
        made = [one for one in results if isinstance(one, Tensor) and one.ndim]
        if not made:
            return
        if func in SEQUENCES:
            worst = min([0, *(self.axis(one) for one in data)])
            for one, axis in zip(made, SEQUENCES[func](args), strict=False):
                self.place(one, REORDERED if worst == REORDERED else axis)
            return
        for one in made:
            self.place(one, self.axis_after(func, args, kwargs, data, one, by_rule=by_rule))
        if by_rule or func in FOLLOWED:
            for one in made:
                if self.lie_together(func, data, one, self.axis(one)):
                    self.place_together(one)

    def axis_after(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        data: list[Tensor],
        one: Tensor,
        *,
        by_rule: bool = False,
    ) -> int:
        """Where the examples are in ``one``, a result of a call that was given ``data``."""
        axes = [self.axis(each) for each in data]
        if min(axes) < 0:
            return min(axes)
        first, axis = data[0], axes[0]
        if func in PRODUCTS:
            operands = list(flat(args))
            places = {
                at: self.axis(one)
                for at, one in enumerate(operands)
                if any(one is each for each in data)
            }
            return PRODUCTS[func](operands, places)
        if func in CARRYING and any(looks_across(func, args, kwargs, each) for each in axes):
            return LOST
        if func in KEEPING or is_of_two(func, args, kwargs):
            if not any(axes) and all(each.ndim in (0, one.ndim) for each in data):
                return 0
            return kept_axis(one, list(zip(data, axes, strict=True)))
        if func in RESHAPING:
            return self._reshaped(first.shape, axis, one.shape)
        if func in MOVES:
            return self._followed(func, args, kwargs, data, axes, one)
        if not by_rule:
            inner = axis < first.ndim - 1 or func in (F.embedding, F.one_hot)
            if func not in BY_ROW or len(data) > 1 or first is not args[0] or not inner:
                return LOST
        return axis if axis < one.ndim and one.shape[axis] == first.shape[axis] else LOST

    def _followed(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        data: list[Tensor],
        axes: Any,
        result: Tensor,
    ) -> int:
        if not isinstance(args[0], list | tuple) and args[0] is not data[0]:
            return looked_up(func, args, kwargs, axes[0]) if len(data) == 1 else LOST
        if isinstance(args[0], list | tuple) and len(set(axes)) > 1:
            return LOST
        axis: int = MOVES[func](args, kwargs, axes[0])
        kept = axis < 0 or result.shape[axis] == data[0].shape[axes[0]]
        return axis if kept else REORDERED  # gathered with fewer places, some rows are gone

    def _reshaped(self, before: Sequence[int], axis: int, after: Sequence[int]) -> int:
        if axis:
            return axis if after[: axis + 1] == before[: axis + 1] else LOST
        if after[0] == self.rows or after[0] % self.rows == 0:
            return 0
        return 1 if tuple(after[:2]) == (1, self.rows) else LOST

    def lie_together(self, func: Any, data: list[Tensor], result: Tensor, axis: int) -> bool:
        """Whether rows of an example still lie together: their axis has kept its length."""
        before = self.axis(data[0])
        if min(axis, before) < 0:
            return False
        size = result.shape[axis]
        if size == self.rows or size % self.rows:
            return False
        if func in RESHAPING:
            first = data[0]
            return self.known(first) or (first.ndim > 0 and first.shape[before] == self.rows)
        wide = [one for one in data if one.ndim]
        return all(self.known(one) and one.shape[self.axis(one)] == size for one in wide)

    def place_together(self, tensor: Tensor) -> None:
        """Note that the axis of the examples has several rows for each, one after the other."""
        self._together[id(tensor)] = ref(tensor)


@final
class Axes:
    """Finds the axis of the examples and brings it to the front."""

    def __init__(self, *, declared: int | None, sequence_first: bool) -> None:
        self.declared = declared
        self.known: int | None = None
        self.rows = 0
        self.folds = Folds()
        self._by_convention = declared == 0 or (declared is None and not sequence_first)
        self._remembered: dict[int, int] = {}
        self._inputs: list[ref[Tensor]] = []

    def open(self, rows: int) -> None:
        """Expect this many rows in the following forward pass."""
        self.rows = rows
        self.known = None
        self._inputs = []
        self.folds.open(rows)

    def copy(self) -> Axes:
        """The same knowledge, to be added to."""
        other = copy.copy(self)
        other.folds, other._inputs = self.folds.copy(), [*self._inputs]
        return other

    def of_input(self, data: Tensor, at: int) -> int:
        """Return the axis of the examples of an input of the model, the ``at``-th tensor of all."""
        self._inputs.append(ref(data))
        if self._by_convention or self.rows < 2 or not data.ndim:
            return 0
        first = data.shape[0] == self.rows
        second = data.ndim > 1 and data.shape[1] == self.rows
        if self.declared == 1 and data.ndim > 1:
            return 1 if second else LOST
        if first != second:
            self._remembered[at] = 0 if first else 1
        elif not first:
            return LOST
        return self._remembered.get(at, LOST)

    def _is_input(self, data: Tensor) -> bool:
        return any(one() is data for one in self._inputs)

    def find(self, data: Tensor, *, leading: int, site: object) -> int:
        """Return 0 or 1, the axis of examples among the first ``leading`` axes of ``data``.

        ``-1`` stands for a first axis of (time, batch) merged, time being outermost: torch's own
        sequence layers do that.
        """
        rows = self.rows
        shape = data.shape
        if leading < 1:
            raise NotApplicable(f"{site}: an input of {len(shape)} axes has no axis for examples")
        if rows == 1:  # all of it belongs to the one example
            return 0
        first = shape[0] == rows
        second = leading > 1 and shape[1] == rows
        wanted = self.folds.axis(data) if self.known is None else self.known
        if wanted == 0 and (first or self._cut(data, site)):
            return 0
        if wanted == 1 and second:
            return 1
        if wanted == 1 and leading == 1 and self.known is not None:
            if first:
                return 0
            if rows and shape[0] % rows == 0:
                return -1
        if wanted and not self._is_input(data):
            raise UnknownOrder(site, shape)
        raise self.wrong(shape, site, wanted)

    def first(self, data: Tensor, *, site: object) -> None:
        """Check that the examples are along the first axis, as in images."""
        self.expect(data, 0, site)
        if data.shape[0] != self.rows and not self._cut(data, site):
            raise self.wrong(data.shape, site, 0)

    def expect(self, data: Tensor, axis: int, site: object) -> None:
        """Raise if the examples are along another axis, or along none that can be told."""
        if self.rows < 2 or self.folds.axis(data) == axis:
            return
        if self.folds.axis(data) != LOST or not self._is_input(data):
            raise UnknownOrder(site, data.shape)
        self.folds.place(data, axis)  # sizes did not tell, but this layer declares it

    def in_order(self, data: Tensor, site: object) -> None:
        """Raise if the examples changed places among each other."""
        if self.folds.axis(data) == REORDERED:
            raise UnknownOrder(site, data.shape)

    def _cut(self, data: Tensor, site: object) -> bool:
        """Whether the first axis may be cut into examples; raise where its order is unknown."""
        rows, size = self.rows, data.shape[0]
        if rows == 1:  # whatever the order, all of it belongs to the one example
            return True
        if not rows or size % rows:
            return False
        if not size or self.folds.known(data):
            return True
        if data.ndim > 1 and data.shape[1] == rows and self._is_input(data):
            return False  # more likely (time, examples, ...)
        raise UnknownOrder(site, data.shape)

    def wrong(self, shape: torch.Size, site: object, wanted: int | None) -> InvalidValue:
        """Return the error that asks for the axis of the examples."""
        axis = "second" if wanted == 1 or (wanted and self.declared == 1) else "first"
        return InvalidValue(
            "input",
            f"a tensor of {len(shape)} axes",
            f"the examples along the {axis} axis in {site}; "
            "declare batch_axis=0 or 1 if the axis cannot be told from the shape",
        )

    def rows_first(self, tensor: Tensor, axis: int) -> Tensor:
        """Return (rows, terms, ...) or, where every row has one term, (rows, ...)."""
        rows = self.rows
        if axis == 0:
            if tensor.shape[0] == rows:
                return tensor
            return tensor.reshape(rows, tensor.shape[0] // rows, *tensor.shape[1:])
        if axis == 1:
            return tensor.transpose(0, 1)
        return tensor.reshape(tensor.shape[0] // rows, rows, *tensor.shape[1:]).transpose(0, 1)
