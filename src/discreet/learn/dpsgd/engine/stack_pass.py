"""What one pass through a plain stack of linear layers leaves for norms and weighted sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from discreet.learn.dpsgd.engine.compiled_stack import Loops, require_row, suit_norms
from discreet.learn.dpsgd.engine.contributions import Versions, scalar
from discreet.learn.dpsgd.engine.rounding import allowance, lengths, lost

__all__ = ["StackPass"]


@final
class StackPass:
    """What one forward and backward pass left: for each layer both factors of its gradients.

    The gradient of example ``i`` is ``left[i] right[i]^T`` for a weight and ``left[i]`` for its
    bias, where every layer has both and both are trained. ``norms``, of shape (1, rows), are the
    squares that :meth:`squared_norms` would find, if they are known, and ``is_finite`` that all of
    them are. ``owns_last`` says that the gradient of the result belongs to nobody else.
    """

    __slots__ = ("_lefts", "_loops", "_norms", "_owns_last", "_rights", "_versions", "is_finite")

    def __init__(
        self,
        lefts: list[Tensor],
        rights: list[Tensor],
        loops: Loops | None,
        *,
        norms: Tensor | None = None,
        is_finite: bool = False,
        owns_last: bool = False,
    ) -> None:
        self.is_finite = is_finite  # as far as anybody has looked
        self._loops = loops
        self._norms = norms
        self._owns_last = owns_last
        self._lefts = lefts
        self._rights = rights
        self._versions: Versions | None = Versions(*lefts, *rights)

    def squared_norms(self, factor: float) -> Tensor:
        """``factor`` times the squared norms of the examples' gradients, for clipping: (1, rows).

        Nothing here has a graph behind it, so autograd need not be switched off.
        """
        factor *= allowance(self._lefts[0])
        if self._norms is not None:
            return self._norms if factor == 1.0 else self._norms * factor
        least = lost(max([left.shape[1] for left in self._lefts]), self._lefts[0])
        if self._loops is not None and suit_norms(self._lefts, self._rights):
            norms, self.is_finite = self._loops.norms(self._lefts, self._rights, least, factor)
            return norms
        lefts = [_squares(left) for left in self._lefts]
        rights = [lengths(right) for right in self._rights]
        single = len(lefts) == 1
        left = lefts[0] if single else torch.stack(lefts)
        right = rights[0] if single else torch.stack(rights)
        # |left|^2 |right|^2 for a weight and |left|^2 for its bias.
        squares = torch.addcmul(scalar(factor, right), right, right, value=factor)
        squares.mul_(left.add_(least))
        return squares.unsqueeze(0) if single else squares.sum(0, keepdim=True)

    def check(self) -> None:
        """Raise if a factor was written to since, by others or for the last use."""
        if self._versions is None:
            raise RuntimeError("a pass whose last use has begun cannot be used again")
        self._versions.check()

    def factors(self) -> tuple[list[Tensor], list[Tensor]]:
        """The left and the right ones, unchanged."""
        self.check()
        return self._lefts, self._rights

    def add_to(
        self, totals: Sequence[Tensor], weights: Tensor, factor: float, *, last: bool
    ) -> None:
        """Add the weighted sum to weight and bias of every layer in turn.

        If it is the ``last`` use, what lies between the layers is overwritten, to save memory.
        The inputs belong to others.
        """
        self.check()
        if last:
            self._versions = None  # loops write without torch's noticing
        if weights.dtype != self._lefts[0].dtype:
            weights = weights.to(self._lefts[0].dtype)
        if self._loops is not None and weights.dtype == torch.float32 and weights.is_contiguous():
            self._add_by_loops(self._loops, totals, weights, factor, last=last)
            return
        column = weights.unsqueeze(1)
        final = len(self._lefts) - 1
        for at, (left, right) in enumerate(zip(self._lefts, self._rights, strict=True)):
            totals[2 * at + 1].addmv_(left.t(), weights, alpha=factor)
            if left.shape[1] <= right.shape[1]:
                mine = last and (at < final or self._owns_last)
                left = left.mul_(column) if mine else left * column
            else:
                right = right.mul_(column) if last and at > 0 else right * column
            totals[2 * at].addmm_(left.t(), right, alpha=factor)

    def _add_by_loops(
        self, loops: Loops, totals: Sequence[Tensor], weights: Tensor, factor: float, *, last: bool
    ) -> None:
        weighted, biases = [], []
        final = len(self._lefts) - 1
        for at, left in enumerate(self._lefts):
            mine = last and (at < final or self._owns_last)
            if not mine or not left.is_contiguous():
                left = left.clone(memory_format=torch.contiguous_format)
            total = totals[2 * at + 1]
            require_row(total, left)
            weighted.append(left)
            biases.append(total)
        loops.weigh(weighted, weights, factor, biases)
        for left, right, total in zip(weighted, self._rights, totals[::2], strict=True):
            total.addmm_(left.t(), right)


def _squares(rows: Tensor) -> Tensor:
    """The squared length of each row; a matrix that lies transposed is added up row upon row."""
    if rows.stride(1) == 1:
        return lengths(rows).square_()
    return rows.t().square().sum(0)
