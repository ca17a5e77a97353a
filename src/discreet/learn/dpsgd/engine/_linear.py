"""Linear maps: the gradient of an example is a sum of outer products over its positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from discreet.errors import InvalidValue
from discreet.learn.dpsgd.engine._forms import (
    Outer,
    PerExample,
    Source,
    make_leaf,
    wide,
)
from discreet.learn.dpsgd.engine._recorder import NoRule, Recorder, Rule


@final
class Kept:
    """An activation of the forward pass, for one use in the backward pass."""

    __slots__ = ("_site", "_tensor", "_version")

    def __init__(self, tensor: Tensor, site: object) -> None:
        self._tensor: Tensor | None = tensor
        self._version = tensor._version
        self._site = site

    def take(self) -> Tensor:
        """Return it, in single precision at least, and let go of it.

        Raise if it was overwritten or taken before.
        """
        tensor, self._tensor = self._tensor, None
        if tensor is None:
            raise InvalidValue(
                "loss", str(self._site), "one backward pass through each forward pass"
            )
        return wide(require_unchanged_input(tensor, self._version, self._site))


def require_unchanged_input(tensor: Tensor, version: int, site: object) -> Tensor:
    """Return an activation kept from the forward pass, or raise if it was overwritten since."""
    if tensor._version != version:
        raise InvalidValue(
            "model",
            str(site),
            "inputs of layers that are not changed in place after they were used; "
            "use the variant without inplace=True",
        )
    return tensor


def linear(
    recorder: Recorder,
    func: Any,
    input: Tensor,  # noqa: A002
    weight: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    """``input @ weight.T + bias``, for inputs (examples, ..., features)."""
    if type(input) is not Tensor:
        return _linear(recorder, func, input, weight, bias)
    # Its steps are the engine's own; modes, which cost every call, see the result when it is used.
    with torch._C.DisableTorchFunction():
        return _linear(recorder, func, input, weight, bias)


def _linear(
    recorder: Recorder,
    func: Any,
    input: Tensor,  # noqa: A002
    weight: Tensor,
    bias: Tensor | None,
) -> Tensor:
    by_weight, by_bias = recorder.source_of(weight), recorder.source_of(bias)
    if recorder.source_of(input) is not None or weight.ndim != 2:
        raise NoRule(func, recorder.names_in((input, weight, bias), {}))
    if by_weight is None and by_bias is None:
        return func(input, weight, bias)  # type: ignore[no-any-return]
    site: object = None
    for source in (by_bias, by_weight):
        if source is not None:
            site = source.add_use("linear")
    axis = recorder.axes.find(input, leading=input.ndim - 1, site=site)
    # One product over all positions, whatever the number of axes.
    rows = input if input.ndim == 2 else input.reshape(-1, input.shape[-1])
    receive = listener(recorder, by_weight, by_bias, rows, input, axis, site)
    if not rows.requires_grad:
        if bias is None or rows.ndim != 2:
            result = recorder.record_first_layer(lambda: func(rows, weight, bias), receive)
        else:
            # A graph of torch's own is made faster than one of ours; it gets as far as a copy
            # of the bias.
            result = func(rows, weight.detach(), make_leaf(bias.detach()))
            recorder.on_gradient(result, receive)
    else:
        result = func(
            rows,
            weight if by_weight is None else weight.detach(),
            bias if bias is None or by_bias is None else bias.detach(),
        )
        recorder.on_gradient(result, receive)
    return result if input.ndim == 2 else result.view(*input.shape[:-1], weight.shape[0])


def listener(
    recorder: Recorder,
    by_weight: Source | None,
    by_bias: Source | None,
    rows: Tensor,
    data: Tensor,
    axis: int,
    site: object,
) -> Callable[[Tensor], None]:
    """What to do with the output gradient of a linear map on ``rows``, all those of ``data``."""
    kept = Kept(rows, site)
    steps = data.shape[0] if axis == 1 and data.ndim > 2 else 0

    def by_example(matrix: Tensor) -> Tensor:
        if axis == 0:
            return recorder.by_units(matrix, 1) if matrix.shape[0] != recorder.units else matrix
        if steps:
            if matrix.shape[0] == steps * recorder.axes.rows:  # a view is enough
                matrix = matrix.view(steps, recorder.axes.rows, matrix.shape[1])
            else:
                matrix = matrix.view(steps, recorder.axes.rows, -1, matrix.shape[1])
            return recorder.by_units(matrix.transpose(0, 1), 1)
        return recorder.by_units(recorder.axes.rows_first(matrix, axis), 1)

    def receive(gradient: Tensor) -> None:
        left = by_example(gradient)
        if by_weight is None:
            assert by_bias is not None
            recorder.add(by_bias, PerExample(left if left.ndim == 2 else left.sum(1)))
            return
        right = by_example(kept.take())
        add_outer(recorder, by_weight, by_bias, left, right)

    return receive


def add_outer(
    recorder: Recorder, by_weight: Source, by_bias: Source | None, left: Tensor, right: Tensor
) -> None:
    """Keep the factors, or the product where that is cheaper."""
    shape = by_weight.tensor.shape
    kind = by_weight.kind
    if left.dtype != kind or right.dtype != kind:
        left, right = left.to(kind), right.to(kind)
    outer = Outer(left, right, shape)
    if by_bias is not None:
        recorder.add(by_bias, PerExample(left if left.ndim == 2 else left.sum(1)))
    recorder.add(by_weight, outer if left.ndim == 2 else outer.choose_form())


def matmul(recorder: Recorder, func: Any, input: Tensor, other: Tensor) -> Tensor:  # noqa: A002
    """``input @ other`` where ``other`` is a matrix made of parameters."""
    source = recorder.source_of(other)
    if source is None or other.ndim != 2 or recorder.source_of(input) is not None:
        raise NoRule(func, recorder.names_in((input, other), {}))
    site = recorder.site("matmul", source)
    axis = recorder.axes.find(input, leading=input.ndim - 1, site=site)
    kept = Kept(input, site)

    def receive(gradient: Tensor) -> None:
        right = recorder.by_units(recorder.axes.rows_first(gradient, axis), 1)
        left = recorder.by_units(recorder.axes.rows_first(kept.take(), axis), 1)
        add_outer(recorder, source, None, left, right)

    plain = other.detach()
    return recorder.record(lambda: torch.matmul(input, plain), input, receive)


def addmm(
    recorder: Recorder,
    func: Any,
    input: Tensor,  # noqa: A002
    mat1: Tensor,
    mat2: Tensor,
    **factors: Any,
) -> Tensor:
    """``input + mat1 @ mat2``: a bias and a matrix beside rows of examples."""
    by_bias, by_weight = recorder.source_of(input), recorder.source_of(mat2)
    plain_rows = recorder.source_of(mat1) is None and not recorder.is_constant(mat1)
    plain_bias = input.ndim == 1 and (by_bias is not None or recorder.is_constant(input))
    if by_weight is None or not plain_rows or not plain_bias or factors:
        raise NoRule(func, recorder.names_in((input, mat1, mat2), {}))
    if by_bias is not None:
        recorder.site("addmm", by_bias)
    site = recorder.site("addmm", by_weight)
    axis = recorder.axes.find(mat1, leading=1, site=site)
    kept = Kept(mat1, site)

    def receive(gradient: Tensor) -> None:
        right = recorder.by_units(recorder.axes.rows_first(gradient, axis), 1)
        left = recorder.by_units(recorder.axes.rows_first(kept.take(), axis), 1)
        if by_bias is not None:
            recorder.add(by_bias, PerExample(right if right.ndim == 2 else right.sum(1)))
        add_outer(recorder, by_weight, None, left, right)

    bias, matrix = input.detach(), mat2.detach()
    return recorder.record(lambda: torch.addmm(bias, mat1, matrix), mat1, receive)


RULES: dict[Any, Rule] = {
    F.linear: linear,
    torch.addmm: addmm,
    torch.Tensor.addmm: addmm,
    torch.matmul: matmul,
    torch.mm: matmul,
    torch.Tensor.matmul: matmul,
    torch.Tensor.mm: matmul,
    torch.Tensor.__matmul__: matmul,
}
