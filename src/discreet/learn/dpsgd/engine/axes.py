"""Which axis of a tensor runs over the examples.

Sizes alone cannot tell: a batch of 64 sequences of length 64 looks the same either way. So
the axis is known (inside torch's own sequence layers, which declare ``batch_first``), declared
(``batch_axis``), or follows the convention that examples come first; in a model that contains
a sequence-first layer that convention is not assumed, and an undecidable shape is refused.
The convention holds for the inputs of the model; where an axis went from there, :mod:`.folds` says.
A first axis that is a multiple of the examples is cut into them only where :mod:`.folds` knows
that the rows of one example lie together.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from discreet.errors import InvalidValue, NotApplicable
from discreet.learn.dpsgd.engine.folds import Folds
from discreet.learn.dpsgd.engine.row_axes import REORDERED

__all__ = ["Axes", "UnknownOrder", "contains_sequence_first", "declared_axis"]


class UnknownOrder(Exception):
    """A first axis holds rows of examples in an order that nothing tells, or something else."""

    def __init__(self, site: object, shape: torch.Size) -> None:
        # No sizes: how many examples were drawn is private, and this may end up in a log.
        super().__init__(
            f"{site}: no telling which rows of an input of {len(shape)} axes belong to which of "
            "the examples"
        )


def declared_axis(module: nn.Module) -> int | None:
    """Return the axis of examples that a module declares by its ``batch_first``, if it does."""
    if isinstance(module, nn.TransformerEncoder | nn.TransformerDecoder):
        module = module.layers[0]
    if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
        module = module.self_attn
    first = getattr(module, "batch_first", None)
    return (0 if first else 1) if isinstance(first, bool) else None


def contains_sequence_first(model: nn.Module) -> bool:
    """Whether some layer of the model takes (time, batch, features)."""
    return any(declared_axis(module) == 1 for module in model.modules())


@final
class Axes:
    """Finds the axis of the examples and brings it to the front."""

    def __init__(self, *, declared: int | None, sequence_first: bool) -> None:
        self.declared = declared
        self.known: int | None = None
        self.rows = 0
        self.sequence_first = sequence_first
        self.folds = Folds()
        self.by_convention = not sequence_first and declared != 1
        self._remembered: dict[str, int] = {}

    def open(self, rows: int) -> None:
        """Expect so many rows in the following forward pass."""
        self.rows = rows
        self.known = None
        self.folds.open(rows)

    def find(self, data: Tensor, *, leading: int, site: object) -> int:
        """Return 0 or 1, the axis of examples among the first ``leading`` axes of ``data``.

        ``-1`` stands for a first axis of (time, batch) merged, time being outermost: torch's own
        sequence layers do that.
        """
        rows = self.rows
        shape = data.shape
        if leading < 1:
            raise NotApplicable(f"{site}: an input of {len(shape)} axes has no axis for examples")
        first = shape[0] == rows
        second = leading > 1 and shape[1] == rows
        wanted = self.known if self.known is not None else self.declared
        if wanted is None and not self.sequence_first:
            wanted = 0
            if first and rows > 1 and self.folds.axis(data):
                raise UnknownOrder(site, shape)
        if wanted == 0 and (first or self._cut(data, site, transposed=second)):
            return 0
        if wanted == 1 and second:
            return 1
        if wanted == 1 and leading == 1:
            if first:
                return 0
            if rows and shape[0] % rows == 0:
                if self.known is None:
                    raise UnknownOrder(site, shape)
                return -1
        if wanted is None:
            if first != second:
                axis = 0 if first else 1
                self._remembered[str(site)] = axis
                return axis
            if first and str(site) in self._remembered:
                return self._remembered[str(site)]
        raise self._wrong(shape, site, wanted)

    def first(self, data: Tensor, *, site: object) -> None:
        """Check that the examples are along the first axis, as in images."""
        if data.shape[0] != self.rows and not self._cut(data, site):
            raise self._wrong(data.shape, site, 0)
        self.in_place(data, site)

    def in_place(self, data: Tensor, site: object) -> None:
        """Raise if the examples are not where the convention, if it holds, has them."""
        if self.by_convention and self.rows > 1 and self.folds.axis(data):
            raise UnknownOrder(site, data.shape)

    def in_order(self, data: Tensor, site: object) -> None:
        """Raise if the examples changed places among each other."""
        if self.by_convention and self.folds.axis(data) == REORDERED:
            raise UnknownOrder(site, data.shape)

    def _cut(self, data: Tensor, site: object, *, transposed: bool = False) -> bool:
        """Whether the first axis may be cut into examples; raise where its order is unknown."""
        rows, size = self.rows, data.shape[0]
        if rows == 1:  # whatever the order, all of it belongs to the one example
            return True
        if not rows or size % rows:
            return False
        if not size or self.folds.known(data):
            return True
        if transposed:  # more likely (time, examples, ...)
            return False
        raise UnknownOrder(site, data.shape)

    def _wrong(self, shape: torch.Size, site: object, wanted: int | None) -> InvalidValue:
        return InvalidValue(
            "input",
            f"a tensor of {len(shape)} axes",
            f"the examples along {'the second axis' if wanted else 'the first axis'} in {site}; "
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
