"""Whether it matters for an example how far its batch was padded.

A ``collate`` that pads to the longest of the batch lets one long record change what the model
sees of all others. That is harmless if the model masks what was padded, or reads lengths, and
otherwise nothing that the clipping bounds is bounded. :func:`~discreet.learn.dpsgd.check_isolation`
cannot see it: its made-up batches have one shape. So a short example of the first batch is given to
a copy of the model by itself, and padded as far as a longer one needs, by the real ``collate``.
Nothing of it is shown; only a refusal says that there was a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset, default_collate

from discreet.errors import NotApplicable, PlanViolation
from discreet.learn.dpsgd._lineage import plain
from discreet.learn.dpsgd._step import OpenBatch, Watch
from discreet.learn.dpsgd._tensors import close, exchange_tensors, leaves_of, readings, size_of
from discreet.learn.dpsgd.isolation._subject import Shaken, shaken_copies, still

# Of the first batch so many examples are looked at.
MOST = 64
# So often the length of an example is doubled, to get beyond what all batches are padded to.
_DOUBLED = 8
# So much larger are the parameters of copies that are to remember for longer. A change of this
# share shows whether rounding matters to them.
_STRETCHES = (3.0, 5.0, 10.0, 20.0, 30.0)
_ROUNDING = 1e-13
_ERRORS = (
    AttributeError,
    IndexError,
    KeyError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)

Pair = tuple[Any, Any]
"""A batch of one example, and a batch of it and a longer one."""

_FELT = (
    "an example's result changes with the padding of its batch, which is as long as the longest "
    "example needs, so one record changes the gradients of all others and clipping bounds "
    "nothing. Mask what was padded or use the lengths inside of the model (an Embedding's "
    "padding_idx is not enough: noise moves that row too), or let collate pad every batch to one "
    "length that was chosen before looking at the data"
)
_CUT = (
    "collate cuts the examples of a batch to the shortest of them, so one short record changes the "
    "gradients of all others and clipping bounds nothing. Cut all to one length that was chosen "
    "before looking at the data"
)
_UNKNOWN = (
    "collate pads each batch to its longest example, and whether that changes anything for the "
    "others could not be tried out: {}. Let collate pad every batch to one length that was chosen "
    "before looking at the data, or vouch for the model by isolation='vouched'"
)


def shapes_of(batch: Any) -> list[torch.Size]:
    """The shapes of all tensors of a batch."""
    return [one.shape for one in leaves_of(batch)]


def padded_pair(items: Sequence[Any], collate: Callable[[list[Any]], Any] | None) -> Pair | None:
    """Batches with and without more padding of one example, or ``None`` if none is padded.

    If the examples are all padded equally far, one of them is cut short, and if that has no effect,
    because batches are padded to a multiple or as far as any before, made longer.
    """
    collate = collate or default_collate
    alone = [collate([item]) for item in items[:MOST]]
    sizes = [sum(shape.numel() for shape in shapes_of(batch)) for batch in alone]
    least, most = sizes.index(min(sizes)), sizes.index(max(sizes))
    if shapes_of(alone[least]) != shapes_of(alone[most]):
        try:
            both = collate([items[least], items[most]])
        except _ERRORS:
            return None  # examples of different lengths cannot be in one batch
        _require_steady(alone[least], collate([items[least]]))
        if _is_cut(alone[most], both):
            raise PlanViolation(_CUT)
        return alone[least], both
    item, length = items[0], _length(items[0])
    if length < 2:
        return None  # nothing to cut
    halves = [length >> times for times in range(1, length.bit_length())]
    for other in [*halves, *(length << times for times in range(1, _DOUBLED))]:
        try:
            changed = _resize(item, length, other)
            first = collate([changed])
            if shapes_of(first) == shapes_of(alone[0]):
                continue
            if other < length:
                return first, collate([changed, item])
            return alone[0], collate([item, changed])
        except _ERRORS:
            return None
    return None


def _is_cut(alone: Any, both: Any) -> bool:
    """Whether the rows of an example became shorter beside a shorter one."""
    pairs = zip(shapes_of(alone), shapes_of(both), strict=False)
    return any(
        less < size for one, other in pairs for size, less in zip(one[1:], other[1:], strict=False)
    )


def _require_steady(batch: Any, again: Any) -> None:
    """Raise if one example became two different batches: then padding is not all that differs."""
    alike = shapes_of(batch) == shapes_of(again)
    if alike and not all(map(torch.equal, leaves_of(batch), leaves_of(again))):
        raise NotApplicable(
            _UNKNOWN.format("collate draws at random (draw for each example in __getitem__)")
        )


def require_padding_ignored(
    model: nn.Module, pair: Pair, run: Callable[[nn.Module, Any], Any]
) -> None:
    """Raise unless ``run(model, batch)`` gives the example of a pair the same in both batches."""
    reason = ""
    for double in (True, False):
        try:
            for copied in shaken_copies(model, double=double):
                if _feels_padding(copied, pair, run):
                    raise PlanViolation(_FELT)
            break
        except NotApplicable:
            raise
        except _ERRORS as error:
            if isinstance(error, PlanViolation):
                raise
            reason = f"the model raised {type(error).__name__} on one or two examples"
    else:
        raise NotApplicable(_UNKNOWN.format(reason))  # out here: their words may hold values
    for stretch in _STRETCHES:
        if _feels_when_stretched(model, pair, run, stretch):
            raise PlanViolation(_FELT)


def _feels_padding(copied: Shaken, pair: Pair, run: Callable[[nn.Module, Any], Any]) -> bool:
    """Whether a copy of the model gives the example of a pair other results in both batches."""
    with still(), torch.no_grad():
        one, both = (leaves_of(run(copied.model, copied.cast(batch))) for batch in pair)
    if not all(bool(part.isfinite().all()) for part in (*one, *both)):
        raise ValueError("outputs that are not finite")
    return not _same_in_some_row(one, both, copied.tolerance)


def _feels_when_stretched(
    model: nn.Module, pair: Pair, run: Callable[[nn.Module, Any], Any], stretch: float
) -> bool:
    """Whether a copy with larger parameters of any sign, which remembers longer, feels the padding.

    A recurrent layer may forget everything over many padded steps, and learn to remember. A copy
    that fails or to which rounding matters shows nothing.
    """
    signs = torch.Generator().manual_seed(int(stretch))
    try:
        copied = next(shaken_copies(model, double=True, copies=1))
        with torch.no_grad():
            for one in copied.model.parameters():
                one.mul_(stretch * (2 * torch.randint(2, one.shape, generator=signs) - 1))
        seen = []
        for factor in (1.0, 1.0 + _ROUNDING):
            with still(), torch.no_grad():
                for one in copied.model.parameters():
                    one.mul_(factor)
                seen.append(leaves_of(run(copied.model, copied.cast(pair[0]))))
        steady = len(seen[0]) == len(seen[1]) and all(
            close(a, b, scale=size_of(a), tolerance=copied.tolerance / 10.0)
            for a, b in zip(*seen, strict=True)
        )
        return steady and _feels_padding(copied, pair, run)
    except (*_ERRORS, NotApplicable):
        return False


def _same_in_some_row(one: list[Tensor], both: list[Tensor], tolerance: float) -> bool:
    """Whether a row of the larger batch is the example; a collate may sort its rows."""
    if len(one) != len(both):
        return False
    pairs = [(alone, among) for alone, among in zip(one, both, strict=True) if alone.ndim]
    return any(all(_same(alone, among, row, tolerance) for alone, among in pairs) for row in (0, 1))


def _same(alone: Tensor, among: Tensor, row: int, tolerance: float) -> bool:
    found = readings(among, alone, (2, 1))
    if not found:
        return alone.shape == among.shape  # not of single examples
    return any(
        close(
            reading.part(alone, 0, 1),
            reading.part(among, row, 2),
            scale=size_of(alone),
            tolerance=tolerance,
        )
        for reading in found
    )


@final
class PaddingWatch(Watch):
    """Guards against a ``collate`` that pads to the longest example, for a model that feels it.

    Whether batches are padded shows by ``collate``, or because their shapes vary. Then the first
    call of the model shows how it is called on a batch, and it is tried out once on a pair.
    ``losses_of(model, batch)``, where it is known, is tried out at once.
    """

    def __init__(
        self, model: nn.Module, losses_of: Callable[[nn.Module, Any], Any] | None = None
    ) -> None:
        self._model = model
        self._losses_of = losses_of
        self._shapes: list[torch.Size] | None = None
        self._is_settled = False
        self._handle: Any = None

    def open(self, batch: OpenBatch) -> None:
        """Have it tried out whether padding is felt, if batches are padded."""
        if self._is_settled or batch.chunk.empty or batch.loading is None:
            return
        pair = self._new_pair(batch.loading, batch.chunk.places, batch.data)
        if pair is None:
            return
        if self._losses_of is not None:
            require_padding_ignored(self._model, pair, self._losses_of)
            self._is_settled = True
            return
        self._pair = pair
        self._parts = _parts(batch.data)
        self._known = [plain(one) for one in leaves_of(batch.data)]
        hook = _PaddingHook(self)
        self._handle = self._model.register_forward_pre_hook(hook, with_kwargs=True)

    def remove(self) -> None:
        """Try it out at another batch, unless it is settled."""
        if self._handle is not None:
            self._handle.remove()
            self._handle, self._shapes = None, None

    def _new_pair(self, loading: Any, places: Sequence[int], data: Any) -> Pair | None:
        """A pair to try out; most batches have the shapes of the last."""
        if type(loading.dataset) is TensorDataset and loading.collate is None:
            return None
        shapes = [shape[1:] for shape in shapes_of(data)]
        if shapes == self._shapes:
            return None
        # Torch's own collate does not pad; a data set may.
        first = self._shapes is None and loading.collate is None
        pair: Pair | None = None if first else loading.padded_pair(places)
        if pair is None:
            self._shapes = shapes
        return pair

    def judge(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise unless the model gives one result however far an example is padded."""

        def run(copied: nn.Module, batch: Any) -> Any:
            given, named = self._arguments(batch, args, kwargs)
            return copied(*given, **named)

        self.remove()
        require_padding_ignored(self._model, self._pair, run)
        self._is_settled = True

    def _arguments(self, batch: Any, args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
        """The same arguments as ``args`` and ``kwargs``, taken from another batch."""
        there, leaves = _parts(batch), leaves_of(batch)

        def moved(one: Tensor) -> Tensor:
            one = plain(one)
            for at, other in enumerate(self._known):
                if one.shape == other.shape and torch.equal(one, other.to(one)):
                    leaf = leaves[at]  # in the precision of the copy that it is for
                    same_kind = leaf.is_floating_point() and one.is_floating_point()
                    return leaf if same_kind else leaf.to(one.dtype)
            raise NotApplicable(
                _UNKNOWN.format("the model is given tensors that are not those of the batch")
            )

        def taken(value: Any) -> Any:
            for name, part in self._parts.items():
                if part is value and name in there:
                    return there[name]
            return exchange_tensors(value, moved)

        return [taken(one) for one in args], {name: taken(one) for name, one in kwargs.items()}


@final
class _PaddingHook:
    """Hears of the first call of a model; that of a copy does nothing."""

    def __init__(self, watch: PaddingWatch | None) -> None:
        self._watch = watch

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self._watch is not None and module.training and torch.is_grad_enabled():
            self._watch.judge(args, kwargs)

    def __deepcopy__(self, memo: object) -> _PaddingHook:
        return _PaddingHook(None)

    def __reduce__(self) -> tuple[Any, ...]:
        return _PaddingHook, (None,)


def _parts(batch: Any) -> dict[Any, Any]:
    if isinstance(batch, list | tuple):
        return dict(enumerate(batch))
    return dict(batch) if hasattr(batch, "keys") else {0: batch}


def _is_sequence(value: Any) -> bool:
    if isinstance(value, Tensor | np.ndarray):
        return bool(value.ndim)
    plain = isinstance(value, list) and all(isinstance(one, int | float | str) for one in value)
    return plain or isinstance(value, str)


def _length(item: Any) -> int:
    """The length of the first sequence in an example; 0 if there is none to cut."""
    if _is_sequence(item):
        return len(item)
    inner = item.values() if isinstance(item, dict) else item
    lengths = map(_length, inner if isinstance(inner, list | tuple) or inner is not item else ())
    return next((length for length in lengths if length > 1), 0)


def _resize(value: Any, length: int, other: int) -> Any:
    """An example with its sequences of this length, and numbers that tell it, made ``other`` long.

    Shorter ones are cut, longer ones repeat their first entry.
    """
    if _is_sequence(value):
        if len(value) != length:
            return value
        more = max(0, other - length)
        if isinstance(value, Tensor):
            return torch.cat([value[:other], *[value[:1]] * more])
        if isinstance(value, np.ndarray):
            return np.concatenate([value[:other], *[value[:1]] * more])
        return value[:other] + value[:1] * more
    if isinstance(value, dict):
        return {key: _resize(one, length, other) for key, one in value.items()}
    if isinstance(value, list | tuple):
        parts = [_resize(one, length, other) for one in value]
        if hasattr(value, "_fields"):
            return type(value)(*parts)
        return type(value)(parts)
    if isinstance(value, Tensor | np.ndarray) or type(value) is int:
        return value * 0 + other if value == length else value
    return value
