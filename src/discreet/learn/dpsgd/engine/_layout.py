"""Where the rows of the examples go: the axis that they run along after a torch call.

A tensor has its examples along the first axis unless something moved them. These functions tell
for one call where that axis is afterwards. ``REORDERED`` says that the examples changed places
or are no longer all there, ``LOST`` that the axis cannot be told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, final
from weakref import ref

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from discreet.errors import InvalidValue, NotApplicable

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


def _selected(_: Sequence[Any], __: dict[str, Any], ___: int) -> int:
    """What is taken, counted or put by values has its examples anywhere."""
    return REORDERED


def _multiplied(args: Sequence[Any], axes: dict[int, int]) -> int:
    """A product of matrices: what is summed over must not be the examples.

    ``axes`` has the axis of the examples in the factors that have one.
    """
    left, right = args[:2]
    if axes.get(0) == left.ndim - 1 or axes.get(1) == max(right.ndim - 2, 0):
        return REORDERED
    depth = max(left.ndim, right.ndim)
    found = {axis + int(depth - args[at].ndim) for at, axis in axes.items()}
    return found.pop() if len(found) == 1 and 1 not in (left.ndim, right.ndim) else LOST


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


def _reduced(args: Sequence[Any], kwargs: dict[str, Any], axis: int) -> int:
    named = _dims(args, kwargs, 1, ("dim", "axis"))
    if axis in named:
        return REORDERED
    keeps = kwargs.get("keepdim", len(args) > 2 and args[2] is True)
    return axis if keeps else axis - sum(dim < axis for dim in set(named))


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
        | _table("std", "var", "argmax", "argmin", "median"),
        _reduced,
    ),
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
}

# From the arguments and the axes of those with examples, by place, to the axis of the result.
PRODUCTS: dict[Any, Callable[[Sequence[Any], dict[int, int]], int]] = {
    **dict.fromkeys(_table("matmul", "__matmul__", "bmm", "mm", "mv"), _multiplied),
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
    "dropout dropout_ bernoulli cpu tril triu floor_divide __floordiv__ __rpow__ nan_to_num"
)
_ACTIVATIONS = (
    "relu gelu silu elu selu celu leaky_relu relu6 hardswish hardsigmoid hardtanh mish "
    "softplus softsign tanh sigmoid logsigmoid dropout alpha_dropout softmax log_softmax glu "
    "normalize layer_norm rms_norm group_norm instance_norm max_pool1d max_pool2d max_pool3d "
    "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d "
    "adaptive_max_pool1d adaptive_max_pool2d scaled_dot_product_attention pad"
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
BY_ROW |= {F.linear, F.unfold, F.conv1d, F.conv2d, F.conv3d}
FOLLOWED = frozenset({*RESHAPING, *MOVES, *KEEPING, *SEQUENCES, *PRODUCTS})


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
            self.place(one, self._axis_after(func, args, kwargs, data, one, by_rule))
        if len(made) == 1 and (by_rule or func in FOLLOWED):
            self._note_together(func, args, kwargs, data, made[0])

    def _axis_after(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        data: list[Tensor],
        one: Tensor,
        by_rule: bool,
    ) -> int:
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
        if func in KEEPING:
            if not any(axes) and all(each.ndim in (0, one.ndim) for each in data):
                return 0
            return kept_axis(one, list(zip(data, axes, strict=True)))
        if func in RESHAPING:
            return self._reshaped(first.shape, axis, one.shape)
        move = MOVES.get(func)
        if move is not None:
            return self._followed(move, args, kwargs, data, axes)
        if not by_rule:
            inner = axis < first.ndim - 1 or func in (F.embedding, F.one_hot)
            if func not in BY_ROW or len(data) > 1 or first is not args[0] or not inner:
                return LOST
        return axis if axis < one.ndim and one.shape[axis] == first.shape[axis] else LOST

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
        self.folds = Folds()
        self._by_convention = declared == 0 or (declared is None and not sequence_first)
        self._remembered: dict[int, int] = {}
        self._inputs: list[ref[Tensor]] = []

    def open(self, rows: int) -> None:
        """Expect so many rows in the following forward pass."""
        self.rows = rows
        self.known = None
        self._inputs = []
        self.folds.open(rows)

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
