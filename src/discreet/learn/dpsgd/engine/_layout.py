"""Where the rows of the examples go: the axis that they run along after a torch call.

A tensor has its examples along the first axis unless something moved them. These functions tell
for one call where that axis is afterwards. ``REORDERED`` says that the examples changed places
or are no longer all there, ``LOST`` that the axis cannot be told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

LOST, REORDERED = -1, -2

# From the arguments and the axis of the first one to the axis of the result.
Move = Callable[[Sequence[Any], dict[str, Any], int], int]


def flat(values: Sequence[Any]) -> Iterator[Any]:
    """Arguments with lists and tuples opened."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from value
        else:
            yield value


def _whole_numbers(values: Sequence[Any]) -> list[int]:
    return [one for one in flat(values) if isinstance(one, int) and not isinstance(one, bool)]


def _first(args: Sequence[Any]) -> Tensor:
    found: Tensor = next(one for one in flat(args) if isinstance(one, Tensor))
    return found


def _dims(args: Sequence[Any], kwargs: dict[str, Any], at: int, names: Sequence[str]) -> list[int]:
    """The axes that a call names at one place, counted from the front."""
    given = args[at] if len(args) > at else next((kwargs[n] for n in names if n in kwargs), None)
    if given is None or isinstance(given, Tensor | str):
        return []
    # Caches begin with an empty tensor of one axis, to which torch lets others be joined.
    size = max(one.ndim for one in flat(args[:1]) if isinstance(one, Tensor)) or 1
    return [one % size for one in _whole_numbers([given])]


def _exchanged(args: Sequence[Any], kwargs: dict[str, Any], axis: int) -> int:
    named = _whole_numbers([*args[1:], *kwargs.values()])
    if len(named) != 2:
        return LOST
    one, other = (dim % args[0].ndim for dim in named)
    return other if axis == one else one if axis == other else axis


def _permuted(args: Sequence[Any], kwargs: dict[str, Any], axis: int) -> int:
    order = [one % args[0].ndim for one in _whole_numbers([*args[1:], *kwargs.values()])]
    return order.index(axis) if axis in order else LOST


def _moved(args: Sequence[Any], kwargs: dict[str, Any], axis: int) -> int:
    named = _whole_numbers([*args[1:], *kwargs.values()])
    if len(named) != 2:
        return LOST
    start, end = (dim % args[0].ndim for dim in named)
    order = [dim for dim in range(args[0].ndim) if dim != start]
    order.insert(end, start)
    return order.index(axis)


def _turned(args: Sequence[Any], _: dict[str, Any], axis: int) -> int:
    return int(args[0].ndim) - 1 - axis


def _turned_matrix(args: Sequence[Any], _: dict[str, Any], axis: int) -> int:
    last = args[0].ndim - 1
    return last if axis == last - 1 else last - 1 if axis == last else axis


def _along(at: int, *, default: int | None = None, every: bool = False) -> Move:
    """A call that changes the order along the axes named at ``at``; ``every``: if none is."""

    def move(args: Sequence[Any], kwargs: dict[str, Any], axis: int) -> int:
        named = _dims(args, kwargs, at, ("dim", "dims", "axis"))
        if not named and default is not None:
            named = [default % max(_first(args).ndim, 1)]
        return REORDERED if axis in named or (every and not named) else axis

    return move


def _flipped(args: Sequence[Any], kwargs: dict[str, Any], axis: int) -> int:
    named = _whole_numbers([*args[1:], *kwargs.values()])
    return REORDERED if axis in [dim % args[0].ndim for dim in named] else axis


def _taken_out(args: Sequence[Any], kwargs: dict[str, Any], axis: int) -> int:
    at = (_dims(args, kwargs, 1, ("dim",)) or [0])[0]
    return REORDERED if at == axis else axis - (at < axis)


def _put_in(args: Sequence[Any], kwargs: dict[str, Any], axis: int) -> int:
    given: int = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    return axis + int(given % (_first(args).ndim + 1) <= axis)


def _squeezed(args: Sequence[Any], kwargs: dict[str, Any], axis: int) -> int:
    shape = args[0].shape
    named = _dims(args, kwargs, 1, ("dim",)) or range(len(shape))
    return axis - len([dim for dim in set(named) if dim < axis and shape[dim] == 1])


def _padded(args: Sequence[Any], kwargs: dict[str, Any], axis: int) -> int:
    widths = args[1] if len(args) > 1 else kwargs["pad"]
    return axis if axis < args[0].ndim - len(widths) // 2 else REORDERED


def _repeated(args: Sequence[Any], kwargs: dict[str, Any], axis: int) -> int:
    times = _whole_numbers([*args[1:], *kwargs.values()])
    place = axis + len(times) - int(args[0].ndim)
    return place if times[place] == 1 else REORDERED


def _selected(_: Sequence[Any], __: dict[str, Any], ___: int) -> int:
    """What is taken, counted or put by values has its examples anywhere."""
    return REORDERED


def _multiplied(args: Sequence[Any], axes: dict[int, int]) -> int:
    """A product of matrices: what is summed over must not be the examples.

    ``axes`` has the axis of the examples in the factors that have one.
    """
    if len(args) < 2:  # by name
        return LOST
    left, right = args[:2]
    if axes.get(0) == left.ndim - 1 or axes.get(1) == max(right.ndim - 2, 0):
        return REORDERED
    depth = max(left.ndim, right.ndim)
    found = {axis + int(depth - args[at].ndim) for at, axis in axes.items()}
    return found.pop() if len(found) == 1 and 1 not in (left.ndim, right.ndim) else LOST


def _multiplied_and_added(args: Sequence[Any], axes: dict[int, int]) -> int:
    """``torch.addmm`` and its kind, where what is added has no examples."""
    if len(args) < 3 or 0 in axes:
        return LOST
    return _multiplied(args[1:], {at - 1: axis for at, axis in axes.items()})


def _summed(args: Sequence[Any], axes: dict[int, int]) -> int:
    """``torch.einsum``: the examples are where their letter is, the same in all operands."""
    equation = args[0].replace(" ", "") if isinstance(args[0], str) else ""
    terms, arrow, result = equation.partition("->")
    if not arrow or "." in equation:
        return LOST
    letters = {terms.split(",")[at - 1][axis] for at, axis in axes.items()}
    letter = letters.pop()
    found: int = result.index(letter) if not letters and letter in result else REORDERED
    return found


def _reduced(args: Sequence[Any], kwargs: dict[str, Any], axis: int, at: int = 1) -> int:
    named = _dims(args, kwargs, at, ("dim", "axis"))
    if axis in named:
        return REORDERED
    keeps = kwargs.get("keepdim", len(args) > at + 1 and args[at + 1] is True)
    return axis if keeps else axis - sum(dim < axis for dim in set(named))


def _normed(args: Sequence[Any], kwargs: dict[str, Any], axis: int) -> int:
    return _reduced(args, kwargs, axis, 2)


def _indexed(args: Sequence[Any], _: dict[str, Any], axis: int) -> int:
    index = args[1] if isinstance(args[1], tuple) else (args[1],)
    if len(index) > axis and axis == 0 and isinstance(index[0], Tensor):
        return _counted(index, args[0].shape[0])
    before, after = 0, 0  # axes of the tensor and of the result that were passed
    for at, one in enumerate(index):
        if before > axis:
            return after - 1 if _in_one_piece(index, at) else LOST
        if one is None:
            after += 1
        elif one is Ellipsis:
            left = sum(not (rest is None or rest is Ellipsis) for rest in index[at + 1 :])
            skipped = args[0].ndim - before - left
            if axis < before + skipped:
                return after + axis - before if _in_one_piece(index, at) else LOST
            before, after = before + skipped, after + skipped
        elif isinstance(one, slice):
            if before == axis and one != slice(None):
                return REORDERED
            before, after = before + 1, after + 1
        elif isinstance(one, int) and not isinstance(one, bool):
            if before == axis:
                return REORDERED
            before += 1
        else:
            return REORDERED if before == axis else LOST
    return after + axis - before if before <= axis else after - 1


def _in_one_piece(index: Sequence[Any], at: int) -> bool:
    """Whether axes before ``at`` stay in front: lists of places move to the front if scattered."""
    if not any(_is_list(one) for one in index):
        return True
    picked = [n for n, one in enumerate(index) if _is_list(one) or isinstance(one, int)]
    return picked[0] >= at and picked[-1] - picked[0] == len(picked) - 1


def _is_list(index: object) -> bool:
    return isinstance(index, Tensor | list | bool)


def _counted(index: Sequence[Any], rows: int) -> int:
    """The axis of the examples after ``states[numbers, places]``, where numbers are 0, 1, 2, ...

    As in ``states[torch.arange(rows), last]`` and ``mask[numbers[:, None, None], places]``.
    """
    numbers = index[0]
    if numbers.dtype != torch.int64 or numbers.numel() != rows or rows not in numbers.shape:
        return REORDERED
    if not torch.equal(numbers.reshape(-1), torch.arange(rows, device=numbers.device)):
        return REORDERED
    if len(index) > 1 and not all(isinstance(one, Tensor) for one in index):
        return 0 if numbers.ndim == 1 else LOST
    most = max(one.ndim for one in index)
    place: int = list(numbers.shape).index(rows) + most - numbers.ndim
    return place


def _table(*names: str) -> set[Any]:
    found: set[Any] = set()
    for name in names:
        for home in (torch.Tensor, torch):
            if hasattr(home, name):
                found.add(getattr(home, name))
    return found


def _getter(name: str) -> Any:
    return getattr(torch.Tensor, name).__get__


MOVES: dict[Any, Move] = {
    **dict.fromkeys(_table("transpose", "swapaxes", "swapdims"), _exchanged),
    **dict.fromkeys(_table("permute"), _permuted),
    **dict.fromkeys(_table("movedim", "moveaxis"), _moved),
    **dict.fromkeys({*_table("t"), _getter("T")}, _turned),
    _getter("mT"): _turned_matrix,
    **dict.fromkeys(_table("flip"), _flipped),
    **dict.fromkeys(_table("flipud", "vstack", "msort"), _along(99, default=0)),
    **dict.fromkeys(_table("roll"), _along(2, every=True)),
    **dict.fromkeys(_table("index_select", "gather", "narrow"), _along(1)),
    **dict.fromkeys(_table("repeat_interleave"), _along(2, every=True)),
    **dict.fromkeys(_table("sort", "argsort"), _along(1, default=-1)),
    **dict.fromkeys(_table("topk"), _along(2, default=-1)),
    **dict.fromkeys(_table("take_along_dim"), _along(2, every=True)),
    **dict.fromkeys(_table("cat", "concat", "concatenate"), _along(1, default=0)),
    **dict.fromkeys(_table("chunk", "split", "tensor_split"), _along(2, default=0)),
    **dict.fromkeys({*_table("unbind", "select"), torch.Tensor.__iter__}, _taken_out),
    **dict.fromkeys({*_table("unsqueeze"), torch.stack}, _put_in),
    **dict.fromkeys(_table("squeeze"), _squeezed),
    **dict.fromkeys(
        _table("sum", "mean", "amax", "amin", "max", "min", "prod", "any", "all", "logsumexp")
        | _table("std", "var", "argmax", "argmin", "median", "nansum", "nanmean")
        | _table("count_nonzero"),
        _reduced,
    ),
    **dict.fromkeys({*_table("norm"), torch.linalg.vector_norm}, _normed),
    **dict.fromkeys(
        _table("index_add", "index_add_", "index_copy", "index_copy_", "index_reduce", "scatter")
        | _table("scatter_", "scatter_add", "scatter_add_", "scatter_reduce", "cumsum", "cumprod")
        | _table("cummax", "cummin", "logcumsumexp"),
        _along(1),
    ),
    **dict.fromkeys(
        _table("argwhere", "bincount", "index_put", "index_put_", "kron", "masked_scatter")
        | _table("masked_scatter_", "masked_select", "nonzero", "outer", "tensordot", "unique")
        | _table("unique_consecutive", "take", "put", "put_"),
        _selected,
    ),
    torch.Tensor.__getitem__: _indexed,
    F.pad: _padded,
    torch.Tensor.repeat: _repeated,
}

# From the arguments and the axes of those with examples, by place, to the axis of the result.
PRODUCTS: dict[Any, Callable[[Sequence[Any], dict[int, int]], int]] = {
    **dict.fromkeys(_table("matmul", "__matmul__", "bmm", "mm", "mv"), _multiplied),
    **dict.fromkeys(_table("addmm", "baddbmm"), _multiplied_and_added),
    torch.einsum: _summed,
}

RESHAPING = frozenset(_table("reshape", "view", "flatten", "unflatten"))


def _pointwise() -> Iterator[Any]:
    """Calls that torch itself marks as computed element by element, in all their spellings."""
    for home in (torch.Tensor, torch, F, torch.special):
        for name in dir(home):
            plain = name.strip("_").removeprefix("special_")
            plain = plain[1:] if name[:3] in ("__r", "__i") and plain[1:] in _OPERATORS else plain
            packet: Any = getattr(torch.ops.aten, _OPERATORS.get(plain, plain), None)
            if not hasattr(packet, "overloads") or plain in ("max", "min"):
                continue
            if any(
                torch.Tag.pointwise in getattr(packet, each).tags for each in packet.overloads()
            ):
                yield getattr(home, name)


_OPERATORS = {"truediv": "div", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}
_OPERATORS |= {"invert": "bitwise_not", "mod": "remainder", "floordiv": "floor_divide"}
_OPERATORS |= {name: name for name in ("add", "sub", "mul", "div", "pow")}
_SAME_SHAPE = (
    "to float double half bfloat16 int long bool type type_as clone detach contiguous softmax "
    "log_softmax expand expand_as broadcast_to masked_fill masked_fill_ copy_ fill_ zero_ "
    "requires_grad_ zeros_like ones_like full_like empty_like rand_like randn_like where "
    "dropout dropout_ bernoulli cpu tril triu floor_divide __floordiv__ __rpow__ nan_to_num "
    "cuda xpu pin_memory byte char short randint_like bernoulli_ normal_ uniform_ random_"
)
_ACTIVATIONS = (
    "relu gelu silu elu selu celu leaky_relu relu6 hardswish hardsigmoid hardtanh mish "
    "softplus softsign tanh sigmoid logsigmoid dropout alpha_dropout softmax log_softmax glu "
    "normalize layer_norm rms_norm group_norm instance_norm batch_norm local_response_norm "
    "dropout1d dropout2d dropout3d feature_alpha_dropout rrelu prelu tanhshrink "
    "max_pool1d max_pool2d max_pool3d "
    "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d "
    "adaptive_max_pool1d adaptive_max_pool2d scaled_dot_product_attention"
)
# Element by element, or along inner axes; shapes are row_copies at their ends.
KEEPING = frozenset(
    {
        *_pointwise(),
        *_table(*_SAME_SHAPE.split()),
        *(_getter(name) for name in ("data", "real", "imag")),
        *(getattr(F, name) for name in _ACTIVATIONS.split()),
        torch.max_pool1d,
    }
)


def kept_axis(result: Tensor, places: Sequence[tuple[Tensor, int]]) -> int:
    """Where the examples are in what was computed element by element from several tensors."""
    found = {axis - one.ndim for one, axis in places if one.ndim}
    if len(found) != 1:
        return LOST
    axis = result.ndim + found.pop()
    return axis if 0 <= axis < result.ndim else LOST


_EXTREMES = _table("max", "min")
_LOOKUPS = _table("gather", "take_along_dim")
_SELECTS = _table("index_select")


def is_of_two(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a call takes the larger or smaller of two tensors, element by element."""
    return func in _EXTREMES and isinstance(
        args[1] if len(args) > 1 else kwargs.get("other"), Tensor
    )


def looked_up(func: Any, args: Sequence[Any], kwargs: dict[str, Any], axis: int) -> int:
    """The axis of the examples in what an index of theirs took from a table that all share."""
    if func in _LOOKUPS:
        return axis
    if func in _SELECTS:
        return axis if (args[1] if len(args) > 1 else kwargs.get("dim")) == 0 else LOST
    if func is not torch.Tensor.__getitem__:
        return LOST
    index = args[1]
    plain = isinstance(index, Tensor) and index.dtype not in (torch.bool, torch.uint8)
    return axis if plain else LOST


def _after_attention(_: Sequence[Any]) -> list[int]:
    return [1, 0]


def _after_recurrence(args: Sequence[Any]) -> list[int]:
    return [0 if args[-1] is True else 1, 1, 1]


# Sequence layers: the axes of their results.
SEQUENCES: dict[Any, Callable[[Sequence[Any]], list[int]]] = {
    F.multi_head_attention_forward: _after_attention,
    torch.lstm: _after_recurrence,
    torch.gru: _after_recurrence,
    torch.rnn_tanh: _after_recurrence,
    torch.rnn_relu: _after_recurrence,
}


# Row by row, with other shapes behind the first axis.
BY_ROW = frozenset({F.embedding, F.one_hot, F.interpolate, F.pixel_shuffle, F.pixel_unshuffle})
BY_ROW |= {F.linear, F.unfold, F.conv1d, F.conv2d, F.conv3d, F.grid_sample, F.affine_grid}
FOLLOWED = frozenset({*RESHAPING, *MOVES, *KEEPING, *SEQUENCES, *PRODUCTS})


# Calls that leave the examples in their places, unless they compute along the axis of the examples.
_AXIS_NAMED = {
    **dict.fromkeys({*_table("softmax", "log_softmax"), F.softmax, F.log_softmax}, (1, None)),
    F.glu: (1, -1),
    F.normalize: (2, 1),
}
_IMAGES = {getattr(F, f"{kind}_pool{n}d"): n for kind in ("max", "avg") for n in (1, 2, 3)}
_IMAGES |= {getattr(F, f"adaptive_{kind}_pool{n}d"): n for kind in ("max", "avg") for n in (1, 2)}
_IMAGES |= {torch.max_pool1d: 1}
_BATCHED = {F.conv1d: 3, F.conv2d: 4, F.conv3d: 5, F.unfold: 4, F.pixel_shuffle: 4}
_BATCHED |= {F.pixel_unshuffle: 4, F.interpolate: 3, F.grid_sample: 4, F.affine_grid: 3}
_BATCHED |= {F.group_norm: 2, F.instance_norm: 3, F.local_response_norm: 3, F.batch_norm: 2}
_LOOKING = frozenset({*_AXIS_NAMED, *_IMAGES, *_BATCHED, F.layer_norm, F.rms_norm})
_LOOKING |= {F.scaled_dot_product_attention, torch.where}
# Of these, what can carry rows to other places. All others mix the examples, whatever their values,
# which is for the isolation check to refuse by name.
CARRYING = frozenset({F.conv1d, F.conv2d, F.conv3d, F.unfold, F.pixel_shuffle, F.pixel_unshuffle})
CARRYING |= {F.interpolate, F.grid_sample, F.affine_grid}
CARRYING |= {F.scaled_dot_product_attention, torch.where}


def looks_across(func: Any, args: Sequence[Any], kwargs: dict[str, Any], axis: int) -> bool:
    """Whether a call that keeps places computes along the axis of the examples, or may."""
    if func not in _LOOKING:
        return False
    if func is torch.where:  # of one tensor: the places where it is not 0
        return len(args) + len(kwargs) < 3
    first = args[0] if args else kwargs.get("input", kwargs.get("query"))
    depth: int = first.ndim if isinstance(first, Tensor) else 0
    if not depth:
        return True
    if func in _AXIS_NAMED:
        at, default = _AXIS_NAMED[func]
        dim = args[at] if len(args) > at else kwargs.get("dim", default)
        if dim is None:  # as torch chooses it
            dim = 0 if depth in (1, 3) else 1
        return not isinstance(dim, int) or dim % depth == axis
    if func in (F.layer_norm, F.rms_norm):
        shape = args[1] if len(args) > 1 else kwargs["normalized_shape"]
        return axis + len(shape) >= depth
    if func is F.batch_norm and (args[5] if len(args) > 5 else kwargs.get("training", False)):
        return True
    if func in _BATCHED:
        return axis != 0 or depth < _BATCHED[func]
    if func in _IMAGES:
        return axis >= depth - _IMAGES[func]
    if func is F.scaled_dot_product_attention:
        return axis >= depth - 2
    return False


# Losses element by element, and those of whole rows: how many of their arguments have rows.
ELEMENTWISE_LOSSES = frozenset(
    {F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy, F.kl_div}
    | {F.binary_cross_entropy_with_logits, F.poisson_nll_loss, F.soft_margin_loss}
    | {F.hinge_embedding_loss, F.margin_ranking_loss}
)
ROW_LOSSES = {
    F.cross_entropy: 2,
    F.nll_loss: 2,
    F.multi_margin_loss: 2,
    F.multilabel_margin_loss: 2,
    F.multilabel_soft_margin_loss: 2,
    F.gaussian_nll_loss: 3,
    F.cosine_embedding_loss: 3,
    F.triplet_margin_loss: 3,
    F.cosine_similarity: 2,
    F.pairwise_distance: 2,
}


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


def leaves_axis(index: Any, axis: int, ndim: int) -> bool:
    """Say whether an index takes all of an axis in order."""
    items = list(index) if isinstance(index, tuple) else [index]
    for at, item in enumerate(items):
        if item is Ellipsis:
            items[at : at + 1] = [slice(None)] * (ndim - len(items) + 1)
            break
    plain = all(isinstance(item, int | slice) for item in items)
    return plain and axis >= 0 and (axis >= len(items) or items[axis] == slice(None))


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
