"""Where the examples are in the tensors of a forward pass, as far as the engine has seen.

Two things no shape tells. A first axis as long as the batch may be another axis that happens to
be as long, or hold the examples in another order. And ``x.reshape(examples * time, d)`` and
``x.transpose(0, 1).reshape(time * examples, d)`` have the same shape, but only the first has a
first axis that may be cut into examples. So the calls that move, reorder, merge or split axes are
followed from the inputs of the model on. What was reordered, merged in another way or lost from
sight is not taken for the examples; the module around it runs example by example instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final
from weakref import ref

from torch import Tensor

from discreet.learn.dpsgd.engine.row_axes import (
    KEEPING,
    LOST,
    MOVES,
    REORDERED,
    RESHAPING,
    SEQUENCES,
    flat,
    kept_axis,
)

__all__ = ["FOLLOWED", "Folds", "flat"]

FOLLOWED = frozenset({*RESHAPING, *MOVES, *KEEPING, *SEQUENCES})


@final
class Folds:
    """Remembers, for one forward pass, tensors whose first axis is not one row for each example."""

    def __init__(self) -> None:
        self.rows = 0
        self._together: dict[int, ref[Tensor]] = {}
        self._elsewhere: dict[int, tuple[ref[Tensor], int]] = {}

    def open(self, rows: int) -> None:
        """Forget all, and expect so many rows."""
        self.rows = rows
        if self._together:
            self._together = {}
        if self._elsewhere:
            self._elsewhere = {}

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
            self.place(one, self._axis_after(func, args, kwargs, data, one))
        if len(made) == 1 and (by_rule or func in FOLLOWED):
            self._note_together(func, args, kwargs, data, made[0])

    def _axis_after(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        data: list[Tensor],
        one: Tensor,
    ) -> int:
        if self._elsewhere:
            axes = [self.axis(each) for each in data]
            if min(axes) < 0:
                return min(axes)
        else:
            axes = [0] * len(data)
        if self._together and any(self.known(each) for each in data):
            return 0  # several rows for each example: judged by its own rules
        first, axis = data[0], axes[0]
        if func in KEEPING:
            if not any(axes) and all(each.ndim in (0, one.ndim) for each in data):
                return 0
            return kept_axis(one, list(zip(data, axes, strict=True)))
        if func in RESHAPING:
            return self._reshaped(first.shape, axis, one.shape)
        move = MOVES.get(func)
        if move is not None:
            return self._followed(move, args, kwargs, data, axes)
        if not any(axes):
            return 0
        same = one.ndim == first.ndim and one.shape[axis] == self.rows
        return axis if same else LOST

    def _followed(
        self, move: Any, args: Sequence[Any], kwargs: dict[str, Any], data: list[Tensor], axes: Any
    ) -> int:
        if not isinstance(args[0], list | tuple) and args[0] is not data[0]:
            # Looked up in a table that all share: the rows are those of the index.
            return axes[0] if len(data) == 1 else LOST
        if isinstance(args[0], list | tuple) and len(set(axes)) > 1:
            return LOST
        axis: int = move(args, kwargs, axes[0])
        return axis

    def _reshaped(self, before: Sequence[int], axis: int, after: Sequence[int]) -> int:
        if axis:
            return axis if after[: axis + 1] == before[: axis + 1] else LOST
        if after[0] == self.rows or after[0] % self.rows == 0:
            return 0
        return 1 if tuple(after[:2]) == (1, self.rows) else LOST

    def _note_together(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        data: list[Tensor],
        result: Tensor,
    ) -> None:
        first, size = data[0], result.shape[0]
        if size == self.rows or size % self.rows or self.axis(first):
            return
        if func in RESHAPING:
            together = self.known(first) or (first.ndim > 0 and first.shape[0] == self.rows)
        else:
            wide = [one for one in data if one.ndim]
            together = all(self.known(one) and one.shape[0] == size for one in wide)
            if func in MOVES and together:
                together = MOVES[func](args, kwargs, 0) == 0
        if together:
            self._together[id(result)] = ref(result)
